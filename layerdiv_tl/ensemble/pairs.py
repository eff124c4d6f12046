"""Pairs of members: how far apart their predictions are, and the clustering that puts duplicates next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..components import Component
from ..errors import InputError
from .intervals import Ends, jackknife, leave_one_out, mean_interval, wilson
from .losses import Group, Members, PerMember, mean_square, ratio
from .tables import with_ends

if TYPE_CHECKING:
    import pandas as pd

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
            pairs = [_pooled_cosine((x * y).sum(2), (x**2).sum(2), (y**2).sum(2)) for x, y in combinations(repeats, 2)]
            mean[rows] = np.mean([cosine for cosine, _ in pairs], 0)
            left_out = np.mean([cosines for _, cosines in pairs], 0)
            low[rows], high[rows] = jackknife(mean[rows], left_out, within=(-1.0, 1.0))
    return mean, low, high


def _pooled_cosine(product: PerMember, power: PerMember, other: PerMember) -> tuple[np.ndarray, PerMember]:
    """(the cosine, the same without each example): products and powers are averaged over examples first."""
    cosine = ratio(product.mean(0), np.sqrt(power.mean(0)) * np.sqrt(other.mean(0)))
    return cosine, ratio(leave_one_out(product), np.sqrt(leave_one_out(power)) * np.sqrt(leave_one_out(other)))
