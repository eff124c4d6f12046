"""Theorem 3: the summands of bias and of diversity, and those they share."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.decomposition import Decomposition, Part
from .. import style
from ..plotting import arrange, bar, buttons, changes, whiskers
from .gauge import MEANING, part_shown, suffixed

if TYPE_CHECKING:
    import pandas as pd


@figure_of("tradeoff", "Decomposition")
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
    part_shown(part)
    frames: dict[Part, pd.DataFrame] = {"raw": decomposition.tradeoff(paper)}
    frames |= {p: half.tradeoff(paper) for p, half in decomposition.halves.items()}
    part = part_shown(part, tuple(frames))
    traces = {p: [_bars(frame, "bias", -0.19), _bars(frame, "diversity", 0.19)] for p, frame in frames.items()}
    views = {MEANING[p]: (changes(bars, "x", "error_x", "hovertext"),) for p, bars in traces.items()}
    figure, frame = go.Figure(traces[part]), frames[part]
    shared = np.flatnonzero(frame["term"].str.contains("Ω"))
    shade = {"fillcolor": style.faint(style.NEUTRAL), "line_width": 0, "layer": "below"}
    figure.add_hrect(y0=shared.min() - 0.5, y1=shared.max() + 0.5, **shade)
    figure.add_hline(y=len(frame) - 0.5, line={"width": 1})
    arrange(
        figure,
        title or suffixed("What bias and diversity are made of, and share", decomposition),
        f"Theorem 3, {'as printed in Eq. 11' if paper else 'exact'}; shaded: Ω, which is in both",
        height=height,
        below=96,
        menus=buttons(views, list(frames).index(part)),
    )
    figure.update_layout(barmode="overlay")
    rows = zip(frame["term"], frame["formula"], strict=True)
    names = [f"{html.escape(term)}<br>{html.escape(formula)}" for term, formula in rows]
    ticks = {"tickmode": "array", "tickvals": np.arange(len(frame) + 1), "ticktext": [*names, "<b>sum</b>"]}
    figure.update_yaxes(**ticks, range=[len(frame) + 0.5, -0.5], showgrid=False)
    return figure.update_xaxes(title_text=frame.attrs["units"]["bias"])


def _bars(frame: pd.DataFrame, term: str, side: float) -> go.Bar:
    """The summands of one term with their whiskers, and last their sum."""
    values, unit = frame[term].to_numpy(), frame.attrs["units"][term]
    numbers = (frame[term + end] for end in ("", "_low", "_high"))
    hover = [
        f"<b>{html.escape(name)}</b><br>in the {term} {style.measured(value, low, high, unit=unit)}"
        for name, value, low, high in zip(frame["term"], *numbers, strict=True)
    ]
    hover.append(f"<b>{term}</b> {style.measured(values.sum(), unit=unit)}")
    error = whiskers(frame, term)
    error |= {end: np.append(error[end], 0.0) for end in ("array", "arrayminus")}
    lengths, rows = np.append(values, values.sum()), np.arange(len(frame) + 1) + side
    return bar(lengths, rows, style.TERM[term], across=True, width=0.36, name=term, hover=hover, error=error)
