"""Weights of Hugging Face modules, read in place: plain, adapted by PEFT, offloaded by Accelerate or quantized.

PEFT is not imported: its layers are recognized
by their classes' names.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .norm import bare_copy


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


def is_present(bias: Tensor | None) -> bool:
    """True unless a bias is None or all zeros; an offloaded bias counts as present and is not fetched."""
    return bias is not None and (bias.is_meta or bool((bias != 0).any()))


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


def merged(module: Any) -> Any:
    """Return the module with adapters merged into its weights, by PEFT itself in a copy.

    Raises InputError if they cannot be merged.
    """
    while is_adapted(module):
        if "BaseTunerLayer" in {cls.__name__ for cls in type(module).__mro__}:
            if any(parameter.is_meta for parameter in module.parameters()):
                raise InputError("adapters on weights that are offloaded cannot be read: load the model on one device.")
            if not module.merged and not module.disable_adapters:
                if is_quantized(getattr(inner_layer(module), "weight", None)):
                    raise InputError("adapters on quantized weights cannot be merged exactly: use unit='sublayer'.")
                module = bare_copy(module)
                vars(module).update(merged_adapters=[], _caches={})
                try:
                    module.merge()
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    reason = f"PEFT cannot merge its {type(module).__name__} ({' '.join(str(error).split())[:200]})"
                    raise InputError(f"an adapted matrix of this model cannot be read: {reason}.") from error
        module = inner_layer(module)
    return module


def linear_map(module: Any) -> tuple[Tensor, Tensor | None]:
    """The `[in, out]` weight and the bias of a Linear or Conv1D, which may be adapted or offloaded (PEFT, Accelerate).

    Raises InputError for adapters that cannot be merged into the weight.
    """
    weight, bias = linear_rows(module, None)
    return weight if is_conv1d(module) else weight.T, bias


def in_memory(module: nn.Module, device: torch.device | None = None) -> AbstractContextManager[Any]:
    """A context in which the weights that Accelerate offloads from a module are in memory."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device  # installed wherever a module has its hook

    return align_module_device(module, device)


def linear_rows(module: Any, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Some rows of a matrix and a bias, e.g. those of ids in an unembedding; all for None.

    They are returned as the module stores them, and copied only if offloaded. Raises InputError as `linear_map`.
    """
    module = merged(module)
    offloaded = any(parameter.is_meta for parameter in module.parameters())
    with in_memory(module):
        weight = module.weight.dequantize() if is_quantized(module.weight) else module.weight.detach()
        own = [weight, None if (bias := getattr(module, "bias", None)) is None else bias.detach()]
        if rows is not None:
            own = [None if x is None else x[rows.to(x.device)] for x in own]
        elif offloaded:  # outside this block the weights are gone again
            own = [None if x is None else x.clone() for x in own]
    return own[0], own[1]


def device_of(module: nn.Module, default: torch.device) -> torch.device:
    """The device of a module's input, which Accelerate's hook holds for an offloaded one."""
    hook = getattr(module, "_hf_hook", None)
    if getattr(hook, "execution_device", None) is not None:
        return torch.device(hook.execution_device)  # type: ignore[union-attr]
    parameter = next(module.parameters(), None)
    return default if parameter is None or parameter.is_meta else parameter.device


def is_quantized(weight: Any) -> bool:
    """True for a wrapper tensor (torchao's) that can be dequantized."""
    return hasattr(weight, "__tensor_flatten__") and hasattr(weight, "dequantize")


def matrix_shape(module: Any) -> tuple[int, int] | None:
    """`(in, out)` of a readable matrix with or without a bias; None for any other module."""
    while is_adapted(module):
        module = inner_layer(module)
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        return None
    rows, columns = map(int, weight.shape)
    return (rows, columns) if is_conv1d(module) else (columns, rows)


def inputs_of(projection: Any, width: int) -> int | None:
    """The input width of a projection to the stream; None unless it is a readable matrix of that output width."""
    shape = matrix_shape(projection)
    return shape[0] if shape is not None and shape[1] == width else None


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
