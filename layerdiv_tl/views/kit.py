"""Bars, marks, lines and heat maps of a frame, and the title, buttons and legend around them.

A figure is columns of a frame: `component kind module layer index repeat`, then values with their `_low` and `_high`;
units stand in `attrs["units"]`. Figures write plain text, in which "\\n" begins a line. `finish` alone escapes text, so
that no name of a model or token becomes markup.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType
from plotly.subplots import make_subplots

from . import axes, style

STREAM = "component, in stream order"
ZERO = "zero baseline"
# A reference line, not data.
DOTTED = {"dash": "dot", "width": 1.5}
# Characters that fit 400 pixels: of a title's line, of the text below it, of a button, of a row of buttons.
_TITLE, _LINE, _BUTTON, _ROW = 40, 58, 30, 40
# Above this many bars the whiskers are a gray smear, and whiskers this many times the tallest bar would make the bars
# small: the intervals are in the hover only.
_MOST_WHISKERS, _WIDEST = 150, 2
_MANY = 1000
# What holds text in a trace.
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
    """Lay out panels row by row, each with its traces; the first trace of a legend group stands in the legend.

    `units` are the y titles of the rows; `x_title` stands below the lowest panel of each column. `gap` and `across` are
    the space below a panel, as a share of its height, and between columns, as a share of the figure. Other options
    are those of `make_subplots`.
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
        figure.update_yaxes(title_text=unit, row=row, col=1)
    if x_title is not None:
        for number in range(max(0, len(contents) - columns), len(contents)):  # panels that have none below them
            figure.update_xaxes(title_text=x_title, **cell(number, columns))
    return figure


def cell(number: int, columns: int = 1) -> dict[str, int]:
    """Row and column of a panel."""
    return {"row": number // columns + 1, "col": number % columns + 1}


def finish(
    figure: go.Figure,
    title: str,
    subtitle: str = "",
    *,
    plot: int = 320,
    below: int = 0,
    x: str | Mapping[str, Any] = "",
    y: str | Mapping[str, Any] = "",
    **layout: Any,
) -> go.Figure:
    """Give a figure its title, its axes and its room, and escape all its text.

    `plot` is the height of the panels in pixels, `below` what tick labels need beneath them beyond one line; `x` and
    `y` are all panels' axes, or only the title. The rest is plotly's layout.
    """
    figure.update_layout(title={"text": title, "subtitle": {"text": " ".join(subtitle.split())}}, **layout)
    for update, axis in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        if axis:
            update({"title_text": axis} if isinstance(axis, str) else axis)
    _escape(figure)
    figure.update_layout(template=style.template(style.BOTH), legend=style.LEGEND_BELOW)
    return _room(figure, plot, below + 64)


def _room(figure: go.Figure, plot: int, below: int) -> go.Figure:
    """Set margins and height by the lines of the title and the legend, and by whether there are buttons."""
    names = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    names += [shape.name for shape in figure.layout.shapes if shape.name and shape.showlegend]
    # Every name takes its letters and a mark; a row of a figure of 400 pixels has room for some 50 letters.
    legend = sum(len(name) + 7 for name in dict.fromkeys(names)) // 50 + 1 if len(names) > 1 else 0
    title, subtitle = (figure.layout.title.text or ""), (figure.layout.title.subtitle.text or "")
    lines, more = (subtitle.count("<br>") + 1 if subtitle else 0), title.count("<br>")
    headings, menus = len(figure.layout.annotations) > 0, len(figure.layout.updatemenus) > 0
    top = 52 + 22 * more + 18 * lines + (42 if menus else 0) + (26 if headings else 10)
    row = {"y": 1, "yanchor": "bottom", "pad": {"b": 30 if headings else 12, "t": 0, "l": 0, "r": 0}}
    bottom = below + 22 * legend + (10 if legend else 0)
    return figure.update_layout(
        title={"yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 14 + 12 * more, "l": 16}},
        height=top + plot + bottom,
        margin={"t": top, "b": bottom},
        updatemenus=[row] * len(figure.layout.updatemenus),
        meta={"plot": plot, "below": below},
    )


def _escape(figure: go.Figure) -> None:
    """Escape all text of a figure, and turn its line breaks into plotly's; the first line of a hover is bold."""
    for trace in figure.data:
        for name in _TEXTS:
            if name in trace and (value := trace[name]) is not None and _has_text(value):
                trace[name] = _markup(value, bold=name == "hovertext")
    layout = figure.layout
    layout.title.text = _wrapped(layout.title.text, _TITLE)
    layout.title.subtitle.text = _wrapped(layout.title.subtitle.text, _LINE)
    for note in layout.annotations:
        note.text = _markup(note.text)
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        axis.title.text = _markup(axis.title.text)
        for name in ("ticktext", "categoryarray"):
            if axis[name] is not None:
                axis[name] = _markup(axis[name])


def _has_text(value: Any) -> bool:
    return isinstance(value, str) or np.asarray(value).dtype.kind in "OU"


def _markup(value: Any, bold: bool = False) -> Any:
    """Text in plotly's markup; in lists of any depth; numbers as they are."""
    if isinstance(value, str):
        first, *more = html.escape(value, quote=False).split("\n")
        return "<br>".join([f"<b>{first}</b>" if bold else first, *more])
    if isinstance(value, list | tuple | np.ndarray):
        return [_markup(item, bold) for item in value]
    return value


def _wrapped(text: str | None, width: int) -> str:
    """Text in lines that fit, escaped."""
    lines = [line for part in (text or "").split("\n") for line in textwrap.wrap(part, width, break_on_hyphens=False)]
    return str(_markup("\n".join(lines)))


def retitle(figure: go.Figure, title: str | None = None, remark: str = "") -> go.Figure:
    """Exchange the title of a finished figure, and add a sentence below it, also where its buttons exchange that."""
    if title:
        figure.layout.title.text = _wrapped(title, _TITLE)
    if remark:
        added, name = _wrapped(remark, _LINE), "title.subtitle.text"
        figure.layout.title.subtitle.text = "<br>".join(filter(None, [figure.layout.title.subtitle.text, added]))
        for button in (button for menu in figure.layout.updatemenus for button in menu.buttons):
            data, layout = button.args
            if name in layout:
                button.args = [data, layout | {name: f"{layout[name]}<br>{added}"}]
    return _room(figure, figure.layout.meta["plot"], figure.layout.meta["below"])


def choose(views: Mapping[str, go.Figure], shown: str, **look: Any) -> go.Figure:
    """One of several finished figures, with a button for each, which puts in place whatever differs.

    The figures have the same traces in the same order. Buttons that have no room side by side are a menu; options are
    those of plotly's `updatemenu`. A single figure has no button.
    """
    figure = go.Figure(views[shown])
    if len(views) < 2:
        return figure
    traces = {name: [dict(_leaves(trace.to_plotly_json())) for trace in view.data] for name, view in views.items()}
    layouts = {name: dict(_leaves(_frameless(view.layout.to_plotly_json()))) for name, view in views.items()}
    paths = {
        path: None
        for others in traces.values()
        for own, other in zip(traces[shown], others, strict=True)
        for path in {**own, **other}
        if not _same(own.get(path), other.get(path))
    }
    keys = {
        key: None
        for other in layouts.values()
        for key in {**layouts[shown], **other}
        if not _same(layouts[shown].get(key), other.get(key))
    }
    buttons = [
        {
            "label": str(_markup(clipped(name, _BUTTON))),
            "method": "update",
            "args": [
                {path: [_plain(trace.get(path)) for trace in traces[name]] for path in paths},
                {key: _plain(layouts[name].get(key)) for key in keys},
            ],
        }
        for name in views
    ]
    wide = sum(len(name) + 3 for name in views) > _ROW
    place: dict[str, Any] = {"type": "dropdown" if wide else "buttons", "direction": "down" if wide else "right"}
    place |= {"x": 0, "xanchor": "left", "showactive": True}
    menu = place | {"buttons": buttons, "active": list(views).index(shown)} | look
    figure.update_layout(updatemenus=[*figure.layout.updatemenus, menu])
    return _room(figure, figure.layout.meta["plot"], figure.layout.meta["below"])


def _frameless(layout: dict[str, Any]) -> dict[str, Any]:
    """A layout without what all views share: the template, the buttons and the size."""
    return {name: value for name, value in layout.items() if name not in ("template", "updatemenus", "meta")}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested dicts and lists of dicts with its path, as plotly writes it: `shapes[0].y0`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple) and value and all(isinstance(item, dict) for item in value):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{number}]")
    else:
        yield path, value


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and np.array_equal(np.asarray(a, dtype=object), np.asarray(b, dtype=object))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def clipped(text: str, width: int = 24) -> str:
    """A name of a model or task, cut where it would push the figure aside."""
    return text if len(text) <= width else text[: width - 1] + "…"


def hover(frame: pd.DataFrame, columns: Iterable[str] | Mapping[str, str], *more: Iterable[str]) -> np.ndarray:
    """One text for each row: its component, then name, value, unit and interval of every column; then more lines.

    `columns` may be a mapping from what a column is called in the text to the column.
    """
    texts = list(frame["component"].astype(str))
    named = columns if isinstance(columns, Mapping) else {column.replace("_", " "): column for column in columns}
    for name, column in named.items():
        unit = frame.attrs.get("units", {}).get(column, "")
        numbers = np.stack([_ends(frame, column, end) for end in ("", "_low", "_high")], 1)
        texts = [f"{text}\n{name} {style.measured(*row, unit=unit)}" for text, row in zip(texts, numbers, strict=True)]
    for lines in more:
        texts = [f"{text}\n{line}" if line else text for text, line in zip(texts, lines, strict=True)]
    return np.array(texts, dtype=object)


def hovers(rows: Sequence[str], columns: Sequence[str], values: np.ndarray, unit: str) -> np.ndarray:
    """A text for each cell of a map: row, column, and the value with its unit."""
    return np.array(
        [
            [f"{row}\n{column}\n{style.number(v)} {unit}" for column, v in zip(columns, line, strict=True)]
            for row, line in zip(rows, values, strict=True)
        ],
        dtype=object,
    )


def _ends(frame: pd.DataFrame, column: str, end: str) -> np.ndarray:
    return frame[column + end].to_numpy(dtype=float) if column + end in frame else np.full(len(frame), np.nan)


def whiskers(frame: pd.DataFrame, column: str, **options: Any) -> dict[str, Any]:
    """Error bars from a column to its `_low` and `_high`, in plotly's asymmetric form."""
    value, low, high = (_ends(frame, column, end) for end in ("", "_low", "_high"))
    spread = {"type": "data", "array": np.maximum(high - value, 0), "arrayminus": np.maximum(value - low, 0)}
    return spread | {"thickness": 1, "width": 0, "color": style.NEUTRAL} | options


def intervals(frame: pd.DataFrame, what: str = "Whiskers") -> str:
    """A sentence on what the whiskers of a figure are, or why it has none, from `attrs["intervals"]`."""
    note = str(frame.attrs.get("intervals", ""))
    return f"{what}: {note}." if note[:1].isdigit() else f"{note[:1].upper()}{note[1:]}." if note else ""


def modules(frame: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Each module in order of appearance, and the positions of its rows."""
    column = frame["module"].to_numpy(dtype=object)
    for module in dict.fromkeys(column):
        yield module, np.flatnonzero(column == module)


def trace(
    frame: pd.DataFrame,
    x: Any,
    y: Any,
    color: Any = style.NEUTRAL,
    texts: Iterable[str] | None = None,
    *,
    shape: Literal["marks", "bars", "across", "line"] = "marks",
    name: str | None = None,
    **look: Any,
) -> Any:
    """Marks, bars, bars `across`, or a line with marks, at two columns of a frame, or at arrays for either.

    Columns that have intervals have error bars, and a hover if no `texts` are given. A trace without a name is left out
    of the legend.
    """
    sides = {"x": x, "y": y}
    columns = [side for side in sides.values() if isinstance(side, str)]
    drawn: dict[str, Any] = {
        axis: frame[side].to_numpy() if isinstance(side, str) else side for axis, side in sides.items()
    }
    drawn |= {f"error_{axis}": whiskers(frame, side) for axis, side in sides.items() if isinstance(side, str)}
    drawn |= {"hovertext": list(hover(frame, columns) if texts is None else texts), "hoverinfo": "text"}
    drawn |= {"name": name, "legendgroup": name} if name else {"showlegend": False}
    marker = {"color": color} | look.pop("marker", {})
    if shape in ("bars", "across"):
        return go.Bar(orientation="h" if shape == "across" else None, marker=marker, **(drawn | {"width": 0.8} | look))
    line = {"color": color, "width": 1.8, "dash": look.pop("dash", "solid")}
    drawn |= {"mode": "lines+markers", "line": line} if shape == "line" else {"mode": "markers"}
    draw = go.Scattergl if len(frame) > _MANY else go.Scatter  # SVG is slow to pan and zoom
    return draw(marker={"size": 5 if shape == "line" else 8} | marker, **(drawn | look))


def by_module(frame: pd.DataFrame, x: Any, y: Any, texts: Any = None, **look: Any) -> list[Any]:
    """A `trace` for each module in its color and with its name; arrays have a value for each row of the frame."""
    texts = hover(frame, [side for side in (x, y) if isinstance(side, str)]) if texts is None else texts
    traces = []
    for module, at in modules(frame):
        own = {name: _rows(value, at) for name, value in look.items()}
        label: dict[str, Any] = {"name": style.MODULE_NAME[module], "legendgroup": module}
        rows, color = frame.iloc[at], style.MODULE[module]
        traces.append(trace(rows, _rows(x, at), _rows(y, at), color, texts[at], **(label | own)))
    return traces


def _rows(value: Any, at: np.ndarray) -> Any:
    if isinstance(value, dict):
        return {name: _rows(inner, at) for name, inner in value.items()}
    return value[at] if isinstance(value, np.ndarray) else value


def bars(
    frame: pd.DataFrame, column: str, texts: Any = None, *, base: float = 0.0, places: Any = None, **look: Any
) -> list[go.Bar]:
    """A bar for each row in its module's color, from `base` to the value of a column, with its interval."""
    value, low, high = (_ends(frame, column, end) for end in ("", "_low", "_high"))
    height, places = value - base, np.arange(len(frame)) if places is None else places
    tallest, widest = (np.nanmax(sizes, initial=0.0) for sizes in (np.abs(height), high - low))
    error = whiskers(frame, column, visible=bool(len(frame) <= _MOST_WHISKERS and widest <= _WIDEST * tallest))
    texts = hover(frame, [column]) if texts is None else texts
    if look.get("shape") == "across":
        return by_module(frame, height, places, texts, base=base, error_x=error, **look)
    return by_module(frame, places, height, texts, **({"shape": "bars", "base": base, "error_y": error} | look))


def line(x: Any, y: Any, color: str = style.NEUTRAL, *, dash: str = "solid", **look: Any) -> go.Scatter:
    """A line without marks or hover; without a name it is left out of the legend."""
    drawn = {"line": {"color": color, "width": 1.8, "dash": dash}, "mode": "lines", "hoverinfo": "skip"}
    named = {"legendgroup": look.get("name")} if look.get("name") else {"showlegend": False}
    return go.Scatter(x=x, y=y, **(drawn | named | look))


def band(x: Any, low: Any, high: Any, color: str = style.NEUTRAL, **look: Any) -> go.Scatter:
    """The ground between two lines, there and back."""
    x, low, high = (np.asarray(values, dtype=float) for values in (x, low, high))
    drawn = {"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": style.faint(color)}
    hidden = {"hoverinfo": "skip"} | ({} if look.get("name") else {"showlegend": False})
    return go.Scatter(x=np.r_[x, x[::-1]], y=np.r_[high, low[::-1]], **(drawn | hidden | look))


def heat(z: Any, texts: Any, unit: str, limit: float | None = None, *, signed: bool = False, **look: Any) -> go.Heatmap:
    """A heat map on whole numbers, colored to ±limit if `signed`, otherwise from 0; None is `robust_limit`.

    Its color scale is the template's, so that a page can exchange light and dark.
    """
    limit = robust_limit(z) if limit is None else limit
    drawn = {"x": np.arange(np.shape(z)[1]), "y": np.arange(np.shape(z)[0]), "hoverongaps": False}
    drawn |= {"zmin": -limit if signed else 0.0, "zmax": limit, "autocolorscale": True}
    drawn |= {} if texts is None else {"hovertext": texts, "hoverinfo": "text"}
    scale = {"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0}
    return go.Heatmap(z=z, colorbar=scale | look.pop("colorbar", {}), **(drawn | look))


def robust_limit(z: Any, quantile: float = 0.99) -> float:
    """A quantile of the absolute finite values, so that one cell does not hide the others; 1 where all are 0."""
    sizes = np.abs(np.asarray(z, dtype=float))
    finite = sizes[np.isfinite(sizes)]
    return (float(np.quantile(finite, quantile)) if finite.size else 0.0) or 1.0


def top(sizes: Any, count: int) -> np.ndarray:
    """The positions of the largest absolute values, in ascending order."""
    sizes = np.nan_to_num(np.abs(np.asarray(sizes, dtype=float)))
    return np.sort(np.argsort(-sizes, kind="stable")[:count])


def largest(frame: pd.DataFrame, column: str, count: int) -> tuple[pd.DataFrame, str]:
    """The rows with the largest absolute values, in their order, and a sentence if others are left out."""
    kept = frame.iloc[top(frame[column], count)]
    left_out = f"The {len(kept):,} of {len(frame):,} components with the largest {column.replace('_', ', ')}."
    return kept, left_out if len(kept) < len(frame) else ""


def grid(shape: Sequence[int], at: tuple[Any, ...], values: Any, texts: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values and texts as tables of a shape, at some cells; the others are empty."""
    z, told = np.full(shape, np.nan), np.full(shape, "", dtype=object)
    z[at], told[at] = values, texts
    return z, told


def most(frame: pd.DataFrame, column: str, sign: int = 0) -> Any:
    """The row with the largest value of a column times `sign`; for 0 the one with the largest absolute value."""
    values = frame[column].to_numpy(dtype=float)
    return frame.iloc[int(np.nan_to_num(sign * values if sign else np.abs(values), nan=-np.inf).argmax())]


def head_table(frame: pd.DataFrame, values: Any, texts: Any) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Values and texts of attention heads as tables `[layer, head]`: the layers' names, both tables, each row's layer.

    The last is −1 for components in layers without heads, and outside of layers.
    """
    layers = frame["component"].str.rpartition(".")[0].to_numpy()
    heads = np.flatnonzero(frame["kind"] == "head")
    rows = {name: number for number, name in enumerate(dict.fromkeys(layers[heads]))}
    of_layer = np.array([rows.get(name, -1) for name in layers])
    columns = frame["index"].to_numpy(dtype=float, na_value=0).astype(int)[heads]
    at, own = (of_layer[heads], columns), (np.asarray(some)[heads] for some in (values, texts))
    return [*rows], *grid((len(rows), 1 + int(columns.max())), at, *own), of_layer


def component_bars(
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    title: str,
    subtitle: str = "",
    *,
    zero: Mapping[str, float] | None = None,
    logarithmic: Iterable[str] = (),
    plot: int = 190,
    **layout: Any,
) -> go.Figure:
    """A panel of bars for each {column: heading}, one bar per component in stream order, in its module's color.

    Whiskers are the intervals, dashes the `_median` where the frame has one. `zero` are the levels of a component that
    writes nothing, from which the bars of a column begin. Columns on a `logarithmic` axis are marks.
    """
    zero, logarithmic, contents, places = zero or {}, set(logarithmic), [], np.arange(len(frame))
    for column in columns:
        ends = [column, *(name for name in (f"{column}_median", f"{column}_max") if name in frame)]
        texts = hover(frame, ends)
        if column in logarithmic:
            traces = by_module(frame, places, column, texts)
        else:
            traces = bars(frame, column, texts, base=zero.get(column, 0.0))
        if ends[1:]:
            dash = {"symbol": "line-ew-open", "line": {"width": 2}}
            traces.append(trace(frame, places, ends[1], style.NEUTRAL, texts, marker=dash))
        contents.append(traces)
    units = [frame.attrs.get("units", {}).get(column, "") for column in columns]
    headings = list(columns.values())
    figure = panels(contents, headings if headings != [""] else (), units=units, x_title=STREAM)
    for row, column in enumerate(columns, start=1):
        if column in logarithmic:
            figure.update_yaxes(axes.log_axis(frame.filter([column, f"{column}_median"])), row=row, col=1)
        if column in zero:
            named = {"name": ZERO, "showlegend": column == next(iter(zero))}
            figure.add_hline(y=zero[column], row=row, col=1, line=DOTTED, **named)
    drawn: dict[str, Any] = {"barmode": "overlay", "plot": plot * len(columns)} | layout
    return finish(figure, title, f"{subtitle} {intervals(frame)}".strip(), x=axes.component_axis(frame), **drawn)


def extreme_names(
    names: Iterable[str],
    x: np.ndarray,
    y: np.ndarray,
    ends: Sequence[Mapping[str, Any]],
    sizes: Sequence[np.ndarray] = (),
    *,
    most: int = 8,
    apart: tuple[float, float] = (0.3, 0.05),
    guide: float = np.nan,
) -> go.Scatter:
    """Names of the marks that are largest by some `sizes`, at most so many, none on another's name.

    `ends` are the axes, with their ranges; without `sizes` the first are farthest up, right and left. Two names are
    `apart` across or up, as shares of the panel; none crosses the upright line at `guide`.
    """
    shares = np.full((len(x), 2), np.nan)
    for side, (values, axis) in enumerate(zip((x, y), ends, strict=True)):
        low, high = axis["range"]
        with np.errstate(divide="ignore", invalid="ignore"):  # a zero is left of any axis of logarithms
            shares[:, side] = ((np.log10(values) if axis.get("type") == "log" else values) - low) / (high - low)
    shares, (low, high) = np.nan_to_num(shares, nan=-1.0, neginf=-1.0), ends[0]["range"]
    at = ((np.log10(guide) if ends[0].get("type") == "log" else guide) - low) / (high - low)
    orders = np.stack([np.argsort(-s, kind="stable") for s in sizes or (shares[:, 1], shares[:, 0], -shares[:, 0])], 1)
    named: list[int] = []
    for i in orders[: 2 * most].ravel().tolist():
        far = (np.abs(shares[named] - shares[i]) > apart).any(1).all()
        if len(named) < most and far and (shares[i] >= 0).all():
            named.append(i)
    look: dict[str, Any] = {"mode": "text", "textfont": {"size": 11}, "hoverinfo": "skip", "showlegend": False}
    left = np.where(np.abs(shares[:, 0] - at) < 0.25, shares[:, 0] < at, shares[:, 0] > 0.6)
    places = [f"top {'left' if left[i] else 'right'}" for i in named]
    labels = list(names)
    texts = [f"\u2002{labels[i]}\u2002" for i in named]
    return go.Scatter(x=x[named], y=y[named], text=texts, textposition=places, **look)
