"""Views of a text's tokens: colors by a profile's numbers, attention patterns, promoted tokens, headline numbers.

Every view is a `Block`, shown by the last line of a notebook's cell or by `page.block(block, caption)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from .._checks import choice, instance, some_of
from ..attribution.profile import profile
from ..attribution.profile_results import Profile, SquaredProfile
from ..components import Component, Unit, labels_of, positions
from ..ensemble.decomposition import Gauge
from ..errors import InputError
from ..model.attention import AttentionPatterns
from ..model.load import Model
from ..model.prompts import encode
from . import style
from .explorer import Explorer, explore
from .explorer.measure import LONGEST
from .html import Block, circuits, inert, marks, quoted, switch, table, templates

Metric = Literal["loss", "bias", "diversity", "net", "target_logit"]
# Ends of the maps' color scales, for circuitsvis, which puts white between them.
_LOW, _HIGH = style.LIGHT.diverging[0][1], style.LIGHT.diverging[-1][1]
_ALONE = style.LIGHT.sequential[-1][1]
_COLORS: dict[str, Any] = {"minValue": -1, "maxValue": 1, "negativeColor": _LOW, "positiveColor": _ALONE}
# Maximal numbers of heads and tokens of attention patterns: circuitsvis draws a square for every pair.
MOST_HEADS = 12
MOST_TOKENS = 64
_MAKE_PROFILE = "make one with layerdiv_tl.profile(model, text)"


def colored_tokens(
    profile: Profile,
    metrics: Metric | Sequence[Metric] = ("loss", "bias", "diversity", "net"),
    components: str | Component | Iterable[str | Component] | None = None,
    part: Gauge = "centered",
) -> Block:
    """Color the tokens of a text by the numbers of their own prediction; buttons choose the number.

    A token is predicted one position earlier, so the first has no color. Colors end at the 98th percentile, so that one
    token does not hide the others; the value is in the hover.

    Args:
        metrics: "loss" (the model's, in nats), "bias", "diversity", "net", or "target_logit" (the contribution to the
            token's logit, in logits).
        components: Labels or components, a button for each. None shows the mean over all components, whose net is the
            ensemble's error (Theorem 1), or the sum for "target_logit".
        part: The gauge of a squared profile: "raw", "centered" or "shift". A profile in nats has none.

    Raises InputError for metrics, components and parts that do not exist.

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
    choice("part", part, get_args(Gauge))
    labels = [] if components is None else labels_of("components", components)
    rows = [positions(profile.components, label=label)[0] for label in labels]
    has_gauges = isinstance(profile, SquaredProfile) and profile.part == "raw" and part != "raw"
    shown = (getattr(profile, part) or profile) if has_gauges else profile
    gauge = f"{shown.part} " if isinstance(shown, SquaredProfile) else ""
    strips: dict[str, Block] = {}
    for metric in wanted:
        values = np.asarray(getattr(shown, metric), dtype=np.float64)
        unit = {"loss": "nats", "target_logit": "logits"}.get(metric, profile.measured_in)
        name = f"{gauge * (metric in ('bias', 'diversity', 'net'))}{metric.replace('_', ' ')} ({unit})"
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
        "positiveColor": _HIGH if (finite < 0).any() else _ALONE,
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


def profile_and_explorer(model: Model, text: str | list[int], unit: Unit) -> tuple[SquaredProfile, Explorer]:
    """Profile a whole text at a unit, and explore as much of its beginning as a page can show."""
    (ids,) = encode(model, text, any_length=True)
    explorer = explore(model, ids[: min(LONGEST, model.context or LONGEST)])
    shown = explorer.texts[0]
    whole = len(shown.sublayers.tokens) == len(ids)
    known = {"sublayer": shown.sublayers, "head": shown.heads}.get(unit) if whole else None
    measured = known or profile(model, ids, unit)
    assert isinstance(measured, SquaredProfile)
    return measured, explorer


def profile_summary(profile: SquaredProfile) -> dict[str, float]:
    """Compute the headline numbers of a text: means over its tokens (and components), gaps and counts.

    `loss` is in nats; `bias`, `diversity`, `net` and their `_centered` and `_shift` are in squared logits. Net equals
    the ensemble's squared error (Theorem 1) up to `theorem_gap`. `shift_share` is the shift's share of raw diversity.
    Raises InputError for a text of one token, which has nothing to predict.
    """
    known = np.isfinite(profile.losses)
    if not known.any():
        raise InputError("a text of one token has no next one to predict: give a longer text.")
    means = profile.by_component()
    columns = [term + part for part in ("", "_centered", "_shift") for term in ("bias", "diversity", "net")]
    terms = {name: float(means[name].mean()) for name in columns}
    return {
        "tokens": len(profile.tokens),
        "components": len(profile.components),
        "loss": float(profile.losses[known].mean()),
        **terms,
        "shift_share": terms["diversity_shift"] / terms["diversity"],
        "theorem_gap": abs(float(profile.mse[known].mean()) - (terms["bias"] - terms["diversity"])),
        "identity_gap": profile.identity_gap,
        "absolute_gap": profile.absolute_gap,
    }


def hardest_tokens(profile: SquaredProfile, count: int = 6, k: int = 4) -> list[dict[str, Any]]:
    """Find the worst predictions and the last one, and the components that raised and lowered the right token's logit
    most.

    Each is `{position, token, next_token, loss, raised, lowered}`. The position is that of `token`, after which
    `next_token` is predicted. `raised` and `lowered` list (component, logits minus its mean over the vocabulary) of
    that sign, largest first.
    """
    known, rows = np.flatnonzero(np.isfinite(profile.losses)), []
    worst = known[np.argsort(-profile.losses[known], kind="stable")[:count]]
    for position in dict.fromkeys([*worst, *known[-1:]]):  # the last token may be an answer that the user asks about
        logits = profile.centered_targets[position]
        pairs = [(profile.components[i].label, float(logits[i])) for i in np.argsort(-logits, kind="stable")]
        row = {"position": int(position), "token": profile.tokens[position], "next_token": profile.tokens[position + 1]}
        row |= {"loss": float(profile.losses[position]), "raised": [pair for pair in pairs[:k] if pair[1] > 0]}
        rows.append(row | {"lowered": [pair for pair in pairs[: -k - 1 : -1] if pair[1] < 0]})
    return rows


def profile_record(profile: SquaredProfile) -> dict[str, Any]:
    """Return all numbers that `layerdiv profile --json` prints for a text, as JSON types."""
    means = profile.by_component()
    means = means[[name for name in means if not str(name).endswith(("_low", "_high"))]]
    return {
        "unit": profile.unit,
        **profile_summary(profile),
        "token_texts": list(profile.tokens),
        "token_ids": profile.token_ids.tolist(),
        "losses": [float(loss) if np.isfinite(loss) else None for loss in profile.losses],
        "hardest": hardest_tokens(profile),
        "by_component": json.loads(means.to_json(orient="records", double_precision=12)),
    }
