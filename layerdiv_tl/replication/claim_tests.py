"""Claims of the two papers, and their tests: estimate, interval, null, verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import t

from ..components import Unit
from ..ensemble.intervals import LEAST, LEVEL, jackknife, leave_one_out
from ..ensemble.permutation import cluster_numbers

if TYPE_CHECKING:
    from ..studies.study import Study

Verdict = Literal["confirmed", "refuted", "within noise", "not tested"]
# What differs between seeds is an average over shapes and tasks, which is nearly normal: Student's interval of three
# is right for it, and wide.
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Claim:
    """What a paper says, as a number on one side of a null: 1 above it, −1 below it; read from claims.json.

    A claim with `needs_p` has a permutation test of its own, without whose p it is not decided. A null of NaN: none
    is known that holds. `quantity` is what is estimated, averaged on a `scale`; `undecided` says why no claim over
    seeds (of claim 2: none at all) is decided.
    """

    number: int
    text: str
    side: int
    measured_in: str
    null: float = np.nan
    needs_p: bool = False
    quantity: str = ""
    scale: Literal["as it is", "fisher", "log"] = "as it is"
    undecided: str = ""


_STORED = json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))
CLAIMS: Mapping[int, Claim] = {entry["number"]: Claim(**entry) for entry in _STORED}
# Scales on which numbers are averaged: there and back.
SCALES: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "as it is": (np.positive, float),
    "fisher": (lambda r: np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)), np.tanh),
    "log": (np.log, np.exp),
}


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, what the interval is over and how many these are, and a p.

    `models`: whose tasks or texts an interval over these is about; 0 where it is over models or seeds.
    """

    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    interval_over: str = "nothing"
    n: int = 0
    p: float = np.nan
    models: int = 0

    @property
    def population(self) -> str:
        """What a verdict speaks for: "8 models", or "8 tasks of one model"; "" without an interval.

        >>> Estimate(interval_over="tasks", n=8, models=1).population, Estimate(interval_over="models", n=8).population
        ('8 tasks of one model', '8 models')
        """
        if self.interval_over in ("", "nothing"):
            return ""
        whose = {0: "", 1: " of one model"}.get(self.models, f" of these {self.models} models")
        return f"{self.n} {self.interval_over}{whose}"

    def transformed(self, function: Callable[[float], float]) -> Estimate:
        """An estimate taken on another scale (Fisher's z, a logarithm), back on its own."""
        estimate, low, high = (float(function(x)) for x in (self.estimate, self.low, self.high))
        return replace(self, estimate=estimate, low=low, high=high)

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
    """One variant of a claim, tested; `null` and `measured_in` are the claim's own where they are None.

    `slope` is that of claim 7, which only says something of returns where there are any.
    """

    number: int
    variant: str
    estimate: Estimate
    rationale: str
    null: float | None = None
    measured_in: str | None = None
    slope: float = np.nan

    @property
    def verdict(self) -> Verdict:
        """On which side of the null the interval lies, if the claim's own test, where it has one, is significant."""
        claim, e, null = CLAIMS[self.number], self.estimate, self._null
        if not np.isfinite([e.low, e.high, null]).all() or (claim.needs_p and not np.isfinite(e.p)):
            return "not tested"
        if (np.isfinite(e.p) and e.p >= 1 - LEVEL) or e.low <= null <= e.high:
            return "within noise"
        return "confirmed" if (e.low > null) == (claim.side > 0) else "refuted"

    def row(self) -> dict[str, Any]:
        """A row of the claims table."""
        claim, e = CLAIMS[self.number], vars(self.estimate)
        row = {"number": self.number, "claim": claim.text, "variant": self.variant}
        row |= {name: e[name] for name in ("estimate", "low", "high")} | {"null": self._null}
        row["measured_in"] = claim.measured_in if self.measured_in is None else self.measured_in
        row |= {name: e[name] for name in ("p", "interval_over", "n")}
        return row | {"verdict": self.verdict, "population": self.estimate.population, "rationale": self.rationale}

    @property
    def _null(self) -> float:
        return CLAIMS[self.number].null if self.null is None else self.null


def claims_frame(tests: Iterable[ClaimTest]) -> pd.DataFrame:
    """The claims table: one row per test."""
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
    return replace(over_tasks, models=len(means)) if over_tasks.interval_over == "tasks" else over_models


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


def student_mean(values: Float[np.ndarray, " seed"]) -> Estimate:
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
    return Estimate(mean, mean - half, mean + half, "seeds", n)


def mean_by_shape(study: Study, quantity: str, unit: Unit, least_parameters: float = 0.0) -> pd.DataFrame:
    """`members` and `mean` over tasks of every shape, in the name of its first model; training seeds are averaged."""
    models = study.models(unit).set_index("model")
    means = study.table(unit)[quantity]["Avg."].dropna()
    means = means[models["parameters"][means.index] >= least_parameters]
    table = pd.DataFrame({"model": means.index, "members": models["members"][means.index].to_numpy(float)})
    shapes = cluster_numbers(means.index.tolist(), study.shapes(unit))
    return (
        table.assign(mean=means.to_numpy(float))
        .groupby(shapes)
        .agg({"model": "first", "members": "first", "mean": "mean"})
    )
