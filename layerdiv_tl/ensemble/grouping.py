"""Tables of an ensemble's members: alone, in groups (nested) and in pairs.

A table holds terms per example, `[example, row]`, averaged with intervals. Each loss has the formulas of its nested
decomposition (`losses.Loss.nested`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from .._checks import listed
from ..components import Component, component_columns
from ..errors import InputError
from .intervals import Estimate, concatenate, estimate, estimate_function, estimates_frame
from .losses import (
    Gauge,
    Group,
    Loss,
    Members,
    PerMember,
    Target,
    group_numbers,
    in_gauge,
    mean_square,
    ratio,
    relative_gap,
    summands,
)

Names = Sequence[Component]
# Every term `[example]` or `[example, member]`, by its column.
Columns = Mapping[str, np.ndarray]
RowTerms = dict[str, Float[np.ndarray, "example row"]]
By = Literal["cosine", "distance", "disagreement"]
# Tables of all pairs of more members are not made: they can be neither read nor drawn.
MOST_PAIRED = 1000
_UNIT = {"distance": "logits²", "cosine": "cosine", "disagreement": "share"}


@dataclass(frozen=True, eq=False)
class PerExample:
    """A table before averaging: columns that name its rows, and every term `[example, row]`."""

    names: dict[str, Any]
    terms: RowTerms

    def frame(self) -> pd.DataFrame:
        """Return the names of the rows, and the mean of every term with its interval."""
        return estimates_frame(self.names | estimates(self.terms))


def estimates(terms: Columns) -> dict[str, Estimate]:
    """Average over the examples that have a value, with intervals: Wilson's for accuracy."""
    return {name: estimate(x, "share" if name == "accuracy" else "mean") for name, x in terms.items()}


def sum_members(loss: Loss, columns: Columns, is_in: Float[np.ndarray, "member row"]) -> RowTerms:
    """Aggregate sets of members: additive terms are summed, averages over members weighted by n_g/|L|."""
    additive = (*loss.additive, "logit_difference")
    of_members = {name: x for name, x in columns.items() if x.ndim == 2}
    return {name: x @ is_in / (1 if name in additive else len(is_in)) for name, x in of_members.items()}


def component_table(components: Names, columns: Columns, correct: PerMember | None) -> PerExample:
    """One row per member, undivided by |L|."""
    terms = {name: x for name, x in columns.items() if x.ndim == 2}
    return PerExample(component_columns(components), terms if correct is None else terms | {"accuracy": correct})


def module_table(loss: Loss, components: Names, columns: Columns, u: Members) -> PerExample:
    """One row per module (Eq. 9-10)."""
    modules, group = group_numbers([c.module for c in components])
    is_in, counts = np.eye(len(modules))[group], np.bincount(group)
    terms = sum_members(loss, columns, is_in) | loss.module_extras(u, is_in.T)
    return PerExample({"module": modules, "members": counts, "member_share": counts / len(group)}, terms)


def prefix_table(
    values: Members,
    components: Names,
    junctions: Names | None,
    partial: Bool[np.ndarray, " junction"] | None,
    scale: Float[np.ndarray, "example junction"] | None,
    recomputed: bool,
    totals: Callable[[Members, tuple[Component, ...]], RowTerms],
) -> PerExample:
    """One row per junction that a member reaches: the `totals` of the ensemble of all members up to it (Fig. 5, 7).

    The constant is in every prefix; other members without a junction are in the last. Without `junctions` every member
    closes one. `recomputed`: members on the stream are divided by the junction's `scale`.
    """
    if recomputed and scale is None:
        raise InputError(
            "there is no norm to recompute: a plain array has none, options of several tokens have one at each token, "
            "and a stream that passes norms or gates has none for its prefixes; use norm='frozen'."
        )
    if groups := [c.label for c in components if c.kind == "group"]:
        raise InputError(
            f"{groups[0]} has no place along depth, whatever layers its members are in, so there are no prefixes: take "
            "by_module(), or contributions without groups."
        )
    if junctions is None:
        place = np.array([-1 if c.kind in ("constant", "rounding") else i for i, c in enumerate(components)])
    else:
        number = {c: i for i, c in enumerate(junctions)}
        place = np.array([number.get(c.sublayer, -1) for c in components])
    reached = np.unique(place[place >= 0]).tolist()
    if not reached:
        raise InputError("nothing here is written to the stream, so there is no depth: keep other components too.")
    is_constant = np.array([c.kind == "constant" for c in components]) & (place < 0)
    rows, counts = [], []
    for last in reached:
        on_stream = (place >= 0) & (place <= last)
        kept = np.flatnonzero(on_stream | is_constant | (last == reached[-1]))
        u = values[:, kept]
        if recomputed and scale is not None:
            u = u / np.where(on_stream[kept], scale[:, [last]], 1.0)[:, :, None]
        rows.append(totals(u, tuple(components[int(i)] for i in kept)))
        counts.append(len(kept))
    names = component_columns([(junctions or components)[i] for i in reached])
    names |= {"partial": [partial is not None and bool(partial[i]) for i in reached], "members": counts}
    return PerExample(names, {name: np.hstack([row[name] for row in rows]) for name in rows[0]})


def shares(values: PerMember, total: np.ndarray, signed: np.ndarray | None = None) -> Estimate:
    """Estimate each row's share of a total `[example]` or `[example, row]`, with the jackknife's interval.

    NaN where there is no total, and for terms of both signs where the interval of the total (or of `signed`, if the
    total is its square) contains zero. Shares of nonnegative terms, and their intervals, lie between 0 and 1.
    """
    is_positive = signed is None and bool((values >= 0).all())
    within = (0.0, 1.0) if is_positive else (-np.inf, np.inf)
    share = estimate_function(ratio, values, total.reshape(len(total), -1), within=within)
    if is_positive:
        return share
    is_clear = estimate(total if signed is None else signed).excludes_zero
    value, low, high = (np.where(is_clear, x, np.nan) for x in share[:3])
    return share._replace(value=value, low=low, high=high)


def with_shares(table: PerExample) -> pd.DataFrame:
    """Average the table, and add each row's share of bias and diversity."""
    columns = table.names | estimates(table.terms)
    for term in ("bias", "diversity"):
        values = table.terms[term]
        columns[f"{term}_share"] = shares(values, values.sum(1))
    return estimates_frame(columns)


def constant_shares(u: Members) -> Float[np.ndarray, " member"]:
    """mean_k (mean_e x)² / mean_ek x², x = centered (ū − u_i) `[example, option]`; NaN without diversity."""
    x = u - u.mean(2, keepdims=True)
    x = x.mean(1, keepdims=True) - x
    return ratio(np.square(x.mean(0)).mean(1), mean_square(x).mean(0))


def pairwise_frame(u: Members, votes: np.ndarray, components: Names, by: str) -> pd.DataFrame:
    """One row per pair, in stream order. Raises InputError for one member, or too many.

    `u` are the members in their gauge, `votes` `[example, member]` their preferred options.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage

    count = len(components)
    if count > MOST_PAIRED:
        raise InputError(
            f"{count} members have {count * (count - 1) // 2} pairs: select at most {MOST_PAIRED} members."
        )
    if count < 2:
        raise InputError("there is one member only, so there are no pairs.")
    columns = _pairs(u, votes)
    # A zero member is similar to no other.
    distance = columns[by].value if by != "cosine" else 1 - columns[by].value
    tree = linkage(np.clip(np.nan_to_num(distance, nan=1.0), 0, None), "average", optimal_ordering=count <= 300)
    labels = np.array([c.label for c in components], dtype=object)
    first, second = np.triu_indices(count, 1)
    frame = estimates_frame({"component": labels[first], "other": labels[second], **columns}, _UNIT)
    frame.attrs["order"] = labels[leaves_list(tree)].tolist()
    return frame


def _pairs(u: Members, votes: np.ndarray) -> dict[str, Estimate]:
    """Compute distance, cosine and disagreement of all pairs, in the order of `np.triu_indices`."""
    # One member at a time against all after it, so that no [example, pair] array of all pairs is held.
    power = mean_square(u)
    blocks: list[dict[str, Estimate]] = []
    for i in range(u.shape[1] - 1):
        after = slice(i + 1, None)
        differ = (votes[:, i : i + 1] != votes[:, after]).astype(np.float64)
        product = np.einsum("nk,nmk->nm", u[:, i], u[:, after]) / u.shape[2]
        powers = power[:, i : i + 1], power[:, after]
        blocks.append(
            {
                "disagreement": estimate(differ, "share"),
                "distance": estimate(mean_square(u[:, i : i + 1] - u[:, after])),
                "cosine": estimate_function(_cosine, product, *powers, within=(-1.0, 1.0)),
            }
        )
    return {name: concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _cosine(product: np.ndarray, power: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute a cosine of means over examples; NaN where either has no length."""
    return ratio(product, np.sqrt(power.clip(0)) * np.sqrt(other.clip(0)))


def nested_frame(
    loss: Loss, u: Members, t: Target, gauge: Gauge, components: Names, groups: Sequence[object] | None
) -> pd.DataFrame:
    """One row per group, by default per sublayer. Raises InputError as `Decomposition.nested` says."""
    groups = [c.sublayer for c in components] if groups is None else listed("groups", groups, "a list of names")
    if len(groups) != len(components):
        raise InputError(f"groups names {len(groups)} members, but there are {len(components)}: one for each.")
    names, group = group_numbers(groups)
    if len(names) == len(group):
        raise InputError(
            "every group has one member, so nothing is nested: use unit='head', 'neuron', 'expert', or name them."
        )
    columns: dict[str, Any] = {"group": [str(name) for name in names]}
    if all(isinstance(name, Component) for name in names):
        of_names = component_columns(names)
        columns |= {column: of_names[column] for column in ("kind", "layer", "repeat")}
    losses, terms = _nested(loss, u, t, gauge, group)
    per_example = {"loss": losses} | {name: terms[name].mean(1) for name in ("bias", "within", "between")}
    totals = {name: estimate(x) for name, x in per_example.items()}
    attrs: dict[str, Any] = {}
    for name, x in totals.items():
        attrs |= {column: float(end) for column, end in x.columns(name).items()}
    attrs["gap"] = relative_gap(*(attrs[name] for name in per_example))
    return estimates_frame(columns | {"members": np.bincount(group)} | estimates(terms), **attrs)


def _nested(loss: Loss, u: Members, t: Target, gauge: Gauge, group: Group) -> tuple[np.ndarray, RowTerms]:
    """Return (the ensemble's loss `[example]`; bias, within, between `[example, group]`)."""
    (losses, terms), *rest = (loss.nested(*in_gauge(u, t, part), group) for part in summands(loss, gauge))
    for more_losses, more_terms in rest:
        losses = losses + more_losses
        terms = {name: values + more_terms[name] for name, values in terms.items()}
    return losses, terms
