"""Measures of sublayers or layers from one clean pass, row by row: diversity, net, relevancy, block influence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from ..attribution.contributions import contributions
from ..attribution.profile import profile
from ..attribution.profile_results import SquaredProfile
from ..components import Component
from ..ensemble.decomposition import decompose
from ..ensemble.information.estimator import single_threaded_blas
from ..ensemble.information.features import prepare
from ..model.batches import inference_mode_for, upcast
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .ablation import PredictionRows
from .residual_norms import residual_norms

Direct = Literal["diversity", "diversity_centered", "net", "relevancy", "relative_norm", "block_influence"]
# Relevancy is measured where every class has this many rows.
_LEAST = 8

# Of every row, the sums of each component, and what they are divided by.
Sums = tuple[Float[np.ndarray, "row component"], Float[np.ndarray, " row"]]


def direct_measures(
    model: Model,
    rows: PredictionRows,
    components: Sequence[Component],
    wanted: Collection[str] = get_args(Direct),
    batch_tokens: int | None = None,
) -> dict[str, Sums]:
    """The wanted direct measures of components, as (sums, counts) of every row. See `Agreement`."""
    measures: dict[str, Sums] = {}
    if {"diversity", "diversity_centered", "net", "relevancy"} & set(wanted):
        if rows.options is None:
            measures = _of_texts(model, rows, components, batch_tokens)
        else:
            measures = _of_task(model, rows, components, "relevancy" in wanted, batch_tokens)
    if {"relative_norm", "block_influence"} & set(wanted):
        norms = residual_norms(model, [list(ids) for ids in rows.ids], batch_tokens=batch_tokens)
        columns = [norms.components.index(component) for component in components]
        counts = np.bincount(norms.text).astype(float)
        for name, values in (("relative_norm", norms.relative_norm), ("block_influence", norms.block_influence)):
            sums = np.zeros((len(rows), len(components)))
            np.add.at(sums, norms.text, values[:, columns])
            measures[name] = sums, counts
    return {name: measures[name] for name in get_args(Direct) if name in measures and name in wanted}


def _of_task(
    model: Model, rows: PredictionRows, components: Sequence[Component], relevancy: bool, batch_tokens: int | None
) -> dict[str, Sums]:
    assert rows.options is not None
    assert rows.labels is not None
    c = contributions(model, [list(ids) for ids in rows.ids], rows.options.tolist(), batch_tokens=batch_tokens)
    members, ones = _members(c.components, components), np.ones(len(rows))
    squared = decompose(c, rows.labels)
    raw, centered = squared.diversities, squared.centered.diversities
    measures = {
        "diversity": (_summed(raw, members), raw.sum(1)),
        "diversity_centered": (_summed(centered, members), centered.sum(1)),
        "net": (_summed(decompose(c, rows.labels, loss="cross_entropy").net_linear, members), ones),
    }
    classes, y = np.unique(rows.labels, return_inverse=True)
    if relevancy and len(classes) > 1 and np.bincount(y).min() >= _LEAST:
        values = np.stack([c.values[:, some].sum(1) for some in members], 1)
        # A component with the same contrast between options in all rows has nothing to classify by.
        varies = np.ptp(values - values.mean(2, keepdims=True), axis=(0, 2)) > 0
        bits = np.zeros((len(rows), len(components)))
        if varies.any():
            with single_threaded_blas():
                bits[:, varies] = prepare(values[:, varies], y, "variational").classifier.single_rows.T
        measures["relevancy"] = bits, ones
    return measures


def _of_texts(
    model: Model, rows: PredictionRows, components: Sequence[Component], batch_tokens: int | None
) -> dict[str, Sums]:
    from tqdm.auto import tqdm

    per_text: dict[str, list[tuple[np.ndarray, float]]] = {"diversity": [], "diversity_centered": [], "net": []}
    for ids in tqdm(rows.ids, desc=model.name, unit="text", delay=2, leave=False):
        # With its own prediction as target, products with it are the expectations that the net needs.
        p = profile(model, [list(ids)], target=_predictions(model, ids), batch_tokens=batch_tokens)
        assert isinstance(p, SquaredProfile)
        assert p.centered is not None
        assert p.agreements is not None
        members, last = _members(p.components, components), len(ids) - 1
        for name, values in (("diversity", p.diversity), ("diversity_centered", p.centered.diversity)):
            total = values[:, :last].sum(1)
            per_text[name].append((_summed(total[None], members)[0], float(total.sum())))
        net = (p.agreements - p.centered_targets)[:last].astype(np.float64).sum(0)
        per_text["net"].append((_summed(net[None], members)[0], float(last)))
    return {
        name: (np.stack([s for s, _ in pairs]), np.array([n for _, n in pairs])) for name, pairs in per_text.items()
    }


def _predictions(model: Model, ids: Sequence[int]) -> Float[np.ndarray, "position vocabulary"]:
    """The model's distributions, before a soft-cap where there is one."""
    architecture = model.architecture
    with inference_mode_for(architecture):
        forward = PatchedForward(model, [ids])
        logits = upcast(architecture.unembed(forward.normed(forward.streams[-1][0])[:, None])[:, 0])
        # A long text's are large, so there is no wider copy of them.
        return (logits * architecture.logit_multiplier).softmax(-1).cpu().numpy()


def _members(members: Sequence[Component], components: Sequence[Component]) -> list[list[int]]:
    """The indices of each component's members: its own, or for a layer those of its sublayers."""
    return [
        [
            i
            for i, member in enumerate(members)
            if member == c or (c.kind == "layer" and (member.layer, member.repeat) == (c.layer, c.repeat))
        ]
        for c in components
    ]


def _summed(
    values: Float[np.ndarray, "row member"], members: Sequence[Sequence[int]]
) -> Float[np.ndarray, "row component"]:
    return np.stack([values[:, some].sum(1) for some in members], 1)
