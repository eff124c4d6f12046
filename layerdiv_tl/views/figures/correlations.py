"""Does a metric follow accuracy along depth? Bars of correlations (Fig. 3 of the paper)."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..._checks import choice, some_of
from ...replication.correlation import AGGREGATIONS, AVERAGE, COEFFICIENTS, Aggregation
from .. import style
from .layout import arrange, beneath, between, buttons, tilted, wrapped

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("mse", "bias", "bias_centered", "diversity", "diversity_centered", "cross_entropy")
SIGNIFICANT = 0.05
_MEANING = {
    "pooled": "pooled: as in the paper",
    "per_model": "per model: mean over models",
    "final": "final: last junction, over models",
}
# The last junction has no depth that all models could share: Student's test over models is right.
_TEST = {"pooled": "p_permutation", "per_model": "p_permutation", "final": "p_t"}
_LEGEND = (
    f"Full: p < {SIGNIFICANT}; hollow: p ≥ {SIGNIFICANT}; hatched: not tested. Whiskers: 95 % intervals over models. "
    "The test gives models the curves of others of their depth, for all may change at the same depth; at the last "
    "junction it is Student's."
)


def correlation_bars(
    table: pd.DataFrame,
    aggregation: Aggregation = "pooled",
    metrics: Sequence[str] | None = None,
    title: str | None = None,
) -> go.Figure:
    """Correlation of every metric with accuracy, by task and on average: Pearson above, Spearman below (Fig. 3).

    table
        What `correlations` gives. r is that of sign × metric, so that up is as expected.
    reading
        Shown first; buttons show the others.
    metrics
        Of the table, in this order; None takes the paper's three, what softmax sees of two of them, and
        cross-entropy.

    A bar is full where `p_permutation` (in the reading "final", which has no depth, `p_t`) is below 0.05,
    hollow where it is not, hatched where there is no test. The hover has all that the table has. Raises
    InputError for an unknown reading and metrics that the table lacks.
    """
    choice("aggregation", aggregation, AGGREGATIONS)
    there = list(dict.fromkeys(table["metric"]))
    metrics = [m for m in METRICS if m in there] or there if metrics is None else some_of("metrics", metrics, there)
    tasks = list(dict.fromkeys(table["task"]))
    at = [place + 0.3 * (task == AVERAGE) for place, task in enumerate(tasks)]
    cells: dict[Any, pd.DataFrame] = {
        key: rows.set_index("task").loc[tasks] for key, rows in table.groupby(["aggregation", "coefficient", "metric"])
    }
    figure = make_subplots(
        rows=len(COEFFICIENTS),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.1,
        subplot_titles=[f"{kind.title()}'s correlation with accuracy" for kind in COEFFICIENTS],
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    traces = [(kind, metric) for kind in COEFFICIENTS for metric in metrics]
    for kind, metric in traces:
        rows = cells[aggregation, kind, metric]
        figure.add_bar(
            x=at,
            legendgroup=metric,
            offsetgroup=metric,
            showlegend=False,
            hoverinfo="text",
            row=COEFFICIENTS.index(kind) + 1,
            col=1,
            **_bars(rows, aggregation, kind, metric, _color(metric, metrics)),
        )
    for metric in metrics:
        # A bar's own entry would be hollow where its first bar is.
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            marker={"symbol": "square", "size": 11, "color": _color(metric, metrics)},
            name=html.escape(_signed(metric, int(cells[aggregation, COEFFICIENTS[0], metric]["sign"].iloc[0]))),
            legendgroup=metric,
            row=1,
            col=1,
        )
    entries = []
    for one in AGGREGATIONS:
        new = [_bars(cells[one, kind, m], one, kind, m, _color(m, metrics), flat=True) for kind, m in traces]
        update = {key: [trace[key] for trace in new] for key in new[0]}
        entries.append({"label": _MEANING[one], "method": "restyle", "args": [update, list(range(len(traces)))]})
    arrange(
        figure,
        title or "Do MSE, bias and diversity follow accuracy along depth?",
        _LEGEND,
        plot=560,
        below=72 + tilted(tasks),
        menus=[buttons(entries, AGGREGATIONS.index(aggregation))],
        headings=True,
    )
    figure.update_layout(barmode="group", bargap=0.22, bargroupgap=0.06)
    figure.update_xaxes(**beneath(tasks, at), range=[-0.6, at[-1] + 0.6])
    return figure.update_yaxes(title_text="r of sign × metric", range=[-1.05, 1.05])


def _bars(
    rows: pd.DataFrame, aggregation: str, kind: str, metric: str, color: str, flat: bool = False
) -> dict[str, Any]:
    """Heights, whiskers, fillings and hovers of one trace; `flat` names nested ones as a button does."""
    r, low, high = (rows[column].to_numpy(dtype=float) for column in ("r", "low", "high"))
    p = rows[_TEST[aggregation]].to_numpy(dtype=float)
    fills = [style.CLEAR if value >= SIGNIFICANT else color for value in p]
    shapes = ["" if np.isfinite(value) else "/" for value in p]
    spread = {
        "type": "data",
        "array": np.fmax(high - r, 0),
        "arrayminus": np.fmax(r - low, 0),
        "thickness": 1,
        "width": 0,
        "color": style.LIGHT.zero,
    }
    bars: dict[str, Any] = {
        "y": r,
        "error_y": spread,
        "hovertext": [_hover(str(task), row, kind, metric) for task, row in rows.iterrows()],
    }
    if flat:
        return bars | {"marker.color": fills, "marker.pattern.shape": shapes}
    marker = {"color": fills, "line": {"color": color, "width": 1.5}}
    return bars | {
        "marker": marker
        | {"pattern": {"shape": shapes, "fillmode": "replace", "fgcolor": color, "bgcolor": style.CLEAR, "size": 5}}
    }


def _hover(task: str, row: pd.Series, kind: str, metric: str) -> str:
    tests = "<br>".join(
        f"{label} {style.number(row[column])}"
        for label, column in (("p, models permuted", "p_permutation"), ("p, Student", "p_t"))
        if np.isfinite(row[column])
    )
    lines = [
        f"<b>{html.escape(_signed(metric, row.sign))}</b>, {html.escape(task)}",
        f"{kind.title()} r {style.number(row.r)}, 95 % {between(row.low, row.high)}",
        tests,
        f"n {row.n:.0f}, models {row.models:.0f}",
        wrapped(row.note, 60),
    ]
    return "<br>".join(line for line in lines if line)


def _signed(metric: str, sign: int) -> str:
    """A metric as it is correlated: with a minus where it should fall, as in the paper."""
    return ("−" if sign < 0 else "") + style.TERM_NAME.get(metric, metric)


def _color(metric: str, metrics: Sequence[str]) -> str:
    return style.TERM.get(metric, style.SERIES[list(metrics).index(metric) % len(style.SERIES)])
