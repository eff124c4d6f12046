"""What every component writes to every option's logit."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go

from ..._checks import whole_number
from ...attribution.contributions import Contributions
from .. import style
from .axes import component_axis


def contribution_map(
    contributions: Contributions, example: int | None = None, centered: bool = True, title: str | None = None
) -> go.Figure:
    """A map option × component of direct contributions in logits.

    `example` None takes the mean over examples. `centered` subtracts each component's mean over the
    options, which softmax cannot see. Raises InputError for an example that does not exist.
    """
    u = contributions.values
    if example is not None:
        whole_number("example", example, -len(u), len(u) - 1)
    shown = u.mean(0) if example is None else u[example]
    texts = contributions.shared_options
    if texts is None:
        one = 0 if len(u) == 1 else example
        texts = contributions.options[one] if one is not None else tuple(f"option {k}" for k in range(u.shape[2]))
    centered = centered and u.shape[2] > 1  # one option has nothing to be centered against
    if centered:
        shown = shown - shown.mean(1, keepdims=True)
    labels = [c.label for c in contributions.components]
    hover = [
        [
            f"<b>{label}</b><br>{html.escape(text)}<br>{style.number(v)} logits"
            for label, v in zip(labels, row, strict=True)
        ]
        for text, row in zip(texts, shown.T, strict=True)
    ]
    most = float(np.abs(shown).max()) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=shown.T,
            x=np.arange(len(labels)),
            y=np.arange(len(texts)),
            autocolorscale=True,
            zmin=-most,
            zmax=most,
            hovertext=hover,
            hoverinfo="text",
            colorbar={"title": {"text": "logits", "side": "right"}, "thickness": 12, "outlinewidth": 0},
            ygap=1,
        )
    )
    which = "mean over examples" if example is None else f"example {example}"
    seen = "centered over the options" if centered else "raw"
    figure.update_layout(
        template=style.template(),
        title=title or f"Direct contributions to the options' logits ({which}, {seen})",
        height=150 + 44 * len(texts),
        margin={"t": 64},
    )
    figure.update_xaxes(
        **component_axis(contributions.components), title_text="component, in stream order", showgrid=False
    )
    figure.update_yaxes(
        tickmode="array",
        tickvals=np.arange(len(texts)),
        ticktext=[html.escape(repr(text)) for text in texts],
        autorange="reversed",
        showgrid=False,
    )
    return figure
