"""Whether the components of a model sum to its logits, and where the sum breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..components import Unit
from ..errors import InputError
from .architecture import HALF, Architecture
from .batches import inference_mode_for, pad
from .capture import RawCapture, capture
from .looped import passes_norm

UNNAMED = (
    "something that is not a component (a hook, a wrapped module, a recurrent or linear-attention sublayer) writes to "
    "its residual stream"
)
# Relative to max Σ|u_i|. float32 models measure 1e-7 to 1e-6, half-precision ones up to 2e-2.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class ReconstructionError:
    """How far the components are from the logits, each relative to Σ|u_i|.

    split_gap, stream_gap, readout_gap
        Heads or neurons against their sublayer, all components against the stream, the read-out of the stream
        against what the unembedding returned.
    unexplained
        What the model returns against the known transform of that.
    dtype, answer_dtype
        The precisions of the stream and of the answer.
    """

    split_gap: float
    stream_gap: float
    readout_gap: float
    unexplained: float
    dtype: torch.dtype
    answer_dtype: torch.dtype


def check_reconstruction(name: str, unit: Unit, gaps: ReconstructionError, locate: Callable[[], str]) -> None:
    """Raise InputError, with the place where the sum breaks, unless the components sum to the logits.

    `locate` finds, when called, why the sublayers do not sum to the stream: see `locate_mismatch`.
    """
    stream = TOLERANCE.get(gaps.dtype, 1e-4)
    answer = max(stream, TOLERANCE.get(gaps.answer_dtype, 1e-4))
    heads = (
        f"its {unit}s do not add up to their sublayers (a hook on the output projection, or weights that "
        "are wrapped, packed or of another precision, do that)"
    )
    early = "its final norm and unembedding do not give its logits (as where it may exit early)"
    unknown = "it changes what its unembedding returned in a way this package does not know"
    for gap, tolerance, describe in (
        (gaps.split_gap, stream, lambda: heads),
        (gaps.stream_gap, stream, locate),
        (gaps.readout_gap, answer, lambda: early),
        (gaps.unexplained, answer, lambda: unknown),
    ):
        if not gap <= tolerance:  # NaN too
            raise InputError(
                f"{name} cannot be decomposed: {describe()} (off by {gap:.1e} of Σ|u|, where rounding explains "
                f"{tolerance:.0e})."
            )


def locate_mismatch(architecture: Architecture, ids: Sequence[int]) -> str:
    """Why the sublayers do not sum to the stream at the last token of a prompt, found by running it once more."""
    points = [*architecture.hook_points(), *architecture.blocks]
    at = torch.tensor([len(ids) - 1])
    with inference_mode_for(architecture):
        place = find_mismatch(architecture, capture(architecture, points, *pad([ids]), torch.tensor([0]), at, at))
    return "its sublayers do not add up to its residual stream" if place is None else f"{UNNAMED} {place}"


def find_mismatch(architecture: Architecture, raw: RawCapture) -> str | None:
    """Where the stream moved by more than the rounding of its additions, element by element; None where nowhere."""
    blocks = {id(point): number for number, point in enumerate(architecture.blocks)}
    scales = {id(sublayer.hook_point): sublayer.scale for sublayer in architecture.sublayers}
    stream_in, stream_out = id(architecture.stream_in), id(architecture.stream_out)
    waiting = {point: list(values) for point, values in raw.seen.items()}
    # Two additions a block round twice by half an eps; single precision also sums in other orders.
    eps = torch.finfo(raw.dtype).eps * (2 if raw.dtype in HALF else 64)
    stream, since = raw.seen[stream_in][0], "its embedding"
    size = stream.abs()
    at_norm = False  # whether the stream has just been read by the final norm
    first = raw.order.index(stream_in)
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
            if bool(((stream - value).abs() > eps * size + floor).any()):
                end = f"the input of block {blocks[point]}" if point in blocks else "the final norm"
                return f"between {since} and {end}"
            stream, size, at_norm = value, value.abs(), point == stream_out
            since = "the final norm between its loops" if at_norm else f"the input of block {blocks[point]}"
    return None
