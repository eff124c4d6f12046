"""The architecture of a Hugging Face model: where its parts are, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ..errors import InputError
from .architecture import Architecture, HookPoint, StreamItem, Sublayer
from .component_mapping import ComponentMapping, adapter_of
from .streams import family_of
from .structure import Structure, is_hybrid
from .weights import is_present

# Settings of a text config that say how far back its attention looks, where that is not to the beginning.
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")


def of_huggingface(model: Any) -> Architecture:
    """The architecture of a Hugging Face causal LM. Raises InputError for what cannot be decomposed.

    TransformerLens names the parts; where it does not list the architecture, or has no names for recurrent or
    linear-attention sublayers, they are found from the modules' own names.
    """
    adapter, family = adapter_of(model), family_of(model)
    blocks = None if adapter is None else adapter.component_mapping.get("blocks")
    hybrid = blocks is not None and is_hybrid(blocks)
    parts: Structure | ComponentMapping
    if family is not None:
        parts = family.structure(model)
    elif adapter is None or hybrid:
        parts = Structure(model)
    else:
        parts = ComponentMapping(model, adapter)
    if len(parts.blocks) == 0:
        raise InputError(f"{type(model).__name__} has no layers, so there is nothing to decompose.")
    norm, text = parts.norm(parts.final_norm), model.config.get_text_config()
    if parts.stream_divisor != 1.0:
        bias = None if norm.bias is None else norm.bias / parts.stream_divisor
        norm = replace(norm, gain=norm.gain / parts.stream_divisor, bias=bias)
    stream_in = HookPoint(parts.blocks[0], "in", "blocks.0.hook_resid_pre")
    stream_out = parts.end or HookPoint(parts.final_norm, "in", f"blocks.{len(parts.blocks) - 1}.hook_resid_post")
    stream_ops: tuple[StreamItem, ...] = ()
    if family is None or not isinstance(parts, Structure):
        layers = dict.fromkeys(parts.blocks)  # a tied block that is listed again runs again
        places = {block: place for place, block in reversed(list(enumerate(parts.blocks)))}  # where each stands first
        sublayers = [s for layer, block in enumerate(layers) for s in parts.sublayers(places[block], layer)]
    else:
        stream_ops = (*family.walk(parts), stream_out)
        sublayers = list(dict.fromkeys(item for item in stream_ops if isinstance(item, Sublayer)))
        if family.start:
            stream_in = HookPoint(model.get_submodule(family.start), family.start_side)
    lengths = ("max_position_embeddings", "n_positions", "max_seq_len")
    context = next((value for name in lengths if (value := getattr(text, name, None))), None)  # None: without an end
    dynamic = has_dynamic_rope(model.config)  # which is for texts beyond that length
    return Architecture(
        root=model,
        stream_in=stream_in,
        pos_embed=None if parts.pos_embed is None else HookPoint(parts.pos_embed, name="hook_pos_embed"),
        sublayers=tuple(sublayers),
        stream_out=stream_out,
        blocks=parts.block_points,
        norm=norm,
        norm_module=parts.final_norm,
        unembed=parts.unembed,
        unembed_rows=parts.rows,
        transform=parts.transform,
        logits=partial(_logits, model, dynamic),
        device=parts.device,
        dtype=parts.embedding.weight.dtype,
        vocabulary=int(parts.embedding.weight.shape[0]),
        outputs=int(parts.unembed.weight.shape[0]),
        context=int(context) if context and not dynamic else None,
        length_switch=length_switch_of(model.config),
        parallel=parts.parallel,
        constant=norm.bias is not None or is_present(getattr(parts.unembed, "bias", None)),
        window=min((w for name in _WINDOWS if isinstance(w := getattr(text, name, None), int)), default=None),
        to_unembed=parts.to_unembed,
        stream_ops=stream_ops,
    )


def _logits(model: Any, dynamic: bool, ids: Tensor, mask: Tensor, **extra: Tensor) -> Tensor:
    """A pass. Raises InputError for a model that does not run where accelerate has put some of its weights away."""
    if dynamic:
        forget_lengths(model)
    try:
        return model(input_ids=ids, attention_mask=mask, use_cache=False, return_dict=True, **extra).logits
    except RuntimeError as error:
        if "meta" in str(error) and any(parameter.is_meta for parameter in model.parameters()):
            raise InputError(
                f"{type(model).__name__} does not run with weights offloaded to memory or disk "
                f"({str(error).splitlines()[0]}): give a device_map without these, or a smaller dtype."
            ) from error
        raise


def length_switch_of(config: Any) -> int | None:
    """The length beyond which rotary positions are scaled in another way for the whole batch, if there is one."""
    lengths = []
    for rope in _rotary(config):
        if rope.get("rope_type") in ("longrope", "dynamic"):
            text = config.get_text_config()
            own = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", 0)
            lengths.append(int(own or text.max_position_embeddings))
    return min(lengths, default=None)


def has_dynamic_rope(config: Any) -> bool:
    """Whether rotary frequencies grow with the text beyond `max_position_embeddings`."""
    return any(rope.get("rope_type") == "dynamic" for rope in _rotary(config))


def forget_lengths(model: Any) -> None:
    """Put dynamic rotary frequencies back to those of a short text.

    Transformers keeps those of the longest text so far for every later one beyond the original length.
    """
    for module in model.modules():
        names = [*vars(module), *dict(module.named_buffers(recurse=False))]
        for name in [name for name in names if name.endswith("original_inv_freq")]:
            prefix = name.removesuffix("original_inv_freq")
            buffer = getattr(module, f"{prefix}inv_freq")
            module.register_buffer(f"{prefix}inv_freq", getattr(module, name).to(buffer.device), persistent=False)
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def _rotary(config: Any) -> list[Any]:
    """The settings of rotary positions, of every kind of layer that has its own."""
    if not hasattr(config, "get_text_config"):
        return []
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [rope, *(own for own in rope.values() if isinstance(own, Mapping))]
