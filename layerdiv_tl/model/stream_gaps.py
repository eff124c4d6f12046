"""Where the residual stream of a pass is not what its sublayers have written, junction by junction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .architecture import HALF, Architecture
from .capture import RawCapture
from .looped import passes_norm


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
    blocks = {id(point): number for number, point in enumerate(architecture.blocks)}
    scales = {id(sublayer.hook_point): sublayer.scale for sublayer in architecture.sublayers}
    stream_in, stream_out = id(architecture.stream_in), id(architecture.stream_out)
    waiting = {point: list(values) for point, values in raw.seen.items()}
    # Two additions a block round twice by half an eps; single precision also sums in other orders.
    eps = torch.finfo(raw.dtype).eps * (2 if raw.dtype in HALF else 64)
    stream, since = raw.seen[stream_in][0], "its embedding"
    size = stream.abs()
    at_norm = False  # whether the stream has just been read by the final norm
    start = first = raw.order.index(stream_in)
    for place, point in enumerate(raw.order):
        value = waiting[point].pop(0)
        if place < first:  # an embedding may be normed by the final norm, too
            continue
        if point in scales:
            stream = stream + value * scales[point]
            size = size + (value * scales[point]).abs()
        elif point in blocks or point == stream_out:
            floor = torch.finfo(raw.dtype).tiny + 1e-6 * float(value.abs().max())
            if at_norm and passes_norm(architecture.norm, stream, value):
                stream = architecture.norm(stream)
                size = 4 * stream.abs()  # its product with the gain rounds, too
            end = f"the input of block {blocks[point]}" if point in blocks else "the final norm"
            yield StreamGap(start, place, value - stream, eps * size + floor, f"between {since} and {end}")
            stream, size, at_norm, start = value, value.abs(), point == stream_out, place
            since = "the final norm between its loops" if at_norm else f"the input of block {blocks[point]}"


def find_mismatch(architecture: Architecture, raw: RawCapture) -> str | None:
    """Where the stream moved by more than the rounding of its additions, element by element; None where nowhere."""
    gaps = stream_gaps(architecture, raw)
    return next((gap.place for gap in gaps if bool((gap.missing.abs() > gap.rounding).any())), None)
