"""Encoding of a text's numbers for the browser."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attribution.promoted_tokens import promotions_of_pairs
from ...attribution.vocabulary import vocabulary_readout
from ...components import Unit
from ...model.batches import inference_mode_for
from ...model.load import Model
from ..html import read
from .measure import TextNumbers
from .tokens import drawn_tokens

# Maximal count of multiplications for a page's promoted tokens: about ten seconds on two cores.
_WORK = 2e11
PROMOTED = 5
# Files concatenated to the ES module that draws pages and notebook widgets, without a build step.
_FILES = (
    "data draw measures choose views ranked attention answers promotes sources effects form "
    "look toolbar frame explorer page"
).split()
SCRIPT = "\n".join(read(f"explorer/{name}.js") for name in _FILES)
CSS = read("explorer/explorer.css")


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
    known = [int(word) for word in words if word >= 0]
    header = {
        "tokens": drawn_tokens(model, text.sublayers.token_ids),
        "targets": list(text.targets),
        "written": text.written,
        # −1 (no token) comes first if present.
        "ids": [-1] * (len(words) - len(known)) + known,
        "words": [""] * (len(words) - len(known)) + drawn_tokens(model, known),
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
    count, k = len(text.shown), min(PROMOTED, text.sublayers.vocabulary)
    per_position = text.sublayers.vocabulary * model.architecture.norm.gain.numel() * len(at)
    most = min(count, max(8, int(_WORK / per_position)))
    strength = np.abs(text.target_logits[:2]).max(0)
    chosen = [np.sort(np.argsort(-strength[:, position], kind="stable")[:most]) for position in at]
    pairs = [(position, int(component)) for position, row in zip(at, chosen, strict=True) for component in row]
    ids, logits = np.zeros((len(pairs), 2 * k), np.int64), np.zeros((len(pairs), 2 * k), np.float32)
    units: tuple[Unit, ...] = ("sublayer", "head")
    with inference_mode_for(model.architecture):
        for unit, numbers in zip(units, text.profiles, strict=False):
            own = [n for n, (_, i) in enumerate(pairs) if (text.shown[i].kind == "head") == (unit == "head")]
            if not own:
                continue
            column = {c: i for i, c in enumerate(numbers.components)}
            of_unit = [(pairs[n][0], column[text.shown[pairs[n][1]]]) for n in own]
            ids[own], logits[own], _ = promotions_of_pairs(
                vocabulary_readout(model, unit, "float32"), text.pass_at(unit), of_unit, k
            )
    blobs = []
    for start in range(0, len(at), size):
        some = slice(start * most, (start + size) * most)
        tokens, word = np.unique(ids[some], return_inverse=True)
        # Three digits are shown; more would not compress.
        rounded = (logits[some].view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
        header = {"words": drawn_tokens(model, tokens), "positions": [int(p) for p in at[start : start + size]]}
        component = np.array([i for _, i in pairs[some]], dtype=np.int32)
        arrays = {"component": component, "word": word.reshape(rounded.shape).astype(np.int32), "logit": rounded}
        blobs.append(pack(header, arrays))
    return blobs


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
