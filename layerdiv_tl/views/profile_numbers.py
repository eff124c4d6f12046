"""The numbers of one text that are told first, on a page, in a terminal and to a machine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..attribution.profile import profile as read_out
from ..attribution.profile_results import SquaredProfile
from ..components import Component
from ..errors import InputError
from ..model.load import Model

HARDEST = 6
HEADS = 6


def summary(profile: SquaredProfile) -> dict[str, float]:
    """The headline numbers of a text: means over its tokens (and components), gaps and counts.

    `loss` in nats; `bias`, `diversity`, `net` and their `_centered` and `_shift` in squared logits, with net = the
    ensemble's squared error (Theorem 1), to `theorem_gap`; `shift_share`: of raw diversity. Raises InputError for a
    text of one token, which has nothing to predict.
    """
    said = np.isfinite(profile.losses)
    if not said.any():
        raise InputError("a text of one token has no next one to predict: give a longer text.")
    means = profile.by_component()
    terms = [term + part for part in ("", "_centered", "_shift") for term in ("bias", "diversity", "net")]
    found = {term: float(means[term].mean()) for term in terms}
    return {
        "tokens": len(profile.tokens),
        "components": len(profile.components),
        "loss": float(profile.losses[said].mean()),
        **found,
        "shift_share": found["diversity_shift"] / found["diversity"],
        "theorem_gap": abs(float(profile.mse[said].mean()) - (found["bias"] - found["diversity"])),
        "identity_gap": profile.identity_gap,
        "absolute_gap": profile.absolute_gap,
    }


def hardest_tokens(profile: SquaredProfile, count: int = HARDEST, k: int = 4) -> list[dict[str, Any]]:
    """The tokens with the largest loss, worst first, and the components that spoke most for and against them.

    Each is `{position, token, loss, raised, lowered}`: the position of the token itself; `raised` and `lowered` are
    (component, logits beyond its mean over the vocabulary), largest first, of the right sign only.
    """
    said = np.flatnonzero(np.isfinite(profile.losses))
    worst = said[np.argsort(-profile.losses[said], kind="stable")[:count]]
    rows = []
    for place in worst:
        spoke = profile.centered_targets[place]
        order = np.argsort(-spoke, kind="stable")
        pairs = [(profile.components[i].label, float(spoke[i])) for i in order]
        rows.append(
            {
                "position": int(place) + 1,
                "token": profile.tokens[place + 1],
                "loss": float(profile.losses[place]),
                "raised": [pair for pair in pairs[:k] if pair[1] > 0],
                "lowered": [pair for pair in pairs[: -k - 1 : -1] if pair[1] < 0],
            }
        )
    return rows


def largest_heads(profile: SquaredProfile, model: Model, count: int = HEADS) -> list[Component]:
    """The heads with the largest mean |net|, centered, in stream order; raises InputError where there are none."""
    cut = profile if profile.unit == "head" else read_out(model, profile.token_ids.tolist(), "head")
    assert isinstance(cut, SquaredProfile)
    assert cut.centered is not None
    means = np.nanmean(np.abs(cut.centered.net), axis=1)
    heads = [i for i, component in enumerate(cut.components) if component.kind == "head"]
    largest = sorted(sorted(heads, key=lambda i: -means[i])[:count])
    return [cut.components[i] for i in largest]


def record(profile: SquaredProfile) -> dict[str, Any]:
    """All that `--json` tells of a profile, as JSON's own types."""
    means = profile.by_component()
    means = means[[name for name in means if not str(name).endswith(("_low", "_high"))]]
    return {
        "unit": profile.unit,
        **summary(profile),
        "token_texts": list(profile.tokens),
        "token_ids": profile.token_ids.tolist(),
        "losses": [float(loss) if np.isfinite(loss) else None for loss in profile.losses],
        "hardest": hardest_tokens(profile),
        "by_component": json.loads(means.to_json(orient="records", double_precision=12)),
    }


def summary_lines(profile: SquaredProfile) -> list[str]:
    """The headline numbers in words."""
    n = summary(profile)
    return [
        f"{profile.model}: {n['tokens']} tokens, {n['components']} components, mean loss {n['loss']:.4g} nats",
        f"  components sum to the logits: largest gap {n['absolute_gap']:.1e} logits, {n['identity_gap']:.1e} of Σ|u|",
        f"  net {n['net']:.4g} = bias {n['bias']:.4g} − diversity {n['diversity']:.4g}   (logits²; identity to "
        f"{n['theorem_gap']:.0e})",
        f"  centered: {n['net_centered']:.4g} = {n['bias_centered']:.4g} − {n['diversity_centered']:.4g}   "
        f"({n['shift_share']:.1%} of raw diversity is a shift that softmax cannot see)",
    ]
