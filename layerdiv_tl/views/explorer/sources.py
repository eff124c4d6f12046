"""Contributions of heads by source token (attention × value), packed for the browser."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...attribution.source_tokens import TextSources
from ...errors import InputError
from ...model.load import Model
from .data import pack
from .measure import TextNumbers

# Maximal number of source tokens listed separately, and their minimal share of Σ|sources| to some candidate.
LISTED, LEAST = 12, 1e-3
# Number of heads per token with source tokens on a page, and maximal count of numbers in all texts: under a megabyte.
HEADS, NUMBERS = 8, 300_000
# A position, and the index of a head among the components shown.
Pair = tuple[int, int]


def text_sources(model: Model, text: TextNumbers) -> TextSources:
    """Decompose the contributions of a text's heads to its candidates by source token."""
    asked = np.where(text.candidates < 0, text.candidates[1], text.candidates)
    return TextSources(model, text.sublayers.token_ids.tolist(), asked)


def pack_sources(sources: TextSources, text: TextNumbers, pairs: Sequence[Pair], exact: bool = True) -> bytes:
    """Pack the source tokens with the largest contributions through some heads, for `unpack` in data.js.

    For each head and candidate: the LISTED sources, then the sum of all others and the value bias, and the identity gap
    to the head's contribution relative to Σ|parts|. The header's `why` names heads that cannot be split. Without
    `exact`, numbers keep about five digits of float32.
    """
    own = text.target_logits
    source = np.full((len(pairs), LISTED), -1, dtype=np.int32)
    logit, gap = np.zeros((len(pairs), LISTED + 2, len(own)), dtype=np.float32), np.zeros(len(pairs), dtype=np.float32)
    rows_of: dict[int, list[int]] = {}
    for n, (_, component) in enumerate(pairs):
        rows_of.setdefault(component, []).append(n)
    places = {text.shown[component]: [pairs[n][0] for n in rows] for component, rows in rows_of.items()}
    try:
        split = sources.split(places)
        for (component, rows), (head, values, bias) in zip(rows_of.items(), split, strict=True):
            gap[rows] = sources.gap(head, values, bias, own[:, component, places[head]].T)
            share = (np.abs(values) / np.maximum(np.abs(values).sum(1, keepdims=True), 1e-30)).max(2)
            order = np.argsort(-share, axis=1, kind="stable")[:, :LISTED]
            enough = np.take_along_axis(share, order, axis=1) >= LEAST
            listed = np.take_along_axis(values, order[:, :, None], axis=1) * enough[:, :, None]
            source[rows, : order.shape[1]] = np.where(enough, order, -1)
            logit[rows, : order.shape[1]] = listed
            logit[rows, LISTED] = values.sum(1) - listed.sum(1)
            logit[rows, LISTED + 1] = bias
    except InputError as error:
        return pack({"why": str(error)}, {})
    place = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    if not exact:  # digits never shown, even in a difference of two numbers, would not compress
        logit = ((logit.view(np.uint32) + np.uint32(0x80)) & np.uint32(0xFFFFFF00)).view(np.float32)
    return pack({"why": ""}, {"place": place, "source": source, "logit": logit, "gap": gap})


def page_pairs(text: TextNumbers, position: int | None, share: int = 1) -> list[Pair]:
    """Choose the heads with source tokens on a page: all at `position`, and the top heads at every other position.

    Top heads add most to the right or the likeliest token; `share` is the number of texts on the page.
    """
    heads = np.flatnonzero([c.kind == "head" for c in text.shown])
    strength = np.abs(text.target_logits[:2]).max(0)[heads]
    numbers = LISTED + (LISTED + 2) * len(text.candidates)
    count = min(len(heads), HEADS, max(1, NUMBERS // share // (numbers * text.length)))
    pairs = []
    for p in range(text.length):
        best = np.arange(len(heads)) if p == position else np.argsort(-strength[:, p], kind="stable")[:count]
        pairs += [(p, int(component)) for component in heads[np.sort(best)]]
    return pairs
