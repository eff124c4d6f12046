"""Correlation of ensemble metrics with accuracy along depth, per task and averaged (Fig. 3)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from .._checks import instance, resampling, shown, whole_number
from ..ensemble.intervals import LEVEL
from ..ensemble.permutation import cluster_numbers
from ..ensemble.validation import checked, framed
from ..errors import InputError
from .curve_statistics import (
    Aggregation,
    Coefficient,
    CorrelationEstimate,
    Curves,
    Pair,
    fault_of,
    joined,
    permuted_p,
    products_between,
    standardized,
    with_interval,
)

AGGREGATIONS: tuple[Aggregation, ...] = ("pooled", "per_model", "final")
COEFFICIENTS: tuple[Coefficient, ...] = ("pearson", "spearman")
AVERAGE = "average"

# Whether a metric is expected to rise (1) or to fall (−1) where accuracy rises.
SIGNS: dict[str, int] = {
    "mse": -1,
    "bias": -1,
    "diversity": 1,
    "bias_centered": -1,
    "diversity_centered": 1,
    "diversity_logit": 1,
    "diversity_logit_centered": 1,
    "coherence": 1,
    "cross_entropy": -1,
    "cross_entropy_bias": -1,
    "cross_entropy_diversity": 1,
    "entropy": -1,
    "net": -1,
    "brier": -1,
}


def correlations(
    frame: pd.DataFrame,
    signs: Mapping[str, int] | None = None,
    *,
    clusters: Mapping[str, Hashable] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    confidence_level: float = LEVEL,
) -> pd.DataFrame:
    """Correlation of sign × metric with accuracy along depth, per task and averaged (Fig. 3).

    Args:
        frame: One row per model, task and junction (columns `model`, `task`, `junction`: numbers in the stream's
            order), with `accuracy` and the metrics. Leave partial junctions out.
        signs: {metric: 1 or −1}, whether it should rise or fall where accuracy rises; None is all columns in `SIGNS`.
            As for the paper's −MSE and −bias, "as expected" is always positive.
        clusters: {model: cluster} of models that are not independent, such as training seeds of one shape: they count
            as one in every interval and test but the paper's. Models that are not named are independent.
        n_resamples, seed: Of permutations, where there are more.

    One row per `aggregation`, task, metric and coefficient (`pearson`, `spearman`):

    - `pooled` (the paper's): both z-scored over each model's junctions, all (model, junction) pairs together.
    - `per_model`: r of each model's curve, then tanh of the mean atanh r; `p_t` is Student's t over 8 models or more.
    - `final`: the last junction only, raw values, over models; `p_t` has n − 2 degrees of freedom.

    Intervals are jackknives over models of atanh r with Student's t, and need 8 models. For unrelated curves they
    exclude 0 in 1-5 % of studies of 8 models (`tests/calibration`).

    **Read `p_permutation`.** It gives every model the metric's curve of another model with as many junctions, so that
    what all models share along depth (jumps, trends) is in the null: 5 % or less of independent curves are significant.
    It needs five models of one depth, or several of each of a few depths; otherwise it is NaN. `p_t` of `pooled`, with
    n − 2 degrees of freedom, is the paper's test and wrong along depth: it takes junctions for independent, and calls
    independent random walks significant 60 % of the time at 5 %.

    The rows of the task "average" hold tanh(mean atanh r) over tasks, untested as in the paper, with an interval over
    models. A model whose curve is constant or not finite is left out; `note` names it, and says why an r, an interval
    or a p is NaN. Raises InputError for missing columns, unknown signs, `clusters` that is not a mapping, and
    junctions that occur twice.

    >>> import pandas as pd
    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> table = correlations(frame).query("task == 't' and aggregation == 'pooled'")
    >>> table.set_index("coefficient")["r"].round(3).to_dict()
    {'pearson': 0.908, 'spearman': 1.0}
    """
    resampling(n_resamples, seed, confidence_level)
    signs = _checked_signs(frame, signs)
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", *signs))
    tasks, models = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["model"]))
    cluster = cluster_numbers(models, clusters)
    estimates: dict[tuple[str, ...], CorrelationEstimate] = {}
    for metric, sign in signs.items():
        for index, (task, pairs) in enumerate(_pairs_by_task(frame, metric, sign).items()):
            faults = {m: fault for m, pair in pairs.items() if (fault := fault_of(*pair))}
            left_out = ", ".join(f"{models[m]} ({fault})" for m, fault in faults.items())
            varying = {m: pair for m, pair in pairs.items() if m not in faults}
            last = {m: (a[-1:], b[-1:]) for m, (a, b) in pairs.items() if np.isfinite([a[-1], b[-1]]).all()}
            for aggregation, coefficient in product(AGGREGATIONS, COEFFICIENTS):
                curves = Curves(last if aggregation == "final" else varying, cluster, coefficient, aggregation)
                estimate = curves.estimate(n_resamples, [seed, index], confidence_level)
                if left_out and aggregation != "final":
                    estimate = replace(estimate, note=joined(estimate.note, f"left out: {left_out}"))
                estimates[aggregation, task, metric, coefficient] = estimate
    for aggregation, metric, coefficient in product(AGGREGATIONS, signs, COEFFICIENTS):
        each = [estimates[aggregation, task, metric, coefficient] for task in tasks]
        estimates[aggregation, AVERAGE, metric, coefficient] = _average(each, confidence_level)
    table = pd.DataFrame(
        {"aggregation": key[0], "task": key[1], "metric": key[2], "sign": signs[key[2]], "coefficient": key[3]}
        | estimates[key].row()
        for key in product(AGGREGATIONS, (*tasks, AVERAGE), signs, COEFFICIENTS)
    )
    table.attrs |= {"n_resamples": n_resamples, "seed": seed, "confidence_level": confidence_level}
    return table


def curve_correlations(
    frame: pd.DataFrame,
    metric: str,
    sign: int = 1,
    *,
    clusters: Mapping[str, Hashable] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> tuple[pd.DataFrame, float]:
    """Correlation of sign × metric with accuracy over the junctions of every model and task, and a test of their mean.

    Args:
        frame, clusters: As `correlations` takes them.

    One row per model and task: `pearson`, `spearman`, NaN where a curve is constant or not finite; and the
    two-sided `p_permutation` of the mean of Pearson's r, tasks of a model swapped together.

    >>> import pandas as pd
    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> curve_correlations(frame, "mse", -1)[0].round(3).values.tolist()
    [['m', 't', 0.908, 1.0]]
    """
    resampling(n_resamples, seed)
    sign = _checked_signs(frame, {metric: sign} if isinstance(metric, str) else {})[metric]
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", metric))
    models = list(dict.fromkeys(frame["model"]))
    pairs = _pairs_by_task(frame, metric, sign)
    rows = []
    for (m, model), task in product(enumerate(models), pairs):
        if m in pairs[task]:
            r = [np.nan, np.nan]
            if not fault_of(*pairs[task][m]):
                curves = [standardized(pairs[task][m], name) for name in COEFFICIENTS]
                r = [float(np.clip(np.mean(a * b), -1, 1)) for a, b in curves]
            rows.append({"model": model, "task": task} | dict(zip(COEFFICIENTS, r, strict=True)))
    varying = [{m: standardized(p) for m, p in of_task.items() if not fault_of(*p)} for of_task in pairs.values()]
    lengths = frame.groupby("model", sort=False)["junction"].nunique().to_numpy()
    products = np.stack([products_between(of_task, len(models)) for of_task in varying], 2)
    p = permuted_p(products, lengths, cluster_numbers(models, clusters), n_resamples, seed)
    return pd.DataFrame(rows), p


def _pairs_by_task(frame: pd.DataFrame, metric: str, sign: int) -> dict[Any, dict[int, Pair]]:
    """{task: {model number: (accuracy, sign × metric)}}, junctions in order."""
    models: dict[Any, int] = {model: m for m, model in enumerate(dict.fromkeys(frame["model"]))}
    found: dict[Any, dict[int, Pair]] = {task: {} for task in dict.fromkeys(frame["task"])}
    for (model, task), curve in frame.groupby(["model", "task"], sort=False):
        curve = curve.sort_values("junction")
        found[task][models[model]] = curve["accuracy"].to_numpy(float), sign * curve[metric].to_numpy(float)
    return {task: dict(sorted(pairs.items())) for task, pairs in found.items()}


def _average(estimates: Sequence[CorrelationEstimate], confidence_level: float) -> CorrelationEstimate:
    """tanh(mean atanh r) over the tasks that have an r, with an interval over models."""
    known = [e for e in estimates if np.isfinite(e.r)]
    note = f"mean of {len(known)} of {len(estimates)} tasks, untested"
    if not known:
        return CorrelationEstimate(note=note)
    # Leaving out a model that a task lacks changes nothing there.
    clusters = {c for e in known for c in e.z_without}
    z_without = {c: float(np.mean([e.z_without.get(c, e.z) for e in known])) for c in clusters}
    more = {"n": sum(e.n for e in known), "models": max(e.models for e in known), "note": note}
    return with_interval(float(np.mean([e.z for e in known])), z_without, confidence_level, **more)


def _checked_signs(frame: pd.DataFrame, signs: Mapping[str, int] | None) -> dict[str, int]:
    if signs is None:
        signs = {name: sign for name, sign in SIGNS.items() if name in framed(frame)}
    instance("signs", signs, Mapping, "give {'a metric': 1 (it rises with accuracy) or -1 (it falls)}")
    if not signs:
        raise InputError(f"the frame has no metric of SIGNS: name some in signs=, such as {list(SIGNS)[:3]}.")
    for name, sign in signs.items():
        if not isinstance(name, str) or whole_number(f"signs[{shown(name)}]", sign, -1, 1) == 0:
            raise InputError(f"signs={shown(signs)} must be 1 (rises with accuracy) or -1 (falls).")
    return dict(signs)
