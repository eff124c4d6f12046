"""Weights of Hugging Face modules, read in place: plain, adapted by PEFT, offloaded by Accelerate or quantized."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .norm import bare_copy


def is_present(bias: Tensor | None) -> bool:
    """True unless a bias is None or all zeros; an offloaded bias counts as present and is not fetched."""
    return bias is not None and (bias.is_meta or bool((bias != 0).any()))


def is_conv1d(module: nn.Module) -> bool:
    """True for a Conv1D, which keeps its weight as `[in, out]`; adapters around it are looked through."""
    from transformers.pytorch_utils import Conv1D

    while is_adapted(module):
        module = inner_layer(module)
    return isinstance(module, Conv1D)


def is_adapted(module: Any) -> bool:
    """True for a layer that PEFT put around a module."""
    return bool({"BaseTunerLayer", "AuxiliaryTrainingWrapper"} & {cls.__name__ for cls in type(module).__mro__})


def inner_layer(module: Any) -> Any:
    """The module inside a layer of PEFT: the adapted one, or the one that took its place."""
    if hasattr(module, "base_layer"):
        return module.base_layer
    if module.disable_adapters or not module.active_adapters:
        return module.original_module
    copies = getattr(module, "modules_to_save", {})
    return copies[module.active_adapters[0]] if copies else module.token_adapter


def merged(module: Any) -> Any:
    """The module whose weights have the adapters in them: PEFT itself merges them into a copy.

    Raises InputError if it cannot.
    """
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
    """The `[in, out]` weight and the bias of a Linear or Conv1D, which may be adapted or offloaded (PEFT, Accelerate).

    Raises InputError for adapters that cannot be merged into the weight.
    """
    module = merged(module)
    weight, bias = _own_weights(module, None)
    return weight if is_conv1d(module) else weight.T, bias


def linear_rows(module: Any, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows `[id, d]` of an unembedding and their biases; all of them, not copied, for None."""
    return _own_weights(merged(module), ids)


def _own_weights(module: Any, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Some rows of a module's weight and bias as it keeps them; all for None, copied only if they are offloaded."""
    from accelerate.utils import align_module_device

    offloaded = any(parameter.is_meta for parameter in module.parameters())
    with align_module_device(module):
        weight = module.weight.dequantize() if is_quantized(module.weight) else module.weight.detach()
        own = [weight, None if (bias := getattr(module, "bias", None)) is None else bias.detach()]
        if rows is not None:
            own = [None if x is None else x[rows.to(x.device)] for x in own]
        elif offloaded:  # outside this block the weights are gone again
            own = [None if x is None else x.clone() for x in own]
    return own[0], own[1]


def device_of(module: nn.Module, default: torch.device) -> torch.device:
    """The device of a module's input, which Accelerate's hook tells for an offloaded one."""
    hook = getattr(module, "_hf_hook", None)
    if getattr(hook, "execution_device", None) is not None:
        return torch.device(hook.execution_device)  # type: ignore[union-attr]
    parameter = next(module.parameters(), None)
    return default if parameter is None or parameter.is_meta else parameter.device


def is_quantized(weight: Any) -> bool:
    """True for a tensor around others (torchao's) that can be turned back into plain numbers."""
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
