"""Notebook 10: κ from members' errors, why a 1/k curve of stored contributions shows nothing, when a token settles."""

from __future__ import annotations

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
    axes="[prediction, member]",
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
        "that is the mean's; the rescaled sum is n times as large.": lambda c, k: float(
            np.var(c, ddof=1) / k * (1 - k / len(c))
        ),
    },
)
def subset_error(contributions: np.ndarray, k: int) -> float:
    """The expected square of n/k · (sum of k random members) − (sum of all n), for contributions [member]."""
    n = len(contributions)
    return float(n**2 * np.var(contributions, ddof=1) / k * (1 - k / n))
