"""How deep the layers lie that an answer rests on: the depth score, for questions of more and more hops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from .._checks import choice, listed, number, resampling, shown
from ..components import Component, component_columns
from ..ensemble.intervals import jackknife, leave_one_out, mean_interval, wilson
from ..ensemble.regression import Slope, slope
from ..errors import InputError
from ..model.load import load_model
from ..results import Result
from .inputs import read_answers
from .layer_effects import Effect, Measured
from .residual_norms import Part
from .skipping import FirstToken

# Answers that all the layers together move by less are rounding, and have no depth.
_SMALLEST = 1e-5


@dataclass(frozen=True, eq=False, repr=False)
class DepthScore(Result):
    """What every layer matters for the answer of every question, and how deep that is on average.

    effects
        `[question, layer]`: e_l = ‖softmax − softmax'‖₂ over the vocabulary when layer l is interfered with, at the
        positions and in the way that `effect` says; between 0 and √2.
    groups
        `[question]`: the number of hops, the difficulty, or what else `by` says.
    lengths, answer_lengths
        `[question]`: tokens of the question and of its answer.
    probability, rank
        `[question]`: the answer's probability, the product over its tokens; and the worst rank of one of its tokens
        among all that could stand there. At 1, the model answers so by itself (greedily).
    ids
        What each question is called.
    components
        The layers, in order of use; the l of the score is the place here, from 0.
    by, effect, part, first_token, draws, seed
        As asked for.

    The score of a question is Σ l·e_l / Σ e_l, in layers; it is NaN where no layer changes the answer. That of a group
    is the same of its mean effects, as published: questions weigh as much as their effects.
    After *Do Language Models Use Their Depth Efficiently?* (arXiv 2505.13898).
    """

    components: tuple[Component, ...]
    effects: Float[np.ndarray, "question layer"]
    groups: Float[np.ndarray, " question"]
    lengths: Int[np.ndarray, " question"]
    answer_lengths: Int[np.ndarray, " question"]
    probability: Float[np.ndarray, " question"]
    rank: Int[np.ndarray, " question"]
    ids: tuple[str, ...]
    by: str
    effect: str
    part: str
    model: str
    n_resamples: int = 1000
    seed: int = 0
    first_token: str = "kept"

    @cached_property
    def shares(self) -> Float[np.ndarray, "question layer"]:
        """e_l / Σ e_l; NaN for a question without effect."""
        total = self.effects.sum(1, keepdims=True)
        return np.divide(self.effects, total, out=np.full_like(self.effects, np.nan), where=total > _SMALLEST)

    @cached_property
    def scores(self) -> Float[np.ndarray, " question"]:
        """Σ l·e_l / Σ e_l of every question, in layers from 0."""
        return self.shares @ np.arange(len(self.components))

    @property
    def slope(self) -> Slope:
        """By how many layers the groups' score is deeper for each further hop; questions of all lengths alike."""
        return slope(self.groups, self.scores, None, self.n_resamples, self.seed, self.effects.sum(1))

    @property
    def slope_at_length(self) -> Slope:
        """The same between questions of equal length: more hops take more words, which alone may move the score."""
        beside = self.lengths.astype(float)
        return slope(self.groups, self.scores, beside, self.n_resamples, self.seed, self.effects.sum(1))

    def correct_only(self) -> DepthScore:
        """The same of only the questions that the model answers rightly. Raises InputError where there is none."""
        kept = np.flatnonzero(self.rank == 1)
        if not len(kept):
            raise InputError(f"{self.model} answers none of these questions rightly: give easier ones.")
        names = ("effects", "groups", "lengths", "answer_lengths", "probability", "rank")
        return replace(
            self, ids=tuple(self.ids[i] for i in kept), **{name: getattr(self, name)[kept] for name in names}
        )

    def frame(self) -> pd.DataFrame:
        """One row per group.

        `n`: questions that have a score. `score`: that of their mean effects in layers, with its 95 % interval over
        questions; `relative`: the same as a share of the depth, 0 the first layer, 1 the last. `accuracy`: how many
        the model answers rightly, with Wilson's interval; `probability`, `length`, `answer_length`: means.
        """
        rows = []
        last = len(self.components) - 1
        for group, here in self._groups():
            hits = int((self.rank[here] == 1).sum())
            row = {"group": group, "n": int(np.isfinite(self.scores[here]).sum())}
            for name, value in zip(("", "_low", "_high"), self._score(here), strict=True):
                row |= {f"score{name}": value, f"relative{name}": value / last if last else np.nan}
            right = (hits / here.sum(), *wilson(hits, int(here.sum())))
            row |= dict(zip(("accuracy", "accuracy_low", "accuracy_high"), right, strict=True))
            means = ("probability", "lengths", "answer_lengths")
            row |= {name.removesuffix("s"): float(getattr(self, name)[here].mean()) for name in means}
            rows.append(row)
        first = ["group", "n", "score", "score_low", "score_high", "relative", "relative_low", "relative_high"]
        frame = pd.DataFrame(rows)
        frame = frame[[*first, *(name for name in frame if name not in first)]]
        frame.attrs["units"] = {"group": self.by, "score": "layers", "relative": "share of the depth"}
        frame.attrs["units"] |= {"length": "tokens", "answer_length": "tokens"}
        frame.attrs["intervals"] = "95 % intervals over the questions of a group, where it has at least 8"
        return frame

    def by_layer(self) -> pd.DataFrame:
        """One row per group and layer: the mean of `effect`, its `share` of all layers', and 95 % intervals.

        A group's score is Σ l·share_l.
        """
        frames = []
        for group, here in self._groups():
            columns: dict[str, Any] = {"group": group, "n": int(np.isfinite(self.scores[here]).sum())}
            columns |= component_columns(self.components)
            values = self.effects[here]
            low, high = mean_interval(values)
            columns |= {"effect": values.mean(0), "effect_low": low, "effect_high": high}
            whole = values.sum(1, keepdims=True)
            known = whole.sum() > _SMALLEST
            share = values.sum(0) / whole.sum() if known else np.full(values.shape[1], np.nan)
            low, high = jackknife(share, leave_one_out(values, whole), within=(0.0, 1.0))
            columns |= {"share": share, "share_low": low, "share_high": high}
            frames.append(pd.DataFrame(columns))
        frame = pd.concat(frames, ignore_index=True)
        frame.attrs["units"] = {"group": self.by, "effect": "‖Δ softmax‖₂", "share": "share of all layers' effects"}
        return frame

    def by_question(self) -> pd.DataFrame:
        """One row per question: what it is called, its score, and whether the model can answer it at all."""
        columns = {"id": self.ids, "group": self.groups, "score": self.scores, "probability": self.probability}
        columns |= {"rank": self.rank, "right": self.rank == 1}
        columns |= {"length": self.lengths, "answer_length": self.answer_lengths}
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = {"score": "layers", "length": "tokens", "answer_length": "tokens"}
        return frame

    def _score(self, here: Bool[np.ndarray, " question"]) -> tuple[float, float, float]:
        """The score of some questions' mean effects, and its interval over them."""
        values = self.effects[here]
        weighted, whole = values @ np.arange(values.shape[1]), values.sum(1)
        if not whole.sum() > _SMALLEST:
            return np.nan, np.nan, np.nan
        score = weighted.sum() / whole.sum()
        low, high = jackknife(score, leave_one_out(weighted, whole), within=(0.0, values.shape[1] - 1.0))
        return float(score), float(low), float(high)

    def _groups(self) -> Iterable[tuple[float, Bool[np.ndarray, " question"]]]:
        return ((float(group), self.groups == group) for group in np.unique(self.groups))


def depth_score(
    model: Any,
    questions: Any,
    *,
    effect: Effect = "published",
    part: Part = "layer",
    first_token: FirstToken = "kept",
    by: Any = None,
    n_resamples: int = 1000,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> DepthScore:
    """The depth score Σ l·e_l / Σ e_l of every question: does a model use later layers for harder ones?

    The score of Csordás et al. (arXiv 2505.13898) by the rule of their released code, which is the default. They show
    a second one, of what later layers do differently, and of long answers take several cuts inside: not so here.

    model
        A `Model`, or anything `load_model` takes.
    questions
        `ld.depth.questions(…)`, a list of (text, answer, number of hops), or a `Task` with `by`. The answer, exactly
        as it is written, stands behind its text while every layer in turn is interfered with, and the change of the
        probabilities is measured where its tokens are predicted.
    effect
        "published": the layer writes nothing at the tokens before the answer's first, and e is the maximum over the
        positions from that token to the end. So what predicts the answer's first token is skipped at and not
        measured, and what comes after the answer is. The others measure where the answer's tokens are predicted, and
        e is the mean over those: "skip": the layer writes nothing, at any token; "skip_before": nothing at the tokens
        before the one that predicts the answer: what the answer needs others to compute; "erase": the same tokens
        become the mean token (over all questions, first tokens left out) where they enter the layer: what the answer
        has not yet read of them.
    first_token
        Whether a text's first token is interfered with too: "kept" (published, for heads rest on it, whatever it is)
        or "changed".
    part
        What a skip silences: the "layer", its "attn" or its "mlp".
    by
        One number per question instead of its own hops or difficulty.
    draws, seed
        Resamples over questions and permutations, for the intervals and p.
    batch_tokens
        The most padded tokens in one forward pass. Of each, the streams of all layers are kept, twice.

    Costs about half a pass of every question for each layer. Raises InputError for questions that cannot be used
    (none, an answer without tokens, nothing before the answer, hops that are no number), and for an unknown effect or
    part.

    >>> import layerdiv_tl as ld
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tiny = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=8, vocab_size=16, n_positions=32))
    >>> found = ld.depth.depth_score(tiny, [([1, 2, 3], [4], 1), ([4, 5, 6, 7], [2, 2], 2)])
    >>> found.frame()[["group", "length", "answer_length"]].values.tolist()
    [[1.0, 3.0, 1.0], [2.0, 4.0, 2.0]]
    """
    known = {"effect": (effect, Effect), "part": (part, Part), "first_token": (first_token, FirstToken)}
    for name, (value, values) in known.items():
        choice(name, value, get_args(values))
    if effect == "published" and first_token != "kept":
        raise InputError(f"effect='published' keeps the first token: leave first_token={first_token!r} out.")
    if effect == "erase" and part != "layer":
        raise InputError(f"effect='erase' erases the stream that enters a layer: leave part={part!r} out.")
    resampling(n_resamples, seed)
    texts, answers, groups, names, label = _read(questions, by)
    model = load_model(model)
    ids, behind = read_answers(model, texts, answers)
    starts = [len(row) - length for row, length in zip(ids, behind, strict=True)]
    kept = first_token == "kept"
    least = 1 + kept + (effect in ("skip_before", "erase"))
    for place, start in enumerate(starts):
        if start < least:
            raise InputError(
                f"question {place} has {start} token{'s' * (start != 1)}, but effect={effect!r} needs {least}"
                f"{', the first of which is kept' * kept}: give a longer one."
            )
    measured = Measured(model, ids, starts, effect, part, first_token, model.checked_batch_tokens(batch_tokens))
    return DepthScore(
        components=measured.components,
        effects=measured.effects,
        groups=groups,
        lengths=np.array(starts),
        answer_lengths=np.array(behind),
        probability=measured.probability,
        rank=measured.rank,
        ids=names,
        by=label,
        effect=effect,
        part=part,
        model=model.name,
        n_resamples=int(n_resamples),
        seed=int(seed),
        first_token=first_token,
    )


def _read(questions: Any, by: Any) -> tuple[Any, Any, Float[np.ndarray, " question"], tuple[str, ...], str]:
    """(texts, answers, groups, names, what the groups are)."""
    if all(hasattr(questions, name) for name in ("texts", "answers", "groups", "ids", "by")):
        texts, answers, groups = questions.texts, questions.answers, questions.groups
        names, label = questions.ids, questions.by
    elif hasattr(questions, "options") and hasattr(questions, "labels"):
        texts, answers = questions.prompts, [questions.options[label] for label in questions.labels]
        names, label, groups = tuple(map(str, range(len(texts)))), "group", None
        if by is None:
            raise InputError("a task does not say how many hops its rows take: give by=, one number per row.")
    else:
        rows = listed("questions", questions, "ld.depth.questions(…), or a list of (text, answer, hops)")
        for place, row in enumerate(rows):
            if not isinstance(row, list | tuple) or len(row) != 3:
                raise InputError(f"question {place} is {shown(row)}: give it as (text, answer, number of hops).")
        texts, answers, groups = ([row[i] for row in rows] for i in range(3))
        names, label = tuple(map(str, range(len(rows)))), "hops"
    if not len(texts):
        raise InputError("there are no questions: give at least one.")
    if by is not None:
        groups, label = listed("by", by, "a list of one number for each question"), "group"
        if len(groups) != len(texts):
            raise InputError(f"by={shown(by)} does not fit {len(texts)} questions: give one number for each.")
    return texts, answers, _numbers(groups), names, label


def _numbers(groups: Any) -> Float[np.ndarray, " question"]:
    # More than this is no count, and its squares lose the digits of the slope.
    return np.array([number(f"hops of question {i}", x, least=-1e6, most=1e6) for i, x in enumerate(groups)])
