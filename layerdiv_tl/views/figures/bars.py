"""Bias, diversity and net of every component, along depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...ensemble.decomposition import TERMS, Decomposition, Part
from .. import style
from .axes import component_axis
from .gauge_controls import (
    MEANING,
    Measured,
    buttons,
    checked,
    column,
    hover_lines,
    most_diverse,
    parts_in,
    suffixed,
    whiskers,
)

if TYPE_CHECKING:
    import pandas as pd

_TITLE = {"bias": "Bias", "diversity": "Diversity", "net": "Net = bias − diversity"}
# Above this many bars the whiskers are a gray smear; the interval stays in the hover.
_WHISKERS = 150
# Nor are whiskers drawn that would make the bars small: those of a handful of examples.
_WIDEST = 2


def component_bars(
    measured: Measured,
    part: Part = "centered",
    most: int = 1500,
    title: str | None = None,
    height: int = 720,
) -> go.Figure:
    """Three rows of bars (bias, diversity, net), one bar per component, colored by module.

    measured
        A decomposition, a corpus or a profile (means over its tokens).
    part
        What is shown first; for the squared error buttons switch between raw, centered and shift.
    most
        Of more components those with the largest diversity in `part` are shown, and the title says so.

    Whiskers are 95 % intervals over examples (texts, for a corpus); of many bars, and where they would dwarf the
    bars, they are in the hover only. Values are a component's own, undivided by
    |L|, in the loss's unit. The dotted line is the bias of a component that writes nothing. Raises InputError
    for an unknown part.
    """
    checked(part)
    frame, components, of = most_diverse(measured, part, most)
    parts = parts_in(frame)
    part = checked(part, parts)
    terms = [term for term in TERMS if term in frame]
    modules = np.array([c.module for c in components], dtype=object)
    figure = make_subplots(
        rows=len(terms), cols=1, shared_xaxes=True, vertical_spacing=0.07, subplot_titles=[_TITLE[t] for t in terms]
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    for row, term in enumerate(terms, start=1):
        for module in dict.fromkeys(modules):
            figure.add_bar(
                x=np.flatnonzero(modules == module),
                name=style.MODULE_NAME[module],
                legendgroup=module,
                showlegend=row == 1,
                width=0.8,
                marker={"color": style.MODULE[module], "line": {"width": 0}},
                row=row,
                col=1,
                **_bars(frame, modules == module, term, part),
            )
    choices: dict[str, list[dict[str, Any]]] = {}
    for choice in parts:
        traces = [_bars(frame, modules == module, term, choice) for term in terms for module in dict.fromkeys(modules)]
        update: dict[str, Any] = {key: [trace[key] for trace in traces] for key in ("y", "hovertext", "error_y")}
        choices[MEANING[choice]] = [update, _silence(measured, choice, len(terms))]
    figure.update_layout(
        template=style.template(),
        title={
            "text": title or suffixed("Bias and diversity of every component", measured),
            "subtitle": {"text": of},
        },
        height=height,
        barmode="overlay",
        margin={"t": (112 if len(parts) > 1 else 72) + 20 * bool(of), "b": 96},
        legend=style.LEGEND_BELOW,
        updatemenus=buttons(choices, parts.index(part)),
    )
    for row, term in enumerate(terms, start=1):
        figure.update_yaxes(title_text=frame.attrs["units"][term], row=row, col=1)
    if isinstance(measured, Decomposition):
        figure.add_hline(
            y=_silence(measured, part, len(terms))["shapes[0].y0"],
            row=1,
            col=1,
            line={"dash": "dot", "width": 1.5},
            annotation={"text": measured.loss_function.baseline},
            annotation_position="top left",
        )
    figure.update_xaxes(**component_axis(components), range=[-1, len(modules)])
    figure.update_xaxes(title_text="component, in stream order", row=len(terms), col=1)
    return figure


def _bars(frame: pd.DataFrame, here: np.ndarray, term: str, part: Part) -> dict[str, Any]:
    """Heights, whiskers and hovers of one trace."""
    at = column(frame, term, part)
    tallest, widest = frame[at].abs().max(), (frame[f"{at}_high"] - frame[f"{at}_low"]).max()
    seen = len(frame) <= _WHISKERS and bool(widest <= _WIDEST * tallest)
    return {
        "y": frame[at].to_numpy()[here],
        "hovertext": hover_lines(frame[here], {at.replace("_", ", "): at}),
        "hoverinfo": "text",
        "error_y": whiskers(frame[here], at) | {"visible": True} if seen else {"visible": False},
    }


def _silence(measured: Measured, part: Part, before: int) -> dict[str, float]:
    """Where the line of a component that writes nothing stands, and its text, which follows the rows' titles."""
    if not isinstance(measured, Decomposition):
        return {}
    half: Decomposition = measured if part == "raw" else getattr(measured, part)
    return {
        "shapes[0].y0": half.zero_bias,
        "shapes[0].y1": half.zero_bias,
        f"annotations[{before}].y": half.zero_bias,
    }
