"""Weights of Hugging Face modules, read in place: plain, adapted by PEFT, offloaded by Accelerate or quantized.

PEFT is not imported: its layers are recognized
by their classes' names.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
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


def is_conv1d(module: nn.Module) -> bool:
    """True for a Conv1D, also inside adapters, which keeps its weight as `[in, out]`."""
    from transformers.pytorch_utils import Conv1D

    while is_adapted(module):
        module = inner_layer(module)
    return isinstance(module, Conv1D)


def is_adapted(module: Any) -> bool:
    """True for a layer that PEFT wraps around a module."""
    return bool({"BaseTunerLayer", "AuxiliaryTrainingWrapper"} & {cls.__name__ for cls in type(module).__mro__})


def inner_layer(module: Any) -> Any:
    """The module inside a PEFT layer: the adapted one, or its replacement."""
    if hasattr(module, "base_layer"):
        return module.base_layer
    if module.disable_adapters or not module.active_adapters:
        return module.original_module
    copies = getattr(module, "modules_to_save", {})
    return copies[module.active_adapters[0]] if copies else module.token_adapter


def in_memory(module: nn.Module, device: torch.device | None = None) -> AbstractContextManager[Any]:
    """A context in which the weights that Accelerate offloads from a module are in memory."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device  # installed wherever a module has its hook

    return align_module_device(module, device)


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
        what = str(getattr(more[0], "peft_type", "") if more else type(inner).__name__).split(".")[-1]
        raise InputError(
            f"this PeftModel ({what}) does more than its layers do (it prepends learned vectors, or switches adapters "
            "on in the middle of a text), so that it cannot be decomposed: give its base model."
        )
    return inner


def adapter_names(model: nn.Module) -> list[str]:
    """The names of a model's active adapters, in order."""
    names: dict[str, None] = {}
    for module in modules_of(model):
        if is_adapted(module):
            names |= dict.fromkeys([] if module.disable_adapters else module.active_adapters)  # type: ignore[arg-type]
    return list(names)
