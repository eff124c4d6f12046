"""Panels of a figure, its axes, and its title, subtitle, buttons and legend, placed in pixels so that none meets
another."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.basedatatypes import BasePlotlyType, BaseTraceType
from plotly.subplots import make_subplots

from ...components import Component
from .. import style
from ..html import quoted

# Characters of a subtitle's line that fit a notebook's figure (700 pixels), of a name at a row or on a button, and of
# one beneath a column or above a panel; those beneath columns that are longer than `_LEVEL` are tilted by plotly.
_LINE, _NAME, _COLUMN, _LEVEL = 104, 36, 18, 10


def panels(
    contents: Sequence[Iterable[BaseTraceType]],
    headings: Iterable[str] = (),
    columns: int = 1,
    *,
    units: Iterable[str] = (),
    x_title: str | None = None,
    gap: float = 0.2,
    across: float = 0.03,
    **options: Any,
) -> go.Figure:
    """A figure of panels, row by row, each with its traces; of a legend group the first trace stands in the legend.

    `headings` are written as they are: escape names. `units` are the y titles of the rows, `x_title` stands below the
    lowest. `gap` and `across` are the space below a panel, as a share of its height, and the space between columns, as
    a share of the figure. Other options are those of `make_subplots`.
    """
    rows = -(-len(contents) // columns)
    shared = {"shared_xaxes": columns == 1 or "all", "shared_yaxes": columns > 1 and "all"}
    spacing = {"horizontal_spacing": across, "vertical_spacing": gap / rows}
    figure = make_subplots(rows, columns, subplot_titles=list(headings) or None, **(spacing | shared | options))
    figure.update_annotations(font={"size": 13}, **({"x": 0, "xanchor": "left"} if columns == 1 else {}))
    named = set()
    for number, traces in enumerate(contents):
        for trace in traces:
            if trace.legendgroup and trace.showlegend is None:
                trace.showlegend = trace.legendgroup not in named
                named.add(trace.legendgroup)
            figure.add_trace(trace, **cell(number, columns))
    for row, unit in enumerate(units, start=1):
        figure.update_yaxes(title_text=html.escape(unit, quote=False), row=row, col=1)
    return figure if x_title is None else figure.update_xaxes(title_text=x_title, row=rows, col=1)


def cell(number: int, columns: int = 1) -> dict[str, int]:
    """Row and column of a panel."""
    return {"row": number // columns + 1, "col": number % columns + 1}


def arrange(
    figure: go.Figure,
    title: str,
    subtitle: str = "",
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    plot: int = 0,
    below: int | None = None,
    menus: Sequence[dict[str, Any]] = (),
    height: int | None = None,
    **layout: Any,
) -> go.Figure:
    """Give a figure its title, its axes and its room: `plot` and `below` are pixels of the panels and what is beneath.

    `x` and `y` are of all panels' axes; `menus` stand in a row above the panels; `height` is that of all together.
    `below` None is the room of an axis and a line of legend. The rest is plotly's layout.
    """
    headings = len(figure.layout.annotations) > 0
    if below is None:
        legend = {trace.legendgroup for trace in figure.data if trace.name and trace.showlegend is not False}
        below = 96 if len(legend) > 1 else 64
    text = wrapped(subtitle)
    lines = text.count("<br>") + 1 if text else 0
    top = 52 + 18 * lines + (42 if menus else 0) + (26 if headings else 10)
    row = {"y": 1, "yanchor": "bottom", "pad": {"b": 30 if headings else 12, "t": 0, "l": 0, "r": 0}}
    above = {"text": html.escape(title), "subtitle": {"text": text}, "pad": {"t": 14, "l": 16}}
    figure.update_layout(
        template=style.template(),
        title=above | {"yref": "container", "y": 1, "yanchor": "top"},
        height=height or top + plot + below,
        margin={"t": top, "b": below},
        legend=style.LEGEND_BELOW,
        updatemenus=[row | menu for menu in menus],
        **layout,
    )
    return figure.update_xaxes(x).update_yaxes(y)


def wrapped(text: str, width: int = _LINE) -> str:
    """Text, escaped, in lines that fit."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, width, break_on_hyphens=False))


def clipped(text: str, width: int = _NAME) -> str:
    """A name of a model or task, escaped, and cut where it would push the figure aside."""
    return html.escape(text if len(text) <= width else text[: width - 1] + "…")


def short(text: str) -> str:
    """A name above a panel or beneath a column; of a long one what follows its last slash, which sets it apart."""
    return clipped(text if len(text) <= _COLUMN else text.rsplit("/", 1)[-1] or text, _COLUMN)


def component_axis(
    components: Sequence[Component],
    title: str | None = None,
    *,
    edge: float | None = None,
    max_ticks: int = 16,
    grid: bool = False,
) -> dict[str, Any]:
    """An axis along which components stand in stream order: a tick where a layer begins, about `max_ticks` at most.

    It begins `edge` before the first component, and ends as far after the last.
    """
    starts: dict[str, int] = {}
    for position, component in enumerate(components):
        layer = f"L{component.layer}" + (f"@{component.repeat}" if component.repeat else "")
        starts.setdefault(component.label if component.layer is None else layer, position)
    layers = [name for name in starts if name.startswith("L")]
    regular = layers[:: max(1, -(-len(layers) // max_ticks))]
    # A label needs a fraction of the axis; whatever would touch the one before is left out.
    apart = len(components) / (1.5 * max_ticks)
    kept: list[str] = []
    for name in starts:
        if (name not in layers or name in regular) and (not kept or starts[name] - starts[kept[-1]] >= apart):
            kept.append(name)
    axis = _ticks([starts[name] for name in kept], [html.escape(name) for name in kept])
    axis |= {"tickangle": 0, "showgrid": grid} | ({} if title is None else {"title_text": title})
    return axis if edge is None else axis | {"range": [-edge, len(components) - 1 + edge]}


def token_axis(tokens: Sequence[str], max_ticks: int = 40) -> dict[str, Any]:
    """An axis of a text's tokens at 0, 1, 2, …, of which about `max_ticks` are written."""
    written = range(0, len(tokens), max(1, -(-len(tokens) // max_ticks)))
    return _ticks(written, [html.escape(quoted(tokens[i], 12)) for i in written]) | {"tickangle": -60}


def named_rows(names: Sequence[str]) -> dict[str, Any]:
    """An axis on which names stand at 0, 1, 2, …, from above."""
    return _ticks(range(len(names)), [clipped(name) for name in names]) | {"autorange": "reversed"}


def named_columns(names: Sequence[str], positions: Iterable[float]) -> dict[str, Any]:
    """An axis on which short names stand beneath `positions`."""
    return _ticks(positions, [short(name) for name in names])


def tilted(names: Sequence[str]) -> int:
    """Pixels that names beneath columns need more than level ones."""
    longest = max(len(html.unescape(short(name))) for name in names)
    return 4 * longest if longest > _LEVEL else 0


def _ticks(positions: Iterable[float], texts: Sequence[str]) -> dict[str, Any]:
    ticks = {"tickmode": "array", "tickvals": list(positions), "ticktext": list(texts)}
    return ticks | {"showgrid": False, "zeroline": False}


def buttons(
    views: Mapping[str, Sequence[Any]], active: int = 0, method: str = "update", **options: Any
) -> list[dict[str, Any]]:
    """A row of buttons from the left, or, with `type="dropdown"`, a menu; an empty list where there is no choice.

    `views` has the arguments of plotly's `method` for each label: changes of the traces, changes of the layout.
    """
    if len(views) < 2:
        return []
    entries = [{"label": label, "method": method, "args": list(arguments)} for label, arguments in views.items()]
    row = {"type": "buttons", "direction": "right", "showactive": True, "x": 0, "xanchor": "left"}
    return [row | {"buttons": entries, "active": active} | options]


def changes(traces: Iterable[BaseTraceType], *attributes: str) -> dict[str, list[Any]]:
    """What a button puts in place of all traces: the values of some attributes of these."""
    traces = list(traces)
    return {name: [_plain(trace[name]) for trace in traces] for name in attributes}


def _plain(value: Any) -> Any:
    return value.to_plotly_json() if isinstance(value, BasePlotlyType) else value
