"""Tables of an ensemble's members: alone, in groups (nested), in pairs, and as repeats of a reused layer.

A table holds terms per example, `[example, row]`, averaged with intervals. Each loss has the formulas of its nested
decomposition (`losses.Loss.nested`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from .._checks import listed
from ..components import Component, component_columns
from ..errors import InputError
from .intervals import Estimate, concatenate, estimate, estimate_function, estimates_frame
from .losses import Gauges, Group, Loss, Members, PerMember, group_numbers, mean_square, ratio, relative_gap

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


def module_table(loss: Loss, components: Names, columns: Columns, gauges: Gauges) -> PerExample:
    """One row per module (Eq. 9-10)."""
    modules, group = group_numbers([c.module for c in components])
    is_in, counts = np.eye(len(modules))[group], np.bincount(group)
    terms = sum_members(loss, columns, is_in)
    for suffix, (u, _) in gauges.items():
        terms |= {name + suffix: x for name, x in loss.module_extras(u, is_in.T).items()}
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
            "and the prefixes of a stream that passes norms or gates, or is one of several, have none; use "
            "norm='frozen'."
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


def shares(values: PerMember, whole: np.ndarray, signed: np.ndarray | None = None) -> Estimate:
    """Estimate each row's share of a total `[example]` or `[example, row]`, with the jackknife's interval.

    NaN where there is no total, and for terms of both signs where the interval of the total (or of `signed`, if the
    total is its square) contains zero. Shares of nonnegative terms, and their intervals, lie between 0 and 1.
    """
    is_positive = signed is None and bool((values >= 0).all())
    within = (0.0, 1.0) if is_positive else (-np.inf, np.inf)
    share = estimate_function(ratio, values, whole.reshape(len(whole), -1), within=within)
    if is_positive:
        return share
    is_clear = estimate(whole if signed is None else signed).excludes_zero
    value, low, high = (np.where(is_clear, x, np.nan) for x in share[:3])
    return share._replace(value=value, low=low, high=high)


def with_shares(table: PerExample, suffixes: Iterable[str]) -> pd.DataFrame:
    """Average the table, and add each row's share of bias and diversity in every gauge."""
    columns = table.names | estimates(table.terms)
    for suffix, term in product(suffixes, ("bias", "diversity")):
        values = table.terms[term + suffix]
        columns[f"{term}_share{suffix}"] = shares(values, values.sum(1))
    return estimates_frame(columns)


def pairwise_frame(u: Members, components: Names, by: str) -> pd.DataFrame:
    """One row per pair, in the order of the clustering. Raises InputError for one member, or too many."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    count = len(components)
    if count > MOST_PAIRED:
        raise InputError(
            f"{count} members have {count * (count - 1) // 2} pairs: keep at most {MOST_PAIRED} of them, with "
            "contributions(..., top=...) or select(...)."
        )
    if count < 2:
        raise InputError("there is one member only, so there are no pairs.")
    columns = _pairs(u)
    apart = columns.get(f"{by}_centered", columns[by]).value
    # A zero member is similar to no other.
    distance = np.clip(np.nan_to_num(1 - apart if by == "cosine" else apart, nan=1.0), 0, None)
    tree = linkage(distance, "average", optimal_ordering=count <= 300)
    order = leaves_list(tree)
    rank = np.argsort(order)
    # Within a pair, as between pairs, the member that comes first in the clustering comes first.
    first, second = np.triu_indices(count, 1)
    first, second = np.where(rank[first] > rank[second], (second, first), (first, second))
    labels = np.array([c.label for c in components], dtype=object)
    units = {column: _UNIT[column.split("_")[0]] for column in columns}
    frame = estimates_frame({"component": labels[first], "other": labels[second], **columns}, units)
    attrs = frame.attrs | {"order": [labels[i] for i in order], "linkage": tree.tolist()}
    frame = frame.iloc[np.lexsort((rank[second], rank[first]))].reset_index(drop=True)
    frame.attrs = attrs
    return frame


def _pairs(u: Members) -> dict[str, Estimate]:
    """Compute distance, cosine and disagreement of all pairs, in the order of `np.triu_indices`."""
    # One member at a time against all after it, so that no [example, pair] array of all pairs is held.
    gauges = {"": u, "_centered": u - u.mean(2, keepdims=True)}
    power = {suffix: mean_square(x) for suffix, x in gauges.items()}
    votes = u.argmax(2)
    blocks: list[dict[str, Estimate]] = []
    for i in range(u.shape[1] - 1):
        after = slice(i + 1, None)
        differ = (votes[:, i : i + 1] != votes[:, after]).astype(np.float64)
        found = {"disagreement": estimate(differ, "share")}
        for suffix, x in gauges.items():
            found[f"distance{suffix}"] = estimate(mean_square(x[:, i : i + 1] - x[:, after]))
            product = np.einsum("nk,nmk->nm", x[:, i], x[:, after]) / x.shape[2]
            powers = power[suffix][:, i : i + 1], power[suffix][:, after]
            found[f"cosine{suffix}"] = estimate_function(_cosine, product, *powers, within=(-1.0, 1.0))
        blocks.append(found)
    return {name: concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _cosine(product: np.ndarray, power: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute a cosine of means over examples; NaN where either has no length."""
    return ratio(product, np.sqrt(power.clip(0)) * np.sqrt(other.clip(0)))


def nested_frame(loss: Loss, gauges: Gauges, components: Names, groups: Sequence[object] | None) -> pd.DataFrame:
    """One row per group, by default per sublayer. Raises InputError as `Decomposition.nested` says."""
    if groups is not None:
        groups = listed("groups", groups, "a list with a name for each member")
        if not all(isinstance(name, str | int | float | Component) and name == name for name in groups):
            raise InputError("groups must be texts, numbers or components, one for each member.")
        if len(groups) != len(components):
            raise InputError(f"groups names {len(groups)} members, but there are {len(components)}: one for each.")
    names, group = group_numbers([c.sublayer for c in components] if groups is None else groups)
    if len(names) == len(group):
        raise InputError(
            "every group has one member, so nothing is nested: use unit='head', 'neuron', 'expert', or name them."
        )
    columns: dict[str, Any] = {"group": [str(name) for name in names]}
    if all(isinstance(name, Component) for name in names):
        of_names = component_columns(names)
        columns |= {column: of_names[column] for column in ("kind", "layer", "repeat")}
    terms, totals = _nested(loss, gauges, group)
    return estimates_frame(columns | {"members": np.bincount(group)} | estimates(terms), **totals)


def _nested(loss: Loss, gauges: Gauges, group: Group) -> tuple[RowTerms, dict[str, Any]]:
    """Return (bias, within, between `[example, group]` by gauge; the ensemble's totals, with intervals, and gap)."""
    losses: dict[str, np.ndarray] = {}
    terms: RowTerms = {}
    for suffix, (u, t) in gauges.items():
        losses[suffix], measured = loss.nested(u, t, group)
        terms |= {name + suffix: values for name, values in measured.items()}
    if "_centered" in losses:  # raw is the sum of the other two, as everywhere
        for arrays in (losses, terms):
            for name in [name.removesuffix("_shift") for name in arrays if name.endswith("_shift")]:
                arrays[name] = arrays[f"{name}_centered"] + arrays[f"{name}_shift"]
    totals: dict[str, Any] = {}
    for suffix, values in losses.items():
        per_example = {name: terms[name + suffix].mean(1) for name in ("bias", "within", "between")} | {"loss": values}
        for name, x in per_example.items():
            totals |= {column: float(end) for column, end in estimate(x).columns(name + suffix).items()}
        sums = [totals[name + suffix] for name in ("loss", "bias", "within", "between")]
        totals[f"gap{suffix}"] = relative_gap(*sums)
    return terms, totals


def repeats_frame(loss: Loss, gauges: Gauges, components: Names) -> pd.DataFrame:
    """One row per repeated block: its nested decomposition, shares of the diversity, and cosines of its repeats.

    Raises InputError where no layer is repeated.
    """
    # `L3.attn` from `L3@2.attn`.
    names, group = group_numbers([replace(c, repeat=None) for c in components])
    if len(names) == len(group):
        raise InputError(
            "no layer is used twice here, so there are no repeats to compare: this is about models that run a block "
            "several times in one pass (L3@1, L3@2)."
        )
    terms, attrs = _nested(loss, gauges, group)
    repeated = np.flatnonzero(np.bincount(group) > 1)
    columns: dict[str, Any] = component_columns([names[i] for i in repeated])
    del columns["repeat"]
    columns["repeats"] = np.bincount(group)[repeated]
    for suffix in gauges:
        for source, column in (("within_unscaled", "diversity"), ("within", "within"), ("between", "between")):
            if source + suffix in terms:
                columns[column + suffix] = estimate(terms[source + suffix][:, repeated])
        # `within` as a share of all `within` and `between`: for each block, and for all blocks together.
        within = terms[f"within{suffix}"]
        whole = (within + terms[f"between{suffix}"]).sum(1)
        columns[f"share{suffix}"] = shares(within[:, repeated], whole)
        total = shares(within.sum(1, keepdims=True), whole)
        attrs |= {name: float(x[0]) for name, x in total.columns(f"share{suffix}").items()}
    columns["cosine_centered"] = _mean_cosines(gauges[""][0], group, repeated)
    return estimates_frame(columns, **attrs)


def _mean_cosines(u: Members, group: Group, wanted: np.ndarray) -> Estimate:
    """Average the cosine between the members of each wanted group, centered over options, pooled over examples; NaN
    where a member is zero.
    """
    centered, found = u - u.mean(2, keepdims=True), []
    for number in wanted:
        x = centered[:, group == number]
        first, second = np.triu_indices(x.shape[1], 1)
        product, power = np.einsum("npk,npk->np", x[:, first], x[:, second]), (x**2).sum(2)
        powers = power[:, first], power[:, second]
        found.append(
            estimate_function(lambda *x: _cosine(*x).mean(1, keepdims=True), product, *powers, within=(-1.0, 1.0))
        )
    return concatenate(found)
