"""Modules and weights of Hugging Face models: all of them once, adapted by PEFT, or quantized.

PEFT is not imported: its layers are recognized by their classes' names.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import InputError


def modules_of(*roots: nn.Module) -> list[nn.Module]:
    """List all modules of some models, each once: torch's own walk also makes names, which takes four times as long."""
    found, open_ = dict[nn.Module, None](), [root for root in reversed(roots)]
    while open_:
        module = open_.pop()
        if module not in found:
            found[module] = None
            open_ += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found)


def parameters_of(*roots: nn.Module) -> list[nn.Parameter]:
    """List all parameters of some models, each once."""
    held = (p for module in modules_of(*roots) for p in module._parameters.values() if p is not None)
    return list(dict.fromkeys(held))


def is_adapted(module: Any) -> bool:
    """True for a layer that PEFT wraps around a module."""
    return bool({"BaseTunerLayer", "AuxiliaryTrainingWrapper"} & {cls.__name__ for cls in type(module).__mro__})


def is_quantized(weight: Any) -> bool:
    """True for a wrapper tensor (torchao's) that can be dequantized."""
    return hasattr(weight, "__tensor_flatten__") and hasattr(weight, "dequantize")


def without_peft(model: Any) -> Any:
    """The Hugging Face model inside a `PeftModel`, with its adapters; any other model unchanged.

    Raises InputError for one that does more than its layers do, e.g. prompt tuning or activated LoRA.
    """
    if not {"PeftModel", "PeftMixedModel"} & {cls.__name__ for cls in type(model).__mro__}:
        return model
    inner = getattr(model.base_model, "model", model.base_model)
    configs = [model.peft_config[name] for name in model.active_adapters] if hasattr(model, "active_adapters") else []
    more = [c for c in configs if c.is_prompt_learning or getattr(c, "alora_invocation_tokens", None)]
    if more or not hasattr(inner, "get_output_embeddings"):
        raise InputError(
            "this PeftModel does more than its layers do (it prepends learned vectors, or switches adapters on in the "
            "middle of a text), so that it cannot be decomposed: give its base model."
        )
    return inner


def adapter_names(model: nn.Module) -> list[str]:
    """The names of a model's active adapters, in order."""
    names: dict[str, None] = {}
    for module in modules_of(model):
        if is_adapted(module):
            names |= dict.fromkeys([] if module.disable_adapters else module.active_adapters)  # type: ignore[arg-type]
    return list(names)
