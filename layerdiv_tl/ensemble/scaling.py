"""Do returns diminish with the number of components? y = a + b ln x beside its rivals (Fig. 6, MATHS 13.7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.stats import t

from .._checks import resampling
from ..errors import InputError
from ..results import Result
from .intervals import LEVEL, interval, resamples
from .validation import numbers

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class LogFit(Result):
    """y = intercept + slope · ln x by least squares, and whether returns diminish. Made by `log_fit`.

    x, y
        The points, `[point]`: numbers of components, say, and accuracy averaged over tasks, in any unit.
    draws, seed, level
        Of the intervals that resample points.
    """

    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]
    n_resamples: int
    seed: int
    confidence_level: float

    @property
    def intercept(self) -> float:
        """y where x = 1, which is far outside the points."""
        return float(self._fit[0][0])

    @property
    def slope(self) -> float:
        """What y gains when ln x grows by one; a doubling of x gains slope · ln 2."""
        return float(self._fit[0][1])

    def predict(self, x: Float[np.ndarray, " place"] | float) -> pd.DataFrame:
        """The curve at `x`: `y`, Student's interval of the mean curve, and one that resamples points.

        Raises InputError for an x that is not above 0.
        """
        import pandas as pd

        at = np.atleast_1d(numbers(x, "x", "[place]"))
        if at.ndim != 1:
            raise InputError(f"x has the shape {at.shape}, but must be a number or a list of them.")
        _refuse_unless_above_0(at)
        design = _line(np.log(at))
        half = self._t * np.sqrt(self._variance * np.einsum("ij,jk,ik->i", design, self._inverse, design))
        y = design @ self._fit[0]
        low, high = interval(self._drawn[0] @ design.T, self.confidence_level)
        return pd.DataFrame(
            {"x": at, "y": y, "low": y - half, "high": y + half, "resampled_low": low, "resampled_high": high}
        )

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
        resampled points, miss it in 8-17 % and are there for the AIC, which has no other; points that resample to
        fewer different x than a fit has parameters are left out. All take points for independent; models of one
        family are not.
        """
        import pandas as pd

        line, line_drawn = self._fit, self._drawn
        rows = []
        for i, name in enumerate(("intercept", "slope")):
            error = np.sqrt(self._variance * self._inverse[i, i])
            robust = _robust_error(_line(np.log(self.x)), self.y, i)
            rows.append(self._row(name, line[0][i], error, len(self.x) - 2, line_drawn[0][:, i], robust))
        s = (self.x - self.x.mean()) / self.x.std()
        curved = np.stack([np.ones_like(s), s, s**2], 1)
        bent, bent_drawn = _fits(curved, self.y, self._one), _fits(curved, self.y, self._weights)
        freedom, error, robust = len(self.x) - 3, np.nan, np.nan
        if freedom > 0 and len(np.unique(self.x)) > 2:
            error = np.sqrt(bent[1][0] / freedom * np.linalg.inv(curved.T @ curved)[2, 2])
            robust = _robust_error(curved, self.y, 2)
        rows.append(self._row("curvature", bent[0][0, 2], error, freedom, bent_drawn[0][:, 2], robust))
        straight = _line(self.x)
        aic = self._aic_difference(_fits(straight, self.y, self._one)[1], np.array([line[1]]))
        aic_drawn = self._aic_difference(_fits(straight, self.y, self._weights)[1], line_drawn[1])
        rows.append(self._row("aic_difference", aic[0], np.nan, 0, aic_drawn))
        frame = pd.DataFrame(rows)
        frame.attrs |= {
            "points": len(self.x),
            "n_resamples": self.n_resamples,
            "seed": self.seed,
            "level": self.confidence_level,
        }
        return frame

    def __repr__(self) -> str:
        row = self.frame().set_index("term").loc["slope"]
        return f"LogFit({len(self.x)} points: slope {row.estimate:.4g} [{row.low:.4g}, {row.high:.4g}] per ln x)"

    @cached_property
    def _one(self) -> Float[np.ndarray, "1 point"]:
        return np.ones((1, len(self.x)))

    @cached_property
    def _weights(self) -> Float[np.ndarray, "draw point"]:
        return resamples(len(self.x), self.n_resamples, self.seed) * len(self.x)

    @cached_property
    def _fit(self) -> tuple[Float[np.ndarray, " 2"], float]:
        coefficients, error = _fits(_line(np.log(self.x)), self.y, self._one)
        return coefficients[0], float(error[0])

    @cached_property
    def _drawn(self) -> tuple[Float[np.ndarray, "draw 2"], Float[np.ndarray, " draw"]]:
        return _fits(_line(np.log(self.x)), self.y, self._weights)

    @cached_property
    def _inverse(self) -> Float[np.ndarray, "2 2"]:
        design = _line(np.log(self.x))
        return np.linalg.inv(design.T @ design)

    @property
    def _variance(self) -> float:
        freedom = len(self.x) - 2
        return self._fit[1] / freedom if freedom > 0 else np.nan

    @property
    def _t(self) -> float:
        freedom = len(self.x) - 2
        return float(t.ppf(0.5 + self.confidence_level / 2, freedom)) if freedom > 0 else np.nan

    def _row(
        self, term: str, estimate: float, error: float, freedom: int, drawn: np.ndarray, robust: float = np.nan
    ) -> dict[str, object]:
        half, wide, p = np.nan, np.nan, np.nan
        if freedom > 0:
            half, wide = (float(t.ppf(0.5 + self.confidence_level / 2, freedom)) * e for e in (error, robust))
            with np.errstate(divide="ignore", invalid="ignore"):
                p = float(2 * t.sf(abs(np.divide(estimate, error)), freedom))
        low, high = interval(drawn, self.confidence_level)
        return {
            "term": term,
            "estimate": float(estimate),
            "low": estimate - half,
            "high": estimate + half,
            "p": p,
            "robust_low": estimate - wide,
            "robust_high": estimate + wide,
            "resampled_low": float(low),
            "resampled_high": float(high),
        }

    def _aic_difference(self, straight: np.ndarray, logarithm: np.ndarray) -> np.ndarray:
        # A fit that is exact is so up to rounding: no infinite preference.
        least = len(self.y) * (1e-12 * float(np.abs(self.y).max())) ** 2 + np.finfo(float).tiny
        return len(self.y) * np.log(np.maximum(straight, least) / np.maximum(logarithm, least))


def log_fit(
    x: Float[np.ndarray, " point"],
    y: Float[np.ndarray, " point"],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    confidence_level: float = LEVEL,
) -> LogFit:
    """Fit y = a + b ln x, as a curve of diminishing returns (Fig. 6, MATHS 13.7).

    x, y
        `[point]`, x above 0: the number of components of each model, and its accuracy or MSE averaged
        over tasks.

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


def _line(x: Float[np.ndarray, " point"]) -> Float[np.ndarray, "point 2"]:
    return np.stack([np.ones_like(x), x], 1)


def _fits(
    design: Float[np.ndarray, "point term"], y: Float[np.ndarray, " point"], weights: Float[np.ndarray, "draw point"]
) -> tuple[Float[np.ndarray, "draw term"], Float[np.ndarray, " draw"]]:
    """Least squares once for each draw of weights: coefficients, and the weighted sum of squared errors.

    NaN where a draw holds fewer different x than there are coefficients.
    """
    root = np.sqrt(weights)[:, :, None]
    coefficients = (np.linalg.pinv(root * design) @ (root[:, :, 0] * y)[:, :, None])[:, :, 0]
    error = (weights * (y - coefficients @ design.T) ** 2).sum(1)
    _, place = np.unique(design[:, 1], return_inverse=True)
    different = ((weights @ np.eye(place.max() + 1)[place]) > 0).sum(1)
    short = different < design.shape[1]
    coefficients[short], error[short] = np.nan, np.nan
    return coefficients, error


def _robust_error(design: Float[np.ndarray, "point term"], y: Float[np.ndarray, " point"], term: int) -> float:
    """HC3 standard error of a coefficient: every point's own squared residual, over (1 − leverage)² of it."""
    weights = np.linalg.pinv(design)
    leverage = np.einsum("pt,tp->p", design, weights)
    # A point that alone decides a coefficient has no residual to judge its noise by.
    if (leverage > 1 - 1e-9).any():
        return np.nan
    left = (y - design @ (weights @ y)) / (1 - leverage)
    return float(np.sqrt(np.sum((weights[term] * left) ** 2)))
