"""Notebook 01: the identity gap, the centered part, contributions from a TransformerLens cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from .exercises import exercise


def _rows() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, 6, 3))
    short = values.sum(1)
    short[1, 2] += 0.02  # the largest difference is negative, and in neither the first row nor the first option
    short[2, 0] -= 0.004
    short[0, 1] += 0.001
    return [(values, short), (2 * values, 2 * values.sum(1) + 1e-4 * rng.normal(size=(4, 3)))]


@exercise(
    minutes=6,
    difficulty=2,
    importance=3,
    cases=_rows,
    right="nothing but the rounding of 32-bit numbers is left of a real model's gap.",
    hints=(
        "Two things are divided. Above: how far the sum over components is from the logits, at its worst.",
        "A sum may be too small as well as too large, so take np.abs of the difference before .max().",
        "Below: absolute values first, then the sum over components (axis 1), then the largest: "
        "np.abs(values).sum(1).max().",
    ),
    mistakes={
        "that is the absolute gap, in logits. Divide it by the largest sum of absolute contributions.": lambda v, m: (
            np.abs(v.sum(1) - m).max()
        ),
        "you divided by the logits, which are small where large contributions cancel. Take absolute values before you "
        "sum the components.": lambda v, m: np.abs(v.sum(1) - m).max() / np.abs(m).max(),
        "you divided by the largest single contribution. Sum the absolute values over the components first.": (
            lambda v, m: np.abs(v.sum(1) - m).max() / np.abs(v).max()
        ),
        "a sign is in the way: a sum may be too small as well as too large. Take np.abs of the difference.": (
            lambda v, m: (v.sum(1) - m).max() / np.abs(v).sum(1).max()
        ),
        "the sum of absolute contributions runs over components only; of these sums take the largest.": lambda v, m: (
            np.abs(v.sum(1) - m).max() / np.abs(v).sum()
        ),
        "the largest ratio is not the ratio of the largest: take .max() above and below, then divide.": lambda v, m: (
            np.abs(v.sum(1) - m) / np.abs(v).sum(1)
        ).max(),
        "a mean where the largest is asked for: a gap is the worst case.": lambda v, m: (
            np.abs(v.sum(1) - m).mean() / np.abs(v).sum(1).max()
        ),
        "the sum runs over the components, which are axis 1 of values; axis 0 are the rows.": lambda v, m: v.sum(0) - m,
        "the sum runs over the components, which are axis 1 of values; axis 2 are the options.": lambda v, m: (
            v.sum(2) - m
        ),
        "each difference was divided by its own logit: one division, by the largest sum of absolute contributions.": (
            lambda v, m: np.abs((v.sum(1) - m) / m).max()
        ),
        "means (or sums) where the largest is asked for, above and below: a gap is the worst case.": lambda v, m: (
            np.abs(v.sum(1) - m).mean() / np.abs(v).sum(1).mean()
        ),
        "you divided by the largest sum of signed contributions. Take absolute values before you sum.": lambda v, m: (
            np.abs(v.sum(1) - m).max() / np.abs(v.sum(1)).max()
        ),
        "the sum runs over components only: differences of other rows and options cancel in it.": lambda v, m: (
            np.abs(v.sum() - m.sum()) / np.abs(v).sum()
        ),
        "below, the sum of absolute contributions ran over the rows, too.": lambda v, m: (
            np.abs(v.sum(1) - m).max() / np.abs(v).sum((0, 1)).max()
        ),
        "below, the sum ran over the options; it belongs to the components, axis 1.": lambda v, m: (
            np.abs(v.sum(1) - m).max() / np.abs(v).sum(2).max()
        ),
        "contributions add up to the logits: take their sum over components, not their mean.": lambda v, m: (
            np.abs(v.mean(1) - m).max() / np.abs(v).sum(1).max()
        ),
        "only the first row was looked at: the largest is over all rows.": lambda v, m: (
            np.abs(v[0].sum(0) - m[0]).max() / np.abs(v[0]).sum(0).max()
        ),
        "that says whether they are close (True or False). How far apart are they, as a share?": lambda v, m: (
            np.allclose(v.sum(1), m)
        ),
        "norms were taken; the gap is made of largest absolute values.": lambda v, m: (
            np.linalg.norm(v.sum(1) - m) / np.linalg.norm(v)
        ),
        "a mean of ratios, where the worst case is asked for.": lambda v, m: (
            np.abs(v.sum(1) - m) / np.abs(v).sum(1)
        ).mean(),
        "the fraction is upside down.": lambda v, m: np.abs(v).sum(1).max() / np.abs(v.sum(1) - m).max(),
        "in percent; a share is asked for.": lambda v, m: 100 * np.abs(v.sum(1) - m).max() / np.abs(v).sum(1).max(),
        "take absolute values below, too.": lambda v, m: np.abs(v.sum(1) - m).max() / v.sum(1).max(),
        "one ratio for each row and option: take the largest of both, above and below.": lambda v, m: (
            np.abs(v.sum(1) - m) / np.abs(v).sum(1)
        ),
    },
)
def identity_gap(values: np.ndarray, logits: np.ndarray) -> float:
    """How far contributions [row, component, option] are from summing to logits [row, option], as a share."""
    largest = np.abs(values.sum(1) - logits).max()
    return float(largest / np.abs(values).sum(1).max())


def _softmax(logits: Any) -> Any:
    weights = (logits - logits.max()).exp() if hasattr(logits, "exp") else np.exp(logits - logits.max())
    return weights / weights.sum(-1)[:, None]


def _arrays() -> list[tuple[np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(5, 3)) + np.arange(5)[:, None],), (rng.normal(size=(4, 4)) * 3 + 1,)]


@exercise(
    minutes=4,
    difficulty=2,
    importance=5,
    cases=_arrays,
    axes="[component, option]",
    right="every row sums to 0, and what goes to all options alike is gone.",
    hints=(
        "What every option of one component has in common is the mean over that component's options.",
        "values.mean(1) has one number per component. To be subtracted from rows it needs an axis of length 1.",
        "mean(1, keepdims=True) has the shape [component, 1], and subtracts from [component, option].",
    ),
    mistakes={
        "that is the mean over the components (axis 0). The options are axis 1.": lambda v: v - v.mean(0),
        "one mean of everything was subtracted. Each component has its own mean over the options.": lambda v: (
            v - v.mean()
        ),
        "that is the shift, one number per component. Subtract it from the values.": lambda v: v.mean(1),
        "also divided by the standard deviation. Contributions keep their size, in logits.": lambda v: (
            (v - v.mean(1, keepdims=True)) / v.std(1, keepdims=True)
        ),
        "a mean over axis 1 needs keepdims=True to be subtracted from every row.": lambda v: v - v.mean(1),
        "that is the shift, written to every option. Subtract it from the values.": lambda v: (
            v.mean(1, keepdims=True) + 0 * v
        ),
        "that is less the first option, a foil. Subtract the mean over all options.": lambda v: v - v[:, :1],
        "nothing was subtracted.": lambda v: v,
        "that is less the median. The shift is a mean.": lambda v: v - np.median(v, axis=1, keepdims=True),
        "that is less the last option, a foil. Subtract the mean over all options.": lambda v: v - v[:, -1:],
        "absolute values lose which options are lowered. Keep the sign.": lambda v: np.abs(
            v - v.mean(1, keepdims=True)
        ),
        "centered over components, too. Each component keeps what it writes more than others.": lambda v: (
            v - v.mean(1, keepdims=True) - v.mean(0) + v.mean()
        ),
        "that is less the largest option, as a softmax does for safety. Subtract the mean.": lambda v: (
            v - v.max(1, keepdims=True)
        ),
        "those are probabilities. The centered part is in logits, with nothing exponentiated.": lambda v: (
            np.exp(v) / np.exp(v).sum(1, keepdims=True)
        ),
        "the mean over components was subtracted, too. Each component keeps what it writes more than others.": (
            lambda v: v - v.mean(1, keepdims=True) - v.mean(0)
        ),
        "the number of options is written out. Arrays have any number: mean(1), or divide by values.shape[1].": (
            lambda v: v - v.sum(1, keepdims=True) / 4
        ),
        "that is the sum over the options. Subtract their mean.": lambda v: v - v.sum(1, keepdims=True),
    },
)
def center(values: np.ndarray) -> np.ndarray:
    """Contributions [component, option] less each component's mean over the options."""
    return values - values.mean(1, keepdims=True)


@exercise(
    minutes=10,
    difficulty=3,
    importance=5,
    cases=lambda writes, scale, gain, unembed: [(writes, scale, gain, unembed)],
    axes="[component, option]",
    rtol=1e-3,  # sums of 576 products in float32
    right="direct logit attribution, from nothing but hooks: these are c.values[0] to rounding.",
    hints=(
        "Follow the formula: every write goes through the final norm of this pass, then through the unembedding.",
        "The frozen norm multiplies each of the 576 coordinates by the gain and divides by the one number scale.",
        "(gain * writes / scale) is [component, width]; unembed is [width, option]; @ sums over the width.",
    ),
    mistakes={
        "the final norm's gain is missing: it multiplies every coordinate. (A cache's apply_ln forgets it, too.)": (
            lambda writes, scale, gain, unembed: (writes / scale) @ unembed
        ),
        "the norm's scale is missing: the stream is divided by it before it is read out.": (
            lambda writes, scale, gain, unembed: (gain * writes) @ unembed
        ),
        "neither scale nor gain: the final norm stands between the stream and the unembedding.": (
            lambda writes, scale, gain, unembed: writes @ unembed
        ),
        "you multiplied by the scale: the norm divides by it.": (
            lambda writes, scale, gain, unembed: (gain * writes * scale) @ unembed
        ),
        "you divided by the gain: the norm multiplies by it.": lambda writes, scale, gain, unembed: (
            (writes / gain / scale) @ unembed
        ),
        "that is the centered part; here the raw contributions are asked for.": lambda writes, scale, gain, unembed: (
            (gain * writes / scale) @ (unembed - unembed.mean(1)[:, None])
        ),
        "each write was normalized by its own size. Frozen means: the one scale of this pass, the same for all.": (
            lambda writes, scale, gain, unembed: (gain * writes / (writes**2).mean(-1)[:, None] ** 0.5) @ unembed
        ),
        "softmax was taken. Contributions are parts of the logits, before the softmax.": (
            lambda writes, scale, gain, unembed: _softmax((gain * writes / scale) @ unembed)
        ),
        "that is the running sum along the depth. Keep what each component writes by itself.": (
            lambda writes, scale, gain, unembed: ((gain * writes / scale) @ unembed).cumsum(0)
        ),
        "1 was added to the gain, as Gemma does. Here gain is γ itself.": (
            lambda writes, scale, gain, unembed: ((1 + gain) * writes / scale) @ unembed
        ),
        "the mean was subtracted, as a LayerNorm does. This model's final norm is an RMSNorm.": (
            lambda writes, scale, gain, unembed: (gain * (writes - writes.mean(-1)[:, None]) / scale) @ unembed
        ),
        "you divided by the root of scale, which is a root mean square already.": (
            lambda writes, scale, gain, unembed: (gain * writes / scale**0.5) @ unembed
        ),
        "you divided by a norm, the root of a sum. σ is the root of a mean, and it is given: scale.": (
            lambda writes, scale, gain, unembed: (gain * writes / (writes.sum(0) ** 2).sum() ** 0.5) @ unembed
        ),
        "that is the sum, the logits. Keep one row for each component.": (
            lambda writes, scale, gain, unembed: ((gain * writes / scale) @ unembed).sum(0)
        ),
    },
)
def from_cache(writes: Any, scale: Any, gain: Any, unembed: Any) -> Any:
    """Contributions [component, option] of writes [component, width] at a frozen norm; unembed is [width, option]."""
    return (gain * writes / scale) @ unembed
