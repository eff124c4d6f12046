"""The path of the residual stream: its steps between the writes, and the path of each write to the final stream.

Most streams only have additions. Others pass norms (post-norm stacks, rounds of a loop), gates, or a mixing of several
streams. With every coefficient held at its value in the pass, each such step is affine,

    X_i ← Σ_k mix_ik · map_k(X_k) / divisor + bias_i,

so a write f reaches the final stream as Σ_j a_j · chain_j(f): per-token scalars a_j, and chains of maps that are the
same for all tokens. One walk from the end to the start finds both for every write. All of these and the biases still
sum to the stream, which every pass checks.
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
from .architecture import Architecture, HookPoint, StreamOp, Sublayer, Vectors
from .capture import Activations, RawCapture, SublayerOutput
from .norm import AffineStep, Linear, Norm


@dataclass(frozen=True, eq=False)
class PathToFinal:
    """The path from each stream to the final one: x in stream i ends up as Σ_j factors_ij · chain_j(x).

    `chains` are maps in the order in which a vector passes them; their factors differ between tokens.
    """

    chains: tuple[tuple[Linear, ...], ...]
    factors: Float[Tensor, "row stream chain"]

    def __call__(self, x: Float[Tensor, "row d"], stream: int = 0) -> Float[Tensor, "row d"]:
        """Carry a vector of one stream, shared by all rows or one for each, to the final stream; in float64."""
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for chain, factor in zip(self.chains, self.factors[:, stream].to(x.device).unbind(1), strict=True):
            total = total + reduce(lambda y, linear: linear.linear(y), chain, x.double()) * factor[:, None]
        return total

    def of_streams(self, vectors: Float[Tensor, "row _"]) -> Float[Tensor, "row d"]:
        """Carry vectors of all streams, side by side, to their sum in the final stream."""
        own = vectors.unflatten(1, (self.factors.shape[1], -1)).unbind(1)
        return reduce(torch.add, [self(x, stream) for stream, x in enumerate(own)])

    def of_write(self, weights: Float[Tensor, "... stream"] | None) -> PathToFinal:
        """The path of a write that enters the streams with these weights; None means entirely."""
        factors = self.factors if weights is None else self.factors * weights.to(self.factors)[..., None]
        return PathToFinal(self.chains, factors.sum(1, keepdim=True))

    def before(self, step: AffineStep) -> PathToFinal:
        """The path from the streams before a step, without the step's bias."""
        chains, factors = self.chains, self.factors
        if step.divisor is not None:
            factors = factors / step.divisor.to(factors)[:, None, None]
        if step.mix is not None:
            factors = step.mix.to(factors).transpose(-1, -2) @ factors
        if step.maps:
            chains = tuple((own, *chain) for own in step.maps for chain in chains)
        if len(step.maps) > 1:  # each stream has its own map, so chains multiply
            factors = torch.diag_embed(factors.transpose(1, 2)).permute(0, 2, 3, 1).flatten(2)
        return PathToFinal(chains, factors)


def number_repeats(places: Sequence[Hashable]) -> tuple[int | None, ...]:
    """Number the repeats of each place from 1; None for a place that runs once.

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
    """True if a stream continues with the norm's output; a model may also read its stream out on the way."""
    return bool((norm(before) - after).norm() < (before - after).norm())


def trace(architecture: Architecture, raw: RawCapture) -> Iterator[tuple[int, Sublayer | HookPoint | AffineStep, int]]:
    """Yield the items on the stream's path in a pass, in order: (place, item, repeat of it).

    An item is a sublayer, the input of a block or of the final norm, or a step. The place is its index in the order of
    hook points, or in the architecture's `stream_ops`. Without these, sublayers are in stream order, or in execution
    order if layers repeat; the final norm is a step if the stream continues from it, as in a looped model.
    """
    count = Counter[Sublayer | StreamOp | HookPoint]()
    for place, item in enumerate(architecture.stream_ops):
        number = count[item] if item is not architecture.stream_out else -1  # which may also only be read
        count[item] += 1
        if isinstance(item, StreamOp):
            points = [raw.at(point, "a gate, norm or mixing of the stream") for point in item.points]
            yield place, item.step_of([seen[number] for seen in points]), number
        else:
            yield place, item, number
    if architecture.stream_ops:
        return
    sublayers = {sublayer.hook_point: sublayer for sublayer in architecture.sublayers}
    final, start, norm = architecture.stream_out, architecture.stream_in, architecture.norm
    repeated = any(len(raw.seen[point]) > 1 for point in (*sublayers, final))
    listed = iter(architecture.sublayers)
    first = raw.order.index(start) if start in raw.order else 0
    for place, point in enumerate(raw.order):
        number = count[point]
        count[point] += 1
        if place < first:  # the final norm may also be applied to an embedding
            continue
        if point in sublayers:
            yield place, sublayers[point] if repeated else next(listed), number
        elif point in architecture.blocks or point is final:
            yield place, point, number
            if point is final and number + 1 < len(raw.seen[final]) and _goes_on(architecture, raw, place, count):
                if norm.bias is not None:
                    raise InputError("this model's stream passes a LayerNorm between rounds, whose bias has no row.")
                yield place, AffineStep((norm,), divisor=norm.statistic(raw.seen[final][number])), number


def _goes_on(architecture: Architecture, raw: RawCapture, place: int, count: Counter[Any]) -> bool:
    """True if the stream continues from the final norm at a place: it is next seen as normed plus later writes."""
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
    """Compute a stream after `count` sublayer outputs and the steps that it passes there."""
    for step in done.path:
        if step.after == count:
            stream = step(stream[:, None])[:, 0].to(stream.dtype)
    return stream


def to_final_stream(done: Activations) -> Activations:
    """Carry every output, and the sum of the path's biases, to the final stream.

    Raises InputError where the parts of a cut output have no common map to it.
    """
    if not done.path:
        return done
    # One walk from the end to the start: after the last step is the final stream.
    outputs, steps = list(done.sublayer_outputs), list(done.path)
    path = PathToFinal(((),), torch.ones(len(done.final), 1, 1, dtype=torch.float64, device=done.final.device))
    bias = torch.zeros(done.final.shape, dtype=torch.float64, device=done.final.device)
    for number in range(len(outputs), -1, -1):
        if number < len(outputs):
            weights = steps[-1].write_weights if steps else None
            if len(steps) < len(done.path) or weights is not None:
                outputs[number] = _carry(outputs[number], path, weights, done.embed.shape[1])
        while steps and steps[-1].after == number:
            step = steps.pop()
            if step.bias is not None:
                streams = step.bias.to(bias).expand(path.factors.shape[1], -1).flatten()
                bias = bias + path.of_streams(streams[None])
            path = path.before(step)
    start = path.of_write(None)
    return replace(
        done,
        embed=start(done.embed),
        pos_embed=None if done.pos_embed is None else start(done.pos_embed),
        sublayer_outputs=tuple(outputs),
        path=(),
        stream_bias=bias if any(step.bias is not None for step in done.path) else None,
    )


def _carry(output: SublayerOutput, path: PathToFinal, weights: Tensor | None, width: int) -> SublayerOutput:
    """Carry one output; if it is cut into values, extend its output map instead of the values."""
    sublayer, cut, vectors = output.sublayer, output.cut, output.vectors
    if output.output.shape[1] > width:  # a vector for every stream
        return replace(output, output=path.of_streams(output.output))
    path = path.of_write(weights)
    output = replace(output, output=path(output.output))
    if vectors is not None:
        slots = [path(slot) for slot in vectors.vectors.unbind(1)]
        return replace(output, vectors=Vectors(torch.stack(slots, 1), vectors.index))
    if cut is None or cut.output_map is None:
        return output
    chain = path.chains[0]
    if len(path.chains) > 1 or any(isinstance(own, Norm) and own.gain.dim() > 1 for own in chain):
        raise InputError(
            f"{sublayer} is followed by elementwise gates that differ between tokens, so its parts have no "
            "output map: use unit='sublayer'."
        )
    cut = replace(cut, output_map=cut.output_map.followed_by(chain))
    return replace(output, cut=cut, path_divisor=1 / path.factors[:, 0, 0])
