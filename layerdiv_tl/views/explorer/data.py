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
from ...components import Component
from ...errors import InputError
from ...model import tokenization as reading
from ...model.attention import AttentionPatterns, attention_patterns
from ...model.load import Model
from ..html import visible

# What a page can hold and a reader survey; ld.profile itself has no such limit.
LONGEST = 512
# Attention weights of all heads together that a page holds: a byte each.
_WEIGHTS = 12_000_000
# Multiplications that looking up promoted tokens for a whole page may take: minutes on two cores.
_WORK = 4e12
PROMOTED = 5
NEAREST, OPPOSED = 5, 3
STEPS = ("sublayers", "heads", "attention", "duplicates")

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Findings:
    """What an explorer knows about one text. Made by `find`.

    target
        The token held against the last position, or None.
    sublayers, heads
        The profile of either cut, n positions; heads is None where there are none to tell apart, for the reason
        `no_heads`.
    attention
        What every head looks at; None for the reason `no_attention`.
    alike
        For each cut its components and the cosines between what they wrote, `[component, component]`.
    """

    target: str | None
    sublayers: SquaredProfile
    heads: SquaredProfile | None
    attention: AttentionPatterns | None
    alike: tuple[tuple[tuple[Component, ...], Float[np.ndarray, "component component"]], ...]
    no_heads: str = ""
    no_attention: str = ""

    @property
    def shown(self) -> tuple[Component, ...]:
        """All sublayers, then all heads."""
        heads = () if self.heads is None else [c for c in self.heads.components if c.kind == "head"]
        return (*self.sublayers.components, *heads)

    def table(self, term: str, part: str) -> Float[np.ndarray, "component position"]:
        """A term of every component that is shown, each within its own cut; "logit" has no parts."""
        rows = []
        for cut in self.cuts:
            half = cut.centered if part == "centered" and term != "logit" else cut
            assert half is not None
            values = cut.centered_targets.T if term == "logit" else getattr(half, term)
            rows.append(values if cut is self.sublayers else values[[c.kind == "head" for c in cut.components]])
        return np.concatenate(rows)

    def sums(self, term: str, part: str) -> Float[np.ndarray, "cut position"]:
        """A term summed over all components of each cut: what a share is a share of."""
        halves = [cut.centered if part == "centered" else cut for cut in self.cuts]
        return np.stack([getattr(half, term).sum(0) for half in halves])

    def silent(self, term: str, part: str) -> Float[np.ndarray, "cut position"]:
        """A term of a component that writes nothing: its bias is the target's size, its diversity the ensemble's."""
        rows = []
        for cut in self.cuts:
            shift = part == "raw"
            bias = cut.target_powers / cut.vocabulary + shift * cut.target_means**2
            diversity = cut.powers / cut.vocabulary + shift * cut.ensemble_means**2
            rows.append({"bias": bias, "diversity": diversity, "net": bias - diversity}[term])
        return np.stack(rows)

    @property
    def cuts(self) -> list[SquaredProfile]:
        """The profile of the sublayers, and that of the heads where there are any."""
        return [cut for cut in (self.sublayers, self.heads) if cut is not None]


def find(model: Model, text_or_ids: Any, target: Any = None, say: Say = lambda step: None) -> Findings:
    """Measure one text; `say` hears the name of each of STEPS before it begins.

    target
        A token (as written, or its id) that predictions at the last position are held against, as if it were the next
        one: it is put behind the text, which leaves everything before it as it was, and its own position is left out.

    Raises InputError for a text that an explorer cannot show, and for a target that is not one token.
    """
    rows = reading.encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError("texts are explored one by one: give a list of texts to explore, each a str or a list of ids.")
    ids = list(rows[0])
    if len(ids) > LONGEST:
        raise InputError(
            f"the text has {len(ids)} tokens, but an explorer shows at most {LONGEST}: give a shorter one, or take "
            "layerdiv_tl.profile and its figures."
        )
    behind, name = [], None
    if target is not None:
        behind = [int(reading.options(model, [target], 1)[0][0, 0])]
        (name,) = texts_of(model, behind)
    cuts: list[SquaredProfile | None] = []
    no_heads = no_attention = ""
    for step, unit in (("sublayers", "sublayer"), ("heads", "head")):
        say(step)
        try:
            if unit == "head" and not any(c.kind == "head" for c in model.components("head")):
                raise InputError(f"{model.name} has no attention heads.")
            cut = profile(model, ids + behind, unit)  # type: ignore[arg-type]
            assert isinstance(cut, SquaredProfile)
            cuts.append(_first(cut, len(ids)))
        except InputError as error:
            if unit == "sublayer":
                raise
            cuts.append(None)
            no_heads = str(error)
    sublayers, heads = cuts
    assert sublayers is not None
    say("attention")
    attention = None
    try:
        if heads is None:
            raise InputError(no_heads)
        count = sum(c.kind == "head" for c in heads.components)
        if count * len(ids) * (len(ids) + 1) / 2 > _WEIGHTS:
            raise InputError(
                f"{count} heads over {len(ids)} tokens look at more than a page holds: take a shorter text."
            )
        attention = attention_patterns(model, ids)
    except InputError as error:
        no_attention = str(error)
    say("duplicates")
    alike = tuple(cosines(model, ids, unit) for unit in (("sublayer",) if heads is None else ("sublayer", "head")))  # type: ignore[arg-type]
    return Findings(name, sublayers, heads, attention, alike, no_heads, no_attention)


def _first(cut: SquaredProfile, count: int) -> SquaredProfile:
    """The first positions of a profile, as if it had no more."""
    whole = len(cut.token_ids)
    rows: dict[str, Any] = {
        field.name: value[:count]
        for field in fields(cut)
        if isinstance(value := getattr(cut, field.name), np.ndarray | tuple)
        and field.name != "components"
        and len(value) == whole
    }
    return replace(cut, **rows)


def packed(findings: Findings) -> bytes:
    """The numbers of a text for `unpack` in data.js."""
    shown = findings.shown
    attention = findings.attention
    arrays: dict[str, np.ndarray] = {"loss": findings.sublayers.losses, "logit": findings.table("logit", "raw")}
    for term in ("bias", "diversity", "net"):
        for part in ("raw", "centered"):
            arrays[f"{term}_{part}"] = findings.table(term, part)
            arrays[f"sum_{term}_{part}"] = findings.sums(term, part)
            arrays[f"silent_{term}_{part}"] = findings.silent(term, part)
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    arrays["near"], arrays["cosine"] = _neighbors(findings)
    if attention is not None:
        query, key = np.tril_indices(len(attention.tokens))
        arrays["attention"] = np.round(attention.patterns[:, query, key] * 255).astype(np.uint8)
    header = {
        "tokens": [visible(token).replace("\n", "") for token in findings.sublayers.tokens],
        "target": None if findings.target is None else visible(findings.target).replace("\n", ""),
        "components": [
            {"label": c.label, "module": c.module, "row": c.sublayer.label.rpartition(".")[0], "head": c.kind == "head"}
            for c in shown
        ],
        "counts": [len(cut.components) for cut in findings.cuts],
        "vocabulary": findings.sublayers.vocabulary,
        "no_heads": findings.no_heads,
        "no_attention": findings.no_attention,
    }
    return _pack(header, arrays)


def _neighbors(findings: Findings) -> tuple[np.ndarray, np.ndarray]:
    """Of every component shown, those of its cut that wrote most like it, then those most against it.

    Their numbers among the shown, −1 where there are fewer, and the cosines; both `[component, NEAREST + OPPOSED]`.
    """
    shown, wide = {c: i for i, c in enumerate(findings.shown)}, NEAREST + OPPOSED
    near = np.full((len(shown), wide), -1, dtype=np.int32)
    cosine = np.zeros((len(shown), wide), dtype=np.float32)
    for number, (names, table) in enumerate(findings.alike):
        kept = [i for i, c in enumerate(names) if c in shown]
        for i in kept:
            if number and names[i].kind != "head":
                continue  # shown within the cut into sublayers
            others = [j for j in kept if j != i and np.isfinite(table[i, j])]
            order = sorted(others, key=lambda j: -table[i, j])
            like = [j for j in order[:NEAREST] if table[i, j] > 0]
            against = [j for j in order[::-1][:OPPOSED] if table[i, j] < 0]
            for start, found in ((0, like), (NEAREST, against)):
                for place, j in enumerate(found, start=start):
                    near[shown[names[i]], place], cosine[shown[names[i]], place] = shown[names[j]], table[i, j]
    return near, cosine


def packed_promotions(model: Model, findings: Findings, at: Sequence[int], size: int = 8) -> list[bytes]:
    """What every component that is shown promotes and suppresses at some positions, for `unpack` in data.js.

    `size` positions travel together; all of them are looked up at once, because going through the vocabulary is what
    costs.
    """
    if not at:
        return []
    ids = findings.sublayers.token_ids.tolist()
    found = [promotions(model, ids, "sublayer", at=at, k=_most(findings))]
    if findings.heads is not None:
        heads = [c for c in findings.shown if c.kind == "head"]
        found.append(promotions(model, ids, "head", heads, at, _most(findings)))
    blobs = []
    for start in range(0, len(at), size):
        some = slice(start, start + size)
        tokens, place = np.unique(np.concatenate([f.ids[some] for f in found], 1), return_inverse=True)
        logits = np.concatenate([f.logits[some] for f in found], 1).astype(np.float32)
        # Three digits are shown: the others would not compress.
        logits = (logits.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
        words = [visible(text).replace("\n", "") for text in texts_of(model, tokens.tolist())]
        header = {"words": words, "positions": [int(p) for p in at[some]]}
        blobs.append(_pack(header, {"word": place.reshape(logits.shape).astype(np.int32), "logit": logits}))
    return blobs


def texts_of(model: Model, ids: Sequence[int]) -> list[str]:
    """The text of each token."""
    return [f"token {i}" if model.tokenizer is None else model.tokenizer.decode([i]) for i in ids]


def _most(findings: Findings) -> int:
    return min(PROMOTED, findings.sublayers.vocabulary)


def lookable(model: Model, findings: Findings, chosen: Sequence[int]) -> list[int]:
    """The positions that a page looks tokens up at: all, or the chosen ones where all would take too long."""
    count = len(findings.sublayers.tokens)
    work = count * len(findings.shown) * findings.sublayers.vocabulary * model.architecture.norm.gain.numel()
    return list(range(count)) if work <= _WORK else sorted(set(chosen))


def _pack(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """The length of a JSON header, the header padded to 4 bytes, then the arrays; deflated."""
    places, body = [], b""
    for name, values in arrays.items():
        places.append({"name": name, "type": values.dtype.name, "shape": values.shape, "start": len(body)})
        raw = np.ascontiguousarray(values).tobytes()
        body += raw + bytes(-len(raw) % 4)
    text = json.dumps(header | {"arrays": places}, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return zlib.compress(len(text).to_bytes(4, "little") + text + body, 6)
