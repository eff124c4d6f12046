"""What ablating a component of a text costs an answer, and what compensates for it, packed for the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...depth.effects import effects
from ...errors import InputError
from ...model.load import Model
from .data import pack
from .measure import TextNumbers

# Of how many components a page has effects, and for how many tokens of passes at most: some seconds on two cores.
MOST, TOKENS = 24, 800
# Of how many later components each has its own line.
LISTED = 8


def answers_at(text: TextNumbers, position: int, target: int | None, minus: int | None) -> tuple[int, int] | None:
    """The tokens that are compared: the target, or else the right or likeliest one, and the likeliest other one.

    None where there is one token alone.
    """
    known = text.candidates[:, position]
    order = [int(i) for i in known[np.argsort(-text.probabilities[:, position], kind="stable")] if i >= 0]
    first = next(int(i) for i in known if i >= 0)
    a = target if target is not None and target in order else first
    b = minus if minus in order and minus != a else next((i for i in order if i != a), None)
    return None if b is None else (a, b)


def strongest(text: TextNumbers, position: int, answers: tuple[int, int], also: str) -> list[str]:
    """The components, heads before whole sublayers, that add most to the difference of two answers; `also` first."""
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
    """The effects of some components on the difference of two tokens' logits at a position, zero-ablated one by one.

    What cannot be ablated is named in the header's `why`.
    """
    header: dict[str, Any] = {"position": position, "answers": list(answers), "asked": list(labels)}
    header |= {"rows": [], "why": ""}
    ids = [int(i) for i in text.sublayers.token_ids[: position + 1]]
    shown = {c.label: c for c in text.shown}
    heads: dict[Any, list[str]] = {}
    for c in text.shown:
        if c.kind == "head":
            heads.setdefault((c.layer, c.repeat), []).append(c.label)
    # Where attention is cut into heads, a whole one is all of them.
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
