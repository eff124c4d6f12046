"""Bias, diversity and net of every component, along depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...ensemble.decomposition import TERMS, Decomposition, Part
from ...ensemble.profile import CorpusProfile
from ...errors import InputError
from .. import style
from .axes import component_axis

if TYPE_CHECKING:
    import pandas as pd

PARTS: tuple[Part, ...] = ("raw", "centred", "shift")
_MEANING = {
    "raw": "raw: as in the paper",
    "centred": "centred: what softmax sees",
    "shift": "shift: what softmax cannot see",
}
_SUFFIX = {"raw": "", "centred": "_centred", "shift": "_shift"}
_IN = {"raw": "", "centred": " (centred)", "shift": " (shift)"}
_TITLE = {"bias": "Bias", "diversity": "Diversity", "net": "Net = bias − diversity"}
# Above this many bars the whiskers are a grey smear; the interval stays in the hover.
_WHISKERS = 150


def component_bars(
    decomposition: Decomposition | CorpusProfile,
    part: Part = "centred",
    title: str | None = None,
    height: int = 720,
) -> go.Figure:
    """Three rows of bars (bias, diversity, net), one bar per component, coloured by module.

    For the squared error buttons switch between raw, centred and shift; `part` is shown first. Whiskers
    are 95 % intervals over examples (texts, for a corpus). Values are a component's own, undivided by |L|, in the
    loss's unit. The dotted line is the bias of a component that writes nothing.
    """
    if part not in PARTS:
        raise InputError(f"part={part!r} is unknown: use 'raw', 'centred' or 'shift'.")
    frame = decomposition.by_component()
    parts = tuple(p for p in PARTS if f"bias{_SUFFIX[p]}" in frame)
    part = part if part in parts else "raw"
    terms = [term for term in TERMS if term in frame]
    modules = [c.module for c in decomposition.components]
    whiskers = len(modules) <= _WHISKERS
    figure = make_subplots(
        rows=len(terms), cols=1, shared_xaxes=True, vertical_spacing=0.07, subplot_titles=[_TITLE[t] for t in terms]
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    for row, term in enumerate(terms, start=1):
        for module in dict.fromkeys(modules):
            here = np.array([m == module for m in modules])
            figure.add_bar(
                x=np.flatnonzero(here),
                name=style.MODULE_NAME[module],
                legendgroup=module,
                showlegend=row == 1,
                width=0.8,
                marker={"color": style.MODULE[module], "line": {"width": 0}},
                row=row,
                col=1,
                **_bars(frame[here], term, part, whiskers),
            )
    figure.update_layout(
        template=style.template(),
        title={"text": title or "Bias and diversity of every component", "y": 0.98, "yanchor": "top"},
        height=height,
        barmode="overlay",
        margin={"t": 112, "b": 96},
        # Below the axis: above, it would run into the buttons on a narrow screen.
        legend={"y": -0.11, "yanchor": "top", "x": 0, "xanchor": "left"},
        updatemenus=[_switch(decomposition, frame, modules, parts, part)] if len(parts) > 1 else [],
    )
    for row, term in enumerate(terms, start=1):
        figure.update_yaxes(title_text=frame.attrs["units"][term], row=row, col=1)
    if isinstance(decomposition, Decomposition):
        figure.add_hline(
            y=_silent(decomposition, part),
            row=1,
            col=1,
            line={"dash": "dot", "width": 1.5},
            annotation={"text": decomposition.baseline},
            annotation_position="top left",
        )
    figure.update_xaxes(**component_axis(decomposition.components), range=[-1, len(modules)])
    figure.update_xaxes(title_text="component, in stream order", row=len(terms), col=1)
    return figure


def _bars(frame: pd.DataFrame, term: str, part: Part, whiskers: bool) -> dict[str, Any]:
    """Heights, whiskers and hovers of one trace."""
    suffix = _SUFFIX[part]
    value = frame[term + suffix].to_numpy()
    low, high = frame[f"{term}{suffix}_low"].to_numpy(), frame[f"{term}{suffix}_high"].to_numpy()
    text = [
        f"<b>{label}</b><br>{term}{_IN[part]} {style.number(v)}<br>95 % [{style.number(a)}, {style.number(b)}]"
        for label, v, a, b in zip(frame["component"], value, low, high, strict=True)
    ]
    bars: dict[str, Any] = {"y": value, "hovertext": text, "hoverinfo": "text"}
    if whiskers:
        spread = {"type": "data", "array": high - value, "arrayminus": value - low}
        bars["error_y"] = spread | {"thickness": 1, "width": 0, "color": style.LIGHT.muted}
    return bars


def _silent(decomposition: Decomposition, part: Part) -> float:
    shown: Decomposition = decomposition if part == "raw" else getattr(decomposition, part)
    return shown.silent_bias


def _switch(
    decomposition: Decomposition | CorpusProfile,
    frame: pd.DataFrame,
    modules: Sequence[str],
    parts: tuple[Part, ...],
    active: Part,
) -> dict[str, Any]:
    """Buttons that put another part's numbers into all bars."""
    buttons = []
    for part in parts:
        traces = [
            _bars(frame[[m == module for m in modules]], term, part, len(frame) <= _WHISKERS)
            for term in TERMS
            for module in dict.fromkeys(modules)
        ]
        update = {"y": [t["y"] for t in traces], "hovertext": [t["hovertext"] for t in traces]}
        if all("error_y" in t for t in traces):
            update |= {"error_y": [t["error_y"] for t in traces]}
        move: dict[str, Any] = {}
        if isinstance(decomposition, Decomposition):
            line = _silent(decomposition, part)
            move = {"shapes[0].y0": line, "shapes[0].y1": line, f"annotations[{len(TERMS)}].y": line}
        buttons.append({"label": _MEANING[part], "method": "update", "args": [update, move]})
    return {
        "type": "buttons",
        "direction": "right",
        "buttons": buttons,
        "active": parts.index(active),
        "x": 0,
        "xanchor": "left",
        "y": 1.045,
        "yanchor": "bottom",
        "pad": {"t": 0, "r": 0},
    }
