"""Hooks and functions that somebody put into a loaded model, which no hash of its weights shows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn

from ..errors import InputError
from .load import Model


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
    `forward`, of one module or of its class), parametrizations, ways to attend registered with Transformers. What
    accelerate, PEFT and quantization libraries put there is part of the model. Not seen: a function replaced in a
    library itself (`modeling_llama.apply_rotary_pos_emb = ...`). Raises InputError.
    """
    shared: Any = (nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks)
    for hook in (hook for hooks in shared for hook in hooks.values()):
        if not _is_from(hook, _LIBRARIES):
            raise InputError(_refusal(model, "every module", "a global forward hook", hook))
    for what, code in _registered(model):
        raise InputError(_refusal(model, "the model itself", what, code))
    for root in roots(model):
        for path, module in nn.Module.named_modules(root):
            for what, code in _foreign(module):
                raise InputError(_refusal(model, repr(path) if path else "the model itself", what, code))


def _registered(model: Model) -> Iterator[tuple[str, Any]]:
    """(what, code) of a way to attend that somebody registered with Transformers: a word in the configuration."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = getattr(getattr(roots(model)[-1], "config", None), "_attn_implementation", None)
    code = dict(ALL_ATTENTION_FUNCTIONS).get(name)
    if code is not None and not _is_from(code, _LIBRARIES):
        yield f"the attention {name!r}", code


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
        if is_code(value) and name != "tokenizer" and not _is_its_own(module, value):
            yield f"a function of its own as {name.removeprefix('_old_')}", value
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    forward = vars(owner)["forward"]
    if owner.__module__.split(".")[0] in OWN and not _is_from(forward, OWN):
        yield f"another forward in its class {owner.__name__}", forward
    for name, some in getattr(module, "parametrizations", {}).items():
        for one in some:
            if not _is_from(one, _LIBRARIES):
                yield f"a parametrization of its {name}", one


def is_code(value: Any) -> bool:
    """Whether an attribute of a module is called: a function, a method, a partial, an object that can be."""
    return callable(value) and not isinstance(value, type | nn.Module)


def _is_its_own(module: nn.Module, value: Any) -> bool:
    """Whether a function among a module's attributes is its library's, or of its class and file, whose text counts.

    Another module's method is neither, whatever library both are of.
    """
    bound = getattr(value, "__self__", None)
    if isinstance(value, MethodType) and isinstance(bound, nn.Module) and bound is not module:
        return False
    return _is_from(value, OWN, type(module).__module__)


def _is_from(code: Any, libraries: frozenset[str], file: str | None = None) -> bool:
    return all(place == file or place.split(".")[0] in libraries for place in _places(code))


def _places(code: Any) -> set[str]:
    """The Python modules that a function was written in, and those that it wraps: `wraps` copies names, not these."""
    places, code = set(), _unwrapped(code)
    while isinstance(code, FunctionType):
        places.add(str(code.__globals__.get("__name__") or code.__module__))
        if not hasattr(code, "__wrapped__"):
            return places
        code = _unwrapped(code.__wrapped__)
    if isinstance(code, BuiltinFunctionType):
        return places
    return {*places, str(getattr(code, "__module__", None) or type(code).__module__)}


def _unwrapped(code: Any) -> Any:
    """The function in a method or a partial."""
    while isinstance(code, functools.partial | MethodType):
        code = code.func if isinstance(code, functools.partial) else code.__func__
    return code


def roots(model: Model) -> list[Any]:
    """The model, and the one it wraps: a bridge keeps that outside its own modules."""
    root = model.architecture.root
    return [root, *filter(None, [getattr(root, "original_model", None)])]
