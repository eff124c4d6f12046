"""Notebook 05: what a module holds, a null that keeps curves whole, how many models a question needs, a verdict."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from math import factorial, nan

import numpy as np

from .exercises import exercise


def _modules() -> list[tuple[np.ndarray, np.ndarray, str]]:
    own = np.array([0.5, 4.0, 1.0, 2.5, 0.2, 3.0, 6.0])
    kinds = np.array(["embed", "attn", "mlp", "attn", "mlp", "attn", "mlp"])
    return [(own, kinds, "mlp"), (own[::-1] + 1, kinds, "embed")]


@exercise(
    minutes=5,
    difficulty=2,
    importance=3,
    cases=_modules,
    right="parts are sums over members, so they add up; the factor 1/|L| is in part and whole, and drops out.",
    hints=(
        "A part is a sum over the module's members; the whole is the sum over all of them.",
        "kinds == kind is True where a component belongs to the module, and own[kinds == kind] are its numbers.",
        "own[kinds == kind].sum() divided by own.sum().",
    ),
    mistakes={
        "that is in per cent: give a share between 0 and 1.": lambda own, kinds, kind: (
            100 * own[kinds == kind].sum() / own.sum()
        ),
        "that is the share of the members, the null: weigh each member by what it holds.": lambda own, kinds, kind: (
            kinds == kind
        ).mean(),
        "a ratio of means forgets that modules differ in size: take sums.": lambda own, kinds, kind: (
            own[kinds == kind].mean() / own.mean()
        ),
        "a share of means forgets that modules differ in size: take sums.": lambda own, kinds, kind: (
            own[kinds == kind].mean() / sum(own[kinds == each].mean() for each in set(kinds))
        ),
        "that is what the module holds, in the unit of `own`: divide by what all hold.": lambda own, kinds, kind: own[
            kinds == kind
        ].sum(),
        "that is the module against all others: divide by what all hold, itself included.": lambda own, kinds, kind: (
            own[kinds == kind].sum() / own[kinds != kind].sum()
        ),
        "divided by the number of components: divide by what all of them hold.": lambda own, kinds, kind: (
            own[kinds == kind].sum() / len(own)
        ),
        "a mean over a sum: take the sum of the module's members, too.": lambda own, kinds, kind: (
            own[kinds == kind].mean() / own.sum()
        ),
        "that is the excess over the share of members: give the share itself.": lambda own, kinds, kind: (
            own[kinds == kind].sum() / own.sum() - (kinds == kind).mean()
        ),
        "squares were summed: bias and diversity are squares already.": lambda own, kinds, kind: (
            (own[kinds == kind] ** 2).sum() / (own**2).sum()
        ),
        "use `kind`: another module than the MLPs may be asked for.": lambda own, kinds, kind: (
            own[kinds == "mlp"].sum() / own.sum()
        ),
        "that is what the other modules hold.": lambda own, kinds, kind: own[kinds != kind].sum() / own.sum(),
    },
)
def share_held(own: np.ndarray, kinds: np.ndarray, kind: str) -> float:
    """The share of a module in a sum over components: own [component] are numbers, kinds [component] names."""
    return own[kinds == kind].sum() / own.sum()


def _curves() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(11)
    drawn = []
    for relation in (0.3, 0.0, -0.5, 0.5, 0.0):
        a, steps = rng.normal(size=(2, 5, 30)).cumsum(-1)
        drawn.append((a, relation * a + steps))
    # What all models share, and what each has to itself against it: most ways reach farther than the true one.
    trend, own = np.linspace(0, 6, 30), rng.normal(size=(5, 30))
    return [*drawn, (trend + own, trend - own / 2)]


def _ways(a: np.ndarray, b: np.ndarray, of: Callable[[np.ndarray], np.ndarray] = np.asarray) -> np.ndarray:
    """T of all ways; the first is the true one."""
    models = len(a)
    r = of(np.corrcoef(a, b)[:models, models:])
    return np.array([r[range(models), way].mean() for way in permutations(range(models))])


def _deranged(models: int) -> list[int]:
    """The ways that leave no model its own, with the true one before them."""
    ways = enumerate(permutations(range(models)))
    return [number for number, way in ways if not number or all(m != given for m, given in enumerate(way))]


def _single(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r = np.corrcoef(a, b)[: len(a), len(a) :]
    return np.array([np.diag(r).mean(), *r[~np.eye(len(a), dtype=bool)]])


def _pooled(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    ways = permutations(range(len(a)))
    return np.array([np.corrcoef(a.ravel(), b[list(way)].ravel())[0, 1] for way in ways])


def _as_far(t: np.ndarray) -> np.ndarray:
    side = np.sign(t[0])
    return side * t >= side * t[0] - 1e-12


@exercise(
    minutes=15,
    difficulty=4,
    importance=5,
    cases=_curves,
    right="the same as p_permutation, which draws some of the ways where there are too many.",
    hints=(
        "First T of every way: the mean over models of r between a model's accuracy and the metric it was dealt.",
        "r[range(M), way] are these M correlations. permutations(range(M)) gives the true way first.",
        "On the true T's side of 0, count the ways that lie as far out, itself included; twice their share, at most 1.",
    ),
    mistakes={
        "that looks at one side only: a relation may lie on either, so double it (and stop at 1).": lambda a, b: (
            _as_far(_ways(a, b)).mean()
        ),
        "twice a share of more than a half is above 1. A p stops at 1.": lambda a, b: 2 * _as_far(_ways(a, b)).mean(),
        "that counts far ones on both sides of 0, but T need not lie evenly about it: count one side, and double.": (
            lambda a, b: (np.abs(_ways(a, b)) >= abs(_ways(a, b)[0]) - 1e-12).mean()
        ),
        "the true way is one of the ways and counts as well: a p is never 0.": lambda a, b: min(
            1, 2 * _as_far(_ways(a, b))[1:].mean()
        ),
        "the true way itself counts as well; mind that rounding may put it a hair below itself (1e-12).": lambda a, b: (
            min(1, 2 * (_as_far(_ways(a, b)).sum() - 1) / len(_ways(a, b)))
        ),
        "that is T of the true way. p is how rarely another way gets there.": lambda a, b: _ways(a, b)[0],
        "the smaller of the two tails was taken: go by the true one's side of 0.": lambda a, b: min(
            1, 2 * min((side * (_ways(a, b) - _ways(a, b)[0]) >= -1e-12).mean() for side in (1, -1))
        ),
        "that counts the ways nearer to 0: those as far out as the true one are asked.": lambda a, b: min(
            1, 2 * (np.sign(_ways(a, b)[0]) * (_ways(a, b) - _ways(a, b)[0]) <= 1e-12).mean()
        ),
        "that is a count of ways: divide by how many there are.": lambda a, b: 2 * _as_far(_ways(a, b)).sum(),
        "one was added above and below, as for drawn ways: here all ways are counted, the true one among them.": (
            lambda a, b: min(1, 2 * (_as_far(_ways(a, b)).sum() + 1) / (len(_ways(a, b)) + 1))
        ),
        "distances were taken from the mean of all T: 0 is the middle that is asked for.": lambda a, b: (
            np.abs(_ways(a, b) - _ways(a, b).mean()) >= abs(_ways(a, b)[0] - _ways(a, b).mean()) - 1e-12
        ).mean(),
        "only ways that leave no model its own metric were dealt: all M! count.": lambda a, b: min(
            1, 2 * _as_far(_ways(a, b)[_deranged(len(a))]).mean()
        ),
        "r of a model with another is not T: T is a mean over the M models of one way to deal.": lambda a, b: min(
            1, 2 * _as_far(_single(a, b)).mean()
        ),
        "those are correlations of accuracies with one another: take the block [:M, M:].": lambda a, b: min(
            1, 2 * _as_far(_ways(a, a)).mean()
        ),
        "all models were pooled into one r: take r for each model, then the mean.": lambda a, b: min(
            1, 2 * _as_far(_pooled(a, b)).mean()
        ),
        "the absolute value of each r was taken: T is the mean of r with its sign.": lambda a, b: min(
            1, 2 * _as_far(_ways(a, b, np.abs)).mean()
        ),
        "you ask for T above the true one's where that is below 0, too: go by its own side of 0.": lambda a, b: min(
            1, 2 * (_ways(a, b) >= _ways(a, b)[0] - 1e-12).mean()
        ),
    },
)
def permuted_p(a: np.ndarray, b: np.ndarray) -> float:
    """p of accuracy a and a metric b, both [model, junction], against dealing the metric out to other models."""
    from itertools import permutations

    M = len(a)
    r = np.corrcoef(a, b)[:M, M:]
    t = np.array([r[range(M), way].mean() for way in permutations(range(M))])  # the first is the true way
    side = np.sign(t[0])
    return min(1, 2 * (side * t >= side * t[0] - 1e-12).mean())


def _least(bar: float) -> int:
    models = 1
    while 2 / factorial(models) >= bar:
        models += 1
    return models


@exercise(
    minutes=6,
    difficulty=2,
    importance=4,
    cases=lambda: [(200, 0.01), (12, 0.05), (1, 0.05), (60, 0.05), (1, 0.01), (1, 2 / 24)],
    axes="(a number of models)",
    right="one question needs 5 models of one depth, twelve questions 6: a factorial grows fast.",
    hints=(
        "With M models of one depth there are M! ways, so no p is below 2 / M!. With m questions the bar is level / m.",
        "Try M = 1, 2, 3, … until 2 / M! is below level / questions. math.factorial(M) is M!.",
        "while 2 / factorial(models) >= level / questions: models += 1",
    ),
    mistakes={
        "one too many: the first that is below the bar is enough.": lambda m, level: _least(level / m) + 1,
        "one too few: with that many the least p, 2 / M! for both sides together, is still above the bar.": (
            lambda m, level: _least(level / m) - 1
        ),
        "the bar is the level divided by the number of questions.": lambda m, level: _least(level),
        "the bar was multiplied by the number of questions: divide.": lambda m, level: _least(level * m),
        "use `level`: it need not be 0.05.": lambda m, level: _least(0.05 / m),
        "equal to the bar is not below it.": lambda m, level: next(
            models for models in range(1, 30) if 2 / factorial(models) <= level / m
        ),
        "the test looks at both sides, so the least p is 2 / M!, not 1 / M!.": lambda m, level: next(
            models for models in range(1, 30) if 1 / factorial(models) < level / m
        ),
        "that is the number of ways: how many models have as many?": lambda m, level: factorial(_least(level / m)),
        "that is the least p with so many models: give the number of models.": lambda m, level: (
            2 / factorial(_least(level / m))
        ),
        "there are M! ways to deal curves out to M models, not 2 to the power of M.": lambda m, level: next(
            models for models in range(1, 60) if 2 / 2**models < level / m
        ),
    },
)
def models_needed(questions: int, level: float) -> int:
    """The fewest models of one depth with which a permutation p can pass Bonferroni's bar for so many questions."""
    from math import factorial

    models = 1
    while 2 / factorial(models) >= level / questions:
        models += 1
    return models


Rule = tuple[float, float, float, int, float]


def _intervals() -> list[Rule]:
    return [
        (0.2, 0.5, 0.0, 1, nan),
        (-0.5, -0.2, 0.0, 1, nan),
        (-0.5, -0.2, 0.0, -1, nan),
        (0.2, 0.5, 0.0, -1, nan),
        (-0.1, 0.4, 0.0, 1, nan),
        (-0.1, 0.4, 0.0, 1, 0.01),
        (0.2, 0.4, 0.5, 1, nan),
        (nan, nan, 0.0, 1, nan),
        (nan, nan, 0.0, 1, 0.01),
        (-0.3, -0.1, nan, -1, nan),
        (0.2, 0.5, 0.0, 1, 0.3),
        (-0.5, -0.2, 0.0, 1, 0.3),
        (0.2, 0.5, 0.0, 1, 0.01),
        (nan, nan, 0.0, 1, 0.3),
        (0.2, 0.5, 0.0, 1, 0.05),
        (0.0, 0.4, 0.0, 1, nan),
    ]


def _rule(low: float, high: float, null: float, side: int, p: float) -> str:
    if np.isnan([low, high, null]).any():
        return "not tested"
    if p >= 0.05 or low <= null <= high:
        return "within noise"
    return "confirmed" if (low > null) == (side > 0) else "refuted"


@exercise(
    minutes=8,
    difficulty=2,
    importance=4,
    cases=_intervals,
    right="the rule of the table: without an interval or a null nothing was tested, and only then comes noise.",
    hints=(
        "Four questions, in this order: is anything missing? does its own p fail? is the null inside? which side?",
        "If np.isnan([low, high, null]).any(): not tested, whatever p is. A p of nan passes: nan >= 0.05 is False.",
        "After 'not tested' and 'within noise': 'confirmed' if (low > null) == (side > 0), or else 'refuted'.",
    ),
    mistakes={
        "the null is not always 0: hold the interval against `null`.": lambda low, high, null, side, p: _rule(
            low, high, 0.0, side, p
        ),
        "with side −1 the claim lies below the null.": lambda low, high, null, side, p: _rule(low, high, null, 1, p),
        "the p of a null of its own counts where there is one: 0.05 or more is within noise.": (
            lambda low, high, null, side, p: _rule(low, high, null, side, nan)
        ),
        "a missing p is no failed test: most claims have none.": lambda low, high, null, side, p: (
            "not tested" if np.isnan([low, high, null, p]).any() else _rule(low, high, null, side, p)
        ),
        "a p of exactly 0.05 is within noise: 0.05 or more.": lambda low, high, null, side, p: _rule(
            low, high, null, side, p - 1e-9
        ),
        "an interval that ends at the null holds it: within noise.": lambda low, high, null, side, p: _rule(
            low + 1e-9, high - 1e-9, null, side, p
        ),
        "a p that is missing (nan) says nothing: ask for p >= 0.05, which is False for nan.": (
            lambda low, high, null, side, p: (
                "not tested"
                if np.isnan([low, high, null]).any()
                else "within noise"
                if not p < 0.05
                else _rule(low, high, null, side, p)
            )
        ),
        "'refuted' is missing: the whole interval on the side that the claim is not on.": (
            lambda low, high, null, side, p: _rule(low, high, null, side, p).replace("refuted", "within noise")
        ),
        "without a null there is nothing to hold an interval against: that is 'not tested', too.": (
            lambda low, high, null, side, p: (
                _rule(low, high, null, side, p)
                if np.isnan(low) or null == null
                else "confirmed"
                if side < 0
                else "refuted"
            )
        ),
        "a small p does not replace an interval: without one nothing was tested.": lambda low, high, null, side, p: (
            "confirmed" if np.isnan(low) and p < 0.05 else _rule(low, high, null, side, p)
        ),
        "without an interval there is nothing to call noise: ask that first.": lambda low, high, null, side, p: (
            "within noise" if p >= 0.05 else _rule(low, high, null, side, p)
        ),
        "an interval, or a null, is missing: that is 'not tested'.": lambda low, high, null, side, p: (
            "within noise"
            if p >= 0.05 or low <= null <= high
            else "confirmed"
            if low * side > null * side
            else "refuted"
        ),
        "the interval holds the null: that is within noise, however small p is.": lambda low, high, null, side, p: (
            "confirmed" if p < 0.05 else _rule(low, high, null, side, p)
        ),
    },
)
def verdict(low: float, high: float, null: float, side: int, p: float) -> str:
    """'not tested', 'within noise', 'confirmed' or 'refuted'; side is 1 for a claim above the null, −1 below it."""
    if np.isnan([low, high, null]).any():
        return "not tested"
    if p >= 0.05 or low <= null <= high:  # nan >= 0.05 is False
        return "within noise"
    return "confirmed" if (low > null) == (side > 0) else "refuted"
