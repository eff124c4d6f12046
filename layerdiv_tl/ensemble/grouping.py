"""Tables of an ensemble's members: alone, in groups (nested), in prefixes and in pairs.

A table holds terms per example, `[example, row]`, averaged with intervals. Each loss has the formulas of its nested
decomposition (`losses.Loss.nested`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from .._checks import listed
from ..components import Component, component_columns
from ..errors import InputError
from .intervals import Estimate, concatenate, estimate, estimate_function, estimates_frame
from .losses import (
    Gauge,
    Loss,
    Members,
    PerMember,
    Target,
    Terms,
    group_numbers,
    in_gauge,
    mean_square,
    ratio,
    relative_gap,
)

Names = Sequence[Component]
RowTerms = dict[str, Float[np.ndarray, "example row"]]
# Terms of members that add up to the ensemble's; others are averaged over members.
ADDITIVE = ("net_linear", "logit_difference")
# Tables of all pairs of more members are not made: they can be neither read nor drawn.
MOST_PAIRED = 1000


def estimates(terms: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Average over the examples that have a value, with intervals: Wilson's for accuracy."""
    return {name: estimate(x, "share" if name == "accuracy" else "mean") for name, x in terms.items()}


def of_members(terms: Terms) -> Terms:
    """Return the terms that each member has."""
    return {name: x for name, x in terms.items() if x.ndim == 2}


def sum_members(terms: Terms, is_in: Float[np.ndarray, "member row"]) -> RowTerms:
    """Aggregate sets of members: additive terms are summed, averages over members weighted by n_g/|L| (Eq. 9-10)."""
    return {name: x @ is_in / (1 if name in ADDITIVE else len(is_in)) for name, x in of_members(terms).items()}


def prefixes(components: Names, junctions: Names | None) -> Iterator[tuple[int, np.ndarray]]:
    """Yield for each junction that a member reaches: its number, and the members of its prefix.

    The constant is in every prefix; other members without a junction are in the last. Without `junctions` every member
    closes one.
    """
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
    for last in reached:
        on_stream = (place >= 0) & (place <= last)
        yield last, np.flatnonzero(on_stream | is_constant | (last == reached[-1]))


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


def with_shares(names: dict[str, Any], terms: RowTerms) -> pd.DataFrame:
    """Average a table's terms, and add each row's share of bias and diversity."""
    columns = names | estimates(terms)
    for term in ("bias", "diversity"):
        columns[f"{term}_share"] = shares(terms[term], terms[term].sum(1))
    return estimates_frame(columns)


def constant_shares(u: Members) -> Float[np.ndarray, " member"]:
    """mean_k (mean_e x)² / mean_ek x², x = centered (ū − u_i) `[example, option]`; NaN without diversity."""
    x = u - u.mean(2, keepdims=True)
    x = x.mean(1, keepdims=True) - x
    return ratio(np.square(x.mean(0)).mean(1), mean_square(x).mean(0))


def pairwise_frame(u: Members, components: Names) -> pd.DataFrame:
    """One row per pair, in stream order, of members in their gauge. Raises InputError for one member, or too many."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    count = len(components)
    if count > MOST_PAIRED:
        raise InputError(
            f"{count} members have {count * (count - 1) // 2} pairs: select at most {MOST_PAIRED} members."
        )
    if count < 2:
        raise InputError("there is one member only, so there are no pairs.")
    columns = _pairs(u)
    # A zero member is similar to no other.
    distance = 1 - np.nan_to_num(columns["cosine"].value, nan=0.0)
    tree = linkage(distance.clip(0), "average", optimal_ordering=count <= 300)
    labels = np.array([c.label for c in components], dtype=object)
    first, second = np.triu_indices(count, 1)
    frame = estimates_frame({"component": labels[first], "other": labels[second], **columns})
    frame.attrs["order"] = labels[leaves_list(tree)].tolist()
    return frame


def _pairs(u: Members) -> dict[str, Estimate]:
    """Compute distance and cosine of all pairs, in the order of `np.triu_indices`."""
    # One member at a time against all after it, so that no [example, pair] array of all pairs is held.
    power = mean_square(u)
    distances, cosines = [], []
    for i in range(u.shape[1] - 1):
        after = slice(i + 1, None)
        product = np.einsum("nk,nmk->nm", u[:, i], u[:, after]) / u.shape[2]
        distances.append(estimate(mean_square(u[:, i : i + 1] - u[:, after])))
        powers = power[:, i : i + 1], power[:, after]
        cosines.append(estimate_function(_cosine, product, *powers, within=(-1.0, 1.0)))
    return {"distance": concatenate(distances), "cosine": concatenate(cosines)}


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
    losses, terms = loss.nested(*in_gauge(u, t, gauge if loss.has_gauges else "raw"), group)
    per_example = {"loss": losses} | {name: terms[name].mean(1) for name in ("bias", "within", "between")}
    totals = {name: estimate(x) for name, x in per_example.items()}
    attrs: dict[str, Any] = {}
    for name, x in totals.items():
        attrs |= {column: float(end) for column, end in x.columns(name).items()}
    attrs["gap"] = relative_gap(*(attrs[name] for name in per_example))
    return estimates_frame(columns | {"members": np.bincount(group)} | estimates(terms), **attrs)
