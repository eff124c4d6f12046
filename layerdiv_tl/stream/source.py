"""Where passes come from, prompts or a cache, and whether their parts made up the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..components import Component, Unit
from ..errors import InputError
from . import cache as caching
from . import prompts as reading
from .capture import UNNAMED, Pass, batches, first_break, pad, quiet, run
from .loading import Model
from .readout import Part, Readout, take_apart

# Behind a pass, rows are worked on together until they make this many numbers (4 MiB in float64):
# it bounds what short prompts with many components and options would otherwise need.
NUMBERS = 500_000
# Relative to max Σ|u_i|. float32 models measure 1e-7 to 1e-6, half-precision ones up to 2e-2.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True, eq=False)
class Source:
    """Passes, from prompts or from a cache; can be gone through more than once."""

    model: Model
    unit: Unit
    ids: list[tuple[int, ...]]
    at: Int[np.ndarray, " example"]
    batch_tokens: int
    cached: Pass | None

    def passes(self) -> Iterator[tuple[list[int], Pass]]:
        """Row numbers and their pass, batch after batch."""
        if self.cached is not None:
            yield list(range(len(self.ids))), self.cached
            return
        lengths = [len(row) for row in self.ids]
        for rows in batches(lengths, self.batch_tokens, self.model.anatomy.length_switch):
            tokens, mask = pad([self.ids[row] for row in rows])
            yield rows, run(self.model.anatomy, tokens, mask, torch.as_tensor(self.at[rows]), self.unit)

    def parts(
        self, readout: Readout, option_ids: Int[np.ndarray, "example option"], keep: Set[Component] | None
    ) -> Iterator[Part]:
        """The passes taken apart, some rows at a time; `keep` None keeps all components."""
        from tqdm.auto import tqdm

        anatomy = self.model.anatomy
        numbers = (
            option_ids.shape[1] * len(anatomy.components(self.unit)) + len(anatomy.writes) * anatomy.norm.gain.numel()
        )
        step = max(1, NUMBERS // numbers)
        progress = tqdm(total=len(self.ids), desc=self.model.name, unit="prompt", delay=2, leave=False)
        with quiet(anatomy), progress:
            for rows, done in self.passes():
                for start in range(0, len(rows), step):
                    some = slice(start, start + step)
                    chosen = np.array(rows[some])
                    yield take_apart(anatomy, readout, done.rows(some), chosen, option_ids, self.unit, keep)
                del done  # or it would lie beside the next pass
                progress.update(len(rows))


def open_source(
    model: Model,
    prompts: Any,
    position: Any,
    unit: Unit,
    batch_tokens: int,
    cache: Any,
    tokens: Any,
    attention_mask: Any,
) -> Source:
    """The source a user's arguments describe. Raises InputError where they describe none, or two."""
    if cache is None:
        if tokens is not None or attention_mask is not None:
            raise InputError("tokens and attention_mask belong to a cache: give prompts alone, or cache= with tokens=.")
        if prompts is None:
            raise InputError("there are no prompts: give at least one text or list of token ids.")
        ids = reading.encode(model, prompts)
        return Source(model, unit, ids, reading.positions(position, [len(row) for row in ids]), batch_tokens, None)
    if prompts is not None:
        raise InputError("give either prompts or a cache with its tokens, not both.")
    grid, mask = caching.tokens_and_mask(tokens, attention_mask)
    ids = reading.encode(model, [row[real.bool()].tolist() for row, real in zip(grid, mask, strict=True)])
    at = reading.positions(position, [len(row) for row in ids])
    column = mask.argmax(1).cpu() + torch.as_tensor(at)
    return Source(model, unit, ids, at, batch_tokens, caching.read(model, cache, grid, column, unit))


@dataclass(frozen=True)
class Closure:
    """How far the parts are from the whole, each relative to Σ|u_i|.

    split_gap, stream_gap, readout_gap
        Heads or neurons against their sublayer, all writes against the stream, the read-out of the stream
        against what the unembedding returned.
    unexplained
        What the model returns against the known transform of that.
    dtype, answer_dtype
        The precisions of the stream and of the answer.
    """

    split_gap: float
    stream_gap: float
    readout_gap: float
    unexplained: float
    dtype: torch.dtype
    answer_dtype: torch.dtype


def check_closure(name: str, unit: Unit, closure: Closure, stream_break: Callable[[], str]) -> None:
    """The parts must sum to the whole: refuse with the place where the sum breaks.

    `stream_break` finds, when asked, why the writes of a pass do not make up its stream.
    """
    stream_tolerance = TOLERANCE.get(closure.dtype, 1e-4)
    answer_tolerance = max(stream_tolerance, TOLERANCE.get(closure.answer_dtype, 1e-4))
    if not closure.split_gap <= stream_tolerance:
        off, tolerance = closure.split_gap, stream_tolerance
        where = (
            f"its {unit}s do not add up to their sublayers (a hook on the output projection, or weights that "
            "are wrapped, packed or of another precision, do that)"
        )
    elif not closure.stream_gap <= stream_tolerance:
        off, tolerance = closure.stream_gap, stream_tolerance
        where = stream_break()
    elif not closure.readout_gap <= answer_tolerance:
        off, tolerance = closure.readout_gap, answer_tolerance
        where = "its final norm and unembedding do not give its logits (as where it may exit early)"
    elif not closure.unexplained <= answer_tolerance:
        off, tolerance = closure.unexplained, answer_tolerance
        where = "it changes what its unembedding returned in a way this package does not know"
    else:
        return
    raise InputError(
        f"{name} cannot be decomposed: {where} (off by {off:.1e} of Σ|u|, where rounding explains {tolerance:.0e})."
    )


def stream_break(model: Model, ids: Sequence[int]) -> str:
    """Why the writes at the last token of a prompt do not make up its stream, found by running it once more."""
    with quiet(model.anatomy):
        place = first_break(model.anatomy, ids)
    if place is not None:
        return f"{UNNAMED} {place}"
    return "its sublayers do not add up to its residual stream"
