"""The frame of every forward pass: batches of rows, padding, evaluation mode, precision."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from .architecture import Architecture
from .weights import modules_of

# Modes and hooks are set on the user's own modules, where two threads at once would interfere.
_ONE_AT_A_TIME = threading.RLock()


def require_local(architecture: Architecture) -> None:
    """Raise InputError for a remote model, whose weights are not here."""
    if architecture.remote:
        raise InputError(
            f"this model runs elsewhere ({architecture.remote}), where contributions to options are computed, and "
            "studies of them: for anything else, load it in this process."
        )


@contextmanager
def inference_mode_for(architecture: Architecture) -> Iterator[None]:
    """Set evaluation mode without gradients or autocast; every module's own mode is restored afterwards.

    Raises InputError for a remote model.
    """
    require_local(architecture)
    with _ONE_AT_A_TIME:
        training = [module for module in modules_of(*architecture.roots) if module.training]
        try:
            if training:  # a bridge's `eval` walks thousands of modules
                architecture.root.eval()
            # Under a user's autocast, products would irrecoverably lose digits.
            with torch.inference_mode(), torch.autocast(architecture.device.type, enabled=False):
                yield
        finally:
            for module in training:
                module.training = True


def upcast(x: Tensor) -> Tensor:
    """Convert half precisions to float32 before anything is added up; wider dtypes are unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def batches(lengths: Sequence[int], batch_tokens: int, switch: int | None = None) -> list[list[int]]:
    """Group row numbers into batches of similar length, with at most `batch_tokens` padded tokens each.

    Longest first, so that memory runs out at the start or not at all. A row longer than `batch_tokens` is a batch by
    itself. A row longer than `switch` tokens shares a batch only with rows of its own length, since positions may then
    depend on the longest row.

    >>> batches([3, 9, 8, 2], batch_tokens=20)
    [[1, 2], [0, 3]]
    """
    cut: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda r: (-lengths[r], r)):
        longest = lengths[cut[-1][0]] if cut else 0
        alike = switch is None or longest <= switch or lengths[row] == longest
        if cut and alike and (len(cut[-1]) + 1) * longest <= batch_tokens:
            cut[-1].append(row)
        else:
            cut.append([row])
    return cut


def pad(prompts: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "row token"], Int[Tensor, "row token"]]:
    """Pad ids and mask on the right, where a causal model needs no position ids and does not attend to padding."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.as_tensor(prompt)
        mask[row, : len(prompt)] = 1
    return ids, mask
