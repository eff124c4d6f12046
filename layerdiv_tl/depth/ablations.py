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

from ..components import Component
from ..errors import InputError
from ..model.attribute import attribute, gradients
from ..model.frozen import TOLERANCE
from ..model.load import Model
from ..model.passes import Pass
from ..model.units import cut_of, split
from ..model.writers import Writer
from .additive import carried_through
from .effect_results import SCENARIOS
from .engine import Place, Rows, held_values, mean_values
from .patched_forward import PatchedForward

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
    means = mean_values(model, [tuple(row) for row in ids], unit == "head", members, batch_tokens)
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
        others = PatchedForward(model, [partners[row][0] for row in batch], unit == "head")
        held = {place: value[others.tokens] for place, value in held_values(others, unit == "head")}
        return partial(_gather, held, index)

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
        for number, members in enumerate(self.members):
            goes: dict[tuple[int, str], list[int | None]] = {}
            for c in members:
                assert c.layer is not None
                goes.setdefault((block_of[c.layer, c.repeat], "heads" if c.kind == "head" else c.kind), []).append(
                    c.index
                )
            start = min(block for block, _ in goes)
            places: list[tuple[int, str]] = []
            for block in range(start, len(clean.layers)):
                places += [(block, writer.kind) for writer in clean.writers(block)]
            if self.unit == "head":
                places += [(block, "heads") for block, kind in places if kind == "attn"]
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
            left = left if place == "heads" else left / clean.scale(block, place)
            where = clean.tokens if self.positions == "all" else read
            held = torch.where(where[..., None] & goes, left, value)
        self.seen[key] = held[read][:, None] if self.model.path.by_token else held
        return held if ablated else None

    def read_contributions(
        self, gold: Int[np.ndarray, " row"], clean: PatchedForward, batch: list[int], finals: Iterator[Tensor]
    ) -> tuple[np.ndarray, ...]:
        """Read contributions, logits in every scenario, and each ablation's changes, for options of one token."""
        some, path = self.rows.take(batch), self.model.path
        if clean.normed:
            raise InputError(
                f"the stream of {self.model.name} passes its final norm between rounds, so what an ablated component "
                "changes there has no component of its own: effects are for models whose stream is only added to."
            )
        at = torch.as_tensor(some.row), torch.as_tensor(some.position)
        known = path.record(clean.ids, clean.mask, *at, partial(cut_of, self.unit))
        targets = torch.as_tensor(some.targets, device=path.device)
        directions, offset = self._directions(targets)
        with torch.enable_grad():
            own = attribute(path, known, directions, self.unit)
        slopes = gradients(own.replay, directions)
        self.everyone, u = own.components, own.values
        u[:, self.everyone.index(Component("constant"))] += offset
        assert known.unembedded is not None
        answers = known.unembedded.gather(1, targets).to(u) * path.factor
        size = float(u.abs().sum(1).max()) or 1.0
        if not (u.sum(1) - answers).abs().max() <= TOLERANCE[path.dtype] * size:
            raise InputError(f"the components of {self.model.name} do not sum to its logits: it cannot be decomposed.")
        n, _, k = u.shape
        contrast = u.new_full((n, k), -1.0 / (k - 1))  # the right option minus the mean of the others
        contrast[torch.arange(n), torch.as_tensor(gold[batch])] = 1.0
        without = np.empty((n, len(SCENARIOS), len(self.members), k))
        changes = np.empty((n, len(self.members), len(self.everyone)))
        for number, (members, final) in enumerate(zip(self.members, finals, strict=True)):
            patched = self._patched(clean, known, final)
            ablated, removed = path.replay(patched), path.replay(self._without_writes(clean, known, patched, members))
            total, recomputed = (
                torch.einsum("nd,nkd->nk", x.normed.detach(), directions) + offset for x in (ablated, removed)
            )
            # At the clean pass's norm, where changes add up: u − u' of every component.
            change = u - self._at_clean_norm(u, known, patched, slopes, ablated.rounding)
            mine = [self.everyone.index(member) for member in members]
            direct = u.sum(1) - change[:, mine].sum(1)
            scenarios = torch.stack([direct, recomputed, u.sum(1) - change.sum(1), total], 1)
            without[:, :, number] = scenarios.cpu().numpy()
            changes[:, number] = torch.einsum("rmo,ro->rm", change, contrast).cpu().numpy()
            # Check the parts against the model's own answers.
            after = path.read_out(final)[0].gather(1, targets).to(u) * path.factor
            off = (u.sum(1) - total) - (answers - after)
            self.gap = max(self.gap, float(off.abs().max()) / size)
        values = u.cpu().numpy()
        return (values, without, changes) if self.keep_changes else (values, without)

    def _directions(self, targets: Int[Tensor, "n K"]) -> tuple[Float[Tensor, "n K d"], Float[Tensor, "n K"]]:
        """The targets' rows of the unembedding, and what its bias adds, in logits before any soft-cap."""
        path = self.model.path
        rows, bias = path.unembed_rows(targets)
        directions = rows.to(path.device, path.wide) * path.factor
        offset = torch.zeros_like(directions[..., 0]) if bias is None else bias.to(directions) * path.factor
        return directions, offset

    def _patched(self, clean: PatchedForward, known: Pass, final: Float[Tensor, "n d"]) -> Pass:
        """Return the patched pass where rows are read: values recorded behind the patch, clean values elsewhere."""
        block_of: dict[Any, int] = {place: block for block, place in enumerate(clean.layers)}
        writes, inputs = list(known.writes), list(known.inputs)
        for number, ((writer, _), component) in enumerate(zip(known.calls, known.components(), strict=True)):
            block = block_of.get((component.layer, component.repeat))
            if block is not None and (block, writer.kind) in self.seen:
                writes[number] = self.seen[block, writer.kind]
                if inputs[number] is not None:
                    inputs[number] = self.seen[block, "heads"]
        finals = [x.clone() for x in known.finals]
        if finals:
            finals[-1][torch.arange(len(final)), known.position] = final
        return replace(known, writes=writes, inputs=inputs, finals=finals)

    def _at_clean_norm(
        self, u: Float[Tensor, "n C K"], known: Pass, patched: Pass, slopes: list[list[Tensor]], rounding: list[Tensor]
    ) -> Float[Tensor, "n C K"]:
        """Contributions of the patched pass's writes along the clean pass's path."""
        found = u.clone()
        for number, ((writer, _), whole) in enumerate(zip(known.calls, known.components(), strict=True)):
            write = patched.writes[number]
            if write is known.writes[number]:
                continue
            for components, x in split(self.unit, writer, whole, write, patched.inputs[number], slopes[0][number]):
                start = self.everyone.index(components[0])
                found[:, start : start + len(components)] = x.permute(1, 2, 0)
        found[:, -1] = 0.0
        for g, leaf in zip(slopes[3], rounding, strict=True):
            found[:, -1] += (g * leaf.detach()).flatten(2).sum(-1).T
        return found

    def _without_writes(self, clean: PatchedForward, known: Pass, patched: Pass, members: Sequence[Component]) -> Pass:
        """Return the clean pass where only what some components write is that of the patched one."""
        writes, removed = list(known.writes), torch.zeros((), device=self.model.path.device)
        for number, ((writer, _), whole) in enumerate(zip(known.calls, known.components(), strict=True)):
            heads = [c.index for c in members if c.kind == "head" and replace(c, kind="attn", index=None) == whole]
            if whole in members:
                gone = known.writes[number] - patched.writes[number]
            elif heads:
                gone = self._written(writer, heads, known.inputs[number]) - self._written(
                    writer, heads, patched.inputs[number]
                )
            else:
                continue
            writes[number] = known.writes[number] - gone
            removed = removed + gone * clean.scales[writer]
        finals = [*known.finals[:-1], *(x - removed for x in known.finals[-1:])]
        return replace(known, writes=writes, finals=finals)

    def _written(
        self, writer: Writer, heads: list[int | None], values: Float[Tensor, "n 1 value"]
    ) -> Float[Tensor, "n 1 d"]:
        """What some heads of an attention write."""
        own = torch.zeros_like(values).unflatten(-1, (writer.heads, -1))
        own[..., heads, :] = values.unflatten(-1, (writer.heads, -1))[..., heads, :]
        return carried_through(writer.maps, values, [own.flatten(-2)], self.model.path.wide)[0]
