"""The page of one text: a profile's numbers at every token and component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from .. import __version__
from ..attribution.profile_results import SquaredProfile
from ..ensemble.decomposition import Part
from ..errors import InputError
from ..model.attention import attention_patterns
from ..model.load import Model
from . import style
from .figures.loss import loss_curve
from .figures.profiles import Term, profile_map
from .html import Block, marks, quoted, switch, table
from .page import Page
from .profile_numbers import hardest_tokens, largest_heads, summary
from .token_views import MOST_TOKENS, attention_heads, colored_tokens, promoted_tokens

# What a page can hold: beyond, a browser is slow. ld.profile itself has no such limits.
LONGEST = 1000
# Cells of all maps together whose hovers may be written out; beyond, hovers have the number only.
_HOVERS = 30_000
_CELLS = 400_000
_MAPS: tuple[tuple[Term, Part], ...] = (
    ("net", "centered"),
    ("bias", "centered"),
    ("diversity", "centered"),
    ("target_logit", "centered"),
    ("net", "raw"),
    ("bias", "raw"),
    ("diversity", "raw"),
)
_LOOKED_AT = 3
_CONTEXT = 32
_FOLLOWED = 6


def check_length(tokens: int) -> None:
    """Refuse a text of more tokens than a page can show. Raises InputError."""
    if tokens > LONGEST:
        raise InputError(
            f"the text has {tokens} tokens, but a page shows at most {LONGEST}: give a shorter one, or take "
            "layerdiv_tl.profile and its figures."
        )


def profile_page(profile: SquaredProfile, model: Model) -> Page:
    """One page for one text; `model` is the one that was taken apart, and is asked what its heads look at.

    Raises InputError for several texts, for one of more than 1000 tokens or of a single one.
    """
    if not isinstance(profile, SquaredProfile) or profile.part != "raw":
        raise InputError("a page is made of a whole profile of the squared error: profile(model, text).")
    if len(np.unique(profile.documents)) > 1:
        raise InputError("a page shows one text: make a profile of each.")
    check_length(len(profile.tokens))
    s = summary(profile)
    page = Page(f"Bias and diversity in a text: {profile.model}")
    page.text(
        "The model's logits for every next token are taken apart, exactly, into what each component wrote to them. "
        "Bias is how far a component's own prediction is from the right token, diversity how far it is from the mean "
        "of all components, both over the whole vocabulary; the mean bias minus the mean diversity is the squared "
        "error of the ensemble (Theorem 1). Net is bias minus diversity, a component's own part of that error."
    )
    page.facts(_facts(profile, s))
    page.block(
        colored_tokens(profile),
        "Every token wears the number of its own prediction: what the model said one token before. The first one is "
        "not predicted. Bias, diversity and net are means over the components; hover over a token for its value.",
    )
    page.figure(loss_curve(profile), "High bars are tokens that the model did not expect.")
    page.heading("Where it comes from")
    figures = _maps(profile)
    page.figures(
        figures,
        "Each column is a token and is about what comes next; each row a component, the embedding at the bottom. "
        "Raw numbers hold a shift common to all tokens of the vocabulary, which softmax cannot see; centered numbers "
        "leave it out. Colors end at the 99th percentile.",
    )
    page.heading("The hardest tokens")
    hardest = hardest_tokens(profile)
    page.block(
        _hardest_table(profile, hardest),
        "Components that spoke most for and against the right token, in logits; the loss in nats.",
    )
    page.block(
        _promoted(profile, hardest), "What the components that spoke most said instead, where the loss is largest."
    )
    page.heading("What heads look at")
    _attention(page, profile, model)
    provenance = model.provenance | {"layerdiv_tl": __version__, "unit": profile.unit}
    page.small("Model: " + "; ".join(f"{key} {value}" for key, value in provenance.items()) + ".")
    return page


def _facts(profile: SquaredProfile, s: Mapping[str, float]) -> dict[str, tuple[str, str]]:
    return {
        "mean loss": (
            f"{s['loss']:.3f} nats",
            f"perplexity {style.number(float(np.exp(s['loss'])))}; {s['tokens']:.0f} tokens",
        ),
        "net = bias − diversity": (
            f"{style.number(s['net'])} = {style.number(s['bias'])} − {style.number(s['diversity'])}",
            f"logits², raw; holds to {s['theorem_gap']:.0e}",
        ),
        "the same, centered": (
            f"{style.number(s['net_centered'])} = {style.number(s['bias_centered'])} − "
            f"{style.number(s['diversity_centered'])}",
            f"{s['shift_share']:.1%} of raw diversity is a shift",
        ),
        "identity gap": (
            f"{s['identity_gap']:.0e}",
            f"of Σ|u|, {s['absolute_gap']:.0e} logits; {s['components']:.0f} components",
        ),
    }


def _maps(profile: SquaredProfile) -> dict[str, go.Figure]:
    """The maps a reader can choose between; of large ones fewer, with numbers only in their hovers."""
    figures: dict[str, go.Figure] = {}
    cells = 0
    for term, part in _MAPS:
        if cells > _CELLS:
            break
        figure = profile_map(profile, term, part)
        cells += np.asarray(figure.data[0].z).size
        figures["logit of the next token" if term == "target_logit" else f"{term}, {part}"] = figure
    for figure in figures.values():
        heat = figure.data[0]
        heat.z = np.asarray(heat.z, dtype=np.float32)
        if cells > _HOVERS:
            heat.hovertext, heat.hoverinfo = None, None
            heat.hovertemplate = "token %{x}, row %{y}<br>%{z:.3g}<extra></extra>"
    return figures


def _hardest_table(profile: SquaredProfile, hardest: list[dict[str, Any]]) -> Block:
    rows = [
        (
            quoted("".join(profile.tokens[max(0, row["position"] - 5) : row["position"]])[-_CONTEXT:], _CONTEXT),
            quoted(row["token"]),
            style.number(row["loss"]),
            marks(row["raised"]),
            marks(row["lowered"]),
        )
        for row in hardest
    ]
    return table(("after", "right token", "loss", "raised by", "lowered by"), rows)


def _promoted(profile: SquaredProfile, hardest: list[dict[str, Any]]) -> Block:
    """Of the components with the largest say at the hardest tokens, what they promote there."""
    panels = {}
    for row in hardest[:_LOOKED_AT]:
        sizes = np.abs(profile.centered_targets[row["position"] - 1])
        largest = np.sort(np.argsort(-sizes, kind="stable")[:_FOLLOWED])
        names = [profile.components[i].label for i in largest]
        panels[f"{quoted(row['token'])} at {row['position']}"] = promoted_tokens(
            profile, names, row["position"] - 1, k=5
        )
    return switch(panels)


def _attention(page: Page, profile: SquaredProfile, model: Model) -> None:
    ids = profile.token_ids[:MOST_TOKENS].tolist()
    try:
        heads = largest_heads(profile, model)
        patterns = attention_patterns(model, ids, heads)
    except InputError as error:  # a model need not have heads that can be named or looked at
        page.text(f"There are none to show: {error}")
        return
    cut = f" The first {len(ids)} tokens are shown." if len(ids) < len(profile.tokens) else ""
    sums = "1" if np.allclose(patterns.patterns.sum(2), 1, atol=1e-2) else "at most 1: a sink takes the rest"
    page.block(
        attention_heads(patterns),
        f"The {len(heads)} heads with the largest mean |net| (centered) in this text; each row sums to {sums}.{cut}",
    )
