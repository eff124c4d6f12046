"""Looped models (Ouro, MobileLLM-LS): layers that run several times, with a final norm between the rounds or without.

Which layer runs how often, and whether the stream goes on as the final norm returned it, is read off a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from .architecture import Architecture, Sublayer
from .capture import Activations, RawCapture, SublayerOutput
from .norm import Norm


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


def order_of_sublayers(architecture: Architecture, raw: RawCapture) -> list[Sublayer]:
    """The sublayers in stream order, or, where layers repeat, as they ran (in parallel blocks these orders differ)."""
    by_point = {id(sublayer.hook_point): sublayer for sublayer in architecture.sublayers}
    if any(len(raw.seen[point]) > 1 for point in (*by_point, id(architecture.stream_out))):
        return [by_point[point] for point in raw.order if point in by_point]
    return list(architecture.sublayers)


def passes_norm(norm: Norm, before: Tensor, after: Tensor) -> bool:
    """Whether a stream went on as the norm returned it: a model may also read its stream out on the way."""
    return bool((norm(before) - after).norm() < (before - after).norm())


def find_loop_norms(
    architecture: Architecture, raw: RawCapture, outputs: Sequence[SublayerOutput]
) -> Iterator[tuple[int, Float[Tensor, " row"]]]:
    """`Activations.loop_norms` of a pass. Raises InputError for a norm with a bias, which no component wrote."""
    sublayers, finals = {id(s.hook_point) for s in architecture.sublayers}, raw.seen[id(architecture.stream_out)]
    # Before the first block an embedding may pass that norm, too: the embedding is what entered the block.
    first = raw.order.index(id(architecture.stream_in))
    reached = [place for place, point in enumerate(raw.order) if point == id(architecture.stream_out)]
    finals = finals[sum(place < first for place in reached) :]
    counts = [sum(point in sublayers for point in raw.order[:place]) for place in reached if place > first]
    for here, then, start, stop in zip(finals, finals[1:], counts, counts[1:], strict=False):
        # The norm's next input, less what was added since, is where the stream started from.
        started = then - torch.stack([torch.zeros_like(then), *(o.output for o in outputs[start:stop])]).sum(0)
        if passes_norm(architecture.norm, here, started):
            if architecture.norm.centered or architecture.norm.bias is not None:
                raise InputError("this model's stream passes a LayerNorm on its way, whose bias no component wrote.")
            yield start, architecture.norm.statistic(here)


def after_loop_norm(
    done: Activations, stream: Float[Tensor, "row d"], count: int, architecture: Architecture
) -> Float[Tensor, "row d"]:
    """The stream after `count` sublayer outputs as it goes on: as it is, or normed where it passes the final norm."""
    return architecture.norm(stream) if any(after == count for after, _ in done.loop_norms) else stream


def to_final_stream(done: Activations, architecture: Architecture) -> Activations:
    """The same pass with every output as it stands in the final stream.

    A norm that the stream passes is, at its own statistic, a diagonal matrix: what was written before it counts times
    gain / statistic of every norm since, and all of it still sums to the stream.
    """
    if not done.loop_norms:
        return done

    def since(count: int) -> tuple[int, Float[Tensor, " row"], Float[Tensor, "row d"]]:
        """Number of norms passed after `count` outputs, the product of their statistics, and the factor."""
        passed = [statistic.double() for after, statistic in done.loop_norms if after >= count]
        divisor = torch.stack([torch.ones_like(done.loop_norms[0][1], dtype=torch.float64), *passed]).prod(0)
        gain = architecture.norm.gain.to(divisor.device) ** len(passed)
        return len(passed), divisor, gain / divisor[:, None]

    def carry(number: int, output: SublayerOutput) -> SublayerOutput:
        times, divisor, factor = since(number + 1)
        if not times:
            return output
        adapter = None if output.adapter is None else output.adapter * factor
        if output.values is None:
            return replace(output, output=output.output * factor, adapter=adapter)
        sublayer = _normed_sublayer(architecture, output.sublayer, times)
        output_map = output.sublayer.output_map
        if output_map is not None and output_map.post is not None and output.post is not None:
            divisor = divisor * output_map.post.divisor(output.post)
        return SublayerOutput(sublayer, output.output * factor, output.values, divisor[:, None], output.hooked, adapter)

    _, _, factor = since(0)
    return replace(
        done,
        embed=done.embed * factor,
        pos_embed=None if done.pos_embed is None else done.pos_embed * factor,
        sublayer_outputs=tuple(carry(number, output) for number, output in enumerate(done.sublayer_outputs)),
        loop_norms=(),
    )


def _normed_sublayer(architecture: Architecture, sublayer: Sublayer, times: int) -> Sublayer:
    """A sublayer whose post-norm holds the gains of the final norms that its output passed."""
    key, output_map = (id(sublayer), times), sublayer.output_map
    if key not in architecture.normed_sublayers:
        assert output_map is not None
        gain, centered = architecture.norm.gain**times, False
        if output_map.post is not None:
            gain, centered = gain * output_map.post.gain, output_map.post.centered
            if output_map.post.bias is not None:
                raise InputError(
                    f"{sublayer} passes a norm with a bias and then, between loops, the final norm, so its heads or "
                    "neurons cannot be separated: use unit='sublayer'."
                )
        post = Norm(gain, None, centered, None)
        architecture.normed_sublayers[key] = replace(sublayer, output_map=replace(output_map, post=post))
    return architecture.normed_sublayers[key]
