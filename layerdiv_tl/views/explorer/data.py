"""Encoding of a text's numbers for the browser: of the text, and of what is looked up for it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attribution.promoted_tokens import promotions_of_pairs
from ...attribution.source_tokens import TextSources
from ...components import Unit
from ...depth.total_effects import effects
from ...errors import InputError
from ...model.load import Model
from ..html import read
from .measure import TextNumbers
from .tokens import drawn_tokens

# Maximal count of multiplications for a page's promoted tokens: about ten seconds on two cores.
_WORK = 2e11
PROMOTED = 5
# Maximal number of components with effects on a page, and of tokens in their passes (some seconds on two cores), and
# number of later components listed separately.
MOST, TOKENS, LATER = 24, 800, 8
# Maximal number of source tokens listed separately, and their minimal share of Σ|sources| to some candidate.
LISTED, LEAST = 12, 1e-3
# Number of heads per token with source tokens on a page, and maximal count of numbers: under a megabyte.
HEADS, NUMBERS = 8, 300_000
# Files concatenated to the ES module that draws pages and notebook widgets, without a build step.
_FILES = "data draw look measures choose views attention lists frame explorer page".split()
SCRIPT = "\n".join(read(f"explorer/{name}.js") for name in _FILES)
CSS = read("explorer/explorer.css")
# A position, and the index of a component among those shown.
Pair = tuple[int, int]


def pack_text(model: Model, text: TextNumbers) -> bytes:
    """Pack the numbers of a text for `unpack` in data.js, except its attention and promoted tokens.

    They are the contributions to every candidate, and sums over the vocabulary from which measures.js computes bias,
    diversity and net for any candidate.
    """
    profiles, vocabulary = text.profiles, text.sublayers.vocabulary
    arrays: dict[str, np.ndarray] = {
        "loss": text.sublayers.losses,
        "entropy": text.entropies,
        "probability": text.probabilities,
        "logit": text.target_logits,
        "expectation": text.of_shown([means for _, means in text.logits]),
        "mean": text.of_shown([p.means for p in profiles]),
        "size": text.of_shown([p.sizes for p in profiles]) / vocabulary,
        "cross": text.of_shown([p.crosses for p in profiles]) / vocabulary,
        "power": np.stack([p.powers for p in profiles]) / vocabulary,
        "ensemble_mean": np.stack([p.ensemble_means for p in profiles]),
    }
    junctions, lens_ids, arrays["lens_probability"] = text.lens
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    words, number = np.unique(np.concatenate([text.candidates, lens_ids]), return_inverse=True)
    number = number.reshape(-1, text.length).astype(np.int32)
    arrays["candidate"], arrays["lens_word"] = np.split(number, [len(text.candidates)])
    known = words[words >= 0].tolist()
    absent = len(words) - len(known)  # −1 (no token) comes first if present
    header = {
        "tokens": drawn_tokens(model, text.sublayers.token_ids),
        "targets": list(text.targets),
        "written": text.written,
        "ids": [-1] * absent + known,
        "words": [""] * absent + drawn_tokens(model, known),
        "components": [
            {"label": c.label, "module": c.module, "row": c.sublayer.label.rpartition(".")[0], "head": c.kind == "head"}
            for c in text.shown
        ],
        "lens": [c.label for c in junctions],
        "vocabulary": vocabulary,
        "no_heads": text.no_heads,
        "no_attention": text.no_attention,
    }
    return pack(header, arrays)


def pack_attention(text: TextNumbers) -> bytes | None:
    """Pack every head's attention weights, a byte each, of keys up to each query; None if there are none."""
    if text.attention is None:
        return None
    query, key = np.tril_indices(text.length)
    return pack({}, {"attention": np.round(text.attention.patterns[:, query, key] * 255).astype(np.uint8)})


def pack_promotions(model: Model, text: TextNumbers, at: Sequence[int], size: int = 8) -> list[bytes]:
    """Pack the tokens that components promote and suppress at some positions, for `unpack` in data.js.

    It covers every component shown or, if that would take too long, those that add most to the right or the likeliest
    token, equally many at every position. A chunk holds `size` positions.
    """
    if not at:
        return []
    k = min(PROMOTED, text.sublayers.vocabulary)
    per_position = text.sublayers.vocabulary * model.path.width * len(at)
    most = min(len(text.shown), max(8, int(_WORK / per_position)))
    chosen = np.sort(np.argsort(-np.abs(text.target_logits[:2]).max(0)[:, at], axis=0, kind="stable")[:most], axis=0).T
    pairs = [(position, component) for position, row in zip(at, chosen.tolist(), strict=True) for component in row]
    ids, logits = np.zeros((len(pairs), 2 * k), np.int64), np.zeros((len(pairs), 2 * k), np.float32)
    units: tuple[Unit, ...] = ("sublayer", "head")
    with model.path.session():
        for unit, profile in zip(units, text.profiles, strict=False):
            own = [n for n, (_, i) in enumerate(pairs) if (text.shown[i].kind == "head") == (unit == "head")]
            if not own:
                continue
            column = {c: i for i, c in enumerate(profile.components)}
            of_unit = [(pairs[n][0], column[text.shown[pairs[n][1]]]) for n in own]
            ids[own], logits[own], _ = promotions_of_pairs(model, text.pass_at(unit), unit, of_unit, k)
    blobs = []
    for start in range(0, len(at), size):
        some = slice(start * most, (start + size) * most)
        tokens, word = np.unique(ids[some], return_inverse=True)
        header = {"words": drawn_tokens(model, tokens), "positions": [int(p) for p in at[start : start + size]]}
        arrays = {"component": np.array(pairs, np.int32)[some, 1], "word": word.reshape(-1, 2 * k).astype(np.int32)}
        # Three digits are shown.
        blobs.append(pack(header, arrays | {"logit": _rough(logits[some], 12, 0)}))
    return blobs


def _rough(values: np.ndarray, bits: int, half: int) -> np.ndarray:
    """Clear low bits of float32 numbers, after adding `half` to round: digits never shown would not compress."""
    return ((values.view(np.uint32) + np.uint32(half)) & np.uint32(0x100000000 - 2**bits)).view(np.float32)


def answers_at(text: TextNumbers, position: int, target: int | None, minus: int | None) -> Pair | None:
    """Choose the tokens to compare: the target, or else the right or likeliest token, and the likeliest other token.

    Returns None if there is only one token.
    """
    known = text.candidates[:, position]
    order = [int(i) for i in known[np.argsort(-text.probabilities[:, position], kind="stable")] if i >= 0]
    first = next(int(i) for i in known if i >= 0)
    a = target if target is not None and target in order else first
    b = minus if minus in order and minus != a else next((i for i in order if i != a), None)
    return None if b is None else (a, b)


def strongest(text: TextNumbers, position: int, answers: Pair, also: str) -> list[str]:
    """Find the components that add most to the difference of two answers: `also`, then heads, then sublayers."""
    rows = [int(np.flatnonzero(text.candidates[:, position] == i)[0]) for i in answers]
    size = np.abs(text.target_logits[rows[0], :, position] - text.target_logits[rows[1], :, position])
    ablated = [c for _, c in sorted(zip(-size, text.shown, strict=True), key=lambda pair: pair[0])]
    count = max(2, min(MOST, TOKENS // (position + 1)))
    heads = [c.label for c in ablated if c.kind == "head"]
    others = [c.label for c in ablated if c.kind in ("attn", "mlp")]
    first = [also] * (also in heads or also in others)
    return list(dict.fromkeys([*first, *heads[: count - count // 3], *others[: count // 3]]))


def pack_effects(model: Model, text: TextNumbers, position: int, answers: Pair, labels: Sequence[str]) -> bytes:
    """Pack the effects of components, zero-ablated one by one, on two tokens' logit difference at a position.

    The header's `why` names what cannot be ablated.
    """
    rows: list[dict[str, Any]] = []
    header = {"position": position, "answers": list(answers), "asked": list(labels), "rows": rows, "why": ""}
    heads: dict[Any, list[str]] = {}
    for c in text.shown:
        if c.kind == "head":
            heads.setdefault((c.layer, c.repeat), []).append(c.label)
    # If attention is split into heads, the whole sublayer is all of its heads.
    whole = {c.label: heads[c.layer, c.repeat] for c in text.shown if c.kind == "attn" and (c.layer, c.repeat) in heads}
    try:
        found = effects(
            model,
            [text.sublayers.token_ids[: position + 1].tolist()],
            options=[list(answers)],
            labels=[0],
            unit="head" if heads else "sublayer",
            ablation="zero",
            components=[label for label in labels if label not in whole],
            groups={label: whole[label] for label in labels if label in whole} or None,
        )
    except InputError as error:
        return pack(header | {"why": str(error)}, {})
    for number, label in enumerate(found.names):
        frame = found.compensation(label)
        names, change = frame["component"].tolist(), frame["compensation"].to_numpy()
        order = np.argsort(-np.abs(change[:-1]), kind="stable")[:LATER]
        row = {name: float(found.effect(name)[0, number]) for name in ("direct", "total")}
        row |= {"norm": float(change[-1]), "rest": float(change[:-1].sum() - change[order].sum())}
        others = [[names[i], float(change[i])] for i in sorted(order)]
        rows.append(row | {"label": label, "others": others, "more": len(change) - 1 - len(order)})
    return pack(header, {})


def text_sources(model: Model, text: TextNumbers) -> TextSources:
    """Decompose the contributions of a text's heads to its candidates by source token."""
    asked = np.where(text.candidates < 0, text.candidates[1], text.candidates)
    return TextSources(model, text.sublayers.token_ids.tolist(), asked)


def pack_sources(sources: TextSources, text: TextNumbers, pairs: Sequence[Pair], exact: bool = True) -> bytes:
    """Pack the source tokens with the largest contributions through some heads, for `unpack` in data.js.

    For each head and candidate: the LISTED sources, then the sum of all others, and the identity gap to the head's
    contribution relative to Σ|parts|. The header's `why` names heads that cannot be split. Without `exact`, numbers
    keep about five digits of float32.
    """
    own, count = text.target_logits, len(pairs)
    source, gap = np.full((count, LISTED), -1, dtype=np.int32), np.zeros(count, dtype=np.float32)
    logit = np.zeros((count, LISTED + 1, len(own)), dtype=np.float32)
    rows_of: dict[int, list[int]] = {}
    for n, (_, component) in enumerate(pairs):
        rows_of.setdefault(component, []).append(n)
    places = {text.shown[component]: [pairs[n][0] for n in rows] for component, rows in rows_of.items()}
    try:
        split = sources.split(places)
        for (component, rows), (head, values) in zip(rows_of.items(), split, strict=True):
            gap[rows] = sources.gap(head, values, own[:, component, places[head]].T)
            share = (np.abs(values) / np.maximum(np.abs(values).sum(1, keepdims=True), 1e-30)).max(2)
            order = np.argsort(-share, axis=1, kind="stable")[:, :LISTED]
            enough = np.take_along_axis(share, order, axis=1) >= LEAST
            listed = np.take_along_axis(values, order[:, :, None], axis=1) * enough[:, :, None]
            source[rows, : order.shape[1]] = np.where(enough, order, -1)
            logit[rows, : order.shape[1]] = listed
            logit[rows, LISTED] = values.sum(1) - listed.sum(1)
    except InputError as error:
        return pack({"why": str(error)}, {})
    logit = logit if exact else _rough(logit, 8, 0x80)
    place = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    return pack({"why": ""}, {"place": place, "source": source, "logit": logit, "gap": gap})


def page_pairs(text: TextNumbers, position: int) -> list[Pair]:
    """Choose the heads with source tokens on a page: all at `position`, and the top heads at every other position.

    Top heads add most to the right or the likeliest token.
    """
    heads = np.flatnonzero([c.kind == "head" for c in text.shown])
    strength = np.abs(text.target_logits[:2]).max(0)[heads]
    numbers = LISTED + (LISTED + 1) * len(text.candidates)
    count = min(len(heads), HEADS, max(1, NUMBERS // (numbers * text.length)))
    top = np.argsort(-strength, axis=0, kind="stable")
    counts = [len(heads) if p == position else count for p in range(text.length)]
    return [(p, int(component)) for p, n in enumerate(counts) for component in heads[np.sort(top[:n, p])]]


def pack(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Deflate the length of a JSON header, the header padded to 4 bytes, and the arrays."""
    entries, body, start = [], [], 0
    for name, values in arrays.items():
        entries.append({"name": name, "type": values.dtype.name, "shape": values.shape, "start": start})
        raw = np.ascontiguousarray(values).tobytes()
        body.append(raw + bytes(-len(raw) % 4))
        start += len(body[-1])
    text = json.dumps(header | {"arrays": entries}, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return zlib.compress(len(text).to_bytes(4, "little") + text + b"".join(body), 4)
