"""Whether normal scores are Gaussian, over all rows and within classes, as the Gaussian estimates assume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from ...results import Result
from .estimator import BITS

if TYPE_CHECKING:
    import pandas as pd

N_DRAWS = 99
# Draws that measure the error of ranking: it is a difference of pairs, which varies little.
N_PAIRS = 20


@dataclass(frozen=True, eq=False)
class GaussianFit(Result):
    """A test of fit: third and fourth moments of all pairs of columns against those of Gaussian rows.

    The hypothesis is that the scores are jointly Gaussian and tell nothing of the label, the one law for which the
    Gaussian estimate is exact; labels that shift means slightly violate it too little to be found. The moments are
    E[a²b], E[a²b²] and E[a³b] of standardized columns a and b (a = b included: skewness and kurtosis), over all
    rows and within each class; the largest and the mean squared deviation of each kind are compared with those of
    `draws` Gaussian data sets of the same size and covariance, made into scores in the same way. What needs three
    columns at once (XOR of three) is not seen.

    p, p_all_rows, p_within_classes
        Of both together, of the moments over all rows (a mixture of shifted classes), and within classes.
    rank_error
        Bits by which scores, which are ranks, misstate the redundancy of Gaussian rows: below 0 for near copies,
        whose small differences drown in the spacing of the ranks.
    """

    p: float
    p_all_rows: float
    p_within_classes: float
    rank_error: float
    n_resamples: int

    def frame(self) -> pd.DataFrame:
        """One row: `p`, `p_all_rows`, `p_within_classes`, `rank_error` (bits), `draws`."""
        import pandas as pd

        names = ("p", "p_all_rows", "p_within_classes", "rank_error", "n_resamples")
        frame = pd.DataFrame([{name: getattr(self, name) for name in names}])
        frame.attrs["units"] = {"rank_error": "bits"}
        return frame


def gaussian_fit(
    z: Float[np.ndarray, "example column"],
    owner: Int[np.ndarray, " column"],
    y: Int[np.ndarray, " example"],
    classes: int,
    seed: int,
) -> GaussianFit:
    """Test normal scores `z` with labels `y`; `owner` is the member of each column."""
    rng = np.random.default_rng([seed, 7])
    n, dims = z.shape
    size, axes = np.linalg.eigh(np.corrcoef(z.T).reshape(dims, dims))
    root = axes * np.sqrt(np.maximum(size, 0.0))
    scores = ndtri(np.arange(1, n + 1) / (n + 1))
    found, errors = [_deviations(z, y, classes)], []
    for draw in range(N_DRAWS):
        drawn = root @ rng.normal(size=(dims, n))
        scored = np.empty_like(drawn)
        np.put_along_axis(scored, drawn.argsort(1), scores[None], 1)
        found.append(_deviations(scored.T, y, classes))
        if draw < N_PAIRS:
            errors.append(_total_correlation(scored, owner) - _total_correlation(drawn, owner))
    # All draws and the rows themselves are scaled alike, which keeps them exchangeable and p exact.
    values = np.log(np.maximum(found, 1e-300))
    spread = values.std(0)
    values = (values - values.mean(0)) / np.where(spread > 0, spread, 1.0)
    half = values.shape[1] // 2
    parts = values.max(1), values[:, :half].max(1), values[:, half:].max(1)
    both, pooled, within = (float((part >= part[0]).mean()) for part in parts)
    return GaussianFit(both, pooled, within, float(np.mean(errors)), N_DRAWS)


def _deviations(z: np.ndarray, y: np.ndarray, classes: int) -> Float[np.ndarray, " statistic"]:
    """Largest and mean squared deviation of each kind of moment: over all rows, then within classes."""
    inside = np.stack([_moments(z[y == c]) for c in range(classes)])
    return np.concatenate([_moments(z, margins=False), inside[:, :3].max(0), inside[:, 3:].sum(0)])


def _moments(x: Float[np.ndarray, "example column"], margins: bool = True) -> Float[np.ndarray, " 6"]:
    """Without `margins`, of different columns only: over all rows each column's own moments are fixed by ranking."""
    n = len(x)
    x = x - x.mean(0)
    spread = x.std(0)
    x = (x / np.where(spread > 0, spread, 1.0)).astype(np.float32)
    square = x * x
    r = x.T @ x / n
    kinds = square.T @ x / n, square.T @ square / n - 1 - 2 * r * r, (square * x).T @ x / n - 3 * r
    if not margins:
        for kind in kinds:
            np.fill_diagonal(kind, 0.0)
    return np.sqrt(n) * np.array(
        [*(np.abs(kind).max() for kind in kinds), *(np.square(kind).mean() for kind in kinds)], np.float64
    )


def _total_correlation(x: Float[np.ndarray, "column example"], owner: np.ndarray) -> float:
    """Of Gaussian members, in bits, plug-in."""
    r = np.corrcoef(x).reshape(len(x), len(x))
    several = np.flatnonzero(np.bincount(owner) > 1)
    alone = sum(np.linalg.slogdet(r[np.ix_(owner == m, owner == m)])[1] for m in several)
    return float(alone - np.linalg.slogdet(r)[1]) / 2 / BITS
