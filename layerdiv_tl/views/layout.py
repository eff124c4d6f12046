"""Layout of a figure's panels, title and legend; all text is escaped here.

Figures contain plain text with "\\n" for line breaks. Only `finish` escapes it, so that no name of a model or token
becomes markup.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType
from plotly.subplots import make_subplots

from . import style

# Characters that fit a figure of 700 pixels: in a title's line, in a line below it (`titles.js` wraps them for narrower
# pages).
_TITLE, _LINE = 72, 95
# Fields of a trace that hold text.
_TEXTS = ("name", "legendgroup", "text", "hovertext", "x", "y", "customdata")


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
    """Lay out panels row by row, each with its traces; the legend shows the first trace of each legend group.

    `units` are the y titles of the rows; `x_title` is below the lowest panel of each column. `gap` is the space below a
    panel as a share of its height, `across` the space between columns as a share of the figure. Other options are
    those of `make_subplots`.
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
        if x_title is not None and number + columns >= len(contents):  # no panel below
            figure.update_xaxes(title_text=x_title, **cell(number, columns))
    for number in range(len(contents) - columns, rows * columns - columns):  # no panel is below these
        figure.update_xaxes(showticklabels=True, **cell(number, columns))
    for row, unit in enumerate(units, start=1):
        figure.update_yaxes(title_text=unit, row=row, col=1)
    return figure


def cell(number: int, columns: int = 1) -> dict[str, int]:
    """Return the row and column of a panel."""
    return {"row": number // columns + 1, "col": number % columns + 1}


def finish(
    content: go.Figure | BaseTraceType | Sequence[BaseTraceType],
    title: str,
    subtitle: str = "",
    *,
    plot: int = 320,
    below: int = 0,
    x: str | Mapping[str, Any] = "",
    y: str | Mapping[str, Any] = "",
    **layout: Any,
) -> go.Figure:
    """Set the title, axes, margins and height of a figure or of traces, and escape all text.

    `plot` is the height of the panels in pixels, `below` the extra pixels for tick labels longer than one line; `x`
    and `y` are the axes of all panels, or only their title. Other options are plotly's layout.
    """
    figure = content if isinstance(content, go.Figure) else go.Figure(content)
    figure.update_layout(title={"text": title, "subtitle": {"text": " ".join(subtitle.split())}}, **layout)
    for update, axis in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        if axis:
            update({"title_text": axis} if isinstance(axis, str) else axis)
    _escape(figure)
    return _room(figure.update_layout(template=style.template(style.BOTH)), plot, below + 64)


def _room(figure: go.Figure, plot: int, below: int) -> go.Figure:
    """Set margins and height from the lines of the title and the legend."""
    names = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    names = list(dict.fromkeys([*names, *(s.name for s in figure.layout.shapes if s.name and s.showlegend)]))
    # Each legend entry is a name and a mark; a row of a 400-pixel figure fits about 50 letters.
    legend = sum(len(name) + 7 for name in names) // 50 + 1 if len(names) > 1 else 0
    title, subtitle = (figure.layout.title.text or ""), (figure.layout.title.subtitle.text or "")
    lines, more = (subtitle.count("<br>") + 1 if subtitle else 0), title.count("<br>")
    top = 52 + 22 * more + 18 * lines + (26 if figure.layout.annotations else 10)
    bottom = below + 22 * legend + 10 * (legend > 0)
    return figure.update_layout(
        title={"yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 14 + 12 * (more > 0), "l": 16}},
        height=top + plot + bottom,
        showlegend=len(names) > 1 and figure.layout.showlegend is not False,
        # A legend in a notebook's own figure is where its y puts it: the template says nothing.
        legend={"yref": "container", "y": 0, "yanchor": "bottom"},
        margin={"t": top, "b": bottom},
        meta={"plot": plot, "below": below},
    )


def _escape(figure: go.Figure) -> None:
    """Escape all text of a figure, and turn its line breaks into plotly's; the first line of a hover is bold."""
    for trace in figure.data:
        for name in [name for name in _TEXTS if name in trace]:
            value = trace[name]
            if isinstance(value, str) or (value is not None and np.asarray(value).dtype.kind in "OU"):
                trace[name] = _markup(value, bold=name == "hovertext")
    layout = figure.layout
    layout.title.text = _wrapped(layout.title.text, _TITLE)
    layout.title.subtitle.text = _wrapped(layout.title.subtitle.text, _LINE)
    for text in (*layout.annotations, *(axis.title for axis in (*figure.select_xaxes(), *figure.select_yaxes()))):
        text.text = _markup(text.text)
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        for name in ("ticktext", "categoryarray"):
            if axis[name] is not None:
                axis[name] = _markup(axis[name])


def _markup(value: Any, bold: bool = False) -> Any:
    """Convert text, also in nested lists, to plotly's markup; numbers stay unchanged."""
    if isinstance(value, str):
        first, *more = html.escape(value, quote=False).split("\n")
        return "<br>".join([f"<b>{first}</b>" if bold else first, *more])
    return [_markup(item, bold) for item in value] if isinstance(value, list | tuple | np.ndarray) else value


def _wrapped(text: str | None, width: int) -> str:
    """Wrap and escape text, and keep "98 %" and "p = 0.3" whole; a blank before a break is for `titles.js`."""
    whole = re.sub(r" (?=%)|(?<=\bp) (?=[=<≥])|(?<=\bp [=<≥]) ", "\u00a0", text or "")
    lines = [" \n".join(textwrap.wrap(line, width, break_on_hyphens=False)) for line in whole.split("\n")]
    return str(_markup("\n".join(lines)))


def retitle(figure: go.Figure, title: str | None = None, remark: str = "") -> go.Figure:
    """Replace a finished figure's title and add a sentence below it."""
    if title:
        figure.layout.title.text = _wrapped(title, _TITLE)
    if remark:
        lines = [figure.layout.title.subtitle.text, _wrapped(remark, _LINE)]
        figure.layout.title.subtitle.text = "<br>".join(filter(None, lines))
    return _room(figure, **figure.layout.meta)


def clipped(text: str, width: int = 24) -> str:
    """Shorten the name of a model or task that would displace the figure."""
    return text if len(text) <= width else text[: width - 1] + "…"
