"""How well the model says every token of a text."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go

from ...attribution.profile_base import Profile
from .. import style
from ..html import quoted

_TICKS = 40


def loss_curve(profile: Profile, title: str | None = None, height: int = 340) -> go.Figure:
    """The model's own cross-entropy of every token, in nats, at the token that was to be said.

    The dotted line is the loss of a guess that takes all tokens of the vocabulary as equally likely. The first
    token of a text, which is not predicted, has no bar.
    """
    said = np.flatnonzero(np.isfinite(profile.losses))
    losses, tokens = profile.losses[said], [profile.tokens[i + 1] for i in said]
    figure = go.Figure(
        go.Bar(
            x=said + 1,
            y=losses,
            marker={"line": {"width": 0}},
            hovertext=[
                f"<b>{html.escape(quoted(token))}</b> at {i + 1}<br>{style.number(loss)} nats<br>"
                f"probability {style.number(float(np.exp(-loss)))}"
                for token, i, loss in zip(tokens, said, losses, strict=True)
            ],
            hoverinfo="text",
        )
    )
    blind = float(np.log(profile.vocabulary))
    figure.add_hline(
        y=blind,
        line={"dash": "dot", "width": 1.5},
    )
    # In the title: beside its line it would lie on bars.
    title = title or f"Loss at every token (dotted: a guess among all tokens, {blind:.1f} nats)"
    figure.update_layout(template=style.template(), title=title, height=height, margin={"t": 56})
    places = range(0, len(profile.tokens), max(1, -(-len(profile.tokens) // _TICKS)))
    figure.update_xaxes(
        tickmode="array",
        tickvals=list(places),
        ticktext=[html.escape(quoted(profile.tokens[i], 12)) for i in places],
        tickangle=-60,
        range=[-0.6, len(profile.tokens) - 0.4],
        showgrid=False,
    )
    figure.update_yaxes(title_text="nats", rangemode="tozero")
    return figure
