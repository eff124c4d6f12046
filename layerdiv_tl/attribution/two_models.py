"""The components of two models beside one another: by name where the models have one shape, in groups elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from ..components import Component
from ..ensemble.intervals import clear_of_zero, mean_interval
from ..ensemble.losses import group_numbers, sum_by_group
from ..ensemble.tables import with_ends
from ..errors import InputError
from ..model.architecture import ADAPTER_ROWS

if TYPE_CHECKING:
    import pandas as pd

Names = tuple[Component, ...]
PerComponent = Float[np.ndarray, "example component"]
# Unit roundoffs that are taken for rounding, twice what was measured.
ROUNDOFFS = 8
# Rows that one of two models of the same shape may lack: it adds nothing there.
_LACKING = ("constant", "rounding", "intervention", *ADAPTER_ROWS.values())


def one_shape(a: Names, b: Names) -> bool:
    """Whether two models are of one shape: what one lacks is only what a model may add without being another."""
    return a == b or not any(c.kind not in _LACKING for c in set(a) ^ set(b))


def common_rows(a: Names, b: Names, models: tuple[str, str]) -> Names:
    """The components of two models of one shape, in stream order. Raises InputError for models of different shape."""
    if a == b:
        return a
    if not one_shape(a, b):
        raise InputError(
            f"{models[0]} and {models[1]} differ in shape ({len(a)} and {len(b)} components), so no component is in "
            "both: compare them by_module(), or by relative depth, by_depth()."
        )
    names = list(a)
    for place, name in enumerate(b):
        if name not in names:
            names.insert(names.index(b[place - 1]) + 1 if place else 0, name)
    return tuple(names)


def in_rows(rows: Names, components: Names, values: Float[np.ndarray, "example component ..."]) -> np.ndarray:
    """Values of some components `[example, component, …]` in the rows of both models: zero where this one lacks it."""
    if rows == components:
        return values
    place_of = {name: place for place, name in enumerate(rows)}
    out = np.zeros((len(values), len(rows), *values.shape[2:]))
    out[:, [place_of[c] for c in components]] = values
    return out


def difference(
    x: Float[np.ndarray, "*shape"], y: Float[np.ndarray, "*shape"], dtype: type = np.float64
) -> Float[np.ndarray, "*shape"]:
    """x − y; 0 where it is the rounding of the few products, of precision `dtype`, that made them."""
    found, least = x - y, 8 * np.finfo(dtype).eps
    for row, of in zip(np.atleast_2d(found), np.atleast_2d(x), strict=True):  # one at a time stays in the cache
        row[np.abs(row) <= least * np.abs(of)] = 0.0
    return found


def grouped(
    by: str,
    groups: Sequence[Sequence[object]],
    scores: tuple[PerComponent, PerComponent],
    documents: Int[np.ndarray, " example"] | None = None,
) -> pd.DataFrame:
    """One row per group of components of either model: the sums of their scores, what share of all theirs is, and the
    change of the sums, with intervals where examples are independent; else `documents` are.

    Shares are NaN where all of a model's scores together are not clear of zero.
    """
    import pandas as pd

    names, number = group_numbers([*groups[0], *groups[1]])
    halves = np.split(number, [len(groups[0])])
    score, counts = [], []
    for side, group in zip(scores, halves, strict=True):
        # A group of zeros at the end, so that both sides have all groups.
        values = np.pad(side, ((0, 0), (0, len(names))))
        score.append(sum_by_group(values, np.append(group, np.arange(len(names)))))
        counts.append(np.bincount(group, minlength=len(names)))
    change = score[1] - score[0]
    columns = {by: names, "members_a": counts[0], "members_b": counts[1]}
    sums = {side: x.mean(0) for side, x in zip("ab", score, strict=True)}
    columns |= sums
    for (name, x), every in zip(sums.items(), scores, strict=True):
        totals = every.sum(1)
        if documents is not None:
            totals = np.bincount(np.unique(documents, return_inverse=True)[1], totals)
        columns[f"share_{name}"] = x / (x.sum() if clear_of_zero(totals) else np.nan)
    ends = {"change": change.mean(0)}
    if documents is None:
        ends = with_ends("change", change.mean(0), *mean_interval(change))
    frame = pd.DataFrame(columns | ends)
    if by == "depth":
        place = {"embedding": 0.0, "after": 2.0}
        frame = frame.iloc[np.argsort([place.get(x, x) for x in names])].reset_index(drop=True)
    return frame


def relative_depths(components: Sequence[Component], n_bins: int) -> list[object]:
    """The end of each component's part of the depth; embeddings and what comes after all blocks have names."""
    blocks = list(dict.fromkeys((c.layer, c.repeat) for c in components if c.layer is not None))
    place = {block: (number + 0.5) / len(blocks) for number, block in enumerate(blocks)}
    return [
        (int(place[c.layer, c.repeat] * n_bins) + 1) / n_bins
        if c.layer is not None
        else "embedding"
        if c.module == "embedding" or c.kind == "intervention"
        else "after"
        for c in components
    ]
