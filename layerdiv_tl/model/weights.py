"""Weights of Hugging Face modules, read where they are, also where these are adapted, offloaded or quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .norm import bare_copy


def is_present(bias: Tensor | None) -> bool:
    """Whether a bias adds anything; an offloaded one is not fetched to find out."""
    return bias is not None and (bias.is_meta or bool((bias != 0).any()))


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module keeps its weight as `[in, out]`."""
    from transformers.pytorch_utils import Conv1D

    while is_adapted(module):
        module = inner_layer(module)
    return isinstance(module, Conv1D)


def is_adapted(module: Any) -> bool:
    """Whether PEFT put a layer of its own around a module."""
    return bool({"BaseTunerLayer", "AuxiliaryTrainingWrapper"} & {cls.__name__ for cls in type(module).__mro__})


def inner_layer(module: Any) -> Any:
    """What is inside a layer of PEFT: the adapted module, or the one that took its place."""
    if hasattr(module, "base_layer"):
        return module.base_layer
    if module.disable_adapters or not module.active_adapters:
        return module.original_module
    copies = getattr(module, "modules_to_save", {})
    return copies[module.active_adapters[0]] if copies else module.token_adapter


def merged(module: Any) -> Any:
    """A module as its adapters make it, merged into a copy of its weights by PEFT itself."""
    while is_adapted(module):
        if "BaseTunerLayer" in {cls.__name__ for cls in type(module).__mro__}:
            if any(parameter.is_meta for parameter in module.parameters()):
                raise InputError("adapters on weights that are offloaded cannot be read: load the model on one device.")
            if not module.merged and not module.disable_adapters:
                if is_quantized(getattr(inner_layer(module), "weight", None)):
                    ways = "use unit='sublayer', or load_model(..., adapters='component')"
                    raise InputError(f"adapters on quantized weights cannot be merged exactly: {ways}.")
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
    """`[in, out]` weight and bias of a Linear or a Conv1D, also an adapted or offloaded one (PEFT, accelerate)."""
    from accelerate.utils import align_module_device

    module = merged(module)
    offloaded = any(parameter.is_meta for parameter in module.parameters())
    with align_module_device(module):
        weight = module.weight.dequantize() if is_quantized(module.weight) else module.weight.detach()
        bias = getattr(module, "bias", None)
        bias = None if bias is None else bias.detach()
        if offloaded:  # outside this block the weights are gone again
            weight, bias = weight.clone(), None if bias is None else bias.clone()
    return weight if is_conv1d(module) else weight.T, bias


def linear_rows(module: Any, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows `[id, d]` of an unembedding and their biases; all of them, not copied, for None."""
    weight, bias = linear_map(module)
    if ids is None:
        return weight.T, bias
    return weight.T[ids.to(weight.device)], None if bias is None else bias[ids.to(bias.device)]


def device_of(module: nn.Module, default: torch.device) -> torch.device:
    """Where a module wants its input; an offloaded one says so in accelerate's hook."""
    hook = getattr(module, "_hf_hook", None)
    if getattr(hook, "execution_device", None) is not None:
        return torch.device(hook.execution_device)  # type: ignore[union-attr]
    parameter = next(module.parameters(), None)
    return default if parameter is None or parameter.is_meta else parameter.device


def is_quantized(weight: Any) -> bool:
    """Whether a weight is a tensor around others (torchao's) that can say which numbers it stands for."""
    return hasattr(weight, "__tensor_flatten__") and hasattr(weight, "dequantize")


def matrix_shape(module: Any) -> tuple[int, int] | None:
    """`(in, out)` of a module that is a matrix and a bias which can be read; None for any other."""
    while is_adapted(module):
        module = inner_layer(module)
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        return None
    rows, columns = map(int, weight.shape)
    return (rows, columns) if is_conv1d(module) else (columns, rows)


def inputs_of(projection: Any, width: int) -> int | None:
    """How many numbers a projection to the stream is given; None for what is no matrix that can be read."""
    shape = matrix_shape(projection)
    return shape[0] if shape is not None and shape[1] == width else None
