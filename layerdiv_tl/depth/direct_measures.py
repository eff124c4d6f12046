"""What every sublayer (or layer) is worth by measures of one clean pass, row by row."""

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
from ..ensemble.information.gaussian import normal_scores
from ..ensemble.information.variational import Variational
from ..model.batches import inference_mode_for, upcast
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .ablation import Rows
from .residual_norms import residual_norms

Direct = Literal["diversity", "diversity_centered", "net", "relevancy", "relative_norm", "block_influence"]
# A member's relevancy is measured where every class has this many rows.
_LEAST = 8

Sums = tuple[Float[np.ndarray, "row component"], Float[np.ndarray, " row"]]


def measures(
    model: Model,
    rows: Rows,
    names: Sequence[Component],
    wanted: Collection[str] = get_args(Direct),
    batch_tokens: int | None = None,
) -> dict[str, Sums]:
    """The wanted direct measures of components, as (sums, counts) of every row. See `Agreement`."""
    found: dict[str, Sums] = {}
    if {"diversity", "diversity_centered", "net", "relevancy"} & set(wanted):
        found = (_of_texts if rows.options is None else _of_task)(model, rows, names, wanted, batch_tokens)
    if {"relative_norm", "block_influence"} & set(wanted):
        size = residual_norms(model, [list(ids) for ids in rows.ids], batch_tokens=batch_tokens)
        at = [size.components.index(name) for name in names]
        counts = np.bincount(size.text).astype(float)
        for name, values in (("relative_norm", size.relative_norm), ("block_influence", size.block_influence)):
            sums = np.zeros((len(rows), len(names)))
            np.add.at(sums, size.text, values[:, at])
            found[name] = sums, counts
    return {name: found[name] for name in get_args(Direct) if name in found and name in wanted}


def _of_task(
    model: Model, rows: Rows, names: Sequence[Component], wanted: Collection[str], batch_tokens: int | None
) -> dict[str, Sums]:
    assert rows.options is not None
    assert rows.labels is not None
    c = contributions(model, [list(ids) for ids in rows.ids], rows.options.tolist(), batch_tokens=batch_tokens)
    at, one = _members(c.components, names), np.ones(len(rows))
    squared = decompose(c, rows.labels)
    found = {
        "diversity": (_summed(squared.diversities, at), squared.diversities.sum(1)),
        "diversity_centered": (_summed(squared.centered.diversities, at), squared.centered.diversities.sum(1)),
        "net": (_summed(decompose(c, rows.labels, loss="cross_entropy").net_linear, at), one),
    }
    classes, y = np.unique(rows.labels, return_inverse=True)
    if "relevancy" in wanted and len(classes) > 1 and np.bincount(y).min() >= _LEAST:
        written = np.stack([c.values[:, where].sum(1) for where in at], 1)
        # A member that writes the same for all options of all rows has no contrast to be read by.
        telling = np.ptp(written - written.mean(2, keepdims=True), axis=(0, 2)) > 0
        bits = np.zeros((len(rows), len(names)))
        if telling.any():
            given = prepare(written[:, telling], y, "variational", None, None, None)
            with single_threaded_blas():
                estimate = Variational(
                    normal_scores(given.features), given.owner, y, len(classes), int(telling.sum()), 0
                )
                bits[:, telling] = estimate.single_rows.T
        found["relevancy"] = bits, one
    return found


def _of_texts(
    model: Model, rows: Rows, names: Sequence[Component], wanted: Collection[str], batch_tokens: int | None
) -> dict[str, Sums]:
    from tqdm.auto import tqdm

    made: dict[str, list[tuple[np.ndarray, float]]] = {"diversity": [], "diversity_centered": [], "net": []}
    for ids in tqdm(rows.ids, desc=model.name, unit="text", delay=2, leave=False):
        # With its own answer for a target, products with it are the expectations that the net needs.
        p = profile(model, [list(ids)], target=_answers(model, ids), batch_tokens=batch_tokens)
        assert isinstance(p, SquaredProfile)
        assert p.centered is not None
        assert p.agreements is not None
        at, last = _members(p.components, names), len(ids) - 1
        for name, values in (("diversity", p.diversity), ("diversity_centered", p.centered.diversity)):
            over = values[:, :last].sum(1)
            made[name].append((_summed(over[None], at)[0], float(over.sum())))
        net = (p.agreements - p.centered_targets)[:last].astype(np.float64).sum(0)
        made["net"].append((_summed(net[None], at)[0], float(last)))
    return {name: (np.stack([s for s, _ in pairs]), np.array([c for _, c in pairs])) for name, pairs in made.items()}


def _answers(model: Model, ids: Sequence[int]) -> Float[np.ndarray, "position vocabulary"]:
    """The model's distributions, before a soft-cap where there is one."""
    architecture = model.architecture
    with inference_mode_for(architecture):
        replay = PatchedForward(model, [ids])
        said = upcast(architecture.unembed(replay.normed(replay.streams[-1][0])[:, None])[:, 0])
        # A long text's are large, so there is no wider copy of them.
        return (said * architecture.logit_multiplier).softmax(-1).cpu().numpy()


def _members(components: Sequence[Component], names: Sequence[Component]) -> list[list[int]]:
    """Where each name's members are: its own, or for a layer those of its sublayers."""
    return [
        [
            i
            for i, c in enumerate(components)
            if c == name or (name.kind == "layer" and (c.layer, c.repeat) == (name.layer, name.repeat))
        ]
        for name in names
    ]


def _summed(values: Float[np.ndarray, "row member"], at: Sequence[Sequence[int]]) -> Float[np.ndarray, "row name"]:
    return np.stack([values[:, where].sum(1) for where in at], 1)
