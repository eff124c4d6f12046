"""Ablate heads and sublayers by zero, a mean or another row's values, and read what it does to every contribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..attribution.passes import OptionReader
from ..components import Component
from ..errors import InputError
from ..model.batches import pad, upcast
from ..model.capture import Activations, SublayerOutput
from ..model.forward_pass import locate_mismatch, run
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .effect_results import SCENARIOS
from .engine import Place, Rows, held_values, mean_values

EffectUnit = Literal["sublayer", "head"]
Ablation = Literal["mean", "zero", "resample"]
Positions = Literal["all", "last"]

# The values that a place takes at every token of some rows, given the place; None means zero.
Values = Callable[[Place], Float[Tensor, "row token _"]] | None
# Another row that one takes its values from: its tokens, and the number of them in its prompt.
Partner = tuple[tuple[int, ...], int]


def mean_filling(
    model: Model,
    unit: EffectUnit,
    ids: Sequence[Sequence[int]],
    prompts: Sequence[int],
    weights: Float[np.ndarray, " row"],
    batch_tokens: int | None,
) -> Callable[[list[int]], Values]:
    """Fill places with means over rows, apart for first tokens, prompts' last tokens, options' and all others."""
    kinds = [torch.ones(len(row), dtype=torch.long) for row in ids]
    for kind, end in zip(kinds, prompts, strict=True):
        kind[0] = 0
        kind[end - 1], kind[end:] = 2, 3
    members = [torch.nn.functional.one_hot(kind, 4) * weight for kind, weight in zip(kinds, weights, strict=True)]
    means = mean_values(model, [tuple(row) for row in ids], unit, members, batch_tokens)
    return lambda batch: partial(_gather, means, [kinds[row] for row in batch])


def partner_filling(
    model: Model, unit: EffectUnit, ids: Sequence[Sequence[int]], prompts: Sequence[int], partners: Sequence[Partner]
) -> Callable[[list[int]], Values]:
    """Fill places with values of each row's partner, aligned from the prompt's end; first tokens take first ones."""

    def fill(batch: list[int]) -> Values:
        begin, index = 0, []
        for row in batch:
            (other, end), prompt = partners[row], prompts[row]
            place = (np.arange(len(ids[row])) - prompt + end).clip(min(1, end - 1), len(other) - 1)
            place[0] = 0 if prompt > 1 else end - 1
            index.append(torch.as_tensor(begin + place))
            begin += len(other)
        others = pad([partners[row][0] for row in batch])
        return partial(_gather, dict(held_values(run(model.architecture, *others, unit))), index)

    return fill


def _gather(tables: dict[Place, Tensor], index: list[Int[Tensor, " token"]], place: Place) -> Tensor:
    """Look up each token's value at a place, `[row, token, width]`."""
    return tables[place][pad_sequence(index, batch_first=True).to(tables[place].device)]


@dataclass(eq=False)
class Ablations:
    """Ablations of a set of rows as patches of the engine, and the contributions that they leave.

    `fill` returns the values that ablated places of some rows take. `seen` holds, by block and place, what places after
    the latest patch held where rows are read; `gap` the largest |Σ changes + norm − total| relative to max Σ|u|.
    """

    model: Model
    members: tuple[tuple[Component, ...], ...]
    unit: EffectUnit
    positions: Positions
    rows: Rows
    fill: Callable[[list[int]], Values]
    keep_changes: bool = True
    everyone: tuple[Component, ...] = ()
    gap: float = 0.0
    seen: dict[tuple[int, str], Float[Tensor, "position _"]] = field(default_factory=dict)

    def patches(self, clean: PatchedForward, batch: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield every ablation of a batch of rows."""
        read, fill = self.rows.take(batch).places(clean), self.fill(batch)
        block_of = {place: block for block, place in enumerate(clean.layers)}
        watched = ("attn", "mlp", *(("heads", "post") if self.unit == "head" else ()))
        for number, members in enumerate(self.members):
            goes: dict[tuple[int, str], list[int | None]] = {}
            for c in members:
                assert c.layer is not None
                goes.setdefault((block_of[c.layer, c.repeat], "heads" if c.kind == "head" else c.kind), []).append(
                    c.index
                )
            start = min(block for block, _ in goes)
            places = [(block, place) for block in range(start, len(clean.layers)) for place in watched]
            self.seen.clear()
            hold = partial(self._hold, clean, read, fill)
            instead = {place: partial(hold, place, goes.get(place)) for place in places}
            yield number, clean.resume(start, clean.streams[start], instead)

    def with_clean(self, clean: PatchedForward, batch: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield the unpatched pass, then every ablation."""
        yield -1, clean.streams[-1]
        yield from self.patches(clean, batch)

    def _hold(
        self,
        clean: PatchedForward,
        read: Bool[Tensor, "row token"],
        fill: Values,
        key: tuple[int, str],
        ablated: list[int | None] | None,
        value: Float[Tensor, "row token _"],
    ) -> Tensor | None:
        """Ablate heads or all of a place (None: nothing), and keep the values it then holds where rows are read."""
        held, (block, place) = value, key
        if ablated:
            goes = torch.ones(value.shape[-1], dtype=torch.bool, device=value.device)
            if place == "heads":
                heads = goes.logical_not().view(clean.head_count(block), -1)
                heads[list(ablated)] = True
                goes = heads.flatten()
            left = torch.zeros_like(value) if fill is None else fill((place, *clean.layers[block])).to(value)
            # Whole outputs are stored as they are added to the stream.
            left = left if place == "heads" else left / clean.scales[block, place]
            where = (clean.tokens if self.positions == "all" else read).to(value.device)
            held = torch.where(where[..., None] & goes, left, value)
        self.seen[key] = upcast(held[read.to(held.device)]).to(clean.ids.device)
        return held if ablated else None

    def read_contributions(
        self, gold: Int[np.ndarray, " row"], clean: PatchedForward, batch: list[int], finals: Iterator[Tensor]
    ) -> tuple[np.ndarray, ...]:
        """Read contributions, logits in every scenario, and each ablation's changes, for options of one token."""
        some, architecture, unit = self.rows.take(batch), self.model.architecture, self.unit
        known = run(architecture, *pad(some.ids), unit, torch.as_tensor(some.position))
        if known.path:
            raise InputError(
                f"the stream of {self.model.name} passes its final norm between rounds, so what an ablated component "
                "changes there has no component of its own: effects are for models whose stream is only added to."
            )
        reader, statistic = OptionReader(architecture, some.targets, unit), architecture.norm.statistic
        own = reader.read(known, np.arange(len(batch)))
        self.everyone, u = own.components, own.values
        fixed = [i for i, c in enumerate(self.everyone) if c.kind == "constant"]
        constant = u[:, fixed].sum(1)  # terms that no stream writes, and no norm scales
        final = known.final.double().cpu()
        sigma = statistic(final).numpy()[:, None]
        n, _, k = u.shape
        contrast = np.full((n, k), -1.0 / (k - 1))  # the right option minus the mean of the others
        contrast[np.arange(n), gold[batch]] = 1.0
        without = np.empty((n, len(SCENARIOS), len(self.members), k))
        changes = np.empty((n, len(self.members), len(self.everyone)))
        for number, (members, stream) in enumerate(zip(self.members, finals, strict=True)):
            patched = self._patched(clean, known, stream)
            there = reader.read(patched, np.arange(len(batch))).values
            # At the clean pass's norm, where changes add up: u − u' of every component.
            frozen = there * (statistic(patched.final.double().cpu()).numpy()[:, None] / sigma)[..., None]
            frozen[:, fixed] = there[:, fixed]
            change = u - frozen
            mine = [self.everyone.index(member) for member in members]
            direct = u.sum(1) - change[:, mine].sum(1)
            removed = _written(reader, known, members) - _written(reader, patched, members)
            after = statistic(final - removed).numpy()[:, None]
            recomputed = (direct - constant) * (sigma / after) + constant
            without[:, :, number] = np.stack([direct, recomputed, frozen.sum(1), there.sum(1)], 1)
            changes[:, number] = np.einsum("rmo,ro->rm", change, contrast)
            # Check the parts against the model's own answers.
            answers = (known.unembedded.double() - patched.unembedded.double()) * architecture.logit_multiplier
            total = answers.gather(1, torch.as_tensor(some.targets).to(answers.device)).cpu().numpy()
            off = change.sum(1) + frozen.sum(1) - there.sum(1) - total
            self.gap = max(self.gap, float(np.abs(off).max() / (np.abs(u).sum(1).max() or 1.0)))
        reader.error.check(self.model.name, unit, lambda: locate_mismatch(architecture, some.ids[0]))
        return (u, without, changes) if self.keep_changes else (u, without)

    def _patched(self, clean: PatchedForward, known: Activations, final: Float[Tensor, "row d"]) -> Activations:
        """Return the patched pass where rows are read: values recorded behind the patch, clean values elsewhere."""
        architecture, outputs = clean.architecture, []
        block_of = {place: block for block, place in enumerate(clean.layers)}
        for output, repeat in zip(known.sublayer_outputs, known.repeats, strict=True):
            sublayer = output.sublayer
            block = block_of[sublayer.layer, repeat]
            if (block, sublayer.kind) in self.seen:
                heads = None if output.values is None else self.seen[block, "heads"]
                post = None if output.post is None else self.seen[block, "post"]
                value = self.seen[block, sublayer.kind] * sublayer.scale
                output = SublayerOutput(sublayer, value, heads, post, cut=output.cut)
            outputs.append(output)
        unembedded = architecture.unembed(clean.normed(final)[:, None])[:, 0]
        answers = {"final": final, "unembedded": unembedded, "logits": architecture.transform(unembedded)}
        moved: dict[str, Any] = {name: upcast(x).to(known.final.device) for name, x in answers.items()}
        return replace(known, sublayer_outputs=tuple(outputs), **moved)


def _written(reader: OptionReader, activations: Activations, members: Sequence[Component]) -> Float[Tensor, "row d"]:
    """Sum the writes of some components to the stream."""
    total = torch.zeros(activations.final.shape, dtype=torch.float64)
    for write in reader.walk.writes(activations):
        for block in write.blocks:
            if mine := [i for i, component in enumerate(block.components) if component in members]:
                total += block.vectors(mine).sum(1).cpu()
    return total
