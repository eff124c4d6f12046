"""What the paper claims of several models: who holds bias and diversity, what pays for what, what size is worth."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..._checks import listed, some_of, text
from ...ensemble.intervals import LEAST
from ...ensemble.scaling import LogFit
from ...errors import InputError
from ...replication.tradeoff import TradeOff
from .. import style
from .layout import arrange, beneath, beside, between

if TYPE_CHECKING:
    import pandas as pd

_PLACES = 200
_PANELS = {
    ("bias", "raw"): "bias, raw",
    ("bias", "centered"): "bias, centered",
    ("diversity", "raw"): "diversity, raw",
    ("diversity", "centered"): "diversity, centered",
}


def share_bars(shares: pd.DataFrame, models: Sequence[str] | None = None, title: str | None = None) -> go.Figure:
    """Which module holds how much of bias and diversity, a bar per model, raw and centered (Fig. 4).

    shares
        What `module_shares` gives. Diamonds stand where the bar would change its color if a module held as
        much as its share n_g/|L| of the members; the hover has shares, their intervals over tasks, and excess.
    models
        Which, from above; None is all, in the order of the frame.

    Raises InputError for an unknown model.
    """
    there = list(dict.fromkeys(shares["model"]))
    models = there if models is None else some_of("models", models, there)
    shares = shares[shares["model"].isin(models)]
    modules = [module for module in style.MODULE if (shares["module"] == module).any()]
    panels = [panel for panel in _PANELS if ((shares["term"] == panel[0]) & (shares["gauge"] == panel[1])).any()]
    figure = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.045,
        subplot_titles=[_PANELS[panel] for panel in panels],
    )
    figure.update_annotations(font={"size": 13})
    for column, (term, gauge) in enumerate(panels, start=1):
        here = shares[(shares["term"] == term) & (shares["gauge"] == gauge)]
        for module in modules:
            rows = here[here["module"] == module]
            figure.add_bar(
                orientation="h",
                x=rows["share"],
                y=[models.index(model) for model in rows["model"]],
                name=style.MODULE_NAME[module],
                legendgroup=module,
                showlegend=column == 1,
                marker={"color": style.MODULE[module], "line": {"width": 0}},
                hovertext=[_share_hover(row) for row in rows.itertuples()],
                hoverinfo="text",
                row=1,
                col=column,
            )
        marks = [(place, edge) for place, model in enumerate(models) for edge in _edges(here, model, modules)]
        figure.add_scatter(
            mode="markers",
            x=[edge for _, edge in marks],
            y=[place for place, _ in marks],
            name="by shares of the members, n_g/|L|",
            legendgroup="members",
            showlegend=column == 1,
            marker={
                "symbol": "diamond",
                "size": 8,
                "color": style.LIGHT.paper,
                "line": {"color": style.LIGHT.ink, "width": 1},
            },
            hovertemplate="n_g/|L|, cumulated %{x:.1%}<extra></extra>",
            row=1,
            col=column,
        )
    arrange(
        figure,
        title or "Shares of embedding, attention and MLP in bias and diversity",
        "Mean over tasks. Raw is as in the paper; centered is what softmax sees.",
        plot=max(100, 30 * len(models)),
        below=72,
        headings=True,
    )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(range=[0, 1], tickvals=[0, 0.5, 1], ticktext=["0", "50 %", "100 %"], showgrid=False)
    return figure.update_yaxes(**beside(models), range=[len(models) - 0.5, -0.5])


def _share_hover(row: Any) -> str:
    over = f"95 % [{row.low:.1%}, {row.high:.1%}] over {row.tasks} tasks" if row.low == row.low else "no interval"
    return (
        f"<b>{html.escape(row.model)}</b><br>{style.MODULE_NAME[row.module]}, {_PANELS[row.term, row.gauge]}<br>"
        f"share {row.share:.1%}, {over}<br>"
        f"share of the members {row.member_share:.1%}, excess {row.excess:+.1%}"
    )


def _edges(shares: pd.DataFrame, model: str, modules: Sequence[str]) -> list[float]:
    """Where modules would meet if each held its share of the members."""
    counts = shares[shares["model"] == model].set_index("module")["member_share"]
    return counts[[module for module in modules if module in counts]].cumsum().tolist()[:-1]


def tradeoff_steps(tradeoff: TradeOff, title: str | None = None) -> go.Figure:
    """Share of steps in which bias and diversity move together, by what accuracy does (Section 5.4).

    Whiskers are Wilson's, which take steps for independent; the subtitle's interval is over models.
    """
    frame = tradeoff.frame()
    share, low, high = (frame[column].to_numpy(dtype=float) for column in ("share", "low", "high"))
    moved = frame["same_sign"] + frame["opposite_sign"]
    figure = go.Figure(
        go.Bar(
            x=list(range(len(frame))),
            y=share,
            width=0.5,
            marker={"color": style.SERIES[0]},
            error_y={
                "type": "data",
                "array": high - share,
                "arrayminus": share - low,
                "thickness": 1.5,
                "width": 5,
                "color": style.LIGHT.zero,
            },
            hovertext=[_steps_hover(row, tradeoff.confidence_level) for row in frame.itertuples()],
            hoverinfo="text",
        )
    )
    over = (
        f"{between(tradeoff.low, tradeoff.high)} over {tradeoff.models} models"
        if np.isfinite(tradeoff.low)
        else f"{tradeoff.models} of {LEAST} models that an interval needs"
    )
    null = (
        f"With bias and diversity of another model of the same depth {between(tradeoff.null_low, tradeoff.null_high)}, "
        f"p = {style.number(tradeoff.p)}"
        if np.isfinite(tradeoff.p)
        else "Not tested: too few models of one depth"
    )
    subtitle = (
        f"Where accuracy stands still less where it moves: {style.number(tradeoff.difference)} ({over}). {null}. The "
        "paper's claim is a difference above 0."
    )
    arrange(
        figure,
        title or "Do bias and diversity trade off only where accuracy stands still?",
        subtitle,
        plot=320,
        below=72,
    )
    figure.update_xaxes(
        **beneath(frame["accuracy"].tolist(), range(len(frame))),
        title_text="accuracy, from junction to junction",
        range=[-0.6, len(frame) - 0.4],
    )
    figure.update_xaxes(ticktext=[f"{does}<br>{n} steps" for does, n in zip(frame["accuracy"], moved, strict=True)])
    return figure.update_yaxes(
        title_text="share of steps: both up or both down", range=[0, 1.03], tickformat=".0%", dtick=0.25
    )


def _steps_hover(row: Any, confidence_level: float) -> str:
    return (
        f"<b>accuracy {row.accuracy}</b><br>together {row.same_sign}, apart {row.opposite_sign}, "
        f"one does not move {row.unchanged}<br>share together {style.number(row.share)}, "
        f"{confidence_level:.0%} {between(row.low, row.high)}"
    )


def scaling_curve(
    fit: LogFit,
    names: Sequence[str] | None = None,
    x_title: str = "number of components",
    y_title: str = "mean over tasks",
    title: str | None = None,
) -> go.Figure:
    """Points and y = a + b ln x with the 95 % band of the mean curve (Fig. 6).

    names
        One for each point, for the hover.

    The band needs three points; it takes them for independent, which models of one family are not. Raises
    InputError for another number of names.

    >>> from layerdiv_tl.ensemble.scaling import log_fit
    >>> figure = scaling_curve(log_fit([13, 33, 61], [40, 44, 45]), names=["6 layers", "16 layers", "30 layers"])
    >>> figure.data[-1].hovertext[0]
    '<b>6 layers</b><br>x 13<br>y 40, fitted 40.3'
    """
    if names is not None:
        names = listed("names", names, "a list with a name for each point")
        names = [text("names", name, empty=True) for name in names]
        if len(names) != len(fit.x):
            raise InputError(f"there are {len(names)} names for {len(fit.x)} points: give one for each.")
    curve = fit.predict(np.geomspace(fit.x.min(), fit.x.max(), _PLACES))
    figure = go.Figure()
    color = style.SERIES[0]
    if np.isfinite(curve["low"]).all():
        for edge in ("low", "high"):
            figure.add_scatter(
                x=curve["x"],
                y=curve[edge],
                mode="lines",
                line={"width": 0, "color": color},
                fill="tonexty" if edge == "high" else None,
                fillcolor=style.faint(color),
                name=f"{fit.confidence_level:.0%} band of the curve",
                showlegend=edge == "high",
                hoverinfo="skip",
            )
    figure.add_scatter(
        x=curve["x"],
        y=curve["y"],
        mode="lines",
        line={"color": color, "width": 2},
        name="a + b ln x",
        hovertemplate="x %{x:.3g}<br>fitted %{y:.3g}<extra></extra>",
    )
    figure.add_scatter(
        x=fit.x,
        y=fit.y,
        mode="markers",
        marker={"color": style.SERIES[1], "size": 9},
        name="models" if names is not None else "points",
        hovertext=[
            (f"<b>{html.escape(names[i])}</b><br>" if names is not None else "")
            + f"x {style.number(x)}<br>y {style.number(y)}, fitted {style.number(f)}"
            for i, (x, y, f) in enumerate(zip(fit.x, fit.y, fit.predict(fit.x)["y"], strict=True))
        ],
        hoverinfo="text",
    )
    rows: dict[str, Any] = {row.term: row for row in fit.frame().itertuples()}  # type: ignore[misc]
    slope, bent, aic = rows["slope"], rows["curvature"], rows["aic_difference"]
    tested = f", p = {style.number(slope.p)}" if np.isfinite(slope.p) else ""
    subtitle = (
        f"b = {style.number(slope.estimate)}, {fit.confidence_level:.0%} {between(slope.low, slope.high)}{tested}. Curvature "
        f"{style.number(bent.estimate)} {between(bent.low, bent.high)}; below 0 returns diminish. AIC of a "
        f"straight line less that of the logarithm: {style.number(aic.estimate)}."
    )
    arrange(figure, title or "Returns of size", subtitle, plot=360, below=88)
    figure.update_xaxes(title_text=html.escape(x_title))
    return figure.update_yaxes(title_text=html.escape(y_title))
