"""Where passes come from: prompts or a cache."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..components import Component, Unit
from ..errors import InputError
from ..model import activation_cache as caching
from ..model import tokenization as reading
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model
from .unembedding import Part, Readout, read_out

# Behind a pass, rows are worked on together until they make this many numbers (4 MiB in float64):
# it bounds what short prompts with many components and options would otherwise need.
NUMBERS = 500_000


@dataclass(frozen=True, eq=False)
class Source:
    """Passes, from prompts or from a cache; can be gone through more than once."""

    model: Model
    unit: Unit
    ids: list[tuple[int, ...]]
    at: Int[np.ndarray, " example"]
    batch_tokens: int
    cached: Activations | None

    def passes(self) -> Iterator[tuple[list[int], Activations]]:
        """Row numbers and their pass, batch after batch."""
        if self.cached is not None:
            yield list(range(len(self.ids))), self.cached
            return
        lengths = [len(row) for row in self.ids]
        for rows in batches(lengths, self.batch_tokens, self.model.architecture.length_switch):
            tokens, mask = pad([self.ids[row] for row in rows])
            yield rows, run(self.model.architecture, tokens, mask, torch.as_tensor(self.at[rows]), self.unit)

    def parts(
        self, readout: Readout, option_ids: Int[np.ndarray, "example option"], keep: Set[Component] | None
    ) -> Iterator[Part]:
        """The passes taken apart, some rows at a time; `keep` None keeps all components."""
        from tqdm.auto import tqdm

        architecture = self.model.architecture
        numbers = (
            option_ids.shape[1] * len(architecture.components(self.unit))
            + len(architecture.sublayers) * architecture.norm.gain.numel()
        )
        step = max(1, NUMBERS // numbers)
        progress = tqdm(total=len(self.ids), desc=self.model.name, unit="prompt", delay=2, leave=False)
        with inference_mode_for(architecture), progress:
            for rows, done in self.passes():
                for start in range(0, len(rows), step):
                    some = slice(start, start + step)
                    chosen = np.array(rows[some])
                    yield read_out(architecture, readout, done.rows(some), chosen, option_ids, self.unit, keep)
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
