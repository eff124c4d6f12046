"""Information from one model: members that are Gaussian within classes and jointly a mixture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular
from scipy.special import digamma, ndtr, ndtri, polygamma
from scipy.stats import qmc, rankdata

TERMS = ("relevancy", "redundancy", "conditional_redundancy", "joint", "diversity")
BITS = float(np.log(2))
# A direction with less than this share of a member's variance is rounding: the covariance counts as singular.
SINGULAR = 1e-9
# Deviations of normal scores, relative to 1, that are only rounding.
SMALLEST_DEVIATION = 1e-6
# Variances of class means, relative to 1 within classes, below which a mixture's quantiles are a normal's.
SAME_QUANTILES = 0.02
# Pairs of opposite points for expectations in K − 1 dimensions.
N_PAIRS = 256

# Features, the member of each column (in rising order), classes from 0.
Columns = Float[np.ndarray, "example column"]
Owner = Int[np.ndarray, " column"]
Labels = Int[np.ndarray, " example"]
Share = Float[np.ndarray, " class"]
Members = Sequence[int] | Int[np.ndarray, " member"]
# Eq. 13's terms in bits, for every prefix of an order of members.
Terms = dict[str, Float[np.ndarray, " prefix"]]
# M' S⁻¹ M of sets of columns: M the means of classes by contrasts, S a covariance.
Spread = Float[np.ndarray, "set contrast contrast"]


class Gaussian:
    """Every term of Eq. 13 from one model: a monotone transform of each column makes it Gaussian within classes.

    The classes share a covariance. The joint information is that of class means in K − 1 dimensions, whose spread is
    debiased as the inverse of a Wishart matrix. TC(U|Y) is a log-determinant minus its bias (digamma correction, exact
    for independent rows; duplicated rows break it). TC(U) and the diversity follow from these, so Eq. 13 is an
    identity, and the joint information does not exceed H(Y).

    Calibrated on known truths at 2 to 61 members, 2 and 4 classes and 200 to 2000 rows (tests/calibration). Known
    errors: relevancies of members that separate the classes are up to 3 % too large, near copies, whose difference is
    smaller than one rank, have too little redundancy, and what lies in a difference of covariances is in no term.

    Args:
        z, owner: `[example, column]` normal scores; `[column]` each column's member, in ascending order.
        y: `[example]`, classes 0 … `classes` − 1.
    """

    def __init__(self, z: Columns, owner: Owner, y: Labels, classes: int) -> None:
        counts = np.bincount(y, minlength=classes)
        self.share, self.rows, self._free, self._counts = counts / len(y), len(y), len(y) - classes, counts
        self.columns = [np.flatnonzero(owner == m) for m in range(owner[-1] + 1)]
        self.members, self._sizes = len(self.columns), np.bincount(owner)
        x = mixture_scores(z, y, self.share)
        centers = np.stack([x[y == c].mean(0) for c in range(classes)])
        scatter = np.stack([(rows := x[y == c] - centers[c]).T @ rows for c in range(classes)])
        self._within = scatter / (counts - 1)[:, None, None]
        if np.diagonal(self._within, axis1=1, axis2=2).min() < SMALLEST_DEVIATION**2:
            raise np.linalg.LinAlgError("a member is constant within a class")
        self.covariance = scatter.sum(0) / self._free
        # Where all classes have the same mean, these are normal with variance 1/rows in every direction.
        self._means = (centers * np.sqrt(self.share)[:, None]).T @ _contrasts(self.share)
        self.relevancies = self._information(self._blocks(), self._sizes)

    def chain(self, order: Members) -> Terms:
        """Compute every term for each prefix of `order`. Raises LinAlgError where a covariance is singular."""
        order = list(order)
        columns, ends = np.concatenate([self.columns[m] for m in order]), np.cumsum(self._sizes[order])
        factor = _factor(self.covariance[np.ix_(columns, columns)])
        white = solve_triangular(factor, self._means[columns], lower=True)
        joint = self._information(np.cumsum(white[:, :, None] * white[:, None], 0)[ends - 1], ends)
        conditional = self._total_correlation(factor, order)
        relevancy = np.cumsum(self.relevancies[order])
        # I(U; Y) = relevancy + TC(U|Y) − TC(U).
        terms = (relevancy, relevancy + conditional - joint, conditional, joint, joint - relevancy)
        return dict(zip(TERMS, terms, strict=True))

    def totals(self) -> dict[str, float]:
        """Compute every term for all members together."""
        return {term: float(values[-1]) for term, values in self.chain(range(self.members)).items()}

    def gains(self) -> Float[np.ndarray, " member"]:
        """Compute I(U; Y) − I(U without the member; Y)."""
        everyone = list(range(self.members))
        rest = [[j for j in everyone if j != i] for i in everyone]
        without = [self.chain(others)["joint"][-1] if others else 0.0 for others in rest]
        return self.chain(everyone)["joint"][-1] - np.array(without)

    def inequality(self) -> float:
        """Compute z of the likelihood ratio for unequal covariances; 0 where a class has too few rows to tell.

        Under equal covariances mean and variance are exact: a Wishart ½ ln det has the variance ¼ Σ ψ′((f − i)/2), i =
        0 … d − 1, and the ratio is independent of the common determinant (Basu's theorem).
        """
        dims = len(self.covariance)

        def variance(free: int) -> float:
            return float(polygamma(1, (free - np.arange(dims)) / 2).sum() / 4)

        ratio, spread = _half_logdets(_factor(self.covariance), self._free)[-1], -variance(self._free)
        for share, n, covariance in zip(self.share, self._counts.tolist(), self._within, strict=True):
            ratio -= share * _half_logdets(_factor(covariance), n - 1)[-1]
            spread += share**2 * variance(n - 1)
        return float(ratio / np.sqrt(spread)) if spread > 0 else 0.0

    def _information(self, spread: Spread, dims: Int[np.ndarray, " set"]) -> Float[np.ndarray, " set"]:
        """Compute I of sets with `dims` columns each, with the spread of estimated means and covariance debiased."""
        dims = dims[:, None, None]
        unbiased = spread * (self._free - dims - 1) / self._free - dims / self.rows * np.eye(spread.shape[1])
        return information_of_spread(unbiased, self.share)

    def _blocks(self) -> Spread:
        """Compute the spread by each member's block of the covariance."""
        means = self._means
        spread = np.empty((self.members, means.shape[1], means.shape[1]))
        for alike, columns in self._by_size(range(self.members)):
            white = np.linalg.solve(self.covariance[columns[:, :, None], columns[:, None]], means[columns])
            spread[alike] = np.einsum("sdi,sdj->sij", means[columns], white)
        return spread

    def _by_size(self, members: Members) -> Iterable[tuple[np.ndarray, Int[np.ndarray, "member size"]]]:
        """Yield places and columns of the members with equally many columns, which are computed at once."""
        sizes = self._sizes[list(members)]
        for size in np.unique(sizes):
            alike = np.flatnonzero(sizes == size)
            yield alike, np.stack([self.columns[members[int(place)]] for place in alike])

    def _total_correlation(self, factor: np.ndarray, order: list[int]) -> Float[np.ndarray, " prefix"]:
        """Estimate TC(U|Y) of every prefix in bits; `factor` is the covariance's, with its columns in order."""
        alone = np.empty(len(order))
        for alike, columns in self._by_size(order):
            half = np.linalg.slogdet(self.covariance[columns[:, :, None], columns[:, None]])[1] / 2
            alone[alike] = half - bias_of_half_logdet(self._free + 1, columns.shape[1])[-1]
        return (np.cumsum(alone) - _half_logdets(factor, self._free)[np.cumsum(self._sizes[order]) - 1]) / BITS


def normal_scores(x: Columns) -> Columns:
    """Map each column's ranks to quantiles of a standard normal: the marginals are dropped, the copula is kept.

    >>> normal_scores(np.array([[1.0], [1000.0], [2.0]])).round(2).ravel().tolist()
    [-0.67, 0.67, 0.0]
    """
    return np.ascontiguousarray(ndtri(rankdata(x, axis=0) / (len(x) + 1)))


def mixture_scores(z: Columns, y: Labels, share: Share, steps: int = 30) -> Columns:
    """Map normal scores to quantiles of a mixture of one normal per class, column by column; mean variance 1.

    The means of the classes and the mixture's quantiles alternate.
    """
    mean_of = np.eye(len(share))[y] / np.bincount(y, minlength=len(share))
    x, level, moving = np.array(z), ndtr(z), np.arange(z.shape[1])
    before = np.full((len(share), z.shape[1]), np.inf)
    for _ in range(steps):
        means = mean_of.T @ x[:, moving]
        variances = (mean_of.T @ np.square(x[:, moving]) - means**2) * len(y) / (len(y) - len(share))
        common = np.sqrt(np.maximum(share @ variances, SMALLEST_DEVIATION**2))
        x[:, moving] /= common
        means = (means - share @ means) / common
        changed = np.abs(means - before[:, moving]).max(0) > 1e-3
        before[:, moving] = means
        changed &= share @ means**2 > SAME_QUANTILES
        if not changed.any():
            break
        moving, means = moving[changed], means[:, changed]
        grid = np.linspace(means.min(0) - 5, means.max(0) + 5, 400)
        below = np.einsum("c,gcd->gd", share, ndtr(grid[:, None] - means))
        for place, column in enumerate(moving):
            x[:, column] = np.interp(level[:, column], below[:, place], grid[:, place])
    return x


def bias_of_half_logdet(n: int, dims: int) -> Float[np.ndarray, " dims"]:
    """E[½ ln det S] − ½ ln det Σ in nats for 1 … `dims` dimensions, S the unbiased covariance of n normal rows.

    ½ Σ_i ψ((n − i)/2) + ½ d ln(2/(n − 1)): S is Wishart, whose determinant is a product of χ² (Misra et al.
    2005; Ince et al. 2017). NaN where n is too small for S to have full rank.
    """
    i = np.arange(1, dims + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.where(n > i, digamma(np.maximum(n - i, 0.5) / 2), np.nan) + np.log(2 / max(n - 1, 1))
    return np.cumsum(each) / 2


def _half_logdets(factor: np.ndarray, free: int) -> Float[np.ndarray, " dims"]:
    """Compute ½ ln det of the first 1, 2, … columns from a Cholesky factor, in nats, minus its bias."""
    return np.cumsum(np.log(np.diagonal(factor))) - bias_of_half_logdet(free + 1, len(factor))


def _factor(covariance: np.ndarray) -> np.ndarray:
    """Return a Cholesky factor. Raises LinAlgError where a column's conditional deviation is only rounding."""
    factor = np.linalg.cholesky(covariance)
    if np.diagonal(factor).min() < SMALLEST_DEVIATION:
        raise np.linalg.LinAlgError("a covariance is singular up to rounding")
    return factor


@cache
def normal_points(dims: int) -> Float[np.ndarray, "point dim"]:
    """Draw points for expectations over a standard normal: opposite pairs, with covariance 1 if there are many."""
    if dims == 1:
        points = ndtri((np.arange(2 * N_PAIRS) + 0.5) / (2 * N_PAIRS))[:, None]
    else:
        half = ndtri(qmc.Sobol(dims, seed=0).random(N_PAIRS))
        points = np.concatenate([half, -half])
    if dims > N_PAIRS // 2:
        return points
    return points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / len(points))).T


def _contrasts(share: Share) -> Float[np.ndarray, "class contrast"]:
    """Return an orthonormal basis of the complement of the square roots of the shares."""
    return np.linalg.svd(np.sqrt(share)[None])[2][1:].T


def information_of_spread(spread: Spread, share: Share) -> Float[np.ndarray, " set"]:
    """Compute I of classes with unit covariance and this spread of means, continued below 0.

    An unbiased estimate of a spread of 0 is as often negative as positive. For negative ones the information is 2
    I(positive part) − I(absolute values), which passes straight through 0: clipping at 0 would bias the estimate.
    """
    size, axes = np.linalg.eigh(spread)
    places = _contrasts(share) / np.sqrt(share)[:, None] @ axes
    scales = np.sqrt(np.maximum(size, 0.0)), np.sqrt(np.abs(size))
    positive, absolute = (information_of_means(places * scale[:, None], share) for scale in scales)
    return 2 * positive - absolute


def information_of_means(means: Float[np.ndarray, "set class contrast"], share: Share) -> Float[np.ndarray, " set"]:
    """Compute I(X; Y) in bits, with X Gaussian of variance 1 in every direction around its class mean."""
    points, bits = normal_points(means.shape[2]), np.full(len(means), -share @ np.log2(share))
    for c in range(len(share)):
        apart = means[:, [c]] - means
        log_odds = -apart @ points.T + (np.log(share / share[c]) - np.square(apart).sum(2) / 2)[:, :, None]
        largest = log_odds.max(1)
        surprisal = largest + np.log(np.exp(log_odds - largest[:, None]).sum(1))
        bits -= share[c] * surprisal.mean(1) / BITS
    return bits


def single_threaded_blas() -> AbstractContextManager[Any]:
    """Use one BLAS thread: for many small matrices several threads cost more than they save."""
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    return threadpool_limits(1, "blas")
