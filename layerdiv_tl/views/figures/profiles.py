"""A text under every component: maps component × token, means along depth, and the loss of every token."""

from __future__ import annotations

import html
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...attribution.profile_base import Profile
from ...attribution.profile_results import SquaredProfile
from ...ensemble.decomposition import Part
from .. import style
from ..html import quoted
from ..plotting import DOTTED, arrange, component_axis, heat_map, token_axis
from .bars import component_bars
from .gauge import half_of, largest, part_shown

Term = Literal["bias", "diversity", "net", "target_logit"]
_TITLE = {
    "bias": "Bias of every component at every token",
    "diversity": "Diversity of every component at every token",
    "net": "Net (bias − diversity) of every component at every token",
    "target_logit": "What every component adds to the next token's logit",
}
# More rows than this are thinner than a pixel: the largest are shown.
_MAX_ROWS = 400


@figure_of("map", "Profile", default=True)
def profile_map(
    profile: Profile, term: Term = "net", part: Part = "centered", title: str | None = None, height: int = 720
) -> go.Figure:
    """A map component × token of one number of a profile, the embedding at the bottom.

    `part` is the half of a squared profile; a profile in nats has none. Colors end at the 99th percentile,
    so that one component does not hide the others; the hover has the value. Of more than 400 components
    those with the largest mean size are shown. Raises InputError for an unknown term or part.
    """
    part_shown(part)
    halved = isinstance(profile, SquaredProfile) and term != "target_logit"
    half = half_of(profile, part) if isinstance(profile, SquaredProfile) and halved and profile.part == "raw" else None
    values = np.asarray(getattr(half or profile, term), dtype=np.float64)
    unit = "logits" if term == "target_logit" else profile.measured_in
    kept = largest(np.nan_to_num(np.abs(values)).mean(1), _MAX_ROWS)
    values, components = values[kept], [profile.components[i] for i in kept]
    tokens = [
        f" at {html.escape(repr(token))}<br>next: {html.escape(repr(after)) if after else '–'}<br>"
        for token, after in zip(profile.tokens, profile.next_tokens, strict=True)
    ]
    name = term.replace("_", " ")
    hover = [
        [f"<b>{html.escape(c.label)}</b>{at}{name} {style.number(v)} {unit}" for at, v in zip(tokens, row, strict=True)]
        for c, row in zip(components, values, strict=True)
    ]
    figure = go.Figure(heat_map(values, hover, unit, signed=term in ("net", "target_logit"), hoverongaps=True))
    count = len(profile.components)
    remarks = [part] * halved + [f"the {len(kept)} largest of {count}"] * (len(kept) < count)
    arrange(figure, title or _TITLE[term] + (f" ({', '.join(remarks)})" if remarks else ""), height=height)
    figure.update_xaxes(**token_axis(profile.tokens), title_text="token")
    return figure.update_yaxes(**component_axis(components), title_text="component, in stream order")


@figure_of("depth", "Profile")
def profile_depth(
    profile: Profile, part: Part = "centered", max_components: int = 1500, title: str | None = None, height: int = 720
) -> go.Figure:
    """Bias, diversity and net of every component, means over the tokens that have a next one: `component_bars`."""
    title = title or f"Bias and diversity, means over {int(profile.has_target.sum()):,} tokens"
    return component_bars(profile, part, max_components, title, height)


@figure_of("loss", "Profile")
def loss_curve(profile: Profile, title: str | None = None, height: int = 340) -> go.Figure:
    """The model's own cross-entropy of every token, in nats, at the token that was to be predicted.

    The dotted line is the loss of a guess that takes all tokens of the vocabulary as equally likely. The first
    token of a text, which is not predicted, has no bar.
    """
    predicted = np.flatnonzero(np.isfinite(profile.losses))
    losses, tokens = profile.losses[predicted], [html.escape(quoted(profile.tokens[i + 1])) for i in predicted]
    hover = [
        f"<b>{token}</b> at {i + 1}<br>{style.number(loss)} nats<br>probability {style.number(float(np.exp(-loss)))}"
        for token, i, loss in zip(tokens, predicted, losses, strict=True)
    ]
    bars = {"marker": {"line": {"width": 0}}, "hovertext": hover, "hoverinfo": "text"}
    figure = go.Figure(go.Bar(x=predicted + 1, y=losses, **bars))
    uniform = float(np.log(profile.vocabulary))
    figure.add_hline(y=uniform, line=DOTTED)
    # In the title: next to its line it would lie on bars.
    title = title or f"Loss at every token (dotted: a guess among all tokens, {uniform:.1f} nats)"
    arrange(figure, title, height=height)
    figure.update_xaxes(**token_axis(profile.tokens), range=[-0.6, len(profile.tokens) - 0.4])
    return figure.update_yaxes(title_text="nats", rangemode="tozero")
