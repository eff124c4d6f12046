"""Does a metric follow accuracy along depth? Bars of correlations (Fig. 3 of the paper)."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice, some_of
from ...replication.correlation import AGGREGATIONS, AVERAGE, COEFFICIENTS, Aggregation
from .. import style
from ..plotting import arrange, bar, between, buttons, changes, error_bars, named_columns, panels, tilted, wrapped

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
    aggregation
        Shown first; buttons show the others.
    metrics
        Of the table, in this order; None takes the paper's three, what softmax sees of two of them, and
        cross-entropy.

    A bar is full where `p_permutation` (`p_t` for the aggregation "final", which has no depth) is below 0.05,
    hollow where it is not, hatched where there is no test. The hover has all that the table has. Raises
    InputError for an unknown aggregation and metrics that the table lacks.
    """
    choice("aggregation", aggregation, AGGREGATIONS)
    present = list(dict.fromkeys(table["metric"]))
    if metrics is None:
        metrics = [metric for metric in METRICS if metric in present] or present
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

    figure = panels(draw(aggregation), [f"{kind.title()}'s correlation with accuracy" for kind in COEFFICIENTS])
    for metric in metrics:
        # A bar's own entry in the legend would be hollow where its first bar is.
        marker = {"symbol": "square", "size": 11, "color": colors[metric]}
        name = html.escape(_signed(metric, int(cells[aggregation, COEFFICIENTS[0], metric]["sign"].iloc[0])))
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, legendgroup=metric)
    attributes = ("y", "error_y", "hovertext", "marker.color", "marker.pattern.shape")
    bars = list(range(len(COEFFICIENTS) * len(metrics)))
    views = {_MEANING[one]: [changes(chain(*draw(one)), *attributes), bars] for one in AGGREGATIONS}
    arrange(
        figure,
        title or "Do MSE, bias and diversity follow accuracy along depth?",
        _LEGEND,
        plot=560,
        below=72 + tilted(tasks),
        menus=buttons(views, AGGREGATIONS.index(aggregation), "restyle"),
        headings=True,
    )
    figure.update_layout(barmode="group", bargap=0.22, bargroupgap=0.06)
    figure.update_xaxes(**named_columns(tasks, x), range=[-0.6, x[-1] + 0.6])
    return figure.update_yaxes(title_text="r of sign × metric", range=[-1.05, 1.05])


def _bars(x: list[float], rows: pd.DataFrame, aggregation: str, kind: str, metric: str, color: str) -> go.Bar:
    """The bars of one metric: full, hollow or hatched."""
    p = rows[_TEST[aggregation]].to_numpy(dtype=float)
    error = error_bars(*(rows[column] for column in ("r", "low", "high")))
    error |= {end: np.fmax(error[end], 0) for end in ("array", "arrayminus")}
    hover = [_hover(str(task), row, kind, metric) for task, row in rows.iterrows()]
    shapes = ["" if np.isfinite(value) else "/" for value in p]
    pattern = {"shape": shapes, "fillmode": "replace", "fgcolor": color, "bgcolor": style.CLEAR, "size": 5}
    fills = [style.CLEAR if value >= SIGNIFICANT else color for value in p]
    trace = bar(x, rows["r"].to_numpy(dtype=float), fills, width=None, error=error, hover=hover)
    group = {"legendgroup": metric, "offsetgroup": metric}
    return trace.update(marker={"line": {"color": color, "width": 1.5}, "pattern": pattern}, **group)


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
