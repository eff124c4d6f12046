"""All numbers of one text that an explorer shows, and how they travel to the browser."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ...attribution.profile import profile
from ...attribution.profile_results import SquaredProfile
from ...attribution.promoted_tokens import cosines, promotions
from ...components import Component, Unit
from ...errors import InputError
from ...model import tokenization
from ...model.attention import AttentionPatterns, attention_patterns
from ...model.load import Model
from ..html import read, visible

# What a page can hold and a reader survey; ld.profile itself has no such limit.
LONGEST = 512
# Attention weights of all heads together that a page holds: a byte each.
_WEIGHTS = 12_000_000
# Multiplications that looking up promoted tokens for a whole page may take: minutes on two cores.
_WORK = 4e12
PROMOTED, NEAREST, OPPOSED = 5, 5, 3
STEPS = ("sublayers", "heads", "attention", "duplicates")
# What draws them, on a page and in a notebook: one ES module of these files one after another, without a build step.
SCRIPT = "\n".join(read(f"explorer/{name}.js") for name in ("data", "draw", "views", "chosen", "explorer"))
CSS = read("explorer/explorer.css")


@dataclass(frozen=True, eq=False)
class TextNumbers:
    """All numbers of one text. Made by `measure_text`.

    Attributes:
        target: The token that the last position is compared with, or None.
        sublayers, heads: The profile at either unit, n positions; heads is None where there are none, for the reason
            `no_heads`.
        attention: The attention patterns of every head; None for the reason `no_attention`.
        cosines: For each unit its components and the cosines between their contributions, `[component, component]`.
    """

    target: str | None
    sublayers: SquaredProfile
    heads: SquaredProfile | None
    attention: AttentionPatterns | None
    cosines: tuple[tuple[tuple[Component, ...], Float[np.ndarray, "component component"]], ...]
    no_heads: str = ""
    no_attention: str = ""

    @property
    def profiles(self) -> list[SquaredProfile]:
        """The profile of the sublayers, and that of the heads where there are any."""
        return [self.sublayers] if self.heads is None else [self.sublayers, self.heads]

    @property
    def shown(self) -> tuple[Component, ...]:
        """All sublayers, then all heads."""
        heads = () if self.heads is None else [c for c in self.heads.components if c.kind == "head"]
        return (*self.sublayers.components, *heads)

    def table(self, term: str, part: str) -> Float[np.ndarray, "component position"]:
        """A term of every component that is shown, within its own unit; "logit" has no parts."""
        sublayers, *heads = (
            p.centered_targets.T if term == "logit" else getattr(_half(p, part), term) for p in self.profiles
        )
        is_head = [] if self.heads is None else [c.kind == "head" for c in self.heads.components]
        return np.concatenate([sublayers, *(values[is_head] for values in heads)])

    def sums(self, term: str, part: str) -> Float[np.ndarray, "unit position"]:
        """A term summed over all components of each unit: what a share is a share of."""
        return np.stack([getattr(_half(p, part), term).sum(0) for p in self.profiles])

    def zero_terms(self, term: str, part: str) -> Float[np.ndarray, "unit position"]:
        """A term of a component that adds nothing: its bias is the target's size, its diversity the ensemble's."""
        rows = []
        for p in self.profiles:
            shift = part == "raw"
            bias = p.target_powers / p.vocabulary + shift * p.target_means**2
            diversity = p.powers / p.vocabulary + shift * p.ensemble_means**2
            rows.append({"bias": bias, "diversity": diversity, "net": bias - diversity}[term])
        return np.stack(rows)


def measure_text(
    model: Model, text_or_ids: Any, target: Any = None, on_step: Callable[[str], None] = lambda step: None
) -> TextNumbers:
    """Measure one text; `on_step` is called with the name of each of STEPS before it begins.

    Args:
        target: A token (as written, or its id) that predictions at the last position are compared with, as if it were
            the next one: it is appended to the text, which leaves everything before it as it was, and its own position
            is left out.

    Raises InputError for a text that an explorer cannot show, and for a target that is not one token.
    """
    rows = tokenization.encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError("texts are explored one by one: give a list of texts to explore, each a str or a list of ids.")
    ids = list(rows[0])
    if len(ids) > LONGEST:
        raise InputError(
            f"the text has {len(ids)} tokens, but an explorer shows at most {LONGEST}: give a shorter one, or take "
            "layerdiv_tl.profile and its figures."
        )
    appended, target_text = [], None
    if target is not None:
        appended = [int(tokenization.options(model, [target], 1)[0][0, 0])]
        (target_text,) = tokenization.token_texts(model, appended)

    def measure(unit: Unit) -> SquaredProfile:
        measured = profile(model, ids + appended, unit)
        assert isinstance(measured, SquaredProfile)
        return _first_positions(measured, len(ids))

    heads = attention = None
    no_heads = no_attention = ""
    on_step("sublayers")
    sublayers = measure("sublayer")
    on_step("heads")
    try:
        if not any(c.kind == "head" for c in model.components("head")):
            raise InputError(f"{model.name} has no attention heads.")
        heads = measure("head")
    except InputError as error:
        no_heads = no_attention = str(error)
    on_step("attention")
    if heads is not None:
        count = sum(c.kind == "head" for c in heads.components)
        try:
            if count * len(ids) * (len(ids) + 1) / 2 > _WEIGHTS:
                raise InputError(
                    f"{count} heads over {len(ids)} tokens have more weights than a page holds: take a shorter text."
                )
            attention = attention_patterns(model, ids)
        except InputError as error:
            no_attention = str(error)
    on_step("duplicates")
    units: tuple[Unit, ...] = ("sublayer",) if heads is None else ("sublayer", "head")
    alike = tuple(cosines(model, ids, unit) for unit in units)
    return TextNumbers(target_text, sublayers, heads, attention, alike, no_heads, no_attention)


def _half(profile: SquaredProfile, part: str) -> SquaredProfile:
    return (profile.centered or profile) if part == "centered" else profile


def _first_positions(profile: SquaredProfile, count: int) -> SquaredProfile:
    """The first positions of a profile, as if it had no more."""
    rows: dict[str, Any] = {field.name: getattr(profile, field.name) for field in fields(profile)}
    per_position = [
        name
        for name, x in rows.items()
        if name != "components" and isinstance(x, np.ndarray | tuple) and len(x) == len(profile.token_ids)
    ]
    return replace(profile, **{name: rows[name][:count] for name in per_position})


def pack_text(text: TextNumbers) -> bytes:
    """The numbers of a text for `unpack` in data.js."""
    arrays: dict[str, np.ndarray] = {"loss": text.sublayers.losses, "logit": text.table("logit", "raw")}
    for term in ("bias", "diversity", "net"):
        for part in ("raw", "centered"):
            arrays[f"{term}_{part}"] = text.table(term, part)
            arrays[f"sum_{term}_{part}"] = text.sums(term, part)
            arrays[f"zero_{term}_{part}"] = text.zero_terms(term, part)
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    arrays["near"], arrays["cosine"] = _neighbors(text)
    if text.attention is not None:
        query, key = np.tril_indices(len(text.attention.tokens))
        arrays["attention"] = np.round(text.attention.patterns[:, query, key] * 255).astype(np.uint8)
    header = {
        "tokens": [_one_line(token) for token in text.sublayers.tokens],
        "target": None if text.target is None else _one_line(text.target),
        "components": [
            {"label": c.label, "module": c.module, "row": c.sublayer.label.rpartition(".")[0], "head": c.kind == "head"}
            for c in text.shown
        ],
        "counts": [len(p.components) for p in text.profiles],
        "vocabulary": text.sublayers.vocabulary,
        "no_heads": text.no_heads,
        "no_attention": text.no_attention,
    }
    return _pack(header, arrays)


def _neighbors(text: TextNumbers) -> tuple[np.ndarray, np.ndarray]:
    """For every component shown, those of its unit with the largest cosines, then those with the most negative ones.

    Their numbers among the shown, −1 where there are fewer, and the cosines; both `[component, NEAREST + OPPOSED]`.
    """
    number = {c: i for i, c in enumerate(text.shown)}
    near = np.full((len(number), NEAREST + OPPOSED), -1, dtype=np.int32)
    cosine = np.zeros(near.shape, dtype=np.float32)
    for unit, (components, table) in enumerate(text.cosines):
        kept = [i for i, c in enumerate(components) if c in number]
        # Of the heads' profile only heads: its other components are shown within the sublayers'.
        for i in [i for i in kept if not unit or components[i].kind == "head"]:
            others = sorted((j for j in kept if j != i and np.isfinite(table[i, j])), key=lambda j: -table[i, j])
            like = [j for j in others[:NEAREST] if table[i, j] > 0]
            against = [j for j in others[::-1][:OPPOSED] if table[i, j] < 0]
            for start, neighbors in ((0, like), (NEAREST, against)):
                row, columns = number[components[i]], slice(start, start + len(neighbors))
                near[row, columns] = [number[components[j]] for j in neighbors]
                cosine[row, columns] = table[i, neighbors]
    return near, cosine


def pack_promotions(model: Model, text: TextNumbers, at: Sequence[int], size: int = 8) -> list[bytes]:
    """The tokens that every component shown promotes and suppresses at some positions, for `unpack` in data.js.

    `size` positions travel together; all of them are looked up at once, because going through the vocabulary is what
    costs.
    """
    if not at:
        return []
    ids, k = text.sublayers.token_ids.tolist(), min(PROMOTED, text.sublayers.vocabulary)
    looked_up = [promotions(model, ids, "sublayer", at=at, k=k)]
    if text.heads is not None:
        heads = [c for c in text.shown if c.kind == "head"]
        looked_up.append(promotions(model, ids, "head", heads, at, k))
    blobs = []
    for start in range(0, len(at), size):
        some = slice(start, start + size)
        tokens, word = np.unique(np.concatenate([p.ids[some] for p in looked_up], 1), return_inverse=True)
        logits = np.concatenate([p.logits[some] for p in looked_up], 1).astype(np.float32)
        # Three digits are shown: the others would not compress.
        logits = (logits.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
        words = [_one_line(token) for token in tokenization.token_texts(model, tokens)]
        header = {"words": words, "positions": [int(p) for p in at[some]]}
        blobs.append(_pack(header, {"word": word.reshape(logits.shape).astype(np.int32), "logit": logits}))
    return blobs


def promoted_positions(model: Model, text: TextNumbers, chosen: Sequence[int]) -> list[int]:
    """The positions that a page looks tokens up at: all, or the chosen ones where all would take too long."""
    count = len(text.sublayers.tokens)
    work = count * len(text.shown) * text.sublayers.vocabulary * model.architecture.norm.gain.numel()
    return list(range(count)) if work <= _WORK else sorted(set(chosen))


def _one_line(token: str) -> str:
    return visible(token).replace("\n", "")


def _pack(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """The length of a JSON header, the header padded to 4 bytes, then the arrays; deflated."""
    entries, body = [], b""
    for name, values in arrays.items():
        entries.append({"name": name, "type": values.dtype.name, "shape": values.shape, "start": len(body)})
        raw = np.ascontiguousarray(values).tobytes()
        body += raw + bytes(-len(raw) % 4)
    text = json.dumps(header | {"arrays": entries}, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return zlib.compress(len(text).to_bytes(4, "little") + text + body, 6)
