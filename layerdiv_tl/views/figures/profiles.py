"""A text under every component: maps component × token."""

from __future__ import annotations

import html
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ...attribution.profile_base import Profile
from ...attribution.profile_results import SquaredProfile
from ...ensemble.decomposition import Part
from .. import style
from ..html import quoted
from .axes import component_axis
from .bars import component_bars
from .gauge_controls import checked, largest

Term = Literal["bias", "diversity", "net", "target_logit"]
_TITLE = {
    "bias": "Bias of every component at every token",
    "diversity": "Diversity of every component at every token",
    "net": "Net (bias − diversity) of every component at every token",
    "target_logit": "What every component adds to the next token's logit",
}
# More rows than this are thinner than a pixel: the largest are shown.
_MOST_ROWS = 400
_TICKS = 40


def profile_map(
    profile: Profile, term: Term = "net", part: Part = "centered", title: str | None = None, height: int = 720
) -> go.Figure:
    """A map component × token of one number of a profile, the embedding at the bottom.

    `part` is the half of a squared profile; a profile in nats has none. Colors end at the 99th percentile,
    so that one component does not hide the others; the hover has the value. Of more than 400 components
    those with the largest mean size are shown. Raises InputError for an unknown term or part.
    """
    checked(part)
    halved = isinstance(profile, SquaredProfile) and term != "target_logit"
    shown = profile
    if isinstance(profile, SquaredProfile) and halved and part != "raw" and profile.part == "raw":
        shown = (profile.centered if part == "centered" else profile.shift) or profile
    values = np.asarray(getattr(shown, term), dtype=np.float64)
    unit = "logits" if term == "target_logit" else profile.measured_in
    kept = np.arange(len(values))
    if len(values) > _MOST_ROWS:
        kept = largest(np.nan_to_num(np.abs(values)).mean(1), _MOST_ROWS)
    values, components = values[kept], [profile.components[i] for i in kept]
    finite = np.abs(values[np.isfinite(values)])
    most = float(np.quantile(finite, 0.99)) if finite.size else 1.0
    signed = term in ("net", "target_logit")
    hover = [
        [
            f"<b>{c.label}</b> at {html.escape(repr(token))}<br>next: {html.escape(repr(after)) if after else '–'}<br>"
            f"{term.replace('_', ' ')} {style.number(v)} {unit}"
            for token, after, v in zip(profile.tokens, profile.next_tokens, row, strict=True)
        ]
        for c, row in zip(components, values, strict=True)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=np.arange(len(profile.tokens)),
            y=np.arange(len(components)),
            autocolorscale=True,
            zmin=-(most or 1.0) if signed else 0.0,
            zmax=most or 1.0,
            hovertext=hover,
            hoverinfo="text",
            colorbar={"title": {"text": unit, "side": "top"}, "thickness": 12, "outlinewidth": 0},
        )
    )
    of = f", the {len(kept)} largest of {len(profile.components)}" if len(kept) < len(profile.components) else ""
    seen = f" ({part}{of})" if halved else f" ({of[2:]})" if of else ""
    figure.update_layout(template=style.template(), title=title or _TITLE[term] + seen, height=height)
    figure.update_layout(margin={"t": 72})
    every = max(1, -(-len(profile.tokens) // _TICKS))
    places = np.arange(0, len(profile.tokens), every)
    figure.update_xaxes(
        tickmode="array",
        tickvals=places,
        ticktext=[html.escape(quoted(profile.tokens[i], 12)) for i in places],
        tickangle=-60,
        title_text="token",
        showgrid=False,
    )
    figure.update_yaxes(**component_axis(components), title_text="component, in stream order")
    figure.update_yaxes(showgrid=False, zeroline=False)
    return figure


def profile_depth(
    profile: Profile, part: Part = "centered", most: int = 1500, title: str | None = None, height: int = 720
) -> go.Figure:
    """Bias, diversity and net of every component, means over the tokens that have a next one: `component_bars`."""
    count = int(profile.has_target.sum())
    return component_bars(profile, part, most, title or f"Bias and diversity, means over {count:,} tokens", height)
