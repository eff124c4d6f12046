"""The passes of `contributions`: prompts in batches, read out a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._progress import progress
from ..components import Component, Unit
from ..errors import InputError
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model
from ..model.options import Ids, OptionIds
from .contexts import Contexts, can_pack
from .next_token import NextToken
from .unembedding import BatchContributions, OptionReadout, read_out

# After a pass, rows are read out together until they make this many numbers (4 MiB in float64): it bounds the memory
# of short prompts with many components and options.
NUMBERS = 500_000


class ReadOut:
    """The contributions of some prompts to some options, batch after batch; `readout.error` grows with each.

    Raises InputError for options of several tokens with a cache, and for prompts too long for theirs.
    """

    def __init__(
        self,
        model: Model,
        ids: Sequence[Ids],
        at: Int[np.ndarray, " example"],
        option_ids: OptionIds,
        unit: Unit,
        batch_tokens: int,
        cached: Activations | None,
        probes: Float[Tensor, "option d"] | None,
    ) -> None:
        self.model, self.ids, self.at, self.unit = model, ids, at, unit
        self.batch_tokens, self.cached, self.option_ids = batch_tokens, cached, option_ids
        self.contexts: Contexts | None = None
        targets = option_ids[:, :, 0, 0]
        if option_ids.shape[2:] != (1, 1):
            self.contexts = Contexts([row[: end + 1] for row, end in zip(ids, at, strict=True)], option_ids)
            targets = self.contexts.target_ids
            if cached is not None:
                raise InputError("a cache does not hold what follows options of several tokens: give the prompts.")
            self.contexts.check(model)
        self.readout = OptionReadout(model.architecture, targets, unit, probes)

    def batches(self, keep: Set[Component] | None) -> Iterator[BatchContributions]:
        """The contributions of some examples at a time; `keep` None keeps all components."""
        bar = progress(self.model.name, len(self.ids), "prompt")
        with inference_mode_for(self.model.architecture), bar as advance:
            for examples, numbers, activations in self._passes():
                steps = self._steps(numbers, activations, keep)
                yield from steps if self.contexts is None else [self.contexts.by_option(examples, steps)]
                del activations, steps  # or they would be held during the next pass
                advance(len(examples))

    def _passes(self) -> Iterator[tuple[list[int], Int[np.ndarray, " row"], Activations]]:
        """Examples, the numbers of the rows that their pass shows, and the pass, batch after batch."""
        architecture, contexts = self.model.architecture, self.contexts
        if self.cached is not None:
            yield list(range(len(self.ids))), np.arange(len(self.ids)), self.cached
        elif contexts is None:
            for rows in batches([len(row) for row in self.ids], self.batch_tokens, architecture.length_switch):
                (tokens, mask), at = pad([self.ids[row] for row in rows]), torch.as_tensor(self.at[rows])
                yield rows, np.array(rows), run(architecture, tokens, mask, self.unit, at, interventions=True)
        else:
            packed = can_pack(self.model, contexts)
            lengths = [contexts.length(example, packed) for example in range(len(self.ids))]
            # Where positions change with the length of a pass, no other row may share it.
            most = self.batch_tokens if architecture.length_switch is None else 1
            for rows in batches(lengths, most):
                yield rows, contexts.numbers(rows), contexts.run(architecture, rows, self.unit, packed)

    def _steps(
        self, numbers: Int[np.ndarray, " row"], activations: Activations, keep: Set[Component] | None
    ) -> Iterator[BatchContributions]:
        """The rows of one pass, some at a time."""
        architecture = self.model.architecture
        per_row = self.readout.index.shape[1] * len(architecture.components(self.unit))
        step = max(1, NUMBERS // (per_row + len(architecture.sublayers) * architecture.norm.gain.numel()))
        expected = NextToken(architecture, activations) if self.readout.probes is None else None
        for start in range(0, len(numbers), step):
            some = slice(start, start + step)
            means = None if expected is None else expected.rows(some)
            yield read_out(self.readout, activations.rows(some), numbers[some], keep, means)
