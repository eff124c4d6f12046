"""Encoding of a text's numbers for the browser: of the text, and of what is looked up for it."""

from __future__ import annotations

import json
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...attribution.promoted_tokens import promotions_of_pairs
from ...attribution.source_tokens import TextSources
from ...depth.total_effects import effects
from ...errors import InputError
from ...model.load import Model
from ...model.prompts import token_texts
from ..html import read
from .numbers import LIKELIEST, TextNumbers

# Number of tokens that a component promotes, and of source tokens listed separately.
PROMOTED, LISTED = 5, 8
# Maximal count of multiplications for a page's promoted tokens (a second on one core), and of numbers of its sources.
_WORK, _NUMBERS = 2e10, 200_000
# Minimal and maximal number of components that have these at a position that is not selected.
FEW, MANY = 3, 24
# Maximal number of components with effects on a page, and of tokens in their passes: about a second on one core.
ABLATED, TOKENS = 8, 800
# Files concatenated to the ES module that draws pages and notebook widgets, without a build step.
_FILES = "data draw look toolbar views attention lists frame explorer page".split()
SCRIPT = "\n".join(read(f"explorer/{name}.js") for name in _FILES)
CSS = read("explorer/explorer.css")
_SHOWN = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": " "}
# Invisible characters, and those that change the position of others.
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")
# A position, and the index of a component.
Pair = tuple[int, int]


def pack_text(model: Model, text: TextNumbers) -> bytes:
    """Pack the numbers of a text, except its attention and what is looked up for it."""
    junctions, lens_ids, lens_probabilities = text.lens
    arrays = {"loss": text.losses, "probability": text.probabilities, "lens_probability": lens_probabilities}
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    arrays["logit"] = _rough(text.contributions)
    arrays["expectation"] = _rough(text.expectations)
    # Words are sent once.
    ids = np.union1d(text.candidates, lens_ids)
    arrays["candidate"] = np.searchsorted(ids, text.candidates).astype(np.int32)
    arrays["lens_word"] = np.searchsorted(ids, lens_ids).astype(np.int32)
    components = []
    for c in text.components:
        row = c.sublayer.label.rpartition(".")[0]
        components.append({"label": c.label, "module": c.module, "row": row, "head": c.kind == "head"})
    header = {
        "tokens": drawn_tokens(model, text.token_ids),
        "ids": ids.tolist(),
        "words": drawn_tokens(model, ids),
        "offered": 1 + LIKELIEST + len(text.targets),
        "components": components,
        "lens": [c.label for c in junctions],
        "no_attention": text.no_attention,
    }
    return pack(header, arrays)


def pack_attention(text: TextNumbers) -> bytes:
    """Pack every head's attention weights, a byte each, of keys up to each query."""
    assert text.attention is not None
    query, key = np.tril_indices(text.length)
    return pack({}, {"attention": np.round(text.attention.patterns[:, query, key] * 255).astype(np.uint8)})


def page_blobs(model: Model, text: TextNumbers, chosen: Any) -> dict[str, bytes]:
    """Pack all that a page holds that opens with a `Selection`."""
    position = chosen.position
    most = _WORK / (model.path.outputs * model.path.width)
    pairs = page_pairs(text, position, range(len(text.components)), most)
    blobs = {"core": pack_text(model, text), "promoted": pack_promotions(model, text, pairs)}
    if text.attention is not None:
        blobs["attention"] = pack_attention(text)
    if text.heads:
        pairs = page_pairs(text, position, text.heads, _NUMBERS / ((LISTED + 1) * len(text.candidates)))
        sources = TextSources(model, text.token_ids.tolist(), text.candidates)
        blobs["sources"] = pack_sources(sources, text, pairs)
    answers = answers_at(text, position, chosen.target, chosen.minus)
    a, b = (text.contributions[text.row(token, position), :, position] for token in answers)
    ordered = [text.components[i] for i in np.argsort(-np.abs(a - b), kind="stable")]
    labels = [c.label for c in ordered if c.kind in ("head", "attn", "mlp")]
    labels.sort(key=lambda label: label != chosen.component)
    count = max(2, min(ABLATED, TOKENS // (position + 1)))
    return blobs | {"effects": pack_effects(model, text, position, answers, labels[:count])}


def page_pairs(text: TextNumbers, position: int, peers: Sequence[int], most: float) -> list[Pair]:
    """Choose about `most` pairs for a page: all `peers` at `position`, and at all others those that add most.

    They add most to the right or the likeliest token there.
    """
    count = int(min(MANY, max(FEW, (most - len(peers)) / max(1, text.length - 1))))
    strength = np.abs(text.contributions[:2]).max(0)[list(peers)]
    top = np.argsort(-strength, axis=0, kind="stable")[:count]
    pairs: list[Pair] = []
    for p in range(text.length):
        kept = range(len(peers)) if p == position else sorted(top[:, p].tolist())
        pairs += [(p, peers[i]) for i in kept]
    return pairs


def pack_promotions(model: Model, text: TextNumbers, pairs: Sequence[Pair]) -> bytes:
    """Pack the tokens that components promote and suppress, and their logits minus the mean over the vocabulary."""
    places = [(position, text.components[i]) for position, i in pairs]
    with model.path.session():
        ids, logits, _ = promotions_of_pairs(model, text.seen, text.unit, places, min(PROMOTED, model.path.outputs))
    tokens, word = np.unique(ids, return_inverse=True)
    arrays = {"place": np.array(pairs, np.int32), "word": word.reshape(ids.shape).astype(np.int32)}
    return pack({"words": drawn_tokens(model, tokens)}, arrays | {"logit": _rough(logits)})


def answers_at(text: TextNumbers, position: int, target: int | None, minus: int | None) -> Pair:
    """Return the two tokens that effects compare: A and B, or else the right or the likeliest tokens."""
    known = text.candidates[:, position]
    a = int(known[text.row(target, position)])
    likeliest = known[np.argsort(-text.probabilities[:, position], kind="stable")].tolist()
    order = [minus, *likeliest] if minus in likeliest else likeliest
    return next((a, i) for i in order if i != a)


def pack_effects(model: Model, text: TextNumbers, position: int, answers: Pair, labels: Sequence[str]) -> bytes:
    """Pack the effects of components, zero-ablated one by one, on two tokens' logit difference at a position.

    The header's `why` names what cannot be ablated.
    """
    rows: list[dict[str, Any]] = []
    header = {"position": position, "answers": list(answers), "asked": list(labels), "rows": rows, "why": ""}
    heads_of: dict[str, list[str]] = {}
    for i in text.heads:
        heads_of.setdefault(text.components[i].sublayer.label, []).append(text.labels[i])
    # If attention is split into heads, the whole sublayer is all of its heads.
    groups = {label: heads_of[label] for label in labels if label in heads_of}
    try:
        found = effects(
            model,
            [text.token_ids[: position + 1].tolist()],
            options=[list(answers)],
            labels=[0],
            unit="head" if text.heads else "sublayer",
            ablation="zero",
            components=[label for label in labels if label not in groups],
            groups=groups or None,
        )
    except InputError as error:
        return pack(header | {"why": str(error)}, {})
    direct, total = (found.effect(name)[0] for name in ("direct", "total"))
    for number, label in enumerate(found.names):
        frame = found.compensation(label)
        *later, norm = zip(frame["component"], frame["compensation"].astype(float), strict=True)
        row = {"label": label, "direct": float(direct[number]), "total": float(total[number])}
        rows.append(row | {"later": later, "norm": norm[1]})
    return pack(header, {})


def pack_sources(sources: TextSources, text: TextNumbers, pairs: Sequence[Pair]) -> bytes:
    """Pack the source tokens with the largest contributions through some heads, given `sources` of all candidates.

    For each head and candidate: the LISTED sources, then the sum of all others. The header's `why` names heads that
    cannot be split.
    """
    source = np.full((len(pairs), LISTED), -1, dtype=np.int32)
    logit = np.zeros((len(pairs), LISTED + 1, len(text.candidates)), dtype=np.float32)
    rows_of = _rows_of(pairs)
    places = {text.components[i]: [pairs[row][0] for row in rows] for i, rows in rows_of.items()}
    try:
        for (i, rows), (head, values) in zip(rows_of.items(), sources.split(places), strict=True):
            at = places[head]
            sources.gap(head, values, text.contributions[:, i, at].T)
            order = np.argsort(-np.abs(values).max(2), axis=1, kind="stable")[:, :LISTED]
            listed = np.take_along_axis(values, order[:, :, None], axis=1)
            source[rows, : order.shape[1]] = np.where(order <= np.array(at)[:, None], order, -1)
            logit[rows, : order.shape[1]] = listed
            logit[rows, LISTED] = values.sum(1) - listed.sum(1)
    except InputError as error:
        return pack({"why": str(error)}, {})
    return pack({"why": ""}, {"place": np.array(pairs, np.int32), "source": source, "logit": _rough(logit)})


def _rows_of(pairs: Sequence[Pair]) -> dict[int, list[int]]:
    """Group the indices of pairs by component."""
    rows_of: dict[int, list[int]] = {}
    for row, (_, component) in enumerate(pairs):
        rows_of.setdefault(component, []).append(row)
    return rows_of


def drawn_tokens(model: Model, ids: Iterable[int]) -> list[str]:
    """Display every token on one line: a leading blank as a space, a control character by its number."""
    ids = [int(i) for i in ids]
    pieces = [""] * len(ids) if model.tokenizer is None else model.tokenizer.convert_ids_to_tokens(ids)
    return [drawn(*pair) for pair in zip(token_texts(model, ids), pieces, strict=True)]


def drawn(text: str, piece: str | None = None) -> str:
    """Display a token by its text, completed from the tokenizer's own name for it if the text loses information.

    >>> drawn("a\\n"), drawn("\\u200b"), drawn("Mary", "▁Mary")
    ('a⏎', '⟨U+200B⟩', ' Mary')
    """
    piece = piece if isinstance(piece, str) else ""
    if piece.startswith("▁") and not text.startswith(" "):  # SentencePiece drops the blank of a single token
        text = " " * (len(piece) - len(piece.lstrip("▁"))) + text.lstrip(" ")
    letters = []
    for c in text:
        unseen = f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in _UNSEEN else c
        letters.append(_SHOWN.get(c, unseen))
    return "".join(letters) or "∅"


def _rough(values: np.ndarray) -> np.ndarray:
    """Round to 11 binary digits, of which three decimal ones are shown: more would not compress."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x800)) & np.uint32(0xFFFFF000)).view(np.float32)


def pack(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Deflate the length of a JSON header, the header padded to 4 bytes, and the arrays; data.js unpacks them."""
    entries, body, start = [], [], 0
    for name, values in arrays.items():
        entries.append({"name": name, "type": values.dtype.name, "shape": values.shape, "start": start})
        raw = np.ascontiguousarray(values).tobytes()
        body.append(raw + bytes(-len(raw) % 4))
        start += len(body[-1])
    text = json.dumps(header | {"arrays": entries}, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return zlib.compress(len(text).to_bytes(4, "little") + text + b"".join(body), 4)
