"""Information in votes, each member's preferred option: entropies of tables of counts."""

from __future__ import annotations

from itertools import product

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse.csgraph import minimum_spanning_tree

from .estimator import BITS, Curve, Estimator, Labels, Prefixes

Votes = Int[np.ndarray, "example member"]


def count_weights(n: int) -> Float[np.ndarray, " count"]:
    """Compute a cell's part of the Miller-Madow entropy, in bits, for 0 … n counts in a table of n rows.

    H = log2 n − 1/(2n ln 2) + Σ weights[count]: plug-in entropy plus (occupied cells − 1)/(2n) nats.
    """
    count = np.arange(n + 1)
    plug_in = -count * np.log2(np.maximum(count, 1)) / max(n, 1)
    return plug_in + (count > 0) / (2 * max(n, 1) * BITS)


def entropies(counts: Int[np.ndarray, "*table cell"], n: int) -> Float[np.ndarray, " *table"]:
    """Compute Miller-Madow entropies of tables of n rows each, in bits; 0 without rows."""
    if n == 0:
        return np.zeros(counts.shape[:-1])
    return np.asarray(np.log2(n) - 1 / (2 * n * BITS) + count_weights(n)[counts].sum(-1))


class TableVotes(Estimator):
    """Entropies of the whole joint table, with Miller and Madow's correction.

    It assumes only that the table has several rows per cell. One entropy is used throughout, so Eq. 13 is an identity.
    The estimate is free of first-order bias, and may be slightly negative.

    Attributes:
        votes: `[example, member]`, options 0 … `options` − 1; y `[example]`, classes 0 … `classes` − 1.
    """

    def __init__(self, votes: Votes, y: Labels, options: int, classes: int) -> None:
        self.votes, self.y, self.options, self.classes = votes, y, options, classes
        self.members = votes.shape[1]
        # Σ weights × entropies over all rows and within each class is an information about the label.
        self.weights = np.array([1.0, *(-np.bincount(y, minlength=classes) / len(y))])
        self._singles = np.stack([self._entropy(votes[:, m], options) for m in range(self.members)], 1)
        self.relevancies = self.weights @ self._singles

    def joint_and_conditional(self, order: list[int], prefixes: Prefixes) -> tuple[Curve, Curve]:
        """Extend the table by each member in turn."""
        code, cells, columns = np.zeros(len(self.votes), dtype=np.int64), 1, []
        for place, member in enumerate(order):
            code, cells = code * self.options + self.votes[:, member], cells * self.options
            if place in prefixes:
                columns.append(self._entropy(code, cells))
        joint, alone = np.stack(columns, 1), np.cumsum(self._singles[:, order], 1)[:, prefixes]
        return self.weights @ joint, -self.weights[1:] @ (alone - joint)[1:]

    def _entropy(self, code: Int[np.ndarray, " example"], cells: int) -> Float[np.ndarray, " class_and_all"]:
        """Compute entropies over all rows, then within each class."""
        counts = np.bincount(self.y * cells + code, minlength=cells * self.classes).reshape(self.classes, cells)
        return np.array([entropies(table, int(table.sum())) for table in (counts.sum(0), *counts)])


class TreeVotes(Estimator):
    """Single terms with the Miller-Madow correction; total correlations from a tree (Chow and Liu 1968).

    The best tree's Σ over edges of I(v_i; v_j) is a **lower bound** of the total correlation, and the only part of it
    that some thousand rows can show for many members: it misses what three or more share beyond pairs (XOR of three).
    One tree serves all classes (Friedman et al. 1997). The tree is chosen on one half of the rows (`half`, `[example]`
    of 0 and 1) and measured on the other, and vice versa, so that the choice does not inflate the bound. The joint
    information follows from Eq. 13: a difference of two lower bounds, itself **no bound** and not capped at H(Y).
    """

    def __init__(self, votes: Votes, y: Labels, options: int, classes: int, half: Labels) -> None:
        self.members = votes.shape[1]
        self._rows = [int((half == h).sum()) for h in (0, 1)]
        hot = (votes[:, :, None] == np.arange(options)).reshape(len(votes), -1).astype(np.float32)
        # I(v_i; v_j), [half][all rows, within classes]; and how often members vote for each option.
        self._pairs = np.zeros((2, 2, self.members, self.members))
        single = np.zeros((classes + 1, self.members, options), dtype=np.int64)
        for h in (0, 1):
            pooled = np.zeros((hot.shape[1],) * 2, dtype=np.int32)
            for c in range(classes):
                rows = hot[(half == h) & (y == c)]
                counts = (rows.T @ rows).astype(np.int32)  # below 2²⁴, exact in float32
                pooled += counts
                single[c + 1] += np.diagonal(counts).reshape(self.members, options)
                self._pairs[h, 1] += len(rows) / max(self._rows[h], 1) * self._information(counts, len(rows), options)
            self._pairs[h, 0] = self._information(pooled, self._rows[h], options)
        single[0] = single[1:].sum(0)
        alone = np.stack([entropies(table, int(table[0].sum())) for table in single])
        self.relevancies = alone[0] - np.bincount(y, minlength=classes) / len(y) @ alone[1:]

    def joint_and_conditional(self, order: list[int], prefixes: Prefixes) -> tuple[Curve, Curve]:
        """Fit the trees of every prefix."""
        over_all, within = np.stack([self._trees(order[: place + 1]) for place in prefixes]).T
        return np.cumsum(self.relevancies[order])[prefixes] + within - over_all, within

    def _trees(self, members: list[int]) -> Float[np.ndarray, " 2"]:
        """Compute the best tree's total correlation, over all rows and within classes, in bits."""
        total, pairs = np.zeros(2), self._pairs[:, :, np.array(members)[:, None], members]
        for h, kind in product((0, 1), (0, 1) if len(members) > 1 else ()):
            # Chosen on this half, measured on the other.
            i, j = best_tree(pairs[h, kind])
            total[kind] += self._rows[1 - h] / sum(self._rows) * pairs[1 - h, kind, i, j].sum()
        return total

    def _information(self, counts: np.ndarray, n: int, options: int) -> Float[np.ndarray, "member member"]:
        """Compute I(v_i; v_j) of all pairs from their tables, in bits."""
        if n == 0:
            return np.zeros((self.members, self.members))
        weights = count_weights(n)
        # Two short sums over long rows, in memory order.
        cells = weights.take(counts).reshape(self.members, options, -1).sum(1)
        cells = sum(cells[:, option::options] for option in range(options))
        alone = entropies(np.diagonal(counts).reshape(self.members, options), n)
        return alone[:, None] + alone - (np.log2(n) - 1 / (2 * n * BITS) + cells)


def best_tree(weights: Float[np.ndarray, "node node"]) -> tuple[np.ndarray, np.ndarray]:
    """Find the edges (one end, other end) of the maximum-weight spanning tree."""
    # Costs are above 0, since scipy treats 0 as no edge.
    tree = minimum_spanning_tree(weights.max() + 1 - weights).tocoo()
    return tree.row, tree.col


def table_fits(rows: int, options: int, members: int, classes: int) -> bool:
    """Check that the joint table of all votes and the label has at least four rows for every cell."""
    return bool(members * np.log(options) + np.log(classes) <= np.log(max(rows, 1) / 4))
