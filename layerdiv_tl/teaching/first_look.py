"""Notebook 01: the identity gap, the centered gauge, contributions from a TransformerLens cache."""

from __future__ import annotations

import numpy as np

from .exercises import exercise


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
        "nothing was subtracted.": lambda v: v,
    },
)
def center(values: np.ndarray) -> np.ndarray:
    """Contributions [component, option] less each component's mean over the options."""
    return values - values.mean(1, keepdims=True)
