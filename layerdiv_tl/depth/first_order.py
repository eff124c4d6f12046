"""First-order estimates of effects: attribution patching, for all components at the cost of a few passes.

The estimate is the gradient of the logits by what a component holds, times what the ablation changes there, summed over
tokens (Nanda 2023, *Attribution Patching*). Direct effects are those of exact ablations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..attribution.unembedding import OptionReadout
from ..components import Component
from ..model.batches import upcast
from ..model.capture import SublayerOutput
from .effect_passes import SCENARIOS, AblatedBatch, BatchEffects


def estimate(batch: AblatedBatch, steps: int, tell: Callable[[int], Any]) -> BatchEffects:
    """The effects of single components, with estimated totals; scenarios that are not estimated are NaN.

    With several steps the gradient is the mean of those along the way from the pass as it is to one that lacks what
    the ablation changes at every place; `tell` is told of the passes done.
    """
    components = [members[0] for members in batch.ablations.members]
    clean = batch.logits[:, None]
    direct = _direct(batch, components)
    without = np.full((len(SCENARIOS), *direct.shape), np.nan)
    without[0] = clean - direct
    # Midpoints, but for a single step, which is the tangent.
    shares = [0.0] if steps == 1 else [(step + 0.5) / steps for step in range(steps)]
    changes = _changes(batch, set(_places(batch, components)))
    totals = []
    for share in shares:
        totals.append(_by_gradient(batch, components, changes, share))
        tell(len(batch.rows))
    without[-1] = clean - np.mean(totals, 0)
    return batch.result(without, None, 0.0)


def _direct(batch: AblatedBatch, components: Sequence[Component]) -> Float[np.ndarray, "row component option"]:
    """Every component's contribution less that of what the ablation leaves, from the clean pass."""
    outputs = []
    ratios: dict[
        Component, Float[np.ndarray, " context"]
    ] = {}  # of a post-norm's statistic to that of the ablated pass
    for output, repeat in zip(batch.activations.sublayer_outputs, batch.activations.repeats, strict=True):
        place = (output.sublayer.kind, output.sublayer.layer, repeat)
        held = output.output if output.values is None else output.values
        left = torch.zeros_like(held)
        if batch.ablations.kind != "zero":
            left = batch.values[place].to(held)[batch.row.to(held.device), batch.at.to(held.device)]
        if output.post is not None and output.post.shape[1] > 1:  # else only its statistic is known
            ratios |= _post_norm_ratios(output, held - left, repeat)
        outputs.append(replace(output, output=left) if output.values is None else replace(output, values=left))
    readout = OptionReadout(batch.model.architecture, batch.readout.option_ids, batch.ablations.unit)
    without = replace(batch.activations, sublayer_outputs=tuple(outputs))
    left_over = batch.read(readout, without, set(components))
    column = {c: i for i, c in enumerate(batch.clean.components)}
    of = {c: i for i, c in enumerate(left_over.components)}
    there = batch.clean.values[:, [column[c] for c in components]]
    ratio = np.stack([ratios.get(c, np.ones(len(there))) for c in components], 1)
    return batch.answers.mixed(there - ratio[:, :, None] * left_over.values[:, [of[c] for c in components]])


def _post_norm_ratios(
    output: SublayerOutput, change: Float[Tensor, "context _"], repeat: int | None
) -> dict[Component, Float[np.ndarray, " context"]]:
    """By head, the statistic of the norm after the output projection as it is, over that without the head's change."""
    output_map, post = output.sublayer.output_map, output.post
    assert output_map is not None
    assert output_map.post is not None
    assert post is not None
    weight, _ = output_map.projection()
    maps = weight.to(change.device).double().unflatten(0, (output_map.count, -1))
    taken = torch.einsum("cpw,pwd->pcd", change.double().unflatten(1, (output_map.count, -1)), maps)
    clean = output_map.post.divisor(post)
    names = output.sublayer.components("head", repeat)
    return {
        c: (clean / output_map.post.divisor(post.double() - taken[i])).cpu().numpy()
        for i, c in enumerate(names[: len(maps)])
    }


def _places(batch: AblatedBatch, components: Sequence[Component]) -> Iterator[tuple[int, str]]:
    """Block and place of every component."""
    for component in components:
        block = batch.forward.layers.index((component.layer or 0, component.repeat))
        yield block, "heads" if component.kind == "head" else component.kind


def _changes(batch: AblatedBatch, places: Set[tuple[int, str]]) -> dict[tuple[int, str], Tensor]:
    """What ablating each place takes away from what it holds in the pass as it is."""
    changes: dict[tuple[int, str], Tensor] = {}

    def keep(key: tuple[int, str], held: Tensor) -> None:
        changes[key] = (held - batch.left_over(key, held)) * batch.tokens(held.device)[..., None]

    batch.forward.resume(0, batch.forward.streams[0], {key: partial(keep, key) for key in places})
    return changes


def _by_gradient(
    batch: AblatedBatch, components: Sequence[Component], changes: Mapping[tuple[int, str], Tensor], share: float
) -> Float[np.ndarray, "row component option"]:
    """Gradients of the logits by what every place holds, times what the ablation changes there.

    They are taken where that share of its change is taken away from every place.
    """
    forward, architecture = batch.forward, batch.model.architecture
    moved: dict[tuple[int, str], Tensor] = {}

    def move(key: tuple[int, str], value: Tensor) -> Tensor:
        moved[key] = torch.zeros_like(value, requires_grad=True)
        return value - share * changes[key] + moved[key]

    places = dict(zip(components, _places(batch, components), strict=True))
    with torch.enable_grad():
        final = forward.resume(0, forward.streams[0], {key: partial(move, key) for key in set(places.values())})
        last = final[batch.row.to(final.device), batch.at.to(final.device)]
        unembedded = upcast(architecture.unembed(forward.normed(last)[:, None])[:, 0])
        scores = batch.answers.of_targets(architecture, unembedded, architecture.transform(unembedded))
        # One gradient each: rows have nothing to do with one another.
        logits = batch.answers.of_options(scores).sum(0).unbind()
    table = np.empty((len(batch.rows), len(components), len(logits)))
    for option in range(len(logits)):
        gradients = torch.autograd.grad(logits[option], list(moved.values()), retain_graph=option + 1 < len(logits))
        by_place = {
            key: batch.answers.by_row((g.double() * changes[key]).sum(1))
            for key, g in zip(moved, gradients, strict=True)
        }
        for number, component in enumerate(components):
            product = by_place[places[component]]
            if component.index is not None:
                product = product.unflatten(1, (batch.head_count(component.layer), -1))[:, component.index]
            table[:, number, option] = product.sum(1).cpu().numpy()
    return table
