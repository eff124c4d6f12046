"""Notebook 10: κ from members' errors, why a 1/k curve of stored contributions shows nothing, when a token settles."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from .exercises import exercise


def _members() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(10)
    noise = rng.normal(size=(400, 6))
    target = rng.normal(size=400)
    independent = (target[:, None] + noise) / 6
    copies = (target[:, None] + noise[:, :1]) / 6 * np.ones((1, 6))
    return [(independent, target), (copies, target)]


def _errors(contributions: np.ndarray, target: np.ndarray, n: float) -> np.ndarray:
    return np.asarray(((n * contributions - target[:, None]) ** 2).mean())


def _loss(contributions: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.asarray(((contributions.sum(1) - target) ** 2).mean())


@exercise(
    minutes=10,
    difficulty=2,
    importance=5,
    cases=_members,
    right="n times the loss of the sum, over the mean loss of one member that stands for all.",
    hints=(
        "Read as a predictor of its own, member i says n·c_i, with n the number of members: their mean is the sum.",
        "single = mean over predictions and members of (n·c_i − t)²; loss = mean over predictions of (Σ c_i − t)².",
        "κ = n · loss / single: 1 if the members' errors are independent, n if they all make the same error.",
    ),
    mistakes={
        "each member was compared as it is: it stands for all n of them, so multiply it by n.": lambda c, t: float(
            c.shape[1] * _loss(c, t) / _errors(c, t, 1)
        ),
        "the factor n is missing: errors that average fall n-fold, and κ is to be 1 then.": lambda c, t: float(
            _loss(c, t) / _errors(c, t, c.shape[1])
        ),
        "n is the number of members, axis 1, not of predictions.": lambda c, t: float(
            len(c) * _loss(c, t) / _errors(c, t, len(c))
        ),
        "n is the number of predictions there: it is that of the members, axis 1.": lambda c, t: float(
            len(c) * _loss(c, t) / _errors(c, t, c.shape[1])
        ),
        "the mean of the contributions is not the answer: that is their sum, the mean of n·c_i.": lambda c, t: float(
            c.shape[1] * _loss(c / c.shape[1], t) / _errors(c, t, c.shape[1])
        ),
        "contributions were compared as they are: member i says n·c_i, and the mean of that is Σ c_i.": (
            lambda c, t: float(c.shape[1] * _loss(c / c.shape[1], t) / _errors(c, t, 1))
        ),
        "each member was held against a share of the target: it says n·c_i, and is to say the target.": lambda c, t: (
            float(c.shape[1] * _loss(c, t) / _errors(c, t / c.shape[1], 1))
        ),
        "those are absolute errors: the loss is the mean square.": lambda c, t: float(
            c.shape[1] * np.abs(c.sum(1) - t).mean() / np.abs(c.shape[1] * c - t[:, None]).mean()
        ),
        "those are variances: the loss is the mean square of the error, its mean included.": lambda c, t: float(
            c.shape[1] * (c.sum(1) - t).var() / (c.shape[1] * c - t[:, None]).var(0).mean()
        ),
        "a root was taken: the losses are mean squares.": lambda c, t: float(
            c.shape[1] * np.sqrt(_loss(c, t) / _errors(c, t, c.shape[1]))
        ),
        "a ratio for each prediction, then the mean: take the mean of both losses first.": lambda c, t: float(
            (c.shape[1] * (c.sum(1) - t) ** 2 / ((c.shape[1] * c - t[:, None]) ** 2).mean(1)).mean()
        ),
        "target is [prediction], the members' errors are [prediction, member]: write target[:, None].": lambda c, t: (
            c.shape[1] * c - t
        ),
        "the fraction is upside down.": lambda c, t: float(_errors(c, t, c.shape[1]) / (c.shape[1] * _loss(c, t))),
    },
)
def kappa(contributions: np.ndarray, target: np.ndarray) -> float:
    """κ of members with contributions [prediction, member] to one number, whose target is [prediction]."""
    n = contributions.shape[1]
    loss = ((contributions.sum(1) - target) ** 2).mean()
    single = ((n * contributions - target[:, None]) ** 2).mean()
    return float(n * loss / single)


def _subsets() -> list[tuple[np.ndarray, int]]:
    rng = np.random.default_rng(11)
    return [(rng.normal(size=7), 3), (np.array([4.0, -1.0, 0.5, 2.0]), 2), (rng.normal(size=5) + 9, 5)]


def _unscaled(c: np.ndarray, k: int) -> float:
    return float(np.mean([(sum(kept) - c.sum()) ** 2 for kept in combinations(c, k)]))


@exercise(
    minutes=12,
    difficulty=3,
    importance=4,
    cases=_subsets,
    right="n²/k · (1 − k/n) · s²: it falls as 1/k whatever the members are.",
    hints=(
        "Draw k of n numbers without replacement: their mean has the variance s²/k · (1 − k/n), with s² the sample "
        "variance (ddof=1). The last factor is the finite-population correction.",
        "The rescaled sum n/k · Σ is n times that mean, and its expectation is the full sum.",
        "So the expected square is n² · s² / k · (1 − k/n), with s² = np.var(c, ddof=1).",
    ),
    mistakes={
        "s² has n − 1 below (ddof=1): drawing is without replacement.": lambda c, k: float(
            len(c) ** 2 * np.var(c) / k * (1 - k / len(c))
        ),
        "the correction 1 − k/n is missing: with all members kept nothing is lost.": lambda c, k: float(
            len(c) ** 2 * np.var(c, ddof=1) / k
        ),
        "that is drawing with replacement: no member is drawn twice.": lambda c, k: float(len(c) ** 2 * np.var(c) / k),
        "that is the mean square of the contributions: what matters is how they differ, their variance.": (
            lambda c, k: float(len(c) ** 2 * (c**2).mean() / k * (1 - k / len(c)))
        ),
        "a factor n for n²: the sum is n times the mean, its square n² times.": lambda c, k: float(
            len(c) * np.var(c, ddof=1) / k * (1 - k / len(c))
        ),
        "that is the root: the expected square is asked.": lambda c, k: float(
            len(c) * np.sqrt(np.var(c, ddof=1) / k * (1 - k / len(c)))
        ),
        "the sum of the kept was not rescaled by n/k.": _unscaled,
        "that is the mean's; the rescaled sum is n times as large.": lambda c, k: float(
            np.var(c, ddof=1) / k * (1 - k / len(c))
        ),
    },
)
def subset_error(contributions: np.ndarray, k: int) -> float:
    """The expected square of n/k · (sum of k random members) − (sum of all n), for contributions [member]."""
    n = len(contributions)
    return float(n**2 * np.var(contributions, ddof=1) / k * (1 - k / n))
