"""Do members of a sum average independent errors? Bias, variance and covariance, κ, correlations, a rotation null.

n members c_i of a sum, each read as a predictor n·c_i of what the rest leaves to predict: their mean is the sum itself.
`y` are logits centered over options, or any coordinates in which products are those of centered logits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

# The quantile of the null that an eigenvalue must exceed to count as a group's.
LEVEL = 0.95
# What varies by less than this share of its mean square varies by rounding.
ROUNDING = 1e-12


class ErrorTerms(NamedTuple):
    """Terms of E|ē|² = bias² + variance / n + (1 − 1/n) · covariance; `[*draw]`, logits² summed over options.

    `single` is the mean squared error of one member, and κ = n · loss / single.
    """

    loss: np.ndarray
    bias: np.ndarray
    variance: np.ndarray
    covariance: np.ndarray
    single: np.ndarray
    kappa: np.ndarray


class Moments(NamedTuple):
    """Sums over each row's predictions of members, what is beside them, and the target, in this order.

    `products` of every two over options, `sums` in the coordinates y, and how many predictions.
    """

    products: Float[np.ndarray, "row term term"]
    sums: Float[np.ndarray, "row term y"]
    predictions: Float[np.ndarray, " row"]

    def all(self) -> Moments:
        """Of all rows together, as one draw."""
        return Moments(*(np.asarray(x, dtype=float).sum(0)[None] for x in self))

    def left_out(self) -> Moments:
        """Without each row in turn."""
        return Moments(*(total - x for total, x in zip(self.all(), self, strict=True)))

    def means(self) -> tuple[Float[np.ndarray, "draw term y"], Float[np.ndarray, "draw term term"]]:
        """(means, covariances) over predictions, NaN for none.

        What varies by rounding alone, such as one prediction, has the covariance 0.
        """
        count = np.where(self.predictions > 0, self.predictions, np.nan)[:, None, None]
        means, products = self.sums / count, self.products / count
        covariances = products - means @ means.swapaxes(1, 2)
        own, whole = (np.diagonal(x, axis1=1, axis2=2) for x in (covariances, products))
        varies = ~(own <= ROUNDING * whole)
        return means, np.where(varies[:, :, None] & varies[:, None, :], covariances, 0.0)


def error_terms(moments: Moments, scale: float = 1.0) -> ErrorTerms:
    """Bias, variance and covariance of the members' errors over predictions.

    Ueda and Nakano (1996, *Generalization error of ensemble estimators*), as in Brown, Wyatt, Harris and Yao (2005,
    *Diversity creation methods*), with expectations over predictions instead of training sets: e_i = n·c_i − (t −
    rest), ē = their mean = logits − t, bias² = |E ē|², variance = mean_i E|e_i − E e_i|², covariance the mean of
    E (e_i − E e_i)·(e_j − E e_j) over i ≠ j. `scale` multiplies the target.

    >>> y = np.array([[[2.0], [0.0], [0.0], [1.0]]])  # one prediction: two members, nothing else, the target
    >>> terms = error_terms(Moments(y @ y.swapaxes(1, 2), y, np.ones(1)))
    >>> float(terms.loss[0]), float(terms.single[0]), float(terms.kappa[0])
    (1.0, 5.0, 0.4)
    """
    means, covariances = moments.means()
    n = means.shape[1] - 2
    errors = np.concatenate([n * np.eye(n), np.ones((n, 1)), np.full((n, 1), -scale)], 1)
    mean = errors @ means
    covariance = errors @ covariances @ errors.T
    own = np.diagonal(covariance, axis1=1, axis2=2).mean(1)
    shared = (covariance.sum((1, 2)) / n - own) / max(1, n - 1)
    bias = (mean.mean(1) ** 2).sum(-1)
    loss = bias + own / n + (1 - 1 / n) * shared
    single = own + (mean**2).sum(-1).mean(1)
    return ErrorTerms(loss, bias, own, shared, single, n * loss / single)


def best_scale(moments: Moments) -> float:
    """The factor of the target that leaves the least squared error of all terms but it."""
    products = moments.all().products[0]
    power = products[-1, -1]
    return float(products[:-1, -1].sum() / power) if power > 0 else 1.0


def correlations(covariances: Float[np.ndarray, "draw n n"]) -> Float[np.ndarray, "draw n n"]:
    """Of members, from covariances summed over options; a member that writes nothing correlates with none."""
    size = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2).clip(1e-300))
    found = covariances / (size[:, :, None] * size[:, None, :])
    found[:, np.arange(found.shape[1]), np.arange(found.shape[1])] = 1.0
    return found


def common_share(covariances: Float[np.ndarray, "draw n n"]) -> Float[np.ndarray, " draw"]:
    """The intraclass correlation: (|Σ c_i|² / Σ |c_i|² − 1) / (n − 1), the mean correlation weighted by size.

    NaN where no member varies.

    >>> float(common_share(np.ones((1, 3, 3)))[0]), float(common_share(np.eye(3)[None])[0])
    (1.0, 0.0)
    """
    n = covariances.shape[1]
    own = np.trace(covariances, axis1=1, axis2=2)
    return (covariances.sum((1, 2)) / np.where(own > 0, own, np.nan) - 1) / (n - 1)


def far_correlation(found: Float[np.ndarray, "draw n n"]) -> Float[np.ndarray, " draw"]:
    """The mean correlation of members at least half of the group apart."""
    n = found.shape[1]
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) >= n / 2
    return found[:, apart].mean(1)


def rotation_null(
    z: Float[np.ndarray, "prediction member d"],
    to_y: Float[np.ndarray, "*prediction y d"],
    draws: int,
    seed: int,
) -> Float[np.ndarray, "draw member member"]:
    """Members' correlations where only the alignment of their output directions is broken.

    Each member's writes are whitened by the pooled second moment, turned by a random rotation of its own, colored again
    and read out: w_i Σ^−½ Q_i Σ^½. Their sizes at every prediction, each member's dependence on the input and the
    anisotropy of the stream stay. (Permuting predictions would destroy that dependence, too, and reject far too often.)
    """
    z = z - z.mean(0)
    power = np.einsum("pnd,pnd->n", z, z).clip(1e-300)
    second = np.einsum("pnd,pne->de", z / power[:, None], z, optimize=True)
    values, vectors = np.linalg.eigh(second)
    kept = values > 1e-9 * values[-1]
    root = np.sqrt(values[kept])
    white, back = z @ (vectors[:, kept] / root), (vectors[:, kept] * root).T
    random = np.random.default_rng([seed, 5])
    found = []
    for _ in range(draws):
        y = []
        for member in range(z.shape[1]):
            rotation, upper = np.linalg.qr(random.normal(size=(len(root), len(root))))
            turned = white[:, member] @ (rotation * np.sign(np.diagonal(upper))) @ back
            y.append(turned @ to_y.T if to_y.ndim == 2 else np.einsum("pkd,pd->pk", to_y, turned))
        stacked = np.stack(y, 1)
        centered = stacked - stacked.mean(0)
        found.append(np.einsum("pnk,pmk->nm", centered, centered, optimize=True) / len(z))
    return correlations(np.stack(found))


def eigenvalues(found: Float[np.ndarray, "draw n n"]) -> Float[np.ndarray, "draw n"]:
    """Of correlation matrices, largest first."""
    return np.linalg.eigvalsh(found)[:, ::-1]


def count_groups(values: Float[np.ndarray, " n"], null: Float[np.ndarray, "draw n"]) -> int:
    """How many leading eigenvalues exceed what the same rank has under the null: shared output directions.

    >>> count_groups(np.array([3.0, 0.6, 0.4]), np.array([[1.5, 1.0, 0.5], [1.4, 1.1, 0.5]]))
    1
    """
    above = values > np.quantile(null, LEVEL, axis=0)
    return int(np.argmin(above)) if not above.all() else len(values)


def partition(found: Float[np.ndarray, "n n"], groups: int) -> Int[np.ndarray, " n"]:
    """Members divided into so many groups by their correlations (average linkage), numbered by first member."""
    groups = min(groups, len(found) // 2)
    if groups < 2:
        return np.zeros(len(found), dtype=np.int64)
    distance = squareform((1 - (found + found.T) / 2).clip(0), checks=False)
    labels = fcluster(linkage(distance, "average"), groups, "maxclust")
    _, first, index = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[index].astype(np.int64)
