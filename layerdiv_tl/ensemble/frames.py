"""What the tables of results are made of: rows with names, means with intervals, pairs in an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from . import theorems as relations
from .intervals import jackknife, leave_one_out, mean_interval, wilson
from .losses import mean_square


@dataclass(frozen=True, eq=False)
class PerExample:
    """A table before it is averaged: columns that name its rows, and every term `[example, row]`."""

    names: dict[str, Any]
    terms: dict[str, Float[np.ndarray, "example row"]]


def means(terms: dict[str, Float[np.ndarray, "example row"]], suffix: str = "") -> dict[str, np.ndarray]:
    """Mean over examples with its interval, for every term."""
    columns: dict[str, np.ndarray] = {}
    for term, values in terms.items():
        low, high = mean_interval(values)
        columns |= {term + suffix: mean_of(values), f"{term}{suffix}_low": low, f"{term}{suffix}_high": high}
    return columns


def mean_of(values: Float[np.ndarray, "example row"]) -> Float[np.ndarray, " row"]:
    """Over the examples that have a value; NaN where none has."""
    known = np.isfinite(values)
    if known.all():
        return values.mean(0)
    count = known.sum(0)
    return np.divide(np.where(known, values, 0.0).sum(0), count, out=np.full(len(count), np.nan), where=count > 0)


def accuracy_term(correct: np.ndarray | None) -> dict[str, np.ndarray]:
    """The term of that name, where there are labels."""
    if correct is None:
        return {}
    return {"accuracy": np.asarray(correct, dtype=np.float64).reshape(len(correct), -1)}


def coherence_of(
    sums: Float[np.ndarray, "example set option"], sum_of_power: Float[np.ndarray, "example set"]
) -> Float[np.ndarray, "example set"]:
    """|Σu|² / Σ|u|² of sets of members; members that are all zero have no direction: NaN."""
    power_of_sum = mean_square(sums)
    return np.divide(power_of_sum, sum_of_power, out=np.full_like(sum_of_power, np.nan), where=sum_of_power > 0)


def pair_columns(u: Float[np.ndarray, "example member option"]) -> dict[str, np.ndarray]:
    """The columns of `pairwise`, pairs in the order of `np.triu_indices`, one member's at a time."""
    columns: dict[str, list[np.ndarray]] = {}

    def add(name: str, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        for key, value in ((name, mean), (f"{name}_low", low), (f"{name}_high", high)):
            columns.setdefault(key, []).append(value)

    centered = u - u.mean(2, keepdims=True)
    power = {"": mean_square(u), "_centered": mean_square(centered)}
    left_out = {suffix: leave_one_out(values) for suffix, values in power.items()}
    for one in range(u.shape[1] - 1):
        others = slice(one + 1, None)
        found = relations.pairs(u, centered, one, others)
        for name in ("distance", "distance_centered"):
            add(name, found[name].mean(0), *mean_interval(found[name]))
        add("disagreement", found["disagreement"].mean(0), *wilson(found["disagreement"].sum(0), len(u)))
        for suffix, size in power.items():
            product, sizes, rest = found["product" + suffix], size.mean(0), left_out[suffix]
            cosine = ratio(product.mean(0), np.sqrt(sizes[one]) * np.sqrt(sizes[others]))
            cosines = ratio(leave_one_out(product), np.sqrt(rest[:, one, None]) * np.sqrt(rest[:, others]))
            add(f"cosine{suffix}", cosine, *jackknife(cosine, cosines, within=(-1.0, 1.0)))
    return {name: np.concatenate(values) for name, values in columns.items()}


def ratio(part: np.ndarray, of: np.ndarray) -> np.ndarray:
    """part / of; NaN where there is nothing to be a part of."""
    return np.divide(part, of, out=np.full(np.broadcast(part, of).shape, np.nan), where=of > 0)


def clustered(values: np.ndarray, count: int, by: str) -> np.ndarray:
    """Members joined by average linkage, a tree as scipy's; `values` of all pairs, as `np.triu_indices` lists them."""
    from scipy.cluster.hierarchy import linkage

    apart = 1 - values if by == "cosine" else values
    # A member without a direction is like no other.
    apart = np.clip(np.nan_to_num(apart, nan=1.0), 0, None)
    return linkage(apart, "average", optimal_ordering=count <= 300)
