"""Notebook 06: a mean that one token decides, how much a write changes, block influence, the depth score."""

from __future__ import annotations

import numpy as np

from .exercises import exercise


def _firsts(text: np.ndarray) -> np.ndarray:
    return np.concatenate([[True], text[1:] != text[:-1]])


def _sinks() -> list[tuple[np.ndarray, np.ndarray]]:
    text = np.repeat([0, 1, 2], [5, 3, 4])
    values = np.linspace(0.2, 0.5, 12) ** 2
    return [(values + 40.0 * _firsts(text), text), (np.arange(4.0) + 1, np.array([0, 0, 1, 1]))]


@exercise(
    minutes=5,
    difficulty=2,
    importance=3,
    cases=_sinks,
    axes="(mean over all tokens but first ones)",
    right="one token of each text decides a mean: here without it.",
    hints=(
        "Make a mask [token], True where a token is the first of its text, and average what it leaves out.",
        "A token is the first of its text where text differs from the token before; the very first token is one, too.",
        "first = np.r_[True, text[1:] != text[:-1]]; then values[~first].mean().",
    ),
    mistakes={
        "that is the mean over all tokens, the first ones too.": lambda values, text: values.mean(),
        "that is the mean over the first tokens alone. Turn the mask around.": lambda values, text: values[
            _firsts(text)
        ].mean(),
        "you left out the first token of the first text only: every text has one.": lambda values, text: values[
            1:
        ].mean(),
        "the first token of the first text is still in: no token before it differs.": lambda values, text: values[
            ~np.concatenate([[False], text[1:] != text[:-1]])
        ].mean(),
        "text > 0 leaves out the whole first text: leave out one token of each.": lambda values, text: values[
            text > 0
        ].mean(),
        "that is a mean of the texts' means: here all tokens count alike.": lambda values, text: np.mean(
            [values[text == each][1:].mean() for each in np.unique(text)]
        ),
        "the right tokens, but their median. Asked is the mean.": lambda values, text: np.median(
            values[~_firsts(text)]
        ),
    },
)
def without_first(values: np.ndarray, text: np.ndarray) -> float:
    """The mean of values [token] over all tokens but the first of each text; text [token] says whose they are."""
    first = np.r_[True, text[1:] != text[:-1]]
    return values[~first].mean()


def _writes() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(6)
    before = rng.normal(size=(5, 8)) * np.array([1, 2, 3, 4, 5])[:, None]
    return [(before, before + rng.normal(size=(5, 8))), (before, 0 * before)]


def _length(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=-1)


@exercise(
    minutes=5,
    difficulty=2,
    importance=4,
    cases=_writes,
    axes="[token]",
    right="0 where a write stays as it was, 1 where it is replaced by nothing.",
    hints=(
        "Two lengths for each token: that of the change, and that of the write as it was.",
        "np.linalg.norm(x, axis=1) is the length of each row of x [token, width].",
        "The length of write − changed, divided by the length of write.",
    ),
    mistakes={
        "as a share of the changed write: divide by the write as it was.": lambda write, changed: (
            _length(write - changed) / np.maximum(_length(changed), 1e-300)
        ),
        "that is the change in length. A write that turns round keeps its length: subtract first.": (
            lambda write, changed: np.abs(_length(write) - _length(changed)) / _length(write)
        ),
        "lengths, not squared lengths.": lambda write, changed: (_length(write - changed) / _length(write)) ** 2,
        "one number for each token, not one for all of them together.": lambda write, changed: (
            np.linalg.norm(write - changed) / np.linalg.norm(write)
        ),
        "that compares two lengths: a write that only turns has changed, too. Take the length of the change.": (
            lambda write, changed: _length(changed) / _length(write)
        ),
        "not yet divided by the length of the write.": lambda write, changed: _length(write - changed),
    },
)
def effect(write: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """How much a write [token, width] changes, as a share of its length, for each token."""
    return np.linalg.norm(write - changed, axis=1) / np.linalg.norm(write, axis=1)


def _streams() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(9)
    entered = rng.normal(size=(6, 8)) * np.arange(1, 7)[:, None]
    return [(entered, rng.normal(size=(6, 8))), (entered, 0.5 * entered)]


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / (_length(a) * _length(b))


@exercise(
    minutes=6,
    difficulty=2,
    importance=3,
    cases=_streams,
    right="a write along the stream has no influence by this measure, however long it is.",
    hints=(
        "What leaves the layer is what entered it plus what it writes.",
        "The cosine of two vectors is their product, summed over the width, divided by both lengths.",
        "left = entered + write; 1 − (entered * left).sum(1) / (norm of entered · norm of left); then the mean.",
    ),
    mistakes={
        "that is 1 less the cosine of the stream and the write: asked is what enters and what leaves.": (
            lambda entered, write: 1 - _cosines(entered, write).mean()
        ),
        "that is the cosine. The influence is 1 less it.": lambda entered, write: _cosines(
            entered, entered + write
        ).mean(),
        "one number for the layer: the mean over tokens.": lambda entered, write: (
            1 - _cosines(entered, entered + write)
        ),
        "that is the relative size of the write; block influence looks at directions alone.": lambda entered, write: (
            _length(write) / _length(entered)
        ).mean(),
    },
)
def block_influence(entered: np.ndarray, write: np.ndarray) -> float:
    """1 − cosine of what enters a layer and what leaves it, mean over tokens; both arguments are [token, width]."""
    left = entered + write
    lengths = np.linalg.norm(entered, axis=1) * np.linalg.norm(left, axis=1)
    return (1 - (entered * left).sum(1) / lengths).mean()


def _effects() -> list[tuple[np.ndarray]]:
    rng = np.random.default_rng(12)
    return [(rng.random((5, 7)),), (np.eye(4)[:3],)]


@exercise(
    minutes=6,
    difficulty=2,
    importance=4,
    cases=_effects,
    axes="[question]",
    right="the mean layer of each question, layers weighted by what their absence does.",
    hints=(
        "It is a weighted mean of the layers' numbers; the weights of a question are its row of effects.",
        "The numbers are np.arange(effects.shape[1]): they begin at 0.",
        "Sum effects · layer over axis 1, and divide by the sum of effects over axis 1.",
    ),
    mistakes={
        "layers count from 0, not from 1.": lambda e: e @ np.arange(1, e.shape[1] + 1) / e.sum(1),
        "divide by the sum of the effects: it is a weighted mean.": lambda e: e @ np.arange(e.shape[1]),
        "divide by the sum of the effects, not by the number of layers.": lambda e: (
            e @ np.arange(e.shape[1]) / e.shape[1]
        ),
        "that is the layer with the largest effect, not the mean layer.": lambda e: e.argmax(1).astype(float),
        "that is the share of the depth, from 0 to 1. Asked is the score in layers.": lambda e: (
            e @ np.arange(e.shape[1]) / e.sum(1) / (e.shape[1] - 1)
        ),
        "one score for all questions: sum over layers, axis 1, only.": lambda e: (
            (e.sum(0) @ np.arange(e.shape[1])) / e.sum()
        ),
    },
)
def depth_score(effects: np.ndarray) -> np.ndarray:
    """The depth score of each question, from effects [question, layer]."""
    layer = np.arange(effects.shape[1])
    return (effects * layer).sum(1) / effects.sum(1)
