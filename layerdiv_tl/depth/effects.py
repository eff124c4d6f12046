"""Direct, total and indirect effects of heads and sublayers on an answer, by exact ablation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Int

from .._checks import choice, listed, shown, whole_number
from ..attribution.contexts import Contexts
from ..components import Component, labels_of
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model.load import Model, as_model
from ..model.options import contrast_pairs, is_task, read_options, warn_of_missing_spaces
from ..model.prompts import encode, with_mask
from .effect_passes import (
    SCENARIOS,
    AblatedBatch,
    Ablation,
    Ablations,
    BatchEffects,
    EffectUnit,
    Positions,
    mean_values,
    sequence_lengths,
)
from .effect_results import Effects
from .inputs import resolved, unwrap_texts
from .passes import map_batches

# Changes of every component under every ablation are kept for every row up to so many numbers (400 MB).
MOST_CHANGES = 50_000_000


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a model: rows, their options, which is right, and how the logit difference weighs them."""

    contexts: Contexts
    options: tuple
    labels: Int[np.ndarray, " row"]

    @property
    def contrast(self) -> Float[np.ndarray, "row option"]:
        """1 for the right option, −1/(K − 1) for the others."""
        n, k = self.contexts.option_ids.shape[:2]
        weights = np.full((n, k), -1.0 / (k - 1))
        weights[np.arange(n), self.labels] = 1.0
        return weights


def effects(
    model: Any,
    prompts: Any,
    options: Any = None,
    labels: Any = None,
    *,
    contrast: Any = None,
    unit: EffectUnit = "sublayer",
    ablation: Ablation = "mean",
    positions: Positions = "all",
    components: Any = None,
    groups: Any = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    attention_mask: Any = None,
) -> Effects:
    """What every component does to the answer: directly, in all, and through those that make up for it.

    An effect is the answer with the component less the answer without it, of the logit difference (the right option
    less the mean of the others, in logits), of the loss (cross-entropy over the options, in nats: below 0 where the
    component helps) and of accuracy. The *direct* effect replaces only the component's own write to the logits by what
    the ablation leaves of it; the *total* effect lets every later component and the final norm react; *indirect* is
    total − direct. Behind a post-norm (Gemma 2, OLMo 2), what the ablation leaves of a head is read at that norm's
    statistic in the ablated pass.

    Options of several tokens are compared by their log-likelihoods, in nats. What components do to these is taken at
    the clean pass's distribution of each next token; what the softmax adds to that is counted with the norm.

    Args:
        model, batch_tokens, attention_mask: As in `contributions`.
        prompts, options, labels: As in `contributions` and `decompose`; or a `Task`, which brings all three.
        contrast: Instead of options and labels: (right, wrong), or one such pair per prompt.
        unit: "sublayer": attentions and MLPs; "head": heads and MLPs.
        ablation: "zero"; "mean": the component's mean over the rows, of first tokens (where the attention sink stands)
            at the first, of last tokens at the last, of all tokens between them in between (of options' tokens at
            these), so that rows need not be of one length; or "resample": what it holds in another row, at the same
            place counted from the prompt's end.
        positions: Where it is ablated: "all" tokens, or the "last" one, where the answer stands, with all but the last
            token of an option of several.
        components: Labels of those to ablate; None is all of the unit.
        groups: Components to ablate together, as rows of their own: {name: labels}, one list of labels, or several.
        seed: Of the rows that resampling draws.

    An ablation runs again what lies after the component: all heads cost about half as many passes as there are
    heads. Raises InputError for input that cannot be used, and for models whose stream is not only added to.

    >>> import layerdiv_tl as ld
    >>> planted = ld.zoo.planted("undo")
    >>> effects = ld.effects(planted, planted.task, unit="head", ablation="zero")
    >>> effects.frame().set_index("component").loc["L0.H0", ["direct", "total"]].round(6).abs().tolist()
    [0.0, 0.0]
    """
    choice("unit", unit, get_args(EffectUnit))
    choice("ablation", ablation, get_args(Ablation))
    choice("positions", positions, get_args(Positions))
    whole_number("seed", seed, 0)
    model = as_model(model)
    model.checked_batch_tokens(batch_tokens)
    if others := {sublayer.kind for sublayer in model.architecture.sublayers} - {"attn", "mlp"}:
        raise InputError(f"{model.name} has a {min(others)} on its stream: effects are of attentions and MLPs alone.")
    if any(sublayer.adapter for sublayer in model.architecture.sublayers):
        raise InputError(f"{model.name} has rows of adapters, which cannot be ablated: load it with adapters='merged'.")
    question, source = _question(model, with_mask(prompts, attention_mask), options, labels, contrast)
    n = len(question.labels)
    if n == 1 and ablation != "zero":
        why = "the mean over one row is that row" if ablation == "mean" else "there is no other row to take values from"
        raise InputError(f"ablation={ablation!r} needs at least two rows: {why}; give more, or ablation='zero'.")
    known = [c for c in model.components(unit) if c.kind in ("attn", "mlp", "head")]
    alone = tuple(_known("components", components, known, not groups)) if components is not None else tuple(known)
    together = {name: tuple(_known(f"group {shown(name)}", some, known)) for name, some in _groups(groups).items()}
    if taken := sorted(together.keys() & {c.label for c in model.components(unit)}):
        raise InputError(f"groups holds one called {taken[0]}, which is a component: give the group another name.")
    several = question.contexts.option_ids.shape[2:] != (1, 1)
    if several and model.architecture.length_switch is not None:
        batch_tokens = 1  # where positions change with the length of a pass, rows of one prompt share one
    means = mean_values(model, question.contexts, unit, batch_tokens) if ablation == "mean" else {}
    ablations = Ablations(
        members=(*((c,) for c in alone), *together.values()),
        unit=unit,
        kind=ablation,
        positions=positions,
        means=means,
        partners=_partners(n, seed),
    )
    about: dict[str, Any] = {"model": model.name, "unit": unit, "ablation": ablation, "positions": positions}
    # Log-likelihoods are those of capped logits.
    cap = None if several else model.architecture.soft_cap
    about |= {"source": source, "soft_cap": cap, "labels": question.labels}
    about["score"] = "log_likelihood" if several else "logits"
    parts = run_ablations(model, question, ablations, batch_tokens)
    kept = all(part.changes is not None for part in parts)
    return Effects(
        components=alone,
        groups=together,
        members=parts[0].members,
        values=_gather([part.values for part in parts], parts),
        logits=_gather([part.logits for part in parts], parts),
        without=np.stack([_gather([part.without[i] for part in parts], parts) for i in range(len(SCENARIOS))]),
        changes=_gather([part.changes for part in parts], parts) if kept else None,
        options=question.options,
        gap=max(part.gap for part in parts),
        **about,
    )


def run_ablations(
    model: Model, question: Question, ablations: Ablations, batch_tokens: int | None
) -> list[BatchEffects]:
    """Every ablation of every row, batch after batch."""
    numbers = len(question.labels) * len(ablations.members) * len(model.components(ablations.unit))

    def measure(rows: list[int], tell: Callable[[int], Any]) -> BatchEffects:
        batch = AblatedBatch(model, question.contexts, rows, ablations)
        return batch.measure(question.contrast[rows], numbers <= MOST_CHANGES, tell)

    passes = [len(ablations.members)] * len(question.labels)
    return map_batches(model, sequence_lengths(question.contexts), batch_tokens, measure, passes=passes)


def _gather(arrays: Sequence[Any], parts: Sequence[BatchEffects]) -> np.ndarray:
    """An array of all batches in the order of the rows."""
    return np.concatenate(arrays)[np.argsort(np.concatenate([part.rows for part in parts]))]


def _question(model: Model, prompts: Any, options: Any, labels: Any, contrast: Any) -> tuple[Question, str]:
    """Rows, options and labels, and what they are called."""
    source = "prompts"
    if is_task(prompts):
        if options is not None or labels is not None or contrast is not None:
            raise InputError("a task brings its own options and labels: leave options, labels and contrast out.")
        task = resolved(model, prompts)
        prompts, options, labels, source = task.prompts, task.option_ids or task.options, task.labels, task.name
        texts: tuple | None = tuple(task.options)
    else:
        texts = None
    ids = encode(model, unwrap_texts(prompts))
    if contrast is not None:
        if options is not None or labels is not None:
            raise InputError("contrast= says what is right and what is wrong: leave options and labels out.")
        options, labels = contrast_pairs(contrast), np.zeros(len(ids), dtype=np.int64)
    if options is None or labels is None:
        raise InputError("effects are on an answer: give options= and labels=, a contrast=(right, wrong), or a task.")
    option_ids, names = read_options(model, options, ids)
    warn_of_missing_spaces(model, ids, options)
    texts = names if texts is None else texts
    if option_ids.shape[1] < 2:
        raise InputError("there is one option only, so nothing to compare it with: give at least two options.")
    gold = gold_options(labels, (len(ids), 1, option_ids.shape[1]), texts)
    contexts = Contexts(ids, option_ids, model.architecture.length_switch)
    contexts.check(model)
    return Question(contexts, texts, gold), source


def _groups(groups: Any) -> dict[str, Any]:
    """Groups by name; a list of labels is one, a list of lists several."""
    if groups is None:
        return {}
    if isinstance(groups, Mapping):
        if not groups or not all(isinstance(name, str) and name for name in groups):
            raise InputError(f"groups={shown(groups)} must be {{name: labels}} with at least one group.")
        return dict(groups)
    what = "{name: labels}, a list of labels, or a list of such lists"
    items = listed("groups", groups, what)
    several = [items] if items and all(isinstance(item, str | Component) for item in items) else items
    if not several:
        raise InputError(f"groups is empty: give {what}.")
    named = {" + ".join(labels_of("groups", some)): some for some in several}
    if len(named) < len(several):
        raise InputError("groups holds the same group twice: give each once.")
    return named


def _known(name: str, given: Any, known: Sequence[Component], least: bool = True) -> list[Component]:
    """Components by label.

    Raises InputError for one that comes twice or cannot be ablated, and for fewer than one unless `least` is False.
    """
    if not least and isinstance(given, Sequence) and not len(given):
        return []
    labels = labels_of(name, given)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"{name} names {twice} twice: each can be ablated once.")
    by_label = {c.label: c for c in known}
    if unknown := [label for label in labels if label not in by_label]:
        some = f"{known[0].label} to {known[-1].label}" if known else "nothing"
        raise InputError(f"{name} asks for {unknown[0]}, which cannot be ablated here: at this unit there is {some}.")
    return [by_label[label] for label in labels]


def _partners(count: int, seed: int) -> Int[np.ndarray, " row"]:
    """For every row another one: a drawn cycle through all."""
    order = np.random.default_rng(seed).permutation(count)
    partners = np.empty(count, dtype=np.int64)
    partners[order] = np.roll(order, 1)
    return partners
