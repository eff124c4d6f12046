"""Theorem 3: the terms that bias and diversity share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...ensemble.decomposition import Decomposition
from ...ensemble.intervals import ENDS
from .. import axes, kit, layout, style
from .ensemble import gauge_note, rows_note


def tradeoff_bars(decomposition: Decomposition) -> go.Figure:
    """Draw the summands of bias and of diversity side by side, and their sums (Theorem 3, `tradeoff`).

    The shaded rows, Ω, are part of both sums. Raises InputError for a loss other than the squared error.
    """
    frame, total = decomposition.tradeoff(), decomposition.frame().iloc[0]
    sums = {term + end: total[term + end] for term in ("bias", "diversity") for end in ENDS}
    rows = pd.concat([frame, pd.DataFrame([{"term": "sum", **sums}])], ignore_index=True)
    rows = rows.rename(columns={"term": "component"})
    rows.attrs, count, figure = frame.attrs, len(frame), go.Figure()
    for term, side in (("bias", -0.19), ("diversity", 0.19)):
        look: dict[str, Any] = {"shape": "across", "width": 0.36, "name": term}
        figure.add_trace(kit.trace(rows, term, np.arange(count + 1) + side, style.TERM[term], **look))
    shared = np.flatnonzero(frame["term"].str.contains("Ω"))
    shade = {"fillcolor": style.faint(style.NEUTRAL), "line_width": 0, "layer": "below"}
    figure.add_hrect(y0=shared.min() - 0.5, y1=shared.max() + 0.5, **shade)
    figure.add_hline(y=count - 0.5, line={"width": 1})
    names = [*(f"{row.term}\n{row.formula}" for row in frame.itertuples()), "sum"]
    y = axes.ticks(range(count + 1), names) | {"range": [count + 0.5, -0.5]}
    title = f"Terms of bias and diversity, Theorem 3{gauge_note(decomposition)}"
    about = f"{rows_note(decomposition)} Shaded: Ω, part of both. {kit.intervals(frame)}"
    return layout.finish(figure, title, about, x=frame.attrs["units"]["bias"], y=y, plot=380, barmode="overlay")
