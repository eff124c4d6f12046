"""Panels of a figure, its axes, and its title, subtitle, buttons and legend, placed in pixels so that none meets
another."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.basedatatypes import BasePlotlyType, BaseTraceType
from plotly.subplots import make_subplots

from ...components import Component
from .. import style
from ..html import quoted

# Where a button puts a subtitle.
_SUBTITLE = "title.subtitle.text"
# Characters of a subtitle's line that fit a notebook's figure (700 pixels), of a name at a row or on a button, and of
# one beneath a column or above a panel; those beneath many columns that are longer than `_LEVEL` plotly tilts.
_LINE, _NAME, _COLUMN, _LEVEL = 96, 36, 18, 10
# And of a title's line, which names of models make long.
_TITLE = 80


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
    lowest of each column. `gap` and `across` are the space below a panel, as a share of its height, and the space
    between columns, as a share of the figure. Other options are those of `make_subplots`.
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
    if x_title is not None:
        for number in range(max(0, len(contents) - columns), len(contents)):  # panels that have none below them
            figure.update_xaxes(title_text=x_title, **cell(number, columns))
    return figure


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
    heading = wrapped(title, _TITLE)
    more = heading.count("<br>")
    top = 52 + 22 * more + 18 * lines + (42 if menus else 0) + (26 if headings else 10)
    row = {"y": 1, "yanchor": "bottom", "pad": {"b": 30 if headings else 12, "t": 0, "l": 0, "r": 0}}
    above = {"text": heading, "subtitle": {"text": text}, "pad": {"t": 14 + 12 * more, "l": 16}}
    figure.update_layout(
        template=style.template(style.BOTH),
        title=above | {"yref": "container", "y": 1, "yanchor": "top"},
        height=height or top + plot + below,
        margin={"t": top, "b": below},
        legend=style.LEGEND_BELOW,
        updatemenus=[row | menu for menu in menus],
        **layout,
    )
    return figure.update_xaxes(x).update_yaxes(y)


def remark(figure: go.Figure, text: str) -> None:
    """One more sentence beneath the title of a figure that has its room, and beneath those that its buttons put there.

    It takes lines of its own.
    """
    added = wrapped(text)
    room = 18 * (added.count("<br>") + 1)

    def more(before: str | None) -> str:
        return f"{before}<br>{added}" if before else added

    title, layout = figure.layout.title, figure.layout
    figure.update_layout(
        title_subtitle_text=more(title.subtitle.text), height=layout.height + room, margin_t=layout.margin.t + room
    )
    for menu in layout.updatemenus:
        for button in menu.buttons:
            button.args = [
                part | {_SUBTITLE: more(part[_SUBTITLE])} if isinstance(part, dict) and _SUBTITLE in part else part
                for part in button.args
            ]


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
        alone = "groups" if component.kind == "group" else component.label
        starts.setdefault(alone if component.layer is None else layer, position)
    layers = [name for name in starts if name.startswith("L")]
    regular = layers[:: max(1, -(-len(layers) // max_ticks))]
    # A label needs a fraction of the axis; whatever would touch the one before is left out.
    apart = len(components) / (1.5 * max_ticks)
    kept: list[str] = []
    for name in starts:
        # "embed" stands in the middle of its tick, and is as wide as two layers' names.
        far = apart * (1.6 if kept and kept[-1] not in layers else 1)
        if name == "groups":  # which have no other name on the axis
            kept = [other for other in kept if starts[name] - starts[other] >= 1.6 * apart]
        if (name not in layers or name in regular) and (not kept or starts[name] - starts[kept[-1]] >= far):
            kept.append(name)
    axis = _ticks([starts[name] for name in kept], [html.escape(name) for name in kept])
    axis |= {"tickangle": 0, "showgrid": grid} | ({} if title is None else {"title_text": title})
    return axis if edge is None else axis | {"range": [-edge, len(components) - 1 + edge]}


def layer_axis(sublayers: Sequence[Component], max_ticks: int = 16) -> dict[str, Any]:
    """An upright axis of layers at 0, 1, 2, …, the first at the bottom."""
    every = max(1, -(-len(sublayers) // max_ticks))
    names = [html.escape(sublayer.label.rpartition(".")[0]) for sublayer in sublayers]
    return _ticks(range(0, len(names), every), names[::every]) | {"range": [-0.5, len(names) - 0.5]}


def log_axis(values: Any, room: float = 0.06) -> dict[str, Any]:
    """A logarithmic axis of what is above 0 in `values`, with ticks at 1, 10, 100, or at 1, 2 and 5 times these.

    `room` is left at both ends, as a share of the range.
    """
    sizes = np.asarray(values, dtype=float).ravel()
    sizes = np.log10(sizes[np.isfinite(sizes) & (sizes > 0)])
    low, high = (float(sizes.min()), float(sizes.max())) if len(sizes) else (0.0, 1.0)
    low, high = (end + sign * room * max(high - low, 0.3) for end, sign in ((low, -1), (high, 1)))
    if high - low < 0.4:  # room for one tick at least: of equal values there is no step between them
        low, high = (low + high) / 2 - 0.2, (low + high) / 2 + 0.2
    powers = range(math.floor(low), math.ceil(high) + 1)
    steps = (1, 2, 5) if high - low < 2.2 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps if low <= math.log10(step) + power <= high]
    # Every third, or second, of more decades than a panel has room for.
    ticks = ticks[:: -(-len(ticks) // 7)]
    texts = [f"{x:g}" if 1e-4 <= x < 1e5 else f"10<sup>{math.log10(x):.0f}</sup>".replace("-", "−") for x in ticks]
    return {"type": "log", "range": [low, high], "tickmode": "array", "tickvals": ticks, "ticktext": texts}


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
    return 4 * longest if longest > max(_LEVEL, 80 // len(names)) else 0


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
