"""Views of a text's tokens: colors by a profile's numbers, attention patterns, promoted tokens, headline numbers.

Every view is a `Block`, shown by the last line of a notebook's cell or by `page.block(block, caption)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from .._checks import instance, some_of
from ..attribution.profile_results import Profile
from ..components import Component, labels_of, positions
from ..errors import InputError
from ..model.attention import AttentionPatterns
from . import style
from .html import Block, circuits, inert, marks, quoted, switch, table, templates

Metric = Literal["loss", "bias", "diversity", "net", "target_logit"]
# Ends of the maps' color scales, for circuitsvis, which puts white between them.
_HIGH, _LOW = style.PAIR
_COLORS: dict[str, Any] = {"minValue": -1, "maxValue": 1, "negativeColor": _LOW, "positiveColor": _HIGH}
# Maximal numbers of heads and tokens of attention patterns: circuitsvis draws a square for every pair.
MOST_HEADS = 12
MOST_TOKENS = 64
_MAKE_PROFILE = "make one with layerdiv_tl.profile(model, text)"


def colored_tokens(
    profile: Profile,
    metrics: Metric | Sequence[Metric] = ("loss", "bias", "diversity", "net"),
    components: str | Component | Iterable[str | Component] | None = None,
) -> Block:
    """Color the tokens of a text by the numbers of their own prediction; buttons choose the number.

    A token is predicted one position earlier, so the first has no color. Colors end at the 98th percentile, so that one
    token does not hide the others; the value is in the hover.

    Args:
        metrics: "loss" (the model's, in nats), "bias", "diversity", "net", or "target_logit" (the contribution to the
            token's logit, in logits).
        components: Labels or components, a button for each. None shows the mean over all components, whose net is the
            ensemble's error (Theorem 1), or the sum for "target_logit".

    Raises InputError for metrics and components that do not exist.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> block = colored_tokens(ld.profile(tiny, [1, 2, 3]), ("loss", "net"))  # shown by a notebook
    >>> "centered net (logits²)</button>" in block.html
    True
    """
    instance("profile", profile, Profile, _MAKE_PROFILE)
    wanted = some_of("metrics", metrics, get_args(Metric))
    labels = [] if components is None else labels_of("components", components)
    rows = [positions(profile.components, label=label)[0] for label in labels]
    strips: dict[str, Block] = {}
    for metric in wanted:
        values = np.asarray(getattr(profile, metric), dtype=np.float64)
        unit = {"loss": "nats", "target_logit": "logits"}.get(metric, "logits²")
        gauge = f"{profile.gauge} " if unit == "logits²" else ""
        name = f"{gauge}{metric.replace('_', ' ')} ({unit})"
        if metric != "loss" and components is not None:
            strips |= {f"{profile.components[row]} {name}": _strip(profile, values[row]) for row in rows}
            continue
        strips[name] = _strip(profile, {"loss": values, "target_logit": values.sum(0)}.get(metric, values.mean(0)))
    return switch(strips)


def _strip(profile: Profile, values: Float[np.ndarray, " position"]) -> Block:
    """Color a text by one number per position; the prediction at its end belongs to no token."""
    begins = np.append(True, profile.documents[1:] != profile.documents[:-1])
    own = np.where(begins, np.nan, np.roll(values, 1))
    finite = own[np.isfinite(own)]
    most = (float(np.quantile(np.abs(finite), 0.98)) if finite.size else 0.0) or 1.0
    props = {
        "tokens": [inert(token) for token in profile.tokens],
        "values": [float(f"{value:.4g}") if np.isfinite(value) else None for value in own],
        **_COLORS,
        "minValue": -most,
        "maxValue": most,
        "paddingBottom": 0,
    }
    return circuits("ColoredTokens", props)


def attention_heads(patterns: AttentionPatterns) -> Block:
    """Show attention patterns of heads with circuitsvis: small maps to choose from, and a large one.

    Raises InputError for more than 12 heads or 64 tokens, for which circuitsvis takes many seconds.
    """
    instance("patterns", patterns, AttentionPatterns, "make one with layerdiv_tl.attention_patterns(model, text)")
    heads, tokens = len(patterns.components), len(patterns.tokens)
    if heads > MOST_HEADS or tokens > MOST_TOKENS:
        raise InputError(
            f"{heads} heads over {tokens} tokens are too much to look at: choose at most {MOST_HEADS} heads, and a "
            f"text of at most {MOST_TOKENS} tokens."
        )
    props = {
        "attention": np.round(patterns.patterns, 3).tolist(),
        "attentionHeadNames": [component.label for component in patterns.components],
        "tokens": [inert(token if len(token) <= 16 else f"{token[:15]}…") for token in patterns.tokens],
        **_COLORS,
        "maskUpperTri": True,
    }
    return Block(templates().narrow(circuits("AttentionHeads", props).html), circuits=True)


def promoted_tokens(
    profile: Profile,
    component: str | Component | Sequence[str | Component] | None = None,
    position: int = -1,
    k: int = 6,
) -> Block:
    """Show the tokens that components promote and suppress at a position: `Profile.top_tokens` as a table.

    Numbers are logits minus the component's mean over the vocabulary, which softmax cannot see. Raises InputError like
    `Profile.top_tokens`.
    """
    instance("profile", profile, Profile, _MAKE_PROFILE)
    rows: list[list[str | Block]] = []
    for label, tokens in profile.top_tokens(component, position, k).groupby("component", sort=False):
        of_effect = [tokens[tokens["effect"] == effect] for effect in ("promotes", "suppresses")]
        pairs = [zip(map(quoted, part["token"]), part["contribution_centered"], strict=True) for part in of_effect]
        rows.append([str(label), *(marks([*part]) for part in pairs)])
    return table(("component", "promotes, in logits", "suppresses"), rows)
