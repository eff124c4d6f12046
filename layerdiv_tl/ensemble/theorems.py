"""Locations of the equations of arXiv 2505.24009 in the code; Theorems 2 and 3, exact.

| in the paper                            | here                                                       |
|-----------------------------------------|------------------------------------------------------------|
| Theorem 1, Eq. 7-8: MSE = bias − diversity | `losses.SquaredError.terms`                             |
| Eq. 9-10: modules                       | `decomposition.Decomposition.by_module`                    |
| Theorem 2: limits of diversity          | `theorem_2`                                                |
| Theorem 3, Eq. 11: the trade-off's terms | `theorem_3`                                               |
| Eq. 13, Theorem 4: information          | `information.information`                                  |
| Eq. 12: bounds of the error             | `information.Information.error_bounds`                     |
| Theorems 5-8, Fig. 2: members added one by one | `information.Information.along`                     |
| Eq. 14: loss and bias of probabilities  | `losses.PaperForm.terms`                                   |
| Fig. 5, 7: prefix ensembles             | `decomposition.Decomposition.by_depth`                     |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ..components import Component
from .intervals import estimate, estimate_function, estimates_frame
from .losses import Members, Target, Terms, group_numbers


def theorem_3(u: Members, t: Target) -> pd.DataFrame:
    """One row per summand: `term`, `formula`, its mean part of `bias` and of `diversity`.

    Ω = v̄ + mean_i (m_i − m̄)² is shared by both. Eq. 11 as printed has m_t for m̄ in Ω and lacks the target's own terms,
    so that its diversity is too large by (m̄ − m_t)².
    """
    count = u.shape[1]
    member_means, target_mean = u.mean(2), t.mean(1)
    centered, target = u - member_means[:, :, None], t - target_mean[:, None]
    variance = (centered**2).mean(2).mean(1)
    mean = member_means.mean(1)
    # Σ_ij cov(u_i, u_j) = var(Σ u_i), so the pairs need no table.
    pairs = (centered.sum(1) ** 2).mean(1) - count * variance
    covariance = pairs / (count * (count - 1)) if count > 1 else np.zeros_like(pairs)
    zero = np.zeros_like(variance)
    spread = ((member_means - mean[:, None]) ** 2).mean(1)
    agreement = -2 * (centered.mean(1) * target).mean(1)
    # (name, formula, in the bias, in the diversity), per example.
    rows = [
        ("error of the mean", "(m̄ − m_t)²", (mean - target_mean) ** 2, zero),
        ("variance over options (Ω)", "v̄", variance, variance),
        ("spread of the means (Ω)", "mean_i (m_i − m̄)²", spread, spread),
        ("variance of the target", "var(t)", (target**2).mean(1), zero),
        ("agreement with the target", "−2 mean_i cov(u_i, t)", agreement, zero),
        ("variance of the mean, one member", "−v̄/|L|", zero, -variance / count),
        ("variance of the mean, pairs", "−(1 − 1/|L|) c̄", zero, -(1 - 1 / count) * covariance),
    ]
    names, formulas, bias, diversity = zip(*rows, strict=True)
    means = {name: estimate(np.stack(x, 1)) for name, x in (("bias", bias), ("diversity", diversity))}
    return estimates_frame({"term": names, "formula": formulas} | means)


def theorem_2(terms: Terms, components: Sequence[Component]) -> pd.DataFrame:
    """(√bias − √MSE)² ≤ diversity ≤ (√bias + √MSE)², columns `lowest`, `highest`, for the ensemble and each module.

    The whole ensemble's diversity is also at most its bias.
    """
    modules, group = group_numbers([c.module for c in components])
    is_in = np.column_stack([np.ones(len(group)), np.eye(len(modules))[group]])
    bias, diversity = (terms[name] @ is_in / is_in.sum(0) for name in ("bias", "diversity"))
    is_ensemble = np.arange(is_in.shape[1]) == 0

    def limit(sign: int, bias: np.ndarray, loss: np.ndarray) -> np.ndarray:
        # Rounding may leave a negative number where all examples but one are 0.
        return (np.sqrt(bias.clip(0)) + sign * np.sqrt(loss.clip(0))) ** 2

    def highest(bias: np.ndarray, loss: np.ndarray) -> np.ndarray:
        return np.where(is_ensemble, bias, limit(1, bias, loss))

    columns: dict[str, Any] = {"module": ["all", *modules], "members": is_in.sum(0).astype(int)}
    columns |= {"bias": estimate(bias), "diversity": estimate(diversity)}
    for name, bound in (("lowest", partial(limit, -1)), ("highest", highest)):
        columns[name] = estimate_function(bound, bias, terms["loss"][:, None], within=(0.0, np.inf))
    return estimates_frame(columns)
