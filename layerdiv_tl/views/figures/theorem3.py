"""Theorem 3: what bias and diversity are made of, and what they share."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ...ensemble.decomposition import Decomposition, Part
from .. import style
from .gauge_controls import MEANING, buttons, checked, suffixed, whiskers

if TYPE_CHECKING:
    import pandas as pd


def tradeoff_bars(
    decomposition: Decomposition,
    part: Part = "centered",
    paper: bool = False,
    title: str | None = None,
    height: int = 560,
) -> go.Figure:
    """The summands of bias and of diversity side by side, and their sums (Theorem 3, `tradeoff`).

    part
        What is shown first; buttons switch between raw, centered and shift.
    paper
        The form printed in Eq. 11 instead of the exact one.

    The shaded rows are Ω, which stands in both: moving them moves neither loss nor accuracy. Whiskers are 95 %
    intervals over examples. Raises InputError for an unknown part and for a loss other than the squared error.
    """
    checked(part)
    halves: dict[Part, Any] = {"raw": decomposition}
    halves |= decomposition.halves
    frames = {p: half.tradeoff(paper) for p, half in halves.items()}
    parts = tuple(frames)
    part = checked(part, parts)
    frame = frames[part]
    count, unit = len(frame), frame.attrs["units"]["bias"]
    figure = go.Figure()
    for term, side in (("bias", -0.19), ("diversity", 0.19)):
        figure.add_bar(
            y=np.arange(count + 1) + side,
            orientation="h",
            width=0.36,
            name=term,
            marker={"color": style.TERM[term], "line": {"width": 0}},
            hoverinfo="text",
            **_bars(frame, term),
        )
    choices = {}
    for p, other in frames.items():
        bars = [_bars(other, term) for term in ("bias", "diversity")]
        choices[MEANING[p]] = [{key: [b[key] for b in bars] for key in bars[0]}, {}]
    shared = np.flatnonzero(frame["term"].str.contains("Ω"))
    figure.add_hrect(
        y0=shared.min() - 0.5, y1=shared.max() + 0.5, fillcolor=style.faint(style.NEUTRAL), line_width=0, layer="below"
    )
    figure.add_hline(y=count - 0.5, line={"width": 1})
    form = "as printed in Eq. 11" if paper else "exact"
    figure.update_layout(
        template=style.template(),
        title={
            "text": title or suffixed("What bias and diversity are made of, and share", decomposition),
            "subtitle": {"text": f"Theorem 3, {form}; shaded: Ω, which is in both"},
        },
        height=height,
        barmode="overlay",
        margin={"t": 112 if len(parts) > 1 else 84, "b": 96},
        legend=style.LEGEND_BELOW,
        updatemenus=buttons(choices, parts.index(part), above=8),
    )
    names = [
        f"{html.escape(name)}<br>{html.escape(formula)}"
        for name, formula in zip(frame["term"], frame["formula"], strict=True)
    ]
    figure.update_yaxes(
        tickmode="array",
        tickvals=np.arange(count + 1),
        ticktext=[*names, "<b>sum</b>"],
        range=[count + 0.5, -0.5],
        showgrid=False,
    )
    figure.update_xaxes(title_text=unit)
    return figure


def _bars(frame: pd.DataFrame, term: str) -> dict[str, Any]:
    """Lengths, whiskers and hovers of one term, its sum last."""
    value = frame[term].to_numpy()
    unit = frame.attrs["units"][term]
    hover = [
        f"<b>{html.escape(name)}</b><br>in the {term} {style.measured(v, low, high, unit=unit)}"
        for name, v, low, high in zip(frame["term"], value, frame[f"{term}_low"], frame[f"{term}_high"], strict=True)
    ]
    bounds = whiskers(frame, term)
    bounds |= {end: np.append(bounds[end], 0.0) for end in ("array", "arrayminus")}
    return {
        "x": np.append(value, value.sum()),
        "error_x": bounds,
        "hovertext": [*hover, f"<b>{term}</b> {style.measured(value.sum(), unit=unit)}"],
    }
