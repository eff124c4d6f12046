"""The architecture of a Hugging Face model, read through TransformerLens' component mapping.

TransformerLens' architecture adapters name the modules of every role without booting a bridge, so the user's model
stays exactly as it is. What is added to the stream is the output of the post-norm, where there is one, else of the
output projection, else of the sublayer itself: some attentions and MLPs return more or less than that.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .architecture import KINDS, UNCUT, Architecture, HookPoint, OutputMap, Sublayer, SublayerKind, refuse_unreadable
from .norm import Norm, probe


def of_huggingface(model: Any) -> Architecture:
    """The architecture of a Hugging Face causal LM. Raises InputError for what cannot be decomposed."""
    finder = _Finder(model)
    adapter, find = finder.adapter, finder.find
    refuse_unreadable(type(model).__name__, find)
    final, unembed, blocks, pos_embed = (find(name) for name in ("ln_final", "unembed", "blocks", "pos_embed"))
    if len(blocks) == 0:
        raise InputError(f"{type(model).__name__} has no layers, so there is nothing to decompose.")
    layers = dict.fromkeys(blocks)  # a tied block that is listed again runs again
    places = {block: place for place, block in reversed(list(enumerate(blocks)))}  # where each stands first
    sublayers = [finder.sublayer(k, places[block], layer) for layer, block in enumerate(layers) for k in KINDS]
    norm, text = finder.norm(final), model.config.get_text_config()
    lengths = ("max_position_embeddings", "n_positions", "max_seq_len")
    context = next((value for name in lengths if (value := getattr(text, name, None))), None)  # None: without an end
    return Architecture(
        root=model,
        stream_in=HookPoint(blocks[0], "in", "blocks.0.hook_resid_pre"),
        pos_embed=None if pos_embed is None else HookPoint(pos_embed, name="hook_pos_embed"),
        sublayers=tuple(sublayer for sublayer in sublayers if sublayer is not None),
        stream_out=HookPoint(final, "in", f"blocks.{len(blocks) - 1}.hook_resid_post"),
        blocks=tuple(HookPoint(block, "in") for block in blocks),
        norm=norm,
        norm_module=final,
        unembed=unembed,
        unembed_rows=partial(_linear_rows, unembed),
        transform=adapter.apply_output_logits_transform,
        logits=lambda ids, mask: model(input_ids=ids, attention_mask=mask, use_cache=False, return_dict=True).logits,
        device=finder.device,
        dtype=finder.embedding.weight.dtype,
        vocabulary=int(finder.embedding.weight.shape[0]),
        outputs=int(unembed.weight.shape[0]),
        context=int(context) if context else None,
        length_switch=length_switch_of(model.config),
        parallel=bool(getattr(adapter.cfg, "parallel_attn_mlp", False)),
        constant=norm.bias is not None or _is_present(getattr(unembed, "bias", None)),
    )


class _Finder:
    """Finds modules by TransformerLens' names, and makes sublayers and norms of them."""

    def __init__(self, model: Any) -> None:
        self.model, self.adapter = model, _adapter(model)
        blocks = self.adapter.component_mapping.get("blocks")  # an encoder-decoder, refused later, has none
        self.embedding = model.get_input_embeddings()
        self.device = _device(self.embedding, torch.device("cpu"))
        self.scale = float(getattr(blocks, "residual_contribution_scale", 1.0))
        self.aliases: dict[str, str | list[str]] = getattr(blocks, "hook_aliases", None) or {}
        # A nameless MLP is spread over its block: looked up, it would be the block itself.
        self.has_mlp = getattr(getattr(blocks, "submodules", {}).get("mlp"), "name", None) is not None

    @cached_property
    def width(self) -> int:
        """The stream's width."""
        unembed = self.find("unembed")
        if not _has_matrix(unembed):
            raise InputError(
                f"this model's unembedding is a {type(unembed).__name__} without a plain weight matrix (wrapped or "
                "quantized), so it cannot be read: load the model with a plain one."
            )
        return int(unembed.weight.shape[1])

    def find(self, path: str) -> Any:
        # "unmapped" is a ValueError, "mapped but absent in this model" an AttributeError or None.
        try:
            module = self.adapter.get_component(self.model, path)
        except (ValueError, AttributeError):
            return None
        return module if isinstance(module, nn.Module) else None

    def sublayer(self, kind: SublayerKind, position: int, layer: int) -> Sublayer | None:
        """A sublayer of the block at a position, which is the layer of a number; None where the block has none."""
        block, inner, hook = f"blocks.{position}", "o" if kind == "attn" else "out", f"hook_{kind}_out"
        projection = self.find(f"{block}.{kind}.{inner}")
        # TransformerLens names a sublayer's output after its post-norm; where blocks differ, there are several names.
        alias = self.aliases.get(hook, "")
        names = [name.split(".")[0] for name in ([alias] if isinstance(alias, str) else alias)]
        post_name = next((name for name in names if name.startswith("ln")), f"ln{1 if kind == 'attn' else 2}_post")
        post = self.find(f"{block}.{post_name}")
        whole = self.find(f"{block}.{kind}") if kind == "attn" or self.has_mlp else None
        module = next((m for m in (post, projection, whole) if m is not None), None)
        if module is None:
            return None
        output = HookPoint(module, name=f"{block}.{hook}" if self.scale == 1.0 else f"{block}.{kind}.hook_out")
        if projection is None or not _is_plain(projection, self.width):
            reason = UNCUT["wrapped" if projection is not None else "hidden" if kind == "attn" else "mixture"]
            return Sublayer(kind, layer, output, self.scale, uncut_reason=reason)
        norm = None if post is None else self.norm(post)
        neurons = int(projection.weight.shape[0 if _is_conv1d(projection) else 1])
        values = f"{block}.attn.hook_z" if kind == "attn" else f"{block}.mlp.hook_post"
        output_map = OutputMap(
            count=self.adapter.cfg.n_heads if kind == "attn" else neurons,
            hook_point=HookPoint(projection, "in", values),
            projection=partial(linear_map, projection),
            bias=_is_present(getattr(projection, "bias", None)) or (norm is not None and norm.bias is not None),
            scale=self.scale,
            post=norm,
            post_hook_point=None if post is None else HookPoint(post, "in", f"{block}.{post_name}.hook_scale"),
        )
        return Sublayer(kind, layer, output, self.scale, output_map)

    def norm(self, module: nn.Module) -> Norm:
        return probe(module, self.width, self.model.dtype, _device(module, self.device))


def _adapter(model: Any) -> Any:
    """TransformerLens' description of an architecture. Its private names are kept in this function."""
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_config_from_hf

    # Transformers and TransformerLens do not agree on the capitals of all names (PhimoeForCausalLM).
    known = {name.casefold(): name for name in SUPPORTED_ARCHITECTURES}
    architecture = known.get(type(model).__name__.casefold())
    if architecture is None:
        raise InputError(
            f"TransformerLens does not know the architecture {type(model).__name__}, so nothing tells where it writes "
            "to its residual stream: load a model of an architecture it lists."
        )
    cfg = build_bridge_config_from_hf(model.config, architecture, architecture, model.dtype)
    adapter = SUPPORTED_ARCHITECTURES[architecture]
    # It may ask for libraries that prepare pictures, but names of modules are all that is read here.
    without_libraries = type(adapter.__name__, (adapter,), {"required_libraries": []})
    try:
        return without_libraries(cfg)
    except ImportError as error:
        raise InputError(f"{type(model).__name__} needs a library that is not installed ({error}).") from error


def _is_present(bias: Tensor | None) -> bool:
    """Whether a bias adds anything; an offloaded one is not fetched to find out."""
    return bias is not None and (bias.is_meta or bool((bias != 0).any()))


def _is_conv1d(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def linear_map(module: Any) -> tuple[Tensor, Tensor | None]:
    """`[in, out]` weight and bias of a Linear or a Conv1D, also where accelerate has them offloaded."""
    from accelerate.utils import align_module_device

    offloaded = any(parameter.is_meta for parameter in module.parameters())
    with align_module_device(module):
        weight = module.weight.detach()
        bias = getattr(module, "bias", None)
        bias = None if bias is None else bias.detach()
        if offloaded:  # outside this block the weights are gone again
            weight, bias = weight.clone(), None if bias is None else bias.clone()
    return weight if _is_conv1d(module) else weight.T, bias


def _linear_rows(module: Any, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows `[id, d]` of an unembedding and their biases."""
    from accelerate.utils import align_module_device

    with align_module_device(module):
        rows = module.weight[ids.to(module.weight.device)].detach()
        bias = getattr(module, "bias", None)
        return rows, None if bias is None else bias[ids.to(bias.device)].detach()


def _device(module: nn.Module, default: torch.device) -> torch.device:
    """Where a module wants its input; an offloaded one says so in accelerate's hook."""
    hook = getattr(module, "_hf_hook", None)
    if getattr(hook, "execution_device", None) is not None:
        return torch.device(hook.execution_device)  # type: ignore[union-attr]
    parameter = next(module.parameters(), None)
    return default if parameter is None or parameter.is_meta else parameter.device


def _has_matrix(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point()


def _is_plain(projection: Any, width: int) -> bool:
    """Whether a module is a matrix and a bias that can be read, and not a wrapped or packed one."""
    return _has_matrix(projection) and int(projection.weight.shape[1 if _is_conv1d(projection) else 0]) == width


def length_switch_of(config: Any) -> int | None:
    """The length beyond which rotary positions are scaled in another way for the whole batch, if there is one."""
    if not hasattr(config, "get_text_config"):
        return None
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") not in ("longrope", "dynamic"):
        return None
    length = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    return int(length or text.max_position_embeddings)
