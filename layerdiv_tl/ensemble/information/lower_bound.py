"""A lower bound of I(U; Y) that sees interactions: cross-entropy of a mixture of classifiers on unseen rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax

from ...results import Result
from .estimator import Columns, Labels, entropy_of_labels, normal_quantile, standardize
from .variational import FOLDS, folds

if TYPE_CHECKING:
    import pandas as pd

# How far a class's own covariance replaces the common one: 0 is a linear discriminant, 1 a quadratic one.
OWN = (0.0, 0.3, 1.0)
RIDGE = 0.01
# A classifier's log-odds enter the mixture at each of these multiples.
FACTORS = (0.5, 1.0, 2.0)
# Boosting rounds, fewer where rows × columns × classes are many: `WORK` takes about three seconds of one core.
ROUNDS = (20, 60)
WORK = 6e7


@dataclass(frozen=True, eq=False)
class LowerBound(Result):
    """I(U; Y) ≥ H(Y) − cross-entropy on unseen rows, in bits (Barber and Agakov 2003), of a nonlinear classifier.

    The classifier is a mixture, in probability, of the classes' shares, of linear and quadratic discriminants and
    of boosted trees (scikit-learn's histogram gradient boosting), five-fold cross-fitted; the weights of a fold
    are the likeliest ones for the other folds' rows. It finds what depends on single members, pairs and linear
    rules; what it misses makes the bound lower, never wrong.

    bits, low, high
        The mean over rows, at least 0 since information is, with its normal interval, at most H(Y). `low` is a
        confidence limit of I(U; Y) too; `high` is not, for I may be larger.
    rows
        `[example]`: log2 q(y|u)/p(y) of each row by a classifier that has not seen it.
    weights
        Of the mixture's parts, means over folds.
    """

    bits: float
    low: float
    high: float
    rows: Float[np.ndarray, " example"]
    weights: dict[str, float]
    confidence_level: float

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
    powers = np.log(share) + evidence[:, None] * np.array(FACTORS)[:, None, None]
    posteriors = np.exp(log_softmax(powers, axis=-1)).reshape(-1, len(y), classes)
    parts = np.concatenate([share * np.ones((1, len(y), 1)), posteriors])
    of_label = parts[:, np.arange(len(y)), y]
    rows, fold_weights = np.empty(len(y)), np.empty((FOLDS, len(parts)))
    for f in range(FOLDS):
        fold_weights[f] = _mixture_weights(of_label[:, fold != f])
        rows[fold == f] = np.log2(fold_weights[f] @ of_label[:, fold == f] / share[y[fold == f]])
    mean, weights, most = float(rows.mean()), fold_weights.mean(0), entropy_of_labels(y)
    error = normal_quantile(confidence_level) * float(rows.std(ddof=1)) / np.sqrt(len(y))
    first_tree = len(weights) - len(FACTORS)
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
                root = np.linalg.cholesky(share * own[c] + (1 - share) * common + RIDGE * np.eye(x.shape[1]))
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
