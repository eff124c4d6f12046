"""Ablate heads and sublayers by zero, a mean or another row's values, and read what it does to every contribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .._progress import Advance
from ..components import Component
from ..errors import InputError
from ..model.attribute import attribute, gradients
from ..model.frozen import TOLERANCE
from ..model.load import Model
from ..model.passes import Pass
from ..model.path import Path
from ..model.units import cut_of
from .engine import Place, Rows, Values, ablation, gather_rows, held_values, mean_values
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
    batch_tokens: int | None,
) -> Callable[[list[int]], Values | None]:
    """Fill places with means over rows, apart for first tokens, prompts' last tokens, options' and all others."""
    kinds = [torch.ones(len(row), dtype=torch.long) for row in ids]
    for kind, end in zip(kinds, prompts, strict=True):
        kind[0] = 0
        kind[end - 1], kind[end:] = 2, 3
    members = [torch.nn.functional.one_hot(kind, 4) for kind in kinds]
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
        held = {place: value[others.tokens] for place, value in held_values(others)}
        return partial(_gather, held, index)

    return fill


def _gather(tables: dict[Place, Tensor], index: list[Int[Tensor, " token"]], place: Place) -> Tensor:
    """Look up each token's value at a place, `[row, token, width]`."""
    return tables[place][pad_sequence(index, batch_first=True).to(tables[place].device)]


def measure_contributions(
    model: Model,
    rows: Rows,
    gold: Int[np.ndarray, " row"],
    ablations: Sequence[Sequence[Component]],
    unit: EffectUnit,
    fill: Callable[[list[int]], Values | None],
    batch_tokens: int | None,
) -> tuple[tuple[Component, ...], list[np.ndarray]]:
    """Measure contributions to each row's `answers` at its one position, and what every ablation leaves of them.

    Args:
        fill: Returns the values that a batch's ablated places take.

    Returns all components; their contributions in the clean pass, `[row, component, option]`; logits under each
    ablation in each of the `SCENARIOS` of `effect_results`, `[row, scenario, ablation, option]`; each component's
    contribution to the logit difference in the clean pass minus that under the ablation, both at the clean norm,
    `[row, ablation, component]`; and the largest error of a total effect, as the sum of components' against the
    model's own logits, `[row]`.

    Raises InputError for a stream that passes the final norm on its way, and where contributions do not sum to the
    logits.
    """
    path = model.path

    def measure(batch: list[int], advance: Advance) -> tuple[tuple[Component, ...], Any, list[np.ndarray]]:
        some = rows.take(batch)
        clean, values = PatchedForward(model, some.ids), fill(batch)
        if clean.normed:
            raise InputError(
                f"the stream of {model.name} passes its final norm between rounds, so what an ablated component "
                "changes there has no component of its own: effects are for models whose stream is only added to."
            )
        at = torch.as_tensor(some.row), torch.as_tensor(some.position)
        record = partial(path.record, clean.ids, clean.mask, *at, partial(cut_of, unit))
        known = record()
        targets = torch.as_tensor(some.targets, device=path.device)
        weight, bias = path.unembed_rows(targets)
        directions = weight.to(path.device, path.wide) * path.factor
        offset = 0 if bias is None else bias.to(directions) * path.factor
        own = attribute(path, known, directions, unit)
        slopes = gradients(own.replay, directions)
        u, answers = own.values, _answers(path, known, targets)
        constant = own.components.index(Component("constant"))
        u[:, constant] += offset
        if not (u.sum(1) - answers).abs().max() <= TOLERANCE[path.dtype] * u.abs().sum(1).max():
            raise InputError(f"the components of {model.name} do not sum to its logits: it cannot be decomposed.")
        n, count, k = u.shape
        contrast = u.new_full((n, k), -1.0 / (k - 1))  # the right option minus the mean of the others
        contrast[torch.arange(n), torch.as_tensor(gold[batch])] = 1.0
        without = u.new_empty(n, 3, len(ablations), k)
        changes = u.new_empty(n, len(ablations), count)
        gap = u.new_zeros(n)
        for number, members in enumerate(ablations):
            patch = ablation(clean, members, values)
            start = min(block for block, _ in patch)
            with clean.patched(start, clean.streams[start], patch):
                patched = _whole(record(), known)
            advance(len(batch))
            # On the clean pass's path, where changes add up: u − u' of every component.
            ablated = attribute(path, patched, directions, unit, slopes)
            change, total = u - ablated.values, ablated.sums + offset
            change[:, constant] -= offset
            mine = [own.components.index(member) for member in members]
            without[:, 0, number] = u.sum(1) - change[:, mine].sum(1)
            without[:, 1, number] = u.sum(1) - change.sum(1)
            without[:, 2, number] = total
            changes[:, number] = torch.einsum("rmo,ro->rm", change, contrast)
            # Check the parts against the model's own answers.
            error = (u.sum(1) - total) - (answers - _answers(path, patched, targets))
            gap = torch.maximum(gap, error.abs().amax(1))
        return own.components, batch, [table.cpu().numpy() for table in (u, without, changes, gap)]

    return gather_rows(model, rows.ids, batch_tokens, measure, len(ablations))


def _answers(path: Path, seen: Pass, targets: Int[Tensor, "n K"]) -> Float[Tensor, "n K"]:
    """The model's own logits of the targets, before any soft-cap."""
    assert seen.unembedded is not None
    return seen.unembedded.gather(1, targets).to(path.wide) * path.factor


def _whole(patched: Pass, known: Pass) -> Pass:
    """Complete the record of a pass that resumed at some block by the clean pass's writes before it."""
    ran = [i for i, (writer, _) in enumerate(patched.calls) if writer.block is not None]
    calls = [i for i, (writer, _) in enumerate(known.calls) if writer.block is not None]
    writes, inputs = list(known.writes), list(known.inputs)
    for i, mine in zip(calls[-len(ran) :], ran, strict=True):
        writes[i], inputs[i] = patched.writes[mine], patched.inputs[mine]
    return replace(patched, calls=known.calls, writes=writes, inputs=inputs, hooked=known.hooked)
