"""Metrics of a study and their wide tables: Table 1, summaries, components, curves along depth, models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd

from .._checks import choice, flag, number, one_of, some_of, whole_number
from ..components import COLUMNS, Unit
from ..ensemble.decomposition import NormAt
from ..errors import InputError
from ..replication.correlation import z_scores
from ..replication.populations import mean_by_shape
from ..results import Result
from ..zoo import registry

# Quantity of a table: (loss, term, factor). The paper shows accuracy, MSE and bias in hundredths.
QUANTITIES: Mapping[str, tuple[str, str, float]] = {
    "accuracy": ("squared", "accuracy", 100),
    "logit difference": ("squared", "logit_difference", 1),
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


@dataclass(frozen=True, eq=False)
class StudyTables(Result):
    """Metrics of a grid of models, tasks and units, and their tables.

    Attributes:
        metrics: A long frame: model, task, unit, then the columns of `metrics_of`.
        cells: One dict per finished cell: settings, provenance of rows and model, versions, times.
        failures: One sentence for every model or cell that failed.
        folders: The folders of the study; the first holds the shards.
    """

    metrics: pd.DataFrame
    cells: tuple[dict[str, Any], ...]
    failures: tuple[str, ...]
    folders: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """Return all numbers in tidy form: one row per model, task, unit, loss, table, row and term."""
        return self.metrics

    def _metrics(self, unit: Any, table: str | None = None) -> pd.DataFrame:
        """Select the metrics of one table at a unit of the study."""
        choice("unit", unit, get_args(Unit))
        if unit not in (units := self.metrics["unit"].unique().tolist()):
            has = one_of(units, "and")
            raise InputError(f"unit={unit!r} is not in this study, which has {has}: run it at unit {unit!r} first.")
        rows = self.metrics[self.metrics["unit"] == unit]
        return rows if table is None else rows[rows["table"] == table]

    def totals(self) -> pd.DataFrame:
        """The rows about whole cells."""
        return self.metrics[self.metrics["table"] == "totals"]

    def table(self, unit: Unit = "sublayer", intervals: bool = False) -> pd.DataFrame:
        """Make the paper's Table 1: one row per model, columns (quantity, task) and their average over tasks.

        As in the paper, accuracy, MSE, bias and `uniform` (the loss of the uniform predictor) are in hundredths and
        follow Eq. 14. The other columns are centered diversity, the size-fair `diversity_logit`, and the cross-entropy
        in nats. `intervals` returns texts with 95 % intervals.
        """
        totals = self._metrics(unit, "totals")
        flag("intervals", intervals)
        models, tasks = totals["model"].unique(), totals["task"].unique()
        blocks = {}
        for quantity, (loss, term, factor) in QUANTITIES.items():
            rows = totals[(totals["loss"] == loss) & (totals["term"] == term)].set_index(["model", "task"])
            block = factor * rows["mean"].unstack().reindex(index=models, columns=tasks)
            average = block.mean(axis=1, skipna=False)
            if intervals:
                texts = {key: _with_interval(factor * row) for key, row in rows[["mean", "low", "high"]].iterrows()}
                cells = [[texts.get((model, task), "") for task in tasks] for model in models]
                block, average = pd.DataFrame(cells, models, tasks), average.map("{:.4g}".format)
            blocks[quantity] = block.assign(**{AVERAGE: average})
        return pd.concat(blocks, axis=1, names=["quantity", "task"]).rename_axis(index="model")

    def summary(self, unit: Unit = "sublayer") -> pd.DataFrame:
        """Summarize each model and task in a row: accuracy and its baselines, logit difference, Theorem 1, gaps.

        `accuracy` and `bag_of_words`, a cross-validated word-counting classifier (NaN if a class has fewer than 5
        rows), are shares with 95 % intervals. `answers` is {option: share of rows answered with it}.
        `logit_difference` is the right option's logit minus the mean of the others. For options scored as sequences,
        `accuracy_token` and `accuracy_byte` use the log-likelihood per token and per byte. `loss`, `bias` and
        `diversity` are in squared logits, `cross_entropy` and `entropy` in nats.
        """
        m = self._metrics(unit)
        frames = [(cell, cell["settings"]) for cell in self.cells if cell["settings"]["unit"] == unit]
        rows = [(m[(m["model"] == s["model"]) & (m["task"] == s["task"])], cell) for cell, s in frames]
        return pd.DataFrame([_summary_row(metrics, cell) for metrics, cell in rows if len(metrics)])

    def components(self, unit: Unit = "sublayer", loss: str = "squared") -> pd.DataFrame:
        """Return bias, diversity, net and more of every component: one row per model, task and component.

        Values are each component's own, not divided by |L|, with intervals in `<term>_low`, `<term>_high`; `loss` is
        that of `decompose`. Raises InputError for a unit or loss that is not in the study.
        """
        return self._wide("components", unit, loss, list(COLUMNS))

    def modules(self, unit: Unit = "sublayer", loss: str = "squared") -> pd.DataFrame:
        """Return `components` by module (Eq. 9-10), weighted to sum to the ensemble's terms; `share` is n_g/|L|."""
        return self._wide("modules", unit, loss, ["module", "members", "share"])

    def _wide(self, table: str, unit: Unit, loss: str, names: list[str]) -> pd.DataFrame:
        """Pivot one table and loss to a column and interval per term; rows keep their order."""
        rows = self._metrics(unit, table)
        rows = rows[rows["loss"] == choice("loss", loss, rows["loss"].unique().tolist())]
        return widen(rows, ["model", "task", *names], {(loss, term): term for term in rows["term"].unique()})

    def models(self, unit: Unit = "sublayer") -> pd.DataFrame:
        """Make the paper's Table 4 for these models: parameters, members |L|, dtype, source.

        `reuses` is True if a block runs more than once in a pass. Raises InputError for a unit that is not in the
        study.
        """
        metrics = self._metrics(unit)
        cells = [cell for cell in self.cells if cell["settings"]["unit"] == unit]
        provenance = {cell["settings"]["model"]: cell["provenance"] for cell in cells}
        rows = []
        for model, m in metrics.groupby("model", sort=False):
            members = m.loc[m["table"] == "totals", "members"].dropna()
            row = {"model": model, "parameters": provenance[model]["parameters"]}
            row |= {"members": int(members.iloc[0]), "reuses": bool(m["repeat"].notna().any())}
            rows.append(row | {name: provenance[model][name] for name in ("architecture", "dtype", "source")})
        return pd.DataFrame(rows)

    def best(self, count: int, unit: Unit = "sublayer") -> list[str]:
        """Return the `count` models of highest accuracy, averaged over tasks, best first (the paper's Fig. 5: five)."""
        whole_number("count", count, 1)
        means = self.table(unit)["accuracy"][AVERAGE].dropna().sort_values(ascending=False, kind="stable")
        return means.index[:count].tolist()

    def curves(
        self,
        unit: Unit = "sublayer",
        norm: NormAt = "frozen",
        standardized: bool = False,
        models: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return accuracy, MSE, bias, diversity and more of the prefix ensembles (Fig. 5 and 7), in wide form.

        There is one row per model, task and junction, numbered from 0; partial sums that the stream never holds are
        left out. `standardized` z-scores each curve, as in the figures (NaN if it is constant). `models` selects
        models, e.g. `best(5)`. Raises InputError for a unit without depth tables in this study, and for a model that
        is not in the study.
        """
        choice("norm", norm, get_args(NormAt))
        flag("standardized", standardized)
        rows = self._metrics(unit, "depth" if norm == "frozen" else "depth_recomputed")
        rows = rows[~rows["partial"].astype(bool)]
        if rows.empty:
            raise InputError(f"this study has no curves at unit {unit!r}: run it at unit 'sublayer'.")
        if models is not None:
            rows = rows[rows["model"].isin(some_of("models", models, rows["model"].unique().tolist()))]
        keys = ["model", "task", "component", "members"]
        frame = widen(rows, keys, {pair: name for name, pair in CURVES.items()}, {"": "mean"})
        frame.insert(3, "junction", frame.groupby(["model", "task"], sort=False).cumcount())
        if standardized:
            curves = frame.groupby(["model", "task"], sort=False)[list(CURVES)]
            frame[list(CURVES)] = curves.transform(lambda curve: z_scores(curve.to_numpy(dtype=float)))
        return frame

    def shape_means(
        self, quantity: str = "accuracy", unit: Unit = "sublayer", least_parameters: float = 0.0
    ) -> pd.DataFrame:
        """Return `model`, `members` and the `mean` of a quantity of `table` over tasks and seeds: one row per shape."""
        choice("quantity", quantity, QUANTITIES)
        number("least_parameters", least_parameters, least=0)
        means = self.table(unit)[quantity][AVERAGE]
        return mean_by_shape(self.models(unit), means, self.shapes(unit), least_parameters)

    def shapes(self, unit: Unit = "sublayer") -> dict[str, str]:
        """Return {model: shape} of the zoo's models, whose training seeds are not independent models."""
        return {name: shape for name, (shape, _) in registry.seeds(self._metrics(unit)["model"].unique()).items()}


def widen(
    rows: pd.DataFrame,
    keys: list[str],
    terms: Mapping[tuple[str, str], str],
    endings: Mapping[str, str] = _ENDINGS,
) -> pd.DataFrame:
    """Turn the metrics named by (loss, term) into columns with these names, one row per `keys`, in their order."""
    names = pd.Series(list(terms.values()), pd.MultiIndex.from_tuples(terms, names=["loss", "term"]), name="column")
    rows = rows.join(names, on=["loss", "term"], how="inner")
    wide = rows.pivot(index=keys, columns="column", values=list(endings.values()))
    columns = {(value, name): name + end for name in terms.values() for end, value in endings.items()}
    wide = wide.reindex(columns=list(columns)).set_axis(list(columns.values()), axis=1)
    return rows.drop_duplicates(keys)[keys].merge(wide.reset_index(), on=keys, how="left", sort=False)


def _with_interval(row: pd.Series) -> str:
    interval = f" [{row['low']:.4g}, {row['high']:.4g}]" if np.isfinite(row["low"]) else ""
    return f"{row['mean']:.4g}{interval}"


def _summary_row(metrics: pd.DataFrame, cell: Mapping[str, Any]) -> dict[str, Any]:
    """Make a row of `Study.summary` from the metrics of one cell."""
    settings, baselines = cell["settings"], cell["baselines"]
    totals = metrics[metrics["table"] == "totals"].set_index(["loss", "term"])
    row = {"model": settings["model"], "task": settings["task"], "rows": settings["rows"]}
    row |= {"members": int(totals["members"].dropna().iloc[0]), "chance": baselines["chance"]}
    words = baselines["bag_of_words"] or [np.nan] * 3
    row |= {f"accuracy{end}": float(totals[name]["squared", "accuracy"]) for end, name in _ENDINGS.items()}
    row |= {f"bag_of_words{end}": value for end, value in zip(_ENDINGS, words, strict=True)}
    answers = metrics[metrics["table"] == "answers"]
    row["answers"] = dict(zip(answers["term"], answers["mean"].tolist(), strict=True))
    for term, loss in (("logit_difference", "squared"), ("accuracy_token", "none"), ("accuracy_byte", "none")):
        row |= {f"{term}{end}": float(totals[name].get((loss, term), np.nan)) for end, name in _ENDINGS.items()}
    terms = {f"{t}{end}": ("squared", f"{t}{end}") for end in ("", "_centered") for t in ("loss", "bias", "diversity")}
    terms |= {term: ("squared", term) for term in ("diversity_logit", "diversity_logit_centered")}
    terms |= {"cross_entropy": ("cross_entropy", "loss"), "entropy": ("cross_entropy", "entropy")}
    terms |= {gap: ("none", gap) for gap in ("identity_gap", "absolute_gap")}
    return row | {name: float(totals["mean"][pair]) for name, pair in terms.items()}
