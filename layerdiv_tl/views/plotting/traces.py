"""Traces: bars, dots, lines, bands and heat maps, with error bars, hovers, and in the colors of modules.

Whatever a model, a task or a text is called is escaped in a hover.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...components import Component
from .. import style

# A line that is a reference, not data.
DOTTED = {"dash": "dot", "width": 1.5}


def bar(x: Any, y: Any, color: Any, *, across: bool = False, width: float | None = 0.8, **options: Any) -> go.Bar:
    """Bars, upright or `across`; options as in `_shared`."""
    bars = {"width": width, "marker": {"color": color, "line": {"width": 0}}, "orientation": "h" if across else None}
    return go.Bar(x=x, y=y, **(bars | _shared(options, across)))


def dots(
    x: Any,
    y: Any,
    color: Any,
    *,
    size: float = 8,
    symbol: Any = "circle",
    edge: float | None = None,
    across: bool = False,
    webgl: bool = False,
    **options: Any,
) -> go.Scatter:
    """Marks with an edge of a width, and error bars upright or `across`; options as in `_shared`."""
    draw = go.Scattergl if webgl else go.Scatter
    marker = {"color": color, "size": size, "symbol": symbol, "line": {"width": edge}} | options.pop("marker", {})
    return draw(x=x, y=y, mode="markers", marker=marker, **_shared(options, across))


def line(
    x: Any, y: Any, color: str, *, width: float = 1.8, marks: float = 5, dash: str = "solid", **options: Any
) -> go.Scatter:
    """A line with marks of a size, or none for 0; options as in `_shared`."""
    mode, marker = ("lines+markers", {"size": marks}) if marks else ("lines", None)
    drawn = {"line": {"color": color, "width": width, "dash": dash}, "mode": mode, "marker": marker}
    return go.Scatter(x=x, y=y, **(drawn | _shared(options)))


def band(x: Any, low: Any, high: Any, color: str = style.NEUTRAL, share: float = 0.22, **options: Any) -> go.Scatter:
    """The ground between two lines, there and back."""
    x, low, high = (np.asarray(values, dtype=float) for values in (x, low, high))
    look = {"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": style.faint(color, share)}
    return go.Scatter(x=np.r_[x, x[::-1]], y=np.r_[high, low[::-1]], hoverinfo="skip", **look, **_shared(options))


def heat_map(
    z: Any,
    hover: Any,
    unit: str,
    limit: float | None = None,
    *,
    signed: bool = False,
    side: str = "top",
    **options: Any,
) -> go.Heatmap:
    """A heat map on whole numbers, colored to ±limit if `signed`, otherwise from 0; None is `robust_limit`.

    Its color scale is the template's, so that a page can exchange light and dark.
    """
    limit = robust_limit(z) if limit is None else limit
    drawn = {"x": np.arange(np.shape(z)[1]), "y": np.arange(np.shape(z)[0]), "hoverongaps": False}
    drawn |= {"zmin": -limit if signed else 0.0, "zmax": limit, "autocolorscale": True}
    if hover is not None:
        drawn |= {"hovertext": hover, "hoverinfo": "text"}
    scale = {"title": {"text": unit, "side": side}, "thickness": 12, "outlinewidth": 0}
    return go.Heatmap(z=z, colorbar=scale | options.pop("colorbar", {}), **(drawn | options))


def robust_limit(z: Any, quantile: float = 0.99) -> float:
    """A quantile of the absolute finite values, so that one cell does not hide the others; 1 where all are 0."""
    sizes = np.abs(np.asarray(z, dtype=float))
    finite = sizes[np.isfinite(sizes)]
    return (float(np.quantile(finite, quantile)) if finite.size else 0.0) or 1.0


def error_bars(value: Any, low: Any, high: Any, **options: Any) -> dict[str, Any]:
    """Error bars from the ends of intervals, in plotly's asymmetric form; none reaches past its value."""
    value, low, high = (np.asarray(numbers, dtype=float) for numbers in (value, low, high))
    spread = {"type": "data", "array": np.maximum(high - value, 0), "arrayminus": np.maximum(value - low, 0)}
    return spread | {"thickness": 1, "width": 0, "color": style.NEUTRAL} | options


def whiskers(frame: pd.DataFrame, column: str, low: str = "", high: str = "", **options: Any) -> dict[str, Any]:
    """Error bars of a column with `_low` and `_high`, or other columns for the ends."""
    return error_bars(frame[column], frame[low or f"{column}_low"], frame[high or f"{column}_high"], **options)


def by_module(components: Sequence[Component]) -> Iterator[tuple[str, np.ndarray]]:
    """Each module, in order of appearance, and the positions of its components."""
    modules = np.array([component.module for component in components], dtype=object)
    for module in dict.fromkeys(modules):
        yield module, np.flatnonzero(modules == module)


def module_traces(
    components: Sequence[Component],
    y: Any,
    hover: Sequence[str] | np.ndarray,
    *,
    x: Any = None,
    draw: Callable[..., Any] = bar,
    error: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Bars (or what `draw` makes), a trace for each module in its color, one bar for each component.

    `x` are the places, in stream order if none are given; `error` are the whiskers, and other arrays have a value for
    each component too.
    """
    y, x = np.asarray(y), np.arange(len(components)) if x is None else np.asarray(x)
    traces = []
    for module, at in by_module(components):
        own = {name: value[at] if isinstance(value, np.ndarray) else value for name, value in options.items()}
        if error is not None:
            own["error"] = {k: v[at] if isinstance(v, np.ndarray) else v for k, v in error.items()}
        own = {"name": style.MODULE_NAME[module], "legendgroup": module, "hover": [hover[i] for i in at]} | own
        traces.append(draw(x[at], y[at], **({"color": style.MODULE[module]} | own)))
    return traces


def module_strip(components: Sequence[Component], height: float, base: float = 0.0, **options: Any) -> Iterator[go.Bar]:
    """A strip of the modules' colors along components."""
    for module, positions in by_module(components):
        labels = [html.escape(components[i].label) for i in positions]
        named: dict[str, Any] = {"name": style.MODULE_NAME[module], "hover": labels, "base": base, "width": 1.0}
        yield bar(positions, [height] * len(positions), style.MODULE[module], **(named | options))


def extreme_names(
    names: Sequence[str],
    x: np.ndarray,
    y: np.ndarray,
    shares: np.ndarray,
    orders: np.ndarray,
    left: np.ndarray,
    *,
    most: int,
    apart: tuple[float, float],
    size: int,
) -> go.Scatter:
    """Names of the marks that come first in some orders, at most so many, none on another's name.

    `shares` are the marks' places across and up, as shares of the panel, `orders` their numbers in each order: both
    `[mark, 2 or more]`. Two names are `apart` across or up; some stand on the `left` of their marks.
    """
    named: list[int] = []
    for i in orders.ravel().tolist():
        far = np.abs(shares[named] - shares[i])
        if len(named) < most and np.isfinite(shares[i]).all() and (far > apart).any(1).all():
            named.append(i)
    places = [f"middle {'left' if left[i] else 'right'}" for i in named]
    look = {"mode": "text", "textfont": {"size": size}, "textposition": places, "hoverinfo": "skip"}
    texts = [f"\u2002{html.escape(names[i])}\u2002" for i in named]
    return go.Scatter(x=x[named], y=y[named], text=texts, showlegend=False, **look)


def hover_lines(frame: pd.DataFrame, columns: Mapping[str, str]) -> np.ndarray:
    """One text for each row: its component, then name, value, unit and 95 % interval of every column {name: column}."""
    texts = [f"<b>{html.escape(label)}</b>" for label in frame["component"]]
    for name, column in columns.items():
        unit = frame.attrs.get("units", {}).get(column, "")
        numbers = (frame[column + end].to_numpy(dtype=float) for end in ("", "_low", "_high"))
        texts = [
            f"{text}<br>{name} {style.measured(value, low, high, unit=unit)}"
            for text, value, low, high in zip(texts, *numbers, strict=True)
        ]
    return np.array(texts, dtype=object)


def estimated(value: float, low: float, high: float) -> str:
    """A number and its interval in brackets, where there is one."""
    return f"{style.number(value)} {style.interval(low, high)}"


def whiskered(frame: pd.DataFrame, what: str = "Whiskers") -> str:
    """What the whiskers of a figure are, or why it has none, from `attrs["intervals"]` of its frame."""
    note = str(frame.attrs["intervals"])
    return f"{what}: {note}." if note[0].isdigit() else f"{note[0].upper()}{note[1:]}."


def _shared(options: dict[str, Any], across: bool = False) -> dict[str, Any]:
    """What all traces take: `hover`, a text for each point; `error`, their error bars; `name`, in the legend.

    A name is a legend group of its own if no other is given; a trace without one is left out of the legend.
    """
    hover, error, name = options.pop("hover", None), options.pop("error", None), options.get("name")
    shared: dict[str, Any] = {"legendgroup": name} if name else {"showlegend": False}
    if hover is not None:
        shared |= {"hovertext": list(hover), "hoverinfo": "text"}
    if error is not None:
        shared["error_x" if across else "error_y"] = error
    return shared | options
