"""A lower bound of I(U; Y) that sees interactions: what a mixture of classifiers knows about unseen labels."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from ...results import Result
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
    are the likeliest ones for the other folds' rows. It finds what single members, pairs and linear rules tell;
    what is left unseen makes the bound lower, never wrong.

    bits, low, high
        The mean over rows, at least 0 since information is, with the normal interval of what this classifier
        knows, at most H(Y). `low` is a confidence limit of I(U; Y) too; `high` is none, for I may be larger.
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


def lower_bound(
    x: Float[np.ndarray, "example column"],
    y: Int[np.ndarray, " example"],
    classes: int,
    seed: int,
    confidence_level: float,
) -> LowerBound:
    """Of any features made without labels; classes 0 … `classes` − 1, at least `FOLDS` rows of each."""
    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
    fold, share = folds(y, seed), np.bincount(y, minlength=classes) / len(y)
    evidence = np.empty((len(OWN) + 1, len(y), classes))
    for f in range(FOLDS):
        seen, new = fold != f, fold == f
        evidence[:-1, new] = _discriminants(x[seen], y[seen], x[new], classes)
        evidence[-1, new] = _trees(x[seen], y[seen], x[new], classes, seed) - np.log(share)
    powers = np.log(share) + evidence[:, None] * np.array(FACTORS)[:, None, None]
    parts = np.concatenate([share * np.ones((1, len(y), 1)), np.exp(_normalized(powers)).reshape(-1, len(y), classes)])
    right = parts[:, np.arange(len(y)), y]
    rows, weights = np.empty(len(y)), np.empty((FOLDS, len(parts)))
    for f in range(FOLDS):
        weights[f] = _likeliest(right[:, fold != f])
        rows[fold == f] = np.log2(weights[f] @ right[:, fold == f] / share[y[fold == f]])
    mean, weight, most = float(rows.mean()), weights.mean(0), float(-(share * np.log2(share)).sum())
    half = NormalDist().inv_cdf(0.5 + confidence_level / 2) * float(rows.std(ddof=1)) / np.sqrt(len(y))
    kinds = ("shares", 1), ("discriminants", len(OWN) * len(FACTORS)), ("trees", len(FACTORS))
    ends = np.cumsum([count for _, count in kinds])
    return LowerBound(
        bits=min(max(0.0, mean), most),
        low=max(0.0, mean - half),
        high=min(max(0.0, mean + half), most),
        rows=rows,
        weights={name: float(weight[end - count : end].sum()) for (name, count), end in zip(kinds, ends, strict=True)},
        confidence_level=confidence_level,
    )


def _discriminants(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, classes: int
) -> Float[np.ndarray, "own example class"]:
    """log p(u|class), up to a constant, of Gaussian classes whose covariances are shrunk to their mean."""
    means = np.stack([x[y == c].mean(0) for c in range(classes)])
    rest = [x[y == c] - means[c] for c in range(classes)]
    own = np.stack([r.T @ r / max(len(r) - 1, 1) for r in rest])
    common = sum(r.T @ r for r in rest) / (len(x) - classes)
    found = np.empty((len(OWN), len(new), classes))
    for i, share in enumerate(OWN):
        for c in range(classes):
            if share or not c:
                root = np.linalg.cholesky(share * own[c] + (1 - share) * common + RIDGE * np.eye(x.shape[1]))
            away = np.linalg.solve(root, (new - means[c]).T)
            found[i, :, c] = -np.square(away).sum(0) / 2 - np.log(np.diagonal(root)).sum()
    return found


def _trees(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, classes: int, seed: int
) -> Float[np.ndarray, "example class"]:
    """log q(class|u) by boosted trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    work = x.size * FOLDS * (classes if classes > 2 else 1)
    rounds = int(np.clip(WORK / work, *ROUNDS))
    model = HistGradientBoostingClassifier(
        max_iter=rounds,
        learning_rate=min(0.3, 6 / rounds),
        max_leaf_nodes=8,
        early_stopping=False,
        random_state=seed % 2**32,
    )
    return np.log(np.maximum(model.fit(x, y).predict_proba(new), 1e-12))


def _normalized(log: np.ndarray) -> np.ndarray:
    log = log - log.max(-1, keepdims=True)
    return log - np.log(np.exp(log).sum(-1, keepdims=True))


def _likeliest(right: Float[np.ndarray, "part example"], steps: int = 100) -> Float[np.ndarray, " part"]:
    """Weights of a mixture by expectation-maximization: the likelihood has one maximum."""
    weight = np.full(len(right), 1 / len(right))
    for _ in range(steps):
        part = weight[:, None] * right
        weight = (part / part.sum(0)).mean(1)
    return weight
