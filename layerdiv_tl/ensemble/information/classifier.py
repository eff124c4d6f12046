"""A lower bound of I(U; Y): H(Y) − cross-entropy of classifiers on rows that they have not seen.

log2 q(y|u)/p(y) of every row, by a classifier q fitted without it: for any distribution of U its mean is a lower bound
of I(U; Y) in expectation, never above H(Y) (Barber and Agakov 2003).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import softmax

from .gaussian import Columns, Labels

FOLDS = 5
# Ridges added to a covariance of unit variances.
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# Factors on the classifier's log-odds: 0 predicts the class frequencies; a Gaussian rule is underconfident where
# classes do not overlap, so a member that determines the label needs the large ones.
FACTORS = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
# A classifier's prediction is mixed with the class frequencies as if these were so many of its training rows: otherwise
# a few rows of which it is sure and wrong decide the mean, and a seed that leaves them out.
SMOOTHING = 4
# Boosting rounds, fewer where rows × columns × classes are many: `WORK` takes about three seconds of one core.
ROUNDS = (20, 60)
WORK = 6e7


def bound_rows(x: Columns, y: Labels, seed: int) -> Float[np.ndarray, " example"]:
    """Return log2 q(y|u)/p(y) of each row by a linear discriminant or boosted trees, whichever finds more.

    The trees see pairs, sizes and signs of `x` `[example, column]`; classes `y` count from 0.
    """
    linear, nonlinear = linear_rows(x, y, seed), tree_rows(x, y, seed)
    return nonlinear if nonlinear.mean() > linear.mean() else linear


def folds(y: Labels, seed: int) -> Int[np.ndarray, " example"]:
    """Assign each row to a fold: classes are dealt evenly, in an order independent of that of the rows."""
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = np.arange(len(y)) % FOLDS
    return fold


def linear_rows(x: Columns, y: Labels, seed: int) -> Float[np.ndarray, " example"]:
    """Return the rows of a linear discriminant with a ridge, whose log-odds are multiplied by a factor of 0 to 16.

    Both are chosen on rows neither trained nor tested on.
    """
    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
    fold, bits = folds(y, seed), -np.log2(np.bincount(y) / len(y))[y]
    for f in range(FOLDS):
        # Ridge and factor are chosen on another fold, by classifiers that have seen neither fold.
        other = (f + 1) % FOLDS
        best = _best_setting(_log_posteriors(x, y, (fold != f) & (fold != other), fold == other))
        bits[fold == f] += _log_posteriors(x, y, fold != f, fold == f)[best] / np.log(2)
    return bits


def _log_posteriors(
    x: Columns, y: Labels, train: Bool[np.ndarray, " example"], test: Bool[np.ndarray, " example"]
) -> Float[np.ndarray, "setting example"]:
    """Return ln q(y|x) of the test rows for every ridge and factor, by discriminants of the training rows."""
    hot = np.eye(y.max() + 1)[y[train]]
    n = hot.sum(0)
    means = hot.T @ x[train] / n[:, None]
    within = x[train].T @ x[train] - (means * n[:, None]).T @ means
    # In the covariance's eigenbasis every ridge is a division.
    size, axes = np.linalg.eigh(within / (n.sum() - len(n)))
    centers, rows = means @ axes, x[test] @ axes
    evidence = []
    for ridge in RIDGES:
        direction = centers / (np.maximum(size, 0.0) + ridge)
        evidence.append(rows @ direction.T - (centers * direction).sum(1) / 2)
    frequencies = n / n.sum()
    log_odds = np.stack(evidence)[:, None] * FACTORS[:, None, None]
    q = smoothed(softmax(np.log(frequencies) + log_odds, axis=-1), frequencies, n.sum())
    of_label = q[..., np.arange(len(rows)), y[test]]
    return np.log(of_label.reshape(-1, len(rows)))


def smoothed(q: np.ndarray, frequencies: np.ndarray, rows: float) -> np.ndarray:
    """Mix a classifier's probabilities with the frequencies of the classes, by the number of rows it was trained on."""
    return (rows * q + SMOOTHING * frequencies) / (rows + SMOOTHING)


def _best_setting(rows: Float[np.ndarray, "setting example"]) -> int:
    """Choose the best setting; one with a factor above 1 only if clearly best, since few rows mislead."""
    is_bold = np.tile(FACTORS > 1, len(RIDGES))
    means = rows.mean(1)
    timid = int(np.where(is_bold, -np.inf, means).argmax())
    bold = int(np.where(is_bold, means, -np.inf).argmax())
    gain = rows[bold] - rows[timid]
    return bold if gain.mean() > 2 * gain.std() / np.sqrt(len(gain)) else timid


def tree_rows(x: Columns, y: Labels, seed: int) -> Float[np.ndarray, " example"]:
    """Return the rows of boosted trees, which see pairs, sizes and signs."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    share = np.bincount(y) / len(y)
    rounds = int(np.clip(WORK / (x.size * FOLDS * (len(share) if len(share) > 2 else 1)), *ROUNDS))
    settings: dict[str, Any] = {"max_iter": rounds, "learning_rate": min(0.3, 6 / rounds), "max_leaf_nodes": 8}
    trees = HistGradientBoostingClassifier(**settings, early_stopping=False, random_state=seed % 2**32)
    predicted = cross_val_predict(trees, x, y, cv=PredefinedSplit(folds(y, seed)), method="predict_proba")
    q = smoothed(predicted, share, len(y) * (1 - 1 / FOLDS))
    return np.log2(q[np.arange(len(y)), y] / share[y])
