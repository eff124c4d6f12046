"""Choose layers, sublayers or heads to drop, and measure the model's loss and accuracy without them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from .._checks import choice, flag, number, one_of, whole_number
from .._progress import progress
from ..components import Component
from ..errors import InputError
from ..model.fingerprint import identify
from ..model.load import Model, as_model
from .engine import HeadMeans, Rows, head_means
from .inputs import known_components
from .pruning_results import DropPlan
from .quantities import (
    AblatedPart,
    Effect,
    ablatable_components,
    ablation_effects,
    direct_measures,
    read_rows,
    score_ablations,
    score_components,
)

# A plan is measured at all sizes up to this many, and at as many even steps above.
MOST_SIZES = 12


def drop_plan(
    model: Any,
    rows: Any,
    budget: int,
    score: str | Mapping[Any, float] = "loss",
    part: AblatedPart = "layer",
    *,
    components: Any = None,
    ablation: Literal["zero", "mean"] | None = None,
    greedy: bool = False,
    scoring: float = 0.5,
    random: int = 20,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> DropPlan:
    """Choose components to drop by a score on some rows, and measure loss and accuracy without them on others.

    Args:
        model: A `Model`, or anything `load_model` takes.
        rows: A `Task`, whose right options are predicted, or texts, in which every next token is.
        budget: Number of components to drop.
        score: "loss" or "accuracy", what is lost when a component alone is ablated; or a direct measure, from clean
            passes: "contribution" (its absolute mean), "diversity", "net", "relative_norm" or "block_influence" (see
            `DropPlan.frame`). The least needed component is dropped first. Or {label: number}, the smallest first.
        part: What is dropped: a "layer", an "attn", an "mlp", a "sublayer" (attention and MLPs from one list), or a
            "head" of an attention.
        components: Labels of the components that may be dropped; None means all of the part.
        ablation: What stands in for a dropped component. "zero": nothing; a dropped layer is skipped. "mean", for heads
            only and their default: the mean of its values over the scoring rows' predictions, the same at every token,
            so that it can be written into the model as a bias.
        greedy: Choose one by one, each with the earlier choices removed, by the "loss" or "accuracy" of the remaining
            model, so that components that compensate for one another are not all dropped. The plan by every component
            alone is measured for comparison.
        scoring: Share of the rows that score; the others measure, because rows that chose a plan would flatter it.
        random: Number of random plans to compare with; the plan by block influence (ShortGPT) is always included.
        seed: Seed of the split of rows and of the random plans.

    Makes 2 + C/2 passes over the scoring rows for C candidates (2 for a score from a clean pass, one more for means,
    `budget` times as many for a greedy plan), and 1 + P/2 over the others for P plans (up to 12 sizes of each, and the
    random ones). Raises InputError for input that cannot be used: a budget of nothing or everything, a score that does
    not exist for these rows, labels that no component has; and for a model with hooks in it, which a plan cannot name.

    >>> import layerdiv_tl as ld
    >>> texts = [[5, i, (3 * i) % 16, i // 2, 7] for i in range(16)]
    >>> plan = ld.depth.drop_plan("zoo/d2", texts, 1, {"L0.layer": 0.3, "L1.layer": 0.1}, random=2)
    >>> plan.frame()[["component", "score", "order"]].fillna(0).values.tolist()
    [['L0.layer', 0.3, 0], ['L1.layer', 0.1, 1]]
    >>> plan.by_size()[["plan", "dropped"]].values.tolist()
    [['none', 0], ['plan', 1], ['block_influence', 1], ['random', 1]]
    """
    model = as_model(model)
    weights = identify(model).weights  # a plan names the model that it is for
    predictions, source = read_rows(model, rows)
    scoring = number("scoring", scoring, above=0, below=1)
    if len(predictions) < 2:
        raise InputError("the plan is chosen on some rows and measured on the others: give at least two.")
    candidates = ablatable_components(model, predictions.ids[0], part)
    if components is not None:
        chosen = set(known_components("components", components, candidates))
        candidates = tuple(c for c in candidates if c in chosen)
    if ablation is None:
        ablation = "mean" if part == "head" else "zero"
    choice("ablation", ablation, ("zero", "mean"))
    if ablation == "mean" and part != "head":
        raise InputError(f"ablation='mean' replaces heads by their means, and this plan drops {part}s: use 'zero'.")
    if len(candidates) < 2:
        raise InputError(f"{candidates[0].label} is all that could go, and something must stay: choose another part.")
    whole_number("budget", budget, 1, len(candidates) - 1)
    whole_number("random", random, 0, 10_000)
    whole_number("seed", seed, 0)
    given = None if isinstance(score, str) else _given_scores(score, candidates)  # before anything is run
    if flag("greedy", greedy) and (given is not None or score not in get_args(Effect)):
        ways = one_of(get_args(Effect))
        raise InputError(f"greedy=True goes by what is lost with each component that is gone: use {ways} as score.")
    order = np.random.default_rng([seed, 0]).permutation(len(predictions)).tolist()
    first = min(len(predictions) - 1, max(1, round(scoring * len(predictions))))
    choosing, measured = (predictions.take(sorted(some)) for some in (order[:first], order[first:]))
    draw = np.random.default_rng([seed, 1])
    drawn = [sorted(draw.permutation(len(candidates))[:budget].tolist()) for _ in range(random)]
    randoms = tuple(tuple(candidates[i] for i in some) for some in drawn)
    sizes = np.unique(np.linspace(0, budget, min(budget, MOST_SIZES) + 1).round().astype(int))[1:].tolist()

    def lowest(values: Float[np.ndarray, " candidate"]) -> tuple[Component, ...]:
        return tuple(candidates[i] for i in np.argsort(values, kind="stable")[:budget])

    steps, plans = len(candidates) - np.arange(budget), 3 * len(sizes) + random
    total = len(choosing) * int((1 + steps).sum() + (ablation == "mean")) + len(measured) * (1 + plans)
    alone: tuple[Component, ...] = ()
    with progress(model.name, total, "pass") if greedy else nullcontext():
        means = head_means(model, choosing, batch_tokens) if ablation == "mean" else None
        usual = lowest(score_components(model, choosing, candidates, "block_influence", batch_tokens))
        if greedy:
            singly, plan, values = _one_after_another(
                model, choosing, candidates, str(score), budget, batch_tokens, means
            )
            alone = lowest(singly)
        else:
            scored = given
            if scored is None:
                scored = score_components(model, choosing, candidates, str(score), batch_tokens, means)
            plan, values = lowest(scored), scored
        sets = [*(some[:k] for some in (plan, usual, alone) if some for k in sizes), *randoms]
        distinct = list(dict.fromkeys(map(frozenset, sets)))  # each is run once
        loss, correct = score_ablations(model, measured, distinct, batch_tokens, means=means)
    measures = direct_measures(model, choosing, candidates, batch_tokens=batch_tokens)
    columns = [0, *(1 + distinct.index(frozenset(members)) for members in sets)]
    labels = None if predictions.options is None else predictions.targets
    content = [predictions.ids, *(None if x is None else x.tolist() for x in (predictions.options, labels))]
    about: dict[str, Any] = {"where": source, "sha256": hashlib.sha256(json.dumps(content).encode()).hexdigest()}
    about |= {"scored": len(choosing), "measured": len(measured), "seed": seed}
    return DropPlan(
        candidates=candidates,
        values=values,
        dropped=plan,
        influence_dropped=usual,
        alone_dropped=alone,
        random_dropped=randoms,
        loss=loss[:, columns],
        correct=correct[:, columns],
        count=np.bincount(measured.row).astype(float),
        score=score if isinstance(score, str) else "given",
        part=part,
        model=model.name,
        provenance=dict(model.provenance) | {"name": model.name, "weights": weights, "rows": about},
        sizes=tuple(sizes),
        ablation=ablation,
        measures=measures,
        means=() if means is None else tuple(means[c.layer, c.repeat][c.index].cpu().numpy() for c in plan),
    )


def _one_after_another(
    model: Model,
    rows: Rows,
    candidates: tuple[Component, ...],
    score: str,
    budget: int,
    batch_tokens: int | None,
    means: HeadMeans | None,
) -> tuple[Float[np.ndarray, " candidate"], tuple[Component, ...], Float[np.ndarray, " candidate"]]:
    """Return (scores of every component alone, components dropped one by one, the last score of each)."""
    gone, values = list[Component](), np.empty(len(candidates))
    alone = values
    for _ in range(budget):
        left = [c for c in candidates if c not in gone]
        scores = score_ablations(model, rows, [[c] for c in left], batch_tokens, gone, means)
        sums, counts = ablation_effects(rows, *scores)[score]
        lost = sums.sum(0) / counts.sum()
        values[[candidates.index(c) for c in left]] = lost
        alone = alone if gone else lost
        gone.append(left[int(np.argmin(lost))])
    return alone, tuple(gone), values


def _given_scores(score: Mapping[Any, float], components: tuple[Component, ...]) -> Float[np.ndarray, " component"]:
    if not isinstance(score, Mapping):
        raise InputError(f"score is a {type(score).__name__}: give a quantity's name, or {{label: number}}.")
    by_label = {getattr(key, "label", key): value for key, value in score.items()}
    labels = [c.label for c in components]
    if len(by_label) < len(score):
        raise InputError("score names a component twice: give one number for each.")
    if wrong := by_label.keys() ^ set(labels):
        label = min(wrong, key=str)
        raise InputError(f"score lacks or adds {label!r}: give one number for each of {labels[0]} to {labels[-1]}.")
    return np.array([number(f"the score of {label}", by_label[label]) for label in labels])
