"""The parts of a Hugging Face model as TransformerLens' component mapping names them.

TransformerLens' architecture adapters name the modules of every role without booting a bridge, so the user's model
stays exactly as it is. What is added to the stream is the output of the post-norm, where there is one, else of the
output projection, else of the sublayer itself: some attentions and MLPs return more or less than that.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from ..errors import InputError
from .architecture import KINDS, WHY_WHOLE, HookPoint, OutputMap, Sublayer, SublayerKind, refuse_unreadable
from .experts import mixture_in
from .structure import ModuleFinder
from .weights import inputs_of, is_present, linear_map


class ComponentMapping(ModuleFinder):
    """The parts of a model by TransformerLens' names of them."""

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
        """The module of TransformerLens' name, None where there is none."""
        # "unmapped" is a ValueError, "mapped but absent in this model" an AttributeError or None.
        try:
            module = self.adapter.get_component(self.model, path)
        except (ValueError, AttributeError):
            return None
        return module if isinstance(module, nn.Module) else None

    def sublayers(self, position: int, layer: int) -> list[Sublayer]:
        """The sublayers of the block at a position, which is the layer of a number."""
        found = [self._sublayer(kind, position, layer) for kind in KINDS]
        return [sublayer for sublayer in found if sublayer is not None]

    def _sublayer(self, kind: SublayerKind, position: int, layer: int) -> Sublayer | None:
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
        inputs = None if whole is None else HookPoint(whole, "in")
        if (count := inputs_of(projection, self.width)) is None:
            mixture, why = mixture_in(kind, whole, self.blocks[position], post, self.norm)
            real = mixture or why or hasattr(whole, "experts")
            reason = WHY_WHOLE["wrapped" if projection is not None else "mixture" if real else "hidden"]
            whole_only = Sublayer(kind, layer, output, self.scale, uncut_reason=reason, inputs=inputs)
            return replace(whole_only, mixture=mixture, experts_reason=why)
        norm = None if post is None else self.norm(post)
        values = f"{block}.attn.hook_z" if kind == "attn" else f"{block}.mlp.hook_post"
        output_map = OutputMap(
            count=self.adapter.cfg.n_heads if kind == "attn" else count,
            hook_point=HookPoint(projection, "in", values),
            projection=partial(linear_map, projection),
            bias=is_present(getattr(projection, "bias", None)) or (norm is not None and norm.bias is not None),
            scale=self.scale,
            post=norm,
            post_hook_point=None if post is None else HookPoint(post, "in", f"{block}.{post_name}.hook_scale"),
        )
        return Sublayer(kind, layer, output, self.scale, output_map, inputs=inputs)


def adapter_of(model: Any) -> Any:
    """TransformerLens' description of an architecture, None for one it does not list.

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
    # It may ask for libraries that prepare pictures, but names of modules are all that is read here.
    without_libraries = type(adapter.__name__, (adapter,), {"required_libraries": []})
    try:
        return without_libraries(cfg)
    except ImportError as error:
        raise InputError(f"{type(model).__name__} needs a library that is not installed ({error}).") from error
