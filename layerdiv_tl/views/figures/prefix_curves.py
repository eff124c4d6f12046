"""Prefix ensembles: what bias and diversity are of all that was written up to a junction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...ensemble.decomposition import Decomposition, NormAt, Part
from .. import style
from .axes import component_axis
from .gauge_controls import MEANING, buttons, checked, column, hover_lines, parts_in, suffixed

if TYPE_CHECKING:
    import pandas as pd

_TITLE = {
    "accuracy": "Accuracy",
    "loss": "Loss",
    "bias": "Bias",
    "diversity": "Diversity",
    "diversity_logit": "|L|² × diversity: as if every prefix had the same number of members",
}
_NORM = {
    "frozen": "read out with the whole stream's norm",
    "recomputed": "read out with each junction's own norm",
}
_ROW_HEIGHT = 170


def depth_curves(
    decomposition: Decomposition,
    part: Part = "centered",
    norm: NormAt = "frozen",
    size_fair: bool = False,
    title: str | None = None,
    height: int | None = None,
) -> go.Figure:
    """Accuracy (with labels), loss, bias and diversity of the prefix ensemble at every junction (Fig. 5 and 7).

    part, size_fair
        What is shown first; buttons switch between the parts there are, and to |L|² × diversity, which does not
        fall merely because later prefixes have more members (MATHS 1).
    norm
        "frozen" or "recomputed", as in `by_depth`.

    Bands are 95 % intervals over examples. Marks have the color of the module that closes the junction; open
    marks are partial sums, which the stream never holds. Raises InputError for an unknown part or norm.
    """
    checked(part)
    frame = decomposition.by_depth(norm)
    parts = parts_in(frame, "diversity")
    part = checked(part, parts)
    named = {c.label: c for c in decomposition.junctions or decomposition.components}
    components = [named[label] for label in frame["component"]]
    modules = np.array([c.module for c in components], dtype=object)
    terms = [term for term in ("accuracy", "loss", "bias", "diversity") if term in frame]
    exact = decomposition.gap is not None
    fair = [False, True] if "diversity_logit" in frame else [False]
    views = [(p, f) for f in fair for p in parts if not (f and p == "shift")]
    figure = make_subplots(
        rows=len(terms),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.24 / len(terms),
        subplot_titles=[_TITLE[term] + " = bias − diversity" * (term == "loss" and exact) for term in terms],
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    shown = (part, size_fair and True in fair and part != "shift")
    for row, term in enumerate(terms, start=1):
        for trace in _traces(frame, modules, _column(frame, term, *shown), row == 1):
            figure.add_trace(trace, row=row, col=1)
    choices: dict[str, list[dict[str, Any]]] = {}
    for p, f in views:
        columns = [_column(frame, term, p, f) for term in terms]
        traces = [trace for at in columns for trace in _traces(frame, modules, at, False)]
        label = (MEANING[p].partition(":")[0] if len(fair) > 1 else MEANING[p]) + (", |L|² × diversity" if f else "")
        heading = _TITLE["diversity_logit" if f else "diversity"]
        update = {key: [getattr(trace, key) for trace in traces] for key in ("y", "hovertext")}
        choices[label] = [update, {f"annotations[{len(terms) - 1}].text": heading}]
    figure.layout.annotations[len(terms) - 1].text = _TITLE["diversity_logit" if shown[1] else "diversity"]
    figure.update_layout(
        template=style.template(),
        title={
            "text": title or suffixed("Prefix ensembles along depth", decomposition),
            "subtitle": {"text": f"all components before a junction, {_NORM[norm]}"},
        },
        height=height or 250 + _ROW_HEIGHT * len(terms),
        margin={"t": 132 if len(views) > 1 else 100, "b": 96},
        legend=style.LEGEND_BELOW,
        updatemenus=buttons(choices, views.index(shown)),
    )
    for row, term in enumerate(terms, start=1):
        figure.update_yaxes(title_text=frame.attrs["units"][term], row=row, col=1)
    if "accuracy" in terms:
        figure.add_hline(
            y=1 / decomposition.values.shape[2],
            row=1,
            col=1,
            line={"dash": "dot", "width": 1.5},
            annotation={"text": f"one option in {decomposition.values.shape[2]}"},
            annotation_position="bottom left",
        )
    figure.update_xaxes(**component_axis(components), range=[-0.5, len(frame) - 0.5], zeroline=False)
    figure.update_xaxes(title_text="junction: the last component written", row=len(terms), col=1)
    return figure


def _column(frame: pd.DataFrame, term: str, part: Part, fair: bool) -> str:
    return column(frame, "diversity_logit" if fair and term == "diversity" else term, part)


def _traces(frame: pd.DataFrame, modules: np.ndarray, at: str, legend: bool) -> list[go.Scatter]:
    """The band, the curve and the marks of one column."""
    place = np.arange(len(frame))
    value, low, high = (frame[at + end].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    hover = np.array(hover_lines(frame, {at.replace("_", ", "): at}), dtype=object)
    partial = frame["partial"].to_numpy(dtype=bool)
    hover = hover + np.where(partial, "<br>partial: the stream never holds this sum", "")
    traces = [
        go.Scatter(
            x=np.concatenate([place, place[::-1]]),
            y=np.concatenate([low, high[::-1]]),
            fill="toself",
            fillcolor=style.faint(style.NEUTRAL),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
        ),
        go.Scatter(x=place, y=value, mode="lines", line={"color": style.NEUTRAL}, hoverinfo="skip", showlegend=False),
    ]
    for module in dict.fromkeys(modules):
        for half in (False, True):
            here = (modules == module) & (partial == half)
            if here.any():
                traces.append(
                    go.Scatter(
                        x=place[here],
                        y=value[here],
                        mode="markers",
                        marker={
                            "color": style.MODULE[module],
                            "size": 7,
                            "symbol": "circle-open" if half else "circle",
                        },
                        name=style.MODULE_NAME[module] + (", partial sum" if half else ""),
                        legendgroup=f"{module} {half}",
                        showlegend=legend,
                        hovertext=hover[here],
                        hoverinfo="text",
                    )
                )
    return traces
