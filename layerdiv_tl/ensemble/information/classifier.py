"""A lower bound of I(U; Y) under any law: H(Y) − cross-entropy of classifiers on rows that they have not seen."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from .law import BITS, Columns, Labels

FOLDS = 5


def classifier_bound(x: Columns, y: Labels, seed: int) -> tuple[float, float]:
    """Return the bound in bits and its standard error (Barber and Agakov 2003).

    The better of a linear discriminant and boosted trees, which see signs, sizes and pairs. Their log-odds are
    multiplied by one factor, chosen on all rows; 0 predicts the classes' shares, so the bound is never below 0.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    n, share, best = len(y), np.bincount(y) / len(y), (0.0, 0.0)
    trees = {"max_iter": 40, "learning_rate": 0.15, "max_leaf_nodes": 8, "early_stopping": False}
    for model in (
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        HistGradientBoostingClassifier(**trees, random_state=seed),
    ):
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        q = cross_val_predict(model, x, y, cv=folds, method="predict_proba")
        # As if one more row had been seen of which nothing is known: a classifier that is sure and wrong costs no more.
        rows = _best_rows(np.log((n * q + share) / (n + 1) / share), np.log(share), y)
        best = max(best, (float(rows.mean()), float(rows.std(ddof=1) / np.sqrt(n))))
    return best


def _best_rows(
    log_odds: Float[np.ndarray, "example class"], log_share: Float[np.ndarray, " class"], y: Labels
) -> Float[np.ndarray, " example"]:
    """Return log2 q(y|u)/p(y) of each row, with the factor on the log-odds that makes the mean largest."""

    def rows(factor: float) -> np.ndarray:
        scaled = factor * log_odds
        total = np.logaddexp.reduce(log_share + scaled, 1)
        return (scaled[np.arange(len(y)), y] - total) / BITS

    found = minimize_scalar(lambda factor: -rows(factor).mean(), bounds=(0, 4), method="bounded")
    return rows(found.x)
