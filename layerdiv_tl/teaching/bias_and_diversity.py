"""Notebook 03: Theorem 1, finer cuts, the net."""

from __future__ import annotations

import numpy as np

from .exercises import exercise

Parts = tuple[float, float, float]


def _ensembles() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    first = rng.normal(size=(5, 4, 3)), np.eye(3)[[0, 1, 2, 0, 1]]
    return [first, (rng.normal(size=(2, 6, 4)) + 1, np.eye(4)[[3, 1]])]


def _errors(u: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean = u.mean(1, keepdims=True)
    return t - mean[:, 0], t[:, None] - u, mean - u


def _of(u: np.ndarray, t: np.ndarray, order: tuple[int, ...] = (0, 1, 2)) -> tuple[float, ...]:
    parts = [float((x**2).mean()) for x in _errors(u, t)]
    return tuple(parts[k] for k in order)


@exercise(
    minutes=12,
    difficulty=3,
    importance=5,
    cases=_ensembles,
    axes="(MSE, bias, diversity)",
    right="MSE = bias − diversity for any members and targets: the cross term is gone.",
    hints=(
        "Three distances: target to mean, target to members, mean to members. Each squared, each averaged over "
        "everything.",
        "The mean over members is u.mean(1, keepdims=True), [row, 1, option], so that it subtracts from u.",
        "The target needs a member axis to subtract from u: t[:, None]. Then each result is (difference ** 2).mean().",
    ),
    mistakes={
        "the squares are missing: deviations from a mean average to zero, their squares do not.": lambda u, t: tuple(
            x.mean() for x in _errors(u, t)
        ),
        "absolute values: the cross term vanishes only for squares.": lambda u, t: tuple(
            np.abs(x).mean() for x in _errors(u, t)
        ),
        "the root of each: Theorem 1 is about the squares.": lambda u, t: tuple(
            (x**2).mean() ** 0.5 for x in _errors(u, t)
        ),
        "bias and diversity are exchanged: bias is the distance from the target.": lambda u, t: _of(u, t, (0, 2, 1)),
        "MSE is the error of the members' mean, bias the mean of the members' errors.": (
            lambda u, t: _of(u, t, (1, 0, 2))
        ),
        "diversity is taken from bias to give the MSE, not added.": lambda u, t: (
            _of(u, t)[1] + _of(u, t)[2],
            *_of(u, t)[1:],
        ),
        "a sum over options in place of a mean.": lambda u, t: tuple((x**2).sum(-1).mean() for x in _errors(u, t)),
        "a sum over members in place of a mean.": lambda u, t: (
            _of(u, t)[0],
            *(u.shape[1] * part for part in _of(u, t)[1:]),
        ),
        "sums over everything, in place of means.": lambda u, t: tuple((x**2).sum() for x in _errors(u, t)),
        "divided by |L| − 1: in Theorem 1 the members are all there are, so the divisor is |L|.": lambda u, t: (
            *_of(u, t)[:2],
            u.var(1, ddof=1).mean(),
        ),
        "the members' distances from one another: their mean square is twice the diversity.": lambda u, t: (
            *_of(u, t)[:2],
            2 * _of(u, t)[2],
        ),
        "these are the centered parts (section 4): Theorem 1 takes u and t as they are.": lambda u, t: _of(
            u - u.mean(-1, keepdims=True), t - t.mean(-1, keepdims=True)
        ),
        "the ensemble is the mean of the members, not their sum.": lambda u, t: (
            ((t - u.sum(1)) ** 2).mean(),
            _of(u, t)[1],
            ((u.sum(1, keepdims=True) - u) ** 2).mean(),
        ),
        "one mean for all rows: each row has its own ensemble mean, over members (axis 1) only.": lambda u, t: (
            ((t - u.mean((0, 1))) ** 2).mean(),
            _of(u, t)[1],
            ((u.mean((0, 1)) - u) ** 2).mean(),
        ),
        "u.var() takes one mean over everything; diversity is about the mean over members, u.var(1).": lambda u, t: (
            *_of(u, t)[:2],
            u.var(),
        ),
        "u.mean(0) is the mean over rows: members were axis 0 in section 2, and are axis 1 here.": lambda u, t: (
            ((t[:, None] - u.mean(0)) ** 2).mean(),
            _of(u, t)[1],
            ((u.mean(0) - u) ** 2).mean(),
        ),
        "members were axis 0 in section 2, and are axis 1 here: u.mean(1).": lambda u, t: ((t - u.mean(0)) ** 2).mean(),
        "t - u.mean(1, keepdims=True) is [row, row, option], each target against each row: use t[:, None].": (
            lambda u, t: (((t - u.mean(1, keepdims=True)) ** 2).mean(), *_of(u, t)[1:])
        ),
        "the mean was taken over options; members are axis 1.": lambda u, t: (
            *_of(u, t)[:2],
            ((u.mean(2, keepdims=True) - u) ** 2).mean(),
        ),
    },
)
def theorem_1(u: np.ndarray, t: np.ndarray) -> Parts:
    """(MSE, bias, diversity) of members u [row, member, option] for targets t [row, option]."""
    mean = u.mean(1, keepdims=True)  # [row, 1, option]
    mse = ((t - mean[:, 0]) ** 2).mean()
    bias = ((t[:, None] - u) ** 2).mean()
    diversity = ((mean - u) ** 2).mean()
    return mse, bias, diversity


def _cuts() -> list[tuple[np.ndarray, int]]:
    rng = np.random.default_rng(3)
    return [(rng.normal(size=(6, 5, 4)), 3), (rng.normal(size=(2, 3, 2)), 2)]


@exercise(
    minutes=6,
    difficulty=2,
    importance=4,
    cases=_cuts,
    axes="[row, n · member, option]",
    right="n² times less diversity, and the same model.",
    hints=(
        "The pieces of a member must sum to it, or it is another model.",
        "For diversity to fall by n² the pieces of a member must all be alike: u / n, n times.",
        "np.repeat(x, n, axis=1) repeats along the members.",
    ),
    mistakes={
        "these are n copies, not n pieces: the members now sum to n times the logits. Divide.": lambda u, n: np.repeat(
            u, n, axis=1
        ),
        "there are as many members as before: every one must become n pieces.": lambda u, n: u / n,
        "some pieces are zero, so Σ|u|² is as it was and diversity falls by n, not n².": lambda u, n: np.concatenate(
            [u, *[np.zeros_like(u)] * (n - 1)], axis=1
        ),
        "one piece of each member is all of it, so Σ|u|² is as it was and diversity falls by n, not n².": lambda u, n: (
            np.repeat(u, n, axis=1) * (np.arange(n * u.shape[1]) % n == 0)[:, None]
        ),
        "divided by n twice: n pieces of u / n² sum to u / n, another model.": lambda u, n: np.repeat(
            u / n**2, n, axis=1
        ),
        "the rows were repeated: members are axis 1.": lambda u, n: np.repeat(u / n, n, axis=0),
        "right pieces in another order; keep those of a member together: np.repeat rather than np.tile.": (
            lambda u, n: np.tile(u / n, (1, n, 1))
        ),
        "the reshape mixed rows: stack the pieces after the member axis, np.stack(…, axis=2).": lambda u, n: np.stack(
            [u / n] * n
        ).reshape(len(u), -1, u.shape[2]),
        "the reshape mixed options: stack the pieces after the member axis, np.stack(…, axis=2).": (
            lambda u, n: np.stack([u / n] * n, -1).reshape(len(u), -1, u.shape[2])
        ),
    },
)
def cut(u: np.ndarray, n: int) -> np.ndarray:
    """Members u [row, member, option] cut into n equal pieces each: [row, n · member, option], with the same sum."""
    return np.repeat(u / n, n, axis=1)


def _gold() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    return [(rng.normal(size=(6, 5, 4)), np.array([0, 1, 2, 3, 0, 1]))]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _net(u: np.ndarray, gold: np.ndarray, p: np.ndarray) -> np.ndarray:
    """`p` is [row, member, option], or broadcasts to it."""
    return (p * u).sum(2) - u[np.arange(len(u)), :, gold]


@exercise(
    minutes=12,
    difficulty=4,
    importance=5,
    cases=_gold,
    axes="[row, member]",
    right="H(p) plus these is the cross-entropy, however finely the model is cut.",
    hints=(
        "Whose belief is p? The whole model's: softmax of the sum over members, [row, option].",
        "E_p[u_i] weighs a member's options with p and adds them up: (p[:, None] * u).sum(2).",
        "Take off u at the right option: u[np.arange(len(u)), :, gold] is [row, member].",
    ),
    mistakes={
        "the sign is turned round: a net is part of a loss, and raising the right answer lowers it.": lambda u, g: (
            -_net(u, g, _softmax(u.sum(1))[:, None])
        ),
        "your p is softmax(ū), nearly uniform: the model predicts softmax of the sum.": lambda u, g: _net(
            u, g, _softmax(u.mean(1))[:, None]
        ),
        "each member's own belief: E_p is under the whole model's p, the same for all members.": lambda u, g: _net(
            u, g, _softmax(u)
        ),
        "all options weigh alike: weigh them with the model's p, softmax of the sum over members.": lambda u, g: (
            u.mean(2) - u[np.arange(len(u)), :, g]
        ),
        "that is under q_i, what a member alone would predict: p is the whole model's, softmax of the sum.": (
            lambda u, g: _net(u, g, _softmax(u * u.shape[1]))
        ),
        "weighed with log p: an expectation is weighed with p.": lambda u, g: _net(
            u, g, np.log(_softmax(u.sum(1)))[:, None]
        ),
        "weighed with the logits: p is their softmax.": lambda u, g: _net(u, g, u.sum(1)[:, None]),
        "p does not sum to 1 over the options: divide the exponentials by their sum.": lambda u, g: _net(
            u, g, np.exp(u.sum(1))[:, None]
        ),
        "one softmax over all rows: every row's p sums to 1.": lambda u, g: _net(
            u, g, (np.exp(u.sum(1)) / np.exp(u.sum(1)).sum())[:, None]
        ),
        "the softmax ran over members: sum over members first, then take the softmax over options.": lambda u, g: _net(
            u, g, np.exp(u) / np.exp(u).sum(1, keepdims=True)
        ),
        "one option for all rows: each row has its own right option, gold[row].": lambda u, g: _net(
            u, np.full_like(g, g[0]), _softmax(u.sum(1))[:, None]
        ),
        "that is the option the model would choose: the right one is gold.": lambda u, g: _net(
            u, u.sum(1).argmax(1), _softmax(u.sum(1))[:, None]
        ),
        "u[:, :, gold] is [row, member, row]: pair rows with labels, u[np.arange(len(u)), :, gold].": lambda u, g: (
            u.sum(2) - u[:, :, g]
        ),
        "u[np.arange(len(u)), gold] takes gold for a member: options are axis 2.": lambda u, g: (
            u.sum(2) - u[np.arange(len(u)), g]
        ),
        "only the right option's term of E_p[u_i]: it is a sum over all options.": lambda u, g: (
            (_softmax(u.sum(1))[np.arange(len(u)), g] - 1)[:, None] * u[np.arange(len(u)), :, g]
        ),
        "u(t) of the whole model was taken off every member: take each member's own.": lambda u, g: (
            (_softmax(u.sum(1))[:, None] * u).sum(2) - u.sum(1)[np.arange(len(u)), g][:, None]
        ),
        "E_p[u_i] is missing: without it, a constant for all options would pass for merit.": lambda u, g: (
            -u[np.arange(len(u)), :, g]
        ),
        "the right option's part is missing: take off u_i(t).": lambda u, g: (_softmax(u.sum(1))[:, None] * u).sum(2),
        "E_p is a weighted sum over options: p sums to 1 already, so no mean.": lambda u, g: (
            (_softmax(u.sum(1))[:, None] * u).mean(2) - u[np.arange(len(u)), :, g]
        ),
        "u_i(t) was weighed with p: only the first term is.": lambda u, g: (
            (_softmax(u.sum(1))[:, None] * u).sum(2) - (_softmax(u.sum(1))[:, None] * u)[np.arange(len(u)), :, g]
        ),
        "the softmax ran over the rows: the options are the last axis.": lambda u, g: _net(
            u, g, _softmax(u.sum(1).T).T[:, None]
        ),
        "divided by |L|: the nets add up to the loss, they are not averaged.": lambda u, g: (
            _net(u, g, _softmax(u.sum(1))[:, None]) / u.shape[1]
        ),
        "the mean over rows too early: keep one number for each row and member.": lambda u, g: _net(
            u, g, _softmax(u.sum(1))[:, None]
        ).mean(0),
    },
)
def net(u: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """E_p[u_i] − u_i(t) of every member, [row, member]; p is what the whole model predicts."""
    logits = u.sum(1)  # [row, option]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    right = u[np.arange(len(u)), :, gold]  # [row, member]
    return (p[:, None] * u).sum(2) - right
