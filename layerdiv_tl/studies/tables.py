"""The tables of arXiv 2505.24009 from the contributions in a grid: Table 1 and 4, Fig. 3-5 and 7, Eq. 9-10.

MSE and bias are Eq. 14's, as the paper computed them; diversity is that of logits, raw and centered. `wanted` chooses
cells, as in `Grid.cells`: a grid with several units needs `unit="sublayer"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..ensemble.decompose import decompose
from ..ensemble.decomposition import Decomposition
from ..ensemble.intervals import ENDS, estimate
from ..ensemble.losses import Gauge
from ..errors import InputError
from .grid import Cell, Grid, differing_options

# Loss, gauge and term of each quantity.
TERMS: Mapping[str, tuple[str, Gauge, str]] = {
    "accuracy": ("squared", "raw", "accuracy"),
    "mse": ("paper", "raw", "loss"),
    "bias": ("paper", "raw", "bias"),
    "diversity": ("squared", "raw", "diversity"),
    "bias_centered": ("squared", "centered", "bias"),
    "diversity_centered": ("squared", "centered", "diversity"),
    "diversity_logit": ("squared", "raw", "diversity_logit"),
    "diversity_logit_centered": ("squared", "centered", "diversity_logit"),
    "cross_entropy": ("cross_entropy", "raw", "loss"),
    "uniform": ("paper", "raw", "zero_bias"),
}
# In the paper's tables these are in hundredths.
HUNDREDTHS = ("accuracy", "mse", "bias", "uniform")
AVERAGE = "Avg."
# The expected direction of a quantity when accuracy rises: up (1) or down (−1).
SIGNS = {name: 1 if "diversity" in name else -1 for name in TERMS if name not in ("accuracy", "uniform")}
COEFFICIENTS: tuple[Literal["pearson", "spearman"], ...] = ("pearson", "spearman")


def totals(grid: Grid, **wanted: Any) -> pd.DataFrame:
    """Return the ensemble's `TERMS` with intervals: one row per model and task; MSE and bias are not in hundredths."""
    return _frame(grid, lambda c, cell: _columns(c, lambda d: d.frame().iloc[:1]), wanted)


def table(grid: Grid, **wanted: Any) -> pd.DataFrame:
    """Return the paper's Table 1: one row per model, columns (quantity, task) and their average over tasks.

    As in the paper, accuracy, MSE, bias and `uniform` (the loss of the uniform predictor) are in hundredths.
    """
    frame = totals(grid, **wanted)
    models, tasks = frame["model"].unique(), frame["rows"].unique()
    blocks = {}
    for name in TERMS:
        factor = 100 if name in HUNDREDTHS else 1
        block = factor * frame.pivot(index="model", columns="rows", values=name).loc[models, tasks]
        blocks[name] = block.assign(**{AVERAGE: block.mean(axis=1, skipna=False)})
    return pd.concat(blocks, axis=1, names=["quantity", "rows"])


def modules(grid: Grid, loss: str = "squared", gauge: Gauge = "centered", **wanted: Any) -> pd.DataFrame:
    """Return `Decomposition.by_module` of every model and task (Eq. 9-10)."""
    return _frame(grid, lambda c, cell: decompose(c, loss=loss, gauge=gauge).by_module(), wanted)


def curves(grid: Grid, **wanted: Any) -> pd.DataFrame:
    """Return `TERMS` of the prefix ensembles (Fig. 5 and 7): one row per model, task and junction, numbered from 0.

    Partial sums that the stream never holds are left out.
    """

    def along(d: Decomposition) -> pd.DataFrame:
        frame = d.by_depth()
        return frame[~frame["partial"].astype(bool)].reset_index(drop=True)

    frame = _frame(grid, lambda c, cell: _columns(c, along), wanted)
    frame = frame[["model", "rows", "component", "members", "accuracy", *SIGNS]]
    frame.insert(2, "junction", frame.groupby(["model", "rows"]).cumcount())
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
    rows = []
    for model, of_model in frame.groupby("model", sort=False):
        share = {}
        for name in ("members", "bias", "diversity"):
            values = of_model.pivot(index="rows", columns="module", values=name).fillna(0.0)
            share[name] = values.div(values.sum(axis=1), axis=0)  # NaN where the whole is 0
        for term, module in product(("bias", "diversity"), of_model["module"].unique()):
            found = estimate(share[term][module].to_numpy(), over="tasks")
            row = {"model": model, "module": module, "term": term, "member_share": share["members"][module].mean()}
            row |= {**found.columns("share"), "excess": found.value - row["member_share"], "tasks": found.n}
            rows.append(row)
    return pd.DataFrame(rows)


def correlations(frame: pd.DataFrame) -> pd.DataFrame:
    """Correlate each quantity, times its expected sign, with accuracy along depth (Fig. 3), for each model and task.

    Args:
        frame: That of `curves`.

    Returns one row per model, task, metric and coefficient; r is NaN for curves that vary by no more than rounding.

    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "rows": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> correlations(frame).set_index("coefficient")["r"].round(3).to_dict()
    {'pearson': 0.908, 'spearman': 1.0}
    """
    rows = []
    for (model, task), curve in frame.groupby(["model", "rows"], sort=False):
        for metric in [name for name in SIGNS if name in curve]:
            both = curve[["accuracy", metric]].astype(float)
            varies = bool((both.std() > 1e-12 * both.abs().max()).all())
            for coefficient in COEFFICIENTS:
                r = both["accuracy"].corr(both[metric], method=coefficient) if varies else np.nan
                row = {"model": model, "rows": task, "metric": metric, "coefficient": coefficient}
                rows.append(row | {"sign": SIGNS[metric], "r": SIGNS[metric] * r})
    return pd.DataFrame(rows)


def _frame(grid: Grid, table: Callable[[Any, Cell], pd.DataFrame], wanted: Mapping[str, Any]) -> pd.DataFrame:
    """Join a table of all contributions. Raises InputError for those of several options, e.g. two units."""
    different = differing_options(list(grid.cells(analysis="contributions", **wanted)))
    if different:
        raise InputError(f"contributions differ in {', '.join(different)}: choose one by {different[0]}=…")
    return grid.frame(table, analysis="contributions", **wanted)


def _columns(c: Any, read: Callable[[Decomposition], pd.DataFrame]) -> pd.DataFrame:
    """Return `TERMS` of contributions, with their intervals, from a frame of each decomposition."""
    kinds = dict.fromkeys((loss, gauge) for loss, gauge, _ in TERMS.values())
    frames = {kind: read(decompose(c, loss=kind[0], gauge=kind[1])) for kind in kinds}
    first = frames["squared", "raw"]
    columns = {name: first[name] for name in ("component", "members") if name in first}
    for name, (loss, gauge, term) in TERMS.items():
        for end in ENDS:
            if term + end in frames[loss, gauge]:
                columns[name + end] = frames[loss, gauge][term + end]
    return pd.DataFrame(columns)
