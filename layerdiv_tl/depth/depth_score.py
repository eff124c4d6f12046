"""The depth score: the mean depth of the layers that an answer depends on, by the question's number of hops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..components import Component, component_columns
from ..ensemble.fits import slope
from ..ensemble.intervals import Estimate, estimate, estimate_function, estimates_frame
from ..errors import InputError
from ..model.load import as_model
from ..results import Plot, Result
from .engine import (
    Rows,
    ablate,
    layer_components,
    layer_count,
    loss_and_hits,
    run_patches,
    softmax_change,
    tokens_between,
)
from .inputs import read_answers
from .patched_forward import PatchedForward
from .readings import SOFTMAX_CHANGE

# Smaller total effects of all layers are rounding and have no depth.
_SMALLEST = 1e-5


@dataclass(frozen=True, eq=False, repr=False)
class DepthScore(Result):
    """The effect of every layer on the answer of every question, and its mean depth.

    Attributes:
        components: The layers in order of use, which the score's l indexes from 0.
        effects: e_l = ‖softmax − softmax'‖₂ over the vocabulary when layer l is skipped, the maximum over
            the answer's positions; between 0 and √2.
        questions: `[question]` each: `group`, the number of hops or another difficulty; `length` and `answer_length` in
            tokens; `probability` of the answer, the product over its tokens; `rank`, the worst of
            its tokens in the vocabulary, after all ties: 1 where greedy decoding gives the answer; and `correct`,
            whether it does, 1/n where n tokens tie for first place.

    The score of a question is Σ l·e_l / Σ e_l, in layers; it is NaN where no layer changes the answer. A group's score
    uses its mean effects, as published, so questions weigh in proportion to their effects.
    After *Do Language Models Use Their Depth Efficiently?* (arXiv 2505.13898).
    """

    components: tuple[Component, ...]
    effects: Float[np.ndarray, "question layer"]
    questions: dict[str, np.ndarray]
    by: str
    model: str

    @cached_property
    def scores(self) -> Float[np.ndarray, " question"]:
        """Σ l·e_l / Σ e_l of every question, in layers from 0; NaN for one without effects."""
        total = self.effects.sum(1)
        weighted = self.effects @ np.arange(len(self.components))
        return np.divide(weighted, total, out=np.full(len(total), np.nan), where=total > _SMALLEST)

    @property
    def slope(self) -> Estimate:
        """Layers by which the score deepens for each further hop, over questions of all lengths."""
        return slope(self.questions["group"], self.scores, weights=self.effects.sum(1))

    @property
    def slope_at_length(self) -> Estimate:
        """The slope at equal question length: more hops take more words, which alone may move the score."""
        lengths = self.questions["length"].astype(float)
        return slope(self.questions["group"], self.scores, lengths, weights=self.effects.sum(1))

    def __repr__(self) -> str:
        score = self._score(np.ones(len(self.effects), dtype=bool)).value
        what = f"{len(self.effects)} questions × {len(self.components)} layers"
        return f"DepthScore({self.model}: {what}; depth score {score:.3g} layers)"

    figures: ClassVar = {
        "lines": Plot(
            "Each layer's share of the effects",
            "A line per group of questions; a group's depth score is the mean layer of its line.",
            "shapes.lines",
            "by_layer",
            {"columns": ("share",), "x": "layer", "by": "group"},
        )
    }

    def frame(self) -> pd.DataFrame:
        """One row per group.

        `n`: questions that have a score. `score`: that of their mean effects in layers, with its 95 % interval over
        questions. `accuracy`: the share answered correctly, with Wilson's interval; `probability`, `length`,
        `answer_length`: means.
        """
        rows = []
        for group, mask in self._groups():
            row: dict[str, Any] = {"group": group, "n": int(np.isfinite(self.scores[mask]).sum())}
            row["score"] = self._score(mask)
            row["accuracy"] = estimate(self.questions["correct"][mask], "share")
            for name in ("probability", "length", "answer_length"):
                row[name] = float(self.questions[name][mask].mean())
            rows.append(row)
        units = {
            "group": self.by,
            "score": "layers",
            "length": "tokens",
            "answer_length": "tokens",
        }
        note = "95 % intervals over the questions of a group, where it has at least 8"
        return estimates_frame(rows, units, intervals=note)

    def by_layer(self) -> pd.DataFrame:
        """One row per group and layer: the mean `effect`, its `share` of all layers' effects, and 95 % intervals.

        A group's score is Σ l·share_l.
        """
        frames = []
        for group, mask in self._groups():
            effects = self.effects[mask]
            columns: dict[str, Any] = {"group": group, "n": int(np.isfinite(self.scores[mask]).sum())}
            columns |= component_columns(self.components)
            columns |= {"effect": estimate(effects), "share": _ratio(effects, effects.sum(1, keepdims=True), 1.0)}
            frames.append(estimates_frame(columns))
        units = {"group": self.by, "effect": SOFTMAX_CHANGE, "share": "share of all layers' effects"}
        return estimates_frame(dict(pd.concat(frames, ignore_index=True)), units)

    def _score(self, mask: Bool[np.ndarray, " question"]) -> Estimate:
        """Score the mean effects of some questions, with the interval over them."""
        effects, last = self.effects[mask], len(self.components) - 1
        return _ratio(effects @ np.arange(last + 1), effects.sum(1), last)

    def _groups(self) -> Iterator[tuple[float, Bool[np.ndarray, " question"]]]:
        for group in np.unique(self.questions["group"]):
            yield float(group), self.questions["group"] == group


def _ratio(values: np.ndarray, effects: np.ndarray, largest: float) -> Estimate:
    """Compute Σ values / Σ effects and its interval over questions, 0 to `largest`; NaN where nothing has effects."""
    effects = effects if effects.sum() > _SMALLEST else np.full_like(effects, np.nan)
    return estimate_function(np.divide, values, effects, within=(0.0, largest))._replace(over="questions")


def depth_score(model: Any, questions: Any, *, batch_tokens: int | None = None) -> DepthScore:
    """Compute the depth score Σ l·e_l / Σ e_l of every question: does a model use later layers for harder ones?

    The score is that of Csordás et al. (arXiv 2505.13898), with the rule of their released code: layer l is skipped at
    the tokens before the answer's first, but for a text's first token, an attention sink; and e_l is the maximum over
    the positions from the answer's first token to the end. Their second score, of changes in later layers, and their
    several cuts inside long answers are not included.

    Args:
        model, batch_tokens: As in `skip`.
        questions: `ld.depth.questions(…)`; a frame with the columns text, answer and hops; or a list of (text, answer,
            hops). The answer is appended to its text exactly as written.

    Makes 2 + L/2 passes over every question for L layers. Raises InputError for questions that cannot be used (none, an
    answer without tokens, fewer than two tokens before the answer, hops that are not finite).

    >>> import layerdiv_tl as ld
    >>> score = ld.depth.depth_score("zoo/d2", [([1, 2, 3], [4], 1), ([4, 5, 6, 7], [2, 2], 2)])
    >>> score.frame()[["group", "length", "answer_length"]].values.tolist()
    [[1.0, 3.0, 1.0], [2.0, 4.0, 2.0]]
    """
    texts, answers, groups, label = _read_questions(questions)
    model = as_model(model)
    ids, answer_lengths = read_answers(model, texts, answers)
    ends, begins = np.array([len(row) for row in ids]), np.array([len(row) for row in ids]) - answer_lengths
    if begins.min() < 2:
        shortest = int(begins.argmin())
        raise InputError(f"question {shortest} is too short: it needs two tokens, the first of which is kept.")
    # Where answers are predicted, and where changes are measured.
    predicting = Rows(ids, list(map(range, begins - 1, ends - 1)))
    measured = Rows(ids, list(map(range, begins, ends)))

    def skipped(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Any, Tensor]]:
        layers = [[layer] for layer in layer_components(clean)]
        return ablate(clean, layers, where=tokens_between(clean, 1, begins[batch]))

    def unpatched(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Any, Tensor]]:
        return ablate(clean, [()])

    names, (change, _) = run_patches(model, measured, skipped, softmax_change, layer_count(model), batch_tokens)
    loss, right, rank = (x[:, 0] for x in run_patches(model, predicting, unpatched, _answers, 1, batch_tokens)[1])
    return DepthScore(
        components=tuple(layer for (layer,) in names),
        effects=measured.reduce(np.maximum, change),
        questions={
            "group": groups,
            "length": begins,
            "answer_length": np.array(answer_lengths),
            "probability": np.exp(-predicting.reduce(np.add, loss)),
            "rank": predicting.reduce(np.maximum, rank).astype(np.int64),
            "correct": predicting.reduce(np.multiply, right),
        },
        by=label,
        model=model.name,
    )


def _answers(clean: Float[Tensor, "n v"], targets: Int[Tensor, " n"]) -> Callable[[Tensor], Tensor]:
    """Read the targets' cross-entropy in nats, whether they are predicted, and their rank after all ties."""

    def measure(logits: Tensor) -> Tensor:
        of_targets = logits.gather(1, targets.to(logits.device)[:, None])
        return torch.cat([loss_and_hits(clean, targets)(logits), (logits >= of_targets).sum(1)[None]])

    return measure


def _read_questions(questions: Any) -> tuple[list[Any], list[Any], Float[np.ndarray, " question"], str]:
    """Return (texts, answers, groups, label of the groups)."""
    frame = questions.frame() if callable(getattr(questions, "frame", None)) else questions
    if not isinstance(frame, pd.DataFrame):
        frame = pd.DataFrame(list(frame), columns=["text", "answer", "hops"])
    column = "group" if "group" in frame else "hops"
    groups = np.array(frame[column], dtype=np.float64)
    if not len(frame):
        raise InputError("there are no questions: give at least one.")
    if not np.isfinite(groups).all():
        raise InputError("the numbers of hops must be finite: leave questions without one out.")
    return frame["text"].tolist(), frame["answer"].tolist(), groups, frame.attrs.get("by", column)
