"""A lower bound of I(U; Y): what a classifier knows about labels it has not seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from .estimator import BITS, TERMS, Estimator

FOLDS = 5
# Ridges added to a covariance of unit variances; a member's own few dimensions need none.
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
LITTLE = (0.01,)
# Multiples of the classifier's log-odds: 0 says how frequent classes are and nothing else; a Gaussian rule is too
# timid where classes do not overlap, so that a member that tells the label for certain needs the large ones.
FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def folds(y: Int[np.ndarray, " example"], seed: int) -> Int[np.ndarray, " example"]:
    """The fold of each row: classes are dealt evenly, in an order that owes nothing to that of the rows."""
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = np.arange(len(y)) % FOLDS
    return fold


class Variational(Estimator):
    """I ≥ H(Y) − cross-entropy of a classifier on rows it has not seen (Barber and Agakov 2003).

    The classifier is a linear discriminant with a ridge, whose log-odds are multiplied by a factor of 0 to 16;
    both are chosen on rows that are neither trained nor tested on. Whatever the law of U, the estimate is a
    **lower bound** of I(U; Y) in expectation, never above H(Y); it is near I where classes are Gaussian
    with one covariance, and blind to synergy that no linear rule sees (XOR: 0). The relevancy is the sum of
    the members' own lower bounds, the diversity the difference of the two, so **no bound**; total
    correlations are not to be had this way and are NaN. H(Y) is the plug-in entropy of the labels.

    x
        `[example, dim]`, any features made without labels; owner `[dim]` the member of each column.
    y
        `[example]`, classes 0 … `classes` − 1, at least `FOLDS` rows of each.
    """

    def __init__(
        self,
        x: Float[np.ndarray, "example dim"],
        owner: Int[np.ndarray, " dim"],
        y: Int[np.ndarray, " example"],
        classes: int,
        members: int,
        seed: int,
    ) -> None:
        spread = x.std(0)
        self.x, self.y, self.classes, self.members = (
            (x - x.mean(0)) / np.where(spread > 0, spread, 1.0),
            y,
            classes,
            members,
        )
        self.columns = [np.flatnonzero(owner == m) for m in range(members)]
        share = np.bincount(y, minlength=classes) / len(y)
        self.surprise, self.label_entropy = -np.log2(share)[y], float(-(share * np.log2(share)).sum())
        self.fold = folds(y, seed)
        hot = np.eye(classes)[y]
        parts = [self.fold == f for f in range(FOLDS)]
        self._counts = np.stack([hot[part].sum(0) for part in parts])
        self._sums = np.stack([hot[part].T @ self.x[part] for part in parts])
        self._squares = np.stack([self.x[part].T @ self.x[part] for part in parts])

    @cached_property
    def single_rows(self) -> Float[np.ndarray, "member example"]:
        """What each member alone knows about each row's label, in bits; the means are the relevancies."""
        rows = np.zeros((self.members, len(self.y)))
        sizes = np.array([len(c) for c in self.columns])
        for size in np.unique(sizes[sizes > 0]):
            members = np.flatnonzero(sizes == size)
            rows[members] = self._held_out(np.stack([self.columns[m] for m in members]), LITTLE)[0]
        return rows

    @cached_property
    def joint_rows(self) -> Float[np.ndarray, " example"]:
        """What all members together know about each row's label, in bits."""
        return self._everyone[0][0]

    @cached_property
    def right(self) -> Bool[np.ndarray, " example"]:
        """Whether the classifier answers each row, which it has not seen, rightly."""
        return self._everyone[1][0]

    @cached_property
    def relevancies(self) -> Float[np.ndarray, " member"]:  # type: ignore[override]
        """Lower bounds of I(u_i; Y)."""
        return self.single_rows.mean(1)

    def rows(self) -> dict[str, Float[np.ndarray, " example"]]:
        """Every term's share in each row: its mean is the term."""
        relevancy, nothing = self.single_rows.sum(0), np.full(len(self.y), np.nan)
        values = (relevancy, nothing, nothing, self.joint_rows, self.joint_rows - relevancy)
        return dict(zip(TERMS, values, strict=True))

    def totals(self) -> dict[str, float]:
        """Means over rows; rounding takes the joint information not above H(Y)."""
        means = {term: float(values.mean()) for term, values in self.rows().items()}
        return means | {"joint": min(means["joint"], self.label_entropy)}

    def chain(self, order: Sequence[int]) -> dict[str, Float[np.ndarray, " prefix"]]:
        """A classifier for every prefix."""
        order = list(order)
        relevancy = np.cumsum(self.relevancies[order])
        joint = self.joint(order[: k + 1] for k in range(len(order)))
        nothing = np.full(len(order), np.nan)
        return dict(zip(TERMS, (relevancy, nothing, nothing, joint, joint - relevancy), strict=True))

    def joint(self, sets: Iterable[Sequence[int]]) -> Float[np.ndarray, " set"]:
        """A classifier for every set."""
        found = []
        for members in sets:
            columns = np.concatenate([np.zeros(0, dtype=np.int64), *(self.columns[m] for m in members)])
            found.append(float(self._held_out(columns[None], RIDGES)[0].mean()) if len(columns) else 0.0)
        return np.array(found)

    @cached_property
    def _everyone(self) -> tuple[np.ndarray, np.ndarray]:
        return self._held_out(np.concatenate(self.columns)[None], RIDGES)

    def _held_out(
        self, columns: Int[np.ndarray, "set dim"], ridges: Sequence[float]
    ) -> tuple[Float[np.ndarray, "set example"], Bool[np.ndarray, "set example"]]:
        """log2 q(y|x)/p(y) of every row, and whether q's first choice is right, for sets of columns of one size."""
        bits, right = np.empty((len(columns), len(self.y))), np.empty((len(columns), len(self.y)), dtype=bool)
        for f in range(FOLDS):
            other = (f + 1) % FOLDS
            tried, labels = self._posteriors([f, other], other, columns, ridges)
            best = _chosen(tried[:, labels, :, np.arange(len(labels))], np.tile(np.array(FACTORS) > 1, len(ridges)))
            posterior, labels = self._posteriors([f], f, columns, ridges)
            chosen = posterior[best, :, np.arange(len(columns))]
            rows = self.fold == f
            bits[:, rows] = chosen[:, labels, np.arange(len(labels))] / BITS + self.surprise[rows]
            right[:, rows] = chosen.argmax(1) == labels
        return bits, right

    def _posteriors(
        self, without: list[int], fold: int, columns: Int[np.ndarray, "set dim"], ridges: Sequence[float]
    ) -> tuple[Float[np.ndarray, "setting class set example"], Int[np.ndarray, " example"]]:
        """log q(class|x) of a fold's rows by discriminants trained without some folds; the rows' classes."""
        train = [f for f in range(FOLDS) if f not in without]
        n = self._counts[train].sum(0)
        means = self._sums[train].sum(0) / n[:, None]
        within = self._squares[train].sum(0) - (means * n[:, None]).T @ means
        covariance = within[columns[:, :, None], columns[:, None, :]] / (n.sum() - self.classes)
        size, axes = np.linalg.eigh(covariance)
        centers = np.einsum("csd,sde->sec", means[:, columns], axes)
        rows = self.fold == fold
        places = np.einsum("nsd,sde->sne", self.x[rows][:, columns], axes, optimize=True)
        evidence = []
        for ridge in ridges:
            direction = centers / (np.maximum(size, 0.0) + ridge)[:, :, None]
            evidence.append(places @ direction - (centers * direction).sum(1)[:, None] / 2)
        # Classes before sets and examples: a sum over few neighbors in memory is slow.
        told = np.stack(evidence).transpose(0, 3, 1, 2)[:, None] * np.array(FACTORS)[:, None, None, None]
        told = np.log(n / n.sum())[:, None, None] + told.reshape(-1, *told.shape[2:])
        told -= told.max(1, keepdims=True)
        return told - np.log(np.exp(told).sum(1, keepdims=True)), self.y[rows]


def _chosen(
    rows: Float[np.ndarray, "example setting set"], bold: Bool[np.ndarray, " setting"]
) -> Int[np.ndarray, " set"]:
    """The best setting for each set of columns: a bold one only where it is clearly best, or few rows mislead."""
    means, sets = rows.mean(0), np.arange(rows.shape[2])
    timid = np.where(bold[:, None], -np.inf, means).argmax(0)
    daring = np.where(bold[:, None], means, -np.inf).argmax(0)
    gain = rows[:, daring, sets] - rows[:, timid, sets]
    return np.where(gain.mean(0) > 2 * gain.std(0) / np.sqrt(len(rows)), daring, timid)
