"""Direct contributions of every component to every option's logit."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from ..._checks import whole_number
from ..._registry import figure_of
from .. import style
from ..plotting import arrange, component_axis, heat_map, robust_limit

if TYPE_CHECKING:
    from ...attribution.contributions import Contributions


@figure_of("map", "Contributions", "Shard")
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
    values = u.mean(0) if example is None else u[example]
    texts = contributions.shared_options
    if texts is None:
        only = 0 if len(u) == 1 else example
        texts = contributions.options[only] if only is not None else tuple(f"option {k}" for k in range(u.shape[2]))
    centered = centered and u.shape[2] > 1  # one option has no others to be centered over
    if centered:
        values = values - values.mean(1, keepdims=True)
    labels = [html.escape(c.label) for c in contributions.components]
    hover = [
        [f"<b>{c}</b><br>{html.escape(text)}<br>{style.number(v)} logits" for c, v in zip(labels, row, strict=True)]
        for text, row in zip(texts, values.T, strict=True)
    ]
    limit = robust_limit(values, 1.0)
    figure = go.Figure(heat_map(values.T, hover, "logits", limit, signed=True, side="right", ygap=1))
    rows = "mean over examples" if example is None else f"example {example}"
    gauge = "centered over the options" if centered else "raw"
    arrange(
        figure,
        title or f"Direct contributions to the options' logits ({rows}, {gauge})",
        height=150 + 44 * len(texts),
    )
    figure.update_xaxes(**component_axis(contributions.components), title_text="component, in stream order")
    ticks = {"tickvals": list(range(len(texts))), "ticktext": [html.escape(repr(text)) for text in texts]}
    return figure.update_yaxes(tickmode="array", **ticks, autorange="reversed", showgrid=False)
