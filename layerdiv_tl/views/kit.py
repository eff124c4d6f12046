"""Bars, marks, lines and heat maps of a frame.

A figure's frame has the columns `component kind module layer index repeat`, then values with their `_low` and `_high`;
`attrs["units"]` has the units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..errors import InputError
from . import axes, layout, style
from .html import quoted

STREAM = "component, in stream order"
ZERO = "zero baseline"
# A reference line, not data; a dash across a bar.
DOTTED = {"dash": "dot", "width": 1.5}
DASH = {"symbol": "line-ew-open", "line": {"width": 2}}
# Above this many bars whiskers blur: intervals are then only in the hover. Whiskers longer than this multiple of the
# tallest bar would shrink the bars, and are cut.
_MOST_WHISKERS, _WIDEST = 150, 2
# The first of so many rivals is named in a title; the others are counted.
_FEW_RIVALS = 4
# SVG pans and zooms more marks than this slowly.
_MANY = 1000


def hover(frame: pd.DataFrame, columns: Iterable[str] | Mapping[str, str], *more: Iterable[str]) -> np.ndarray:
    """Make a hover text per row: its component, then name, value, unit and interval of every column; then more lines.

    `columns` may be a mapping from names in the text to columns.
    """
    texts = list(frame["component"].astype(str))
    named = columns if isinstance(columns, Mapping) else {column.replace("_", " "): column for column in columns}
    for name, column in named.items():
        unit = frame.attrs.get("units", {}).get(column, "")
        rows = zip(texts, *_ends(frame, column), strict=True)
        said, over = f"{name} " if name else "", "\n95 % "
        texts = [f"{text}\n{said}{style.estimate(*numbers, unit=unit, gap=over)}" for text, *numbers in rows]
    for lines in more:
        texts = [f"{text}\n{line}" if line else text for text, line in zip(texts, lines, strict=True)]
    return np.array(texts, dtype=object)


def hovers(rows: Iterable[str], columns: Iterable[str], values: np.ndarray, unit: str) -> np.ndarray:
    """Make a hover text per cell of a map: row, column, and the value with its unit."""
    columns = list(columns)
    cells = [
        [f"{row}\n{column}\n{style.estimate(v, unit=unit)}" for column, v in zip(columns, line, strict=True)]
        for row, line in zip(rows, values, strict=True)
    ]
    return np.array(cells, dtype=object)


def _ends(frame: pd.DataFrame, column: str) -> list[np.ndarray]:
    """Return a column with its `_low` and `_high`, NaN where there is no such column."""
    ends = (frame.get(column + end, np.full(len(frame), np.nan)) for end in ("", "_low", "_high"))
    return [np.asarray(end, dtype=float) for end in ends]


def whiskers(frame: pd.DataFrame, column: str, **options: Any) -> dict[str, Any]:
    """Make error bars from a column to its `_low` and `_high`, in plotly's asymmetric form."""
    value, low, high = _ends(frame, column)
    spread = {"type": "data", "array": np.maximum(high - value, 0), "arrayminus": np.maximum(value - low, 0)}
    return spread | {"thickness": 1, "width": 0, "color": style.NEUTRAL} | options


def intervals(frame: pd.DataFrame, what: str = "Whiskers") -> str:
    """Explain a figure's whiskers, or why it has none, in a sentence from `attrs["intervals"]`."""
    note = str(frame.attrs.get("intervals", ""))
    return f"{what}: {note}." if note[:1].isdigit() else f"{note[:1].upper()}{note[1:]}." if note else ""


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
    """Draw marks, bars, bars `across`, or a line with marks, at two columns of a frame, or at arrays for either.

    Columns with intervals get error bars, and a hover if no `texts` are given. Traces without a name are not in the
    legend.
    """
    drawn: dict[str, Any] = {"x": x, "y": y}
    columns = {axis: side for axis, side in drawn.items() if isinstance(side, str)}
    for axis, column in columns.items():
        drawn |= {axis: frame[column].to_numpy(), f"error_{axis}": whiskers(frame, column)}
    drawn |= {"hovertext": list(hover(frame, columns.values()) if texts is None else texts), "hoverinfo": "text"}
    drawn |= {"name": name, "legendgroup": name} if name else {"showlegend": False}
    marker = {"color": color} | look.pop("marker", {})
    if shape in ("bars", "across"):
        return go.Bar(orientation="h" if shape == "across" else None, marker=marker, **(drawn | {"width": 0.8} | look))
    line = {"color": color, "width": 1.8, "dash": look.pop("dash", "solid")}
    drawn |= {"mode": "lines+markers", "line": line} if shape == "line" else {"mode": "markers"}
    draw = go.Scattergl if len(frame) > _MANY else go.Scatter
    return draw(marker={"size": 5 if shape == "line" else 8} | marker, **(drawn | look))


def by_module(frame: pd.DataFrame, x: Any, y: Any, texts: Any = None, **look: Any) -> list[Any]:
    """Draw a `trace` per module in its color and with its name; arrays have one value per row of the frame."""
    texts = hover(frame, [side for side in (x, y) if isinstance(side, str)]) if texts is None else texts
    traces, column = [], frame["module"].to_numpy(dtype=object)
    for module in dict.fromkeys(column):
        at, label = np.flatnonzero(column == module), {"name": style.MODULE_NAME[module], "legendgroup": module}
        own = label | {name: _rows(value, at) for name, value in look.items()}
        rows = frame.iloc[at]
        traces.append(trace(rows, _rows(x, at), _rows(y, at), style.MODULE[module], texts[at], **own))
    return traces


def _rows(value: Any, at: np.ndarray) -> Any:
    if isinstance(value, dict):
        return {name: _rows(inner, at) for name, inner in value.items()}
    return value[at] if isinstance(value, np.ndarray) else value


def bars(
    frame: pd.DataFrame,
    column: str,
    texts: Any = None,
    *,
    base: float = 0.0,
    places: Any = None,
    cut: pd.DataFrame | None = None,
    **look: Any,
) -> list[go.Bar]:
    """Draw a bar per row in its module's color, from `base` to a column's value, with its interval or that in `cut`."""
    height, places = _ends(frame, column)[0] - base, np.arange(len(frame)) if places is None else places
    error = whiskers(frame if cut is None else cut, column, visible=len(frame) <= _MOST_WHISKERS)
    texts = hover(frame, [column]) if texts is None else texts
    across = look.setdefault("shape", "bars") == "across"
    look = {"base": base, "error_x" if across else "error_y": error} | look
    x, y = (height, places) if across else (places, height)
    return by_module(frame, x, y, texts, **look)


def cut_whiskers(frame: pd.DataFrame, column: str, base: float = 0.0, title: str = "") -> pd.DataFrame | None:
    """Cut a column's intervals half a bar beyond the bars; None where none is wider than twice the tallest bar.

    The interval of the largest value is not cut where the title names its component.
    """
    value, low, high = _ends(frame, column)
    tallest, widest = (np.nanmax(sizes, initial=0.0) for sizes in (np.abs(value - base), high - low))
    if widest <= _WIDEST * tallest or len(frame) > _MOST_WHISKERS:
        return None
    least, most = np.nanmin(value, initial=base) - tallest / 2, np.nanmax(value, initial=base) + tallest / 2
    first = int(np.nan_to_num(np.abs(value)).argmax())
    if frame["component"].iloc[first] in title:
        least, most = np.nanmin([least, low[first]]), np.nanmax([most, high[first]])
    if not ((low < least) | (high > most)).any():
        return None
    return frame.assign(**{f"{column}_low": np.maximum(low, least), f"{column}_high": np.minimum(high, most)})


def line(x: Any, y: Any, color: str = style.NEUTRAL, *, dash: str = "solid", **look: Any) -> go.Scatter:
    """Draw a line without marks or hover; without a name it is not in the legend."""
    drawn = {"line": {"color": color, "width": 1.8, "dash": dash}, "mode": "lines", "hoverinfo": "skip"}
    named = {"legendgroup": look.get("name")} if look.get("name") else {"showlegend": False}
    return go.Scatter(x=x, y=y, **(drawn | named | look))


def band(x: Any, low: Any, high: Any, color: str = style.NEUTRAL, **look: Any) -> go.Scatter:
    """Fill the area between two lines."""
    x, low, high = (np.asarray(values, dtype=float) for values in (x, low, high))
    drawn = {"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": style.faint(color)}
    hidden = {"hoverinfo": "skip"} | ({} if look.get("name") else {"showlegend": False})
    return go.Scatter(x=np.r_[x, x[::-1]], y=np.r_[high, low[::-1]], **(drawn | hidden | look))


def heat(
    z: Any, texts: Any, unit: str, limit: float | None = None, *, signed: bool | None = None, **look: Any
) -> go.Heatmap:
    """Draw a heat map on integer positions, colored to ±limit if `signed`, else from 0; None is `robust_limit`.

    `texts` are the cells' hovers, or the names of rows and of columns; `signed` None is whether a value is below 0. The
    color scale is the template's, so that a page can switch between light and dark.
    """
    limit = robust_limit(z) if limit is None else limit
    signed = bool((np.asarray(z, dtype=float) < 0).any()) if signed is None else signed
    texts = hovers(texts[0], texts[1], z, unit) if isinstance(texts, tuple) else texts
    drawn = {"x": np.arange(np.shape(z)[1]), "y": np.arange(np.shape(z)[0]), "hoverongaps": False}
    drawn |= {"zmin": -limit if signed else 0.0, "zmax": limit, "autocolorscale": True}
    drawn |= {} if texts is None else {"hovertext": texts, "hoverinfo": "text"}
    scale = {"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0}
    return go.Heatmap(z=z, colorbar=scale | look.pop("colorbar", {}), **(drawn | look))


def heat_figure(
    z: Any, texts: Any, unit: str, title: str, subtitle: str = "", *, limit: float | None = None, **look: Any
) -> go.Figure:
    """Draw a `heat` map as a figure of its own; axes and sizes in `look` are those of `layout.finish`.

    `named` in it is the column and row of the title's cell, which gets a frame.
    """
    drawn = {name: look.pop(name) for name in ("signed", "xgap", "ygap", "reversescale") if name in look}
    named = look.pop("named", None)
    subtitle += "" if named is None else " Framed: the cell of the title."
    subtitle += "" if limit is not None else f" {ends_at(robust_limit(z))}"
    figure = layout.finish(heat(z, texts, unit, limit, **drawn), title, subtitle, **look)
    return figure if named is None else frame_cell(figure, *map(int, named))


def ends_at(limit: float) -> str:
    """Say where a map's colors end."""
    return f"Colors end at the 99th percentile, {style.number(limit)}."


def frame_cell(figure: go.Figure, x: int, y: int, **panel: Any) -> go.Figure:
    """Frame the cell of a map that its title names."""
    corners = {"x0": x - 0.5, "x1": x + 0.5, "y0": y - 0.5, "y1": y + 0.5}
    for color, width in ((style.LIGHT.ink, 4), (style.LIGHT.paper, 1.5)):  # seen on every color
        figure.add_shape(type="rect", line={"color": color, "width": width}, **corners, **panel)
    return figure


def doubt(row: Any, column: str, level: float = 0.0) -> str:
    """Return the end of a title that names a row by a column, if the column's interval holds `level`."""
    low, high = (float(row.get(column + end, np.nan)) for end in ("_low", "_high"))
    return f", but its interval includes {style.number(level)}" if low <= level <= high else ""


def ahead(frame: pd.DataFrame, row: Any, column: str, level: float = 0.0, other: str = "{component}'s") -> str:
    """Return a row's estimate for the end of a title, and its `doubt` or else `rival`, named by `other`.

    Next to a doubtful estimate stands the largest one that is clear.
    """

    def size(row: Any) -> str:
        numbers = (float(row.get(column + end, np.nan)) for end in ("", "_low", "_high"))
        return style.estimate(*numbers, unit=frame.attrs.get("units", {}).get(column, ""))

    if not (doubtful := doubt(row, column, level)):
        return f", {size(row)}{rival(frame, row, column, other)}"
    clear = frame[(frame[f"{column}_low"] > level) | (frame[f"{column}_high"] < level)]
    if len(clear) and np.isfinite(level):
        largest = most(clear, column)
        which = f"of {len(clear)} clear ones" if len(clear) > 1 else "clear one"
        doubtful += f"; the largest {which} is {other.format(**largest)}, {size(largest)}"
    return f", {size(row)}{doubtful}"


def named_in(title: str, frame: pd.DataFrame) -> list[str]:
    """Return the components of a frame that a title names."""
    return [name for name in frame["component"] if re.search(rf"(?<![\w.@]){re.escape(name)}(?!\w)", title)]


def rival(frame: pd.DataFrame, row: Any, column: str, other: str = "{component}'s") -> str:
    """Name the row next to the one of the largest size, if their intervals meet; count others."""
    others, ends = frame.drop(index=row.name), [f"{column}_low", f"{column}_high"]
    if others.empty or np.isnan(float(row.get(ends[0], np.nan))):
        return ""
    # The inner end of the first one's interval, the outer ends of the others'.
    inner = ((1 if row[column] >= 0 else -1) * row[ends].astype(float)).min()
    signs = np.where(others[[column]] >= 0, 1, -1)
    second, near = most(others, column), (signs * others[ends].to_numpy(dtype=float)).max(1) >= inner
    if not near[others.index.get_loc(second.name)]:
        return ""
    opposite = others[column].to_numpy(dtype=float) * row[column] < 0
    if near.sum() > _FEW_RIVALS:
        return f"; {near.sum()} others may be as large" + " in size" * bool((near & opposite).any())
    more = f" (and {near.sum() - 1} more)" * bool(near.sum() > 1)
    told = f"; {other.format(**second)}{more} may be as large"
    return told + " in size" * bool(second[column] * row[column] < 0)


def robust_limit(z: Any, quantile: float = 0.99) -> float:
    """Return a quantile of the finite absolute values, so that one cell does not hide the others; 1 if all are 0."""
    sizes = np.abs(np.asarray(z, dtype=float))
    finite = sizes[np.isfinite(sizes)]
    return (float(np.quantile(finite, quantile)) if finite.size else 0.0) or 1.0


def top(sizes: Any, count: int) -> np.ndarray:
    """Return the positions of the largest absolute values, in ascending order."""
    sizes = np.nan_to_num(np.abs(np.asarray(sizes, dtype=float)))
    return np.sort(np.argsort(-sizes, kind="stable")[:count])


def largest(frame: pd.DataFrame, column: str, count: int) -> tuple[pd.DataFrame, str]:
    """Select the rows with the largest absolute values, in order, and return a sentence if others are left out."""
    kept = frame.iloc[top(frame[column], count)]
    signed = " in size" * bool((frame[column] < 0).any())
    left_out = f"The {len(kept):,} of {len(frame):,} components with the largest {column.replace('_', ', ')}{signed}."
    return kept, left_out if len(kept) < len(frame) else ""


def strongest(values: np.ndarray, count: int, what: str = "components") -> tuple[np.ndarray, str]:
    """Select the rows of a map with the largest mean size, and return a sentence if others are left out."""
    kept = top(np.nan_to_num(np.abs(values)).mean(1), count)
    return kept, f" The {len(kept):,} largest of {len(values):,} {what}." if len(kept) < len(values) else ""


def grid(shape: Sequence[int], at: tuple[Any, ...], values: Any, texts: Any) -> tuple[np.ndarray, np.ndarray]:
    """Place values and texts in the given cells of tables of a shape; other cells are empty."""
    z, told = np.full(shape, np.nan), np.full(shape, "", dtype=object)
    z[at], told[at] = values, texts
    return z, told


def most(frame: pd.DataFrame, column: str) -> Any:
    """Return the row with the largest absolute value of a column.

    Raises InputError for a frame without rows.
    """
    if frame.empty:
        raise InputError(f"there is nothing to draw: no row has a {column.replace('_', ' ')}.")
    values = frame[column].to_numpy(dtype=float)
    return frame.iloc[int(np.nan_to_num(np.abs(values), nan=-np.inf).argmax())]


def head_table(frame: pd.DataFrame, values: Any, texts: Any) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Arrange values and texts of heads by `[layer, head]`: the layers' names, both tables, each row's layer.

    The last is −1 for components in layers without heads, and outside of layers.
    """
    layers = frame["component"].str.rpartition(".")[0].to_numpy()
    heads = np.flatnonzero(frame["kind"] == "head")
    rows = {name: number for number, name in enumerate(dict.fromkeys(layers[heads]))}
    of_layer = np.array([rows.get(name, -1) for name in layers])
    columns = frame["index"].to_numpy(dtype=float, na_value=0).astype(int)[heads]
    own = (np.asarray(some)[heads] for some in (values, texts))
    return [*rows], *grid((len(rows), 1 + int(columns.max())), (of_layer[heads], columns), *own), of_layer


def component_bars(
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    title: str,
    subtitle: str = "",
    *,
    zero: Mapping[str, float] | None = None,
    logarithmic: Iterable[str] = (),
    plot: int = 190,
    x_title: str = STREAM,
    **look: Any,
) -> go.Figure:
    """Draw a panel of bars per {column: heading}, one bar per component in the frame's order, in its module's color.

    Whiskers are the intervals, dashes the `_median` where the frame has one. `zero` has the zero baselines from which a
    column's bars begin. Columns on a `logarithmic` axis are drawn as marks. `{}` in the title is the component with the
    largest value of the first column.
    """
    zero, contents, places = zero or {}, [], np.arange(len(frame))
    if "{}" in title:
        row = most(frame, column := next(iter(columns)))
        title = title.replace("{}", row["component"]) + ahead(frame, row, column)
    bases = {column: zero.get(column, 0.0) for column in columns if column not in logarithmic}
    cuts = {column: cut_whiskers(frame, column, base, title) for column, base in bases.items()}
    for column in columns:
        median = f"{column}_median"
        more = ["likeliest token " + frame["top_token"].map(quoted)] if "top_token" in frame else []
        texts = hover(frame, [name for name in (column, median, f"{column}_max") if name in frame], *more)
        if column in logarithmic:
            contents.append(by_module(frame, places, column, texts))
        else:
            contents.append(bars(frame, column, texts, base=bases[column], cut=cuts[column]))
        if median in frame:
            contents[-1].append(trace(frame, places, median, style.NEUTRAL, texts, marker=DASH))
    units = [frame.attrs.get("units", {}).get(column, "") for column in columns]
    figure = layout.panels(contents, filter(None, columns.values()), units=units, x_title=x_title)
    for row, column in enumerate(columns, start=1):
        if column in logarithmic:
            figure.update_yaxes(axes.log_axis(frame.filter([column, f"{column}_median"])), row=row, col=1)
        if column in zero:
            legend = {"name": ZERO, "showlegend": column == next(iter(zero))}
            figure.add_hline(y=zero[column], row=row, col=1, line=DOTTED, **legend)
    drawn: dict[str, Any] = {"barmode": "overlay", "plot": plot * len(columns)} | look
    told = intervals(frame)
    if told.startswith("Whiskers") and len(frame) > _MOST_WHISKERS:
        told = intervals(frame, "Hover")
    elif any(cut is not None for cut in cuts.values()):
        told += " Wide ones are cut in the figure, and whole in the hover."
    about = f"{subtitle} {told}"
    return layout.finish(figure, title, about, x=axes.component_axis(frame), **drawn)
