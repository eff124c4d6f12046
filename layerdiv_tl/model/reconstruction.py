"""Reconstruction errors: gaps between components and the model's logits, and the place where the stream breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from .architecture import HALF, Architecture, Sublayer, UnitLike
from .capture import RawCapture
from .norm import AffineStep
from .stream_path import trace

UNNAMED = (
    "something that is not a component (a hook, a wrapped module, a recurrent or linear-attention sublayer, or a block "
    "that scales or mixes its stream, which an entry of model.streams.FAMILIES describes) writes to its residual stream"
)
# Relative to max Σ|u_i|. Measured: 1e-7 to 1e-6 for float32 models, up to 2e-2 for half precision.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}
# The tolerance between logits that a model computes in two ways.
SAME_ANSWERS = 1e-3


def tolerance(dtype: torch.dtype, exact: float) -> float:
    """The tolerance for numbers: `exact`, or a looser one for half precisions, which round at every operation."""
    return TOLERANCE[dtype] if dtype in HALF else exact


def answer_gap(logits: Tensor, plain: Tensor) -> float:
    """The largest difference from plain logits, relative to the largest of these over all tokens."""
    return float((logits - plain).abs().max() / plain.abs().max().clamp_min(1e-6))


@dataclass(eq=False)
class ReconstructionError:
    """The largest reconstruction errors of some passes: the gaps between components and logits.

    Attributes:
        dtypes: The precisions of the stream and of the logits.
        split, stream: Heads or neurons against their sublayer, all components against the stream; relative to Σ|u_i|.
        absolute, unexplained, averages, size: In logits: Σ u_i against the unembedding's output, the model's logits
            against the known transform of that output, means over the vocabulary against those of the model's own
            logits, and max Σ|u_i|, the scale of these three.
        moments: Relative: sums over the vocabulary from the unembedding's moments against those of the model's own
            logits.
    """

    dtypes: tuple[torch.dtype, ...] = ()
    split: float = 0.0
    stream: float = 0.0
    absolute: float = 0.0
    unexplained: float = 0.0
    averages: float = 0.0
    size: float = float(torch.finfo(torch.float64).tiny)
    moments: float = 0.0

    @property
    def identity_gap(self) -> float:
        """max |Σ u_i − logits| / max Σ|u_i|."""
        return self.absolute / self.size

    @property
    def tolerances(self) -> list[float]:
        """The errors that rounding explains, for each of the precisions."""
        return [TOLERANCE.get(dtype, 1e-4) for dtype in self.dtypes]

    def add(self, name: str, values: Any) -> None:
        """Keep the largest of an error; NaN counts as largest."""
        setattr(self, name, float(np.maximum(getattr(self, name), float(values.max()))))

    def check(self, name: str, unit: UnitLike, locate: Callable[[], str]) -> None:
        """Raise InputError, with the place where the sum breaks, unless the components of a model sum to its logits.

        `locate` is called to find why the sublayers do not sum to the stream: see `locate_mismatch`.
        """
        stream, answer = self.tolerances[0], max(self.tolerances)
        heads = f"its {unit}s do not add up to their sublayers (as with an output projection that is hooked, packed, or"
        early = (
            "its final norm and unembedding do not give its logits (as where it may exit early, or rounds its input)"
        )
        unknown = "it changes what its unembedding returned in a way this package does not know"
        stale = "its unembedding does not give the means of its logits (load it again if weights were changed)"
        for gap, tolerance, reason in (
            (self.split, stream, f"{heads} rounds its input)"),
            (self.stream, stream, None),
            (self.identity_gap, answer, early),
            (self.unexplained / self.size, answer, unknown),
            (self.averages / self.size, answer, stale),
        ):
            if not gap <= tolerance:  # NaN too
                raise InputError(
                    f"{name} cannot be decomposed: {reason or locate()} (off by {gap:.1e} of Σ|u|, where rounding "
                    f"explains {tolerance:.0e})."
                )


@dataclass(frozen=True, eq=False)
class StreamGap:
    """The part of the stream that was not written since the previous junction, at one junction.

    Attributes:
        start, stop: The two junctions' indices in the order of hook points.
        missing, rounding: `[row, d]`, and the most that rounding explains of it.
        place: The two junctions, in words.
    """

    start: int
    stop: int
    missing: Float[Tensor, "row d"]
    rounding: Float[Tensor, "row d"]
    place: str


def stream_gaps(architecture: Architecture, raw: RawCapture) -> Iterator[StreamGap]:
    """Compute the gap at every input of a block and of the final norm, in the order of the pass."""
    blocks = {point: number for number, point in enumerate(architecture.blocks)}
    # Two additions per block round by half an eps each; single precision also sums in other orders.
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
            missing = value - there
            if place in raw.interventions:
                missing = missing - raw.interventions[place].output
            yield StreamGap(start, place, missing, eps * bound + floor, f"between {since} and {end}")
            start, since = place, end if item in blocks else "the final norm between its loops"


def find_mismatch(architecture: Architecture, raw: RawCapture) -> str | None:
    """Find where the stream moves by more than rounding in any element; None if nowhere."""
    gaps = stream_gaps(architecture, raw)
    return next((gap.place for gap in gaps if bool((gap.missing.abs() > gap.rounding).any())), None)
