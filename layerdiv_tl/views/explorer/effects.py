"""Effects of ablating components of a text on an answer, and compensation, packed for the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...depth.effects import effects
from ...errors import InputError
from ...model.load import Model
from .data import pack
from .measure import TextNumbers

# Maximal number of components with effects on a page, and of tokens in their passes: some seconds on two cores.
MOST, TOKENS = 24, 800
# Number of later components listed separately.
LISTED = 8


def answers_at(text: TextNumbers, position: int, target: int | None, minus: int | None) -> tuple[int, int] | None:
    """Choose the tokens to compare: the target, or else the right or likeliest token, and the likeliest other token.

    Returns None if there is only one token.
    """
    known = text.candidates[:, position]
    order = [int(i) for i in known[np.argsort(-text.probabilities[:, position], kind="stable")] if i >= 0]
    first = next(int(i) for i in known if i >= 0)
    a = target if target is not None and target in order else first
    b = minus if minus in order and minus != a else next((i for i in order if i != a), None)
    return None if b is None else (a, b)


def strongest(text: TextNumbers, position: int, answers: tuple[int, int], also: str) -> list[str]:
    """Find the components that add most to the difference of two answers: `also`, then heads, then sublayers."""
    rows = [int(np.flatnonzero(text.candidates[:, position] == i)[0]) for i in answers]
    size = np.abs(text.target_logits[rows[0], :, position] - text.target_logits[rows[1], :, position])
    heads = np.array([c.kind == "head" for c in text.shown])
    ablated = [i for i, c in enumerate(text.shown) if c.kind in ("head", "attn", "mlp")]
    count = max(2, min(MOST, TOKENS // (position + 1)))
    order = sorted(ablated, key=lambda i: -size[i])
    chosen = [[i for i in order if heads[i] == head] for head in (True, False)]
    labels = [text.shown[i].label for i in (*chosen[0][: count - count // 3], *chosen[1][: count // 3])]
    return list(dict.fromkeys([*([also] if also in {text.shown[i].label for i in ablated} else []), *labels]))


def pack_effects(
    model: Model, text: TextNumbers, position: int, answers: tuple[int, int], labels: Sequence[str]
) -> bytes:
    """Pack the effects of components, zero-ablated one by one, on two tokens' logit difference at a position.

    The header's `why` names what cannot be ablated.
    """
    header: dict[str, Any] = {"position": position, "answers": list(answers), "asked": list(labels)}
    header |= {"rows": [], "why": ""}
    ids = [int(i) for i in text.sublayers.token_ids[: position + 1]]
    shown = {c.label: c for c in text.shown}
    heads: dict[Any, list[str]] = {}
    for c in text.shown:
        if c.kind == "head":
            heads.setdefault((c.layer, c.repeat), []).append(c.label)
    # If attention is split into heads, the whole sublayer is all of its heads.
    groups = {
        label: heads[c.layer, c.repeat]
        for label in labels
        if (c := shown[label]).kind == "attn" and (c.layer, c.repeat) in heads
    }
    try:
        found = effects(
            model,
            [ids],
            contrast=answers,
            unit="head" if heads else "sublayer",
            ablation="zero",
            components=[label for label in labels if label not in groups],
            groups=groups or None,
        )
    except InputError as error:
        return pack(header | {"why": str(error)}, {})
    for number, label in enumerate(found.names):
        frame = found.compensation(label)
        change = frame["compensation"].to_numpy()
        order = np.argsort(-np.abs(change[:-1]), kind="stable")[:LISTED]
        row = {name: float(found.effect(name)[0, number]) for name in ("direct", "total")}
        row |= {"norm": float(change[-1]), "rest": float(change[:-1].sum() - change[order].sum())}
        others = [[frame["component"].iloc[i], float(change[i])] for i in sorted(order)]
        header["rows"].append(row | {"label": label, "others": others, "more": len(change) - 1 - len(order)})
    return pack(header, {})
