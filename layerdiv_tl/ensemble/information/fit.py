"""A test whether normal scores are Gaussian, over all rows and within classes, as the Gaussian estimates assume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from ...results import Result
from .estimator import BITS, Columns, Labels, Owner, standardize

if TYPE_CHECKING:
    import pandas as pd

N_DRAWS = 99
# Draws that measure the error of ranking: it is a difference of pairs, which varies little.
N_PAIRS = 20


@dataclass(frozen=True, eq=False)
class GaussianFit(Result):
    """A test of fit: third and fourth moments of all pairs of columns against those of Gaussian rows.

    The hypothesis is that the scores are jointly Gaussian and independent of the label, the one law for which the
    Gaussian estimate is exact; labels that shift means slightly violate it too little to be found. The moments are
    E[a²b], E[a²b²] and E[a³b] of standardized columns a and b (a = b included: skewness and kurtosis), over all
    rows and within each class; the largest and the mean squared deviation of each kind are compared with those of
    `n_resamples` Gaussian data sets of the same size and covariance, made into scores in the same way. Dependence
    of three columns at once (XOR of three) is not seen.

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
        """One row: `p`, `p_all_rows`, `p_within_classes`, `rank_error` (bits), `n_resamples`."""
        import pandas as pd

        frame = pd.DataFrame([vars(self)])
        frame.attrs["units"] = {"rank_error": "bits"}
        return frame


def gaussian_fit(z: Columns, owner: Owner, y: Labels, classes: int, seed: int) -> GaussianFit:
    """Test normal scores `z` with labels `y`; `owner` is the member of each column."""
    rng = np.random.default_rng([seed, 7])
    n, dims = z.shape
    size, axes = np.linalg.eigh(np.corrcoef(z.T).reshape(dims, dims))
    root = axes * np.sqrt(np.maximum(size, 0.0))
    scores = ndtri(np.arange(1, n + 1) / (n + 1))
    deviations, errors = [_deviations(z, y, classes)], []
    for draw in range(N_DRAWS):
        normal = root @ rng.normal(size=(dims, n))
        scored = np.empty_like(normal)
        np.put_along_axis(scored, normal.argsort(1), scores[None], 1)
        deviations.append(_deviations(scored.T, y, classes))
        if draw < N_PAIRS:
            errors.append(_total_correlation(scored, owner) - _total_correlation(normal, owner))
    # All draws and the rows themselves are scaled alike, which keeps them exchangeable and p exact.
    values = standardize(np.log(np.maximum(deviations, 1e-300)))
    half = values.shape[1] // 2
    maxima = values.max(1), values[:, :half].max(1), values[:, half:].max(1)
    both, all_rows, within = (float((largest >= largest[0]).mean()) for largest in maxima)
    return GaussianFit(both, all_rows, within, float(np.mean(errors)), N_DRAWS)


def _deviations(z: Columns, y: Labels, classes: int) -> Float[np.ndarray, " statistic"]:
    """Largest and mean squared deviation of each kind of moment: over all rows, then within classes."""
    inside = np.stack([_moments(z[y == c]) for c in range(classes)])
    return np.concatenate([_moments(z, own=False), inside[:, :3].max(0), inside[:, 3:].sum(0)])


def _moments(x: Columns, own: bool = True) -> Float[np.ndarray, " 6"]:
    """Without `own`, of different columns only: over all rows each column's own moments are fixed by ranking."""
    n, x = len(x), x - x.mean(0)
    spread = x.std(0)
    x = (x / np.where(spread > 0, spread, 1.0)).astype(np.float32)
    square = x * x
    r = x.T @ x / n
    kinds = square.T @ x / n, square.T @ square / n - 1 - 2 * r * r, (square * x).T @ x / n - 3 * r
    if not own:
        for kind in kinds:
            np.fill_diagonal(kind, 0.0)
    largest, mean_square = [np.abs(kind).max() for kind in kinds], [np.square(kind).mean() for kind in kinds]
    return np.sqrt(n) * np.array(largest + mean_square, np.float64)


def _total_correlation(x: Float[np.ndarray, "column example"], owner: Owner) -> float:
    """Of Gaussian members, in bits, plug-in."""
    r = np.corrcoef(x).reshape(len(x), len(x))
    several = np.flatnonzero(np.bincount(owner) > 1)
    alone = sum(np.linalg.slogdet(r[np.ix_(owner == m, owner == m)])[1] for m in several)
    return float(alone - np.linalg.slogdet(r)[1]) / 2 / BITS
