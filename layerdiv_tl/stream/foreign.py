"""Hooks and functions that somebody put into a loaded model, which no hash of its weights shows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn

from ..errors import InputError
from .loading import Model


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


# Libraries whose hooks and functions are part of how a model is loaded, quantized or spread over devices.
_LIBRARIES = words(
    "torch transformers transformer_lens accelerate peft bitsandbytes torchao kernels liger_kernel optimum gptqmodel "
    "awq hqq eetq compressed_tensors auto_round fla mamba_ssm causal_conv1d flash_attn transformers_modules"
)
OWN = frozenset({*_LIBRARIES, __name__.split(".")[0]})


def refuse_foreign_code(model: Model) -> None:
    """Refuse, with the place, a model into which somebody put hooks or functions after it was loaded.

    Hooks on PyTorch modules and on TransformerLens' hook points, functions in the place of a module's own (a new
    `forward`, of one module or of its class), parametrizations. What accelerate, PEFT and quantization libraries
    put there is part of the model. Raises InputError.
    """
    shared: Any = (nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks)
    for hook in (hook for hooks in shared for hook in hooks.values()):
        if not _is_from(hook, _LIBRARIES):
            raise InputError(_refusal(model, "every module", "a global forward hook", hook))
    for root in roots(model):
        for path, module in nn.Module.named_modules(root):
            for what, code in _foreign(module):
                raise InputError(_refusal(model, repr(path) if path else "the model itself", what, code))


def _refusal(model: Model, place: str, what: str, code: Any) -> str:
    code = _unwrapped(code)
    name = getattr(code, "__qualname__", type(code).__qualname__)
    return (
        f"{model.name} has {what} ({name}) on {place}, which its weights do not show: what is kept on disk under "
        "the model's name would be another model's. Remove it (its handle's remove(), reset_hooks() of "
        "TransformerLens, or load the model again), or write the change into the weights."
    )


def _foreign(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(what, code) of everything in a module that is neither its own nor its library's."""
    if handles := getattr(module, "fwd_hooks", None):
        yield "a hook", getattr(handles[0], "user_hook", None) or handles[0]
    for what, hooks in (("hook", module._forward_hooks), ("pre-hook", module._forward_pre_hooks)):
        for hook in hooks.values():
            if not _is_from(hook, _LIBRARIES):
                yield f"a forward {what}", hook
    accelerated = getattr(module, "_hf_hook", None)
    for one in [] if accelerated is None else getattr(accelerated, "hooks", [accelerated]):
        if not _is_from(one, _LIBRARIES):
            yield "an accelerate hook", one
    for name, value in vars(module).items():
        if isinstance(value, FunctionType | MethodType | functools.partial) and not _is_its_own(module, value):
            yield f"a function of its own as {name.removeprefix('_old_')}", value
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    forward = vars(owner)["forward"]
    if owner.__module__.split(".")[0] in OWN and not _is_from(forward, OWN):
        yield f"another forward in its class {owner.__name__}", forward
    for name, some in getattr(module, "parametrizations", {}).items():
        for one in some:
            if not _is_from(one, _LIBRARIES):
                yield f"a parametrization of its {name}", one


def _is_its_own(module: nn.Module, value: Any) -> bool:
    """Whether a function among a module's attributes is its library's, or of its class and file, whose text counts."""
    code, cls = _unwrapped(value), type(module)
    return _is_from(code, OWN) or getattr(code, "__module__", None) == cls.__module__


def _is_from(code: Any, libraries: frozenset[str]) -> bool:
    code = _unwrapped(code)
    where = getattr(code, "__module__", None) or type(code).__module__
    return isinstance(code, BuiltinFunctionType) or str(where).split(".")[0] in libraries


def _unwrapped(code: Any) -> Any:
    """The function in a method or a partial."""
    while isinstance(code, functools.partial | MethodType):
        code = code.func if isinstance(code, functools.partial) else code.__func__
    return code


def roots(model: Model) -> list[Any]:
    """The model, and the one it wraps: a bridge keeps that outside its own modules."""
    root = model.anatomy.root
    return [root, *filter(None, [getattr(root, "original_model", None)])]
