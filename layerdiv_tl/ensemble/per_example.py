"""The tables of a decomposition before they are averaged: members, modules (Eq. 9-10), prefix ensembles (Fig. 5, 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..components import component_columns
from ..errors import InputError
from .arrays import group_numbers
from .frames import PerExample, accuracy_term
from .terms import EnsembleTerms

NormAt = Literal["frozen", "recomputed"]
Table = Literal["totals", "components", "modules", "depth", "depth_recomputed"]


def suffixed(d: EnsembleTerms) -> dict[str, EnsembleTerms]:
    """A decomposition and its halves, by the suffix of their columns."""
    return {"": d} | {f"_{part}": half for part, half in d.halves.items()}


def member_terms(d: EnsembleTerms) -> dict[str, Float[np.ndarray, "example member"]]:
    """Each member's terms, undivided by |L|."""
    terms = {"bias": d.biases, "diversity": d.diversities}
    terms |= {"net": d.biases - d.diversities} if d.loss_function.is_exact else {}
    return terms | {name: values for name, values in d.extras.items() if values.ndim == 2}


def total_terms(d: EnsembleTerms) -> dict[str, Float[np.ndarray, "example 1"]]:
    """The ensemble's terms."""
    terms = {"loss": d.losses, "bias": d.biases.mean(1), "diversity": d.diversities.mean(1)}
    for name, values in d.extras.items():
        over_members = np.sum if name in d.loss_function.additive else np.mean
        terms[name] = values if values.ndim == 1 else over_members(values, axis=1)
    return {name: values[:, None] for name, values in terms.items()}


def totals_table(d: EnsembleTerms) -> PerExample:
    """One row: the ensemble."""
    terms = {name + suffix: x for suffix, gauge in suffixed(d).items() for name, x in total_terms(gauge).items()}
    return PerExample({"members": [len(d.components)]}, terms | accuracy_term(d.ensemble_correct))


def component_table(d: EnsembleTerms) -> PerExample:
    """One row per member."""
    terms = {name + suffix: x for suffix, gauge in suffixed(d).items() for name, x in member_terms(gauge).items()}
    return PerExample(component_columns(d.components), terms | accuracy_term(d.correct))


def module_table(d: EnsembleTerms) -> PerExample:
    """One row per module: what is additive is summed over its members, an average over members weighted by n_g/|L|."""
    modules, group = group_numbers([c.module for c in d.components])
    is_in = np.eye(len(modules))[group].T
    counts = is_in.sum(1)
    terms: dict[str, np.ndarray] = {}
    for suffix, gauge in suffixed(d).items():
        for name, values in member_terms(gauge).items():
            terms[name + suffix] = values @ is_in.T / (1.0 if name in d.loss_function.additive else counts.sum())
        extras = gauge.loss_function.module_extras(gauge.values, is_in)
        terms |= {name + suffix: values for name, values in extras.items()}
    names = {"module": modules, "members": counts.astype(int), "member_share": counts / counts.sum()}
    return PerExample(names, terms)


def depth_table(d: EnsembleTerms, norm: NormAt = "frozen") -> PerExample:
    """One row per junction: the totals of its prefix ensemble. Raises InputError as `by_depth` says."""
    if norm == "recomputed" and d.junction_scale is None:
        raise InputError("a plain array has no norm to recompute: use norm='frozen', or give Contributions.")
    junction_of = _junctions(d)
    if max(junction_of) < 0:
        raise InputError("nothing here is written to the stream, so there is no depth: keep other components too.")
    reached = sorted(set(junction_of) - {-1})
    rows = [totals_table(_prefix(d, junction_of, j, j == reached[-1], norm)) for j in reached]
    closing = [(d.junctions or d.components)[j] for j in reached]
    partial = [d.partial_junctions is not None and bool(d.partial_junctions[j]) for j in reached]
    names = component_columns(closing) | {"partial": partial, "members": [row.names["members"][0] for row in rows]}
    return PerExample(names, {name: np.hstack([row.terms[name] for row in rows]) for name in rows[0].terms})


def _junctions(d: EnsembleTerms) -> list[int]:
    """The number of each member's junction; −1 for what is not a sublayer's output."""
    if d.junctions is None:
        return [-1 if c.kind in ("constant", "rounding") else i for i, c in enumerate(d.components)]
    number = {junction: i for i, junction in enumerate(d.junctions)}
    return [number.get(c.sublayer, -1) for c in d.components]


def _prefix(d: EnsembleTerms, junction_of: list[int], junction: int, is_last: bool, norm: NormAt) -> EnsembleTerms:
    """The ensemble of the members up to a junction, with the constant; what else has no junction is in the last."""
    kept = [
        i
        for i, (j, c) in enumerate(zip(junction_of, d.components, strict=True))
        if is_last or 0 <= j <= junction or (j < 0 and c.kind == "constant")
    ]
    # A view where it can be one: there are as many prefixes as junctions.
    u = d.values[:, : len(kept)] if kept == list(range(len(kept))) else d.values[:, kept]
    if norm == "recomputed":
        assert d.junction_scale is not None
        on_stream = np.array([junction_of[i] >= 0 for i in kept])
        u = np.where(on_stream[None, :, None], u / d.junction_scale[:, junction, None, None], u)
    halves = {part: _prefix(half, junction_of, junction, is_last, norm) for part, half in d.halves.items()}
    return replace(d, values=u, components=tuple(d.components[i] for i in kept), known_halves=halves)


TABLES: dict[str, Callable[[EnsembleTerms], PerExample]] = {
    "totals": totals_table,
    "components": component_table,
    "modules": module_table,
    "depth": depth_table,
    "depth_recomputed": lambda d: depth_table(d, "recomputed"),
}
