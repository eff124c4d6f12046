"""An estimate, its interval, what it is held against, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.stats import t

from ..ensemble.intervals import LEAST, LEVEL, jackknife, leave_one_out
from ..ensemble.permutation import cluster_numbers

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["confirmed", "refuted", "within noise", "not tested"]
# What differs between seeds is an average over shapes and tasks, which is nearly normal: Student's interval of three
# is right for it, and wide.
LEAST_SEEDS = 3
# Shares that differ from the counts' by less than this count as proportional to them.
MARGIN = 0.05


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and what the interval is over."""

    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    interval_over: str = ""
    n: int = 0
    p: float = np.nan


@dataclass(frozen=True)
class Reading:
    """One reading of a claim. `side` is the side of `null` that the claim is on: 1 above, −1 below.

    Where no null is known that holds, `null` is NaN. `tested` says that the claim has a test of its own, without
    whose p there is no verdict.
    """

    number: int
    claim: str
    variant: str
    found: Estimate
    null: float
    side: int
    measured_in: str
    rationale: str
    tested: bool = False

    @property
    def verdict(self) -> Verdict:
        """What the interval says, and the test against a null of its own where there is one."""
        e = self.found
        if not np.isfinite([e.low, e.high, self.null]).all() or (self.tested and not np.isfinite(e.p)):
            return "not tested"
        if np.isfinite(e.p) and e.p >= 1 - LEVEL:
            return "within noise"
        above, below = e.low > self.null, e.high < self.null
        if not (above or below):
            return "within noise"
        return "confirmed" if above == (self.side > 0) else "refuted"

    def record(self) -> dict[str, Any]:
        """A row of the claims table."""
        e = self.found
        return {
            "number": self.number,
            "claim": self.claim,
            "variant": self.variant,
            "estimate": e.estimate,
            "low": e.low,
            "high": e.high,
            "null": self.null,
            "measured_in": self.measured_in,
            "p": e.p,
            "interval_over": e.interval_over,
            "n": e.n,
            "verdict": self.verdict,
            "rationale": self.rationale,
        }


def mean_of(
    values: pd.Series, clusters: Mapping[str, Hashable] | None = None, p: float = np.nan, tasks: bool = True
) -> Estimate:
    """The mean of numbers of (model, task), with an interval over models, or over the tasks of few models.

    Models of one cluster count as one. An interval over tasks speaks of other tasks on these models only; without
    `tasks` there is none.
    """
    values = values[np.isfinite(values)]
    if values.empty:
        return Estimate(interval_over="nothing")
    means = values.groupby(level="model", sort=False).mean()
    number = cluster_numbers(means.index.tolist(), clusters)
    e = averaged(means.groupby(number, sort=False).mean().to_numpy(), "models", p)
    if e.interval_over == "nothing" and tasks:
        by_task = averaged(values.groupby(level="task", sort=False).mean().to_numpy(), "tasks", p)
        return by_task if by_task.interval_over != "nothing" else e
    return e


def averaged(values: Float[np.ndarray, " one"], over: str, p: float = np.nan) -> Estimate:
    """The mean with Hall's interval; without one where there are fewer than `LEAST`, or nothing at all.

    >>> e = averaged(np.arange(8.0), "models")
    >>> bool(e.low < e.estimate < e.high), averaged(np.arange(7.0), "models").interval_over
    (True, 'nothing')
    """
    values = values[np.isfinite(values)]
    n, middle = len(values), float(values.mean()) if len(values) else np.nan
    if n < LEAST:
        return Estimate(middle, interval_over="nothing", n=n, p=p)
    low, high = map(float, jackknife(middle, leave_one_out(values)))
    return Estimate(middle, low, high, over, n, p)


def student(values: Float[np.ndarray, " one"], over: str) -> Estimate:
    """The mean over training seeds with Student's interval; without one where there are too few, or nothing at all.

    >>> e = student(np.array([1.0, 2.0, 3.0]), "seeds")
    >>> round(e.low, 3), e.estimate, round(e.high, 3)
    (-0.484, 2.0, 4.484)
    """
    values = values[np.isfinite(values)]
    n = len(values)
    if n < LEAST_SEEDS:
        return Estimate(float(values.mean()) if n else np.nan, interval_over="nothing", n=n)
    middle, half = values.mean(), t.ppf(0.5 + LEVEL / 2, n - 1) * values.std(ddof=1) / np.sqrt(n)
    return Estimate(float(middle), float(middle - half), float(middle + half), over, n)


def scaled(e: Estimate, back: Callable[[float], float]) -> Estimate:
    """An estimate taken on another scale (Fisher's z, a logarithm), back on its own."""
    estimate, low, high = (float(back(x)) for x in (e.estimate, e.low, e.high))
    return Estimate(estimate, low, high, e.interval_over, e.n, e.p)


def spoken(e: Estimate, what: str, clustered: bool = False, tasks: bool = True) -> str:
    """Why there is a verdict or none, as far as it depends on how much there is."""
    seeds = "; training seeds of one shape count as one model" if clustered else ""
    if e.interval_over == "models":
        return f"{what}; the interval is over {e.n} models{seeds}"
    if e.interval_over == "tasks":
        return f"{what}; the interval is over {e.n} tasks and speaks of these models only"
    return f"{what}; an interval needs {LEAST} models" + (f" or {LEAST} tasks" if tasks else "") + seeds


def table_of(rows: Sequence[Reading]) -> pd.DataFrame:
    """The claims table: one row per reading."""
    import pandas as pd

    frame = pd.DataFrame([row.record() for row in rows])
    frame.attrs["level"] = LEVEL
    return frame
