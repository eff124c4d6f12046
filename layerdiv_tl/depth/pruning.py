"""Choose layers, sublayers or heads to drop, and measure the model's loss and accuracy without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from .._checks import choice, whole_number
from ..attribution.contributions import contributions
from ..attribution.question import read_question
from ..components import Component, Unit
from ..ensemble.decompose import decompose
from ..errors import InputError
from ..model.fingerprint import identify
from ..model.load import Model, as_model
from ..model.options import is_task
from .engine import Fill, Rows, by_zero, head_means, score_ablations
from .inputs import known_components, read_texts
from .pruning_results import INFLUENCE, OWN, DropPlan, Sums
from .readings import sums_per_text
from .residual_norms import ResidualNorms, measure_norms

AblatedPart = Literal["sublayer", "layer", "attn", "mlp", "head"]
# A plan is measured at all sizes up to this many, and at as many even steps above.
MOST_SIZES = 12


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
        score: "loss": its growth when a component alone is ablated; or a direct measure, from clean passes:
            "relative_norm" or "block_influence", and of tasks "contribution" (its absolute mean), "diversity" or "net"
            (see `DropPlan.frame`). Earlier components work through later ones: rank these measures among later layers
            alone (`components`). The least needed component is dropped first. Or {label: number} with a number for each
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
    choice("part", part, get_args(AblatedPart))
    predictions, source = read_rows(model, rows)
    if len(predictions) < 2:
        raise InputError("the plan is chosen on some rows and measured on the others: give at least two.")
    ablation = ablation or ("mean" if part == "head" else "zero")
    if choice("ablation", ablation, ("zero", "mean")) == "mean" and part != "head":
        raise InputError(f"ablation='mean' replaces heads by their means, and this plan drops {part}s: use 'zero'.")
    order = np.random.default_rng([seed, 0]).permutation(len(predictions)).tolist()
    half = round(len(predictions) / 2)
    choosing, measured = (predictions.take(sorted(some)) for some in (order[:half], order[half:]))
    norms = measure_norms(model, choosing.ids, batch_tokens, part == "head")
    kinds = ("attn", "mlp") if part == "sublayer" else (part,)
    candidates = tuple(c for c in norms.components if c.kind in kinds)
    if not candidates:
        raise InputError(f"{model.name} has no {part} that writes to the stream.")
    if components is not None:
        chosen = known_components("components", components, candidates)
        candidates = tuple(c for c in candidates if c in chosen)
    if len(candidates) < 2:
        raise InputError(f"{candidates[0].label} is all that could go, and something must stay: choose another part.")
    whole_number("n_drop", n_drop, 1, len(candidates) - 1)
    means = head_means(model, choosing, batch_tokens) if ablation == "mean" else {}
    fill: Fill = (lambda batch: means.__getitem__) if means else by_zero

    def lowest(scores: Float[np.ndarray, " candidate"]) -> tuple[Component, ...]:
        return tuple(candidates[i] for i in np.argsort(scores, kind="stable")[:n_drop])

    measures = direct_measures(model, choosing, candidates, norms, batch_tokens)
    if not isinstance(score, str):
        scores = np.array([float(score[c.label]) for c in candidates])
    elif choice("score", score, ("loss", *measures)) == "loss":
        loss, _ = score_ablations(model, choosing, [[c] for c in candidates], fill, batch_tokens)
        scores = (loss[:, 1:] - loss[:, :1]).sum(0) / len(choosing.row)
    else:
        scores = needs(score, measures)
    plans = {OWN: lowest(scores), INFLUENCE: lowest(needs("block_influence", measures))}
    draw = np.random.default_rng([seed, 1])
    drawn = [sorted(draw.permutation(len(candidates))[:n_drop].tolist()) for _ in range(random)]
    randoms = tuple(tuple(candidates[i] for i in some) for some in drawn)
    sizes = np.unique(np.linspace(0, n_drop, min(n_drop, MOST_SIZES) + 1).round().astype(int))[1:].tolist()
    sets = [*(some[:size] for some in plans.values() for size in sizes), *randoms]
    loss, correct = score_ablations(model, measured, sets, fill, batch_tokens)
    layers = [c for c in norms.components if c.kind == "layer"]
    means_of = {replace(layers[block], kind="attn").label: mean for (block, _), mean in means.items()}
    cut = {c.sublayer.label for c in plans[OWN]}
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
        means={attn: mean.cpu().numpy() for attn, mean in means_of.items() if attn in cut},
    )


def read_rows(model: Model, given: Any) -> tuple[Rows, str]:
    """Read rows of a task at its options' predictions, or texts at all tokens but the last; and name them."""
    if not is_task(given):
        ids = read_texts(model, given, 2, "no other follows to be predicted")
        return Rows(ids, [range(len(row) - 1) for row in ids]), "texts"
    asked = read_question(model, given, single=True)
    assert asked.labels is not None
    at = [[len(row) - 1] for row in asked.ids]
    return Rows(asked.ids, at, asked.option_ids[:, :, 0], list(asked.labels[:, None])), asked.task


def direct_measures(
    model: Model, rows: Rows, components: Sequence[Component], norms: ResidualNorms, batch_tokens: int | None
) -> dict[str, Sums]:
    """Compute the direct measures of components from clean passes, as (sums, counts) of every row.

    Of tasks alone, `contribution`: to the right option's logit minus the mean of the others'; `diversity`: the
    component's share of the sum of centered diversities over all components, a layer's the sum over its sublayers; and
    `net`: its additive part of the cross-entropy, E_p[u] − u(t), in nats, negative where it helps. `relative_norm`,
    `block_influence`: see `ResidualNorms`.
    """
    measures = {} if rows.options is None else _of_task(model, rows, components, batch_tokens)
    columns = [norms.components.index(component) for component in components]
    for name in ("relative_norm", "block_influence"):
        sums, counts = sums_per_text(norms.values[name][:, columns].astype(np.float64), norms.places["text"])
        measures[name] = sums, counts[:, 0]
    return measures


def needs(score: str, measures: Mapping[str, Sums]) -> Float[np.ndarray, " component"]:
    """Average how much each component is needed, by one of these measures."""
    sums, counts = measures[score]
    mean = sums.sum(0) / counts.sum()
    if score == "contribution":
        return np.abs(mean)
    return -mean if score == "net" else mean  # a smaller net is needed more


def _of_task(model: Model, rows: Rows, components: Sequence[Component], batch_tokens: int | None) -> dict[str, Sums]:
    assert rows.options is not None
    labels = rows.targets
    ids: list[list[int]] = [list(row) for row in rows.ids]
    unit: Unit = "head" if components[0].kind == "head" else "sublayer"
    c = contributions(model, ids, rows.options.tolist(), unit=unit, batch_tokens=batch_tokens)
    members, ones = _membership(c.components, components), np.ones(len(rows))
    diversities = decompose(c, labels).terms["diversity"]
    right = np.take_along_axis(c.values, labels[:, None, None], 2)[..., 0]
    difference = right - (c.values.sum(2) - right) / (c.values.shape[2] - 1)
    return {
        "contribution": (difference @ members, ones),
        "diversity": (diversities @ members, diversities.sum(1)),
        "net": (decompose(c, labels, loss="cross_entropy").net_linear @ members, ones),
    }


def _membership(members: Sequence[Component], components: Sequence[Component]) -> Float[np.ndarray, "member component"]:
    """1 where a member is the component or, for a layer, one of its sublayers."""

    def belongs(member: Component, c: Component) -> bool:
        return member == c or (c.kind == "layer" and (member.layer, member.repeat) == (c.layer, c.repeat))

    return np.array([[float(belongs(member, c)) for c in components] for member in members])
