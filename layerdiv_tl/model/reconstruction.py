"""Whether the parts of a pass made up the whole, and where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..components import Unit
from ..errors import InputError
from .capture import UNNAMED, first_break, inference_mode_for
from .load import Model

# Relative to max Σ|u_i|. float32 models measure 1e-7 to 1e-6, half-precision ones up to 2e-2.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class ReconstructionError:
    """How far the parts are from the whole, each relative to Σ|u_i|.

    split_gap, stream_gap, readout_gap
        Heads or neurons against their sublayer, all writes against the stream, the read-out of the stream
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


def check_reconstruction(
    name: str, unit: Unit, closure: ReconstructionError, locate_mismatch: Callable[[], str]
) -> None:
    """The parts must sum to the whole: refuse with the place where the sum breaks.

    `stream_break` finds, when asked, why the writes of a pass do not make up its stream.
    """
    stream_tolerance = TOLERANCE.get(closure.dtype, 1e-4)
    answer_tolerance = max(stream_tolerance, TOLERANCE.get(closure.answer_dtype, 1e-4))
    if not closure.split_gap <= stream_tolerance:
        off, tolerance = closure.split_gap, stream_tolerance
        where = (
            f"its {unit}s do not add up to their sublayers (a hook on the output projection, or weights that "
            "are wrapped, packed or of another precision, do that)"
        )
    elif not closure.stream_gap <= stream_tolerance:
        off, tolerance = closure.stream_gap, stream_tolerance
        where = locate_mismatch()
    elif not closure.readout_gap <= answer_tolerance:
        off, tolerance = closure.readout_gap, answer_tolerance
        where = "its final norm and unembedding do not give its logits (as where it may exit early)"
    elif not closure.unexplained <= answer_tolerance:
        off, tolerance = closure.unexplained, answer_tolerance
        where = "it changes what its unembedding returned in a way this package does not know"
    else:
        return
    raise InputError(
        f"{name} cannot be decomposed: {where} (off by {off:.1e} of Σ|u|, where rounding explains {tolerance:.0e})."
    )


def locate_mismatch(model: Model, ids: Sequence[int]) -> str:
    """Why the writes at the last token of a prompt do not make up its stream, found by running it once more."""
    with inference_mode_for(model.architecture):
        place = first_break(model.architecture, ids)
    if place is not None:
        return f"{UNNAMED} {place}"
    return "its sublayers do not add up to its residual stream"
