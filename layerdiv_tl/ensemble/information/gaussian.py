"""Gaussian-copula estimates of information, their bias removed analytically."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.special import digamma, ndtri
from scipy.stats import rankdata

from .estimator import BITS, Columns, Estimator, Labels, Owner, Sweep, Terms, terms_of_entropies

# A direction with less than this share of a member's variance is rounding: the covariance is singular.
SINGULAR = 1e-9
# Deviations of normal scores, whose own is 1, that only rounding leaves.
SMALLEST_DEVIATION = 1e-6


def normal_scores(x: Columns) -> Columns:
    """Each column's ranks as quantiles of a standard normal: the marginal law is dropped, the copula stays.

    >>> normal_scores(np.array([[1.0], [1000.0], [2.0]])).round(2).ravel().tolist()
    [-0.67, 0.67, 0.0]
    """
    return np.ascontiguousarray(ndtri(rankdata(x, axis=0) / (len(x) + 1)))


def bias_of_half_logdet(n: float, dims: int) -> Float[np.ndarray, " dims"]:
    """E[½ ln det S] − ½ ln det Σ in nats for 1 … `dims` dimensions, S the unbiased covariance of n normal rows.

    ½ Σ_i ψ((n − i)/2) + ½ d ln(2/(n − 1)): S is Wishart, whose determinant is a product of χ² (Misra et al.
    2005; Ince et al. 2017). NaN where n is too small for S to have full rank.
    """
    i = np.arange(1, dims + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.where(n > i, digamma(np.maximum(n - i, 0.5) / 2), np.nan) + np.log(2 / max(n - 1, 1))
    return np.cumsum(each) / 2


class Gaussian(Estimator):
    """Entropies as if all dimensions were jointly Gaussian, over all rows and within each class.

    Assumes that the normal scores are Gaussian within every class, and together. The digamma correction is exact for
    Gaussian rows drawn independently; rows drawn twice break it. Where classes differ in their means the pooled law is
    a mixture: its entropy, and with it the redundancy and the joint information, come out too large at any number of
    rows, and the joint information may exceed H(Y). One entropy is used throughout, so Eq. 13 is an identity.

    Attributes:
        z, owner: `[example, column]` normal scores; `[column]` the member of each, in rising order.
        y: `[example]`, classes 0 … `classes` − 1.
    """

    def __init__(self, z: Columns, owner: Owner, y: Labels, classes: int) -> None:
        counts = np.bincount(y, minlength=classes)
        scatter = np.empty((classes + 1, z.shape[1], z.shape[1]))
        means = np.empty((classes, z.shape[1]))
        for c in range(classes):
            rows = z[y == c]
            means[c] = rows.mean(0)
            rows = rows - means[c]
            scatter[c + 1] = rows.T @ rows
        # Over all rows: within classes, and between their means.
        between = means - z.mean(0)
        scatter[0] = scatter[1:].sum(0) + (between * counts[:, None]).T @ between
        n = np.array([len(z), *counts])
        # The first matrix is that of all rows, the others are the classes'.
        self.covariance = scatter / (n - 1)[:, None, None]
        self.weights = np.array([1.0, *(-counts / len(z))])
        self.columns = [np.flatnonzero(owner == m) for m in range(owner[-1] + 1)]
        self.members = len(self.columns)
        self._sizes = np.array([len(c) for c in self.columns])
        bias = np.stack([bias_of_half_logdet(rows, z.shape[1]) for rows in n])
        self._bias = np.concatenate([np.zeros((len(n), 1)), bias], 1)
        self._singles = self._half_logdets(self.covariance)
        self._single_entropies = (self._singles - self._bias[:, self._sizes]) / BITS
        self.relevancies = self.weights @ self._single_entropies

    def chain(self, order: Sequence[int]) -> Terms:
        """One Cholesky factor per class holds the determinants of all prefixes. LinAlgError where one is singular."""
        order = list(order)
        ends = np.cumsum(self._sizes[order])
        pivots = self._pivots(np.concatenate([self.columns[m] for m in order]))
        entropy = (np.cumsum(np.log(pivots), 1)[:, ends - 1] - self._bias[:, ends]) / BITS
        alone = np.cumsum(self._single_entropies[:, order], 1)
        return terms_of_entropies(self.weights, entropy, alone)

    def marginals(self) -> Float[np.ndarray, " member"]:
        """I(U; Y) − I(U without the member; Y), by det S_without = det S · det (S⁻¹)_member."""
        dims = self.covariance.shape[1]
        blocks = self._half_logdets(np.linalg.inv(self.covariance))
        return -self.weights @ (blocks - self._bias[:, dims - self._sizes] + self._bias[:, [dims]]) / BITS

    def sweep(self, order: Sequence[int] | None = None) -> Sweep:
        """Conditions on one member after the other: what is left of the others' covariance gives their gains."""
        self._pivots(np.concatenate(self.columns))
        left, taken = self.covariance.copy(), 0
        chosen: list[int] = []
        gains = np.full((self.members, self.members), np.nan)
        for step in range(self.members):
            half = self._singles if step == 0 else self._half_logdets(left)
            dims = taken + np.minimum(self._sizes, left.shape[1] - taken)
            entropy = half - (self._bias[:, dims] - self._bias[:, [taken]])
            entropy[:, chosen] = 0.0
            gains[step] = self.weights @ entropy / BITS
            gains[step, chosen] = np.nan
            new = int(np.nanargmax(gains[step])) if order is None else int(order[step])
            chosen.append(new)
            taken += self._sizes[new]
            # Schur complement: the covariance given the new member.
            across = left[:, self.columns[new]]
            left -= across.transpose(0, 2, 1) @ np.linalg.solve(across[:, :, self.columns[new]], across)
        return np.array(chosen), gains

    def falls(self, order: Sequence[int], triples: Int[np.ndarray, "pair 3"]) -> Float[np.ndarray, " pair"]:
        """All gains along an order are known from one sweep."""
        gains, (first, later, place) = self.sweep(order)[1], triples.T
        member = np.asarray(order)[place]
        return gains[first, member] - gains[later, member]

    def _pivots(self, columns: Int[np.ndarray, " column"]) -> Float[np.ndarray, "matrix column"]:
        """Each column's deviation given those before it. LinAlgError where that is rounding."""
        factor = np.linalg.cholesky(self.covariance[:, columns[:, None], columns])
        pivots = np.diagonal(factor, axis1=1, axis2=2)
        if pivots.min() < SMALLEST_DEVIATION:
            raise np.linalg.LinAlgError("a covariance is singular up to rounding")
        return pivots

    def _half_logdets(self, matrices: np.ndarray) -> Float[np.ndarray, "matrix member"]:
        """½ ln det of each member's own block; members with equally many columns at once."""
        half = np.empty((len(matrices), self.members))
        with np.errstate(invalid="ignore", divide="ignore"):
            for size in np.unique(self._sizes):
                members = np.flatnonzero(self._sizes == size)
                columns = np.stack([self.columns[m] for m in members])
                if size == 1:
                    half[:, members] = np.log(np.diagonal(matrices, axis1=1, axis2=2)[:, columns[:, 0]]) / 2
                else:
                    half[:, members] = np.linalg.slogdet(matrices[:, columns[:, :, None], columns[:, None]])[1] / 2
        return half
