"""Means over independent units: models, the tasks of few models, training seeds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import t

from ..ensemble.intervals import LEAST, LEVEL, Estimate, estimate_function
from ..ensemble.permutation import cluster_numbers

# Seeds differ in an average over shapes and tasks, which is nearly normal: Student's interval of three seeds is
# valid, and wide.
LEAST_SEEDS = 3
# A missing estimate.
NOTHING = Estimate(np.nan, np.nan, np.nan, 0, "nothing")


def mean_over(values: Float[np.ndarray, " value"], over: str) -> Estimate:
    """Estimate a mean with Hall's interval; over "nothing" for fewer than `LEAST` values. NaNs are dropped."""
    values = values[np.isfinite(values)]
    if not len(values):
        return NOTHING
    # Not `estimate`: here, an interval of nonnegative values (one per model) may reach below 0.
    found = estimate_function(np.positive, values, over=over if len(values) >= LEAST else "nothing")
    return on_scale(found, float)


def mean_over_seeds(values: Float[np.ndarray, " seed"]) -> Estimate:
    """Estimate a mean over training seeds with Student's interval; over "nothing" for fewer than three."""
    values = values[np.isfinite(values)]
    n, mean = len(values), float(values.mean()) if len(values) else np.nan
    if n < LEAST_SEEDS:
        return Estimate(mean, np.nan, np.nan, n, "nothing")
    half = float(t.ppf(0.5 + LEVEL / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n, "seeds")


def mean_over_models(
    values: pd.Series, clusters: Mapping[str, Hashable] | None = None, tasks: bool = True
) -> tuple[Estimate, int]:
    """Estimate the mean of values by (model, task) over models, or over tasks if there are few models.

    Models of one cluster count as one. An interval over tasks generalizes to other tasks on these models only; the
    number of models is then returned second (0 otherwise). Without `tasks`, there is no interval over tasks.
    """
    values = values[np.isfinite(values)]
    means = values.groupby(level="model", sort=False).mean()
    of_clusters = means.groupby(cluster_numbers(means.index.tolist(), clusters), sort=False).mean()
    over_models = mean_over(of_clusters.to_numpy(), "models")
    if over_models.over == "models" or not tasks:
        return over_models, 0
    over_tasks = mean_over(values.groupby(level="task", sort=False).mean().to_numpy(), "tasks")
    return (over_tasks, len(means)) if over_tasks.over == "tasks" else (over_models, 0)


def mean_by_shape(
    models: pd.DataFrame, means: pd.Series, shapes: Mapping[str, Hashable], least_parameters: float = 0.0
) -> pd.DataFrame:
    """Average a value of each model over the training seeds of its shape ({model: shape}); add the members."""
    about, means = models.set_index("model"), means.dropna()
    means = means[about["parameters"][means.index] >= least_parameters]
    table = pd.DataFrame({"model": means.index, "members": about["members"][means.index].to_numpy(float)})
    by_shape = table.assign(mean=means.to_numpy(float)).groupby(cluster_numbers(means.index.tolist(), shapes))
    return by_shape.agg({"model": "first", "members": "first", "mean": "mean"})


def on_scale(e: Estimate, function: Callable[[float], float]) -> Estimate:
    """Transform an estimate back from another scale (Fisher's z, a logarithm)."""
    value, low, high = (float(function(x)) for x in e[:3])
    return e._replace(value=value, low=low, high=high)
