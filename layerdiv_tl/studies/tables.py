"""Wide tables from the long metrics of a study: Table 1, summaries, components, curves along depth, models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Quantity of a table: (loss, term, factor). The paper shows accuracy, MSE and bias in hundredths.
QUANTITIES: Mapping[str, tuple[str, str, float]] = {
    "accuracy": ("squared", "accuracy", 100),
    "MSE": ("paper", "loss", 100),
    "uniform": ("paper", "zero_bias", 100),
    "bias": ("paper", "bias", 100),
    "diversity": ("squared", "diversity", 1),
    "diversity centered": ("squared", "diversity_centered", 1),
    "diversity_logit": ("squared", "diversity_logit", 1),
    "diversity_logit centered": ("squared", "diversity_logit_centered", 1),
    "cross-entropy": ("cross_entropy", "loss", 1),
    "entropy": ("cross_entropy", "entropy", 1),
}
AVERAGE = "Avg."
# Ending of a column: column of the metrics.
_ENDINGS = {"": "mean", "_low": "low", "_high": "high"}
# Column of a curve along depth: (loss, term). MSE, bias and diversity are Eq. 14's, as in the paper's figures.
CURVES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("squared", "accuracy"),
    "mse": ("paper", "loss"),
    "bias": ("paper", "bias"),
    "diversity": ("squared", "diversity"),
    "bias_centered": ("squared", "bias_centered"),
    "diversity_centered": ("squared", "diversity_centered"),
    "diversity_logit": ("squared", "diversity_logit"),
    "diversity_logit_centered": ("squared", "diversity_logit_centered"),
    "cross_entropy": ("cross_entropy", "loss"),
    "cross_entropy_bias": ("cross_entropy", "bias"),
    "cross_entropy_diversity": ("cross_entropy", "diversity"),
    "entropy": ("cross_entropy", "entropy"),
}


def quantity_table(totals: pd.DataFrame, intervals: bool) -> pd.DataFrame:
    """`Study.table` from the totals of one unit."""
    import pandas as pd

    models, tasks = totals["model"].unique(), totals["task"].unique()
    blocks = {}
    for quantity, (loss, term, factor) in QUANTITIES.items():
        rows = totals[(totals["loss"] == loss) & (totals["term"] == term)].set_index(["model", "task"])
        mean = rows["mean"].unstack().reindex(index=models, columns=tasks)
        average = factor * mean.mean(axis=1, skipna=False)
        block = factor * mean
        if intervals:
            texts = {key: _with_interval(factor * row) for key, row in rows[["mean", "low", "high"]].iterrows()}
            block = pd.DataFrame([[texts.get((model, task), "") for task in tasks] for model in models], models, tasks)
            average = average.map("{:.4g}".format)
        blocks[quantity] = block.assign(**{AVERAGE: average})
    return pd.concat(blocks, axis=1, names=["quantity", "task"]).rename_axis(index="model")


def _with_interval(row: pd.Series) -> str:
    interval = f" [{row['low']:.4g}, {row['high']:.4g}]" if np.isfinite(row["low"]) else ""
    return f"{row['mean']:.4g}{interval}"


def summary_row(metrics: pd.DataFrame, cell: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `Study.summary` from the metrics of one cell."""
    settings, baselines = cell["settings"], cell["baselines"]
    totals = metrics[metrics["table"] == "totals"].set_index(["loss", "term"])
    row = {"model": settings["model"], "task": settings["task"], "rows": settings["rows"]}
    row |= {"members": int(totals["members"].dropna().iloc[0]), "chance": baselines["chance"]}
    words = baselines["bag_of_words"] or [np.nan] * 3
    row |= {f"accuracy{end}": float(totals[name]["squared", "accuracy"]) for end, name in _ENDINGS.items()}
    row |= {f"bag_of_words{end}": value for end, value in zip(_ENDINGS, words, strict=True)}
    answers = metrics[metrics["table"] == "answers"]
    row["answers"] = dict(zip(answers["term"], answers["mean"].tolist(), strict=True))
    terms = {f"{t}{end}": ("squared", f"{t}{end}") for end in ("", "_centered") for t in ("loss", "bias", "diversity")}
    terms |= {term: ("squared", term) for term in ("diversity_logit", "diversity_logit_centered")}
    terms |= {"cross_entropy": ("cross_entropy", "loss"), "entropy": ("cross_entropy", "entropy")}
    terms |= {gap: ("none", gap) for gap in ("identity_gap", "absolute_gap")}
    return row | {name: float(totals["mean"][pair]) for name, pair in terms.items()}


def wide_table(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Rows of one table and loss with a column, and its interval, for each term; in the rows' order."""
    keys = ["model", "task", *names]
    wide = rows.pivot(index=keys, columns="term", values=list(_ENDINGS.values()))
    terms = [(name, f"{term}{end}", term) for term in rows["term"].unique() for end, name in _ENDINGS.items()]
    wide = wide[[(name, term) for name, _, term in terms]].set_axis([column for _, column, _ in terms], axis=1)
    return rows.drop_duplicates(keys)[keys].merge(wide.reset_index(), on=keys, how="left", sort=False)


def curves_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`Study.curves` from the rows of a depth table, whole junctions only: a column for each of `CURVES`."""
    keys = ["model", "task", "component", "members"]
    columns = {pair: name for name, pair in CURVES.items()}
    rows = rows.assign(curve=[columns.get(pair, "") for pair in zip(rows["loss"], rows["term"], strict=True)])
    rows = rows[rows["curve"] != ""]
    wide = rows.pivot(index=keys, columns="curve", values="mean")
    wide = wide.reindex(columns=list(CURVES)).rename_axis(columns=None)
    frame = rows[keys].drop_duplicates().merge(wide.reset_index(), on=keys, how="left", sort=False)
    frame.insert(3, "junction", frame.groupby(["model", "task"], sort=False).cumcount())
    return frame


def models_table(metrics: pd.DataFrame, cells: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """`Study.models` from the metrics and cells of one unit."""
    import pandas as pd

    provenance = {cell["settings"]["model"]: cell["provenance"] for cell in cells}
    rows = []
    for model, m in metrics.groupby("model", sort=False):
        totals = m[(m["table"] == "totals") & m["members"].notna()]
        row = {"model": model, "parameters": provenance[model]["parameters"]}
        row |= {"members": int(totals["members"].iloc[0]), "reuses": bool(m["repeat"].notna().any())}
        rows.append(row | {name: provenance[model][name] for name in ("architecture", "dtype", "source")})
    return pd.DataFrame(rows)
