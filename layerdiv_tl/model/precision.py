"""What rounding explains, by precision."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
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


def upcast(x: Tensor) -> Tensor:
    """Convert half precisions to float32 before anything is added up; wider dtypes are unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
