"""Code that somebody put into a loaded model: hooks, functions in place of methods, other attentions.

Python code cannot be hashed in a way that means anything, so that results of such a model are not kept under its name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Literal

from torch import nn

from ..errors import InputError
from .architecture import Architecture

# Libraries whose hooks and functions are part of how a model is loaded, quantized or spread over devices.
LIBRARIES = frozenset(
    "torch transformers transformer_lens accelerate peft bitsandbytes torchao kernels liger_kernel optimum gptqmodel "
    "awq hqq eetq compressed_tensors auto_round fla mamba_ssm causal_conv1d flash_attn transformers_modules".split()
)
OWN = frozenset({*LIBRARIES, __name__.split(".")[0]})


def refuse_foreign_code(name: str, architecture: Architecture) -> None:
    """Raise InputError, with the place, for a model into which somebody put hooks or functions after it was loaded.

    Not seen: a function replaced in a library itself (`modeling_llama.apply_rotary_pos_emb = ...`).
    """
    for place, what, code in _foreign_code(architecture):
        whose = getattr(_unwrap(code), "__qualname__", type(_unwrap(code)).__qualname__)
        raise InputError(
            f"{name} has {what} ({whose}) on {place}, which its weights do not show: remove it, load the model "
            "again, or write the change into the weights, so that no results are kept as another model's."
        )


def _foreign_code(architecture: Architecture) -> Iterator[tuple[str, str, Any]]:
    """(place, what, code) of everything in a model that is neither its own nor its library's."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    roots, shared = architecture.roots, nn.modules.module
    for hook in (*shared._global_forward_hooks.values(), *shared._global_forward_pre_hooks.values()):
        if not is_from(hook, LIBRARIES):
            yield "every module", "a global forward hook", hook
    name = getattr(getattr(roots[-1], "config", None), "_attn_implementation", None)
    attention = dict(ALL_ATTENTION_FUNCTIONS).get(name)
    if attention is not None and not is_from(attention, LIBRARIES):
        yield "the model itself", f"the attention {name!r}", attention
    for path, module in (item for root in roots for item in nn.Module.named_modules(root)):
        for what, code in _in_module(module):
            yield repr(path) if path else "the model itself", what, code


def _in_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    if handles := getattr(module, "fwd_hooks", None):
        yield "a hook", getattr(handles[0], "user_hook", None) or handles[0]
    accelerated = getattr(module, "_hf_hook", None)
    hooks: dict[str, Any] = {"a forward hook": module._forward_hooks.values()}
    hooks["a forward pre-hook"] = module._forward_pre_hooks.values()
    hooks["an accelerate hook"] = [] if accelerated is None else getattr(accelerated, "hooks", [accelerated])
    for name, parametrizations in getattr(module, "parametrizations", {}).items():
        hooks[f"a parametrization of its {name}"] = parametrizations
    yield from ((what, hook) for what, of in hooks.items() for hook in of if not is_from(hook, LIBRARIES))
    for name, value in vars(module).items():
        bound = getattr(value, "__self__", None)
        others = isinstance(value, MethodType) and isinstance(bound, nn.Module) and bound is not module
        # Its library's functions are its own, and those of its class's file, whose text is hashed.
        own = not is_code(value) or (not others and is_from(value, OWN, type(module).__module__))
        if not own and name != "tokenizer":
            yield f"a function of its own as {name.removeprefix('_old_')}", value
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    forward = vars(owner)["forward"]
    if is_library(owner) and not is_from(forward, OWN):
        yield f"another forward in its class {owner.__name__}", forward


def users_hooks(module: nn.Module, side: Literal["in", "out"]) -> list[int]:
    """The keys of the hooks on what a module is given ("in") or returns ("out") that no library put there."""
    hooks = module._forward_hooks if side == "out" else module._forward_pre_hooks
    if side == "out" and getattr(module, "fwd_hooks", None):  # TransformerLens wraps the user's in functions of its own
        return list(hooks)
    return [key for key, hook in hooks.items() if not is_from(hook, OWN)]


def is_library(cls: type) -> bool:
    """Whether a library brings a class, or this package does."""
    return cls.__module__.split(".")[0] in OWN


def is_code(value: Any) -> bool:
    """Whether a value is a function or an object that is called like one, and no class or module."""
    return callable(value) and not isinstance(value, type | nn.Module)


def is_from(code: Any, libraries: frozenset[str], file: str | None = None) -> bool:
    """Whether a function and those that it wraps were written in some libraries, or in the Python module `file`."""
    modules, code = set(), _unwrap(code)
    while isinstance(code, FunctionType):  # `wraps` copies names, not these
        modules.add(str(code.__globals__.get("__name__") or code.__module__))
        code = _unwrap(getattr(code, "__wrapped__", None))
    if code is not None and not isinstance(code, BuiltinFunctionType):
        modules.add(str(getattr(code, "__module__", None) or type(code).__module__))
    return all(module == file or module.split(".")[0] in libraries for module in modules)


def _unwrap(code: Any) -> Any:
    while isinstance(code, functools.partial | MethodType):
        code = code.func if isinstance(code, functools.partial) else code.__func__
    return code
