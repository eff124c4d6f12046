"""The tables of arXiv 2505.24009 from the contributions in a grid: Table 1 and 4, Fig. 3-5 and 7, Eq. 9-10.

MSE and bias are Eq. 14's, as the paper computed them; diversity is that of logits, raw and centered. `wanted` chooses
cells, as in `Grid.cells`: a grid with several units needs `unit="sublayer"`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import stdtrit
from scipy.stats import rankdata

from ..ensemble.decompose import decompose
from ..ensemble.decomposition import Decomposition, NormAt
from ..ensemble.intervals import ENDS, LEAST, LEVEL, estimate
from ..ensemble.losses import Gauge
from ..errors import InputError
from .cells import Cell
from .grid import Grid, differing_options

# Loss, gauge and term of each quantity.
Terms = Mapping[str, tuple[str, Gauge, str]]
# Two curves of one model, over junctions.
Pair = tuple[Float[np.ndarray, " junction"], Float[np.ndarray, " junction"]]

CURVES: Terms = {
    "accuracy": ("squared", "raw", "accuracy"),
    "mse": ("paper", "raw", "loss"),
    "bias": ("paper", "raw", "bias"),
    "diversity": ("squared", "raw", "diversity"),
    "bias_centered": ("squared", "centered", "bias"),
    "diversity_centered": ("squared", "centered", "diversity"),
    "diversity_logit": ("squared", "raw", "diversity_logit"),
    "diversity_logit_centered": ("squared", "centered", "diversity_logit"),
    "cross_entropy": ("cross_entropy", "raw", "loss"),
    "cross_entropy_bias": ("cross_entropy", "raw", "bias"),
    "cross_entropy_diversity": ("cross_entropy", "raw", "diversity"),
    "entropy": ("cross_entropy", "raw", "entropy"),
}
TOTALS: Terms = {
    **CURVES,
    "logit_difference": ("squared", "raw", "logit_difference"),
    "uniform": ("paper", "raw", "zero_bias"),
}
# In the paper's tables these are in hundredths.
HUNDREDTHS = ("accuracy", "mse", "bias", "uniform")
AVERAGE = "Avg."
# The expected direction of a quantity when accuracy rises: up (1) or down (−1).
SIGNS = {name: 1 if "diversity" in name else -1 for name in CURVES if name != "accuracy"}
AGGREGATIONS = ("pooled", "per_model")
COEFFICIENTS = ("pearson", "spearman")


def totals(grid: Grid, **wanted: Any) -> pd.DataFrame:
    """Return the ensemble's `TOTALS` with intervals: one row per model and task; MSE and bias are not in hundredths."""
    return _frame(grid, _of_terms(TOTALS, lambda d: d.frame().iloc[:1]), wanted)


def table(grid: Grid, **wanted: Any) -> pd.DataFrame:
    """Return the paper's Table 1: one row per model, columns (quantity, task) and their average over tasks.

    As in the paper, accuracy, MSE, bias and `uniform` (the loss of the uniform predictor) are in hundredths.
    """
    frame = totals(grid, **wanted)
    models, tasks = frame["model"].unique(), frame["rows"].unique()
    blocks = {}
    for name in TOTALS:
        factor = 100 if name in HUNDREDTHS else 1
        block = factor * frame.pivot(index="model", columns="rows", values=name).loc[models, tasks]
        blocks[name] = block.assign(**{AVERAGE: block.mean(axis=1, skipna=False)})
    return pd.concat(blocks, axis=1, names=["quantity", "rows"])


def components(grid: Grid, loss: str = "squared", gauge: Gauge = "centered", **wanted: Any) -> pd.DataFrame:
    """Return `Decomposition.by_component` of every model and task."""
    return _frame(grid, lambda c, cell: decompose(c, loss=loss, gauge=gauge).by_component(True), wanted)


def modules(grid: Grid, loss: str = "squared", gauge: Gauge = "centered", **wanted: Any) -> pd.DataFrame:
    """Return `Decomposition.by_module` of every model and task (Eq. 9-10)."""
    return _frame(grid, lambda c, cell: decompose(c, loss=loss, gauge=gauge).by_module(), wanted)


def curves(grid: Grid, norm: NormAt = "frozen", standardized: bool = False, **wanted: Any) -> pd.DataFrame:
    """Return `CURVES` of the prefix ensembles (Fig. 5 and 7): one row per model, task and junction, numbered from 0.

    Partial sums that the stream never holds are left out. `standardized` z-scores each curve, as in the figures (NaN if
    it is constant).
    """

    def along(d: Decomposition) -> pd.DataFrame:
        frame = d.by_depth(norm)
        return frame[~frame["partial"].astype(bool)].reset_index(drop=True)

    frame = _frame(grid, _of_terms(CURVES, along), wanted)
    frame = frame[["model", "rows", "component", "members", *CURVES]]
    groups = frame.groupby(["model", "rows"], sort=False)
    frame.insert(2, "junction", groups.cumcount())
    if standardized:
        frame[list(CURVES)] = groups[list(CURVES)].transform(lambda curve: _z_scores(curve.to_numpy(float)))
    return frame


def sizes(grid: Grid, **wanted: Any) -> pd.DataFrame:
    """Return the paper's Table 4 for these models: parameters, members |L|, whether a block runs more than once."""
    rows = {}
    for cell in grid.cells(analysis="contributions", **wanted):
        origin, names = cell.about["provenance"], cell.result.components
        row = {"model": cell.about["model"], "parameters": origin["parameters"], "members": len(names)}
        row["reuses"] = any(component.repeat is not None for component in names)
        rows[row["model"]] = row | {name: origin[name] for name in ("architecture", "dtype", "source")}
    return pd.DataFrame(list(rows.values()))


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Compute each module's share of bias and diversity (Fig. 4), per model and averaged over its tasks.

    Args:
        frame: That of `modules`: `model`, `rows`, `module`, `members`, `bias`, `diversity`.

    Returns one row per model, module and term. `share` is the mean over tasks of part / whole, with an interval over
    tasks (NaN for fewer than 8); tasks with a whole of 0 are left out. `member_share` is n_g/|L|, the share if all
    members were alike, and `excess` is share − member_share.

    >>> frame = pd.DataFrame({"model": "m", "rows": "t", "module": ["attention", "mlp"], "members": [1, 3],
    ...                       "bias": [1.0, 3.0], "diversity": [1.0, 1.0]})
    >>> shares(frame).query("term == 'diversity'")[["module", "share", "member_share", "excess"]].values.tolist()
    [['attention', 0.5, 0.25, 0.25], ['mlp', 0.5, 0.75, -0.25]]
    """
    parts = []
    for model, of_model in frame.groupby("model", sort=False):
        order = list(dict.fromkeys(of_model["module"]))
        members = of_model.pivot(index="rows", columns="module", values="members")[order].fillna(0)
        for term in ("bias", "diversity"):
            values = of_model.pivot(index="rows", columns="module", values=term)[order].fillna(0.0)
            whole = values.sum(axis=1)
            of_tasks = values[whole > 0].div(whole[whole > 0], axis=0).to_numpy()
            part = pd.DataFrame({"model": model, "module": order, "term": term})
            part["member_share"] = members.div(members.sum(axis=1), axis=0).mean().to_numpy()
            if len(of_tasks):
                found = estimate(of_tasks, over="tasks")
                part = part.assign(share=found.value, share_low=found.low, share_high=found.high)
                part["excess"] = part["share"] - part["member_share"]
            parts.append(part.assign(tasks=len(of_tasks)))
    return pd.concat(parts, ignore_index=True)


def correlations(frame: pd.DataFrame, clusters: Mapping[str, Hashable] | None = None) -> pd.DataFrame:
    """Correlate each quantity, times its expected sign, with accuracy along depth, per task and averaged (Fig. 3).

    Args:
        frame: That of `curves`.
        clusters: {model: cluster} of models that are not independent, e.g. training seeds of one shape. A cluster
            counts as one model in averages per model and in intervals.

    Returns one row per aggregation, task, metric and coefficient. "pooled" is r over all junctions of the models'
    z-scored curves, "per_model" the mean over models of each one's r. Constant curves are left out. Averages and
    Student's jackknife intervals over models (NaN for fewer than 8) are of Fisher's z.

    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "rows": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> table = correlations(frame).query("rows == 't' and aggregation == 'pooled'")
    >>> table.set_index("coefficient")["r"].round(3).to_dict()
    {'pearson': 0.908, 'spearman': 1.0}
    """
    clusters = clusters or {}
    number = {model: clusters.get(model, f"model {model}") for model in frame["model"].unique()}
    rows = []
    for metric in [name for name in SIGNS if name in frame]:
        by_task = {task: _varying_pairs(of_task, metric) for task, of_task in frame.groupby("rows", sort=False)}
        for aggregation, coefficient in product(AGGREGATIONS, COEFFICIENTS):
            about = {"aggregation": aggregation, "metric": metric, "sign": SIGNS[metric], "coefficient": coefficient}
            for task in (*by_task, AVERAGE):
                curves = list(by_task.values()) if task == AVERAGE else [by_task[task]]
                rows.append({"rows": task, **about, **_correlation(curves, number, aggregation, coefficient)})
    return pd.DataFrame(rows)


def _frame(grid: Grid, table: Callable[[Any, Cell], pd.DataFrame], wanted: Mapping[str, Any]) -> pd.DataFrame:
    """Join a table of all contributions. Raises InputError for those of several options, e.g. two units."""
    different = differing_options(list(grid.cells(analysis="contributions", **wanted)))
    if different:
        raise InputError(f"contributions differ in {', '.join(different)}: choose one by {different[0]}=…")
    return grid.frame(table, analysis="contributions", **wanted)


def _of_terms(terms: Terms, read: Callable[[Decomposition], pd.DataFrame]) -> Callable[[Any, Cell], pd.DataFrame]:
    """Return a function that makes a table of these terms, with their intervals, from a cell's contributions."""

    def of_cell(c: Any, cell: Cell) -> pd.DataFrame:
        kinds = dict.fromkeys((loss, gauge) for loss, gauge, _ in terms.values())
        frames = {kind: read(decompose(c, loss=kind[0], gauge=kind[1])) for kind in kinds}
        first = frames["squared", "raw"]
        columns = {name: first[name] for name in ("component", "members") if name in first}
        for name, (loss, gauge, term) in terms.items():
            for end in ENDS:
                if term + end in frames[loss, gauge]:
                    columns[name + end] = frames[loss, gauge][term + end]
        return pd.DataFrame(columns)

    return of_cell


def _varying_pairs(frame: pd.DataFrame, metric: str) -> dict[str, Pair]:
    """Return {model: (accuracy, sign × metric)} of one task, without curves that do not vary."""
    pairs = {}
    for model, curve in frame.sort_values("junction").groupby("model", sort=False):
        pair = curve["accuracy"].to_numpy(float), SIGNS[metric] * curve[metric].to_numpy(float)
        if all(map(_varies, pair)):
            pairs[str(model)] = pair
    return pairs


def _correlation(
    tasks: Sequence[Mapping[str, Pair]], number: Mapping[str, Hashable], aggregation: str, coefficient: str
) -> dict[str, float]:
    """Average Fisher's z over tasks; return r with Student's interval of the jackknife over clusters of models."""

    def mean_z(left_out: Hashable = None) -> float:
        each = []
        for pairs in tasks:
            kept = {model: pair for model, pair in pairs.items() if number[model] != left_out}
            if kept and aggregation == "per_model":
                z = pd.Series({model: _fisher_z(*pair, coefficient) for model, pair in kept.items()})
                each.append(z.groupby([number[model] for model in kept]).mean().mean())
            elif kept:
                a, b = (np.concatenate([_z_scores(pair[side]) for pair in kept.values()]) for side in (0, 1))
                each.append(_fisher_z(a, b, coefficient))
        return float(np.mean(each)) if each else np.nan

    left_out = np.array([mean_z(name) for name in {number[model] for pairs in tasks for model in pairs}])
    z, half, count = mean_z(), np.nan, len(left_out)
    if count >= LEAST:
        half = stdtrit(count - 1, 0.5 + LEVEL / 2) * np.sqrt((count - 1) * left_out.var())
    r, low, high = np.tanh([z, z - half, z + half])
    return {"r": r, "r_low": low, "r_high": high, "models": max(map(len, tasks))}


def _fisher_z(a: np.ndarray, b: np.ndarray, coefficient: str) -> float:
    """Return Fisher's z = atanh r, at most ±18.7."""
    if coefficient == "spearman":
        a, b = rankdata(a), rankdata(b)
    r = (a - a.mean()) / a.std() @ ((b - b.mean()) / b.std()) / len(a)
    return float(np.arctanh(np.clip(r, -1 + 1e-16, 1 - 1e-16)))


def _varies(x: np.ndarray) -> bool:
    """Say whether a curve is finite and varies by more than rounding."""
    return bool(np.isfinite(x).all() and x.std() > 1e-12 * np.abs(x).max(initial=0.0))


def _z_scores(x: np.ndarray) -> np.ndarray:
    """Standardize a curve to mean 0 and standard deviation 1; NaN if it does not vary."""
    return (x - x.mean()) / x.std() if _varies(x) else np.full(len(x), np.nan)
