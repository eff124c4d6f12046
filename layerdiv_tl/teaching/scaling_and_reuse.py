"""Notebook 07: guessing among what is left, size-fair diversity, curves that bend, where answers land, two ratios."""

from __future__ import annotations

import numpy as np

from .exercises import exercise


def _cases() -> list[tuple[int, int]]:
    return [(3, 2), (4, 1), (2, 0), (4, 3), (1, 1), (3, 3)]


@exercise(
    minutes=5,
    difficulty=2,
    importance=4,
    cases=_cases,
    axes="(a share)",
    right="two of three steps give 20 %, and so do models that rule out places 0, 1 and 7.",
    hints=(
        "Who follows all the steps is right. Who stops earlier guesses; count the letters that are still possible.",
        "After `followed` steps they have been at followed + 1 letters, the start among them, of 8.",
        "1 if followed >= hops, or else 1 / (8 − (followed + 1)).",
    ),
    mistakes={
        "that is guessing among all eight: leave out the letters they have been at.": lambda hops, followed: (
            1.0 if followed >= hops else 1 / 8
        ),
        "right where they have to guess; but who follows all the steps does not guess at all.": lambda hops, followed: (
            1 / (7 - followed)
        ),
        "one letter too many is left: they have been at the start, too.": lambda hops, followed: (
            1.0 if followed >= hops else 1 / (8 - followed)
        ),
        "seven letters are left only where no step was followed.": lambda hops, followed: (
            1.0 if followed >= hops else 1 / 7
        ),
        "that rules out as many letters as there are hops; only those are out that were really reached.": (
            lambda hops, followed: 1.0 if followed >= hops else 1 / (8 - hops)
        ),
        "one letter too few is left: after j steps they have been at j + 1 letters.": lambda hops, followed: (
            1.0 if followed >= hops else 1 / (6 - followed)
        ),
        "that is in per cent: a share lies between 0 and 1.": lambda hops, followed: (
            100.0 if followed >= hops else 100 / (7 - followed)
        ),
    },
)
def guess(hops: int, followed: int) -> float:
    """The expected accuracy, as a share, of who follows the first `followed` of `hops` steps."""
    return 1.0 if followed >= hops else 1 / (8 - (followed + 1))


def _members() -> list[tuple[np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(6, 5, 4)) + 1,), (rng.normal(size=(3, 2, 6)),)]


def _spread(u: np.ndarray) -> float:
    return float(((u - u.mean(1, keepdims=True)) ** 2).mean())


@exercise(
    minutes=5,
    difficulty=2,
    importance=5,
    cases=_members,
    axes="(all axes averaged over)",
    right="halves are half as far from the mean and twice as many, and (2|L|)² × ¼ is |L|².",
    hints=(
        "Diversity is the mean squared distance of the members from their mean, over rows, members and options.",
        "The mean over members is u.mean(1, keepdims=True); the number of members is u.shape[1].",
        "u.shape[1] ** 2 times the mean of (u − u.mean(1, keepdims=True)) ** 2.",
    ),
    mistakes={
        "that is diversity itself, which is a quarter after the cut: the factor is missing.": _spread,
        "|L| × diversity is halved by the cut: distances are squared, so must the factor be.": lambda u: (
            u.shape[1] * _spread(u)
        ),
        "the mean is over members, axis 1, not over options.": lambda u: (
            u.shape[1] ** 2 * ((u - u.mean(2, keepdims=True)) ** 2).mean()
        ),
        "that is the members' size: diversity is their distance from their mean.": lambda u: (
            u.shape[1] ** 2 * (u**2).mean()
        ),
        "a sum over options in place of a mean.": lambda u: u.shape[1] ** 2 * u.shape[2] * _spread(u),
        "|L| is the number of members, u.shape[1], not of options.": lambda u: u.shape[2] ** 2 * _spread(u),
        "|L| is the number of members, u.shape[1], not of rows.": lambda u: u.shape[0] ** 2 * _spread(u),
        "squares are missing: deviations from a mean average to zero.": lambda u: (
            u.shape[1] ** 2 * (u - u.mean(1, keepdims=True)).mean()
        ),
    },
)
def size_fair(u: np.ndarray) -> float:
    """|L|² × diversity of members u [row, member, option]."""
    return u.shape[1] ** 2 * ((u - u.mean(1, keepdims=True)) ** 2).mean()


def _scores() -> list[tuple[np.ndarray]]:
    steps = np.array([[14, 15, 100, 100], [44, 100, 100, 100], [15, 15, 22, 100], [14, 14, 22, 68.0]]).T
    return [(steps,), (steps[:, 1:],), (steps[:, :2],), (np.array([[0, 1, 1, 0.0], [0, 0, 0, 1.0]]).T,)]


@exercise(
    minutes=8,
    difficulty=3,
    importance=4,
    cases=_scores,
    axes="(first doubling, last doubling)",
    right="what the first and the last doubling of depth bring, for the mean over any choice of tasks.",
    hints=(
        "First the mean over tasks (axis 1), then differences between neighboring depths.",
        "The rows are depths 1, 2, 4 and 8: each row is one doubling after the one before.",
        "mean = accuracy.mean(1); then mean[1] − mean[0] and mean[-1] − mean[-2].",
    ),
    mistakes={
        "the two are exchanged: the first doubling first.": lambda a: (
            a.mean(1)[-1] - a.mean(1)[-2],
            a.mean(1)[1] - a.mean(1)[0],
        ),
        "the sign is turned round: later less earlier.": lambda a: (
            a.mean(1)[0] - a.mean(1)[1],
            a.mean(1)[-2] - a.mean(1)[-1],
        ),
        "a sum over tasks in place of a mean.": lambda a: (
            a.sum(1)[1] - a.sum(1)[0],
            a.sum(1)[-1] - a.sum(1)[-2],
        ),
        "the mean is over tasks, axis 1: rows are depths.": lambda a: (
            a.mean(0)[1] - a.mean(0)[0],
            a.mean(0)[-1] - a.mean(0)[-2],
        ),
        "that is all the way from one layer to eight: the last doubling goes from four to eight.": lambda a: (
            a.mean(1)[1] - a.mean(1)[0],
            a.mean(1)[-1] - a.mean(1)[0],
        ),
        "those are ratios: asked is by how many points accuracy rises.": lambda a: (
            a.mean(1)[1] / a.mean(1)[0],
            a.mean(1)[-1] / a.mean(1)[-2],
        ),
        "by layer, not by doubling: do not divide.": lambda a: (
            a.mean(1)[1] - a.mean(1)[0],
            (a.mean(1)[-1] - a.mean(1)[-2]) / 4,
        ),
    },
)
def doublings(accuracy: np.ndarray) -> tuple[float, float]:
    """What the first and the last doubling of depth bring, mean over tasks; accuracy is [depth 1 2 4 8, task]."""
    mean = accuracy.mean(1)
    return mean[1] - mean[0], mean[-1] - mean[-2]


def _rings() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    ring = np.stack([rng.permutation(8) for _ in range(20)])
    return [(ring, ring[np.arange(20), rng.integers(2, 5, 20)]), (ring, ring[:, 3])]


@exercise(
    minutes=8,
    difficulty=3,
    importance=4,
    cases=_rings,
    axes="[place]",
    right="the shares sum to 1, and place 3 is the accuracy at three hops.",
    hints=(
        "ring[row, place] is the option that lies at a place; an answer lies at the place where ring equals it.",
        "Compare with broadcasting: answers needs a second axis, answers[:, None], to go with ring [row, place].",
        "(ring == answers[:, None]).mean(0).",
    ),
    mistakes={
        "that counts options, not places: look up where on each row's ring the answer lies.": lambda ring, answers: (
            np.bincount(answers, minlength=ring.shape[1]) / len(answers)
        ),
        "that is a count: divide by the number of rows.": lambda ring, answers: (ring == answers[:, None]).sum(0),
        "one number for each row: the mean is over rows, axis 0.": lambda ring, answers: (
            ring == answers[:, None]
        ).mean(1),
        "that is the place of each row's answer. Asked is how many rows land at each place.": lambda ring, answers: (
            ring == answers[:, None]
        ).argmax(1),
        "that is in per cent: a share lies between 0 and 1.": lambda ring, answers: (
            100 * (ring == answers[:, None]).mean(0)
        ),
    },
)
def landing(ring: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """How often, as a share, answers [row] lie at each place; ring [row, place] says which option lies there."""
    return (ring == answers[:, None]).mean(0)


PAPER = {"125M": (12.2, 61, 1.8, 121), "350M": (15.5, 65, 4.2, 129)}  # diversity and members, plain and shared


def _ratios(power: float) -> tuple[float, float]:
    (a, b) = (shared * n_shared**power / (plain * n**power) for plain, n, shared, n_shared in PAPER.values())
    return a, b


@exercise(
    minutes=5,
    difficulty=2,
    importance=4,
    axes="(125M, 350M)",
    rtol=0.02,
    right="0.58 and 1.07, where they were 0.15 and 0.27: most was counting.",
    hints=(
        "The correction multiplies each diversity by the square of its own number of components.",
        "Shared over plain: (|L|² × diversity of the shared model) / (|L|² × diversity of its plain twin).",
        "For 125M: 1.8 · 121² / (12.2 · 61²).",
    ),
    mistakes={
        "that is before the correction: multiply each diversity by its own |L|² first.": lambda: _ratios(0),
        "the factor is (121/61)², not 121/61: diversity falls with the square of |L|.": lambda: _ratios(1),
        "the correction is upside down: the shared model has more members, so its diversity gains by it.": (
            lambda: _ratios(-2)
        ),
        "plain over shared; shared over plain was asked for.": lambda: (1 / _ratios(2)[0], 1 / _ratios(2)[1]),
        "the two are exchanged: 125M first.": lambda: _ratios(2)[::-1],
    },
)
def ratios() -> tuple[float, float]:
    """Shared over plain of |L|² × diversity, of the paper's two pairs."""
    return 1.8 * 121**2 / (12.2 * 61**2), 4.2 * 129**2 / (15.5 * 65**2)
