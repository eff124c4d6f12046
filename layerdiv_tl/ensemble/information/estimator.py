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
# Features, the member of each column (in rising order), classes from 0, and Eq. 13's terms by prefix.
Columns = Float[np.ndarray, "example column"]
Owner = Int[np.ndarray, " column"]
Labels = Int[np.ndarray, " example"]
Curve = Float[np.ndarray, " prefix"]
Terms = dict[str, Curve]
# The place of each prefix's last member in an order.
Prefixes = Int[np.ndarray, " prefix"]


class Estimator(ABC):
    """Estimates of Eq. 13's terms, in bits, for every set of members of one ensemble; a member is its index."""

    members: int
    relevancies: Float[np.ndarray, " member"]

    @abstractmethod
    def joint_and_conditional(self, order: list[int], prefixes: Prefixes) -> tuple[Curve, Curve]:
        """Compute I(U; Y), and TC(U|Y) (NaN where it is unknown), for some prefixes of `order`."""

    def terms(self, order: list[int], prefixes: Prefixes) -> Terms:
        """Compute every term for some prefixes of `order`."""
        return eq13(np.cumsum(self.relevancies[order])[prefixes], *self.joint_and_conditional(order, prefixes))

    def chain(self, order: Sequence[int]) -> Terms:
        """Compute every term for each prefix of `order`."""
        return self.terms(list(order), np.arange(len(order)))

    def totals(self) -> dict[str, float]:
        """Compute every term for all members together."""
        terms = self.terms(list(range(self.members)), np.array([self.members - 1]))
        return {term: float(values[0]) for term, values in terms.items()}

    def joint(self, sets: Iterable[Sequence[int]]) -> Float[np.ndarray, " set"]:
        """Compute I(U_S; Y) for each set S of members; 0 for the empty one."""
        last = [self.terms(list(s), np.array([len(s) - 1]))["joint"][0] if len(s) else 0.0 for s in sets]
        return np.array(last)

    def marginals(self) -> Float[np.ndarray, " member"]:
        """Compute I(U; Y) − I(U without the member; Y)."""
        everyone = list(range(self.members))
        values = self.joint([everyone, *([j for j in everyone if j != i] for i in everyone)])
        return values[0] - values[1:]

    def greedy_order(self) -> Int[np.ndarray, " step"]:
        """Order the members so that each adds the most to the joint information of those before it."""
        chosen: list[int] = []
        while left := [i for i in range(self.members) if i not in chosen]:
            chosen.append(left[int(self.joint([*chosen, i] for i in left).argmax())])
        return np.array(chosen)

    def submodularity_gaps(self, order: Sequence[int], triples: Int[np.ndarray, "pair 3"]) -> np.ndarray:
        """For each (k, k', i), return how much less order[i] adds to the first k' of `order` than to the first k."""
        order = list(order)
        sets = [s for k, later, i in triples for n in (k, later) for s in ([*order[:n], order[i]], order[:n])]
        joint = self.joint(sets).reshape(-1, 4)
        return joint[:, 0] - joint[:, 1] - (joint[:, 2] - joint[:, 3])


def eq13(relevancy: Curve, joint: Curve, conditional: Curve) -> Terms:
    """Compute the other terms from three, since I(U; Y) = relevancy + TC(U|Y) − TC(U)."""
    terms = (relevancy, relevancy + conditional - joint, conditional, joint, joint - relevancy)
    return dict(zip(TERMS, terms, strict=True))


def entropy_of_labels(y: Labels) -> float:
    """H(Y), plug-in, in bits."""
    share = np.bincount(y) / len(y)
    return float(-(share * np.log2(share)).sum())


def normal_quantile(confidence_level: float) -> float:
    """Return z of a two-sided normal interval."""
    return NormalDist().inv_cdf(0.5 + confidence_level / 2)


def mean_with_error(rows: Float[np.ndarray, "*rest example"]) -> tuple[Any, Any]:
    """Return the mean over independent rows, and its standard error."""
    return rows.mean(-1), rows.std(-1, ddof=1) / np.sqrt(rows.shape[-1])


def single_threaded_blas() -> AbstractContextManager[Any]:
    """Use one BLAS thread: for many small matrices several threads cost more than they save."""
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    return threadpool_limits(1, "blas")
