"""The architecture of a Hugging Face model: its parts, and how to run it.

TransformerLens' architecture adapters name the modules of every role without booting a bridge, so the user's model
stays unchanged. The addition to the stream is the output of the post-norm if there is one, else of the output
projection, else of the sublayer itself: some attentions and MLPs return more or less than that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..errors import InputError
from .architecture import KINDS, WHY_WHOLE, Architecture, HookPoint, StreamItem, Sublayer
from .streams import family_of
from .structure import ModuleFinder, Structure
from .weights import is_present

# TransformerLens' names of modules between a final norm and an unembedding.
_AFTER_THE_NORM = ("mlm_head", "prediction_head", "project_out", "hc_head", "sigma_map", "classifier_ln")
# Settings of a text config for the size of attention windows.
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")


def of_huggingface(model: Any) -> Architecture:
    """Find the architecture of a Hugging Face causal LM. Raises InputError if it cannot be decomposed.

    TransformerLens names the parts. If it does not list the architecture, or has no names for recurrent or
    linear-attention sublayers, they are found by the modules' own names.
    """
    adapter, family = adapter_of(model), family_of(model)
    parts: ModuleFinder
    stream_ops: tuple[StreamItem, ...] = ()
    if family is not None:
        parts = family.structure(model)
        stream_ops = tuple(family.walk(parts))
    elif adapter is None or is_hybrid(adapter):
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
    if family is not None and family.start:
        stream_in = HookPoint(model.get_submodule(family.start), family.start_side)
    sublayers = [item for item in dict.fromkeys(stream_ops) if isinstance(item, Sublayer)]
    if not stream_ops:
        layers = dict.fromkeys(parts.blocks)  # a tied block that is listed again runs again
        places = {block: place for place, block in reversed(list(enumerate(parts.blocks)))}  # the first index of each
        sublayers = [s for layer, block in enumerate(layers) for s in parts.sublayers(places[block], layer)]
    lengths = ("max_position_embeddings", "n_positions", "max_seq_len")
    context = next((value for name in lengths if (value := getattr(text, name, None))), None)  # None: without an end
    length_switch, dynamic = rope_lengths(model.config)  # for texts beyond that length
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
        logits=partial(_logits, model, dynamic, parts.device),
        device=parts.device,
        dtype=parts.embedding.weight.dtype,
        vocabulary=int(parts.embedding.weight.shape[0]),
        outputs=int(parts.unembed.weight.shape[0]),
        context=int(context) if context and not dynamic else None,
        length_switch=length_switch,
        parallel=parts.parallel,
        constant=norm.bias is not None or is_present(getattr(parts.unembed, "bias", None)),
        window=min((w for name in _WINDOWS if isinstance(w := getattr(text, name, None), int)), default=None),
        to_unembed=parts.to_unembed,
        stream_ops=(*stream_ops, stream_out) if stream_ops else (),
    )


def is_hybrid(adapter: Any) -> bool:
    """True if TransformerLens' blocks have other writes than one attention and one MLP, or no listed parts."""
    blocks = None if adapter is None else adapter.component_mapping.get("blocks")
    names = getattr(blocks, "submodules", {})
    return blocks is not None and (not names or any(not re.match("attn$|mlp$|ln", name) for name in names))


class ComponentMapping(ModuleFinder):
    """The parts of a model, by TransformerLens' names."""

    def __init__(self, model: Any, adapter: Any) -> None:
        super().__init__(model)
        self.adapter, self.transform = adapter, adapter.apply_output_logits_transform
        refuse_unreadable(type(model).__name__, self.find)
        self.final_norm, self.unembed, self.pos_embed, blocks = map(
            self.find, ("ln_final", "unembed", "pos_embed", "blocks")
        )
        self.blocks, self.parallel = list(blocks), bool(getattr(adapter.cfg, "parallel_attn_mlp", False))
        blocks = adapter.component_mapping.get("blocks")
        self.scale = float(getattr(blocks, "residual_contribution_scale", 1.0))
        self.aliases: dict[str, str | list[str]] = getattr(blocks, "hook_aliases", None) or {}
        # A nameless MLP is spread over its block: looked up, it would be the block itself.
        self.has_mlp = getattr(getattr(blocks, "submodules", {}).get("mlp"), "name", None) is not None

    def find(self, path: str) -> Any:
        """Find the module of a TransformerLens name; None if there is none."""
        # "unmapped" is a ValueError, "mapped but absent in this model" an AttributeError or None.
        try:
            module = self.adapter.get_component(self.model, path)
        except (ValueError, AttributeError):
            return None
        return module if isinstance(module, nn.Module) else None

    def sublayers(self, position: int, layer: int) -> Iterator[Sublayer]:
        """The sublayers of the block at an index, with the given layer number."""
        block = f"blocks.{position}"
        for kind in KINDS:
            projection = self.find(f"{block}.{kind}.{'o' if kind == 'attn' else 'out'}")
            post_name = post_norm_name(self.aliases, kind)
            post = self.find(f"{block}.{post_name}")
            whole = self.find(f"{block}.{kind}") if kind == "attn" or self.has_mlp else None
            module = next((m for m in (post, projection, whole) if m is not None), None)
            if module is None:
                continue
            output = f"{block}.hook_{kind}_out" if self.scale == 1.0 else f"{block}.{kind}.hook_out"
            values, count = ("attn.hook_z", self.adapter.cfg.n_heads) if kind == "attn" else ("mlp.hook_post", None)
            made = self.output_map(projection, count, self.scale, f"{block}.{values}")
            sublayer = Sublayer(kind, layer, HookPoint(module, name=output), self.scale)
            statistic = f"{block}.{post_name}.hook_scale"
            sublayer = self.with_parts(sublayer, self.blocks[position], whole, made, post, statistic)
            is_wrapped = made is None and projection is not None
            yield replace(sublayer, uncut_reason=WHY_WHOLE["wrapped"]) if is_wrapped else sublayer


def post_norm_name(aliases: Mapping[str, str | list[str]], kind: str) -> str:
    """TransformerLens' name of the norm after a sublayer, if there is one.

    A sublayer's output is named after that norm; where blocks differ, there are several names.
    """
    alias = aliases.get(f"hook_{kind}_out", "")
    names = [name.split(".")[0] for name in ([alias] if isinstance(alias, str) else alias)]
    return next((name for name in names if name.startswith("ln")), "ln1_post" if kind == "attn" else "ln2_post")


def refuse_unreadable(name: str, find: Callable[[str], object | None]) -> None:
    """Raise InputError, with the reason, for a model whose logits are not `unembed(final norm(stream))`."""
    for part in _AFTER_THE_NORM:
        if find(part) is not None:
            raise InputError(f"{name} cannot be decomposed: it has {part} between its final norm and its unembedding.")
    if find("core_block") is not None:  # Raven (Huginn)
        raise InputError(
            f"{name} cannot be decomposed: it starts its loop from random numbers, mixes its input into the stream "
            "anew in every round, and norms the whole stream after each sublayer."
        )
    for part, meaning in (("ln_final", "final norm"), ("unembed", "unembedding"), ("blocks", "list of blocks")):
        if find(part) is None:
            raise InputError(
                f"{name} cannot be decomposed: it has no {meaning} after its last block (as in post-norm models, "
                "encoders and some hybrids), so its logits are not a sum over residual-stream components."
            )


def adapter_of(model: Any) -> Any:
    """Get TransformerLens' description of an architecture; None for one it does not list.

    Its private names are kept in this function.
    """
    logger = logging.getLogger("transformers")
    level = logger.level
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_config_from_hf

    logger.setLevel(level)  # the first import silences it
    # Transformers and TransformerLens do not agree on the capitals of all names (PhimoeForCausalLM).
    known = {name.casefold(): name for name in SUPPORTED_ARCHITECTURES}
    architecture = known.get(type(model).__name__.casefold())
    if architecture is None:
        return None
    cfg = build_bridge_config_from_hf(model.config, architecture, architecture, model.dtype)
    adapter = SUPPORTED_ARCHITECTURES[architecture]
    # It may need image libraries, but only names of modules are read here.
    without_libraries = type(adapter.__name__, (adapter,), {"required_libraries": []})
    try:
        return without_libraries(cfg)
    except ImportError as error:
        raise InputError(f"{type(model).__name__} needs a library that is not installed ({error}).") from error


def _logits(model: Any, dynamic: bool, device: Any, ids: Tensor, mask: Tensor, **extra: Tensor) -> Tensor:
    """Run a pass. Raises InputError for a model that fails to run with weights offloaded by accelerate."""
    if dynamic:
        forget_lengths(model)
    given = {"input_ids": ids.to(device), "attention_mask": mask.to(device), **extra}
    try:
        return model(**given, use_cache=False, return_dict=True).logits
    except RuntimeError as error:
        if "meta" in str(error) and any(parameter.is_meta for parameter in model.parameters()):
            raise InputError(
                f"{type(model).__name__} does not run with weights offloaded to memory or disk "
                f"({str(error).splitlines()[0]}): give a device_map without these, or a smaller dtype."
            ) from error
        raise


def rope_lengths(config: Any) -> tuple[int | None, bool]:
    """The length beyond which a batch's rotary positions change, and True if these then grow with the text.

    The length is None for positions that do not depend on it, and for a config without rotary positions.
    """
    text: Any = config.get_text_config() if hasattr(config, "get_text_config") else None
    rope = getattr(text, "rope_parameters", None) or {}
    lengths, kinds = [], set()
    for own in (rope, *(own for own in rope.values() if isinstance(own, Mapping))):  # of one kind of layer, or of all
        kinds.add(own.get("rope_type"))
        if own.get("rope_type") in ("longrope", "dynamic"):
            original = "original_max_position_embeddings"
            lengths.append(int(own.get(original) or getattr(text, original, 0) or text.max_position_embeddings))
    return min(lengths, default=None), "dynamic" in kinds


def forget_lengths(model: Any) -> None:
    """Reset dynamic rotary frequencies to those of a short text.

    Beyond the original length, Transformers keeps those of the longest text so far for every later one.
    """
    for module in model.modules():
        names = [*vars(module), *dict(module.named_buffers(recurse=False))]
        for name in [name for name in names if name.endswith("original_inv_freq")]:
            prefix = name.removesuffix("original_inv_freq")
            buffer = getattr(module, f"{prefix}inv_freq")
            module.register_buffer(f"{prefix}inv_freq", getattr(module, name).to(buffer.device), persistent=False)
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
