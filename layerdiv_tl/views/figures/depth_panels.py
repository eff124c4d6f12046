"""MSE, bias, diversity and accuracy along depth, one small panel for every task (Fig. 5 and 7 of the paper)."""

from __future__ import annotations

import html
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..._checks import choice, some_of, whole_number
from ...replication.correlation import z_scores
from .. import style
from .layout import arrange, buttons, name, short

if TYPE_CHECKING:
    import pandas as pd

# Terms of each half, and those of both. The error of probabilities knows no shift.
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
    views = {model: [model] for model in chosen}
    if 1 < len(chosen) <= TOGETHER:
        views[f"all {len(chosen)} together"] = chosen
    lines: dict[Any, dict[str, Any]] = {
        (model, task): _standardized(curve, terms, depth)
        for (model, task), curve in curves.groupby(["model", "task"], sort=False)
        if model in chosen
    }
    columns = min(_COLUMNS, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=0.12 / max(1, rows - 1) if rows > 1 else 0,
        subplot_titles=[short(task) for task in tasks],
    )
    figure.update_annotations(font={"size": 13})
    traces = [(task, term) for task in tasks for term in terms]
    for task, term in traces:
        place = tasks.index(task)
        figure.add_scatter(
            mode="lines",
            name=style.TERM_NAME[term],
            legendgroup=term,
            showlegend=place == 0,
            visible=_seen(term, part),
            line={"color": style.TERM[_whole(term)], "width": 2.4 if term == "accuracy" else 1.6},
            hovertemplate=f"<b>%{{text}}</b>, after %{{customdata[1]}}<br>{style.TERM_NAME[term]} %{{customdata[0]}}"
            "<br>standardized %{y:.2f}<extra></extra>",
            row=place // columns + 1,
            col=place % columns + 1,
            **_joined(lines, chosen[:1], task, term),
        )
    halves = [
        {"label": label, "method": "restyle", "args": [{"visible": [_seen(term, half) for _, term in traces]}]}
        for half, label in _MEANING.items()
    ]
    menus = [buttons(halves, list(_MEANING).index(part))]
    if len(views) > 1:
        menus.append(_menu(views, lines, traces))
    arrange(
        figure,
        title or "MSE, bias, diversity and accuracy along depth",
        "Standardized: each curve less its mean, over its standard deviation. Accuracy is the thick line.",
        plot=220 * rows,
        below=88,
        menus=menus,
        headings=True,
    )
    for column in range(1, columns + 1):
        # A panel that has none below it.
        last = rows if (rows - 1) * columns + column <= len(tasks) else rows - 1
        figure.update_xaxes(showticklabels=True, row=last, col=column)
    figure.update_xaxes(title_text=_DEPTH[depth], title_font={"size": 12}, row=rows, col=1)
    if depth == "relative":
        figure.update_xaxes(range=[-0.03, 1.03], tickvals=[0, 0.5, 1])
    else:
        figure.update_xaxes(nticks=4)
    drawn = [y for line in lines.values() for term in terms for y in line[term][0] if y is not None]
    low, high = min(drawn, default=-1.0), max(drawn, default=1.0)
    figure.update_yaxes(range=[low - 0.2, high + 0.2], zeroline=False)
    return figure.update_yaxes(title_text="standard deviations", title_font={"size": 12}, col=1)


def _chosen(curves: pd.DataFrame, models: int | Sequence[str] | None) -> list[str]:
    """The models that were asked for, by name."""
    there = list(dict.fromkeys(curves["model"]))
    if models is None:
        return there
    if isinstance(models, Integral):
        models = whole_number("models", models, 1)
        last = curves.loc[curves.groupby(["model", "task"], sort=False)["junction"].idxmax()]
        best = last.groupby("model", sort=False)["accuracy"].mean().sort_values(ascending=False, kind="stable")
        return best.index[:models].tolist()
    return some_of("models", models, there)


def _standardized(curve: pd.DataFrame, terms: Sequence[str], depth: str) -> dict[str, Any]:
    """One model on one task: places, drawn heights and what the hover says of every term."""
    x = curve["junction"].to_numpy(dtype=float)
    if depth == "relative":
        x = x / max(1.0, x.max())
    found: dict[str, Any] = {"x": [round(place, 4) for place in x.tolist()]}
    for term in terms:
        raw = curve[term].to_numpy(dtype=float)
        # Four decimals are finer than a pixel; a page with sixteen models holds 50 000 of these numbers.
        heights = [round(v, 4) if np.isfinite(v) else None for v in z_scores(raw).tolist()]
        said = [[style.number(v), label] for v, label in zip(raw, curve["component"], strict=True)]
        found[term] = (heights, said)
    return found


def _joined(lines: dict[Any, dict[str, Any]], models: Sequence[str], task: str, term: str) -> dict[str, list[Any]]:
    """The curves of several models as one trace, with a gap between any two."""
    trace: dict[str, list[Any]] = {"x": [], "y": [], "customdata": [], "text": []}
    for model in models:
        if (line := lines.get((model, task))) is None:
            continue
        if trace["x"]:
            for values in trace.values():
                values.append(None)
            trace["customdata"][-1] = [None, None]
        heights, said = line[term]
        trace["x"] += line["x"]
        trace["y"] += heights
        trace["customdata"] += said
        trace["text"] += [html.escape(model)] * len(heights)
    # A trace without a point would be left out of the legend, which the others share.
    return trace if trace["x"] else {"x": [None], "y": [None], "customdata": [[None, None]], "text": [None]}


def _menu(
    views: dict[str, list[str]], lines: dict[Any, dict[str, Any]], traces: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """A menu that puts other models' curves into all panels."""
    entries = []
    for label, models in views.items():
        new = [_joined(lines, models, task, term) for task, term in traces]
        update: dict[str, Any] = {key: [trace[key] for trace in new] for key in new[0]}
        update["opacity"] = 0.5 if len(models) > 1 else 1.0
        entries.append({"label": name(label), "method": "restyle", "args": [update]})
    return buttons(entries, type="dropdown", direction="down", x=1, xanchor="right")


def _whole(term: str) -> str:
    """What a term is the centered half of: the two are never seen together and share a color."""
    return term.removesuffix("_centered")


def _seen(term: str, half: str) -> bool:
    return term in _BOTH or term in _HALVES[half]
