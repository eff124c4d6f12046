"""Traces: bars, dots, lines, bands and heat maps, with error bars and in the colors of modules."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ...components import Component
from .. import style

if TYPE_CHECKING:
    import pandas as pd

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
    **options: Any,
) -> go.Scatter:
    """Marks with an edge of a width, and error bars upright or `across`; options as in `_shared`."""
    marker = {"color": color, "size": size, "symbol": symbol, "line": {"width": edge}} | options.pop("marker", {})
    return go.Scatter(x=x, y=y, mode="markers", marker=marker, **_shared(options, across))


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
    return go.Scatter(
        x=np.r_[x, x[::-1]],
        y=np.r_[high, low[::-1]],
        mode="lines",
        fill="toself",
        fillcolor=style.faint(color, share),
        line={"width": 0},
        hoverinfo="skip",
        **_shared(options),
    )


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
    bar_of_colors = {"title": {"text": unit, "side": side}, "thickness": 12, "outlinewidth": 0} | options.pop(
        "colorbar", {}
    )
    if hover is not None:
        drawn |= {"hovertext": hover, "hoverinfo": "text"}
    return go.Heatmap(z=z, colorbar=bar_of_colors, **(drawn | options))


def robust_limit(z: Any, quantile: float = 0.99) -> float:
    """A quantile of the absolute finite values, so that one cell does not hide the others; 1 where all are 0."""
    finite = np.abs(np.asarray(z, dtype=float)[np.isfinite(np.asarray(z, dtype=float))])
    return (float(np.quantile(finite, quantile)) if finite.size else 0.0) or 1.0


def error_bars(value: Any, low: Any, high: Any, **options: Any) -> dict[str, Any]:
    """Error bars from the ends of intervals, in the asymmetric form that plotly takes."""
    value, low, high = (np.asarray(numbers, dtype=float) for numbers in (value, low, high))
    spread = {"type": "data", "array": high - value, "arrayminus": value - low}
    return spread | {"thickness": 1, "width": 0, "color": style.NEUTRAL} | options


def whiskers(frame: pd.DataFrame, column: str) -> dict[str, Any]:
    """Error bars of a column with `_low` and `_high`."""
    return error_bars(*(frame[column + end] for end in ("", "_low", "_high")))


def by_module(components: Sequence[Component]) -> Iterator[tuple[str, np.ndarray]]:
    """Each module, in order of appearance, and the positions of its components."""
    modules = np.array([component.module for component in components], dtype=object)
    for module in dict.fromkeys(modules):
        yield module, np.flatnonzero(modules == module)


def module_bars(
    components: Sequence[Component],
    frame: pd.DataFrame,
    column: str,
    hover: np.ndarray,
    draw: Callable[..., Any] = bar,
    whisker: bool = True,
    **options: Any,
) -> list[Any]:
    """A column of a frame as one bar (or what `draw` makes) for each component, in the color of its module.

    Without `whisker` the intervals are in the hover only.
    """
    traces = []
    for module, positions in by_module(components):
        rows = frame.iloc[positions]
        error = whiskers(rows, column) | {"visible": True} if whisker else {"visible": False}
        named = {"name": style.MODULE_NAME[module], "legendgroup": module, "hover": hover[positions]}
        heights = rows[column].to_numpy()
        traces.append(draw(positions, heights, style.MODULE[module], error=error, **(named | options)))
    return traces


def module_strip(components: Sequence[Component], height: float, base: float = 0.0, **options: Any) -> Iterator[go.Bar]:
    """A strip of the modules' colors along components."""
    for module, positions in by_module(components):
        labels = [html.escape(components[i].label) for i in positions]
        named: dict[str, Any] = {"name": style.MODULE_NAME[module], "hover": labels, "base": base, "width": 1.0}
        yield bar(positions, [height] * len(positions), style.MODULE[module], **(named | options))


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
