"""All numbers of one text in an explorer, from one pass of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..._checks import whole_number
from ...attribution.profile import profile_of_pass
from ...attribution.profile_results import Profile
from ...attribution.promoted_tokens import next_tokens, token_logits
from ...components import Component, Unit
from ...depth.logit_lens import lens_answers
from ...errors import InputError
from ...model.attention import AttentionPatterns, attention_patterns
from ...model.batches import pad
from ...model.load import Model
from ...model.options import single_tokens
from ...model.passes import Pass
from ...model.predictions import generate_tokens
from ...model.prompts import encode, to_python
from ...model.units import cut_of

# Maximal number of tokens that a page can hold; ld.profile has no such limit.
LONGEST = 512
# Maximal count of attention weights on a page, over all heads, a byte each.
_WEIGHTS = 80_000_000
# Maximal count of multiplications for the logit lens; beyond it, only every second, third … layer is read out.
_LENS_WORK = 7e10
# Number of the model's likeliest next tokens available as targets at every position.
LIKELIEST = 5
STEPS = ("components", "answers", "attention")


@dataclass(frozen=True, eq=False)
class TextNumbers:
    """All numbers of one text. Returned by `measure_text`.

    Attributes:
        sublayers, heads: The profile at either unit, n positions; heads is None if there are none, for the reason
            `no_heads`. The last position is compared with the first of `targets`, if there is one.
        targets: The requested tokens: A, or A and B.
        candidates: `[token, position]`, ids of the tokens to which contributions are measured: the right one (−1 if
            unknown), the model's likeliest, then `targets`.
        probabilities, entropies: The model's, `[token, position]` and `[position]`.
        logits: For each unit, contributions to the candidates `[token, position, component]`, and their means under the
            model's distribution `[position, component]`.
        lens: The junctions, and the likeliest token after each with its probability, `[junction, position]`.
        attention: The attention patterns of every head; None for the reason `no_attention`.
        written: Number of tokens at the end that the model generated.
    """

    sublayers: Profile
    heads: Profile | None
    targets: tuple[int, ...]
    candidates: Int[np.ndarray, "token position"]
    probabilities: Float[np.ndarray, "token position"]
    entropies: Float[np.ndarray, " position"]
    logits: tuple[tuple[np.ndarray, np.ndarray], ...]
    lens: tuple[tuple[Component, ...], Int[np.ndarray, "junction position"], Float[np.ndarray, "junction position"]]
    attention: AttentionPatterns | None
    no_heads: str = ""
    no_attention: str = ""
    written: int = 0
    # The pass, kept for later requests while the text is explored.
    seen: Pass | None = field(default=None, repr=False)

    @property
    def profiles(self) -> list[Profile]:
        """The profile of the sublayers, and that of the heads if there are any."""
        return [self.sublayers] if self.heads is None else [self.sublayers, self.heads]

    @property
    def length(self) -> int:
        """The number of tokens of the text."""
        return len(self.sublayers.token_ids)

    @property
    def shown(self) -> tuple[Component, ...]:
        """All sublayers, then all heads."""
        heads = () if self.heads is None else [c for c in self.heads.components if c.kind == "head"]
        return (*self.sublayers.components, *heads)

    def of_shown(self, tables: Sequence[np.ndarray]) -> np.ndarray:
        """Join the units' tables `[…, position, component]` to one of all shown, `[…, component, position]`."""
        heads = [] if self.heads is None else [tables[1][..., [c.kind == "head" for c in self.heads.components]]]
        return np.concatenate([tables[0], *heads], -1).swapaxes(-1, -2)

    def pass_at(self, unit: Unit) -> Pass:
        """Return the pass with or without heads."""
        assert self.seen is not None
        return self.seen if unit == "head" else self.seen.uncut()

    @property
    def target_logits(self) -> Float[np.ndarray, "token component position"]:
        """Contributions of all shown components to each candidate, in logits minus the mean over the vocabulary."""
        return self.of_shown([to_tokens for to_tokens, _ in self.logits])


def measure_text(
    model: Model,
    text_or_ids: Any,
    target: Any = None,
    generate: int = 0,
    written: int = 0,
    on_step: Callable[[str], None] = lambda step: None,
) -> TextNumbers:
    """Measure one text; `on_step` is called with the name of each of STEPS before it begins.

    Args:
        target: A token (its text or id), or two: A and B. Contributions to them are measured at every position; the
            last prediction is compared with A as the next token.
        generate: Number of tokens that the model first generates greedily; fewer if it ends the text.
        written: Number of tokens at the end of the text that were generated before.

    Raises InputError for a text that an explorer cannot show, and for a target that is not one token.
    """
    given, targets = _checked(model, text_or_ids, target, generate)
    on_step("components")
    ids, path = [*given, *generate_tokens(model, given, generate)], model.path
    no_heads = _why_no_heads(model)
    units: tuple[Unit, ...] = ("sublayer",) if no_heads else ("sublayer", "head")
    with path.session():
        # The target is appended, which changes nothing before it.
        tokens, mask = pad([[*ids, *targets[:1]]])
        every = mask[0].cumsum(0) - 1  # the index of each token
        passed = path.record(tokens, mask, 0 * every, every, partial(cut_of, units[-1]))
        of_unit = dict(zip(units, (passed.uncut(), passed), strict=False))
        profiles = [
            _first_positions(profile_of_pass(model, [*ids, *targets[:1]], unit, of_unit[unit]), len(ids))
            for unit in units
        ]
        on_step("answers")
        here = {unit: seen.take(slice(0, len(ids))) for unit, seen in of_unit.items()}
        known = np.array([[*ids[1:], *targets[:1], -1][: len(ids)], *([i] * len(ids) for i in targets)])
        best, p_best, p_known, entropies = next_tokens(here["sublayer"], min(LIKELIEST, path.outputs), known)
        candidates = np.concatenate([known[:1], best, known[1:]])
        # If the next token is unknown, its row holds contributions to the likeliest token.
        asked = np.where(candidates < 0, candidates[1], candidates)
        layers = len({(writer.block, number) for writer, number in path.calls})
        work = len(ids) * layers * path.outputs * path.width
        lens = lens_answers(model, tuple(ids), max(1, round(work / _LENS_WORK + 0.49)))
        logits = tuple(token_logits(model, here[unit], unit, asked) for unit in units)
        on_step("attention")
        attention, no_attention = (None, no_heads) if no_heads else _attention(model, ids, profiles[1])
    return TextNumbers(
        sublayers=profiles[0],
        heads=None if no_heads else profiles[1],
        targets=targets,
        candidates=candidates,
        probabilities=np.concatenate([p_known[:1], p_best, p_known[1:]]),
        entropies=entropies,
        logits=logits,
        lens=lens,
        attention=attention,
        no_heads=no_heads,
        no_attention=no_attention,
        written=written + len(ids) - len(given),
        seen=here[units[-1]],
    )


def _checked(model: Model, text_or_ids: Any, target: Any, generate: int) -> tuple[list[int], tuple[int, ...]]:
    """Return the ids of a text and of its targets, after checking that an explorer can show them."""
    rows = encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"an explorer shows one text, but {len(rows)} were given: explore them one by one.")
    given, limit = list(rows[0]), min(LONGEST, model.context or LONGEST)
    if len(given) + whole_number("generate", generate, 0, LONGEST) > limit:
        more = f" and {generate} to be written" if generate else ""
        raise InputError(
            f"the text has {len(given)} tokens{more}, but an explorer shows at most {limit} of this model: give a "
            "shorter one, or take layerdiv_tl.profile and its figures."
        )
    several = isinstance(target := to_python(target), list | tuple)
    wanted = list(target) if several else [] if target is None else [target]
    if len(wanted) > 2:
        raise InputError(f"target holds {len(wanted)} tokens: give one, or two whose difference is to be explained.")
    ids = single_tokens(model, wanted, rows, not generate, "target")[0][0] if wanted else ()
    return given, tuple(int(i) for i in ids)


def _why_no_heads(model: Model) -> str:
    """Return why a model has no heads to show, or nothing."""
    try:
        has_heads = any(c.kind == "head" for c in model.components("head"))
        return "" if has_heads else f"{model.name} has no attention heads."
    except InputError as error:
        return str(error)


def _attention(model: Model, ids: list[int], heads: Profile) -> tuple[AttentionPatterns | None, str]:
    """Return the attention patterns of every head, or why there are none."""
    count = sum(c.kind == "head" for c in heads.components)
    if count * len(ids) * (len(ids) + 1) / 2 > _WEIGHTS:
        return None, f"{count} heads over {len(ids)} tokens have more weights than a page holds."
    try:
        return attention_patterns(model, ids), ""
    except InputError as error:
        return None, str(error)


def _first_positions(profile: Profile, count: int) -> Profile:
    """Truncate a profile to its first positions."""
    rows: dict[str, Any] = {f.name: getattr(profile, f.name) for f in fields(profile) if f.name != "components"}
    per_position: dict[str, Any] = {
        name: x[:count]
        for name, x in rows.items()
        if isinstance(x, np.ndarray | tuple) and len(x) == len(profile.token_ids)
    }
    return replace(profile, **per_position)
