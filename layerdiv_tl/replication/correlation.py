"""Does a metric follow accuracy? Correlations along depth, with tests over models (Fig. 3, MATHS 12)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata, t

from .._checks import instance, resampling, shown, whole_number
from ..ensemble.intervals import LEAST, LEVEL
from ..ensemble.permutation import (
    by_cluster,
    cluster_numbers,
    model_permutations,
    over_models,
    permutation_p,
    permuted_sums,
    strata_of,
)
from ..ensemble.validation import checked, framed
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Coefficient = Literal["pearson", "spearman"]
Aggregation = Literal["pooled", "per_model", "final"]
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


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Two numbers for every junction of every model: a is accuracy, b is sign × metric."""

    a: Float[np.ndarray, " pair"]
    b: Float[np.ndarray, " pair"]
    model: Int[np.ndarray, " pair"]

    def curves(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self.a[self.model == m], self.b[self.model == m]) for m in np.unique(self.model)]


@dataclass(frozen=True, eq=False)
class _Estimate:
    """One cell of the table, and what the average over tasks needs of it."""

    r: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p_t: float = np.nan
    p_permutation: float = np.nan
    n: int = 0
    models: int = 0
    note: str = ""
    # atanh r, and {cluster of models: atanh r of all others}
    z: float = np.nan
    left_out: Mapping[int, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        names = ("r", "low", "high", "p_t", "p_permutation", "n", "models", "note")
        return {name: getattr(self, name) for name in names}


def correlations(
    frame: pd.DataFrame,
    signs: Mapping[str, int] | None = None,
    *,
    clusters: Mapping[str, Hashable] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    confidence_level: float = LEVEL,
) -> pd.DataFrame:
    """Correlation of sign × metric with accuracy along depth, per task and averaged (Fig. 3, MATHS 12).

    frame
        One row per model, task and junction (columns `model`, `task`, `junction`: numbers in the stream's
        order), with `accuracy` and the metrics. Partial junctions are the caller's to leave out.
    signs
        {metric: 1 or −1}: the metrics to correlate, and whether each should rise (1) or fall (−1) where
        accuracy rises; None is all columns that `SIGNS` knows. r is that of sign × metric, so that
        "as expected" is always positive, as in the paper's −MSE and −bias.
    clusters
        {model: cluster} of models that are not independent, such as training seeds of one shape: they count as
        one in every interval and test but the paper's. Models that are not named are independent.
    draws, seed
        Of permutations, where there are more.

    One row per aggregation, task, metric and coefficient (`pearson`, `spearman`). Readings:

    - `pooled` (the paper's): both z-scored over each model's junctions, all (model, junction) pairs together.
    - `per_model`: r of each model's curve, then tanh of the mean atanh r; `p_t` is Student's t over models, of
      8 at least.
    - `final`: the last junction only, raw values, over models; `p_t` has n − 2 degrees of freedom.

    Intervals are jackknives over models of atanh r with Student's t, and need 8 models. Where two curves have
    nothing to do with each other they exclude 0 in 1-5 % of studies of 8 models (`tests/calibration`).

    `p_t` of `pooled`, with n − 2 degrees of freedom, is the paper's test and wrong along depth: it takes
    junctions for independent, and calls independent random walks significant 60 % of the time at 5 %. That of
    `per_model` holds where models' correlations are as likely above as below 0.

    `p_permutation` gives every model the metric's curve of another model with as many junctions, and asks whether
    accuracy goes with the own curve more than with such a one: 5 % or less of independent curves are
    significant, whatever their shape, jumps and trends that all models share included. It needs models of one depth:
    five at least, or several of each of a few depths; without them it is NaN, for curves alone cannot tell a
    relation from two things that happen at the same depth. **The one to read.**

    The rows of the task "average" hold tanh(mean atanh r) over tasks, untested as in the paper, with an
    interval over models. A model whose curve is constant (or not finite) has no correlation and is left
    out; `note` says which, and why an r, an interval or a p is NaN. Raises InputError for missing columns, unknown
    signs, `clusters` that is not a mapping, and junctions that occur twice.

    >>> import pandas as pd
    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> table = correlations(frame).query("task == 't' and aggregation == 'pooled'")
    >>> table.set_index("coefficient")["r"].round(3).to_dict()
    {'pearson': 0.908, 'spearman': 1.0}
    """
    import pandas as pd

    resampling(n_resamples, seed, confidence_level)
    signs = _signs(frame, signs)
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", *signs))
    tasks, models = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["model"]))
    number = cluster_numbers(models, clusters)
    rows: list[dict[str, Any]] = []
    found: dict[tuple[Aggregation, str, Coefficient], list[_Estimate]] = {}
    for at, task in enumerate(tasks):
        of_task = frame[frame["task"] == task]
        curves = {
            m: of_task[of_task["model"] == name].sort_values("junction")
            for m, name in enumerate(models)
            if (of_task["model"] == name).any()
        }
        for metric, sign in signs.items():
            paired = {m: (c["accuracy"].to_numpy(float), sign * c[metric].to_numpy(float)) for m, c in curves.items()}
            for aggregation, coefficient, estimate in _estimates(
                paired, models, number, n_resamples, [seed, at], confidence_level
            ):
                found.setdefault((aggregation, metric, coefficient), []).append(estimate)
                rows.append(_key(aggregation, task, metric, sign, coefficient) | estimate.row())
    for (name, metric, kind), estimates in found.items():
        rows.append(_key(name, AVERAGE, metric, signs[metric], kind) | _average(estimates, confidence_level).row())
    table = pd.DataFrame(rows)
    for column, order in (("aggregation", AGGREGATIONS), ("task", (*tasks, AVERAGE)), ("metric", tuple(signs))):
        table[column] = pd.Categorical(table[column], order, ordered=True)
    table = table.sort_values(["aggregation", "task", "metric"], kind="stable", ignore_index=True)
    table = table.astype({"aggregation": object, "task": object, "metric": object})
    table.attrs |= {"n_resamples": n_resamples, "seed": seed, "level": confidence_level}
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

    frame, clusters
        As `correlations` takes them.

    One row per model and task: `pearson`, `spearman`, NaN where a curve is constant or not finite; and the
    two-sided p of the mean of Pearson's r over tasks and models, where models of as many junctions swap the
    metric's curves of all tasks at once (see `correlations`). NaN where too few models have one depth.

    >>> import pandas as pd
    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> curve_correlations(frame, "mse", -1)[0].round(3).values.tolist()
    [['m', 't', 0.908, 1.0]]
    """
    import pandas as pd

    resampling(n_resamples, seed)
    sign = _signs(frame, {metric: sign} if isinstance(metric, str) else {})[metric]
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", metric))
    tasks, models = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["model"]))
    rows = []
    own: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {task: {} for task in tasks}
    for m, (model, of_model) in enumerate(frame.groupby("model", sort=False)):
        for task, curve in of_model.sort_values("junction").groupby("task", sort=False):
            accuracy, other = curve["accuracy"].to_numpy(float), sign * curve[metric].to_numpy(float)
            row = {"model": model, "task": task, "pearson": np.nan, "spearman": np.nan}
            if not _fault(accuracy, other):
                own[str(task)][m] = _standard(accuracy), _standard(other)
                for coefficient, rank in (("pearson", np.asarray), ("spearman", rankdata)):
                    row[coefficient] = _bounded(_standard(rank(accuracy)) @ _standard(rank(other)) / len(curve))
            rows.append(row)
    products = np.stack([_products(own[task], len(models)) for task in tasks], 2)
    lengths = frame.groupby("model", sort=False)["junction"].nunique().to_numpy()
    p = _permuted(products, lengths, cluster_numbers(models, clusters), n_resamples, seed)
    return pd.DataFrame(rows), p


def z_scores(x: Float[np.ndarray, " junction"]) -> Float[np.ndarray, " junction"]:
    """A curve less its mean, over its standard deviation; NaN where it is not finite, and for one that never moves.

    >>> z_scores(np.array([0.0, 2.0])).tolist(), z_scores(np.full(3, 0.1)).tolist()
    ([-1.0, 1.0], [nan, nan, nan])
    """
    known = x[np.isfinite(x)]
    if not known.size or _constant(known):
        return np.full(len(x), np.nan)
    return np.where(np.isfinite(x), (x - known.mean()) / known.std(), np.nan)


def student_p(r: float, n: int) -> float:
    """Two-sided p of a correlation of n independent pairs, Student's t with n − 2; NaN for n < 3.

    >>> round(student_p(0.5, 20), 4)
    0.0248
    """
    if n < 3 or not np.isfinite(r):
        return np.nan
    if abs(r) >= 1:
        return 0.0
    return float(2 * t.sf(abs(r) * np.sqrt((n - 2) / (1 - r**2)), n - 2))


@dataclass(frozen=True, eq=False)
class _Curves:
    """The curves of one task and metric that have a correlation, and how models belong together."""

    kept: Mapping[int, tuple[np.ndarray, np.ndarray]]
    cluster: Int[np.ndarray, " model"]
    ranks: bool

    @property
    def clusters(self) -> list[int]:
        return list(dict.fromkeys(int(self.cluster[m]) for m in self.kept))

    def without(self, cluster: int) -> _Curves:
        rest = {m: curves for m, curves in self.kept.items() if self.cluster[m] != cluster}
        return _Curves(rest, self.cluster, self.ranks)

    def pooled(self) -> _Pairs:
        """z-scored over each model's junctions, then ranked over all pairs where ranks are asked for."""
        pairs = _together({m: (_standard(a), _standard(b)) for m, (a, b) in self.kept.items()})
        a, b = (_standard(rankdata(x) if self.ranks else x) for x in (pairs.a, pairs.b))
        return _Pairs(a, b, pairs.model)

    def each(self) -> _Pairs:
        """z-scored, or ranked and z-scored, over each model's junctions."""
        rank = rankdata if self.ranks else np.asarray
        return _together({m: (_standard(rank(a)), _standard(rank(b))) for m, (a, b) in self.kept.items()})


def _pooled(curves: _Curves) -> float:
    """atanh r over all pairs."""
    pairs = curves.pooled()
    return float(_fisher(pairs.a @ pairs.b / len(pairs.a)))


def _per_model(curves: _Curves) -> float:
    """Mean of atanh r over models, those of a cluster averaged first."""
    z = _fisher(np.array([a @ b / len(a) for a, b in curves.each().curves()]))
    number = curves.cluster[list(curves.kept)]
    return float(np.mean([z[number == c].mean() for c in curves.clusters]))


def _final(curves: _Curves) -> float:
    """atanh r over models, one pair of numbers each."""
    pairs = _together(curves.kept)
    if len(pairs.a) < 3 or _fault(pairs.a, pairs.b):
        return np.nan
    a, b = (_standard(rankdata(x) if curves.ranks else x) for x in (pairs.a, pairs.b))
    return float(_fisher(a @ b / len(a)))


_ATANH: Mapping[Aggregation, Callable[[_Curves], float]] = {"pooled": _pooled, "per_model": _per_model, "final": _final}


def _estimates(
    paired: Mapping[int, tuple[np.ndarray, np.ndarray]],
    models: Sequence[str],
    cluster: Int[np.ndarray, " model"],
    n_resamples: int,
    seed: list[int],
    confidence_level: float,
) -> Iterator[tuple[Aggregation, Coefficient, _Estimate]]:
    """One task and metric: all readings by both coefficients."""
    flat = {m: fault for m, curves in paired.items() if (fault := _fault(*curves))}
    left = "left out: " + ", ".join(f"{models[m]} ({fault})" for m, fault in flat.items()) if flat else ""
    kept = {m: curves for m, curves in paired.items() if m not in flat}
    last = {m: (a[-1:], b[-1:]) for m, (a, b) in paired.items()}
    last = {m: (a, b) for m, (a, b) in last.items() if np.isfinite([a, b]).all()}
    for coefficient in COEFFICIENTS:
        of_depth, of_last = (_Curves(curves, cluster, coefficient == "spearman") for curves in (kept, last))
        for aggregation in ("pooled", "per_model"):
            yield (
                aggregation,
                coefficient,
                _along_depth(aggregation, of_depth, n_resamples, seed, confidence_level, left),
            )
        yield "final", coefficient, _at_the_end(of_last, confidence_level)


def _along_depth(
    aggregation: Literal["pooled", "per_model"],
    curves: _Curves,
    n_resamples: int,
    seed: list[int],
    confidence_level: float,
    left: str,
) -> _Estimate:
    if not curves.kept:
        return _Estimate(note=_sentence("no model has two curves that vary", left))
    z, left_out = _ATANH[aggregation](curves), _left_out(aggregation, curves)
    pairs = curves.pooled() if aggregation == "pooled" else curves.each()
    found = dict(zip(curves.kept, pairs.curves(), strict=True))
    count = max(found) + 1
    lengths = np.array([len(found[m][0]) if m in found else 0 for m in range(count)])
    p = _permuted(_products(found, count)[:, :, None], lengths, curves.cluster[:count], n_resamples, seed)
    few = "" if np.isfinite(p) else "too few models of one depth to permute"
    if aggregation == "pooled":
        n, p_t = len(pairs.a), student_p(_bounded(np.tanh(z)), len(pairs.a))
    else:
        n, p_t = len(curves.kept), _student_over(z, left_out)
    note = _sentence(_no_interval(left_out), few, left)
    return _estimate(z, left_out, confidence_level, p_t=p_t, p_permutation=p, n=n, models=len(found), note=note)


def _at_the_end(curves: _Curves, confidence_level: float) -> _Estimate:
    n = len(curves.kept)
    if n < 3:
        return _Estimate(n=n, models=n, note="fewer than three models: no correlation over models")
    pairs = _together(curves.kept)
    if fault := _fault(pairs.a, pairs.b):
        return _Estimate(n=n, models=n, note=f"{fault} over models")
    z, left_out = _final(curves), _left_out("final", curves)
    note = _sentence(_no_interval(left_out), "over models there is no depth")
    p = student_p(_bounded(np.tanh(z)), len(left_out))
    return _estimate(z, left_out, confidence_level, p_t=p, n=n, models=n, note=note)


def _average(estimates: Sequence[_Estimate], confidence_level: float) -> _Estimate:
    """tanh(mean atanh r) over the tasks that have an r, with an interval over models."""
    there = [e for e in estimates if np.isfinite(e.r)]
    n, models = sum(e.n for e in there), max((e.models for e in there), default=0)
    note = f"mean of {len(there)} of {len(estimates)} tasks, untested"
    if not there:
        return _Estimate(note=note)
    # A model that a task lacks changes nothing there when it is left out.
    clusters = {c for e in there for c in e.left_out}
    left_out = {c: float(np.mean([e.left_out.get(c, e.z) for e in there])) for c in clusters}
    return _estimate(float(np.mean([e.z for e in there])), left_out, confidence_level, n=n, models=models, note=note)


def _estimate(z: float, left_out: Mapping[int, float], confidence_level: float, **more: Any) -> _Estimate:
    low, high = over_models(z, np.array(list(left_out.values())), confidence_level)
    return _Estimate(_bounded(np.tanh(z)), float(np.tanh(low)), float(np.tanh(high)), z=z, left_out=left_out, **more)


def _left_out(aggregation: Aggregation, curves: _Curves) -> dict[int, float]:
    """atanh r without each cluster of models in turn; one alone cannot be left out."""
    clusters = curves.clusters
    return {c: _ATANH[aggregation](curves.without(c)) if len(clusters) > 1 else np.nan for c in clusters}


def _no_interval(left_out: Mapping[int, float]) -> str:
    count = len(left_out)
    return "" if count >= LEAST else f"no interval: {count} of {LEAST} models that it needs"


def _student_over(z: float, left_out: Mapping[int, float]) -> float:
    """Two-sided p of Student's t over models of a mean z, of as many as an interval needs."""
    count = len(left_out)
    if count < LEAST:
        return np.nan
    error = np.sqrt((count - 1) / count * np.sum((np.array(list(left_out.values())) - z) ** 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(2 * t.sf(abs(z / error), count - 1))


def _products(curves: Mapping[int, tuple[np.ndarray, np.ndarray]], models: int) -> Float[np.ndarray, "model model"]:
    """mean_j a_j b_j of every model's first curve and every model's second, NaN where lengths differ."""
    found = np.full((models, models), np.nan)
    for count in {len(a) for a, _ in curves.values()}:
        same = [m for m, (a, _) in curves.items() if len(a) == count]
        a, b = (np.stack([curves[m][side] for m in same]) for side in (0, 1))
        found[np.ix_(same, same)] = a @ b.T / count
    return found


def _permuted(
    products: Float[np.ndarray, "model model task"],
    lengths: Int[np.ndarray, " model"],
    cluster: Int[np.ndarray, " model"],
    n_resamples: int,
    seed: Any,
) -> float:
    """p of the mean over models of what a model's curves have in common, tasks averaged first."""
    known = np.isfinite(products)
    there = known.sum(2)
    means = np.divide(np.where(known, products, 0.0).sum(2), there, out=np.full(there.shape, np.nan), where=there > 0)
    between = by_cluster(means, cluster)
    kept = np.flatnonzero(np.isfinite(np.diag(between)))
    between = between[np.ix_(kept, kept)]
    of = [tuple(np.unique(lengths[cluster == c])) for c in np.unique(cluster)[kept]]
    return permutation_p(permuted_sums(between, model_permutations(strata_of(of, between), n_resamples, seed)))


def _signs(frame: pd.DataFrame, signs: Mapping[str, int] | None) -> dict[str, int]:
    if signs is None:
        signs = {name: sign for name, sign in SIGNS.items() if name in framed(frame)}
    instance("signs", signs, Mapping, "give {'a metric': 1 (it rises with accuracy) or -1 (it falls)}")
    if not signs:
        raise InputError(f"the frame has no metric that SIGNS knows: name some in signs=, such as {list(SIGNS)[:3]}.")
    for name, sign in signs.items():
        if not isinstance(name, str) or whole_number(f"signs[{shown(name)}]", sign, -1, 1) == 0:
            raise InputError(f"signs={shown(signs)} must be 1 (rises with accuracy) or -1 (falls).")
    return dict(signs)


def _key(aggregation: str, task: str, metric: str, sign: int, coefficient: str) -> dict[str, Any]:
    return {"aggregation": aggregation, "task": task, "metric": metric, "sign": sign, "coefficient": coefficient}


def _together(curves: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> _Pairs:
    if not curves:
        return _Pairs(np.empty(0), np.empty(0), np.empty(0, int))
    a, b = (np.concatenate([pair[side] for pair in curves.values()]) for side in (0, 1))
    return _Pairs(a, b, np.repeat(list(curves), [len(pair[0]) for pair in curves.values()]))


def _fault(a: np.ndarray, b: np.ndarray) -> str:
    """Why two curves have no correlation; empty if they have one."""
    for name, x in (("accuracy", a), ("metric", b)):
        if not np.isfinite(x).all():
            return f"{name} is not finite"
        if _constant(x):
            return f"constant {name}"
    return ""


def _constant(x: np.ndarray) -> bool:
    # What rounding alone moves does not vary.
    return bool(x.std() <= 1e-12 * np.abs(x).max(initial=0.0))


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


def _bounded(r: float) -> float:
    return float(np.clip(r, -1, 1))


def _fisher(r: np.ndarray) -> np.ndarray:
    """atanh r, finite at ±1, where it counts as ±18.7."""
    return np.arctanh(np.clip(r, -1 + 1e-16, 1 - 1e-16))


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
