"""The forward passes that contributions are read from: of prompts, or cached before."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..components import Component, Unit
from ..errors import InputError
from ..model import activation_cache, tokenization
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model
from .stream_writes import StreamWalk
from .unembedding import BatchContributions, OptionReadout, read_out

# After a pass, rows are read out together until they make this many numbers (4 MiB in float64): it bounds the memory
# of short prompts with many components and options.
NUMBERS = 500_000


@dataclass(frozen=True, eq=False)
class PromptPasses:
    """Passes over prompts `ids`, read at the positions `at`, or one cached pass; can be repeated."""

    model: Model
    unit: Unit
    ids: list[tuple[int, ...]]
    at: Int[np.ndarray, " example"]
    batch_tokens: int
    cached: Activations | None = None

    def read_out(self, readout: OptionReadout, keep: Set[Component] | None) -> Iterator[BatchContributions]:
        """The contributions of some rows at a time; `keep` None keeps all components."""
        from tqdm.auto import tqdm

        architecture, walk = self.model.architecture, StreamWalk(self.model.architecture, self.unit)
        per_row = readout.option_ids.shape[1] * len(architecture.components(self.unit))
        step = max(1, NUMBERS // (per_row + len(architecture.sublayers) * architecture.norm.gain.numel()))
        progress = tqdm(total=len(self.ids), desc=self.model.name, unit="prompt", delay=2, leave=False)
        with inference_mode_for(architecture), progress:
            for rows, activations in self._passes():
                for start in range(0, len(rows), step):
                    some = slice(start, start + step)
                    yield read_out(walk, readout, activations.rows(some), np.array(rows[some]), keep)
                del activations  # or it would be held during the next pass
                progress.update(len(rows))

    def _passes(self) -> Iterator[tuple[list[int], Activations]]:
        """Row numbers and their pass, batch after batch."""
        if self.cached is not None:
            yield list(range(len(self.ids))), self.cached
            return
        lengths = [len(row) for row in self.ids]
        for rows in batches(lengths, self.batch_tokens, self.model.architecture.length_switch):
            tokens, mask = pad([self.ids[row] for row in rows])
            yield rows, run(self.model.architecture, tokens, mask, torch.as_tensor(self.at[rows]), self.unit)


def prompt_passes(
    model: Model, prompts: Any, position: Any, unit: Unit, batch_tokens: int, cache: Any, tokens: Any, mask: Any
) -> PromptPasses:
    """The passes that a user's arguments describe. Raises InputError where they describe none, or two."""
    if cache is not None:
        if prompts is not None:
            raise InputError("give either prompts or a cache with its tokens, not both.")
        tokens, mask = activation_cache.tokens_and_mask(tokens, mask)
        prompts = [row[real.bool()].tolist() for row, real in zip(tokens, mask, strict=True)]
    elif tokens is not None or mask is not None:
        raise InputError("tokens and attention_mask belong to a cache: give prompts alone, or cache= with tokens=.")
    elif prompts is None:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    ids = tokenization.encode(model, prompts)
    at = tokenization.positions(position, [len(row) for row in ids])
    if cache is None:
        return PromptPasses(model, unit, ids, at, batch_tokens)
    column = mask.argmax(1).cpu() + torch.as_tensor(at)
    return PromptPasses(model, unit, ids, at, batch_tokens, activation_cache.read(model, cache, tokens, column, unit))
