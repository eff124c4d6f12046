"""Ablate heads and sublayers by zero, a mean or another row's values, as patches of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._progress import Advance
from ..components import Component
from ..model.batches import pad, upcast
from ..model.capture import Activations
from ..model.forward_pass import run
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .engine import Patch, Rows, map_batches

EffectUnit = Literal["sublayer", "head"]
Ablation = Literal["mean", "zero", "resample"]
Positions = Literal["all", "last"]

# A sublayer's output, or its heads' values before the output projection: kind, layer and repeat.
Place = tuple[str, int | None, int | None]


@dataclass(eq=False)
class Ablations:
    """Ablations of a set of rows, and the values that replace ablated ones.

    Attributes:
        members: The components that each ablation ablates together.
        rows, prompts: The rows that are run, and the number of prompt tokens in each.
        partners: For resampling only: the tokens of the row that each row takes its values from, and the number of
            prompt tokens in it.
        weights: The weight of each row in means.
        means: By place, the mean over tokens of each kind (`_token_kinds`); filled for "mean" only.
        seen: By block and place, the values that places behind the latest patch held where rows are read.
    """

    model: Model
    members: tuple[tuple[Component, ...], ...]
    unit: EffectUnit
    kind: Ablation
    positions: Positions
    rows: Rows
    prompts: Sequence[int]
    partners: Sequence[tuple[tuple[int, ...], int]] = ()
    means: Mapping[Place, Float[Tensor, "4 _"]] = field(default_factory=dict)
    seen: dict[tuple[int, str], Float[Tensor, "position _"]] = field(default_factory=dict)

    def patches(self, clean: PatchedForward, batch: list[int]) -> Iterator[tuple[int, Patch]]:
        """Yield every ablation of a batch of rows."""
        read, fill = self.rows.take(batch).places(clean), self._filling(batch)
        block_of = {place: block for block, place in enumerate(clean.layers)}
        for number, members in enumerate(self.members):
            by_place: dict[tuple[int, str], list[int | None]] = {}
            for c in members:
                assert c.layer is not None
                key = block_of[c.layer, c.repeat], "heads" if c.kind == "head" else c.kind
                by_place.setdefault(key, []).append(c.index)
            start = min(block for block, _ in by_place)
            watched = ("attn", "mlp", "heads", "post") if self.unit == "head" else ("attn", "mlp")
            self.seen.clear()
            yield (
                number,
                Patch(
                    start,
                    instead={
                        (block, place): partial(
                            self._hold, clean, read, fill, (block, place), by_place.get((block, place))
                        )
                        for block in range(start, len(clean.layers))
                        for place in watched
                    },
                ),
            )

    def with_clean(self, clean: PatchedForward, batch: list[int]) -> Iterator[tuple[int, Patch | None]]:
        """Yield the unpatched pass, then every ablation."""
        yield -1, None
        yield from self.patches(clean, batch)

    def _hold(
        self,
        clean: PatchedForward,
        read: Bool[Tensor, "row token"],
        fill: Callable[[Place], Tensor] | None,
        key: tuple[int, str],
        ablated: Sequence[int | None] | None,
        value: Float[Tensor, "row token _"],
    ) -> Tensor | None:
        """Ablate heads or all of a place (None: nothing), and keep the values it then holds where rows are read."""
        held, (block, place) = value, key
        if ablated:
            goes = torch.ones(value.shape[-1], dtype=torch.bool, device=value.device)
            if place == "heads":
                goes = goes.logical_not().view(clean.head_count(block), -1)
                goes[list(ablated)] = True
                goes = goes.flatten()
            left = torch.zeros_like(value)
            if fill is not None:
                left = fill(("attn" if place == "heads" else place, *clean.layers[block])).to(value)
                # Whole outputs are stored as they are added to the stream.
                left = left if place == "heads" else left / clean.scales[block, place]
            where = (clean.tokens if self.positions == "all" else read).to(value.device)
            held = torch.where(where[..., None] & goes, left, value)
        self.seen[key] = upcast(held[read.to(held.device)]).to(clean.ids.device)
        return held if ablated else None

    def _filling(self, batch: list[int]) -> Callable[[Place], Float[Tensor, "row token _"]] | None:
        """Return the values that ablated places of some rows take; None means zero."""
        lengths = [len(self.rows.ids[row]) for row in batch]
        tables, index = dict(self.means), torch.zeros(len(batch), max(lengths), dtype=torch.long)
        if self.kind == "zero":
            return None
        if self.kind == "mean":
            for i, row in enumerate(batch):
                index[i, : lengths[i]] = _token_kinds(lengths[i], self.prompts[row])
        else:
            others = [self.partners[row] for row in batch]
            tables = dict(_held(run(self.model.architecture, *pad([ids for ids, _ in others]), self.unit)))
            begin = 0
            for i, (row, (other, end)) in enumerate(zip(batch, others, strict=True)):
                # Aligned from the end of the prompt, where prompts of one template are alike; a first token takes only
                # a first one's values.
                place = np.arange(lengths[i]) - self.prompts[row] + end
                place = place.clip(min(1, end - 1), len(other) - 1)
                place[0] = 0 if self.prompts[row] > 1 else end - 1
                index[i, : lengths[i]] = torch.as_tensor(begin + place)
                begin += len(other)
        return lambda place: tables[place][index.to(tables[place].device)]

    def mean_values(self, weights: Float[np.ndarray, " row"], batch_tokens: int | None) -> dict[Place, Tensor]:
        """Average every place over all rows' tokens of each kind, `[kind, width]`, with rows weighted."""
        sums: dict[Place, Tensor] = {}
        counts = torch.zeros(4, dtype=torch.float64)

        def add(batch: list[int], advance: Advance) -> None:
            ids = [self.rows.ids[row] for row in batch]
            kinds = torch.cat([_token_kinds(len(row), self.prompts[i]) for i, row in zip(batch, ids, strict=True)])
            each = torch.as_tensor(np.repeat(weights[batch], [len(row) for row in ids]))
            member = torch.nn.functional.one_hot(kinds, 4) * each[:, None]
            counts.add_(member.sum(0))
            for place, value in _held(run(self.model.architecture, *pad(ids), self.unit)):
                total = member.to(value.device).T @ value.double()
                sums[place] = sums[place] + total if place in sums else total
            advance(len(batch))

        map_batches(self.model, self.rows.ids, batch_tokens, add)
        counts[counts == 0] = 1
        return {place: total / counts[:, None].to(total.device) for place, total in sums.items()}


def _token_kinds(length: int, prompt: int) -> Int[Tensor, " token"]:
    """Number each token's kind: 0 the row's first, 1 in between, 2 the prompt's last, 3 in its option."""
    kinds = torch.ones(length, dtype=torch.long)
    kinds[0] = 0
    kinds[prompt - 1], kinds[prompt:] = 2, 3
    return kinds


def _held(done: Activations) -> Iterator[tuple[Place, Float[Tensor, "position _"]]]:
    """Yield every place of a pass and its value: heads' values, or a whole output as added to the stream."""
    for output, repeat in zip(done.sublayer_outputs, done.repeats, strict=True):
        place = (output.sublayer.kind, output.sublayer.layer, repeat)
        yield place, output.output if output.values is None else output.values
