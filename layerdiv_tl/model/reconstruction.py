"""Whether the components of a model sum to its logits, and where the sum breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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


@dataclass(eq=False)
class ReconstructionError:
    """The largest reconstruction errors of some passes: how far the components are from the logits.

    dtypes
        The precisions of the stream and of the answer.
    split, stream
        Heads or neurons against their sublayer, all components against the stream; relative to Σ|u_i|.
    absolute, unexplained, size
        In logits: Σ u_i against what the unembedding returned, what the model returns against the known transform of
        that, and max Σ|u_i|, which these two are relative to.
    moments
        Relative: sums over the vocabulary from the moments of the unembedding against those of the model's own logits.
    """

    dtypes: tuple[torch.dtype, ...] = ()
    split: float = 0.0
    stream: float = 0.0
    absolute: float = 0.0
    unexplained: float = 0.0
    size: float = float(torch.finfo(torch.float64).tiny)
    moments: float = 0.0

    @property
    def identity_gap(self) -> float:
        """max |Σ u_i − logits| / max Σ|u_i|."""
        return self.absolute / self.size

    @property
    def tolerances(self) -> list[float]:
        """What rounding explains, for each of the precisions."""
        return [TOLERANCE.get(dtype, 1e-4) for dtype in self.dtypes]

    def add(self, name: str, values: Any) -> None:
        """Keep the largest of an error; NaN is the largest of all."""
        setattr(self, name, float(np.maximum(getattr(self, name), float(values.max()))))

    def check(self, name: str, unit: Unit, locate: Callable[[], str]) -> None:
        """Raise InputError, with the place where the sum breaks, unless the components of a model sum to its logits.

        `locate` finds, when called, why the sublayers do not sum to the stream: see `locate_mismatch`.
        """
        stream, answer = self.tolerances[0], max(self.tolerances)
        heads = f"its {unit}s do not add up to their sublayers (as with a hooked, wrapped or packed output projection)"
        early = "its final norm and unembedding do not give its logits (as where it may exit early)"
        unknown = "it changes what its unembedding returned in a way this package does not know"
        for gap, tolerance, reason in (
            (self.split, stream, heads),
            (self.stream, stream, None),
            (self.identity_gap, answer, early),
            (self.unexplained / self.size, answer, unknown),
        ):
            if not gap <= tolerance:  # NaN too
                raise InputError(
                    f"{name} cannot be decomposed: {reason or locate()} (off by {gap:.1e} of Σ|u|, where rounding "
                    f"explains {tolerance:.0e})."
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
