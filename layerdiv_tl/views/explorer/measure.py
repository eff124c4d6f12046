"""All numbers of one text that an explorer shows, from one pass of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..._checks import whole_number
from ...attribution.profile import profile_of_pass
from ...attribution.profile_results import SquaredProfile
from ...attribution.promoted_tokens import next_tokens, token_logits
from ...attribution.vocabulary import vocabulary_readout
from ...components import Component, Unit
from ...depth.logit_lens import lens_answers
from ...errors import InputError
from ...model.attention import AttentionPatterns, attention_patterns
from ...model.batches import inference_mode_for, pad
from ...model.capture import Activations, answers
from ...model.forward_pass import run
from ...model.load import Model
from ...model.options import single_tokens
from ...model.prompts import encode, to_python

# What a page can hold and a reader survey; ld.profile itself has no such limit.
LONGEST = 512
# Attention weights of all heads together that a page holds: a byte each.
_WEIGHTS = 80_000_000
# Multiplications that the answers at every depth may take; beyond that, only every second, third … layer is read.
_LENS_WORK = 7e10
# The model's likeliest next tokens, which are there as targets at every position.
LIKELIEST = 5
STEPS = ("components", "answers", "attention")


@dataclass(frozen=True, eq=False)
class TextNumbers:
    """All numbers of one text. Made by `measure_text`.

    Attributes:
        sublayers, heads: The profile at either unit, n positions; heads is None where there are none, for the reason
            `no_heads`. The last position is compared with the first of `targets`, if there is one.
        targets: The tokens that were asked for: A, or A and B.
        candidates: `[token, position]`, ids of the tokens that contributions are measured to: the right one (−1 where
            none is known), the model's likeliest, then `targets`.
        probabilities, entropies: The model's, `[token, position]` and `[position]`.
        logits: Of each unit: what its components add to the candidates `[token, position, component]`, and the means of
            that under the model's distribution `[position, component]`.
        lens: The junctions, and the likeliest token after each of them with its probability, `[junction, position]`.
        attention: The attention patterns of every head; None for the reason `no_attention`.
        written: How many tokens at the end the model wrote itself.
    """

    sublayers: SquaredProfile
    heads: SquaredProfile | None
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
    # The pass, for what is looked up later; a text has one for as long as it is explored.
    activations: Activations | None = field(default=None, repr=False)

    @property
    def profiles(self) -> list[SquaredProfile]:
        """The profile of the sublayers, and that of the heads where there are any."""
        return [self.sublayers] if self.heads is None else [self.sublayers, self.heads]

    @property
    def length(self) -> int:
        """How many tokens the text has."""
        return len(self.sublayers.token_ids)

    @property
    def shown(self) -> tuple[Component, ...]:
        """All sublayers, then all heads."""
        heads = () if self.heads is None else [c for c in self.heads.components if c.kind == "head"]
        return (*self.sublayers.components, *heads)

    def of_shown(self, tables: Sequence[np.ndarray]) -> np.ndarray:
        """A table `[…, position, component]` for each unit as one of the components that are shown, `[…, component,
        position]`.
        """
        kept = [tables[0]]
        if self.heads is not None:
            kept.append(tables[1][..., [c.kind == "head" for c in self.heads.components]])
        return np.concatenate(kept, -1).swapaxes(-1, -2)

    def pass_at(self, unit: Unit) -> Activations:
        """The pass, with or without heads."""
        assert self.activations is not None
        return self.activations if unit == "head" else _uncut(self.activations)

    @property
    def target_logits(self) -> Float[np.ndarray, "token component position"]:
        """What every component shown adds to each candidate, in logits beyond its mean over the vocabulary."""
        return self.of_shown([to_tokens for to_tokens, _ in self.logits])


def measure_text(
    model: Model,
    text_or_ids: Any,
    target: Any = None,
    generate: int = 0,
    on_step: Callable[[str], None] = lambda step: None,
) -> TextNumbers:
    """Measure one text; `on_step` is called with the name of each of STEPS before it begins.

    Args:
        target: A token (as written, or its id), or two: A and B. They are measured at every position; predictions at
            the last position are compared with A, as if it were the next token.
        generate: How many tokens the model first writes on, each its likeliest; it may end the text before.

    Raises InputError for a text that an explorer cannot show, and for a target that is not one token.
    """
    rows = encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError("texts are explored one by one: give a list of texts to explore, each a str or a list of ids.")
    given = list(rows[0])
    limit = min(LONGEST, model.context or LONGEST)
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
    targets = tuple(int(i) for i in single_tokens(model, wanted, rows, not generate, "target")[0][0]) if wanted else ()
    on_step("components")
    ids = [*given, *_written(model, given, generate)]
    no_heads = no_attention = ""
    try:
        if not any(c.kind == "head" for c in model.components("head")):
            raise InputError(f"{model.name} has no attention heads.")
    except InputError as error:
        no_heads = no_attention = str(error)
    units: tuple[Unit, ...] = ("sublayer",) if no_heads else ("sublayer", "head")
    attention = None
    with inference_mode_for(model.architecture):
        # The target is appended: all before it is as it was.
        passed = run(model.architecture, *pad([[*ids, *targets[:1]]]), units[-1])
        of_unit = dict(zip(units, (_uncut(passed), passed), strict=False))
        profiles = []
        for unit in units:
            measured = profile_of_pass(model, [*ids, *targets[:1]], unit, of_unit[unit])
            assert isinstance(measured, SquaredProfile)
            profiles.append(_first_positions(measured, len(ids)))
        on_step("answers")
        here = {unit: activations.at_positions(slice(0, len(ids))) for unit, activations in of_unit.items()}
        readouts = {unit: vocabulary_readout(model, unit, "float32") for unit in units}
        known = np.array([[*ids[1:], *targets[:1], -1][: len(ids)], *([i] * len(ids) for i in targets)])
        top = min(LIKELIEST, model.architecture.outputs)
        best, p_best, p_known, entropies = next_tokens(readouts["sublayer"], here["sublayer"], top, known)
        candidates = np.concatenate([known[:1], best, known[1:]])
        # Where no next token is known, its row holds what is added to the likeliest.
        asked = np.where(candidates < 0, candidates[1], candidates)
        logits = tuple(token_logits(readouts[unit], here[unit], asked) for unit in units)
        work = len(ids) * (len(model.architecture.blocks) + 1) * model.architecture.outputs * passed.final.shape[1]
        lens = lens_answers(model.architecture, here["sublayer"], max(1, round(work / _LENS_WORK + 0.49)))
        on_step("attention")
        if not no_attention:
            count = sum(c.kind == "head" for c in profiles[1].components)
            try:
                if count * len(ids) * (len(ids) + 1) / 2 > _WEIGHTS:
                    raise InputError(f"{count} heads over {len(ids)} tokens have more weights than a page holds.")
                attention = attention_patterns(model, ids)
            except InputError as error:
                no_attention = str(error)
    return TextNumbers(
        sublayers=profiles[0],
        heads=profiles[1] if len(profiles) > 1 else None,
        targets=targets,
        candidates=candidates,
        probabilities=np.concatenate([p_known[:1], p_best, p_known[1:]]),
        entropies=entropies,
        logits=logits,
        lens=lens,
        attention=attention,
        no_heads=no_heads,
        no_attention=no_attention,
        written=len(ids) - len(given),
        activations=here[units[-1]],
    )


def _uncut(activations: Activations) -> Activations:
    """A pass whose sublayers are not cut into heads."""
    return replace(activations, sublayer_outputs=tuple(replace(o, values=None) for o in activations.sublayer_outputs))


def _written(model: Model, ids: Sequence[int], count: int) -> list[int]:
    """The tokens that a model writes on, each its likeliest, until it ends the text."""
    end = getattr(model.tokenizer, "eos_token_id", None)
    written: list[int] = []
    with inference_mode_for(model.architecture):
        while len(written) < count:
            tokens, mask = pad([[*ids, *written]])
            device = model.architecture.device
            _, logits = answers(model.architecture, tokens.to(device), mask.to(device), (mask.sum(1) - 1).to(device))
            best = int(logits[0].argmax())
            if best == end:
                break
            written.append(best)
    return written


def _first_positions(profile: SquaredProfile, count: int) -> SquaredProfile:
    """The first positions of a profile, as if it had no more."""
    rows: dict[str, Any] = {f.name: getattr(profile, f.name) for f in fields(profile)}
    per_position = [
        name
        for name, x in rows.items()
        if name != "components" and isinstance(x, np.ndarray | tuple) and len(x) == len(profile.token_ids)
    ]
    return replace(profile, **{name: rows[name][:count] for name in per_position})
