"""How much of bias and of diversity each module holds, beside its number of components."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...ensemble.decomposition import Decomposition, Part
from .. import style
from .gauge_controls import hover_lines, suffixed, whiskers

_TERMS = ("bias", "diversity")
_PANELS: dict[Part, str] = {"raw": "Raw: as in the paper", "centered": "Centered: what softmax sees"}


def module_shares(decomposition: Decomposition, title: str | None = None, height: int = 460) -> go.Figure:
    """Each module's share of bias and of diversity, raw and centered side by side (Fig. 4).

    The line across a bar is the module's share of components, n_g/|L|: what it would hold if its members
    were like all others. Whiskers are 95 % intervals over examples.
    """
    frame = decomposition.by_module()
    modules = list(frame["module"])
    frame.insert(0, "component", [style.MODULE_NAME[module] for module in modules])
    panels = [p for p in _PANELS if p == "raw" or f"bias_share_{p}" in frame]
    titles = [_PANELS[p] for p in panels] if len(panels) > 1 else None
    figure = make_subplots(rows=1, cols=len(panels), shared_yaxes=True, horizontal_spacing=0.06, subplot_titles=titles)
    figure.update_annotations(font={"size": 13})
    width = 0.8 / len(frame)
    for col, part in enumerate(panels, start=1):
        suffix = "" if part == "raw" else f"_{part}"
        for number, module in enumerate(modules):
            row = frame.iloc[[number]]
            columns = [f"{term}_share{suffix}" for term in _TERMS]
            offset = (number - (len(frame) - 1) / 2) * width
            bounds = [whiskers(row, at) for at in columns]
            count = float(row["member_share"].iloc[0])
            figure.add_bar(
                x=np.arange(len(_TERMS)) + offset,
                y=[float(row[at].iloc[0]) for at in columns],
                width=0.92 * width,
                error_y=bounds[0] | {end: np.concatenate([b[end] for b in bounds]) for end in ("array", "arrayminus")},
                marker={"color": style.MODULE[module], "line": {"width": 0}},
                name=f"{style.MODULE_NAME[module]} ({int(row['members'].iloc[0]):,})",
                legendgroup=module,
                showlegend=col == 1,
                hovertext=[
                    f"{hover_lines(row, {f'share of {term}': at})[0]}<br>share of components {style.number(count)}"
                    for term, at in zip(_TERMS, columns, strict=True)
                ],
                hoverinfo="text",
                row=1,
                col=col,
            )
            for place in range(len(_TERMS)):
                middle = place + offset
                figure.add_shape(
                    type="line",
                    x0=middle - width / 2,
                    x1=middle + width / 2,
                    y0=count,
                    y1=count,
                    line={"width": 2.5},
                    row=1,
                    col=col,
                )
    figure.update_layout(
        template=style.template(),
        title={
            "text": title or suffixed("Each module's share of bias and of diversity", decomposition),
            "subtitle": {"text": "the line across a bar: the module's share of components, n_g/|L|"},
        },
        height=height,
        barmode="overlay",
        margin={"t": 104, "b": 84},
        legend=style.LEGEND_BELOW,
    )
    figure.update_xaxes(tickmode="array", tickvals=np.arange(len(_TERMS)), ticktext=_TERMS, showgrid=False)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(title_text="share of the ensemble's", col=1)
    return figure
