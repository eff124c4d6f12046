"""Figures of frames in four shapes: bars, marks, maps and lines. A figure draws columns of a frame and computes none.

A frame may have the columns `component kind module layer index repeat`; values may have `_low` and `_high`;
`attrs["units"]` has the units.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from . import style

# Above so many rows, intervals are in the hover alone; axes name each row up to so many.
MOST_WHISKERS, MOST_NAMES = 150, 24
# The margin above the panels of a figure, in pixels, and its addition for a row of words there.
TOP, WORDS = 84, 38


def bars(
    frame: pd.DataFrame,
    columns: Sequence[str] = (),
    log: Sequence[str] = (),
    most: int = 1500,
    base: Mapping[str, float] = MappingProxyType({}),
    names: int = 0,
) -> go.Figure:
    """Draw a panel per column and a bar per row with its interval; dots for the columns in `log`.

    No `columns` are all that have a unit. `most` rows are drawn, those with the largest values of the first column.
    Bars stand on the `base` of their column, or 0; the `names` largest are named.
    """
    measured = [name for name in frame.attrs["units"] if not name.endswith(("_low", "_high"))]
    columns = [name for name in columns or measured if name in frame]
    frame = largest(frame, columns[0], most)
    figure = panels([heading(frame, name) for name in columns])
    for row, column in enumerate(columns, start=1):
        start = base.get(column, 0.0)
        for module, some in by_module(frame):
            look = look_of(module, show=row == 1) | {"hovertext": hover(some, [column]), "hoverinfo": "text"}
            if len(frame) <= MOST_WHISKERS and column not in base:
                look["error_y"] = whiskers(some, column)
            marker: dict[str, Any] = {"color": style.MODULE.get(module, style.SERIES[0])}
            place = {"x": some.index, "row": row, "col": 1}
            if column in log:
                marker |= {"symbol": style.MODULE_SHAPE.get(module, "circle"), "size": 7}
                figure.add_scatter(y=some[column], mode="markers", marker=marker, **look, **place)
            else:
                figure.add_bar(y=some[column] - start, base=start, marker=marker, width=0.86, **look, **place)
        if column in log:
            figure.update_yaxes(log_axis(frame[column]), row=row, col=1)
        if names:
            order = frame[column].nlargest(names).index
            places = pd.DataFrame({"x": frame.index, "y": scaled(frame[column], column in log)}).loc[order]
            name_marks(figure, frame, places, (len(frame), span(frame, column, column in log)), names, row, tall=0.13)
    figure.update_xaxes(row_axis(frame))
    return legend_above(figure, 190 * len(columns)).update_layout(barmode="overlay")


def marks(
    frame: pd.DataFrame,
    x: str,
    y: str,
    log: bool = False,
    diagonal: str = "",
    names: int = 6,
    most: int = 2000,
) -> go.Figure:
    """Draw a mark per row at two columns; the `names` rows farthest from the middle have names and intervals.

    `diagonal` is the name of the line y = x, if it is drawn. Without positive numbers alone, `log` has no effect.
    """
    frame, figure = largest(frame, y, most), panels([""])
    log = log and bool((frame[[x, y]].min() > 0).all())
    for module, some in by_module(frame):
        look = look_of(module, show=True) | {"hovertext": hover(some, [x, y]), "hoverinfo": "text"}
        marker = {"color": style.MODULE.get(module, style.SERIES[0]), "size": 8, "opacity": 0.75}
        marker["symbol"] = style.MODULE_SHAPE.get(module, "circle")
        figure.add_scatter(x=some[x], y=some[y], mode="markers", marker=marker, **look)
    places, spans = scaled(frame[[x, y]], log), [span(frame, name, log) for name in (x, y)]
    far = ((places - places.median()) / spans).abs().sum(axis=1).sort_values(ascending=False, kind="stable")
    first = frame.loc[name_marks(figure, frame, places.loc[far.index], spans, names)]
    whisker = {"mode": "markers", "marker": {"size": 0.1, "color": style.NEUTRAL}, "hoverinfo": "skip"}
    ends = {"error_x": whiskers(first, x), "error_y": whiskers(first, y), "showlegend": False}
    figure.add_scatter(x=first[x], y=first[y], **whisker, **ends)
    if diagonal:
        values = frame[[x, y]].to_numpy(dtype=float)
        sides = [float(np.nanmin(values)), float(np.nanmax(values))]
        line = {"color": style.NEUTRAL, "dash": "dash", "width": 1.5}
        figure.add_scatter(x=sides, y=sides, mode="lines", line=line, name=diagonal, hoverinfo="skip")
    for axis, column in ((figure.layout.xaxis, x), (figure.layout.yaxis, y)):
        axis.update(title_text=heading(frame, column))
        if log:
            axis.update(log_axis(frame[[x, y]]))
    return figure.update_layout(height=TOP + WORDS + 460, margin_t=TOP + WORDS, hovermode="closest")


def scaled(values: Any, log: bool) -> Any:
    """Return the places of values on a linear or logarithmic axis."""
    return np.log10(values) if log else values


def span(frame: pd.DataFrame, column: str, log: bool) -> float:
    """Measure the axis of a column and its intervals."""
    values = frame.filter(items=[column, f"{column}_low", f"{column}_high"]).to_numpy(dtype=float)
    known = values[np.isfinite(values) & ((values > 0) | (not log))]
    return float(np.ptp(scaled(known, log))) + 1e-30


def name_marks(
    figure: go.Figure,
    frame: pd.DataFrame,
    places: pd.DataFrame,
    spans: Sequence[float],
    most: int,
    row: int = 1,
    tall: float = 0.09,
) -> list[Any]:
    """Name the first of the places whose names, above their marks, cover no earlier one; return them.

    `places` are on the axes, one column each, whose lengths are `spans`; a name takes the share `tall` of the height.
    """
    kept: list[Any] = []
    shares = (places - places.min()) / list(spans)
    for number in places.index:
        away = [(shares.loc[number] - shares.loc[other]).abs().to_numpy() for other in kept]
        if len(kept) < most and all(x > 0.22 or y > tall for x, y in away):
            kept.append(number)
            x, y = map(float, places.loc[number])
            anchor = {"xanchor": "right" if shares.loc[number].iloc[0] > 0.9 else "center", "yanchor": "bottom"}
            text = f"<b>{label(frame['component'][number])}</b>"
            figure.add_annotation(text=text, x=x, y=y, yshift=5, **anchor, row=row, col=1)
    return kept


def heat(
    frame: pd.DataFrame,
    row: str,
    column: str,
    value: str,
    row_name: str = "",
    column_name: str = "",
    panel: str = "",
    most: int = 60,
    cell: int = 16,
) -> go.Figure:
    """Draw a map of `value` by two columns of a frame, one per value of `panel`; nothing is clipped.

    Args:
        row_name, column_name: Columns with the names of rows and columns, which need not differ; the same by default.
        most: So many rows are drawn, those with the largest mean size.
        cell: The height of a row in pixels.
    """
    sizes = frame[value].abs().groupby(frame[row], sort=False).mean()
    kept = frame[frame[row].isin(sizes.nlargest(most).index)]
    rows = kept.drop_duplicates(row).set_index(row, drop=False)[row_name or row].map(label)
    columns = kept.drop_duplicates(column).sort_index().set_index(column, drop=False)[column_name or column].map(label)
    groups = [("", kept)] if not panel else list(kept.groupby(panel, sort=False))
    to_color, scale = root_scale(kept[value].to_numpy(dtype=float), unit_of(frame, value), heading(frame, value))
    figure = panels([label(name) if panel else "" for name, _ in groups], shared=bool(panel))
    for number, (name, some) in enumerate(groups, start=1):
        names = some[row].map(rows) + " " + some[column].map(columns)
        texts = hover(some, [value], by=f"{label(name)} " + names if panel else names)
        cells = pd.DataFrame({"row": some[row], "column": some[column], "value": some[value], "text": texts})
        tables = [cells.pivot(index="row", columns="column", values=name) for name in ("value", "text")]
        found, said = (table.reindex(index=rows.index, columns=columns.index) for table in tables)
        z, drawn = found.to_numpy(dtype=float), {"hovertext": said.where(found.notna(), ""), "hoverinfo": "text"}
        drawn |= {"z": to_color(z), "customdata": z, "coloraxis": "coloraxis"}
        places = {"x": np.arange(len(columns)), "y": np.arange(len(rows)), "xgap": 1, "ygap": 1}
        figure.add_heatmap(**drawn, **places, row=number, col=1)
    step = -(-len(columns) // 40)
    ticks = {"tickvals": np.arange(len(columns))[::step], "ticktext": columns.to_list()[::step]}
    figure.update_xaxes(**ticks, title_text=words(column_name or column), showgrid=False, zeroline=False)
    step = -(-len(rows) // 60)
    ticks = {
        "tickvals": np.arange(len(rows))[::step],
        "ticktext": rows.to_list()[::step],
        "range": [len(rows) - 0.5, -0.5],
    }
    figure.update_yaxes(**ticks, showgrid=False, zeroline=False)
    tall = max(170, cell * len(rows)) * len(groups)
    return color_bar(figure, scale, tall)


def lines(
    frame: pd.DataFrame, columns: Sequence[str], x: str = "", by: str = "", colors: Sequence[str] = style.SERIES
) -> go.Figure:
    """Draw a panel per column with a line along `x` and its band of intervals, one line per value of `by`.

    Without `x`, rows stand in their order. A line of a single row is a mark with its interval.
    """
    columns = [name for name in columns if name in frame]
    figure = panels([heading(frame, name) for name in columns])
    groups = list(frame.groupby(by, sort=False)) if by else [("", frame)]
    for row, column in enumerate(columns, start=1):
        for number, (name, some) in enumerate(groups):
            color, at = colors[number % len(colors)], some[x] if x else some.index
            name = label(name) if by else words(column)
            look = {"name": name, "legendgroup": name, "showlegend": bool(by) and row == 1}
            if f"{column}_low" in some:
                ends = {"x": np.r_[at, at[::-1]], "y": np.r_[some[f"{column}_high"], some[f"{column}_low"][::-1]]}
                filled = {"fill": "toself", "fillcolor": style.faint(color), "line": {"width": 0}, "mode": "lines"}
                figure.add_scatter(**ends, **filled, hoverinfo="skip", showlegend=False, row=row, col=1)
            look |= {"line": {"color": color, "width": 2}, "mode": "lines+markers", "marker": {"size": 5}}
            if len(some) == 1:
                look["error_y"] = whiskers(some, column)
            texts = hover(some, [column], by=f"{words(x)} " + some[x].astype(str) if x else None)
            figure.add_scatter(x=at, y=some[column], hovertext=texts, hoverinfo="text", **look, row=row, col=1)
    figure.update_xaxes(title_text=words(x), row=len(columns), col=1)
    if not x:
        figure.update_xaxes(row_axis(frame))
    elif pd.api.types.is_integer_dtype(frame[x]) and np.ptp(frame[x]) < 12:  # else plotly adds halves
        figure.update_xaxes(dtick=1)
    return legend_above(figure, 200 * len(columns))


def panels(headings: Sequence[str], shared: bool = True) -> go.Figure:
    """Make panels below one another, each with its heading at its upper left."""
    gap = 0.0 if len(headings) == 1 else min(0.2, 0.26 / (len(headings) - 1))
    titles = [f"<b>{text}</b>" if text else "" for text in headings]
    figure = make_subplots(len(headings), 1, shared_xaxes=shared, subplot_titles=titles, vertical_spacing=gap)
    return figure.update_annotations(x=0, xanchor="left", font={"size": 12, "color": style.NEUTRAL})


def color_bar(figure: go.Figure, scale: dict[str, Any], tall: int) -> go.Figure:
    """Give a map of `tall` pixels its color scale."""
    size = {"thickness": 8, "outlinewidth": 0, "lenmode": "pixels", "len": min(tall + 10, 260)}
    bar = scale.pop("colorbar") | size | {"y": 1, "yanchor": "top"}
    figure.update_layout(coloraxis=scale | {"colorbar": bar})
    return figure.update_layout(height=TOP + tall + 72, margin={"t": TOP, "r": 12})


def legend_above(figure: go.Figure, tall: int) -> go.Figure:
    """Put the legend of panels of `tall` pixels above their first heading; none for a single name."""
    names = {trace.name for trace in figure.data if trace.name and trace.showlegend is not False}
    top = TOP + 16 + (WORDS if len(names) > 1 else 0)  # a narrow window has a second line
    figure.update_layout(showlegend=len(names) > 1, legend={"y": 1 + 22 / tall})
    return figure.update_layout(height=top + tall + 60, margin_t=top)


def root_scale(values: np.ndarray, unit: str, name: str) -> tuple[Any, dict[str, Any]]:
    """Return a function from values to places on a color scale, and the scale: a root, so that small values are seen.

    The ends are the largest value: no cell is clipped. Squared units have the fourth root.
    """
    most = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    power = 1.0 if unit in style.BARE else 0.25 if unit.endswith("²") else 0.5
    signed = bool((values < 0).any())

    def place(v: Any) -> Any:
        return np.sign(v) * (np.abs(v) / most) ** power

    steps = {1.0: (0.5,), 0.5: (0.1,), 0.25: (0.01,)}[power]
    ticks = np.array([*(float(f"{step * most:.1g}") for step in steps), most])
    ticks = np.concatenate([-ticks[::-1], [0.0], ticks]) if signed else np.concatenate([[0.0], ticks])
    texts = [style.number(tick) for tick in ticks]
    bar = {"tickvals": place(ticks), "ticktext": texts, "title": {"text": name.replace(" ", "<br>"), "side": "top"}}
    colors = style.SIGNS if signed else style.SIZES
    return place, {"colorscale": colors, "cmin": -1 if signed else 0, "cmax": 1, "colorbar": bar}


def log_axis(values: pd.Series | pd.DataFrame) -> dict[str, Any]:
    """A logarithmic axis, with ticks at powers of ten, or at 1, 2 and 5 where there are few of these."""
    known = np.log10(values.to_numpy(dtype=float)[values > 0])
    return {"type": "log", "tickformat": "~g", "dtick": 1 if len(known) and np.ptp(known) > 1.5 else "D2"}


def by_module(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each module; all rows where there are no modules."""
    if "module" not in frame:
        yield "", frame
        return
    for module, some in frame.groupby("module", sort=False):
        some.attrs = frame.attrs
        yield str(module), some


def look_of(module: str, show: bool = True) -> dict[str, Any]:
    """The name of a module in the legend."""
    named = style.MODULE_NAME.get(module, "")
    return {"name": named, "legendgroup": module, "showlegend": show and bool(named)}


def largest(frame: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    """Select the rows with the largest absolute values, in their order, numbered from 0."""
    kept = frame[column].abs().nlargest(most).index
    return frame.loc[frame.index.isin(kept)].reset_index(drop=True)


def whiskers(frame: pd.DataFrame, column: str) -> dict[str, Any] | None:
    """Make error bars from a column to its `_low` and `_high`, if it has them."""
    if f"{column}_low" not in frame:
        return None
    up, down = frame[f"{column}_high"] - frame[column], frame[column] - frame[f"{column}_low"]
    return {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 0, "color": style.NEUTRAL}


def hover(frame: pd.DataFrame, columns: Iterable[str], by: Iterable[str] | None = None) -> list[str]:
    """Make a text per row: its name, then every column with its interval and unit."""
    names = by if by is not None else frame.get("component", pd.Series(frame.index))
    texts = [f"<b>{escape(name)}</b>" for name in names]
    for column in columns:
        ends = [frame.get(column + end, pd.Series(np.nan, frame.index)) for end in ("", "_low", "_high")]
        rows = zip(texts, *ends, strict=True)
        unit = unit_of(frame, column)
        texts = [f"{text}<br>{words(column)} {style.estimate(*map(float, v), unit=unit)}" for text, *v in rows]
    return texts


def row_axis(frame: pd.DataFrame) -> dict[str, Any]:
    """Name every row of a frame below it where there is room, else the first of every layer."""
    if len(frame) <= MOST_NAMES or "layer" not in frame or frame["layer"].notna().sum() < 2:
        step = -(-len(frame) // (2 * MOST_NAMES))
        names = [label(name) for name in frame.get("component", frame.index)]
        return {"tickvals": frame.index[::step], "ticktext": names[::step], "range": [-0.6, len(frame) - 0.4]}
    first = frame.dropna(subset="layer").drop_duplicates(["layer", "repeat"] if "repeat" in frame else "layer")
    first = first.iloc[:: -(-len(first) // 10)]
    ticks = {"tickvals": first.index, "ticktext": [layer_name(row) for _, row in first.iterrows()]}
    return ticks | {"range": [-0.6, len(frame) - 0.4], "showgrid": False, "zeroline": False}


def layer_name(row: pd.Series) -> str:
    """Name a row's layer: L3, or L3@2 in its second repeat."""
    repeat = row.get("repeat")
    return f"L{row['layer']}" + ("" if repeat is None or pd.isna(repeat) else f"@{repeat}")


def heading(frame: pd.DataFrame, column: str) -> str:
    """Name a column with its unit."""
    unit = unit_of(frame, column)
    return words(column) if unit in ("", column, *style.BARE) else f"{words(column)}, {unit}"


def unit_of(frame: pd.DataFrame, column: str) -> str:
    """Return the unit of a column."""
    return str(frame.attrs.get("units", {}).get(column, ""))


def words(column: str) -> str:
    """Write a column's name in words, escaped."""
    return escape(str(column).replace("_", " "))


def label(text: Any, most: int = 24) -> str:
    """Write a name in one line, cut to a length and escaped."""
    return escape(style.visible(text, most))


def escape(text: Any) -> str:
    """Write a text in plotly's HTML."""
    return html.escape(str(text), quote=False).replace("\n", "<br>")
