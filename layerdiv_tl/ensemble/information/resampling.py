"""Rows drawn for intervals, and rows shuffled for nulls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

# Rows of a subsample: deviations from the whole are then half as wide as the whole's own error.
KEPT = 0.8


def subsamples(
    y: Int[np.ndarray, " example"], least: int, n_resamples: int, seed: int
) -> Iterator[Int[np.ndarray, " kept"]]:
    """Four fifths of the rows without replacement, `draws` times, each class keeping at least `least` rows.

    Rows drawn twice would break every bias correction (MATHS 11). A draw that leaves a class too few rows is
    drawn again.
    """
    rng = np.random.default_rng([seed, 2])
    count = round(KEPT * len(y))
    for _ in range(n_resamples):
        for _ in range(100):
            rows = np.sort(rng.permutation(len(y))[:count])
            if np.bincount(y[rows], minlength=y.max() + 1).min() >= least:
                break
        yield rows


def scale(y: Int[np.ndarray, " example"]) -> float:
    """√(b/(n − b)): from the spread of subsamples of b of n rows to the standard error with n (Politis et al. 1999)."""
    count = round(KEPT * len(y))
    return float(np.sqrt(count / (len(y) - count)))


def deviation(drawn: Float[np.ndarray, "draw value"]) -> Float[np.ndarray, " value"]:
    """Standard deviation over the draws; NaN for fewer than two."""
    return drawn.std(0, ddof=1) if len(drawn) > 1 else np.full(drawn.shape[1], np.nan)


def shuffled_labels(
    y: Int[np.ndarray, " example"], n_resamples: int, seed: int
) -> Iterator[Int[np.ndarray, " example"]]:
    """Labels that owe nothing to the members."""
    rng = np.random.default_rng([seed, 3])
    return (rng.permutation(y) for _ in range(n_resamples))


def shuffled_members(
    x: Float[np.ndarray, "example column"],
    owner: Int[np.ndarray, " column"],
    y: Int[np.ndarray, " example"],
    n_resamples: int,
    seed: int,
) -> Iterator[np.ndarray]:
    """Each member's rows shuffled within every class by itself: independent given the label, else as they were."""
    rng = np.random.default_rng([seed, 4])
    classes = [np.flatnonzero(y == c) for c in range(y.max() + 1)]
    members = owner.max() + 1
    for _ in range(n_resamples):
        drawn = np.empty_like(x)
        for rows in classes:
            order = rng.permuted(np.repeat(rows[:, None], members, 1), axis=0)
            drawn[rows] = np.take_along_axis(x, order[:, owner], 0)
        yield drawn
