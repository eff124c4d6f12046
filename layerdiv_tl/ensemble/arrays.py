"""Small operations on members `[example, member, option]` that several formulas share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Members = Float[np.ndarray, "example member option"]
Target = Float[np.ndarray, "example option"]


def mean_square(x: Members) -> Float[np.ndarray, "example member"]:
    """mean_k x²; for few options several times faster than numpy's own mean over a short last axis."""
    return np.einsum("nmk,nmk->nm", x, x) / x.shape[2]


def coherence_of(
    sums: Float[np.ndarray, "example set option"], sum_of_power: Float[np.ndarray, "example set"]
) -> Float[np.ndarray, "example set"]:
    """|Σu|² / Σ|u|² of sets of members; members that are all zero have no direction: NaN."""
    return ratio(mean_square(sums), sum_of_power)


def ratio(part: Any, whole: Any) -> np.ndarray:
    """part / whole, broadcast; NaN where the whole is not above 0."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)


def group_numbers(names: Sequence[object]) -> tuple[list, Int[np.ndarray, " member"]]:
    """(distinct names in order, the number of each member's)."""
    number: dict[object, int] = {}
    group = [number.setdefault(name, len(number)) for name in names]
    return list(number), np.array(group, dtype=np.int64)


def sum_by_group(
    x: Float[np.ndarray, "example member *rest"], group: Int[np.ndarray, " member"]
) -> Float[np.ndarray, "example group *rest"]:
    """Sums over the members of each group; there may be tens of thousands of groups (every neuron's repeats)."""
    order = np.argsort(group, kind="stable")
    return np.add.reduceat(x[:, order], np.searchsorted(group[order], np.arange(group.max() + 1)), axis=1)


def mean_by_group(
    x: Float[np.ndarray, "example member *rest"], group: Int[np.ndarray, " member"]
) -> Float[np.ndarray, "example group *rest"]:
    """Means over the members of each group."""
    counts = np.bincount(group).astype(np.float64)
    return sum_by_group(x, group) / counts.reshape(-1, *[1] * (x.ndim - 2))
