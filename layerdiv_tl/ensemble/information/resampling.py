"""Estimates on all rows, on subsampled rows (intervals), and with shuffled labels or members (nulls)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from ...components import Component
from .discrete import TableVotes, TreeVotes
from .estimator import Columns, Estimator, Labels, Owner
from .gaussian import Gaussian, normal_scores
from .variational import Variational

# Share of the rows in a subsample: deviations from the whole are then half as wide as the whole's own error.
KEPT = 0.8

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Sample:
    """The rows of an ensemble with their labels, and the method that estimates their information.

    Attributes:
        method: "gaussian"; "table" or "tree" (votes); "variational".
        features, owner: `[example, column]`, normal scores of contrasts, or votes as whole numbers from 0, one column
            for each member; `[column]`, the member of each, in rising order.
        labels, classes: `[example]`, classes from 0, and their names.
        options, correct: The number of answers: K, or the classes where no options are known; `[example]`, whether all
            members together answer rightly (shared where several are first), None where they give no answer.
        components, spans: The members' names, and what each holds: a component's label, or the first and last of a
            group.
        notes, all_contrasts: Sentences about what was left out; `[example, column]`, every contrast of every member,
            where `features` has fewer, else None.
    """

    method: str
    features: np.ndarray
    owner: Owner
    labels: Labels
    classes: tuple[str, ...]
    seed: int
    options: int = 0
    correct: Float[np.ndarray, " example"] | None = None
    components: tuple[Component, ...] = ()
    spans: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    all_contrasts: np.ndarray | None = field(default=None, metadata={"saved": False})

    @property
    def members(self) -> int:
        """The number of members."""
        return int(self.owner[-1]) + 1

    @property
    def votes(self) -> bool:
        """Whether the features are votes."""
        return not np.issubdtype(self.features.dtype, np.floating)

    @cached_property
    def classifier(self) -> Variational:
        """The variational estimator on all rows, whatever the method."""
        return self._classifier(self.features, self.labels)

    def estimate(self, rows: Any = None, labels: Any = None, features: Any = None) -> Estimator:
        """The estimator on all rows or some, with other labels, or with other features."""
        y = self.labels if labels is None else labels
        x = self.features if features is None else features
        # Which half of the rows a tree is chosen on.
        half = np.random.default_rng([self.seed, 5]).permutation(len(y)) % 2
        if rows is not None:
            y, x, half = y[rows], x[rows], half[rows]
        if self.method == "gaussian":
            return Gaussian(x if rows is None else normal_scores(x), self.owner, y, len(self.classes))
        if self.method == "variational":
            return self._classifier(x, y)
        options = int(self.features.max()) + 1
        if self.method == "table":
            return TableVotes(x, y, options, len(self.classes))
        return TreeVotes(x, y, options, len(self.classes), half)

    def on_subsamples(self, statistic: Callable[[Estimator], T], n_resamples: int) -> list[T]:
        """A statistic of the estimates on subsamples of the rows."""
        least = len(self.owner) + 2 if self.method == "gaussian" else 5
        subsets = subsamples(self.labels, least, n_resamples, self.seed)
        return self._collect(statistic, ({"rows": rows} for rows in subsets))

    def with_shuffled_labels(self, statistic: Callable[[Estimator], T], n_permutations: int) -> list[T]:
        """A statistic of the estimates with labels that owe nothing to the members."""
        rng = np.random.default_rng([self.seed, 3])
        return self._collect(statistic, ({"labels": rng.permutation(self.labels)} for _ in range(n_permutations)))

    def with_shuffled_members(self, statistic: Callable[[Estimator], T], n_permutations: int) -> list[T]:
        """A statistic of the estimates with each member's rows shuffled by itself within every class.

        Members are then independent given the label, and otherwise as they were.
        """
        rng = np.random.default_rng([self.seed, 4])
        classes = [np.flatnonzero(self.labels == c) for c in range(len(self.classes))]

        def shuffled() -> np.ndarray:
            features = np.empty_like(self.features)
            for rows in classes:
                order = rng.permuted(np.repeat(rows[:, None], self.members, 1), axis=0)
                features[rows] = np.take_along_axis(self.features, order[:, self.owner], 0)
            return features

        return self._collect(statistic, ({"features": shuffled()} for _ in range(n_permutations)))

    def standard_errors(self, values: list[np.ndarray], count: int) -> Float[np.ndarray, " value"]:
        """From the spread of a statistic over subsamples of b of n rows, by √(b/(n − b)) (Politis et al. 1999).

        `count` values each; NaN for fewer than two subsamples.
        """
        if len(values) < 2:
            return np.full(count, np.nan)
        kept = round(KEPT * len(self.labels))
        return float(np.sqrt(kept / (len(self.labels) - kept))) * np.stack(values).std(0, ddof=1)

    def _classifier(self, x: np.ndarray, y: Labels) -> Variational:
        x, owner = one_hot(x) if self.votes else (x, self.owner)
        return Variational(x, owner, y, len(self.classes), self.members, self.seed)

    def _collect(self, statistic: Callable[[Estimator], T], changes: Iterable[dict[str, Any]]) -> list[T]:
        values = []
        for change in changes:
            # A draw may leave a member constant in a class: it has no Gaussian estimate, and is left out.
            with suppress(np.linalg.LinAlgError):
                values.append(statistic(self.estimate(**change)))
        return values


def subsamples(y: Labels, least: int, n_resamples: int, seed: int) -> Iterator[Int[np.ndarray, " kept"]]:
    """Four fifths of the rows without replacement, `n_resamples` times, each class keeping at least `least` rows.

    Rows drawn twice would break every bias correction. A draw that leaves a class too few rows is drawn again.
    """
    rng = np.random.default_rng([seed, 2])
    count = round(KEPT * len(y))
    for _ in range(n_resamples):
        for _ in range(100):
            rows = np.sort(rng.permutation(len(y))[:count])
            if np.bincount(y[rows], minlength=y.max() + 1).min() >= least:
                break
        yield rows


def one_hot(votes: Int[np.ndarray, "example member"]) -> tuple[Columns, Owner]:
    """A column for each option that a member votes for, but its last; the columns' members."""
    hot = [(column == option, member) for member, column in enumerate(votes.T) for option in np.unique(column)[:-1]]
    columns = np.array([column for column, _ in hot], dtype=np.float64).reshape(len(hot), len(votes))
    return columns.T, np.array([member for _, member in hot], dtype=np.int64)
