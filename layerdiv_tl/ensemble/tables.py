"""Tables of a decomposition: terms per example of members, modules (Eq. 9-10) and prefixes (Fig. 5, 7), and means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from ..components import component_columns
from ..errors import InputError
from .intervals import clear_of_zero, jackknife, leave_one_out, mean_interval, wilson
from .losses import group_numbers, ratio

if TYPE_CHECKING:
    import pandas as pd

    from .terms import EnsembleTerms

NormAt = Literal["frozen", "recomputed"]
Table = Literal["totals", "components", "modules", "depth", "depth_recomputed"]
RowTerms = dict[str, Float[np.ndarray, "example row"]]
ENDS = ("", "_low", "_high")


@dataclass(frozen=True, eq=False)
class PerExample:
    """A table before it is averaged: columns that name its rows, and every term `[example, row]`."""

    names: dict[str, Any]
    terms: RowTerms

    def frame(self) -> pd.DataFrame:
        """Means over examples with their intervals: Wilson's for accuracy."""
        import pandas as pd

        columns = means({name: values for name, values in self.terms.items() if name != "accuracy"})
        if "accuracy" in self.terms:
            correct = self.terms["accuracy"]
            columns |= with_ends("accuracy", correct.mean(0), *wilson(correct.sum(0), len(correct)))
        return pd.DataFrame(self.names | columns)


def with_ends(name: str, value: Any, low: Any, high: Any) -> dict[str, Any]:
    """The three columns of a number and its interval."""
    return {name + end: x for end, x in zip(ENDS, (value, low, high), strict=True)}


def means(terms: RowTerms) -> dict[str, np.ndarray]:
    """Mean over examples with its interval, for every term."""
    columns: dict[str, np.ndarray] = {}
    for name, values in terms.items():
        columns |= with_ends(name, mean_of(values), *mean_interval(values))
    return columns


def mean_of(values: Float[np.ndarray, "example row"]) -> Float[np.ndarray, " row"]:
    """Over the examples that have a value; NaN where none has."""
    known = np.isfinite(values)
    if known.all():
        return values.mean(0)
    return ratio(np.where(known, values, 0.0).sum(0), known.sum(0))


def shares(
    values: Float[np.ndarray, "example row"], whole: np.ndarray, signed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's share of a whole `[example]` or `[example, row]`, a ratio of means, with the jackknife's interval.

    NaN of no whole, and of parts of both signs where the whole (or `signed`, whose square it is) is not clear of zero.
    Shares of what is never negative lie between 0 and 1, and so do their intervals.
    """
    rest, alike = leave_one_out(whole), bool((values >= 0).all())
    share, left_out = ratio(values.mean(0), whole.mean(0)), ratio(leave_one_out(values), rest.reshape(len(rest), -1))
    if signed is not None or not alike:
        share = np.where(clear_of_zero(whole if signed is None else signed), share, np.nan)
    return share, *jackknife(share, left_out, within=(0.0, 1.0) if alike and signed is None else (-np.inf, np.inf))


def suffixed(d: EnsembleTerms, terms_of: Callable[[EnsembleTerms], RowTerms]) -> RowTerms:
    """RowTerms of a decomposition and of its halves, under their names with the suffix of the half."""
    return {name + suffix: values for suffix, part in d.parts.items() for name, values in terms_of(part).items()}


def total_terms(d: EnsembleTerms) -> RowTerms:
    """The ensemble's terms, `[example, 1]`."""
    terms = {"loss": d.losses, "bias": d.biases.mean(1), "diversity": d.diversities.mean(1)}
    for name, values in d.extras.items():
        over_members = np.sum if name in d.loss_function.additive else np.mean
        terms[name] = values if values.ndim == 1 else over_members(values, axis=1)
    return {name: values[:, None] for name, values in terms.items()}


def totals_table(d: EnsembleTerms) -> PerExample:
    """One row: the ensemble."""
    return PerExample({"members": [len(d.components)]}, suffixed(d, total_terms) | ensemble_answer_terms(d))


def component_table(d: EnsembleTerms) -> PerExample:
    """One row per member."""
    terms = suffixed(d, _member_terms) | accuracy_term(d.correct) | difference_term(d.differences)
    return PerExample(component_columns(d.components), terms)


def module_table(d: EnsembleTerms) -> PerExample:
    """One row per module: what is additive is summed over its members, an average over members weighted by n_g/|L|."""
    modules, group = group_numbers([c.module for c in d.components])
    is_in = np.eye(len(modules))[group].T
    counts = is_in.sum(1)

    def module_terms(part: EnsembleTerms) -> RowTerms:
        terms = {
            name: values @ is_in.T / (1.0 if name in d.loss_function.additive else counts.sum())
            for name, values in _member_terms(part).items()
        }
        return terms | part.loss_function.module_extras(part.values, is_in)

    names = {"module": modules, "members": counts.astype(int), "member_share": counts / counts.sum()}
    return PerExample(names, suffixed(d, module_terms) | difference_term(d.differences, is_in.T))


def depth_table(d: EnsembleTerms, norm: NormAt = "frozen") -> PerExample:
    """One row per junction: the totals of its prefix ensemble. Raises InputError as `by_depth` says."""
    if norm == "recomputed" and d.junction_scale is None:
        raise InputError(
            "there is no norm to recompute: a plain array has none, options of several tokens have one at each token, "
            "and the prefixes of a stream that passes norms or gates, or is one of several, have none; use "
            "norm='frozen'."
        )
    if groups := [c.label for c in d.components if c.kind == "group"]:
        raise InputError(
            f"{groups[0]} has no place along depth, whatever layers its members are in, so there are no prefixes: take "
            "by_module(), or contributions without groups."
        )
    junction_of = _junctions(d)
    reached = sorted(set(junction_of) - {-1})
    if not reached:
        raise InputError("nothing here is written to the stream, so there is no depth: keep other components too.")
    rows = [totals_table(_prefix(d, junction_of, j, j == reached[-1], norm)) for j in reached]
    closing = [(d.junctions or d.components)[j] for j in reached]
    partial = [d.partial_junctions is not None and bool(d.partial_junctions[j]) for j in reached]
    names = component_columns(closing) | {"partial": partial, "members": [row.names["members"][0] for row in rows]}
    return PerExample(names, {name: np.hstack([row.terms[name] for row in rows]) for name in rows[0].terms})


def _member_terms(d: EnsembleTerms) -> RowTerms:
    """Each member's terms, undivided by |L|."""
    terms = {"bias": d.biases, "diversity": d.diversities}
    terms |= {"net": d.biases - d.diversities} if d.loss_function.is_exact else {}
    return terms | {name: values for name, values in d.extras.items() if values.ndim == 2}


def accuracy_term(correct: np.ndarray | None) -> RowTerms:
    """The term of that name, where there are labels."""
    return {} if correct is None else {"accuracy": correct.astype(np.float64).reshape(len(correct), -1)}


def ensemble_answer_terms(d: EnsembleTerms) -> RowTerms:
    """Accuracy and logit difference of all members together, where there are labels."""
    return accuracy_term(d.ensemble_correct) | difference_term(d.differences, np.ones((len(d.components), 1)))


def difference_term(differences: np.ndarray | None, over: Float[np.ndarray, "member row"] | None = None) -> RowTerms:
    """The logit difference of the members, or of their sums over rows, where there are labels."""
    if differences is None:
        return {}
    return {"logit_difference": differences if over is None else differences @ over}


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
