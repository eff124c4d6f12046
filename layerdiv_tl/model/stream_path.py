"""The path of the residual stream: what it passes between the writes, and how each write reaches the final stream.

A stream that is only added to passes nothing. Others pass norms (post-norm stacks, rounds of a loop), gates, or a
mixing of several streams. With every coefficient held at the number the model used, each such step is affine,

    X_i ← Σ_k mix_ik · map_k(X_k) / divisor + bias_i,

so a write f reaches the final stream as Σ_j a_j · chain_j(f): per-token scalars a_j, and chains of maps that no token
changes. One walk from the end to the start finds both for every write. All of these and the biases still sum to the
stream, which every pass checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from .affine_step import AffineStep, Linear
from .architecture import Architecture, HookPoint, StreamOp, Sublayer
from .capture import Activations, RawCapture, SublayerOutput
from .cuts import Vectors
from .norm import Norm

Chain = tuple[Linear, ...]


@dataclass(frozen=True, eq=False)
class PathToFinal:
    """x ↦ Σ_j factors_j · chain_j(x), the way from a write to the final stream."""

    chains: tuple[Chain, ...]
    factors: Float[Tensor, "row chain"]

    def __call__(self, x: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
        """A write as it stands in the final stream."""
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for chain, factor in zip(self.chains, self.factors.to(x.device).unbind(1), strict=True):
            total = total + reduce(lambda y, step: step.linear(y), chain, x.double()) * factor[:, None]
        return total


def number_repeats(places: Sequence[Hashable]) -> tuple[int | None, ...]:
    """Which repeat of its place each run is, from 1; None for a place that runs once.

    >>> number_repeats(["a", "b", "a"])
    (1, None, 2)
    """
    often, seen = Counter(places), Counter[Hashable]()
    repeats: list[int | None] = []
    for place in places:
        seen[place] += 1
        repeats.append(seen[place] if often[place] > 1 else None)
    return tuple(repeats)


def passes_norm(norm: Norm, before: Tensor, after: Tensor) -> bool:
    """Whether a stream went on as the norm returned it: a model may also read its stream out on the way."""
    return bool((norm(before) - after).norm() < (before - after).norm())


def trace(architecture: Architecture, raw: RawCapture) -> Iterator[tuple[int, Sublayer | HookPoint | AffineStep, int]]:
    """What the stream meets in a pass, in order: (place, sublayer or the input of a block or of the final norm or a
    step, which repeat of it). The place is that in the order of hook points, or in the architecture's program.

    Without a program, sublayers stand in stream order, or where layers repeat, as they ran; and a step is the final
    norm, where the stream went on from it, as between the rounds of a looped model.
    """
    count: Counter[Sublayer | StreamOp | HookPoint] = Counter()
    if architecture.stream_ops:
        for place, item in enumerate(architecture.stream_ops):
            number = count[item] if item is not architecture.stream_out else -1  # which may be read on the way
            count[item] += 1
            if isinstance(item, StreamOp):
                seen = [raw.at(point, "a gate, norm or mixing of the stream")[number] for point in item.points]
                yield place, item.step(*seen), number
            else:
                yield place, item, number
        return
    sublayers = {sublayer.hook_point: sublayer for sublayer in architecture.sublayers}
    checks = {*architecture.blocks, architecture.stream_out}
    final, start = architecture.stream_out, architecture.stream_in
    repeated = any(len(raw.seen[point]) > 1 for point in (*sublayers, final))
    listed = iter(architecture.sublayers)
    first = raw.order.index(start) if start in raw.order else 0
    for place, point in enumerate(raw.order):
        number = count[point]
        count[point] += 1
        if place < first:  # an embedding may be normed by the final norm, too
            continue
        if point in sublayers:
            yield place, sublayers[point] if repeated else next(listed), number
        elif point in checks:
            yield place, point, number
            if point == final and number + 1 < len(raw.seen[final]) and _goes_on(architecture, raw, place, count):
                norm, here = architecture.norm, raw.seen[final][number]
                if norm.bias is not None:
                    raise InputError("this model's stream passes a LayerNorm between rounds, whose bias no row is for.")
                yield place, AffineStep((norm,), divisor=norm.statistic(here)), number


def _goes_on(architecture: Architecture, raw: RawCapture, place: int, count: Counter[Any]) -> bool:
    """Whether the stream goes on from the final norm at a place: where it is next seen, less what was added since."""
    here, ahead = raw.seen[raw.order[place]][count[raw.order[place]] - 1], Counter(count)
    scales = {sublayer.hook_point: sublayer.scale for sublayer in architecture.sublayers}
    known = {architecture.stream_in, *architecture.blocks, architecture.stream_out}
    added = torch.zeros_like(here)
    for point in raw.order[place + 1 :]:
        value = raw.seen[point][ahead[point]]
        ahead[point] += 1
        if point in scales:
            added = added + value * scales[point]
        elif point in known:
            return passes_norm(architecture.norm, here, value - added)
    return False


def stream_after(done: Activations, stream: Float[Tensor, "row d"], count: int) -> Float[Tensor, "row d"]:
    """A stream after `count` sublayer outputs as it goes on: after the steps that it passes there."""
    for step in done.path:
        if step.after == count:
            stream = step(stream[:, None])[:, 0].to(stream.dtype)
    return stream


def to_final_stream(done: Activations, architecture: Architecture) -> Activations:
    """The same pass with every output, and the sum of the path's biases, as they stand in the final stream."""
    if not done.path:
        return done
    rows, writes = len(done.final), len(done.sublayer_outputs)
    outputs, steps, passed = list(done.sublayer_outputs), list(done.path), False
    chains: tuple[Chain, ...] = ((),)
    factors = torch.ones(rows, 1, 1, dtype=torch.float64, device=done.final.device)  # [row, stream, chain]
    biases = torch.zeros(done.final.shape, dtype=torch.float64, device=done.final.device)
    for number in range(writes, -1, -1):
        if number < writes:
            write_weights = next((step.write_weights for step in reversed(steps) if step.after <= number), None)
            if outputs[number].output.shape[1] == factors.shape[1] * done.embed.shape[1] > done.embed.shape[1]:
                own = outputs[number].output.unflatten(1, (factors.shape[1], -1))  # a vector for every stream
                parts = [PathToFinal(chains, factors[:, i])(x) for i, x in enumerate(own.unbind(1))]
                outputs[number] = replace(outputs[number], output=torch.stack(parts).sum(0))
            elif passed or write_weights is not None:
                outputs[number] = _carried(
                    architecture, outputs[number], PathToFinal(chains, _entering(write_weights, factors))
                )
        while steps and steps[-1].after == number:
            step = steps.pop()
            passed = True
            if step.bias is not None:
                for stream, bias in enumerate(step.bias.reshape(factors.shape[1], -1).to(biases)):
                    biases = biases + PathToFinal(chains, factors[:, stream])(bias.expand_as(biases))
            chains, factors = _before(architecture, step, chains, factors)
    carry = PathToFinal(chains, _entering(None, factors))
    return replace(
        done,
        embed=carry(done.embed),
        pos_embed=None if done.pos_embed is None else carry(done.pos_embed),
        sublayer_outputs=tuple(outputs),
        path=(),
        stream_bias=biases if any(step.bias is not None for step in done.path) else None,
    )


def _entering(write_weights: Tensor | None, factors: Float[Tensor, "row stream chain"]) -> Float[Tensor, "row chain"]:
    """The factors of a write, by how much of it enters each stream."""
    if write_weights is None:
        return factors[:, 0] if factors.shape[1] == 1 else factors.sum(1)
    return (factors * write_weights.to(factors)[..., None]).sum(1)


def _before(
    architecture: Architecture, step: AffineStep, chains: tuple[Chain, ...], factors: Float[Tensor, "row stream chain"]
) -> tuple[tuple[Chain, ...], Float[Tensor, "row stream chain"]]:
    """Chains and factors of what stood in the streams before a step."""
    if step.divisor is not None:
        factors = factors / step.divisor.to(factors)[:, None, None]
    if step.mix is not None:
        factors = step.mix.to(factors).transpose(-1, -2) @ factors
    if len(step.maps) == 1:
        chains = tuple(_joined(architecture, step.maps[0], chain) for chain in chains)
    elif step.maps:  # each stream has its own: as many directions for each
        chains = tuple(_joined(architecture, own, chain) for own in step.maps for chain in chains)
        factors = torch.diag_embed(factors.transpose(1, 2)).permute(0, 2, 3, 1).flatten(2)
    return chains, factors


def _joined(architecture: Architecture, before: Linear, chain: Chain) -> Chain:
    """A chain with one more map in front; gains that meet are one gain, made once."""
    if not (chain and isinstance(before, Norm) and isinstance(chain[0], Norm) and not chain[0].centered):
        return (before, *chain)
    key = (before, chain[0])
    if key not in architecture.joined:
        architecture.joined[key] = Norm(before.gain * chain[0].gain, None, before.centered, None)
    return (architecture.joined[key], *chain[1:])


def _carried(architecture: Architecture, output: SublayerOutput, carry: PathToFinal) -> SublayerOutput:
    """A sublayer's output as it stands in the final stream; if it is cut, with a map that leads there."""
    sublayer, cut = output.sublayer, output.cut
    output = replace(
        output, output=carry(output.output), adapter=None if output.adapter is None else carry(output.adapter)
    )
    if output.vectors is not None:
        slots = [carry(slot) for slot in output.vectors.vectors.unbind(1)]
        return replace(output, vectors=Vectors(torch.stack(slots, 1), output.vectors.index))
    if cut is None or cut.output_map is None:
        return output
    chain = carry.chains[0]
    if len(carry.chains) > 1 or any(not step.static for step in chain):
        raise InputError(
            f"{sublayer} goes on through gates that differ from token to token, number by number, so its parts have no "
            "output map: use unit='sublayer'."
        )
    key = (cut.output_map, *chain)
    if key not in architecture.carried:
        architecture.carried[key] = replace(cut.output_map, path=(*cut.output_map.path, *chain))
    cut = replace(cut, output_map=architecture.carried[key])
    return replace(output, cut=cut, path_divisor=1 / carry.factors[:, 0])
