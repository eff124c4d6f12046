"""Hooks and functions that somebody put into a loaded model, which no hash of its weights shows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn

from ..errors import InputError
from .load import Model

# Libraries whose hooks and functions are part of how a model is loaded, quantized or spread over devices.
_LIBRARIES = frozenset(
    "torch transformers transformer_lens accelerate peft bitsandbytes torchao kernels liger_kernel optimum gptqmodel "
    "awq hqq eetq compressed_tensors auto_round fla mamba_ssm causal_conv1d flash_attn transformers_modules".split()
)
OWN = frozenset({*_LIBRARIES, __name__.split(".")[0]})


def refuse_foreign_code(model: Model) -> None:
    """Raise InputError, with the place, for a model into which somebody put hooks or functions after it was loaded.

    Hooks on PyTorch modules and on TransformerLens' hook points, functions in the place of a module's own (a new
    `forward`, of one module or of its class), parametrizations, attention functions registered with Transformers. What
    accelerate, PEFT and quantization libraries put there is part of the model. Not seen: a function replaced in a
    library itself (`modeling_llama.apply_rotary_pos_emb = ...`).
    """
    for place, what, code in _foreign_code(model):
        function = _unwrap(code)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise InputError(
            f"{model.name} has {what} ({name}) on {place}, which its weights do not show: what is kept on disk under "
            "the model's name would be another model's. Remove it (its handle's remove(), reset_hooks() of "
            "TransformerLens, or load the model again), or write the change into the weights."
        )


def _foreign_code(model: Model) -> Iterator[tuple[str, str, Any]]:
    """(place, what, code) of everything in a model that is neither its own nor its library's."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    shared: Any = (nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks)
    for hook in (hook for hooks in shared for hook in hooks.values()):
        if not _is_from(hook, _LIBRARIES):
            yield "every module", "a global forward hook", hook
    roots = model.architecture.roots
    name = getattr(getattr(roots[-1], "config", None), "_attn_implementation", None)
    attention = dict(ALL_ATTENTION_FUNCTIONS).get(name)
    if attention is not None and not _is_from(attention, _LIBRARIES):
        yield "the model itself", f"the attention {name!r}", attention
    for path, module in (item for root in roots for item in nn.Module.named_modules(root)):
        for what, code in _in_module(module):
            yield repr(path) if path else "the model itself", what, code


def _in_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(what, code) of everything in a module that is neither its own nor its library's."""
    if handles := getattr(module, "fwd_hooks", None):
        yield "a hook", getattr(handles[0], "user_hook", None) or handles[0]
    accelerated = getattr(module, "_hf_hook", None)
    hooks = [("a forward hook", hook) for hook in module._forward_hooks.values()]
    hooks += [("a forward pre-hook", hook) for hook in module._forward_pre_hooks.values()]
    if accelerated is not None:
        hooks += [("an accelerate hook", hook) for hook in getattr(accelerated, "hooks", [accelerated])]
    for name, parametrizations in getattr(module, "parametrizations", {}).items():
        hooks += [(f"a parametrization of its {name}", hook) for hook in parametrizations]
    yield from ((what, hook) for what, hook in hooks if not _is_from(hook, _LIBRARIES))
    for name, value in vars(module).items():
        if is_code(value) and name != "tokenizer" and not _is_its_own(module, value):
            yield f"a function of its own as {name.removeprefix('_old_')}", value
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    forward = vars(owner)["forward"]
    if owner.__module__.split(".")[0] in OWN and not _is_from(forward, OWN):
        yield f"another forward in its class {owner.__name__}", forward


def is_code(value: Any) -> bool:
    """Whether an attribute of a module is called: a function, a method, a partial, an object that can be."""
    return callable(value) and not isinstance(value, type | nn.Module)


def _is_its_own(module: nn.Module, value: Any) -> bool:
    """Whether a function among a module's attributes is its library's, or of its class's file, whose text is hashed.

    Another module's method is neither, whatever library both are of.
    """
    bound = getattr(value, "__self__", None)
    if isinstance(value, MethodType) and isinstance(bound, nn.Module) and bound is not module:
        return False
    return _is_from(value, OWN, type(module).__module__)


def _is_from(code: Any, libraries: frozenset[str], file: str | None = None) -> bool:
    return all(place == file or place.split(".")[0] in libraries for place in _modules_of(code))


def _modules_of(code: Any) -> set[str]:
    """The Python modules in which a function and those that it wraps were written (`wraps` copies names, not these)."""
    modules, code = set(), _unwrap(code)
    while isinstance(code, FunctionType):
        modules.add(str(code.__globals__.get("__name__") or code.__module__))
        if not hasattr(code, "__wrapped__"):
            return modules
        code = _unwrap(code.__wrapped__)
    if isinstance(code, BuiltinFunctionType):
        return modules
    return {*modules, str(getattr(code, "__module__", None) or type(code).__module__)}


def _unwrap(code: Any) -> Any:
    """The function in a method or a partial."""
    while isinstance(code, functools.partial | MethodType):
        code = code.func if isinstance(code, functools.partial) else code.__func__
    return code
