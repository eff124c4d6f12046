"""MSE, bias, diversity and accuracy along depth, one small panel for every task (Fig. 5 and 7 of the paper)."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice, some_of, whole_number
from ...replication.curve_statistics import z_scores
from .. import style
from ..plotting import arrange, buttons, cell, changes, clipped, panels, short

if TYPE_CHECKING:
    import pandas as pd

# Terms of each half, and those of both. The error of probabilities has no shift.
_HALVES = {"raw": ("bias", "diversity"), "centered": ("bias_centered", "diversity_centered")}
_BOTH = ("accuracy", "mse")
_MEANING = {"raw": "raw: as in the paper", "centered": "centered: what softmax sees"}
# More models than this in one panel are a haze: they are only shown one at a time.
TOGETHER = 5
_COLUMNS = 4
_DEPTH = {"relative": "junction, as a share of depth", "junction": "number of the junction"}


def depth_panels(
    curves: pd.DataFrame,
    models: int | Sequence[str] | None = None,
    part: Literal["raw", "centered"] = "raw",
    depth: Literal["relative", "junction"] = "relative",
    title: str | None = None,
) -> go.Figure:
    """Curves of the prefix ensembles against depth, a panel for every task, colored by term (Fig. 5 and 7).

    curves
        `Study.curves()`, not standardized. Each curve is drawn less its mean, over its standard deviation
        (one that never moves is not drawn); the hover has the value itself.
    models
        Names, or how many of the best by accuracy at the last junction, averaged over their tasks (the paper
        shows five); None is all. One is shown at a time, the first first; a menu has the others, and up to
        five together.
    part, depth
        What is shown first of bias and diversity (buttons change it); junctions as shares of a model's
        depth, which models of different depth have in common, or by number.

    Raises InputError for an unknown model, part or depth.
    """
    choice("part", part, _HALVES)
    choice("depth", depth, _DEPTH)
    chosen = _chosen(curves, models)
    tasks = list(dict.fromkeys(curves["task"]))
    terms = [term for term in (*_BOTH, *_HALVES["raw"], *_HALVES["centered"]) if term in curves]
    groups = curves[curves["model"].isin(chosen)].groupby(["model", "task"], sort=False)
    lines: dict[Any, dict[str, Any]] = {key: _standardized(curve, terms, depth) for key, curve in groups}

    def draw(models: Sequence[str]) -> list[list[go.Scatter]]:
        together = 0.5 if len(models) > 1 else 1.0
        return [[_trace(lines, models, task, term, part).update(opacity=together) for term in terms] for task in tasks]

    columns = min(_COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = panels(draw(chosen[:1]), [short(task) for task in tasks], columns)
    visible = {half: [_visible(trace.legendgroup, half) for trace in figure.data] for half in _HALVES}
    halves = {_MEANING[half]: [{"visible": visible[half]}] for half in _HALVES}
    views = {clipped(model): [model] for model in chosen}
    if 1 < len(chosen) <= TOGETHER:
        views[f"all {len(chosen)} together"] = chosen
    attributes = ("x", "y", "customdata", "text", "opacity")
    choices = {label: [changes(chain(*draw(models)), *attributes)] for label, models in views.items()}
    menu = buttons(choices, method="restyle", type="dropdown", direction="down", x=1, xanchor="right")
    arrange(
        figure,
        title or "MSE, bias, diversity and accuracy along depth",
        "Standardized: each curve less its mean, over its standard deviation. Accuracy is the thick line.",
        plot=220 * rows,
        below=88,
        menus=[*buttons(halves, list(_MEANING).index(part), "restyle"), *menu],
        headings=True,
    )
    for number in range(max(0, len(tasks) - columns), len(tasks)):
        # Panels that have none below them.
        figure.update_xaxes(showticklabels=True, **cell(number, columns))
    figure.update_xaxes(title_text=_DEPTH[depth], title_font={"size": 12}, row=rows, col=1)
    figure.update_xaxes(**({"range": [-0.03, 1.03], "tickvals": [0, 0.5, 1]} if depth == "relative" else {"nticks": 4}))
    heights = [y for line in lines.values() for term in terms for y in line[term][0] if y is not None]
    low, high = min(heights, default=-1.0), max(heights, default=1.0)
    figure.update_yaxes(range=[low - 0.2, high + 0.2], zeroline=False)
    return figure.update_yaxes(title_text="standard deviations", title_font={"size": 12}, col=1)


def _chosen(curves: pd.DataFrame, models: int | Sequence[str] | None) -> list[str]:
    """The models that were asked for, by name."""
    present = list(dict.fromkeys(curves["model"]))
    if models is None:
        return present
    if isinstance(models, Integral):
        count = whole_number("models", models, 1)
        last = curves.loc[curves.groupby(["model", "task"], sort=False)["junction"].idxmax()]
        best = last.groupby("model", sort=False)["accuracy"].mean().sort_values(ascending=False, kind="stable")
        return best.index[:count].tolist()
    return some_of("models", models, present)


def _standardized(curve: pd.DataFrame, terms: Sequence[str], depth: str) -> dict[str, Any]:
    """One model on one task: junctions as `x`, and of every term heights and what the hover has of each point."""
    x = curve["junction"].to_numpy(dtype=float)
    x = x / max(1.0, x.max()) if depth == "relative" else x
    line: dict[str, Any] = {"x": [round(position, 4) for position in x.tolist()]}
    for term in terms:
        raw = curve[term].to_numpy(dtype=float)
        # Four decimals are finer than a pixel; a page with sixteen models holds 50 000 of these numbers.
        heights = [round(v, 4) if np.isfinite(v) else None for v in z_scores(raw).tolist()]
        points = [[style.number(v), label] for v, label in zip(raw, curve["component"], strict=True)]
        line[term] = (heights, points)
    return line


def _trace(lines: dict[Any, dict[str, Any]], models: Sequence[str], task: str, term: str, part: str) -> go.Scatter:
    """The curves of several models as one trace, with a gap between any two."""
    x: list[Any] = []
    y, points, text = list(x), list(x), list(x)
    for model in models:
        if (line := lines.get((model, task))) is None:
            continue
        if x:
            x, y, points, text = [*x, None], [*y, None], [*points, [None, None]], [*text, None]
        heights, values = line[term]
        x, y, points = [*x, *line["x"]], [*y, *heights], [*points, *values]
        text = [*text, *[html.escape(model)] * len(heights)]
    # A centered term is never seen with its raw one and shares its color.
    color, width = style.TERM[term.removesuffix("_centered")], 2.4 if term == "accuracy" else 1.6
    return go.Scatter(
        # A trace without a point would be left out of the legend, which the others share.
        x=x or [None],
        y=y or [None],
        customdata=points or [[None, None]],
        text=text or [None],
        mode="lines",
        name=style.TERM_NAME[term],
        legendgroup=term,
        visible=_visible(term, part),
        line={"color": color, "width": width},
        hovertemplate=f"<b>%{{text}}</b>, after %{{customdata[1]}}<br>{style.TERM_NAME[term]} %{{customdata[0]}}"
        "<br>standardized %{y:.2f}<extra></extra>",
    )


def _visible(term: str, half: str) -> bool:
    return term in _BOTH or term in _HALVES[half]
