"""Notebook 09: contributions behind a LayerNorm, neurons, answers of several tokens, a tuned lens, an adapter."""

from __future__ import annotations

import numpy as np

from .exercises import exercise

Case = tuple[np.ndarray, ...]


def _gpt2() -> list[Case]:
    rng = np.random.default_rng(2)
    writes = rng.normal(size=(5, 8)) + 1
    return [(writes, writes.sum(0).std(), rng.normal(size=8), rng.normal(size=8), rng.normal(size=(8, 3)))]


def _through(writes: np.ndarray, scale: float, gain: np.ndarray, unembed: np.ndarray) -> np.ndarray:
    return (gain * (writes - writes.mean(-1, keepdims=True)) / scale) @ unembed


@exercise(
    minutes=10,
    difficulty=3,
    importance=5,
    cases=_gpt2,
    axes="[component + 1, option]",
    right="centered writes at the pass's scale, and a last row, the constant, for the norm's bias.",
    hints=(
        "LayerNorm takes each vector's mean over the width away before it divides. A sum's mean is the sum of means.",
        "So each write is centered by itself: writes − writes.mean(1, keepdims=True). Then gain, scale, unembedding.",
        "The norm's bias is added once, after the gain: bias @ unembed is a row of its own, below the others.",
    ),
    mistakes={
        "the writes are not centered: LayerNorm takes the mean over the width away.": lambda w, s, g, b, u: np.vstack(
            [(g * w / s) @ u, b @ u]
        ),
        "centered over the components (axis 0): the norm's mean is over the width.": lambda w, s, g, b, u: np.vstack(
            [(g * (w - w.mean(0)) / s) @ u, b @ u]
        ),
        "the norm's bias is missing: it is a row of its own, the last.": lambda w, s, g, b, u: _through(w, s, g, u),
        "the bias was divided by the scale: it is added after that.": lambda w, s, g, b, u: np.vstack(
            [_through(w, s, g, u), (b / s) @ u]
        ),
        "the bias was given to every component: it is there once.": lambda w, s, g, b, u: _through(w, s, g, u) + b @ u,
        "each write was divided by its own scale. Frozen: the one scale of this pass.": lambda w, s, g, b, u: np.vstack(
            [_through(w, w.std(1, keepdims=True), g, u), b @ u]
        ),
        "the bias was scaled like a write: the norm adds it after scale and gain.": lambda w, s, g, b, u: np.vstack(
            [_through(w, s, g, u), (g * b / s) @ u]
        ),
        "the bias was centered and scaled like a write: it is added after that.": lambda w, s, g, b, u: _through(
            np.vstack([w, b]), s, g, u
        ),
        "the gain is missing.": lambda w, s, g, b, u: np.vstack([_through(w, s, np.ones_like(g), u), b @ u]),
        "the scale is missing: divide the centered writes by it.": lambda w, s, g, b, u: np.vstack(
            [_through(w, 1, g, u), b @ u]
        ),
        "multiplied by the scale: divide by it.": lambda w, s, g, b, u: np.vstack([_through(w, 1 / s, g, u), b @ u]),
        "`scale` is the standard deviation as it is: divide by it once, with no square and no root.": (
            lambda w, s, g, b, u: np.vstack([_through(w, s**2, g, u), b @ u])
        ),
        "divided by the root of `scale`: it is the standard deviation as it is.": lambda w, s, g, b, u: np.vstack(
            [_through(w, np.sqrt(s), g, u), b @ u]
        ),
        "centered by one number for all writes: each row has its own mean over the width.": lambda w, s, g, b, u: (
            np.vstack([(g * (w - w.mean()) / s) @ u, b @ u])
        ),
        "centered after the gain: the norm takes the mean away first.": lambda w, s, g, b, u: np.vstack(
            [((g * w - (g * w).mean(1, keepdims=True)) / s) @ u, b @ u]
        ),
        "the row's mean needs keepdims=True, or it does not line up with the width.": lambda w, s, g, b, u: (
            w - w.mean(1)
        ),
        "the contributions were centered over the options: give them raw.": lambda w, s, g, b, u: (
            lambda rows: rows - rows.mean(1, keepdims=True)
        )(np.vstack([_through(w, s, g, u), b @ u])),
        "the constant belongs below the others, as the last row.": lambda w, s, g, b, u: np.vstack(
            [b @ u, _through(w, s, g, u)]
        ),
    },
)
def through_layernorm(
    writes: np.ndarray, scale: float, gain: np.ndarray, bias: np.ndarray, unembed: np.ndarray
) -> np.ndarray:
    """Contributions of writes [component, width], and of the norm's bias as a last row: [component + 1, option]."""
    centered = writes - writes.mean(1, keepdims=True)
    rows = (gain * centered / scale) @ unembed
    return np.vstack([rows, bias @ unembed])


def _mlp() -> list[Case]:
    rng = np.random.default_rng(3)
    return [(rng.normal(size=6), rng.normal(size=(6, 8)), rng.normal(size=8))]


@exercise(
    minutes=6,
    difficulty=2,
    importance=4,
    cases=_mlp,
    axes="[neuron + 1, width]",
    right="one vector for each neuron, and the output's bias as the last row: their sum is what the MLP writes.",
    hints=(
        "The output of an MLP is activation @ w_out + bias: a sum over neurons. Keep the summands.",
        "Neuron n writes activation[n] times its row w_out[n].",
        "activation[:, None] * w_out is [neuron, width]; stack the bias below it with np.vstack.",
    ),
    mistakes={
        "that is the sum, what the MLP writes. Keep one row for each neuron.": lambda a, w, b: a @ w + b,
        "the bias is missing: no neuron writes it, so it has a row of its own, the last.": lambda a, w, b: (
            a[:, None] * w
        ),
        "the bias was given to every neuron: it is there once.": lambda a, w, b: a[:, None] * w + b,
        "the bias was shared out among the neurons. The sum is right, but no neuron writes it.": lambda a, w, b: (
            a[:, None] * w + b / len(a)
        ),
        "the bias belongs below the neurons, as the last row.": lambda a, w, b: np.vstack([b, a[:, None] * w]),
        "the activations are given as they are: apply no function to them.": lambda a, w, b: np.vstack(
            [np.maximum(a, 0)[:, None] * w, b]
        ),
        "activation has one number for each row of w_out: write activation[:, None] * w_out.": lambda a, w, b: a * w,
        "these are the weights: multiply each row by the neuron's activation.": lambda a, w, b: np.vstack([w, b]),
    },
)
def neuron_writes(activation: np.ndarray, w_out: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """What each neuron writes, activation [neuron], w_out [neuron, width]; last the bias: [neuron + 1, width]."""
    return np.vstack([activation[:, None] * w_out, bias])


def _logits() -> list[Case]:
    rng = np.random.default_rng(4)
    return [
        (3 * rng.normal(size=(3, 7)), np.array([2, 0, 6])),
        (3 * rng.normal(size=(1, 5)) + 800, np.array([4])),  # exp(800) is infinite
    ]


def _overflowing(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.log(p[np.arange(len(tokens)), tokens]).sum()


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max(1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))


@exercise(
    minutes=8,
    difficulty=3,
    importance=4,
    cases=_logits,
    axes="in nats",
    right="the sum of the log-probabilities of its tokens, each given those before.",
    hints=(
        "The probability of an answer is a product over its tokens, its logarithm a sum.",
        "The log-probability of a token is its logit less the logarithm of the sum of the exponentials of its row.",
        "Subtract each row's maximum first, or exponentials overflow. Then pick logits[range(len(tokens)), tokens].",
    ),
    mistakes={
        "that is the sum of logits, not of log-probabilities: each row is to be normalized.": lambda x, t: x[
            np.arange(len(t)), t
        ].sum(),
        "that is the mean over tokens, a score of its own. Asked is the log-probability, the sum.": lambda x, t: (
            _log_softmax(x)[np.arange(len(t)), t].mean()
        ),
        "that is the first token only.": lambda x, t: _log_softmax(x)[0, t[0]],
        "that is the last token only.": lambda x, t: _log_softmax(x)[-1, t[-1]],
        "that is the probability. Asked is its logarithm.": lambda x, t: np.exp(
            _log_softmax(x)[np.arange(len(t)), t].sum()
        ),
        "normalized over positions (axis 0): the vocabulary is axis 1.": lambda x, t: (
            _log_softmax(x.T).T[np.arange(len(t)), t].sum()
        ),
        "exponentials of large logits are infinite: subtract each row's maximum first.": _overflowing,
        "every position was asked for every token: position i predicts token i alone.": lambda x, t: _log_softmax(x)[
            :, t
        ].sum(),
        "shifted by one: row i of the logits predicts token i already.": lambda x, t: _log_softmax(x)[
            np.arange(len(t) - 1), t[1:]
        ].sum(),
        "that is in bits: take the natural logarithm.": lambda x, t: (
            _log_softmax(x)[np.arange(len(t)), t].sum() / np.log(2)
        ),
        "that is a sum of probabilities: take their logarithms first.": lambda x, t: np.exp(
            _log_softmax(x)[np.arange(len(t)), t]
        ).sum(),
        "that is the logarithm of a sum of probabilities: it is the sum of their logarithms.": lambda x, t: np.log(
            np.exp(_log_softmax(x)[np.arange(len(t)), t]).sum()
        ),
        "that is the mean loss, a cross-entropy: asked is the sum, and not its negative.": lambda x, t: (
            -_log_softmax(x)[np.arange(len(t)), t].mean()
        ),
        "only the maximum was subtracted: the logarithm of the sum of exponentials is missing.": lambda x, t: (
            x - x.max(1, keepdims=True)
        )[np.arange(len(t)), t].sum(),
        "normalized over the answer's own tokens: the vocabulary is all of axis 1.": lambda x, t: np.diag(
            _log_softmax(x[:, t])
        ).sum(),
        "normalized once over all positions: each row is a distribution of its own.": lambda x, t: (
            x[np.arange(len(t)), t].sum() - (x.max() + np.log(np.exp(x - x.max()).sum()))
        ),
    },
)
def log_likelihood(logits: np.ndarray, tokens: np.ndarray) -> float:
    """Log-probability of an answer's tokens [token]; logits [token, vocabulary] are those that predict each of them."""
    logits = logits - logits.max(1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return log_p[np.arange(len(tokens)), tokens].sum()


def _pairs() -> list[Case]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 4)) + 3
    y = x @ rng.normal(size=(4, 4)) + np.array([5.0, 0, -2, 1]) + 0.1 * rng.normal(size=(60, 4))
    return [(x, y, np.array([[1.0, 2, 3, 4], [0, 0, 0, 0]]))]


def _mapped(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, mx: np.ndarray, my: np.ndarray, ridge: float | None = None
) -> np.ndarray:
    a = x - mx
    ridge = 10 * (a**2).mean() if ridge is None else ridge
    return (new - mx) @ np.linalg.solve(a.T @ a + ridge * np.eye(x.shape[1]), a.T @ (y - my)) + my


def _with_ones(x: np.ndarray) -> np.ndarray:
    return np.hstack([x, np.ones((len(x), 1))])


def _shrunk(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    return np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)


def _ridged(x: np.ndarray, y: np.ndarray, new: np.ndarray, ridge: float) -> np.ndarray:
    return _mapped(x, y, new, x.mean(0), y.mean(0), ridge)


@exercise(
    minutes=12,
    difficulty=4,
    importance=3,
    cases=_pairs,
    axes="[new, width]",
    right="an affine map, fitted by least squares with a ridge: one layer's stream translated into the last one's.",
    hints=(
        "Center both with the means of the rows that are fitted, fit a linear map, and add the target's mean again.",
        "a = x − mean of x; the map is np.linalg.solve(a.T @ a + ridge · I, a.T @ (y − mean of y)), [width, width].",
        "The ridge is 10 times the mean of a ** 2. The result: (new − mean of x) @ map + mean of y.",
    ),
    mistakes={
        "the new rows were centered by their own mean: take that of the fitted rows.": lambda x, y, new: _mapped(
            x, y, new - new.mean(0) + x.mean(0), x.mean(0), y.mean(0)
        ),
        "without means: the map has no constant then.": lambda x, y, new: _mapped(x, y, new, 0 * x[0], 0 * y[0]),
        "the mean of y is missing from the result.": lambda x, y, new: (
            _mapped(x, y, new, x.mean(0), y.mean(0)) - y.mean(0)
        ),
        "the new rows were not centered: take the mean of the fitted rows from them, too.": lambda x, y, new: _mapped(
            x, y, new + x.mean(0), x.mean(0), y.mean(0)
        ),
        "the ridge is the mean of the squares once: take it 10 times.": lambda x, y, new: _ridged(
            x, y, new, ((x - x.mean(0)) ** 2).mean()
        ),
        "the ridge is 10: take 10 times the mean of the squares.": lambda x, y, new: _ridged(x, y, new, 10.0),
        "the ridge has the mean square of x as it is: of the centered x is asked.": lambda x, y, new: _ridged(
            x, y, new, 10 * (x**2).mean()
        ),
        "the ridge has the sum of the squares: their mean is asked, over rows and width.": lambda x, y, new: _ridged(
            x, y, new, 10 * ((x - x.mean(0)) ** 2).sum()
        ),
        "the ridge was multiplied by the number of rows: it is added to the sums a.T @ a as it is.": (
            lambda x, y, new: _ridged(x, y, new, 10 * len(x) * ((x - x.mean(0)) ** 2).mean())
        ),
        "the ridge was divided by the number of rows: it is added to the sums a.T @ a as it is.": (
            lambda x, y, new: _ridged(x, y, new, 10 / len(x) * ((x - x.mean(0)) ** 2).mean())
        ),
        "the constant was shrunk, too: center x and y, so that the ridge does not touch it.": lambda x, y, new: (
            _with_ones(new) @ _shrunk(_with_ones(x), y, 10 * ((x - x.mean(0)) ** 2).mean())
        ),
        "that is the mean of y whatever the row: the map is missing.": lambda x, y, new: np.repeat(
            y.mean(0)[None], len(new), 0
        ),
        "that maps y to x: fit the map from x to y.": lambda x, y, new: _mapped(y, x, new, y.mean(0), x.mean(0)),
        "the ridge is missing: with few rows the map fits noise.": lambda x, y, new: (
            (new - x.mean(0)) @ np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0] + y.mean(0)
        ),
    },
)
def translate(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Rows `new` [new, width] mapped by the affine map from x [row, width] to y, fitted with ridge 10 · mean(a²)."""
    a, mean = x - x.mean(0), y.mean(0)
    ridge = 10 * (a**2).mean() * np.eye(x.shape[1])
    weights = np.linalg.solve(a.T @ a + ridge, a.T @ (y - mean))
    return (new - x.mean(0)) @ weights + mean


def _lora() -> list[Case]:
    rng = np.random.default_rng(6)
    return [(rng.normal(size=(3, 5)), rng.normal(size=(2, 5)), rng.normal(size=(4, 2)), np.array(1.5))]


@exercise(
    minutes=6,
    difficulty=2,
    importance=4,
    cases=_lora,
    axes="[token, width]",
    right="what the adapter adds, of rank at most r: it lies in the span of the columns of b.",
    hints=(
        "LoRA adds scale · B A x to what a linear map gives; the map itself stays as it was.",
        "x is [token, in], a is [rank, in]: x @ a.T is [token, rank].",
        "scale * (x @ a.T) @ b.T.",
    ),
    mistakes={
        "the scale (alpha / r) is missing.": lambda x, a, b, scale: x @ a.T @ b.T,
        "divided by the scale: it multiplies.": lambda x, a, b, scale: x @ a.T @ b.T / scale,
        "the scale is alpha / r already: do not divide by the rank again.": lambda x, a, b, scale: (
            scale / len(a) * x @ a.T @ b.T
        ),
        "the scale was added: it multiplies.": lambda x, a, b, scale: scale + x @ a.T @ b.T,
        "the map in between is linear: no ReLU.": lambda x, a, b, scale: scale * np.maximum(x @ a.T, 0) @ b.T,
        "x is [token, in], one input a row: write x @ a.T @ b.T for B A x.": lambda x, a, b, scale: scale * b @ a @ x,
        "b @ a is [width, in] and x is [token, in]: the product needs (b @ a).T.": lambda x, a, b, scale: (
            scale * x @ (b @ a)
        ),
        "that is the change of the weights, [width, in]. Asked is what it writes for these inputs.": (
            lambda x, a, b, scale: scale * b @ a
        ),
    },
)
def adapter_writes(x: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    """What a LoRA adapter adds to a map's output for inputs x [token, in]; a is [rank, in], b is [width, rank]."""
    return scale * (x @ a.T) @ b.T
