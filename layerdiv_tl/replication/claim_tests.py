"""Claims of the two papers, and their tests: estimate, interval, null, verdict (MATHS 13)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
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
# Bias that has come no further than this part of the way from a uniform prediction to 0 is away from 0.
HALF = 0.5


@dataclass(frozen=True)
class Claim:
    """What a paper says, as a number on one side of a null: 1 above it, −1 below it.

    A claim with `needs_p` has a permutation test of its own, without whose p it is not decided. A null of NaN: none
    is known that holds.
    """

    text: str
    null: float
    side: int
    measured_in: str
    needs_p: bool = False


CLAIMS: Mapping[int, Claim] = {
    1: Claim("MSE tracks accuracy along depth", 0.0, 1, "correlation", needs_p=True),
    2: Claim("Spearman's correlation is below Pearson's", np.nan, -1, "correlation"),
    3: Claim("Modules share bias in proportion to their number of members", MARGIN, -1, "share"),
    4: Claim("MLPs dominate diversity", 0.5, 1, "share"),
    5: Claim("Bias and diversity trade off only where accuracy stands still", 0.0, 1, "share", needs_p=True),
    6: Claim("Bias stays away from 0", HALF, 1, "ratio"),
    7: Claim("Returns diminish with the number of components", 0.0, -1, "points"),
    8: Claim("Reusing layers lowers diversity", 1.0, -1, "ratio"),
    9: Claim("The later half of the layers contributes less", 1.0, -1, "ratio"),
    10: Claim("Skipping late layers disturbs later computation less", 1.0, -1, "ratio"),
    11: Claim("Models do not use deeper layers for more hops", MARGIN, -1, "share of depth"),
    12: Claim("Layers at the same relative depth map best", 1.0, -1, "ratio"),
}


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, what the interval is over and how many these are, and a p."""

    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    interval_over: str = "nothing"
    n: int = 0
    p: float = np.nan

    def transformed(self, function: Callable[[float], float]) -> Estimate:
        """An estimate taken on another scale (Fisher's z, a logarithm), back on its own."""
        estimate, low, high = (float(function(x)) for x in (self.estimate, self.low, self.high))
        return Estimate(estimate, low, high, self.interval_over, self.n, self.p)

    def explained(self, quantity: str, clustered: bool = False, tasks: bool = True) -> str:
        """The quantity, and what its interval is over or needs."""
        seeds = "; training seeds of one shape count as one model" if clustered else ""
        if self.interval_over == "models":
            return f"{quantity}; the interval is over {self.n} models{seeds}"
        if self.interval_over == "tasks":
            return f"{quantity}; the interval is over {self.n} tasks and speaks of these models only"
        return f"{quantity}; an interval needs {LEAST} models" + (f" or {LEAST} tasks" if tasks else "") + seeds


@dataclass(frozen=True)
class ClaimTest:
    """One variant of a claim, tested; `null` and `measured_in` are the claim's own where they are None."""

    number: int
    variant: str
    estimate: Estimate
    rationale: str
    null: float | None = None
    measured_in: str | None = None

    @property
    def claim(self) -> Claim:
        """What the paper says."""
        return CLAIMS[self.number]

    @property
    def verdict(self) -> Verdict:
        """On which side of the null the interval lies, if the claim's own test, where it has one, is significant."""
        e, null = self.estimate, self.claim.null if self.null is None else self.null
        if not np.isfinite([e.low, e.high, null]).all() or (self.claim.needs_p and not np.isfinite(e.p)):
            return "not tested"
        if (np.isfinite(e.p) and e.p >= 1 - LEVEL) or e.low <= null <= e.high:
            return "within noise"
        return "confirmed" if (e.low > null) == (self.claim.side > 0) else "refuted"

    def row(self) -> dict[str, Any]:
        """A row of the claims table."""
        e = self.estimate
        return {
            "number": self.number,
            "claim": self.claim.text,
            "variant": self.variant,
            "estimate": e.estimate,
            "low": e.low,
            "high": e.high,
            "null": self.claim.null if self.null is None else self.null,
            "measured_in": self.claim.measured_in if self.measured_in is None else self.measured_in,
            "p": e.p,
            "interval_over": e.interval_over,
            "n": e.n,
            "verdict": self.verdict,
            "rationale": self.rationale,
        }


def claims_frame(tests: Iterable[ClaimTest]) -> pd.DataFrame:
    """The claims table: one row per test."""
    import pandas as pd

    frame = pd.DataFrame([test.row() for test in tests])
    frame.attrs["confidence_level"] = LEVEL
    return frame


def mean_over_models(
    values: pd.Series, clusters: Mapping[str, Hashable] | None = None, p: float = np.nan, tasks: bool = True
) -> Estimate:
    """The mean of numbers of (model, task), with an interval over models, or over the tasks of few models.

    Models of one cluster count as one. An interval over tasks speaks of other tasks on these models only; without
    `tasks` there is none.
    """
    values = values[np.isfinite(values)]
    if values.empty:
        return Estimate()
    means = values.groupby(level="model", sort=False).mean()
    cluster = cluster_numbers(means.index.tolist(), clusters)
    over_models = hall_mean(means.groupby(cluster, sort=False).mean().to_numpy(), "models", p)
    if over_models.interval_over == "models" or not tasks:
        return over_models
    over_tasks = hall_mean(values.groupby(level="task", sort=False).mean().to_numpy(), "tasks", p)
    return over_tasks if over_tasks.interval_over == "tasks" else over_models


def hall_mean(values: Float[np.ndarray, " value"], over: str, p: float = np.nan) -> Estimate:
    """The mean with Hall's interval; without one where there are fewer than `LEAST`.

    >>> e = hall_mean(np.arange(8.0), "models")
    >>> bool(e.low < e.estimate < e.high), hall_mean(np.arange(7.0), "models").interval_over
    (True, 'nothing')
    """
    values = values[np.isfinite(values)]
    n, mean = len(values), float(values.mean()) if len(values) else np.nan
    if n < LEAST:
        return Estimate(mean, n=n, p=p)
    low, high = map(float, jackknife(mean, leave_one_out(values)))
    return Estimate(mean, low, high, over, n, p)


def student_mean(values: Float[np.ndarray, " seed"], over: str = "seeds") -> Estimate:
    """The mean over training seeds with Student's interval; without one where there are fewer than three.

    >>> e = student_mean(np.array([1.0, 2.0, 3.0]))
    >>> round(e.low, 3), e.estimate, round(e.high, 3)
    (-0.484, 2.0, 4.484)
    """
    values = values[np.isfinite(values)]
    n, mean = len(values), float(values.mean()) if len(values) else np.nan
    if n < LEAST_SEEDS:
        return Estimate(mean, n=n)
    half = float(t.ppf(0.5 + LEVEL / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Estimate(mean, mean - half, mean + half, over, n)
