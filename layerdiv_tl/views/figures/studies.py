"""A study as figures: models × tasks, and the figures of its analyses."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice, keywords
from ..._registry import figure_of
from ...components import Unit
from ...ensemble.decomposition import NormAt
from .. import plotting as kit
from .. import style
from .curves import depth_panels
from .paper import correlation_bars, scaling_curve, share_bars, tradeoff_steps
from .size_panels import information_panels

if TYPE_CHECKING:
    from ...studies.study import Study


_GUESSING = "guessing evenly"
# Quantities in the menu, which a small map has room for; others can be asked for.
_MENU = ("accuracy", "logit difference", "cross-entropy", "MSE", "diversity", "diversity_logit centered")


@figure_of("table", "Study", default=True)
def study_table_map(study: Study, quantity: str = "accuracy", unit: Unit = "sublayer") -> go.Figure:
    """A map model × task of one quantity of `Study.table`, its value in every cell; a menu shows another.

    Accuracy is colored from 0 to 100, MSE and bias by how far they are from the uniform predictor's (purple
    below), logit differences around 0, all others from 0 to the largest. Cells that the study lacks are empty, and so
    is the average of a model that lacks one. The last row is what guessing evenly would give. Raises InputError for an
    unknown quantity or unit.
    """
    meanings = style.LABELS["quantity"]
    choice("quantity", quantity, meanings)
    table, texts = _with_guessing(study, unit)
    *tasks, average = table[quantity].columns
    x = [*range(len(tasks)), len(tasks) + 0.2]
    names = _MENU if quantity in _MENU else (quantity, *_MENU)
    maps = {name: _cells(table, texts, name, x) for name in names}
    attributes = ("z", "text", "hovertext", "zmin", "zmax", "colorbar.title.text")
    views = {
        name: (kit.changes([cells], *attributes), {"title.subtitle.text": html.escape(meanings[name][1])})
        for name, cells in maps.items()
    }
    columns = kit.named_columns([*tasks, average], x)
    columns["ticktext"][-1] = f"<b>{average}</b>"
    return kit.arrange(
        go.Figure(maps[quantity]),
        "Models and tasks",
        meanings[quantity][1],
        x=columns,
        y=kit.named_rows(list(table.index)),
        plot=max(120, 34 * len(table)),
        below=48 + kit.tilted([*tasks, average]),
        menus=kit.buttons(views, names.index(quantity), type="dropdown", direction="down"),
    )


def _with_guessing(study: Study, unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`Study.table` as numbers and as texts, with a last row for a model that says all options are equally likely."""
    from ...studies.tables import AVERAGE

    table, texts = study.table(unit), study.table(unit, intervals=True)
    chance = study.summary(unit).groupby("task")["chance"].mean()
    even = {"accuracy": 100 * chance, "logit difference": 0 * chance, "cross-entropy": -np.log(chance)}
    even = {name: pd.concat([values, pd.Series({AVERAGE: values.mean()})]) for name, values in even.items()}
    even |= dict.fromkeys(("MSE", "uniform", "bias"), table["uniform"].max())
    columns: list[Any] = table.columns.to_list()
    row = [even[quantity].get(task, np.nan) if quantity in even else np.nan for quantity, task in columns]
    table.loc[_GUESSING] = row
    texts.loc[_GUESSING] = [f"{value:.4g}" if np.isfinite(value) else "" for value in row]
    return table, texts


def _cells(table: pd.DataFrame, texts: pd.DataFrame, quantity: str, x: list[float]) -> go.Heatmap:
    """The map of one quantity, its numbers written into the cells."""
    values, uniform = (table[name].to_numpy(dtype=float) for name in (quantity, "uniform"))
    meaning = style.LABELS["quantity"][quantity][0]
    signed, above_uniform = meaning in ("less uniform", "logits"), meaning == "less uniform"
    z = values - uniform if above_uniform else values
    hover = [
        [
            f"<b>{html.escape(model)}</b><br>{html.escape(task)}<br>{quantity} {text}"
            + (f"<br>uniform {style.number(least)}" if above_uniform else "")
            for task, text, least in zip(table[quantity].columns, row, least_row, strict=True)
        ]
        for model, row, least_row in zip(table.index, texts[quantity].to_numpy(), uniform, strict=True)
    ]
    written = [[f"{value:.4g}" if np.isfinite(value) else "" for value in row] for row in values]
    limit = 100.0 if quantity == "accuracy" else kit.robust_limit(z, 1.0)
    cells = {"x": x, "text": written, "texttemplate": "%{text}", "xgap": 2, "ygap": 2, "hoverongaps": True}
    return kit.heat_map(z, hover, meaning, limit, signed=signed, side="right", **cells)


def _draw(function: Callable[..., go.Figure], numbers: Any, options: dict[str, Any]) -> go.Figure:
    """The figure, after its options are checked against its annotations, as `figure` does."""
    keywords(function, options)
    return function(numbers, **options)


@figure_of("correlations", "Study")
def study_correlations(
    study: Study, unit: Unit = "sublayer", n_resamples: int = 1000, seed: int = 0, **options: Any
) -> go.Figure:
    """`correlation_bars` of a study."""
    return _draw(correlation_bars, study.correlations(unit, n_resamples, seed), options)


@figure_of("curves", "Study")
def study_curves(study: Study, unit: Unit = "sublayer", norm: NormAt = "frozen", **options: Any) -> go.Figure:
    """`depth_panels` of a study."""
    return _draw(depth_panels, study.curves(unit, norm), options)


@figure_of("shares", "Study")
def study_shares(
    study: Study, unit: Unit = "sublayer", form: Literal["squared", "paper"] = "squared", **options: Any
) -> go.Figure:
    """`share_bars` of a study, its models in the study's order."""
    order = {"models": list(dict.fromkeys(study.metrics.loc[study.metrics["unit"] == unit, "model"]))}
    return _draw(share_bars, study.shares(unit, form), order | options)


@figure_of("scaling", "Study")
def study_scaling(
    study: Study, unit: Unit = "sublayer", quantity: str = "accuracy", least_parameters: float = 0.0, **options: Any
) -> go.Figure:
    """`scaling_curve` of a study."""
    fit = study.scaling(quantity, unit, least_parameters)
    # Differences from the uniform predictor are colors of the map only.
    measured_in = style.LABELS["quantity"][quantity][0].replace("less uniform", "hundredths")
    titles = {"names": study.shape_means(quantity, unit, least_parameters)["model"].tolist()}
    return _draw(scaling_curve, fit, titles | {"y_title": f"{quantity}, mean over tasks ({measured_in})"} | options)


@figure_of("tradeoff", "Study")
def study_tradeoff(
    study: Study, unit: Unit = "sublayer", still: float = 0.0, n_resamples: int = 1000, seed: int = 0, **options: Any
) -> go.Figure:
    """`tradeoff_steps` of a study."""
    return _draw(tradeoff_steps, study.tradeoff_signs(unit, still, n_resamples, seed), options)


@figure_of("information", "Study")
def study_information(study: Study, estimator: str = "gaussian", unit: Unit = "sublayer", **options: Any) -> go.Figure:
    """`information_panels` of a study; options are those of `Study.information`, and `against`."""
    against = options.pop("against", "members")
    for name in options:
        choice("option", name, inspect.signature(study.information).parameters)
    return information_panels(study.information(estimator, unit, **options), study.models(unit), against)
