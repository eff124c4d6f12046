"""A mixture of experts as the sum of its experts' outputs: the gradient at a gate is what its expert writes.

The mixture is run again on what it and its experts received in the pass, so that a router with a state does not matter,
and no family's formula is needed: factors, matrices and norms behind the experts are the model's own.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .frozen import Frozen
from .patching import frozen, silent, swapped, tensor
from .writers import Writer, unwrapped

# A rest that is smaller, relative to the experts, is rounding.
_ROUNDING = 1e-4


def cut_experts(
    writer: Writer, write: Float[Tensor, "n t d"], received: Any, g: Float[Tensor, "K n t d"]
) -> tuple[Float[Tensor, "K n expert"], Float[Tensor, "K n"]] | None:
    """Contributions of a mixture's experts, and of what it adds besides; None where they cannot be told apart."""
    experts: Any = writer.experts
    count = count_experts(experts)
    (args, kwargs), (routed, routed_by_name) = (_repeated(call, len(g), write) for call in received)
    tensors = [x for x in (*routed, *routed_by_name.values()) if isinstance(x, Tensor)]
    index = next((x for x in tensors if not x.is_floating_point()), None)
    gates = next((x for x in tensors[1:] if x.is_floating_point()), None)
    is_gated = index is not None and gates is not None and index.shape == gates.shape
    forward, leaves = experts.forward, list[Tensor]()

    def with_leaf(*a: Any, **k: Any) -> Any:
        """Run the experts on what they received, with a leaf at their gates, or at what each of them gives."""
        if not is_gated:
            output = forward(*a, **k)
            leaves.append(output.detach().clone().requires_grad_())
            return leaves[0].clone()
        assert gates is not None
        leaves.append(gates.detach().clone().requires_grad_())
        own = [leaves[0] if x is gates else x for x in routed]
        return forward(*own, **{name: leaves[0] if x is gates else x for name, x in routed_by_name.items()})

    again = swapped(experts, "forward", with_leaf)
    with torch.inference_mode(False), torch.enable_grad(), frozen(writer.owner), silent(writer.owner), again:
        with Frozen(None):
            y = tensor(writer.owner.forward(*args, **kwargs))
            for one in writer.maps[1:]:
                with silent(one), frozen(one):
                    y = tensor(unwrapped(one).forward(y))
        if not y.requires_grad:
            return None
        (at_leaf,) = torch.autograd.grad(y, leaves, g.to(y).reshape(y.shape))
    each = (at_leaf * leaves[0].detach()).to(g)
    tokens = g.shape[:3].numel()
    if is_gated:
        assert index is not None
        u = g.new_zeros(*g.shape[:2], count)
        u.scatter_add_(-1, index.reshape(*g.shape[:2], -1), each.reshape(*g.shape[:2], -1))
    elif count and each.numel() // each.shape[-1] == count * tokens:  # every token goes to every expert, times its gate
        u = each.reshape(count, *g.shape[:2], -1).sum(-1).movedim(0, -1)
    else:
        return None
    rest = (g * y.detach().to(g).reshape(g.shape)).sum((-1, -2)) - u.sum(-1)
    is_rounding = float(rest.abs().max()) <= _ROUNDING * float(u.abs().sum(-1).max())
    return u, torch.zeros_like(rest) if is_rounding else rest


def count_experts(experts: Any) -> int:
    """The number of a mixture's routed experts; 0 if its module does not say so."""
    names = ("num_experts", "n_routed_experts")
    return next((n for name in names if isinstance(n := getattr(experts, name, None), int)), 0)


def _repeated(call: tuple[Any, Any], times: int, write: Tensor) -> tuple[Any, Any]:
    """A call's arguments for several directions, one after another."""
    lengths = (len(write), len(write) * write.shape[1])

    def repeat(x: Any) -> Any:
        is_by_token = isinstance(x, Tensor) and x.dim() and len(x) in lengths
        return x.clone().repeat(times, *[1] * (x.dim() - 1)) if is_by_token else x

    return tuple(map(repeat, call[0])), {name: repeat(x) for name, x in call[1].items()}
