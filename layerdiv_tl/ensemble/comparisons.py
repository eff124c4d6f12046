"""Members compared: in pairs, in groups (the nested cut), and as the repeats of a reused layer.

The formulas of the nested cut are those of a loss (`losses.SquaredError.nested`, `losses.CrossEntropy.nested`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from .._checks import listed
from ..components import Component, component_columns
from ..errors import InputError
from .intervals import Ends, jackknife, leave_one_out, mean_interval, wilson
from .losses import Group, Loss, Members, PerMember, Target, group_numbers, mean_square, ratio
from .tables import ENDS, means, shares, with_ends

if TYPE_CHECKING:
    import pandas as pd

# Members and target by the suffix of their columns: "", "_centered", "_shift".
Parts = Mapping[str, tuple[Members, Target]]
By = Literal["cosine", "distance", "disagreement"]
# A table of all pairs of more members is neither read nor drawn.
MOST_PAIRED = 1000
# Groups whose products are held at a time.
_AT_ONCE = 1000
_UNIT = {"distance": "logits²", "cosine": "cosine", "disagreement": "share"}


def pairwise_frame(u: Members, components: Sequence[Component], by: str) -> pd.DataFrame:
    """One row per pair, in the order of the clustering. Raises InputError for one member, or too many."""
    import pandas as pd
    from scipy.cluster.hierarchy import leaves_list, linkage

    count = len(components)
    if count > MOST_PAIRED:
        raise InputError(
            f"{count} members have {count * (count - 1) // 2} pairs: keep at most {MOST_PAIRED} of them, with "
            "contributions(..., top=...) or select(...)."
        )
    if count < 2:
        raise InputError("there is one member only, so there are no pairs.")
    columns = pair_columns(u)
    distance = 1 - columns["cosine_centered"] if by == "cosine" else columns.get(f"{by}_centered", columns[by])
    # A member without a direction is like no other.
    distance = np.clip(np.nan_to_num(distance, nan=1.0), 0, None)
    tree = linkage(distance, "average", optimal_ordering=count <= 300)
    order = leaves_list(tree)
    rank = np.argsort(order)
    # Within a pair, as between pairs, the member that comes first in the clustering stands first.
    first, second = np.triu_indices(count, 1)
    first, second = np.where(rank[first] > rank[second], (second, first), (first, second))
    labels = np.array([c.label for c in components], dtype=object)
    frame = pd.DataFrame({"component": labels[first], "other": labels[second], **columns})
    frame = frame.iloc[np.lexsort((rank[second], rank[first]))].reset_index(drop=True)
    frame.attrs["units"] = {column: _UNIT[column.split("_")[0]] for column in columns}
    frame.attrs |= {"order": [labels[i] for i in order], "linkage": tree.tolist()}
    return frame


def pair_columns(u: Members) -> dict[str, np.ndarray]:
    """Distance, cosine and disagreement of all pairs with their intervals, in the order of `np.triu_indices`."""
    columns: dict[str, list[np.ndarray]] = {}

    def add(name: str, value: np.ndarray, ends: Ends) -> None:
        for column, x in with_ends(name, value, *ends).items():
            columns.setdefault(column, []).append(x)

    # One member against all after it at a time, so that no [example, pair] array of all pairs is held.
    parts = {"": u, "_centered": u - u.mean(2, keepdims=True)}
    power = {suffix: mean_square(x) for suffix, x in parts.items()}
    votes = u.argmax(2)
    for i in range(u.shape[1] - 1):
        after = slice(i + 1, None)
        for suffix, x in parts.items():
            distance = mean_square(x[:, i : i + 1] - x[:, after])
            add(f"distance{suffix}", distance.mean(0), mean_interval(distance))
        disagree = (votes[:, i : i + 1] != votes[:, after]).astype(np.float64)
        add("disagreement", disagree.mean(0), wilson(disagree.sum(0), len(u)))
        for suffix, x in parts.items():
            product = np.einsum("nk,nmk->nm", x[:, i], x[:, after]) / x.shape[2]
            cosine, left_out = _pooled_cosine(product, power[suffix][:, i : i + 1], power[suffix][:, after])
            add(f"cosine{suffix}", cosine, jackknife(cosine, left_out, within=(-1.0, 1.0)))
    return {name: np.concatenate(values) for name, values in columns.items()}


def groups_of(components: Sequence[Component], groups: Sequence[object] | None) -> tuple[list, Group]:
    """(the groups' names, each member's number); None groups by sublayer. Raises InputError as `nested` says."""
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
    return names, group


def nested_frame(loss: Loss, parts: Parts, names: list, group: Group) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """One row per group, the ensemble's totals with their intervals and the identity's gap in `attrs`; and the terms.

    Terms are bias, within, between `[example, group]`, with suffixes.
    """
    import pandas as pd

    losses: dict[str, np.ndarray] = {}
    terms: dict[str, np.ndarray] = {}
    for suffix, (u, t) in parts.items():
        losses[suffix], measured = loss.nested(u, t, group)
        terms |= {name + suffix: values for name, values in measured.items()}
    if "_centered" in losses:  # as everywhere: the halves first, then their sum
        for arrays in (losses, terms):
            for name in [name.removesuffix("_shift") for name in arrays if name.endswith("_shift")]:
                arrays[name] = arrays[f"{name}_centered"] + arrays[f"{name}_shift"]
    columns: dict[str, Any] = {"group": [str(name) for name in names]}
    if all(isinstance(name, Component) for name in names):
        of_names = component_columns(names)
        columns |= {column: of_names[column] for column in ("kind", "layer", "repeat")}
    frame = pd.DataFrame(columns | {"members": np.bincount(group)} | means(terms))
    for suffix, values in losses.items():
        per_example = {name: terms[name + suffix].mean(1) for name in ("bias", "within", "between")}
        mean = {name: float(terms[name + suffix].mean()) for name in per_example} | {"loss": float(values.mean())}
        gap = abs(mean["loss"] - (mean["bias"] - mean["within"] - mean["between"]))
        frame.attrs[f"gap{suffix}"] = gap / max(*map(abs, mean.values()), np.finfo(float).tiny)
        for name, x in (per_example | {"loss": values}).items():
            frame.attrs |= with_ends(name + suffix, mean[name], *map(float, mean_interval(x)))
    return frame, terms


def repeats_frame(loss: Loss, parts: Parts, components: Sequence[Component]) -> pd.DataFrame:
    """One row per repeated block: the nested cut with blocks for groups, shares of the diversity, cosines.

    Raises InputError where no layer is repeated.
    """
    import pandas as pd

    # `L3.attn` of `L3@2.attn`.
    names, group = group_numbers([replace(c, repeat=None) for c in components])
    if len(names) == len(group):
        raise InputError(
            "no layer is used twice here, so there are no repeats to compare: this is about models that run a block "
            "several times in one pass (L3@1, L3@2)."
        )
    table, terms = nested_frame(loss, parts, names, group)
    repeated = np.flatnonzero(np.bincount(group) > 1)
    columns: dict[str, Any] = component_columns([names[i] for i in repeated])
    del columns["repeat"]
    columns["repeats"] = table["members"].to_numpy()[repeated]
    attrs: dict[Any, Any] = dict(table.attrs)
    for suffix in parts:
        for source, column in (("within_unscaled", "diversity"), ("within", "within"), ("between", "between")):
            for end in ENDS:
                if f"{source}{suffix}{end}" in table:
                    columns[f"{column}{suffix}{end}"] = table[f"{source}{suffix}{end}"].to_numpy()[repeated]
        # `within` as a share of all of both: of each block, and of all blocks together.
        within, whole = terms[f"within{suffix}"], (terms[f"within{suffix}"] + terms[f"between{suffix}"]).sum(1)
        columns |= with_ends(f"share{suffix}", *(values[repeated] for values in shares(within, whole)))
        total = shares(within.sum(1, keepdims=True), whole)
        attrs |= with_ends(f"share{suffix}", *(float(values[0]) for values in total))
    columns |= with_ends("cosine_centered", *mean_cosines(parts[""][0], group, repeated.tolist()))
    frame = pd.DataFrame(columns)
    frame.attrs |= attrs
    return frame


def mean_cosines(u: Members, group: Group, wanted: Sequence[int]) -> tuple[Any, Any, Any]:
    """The mean cosine between the members of each wanted group, centered over options, with its interval.

    Pooled over examples and options, then averaged over pairs; NaN where a member is zero.
    """
    centered = u - u.mean(2, keepdims=True)
    mean, low, high = np.full((3, len(wanted)), np.nan)
    members = {number: np.flatnonzero(group == number) for number in wanted}
    # Groups with as many members at once, since there may be thousands (every neuron's repeats).
    for count in {len(inside) for inside in members.values()}:
        same_size = [row for row, number in enumerate(wanted) if len(members[number]) == count]
        for start in range(0, len(same_size), _AT_ONCE):
            rows = same_size[start : start + _AT_ONCE]
            repeats = [centered[:, [members[wanted[row]][repeat] for row in rows]] for repeat in range(count)]
            pairs = list(combinations(repeats, 2))
            cosine, left_out = np.zeros(len(rows)), np.zeros((len(u), len(rows)))
            for x, y in pairs:
                pooled, rest = _pooled_cosine((x * y).sum(2), (x**2).sum(2), (y**2).sum(2))
                cosine += pooled / len(pairs)
                left_out += rest / len(pairs)
            mean[rows] = cosine
            low[rows], high[rows] = jackknife(cosine, left_out, within=(-1.0, 1.0))
    return mean, low, high


def _pooled_cosine(
    product: PerMember, power: Float[np.ndarray, "example #member"], other: PerMember
) -> tuple[np.ndarray, PerMember]:
    """(the cosine, the same without each example): products and powers are averaged over examples first."""
    cosine = ratio(product.mean(0), np.sqrt(power.mean(0)) * np.sqrt(other.mean(0)))
    return cosine, ratio(leave_one_out(product), np.sqrt(leave_one_out(power)) * np.sqrt(leave_one_out(other)))
