"""Where the residual stream of a pass is not what its sublayers have written, junction by junction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .affine_step import AffineStep
from .architecture import HALF, Architecture, Sublayer
from .capture import RawCapture
from .stream_path import trace


@dataclass(frozen=True, eq=False)
class StreamGap:
    """What the stream holds beyond what was written since the junction before, at one junction.

    Attributes:
        start, stop: The two junctions' places in the order of hook points.
        missing, rounding: `[row, d]`, and what rounding explains of it at most.
        place: Between what and what, in words.
    """

    start: int
    stop: int
    missing: Float[Tensor, "row d"]
    rounding: Float[Tensor, "row d"]
    place: str


def stream_gaps(architecture: Architecture, raw: RawCapture) -> Iterator[StreamGap]:
    """The gap at every input of a block and of the final norm, in the order of the pass."""
    blocks = {point: number for number, point in enumerate(architecture.blocks)}
    # Two additions a block round twice by half an eps; single precision also sums in other orders.
    eps = torch.finfo(raw.dtype).eps * (2 if raw.dtype in HALF else 64)
    streams, since = raw.seen[architecture.stream_in][0][:, None], "its embedding"  # [row, stream, d]
    size, write_weights = streams.abs(), None
    start = 0 if architecture.stream_ops else raw.order.index(architecture.stream_in)
    for place, item, number in trace(architecture, raw):
        if isinstance(item, Sublayer):
            added = item.added(raw.seen[item.hook_point][number])
            if added.shape[1] > streams.shape[2]:  # a vector for every stream
                added = added.unflatten(1, streams.shape[1:])
            else:
                added = added[:, None] if write_weights is None else added[:, None] * write_weights.to(added)[..., None]
            streams, size = streams + added, size + added.abs()
        elif isinstance(item, AffineStep):
            streams, write_weights = item(streams), item.write_weights
            size = item.absolute()(size) + 4 * streams.abs()  # products round, too
        else:
            value = raw.seen[item][number]
            floor = torch.finfo(raw.dtype).tiny + 1e-6 * float(value.abs().max())
            end = f"the input of block {blocks[item]}" if item in blocks else "the final norm"
            if value.shape[1] == streams[0].numel():
                there, bound = streams.flatten(1), size.flatten(1)
                streams = value.unflatten(1, streams.shape[1:])
                size = streams.abs()
            else:  # a block reads the one stream that it writes to
                assert write_weights is not None
                there, bound = ((x * write_weights.to(x)[..., None]).sum(1) for x in (streams, size))
            yield StreamGap(start, place, value - there, eps * bound + floor, f"between {since} and {end}")
            start = place
            since = f"the input of block {blocks[item]}" if item in blocks else "the final norm between its loops"


def find_mismatch(architecture: Architecture, raw: RawCapture) -> str | None:
    """Where the stream moved by more than the rounding of its additions, element by element; None where nowhere."""
    gaps = stream_gaps(architecture, raw)
    return next((gap.place for gap in gaps if bool((gap.missing.abs() > gap.rounding).any())), None)
