"""The passes of `contributions`: prompts in batches, read out a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._progress import progress
from ..components import Component
from ..errors import InputError
from ..model.batches import batches, inference_mode_for, pad
from ..model.capture import Activations
from ..model.cuts import UnitLike
from ..model.forward_pass import run
from ..model.load import Model
from ..model.options import Ids, OptionIds
from .contexts import Contexts, can_pack
from .next_token import NextToken
from .unembedding import BatchContributions, OptionReadout, read_out

# After a pass, rows are read out together until they make this many numbers (4 MiB in float64): it bounds the memory
# of short prompts with many components and options.
NUMBERS = 500_000


class Shape(NamedTuple):
    """A forward pass: its rows, tokens in each (with padding), and how many positions are read in all."""

    rows: int
    tokens: int
    positions: int


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
        unit: UnitLike,
        batch_tokens: int,
        cached: Activations | None,
        probes: Float[Tensor, "option d"] | None,
    ) -> None:
        self.model, self.ids, self.at, self.unit = model, ids, at, unit
        self.batch_tokens, self.cached, self.option_ids = batch_tokens, cached, option_ids
        self.contexts: Contexts | None = None
        targets = option_ids[:, :, 0, 0]
        if option_ids.shape[2:] != (1, 1):
            prompts = [row[: end + 1] for row, end in zip(ids, at, strict=True)]
            self.contexts = Contexts(prompts, option_ids, model.architecture.length_switch)
            targets = self.contexts.target_ids
            if cached is not None:
                raise InputError("a cache does not hold what follows options of several tokens: give the prompts.")
            self.contexts.check(model, sides=True)
        self.readout = OptionReadout(model.architecture, targets, unit, probes)

    def batches(self, keep: Set[Component] | None) -> Iterator[BatchContributions]:
        """The contributions of some examples at a time; `keep` None keeps all components."""
        bar = progress(self.model.name, len(self.ids), "prompt")
        with inference_mode_for(self.model.architecture), bar as advance:
            for examples, passes in self._passes():
                steps = chain.from_iterable(self._steps(numbers, done, keep) for numbers, done in passes)
                yield from steps if self.contexts is None else [self.contexts.by_option(examples, steps)]
                del passes, steps  # or they would be held during the next pass
                advance(len(examples))

    def cuts(self) -> list[list[int]]:
        """The examples of each pass."""
        switch = self.model.architecture.length_switch
        if self.contexts is None:
            return batches([len(row) for row in self.ids], self.batch_tokens, switch)
        packed = can_pack(self.model, self.contexts)
        lengths = [self.contexts.length(example, packed) for example in range(len(self.ids))]
        # Where positions change with the length of a pass, no other row may share it.
        return batches(lengths, self.batch_tokens if switch is None else 1)

    def shape(self, examples: Sequence[int]) -> Shape:
        """The shape of a pass of some examples."""
        if self.contexts is None:
            return Shape(len(examples), max(len(self.ids[example]) for example in examples), len(examples))
        packed, positions = can_pack(self.model, self.contexts), len(self.contexts.numbers(examples))
        if packed:
            return Shape(len(examples), max(self.contexts.length(example, True) for example in examples), positions)
        rows, *_ = self.contexts.plain_rows(examples)
        return Shape(len(rows), max(map(len, rows)), positions)

    def _passes(self) -> Iterator[tuple[list[int], Iterable[tuple[Int[np.ndarray, " row"], Activations]]]]:
        """Examples, and their passes with the numbers of the rows that these show, batch after batch."""
        architecture, contexts = self.model.architecture, self.contexts
        if self.cached is not None:
            yield list(range(len(self.ids))), [(np.arange(len(self.ids)), self.cached)]
        elif contexts is None:
            for rows in self.cuts():
                (tokens, mask), at = pad([self.ids[row] for row in rows]), torch.as_tensor(self.at[rows])
                yield rows, [(np.array(rows), run(architecture, tokens, mask, self.unit, at, interventions=True))]
        else:
            packed = can_pack(self.model, contexts)
            for rows in self.cuts():
                yield rows, contexts.passes(architecture, rows, self.unit, packed)

    @cached_property
    def _uniform(self) -> NextToken:
        return NextToken.uniform(self.model.architecture)

    @cached_property
    def _count(self) -> int:
        return len(self.model.architecture.components(self.unit))

    def _steps(
        self, numbers: Int[np.ndarray, " row"], activations: Activations, keep: Set[Component] | None
    ) -> Iterator[BatchContributions]:
        """The rows of one pass, some at a time."""
        architecture = self.model.architecture
        per_row = self.readout.index.shape[1] * self._count
        step = max(1, NUMBERS // (per_row + len(architecture.sublayers) * architecture.norm.gain.numel()))
        expected = uniform = None
        if self.readout.probes is None:
            expected = NextToken(architecture, activations.logits, activations.unembedded)
            uniform = self._uniform if self.contexts is None else None
        for start in range(0, len(numbers), step):
            some = slice(start, start + step)
            means = None if expected is None else expected.rows(some)
            yield read_out(self.readout, activations.rows(some), numbers[some], keep, means, uniform)
