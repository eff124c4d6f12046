"""One law for all terms of Eq. 13: members that are Gaussian within classes, with one covariance; in bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.special import digamma, ndtri, polygamma
from scipy.stats import qmc

TERMS = ("relevancy", "redundancy", "conditional_redundancy", "joint", "diversity")
BITS = float(np.log(2))

# Features, and classes from 0.
Columns = Float[np.ndarray, "example column"]
Labels = Int[np.ndarray, " example"]
# M' C⁻¹ M of sets of columns: M the means of classes by contrasts of classes.
Spread = Float[np.ndarray, "set contrast contrast"]


@dataclass(frozen=True, eq=False)
class Law:
    """Gaussian classes with one covariance. With all means alike, `means` is normal with variance C / rows.

    Attributes:
        means: M `[column, class − 1]`, the class means' deviations along orthonormal contrasts of classes, weighted by
            √p_y. The spread of a set of columns is A = M' C⁻¹ M.
        covariance: C `[column, column]`, within classes, with rows − classes degrees of freedom.
        owner: `[column]`, each column's member, in ascending order. A member without columns carries no information.
        share: `[class]`, the classes' shares of the rows.
        rows, members: Their numbers.
    """

    means: Float[np.ndarray, "column contrast"]
    covariance: Float[np.ndarray, "column column"]
    owner: Int[np.ndarray, " column"]
    share: Float[np.ndarray, " class"]
    rows: int
    members: int

    @classmethod
    def fit(cls, x: Columns, owner: Int[np.ndarray, " column"], y: Labels, members: int) -> Law:
        """Fit to columns of classes 0 … K − 1."""
        share, residuals = np.bincount(y) / len(y), within(x, y)
        centers = class_means(x, y)
        covariance = residuals.T @ residuals / (len(y) - len(share))
        means = (centers * np.sqrt(share)[:, None]).T @ class_contrasts(share)
        return cls(means, covariance, owner, share, len(y), members)

    @property
    def free(self) -> int:
        """Degrees of freedom of C."""
        return self.rows - len(self.share)

    @property
    def sizes(self) -> Int[np.ndarray, " member"]:
        """The number of columns of each member."""
        return np.bincount(self.owner, minlength=self.members)

    def unbiased(self, spread: Spread, dims: Int[np.ndarray, " set"]) -> Spread:
        """Remove the bias of the spread A of `dims` columns: E[A] = (A + dims/rows · 1) · free / (free − dims − 1)."""
        d = dims[:, None, None]
        return spread * (self.free - d - 1) / self.free - d / self.rows * np.eye(spread.shape[-1])

    def informations(self, spread: Spread, dims: Int[np.ndarray, " set"]) -> Float[np.ndarray, " set"]:
        """Estimate I(set; Y) of sets of `dims` columns from the spread of their estimated means."""
        return mixture_information(self.unbiased(spread, dims), self.share)

    def relevancies(self) -> Float[np.ndarray, " member"]:
        """Estimate I(u_i; Y) of each member."""
        return self.informations(self._alone()[0], self.sizes)

    def chain(self, factor: Float[np.ndarray, "column column"] | None = None) -> Float[np.ndarray, "term prefix"]:
        """Estimate every term for the first 1, 2, … members. `factor` is C's Cholesky factor, where it is known.

        TC(U|Y) = Σ_i ½ log det C_ii − ½ log det C, each without its Wishart bias, and TC(U) follows from Theorem 4.
        """
        factor = np.linalg.cholesky(self.covariance) if factor is None else factor
        ends, contrasts = np.cumsum(self.sizes), self.means.shape[1]
        white = solve_triangular(factor, self.means, lower=True)
        steps = np.zeros((len(white) + 1, contrasts, contrasts))
        steps[1:] = white[:, :, None] * white[:, None]
        joint = self.informations(np.cumsum(steps, 0)[ends], ends)
        half = np.append(0.0, np.cumsum(np.log(np.diagonal(factor)))) - half_logdet_bias(self.free, len(white))
        own_spread, own_half = self._alone()
        conditional = (np.cumsum(own_half) - half[ends]) / BITS
        relevancy = np.cumsum(self.informations(own_spread, self.sizes))
        return np.stack([relevancy, relevancy + conditional - joint, conditional, joint, joint - relevancy])

    def gains(self) -> Float[np.ndarray, " member"]:
        """Estimate I(U; Y) − I(U without the member; Y).

        Without a member i, A falls by B' ((C⁻¹)_ii)⁻¹ B with B = (C⁻¹ M)_i.
        """
        inverse, dims = np.linalg.inv(self.covariance), len(self.owner)
        weights = inverse @ self.means
        whole, gains = self.means.T @ weights, np.zeros(self.members)
        for member in np.unique(self.owner):
            own = self.owner == member
            part = weights[own].T @ np.linalg.solve(inverse[np.ix_(own, own)], weights[own])
            both = np.array([dims, dims - own.sum()])
            with_it, without = self.informations(np.stack([whole, whole - part]), both)
            gains[member] = with_it - without
        return gains

    def draws(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "draw term prefix"]:
        """Repeat `chain` on samples of the law. C and M of a sample are Wishart and normal: no rows are drawn.

        The fitted law holds too much redundancy and information, so the covariances between members and the means are
        first shrunk to their unbiased estimates.
        """
        factor = np.linalg.cholesky(self._shrunk_covariance())
        white = solve_triangular(factor, self.means, lower=True)
        size, axes = np.linalg.eigh(white.T @ white)
        d, k = white.shape
        wanted = np.linalg.eigvalsh(self.unbiased((white.T @ white)[None], np.array([d])))[0].clip(0)
        white = white @ (axes * np.sqrt(wanted / np.maximum(size, 1e-300))) @ axes.T
        found = []
        for _ in range(count):
            root = np.tril(rng.normal(size=(d, d)), -1)  # Bartlett's root of a Wishart matrix
            root[np.diag_indices(d)] = np.sqrt(rng.chisquare(self.free - np.arange(d)))
            own = factor @ root / np.sqrt(self.free)
            means = factor @ (white + rng.normal(size=(d, k)) / np.sqrt(self.rows))
            found.append(Law(means, own @ own.T, self.owner, self.share, self.rows, self.members).chain(own))
        return np.array(found)

    def _shrunk_covariance(self) -> Float[np.ndarray, "column column"]:
        """C with the covariances between members shrunk by one factor, so that TC(U|Y) is the unbiased estimate."""
        blocks = self.covariance * (self.owner[:, None] == self.owner)
        between = self.covariance - blocks
        wanted, of_blocks = self.chain()[2, -1] * BITS, np.linalg.slogdet(blocks)[1] / 2

        def excess(kept: float) -> float:
            return float(of_blocks - np.linalg.slogdet(blocks + kept * between)[1] / 2 - wanted)

        if wanted <= 0:
            return blocks
        kept = brentq(excess, 0.0, 1.0, xtol=1e-3) if excess(1.0) > 0 else 1.0
        return blocks + kept * between

    def _alone(self) -> tuple[Spread, Float[np.ndarray, " member"]]:
        """Return each member's own spread, and its ½ ln det C_ii without bias."""
        spread, half = np.zeros((self.members, self.means.shape[1], self.means.shape[1])), np.zeros(self.members)
        for member in np.unique(self.owner):
            own = self.owner == member
            block, means = self.covariance[np.ix_(own, own)], self.means[own]
            spread[member] = means.T @ np.linalg.solve(block, means)
            half[member] = np.linalg.slogdet(block)[1] / 2 - half_logdet_bias(self.free, len(means))[-1]
        return spread, half


def class_means(x: Columns, y: Labels) -> Float[np.ndarray, "class column"]:
    """Average the rows of each class."""
    counts = np.bincount(y)
    return np.eye(len(counts))[y].T @ x / counts[:, None]


def within(x: Columns, y: Labels) -> Columns:
    """Subtract the class means."""
    return x - class_means(x, y)[y]


def class_contrasts(share: Float[np.ndarray, " class"]) -> Float[np.ndarray, "class contrast"]:
    """Return an orthonormal basis of the complement of √share."""
    return np.linalg.svd(np.sqrt(share)[None])[2][1:].T


def half_logdet_bias(free: int, dims: int) -> Float[np.ndarray, " count"]:
    """E[½ ln det S] − ½ ln det Σ in nats for 0 … `dims` columns, S Wishart with mean Σ and `free` degrees of freedom.

    ½ Σ_i (ψ((free − i)/2) + ln(2/free)), i = 0 … dims − 1 (Misra et al. 2005).
    """
    each = digamma((free - np.arange(dims)) / 2) + np.log(2 / free)
    return np.append(0.0, np.cumsum(each)) / 2


def inequality(x: Columns, y: Labels) -> float:
    """Compute z of the likelihood ratio for unequal covariances; 0 where a class has too few rows to tell.

    Under equal covariances mean and variance are exact: ½ ln det of a Wishart matrix has the variance
    ¼ Σ_i ψ′((free − i)/2), and the ratio is independent of the common determinant (Basu's theorem).
    """
    counts, dims, residuals = np.bincount(y), x.shape[1], within(x, y)
    if counts.min() < dims + 2:
        return 0.0

    def half_logdet(rows: Columns, free: int) -> float:
        return float(np.linalg.slogdet(rows.T @ rows / free)[1] / 2 - half_logdet_bias(free, dims)[-1])

    def variance(free: int) -> float:
        return float(polygamma(1, (free - np.arange(dims)) / 2).sum() / 4)

    free = len(y) - len(counts)
    ratio, spread = half_logdet(residuals, free), -variance(free)
    for c, count in enumerate(counts.tolist()):
        ratio -= count / len(y) * half_logdet(residuals[y == c], count - 1)
        spread += (count / len(y)) ** 2 * variance(count - 1)
    return float(ratio / np.sqrt(max(spread, 1e-300)))


@cache
def normal_points(dims: int) -> tuple[Float[np.ndarray, "point dim"], Float[np.ndarray, " point"]]:
    """Return points and weights for expectations over a standard normal, exact for its covariance.

    In one dimension a grid, whose tails count where classes hardly overlap; in more, opposite pairs of equal weight.
    """
    if dims == 1:
        grid = np.linspace(-8, 8, 161)
        weights = np.exp(-(grid**2) / 2)
        return grid[:, None], weights / weights.sum()
    half = ndtri(qmc.Sobol(dims, seed=0).random(256))
    points = np.concatenate([half, -half])
    points = points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / len(points))).T
    return points, np.full(len(points), 1 / len(points))


def mixture_information(spread: Spread, share: Float[np.ndarray, " class"]) -> Float[np.ndarray, " set"]:
    """Compute I(X; Y) in bits of unit Gaussian classes whose means have this spread, continued below 0.

    An unbiased estimate of a spread of 0 is as often negative as positive. For negative ones the information is 2
    I(positive part) − I(absolute values), which passes straight through 0: clipping at 0 would bias the estimate.

    >>> mixture_information(np.array([[[0.25]], [[0.0]], [[-0.01]]]), np.array([0.5, 0.5])).round(3).tolist()
    [0.161, 0.0, -0.007]
    """
    size, axes = np.linalg.eigh(spread)
    places = class_contrasts(share) / np.sqrt(share)[:, None] @ axes
    bits = information_of_means(places * np.sqrt(np.abs(size))[:, None], share)
    below = (size < 0).any(1)
    positive = places[below] * np.sqrt(size[below].clip(0))[:, None]
    bits[below] = 2 * information_of_means(positive, share) - bits[below]
    return bits


def information_of_means(
    means: Float[np.ndarray, "set class contrast"], share: Float[np.ndarray, " class"]
) -> Float[np.ndarray, " set"]:
    """Compute I(X; Y) in bits, with X Gaussian of variance 1 in every direction around its class mean."""
    points, weights = normal_points(means.shape[2])
    bits = np.full(len(means), -share @ np.log2(share))
    for c in range(len(share)):
        apart = means[:, [c]] - means
        log_odds = -apart @ points.T + (np.log(share / share[c]) - np.square(apart).sum(2) / 2)[:, :, None]
        largest = log_odds.max(1)
        surprisal = largest + np.log(np.exp(log_odds - largest[:, None]).sum(1))
        bits -= share[c] * (surprisal @ weights) / BITS
    return bits
