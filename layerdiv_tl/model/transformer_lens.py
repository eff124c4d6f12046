"""The architecture of a model that TransformerLens already wraps, through its own hook points.

It may be a `TransformerBridge` (3.9 and 4), also in compatibility mode, or a `HookedTransformer` (3.9), folded or not.
`hook_attn_out` and `hook_mlp_out` show the additions to the stream, sandwich norms included. Where a block multiplies
these (Granite), the hooks never fire, and the sublayers' own outputs are read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .architecture import KINDS, WHY_WHOLE, Architecture, HookPoint, OutputMap, Sublayer, SublayerKind
from .huggingface import forget_lengths, is_hybrid, post_norm_name, refuse_unreadable, rope_lengths
from .norm import Norm, probe
from .streams import family_of
from .structure import transformed
from .weights import linear_map

# HookedTransformer gives these models' post-norms the names of pre-norms.
_POST_NORM_NAMED_PRE = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")

_NO_EXPERTS = (
    "TransformerLens has no hook on what single experts write (load_model reads them in the Hugging Face model itself, "
    "before a bridge is booted on it)"
)


def is_transformer_lens(x: Any) -> bool:
    """True for a TransformerBridge or a HookedTransformer (which version 4 no longer has)."""
    kinds = {cls.__name__ for cls in type(x).__mro__ if cls.__module__.startswith("transformer_lens.")}
    return bool(kinds & {"TransformerBridge", "HookedTransformer"})


def is_cache(x: Any) -> bool:
    """True for an `ActivationCache`, which knows its model."""
    return any(cls.__name__ == "ActivationCache" for cls in type(x).__mro__) and hasattr(x, "model")


def of_transformer_lens(model: Any) -> Architecture:
    """Find the architecture of a bridge or HookedTransformer. Raises InputError if it cannot be decomposed."""
    cfg, adapter, original = model.cfg, getattr(model, "adapter", None), getattr(model, "original_model", None)
    # Toy models may have no norm at all, which is a valid read-out.
    is_normless = getattr(cfg, "normalization_type", "") is None
    ln_final: Any = nn.Identity() if is_normless else getattr(model, "ln_final", None)
    _refuse(model, adapter, original, ln_final)
    parts = _BridgeParts(model, adapter)
    sublayers = [parts.sublayer(kind, layer) for layer in range(cfg.n_layers) for kind in KINDS]
    # A HookedTransformer has the module and the hook even where its positions are rotary or ALiBi.
    standard = adapter is not None or cfg.positional_embedding_type == "standard"
    has_positions = standard and "hook_pos_embed" in parts.hooks and getattr(model, "pos_embed", None) is not None
    norm, cap = parts.norm(ln_final), getattr(cfg, "output_logits_soft_cap", -1.0)
    options = {} if adapter is None else {"use_cache": False}
    length_switch, dynamic = rope_lengths(getattr(original, "config", None))

    def logits(ids: Tensor, mask: Tensor) -> Tensor:
        if dynamic:
            forget_lengths(original)
        ids, mask = ids.to(parts.device), mask.to(parts.device)
        return model(ids, attention_mask=mask, return_type="logits", **options)

    unembed_bias = getattr(model, "b_U", None)
    biased = unembed_bias is not None and bool(unembed_bias.detach().abs().max() > 0)
    return Architecture(
        root=model,
        stream_in=parts.point("blocks.0.hook_resid_pre"),
        pos_embed=parts.point("hook_pos_embed") if has_positions else None,
        sublayers=tuple(sublayer for sublayer in sublayers if sublayer is not None),
        stream_out=parts.point(f"blocks.{cfg.n_layers - 1}.hook_resid_post"),
        blocks=tuple(parts.point(f"blocks.{layer}.hook_resid_pre") for layer in range(cfg.n_layers)),
        norm=norm,
        norm_module=ln_final,
        unembed=model.unembed,
        unembed_rows=partial(_rows, model, biased),
        transform=partial(transformed, factor=1.0, cap=cap if cap > 0 else None)
        if adapter is None
        else adapter.apply_output_logits_transform,
        logits=logits,
        device=parts.device,
        dtype=parts.dtype,
        vocabulary=int(cfg.d_vocab),
        outputs=int(model.W_U.shape[1]),
        context=None if dynamic else cfg.n_ctx,
        length_switch=length_switch,
        parallel=bool(getattr(cfg, "parallel_attn_mlp", False)),
        constant=norm.bias is not None or biased,
    )


def _refuse(model: Any, adapter: Any, original: Any, ln_final: Any) -> None:
    """Raise InputError, with the reason, for a model that cannot be decomposed through its hook points."""
    cfg = model.cfg
    name = getattr(cfg, "architecture", None) or getattr(cfg, "original_architecture", None) or "this model"
    instead = "give the Hugging Face model itself, before a bridge is booted on it."
    if hasattr(original, "config") and family_of(original) is not None:
        raise InputError(
            f"{name} cannot be decomposed through a bridge, which has no hook on the norms, gates or mixings that its "
            f"stream passes: {instead}"
        )
    refuse_unreadable(name, lambda path: ln_final if path == "ln_final" else getattr(model, path, None))
    if is_hybrid(adapter):
        raise InputError(
            f"{name} cannot be decomposed through a bridge, which has no hook on what its recurrent or linear-attention"
            f" sublayers write: {instead}"
        )
    if getattr(cfg, "positional_embedding_type", None) == "shortformer":
        raise InputError(f"{name} adds its positions inside attention, not to the stream: it cannot be decomposed.")
    if (why := _lost_value_bias(model)) is not None:
        raise InputError(
            f"{name} in compatibility mode is not the model it was made from: its value biases were folded into the "
            f"output bias, which {why}. Give the raw bridge, or enable_compatibility_mode(fold_value_biases=False)."
        )


def _lost_value_bias(model: Any) -> str | None:
    """Explain why the folding of a processed bridge's value biases was invalid; None if it was valid.

    A value bias adds the same to every token's output only where attention rows sum to one and nothing stands between
    the bias and the weighted sum.
    """
    if not getattr(model, "compatibility_mode", False):
        return None
    biases = []
    for block in model.blocks:
        with suppress(AttributeError, NotImplementedError):  # latent attention has no bias of values
            biases.append(block.attn.b_V)
    if not any(isinstance(b, Tensor) and b.numel() and not b.detach().any() for b in biases):
        return None
    if any(parameter.endswith("sinks") for parameter, _ in model.named_parameters()):
        return "needs attention that sums to one, and its sinks take a part of it"
    if getattr(getattr(getattr(model, "original_model", None), "config", None), "clip_qkv", None) is not None:
        return "comes after the clipping of values (clip_qkv), which they preceded"
    return None


class _BridgeParts:
    """The parts of the blocks, by hook points."""

    def __init__(self, model: Any, adapter: Any) -> None:
        self.model, self.cfg, self.hooks = model, model.cfg, model.hook_dict
        self.dtype, self.device = next(model.parameters()).dtype, torch.device(model.cfg.device or "cpu")
        blocks = None if adapter is None else adapter.component_mapping["blocks"]
        self.scale = float(getattr(blocks, "residual_contribution_scale", 1.0))
        self.aliases = getattr(blocks, "hook_aliases", None) or {}
        if getattr(self.cfg, "original_architecture", None) in _POST_NORM_NAMED_PRE and adapter is None:
            self.aliases = {"hook_attn_out": "ln1", "hook_mlp_out": "ln2"}

    def point(self, name: str) -> HookPoint:
        """Get the hook point of a name."""
        return HookPoint(self.hooks[name], name=name)

    def norm(self, module: nn.Module) -> Norm:
        """Identify a norm's parameters."""
        return probe(module, self.cfg.d_model, self.dtype, self.device)

    def sublayer(self, kind: SublayerKind, layer: int) -> Sublayer | None:
        """The attention or MLP of a layer; None where it has none."""
        block, name = self.model.blocks[layer], f"blocks.{layer}"
        output = f"{name}.hook_{kind}_out" if self.scale == 1.0 else f"{name}.{kind}.hook_out"
        module = getattr(block, kind, None)
        if output not in self.hooks or module is None:
            return None
        sublayer = Sublayer(kind, layer, self.point(output), self.scale, inputs=HookPoint(module, "in"))
        values = f"{name}.attn.hook_z" if kind == "attn" else f"{name}.mlp.hook_post"
        projection = _projection(module, kind)
        if projection is None or values not in self.hooks:
            real = kind != "attn" and (hasattr(module, "experts") or getattr(self.cfg, "num_experts", None))
            reason = WHY_WHOLE["mixture" if real else "hidden"]
            return replace(sublayer, uncut_reason=reason, experts_reason=_NO_EXPERTS if real else "")
        count, biased = self.cfg.n_heads if kind == "attn" else len(projection[0]), projection[1] is not None
        output_map = OutputMap(count, self.point(values), lambda: projection, biased, self.scale)
        post_name = post_norm_name(self.aliases, kind)
        if (post := getattr(block, post_name, None)) is not None:
            output_map = output_map.with_post(self.norm(post), self.point(f"{name}.{post_name}.hook_scale"))
        return replace(sublayer, output_map=output_map)


def _projection(sublayer: Any, kind: str) -> tuple[Tensor, Tensor | None] | None:
    """`[inputs, d]` weight and bias of a sublayer's output projection; None for a mixture of experts."""
    # A bridge's own `W_O` raises if heads are not d_head wide (DeepSeek), so its module is read first.
    module = getattr(getattr(sublayer, "o" if kind == "attn" else "out", None), "original_component", None)
    if module is not None and getattr(module, "weight", None) is not None:
        weight, bias = linear_map(module)
    else:
        names = ("W_O", "b_O") if kind == "attn" else ("W_out", "b_out")
        own = [getattr(sublayer, name, None) for name in names]
        if not isinstance(own[0], Tensor) or own[0].dim() != (3 if kind == "attn" else 2):
            return None
        weight, bias = own[0].detach().flatten(0, -2), None if own[1] is None else own[1].detach()
    # A HookedTransformer has every bias; a zero one counts as none.
    return weight, bias if bias is not None and bool(bias.abs().max() > 0) else None


def _rows(model: Any, biased: bool, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    some = slice(None) if ids is None else ids.to(model.W_U.device)
    return model.W_U.detach().T[some], model.b_U.detach()[some] if biased else None
