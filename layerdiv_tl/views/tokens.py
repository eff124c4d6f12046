"""Views of a text's tokens: colors by a profile's numbers, attention patterns, promoted tokens.

The first two are a `Block`, shown by the last line of a notebook's cell or by `page.block(block)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from .._checks import choice
from ..attribution.profile_results import Profile
from ..components import Component, positions
from ..errors import InputError
from ..model.attention import AttentionPatterns
from . import style
from .html import Block, circuits, inert, templates

Metric = Literal["loss", "bias", "diversity", "net", "target_logit"]
# Ends of the maps' color scales, for circuitsvis, which puts white between them.
_HIGH, _LOW = style.PAIR
_COLORS: dict[str, Any] = {"minValue": -1, "maxValue": 1, "negativeColor": _LOW, "positiveColor": _HIGH}
# Maximal numbers of heads and tokens of attention patterns: circuitsvis draws a square for every pair.
MOST_HEADS = 12
MOST_TOKENS = 64


def colored_tokens(profile: Profile, metric: Metric = "loss", component: str | Component | None = None) -> Block:
    """Color the tokens of a text by a number of their own prediction.

    A token is predicted one position earlier, so the first has no color. Colors end at the 98th percentile, so that one
    token does not hide the others; the value is in the hover.

    Args:
        metric: "loss" (the model's, in nats), "bias", "diversity", "net" (in logits²), or "target_logit" (the
            contribution to the token's logit, in logits).
        component: A label or component. None shows the mean over all components, whose net is the ensemble's error
            (Theorem 1), or the sum for "target_logit". A loss is the model's alone.

    Raises InputError for a metric and a component that do not exist.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> block = colored_tokens(ld.profile(tiny, [1, 2, 3]), "net")  # shown by a notebook
    >>> "ColoredTokens" in block.html
    True
    """
    values = np.asarray(getattr(profile, choice("metric", metric, get_args(Metric))), dtype=np.float64)
    if metric != "loss" and component is not None:
        values = values[positions(profile.components, label=component)[0]]
    elif metric != "loss":
        values = values.sum(0) if metric == "target_logit" else values.mean(0)
    # The prediction at a text's end belongs to no token.
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
) -> pd.DataFrame:
    """Show the tokens that components promote and suppress at a position: `Profile.top_tokens`, a column per rank.

    Numbers are logits minus the component's mean over the vocabulary, which softmax cannot see. Raises InputError like
    `Profile.top_tokens`.
    """
    tokens = profile.top_tokens(component, position, k)
    cells = tokens["token"].map(style.visible) + " " + tokens["contribution_centered"].map(style.signed)
    labels, effects = tokens["component"].unique(), ("promotes", "suppresses")
    index = pd.MultiIndex.from_product([labels, effects], names=("component", "effect"))
    keys = zip(tokens["component"], tokens["effect"], strict=True)
    rows = pd.Series(cells.to_list(), index=pd.MultiIndex.from_tuples(keys))
    return pd.DataFrame([rows[key].to_list() for key in index], index=index, columns=range(1, k + 1))
