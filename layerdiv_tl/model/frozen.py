"""Freeze what is nonlinear on the residual path: norm denominators, gates and attention patterns keep their values.

What is left is affine in the writes to the residual stream, so that gradient × write is an exact contribution. The same
is done in attribution graphs, which freeze norm denominators and attention patterns. What this mode does not know (an
error function, a custom kernel) stays nonlinear, and the sum of the contributions then misses the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

HALF = (torch.float16, torch.bfloat16)
# What rounding explains, relative to max Σ|u_i|: measured, 1e-7 to 1e-6 for float32 models, up to 2e-2 for half ones.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}
# The tolerance between logits that a model computes in two ways.
SAME_ANSWERS = 1e-3
_SUMS = {
    f"{a}{b}{c}" for a, c in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__")) for b in ("add", "sub")
}
_NONLINEAR = {
    *("scaled_dot_product_attention", "sigmoid", "tanh", "softmax", "exp", "rsqrt", "sqrt", "pow", "__pow__", "square"),
    *("reciprocal", "silu", "gelu", "relu", "softplus", "norm", "abs"),
}
_PRODUCTS = ("mul", "__mul__")
_CASTS = {"to", "float", "half", "bfloat16", "type_as"}


class Frozen(TorchFunctionMode):
    """A mode in which everything that depends on a leaf is affine in it, and computed in one precision.

    Attributes:
        dtype: The precision of the path: what meets it is cast to it, and a model's own casts of it are ignored. None
            leaves all precisions alone.
        constants: A leaf for each thing that the path adds by itself (biases, numbers), in the shape of the sum.
    """

    def __init__(self, dtype: torch.dtype | None = torch.float64) -> None:
        super().__init__()
        self.dtype = dtype
        self.constants: list[Tensor] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._set_grad_enabled:  # a model's own `no_grad` has no effect
            return None
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        tensors = [x for x in args if isinstance(x, Tensor)]
        if any(x.dtype == self.dtype for x in tensors):
            if name in _CASTS and args[0].dtype == self.dtype and _asked_dtype(args, kwargs).is_floating_point:
                return args[0].to(_asked_device(args, kwargs))
            if kwargs or len(tensors) != 1:  # a lone tensor has this precision
                args, kwargs = self._cast(args), {key: self._cast(x) for key, x in kwargs.items()}
        if not any(x.requires_grad for x in tensors) or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in _RULES:
            return _RULES[func](self, *args, **kwargs)
        is_in_place = name.endswith("_") and (not name.endswith("__") or name.startswith("__i"))
        has_constant = name in _SUMS and len(args) > 1 and not all(map(is_on_path, args[:2]))
        if has_constant and (is_on_path(args[0]) or not is_in_place):
            args = (*self._with_constant(*args[:2]), *args[2:])
        out = func(*args, **kwargs)
        is_frozen = name in _NONLINEAR or (name in _PRODUCTS and args[0] is args[1])
        return out.detach() if is_frozen and isinstance(out, Tensor) else out

    def _cast(self, x: Any) -> Any:
        if isinstance(x, list | tuple) and any(isinstance(y, Tensor) for y in x):
            return type(x)(map(self._cast, x))
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        x = x.to(self.dtype)
        return x.clone() if x.is_inference() else x  # which no graph can hold

    def _with_constant(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The two terms of a sum, with a leaf for the one that is not on the path."""
        x, other = (a, b) if is_on_path(a) else (b, a)
        other = torch.as_tensor(other, device=x.device)
        leaf = self._constant(x.expand(torch.broadcast_shapes(x.shape, other.shape)), other)
        return (a, leaf) if x is a else (leaf, b)

    def _constant(self, like: Tensor, value: Tensor) -> Tensor:
        self.constants.append(value.detach().to(like).expand_as(like).clone().requires_grad_())
        return self.constants[-1]

    def _plus(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return x if bias is None else x + self._constant(x, bias)

    # Functions that hide a bias or a nonlinear result.

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._plus(F.linear(x, weight), bias)

    def _addmm(self, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:  # of Conv1D
        return self._plus(x @ weight, bias)

    def _layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        return self._plus(self._rms_norm(x - x.mean(-1, keepdim=True), shape, weight, eps), bias)

    def _rms_norm(self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        x = x * (x.detach().square().mean(-1, keepdim=True) + eps).rsqrt()
        return x if weight is None else x * weight

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, dropout: float = 0.0, causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False, attn_mask: Any = None, is_causal: bool = False,
        dropout_p: float = 0.0,
    ) -> Tensor:  # fmt: skip
        if k is v:  # over several streams
            pattern = q.detach() @ k.detach().transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
            return pattern.softmax(-1) @ v
        mask = attn_mask if mask is None else mask
        options: Any = {"is_causal": causal or is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return F.scaled_dot_product_attention(q.detach(), k.detach(), v, mask, dropout or dropout_p, **options)


_RULES: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.linear: Frozen._linear,
    torch.addmm: Frozen._addmm,
    F.layer_norm: Frozen._layer_norm,
    F.rms_norm: Frozen._rms_norm,
    F.scaled_dot_product_attention: Frozen._attention,
}


def is_on_path(x: Any) -> bool:
    """True for a tensor that depends on a leaf."""
    return isinstance(x, Tensor) and x.requires_grad


def _asked_dtype(args: Any, kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype that `x.to(...)` or a method like it asks for, x's own where it asks for none."""
    asked = (a.dtype if isinstance(a, Tensor) else a for a in (*args[1:], *kwargs.values()))
    return next((a for a in asked if isinstance(a, torch.dtype)), args[0].dtype)


def _asked_device(args: Any, kwargs: dict[str, Any]) -> Any:
    """The device that `x.to(...)` asks for, x's own where it asks for none."""
    asked = (a.device if isinstance(a, Tensor) else a for a in (*args[1:], *kwargs.values()))
    return next((a for a in asked if isinstance(a, torch.device | str)), args[0].device)


def tolerance(dtype: torch.dtype, exact: float) -> float:
    """The tolerance for numbers: `exact`, or a looser one for half precisions, which round at every operation."""
    return TOLERANCE[dtype] if dtype in HALF else exact


def answer_gap(logits: Tensor, plain: Tensor) -> float:
    """The largest difference from plain logits, relative to the largest of these over all tokens."""
    return float((logits - plain).abs().max() / plain.abs().max().clamp_min(1e-6))


def upcast(x: Tensor) -> Tensor:
    """Convert half precisions to float32 before anything is added up; wider dtypes are unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
