"""Batches of rows, and their padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


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
