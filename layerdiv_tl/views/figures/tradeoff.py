"""Theorem 3, the terms that bias and diversity share, and how often both move together along depth (Section 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice
from ...ensemble.decomposition import Decomposition, Gauge
from .. import axes, kit, layout, style

if TYPE_CHECKING:
    pass


def tradeoff_bars(decomposition: Decomposition, part: Gauge = "centered", paper: bool = False) -> go.Figure:
    """Draw the summands of bias and of diversity side by side, and their sums (Theorem 3, `tradeoff`).

    `part` is shown first; `paper` uses the form printed in Eq. 11. The shaded rows, Ω, are part of both sums. Raises
    InputError for a loss other than the squared error.
    """
    gauges, views = {"raw": decomposition} | decomposition.gauges, {}
    choice("part", part, get_args(Gauge))
    for name, gauge in gauges.items():
        frame = gauge.tradeoff(paper)
        unit, sums, count = frame.attrs["units"]["bias"], frame[["bias", "diversity"]].sum(), len(frame)
        total = gauge.frame().iloc[0]
        ends = {name: total[name] for term in sums.index for name in (f"{term}_low", f"{term}_high") if not paper}
        whole = pd.concat([frame, pd.DataFrame([{"term": "sum", **sums, **ends}])], ignore_index=True)
        whole = whole.rename(columns={"term": "component"})
        whole.attrs, figure = frame.attrs, go.Figure()
        for term, side in (("bias", -0.19), ("diversity", 0.19)):
            look: dict[str, Any] = {"shape": "across", "width": 0.36, "name": term}
            figure.add_trace(kit.trace(whole, term, np.arange(count + 1) + side, style.TERM[term], **look))
        shared = np.flatnonzero(frame["term"].str.contains("Ω"))
        shade = {"fillcolor": style.faint(style.NEUTRAL), "line_width": 0, "layer": "below"}
        figure.add_hrect(y0=shared.min() - 0.5, y1=shared.max() + 0.5, **shade)
        figure.add_hline(y=count - 0.5, line={"width": 1})
        names = [*(f"{row.term}\n{row.formula}" for row in frame.itertuples()), "sum"]
        y = axes.ticks(range(count + 1), names) | {"range": [count + 0.5, -0.5]}
        both, bias, diversity = (style.number(x, 3) for x in (frame["bias"][shared].sum(), *sums))
        title = f"Ω, {both} {unit}, is a term of the bias, {bias}, and of the diversity, {diversity}"
        if (sums > 0).all():
            share = [style.percent(frame["bias"][shared].sum() / x) for x in sums]
            title = f"The shared part Ω, {both} {unit}, is {share[0]} of the bias and {share[1]} of the diversity"
            title += ", whose other terms are below 0" * bool(frame["bias"][shared].sum() > sums["diversity"])
        form = "the terms as printed in Eq. 11" if paper else "the exact terms"
        subtitle = f"Theorem 3 of arXiv 2505.24009, {form}. Shaded: Ω, the variance "
        subtitle += f"over options and the spread of the components' means, in both sums. {kit.intervals(frame)}"
        subtitle += " Means of centered contributions are 0, and so two terms are." * (name == "centered")
        views[name] = layout.finish(
            figure,
            f"{title} ({gauge.part})" if gauge.part != "raw" or gauge.gauges else title,
            subtitle,
            x=unit,
            y=y,
            plot=380,
            barmode="overlay",
        )
    return layout.choose(views, part if part in views else "raw")
