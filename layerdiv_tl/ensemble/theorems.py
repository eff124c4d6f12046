"""How the terms of Theorem 1 hang together: Theorems 2 and 3, the nested cut, pairs (MATHS 5, 6, 8).

u : [example, member, option] in logits        t : [example, option] in logits
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

from .losses import Members, Target, mean_square

PerExample = Float[np.ndarray, " example"]


def theorem_3(u: Members, t: Target, paper: bool = False) -> list[tuple[str, str, PerExample, PerExample]]:
    """The summands of bias and of diversity: (name, formula, in the bias, in the diversity), per example.

    Ω = v̄ + mean_i (m_i − m̄)² is what the two share. `paper`: as printed, with m_t for m̄ in Ω and
    without the target's own terms. The printed diversity is then too large by (m̄ − m_t)² for every target,
    the printed bias by as much only for a target that is constant over options.
    """
    count = u.shape[1]
    means, target_mean = u.mean(2), t.mean(1)
    centered, target = u - means[:, :, None], t - target_mean[:, None]
    variance = (centered**2).mean(2).mean(1)
    mean = means.mean(1)
    # Σ_ij cov(u_i, u_j) = var(Σ u_i), so the pairs need no table.
    pairs = (centered.sum(1) ** 2).mean(1) - count * variance
    covariance = pairs / (count * (count - 1)) if count > 1 else np.zeros_like(pairs)
    none = np.zeros_like(variance)
    around = target_mean if paper else mean
    spread = ((means - around[:, None]) ** 2).mean(1)
    rows = [
        ("error of the mean", "(m̄ − m_t)²", (mean - target_mean) ** 2, none),
        ("variance over options (Ω)", "v̄", variance, variance),
        ("spread of the means (Ω)", f"mean_i (m_i − {'m_t' if paper else 'm̄'})²", spread, spread),
    ]
    if not paper:
        rows += [
            ("variance of the target", "var(t)", (target**2).mean(1), none),
            ("agreement with the target", "−2 mean_i cov(u_i, t)", -2 * (centered.mean(1) * target).mean(1), none),
        ]
    return [
        *rows,
        ("variance of the mean, own part", "−v̄/|L|", none, -variance / count),
        ("variance of the mean, pairs", "−(1 − 1/|L|) c̄", none, -(1 - 1 / count) * covariance),
    ]


def nested_squared(u: Members, t: Target, group: Int[np.ndarray, " member"]) -> tuple[np.ndarray, ...]:
    """(losses `[example]`; bias, within, between `[example, group]`): loss = mean_g (bias − within − between)_g.

    The leaves of a group sum to its member a_g of the coarser ensemble, whose loss this is: n_g u_h is what
    leaf h alone says of a_g. `between` is the distance of a_g from the coarser mean, so its mean is the
    coarser diversity.
    """
    sums, counts = _groups(u, group)
    mean = sums.mean(1, keepdims=True)
    between = ((sums - mean) ** 2).mean(2)
    leaves = counts[group][:, None] * u
    bias = _mean_by_group(((t[:, None] - leaves) ** 2).mean(2), group, counts)
    within = _mean_by_group(((sums[:, group] - leaves) ** 2).mean(2), group, counts)
    return ((t - mean[:, 0]) ** 2).mean(1), bias, within, between


def nested_cross_entropy(u: Members, t: Target, group: Int[np.ndarray, " member"]) -> tuple[np.ndarray, ...]:
    """The same in nats, for the distributions q_h = softmax(L n_g u_h), q_g = softmax(L a_g), p = softmax(Σu)."""
    sums, counts = _groups(u, group)
    coarse = len(counts)
    log_p = log_softmax(coarse * sums.mean(1), 1)[:, None]
    log_group = log_softmax(coarse * sums, 2)
    log_leaf = log_softmax(coarse * counts[group][:, None] * u, 2)
    bias = _mean_by_group(-(t[:, None] * log_leaf).sum(2), group, counts)
    own = log_group[:, group]
    within = _mean_by_group((np.exp(own) * (own - log_leaf)).sum(2), group, counts)
    between = (np.exp(log_p) * (log_p - log_group)).sum(2)
    return -(t * log_p[:, 0]).sum(1), bias, within, between


def plain_split(u: Members, group: Int[np.ndarray, " member"]) -> tuple[np.ndarray, ...]:
    """(within, between), each `[example, group]`: diversity = Σ_g (n_g/N)(within_g + between_g).

    The leaves as they are, around their group's mean, and the group's mean around that of all.
    """
    sums, counts = _groups(u, group)
    means = sums / counts[:, None]
    within = _mean_by_group(((u - means[:, group]) ** 2).mean(2), group, counts)
    return within, ((means - u.mean(1, keepdims=True)) ** 2).mean(2)


def pairs(u: Members, centered: Members, one: int, others: slice) -> dict[str, np.ndarray]:
    """One member against several: squared distance and whether the votes differ, `[example, other]`.

    Also the products a cosine is made of, to be pooled over examples; `_centered` over options, which
    `centered` already is.
    """
    votes = u.argmax(2)
    found: dict[str, np.ndarray] = {"disagreement": (votes[:, one : one + 1] != votes[:, others]).astype(np.float64)}
    for suffix, x in (("", u), ("_centered", centered)):
        found["distance" + suffix] = mean_square(x[:, one : one + 1] - x[:, others])
        found["product" + suffix] = np.einsum("nk,nmk->nm", x[:, one], x[:, others]) / x.shape[2]
    return found


def _groups(u: Members, group: Int[np.ndarray, " member"]) -> tuple[np.ndarray, np.ndarray]:
    """What the members of each group sum to `[example, group, option]`, and how many they are."""
    return _sum_by_group(u, group), np.bincount(group).astype(np.float64)


def _mean_by_group(x: Float[np.ndarray, "example member"], group: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return _sum_by_group(x, group) / counts


def _sum_by_group(x: Float[np.ndarray, "example member *rest"], group: np.ndarray) -> np.ndarray:
    """Over the members of each group; there may be tens of thousands (the uses of every neuron)."""
    order = np.argsort(group, kind="stable")
    return np.add.reduceat(x[:, order], np.searchsorted(group[order], np.arange(group.max() + 1)), axis=1)


def group_numbers(names: Sequence[object]) -> tuple[list, Int[np.ndarray, " member"]]:
    """(distinct names in order, the number of each member's)."""
    distinct = list(dict.fromkeys(names))
    number = {name: i for i, name in enumerate(distinct)}
    return distinct, np.array([number[name] for name in names], dtype=np.int64)
