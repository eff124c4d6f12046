"""Panels of a figure, and its title, subtitle, buttons and legend, placed in pixels so that none meets another."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType
from plotly.subplots import make_subplots

from .. import style

# Characters of a subtitle's line that fit a notebook's figure (700 pixels), of a name at a row or on a button, and of
# one beneath a column or above a panel.
_LINE, _NAME, _COLUMN = 110, 36, 18


def panels(
    contents: Sequence[Iterable[BaseTraceType]],
    headings: Sequence[str] = (),
    columns: int = 1,
    *,
    gap: float = 0.2,
    across: float = 0.03,
    **options: Any,
) -> go.Figure:
    """A figure of panels, row by row, each with its traces; of a legend group the first trace stands in the legend.

    `headings` are written as they are: escape names. `gap` and `across` are the space below a panel, as a share of its
    height, and the space between columns, as a share of the figure. Other options are those of `make_subplots`.
    """
    rows = -(-len(contents) // columns)
    shared = {"shared_xaxes": columns == 1 or "all", "shared_yaxes": columns > 1 and "all"}
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=list(headings) or None,
        horizontal_spacing=across,
        vertical_spacing=gap / rows,
        **(shared | options),
    )
    figure.update_annotations(font={"size": 13}, **({"x": 0, "xanchor": "left"} if columns == 1 else {}))
    named = set()
    for number, traces in enumerate(contents):
        for trace in traces:
            if trace.legendgroup and trace.showlegend is None:
                trace.showlegend = trace.legendgroup not in named
                named.add(trace.legendgroup)
            figure.add_trace(trace, **cell(number, columns))
    return figure


def cell(number: int, columns: int = 1) -> dict[str, int]:
    """Row and column of a panel."""
    return {"row": number // columns + 1, "col": number % columns + 1}


def arrange(
    figure: go.Figure,
    title: str,
    subtitle: str = "",
    *,
    plot: int = 0,
    below: int = 64,
    menus: Sequence[dict[str, Any]] = (),
    headings: bool = False,
    height: int | None = None,
) -> go.Figure:
    """Give a figure its title and its room: `plot` and `below` are pixels of the panels and of what is beneath.

    `menus` stand in a row above the panels, `headings` are the panels' own titles; `height` is that of all together.
    """
    text = wrapped(subtitle)
    lines = text.count("<br>") + 1 if text else 0
    top = 52 + 18 * lines + (42 if menus else 0) + (26 if headings else 10)
    row = {"y": 1, "yanchor": "bottom", "pad": {"b": 30 if headings else 12, "t": 0, "l": 0, "r": 0}}
    return figure.update_layout(
        template=style.template(),
        title={
            "text": html.escape(title),
            "subtitle": {"text": text},
            "yref": "container",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 14, "l": 16},
        },
        height=height or top + plot + below,
        margin={"t": top, "b": below},
        legend=style.LEGEND_BELOW,
        updatemenus=[row | menu for menu in menus],
    )


def wrapped(text: str, width: int = _LINE) -> str:
    """Text, escaped, in lines that fit."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, width, break_on_hyphens=False))


def clipped(text: str, width: int = _NAME) -> str:
    """A name of a model or task, escaped, and cut where it would push the figure aside."""
    return html.escape(text if len(text) <= width else text[: width - 1] + "…")


def short(text: str) -> str:
    """A name above a panel or beneath a column; of a long one what follows its last slash, which sets it apart."""
    return clipped(text if len(text) <= _COLUMN else text.rsplit("/", 1)[-1] or text, _COLUMN)
