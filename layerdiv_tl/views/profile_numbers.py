"""The headline numbers of one text, for a terminal and as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..attribution.profile import profile
from ..attribution.profile_results import SquaredProfile
from ..components import Unit
from ..errors import InputError
from ..model.load import Model
from ..model.tokenization import encode
from .explorer import Explorer, explore
from .explorer.data import LONGEST


def profile_and_explorer(model: Model, text: str | list[int], unit: Unit) -> tuple[SquaredProfile, Explorer]:
    """The profile of a whole text at a unit, and an explorer of as much of its beginning as a page shows."""
    (ids,) = encode(model, text, any_length=True)
    explorer = explore(model, ids[: min(LONGEST, model.context or LONGEST)])
    shown = explorer.texts[0]
    whole = len(shown.sublayers.tokens) == len(ids)
    known = {"sublayer": shown.sublayers, "head": shown.heads}.get(unit) if whole else None
    measured = known or profile(model, ids, unit)
    assert isinstance(measured, SquaredProfile)
    return measured, explorer


def profile_summary(profile: SquaredProfile) -> dict[str, float]:
    """The headline numbers of a text: means over its tokens (and components), gaps and counts.

    `loss` in nats; `bias`, `diversity`, `net` and their `_centered` and `_shift` in squared logits, with net = the
    ensemble's squared error (Theorem 1), to `theorem_gap`; `shift_share`: of raw diversity. Raises InputError for a
    text of one token, which has nothing to predict.
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
    """The tokens with the largest loss, worst first, and the components that raised and lowered their logits most.

    Each is `{position, token, loss, raised, lowered}`: the position of the token itself; `raised` and `lowered` are
    (component, logits beyond its mean over the vocabulary), largest first, of the right sign only.
    """
    known = np.flatnonzero(np.isfinite(profile.losses))
    rows = []
    for position in known[np.argsort(-profile.losses[known], kind="stable")[:count]]:
        logits = profile.centered_targets[position]
        order = np.argsort(-logits, kind="stable")
        pairs = [(profile.components[i].label, float(logits[i])) for i in order]
        rows.append(
            {
                "position": int(position) + 1,
                "token": profile.tokens[position + 1],
                "loss": float(profile.losses[position]),
                "raised": [pair for pair in pairs[:k] if pair[1] > 0],
                "lowered": [pair for pair in pairs[: -k - 1 : -1] if pair[1] < 0],
            }
        )
    return rows


def profile_record(profile: SquaredProfile) -> dict[str, Any]:
    """All numbers of a text that `layerdiv profile --json` prints, as JSON's own types."""
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
