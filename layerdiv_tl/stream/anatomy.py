"""Where a model writes to its residual stream, and how the stream is read out.

An `Anatomy` names places in a running model (`Tap`) and nothing else: it holds no activation and
changes nothing. There are two ways to find the places: the Hugging Face modules that TransformerLens'
architecture adapter names (no bridge is booted, the model stays as it is), and the hook points of a
model that TransformerLens already wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..components import Component, Unit
from ..errors import InputError
from .norm import Norm, probe


@dataclass(frozen=True, eq=False)
class Tap:
    """A place in the running model: what `module` is given ("in") or what it returns ("out")."""

    module: nn.Module
    side: Literal["in", "out"] = "out"


@dataclass(frozen=True, eq=False)
class Heads:
    """How an attention write splits into heads.

    `tap` carries the heads' values side by side; `projection()` gives their common output map
    W_O `[head·d_head, d]` and its bias or None; `post` is the norm between W_O and the stream, which
    is fed from `post_tap`, in sandwich- and post-norm models.
    """

    count: int
    tap: Tap
    projection: Callable[[], tuple[Tensor, Tensor | None]]
    post: Norm | None = None
    post_tap: Tap | None = None


@dataclass(frozen=True, eq=False)
class Write:
    """One sublayer and the place where what it adds to the stream can be read (times `scale`)."""

    kind: Literal["attn", "mlp"]
    layer: int
    tap: Tap
    heads: Heads | None = None


@dataclass(frozen=True, eq=False)
class Anatomy:
    """All the places of one model. `writes` stand in stream order."""

    stream_in: Tap
    pos_embed: Tap | None
    writes: tuple[Write, ...]
    stream_out: Tap
    norm: Norm
    unembed: nn.Module
    unembed_rows: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    logits: Callable[[Tensor, Tensor], Tensor]
    root: nn.Module
    device: torch.device
    width: int
    vocabulary: int
    context: int | None
    scale: float
    logit_multiplier: float
    soft_cap: float | None
    hook_names: tuple[str, ...]
    head_hook_names: tuple[str, ...]

    def components(self, unit: Unit = "sublayer") -> tuple[Component, ...]:
        """The components of one pass in stream order, every layer used once."""
        rows = [Component("embed")]
        if self.pos_embed is not None:
            rows.append(Component("pos_embed"))
        for write in self.writes:
            rows += self.rows_of(write, None, unit)
        if self.has_constant():
            rows.append(Component("constant"))
        return tuple(rows)

    def rows_of(self, write: Write, use: int | None, unit: Unit) -> list[Component]:
        """The components one write is cut into at a unit."""
        if unit == "sublayer" or write.kind == "mlp":
            return [Component(write.kind, write.layer, use=use)]
        if write.heads is None:
            raise InputError(
                f"the attention of layer {write.layer} has no output projection that this package can see, "
                "so it has no heads to show: use unit='sublayer'."
            )
        rows = [Component("head", write.layer, h, use) for h in range(write.heads.count)]
        if self.has_head_bias(write):
            rows.append(Component("attn_bias", write.layer, use=use))
        return rows

    @staticmethod
    def has_head_bias(write: Write) -> bool:
        """Whether the heads leave a remainder: b_O, or the bias of the norm behind W_O."""
        assert write.heads is not None
        return write.heads.projection()[1] is not None or (
            write.heads.post is not None and write.heads.post.bias is not None
        )

    def has_constant(self) -> bool:
        """Whether the read-out adds something that no component wrote."""
        bias = self.unembed_rows(torch.zeros(1, dtype=torch.long))[1]
        return self.norm.bias is not None or bias is not None


def of_huggingface(model: Any) -> Anatomy:
    """The anatomy of a Hugging Face causal LM, read through TransformerLens' component mapping.

    Nothing in the model changes: no bridge is booted. Raises InputError for what cannot be decomposed.
    """
    adapter = _adapter(model)
    mapping = adapter.component_mapping

    def find(path: str) -> nn.Module | None:
        # "unmapped" is a ValueError, "mapped but absent in this model" an AttributeError, a nameless
        # mapping the parent itself: all three mean that there is no such module.
        try:
            found = adapter.get_component(model, path)
        except (ValueError, AttributeError):
            return None
        return found if isinstance(found, nn.Module) else None

    refuse_unreadable(type(model).__name__, find, mapping)
    final, unembed = find("ln_final"), find("unembed")
    blocks: Any = find("blocks")
    assert final is not None
    assert unembed is not None
    dtype = next(model.parameters()).dtype
    device = _input_device(model)
    width = _width(unembed)
    submodules = mapping["blocks"].submodules

    numbers: dict[int, int] = {}
    writes: list[Write] = []
    for position, block in enumerate(blocks):
        if id(block) in numbers:  # a tied block listed again: the same places fire once more
            continue
        layer = numbers[id(block)] = len(numbers)
        attention = _attention(find, f"blocks.{position}", adapter.cfg.n_heads, width, dtype, device)
        mlp_name = getattr(submodules.get("mlp"), "name", None)
        mlp = _first(
            find(f"blocks.{position}.ln2_post"),
            find(f"blocks.{position}.mlp.out"),
            find(f"blocks.{position}.mlp") if mlp_name else None,
        )
        for kind, place in (("attn", attention), ("mlp", mlp)):
            if place is None:
                continue
            tap, heads = place if isinstance(place, tuple) else (Tap(place), None)
            writes.append(Write(kind, layer, tap, heads))  # type: ignore[arg-type]

    pos_embed = find("pos_embed")
    multiplier, soft_cap = _logit_transform(adapter.apply_output_logits_transform)
    return Anatomy(
        stream_in=Tap(blocks[0], "in"),
        pos_embed=Tap(pos_embed) if pos_embed is not None else None,
        writes=tuple(writes),
        stream_out=Tap(final, "in"),
        norm=probe(final, width, dtype, _device_of(final, device)),
        unembed=unembed,
        unembed_rows=lambda ids: _linear_rows(unembed, ids),
        logits=lambda ids, mask: model(input_ids=ids, attention_mask=mask, use_cache=False).logits,
        root=model,
        device=device,
        width=width,
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        context=_context(model.config),
        scale=float(getattr(mapping["blocks"], "residual_contribution_scale", 1.0)),
        logit_multiplier=multiplier,
        soft_cap=soft_cap,
        **_hook_names(len(blocks), pos_embed is not None),
    )


def of_transformer_lens(bridge: Any) -> Anatomy:
    """The anatomy of a `TransformerBridge`, raw or in compatibility mode, through its hook points."""
    cfg, hooks = bridge.cfg, bridge.hook_dict
    find = hooks.get
    name = cfg.architecture or cfg.model_name
    refuse_unreadable(name, lambda path: getattr(bridge, path, None), vars(bridge)["_modules"])
    adapter = bridge.adapter
    dtype = next(bridge.parameters()).dtype
    device = torch.device(cfg.device)
    scale = float(getattr(adapter.component_mapping["blocks"], "residual_contribution_scale", 1.0))

    writes: list[Write] = []
    for layer in range(cfg.n_layers):
        block = bridge.blocks[layer]
        if (tap := find(f"blocks.{layer}.hook_attn_out")) is not None:
            heads = None
            if (z := find(f"blocks.{layer}.attn.hook_z")) is not None:
                heads = Heads(cfg.n_heads, Tap(z), partial(_bridge_projection, block.attn))
            writes.append(Write("attn", layer, Tap(tap), heads))
        if (tap := find(f"blocks.{layer}.hook_mlp_out")) is not None:
            writes.append(Write("mlp", layer, Tap(tap)))

    pos_embed = find("hook_pos_embed") if getattr(bridge, "pos_embed", None) is not None else None
    multiplier, soft_cap = _logit_transform(adapter.apply_output_logits_transform)
    return Anatomy(
        stream_in=Tap(hooks["blocks.0.hook_resid_pre"]),
        pos_embed=Tap(pos_embed) if pos_embed is not None else None,
        writes=tuple(writes),
        stream_out=Tap(hooks[f"blocks.{cfg.n_layers - 1}.hook_resid_post"]),
        norm=probe(bridge.ln_final, cfg.d_model, dtype, device),
        unembed=bridge.unembed,
        unembed_rows=lambda ids: (bridge.W_U.T[ids], bridge.b_U[ids] if bridge.b_U.abs().max() > 0 else None),
        logits=lambda ids, mask: bridge(ids, attention_mask=mask, return_type="logits", use_cache=False),
        root=bridge,
        device=device,
        width=cfg.d_model,
        vocabulary=int(cfg.d_vocab),
        context=cfg.n_ctx,
        scale=scale,
        logit_multiplier=multiplier,
        soft_cap=soft_cap,
        **_hook_names(cfg.n_layers, pos_embed is not None),
    )


def refuse_unreadable(name: str, find: Callable[[str], Any], mapping: Any) -> None:
    """Refuse, with the reason, a model whose logits are not `unembed(final norm(stream))`."""
    from transformer_lens.tools.analysis.logit_lens import _READOUT_TRANSFORM_COMPONENTS

    between = [part for part in _READOUT_TRANSFORM_COMPONENTS if part in mapping and find(part) is not None]
    if between:
        raise InputError(
            f"{name} has {between[0]} between its final norm and its unembedding, so the logits are not a sum "
            "over the residual stream's components and the model cannot be decomposed."
        )
    for part, meaning in (("ln_final", "final norm"), ("unembed", "unembedding"), ("blocks", "list of blocks")):
        if find(part) is None:
            raise InputError(
                f"{name} has no {meaning} after its last block (as in post-norm models, encoders and some "
                "hybrids), so its logits are not a sum over residual-stream components: it cannot be decomposed."
            )


def _adapter(model: Any) -> Any:
    """TransformerLens' description of an architecture. Its private names are kept in this function."""
    from transformer_lens.factories.architecture_adapter_factory import (
        SUPPORTED_ARCHITECTURES,
        ArchitectureAdapterFactory,
    )
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_config_from_hf

    architecture = type(model).__name__
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise InputError(
            f"TransformerLens does not know the architecture {architecture}, so this package cannot tell "
            "where it writes to its residual stream: load a model of an architecture it lists."
        )
    cfg = build_bridge_config_from_hf(model.config, architecture, architecture, model.dtype)
    return ArchitectureAdapterFactory.select_architecture_adapter(cfg)


def _attention(
    find: Callable[[str], nn.Module | None],
    block: str,
    heads: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tap, Heads | None] | None:
    """Where one attention writes and how it splits into heads; None for a block without attention."""
    projection, norm_after = find(f"{block}.attn.o"), find(f"{block}.ln1_post")
    place = _first(norm_after, projection, find(f"{block}.attn"))
    if place is None:
        return None
    if projection is None:
        return Tap(place), None
    post = probe(norm_after, width, dtype, _device_of(norm_after, device)) if norm_after is not None else None
    return Tap(place), Heads(
        count=heads,
        tap=Tap(projection, "in"),
        projection=lambda: _linear_map(projection),
        post=post,
        post_tap=Tap(norm_after, "in") if norm_after is not None else None,
    )


def _linear_map(module: Any) -> tuple[Tensor, Tensor | None]:
    """`[in, out]` weight and bias of a Linear or a Conv1D, also where accelerate has them offloaded."""
    from accelerate.utils import align_module_device
    from transformers.pytorch_utils import Conv1D

    with align_module_device(module):
        weight = module.weight.detach()
        bias = None if module.bias is None else module.bias.detach()
        weight = weight if isinstance(module, Conv1D) else weight.T
        return (weight, bias) if not _offloaded(module) else (weight.clone(), None if bias is None else bias.clone())


def _linear_rows(module: Any, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows `[id, d]` of an unembedding and their biases."""
    from accelerate.utils import align_module_device

    with align_module_device(module):
        rows = module.weight[ids.to(module.weight.device)].detach()
        bias = getattr(module, "bias", None)
        return rows, None if bias is None else bias[ids.to(bias.device)].detach()


def _offloaded(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters()) or hasattr(module, "_hf_hook")


def _bridge_projection(attention: Any) -> tuple[Tensor, Tensor | None]:
    weight, bias = attention.W_O.detach(), attention.b_O
    if bias is not None and not bool(bias.abs().max() > 0):
        bias = None
    return weight.reshape(-1, weight.shape[-1]), None if bias is None else bias.detach()


def _logit_transform(transform: Callable[[Tensor], Tensor]) -> tuple[float, float | None]:
    """(multiplier, soft cap or None) of what stands behind the unembedding, found by asking it."""
    small, large = transform(torch.tensor([1e-4, 1e6], dtype=torch.float64)).tolist()
    multiplier = small / 1e-4
    return multiplier, None if abs(large / 1e6 / multiplier - 1) < 1e-6 else large


def _hook_names(layers: int, pos_embed: bool) -> dict[str, tuple[str, ...]]:
    """TransformerLens' names of the same places, for a cache taken by the user."""
    names = ["hook_embed", *(["hook_pos_embed"] if pos_embed else []), "blocks.0.hook_resid_pre"]
    for layer in range(layers):
        names += [f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out"]
    names += [f"blocks.{layers - 1}.hook_resid_post", "ln_final.hook_scale"]
    heads = [f"blocks.{layer}.attn.hook_z" for layer in range(layers)]
    return {"hook_names": tuple(names), "head_hook_names": tuple(heads)}


def _first(*modules: nn.Module | None) -> nn.Module | None:
    return next((module for module in modules if module is not None), None)


def _device_of(module: nn.Module, default: torch.device) -> torch.device:
    parameter = next(module.parameters(), None)
    return default if parameter is None or parameter.is_meta else parameter.device


def _input_device(model: Any) -> torch.device:
    return _device_of(model.get_input_embeddings(), torch.device("cpu"))


def _width(unembed: Any) -> int:
    from accelerate.utils import align_module_device

    with align_module_device(unembed):
        return int(getattr(unembed, "in_features", None) or unembed.weight.shape[-1])


def _context(config: Any) -> int | None:
    """The longest text the model was built for, in tokens; None where its positions have no end."""
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return int(length) if length else None
