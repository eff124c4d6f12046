"""Claims of the paper over several models: shares of modules, the trade-off with accuracy, returns of size."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import plotly.graph_objects as go

from ..._checks import listed, some_of, text
from ..._registry import figure_of
from ...ensemble.intervals import LEAST
from ...errors import InputError
from .. import style
from ..plotting import arrange, band, bar, between, dots, error_bars, line, named_columns, named_rows, panels

if TYPE_CHECKING:
    import pandas as pd

    from ...ensemble.scaling import LogFit
    from ...replication.tradeoff import TradeOff

_PANELS = [(term, gauge) for term in ("bias", "diversity") for gauge in ("raw", "centered")]


def share_bars(shares: pd.DataFrame, models: Sequence[str] | None = None, title: str | None = None) -> go.Figure:
    """Which module holds how much of bias and diversity, a bar per model, raw and centered (Fig. 4).

    shares
        What `module_shares` gives. Diamonds stand where the bar would change its color if a module held as
        much as its share n_g/|L| of the members; the hover has shares, their intervals over tasks, and excess.
    models
        Which, from above; None is all, in the order of the frame.

    Raises InputError for an unknown model.
    """
    present = list(dict.fromkeys(shares["model"]))
    models = present if models is None else some_of("models", models, present)
    shares = shares[shares["model"].isin(models)]
    modules = [module for module in style.MODULE if (shares["module"] == module).any()]
    contents, headings = [], []
    for term, gauge in _PANELS:
        panel = shares[(shares["term"] == term) & (shares["gauge"] == gauge)]
        if panel.empty:
            continue
        traces: list[Any] = []
        for module in modules:
            rows = panel[panel["module"] == module]
            hover = [_share_hover(row) for row in rows.itertuples()]
            labels = {"name": style.MODULE_NAME[module], "legendgroup": module}
            y = [models.index(model) for model in rows["model"]]
            traces.append(bar(rows["share"], y, style.MODULE[module], across=True, width=None, hover=hover, **labels))
        # Where modules would meet if each held its share of the members.
        edges = [(row, edge) for row, model in enumerate(models) for edge in _edges(panel, model, modules)]
        diamond: dict[str, Any] = {"symbol": "diamond", "marker": {"line": {"color": style.LIGHT.ink, "width": 1}}}
        label: dict[str, Any] = {"name": "by shares of the members, n_g/|L|", "legendgroup": "members"}
        label["hovertemplate"] = "n_g/|L|, cumulated %{x:.1%}<extra></extra>"
        x, y = [edge for _, edge in edges], [row for row, _ in edges]
        contents.append([*traces, dots(x, y, style.LIGHT.paper, **diamond, **label)])
        headings.append(f"{term}, {gauge}")
    figure = panels(contents, headings, len(contents), across=0.045, shared_xaxes=False)
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
    return figure.update_yaxes(**named_rows(models), range=[len(models) - 0.5, -0.5])


def _share_hover(row: Any) -> str:
    over = f"95 % [{row.low:.1%}, {row.high:.1%}] over {row.tasks} tasks" if row.low == row.low else "no interval"
    return (
        f"<b>{html.escape(row.model)}</b><br>{style.MODULE_NAME[row.module]}, {row.term}, {row.gauge}<br>"
        f"share {row.share:.1%}, {over}<br>"
        f"share of the members {row.member_share:.1%}, excess {row.excess:+.1%}"
    )


def _edges(shares: pd.DataFrame, model: str, modules: Sequence[str]) -> list[float]:
    counts = shares[shares["model"] == model].set_index("module")["member_share"]
    return counts[[module for module in modules if module in counts]].cumsum().tolist()[:-1]


@figure_of("steps", "TradeOff")
def tradeoff_steps(tradeoff: TradeOff, title: str | None = None) -> go.Figure:
    """Share of steps in which bias and diversity move together, by what accuracy does (Section 5.4).

    Whiskers are Wilson's, which take steps for independent; the subtitle's interval is over models.
    """
    frame = tradeoff.frame()
    x, error = list(range(len(frame))), error_bars(*(frame[name] for name in ("share", "low", "high")), thickness=1.5)
    hover = [
        f"<b>accuracy {row.accuracy}</b><br>together {row.same_sign}, apart {row.opposite_sign}, one does not move "
        f"{row.unchanged}<br>share together {style.number(row.share)}, {tradeoff.confidence_level:.0%} "
        f"{between(row.low, row.high)}"
        for row in cast(Any, frame.itertuples())
    ]
    share = frame["share"].to_numpy(dtype=float)
    figure = go.Figure(bar(x, share, style.SERIES[0], width=0.5, error=error | {"width": 5}, hover=hover))
    over = f"{tradeoff.models} of {LEAST} models that an interval needs"
    if np.isfinite(tradeoff.low):
        over = f"{between(tradeoff.low, tradeoff.high)} over {tradeoff.models} models"
    null = "Not tested: too few models of one depth"
    if np.isfinite(tradeoff.p):
        null = "With bias and diversity of another model of the same depth "
        null += f"{between(tradeoff.null_low, tradeoff.null_high)}, p = {style.number(tradeoff.p)}"
    arrange(
        figure,
        title or "Do bias and diversity trade off only where accuracy stands still?",
        f"Where accuracy stands still less where it moves: {style.number(tradeoff.difference)} ({over}). {null}. The "
        "paper's claim is a difference above 0.",
        plot=320,
        below=72,
    )
    steps = frame["same_sign"] + frame["opposite_sign"]
    texts = [f"{accuracy}<br>{n} steps" for accuracy, n in zip(frame["accuracy"], steps, strict=True)]
    axis = named_columns(frame["accuracy"].tolist(), x) | {"ticktext": texts, "range": [-0.6, len(frame) - 0.4]}
    figure.update_xaxes(**axis, title_text="accuracy, from junction to junction")
    axis = {"range": [0, 1.03], "tickformat": ".0%", "dtick": 0.25}
    return figure.update_yaxes(title_text="share of steps: both up or both down", **axis)


@figure_of("curve", "LogFit")
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
        names = [
            text("names", name, empty=True) for name in listed("names", names, "a list with a name for each point")
        ]
        if len(names) != len(fit.x):
            raise InputError(f"there are {len(names)} names for {len(fit.x)} points: give one for each.")
    curve, figure = fit.predict(np.geomspace(fit.x.min(), fit.x.max(), 200)), go.Figure()
    color, level = style.SERIES[0], f"{fit.confidence_level:.0%}"
    if np.isfinite(curve["low"]).all():
        figure.add_trace(band(curve["x"], curve["low"], curve["high"], color, name=f"{level} band of the curve"))
    template = {"hovertemplate": "x %{x:.3g}<br>fitted %{y:.3g}<extra></extra>"}
    figure.add_trace(line(curve["x"], curve["y"], color, width=2, marks=0, name="a + b ln x", **template))
    hover = [
        f"x {style.number(x)}<br>y {style.number(y)}, fitted {style.number(fitted)}"
        for x, y, fitted in zip(fit.x, fit.y, fit.predict(fit.x)["y"], strict=True)
    ]
    if names is not None:
        hover = [f"<b>{html.escape(name)}</b><br>{numbers}" for name, numbers in zip(names, hover, strict=True)]
    points = "models" if names is not None else "points"
    figure.add_trace(dots(fit.x, fit.y, style.SERIES[1], size=9, name=points, hover=hover))
    rows: dict[str, Any] = {row.term: row for row in fit.frame().itertuples()}  # type: ignore[misc]
    slope, bent, aic = rows["slope"], rows["curvature"], rows["aic_difference"]
    p = f", p = {style.number(slope.p)}" if np.isfinite(slope.p) else ""
    arrange(
        figure,
        title or "Returns of size",
        f"b = {style.number(slope.estimate)}, {level} {between(slope.low, slope.high)}{p}. Curvature "
        f"{style.number(bent.estimate)} {between(bent.low, bent.high)}; below 0 returns diminish. AIC of a straight "
        f"line less that of the logarithm: {style.number(aic.estimate)}.",
        plot=360,
        below=88,
    )
    figure.update_xaxes(title_text=html.escape(x_title))
    return figure.update_yaxes(title_text=html.escape(y_title))
