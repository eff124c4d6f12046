"""Choose layers, sublayers or heads to drop, and measure the model's loss and accuracy without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from .._checks import choice, whole_number
from ..components import Component
from ..errors import InputError
from ..model.fingerprint import identify
from ..model.load import Model, as_model
from .engine import Place, head_means
from .inputs import known_components
from .pruning_results import INFLUENCE, OWN, DropPlan
from .quantities import (
    UNITS,
    AblatedPart,
    ablatable_components,
    ablation_effects,
    direct_measures,
    needs,
    read_rows,
    score_ablations,
)

# A plan is measured at all sizes up to this many, and at as many even steps above.
MOST_SIZES = 12
# Scores by ablation; the others are direct measures.
ABLATED = ("loss", "accuracy")


def drop_plan(
    model: Any,
    rows: Any,
    n_drop: int,
    score: str | Mapping[Any, float] = "loss",
    part: AblatedPart = "layer",
    *,
    components: Any = None,
    ablation: Literal["zero", "mean"] | None = None,
    random: int = 20,
    seed: int = 0,
    batch_tokens: int | None = None,
) -> DropPlan:
    """Choose components to drop by a score on half of the rows, and measure what is lost without them on the others.

    Rows that chose a plan would flatter it: the loss and accuracy without the components are those of other rows.

    Args:
        model: A `Model`, or anything `load_model` takes.
        rows: A `Task`, whose right options are predicted, or texts, in which every next token is.
        n_drop: Number of components to drop.
        score: "loss" or "accuracy", what is lost when a component alone is ablated; or a direct measure, from clean
            passes: "contribution" (its absolute mean), "diversity", "net", "relative_norm" or "block_influence" (see
            `DropPlan.frame`). Earlier components work through later ones: rank these measures among later layers alone
            (`components`). The least needed component is dropped first. Or {label: number} with a number for each
            component that may be dropped, the smallest first.
        part: What is dropped: a "layer", an "attn", an "mlp", a "sublayer" (attention and MLPs from one list), or a
            "head" of an attention.
        components: Labels of the components that may be dropped; None means all of the part.
        ablation: What stands in for a dropped component. "zero": nothing; a dropped layer is skipped. "mean", for heads
            only and their default: the mean of its values over the scoring rows' predictions, the same at every token,
            so that it can be written into the model as a bias.
        random: Number of random plans to compare with; the plan by block influence (ShortGPT) is always included.
        seed: Seed of the split of rows and of the random plans.

    Components that compensate for one another may all be dropped. To choose one by one, apply a plan of one component
    and make the next plan of the smaller model.

    Makes 3 + C/2 passes over the scoring rows for C candidates (3 for a score from a clean pass, one more for means),
    and 1 + P/2 over the others for P plans (up to 12 sizes of each, and the random ones). Raises InputError for input
    that cannot be used: where nothing or everything would go, a score that does not exist for these rows, labels that
    no component has; and for a model with hooks, which a plan cannot name.

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
    if len(predictions) < 2:
        raise InputError("the plan is chosen on some rows and measured on the others: give at least two.")
    ablation = ablation or ("mean" if part == "head" else "zero")
    if choice("ablation", ablation, ("zero", "mean")) == "mean" and part != "head":
        raise InputError(f"ablation='mean' replaces heads by their means, and this plan drops {part}s: use 'zero'.")
    if isinstance(score, str):
        choice("score", score, UNITS)
    candidates = ablatable_components(model, predictions.ids[0], part)
    if components is not None:
        chosen = known_components("components", components, candidates)
        candidates = tuple(c for c in candidates if c in chosen)
    if len(candidates) < 2:
        raise InputError(f"{candidates[0].label} is all that could go, and something must stay: choose another part.")
    whole_number("n_drop", n_drop, 1, len(candidates) - 1)

    order = np.random.default_rng([seed, 0]).permutation(len(predictions)).tolist()
    half = round(len(predictions) / 2)
    choosing, measured = (predictions.take(sorted(some)) for some in (order[:half], order[half:]))
    means = head_means(model, choosing, batch_tokens) if ablation == "mean" else {}
    values = means.__getitem__ if means else None

    def lowest(scores: Float[np.ndarray, " candidate"]) -> tuple[Component, ...]:
        return tuple(candidates[i] for i in np.argsort(scores, kind="stable")[:n_drop])

    measures = direct_measures(model, choosing, candidates, batch_tokens)
    if not isinstance(score, str):
        scores = np.array([float(score[c.label]) for c in candidates])
    elif score in ABLATED:
        each = score_ablations(model, choosing, [[c] for c in candidates], batch_tokens, values)
        scores = needs(score, ablation_effects(choosing, *each))
    else:
        scores = needs(score, measures)
    plans = {OWN: lowest(scores), INFLUENCE: lowest(needs("block_influence", measures))}
    draw = np.random.default_rng([seed, 1])
    drawn = [sorted(draw.permutation(len(candidates))[:n_drop].tolist()) for _ in range(random)]
    randoms = tuple(tuple(candidates[i] for i in some) for some in drawn)
    sizes = np.unique(np.linspace(0, n_drop, min(n_drop, MOST_SIZES) + 1).round().astype(int))[1:].tolist()
    sets = [frozenset(some[:size]) for some in plans.values() for size in sizes] + list(map(frozenset, randoms))
    distinct = list(dict.fromkeys(sets))  # equal sets run once
    columns = [0, *(1 + distinct.index(members) for members in sets)]
    loss, correct = (x[:, columns] for x in score_ablations(model, measured, distinct, batch_tokens, values))
    about = {"where": source, "scored": len(choosing), "measured": len(measured), "seed": seed}
    return DropPlan(
        candidates=candidates,
        scores=scores,
        plans=plans,
        random_dropped=randoms,
        sizes=tuple(sizes),
        loss=loss,
        correct=correct,
        count=np.bincount(measured.row).astype(float),
        score=score if isinstance(score, str) else "given",
        part=part,
        ablation=ablation,
        model=model.name,
        provenance=dict(model.provenance) | {"name": model.name, "weights": weights, "rows": about},
        measures=measures,
        means=_means_of(model, means, plans[OWN]) if means else (),
    )


def _means_of(model: Model, means: Mapping[Place, Tensor], heads: Sequence[Component]) -> tuple[np.ndarray, ...]:
    """Select the mean values of some heads."""
    counts = {writer.component.layer: writer.heads for writer in model.path.writers if writer.kind == "attn"}
    found = []
    for c in heads:
        by_head = means["heads", c.layer, c.repeat].unflatten(0, (counts[c.layer], -1))
        found.append(by_head[c.index].cpu().numpy())
    return tuple(found)
