"""Bias against diversity, one mark per component."""

from __future__ import annotations

import html

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.decomposition import TERMS, Part
from .. import style
from ..plotting import arrange, buttons, by_module, changes
from .gauge import MEANING, Measured, column, half_of, most_diverse, part_shown, parts_in, suffixed

# From here on marks are drawn by WebGL: SVG is slow to pan and zoom.
_WEBGL = 1000
_MAX_NAMES = 8


@figure_of("scatter", "Decomposition", "CorpusProfile", "Profile")
def bias_diversity_scatter(
    measured: Measured,
    part: Part = "centered",
    log: bool | None = None,
    max_components: int = 5000,
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
    max_components
        Of more components those with the largest diversity in `part` are shown, and the title says so.

    On the dashed diagonal net = bias − diversity is 0 (there is none where the two have two units); on the dotted line
    a component's bias is that of a zero contribution. The most extreme marks are named. Raises InputError for an
    unknown part.
    """
    frame, components, remark = most_diverse(measured, part_shown(part), max_components)
    parts = parts_in(frame)
    part = part_shown(part, parts)
    if log is None:
        values = [frame[column(frame, term, p)].to_numpy() for term in ("bias", "diversity") for p in parts]
        log = bool((np.array(values) > 0).all())
    modules = dict(by_module(components))

    def draw(part: Part) -> tuple[list[go.Scatter], list[tuple[float, float]]]:
        """The marks of every module, the guides and the names; the ends of both axes."""
        columns = {term: column(frame, term, part) for term in TERMS if term in frame}
        zero = getattr(half_of(measured, part), "zero_bias", None)
        ends = [_ends(frame[columns["bias"]].to_numpy(), zero, log)]
        ends.append(_ends(frame[columns["diversity"]].to_numpy(), None, log))
        traces = [*_marks(frame, modules, columns), *_guides(ends, zero, "net" in columns, log)]
        return [*traces, _names(frame, columns, ends, log)], ends

    views = {}
    for p in parts:
        traces, ends = draw(p)
        update = changes(traces, "x", "y", "customdata", "text", "textposition", "hovertemplate")
        views[MEANING[p]] = (update, {"xaxis.range": list(ends[0]), "yaxis.range": list(ends[1])})
    traces, ends = draw(part)
    figure = go.Figure(traces)
    arrange(
        figure,
        title or suffixed("Bias and diversity of every component", measured),
        remark,
        height=height,
        below=96,
        menus=buttons(views, parts.index(part)),
    )
    figure.update_layout(hovermode="closest")
    units, scale = frame.attrs["units"], "log" if log else "linear"
    figure.update_xaxes(title_text=f"bias, {units['bias']}", range=ends[0], type=scale)
    return figure.update_yaxes(title_text=f"diversity, {units['diversity']}", range=ends[1], type=scale)


def _marks(frame: pd.DataFrame, modules: dict[str, np.ndarray], columns: dict[str, str]) -> list[go.Scatter]:
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
    draw = go.Scattergl if many else go.Scatter
    x, y = frame[columns["bias"]].to_numpy(), frame[columns["diversity"]].to_numpy()
    names = frame["component"].map(html.escape).to_numpy()
    return [
        draw(
            x=x[positions],
            y=y[positions],
            mode="markers",
            name=style.MODULE_NAME[module],
            marker={"color": style.MODULE[module], "size": 5 if many else 8, "opacity": 0.75},
            hovertext=names[positions],
            customdata=data[positions],
            hovertemplate=hover + "<extra></extra>",
        )
        for module, positions in modules.items()
    ]


def _guides(ends: list[tuple[float, float]], zero: float | None, diagonal: bool, log: bool) -> list[go.Scatter]:
    """The diagonal on which net is 0, and the bias of a zero contribution."""
    (left, right), (bottom, top) = (10.0 ** np.array(axis) if log else np.array(axis) for axis in ends)
    guides = []
    if diagonal:
        corners = [min(left, bottom), max(right, top)]
        guides.append(("net = 0", corners, corners, "dash"))
    if zero is not None:
        guides.append(("a component that writes nothing", [zero, zero], [bottom, top], "dot"))
    look = {"color": style.NEUTRAL, "width": 1.5}
    return [
        go.Scatter(x=x, y=y, mode="lines", name=name, line=look | {"dash": dash}, hoverinfo="skip")
        for name, x, y, dash in guides
    ]


def _ends(values: np.ndarray, zero: float | None, log: bool) -> tuple[float, float]:
    """An axis's ends: the marks decide, and the guide of a zero contribution, however far the diagonal goes."""
    values = values if zero is None else np.append(values, zero)
    values = np.log10(values) if log else values
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def _names(frame: pd.DataFrame, columns: dict[str, str], ends: list[tuple[float, float]], log: bool) -> go.Scatter:
    """The names of the marks farthest out, none on another's name."""
    shares = []
    for term, (low, high) in zip(("bias", "diversity"), ends, strict=True):
        values = frame[columns[term]].to_numpy()
        share = ((np.log10(values) if log else values) - low) / (high - low)
        shares.append(np.nan_to_num(share, nan=-1.0, neginf=-1.0))
    across, up = shares
    orders = [np.argsort(-up, kind="stable"), np.argsort(-across, kind="stable"), np.argsort(across, kind="stable")]
    named: list[int] = []
    for i in np.stack(orders, 1)[: 2 * _MAX_NAMES].ravel().tolist():
        free = all(abs(up[i] - up[j]) > 0.04 or abs(across[i] - across[j]) > 0.2 for j in named)
        if free and len(named) < _MAX_NAMES:
            named.append(i)
    return go.Scatter(
        x=frame[columns["bias"]].to_numpy()[named],
        y=frame[columns["diversity"]].to_numpy()[named],
        mode="text",
        text=[f"\u2002{html.escape(frame['component'].iloc[i])}\u2002" for i in named],
        textposition=["middle left" if across[i] > 0.8 else "middle right" for i in named],
        textfont={"size": 11},
        hoverinfo="skip",
        showlegend=False,
    )
