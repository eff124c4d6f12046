"""Bias against diversity, one mark per component."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ...ensemble.decomposition import TERMS, Decomposition, Part
from .. import style
from .gauge_controls import MEANING, Measured, buttons, checked, column, most_diverse, parts_in, suffixed

if TYPE_CHECKING:
    import pandas as pd

# From here on marks are drawn by WebGL: SVG is slow to pan and zoom.
_WEBGL = 1000
_NAMED = 8


def bias_diversity_scatter(
    measured: Measured,
    part: Part = "centered",
    log: bool | None = None,
    most: int = 5000,
    title: str | None = None,
    height: int = 640,
) -> go.Figure:
    """Bias (x) against diversity (y), one mark per component, colored by module.

    measured
        A decomposition, a corpus or a profile (means over its tokens).
    part
        What is shown first; for the squared error buttons switch between raw, centered and shift.
    log
        Logarithmic axes; None takes them where every number is above 0.
    most
        Of more components those with the largest diversity in `part` are shown, and the title says so.

    On the dashed diagonal net = bias − diversity is 0 (there is none where the two have two units); on the
    dotted line a component's bias is that of one that writes nothing. The most extreme marks are named.
    Raises InputError for an unknown part.
    """
    checked(part)
    frame, components, of = most_diverse(measured, part, most)
    parts = parts_in(frame)
    part = checked(part, parts)
    if log is None:
        shown = [frame[column(frame, term, p)].to_numpy() for term in ("bias", "diversity") for p in parts]
        log = bool((np.array(shown) > 0).all())
    modules = np.array([c.module for c in components], dtype=object)
    traces = {p: _traces(measured, frame, modules, p, log) for p in parts}
    ranges = {p: _ranges(measured, frame, p, log) for p in parts}
    choices: dict[str, list[dict[str, Any]]] = {}
    for p in parts:
        keys = ("x", "y", "customdata", "text", "textposition", "hovertemplate")
        update = {key: [getattr(trace, key) for trace in traces[p]] for key in keys}
        choices[MEANING[p]] = [update, {f"{axis}axis.range": list(r) for axis, r in zip("xy", ranges[p], strict=True)}]
    units = frame.attrs["units"]
    figure = go.Figure(traces[part])
    figure.update_layout(
        template=style.template(),
        title={
            "text": title or suffixed("Bias and diversity of every component", measured),
            "subtitle": {"text": of},
        },
        height=height,
        margin={"t": (96 if len(parts) > 1 else 64) + 20 * bool(of), "b": 96},
        legend=style.LEGEND_BELOW,
        hovermode="closest",
        updatemenus=buttons(choices, parts.index(part), above=8),
    )
    kind = "log" if log else "linear"
    figure.update_xaxes(title_text=f"bias, {units['bias']}", range=ranges[part][0], type=kind)
    figure.update_yaxes(title_text=f"diversity, {units['diversity']}", range=ranges[part][1], type=kind)
    return figure


def _traces(measured: Measured, frame: pd.DataFrame, modules: np.ndarray, part: Part, log: bool) -> list[go.Scatter]:
    """The marks of every module, the guides, the names of the extremes."""
    draw = go.Scattergl if len(frame) > _WEBGL else go.Scatter
    at = {term: column(frame, term, part) for term in TERMS if term in frame}
    x, y = frame[at["bias"]].to_numpy(), frame[at["diversity"]].to_numpy()
    # Numbers and a template instead of texts: a tenth of the page's size for thousands of marks.
    numbers = [frame[at["net"]]] if "net" in at else []
    numbers += [frame[name + end] for name in at.values() for end in ("_low", "_high")]
    data = np.stack([n.to_numpy(dtype=np.float32) for n in numbers], 1)
    names = np.array([html.escape(label) for label in frame["component"]], dtype=object)
    values = {"bias": "%{x:.3g}", "diversity": "%{y:.3g}", "net": "%{customdata[0]:.3g}"}
    hover = "<b>%{hovertext}</b>"
    for i, (term, name) in enumerate(at.items()):
        low = len(numbers) - 2 * len(at) + 2 * i
        hover += f"<br>{name.replace('_', ', ')} {values[term]} {frame.attrs['units'][name]}"
        if np.isfinite(data[:, low]).any():
            hover += f"<br>95 % [%{{customdata[{low}]:.3g}}, %{{customdata[{low + 1}]:.3g}}]"
    made = [
        draw(
            x=x[modules == module],
            y=y[modules == module],
            mode="markers",
            name=style.MODULE_NAME[module],
            marker={"color": style.MODULE[module], "size": 8 if len(frame) <= _WEBGL else 5, "opacity": 0.75},
            hovertext=names[modules == module],
            customdata=data[modules == module],
            hovertemplate=hover + "<extra></extra>",
        )
        for module in dict.fromkeys(modules)
    ]
    (left, right), (bottom, top) = (
        10.0 ** np.array(r) if log else np.array(r) for r in _ranges(measured, frame, part, log)
    )
    guides = []
    if "net" in at:
        ends = [min(left, bottom), max(right, top)]
        guides.append(("net = 0", ends, ends, "dash"))
    silent = _silent_bias(measured, part)
    if silent is not None:
        guides.append(("a component that writes nothing", [silent, silent], [bottom, top], "dot"))
    line = {"color": style.NEUTRAL, "width": 1.5}
    made += [
        go.Scatter(x=a, y=b, mode="lines", name=name, line=line | {"dash": dash}, hoverinfo="skip")
        for name, a, b, dash in guides
    ]
    named, places = _extremes(measured, frame, at, part, log)
    made.append(
        go.Scatter(
            x=x[named],
            y=y[named],
            mode="text",
            text=[f"\u2002{name}\u2002" for name in names[named]],
            textposition=places,
            textfont={"size": 11},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    return made


def _ranges(
    measured: Measured, frame: pd.DataFrame, part: Part, log: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both axes' ends: the marks decide, however far the diagonal goes."""
    ends = []
    for term in ("bias", "diversity"):
        values = frame[column(frame, term, part)].to_numpy()
        silent = _silent_bias(measured, part)
        if term == "bias" and silent is not None:
            values = np.append(values, silent)
        values = np.log10(values) if log else values
        values = values[np.isfinite(values)]
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        room = 0.06 * (high - low) or 0.5
        ends.append((low - room, high + room))
    return ends[0], ends[1]


def _silent_bias(measured: Measured, part: Part) -> float | None:
    """The bias of a component that writes nothing; None where the result does not tell."""
    if not isinstance(measured, Decomposition):
        return None
    return (measured if part == "raw" else getattr(measured, part)).zero_bias


def _extremes(
    measured: Measured, frame: pd.DataFrame, at: dict[str, str], part: Part, log: bool
) -> tuple[list[int], list[str]]:
    """The marks to name, farthest out first, none on another's name; and on which side the name stands."""
    seen = []
    for term, (low, high) in zip(("bias", "diversity"), _ranges(measured, frame, part, log), strict=True):
        values = frame[at[term]].to_numpy()
        seen.append(((np.log10(values) if log else values) - low) / (high - low))
    across, up = (np.nan_to_num(values, nan=-1.0, neginf=-1.0) for values in seen)
    orders = [np.argsort(-up, kind="stable"), np.argsort(-across, kind="stable"), np.argsort(across, kind="stable")]
    named: list[int] = []
    for i in np.stack(orders, 1)[: 2 * _NAMED].ravel().tolist():
        free = all(abs(up[i] - up[j]) > 0.04 or abs(across[i] - across[j]) > 0.2 for j in named)
        if free and len(named) < _NAMED:
            named.append(i)
    return named, ["middle left" if across[i] > 0.8 else "middle right" for i in named]
