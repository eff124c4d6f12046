"""Lower bounds of I(U; Y): H(Y) − cross-entropy of linear classifiers and boosted trees on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import softmax

from ..losses import hits
from .estimator import Columns, Curve, Estimator, Labels, Owner, Prefixes, Terms, entropy_of_labels, eq13

FOLDS = 5
# Ridges added to a covariance of unit variances; a member's own few dimensions need none.
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SMALL_RIDGE = (0.01,)
# Factors on the classifier's log-odds: 0 predicts the class frequencies; a Gaussian rule is underconfident where
# classes do not overlap, so a member that determines the label needs the large ones.
FACTORS = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
# A classifier's prediction is mixed with the class frequencies as if these were so many of its training rows: otherwise
# a few rows of which it is sure and wrong decide the mean, and a seed that leaves them out.
SMOOTHING = 4
# Boosting rounds, fewer where rows × columns × classes are many: `WORK` takes about three seconds of one core.
ROUNDS = (20, 60)
WORK = 6e7


def folds(y: Labels, seed: int) -> Int[np.ndarray, " example"]:
    """Assign each row to a fold: classes are dealt evenly, in an order independent of that of the rows."""
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = np.arange(len(y)) % FOLDS
    return fold


class Variational(Estimator):
    """I ≥ H(Y) − cross-entropy of a classifier on rows it has not seen (Barber and Agakov 2003).

    The classifier is a linear discriminant with a ridge, whose log-odds are multiplied by a factor of 0 to 16; both are
    chosen on rows neither trained nor tested on. Its probabilities are `smoothed`. For any distribution of U the
    estimate is a **lower bound** of I(U; Y) in expectation, never above H(Y). It is close to I where classes are
    Gaussian with one covariance, and misses synergy that no linear rule sees (XOR: 0). The relevancy sums the members'
    own lower bounds; the diversity, the difference of the two, is **no bound**. Total correlations are not available:
    NaN.

    Attributes:
        x, owner: `[example, column]`, any features made without labels; `[column]`, the member of each column.
        y: `[example]`, classes 0 … `classes` − 1, at least `FOLDS` rows of each.
    """

    def __init__(self, x: Columns, owner: Owner, y: Labels, classes: int, members: int, seed: int) -> None:
        spread = x.std(0)
        self.x, self.y, self.members = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0), y, members
        self.columns = [np.flatnonzero(owner == m) for m in range(members)]
        self.surprisal = -np.log2(np.bincount(y, minlength=classes) / len(y))[y]
        self.fold = folds(y, seed)
        hot = np.eye(classes)[y]
        # For each fold: rows and sums by class, and sums of products.
        inside = [self.fold == f for f in range(FOLDS)]
        self._counts = np.stack([hot[rows].sum(0) for rows in inside])
        self._sums = np.stack([hot[rows].T @ self.x[rows] for rows in inside])
        self._squares = np.stack([self.x[rows].T @ self.x[rows] for rows in inside])

    @cached_property
    def single_rows(self) -> Float[np.ndarray, "member example"]:
        """Each member's information about each row's label, in bits; the means are the relevancies."""
        rows = np.zeros((self.members, len(self.y)))
        sizes = np.array([len(c) for c in self.columns])
        for size in np.unique(sizes[sizes > 0]):
            members = np.flatnonzero(sizes == size)
            rows[members] = self._held_out(np.stack([self.columns[m] for m in members]), SMALL_RIDGE)[0]
        return rows

    @property
    def joint_rows(self) -> Float[np.ndarray, " example"]:
        """The information of all members together about each row's label, in bits."""
        return self._everyone[0][0]

    @property
    def right(self) -> Float[np.ndarray, " example"]:
        """Whether the classifier's first choice for each held-out row is its label; see `hits`."""
        return self._everyone[1][0]

    @cached_property
    def relevancies(self) -> Float[np.ndarray, " member"]:  # type: ignore[override]
        """Lower bounds of I(u_i; Y)."""
        return self.single_rows.mean(1)

    def rows(self) -> Terms:
        """Return every term's contribution from each row; the term is their mean."""
        return eq13(self.single_rows.sum(0), self.joint_rows, np.full(len(self.y), np.nan))

    def joint_and_conditional(self, order: list[int], prefixes: Prefixes) -> tuple[Curve, Curve]:
        """Fit a classifier for every prefix; the joint information is capped at H(Y) against rounding."""
        joint = np.array([self._joint(order[: place + 1]) for place in prefixes])
        return np.minimum(joint, entropy_of_labels(self.y)), np.full(len(joint), np.nan)

    def _joint(self, members: list[int]) -> float:
        if members == list(range(self.members)):
            return float(self.joint_rows.mean())
        columns = np.concatenate([self.columns[m] for m in members])
        return float(self._held_out(columns[None], RIDGES)[0].mean()) if len(columns) else 0.0

    @cached_property
    def _everyone(self) -> tuple[np.ndarray, np.ndarray]:
        return self._held_out(np.concatenate(self.columns)[None], RIDGES)

    def _held_out(
        self, columns: Int[np.ndarray, "set column"], ridges: Sequence[float]
    ) -> tuple[Float[np.ndarray, "set example"], Float[np.ndarray, "set example"]]:
        """Return log2 q(y|x)/p(y) of every row and whether q's first choice is right, for sets of equal size."""
        bits, right = np.empty((2, len(columns), len(self.y)))
        sets, is_bold = np.arange(len(columns)), np.tile(FACTORS > 1, len(ridges))
        for f in range(FOLDS):
            # Ridge and factor are chosen on another fold, by classifiers that have seen neither fold.
            other = (f + 1) % FOLDS
            validation, labels = self._posteriors([f, other], other, columns, ridges)
            best = _best_setting(validation[:, labels, :, np.arange(len(labels))], is_bold)
            posterior, labels = self._posteriors([f], f, columns, ridges)
            chosen = posterior[best, :, sets]
            rows = self.fold == f
            bits[:, rows] = chosen[:, labels, np.arange(len(labels))] / np.log(2) + self.surprisal[rows]
            right[:, rows] = hits(chosen.transpose(0, 2, 1), labels[None])
        return bits, right

    def _posteriors(
        self, without: list[int], fold: int, columns: Int[np.ndarray, "set column"], ridges: Sequence[float]
    ) -> tuple[Float[np.ndarray, "setting class set example"], Int[np.ndarray, " example"]]:
        """Return log q(class|x) of a fold's rows by discriminants trained without some folds; and the rows' classes."""
        train = [f for f in range(FOLDS) if f not in without]
        n = self._counts[train].sum(0)
        means = self._sums[train].sum(0) / n[:, None]
        within = self._squares[train].sum(0) - (means * n[:, None]).T @ means
        covariance = within[columns[:, :, None], columns[:, None, :]] / (n.sum() - len(n))
        # In the covariance's eigenbasis every ridge is a division.
        size, axes = np.linalg.eigh(covariance)
        centers = np.einsum("csd,sde->sec", means[:, columns], axes)
        rows = self.fold == fold
        x = np.einsum("nsd,sde->sne", self.x[rows][:, columns], axes, optimize=True)
        evidence = []
        for ridge in ridges:
            direction = centers / (np.maximum(size, 0.0) + ridge)[:, :, None]
            evidence.append(x @ direction - (centers * direction).sum(1)[:, None] / 2)
        # Classes before sets and examples: a sum over few neighbors in memory is slow.
        log_odds = np.stack(evidence).transpose(0, 3, 1, 2)[:, None] * FACTORS[:, None, None, None]
        frequencies = (n / n.sum())[:, None, None]
        log_odds = np.log(frequencies) + log_odds.reshape(-1, *log_odds.shape[2:])
        return np.log(smoothed(softmax(log_odds, axis=1), frequencies, n.sum())), self.y[rows]


def smoothed(q: np.ndarray, frequencies: np.ndarray, rows: float) -> np.ndarray:
    """Mix a classifier's probabilities with the frequencies of the classes, by the number of rows it was trained on."""
    return (rows * q + SMOOTHING * frequencies) / (rows + SMOOTHING)


def _best_setting(
    rows: Float[np.ndarray, "example setting set"], is_bold: Bool[np.ndarray, " setting"]
) -> Int[np.ndarray, " set"]:
    """Choose the best setting for each set of columns; a bold one only if clearly best, since few rows mislead."""
    means, sets = rows.mean(0), np.arange(rows.shape[2])
    timid = np.where(is_bold[:, None], -np.inf, means).argmax(0)
    bold = np.where(is_bold[:, None], means, -np.inf).argmax(0)
    gain = rows[:, bold, sets] - rows[:, timid, sets]
    return np.where(gain.mean(0) > 2 * gain.std(0) / np.sqrt(len(rows)), bold, timid)


def nonlinear_rows(x: Columns, y: Labels, classes: int, seed: int) -> Float[np.ndarray, " example"]:
    """Return log2 q(y|u)/p(y) of every row by boosted trees fitted without it, which see pairs, sizes and signs.

    The mean is a lower bound of I(U; Y) in expectation, for any features made without labels.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    rounds = int(np.clip(WORK / (x.size * FOLDS * (classes if classes > 2 else 1)), *ROUNDS))
    settings: dict[str, Any] = {"max_iter": rounds, "learning_rate": min(0.3, 6 / rounds), "max_leaf_nodes": 8}
    trees = HistGradientBoostingClassifier(**settings, early_stopping=False, random_state=seed % 2**32)
    found = cross_val_predict(trees, x, y, cv=PredefinedSplit(folds(y, seed)), method="predict_proba")
    share = np.bincount(y, minlength=classes) / len(y)
    q = smoothed(found, share, len(y) * (1 - 1 / FOLDS))
    return np.log2(q[np.arange(len(y)), y] / share[y])
