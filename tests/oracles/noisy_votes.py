"""Noisy votes about known labels: an ensemble whose bias, diversity and information are known in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import lgamma, log2
from typing import Any

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class Votes:
    """Noisy votes, and the expected values of Theorem 1 and Eq. 13 under the law they are drawn from.

    A member votes for the gold option with probability `right`, else for one of the others, each equally likely; given
    the gold option, members are independent. In a hidden share `shared` of the rows one vote is cast this way and all
    members repeat it. The terms of Theorem 1 are those of members that put 1 on their vote and 0 elsewhere; those of
    Eq. 13 are in bits, where `joint` is the mutual information of all votes and the label.

    Attributes:
        labels, votes: `[example]`, the gold option, uniform; `[example, member]`, the option a member votes for.
    """

    labels: Int[np.ndarray, " example"]
    votes: Int[np.ndarray, "example member"]
    options: int
    right: float
    shared: float

    @property
    def values(self) -> Float[np.ndarray, "example member option"]:
        return np.eye(self.options)[self.votes]

    @property
    def members(self) -> int:
        return self.votes.shape[1]

    @property
    def bias(self) -> float:
        """A wrong vote is off by 1 at two of the K options, a right one nowhere: 2 (1 − p) / K."""
        return 2 * (1 - self.right) / self.options

    @property
    def diversity(self) -> float:
        """(1 − 1/|L|) (1 − c) / K, where c is the probability that two members agree."""
        alone = self.right**2 + (1 - self.right) ** 2 / (self.options - 1)
        agree = self.shared + (1 - self.shared) * alone
        return (1 - 1 / self.members) * (1 - agree) / self.options

    @property
    def loss(self) -> float:
        return self.bias - self.diversity

    @property
    def relevancy(self) -> float:
        """Σ I(u_i; Y); a single vote is uniform."""
        return self.members * (log2(self.options) - self._noise)

    @property
    def redundancy(self) -> float:
        """TC(U) = Σ H(u_i) − H(U)."""
        return self.members * log2(self.options) - self._entropies[0]

    @property
    def conditional_redundancy(self) -> float:
        """TC(U|Y) = Σ H(u_i|Y) − H(U|Y); 0 where nothing is shared."""
        return self.members * self._noise - self._entropies[1]

    @property
    def joint(self) -> float:
        """I(U; Y) = H(U) − H(U|Y)."""
        return self._entropies[0] - self._entropies[1]

    @property
    def information_diversity(self) -> float:
        return self.conditional_redundancy - self.redundancy

    @property
    def _noise(self) -> float:
        """H(u_i|Y)."""
        wrong = (1 - self.right) / (self.options - 1)
        return _entropy(np.array([self.right] + [wrong] * (self.options - 1)))

    @cached_property
    def _entropies(self) -> tuple[float, float]:
        """H(U) and H(U|Y)."""
        members, options = self.members, self.options
        # The order of votes does not matter: sum over how many each option gets (stars and bars), [counts, option].
        bars = np.array(list(combinations(range(members + options - 1), options - 1)))
        counts = np.diff(bars, axis=1, prepend=-1, append=members + options - 1) - 1
        logs = np.array([lgamma(n + 1) for n in range(members + 1)])
        orders = np.exp(logs[members] - logs[counts].sum(1))  # how many rows of votes have these counts
        wrong = (1 - self.right) / (options - 1)
        independent = np.float_power(self.right, counts) * np.float_power(wrong, members - counts)  # [counts, gold]
        repeated = np.where(np.eye(options, dtype=bool), self.right, wrong)[counts.argmax(1)]
        repeated = repeated * (counts.max(1) == members)[:, None]
        given_label = (1 - self.shared) * independent + self.shared * repeated
        return _entropy(given_label.mean(1), orders), _entropy(given_label[:, 0], orders)


def cast_votes(
    labels: Int[np.ndarray, " example"],
    members: int,
    options: int,
    right: float,
    shared: float,
    rng: np.random.Generator,
) -> Int[np.ndarray, "example member"]:
    """Draw votes about these labels.

    A member votes for the gold option with probability `right`, else for one of the others with equal probability;
    given the gold option, members are independent. In a hidden share `shared` of the rows one vote is drawn this way
    and all members repeat it.
    """
    # One random stream per kind of draw: the first rows do not depend on how many follow.
    streams = rng.spawn(5)

    def noisy(size: tuple[int, int], luck: np.random.Generator, choice: np.random.Generator) -> np.ndarray:
        wrong = (labels[:, None] + choice.integers(1, options, size=size)) % options
        return np.where(luck.random(size) < right, labels[:, None], wrong)

    repeated = streams[0].random((len(labels), 1)) < shared
    alone = noisy((len(labels), members), *streams[1:3])
    return np.where(repeated, noisy((len(labels), 1), *streams[3:5]), alone)


def votes(
    rows: int = 2000, *, members: int = 9, options: int = 2, right: float = 0.7, shared: float = 0.0, seed: int = 0
) -> Votes:
    """Draw noisy votes; see `Votes` for their law and its expected values."""
    label_rng, vote_rng = np.random.default_rng(seed).spawn(2)
    labels = label_rng.integers(options, size=rows)
    return Votes(labels, cast_votes(labels, members, options, right, shared, vote_rng), options, right, shared)


def _entropy(p: Float[np.ndarray, " event"], times: Any = 1.0) -> float:
    """−Σ times · p log2 p, in bits, where `times` events have probability p each."""
    return float(-np.sum(times * p * np.log2(p, out=np.zeros_like(p), where=p > 0)))
