"""Notebook 02: centered diversity, what the loss would be without a direct contribution, a paired bootstrap."""

from __future__ import annotations

import numpy as np

from .exercises import exercise


def _values() -> list[tuple[np.ndarray]]:
    rng = np.random.default_rng(4)
    shifts = rng.normal(size=(7, 5, 1)) * 3
    return [(rng.normal(size=(7, 5, 4)) + shifts,), (rng.normal(size=(3, 8, 2)),)]


def _centered(values: np.ndarray) -> np.ndarray:
    return values - values.mean(2, keepdims=True)


def _apart(values: np.ndarray) -> np.ndarray:
    return _centered(values) - _centered(values).mean(1, keepdims=True)


@exercise(
    minutes=8,
    difficulty=2,
    importance=5,
    cases=_values,
    axes="[component]",
    right="one number for each component, and the same as the column diversity_centered.",
    hints=(
        "Two means are taken away: over the options (the shift), and over the components (the ensemble's mean).",
        "Center first, over axis 2. The ensemble's mean is that of the centered values over axis 1 (keepdims=True).",
        "The last step squares the differences, and takes the mean over rows and options: .mean((0, 2)).",
    ),
    mistakes={
        "that is the raw diversity. Subtract each component's mean over the options (axis 2) first.": lambda v: (
            (v - v.mean(1, keepdims=True)) ** 2
        ).mean((0, 2)),
        "that is the shift's diversity: the square of a mean over options. The centered part is the rest.": lambda v: (
            (v - v.mean(1, keepdims=True)).mean(2) ** 2
        ).mean(0),
        "that is the distance from 0. Subtract the mean over all components.": lambda v: (_centered(v) ** 2).mean(
            (0, 2)
        ),
        "the ensemble's prediction is the mean over its members, not their sum.": lambda v: (
            (_centered(v) - _centered(v).sum(1, keepdims=True)) ** 2
        ).mean((0, 2)),
        "one number for all of them: keep the components, and take the mean over rows and options.": lambda v: (
            _apart(v) ** 2
        ).mean(),
        "absolute differences: square them.": lambda v: np.abs(_apart(v)).mean((0, 2)),
        "the root of it: diversity is in squared logits.": lambda v: (_apart(v) ** 2).mean((0, 2)) ** 0.5,
        "the mean over rows was taken before the square, so that rows cancel.": lambda v: (_apart(v).mean(0) ** 2).mean(
            1
        ),
        "the distance from the mean over rows (axis 0). The ensemble's members are the components, axis 1.": lambda v: (
            (_centered(v) - _centered(v).mean(0)) ** 2
        ).mean((0, 2)),
        "means over axis 1 or 2 need keepdims=True to be subtracted.": lambda v: v - v.mean(2),
        "that is the variance of a component over rows and options, its distance from its own mean.": lambda v: v.var(
            (0, 2)
        ),
        "the members are centered, the ensemble's mean is not: take the mean of the centered values.": lambda v: (
            (_centered(v) - v.mean(1, keepdims=True)) ** 2
        ).mean((0, 2)),
        "the mean over rows was subtracted. Center over the options, axis 2.": lambda v: (
            (v - v.mean(0) - (v - v.mean(0)).mean(1, keepdims=True)) ** 2
        ).mean((0, 2)),
        "the ensemble's mean was taken over rows, too: each row has its own prediction.": lambda v: (
            (_centered(v) - _centered(v).mean((0, 1))) ** 2
        ).mean((0, 2)),
        "the square of a difference is no difference of squares: subtract the ensemble's mean first.": lambda v: (
            (_centered(v) ** 2).mean((0, 2)) - (_centered(v).mean(1) ** 2).mean()
        ),
        "that is the raw diversity less the shift's mean square: center first, then compare with the mean.": lambda v: (
            ((v - v.mean(1, keepdims=True)) ** 2).mean((0, 2)) - (v.mean(2) ** 2).mean(0)
        ),
        "the first option only: take the mean over options.": lambda v: (_apart(v) ** 2).mean(0)[:, 0],
        "differences that are not squared cancel to 0.": lambda v: _apart(v).mean((0, 2)),
    },
)
def centered_diversity(values: np.ndarray) -> np.ndarray:
    """Diversity of every component's centered part; values are [row, component, option]."""
    centered = values - values.mean(2, keepdims=True)
    mean = centered.mean(1, keepdims=True)
    return ((centered - mean) ** 2).mean((0, 2))


def _tasks() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [
        (rng.normal(size=(6, 5, 4)), np.array([0, 1, 2, 3, 0, 1])),
        (2 * rng.normal(size=(9, 3, 3)), np.arange(9) % 3),
    ]


def _losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    log = logits - logits.max(-1, keepdims=True)
    log = log - np.log(np.exp(log).sum(-1, keepdims=True))
    return -log[np.arange(len(log)), labels]


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _without(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rest = values.sum(1, keepdims=True) - values
    return np.array([_losses(rest[:, i], labels).mean() for i in range(values.shape[1])])


@exercise(
    minutes=12,
    difficulty=3,
    importance=4,
    cases=_tasks,
    axes="[component]",
    right="this is the direct effect on the loss: what the softmax makes of the sum without one term.",
    hints=(
        "The logits without component i are the sum over components, less values[:, i].",
        "The cross-entropy of a row is −log softmax at its label: logits[label] − log Σ exp(logits), with a minus.",
        "Loop over components: the mean cross-entropy of total − values[:, i], less that of total. A positive number "
        "means that the loss rises without it.",
    ),
    mistakes={
        "that is the loss without each; the rise is that less the loss of the full sum.": _without,
        "that is the loss of each component alone: take it out of the sum, rather than all the others.": lambda v, y: (
            np.array([_losses(v[:, i], y).mean() for i in range(v.shape[1])]) - _losses(v.sum(1), y).mean()
        ),
        "the ensemble was divided by its size: the model's logits are the sum, not the mean.": lambda v, y: np.array(
            [
                _losses((v.sum(1) - v[:, i]) / (v.shape[1] - 1), y).mean() - _losses(v.mean(1), y).mean()
                for i in range(v.shape[1])
            ]
        ),
        "the ensemble is not to be divided by its size: the logits are the sum, and so is the rest.": lambda v, y: (
            np.array([_losses((v.sum(1) - v[:, i]) / v.shape[1], y).mean() for i in range(v.shape[1])])
            - _losses(v.mean(1), y).mean()
        ),
        "the component was taken out of the mean, not of the sum.": lambda v, y: (
            np.array([_losses(v.mean(1) - v[:, i], y).mean() for i in range(v.shape[1])]) - _losses(v.mean(1), y).mean()
        ),
        "the component was added once more, not taken out.": lambda v, y: (
            np.array([_losses(v.sum(1) + v[:, i], y).mean() for i in range(v.shape[1])]) - _losses(v.sum(1), y).mean()
        ),
        "that is how much the right option's logit falls. The loss has the other options in it, too.": lambda v, y: v[
            np.arange(len(v)), :, y
        ].mean(0),
        "that is the net, the slope at the full sum. The rise is a difference of two losses.": lambda v, y: (
            v[np.arange(len(v)), :, y].mean(0) - np.einsum("rko,ro->k", v, _softmax(v.sum(1))) / len(v)
        ),
        "that is the net, a slope, negative where a component helps. The rise compares two losses.": lambda v, y: (
            np.einsum("rko,ro->k", v, _softmax(v.sum(1))) / len(v) - v[np.arange(len(v)), :, y].mean(0)
        ),
        "that is the loss of each component alone. Take it out of the sum of all, and compare.": lambda v, y: np.array(
            [_losses(v[:, i], y).mean() for i in range(v.shape[1])]
        ),
        "the option with the largest logit was taken for the right one: labels says which it is.": lambda v, y: (
            _without(v, v.sum(1).argmax(1)) - _losses(v.sum(1), v.sum(1).argmax(1)).mean()
        ),
        "p[:, labels] pairs every row with every label. p[np.arange(len(labels)), labels] takes one of each row.": (
            lambda v, y: np.array(
                [
                    (np.log(_softmax(v.sum(1))[:, y]) - np.log(_softmax(v.sum(1) - v[:, i])[:, y])).mean()
                    for i in range(v.shape[1])
                ]
            )
        ),
        "the mean was taken before the log: a loss is the mean of −log p.": lambda v, y: np.array(
            [
                np.log(np.exp(-_losses(v.sum(1), y)).mean() / np.exp(-_losses(v.sum(1) - v[:, i], y)).mean())
                for i in range(v.shape[1])
            ]
        ),
        "the component was replaced by its mean over rows. Leave it out.": lambda v, y: np.array(
            [
                (_losses(v.sum(1) - v[:, i] + v[:, i].mean(0), y) - _losses(v.sum(1), y)).mean()
                for i in range(v.shape[1])
            ]
        ),
        "the softmax ran over rows (axis 0). It belongs to the options, the last axis.": lambda v, y: np.array(
            [
                (
                    np.log(_softmax(v.sum(1).T).T[np.arange(len(v)), y])
                    - np.log(_softmax((v.sum(1) - v[:, i]).T).T[np.arange(len(v)), y])
                ).mean()
                for i in range(v.shape[1])
            ]
        ),
        "that is the squared error. The loss asked for is the cross-entropy.": lambda v, y: np.array(
            [
                ((v.sum(1) - v[:, i] - np.eye(v.shape[2])[y]) ** 2 - (v.sum(1) - np.eye(v.shape[2])[y]) ** 2).mean()
                for i in range(v.shape[1])
            ]
        ),
        "that is the rise as a share of the loss. Subtract, without dividing.": lambda v, y: (
            _without(v, y) / _losses(v.sum(1), y).mean() - 1
        ),
        "that is how much the accuracy falls. A loss is −log of a probability.": lambda v, y: np.array(
            [(v.sum(1).argmax(1) == y).mean() - ((v.sum(1) - v[:, i]).argmax(1) == y).mean() for i in range(v.shape[1])]
        ),
        "that is how much the right option's probability falls. The loss is its −log.": lambda v, y: np.array(
            [
                (np.exp(-_losses(v.sum(1), y)) - np.exp(-_losses(v.sum(1) - v[:, i], y))).mean()
                for i in range(v.shape[1])
            ]
        ),
        "the mean over all options was taken. The loss reads the right option of each row, labels[row].": lambda v, y: (
            np.array(
                [
                    np.log(_softmax(v.sum(1))).mean() - np.log(_softmax(v.sum(1) - v[:, i])).mean()
                    for i in range(v.shape[1])
                ]
            )
        ),
        "the first option was taken for the right one: labels says which it is in each row.": lambda v, y: (
            _without(v, 0 * y) - _losses(v.sum(1), 0 * y).mean()
        ),
        "one number for each row: take the mean over rows.": lambda v, y: np.array(
            [_losses(v.sum(1) - v[:, i], y) - _losses(v.sum(1), y) for i in range(v.shape[1])]
        ),
    },
)
def rise_without(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How much the mean cross-entropy rises when each component's direct contributions are left out of the sum."""
    total = values.sum(1)  # [row, option]
    without = np.stack([total, *(total[:, None] - values).transpose(1, 0, 2)])  # the full sum, then each left out
    log = without - np.log(np.exp(without).sum(2, keepdims=True))
    losses = -log[:, np.arange(len(labels)), labels].mean(1)
    return losses[1:] - losses[0]


def _differences() -> list[tuple[np.ndarray, int, np.random.Generator]]:
    rng = np.random.default_rng(6)
    skewed = np.sort(rng.exponential(size=16)) ** 2 + 5  # so skewed that other intervals differ; the last row counts
    return [(skewed, 30_000, np.random.default_rng(0))]


def _means(x: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    return x[rng.integers(len(x), size=(n, len(x)))].mean(1)


@exercise(
    minutes=10,
    difficulty=3,
    importance=4,
    cases=_differences,
    axes="(low, high)",
    rtol=0.005,  # ends differ by at most 0.0025 over 100 seeds
    right="rows are drawn with replacement, as many as there are, and the middle 95 % of the means are kept.",
    hints=(
        "A bootstrap asks how the mean varies over samples like this one: draw rows with replacement, many times.",
        "rng.integers(len(x), size=(n, len(x))) gives the row numbers of n samples, each as large as the first.",
        "x[numbers].mean(1) are n means; np.quantile(means, [0.025, 0.975]) are the ends.",
    ),
    mistakes={
        "these are quantiles of the rows, not of means: how far single rows lie, however many there are.": (
            lambda x, n, rng: tuple(np.quantile(x, [0.025, 0.975]))
        ),
        "your samples hardly differ in their means: draw each with replacement, and as large as x, not of n rows.": (
            lambda x, n, rng: (x.mean(), x.mean())
        ),
        "the ends are those of the middle 90 %: 2.5 % are left out on either side.": (
            lambda x, n, rng: tuple(np.quantile(_means(x, n, rng), [0.05, 0.95]))
        ),
        "rng.integers leaves its upper end out: len(x) gives all rows, len(x) − 1 never draws the last.": (
            lambda x, n, rng: tuple(np.quantile(x[rng.integers(len(x) - 1, size=(n, len(x)))].mean(1), [0.025, 0.975]))
        ),
        "that is the basic bootstrap, reflected at the mean. Here the quantiles themselves are asked for.": (
            lambda x, n, rng: tuple(2 * x.mean() - np.quantile(_means(x, n, rng), [0.975, 0.025]))
        ),
        "as large as x: 40 rows were written out, and x may have any number. Take len(x).": lambda x, n, rng: tuple(
            np.quantile(rng.choice(x, (n, 40)).mean(1), [0.025, 0.975])
        ),
        "np.percentile takes percent, 2.5 and 97.5; these are 0.025 % and 0.975 %.": lambda x, n, rng: tuple(
            np.percentile(_means(x, n, rng), [0.025, 0.975])
        ),
        "the ends are those of the middle 99 %: 2.5 % are left out on either side, not 0.5 %.": lambda x, n, rng: tuple(
            np.quantile(_means(x, n, rng), [0.005, 0.995])
        ),
        "these are sums of the samples: take their means.": lambda x, n, rng: tuple(
            np.quantile(len(x) * _means(x, n, rng), [0.025, 0.975])
        ),
        "these are quantiles of rows that were drawn; take the mean of every sample first.": lambda x, n, rng: tuple(
            np.quantile(rng.choice(x, (n, len(x))), [0.025, 0.975])
        ),
        "np.quantile takes shares, 0.025 and 0.975; np.percentile takes 2.5 and 97.5.": lambda x, n, rng: np.quantile(
            x, [2.5, 97.5]
        ),
        "that is the normal interval, symmetric whatever the rows are like. Here draw samples and take quantiles.": (
            lambda x, n, rng: tuple(x.mean() + np.array([-1.96, 1.96]) * x.std() / len(x) ** 0.5)
        ),
        "those are the smallest and the largest of the means: take the middle 95 %.": lambda x, n, rng: (
            _means(x, n, rng).min(),
            _means(x, n, rng).max(),
        ),
        "the medians of the samples were taken; the interval is for the mean.": lambda x, n, rng: tuple(
            np.quantile(np.median(x[rng.integers(len(x), size=(n, len(x)))], 1), [0.025, 0.975])
        ),
        "5 % were left out on one side: 2.5 % belong to either.": lambda x, n, rng: tuple(
            np.quantile(_means(x, n, rng), [0, 0.95])
        ),
        "the two ends are exchanged: low first.": lambda x, n, rng: tuple(
            np.quantile(_means(x, n, rng), [0.975, 0.025])
        ),
        "that is the spread of single rows; a mean of len(x) rows varies less, by the root of len(x).": (
            lambda x, n, rng: (x.mean() - 1.96 * x.std(), x.mean() + 1.96 * x.std())
        ),
        "one standard error either way holds 68 %, not 95 %.": lambda x, n, rng: (
            x.mean() - x.std() / len(x) ** 0.5,
            x.mean() + x.std() / len(x) ** 0.5,
        ),
    },
)
def bootstrap_interval(x: np.ndarray, n: int, rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of x [row], from n resamples drawn with the generator rng."""
    rows = rng.integers(len(x), size=(n, len(x)))
    low, high = np.quantile(x[rows].mean(1), [0.025, 0.975])
    return low, high
