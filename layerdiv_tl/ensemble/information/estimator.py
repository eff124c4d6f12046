"""The interface of all estimators of information, on one set of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

EstimatorName = Literal["gaussian", "vote", "variational"]
TERMS = ("relevancy", "redundancy", "conditional_redundancy", "joint", "diversity")
BITS = float(np.log(2))
# Features, the member of each column (in rising order), classes from 0, and Eq. 13's terms.
Columns = Float[np.ndarray, "example column"]
Owner = Int[np.ndarray, " column"]
Labels = Int[np.ndarray, " example"]
Curve = Float[np.ndarray, " prefix"]
Terms = dict[str, Curve]
# The order in which members are added, and every member's gain at every step.
Sweep = tuple[Int[np.ndarray, " step"], Float[np.ndarray, "step member"]]


class Estimator(ABC):
    """Estimates of Eq. 13's terms, in bits, for every set of members of one ensemble; a member is its index."""

    members: int
    relevancies: Float[np.ndarray, " member"]

    @abstractmethod
    def chain(self, order: Sequence[int]) -> Terms:
        """Compute every term for each prefix of `order`."""

    def joint(self, sets: Iterable[Sequence[int]]) -> Float[np.ndarray, " set"]:
        """Compute I(U_S; Y) for each set S of members; 0 for the empty one."""
        return np.array([float(self.chain(members)["joint"][-1]) if len(members) else 0.0 for members in sets])

    def totals(self) -> dict[str, float]:
        """Compute every term for all members together."""
        return {term: float(values[-1]) for term, values in self.chain(range(self.members)).items()}

    def marginals(self) -> Float[np.ndarray, " member"]:
        """Compute I(U; Y) − I(U without the member; Y)."""
        everyone = list(range(self.members))
        values = self.joint([everyone, *([j for j in everyone if j != i] for i in everyone)])
        return values[0] - values[1:]

    def sweep(self, order: Sequence[int] | None = None) -> Sweep:
        """Add members one by one in `order`, or greedily by their gains; return the order and all gains.

        `gains[k, i]` is I(first k and i; Y) − I(first k; Y), NaN for a member among the first k.
        """
        chosen: list[int] = []
        gains = np.full((self.members, self.members), np.nan)
        for step in range(self.members):
            left = [i for i in range(self.members) if i not in chosen]
            values = self.joint([chosen, *([*chosen, i] for i in left)])
            gains[step, left] = values[1:] - values[0]
            chosen.append(left[int(np.argmax(gains[step, left]))] if order is None else int(order[step]))
        return np.array(chosen), gains

    def falls(self, order: Sequence[int], triples: Int[np.ndarray, "pair 3"]) -> Float[np.ndarray, " pair"]:
        """For each (k, k', i), return how much less order[i] adds to the first k' of `order` than to the first k."""
        order = list(order)
        sets = [s for k, later, i in triples for n in (k, later) for s in ([*order[:n], order[i]], order[:n])]
        joint = self.joint(sets).reshape(-1, 4)
        return joint[:, 0] - joint[:, 1] - (joint[:, 2] - joint[:, 3])


def terms_of_entropies(weights: Curve, joint: Float[np.ndarray, "matrix prefix"], alone: np.ndarray) -> Terms:
    """Compute Eq. 13 from prefix entropies and sums of members' own, over all rows and within each class.

    `weights` are 1, and minus each class's share of the rows.
    """
    correlation = alone - joint
    return check_eq13(weights @ alone, correlation[0], -weights[1:] @ correlation[1:], weights @ joint)


def check_eq13(relevancy: Curve, redundancy: Curve, conditional: Curve, joint: Curve) -> Terms:
    """Name the terms of Eq. 13, and check that they satisfy it.

    >>> terms = check_eq13(np.array([0.0]), np.array([0.5]), np.array([1.5]), np.array([1.0]))
    >>> float(terms["diversity"][0])
    1.0
    """
    diversity = conditional - redundancy
    gap = np.abs(joint - (relevancy + diversity))
    # Subsamples with too few rows of a class are NaN and pass; the caller decides on them.
    if np.any(gap > 1e-9 * np.maximum(1.0, np.abs(redundancy) + np.abs(conditional))):
        raise AssertionError(f"I = relevancy + conditional redundancy − redundancy is off by {gap.max():.2g} bits")
    return dict(zip(TERMS, (relevancy, redundancy, conditional, joint, diversity), strict=True))


def standardize(x: Columns) -> Columns:
    """Scale columns to mean 0 and variance 1; a constant column becomes 0."""
    spread = x.std(0)
    return (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)


def entropy_of_labels(y: Labels) -> float:
    """H(Y), plug-in, in bits."""
    share = np.bincount(y) / len(y)
    return float(-(share * np.log2(share)).sum())


def normal_quantile(confidence_level: float) -> float:
    """Return z of a two-sided normal interval."""
    return NormalDist().inv_cdf(0.5 + confidence_level / 2)


def single_threaded_blas() -> AbstractContextManager[Any]:
    """Use one BLAS thread: for many small matrices several threads cost more than they save."""
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    return threadpool_limits(1, "blas")
