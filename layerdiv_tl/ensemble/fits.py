"""Fits to points: y = a + b ln x against its rivals (Fig. 6), and slopes adjusted for a covariate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

from .._checks import resampling
from ..errors import InputError
from ..results import Result
from .intervals import LEVEL, jackknife
from .validation import numbers

Points = Float[np.ndarray, " point"]
Design = Float[np.ndarray, "point term"]
Values = Float[np.ndarray, " example"]
# A group with less than this share of its variance left by the covariate is indistinguishable from it.
_COLLINEAR = 1e-9


@dataclass(frozen=True, eq=False)
class LogFit(Result):
    """y = intercept + slope · ln x by least squares, and whether returns diminish. Made by `log_fit`.

    Attributes:
        x, y: The points, `[point]`, e.g. numbers of components, and accuracy averaged over tasks, in any unit.
        confidence_level: Confidence level of the intervals.
    """

    x: Points
    y: Points
    confidence_level: float

    @property
    def intercept(self) -> float:
        """y at x = 1, which is far outside the points."""
        return float(_fit(_line(np.log(self.x)), self.y)[0][0])

    @property
    def slope(self) -> float:
        """The gain of y when ln x grows by one; doubling x gains slope · ln 2."""
        return float(_fit(_line(np.log(self.x)), self.y)[0][1])

    def predict(self, x: Float[np.ndarray, " place"] | float) -> pd.DataFrame:
        """The curve at `x`: `y`, and Student's interval of the mean curve. Raises InputError for an x not above 0."""
        points = np.atleast_1d(numbers(x, "x", "[place]"))
        if points.ndim != 1:
            raise InputError(f"x has the shape {points.shape}, but must be a number or a list of them.")
        design = _line(_log(points))
        coefficients, covariance, _ = _fit(_line(np.log(self.x)), self.y)
        error = np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))
        y, half = design @ coefficients, stdtrit(len(self.x) - 2, 0.5 + self.confidence_level / 2) * error
        return pd.DataFrame({"x": points, "y": y, "low": y - half, "high": y + half})

    figures: ClassVar = {"curve": "study.fit_curve"}

    def plot(self, kind: Literal["curve"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per number: estimate, Student's interval and p, and an interval for points of unequal noise.

        - `intercept`, `slope` of the logarithmic fit.
        - `curvature`: c of y = a + b s + c s², s = (x − mean) / standard deviation. Returns diminish within
          the points where c < 0 while y rises. Its p needs four points.
        - `aic_difference`: AIC of a straight line in x minus that of the logarithm; both have as many
          parameters, so above 0 the points prefer the logarithm (2 is little, 10 is much). No interval, no p.

        Student's interval (`low`, `high`) treats all points as equally noisy; where small or large x are noisier, a
        slope's interval misses the truth in 9-17 %, and a curvature's in up to 31 %. `robust_low` and `robust_high` use
        HC3 errors, which allow for that: they miss in 4-7 % and 1-7 % with 8 to 20 points and noise that is equal or
        proportional to x^±½ or x, and in up to 10 % for curvatures with noise proportional to x². Both treat points as
        independent; models of one family are not.
        """
        logarithm, straight = _line(np.log(self.x)), _line(self.x)
        curve = np.vander((self.x - self.x.mean()) / self.x.std(), 3, increasing=True)
        terms = (("intercept", logarithm, 0), ("slope", logarithm, 1), ("curvature", curve, 2))
        # An exact fit is exact only up to rounding: no infinite preference.
        least = len(self.y) * (1e-12 * float(np.abs(self.y).max())) ** 2 + np.finfo(float).tiny
        errors = [max(_fit(design, self.y)[2], least) for design in (straight, logarithm)]
        aic = {"term": "aic_difference", "estimate": len(self.y) * float(np.log(errors[0] / errors[1]))}
        frame = pd.DataFrame([*(self._row(*term) for term in terms), aic])
        frame.attrs |= {"points": len(self.x), "level": self.confidence_level}
        return frame

    def __repr__(self) -> str:
        row = self.frame().set_index("term").loc["slope"]
        return f"LogFit({len(self.x)} points: slope {row.estimate:.4g} [{row.low:.4g}, {row.high:.4g}] per ln x)"

    def _row(self, name: str, design: Design, term: int) -> dict[str, Any]:
        """Fit a coefficient with its intervals; NaN where no degree of freedom is left."""
        coefficients, covariance, _ = _fit(design, self.y)
        value, freedom = float(coefficients[term]), len(self.x) - design.shape[1]
        row: dict[str, Any] = {"term": name, "estimate": value if len(np.unique(self.x)) >= design.shape[1] else np.nan}
        half = robust = p = np.nan
        if freedom > 0 and np.isfinite(row["estimate"]):
            error, quantile = np.sqrt(covariance[term, term]), stdtrit(freedom, 0.5 + self.confidence_level / 2)
            half, robust = quantile * error, quantile * _robust_error(design, self.y, term)
            with np.errstate(divide="ignore", invalid="ignore"):
                p = float(2 * stdtr(freedom, -abs(value / error)))
        row |= {"low": value - half, "high": value + half, "p": p}
        return row | {"robust_low": value - robust, "robust_high": value + robust}


def log_fit(x: Points, y: Points, *, confidence_level: float = LEVEL) -> LogFit:
    """Fit y = a + b ln x, as a curve of diminishing returns (Fig. 6).

    Args:
        x, y: `[point]`, x above 0: the number of components of each model, and its accuracy or MSE averaged over tasks.

    Raises InputError for arrays of different lengths, numbers that are not finite, an x that is not above
    0, and fewer than two different x.

    >>> fit = log_fit([1.0, 2.0, 4.0, 8.0], [0.0, 1.0, 2.0, 3.0])
    >>> round(fit.slope * float(np.log(2)), 6), fit.predict(16.0)["y"].round(6).tolist()
    (1.0, [4.0])
    >>> bool(fit.frame().set_index("term").loc["curvature", "estimate"] < 0)
    True
    """
    resampling(1, 0, confidence_level)
    x, y = numbers(x, "x", "[point]"), numbers(y, "y", "[point]")
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"x and y have the shapes {x.shape} and {y.shape}, but must be lists of one length.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("x or y holds numbers that are not finite: leave these points out.")
    _log(x)
    if len(np.unique(x)) < 2:
        raise InputError("a curve needs points at two different x at least.")
    return LogFit(x, y, confidence_level)


def _log(x: np.ndarray) -> np.ndarray:
    """Return ln x. Raises InputError where it is not finite."""
    good = (x > 0) & np.isfinite(x)
    if not good.all():
        raise InputError(f"x holds {x[~good][0]:g}, which has no finite logarithm: x must be above 0.")
    return np.log(x)


def _line(x: Points) -> Design:
    return np.vander(x, 2, increasing=True)


def _fit(design: Design, y: Points) -> tuple[np.ndarray, np.ndarray, float]:
    """Least squares: (coefficients, their covariance for points of equal noise, the sum of squared errors)."""
    inverse = np.linalg.pinv(design)
    error = float(((y - design @ (inverse @ y)) ** 2).sum())
    freedom = len(y) - design.shape[1]
    return inverse @ y, (error / freedom if freedom > 0 else np.nan) * (inverse @ inverse.T), error


def _robust_error(design: Design, y: Points, term: int) -> float:
    """HC3 standard error of a coefficient: every point's own squared residual, over (1 − leverage)² of it."""
    weights = np.linalg.pinv(design)
    leverage = np.einsum("pt,tp->p", design, weights)
    # A point that alone determines a coefficient has no residual to estimate its noise from.
    if (leverage > 1 - 1e-9).any():
        return np.nan
    left = (y - design @ (weights @ y)) / (1 - leverage)
    return float(np.sqrt(np.sum((weights[term] * left) ** 2)))


@dataclass(frozen=True)
class Slope:
    """The growth of y for each step of x.

    Attributes:
        value, low, high: The least-squares slope in y's unit per step of x, and its 95 % interval over the examples
            (the jackknife's; NaN for fewer than 8).
        p: The share of permutations whose slope is at least as far from 0; two-sided, at least 1 / (n_resamples + 1).
            Without a true slope it is below 0.05 for 7 to 8 % of draws of 12 examples of very unequal weight whose
            covariate goes with x, 5 to 7 % of 24 or 96; the interval excludes 0 for 4 to 6 %, 2 to 5 % and 5 to 6 %.
        n: Number of examples.
        reason: Why there is no slope (all the numbers are then NaN); empty where there is one.
    """

    value: float
    low: float
    high: float
    p: float
    n: int
    reason: str = ""

    @property
    def is_mixed(self) -> bool:
        """Whether interval and p disagree at 5 %, as they may with few examples: the result is then inconclusive."""
        return bool(np.isfinite(self.low) and (self.p < 0.05) == (self.low <= 0 <= self.high))


def slope(
    x: Values,
    y: Values,
    covariate: Values | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    weights: Values | None = None,
) -> Slope:
    """Estimate the slope of y on x; with a `covariate`, that of the least-squares plane over both.

    The residuals of y on the covariate are permuted (Freedman and Lane 1983; without one, y itself, which equals
    permuting x), together with the examples' `weights` (None: equal). Examples without a y (NaN) are left out.

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
        return Slope(nan, nan, nan, nan, count, "all examples are of one group, so nothing can rise")
    even = heavy / heavy.sum()
    # Centered first, so that the moments do not cancel.
    x, y, other = (v - even @ v for v in (x, y, other))
    value = _slopes(even[None], x, y[None], other)[0]
    if np.isnan(value):
        reason = "the groups differ as the lengths do, so the two cannot be told apart"
        return Slope(nan, nan, nan, nan, count, reason)
    others = np.where(np.eye(count, dtype=bool), 0.0, heavy)
    left_out = _slopes(others / others.sum(1, keepdims=True), x, y[None], other)
    # If a slope rests on one example alone, there is none without it.
    low, high = jackknife(value, left_out) if np.isfinite(left_out).all() else (nan, nan)
    spread = (even * other) @ other
    rest = y - other * ((even * other) @ y / spread) if spread > 0 else y
    order = np.random.default_rng([seed, 1]).permuted(np.tile(np.arange(count), (n_resamples, 1)), axis=1)
    chance = np.abs(_slopes(even[order], x, rest[order], other))
    # Rounding must not distinguish a permutation from an equal one.
    p = (1 + np.sum(chance >= abs(value) * (1 - 1e-9) - 1e-12)) / (1 + n_resamples)
    return Slope(float(value), float(low), float(high), float(p), count)


def _slopes(
    weights: Float[np.ndarray, "draw example"], x: Values, y: Float[np.ndarray, "#draw example"], other: Values
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
