"""Claims of the paper over several models: correlations with accuracy, shares, the trade-off, returns of size."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import listed, some_of, text
from ..._registry import figure_of
from ...ensemble.intervals import LEAST
from ...errors import InputError
from ...replication.correlation import AGGREGATIONS, AVERAGE, COEFFICIENTS, Aggregation
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...ensemble.fits import LogFit
    from ...replication.tradeoff import TradeOff

_METRICS = ("mse", "bias", "bias_centered", "diversity", "diversity_centered", "cross_entropy")
# The last junction has no depth that all models could share: Student's test over models is right.
_TEST = {"pooled": "p_permutation", "per_model": "p_permutation", "final": "p_t"}


def correlation_bars(
    table: pd.DataFrame, aggregation: Aggregation = "pooled", metrics: Sequence[str] | None = None
) -> go.Figure:
    """Correlation of every metric with accuracy, by task and on average: Pearson above, Spearman below (Fig. 3).

    Args:
        table: What `correlations` gives. r is that of sign × metric, so that up is as expected.
        aggregation: Shown first; buttons show the others.
        metrics: Of the table, in this order; None takes the paper's three, what softmax sees of two of them, and
            cross-entropy.

    A bar is full where `p_permutation` (`p_t` for the aggregation "final", which has no depth) is below 0.05,
    hollow where it is not, hatched where there is no test. The hover has all that the table has. Raises
    InputError for metrics that the table lacks.
    """
    present = list(dict.fromkeys(table["metric"]))
    if metrics is None:
        metrics = [metric for metric in _METRICS if metric in present] or present
    else:
        metrics = some_of("metrics", metrics, present)
    colors = {m: style.TERM.get(m, style.SERIES[i % len(style.SERIES)]) for i, m in enumerate(metrics)}
    tasks = list(dict.fromkeys(table["task"]))
    x = [position + 0.3 * (task == AVERAGE) for position, task in enumerate(tasks)]
    cells: dict[Any, pd.DataFrame] = {
        key: rows.set_index("task").loc[tasks] for key, rows in table.groupby(["aggregation", "coefficient", "metric"])
    }

    def draw(aggregation: str) -> list[list[go.Bar]]:
        return [
            [_bars(x, cells[aggregation, kind, m], aggregation, kind, m, colors[m]) for m in metrics]
            for kind in COEFFICIENTS
        ]

    figure = kit.panels(draw(aggregation), [f"{kind.title()}'s correlation with accuracy" for kind in COEFFICIENTS])
    for metric in metrics:
        # A bar's own entry in the legend would be hollow where its first bar is.
        marker = {"symbol": "square", "size": 11, "color": colors[metric]}
        name = html.escape(_signed(metric, int(cells[aggregation, COEFFICIENTS[0], metric]["sign"].iloc[0])))
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, legendgroup=metric)
    attributes = ("y", "error_y", "hovertext", "marker.color", "marker.pattern.shape")
    bars, labels = list(range(len(COEFFICIENTS) * len(metrics))), style.LABELS["aggregation"]
    views = {labels[one]: [kit.changes(chain(*draw(one)), *attributes), bars] for one in AGGREGATIONS}
    return kit.arrange(
        figure,
        "Do MSE, bias and diversity follow accuracy along depth?",
        f"Full: p < {style.SIGNIFICANT}; hollow: p ≥ {style.SIGNIFICANT}; hatched: not tested. {_whiskers(table)} "
        "The test gives models the curves of others of their depth, for all may change at the "
        "same depth; at the last junction it is Student's.",
        x=kit.named_columns(tasks, x) | {"range": [-0.6, x[-1] + 0.6]},
        y={"title_text": "r of sign × metric", "range": [-1.05, 1.05]},
        plot=560,
        below=72 + kit.tilted(tasks),
        menus=kit.buttons(views, AGGREGATIONS.index(aggregation), "restyle"),
        barmode="group",
        bargap=0.22,
        bargroupgap=0.06,
    )


def _whiskers(table: pd.DataFrame) -> str:
    """What the whiskers are, or why there are none."""
    if np.isfinite(table["low"]).any():
        return "Whiskers: 95 % intervals over models."
    return f"No whiskers: {table['models'].max():.0f} of {LEAST} models that an interval needs."


def _bars(x: list[float], rows: pd.DataFrame, aggregation: str, kind: str, metric: str, color: str) -> go.Bar:
    """The bars of one metric: full, hollow or hatched."""
    p = rows[_TEST[aggregation]].to_numpy(dtype=float)
    hover = []
    for task, row in rows.iterrows():
        lines = [
            f"<b>{html.escape(_signed(metric, row['sign']))}</b>, {html.escape(str(task))}",
            f"{kind.title()} r {style.number(row['r'])}, 95 % {style.interval(row['low'], row['high'])}",
            *(
                f"{label} {style.number(row[name])}"
                for label, name in (("p, models permuted", "p_permutation"), ("p, Student", "p_t"))
                if np.isfinite(row[name])
            ),
            f"n {row['n']:.0f}, models {row['models']:.0f}",
            kit.wrapped(row["note"], 60),
        ]
        hover.append("<br>".join(line for line in lines if line))
    shapes = ["" if np.isfinite(value) else "/" for value in p]
    pattern = {"shape": shapes, "fillmode": "replace", "fgcolor": color, "bgcolor": style.CLEAR, "size": 5}
    fills = [style.CLEAR if value >= style.SIGNIFICANT else color for value in p]
    error = kit.whiskers(rows, "r", "low", "high")
    trace = kit.bar(x, rows["r"].to_numpy(dtype=float), fills, width=None, error=error, hover=hover)
    group = {"legendgroup": metric, "offsetgroup": metric}
    return trace.update(marker={"line": {"color": color, "width": 1.5}, "pattern": pattern}, **group)


def _signed(metric: str, sign: int) -> str:
    """A metric as it is correlated: with a minus where it should fall, as in the paper."""
    return ("−" if sign < 0 else "") + style.TERM_NAME.get(metric, metric)


def share_bars(shares: pd.DataFrame, models: Sequence[str] | None = None) -> go.Figure:
    """Which module holds how much of bias and diversity, a bar per model, raw and centered (Fig. 4).

    Args:
        shares: What `module_shares` gives. Diamonds stand where the bar would change its color if a module held as much
            as its share n_g/|L| of the members; the hover has shares, their intervals over tasks, and excess.
        models: Which, from above; None is all, in the order of the frame.

    Raises InputError for an unknown model.
    """
    present = list(dict.fromkeys(shares["model"]))
    models = present if models is None else some_of("models", models, present)
    shares = shares[shares["model"].isin(models)]
    modules = [module for module in style.MODULE if (shares["module"] == module).any()]
    contents, headings = [], []
    for term, gauge in [(term, gauge) for term in ("bias", "diversity") for gauge in ("raw", "centered")]:
        panel = shares[(shares["term"] == term) & (shares["gauge"] == gauge)]
        if panel.empty:
            continue
        traces: list[Any] = []
        for module in modules:
            rows = panel[panel["module"] == module]
            hover = [_share_hover(row) for row in rows.to_dict("records")]
            labels = {"name": style.MODULE_NAME[module], "legendgroup": module, "hover": hover}
            y = [models.index(model) for model in rows["model"]]
            traces.append(kit.bar(rows["share"], y, style.MODULE[module], across=True, width=None, **labels))
        # Where modules would meet if each held its share of the members.
        edges = [(row, edge) for row, model in enumerate(models) for edge in _edges(panel, model, modules)]
        diamond: dict[str, Any] = {"symbol": "diamond", "marker": {"line": {"color": style.LIGHT.ink, "width": 1}}}
        label: dict[str, Any] = {"name": "by shares of the members, n_g/|L|", "legendgroup": "members"}
        label["hovertemplate"] = "n_g/|L|, cumulated %{x:.1%}<extra></extra>"
        x, y = [edge for _, edge in edges], [row for row, _ in edges]
        contents.append([*traces, kit.dots(x, y, style.LIGHT.paper, **diamond, **label)])
        headings.append(f"{term}, {gauge}")
    figure = kit.panels(contents, headings, len(contents), across=0.06, shared_xaxes=False)
    title = "Shares of embedding, attention and MLP in bias and diversity"
    subtitle = "Mean over tasks. Raw is as in the paper; centered is what softmax sees."
    ticks = {"range": [0, 1], "tickvals": [0, 0.5, 1], "ticktext": ["0", "50", "100 %"], "showgrid": False}
    rows_axis = kit.named_rows(models) | {"range": [len(models) - 0.5, -0.5], "autorange": False}
    room: dict[str, Any] = {"plot": max(100, 30 * len(models)), "below": 72}
    return kit.arrange(figure, title, subtitle, x=ticks, y=rows_axis, barmode="stack", bargap=0.3, **room)


def _share_hover(row: dict[Any, Any]) -> str:
    ends = style.interval(row["low"], row["high"], ".1%", none="")
    over = f"95 % {ends} over {row['tasks']} tasks" if ends else "no interval"
    return (
        f"<b>{html.escape(row['model'])}</b><br>{style.MODULE_NAME[row['module']]}, {row['term']}, {row['gauge']}<br>"
        f"share {row['share']:.1%}, {over}<br>"
        f"share of the members {row['member_share']:.1%}, excess {row['excess']:+.1%}"
    )


def _edges(shares: pd.DataFrame, model: str, modules: Sequence[str]) -> list[float]:
    counts = shares[shares["model"] == model].set_index("module")["member_share"]
    return counts[[module for module in modules if module in counts]].cumsum().tolist()[:-1]


@figure_of("steps", "TradeOff")
def tradeoff_steps(tradeoff: TradeOff) -> go.Figure:
    """Share of steps in which bias and diversity move together, by what accuracy does (Section 5.4).

    Whiskers are Wilson's, which take steps for independent; the subtitle's interval is over models.
    """
    frame = tradeoff.frame()
    hover = [
        f"<b>accuracy {row.accuracy}</b><br>together {row.same_sign}, apart {row.opposite_sign}, one does not move "
        f"{row.unchanged}<br>share together {style.number(row.share)}, {tradeoff.confidence_level:.0%} "
        f"{style.interval(row.low, row.high)}"
        for row in cast(Any, frame.itertuples())
    ]
    x, share = list(range(len(frame))), frame["share"].to_numpy(dtype=float)
    error = kit.whiskers(frame, "share", "low", "high", thickness=1.5, width=5)
    over = f"{tradeoff.models} of {LEAST} models that an interval needs"
    if np.isfinite(tradeoff.low):
        over = f"{style.interval(tradeoff.low, tradeoff.high)} over {tradeoff.models} models"
    null = "Not tested: too few models of one depth"
    if np.isfinite(tradeoff.p):
        null = "With bias and diversity of another model of the same depth "
        null += f"{style.interval(tradeoff.null_low, tradeoff.null_high)}, p = {style.number(tradeoff.p)}"
    steps = frame["same_sign"] + frame["opposite_sign"]
    texts = [f"{accuracy}<br>{n} steps" for accuracy, n in zip(frame["accuracy"], steps, strict=True)]
    ticks = kit.named_columns(frame["accuracy"].tolist(), x) | {"ticktext": texts, "range": [-0.6, len(frame) - 0.4]}
    y = {"title_text": "share of steps: both up or both down", "range": [0, 1.03], "tickformat": ".0%", "dtick": 0.25}
    return kit.arrange(
        go.Figure(kit.bar(x, share, style.SERIES[0], width=0.5, error=error, hover=hover)),
        "Do bias and diversity trade off only where accuracy stands still?",
        f"Where accuracy stands still less where it moves: {style.number(tradeoff.difference)} ({over}). {null}. The "
        "paper's claim is a difference above 0. Whiskers take steps for independent.",
        x=ticks | {"title_text": "accuracy, from junction to junction"},
        y=y,
        plot=320,
        below=72,
    )


@figure_of("curve", "LogFit")
def scaling_curve(
    fit: LogFit,
    names: Sequence[str] | None = None,
    x_title: str = "number of components",
    y_title: str = "mean over tasks",
) -> go.Figure:
    """Points and y = a + b ln x with the 95 % band of the mean curve (Fig. 6).

    Args:
        names: One for each point, for the hover.

    The band needs three points, which it takes for independent (models of one family are not) and equally noisy; the
    numbers' intervals allow for unequal noise, as those of claim 7 do. Raises InputError for another number of names.

    >>> from layerdiv_tl.ensemble.fits import log_fit
    >>> figure = scaling_curve(log_fit([13, 33, 61], [40, 44, 45]), names=["6 layers", "16 layers", "30 layers"])
    >>> figure.data[-1].hovertext[0]
    '<b>6 layers</b><br>x 13<br>y 40, fitted 40.3'
    """
    curve, figure = fit.predict(np.geomspace(fit.x.min(), fit.x.max(), 200)), go.Figure()
    color, level = style.SERIES[0], f"{fit.confidence_level:.0%}"
    hover = [
        f"x {style.number(x)}<br>y {style.number(y)}, fitted {style.number(fitted)}"
        for x, y, fitted in zip(fit.x, fit.y, fit.predict(fit.x)["y"], strict=True)
    ]
    if names is not None:
        given = listed("names", names, "a list with a name for each point")
        if len(given) != len(fit.x):
            raise InputError(f"there are {len(given)} names for {len(fit.x)} points: give one for each.")
        names = [html.escape(text("names", name, empty=True)) for name in given]
        hover = [f"<b>{name}</b><br>{numbers}" for name, numbers in zip(names, hover, strict=True)]
    if np.isfinite(curve["low"]).all():
        figure.add_trace(kit.band(curve["x"], curve["low"], curve["high"], color, name=f"{level} band of the curve"))
    template = {"hovertemplate": "x %{x:.3g}<br>fitted %{y:.3g}<extra></extra>"}
    figure.add_trace(kit.line(curve["x"], curve["y"], color, width=2, marks=0, name="a + b ln x", **template))
    points = "models" if names is not None else "points"
    figure.add_trace(kit.dots(fit.x, fit.y, style.SERIES[1], size=9, name=points, hover=hover))
    rows: dict[str, Any] = {row["term"]: row for row in fit.frame().to_dict("records")}
    b, c = (kit.estimated(*map(rows[x].get, ("estimate", "robust_low", "robust_high"))) for x in ("slope", "curvature"))
    how = f" ({level} intervals by HC3 errors)" if "[" in b else ""
    return kit.arrange(
        figure,
        "Returns of size",
        f"b = {b}, curvature {c}{how}; below 0 returns diminish. AIC of a straight line less that of the logarithm: "
        f"{style.number(rows['aic_difference']['estimate'])}.",
        x={"title_text": html.escape(x_title)},
        y={"title_text": html.escape(y_title)},
        plot=360,
    )
