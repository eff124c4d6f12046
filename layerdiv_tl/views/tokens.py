"""Views of a text's tokens: colors by a profile's numbers, and promoted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from .._checks import choice
from ..attribution.profile_results import Profile
from ..components import Component, positions
from . import style
from .html import Block, templates

Metric = Literal["loss", "bias", "diversity", "net", "target_logit"]


def colored_tokens(profile: Profile, metric: Metric = "loss", component: str | Component | None = None) -> Block:
    """Color the tokens of a text by a number of their own prediction: blue above 0, orange below.

    A token is predicted one position earlier, so the first has no color. Colors end at the 98th percentile, so that one
    token does not hide the others; the value is in the hover. A notebook shows it as the last line of a cell, a page by
    `page.block(block)`.

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
    >>> colored_tokens(ld.profile(tiny, [1, 2, 3]), "net").html.count("background")  # shown by a notebook
    2
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
    tokens: list[tuple[str, str, str]] = []
    for token, value in zip(profile.tokens, own, strict=True):
        known = bool(np.isfinite(value))
        share = 0.6 * min(1.0, abs(value) / most) if known else 0.0  # text stays readable on it
        color = style.faint(style.PAIR[0 if value > 0 else 1], round(share, 3)) if known else ""
        tokens.append((token.replace("\n", "⏎\n") or "∅", color, style.number(value) if known else ""))
    return Block(templates().colored_tokens(tokens))


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
