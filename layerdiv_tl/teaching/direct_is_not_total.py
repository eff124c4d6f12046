"""Notebook 08: an ablation hook, the frozen norm and its recomputed twin, induction scores, compensation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .exercises import exercise


def _ablated(z: Any, head: int, value: Any) -> Any:
    z = z.clone() if hasattr(z, "clone") else z.copy()
    z[:, :, head] = value
    return z


@exercise(
    minutes=5,
    difficulty=2,
    importance=5,
    cases=lambda z: [(z, 3, z.mean((0, 1))[3]), (z, 0, 0 * z.mean((0, 1))[0])],
    axes="[row, token, head, d_head]",
    right="one head holds the given value at every token, all others what they held.",
    hints=(
        "z is what every head computed, before W_O: [row, token, head, d_head]. Only one index of axis 2 changes.",
        "Work on a copy: z = z.clone(). A hook that changes what it is given also changes the cache.",
        "z[:, :, head] = value writes a vector [d_head] into that head at every row and token; return z.",
    ),
    mistakes={
        "axis 1 is the token: the head is axis 2.": lambda z, head, value: _ablated(
            z.swapaxes(1, 2), head, value
        ).swapaxes(1, 2),
        "only the last token is ablated: everything before it goes on as it was.": lambda z, head, value: (
            np.concatenate([np.asarray(z)[:, :-1], np.asarray(_ablated(z, head, value))[:, -1:]], 1)
        ),
        "all heads but this one were replaced.": lambda z, head, value: (z - z) + _only(z, head, value),
        "the value was added: ablation replaces.": lambda z, head, value: _ablated(z, head, z[:, :, head] + value),
        "the head holds 0 whatever the value is: write the value that is given.": lambda z, head, value: _ablated(
            z, head, 0 * value
        ),
        "nothing was changed: return the changed copy.": lambda z, head, value: z,
        "the value was subtracted: ablation replaces what the head wrote.": lambda z, head, value: _ablated(
            z, head, z[:, :, head] - value
        ),
        "that is the head before it: heads are counted from 0, as axis 2 is.": lambda z, head, value: _ablated(
            z, head - 1, value
        ),
        "only the first row is ablated: the head is replaced in every row.": lambda z, head, value: np.concatenate(
            [np.asarray(_ablated(z, head, value))[:1], np.asarray(z)[1:]]
        ),
    },
)
def ablate(z: Any, head: int, value: Any) -> Any:
    """Heads' outputs z [row, token, head, d_head] with one head's replaced by value [d_head] at every token."""
    z = z.clone()
    z[:, :, head] = value
    return z


def _only(z: Any, head: int, value: Any) -> Any:
    rest = _ablated(z, head, value)
    other = [i for i in range(z.shape[2]) if i != head]
    rest[:, :, other] = 0
    rest[:, :, head] = z[:, :, head]
    return rest


def _streams() -> list[tuple[np.ndarray, int, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(7)
    writes = rng.normal(size=(6, 8)) * np.array([1, 1, 4, 1, 1, 1])[:, None]
    return [(writes, 2, rng.normal(size=8), rng.normal(size=(8, 3))), (writes, 0, np.ones(8), rng.normal(size=(8, 2)))]


def _read(x: np.ndarray, gain: np.ndarray, unembed: np.ndarray, scale: Any) -> np.ndarray:
    return (gain * x / scale) @ unembed


def _rms(x: np.ndarray) -> float:
    return float((x**2).mean() ** 0.5)


def _square(x: np.ndarray) -> float:
    return float((x**2).mean())


def _both(
    w: np.ndarray, i: int, g: np.ndarray, u: np.ndarray, scale: Callable[..., Any] = _rms, whole: Any = np.sum
) -> tuple[np.ndarray, np.ndarray]:
    stream = whole(w, 0)
    rest = stream - w[i]
    logits = _read(stream, g, u, scale(stream))
    return logits - _read(rest, g, u, scale(stream)), logits - _read(rest, g, u, scale(rest))


@exercise(
    minutes=12,
    difficulty=4,
    importance=4,
    rtol=1e-4,  # a norm's ε of 1e-5, which a careful answer may add, is right
    cases=_streams,
    axes="(frozen, recomputed)",
    right="the difference is what the final norm does: it rescales what all the others wrote.",
    hints=(
        "Both take the logits with everything, less the logits without component i. They differ in the scale that the "
        "second is read out with.",
        "The stream without i is writes.sum(0) − writes[i]. Frozen: its logits at the scale of the whole stream.",
        "Recomputed: at its own scale, ((stream − writes[i]) ** 2).mean() ** 0.5. In both, the first term is the "
        "whole stream at its own scale.",
    ),
    mistakes={
        "the two are exchanged: frozen first.": lambda w, i, g, u: _both(w, i, g, u)[::-1],
        "frozen at the scale of the rest: frozen means the scale of the whole stream.": lambda w, i, g, u: (
            _read(w[i], g, u, _rms(w.sum(0) - w[i])),
            _both(w, i, g, u)[1],
        ),
        "the second is the component at the rest's scale. The others are rescaled, too: subtract two sets of logits.": (
            lambda w, i, g, u: (_both(w, i, g, u)[0], _read(w[i], g, u, _rms(w.sum(0) - w[i])))
        ),
        "both frozen: for the second, recompute the scale from the stream without the component.": lambda w, i, g, u: (
            _both(w, i, g, u)[0],
            _both(w, i, g, u)[0],
        ),
        "that is without less with: turn both signs round.": lambda w, i, g, u: tuple(-x for x in _both(w, i, g, u)),
        "the gain is missing: the norm divides by the scale and multiplies by its gain.": lambda w, i, g, u: _both(
            w, i, np.ones_like(g), u
        ),
        "that scale is the standard deviation. RMSNorm takes no mean away: the root of the mean square.": (
            lambda w, i, g, u: _both(w, i, g, u, np.std)
        ),
        "that scale is the vector's length: the mean of the squares is asked, not their sum.": (
            lambda w, i, g, u: _both(w, i, g, u, np.linalg.norm)
        ),
        "that scale is the mean square: its root is missing.": lambda w, i, g, u: _both(w, i, g, u, _square),
        "frozen at the component's own scale: frozen means the scale of the whole stream.": lambda w, i, g, u: (
            _read(w[i], g, u, _rms(w[i])),
            _both(w, i, g, u)[1],
        ),
        "the stream is the sum of all writes, not their mean.": lambda w, i, g, u: _both(w, i, g, u, whole=np.mean),
        "these are the logits without it. An effect is with less without.": lambda w, i, g, u: tuple(
            _read(w.sum(0) - w[i], g, u, s) for s in (_rms(w.sum(0)), _rms(w.sum(0) - w[i]))
        ),
    },
)
def recomputed(writes: np.ndarray, i: int, gain: np.ndarray, unembed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What leaving out component i of writes [component, width] takes from the logits: norm frozen, norm recomputed."""
    stream = writes.sum(0)
    rest = stream - writes[i]
    scale, scale_of_rest = (stream**2).mean() ** 0.5, (rest**2).mean() ** 0.5
    logits = (gain * stream / scale) @ unembed
    return logits - (gain * rest / scale) @ unembed, logits - (gain * rest / scale_of_rest) @ unembed


def _patterns() -> list[tuple[np.ndarray, int]]:
    rng = np.random.default_rng(8)
    found = []
    for heads, n in ((3, 4), (2, 6)):
        weights = np.tril(rng.random((heads, 2 * n, 2 * n)) + 0.05)
        found.append((weights / weights.sum(2, keepdims=True), n))
    return found


def _diagonal(patterns: np.ndarray, n: int, back: int, first: int, end: int = 0) -> np.ndarray:
    return np.stack([patterns[:, q, q - back] for q in range(first, end or 2 * n)], 1).mean(1)


@exercise(
    minutes=8,
    difficulty=3,
    importance=4,
    cases=_patterns,
    axes="[head]",
    right="a diagonal of the pattern: from a token to the one after its earlier copy.",
    hints=(
        "The sequence is n tokens, twice. In the second half, token q is a copy of token q − n.",
        "An induction head at q attends to the token after that copy: key q − n + 1.",
        "Mean over q = n … 2n − 1 of patterns[:, q, q − n + 1].",
    ),
    mistakes={
        "that is the copy itself, key q − n: an induction head attends to the token after it.": lambda p, n: _diagonal(
            p, n, n, n
        ),
        "that is the token before, key q − 1: a previous-token head.": lambda p, n: _diagonal(p, n, 1, n),
        "that is the token before the copy, key q − n − 1: the one after it is q − n + 1.": lambda p, n: _diagonal(
            p, n, n + 1, n
        ),
        "the last token of the second half is missing: it has an earlier copy, too.": lambda p, n: _diagonal(
            p, n, n - 1, n, 2 * n - 1
        ),
        "one query too many: q = n − 1 is the last of the first half, and has no earlier copy.": lambda p, n: _diagonal(
            p, n, n - 1, n - 1
        ),
        "that is a block of n × n weights: each query has one key, so index both with arrays of the same length.": (
            lambda p, n: p[:, n:, 1 : n + 1].mean((1, 2))
        ),
        "those are queries of the first half: q goes from n to 2n − 1.": lambda p, n: np.stack(
            [p[:, q, q - n + 1] for q in range(n)], 1
        ).mean(1),
        "that is the largest weight: take the mean over the queries.": lambda p, n: np.stack(
            [p[:, q, q - n + 1] for q in range(n, 2 * n)], 1
        ).max(1),
        "one further: key q − n + 2. The next token after the copy is q − n + 1.": lambda p, n: _diagonal(
            p, n, n - 2, n
        ),
        "query and key are exchanged: patterns are [head, query, key], and a query attends back.": lambda p, n: (
            np.stack([p[:, q - n + 1, q] for q in range(n, 2 * n)], 1).mean(1)
        ),
        "one number for each query: take the mean over them.": lambda p, n: np.stack(
            [p[:, q, q - n + 1] for q in range(n, 2 * n)], 1
        ),
    },
)
def induction_score(patterns: np.ndarray, n: int) -> np.ndarray:
    """Mean weight from each token of the second half to the one after its copy; patterns are [head, query, key]."""
    queries = np.arange(n, 2 * n)
    return patterns[:, queries, queries - n + 1].mean(1)
