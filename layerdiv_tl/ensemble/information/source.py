"""Rows, labels and a method -> an estimator, on all of them, on some, or on shuffled ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from jaxtyping import Int

from .discrete import TableVotes, TreeVotes
from .estimator import Estimator
from .gaussian import Gaussian, normal_scores
from .variational import Variational


@dataclass(frozen=True, eq=False)
class Source:
    """What estimates are made from.

    features
        `[example, column]`: normal scores, or votes as whole numbers; owner `[column]` their members.
    labels
        `[example]`, classes 0 … `classes` − 1.
    """

    method: str
    features: np.ndarray
    owner: Int[np.ndarray, " column"]
    labels: Int[np.ndarray, " example"]
    classes: int
    seed: int

    @property
    def members(self) -> int:
        """How many."""
        return int(self.owner[-1]) + 1

    @cached_property
    def votes(self) -> bool:
        """Whether the features are votes."""
        return not np.issubdtype(self.features.dtype, np.floating)

    @cached_property
    def options(self) -> int:
        """How many options votes choose among."""
        return int(self.features.max()) + 1

    @cached_property
    def half(self) -> Int[np.ndarray, " example"]:
        """`[example]`: which half of the rows a tree is chosen on."""
        return np.random.default_rng([self.seed, 5]).permutation(len(self.labels)) % 2

    def on(self, rows: Any = None, labels: Any = None, features: Any = None) -> Estimator:
        """The estimator on some rows, with other labels, or with other features."""
        y, x, half = (
            self.labels if labels is None else labels,
            self.features if features is None else features,
            self.half,
        )
        if rows is not None:
            y, x, half = y[rows], x[rows], half[rows]
        match self.method:
            case "gaussian":
                return Gaussian(x if rows is None else normal_scores(x), self.owner, y, self.classes)
            case "variational":
                x, owner = one_hot(x) if self.votes else (x, self.owner)
                return Variational(x, owner, y, self.classes, self.members, self.seed)
            case "table":
                return TableVotes(x, y, self.options, self.classes)
        return TreeVotes(x, y, self.options, self.classes, half)

    @cached_property
    def classifier(self) -> Variational:
        """The variational estimator on all rows, whatever the method."""
        return cast(
            Variational,
            Source("variational", self.features, self.owner, self.labels, self.classes, self.seed).on(),
        )


def one_hot(votes: Int[np.ndarray, "example member"]) -> tuple[np.ndarray, np.ndarray]:
    """A column for each option that a member votes for, but its last; the columns' members."""
    columns, owner = [], []
    for member, cast_votes in enumerate(votes.T):
        for option in np.unique(cast_votes)[:-1]:
            columns.append(cast_votes == option)
            owner.append(member)
    return np.array(columns, dtype=np.float64).reshape(len(owner), len(votes)).T, np.array(owner, dtype=np.int64)
