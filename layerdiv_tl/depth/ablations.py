"""Ablate heads and sublayers by zero, a mean or another row's values, and read what it does to every contribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .._progress import Advance
from ..components import Component
from ..errors import InputError
from ..model.attribute import attribute, gradients
from ..model.frozen import TOLERANCE
from ..model.load import Model
from ..model.passes import Pass
from ..model.units import cut_of, split
from .engine import Place, Rows, Values, ablation, held_values, map_batches, mean_values
from .patched_forward import PatchedForward

EffectUnit = Literal["sublayer", "head"]
Ablation = Literal["mean", "zero", "resample"]

# Another row that one takes its values from: its tokens, and the number of them in its prompt.
Partner = tuple[tuple[int, ...], int]


def mean_filling(
    model: Model,
    unit: EffectUnit,
    ids: Sequence[Sequence[int]],
    prompts: Sequence[int],
    weights: Float[np.ndarray, " row"],
    batch_tokens: int | None,
) -> Callable[[list[int]], Values | None]:
    """Fill places with means over rows, apart for first tokens, prompts' last tokens, options' and all others."""
    kinds = [torch.ones(len(row), dtype=torch.long) for row in ids]
    for kind, end in zip(kinds, prompts, strict=True):
        kind[0] = 0
        kind[end - 1], kind[end:] = 2, 3
    members = [torch.nn.functional.one_hot(kind, 4) * weight for kind, weight in zip(kinds, weights, strict=True)]
    means = mean_values(model, [tuple(row) for row in ids], members, batch_tokens, unit == "head")
    return lambda batch: partial(_gather, means, [kinds[row] for row in batch])


def partner_filling(
    model: Model, unit: EffectUnit, ids: Sequence[Sequence[int]], prompts: Sequence[int], partners: Sequence[Partner]
) -> Callable[[list[int]], Values | None]:
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


# What places behind an ablation hold where rows are read, by block and kind or "heads".
Held = Mapping[tuple[int, str], Float[Tensor, "position _ _"]]


@dataclass(frozen=True, eq=False)
class Contributed:
    """Contributions of the clean pass, and what every ablation leaves of them, for options of one token.

    Attributes:
        components, values: All components, and their contributions in the clean pass.
        without: Logits under each ablation in each of the `SCENARIOS` of `effect_results`.
        changes: Each component's contribution to the logit difference in the clean pass minus that under the ablation,
            both at the clean norm.
        gap: The largest |Σ changes + the norm's share − total| relative to max Σ|u|, against the model's own logits.
    """

    components: tuple[Component, ...]
    values: Float[np.ndarray, "row component option"]
    without: Float[np.ndarray, "row scenario ablation option"]
    changes: Float[np.ndarray, "row ablation component"]
    gap: float


@dataclass(frozen=True, eq=False)
class Ablations:
    """Ablations of some rows, each of some components; `fill` returns the values that a batch's ablated places take."""

    model: Model
    members: tuple[tuple[Component, ...], ...]
    unit: EffectUnit
    rows: Rows
    fill: Callable[[list[int]], Values | None]

    def patches(self, clean: PatchedForward, batch: list[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield the unpatched pass, then every ablation, as patches of the engine."""
        yield -1, clean.streams[-1]
        read, fill = self.rows.take(batch).places(clean), self.fill(batch)
        for number, members in enumerate(self.members):
            yield number, self._run(clean, members, fill, read)[0]

    def contributions(self, gold: Int[np.ndarray, " row"], batch_tokens: int | None) -> Contributed:
        """Measure contributions to each row's `answers` at its one position, and what every ablation changes in them.

        Raises InputError for a stream that passes the final norm on its way, and where contributions do not sum to the
        logits.
        """
        order: list[int] = []

        def measure(batch: list[int], advance: Advance) -> Contributed:
            order.extend(batch)
            return self._contributions(batch, gold[batch], advance)

        parts = map_batches(self.model, self.rows.ids, batch_tokens, measure, len(self.members))
        places = np.argsort(order)
        tables = zip(*((part.values, part.without, part.changes) for part in parts), strict=True)
        values, without, changes = (np.concatenate(table)[places] for table in tables)
        return Contributed(parts[0].components, values, without, changes, max(part.gap for part in parts))

    def _contributions(self, batch: list[int], gold: Int[np.ndarray, " row"], advance: Advance) -> Contributed:
        rows, path = self.rows.take(batch), self.model.path
        clean = PatchedForward(self.model, rows.ids, self.unit == "head")
        if clean.normed:
            raise InputError(
                f"the stream of {self.model.name} passes its final norm between rounds, so what an ablated component "
                "changes there has no component of its own: effects are for models whose stream is only added to."
            )
        read, fill = rows.places(clean), self.fill(batch)
        at = torch.as_tensor(rows.row), torch.as_tensor(rows.position)
        known = path.record(clean.ids, clean.mask, *at, partial(cut_of, self.unit))
        targets = torch.as_tensor(rows.targets, device=path.device)
        directions, offset = self._directions(targets)
        with torch.enable_grad():
            own = attribute(path, known, directions, self.unit)
        slopes = gradients(own.replay, directions)
        components, u = own.components, own.values
        u[:, components.index(Component("constant"))] += offset
        assert known.unembedded is not None
        answers = known.unembedded.gather(1, targets).to(u) * path.factor
        size = float(u.abs().sum(1).max()) or 1.0
        if not (u.sum(1) - answers).abs().max() <= TOLERANCE[path.dtype] * size:
            raise InputError(f"the components of {self.model.name} do not sum to its logits: it cannot be decomposed.")
        n, _, k = u.shape
        contrast = u.new_full((n, k), -1.0 / (k - 1))  # the right option minus the mean of the others
        contrast[torch.arange(n), torch.as_tensor(gold)] = 1.0
        without = np.empty((n, 3, len(self.members), k))
        changes = np.empty((n, len(self.members), len(components)))
        gap = 0.0
        for number, members in enumerate(self.members):
            final, held = self._run(clean, members, fill, read)
            advance(len(batch))
            patched = _patched(clean, known, final[read], held)
            ablated = path.replay(patched)
            total = torch.einsum("nd,nkd->nk", ablated.normed.detach(), directions) + offset
            # At the clean pass's norm, where changes add up: u − u' of every component.
            change = u - self._at_clean_norm(components, u, known, patched, slopes, ablated.rounding)
            mine = [components.index(member) for member in members]
            scenarios = torch.stack([u.sum(1) - change[:, mine].sum(1), u.sum(1) - change.sum(1), total], 1)
            without[:, :, number] = scenarios.cpu().numpy()
            changes[:, number] = torch.einsum("rmo,ro->rm", change, contrast).cpu().numpy()
            # Check the parts against the model's own answers.
            after = path.read_out(final[read])[0].gather(1, targets).to(u) * path.factor
            gap = max(gap, float(((u.sum(1) - total) - (answers - after)).abs().max()) / size)
        return Contributed(components, u.cpu().numpy(), without, changes, gap)

    def _run(
        self, clean: PatchedForward, members: Sequence[Component], fill: Values | None, read: Bool[Tensor, "row token"]
    ) -> tuple[Float[Tensor, "row token d"], Held]:
        """Run a pass with some components ablated; also return what places behind it hold where rows are read."""
        replaced: Mapping[tuple[int, str], Any] = ablation(clean, members, fill)
        start = min(block for block, _ in replaced)
        held: dict[tuple[int, str], Tensor] = {}

        def hold(key: tuple[int, str], value: Float[Tensor, "row token _"]) -> Tensor | None:
            is_replaced = key in replaced
            if is_replaced:
                value = replaced[key](value)
            held[key] = value[read][:, None] if self.model.path.by_token else value
            return value if is_replaced else None

        instead: dict[tuple[int, str], Callable[[Tensor], Tensor | None]] = {}
        for block in range(start, len(clean.layers)):
            for writer in clean.writers(block):
                instead[block, writer.kind] = partial(hold, (block, writer.kind))
                if writer.kind == "attn" and self.unit == "head":
                    instead[block, "heads"] = partial(hold, (block, "heads"))
        return clean.resume(start, clean.streams[start], instead), held

    def _directions(self, targets: Int[Tensor, "n K"]) -> tuple[Float[Tensor, "n K d"], Float[Tensor, "n K"]]:
        """The targets' rows of the unembedding, and what its bias adds, in logits before any soft-cap."""
        path = self.model.path
        rows, bias = path.unembed_rows(targets)
        directions = rows.to(path.device, path.wide) * path.factor
        offset = torch.zeros_like(directions[..., 0]) if bias is None else bias.to(directions) * path.factor
        return directions, offset

    def _at_clean_norm(
        self,
        components: tuple[Component, ...],
        u: Float[Tensor, "n C K"],
        known: Pass,
        patched: Pass,
        slopes: list[list[Tensor]],
        rounding: list[Tensor],
    ) -> Float[Tensor, "n C K"]:
        """Contributions of the patched pass's writes along the clean pass's path."""
        found = u.clone()
        for number, ((writer, _), whole) in enumerate(zip(known.calls, known.components(), strict=True)):
            write = patched.writes[number]
            if write is known.writes[number]:
                continue
            for some, x in split(self.unit, writer, whole, write, patched.inputs[number], slopes[0][number]):
                start = components.index(some[0])
                found[:, start : start + len(some)] = x.permute(1, 2, 0)
        found[:, -1] = 0.0
        for g, leaf in zip(slopes[3], rounding, strict=True):
            found[:, -1] += (g * leaf.detach()).flatten(2).sum(-1).T
        return found


def _patched(clean: PatchedForward, known: Pass, final: Float[Tensor, "n d"], held: Held) -> Pass:
    """Return the patched pass where rows are read: values held behind the patch, clean values elsewhere."""
    block_of: dict[Any, int] = {place: block for block, place in enumerate(clean.layers)}
    writes, inputs = list(known.writes), list(known.inputs)
    for number, ((writer, _), component) in enumerate(zip(known.calls, known.components(), strict=True)):
        block = block_of.get((component.layer, component.repeat))
        if block is not None and (block, writer.kind) in held:
            writes[number] = held[block, writer.kind]
            if inputs[number] is not None:
                inputs[number] = held[block, "heads"]
    finals = [x.clone() for x in known.finals]
    if finals:
        finals[-1][torch.arange(len(final)), known.position] = final
    return replace(known, writes=writes, inputs=inputs, finals=finals)
