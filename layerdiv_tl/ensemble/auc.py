"""The area under the ROC curve (AUC) of each member: how well its logits tell examples with different labels apart.

A member's accuracy alone includes its constant part: one that always writes the same option is right as often as
guessing, even if it writes it more strongly where it is right. The AUC does not change when a constant is added.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri
from scipy.stats import rankdata

from .intervals import LEAST, LEVEL, Ends, Estimate
from .losses import Members


def member_auc(u: Members, gold: Int[np.ndarray, " example"]) -> Estimate:
    """Estimate each member's AUC, averaged over options that are gold in some examples and not in others.

    For one option it is the probability that the member's logit of the option, centered over the options, is larger in
    an example where the option is gold than in one where it is not (ties count one half): 0.5 for a member that does
    not depend on the label, NaN where every example has the same label. The interval is Newcombe's (2006, *Confidence
    intervals for an effect size measure based on the Mann-Whitney statistic*, method 5), which is not empty at 1, with
    DeLong's variance of the mean over options. There is none with fewer than 8 examples on either side of an option:
    DeLong's variance of few is far too small. Of 95 % intervals of pure noise 3 to 7 % exclude 0.5 with 8 examples, 5
    to 10 % with 5, and 48 to 85 % with one.

    Args:
        u: `[example, member, option]`.
        gold: The index of each example's gold option.
    """
    centered = u - u.mean(2, keepdims=True)
    areas, influence, sizes = [], np.zeros(u.shape[:2]), []
    for option in range(u.shape[2]):
        is_gold = (gold == option)[:, None]
        n_gold, n_other = int(is_gold.sum()), int((~is_gold).sum())
        if n_gold and n_other:
            x = centered[:, :, option]
            within = np.where(is_gold, _ranks(x, is_gold), _ranks(x, ~is_gold))
            below = rankdata(x, axis=0) - within  # the number of examples of the other side below this one
            placement = np.where(is_gold, below / n_other, 1 - below / n_gold)
            area = placement.mean(0, where=is_gold)
            size = np.where(is_gold, n_gold, n_other)
            influence += (placement - area) / np.sqrt(size * np.maximum(size - 1, 1))
            areas.append(area)
            sizes.append((n_gold, n_other))
    if not areas:
        none = np.full(u.shape[1], np.nan)
        return Estimate(none, none, none, len(u))
    area, variance = np.mean(areas, 0), (influence**2).sum(0) / len(areas) ** 2
    ends = _newcombe(area, variance, np.mean(sizes, 0), u.shape[2])
    low, high = (np.where(np.min(sizes) >= LEAST, end, np.nan) for end in ends)
    return Estimate(area, low, high, len(u))


def _ranks(x: Float[np.ndarray, "example member"], side: np.ndarray) -> Float[np.ndarray, "example member"]:
    """Rank the examples of one side among themselves; other examples come last."""
    return rankdata(np.where(side, x, np.inf), axis=0)


def _newcombe(area: Float[np.ndarray, " member"], variance: np.ndarray, sizes: np.ndarray, options: int) -> Ends:
    """Return the areas θ that the observed ones do not reject: |θ − area| ≤ z √V(θ)."""
    z, (n_gold, n_other) = ndtri(0.5 + LEVEL / 2), sizes

    def of_one_option(theta: np.ndarray) -> np.ndarray:
        """Hanley and McNeil's variance of the AUC of one option."""
        pairs = (n_gold + n_other) / 2 - 1
        share = 1 + pairs * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return np.asarray(theta * (1 - theta) * share / (n_gold * n_other))

    # The areas of several options vary less in the mean, by at most the K − 1 dimensions that centered logits have.
    usual = of_one_option(area)
    ratio = np.divide(variance, usual, out=np.zeros_like(usual), where=usual > 0)
    ratio = np.maximum(ratio, 1 / (options - 1))

    def end(edge: float) -> np.ndarray:
        """Bisect between the observed area and the end of the scale."""
        inside, outside = area, np.full_like(area, edge)
        for _ in range(50):
            theta = (inside + outside) / 2
            is_inside = np.abs(theta - area) <= z * np.sqrt(ratio * of_one_option(theta))
            inside, outside = np.where(is_inside, theta, inside), np.where(is_inside, outside, theta)
        return np.asarray(inside)

    return end(0.0), end(1.0)
