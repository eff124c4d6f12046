"""Where each equation of arXiv 2505.24009 is computed; Theorems 2 and 3, exactly and as printed, are here.

| in the paper                            | here                                                       |
|-----------------------------------------|------------------------------------------------------------|
| Theorem 1, Eq. 7-8: MSE = bias − diversity | `losses.SquaredError.terms`                             |
| Eq. 9-10: modules                       | `decomposition.Decomposition.by_module`                    |
| Theorem 2: limits of diversity          | `theorem_2`                                                |
| Theorem 3, Eq. 11: the trade-off's terms | `theorem_3`                                               |
| Eq. 12-13, Theorems 4-8: information    | `information/`                                             |
| Eq. 14: loss and bias of probabilities  | `losses.PaperForm.terms`                                   |
| Fig. 5, 7: prefix ensembles             | `decomposition.Decomposition.by_depth`                     |
| Fig. 6: diminishing returns             | `scaling.log_fit`                                          |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..components import Component
from .intervals import jackknife, leave_one_out
from .losses import Members, Target, Terms, group_numbers
from .tables import means, with_ends

if TYPE_CHECKING:
    import pandas as pd


def theorem_3(u: Members, t: Target, paper: bool = False) -> pd.DataFrame:
    """One row per summand: `term`, `formula`, its mean part of `bias` and of `diversity`.

    Ω = v̄ + mean_i (m_i − m̄)² is what the two share. `paper`: Eq. 11 as printed, with m_t for m̄ in Ω and
    without the target's own terms. The printed diversity is then too large by (m̄ − m_t)² for every target,
    the printed bias by as much only for a target that is constant over options.
    """
    import pandas as pd

    count = u.shape[1]
    member_means, target_mean = u.mean(2), t.mean(1)
    centered, target = u - member_means[:, :, None], t - target_mean[:, None]
    variance = (centered**2).mean(2).mean(1)
    mean = member_means.mean(1)
    # Σ_ij cov(u_i, u_j) = var(Σ u_i), so the pairs need no table.
    pairs = (centered.sum(1) ** 2).mean(1) - count * variance
    covariance = pairs / (count * (count - 1)) if count > 1 else np.zeros_like(pairs)
    zero = np.zeros_like(variance)
    spread = ((member_means - (target_mean if paper else mean)[:, None]) ** 2).mean(1)
    # (name, formula, in the bias, in the diversity), per example.
    rows = [
        ("error of the mean", "(m̄ − m_t)²", (mean - target_mean) ** 2, zero),
        ("variance over options (Ω)", "v̄", variance, variance),
        ("spread of the means (Ω)", f"mean_i (m_i − {'m_t' if paper else 'm̄'})²", spread, spread),
    ]
    if not paper:
        rows += [
            ("variance of the target", "var(t)", (target**2).mean(1), zero),
            ("agreement with the target", "−2 mean_i cov(u_i, t)", -2 * (centered.mean(1) * target).mean(1), zero),
        ]
    rows += [
        ("variance of the mean, own part", "−v̄/|L|", zero, -variance / count),
        ("variance of the mean, pairs", "−(1 − 1/|L|) c̄", zero, -(1 - 1 / count) * covariance),
    ]
    names, formulas, bias, diversity = zip(*rows, strict=True)
    columns = means({"bias": np.stack(bias, 1), "diversity": np.stack(diversity, 1)})
    return pd.DataFrame({"term": names, "formula": formulas} | columns)


def theorem_2(terms: Terms, components: Sequence[Component]) -> pd.DataFrame:
    """(√bias − √MSE)² ≤ diversity ≤ (√bias + √MSE)², columns `lowest`, `highest`: of the ensemble and of each module.

    The whole ensemble's diversity is also at most its bias.
    """
    import pandas as pd

    modules, group = group_numbers([c.module for c in components])
    sets = [np.ones(len(group), dtype=bool)] + [group == i for i in range(len(modules))]
    per_set: dict[str, Float[np.ndarray, "example set"]] = {
        name: np.stack([values[:, inside].mean(1) for inside in sets], 1)
        for name, values in (("bias", terms.biases), ("diversity", terms.diversities))
    }
    columns = means(per_set)
    # Both ends are functions of two means, so their intervals are the jackknife's. Rounding may leave less than
    # nothing where all examples but one are 0.
    root, loss = np.sqrt(columns["bias"]), np.sqrt(terms.losses.mean())
    roots, losses = (np.sqrt(leave_one_out(x).clip(0)) for x in (per_set["bias"], terms.losses[:, None]))
    for name, sign in (("lowest", -1), ("highest", 1)):
        bound, left_out = (root + sign * loss) ** 2, (roots + sign * losses) ** 2
        if name == "highest":
            bound[0], left_out[:, 0] = columns["bias"][0], roots[:, 0] ** 2
        columns |= with_ends(name, bound, *jackknife(bound, left_out, within=(0.0, np.inf)))
    return pd.DataFrame({"module": ["all", *modules], "members": [int(inside.sum()) for inside in sets]} | columns)
