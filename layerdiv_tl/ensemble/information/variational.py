"""Lower bounds of I(U; Y): H(Y) − cross-entropy of classifiers on unseen rows, linear ones and a nonlinear mixture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import log_softmax

from ...results import Result
from ..hits import hits
from .estimator import TERMS, Columns, Estimator, Labels, Owner, Terms, entropy_of_labels, normal_quantile, standardize

if TYPE_CHECKING:
    import pandas as pd

FOLDS = 5
# Ridges added to a covariance of unit variances; a member's own few dimensions need none.
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SMALL_RIDGE = (0.01,)
# Multiples of the classifier's log-odds: 0 predicts the classes' shares; a Gaussian rule is too timid where classes do
# not overlap, so that a member that determines the label needs the large ones.
FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# How far a class's own covariance replaces the common one: 0 is a linear discriminant, 1 a quadratic one.
OWN = (0.0, 0.3, 1.0)
OWN_RIDGE = 0.01
# A classifier's log-odds enter the mixture at each of these multiples.
MULTIPLES = (0.5, 1.0, 2.0)
# Boosting rounds, fewer where rows × columns × classes are many: `WORK` takes about three seconds of one core.
ROUNDS = (20, 60)
WORK = 6e7


def folds(y: Labels, seed: int) -> Int[np.ndarray, " example"]:
    """The fold of each row: classes are dealt evenly, in an order that owes nothing to that of the rows."""
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = np.arange(len(y)) % FOLDS
    return fold


class Variational(Estimator):
    """I ≥ H(Y) − cross-entropy of a classifier on rows it has not seen (Barber and Agakov 2003).

    The classifier is a linear discriminant with a ridge, whose log-odds are multiplied by a factor of 0 to 16; both are
    chosen on rows that are neither trained nor tested on. Whatever the law of U, the estimate is a **lower bound** of
    I(U; Y) in expectation, never above H(Y); it is near I where classes are Gaussian with one covariance, and blind to
    synergy that no linear rule sees (XOR: 0). The relevancy is the sum of the members' own lower bounds, the diversity
    the difference of the two, so **no bound**; total correlations cannot be had this way and are NaN.

    Attributes:
        x, owner: `[example, column]`, any features made without labels; `[column]`, the member of each.
        y: `[example]`, classes 0 … `classes` − 1, at least `FOLDS` rows of each.
    """

    def __init__(self, x: Columns, owner: Owner, y: Labels, classes: int, members: int, seed: int) -> None:
        self.x, self.y, self.classes, self.members = standardize(x), y, classes, members
        self.columns = [np.flatnonzero(owner == m) for m in range(members)]
        self.surprise = -np.log2(np.bincount(y, minlength=classes) / len(y))[y]
        self.fold = folds(y, seed)
        hot = np.eye(classes)[y]
        # Of each fold: rows and sums by class, and sums of products.
        parts = [self.fold == f for f in range(FOLDS)]
        self._counts = np.stack([hot[part].sum(0) for part in parts])
        self._sums = np.stack([hot[part].T @ self.x[part] for part in parts])
        self._squares = np.stack([self.x[part].T @ self.x[part] for part in parts])

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
        """Whether the classifier's first choice for each row, which it has not seen, is its label; see `hits`."""
        return self._everyone[1][0]

    @cached_property
    def relevancies(self) -> Float[np.ndarray, " member"]:  # type: ignore[override]
        """Lower bounds of I(u_i; Y)."""
        return self.single_rows.mean(1)

    def rows(self) -> dict[str, Float[np.ndarray, " example"]]:
        """Every term's share in each row: its mean is the term."""
        return self._terms(self.single_rows.sum(0), self.joint_rows)

    def totals(self) -> dict[str, float]:
        """Means over rows; rounding takes the joint information not above H(Y)."""
        means = {term: float(values.mean()) for term, values in self.rows().items()}
        return means | {"joint": min(means["joint"], entropy_of_labels(self.y))}

    def chain(self, order: Sequence[int]) -> Terms:
        """A classifier for every prefix."""
        order = list(order)
        return self._terms(np.cumsum(self.relevancies[order]), self.joint(order[: k + 1] for k in range(len(order))))

    def joint(self, sets: Iterable[Sequence[int]]) -> Float[np.ndarray, " set"]:
        """A classifier for every set."""
        values = []
        for members in sets:
            columns = np.concatenate([np.zeros(0, dtype=np.int64), *(self.columns[m] for m in members)])
            values.append(float(self._held_out(columns[None], RIDGES)[0].mean()) if len(columns) else 0.0)
        return np.array(values)

    def _terms(self, relevancy: np.ndarray, joint: np.ndarray) -> Terms:
        unknown = np.full(len(joint), np.nan)
        return dict(zip(TERMS, (relevancy, unknown, unknown, joint, joint - relevancy), strict=True))

    @cached_property
    def _everyone(self) -> tuple[np.ndarray, np.ndarray]:
        return self._held_out(np.concatenate(self.columns)[None], RIDGES)

    def _held_out(
        self, columns: Int[np.ndarray, "set column"], ridges: Sequence[float]
    ) -> tuple[Float[np.ndarray, "set example"], Float[np.ndarray, "set example"]]:
        """log2 q(y|x)/p(y) of every row, and whether q's first choice is right, for sets of columns of one size."""
        bits, right = np.empty((2, len(columns), len(self.y)))
        for f in range(FOLDS):
            # Ridge and factor are chosen on another fold, by classifiers that have seen neither.
            other = (f + 1) % FOLDS
            validation, labels = self._posteriors([f, other], other, columns, ridges)
            is_bold = np.tile(np.array(FACTORS) > 1, len(ridges))
            best = _best_setting(validation[:, labels, :, np.arange(len(labels))], is_bold)
            posterior, labels = self._posteriors([f], f, columns, ridges)
            chosen = posterior[best, :, np.arange(len(columns))]
            rows = self.fold == f
            bits[:, rows] = chosen[:, labels, np.arange(len(labels))] / np.log(2) + self.surprise[rows]
            right[:, rows] = hits(chosen.transpose(0, 2, 1), labels[None])
        return bits, right

    def _posteriors(
        self, without: list[int], fold: int, columns: Int[np.ndarray, "set column"], ridges: Sequence[float]
    ) -> tuple[Float[np.ndarray, "setting class set example"], Int[np.ndarray, " example"]]:
        """log q(class|x) of a fold's rows by discriminants trained without some folds; the rows' classes."""
        train = [f for f in range(FOLDS) if f not in without]
        n = self._counts[train].sum(0)
        means = self._sums[train].sum(0) / n[:, None]
        within = self._squares[train].sum(0) - (means * n[:, None]).T @ means
        covariance = within[columns[:, :, None], columns[:, None, :]] / (n.sum() - self.classes)
        # In the covariance's axes every ridge is a division.
        size, axes = np.linalg.eigh(covariance)
        centers = np.einsum("csd,sde->sec", means[:, columns], axes)
        rows = self.fold == fold
        x = np.einsum("nsd,sde->sne", self.x[rows][:, columns], axes, optimize=True)
        evidence = []
        for ridge in ridges:
            direction = centers / (np.maximum(size, 0.0) + ridge)[:, :, None]
            evidence.append(x @ direction - (centers * direction).sum(1)[:, None] / 2)
        # Classes before sets and examples: a sum over few neighbors in memory is slow.
        log_odds = np.stack(evidence).transpose(0, 3, 1, 2)[:, None] * np.array(FACTORS)[:, None, None, None]
        log_odds = np.log(n / n.sum())[:, None, None] + log_odds.reshape(-1, *log_odds.shape[2:])
        return log_softmax(log_odds, axis=1), self.y[rows]


def _best_setting(
    rows: Float[np.ndarray, "example setting set"], is_bold: Bool[np.ndarray, " setting"]
) -> Int[np.ndarray, " set"]:
    """The best setting for each set of columns: a bold one only where it is clearly best, or few rows mislead."""
    means, sets = rows.mean(0), np.arange(rows.shape[2])
    timid = np.where(is_bold[:, None], -np.inf, means).argmax(0)
    bold = np.where(is_bold[:, None], means, -np.inf).argmax(0)
    gain = rows[:, bold, sets] - rows[:, timid, sets]
    return np.where(gain.mean(0) > 2 * gain.std(0) / np.sqrt(len(rows)), bold, timid)


@dataclass(frozen=True, eq=False, repr=False)
class LowerBound(Result):
    """I(U; Y) ≥ H(Y) − cross-entropy on unseen rows, in bits (Barber and Agakov 2003), of a nonlinear classifier.

    The classifier is a mixture, in probability, of the classes' shares, of linear and quadratic discriminants and
    of boosted trees (scikit-learn's histogram gradient boosting), five-fold cross-fitted; the weights of a fold
    are the likeliest ones for the other folds' rows. It finds what depends on single members, pairs and linear
    rules; what it misses makes the bound lower, never wrong.

    Attributes:
        bits, low, high: The mean over rows, at least 0 since information is, with its normal interval, at most H(Y).
            `low` is a confidence limit of I(U; Y) too; `high` is not, for I may be larger.
        rows: `[example]`: log2 q(y|u)/p(y) of each row by a classifier that has not seen it.
        weights: Of the mixture's parts, means over folds.
    """

    bits: float
    low: float
    high: float
    rows: Float[np.ndarray, " example"]
    weights: dict[str, float]
    confidence_level: float

    def __repr__(self) -> str:
        ends = f"{self.confidence_level:.0%} interval [{self.low:.3g}, {self.high:.3g}]"
        return f"LowerBound(I(U; Y) ≥ {self.bits:.3g} bits, {ends}, from {len(self.rows)} rows)"

    def frame(self) -> pd.DataFrame:
        """One row: `bits`, `low`, `high`, and the weights of `shares`, `discriminants` and `trees`."""
        import pandas as pd

        frame = pd.DataFrame([{"bits": self.bits, "low": self.low, "high": self.high} | self.weights])
        frame.attrs["units"] = dict.fromkeys(("bits", "low", "high"), "bits")
        return frame


def lower_bound(x: Columns, y: Labels, classes: int, seed: int, confidence_level: float) -> LowerBound:
    """The bound from any features made without labels; classes 0 … `classes` − 1, at least `FOLDS` rows of each."""
    x, fold, share = standardize(x), folds(y, seed), np.bincount(y, minlength=classes) / len(y)
    # log q(y|u)/p(y) of every row by classifiers that have not seen it, [classifier, example, class].
    evidence = np.empty((len(OWN) + 1, len(y), classes))
    for f in range(FOLDS):
        seen, unseen = fold != f, fold == f
        evidence[:-1, unseen] = _discriminants(x[seen], y[seen], x[unseen], classes)
        evidence[-1, unseen] = _trees(x[seen], y[seen], x[unseen], classes, seed) - np.log(share)
    powers = np.log(share) + evidence[:, None] * np.array(MULTIPLES)[:, None, None]
    posteriors = np.exp(log_softmax(powers, axis=-1)).reshape(-1, len(y), classes)
    parts = np.concatenate([share * np.ones((1, len(y), 1)), posteriors])
    of_label = parts[:, np.arange(len(y)), y]
    rows, fold_weights = np.empty(len(y)), np.empty((FOLDS, len(parts)))
    for f in range(FOLDS):
        fold_weights[f] = _mixture_weights(of_label[:, fold != f])
        rows[fold == f] = np.log2(fold_weights[f] @ of_label[:, fold == f] / share[y[fold == f]])
    mean, weights, most = float(rows.mean()), fold_weights.mean(0), entropy_of_labels(y)
    error = float(normal_quantile(confidence_level) * rows.std(ddof=1) / np.sqrt(len(y)))
    first_tree = len(weights) - len(MULTIPLES)
    return LowerBound(
        bits=min(max(0.0, mean), most),
        low=max(0.0, mean - error),
        high=min(max(0.0, mean + error), most),
        rows=rows,
        weights={
            "shares": float(weights[0]),
            "discriminants": float(weights[1:first_tree].sum()),
            "trees": float(weights[first_tree:].sum()),
        },
        confidence_level=confidence_level,
    )


def _discriminants(x: Columns, y: Labels, unseen: Columns, classes: int) -> Float[np.ndarray, "own example class"]:
    """log p(u|class), up to a constant, of Gaussian classes whose covariances are shrunk to their mean."""
    means = np.stack([x[y == c].mean(0) for c in range(classes)])
    deviations = [x[y == c] - means[c] for c in range(classes)]
    own = [d.T @ d / max(len(d) - 1, 1) for d in deviations]
    common = sum(d.T @ d for d in deviations) / (len(x) - classes)
    evidence = np.empty((len(OWN), len(unseen), classes))
    for i, share in enumerate(OWN):
        for c in range(classes):
            if share or not c:  # all classes have one root of the common covariance
                root = np.linalg.cholesky(share * own[c] + (1 - share) * common + OWN_RIDGE * np.eye(x.shape[1]))
            white = np.linalg.solve(root, (unseen - means[c]).T)
            evidence[i, :, c] = -np.square(white).sum(0) / 2 - np.log(np.diagonal(root)).sum()
    return evidence


def _trees(x: Columns, y: Labels, unseen: Columns, classes: int, seed: int) -> Float[np.ndarray, "example class"]:
    """log q(class|u) by boosted trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    work = x.size * FOLDS * (classes if classes > 2 else 1)
    rounds = int(np.clip(WORK / work, *ROUNDS))
    settings = {"max_iter": rounds, "learning_rate": min(0.3, 6 / rounds), "max_leaf_nodes": 8}
    model = HistGradientBoostingClassifier(**settings, early_stopping=False, random_state=seed % 2**32)
    return np.log(np.maximum(model.fit(x, y).predict_proba(unseen), 1e-12))


def _mixture_weights(of_label: Float[np.ndarray, "part example"], steps: int = 100) -> Float[np.ndarray, " part"]:
    """The likeliest weights of a mixture by expectation-maximization: the likelihood has one maximum."""
    weights = np.full(len(of_label), 1 / len(of_label))
    for _ in range(steps):
        posterior = weights[:, None] * of_label
        weights = (posterior / posterior.sum(0)).mean(1)
    return weights
