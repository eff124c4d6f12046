"""Pairs of members: how far apart their predictions are, and the clustering that puts duplicates next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from ..components import Component
from ..errors import InputError
from .arrays import Members, mean_square, ratio
from .frames import with_ends
from .intervals import jackknife, leave_one_out, mean_interval, wilson

if TYPE_CHECKING:
    import pandas as pd

By = Literal["cosine", "distance", "disagreement"]
# A table of all pairs of more members is neither read nor drawn.
MOST_PAIRED = 1000
_UNIT = {"distance": "logits²", "cosine": "cosine", "disagreement": "share"}


def pairwise_frame(u: Members, components: Sequence[Component], by: str) -> pd.DataFrame:
    """One row per pair, in the order of the clustering. Raises InputError for one member, or too many."""
    import pandas as pd
    from scipy.cluster.hierarchy import leaves_list

    count = len(components)
    if count > MOST_PAIRED:
        raise InputError(
            f"{count} members have {count * (count - 1) // 2} pairs: keep at most {MOST_PAIRED} of them, with "
            "contributions(..., top=...) or select(...)."
        )
    if count < 2:
        raise InputError("there is one member only, so there are no pairs.")
    columns = pair_columns(u)
    tree = _clustered(columns[by if by == "disagreement" else f"{by}_centered"], count, by)
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

    def add(name: str, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        for column, x in with_ends(name, value, low, high).items():
            columns.setdefault(column, []).append(x)

    # One member against all after it at a time, so that no [example, pair] array of all pairs is held.
    gauges = {"": u, "_centered": u - u.mean(2, keepdims=True)}
    power = {suffix: mean_square(x) for suffix, x in gauges.items()}
    left_out = {suffix: leave_one_out(values) for suffix, values in power.items()}
    votes = u.argmax(2)
    for i in range(u.shape[1] - 1):
        after = slice(i + 1, None)
        for suffix, x in gauges.items():
            distance = mean_square(x[:, i : i + 1] - x[:, after])
            add(f"distance{suffix}", distance.mean(0), *mean_interval(distance))
        disagree = (votes[:, i : i + 1] != votes[:, after]).astype(np.float64)
        add("disagreement", disagree.mean(0), *wilson(disagree.sum(0), len(u)))
        # A cosine pooled over examples: products and powers are averaged first.
        for suffix, x in gauges.items():
            product = np.einsum("nk,nmk->nm", x[:, i], x[:, after]) / x.shape[2]
            size, rest = power[suffix].mean(0), left_out[suffix]
            cosine = ratio(product.mean(0), np.sqrt(size[i]) * np.sqrt(size[after]))
            cosines = ratio(leave_one_out(product), np.sqrt(rest[:, i, None]) * np.sqrt(rest[:, after]))
            add(f"cosine{suffix}", cosine, *jackknife(cosine, cosines, within=(-1.0, 1.0)))
    return {name: np.concatenate(values) for name, values in columns.items()}


def _clustered(values: Float[np.ndarray, " pair"], count: int, by: str) -> Any:
    """Members joined by average linkage, as scipy's `linkage`."""
    from scipy.cluster.hierarchy import linkage

    distance = 1 - values if by == "cosine" else values
    # A member without a direction is like no other.
    distance = np.clip(np.nan_to_num(distance, nan=1.0), 0, None)
    return linkage(distance, "average", optimal_ordering=count <= 300)
