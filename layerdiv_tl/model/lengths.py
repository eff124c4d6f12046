"""How long a model's texts may be, and the length at which its positions change (LongRoPE, dynamic NTK)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")


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
