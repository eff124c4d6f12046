"""What result tables are made of: columns that name rows, means over examples with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .arrays import ratio
from .intervals import jackknife, leave_one_out, mean_interval, wilson

if TYPE_CHECKING:
    import pandas as pd

ENDS = ("", "_low", "_high")


@dataclass(frozen=True, eq=False)
class PerExample:
    """A table before it is averaged: columns that name its rows, and every term `[example, row]`."""

    names: dict[str, Any]
    terms: dict[str, Float[np.ndarray, "example row"]]

    def frame(self) -> pd.DataFrame:
        """Means over examples with their intervals: Wilson's for accuracy."""
        import pandas as pd

        columns = means({name: values for name, values in self.terms.items() if name != "accuracy"})
        if "accuracy" in self.terms:
            correct = self.terms["accuracy"]
            ends = wilson(correct.sum(0), len(correct))
            columns |= with_ends("accuracy", correct.mean(0), *ends)
        return pd.DataFrame(self.names | columns)


def with_ends(name: str, value: Any, low: Any, high: Any) -> dict[str, Any]:
    """The three columns of a number and its interval."""
    return {name + end: x for end, x in zip(ENDS, (value, low, high), strict=True)}


def means(terms: dict[str, Float[np.ndarray, "example row"]]) -> dict[str, np.ndarray]:
    """Mean over examples with its interval, for every term."""
    columns: dict[str, np.ndarray] = {}
    for name, values in terms.items():
        columns |= with_ends(name, mean_of(values), *mean_interval(values))
    return columns


def mean_of(values: Float[np.ndarray, "example row"]) -> Float[np.ndarray, " row"]:
    """Over the examples that have a value; NaN where none has."""
    known = np.isfinite(values)
    if known.all():
        return values.mean(0)
    return ratio(np.where(known, values, 0.0).sum(0), known.sum(0))


def accuracy_term(correct: np.ndarray | None) -> dict[str, Float[np.ndarray, "example row"]]:
    """The term of that name, where there are labels."""
    return {} if correct is None else {"accuracy": correct.astype(np.float64).reshape(len(correct), -1)}


def shares(
    values: Float[np.ndarray, "example row"], whole: Float[np.ndarray, " example"]
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Each row's share of a whole, a ratio of means over examples, with the jackknife's interval; NaN of no whole.

    Shares of what is never negative lie between 0 and 1, and so do their intervals.
    """
    share, left_out = ratio(values.mean(0), whole.mean()), ratio(leave_one_out(values), leave_one_out(whole)[:, None])
    return share, *jackknife(share, left_out, within=(0.0, 1.0) if (values >= 0).all() else (-np.inf, np.inf))
