"""Batches of rows: how long they may be, what shares a batch, and their padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

_CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")


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


def context_of(config: Any) -> int | None:
    """The longest supported text, in tokens; None where there is no limit."""
    found = next((value for name in _CONTEXTS if (value := getattr(config, name, None))), None)
    return int(found) if found else None


def window_of(config: Any) -> int | None:
    """The size in tokens of the smallest attention window; None for full attention."""
    return min((w for name in _WINDOWS if isinstance(w := getattr(config, name, None), int)), default=None)


def rope_lengths(config: Any) -> tuple[int | None, bool]:
    """The length beyond which a batch's rotary positions change, and True if these then grow with the text.

    The length is None for positions that do not depend on it.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    lengths, kinds = [], set()
    for own in (rope, *(own for own in rope.values() if isinstance(own, Mapping))):  # of one kind of layer, or of all
        kinds.add(own.get("rope_type"))
        if own.get("rope_type") in ("longrope", "dynamic"):
            original = "original_max_position_embeddings"
            lengths.append(int(own.get(original) or getattr(config, original, 0) or config.max_position_embeddings))
    return min(lengths, default=None), "dynamic" in kinds


def forget_lengths(module: Any) -> None:
    """Reset dynamic rotary frequencies to those of a short text.

    Beyond the original length, Transformers keeps those of the longest text so far for every later one.
    """
    for part in module.modules():
        names = [*vars(part), *dict(part.named_buffers(recurse=False))]
        for name in [name for name in names if name.endswith("original_inv_freq")]:
            prefix = name.removesuffix("original_inv_freq")
            buffer = getattr(part, f"{prefix}inv_freq")
            part.register_buffer(f"{prefix}inv_freq", getattr(part, name).to(buffer.device), persistent=False)
            setattr(part, f"{prefix}max_seq_len_cached", part.original_max_seq_len)
