"""Adapters that PEFT put into a model, and a row of its own for those on each output projection.

PEFT is not imported: its layers are known by their classes' names.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import nn

from ..errors import InputError
from .architecture import Architecture, HookPoint, Sublayer
from .weights import is_adapted, is_present, linear_map

Adapters = Literal["merged", "component"]


def without_peft(model: Any) -> Any:
    """The Hugging Face model inside a `PeftModel`, with the adapters in it; any other model unchanged.

    Raises InputError for one that does more than its layers do, such as prompt tuning or activated LoRA.
    """
    if not {"PeftModel", "PeftMixedModel"} & {cls.__name__ for cls in type(model).__mro__}:
        return model
    inner = getattr(model.base_model, "model", model.base_model)
    configs = [model.peft_config[name] for name in model.active_adapters] if hasattr(model, "active_adapters") else []
    more = [c for c in configs if c.is_prompt_learning or getattr(c, "alora_invocation_tokens", None)]
    if more or not hasattr(inner, "get_output_embeddings"):
        what = str(getattr(more[0], "peft_type", "") if more else type(inner).__name__).split(".")[-1]
        raise InputError(
            f"this PeftModel ({what}) does more than its layers do (it prepends learned vectors, or switches adapters "
            "on in the middle of a text), so that it cannot be decomposed: give its base model."
        )
    return inner


def adapter_names(model: nn.Module) -> list[str]:
    """The names of a model's active adapters, in order."""
    names: dict[str, None] = {}
    for module in model.modules():
        if is_adapted(module):
            names |= dict.fromkeys([] if module.disable_adapters else module.active_adapters)  # type: ignore[arg-type]
    return list(names)


def split_adapters(architecture: Architecture) -> Architecture:
    """Give the LoRA adapters of every output projection a row of their own.

    Raises InputError for adapters of other kinds there, and for adapters that are merged into the weights.
    """
    return replace(architecture, sublayers=tuple(map(_split, architecture.sublayers)))


def _split(sublayer: Sublayer) -> Sublayer:
    output_map = sublayer.output_map
    if output_map is None or not is_adapted(projection := output_map.hook_point.module):
        return sublayer
    layer: Any = projection
    if layer.merged:
        raise InputError("adapters='component' needs adapters that are not merged: call unmerge_adapter() first.")
    if not any(cls.__name__ == "LoraLayer" for cls in type(layer).__mro__):
        raise InputError(
            f"adapters='component' takes LoRA apart, but {sublayer} has a {type(layer).__name__}, which changes "
            "what its projection is given or returns: use adapters='merged'."
        )
    if layer.disable_adapters or not set(layer.active_adapters) & set(layer.lora_A):
        return sublayer
    base, name = layer.base_layer, output_map.hook_point.name
    biased = is_present(getattr(base, "bias", None)) or getattr(output_map.post, "bias", None) is not None
    points = HookPoint(layer, name=f"{name}.hook_adapted"), HookPoint(base, name=f"{name}.hook_base")
    output_map = replace(output_map, projection=partial(linear_map, base), bias=biased)
    return replace(sublayer, output_map=output_map, adapter=points)
