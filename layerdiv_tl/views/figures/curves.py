"""Several models along depth: terms of the prefix ensembles, a panel for every task, and the analyses of depth."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import some_of, whole_number
from ..._registry import figure_of
from ...errors import InputError
from ...replication.correlation import z_scores
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...studies.depth_study import DepthStudy

# Terms of each half, and those of both. The error of probabilities has no shift.
_HALVES = {"raw": ("bias", "diversity"), "centered": ("bias_centered", "diversity_centered")}
_BOTH = ("accuracy", "mse")
# More models than this in one panel are a haze: they are only shown one at a time.
TOGETHER = 5
_COLUMNS = 4


def depth_panels(
    curves: pd.DataFrame,
    models: int | Sequence[str] | None = None,
    part: Literal["raw", "centered"] = "raw",
    depth: Literal["relative", "junction"] = "relative",
) -> go.Figure:
    """Curves of the prefix ensembles against depth, a panel for every task, colored by term (Fig. 5 and 7).

    Args:
        curves: `Study.curves()`, not standardized. Each curve is drawn less its mean, over its standard deviation (one
            that never moves is not drawn); the hover has the value itself.
        models: Names, or how many of the best by accuracy at the last junction, averaged over their tasks (the paper
            shows five); None is all. One is shown at a time, the first first; a menu has the others, and up to five
            together.
        part, depth: What is shown first of bias and diversity (buttons change it); junctions as shares of a model's
            depth, which models of different depth have in common, or by number.

    Raises InputError for an unknown model.
    """
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
    figure = kit.panels(draw(chosen[:1]), [kit.short(task) for task in tasks], columns)
    halves = {
        style.LABELS["part"][half]: [{"visible": [_visible(trace.legendgroup, half) for trace in figure.data]}]
        for half in _HALVES
    }
    views = {kit.clipped(model): [model] for model in chosen}
    if 1 < len(chosen) <= TOGETHER:
        views[f"all {len(chosen)} together"] = chosen
    attributes = ("x", "y", "customdata", "text", "opacity")
    choices = {label: [kit.changes(chain(*draw(models)), *attributes)] for label, models in views.items()}
    menu = kit.buttons(choices, method="restyle", type="dropdown", direction="down", x=1, xanchor="right")
    for number in range(max(0, len(tasks) - columns), len(tasks)):
        # Panels that have none below them.
        title = {"title_text": style.LABELS["junctions"][depth], "title_font": {"size": 12}} if columns < 4 else {}
        figure.update_xaxes(showticklabels=True, **title, **kit.cell(number, columns))
    if columns == 4:  # too narrow for a title each
        figure.update_xaxes(title_text=style.LABELS["junctions"][depth], title_font={"size": 12}, row=rows, col=1)
    figure.update_yaxes(title_text="standard deviations", title_font={"size": 12}, col=1)
    heights = [y for line in lines.values() for term in terms for y in line[term][0] if y is not None]
    low, high = min(heights, default=-1.0), max(heights, default=1.0)
    return kit.arrange(
        figure,
        "MSE, bias, diversity and accuracy along depth",
        "Standardized: each curve less its mean, over its standard deviation. Accuracy is the thick line.",
        x={"range": [-0.03, 1.03], "tickvals": [0, 0.5, 1]} if depth == "relative" else {"nticks": 4},
        y={"range": [low - 0.2, high + 0.2], "zeroline": False},
        plot=220 * rows,
        menus=[*kit.buttons(halves, list(_HALVES).index(part), "restyle"), *menu],
    )


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
    rows: list[tuple[Any, Any, Any, Any]] = []
    gap = (None, None, [None, None], None)
    for model in models:
        if curve := lines.get((model, task)):
            name = [html.escape(model)] * len(curve["x"])
            rows += [gap] * bool(rows) + list(zip(curve["x"], *curve[term], name, strict=True))
    # A trace without a point would be left out of the legend, which the others share.
    x, y, points, text = map(list, zip(*(rows or [gap]), strict=True))
    # A centered term is never seen with its raw one and shares its color.
    color, name = style.TERM[term.removesuffix("_centered")], style.TERM_NAME[term]
    look: dict[str, Any] = {"width": 2.4 if term == "accuracy" else 1.6, "marks": 0, "legendgroup": term}
    look |= {"customdata": points, "text": text, "visible": _visible(term, part), "name": name}
    hover = f"<b>%{{text}}</b>, after %{{customdata[1]}}<br>{name} %{{customdata[0]}}<br>standardized %{{y:.2f}}"
    return kit.line(x, y, color, hovertemplate=f"{hover}<extra></extra>", **look)


def _visible(term: str, half: str) -> bool:
    return term in _BOTH or term in _HALVES[half]


@figure_of("depth", "DepthStudy")
def depth_use_lines(depth: DepthStudy, along: Literal["relative", "layer"] = "relative") -> go.Figure:
    """Residual norms, skips and the logit lens against depth, a line for every model.

    Args:
        along: "relative": layers as shares of a model's depth, which models of different depth have in common; "layer":
            by number. Raises InputError for another, and where none of these was run.
    """
    models, shown, contents = depth.models, style.LABELS["title"]["depth_study"], []
    for panel in shown:
        results, lines = depth.newest(panel["analysis"]), []
        for number, model in enumerate(models):
            if model not in results:
                continue
            frame = results[model].frame()
            # Of the lens the junction after a whole layer, its last one.
            frame = frame[frame["kind"] == "layer"] if panel["analysis"] == "residual_norms" else frame
            frame = frame[frame["layer"].notna()]
            layers = frame["component"].str.replace(r"\..*", "", regex=True)
            frame = frame[(layers != layers.shift(-1)).to_numpy()]
            x = np.arange(len(frame)) / (max(len(frame) - 1, 1) if along == "relative" else 1)
            y = frame[panel["column"]].to_numpy(dtype=float)
            y = np.where(y > 0, y, np.nan) if panel["logarithmic"] else y  # a lens ends at 0
            hover = f"<b>{html.escape(model)}</b>, %{{text}}<br>%{{y:.3g}}<extra></extra>"
            labels: dict[str, Any] = {"name": kit.clipped(model), "legendgroup": model, "hovertemplate": hover}
            labels["text"] = [html.escape(label) for label in frame["component"]]
            lines.append(kit.line(x, y, style.SERIES[number % len(style.SERIES)], **labels))
        contents.append(lines)
    drawn = [(panel, lines) for panel, lines in zip(shown, contents, strict=True) if lines]
    if not drawn:
        raise InputError("these analyses have no curves by layer: draw one by itself, study.analyses[0].result.plot().")
    shown, contents = [panel for panel, _ in drawn], [lines for _, lines in drawn]
    headings = [html.escape(panel["heading"]) for panel in shown]
    figure = kit.panels(contents, headings, x_title=style.LABELS["along"][along])
    for row, panel in enumerate(shown, start=1):
        if panel["logarithmic"]:
            figure.update_yaxes(kit.log_axis(np.concatenate([line.y for line in contents[row - 1]])), row=row, col=1)
    alone = len(models) == 1
    title = f"How {f'{models[0]} uses' if alone else f'{len(models)} models use'} depth"
    subtitle = "Means over tokens unless said otherwise; logarithmic where the numbers span decades."
    room: dict[str, Any] = {"plot": 150 * len(shown)}
    return kit.arrange(figure, title, subtitle, showlegend=not alone, **room)
