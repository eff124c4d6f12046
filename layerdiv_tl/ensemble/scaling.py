"""Do returns diminish with the number of components? y = a + b ln x against its rivals (Fig. 6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

from .._checks import resampling
from ..errors import InputError
from ..results import Result
from .intervals import LEVEL, interval, resamples
from .validation import numbers

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Points = Float[np.ndarray, " point"]
Design = Float[np.ndarray, "point term"]


@dataclass(frozen=True, eq=False)
class LogFit(Result):
    """y = intercept + slope · ln x by least squares, and whether returns diminish. Made by `log_fit`.

    Attributes:
        x, y: The points, `[point]`: numbers of components, say, and accuracy averaged over tasks, in any unit.
        n_resamples, seed, confidence_level: Of the intervals that resample points.
    """

    x: Points
    y: Points
    n_resamples: int
    seed: int
    confidence_level: float

    @property
    def intercept(self) -> float:
        """y where x = 1, which is far outside the points."""
        return float(self._coefficients[0, 0])

    @property
    def slope(self) -> float:
        """What y gains when ln x grows by one; a doubling of x gains slope · ln 2."""
        return float(self._coefficients[0, 1])

    def predict(self, x: Float[np.ndarray, " place"] | float) -> pd.DataFrame:
        """The curve at `x`: `y`, Student's interval of the mean curve, and one that resamples points.

        Raises InputError for an x that is not above 0.
        """
        import pandas as pd

        points = np.atleast_1d(numbers(x, "x", "[place]"))
        if points.ndim != 1:
            raise InputError(f"x has the shape {points.shape}, but must be a number or a list of them.")
        _refuse_unless_above_0(points)
        design, own = _line(np.log(points)), _line(np.log(self.x))
        error = np.sqrt(np.einsum("ij,jk,ik->i", design, _covariance(own, self.y), design))
        half = stdtrit(len(self.x) - 2, 0.5 + self.confidence_level / 2) * error
        y = design @ self._coefficients[0]
        low, high = interval(self._coefficients[1:] @ design.T, self.confidence_level)
        columns = {"x": points, "y": y, "low": y - half, "high": y + half, "resampled_low": low, "resampled_high": high}
        return pd.DataFrame(columns)

    def plot(self, kind: Literal["curve"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per number: estimate, Student's interval and p, and intervals for points of unequal noise.

        - `intercept`, `slope` of the logarithmic fit.
        - `curvature`: c of y = a + b s + c s², s = (x − mean) / standard deviation. Returns diminish within
          the points where c < 0 while y rises. Its p needs four points.
        - `aic_difference`: AIC of a straight line in x minus that of the logarithm; both have as many
          parameters, so above 0 the points prefer the logarithm (2 is little, 10 is much). No p.

        Student's interval (`low`, `high`) takes all points for equally noisy; where small or large x are noisier,
        that of a slope misses the truth in 9-17 %, that of a curvature in up to 31 %. `robust_low`, `robust_high` have
        HC3 errors, which allow for it: 4-7 % and 1-7 % with 8 to 20 points and noise that is equal or goes with x^±½
        or x, and up to 10 % of curvatures where it goes with x². `resampled_low`, `resampled_high`, percentiles over
        resampled points with enough different x, miss it in 8-17 % and are there for the AIC, which has no other.
        All take points for independent; models of one family are not.
        """
        import pandas as pd

        logarithm, straight = _line(np.log(self.x)), _line(self.x)
        curve = np.vander((self.x - self.x.mean()) / self.x.std(), 3, increasing=True)
        terms = (("intercept", logarithm, 0), ("slope", logarithm, 1), ("curvature", curve, 2))
        # A fit that is exact is so up to rounding: no infinite preference.
        least = len(self.y) * (1e-12 * float(np.abs(self.y).max())) ** 2 + np.finfo(float).tiny
        errors = [np.maximum(self._fit(design)[1], least) for design in (straight, logarithm)]
        aic = self._ends("aic_difference", len(self.y) * np.log(errors[0] / errors[1]))
        frame = pd.DataFrame([*(self._row(*term) for term in terms), aic])
        frame.attrs |= {"points": len(self.x), "n_resamples": self.n_resamples}
        frame.attrs |= {"seed": self.seed, "level": self.confidence_level}
        return frame

    def __repr__(self) -> str:
        row = self.frame().set_index("term").loc["slope"]
        return f"LogFit({len(self.x)} points: slope {row.estimate:.4g} [{row.low:.4g}, {row.high:.4g}] per ln x)"

    @cached_property
    def _coefficients(self) -> Float[np.ndarray, "draw 2"]:
        """(intercept, slope)."""
        return self._fit(_line(np.log(self.x)))[0]

    def _fit(self, design: Design) -> tuple[Float[np.ndarray, "draw term"], Float[np.ndarray, " draw"]]:
        """Coefficients and squared errors: first of the points as they are, then of their resamples."""
        count = len(self.x)
        weights = resamples(count, self.n_resamples, self.seed) * count
        return _fits(design, self.y, np.concatenate([np.ones((1, count)), weights]))

    def _row(self, name: str, design: Design, term: int) -> dict[str, Any]:
        """A coefficient of a fit with its intervals; no p and no Student's interval where no point is left over."""
        values = self._fit(design)[0][:, term]
        value, freedom = float(values[0]), len(self.x) - design.shape[1]
        half = robust_half = p = np.nan
        if freedom > 0 and len(np.unique(self.x)) >= design.shape[1]:
            error = np.sqrt(_covariance(design, self.y)[term, term])
            quantile = stdtrit(freedom, 0.5 + self.confidence_level / 2)
            half, robust_half = quantile * error, quantile * _robust_error(design, self.y, term)
            with np.errstate(divide="ignore", invalid="ignore"):
                p = float(2 * stdtr(freedom, -abs(values[0] / error)))
        ends = {"low": value - half, "high": value + half, "p": p}
        ends |= {"robust_low": value - robust_half, "robust_high": value + robust_half}
        return {"term": name, "estimate": value} | ends | self._ends(name, values)

    def _ends(self, name: str, values: Float[np.ndarray, " draw"]) -> dict[str, Any]:
        """A number with the interval of its resamples, which follow it."""
        low, high = map(float, interval(values[1:], self.confidence_level))
        return {"term": name, "estimate": float(values[0]), "resampled_low": low, "resampled_high": high}


def log_fit(x: Points, y: Points, *, n_resamples: int = 1000, seed: int = 0, confidence_level: float = LEVEL) -> LogFit:
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
    resampling(n_resamples, seed, confidence_level)
    x, y = numbers(x, "x", "[point]"), numbers(y, "y", "[point]")
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"x and y have the shapes {x.shape} and {y.shape}, but must be lists of one length.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("x or y holds numbers that are not finite: leave these points out.")
    _refuse_unless_above_0(x)
    if len(np.unique(x)) < 2:
        raise InputError("a curve needs points at two different x at least.")
    return LogFit(x, y, n_resamples, seed, confidence_level)


def _refuse_unless_above_0(x: np.ndarray) -> None:
    good = (x > 0) & np.isfinite(x)
    if not good.all():
        raise InputError(f"x holds {x[~good][0]:g}, which has no finite logarithm: x must be above 0.")


def _line(x: Points) -> Design:
    return np.vander(x, 2, increasing=True)


def _fits(
    design: Design, y: Points, weights: Float[np.ndarray, "draw point"]
) -> tuple[Float[np.ndarray, "draw term"], Float[np.ndarray, " draw"]]:
    """Least squares once for each draw of weights: coefficients, and the weighted sum of squared errors.

    NaN where a draw holds fewer different x than there are coefficients.
    """
    root = np.sqrt(weights)[:, :, None]
    coefficients = (np.linalg.pinv(root * design) @ (root[:, :, 0] * y)[:, :, None])[:, :, 0]
    error = (weights * (y - coefficients @ design.T) ** 2).sum(1)
    _, which = np.unique(design[:, 1], return_inverse=True)
    short = ((weights @ np.eye(which.max() + 1)[which]) > 0).sum(1) < design.shape[1]
    coefficients[short], error[short] = np.nan, np.nan
    return coefficients, error


def _covariance(design: Design, y: Points) -> Float[np.ndarray, "term term"]:
    """Of the coefficients of least squares, for points of equal noise; NaN where no point is left over."""
    freedom = len(y) - design.shape[1]
    error = _fits(design, y, np.ones((1, len(y))))[1][0]
    return (error / freedom if freedom > 0 else np.nan) * np.linalg.inv(design.T @ design)


def _robust_error(design: Design, y: Points, term: int) -> float:
    """HC3 standard error of a coefficient: every point's own squared residual, over (1 − leverage)² of it."""
    weights = np.linalg.pinv(design)
    leverage = np.einsum("pt,tp->p", design, weights)
    # A point that alone decides a coefficient has no residual to judge its noise by.
    if (leverage > 1 - 1e-9).any():
        return np.nan
    left = (y - design @ (weights @ y)) / (1 - leverage)
    return float(np.sqrt(np.sum((weights[term] * left) ** 2)))
