"""Bias against diversity, one mark per component."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from ...ensemble.decomposition import TERMS, Part
from .. import plotting as kit
from .. import style

# From here on marks are drawn by WebGL: SVG is slow to pan and zoom.
_WEBGL = 1000
_MAX_NAMES = 8


@figure_of("scatter", "Decomposition", "CorpusProfile", "Profile")
def bias_diversity_scatter(
    measured: kit.Measured, part: Part = "centered", log: bool | None = None, max_components: int = 5000
) -> go.Figure:
    """Bias (x) against diversity (y), one mark per component, colored by module; `part` as in `component_bars`.

    Args:
        log: Logarithmic axes; None takes them where every number is above 0.

    On the dashed diagonal net = bias − diversity is 0 (there is none where the two have two units); on the dotted line
    a component's bias is that of a zero contribution. The most extreme marks are named.
    """
    frame, components, remark = kit.most_diverse(measured, part, max_components)
    parts, part = kit.parts_in(frame, part)
    axes = ("bias", "diversity")
    if log is None:
        log = bool((frame[[kit.column(frame, term, p) for term in axes for p in parts]].to_numpy() > 0).all())
    scaled = np.log10 if log else np.asarray

    def axis_of(part: Part) -> dict[str, Any]:
        """Both axes: the marks decide, and the guide of a zero contribution, however far the diagonal goes."""
        ranges: dict[str, Any] = {}
        for axis, term in zip("xy", axes, strict=True):
            values = frame[kit.column(frame, term, part)].to_numpy()
            zero = getattr(kit.half_of(measured, part), "zero_bias", None) if axis == "x" else None
            values = values if zero is None else np.append(values, zero)
            values = values[np.isfinite(values)]
            if log:
                drawn = kit.log_axis(values)
            else:
                low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
                room = 0.06 * (high - low) or 0.5
                drawn = {"type": "linear", "range": [low - room, high + room]}
            ranges |= {f"{axis}axis.{key}": value for key, value in drawn.items()}
        return ranges

    def ends(part: Part) -> list[list[float]]:
        axes = axis_of(part)
        return [axes["xaxis.range"], axes["yaxis.range"]]

    def draw(part: Part) -> list[list[go.Scatter]]:
        """The marks of every module, the guides and the names."""
        columns = {term: kit.column(frame, term, part) for term in TERMS if term in frame}
        zero, (across, up) = getattr(kit.half_of(measured, part), "zero_bias", None), ends(part)
        marks, x, y = _marks(frame, components, columns), *(frame[columns[term]].to_numpy() for term in axes)
        with np.errstate(divide="ignore"):  # a zero is left of any axis of logarithms
            scaled_to = [(scaled(v) - low) / (high - low) for v, (low, high) in ((x, across), (y, up))]
        shares = np.nan_to_num(np.stack(scaled_to, 1), nan=-1.0, neginf=-1.0)
        orders = [np.argsort(order, kind="stable") for order in (-shares[:, 1], -shares[:, 0], shares[:, 0])]
        left, named = shares[:, 0] > 0.8, shares
        if zero is not None:  # names stand away from its guide
            before = float((scaled(zero) - across[0]) / (across[1] - across[0])) - shares[:, 0]
            left = np.where(np.abs(before) < 0.25, (before >= 0) & (shares[:, 0] > 0.1) | (shares[:, 0] > 0.9), left)
            ahead = np.where(left, -before, before)  # how far the guide is in the direction of the name
            named = shares.copy()
            named[(ahead > 0) & (ahead < 0.03 + 0.012 * frame["component"].str.len().to_numpy())] = np.nan
        room: dict[str, Any] = {"most": _MAX_NAMES, "apart": (0.2, 0.04), "size": 11, "left": left}
        labels, first = frame["component"].tolist(), np.stack(orders, 1)[: 2 * _MAX_NAMES]
        names = kit.extreme_names(labels, x, y, named, first, **room)
        return [[*marks, *_guides(across, up, zero, "net" in columns, log), names]]

    attributes = ("x", "y", "customdata", "text", "textposition", "hovertemplate")
    units = frame.attrs["units"]
    x, y = ({"title_text": f"{term}, {units[term]}"} for term in axes)
    figure = kit.arrange(
        go.Figure(draw(part)[0]),
        kit.suffixed("Bias and diversity of every component", measured),
        remark,
        x=x,
        y=y,
        height=640,
        menus=kit.part_buttons(parts, part, draw, *attributes, layout=axis_of),
        hovermode="closest",
    )
    return figure.update_layout({name.replace(".", "_"): value for name, value in axis_of(part).items()})


def _marks(frame: pd.DataFrame, components: Sequence[Component], columns: dict[str, str]) -> list[go.Scatter]:
    # Numbers and a template instead of texts: a tenth of the page's size for thousands of marks.
    numbers = [frame[columns["net"]]] if "net" in columns else []
    numbers += [frame[name + end] for name in columns.values() for end in ("_low", "_high")]
    data = np.stack([n.to_numpy(dtype=np.float32) for n in numbers], 1)
    values = {"bias": "%{x:.3g}", "diversity": "%{y:.3g}", "net": "%{customdata[0]:.3g}"}
    hover = "<b>%{hovertext}</b>"
    for i, (term, name) in enumerate(columns.items()):
        low = len(numbers) - 2 * len(columns) + 2 * i
        hover += f"<br>{name.replace('_', ', ')} {values[term]} {frame.attrs['units'][name]}"
        if np.isfinite(data[:, low]).any():
            hover += f"<br>95 % [%{{customdata[{low}]:.3g}}, %{{customdata[{low + 1}]:.3g}}]"
    many = len(frame) > _WEBGL
    look: dict[str, Any] = {"size": 5 if many else 8, "marker": {"opacity": 0.75}, "webgl": many, "draw": kit.dots}
    look |= {"customdata": data, "hovertemplate": hover + "<extra></extra>"}
    names = frame["component"].map(html.escape).to_numpy()
    return kit.module_traces(components, frame[columns["diversity"]], names, x=frame[columns["bias"]], **look)


def _guides(across: list[float], up: list[float], zero: float | None, diagonal: bool, log: bool) -> list[go.Scatter]:
    """The diagonal on which net is 0, and the bias of a zero contribution."""
    (left, right), (bottom, top) = (10.0 ** np.array(axis) if log else np.array(axis) for axis in (across, up))
    guides = []
    if diagonal:
        corners = [min(left, bottom), max(right, top)]
        guides.append(("net = 0", corners, corners, "dash"))
    if zero is not None:
        guides.append(("a component that writes nothing", [zero, zero], [bottom, top], "dot"))
    look: dict[str, Any] = {"width": 1.5, "marks": 0, "hoverinfo": "skip"}
    return [kit.line(x, y, style.NEUTRAL, dash=dash, name=name, **look) for name, x, y, dash in guides]
