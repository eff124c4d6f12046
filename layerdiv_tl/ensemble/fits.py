"""Slopes, also adjusted for a covariate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .intervals import jackknife

Values = Float[np.ndarray, " example"]
# A group with less than this share of its variance left by the covariate is indistinguishable from it.
_COLLINEAR = 1e-9


@dataclass(frozen=True)
class Slope:
    """The growth of y for each step of x.

    Attributes:
        value, low, high: The least-squares slope in y's unit per step of x, and its 95 % interval over the examples
            (the jackknife's; NaN for fewer than 8).
            Without a true slope it excludes 0 for 2 to 6 % of draws of 12 to 96 examples of very unequal weight whose
            covariate goes with x.
        n: Number of examples.
        reason: Why there is no slope (all the numbers are then NaN); empty where there is one.
    """

    value: float
    low: float
    high: float
    n: int
    reason: str = ""


def slope(x: Values, y: Values, covariate: Values | None = None, weights: Values | None = None) -> Slope:
    """Estimate the slope of y on x; with a `covariate`, that of the least-squares plane over both.

    `weights` are the examples' (None: equal). Examples without a y (NaN) are left out.

    >>> found = slope(np.array([1.0, 1, 1, 2, 2, 3, 3, 3]), np.array([2.0, 2, 2, 5, 5, 8, 8, 8]))
    >>> round(found.value, 9), round(found.low, 9), round(found.high, 9), found.reason
    (3.0, 3.0, 3.0, '')
    """
    known = np.isfinite(y)
    x, y = x[known], y[known]
    other = np.zeros_like(y) if covariate is None else covariate[known].astype(float)
    heavy = np.ones_like(y) if weights is None else weights[known].astype(float)
    count, nan = len(y), np.nan
    if count < 2 or len(np.unique(x)) < 2:
        return Slope(nan, nan, nan, count, "all examples are of one group, so nothing can rise")
    even = heavy / heavy.sum()
    # Centered first, so that the moments do not cancel.
    x, y, other = (v - even @ v for v in (x, y, other))
    value = _slopes(even[None], x, y, other)[0]
    if np.isnan(value):
        reason = "the groups differ as the lengths do, so the two cannot be told apart"
        return Slope(nan, nan, nan, count, reason)
    others = np.where(np.eye(count, dtype=bool), 0.0, heavy)
    left_out = _slopes(others / others.sum(1, keepdims=True), x, y, other)
    # If a slope rests on one example alone, there is none without it.
    low, high = jackknife(value, left_out) if np.isfinite(left_out).all() else (nan, nan)
    return Slope(float(value), float(low), float(high), count)


def _slopes(
    weights: Float[np.ndarray, "draw example"], x: Values, y: Values, other: Values
) -> Float[np.ndarray, " draw"]:
    """Compute each draw's slope on x, adjusted for `other`; NaN where the draw does not determine it."""

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return ((weights * a) * b).sum(1) - (weights * a).sum(1) * (weights * b).sum(1)

    def is_clear(variance: np.ndarray, of: np.ndarray) -> np.ndarray:
        return variance > _COLLINEAR * max(1e-30, float(of @ of) / len(of))

    ox, oo = covariance(other, x), covariance(other, other)
    share = np.divide(ox, oo, out=np.zeros_like(ox), where=is_clear(oo, other))
    left = covariance(x, x) - share * ox
    over = covariance(x, y) - share * covariance(other, y)
    return np.where(is_clear(left, x), over / np.where(left == 0, 1.0, left), np.nan)
