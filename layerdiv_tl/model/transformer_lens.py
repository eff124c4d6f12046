"""The architecture of a model that TransformerLens already wraps, through its own hook points.

For `TransformerBridge` (3.9 and 4), also in compatibility mode, and `HookedTransformer` (3.9), folded or not.
`hook_attn_out` and `hook_mlp_out` are what is added to the stream, sandwich norms included; where a block multiplies it
(Granite) they never fire, and the sublayers' own outputs are read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .architecture import (
    KINDS,
    WHY_WHOLE,
    Architecture,
    HookPoint,
    OutputMap,
    Sublayer,
    SublayerKind,
)
from .huggingface import forget_lengths, has_dynamic_rope, is_hybrid, length_switch_of, refuse_unreadable
from .norm import Norm, probe
from .streams import family_of
from .weights import linear_map

# HookedTransformer gives the post-norms of these the names of pre-norms.
_POST_NORM_NAMED_PRE = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")

_NO_EXPERTS = (
    "TransformerLens has no hook on what single experts write (load_model reads them in the Hugging Face model itself, "
    "before a bridge is booted on it)"
)


def is_transformer_lens(x: Any) -> bool:
    """Whether this is a TransformerBridge or a HookedTransformer (which version 4 no longer has)."""
    names = {cls.__name__ for cls in type(x).__mro__}
    return bool(names & {"TransformerBridge", "HookedTransformer"}) and hasattr(x, "hook_dict")


def of_transformer_lens(model: Any) -> Architecture:
    """The architecture of a bridge or a HookedTransformer. Raises InputError for what cannot be decomposed."""
    cfg, hooks = model.cfg, model.hook_dict
    adapter = getattr(model, "adapter", None)
    name = getattr(cfg, "architecture", None) or getattr(cfg, "original_architecture", None) or "this model"
    # Toy models may have no norm at all, which is a read-out like any other.
    normless = getattr(cfg, "normalization_type", "") is None
    ln_final: Any = nn.Identity() if normless else getattr(model, "ln_final", None)
    original = getattr(model, "original_model", None)
    if hasattr(original, "config") and family_of(original) is not None:
        raise InputError(
            f"{name} cannot be decomposed through a bridge, which has no hook on the norms, gates or mixings that its "
            "stream passes: give the Hugging Face model itself, before a bridge is booted on it."
        )
    refuse_unreadable(name, lambda path: ln_final if path == "ln_final" else getattr(model, path, None))
    blocks = None if adapter is None else adapter.component_mapping["blocks"]
    if blocks is not None and is_hybrid(blocks):
        raise InputError(
            f"{name} cannot be decomposed through a bridge, which has no hook on what its recurrent or linear-attention"
            " sublayers write: give the Hugging Face model itself, before a bridge is booted on it."
        )
    if getattr(cfg, "positional_embedding_type", None) == "shortformer":
        raise InputError(f"{name} adds its positions inside attention, not to the stream: it cannot be decomposed.")
    if (why := _lost_value_bias(model)) is not None:
        raise InputError(
            f"{name} in compatibility mode is not the model it was made from: its value biases were folded into the "
            f"output bias, which {why}. Give the raw bridge, or enable_compatibility_mode(fold_value_biases=False)."
        )
    dtype, device = next(model.parameters()).dtype, torch.device(cfg.device or "cpu")
    scale = float(getattr(blocks, "residual_contribution_scale", 1.0))
    sublayers = [_sublayer(model, k, layer, scale, dtype, device) for layer in range(cfg.n_layers) for k in KINDS]
    # A HookedTransformer has the module and the hook even where its positions are rotary or ALiBi.
    standard = adapter is not None or cfg.positional_embedding_type == "standard"
    has_positions = standard and "hook_pos_embed" in hooks and getattr(model, "pos_embed", None) is not None
    transform = adapter.apply_output_logits_transform if adapter is not None else partial(_capped, cfg)
    identity = Norm(torch.ones(cfg.d_model, dtype=torch.float64), None, False, None)
    norm = identity if normless else probe(ln_final, cfg.d_model, dtype, device)
    options = {} if adapter is None else {"use_cache": False}
    config = getattr(original, "config", None)
    dynamic = has_dynamic_rope(config)

    def logits(ids: Tensor, mask: Tensor) -> Tensor:
        if dynamic:
            forget_lengths(original)
        return model(ids, attention_mask=mask, return_type="logits", **options)

    unembed_bias = getattr(model, "b_U", None)
    biased = unembed_bias is not None and bool(unembed_bias.detach().abs().max() > 0)
    return Architecture(
        root=model,
        stream_in=_point(hooks, "blocks.0.hook_resid_pre"),
        pos_embed=_point(hooks, "hook_pos_embed") if has_positions else None,
        sublayers=tuple(sublayer for sublayer in sublayers if sublayer is not None),
        stream_out=_point(hooks, f"blocks.{cfg.n_layers - 1}.hook_resid_post"),
        blocks=tuple(_point(hooks, f"blocks.{layer}.hook_resid_pre") for layer in range(cfg.n_layers)),
        norm=norm,
        norm_module=ln_final,
        unembed=model.unembed,
        unembed_rows=partial(_rows, model, biased),
        transform=transform,
        logits=logits,
        device=device,
        dtype=dtype,
        vocabulary=int(cfg.d_vocab),
        outputs=int(model.W_U.shape[1]),
        context=None if dynamic else cfg.n_ctx,
        length_switch=length_switch_of(config),
        parallel=bool(getattr(cfg, "parallel_attn_mlp", False)),
        constant=norm.bias is not None or biased,
    )


def _lost_value_bias(model: Any) -> str | None:
    """Why a processed bridge's value biases could not be folded, where they were.

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
        return "comes behind the clipping of values (clip_qkv) that they stood before"
    return None


def _sublayer(
    model: Any, kind: SublayerKind, layer: int, scale: float, dtype: torch.dtype, device: torch.device
) -> Sublayer | None:
    hooks, block, name = model.hook_dict, model.blocks[layer], f"blocks.{layer}"
    output = f"{name}.hook_{kind}_out" if scale == 1.0 else f"{name}.{kind}.hook_out"
    module = getattr(block, kind, None)
    if output not in hooks or module is None:
        return None
    values = f"{name}.attn.hook_z" if kind == "attn" else f"{name}.mlp.hook_post"
    projection = _projection(module, kind)
    if projection is None or values not in hooks:
        real = kind != "attn" and (hasattr(module, "experts") or getattr(model.cfg, "num_experts", None))
        reason = WHY_WHOLE["mixture" if real else "hidden"]
        whole = Sublayer(kind, layer, _point(hooks, output), scale, uncut_reason=reason, inputs=HookPoint(module, "in"))
        return replace(whole, experts_reason=_NO_EXPERTS) if real else whole
    post_name = _post_norm(model, block, kind)
    post = None if post_name is None else probe(getattr(block, post_name), model.cfg.d_model, dtype, device)
    output_map = OutputMap(
        count=model.cfg.n_heads if kind == "attn" else projection[0].shape[0],
        hook_point=_point(hooks, values),
        projection=lambda: projection,
        bias=projection[1] is not None or (post is not None and post.bias is not None),
        scale=scale,
        post=post,
        post_hook_point=None if post is None else _point(hooks, f"{name}.{post_name}.hook_scale"),
    )
    return Sublayer(kind, layer, _point(hooks, output), scale, output_map, inputs=HookPoint(module, "in"))


def _post_norm(model: Any, block: Any, kind: str) -> str | None:
    """The name of the norm after a sublayer, None where there is none."""
    name = "ln1" if kind == "attn" else "ln2"
    if getattr(model, "adapter", None) is not None:
        aliases = getattr(model.adapter.component_mapping["blocks"], "hook_aliases", None) or {}
        name = aliases.get(f"hook_{kind}_out", "").split(".")[0]
        return name if name.startswith("ln") else None
    if getattr(model.cfg, "original_architecture", None) in _POST_NORM_NAMED_PRE:
        return name
    return f"{name}_post" if getattr(block, f"{name}_post", None) is not None else None


def _projection(sublayer: Any, kind: str) -> tuple[Tensor, Tensor | None] | None:
    """`[inputs, d]` weight and bias of a sublayer's output projection; None for a mixture of experts."""
    # A bridge's own `W_O` refuses where heads are not d_head wide (DeepSeek), so its module is read first.
    module = getattr(getattr(sublayer, "o" if kind == "attn" else "out", None), "original_component", None)
    if module is not None and getattr(module, "weight", None) is not None:
        weight, bias = linear_map(module)
    else:
        names = ("W_O", "b_O") if kind == "attn" else ("W_out", "b_out")
        own = [getattr(sublayer, name, None) for name in names]
        if not isinstance(own[0], Tensor) or own[0].dim() != (3 if kind == "attn" else 2):
            return None
        weight, bias = own[0].detach().flatten(0, -2), None if own[1] is None else own[1].detach()
    # A HookedTransformer has every bias; a zero one is none.
    return weight, bias if bias is not None and bool(bias.abs().max() > 0) else None


def _point(hooks: Any, name: str) -> HookPoint:
    return HookPoint(hooks[name], name=name)


def _rows(model: Any, biased: bool, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    weight, bias = model.W_U.detach().T, model.b_U.detach() if biased else None
    if ids is None:
        return weight, bias
    ids = ids.to(weight.device)
    return weight[ids], None if bias is None else bias[ids]


def _capped(cfg: Any, logits: Tensor) -> Tensor:
    cap = getattr(cfg, "output_logits_soft_cap", -1.0)
    return cap * torch.tanh(logits / cap) if cap > 0 else logits
