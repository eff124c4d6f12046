"""What every routed expert of a mixture wrote, read in the model's own pass: gate × output, one vector for each slot.

A token goes to k of n experts: it has k slots, each with the number of an expert, its gate and what it wrote. In nearly
all families one module holds all experts; it is given (token, experts, gates) and returns the sum over the slots. Given
every slot as a token of its own with a single expert, the same module returns the terms of that sum, by as many
operations as before, and their sum goes on: nothing is computed twice, and no formula of a family is written here.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from .architecture import HookPoint
from .batches import upcast

# Ways of Transformers to run all experts at once that add the slots of a token in their own order.
_ADD_IN_ORDER = ("grouped_mm", "batched_mm")


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of some tokens: which expert, with which gate, wrote what."""

    index: Int[Tensor, "token k"]
    gates: Float[Tensor, "token k"]
    vectors: Float[Tensor, "token k d"]

    def packed(self) -> Float[Tensor, "token _"]:
        """All of it as one array of numbers."""
        numbers = upcast(self.gates), self.index.to(torch.promote_types(self.gates.dtype, torch.float32))
        k = torch.full_like(numbers[0][:, :1], numbers[0].shape[1])
        return torch.cat([upcast(self.vectors).flatten(1), *numbers, k], 1)

    @classmethod
    def unpacked(cls, packed: Float[Tensor, "token _"]) -> Slots:
        """The slots from what `packed` made of them."""
        packed, k = packed[:, :-1], int(packed[0, -1])
        vectors, gates, index = packed.split([packed.shape[1] - 2 * k, k, k], 1)
        return cls(index.long(), gates, vectors.unflatten(1, (k, -1)))


@dataclass(frozen=True, eq=False)
class ExpertPoint(HookPoint):
    """The experts in a mixture, `module`: shows the packed `Slots` of every token."""

    def attach(self, do: Callable[[Any, Any, Tensor], Any]) -> Any:
        """Call `do(args, kwargs, packed slots)` whenever the experts have run."""
        raise NotImplementedError


class FusedExperts(ExpertPoint):
    """Experts in one module that is given (token, experts, gates)."""

    @contextmanager
    def attach(self, do: Callable[[Any, Any, Tensor], Any]) -> Iterator[None]:
        """Give the module every slot as a token, and what goes on their sum."""
        thread, given = threading.get_ident(), []
        signature = inspect.signature(type(self.module).forward)

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return None
            _, x, index, gates = signature.bind(module, *args, **kwargs).args
            spread = x.flatten(0, -2).repeat_interleave(index.shape[-1], 0), index.reshape(-1, 1), gates.reshape(-1, 1)
            given.append((x, index.flatten(0, -2), gates.flatten(0, -2), spread))
            return (spread, {}) if self._adds_in_order(x, gates) else None

        def after(module: Any, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
            if threading.get_ident() != thread:
                return None
            x, index, gates, spread = given.pop()
            in_order = self._adds_in_order(x, gates)
            written = output if in_order else module.forward(*spread)
            vectors = written.reshape(*index.shape, -1)
            do(args, kwargs, Slots(index, gates, vectors).packed())
            return vectors.sum(1).view(*x.shape[:-1], -1) if in_order else None

        with ExitStack() as stack:
            stack.callback(self.module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(self.module.register_forward_hook(after, prepend=True, with_kwargs=True).remove)
            yield

    def _adds_in_order(self, x: Tensor, gates: Tensor) -> bool:
        """Whether the sum of the slots is what the module returns itself, to the last bit."""
        how = getattr(getattr(self.module, "config", None), "_experts_implementation", None)
        return how in _ADD_IN_ORDER and gates.dtype == x.dtype


class ScaledInputs(ExpertPoint):
    """Llama 4's experts: every one is given every token, times its gate, which is 0 at most."""

    @contextmanager
    def attach(self, do: Callable[[Any, Any, Tensor], Any]) -> Iterator[None]:
        """Read the router's gates, then what the experts return."""
        thread, gates = threading.get_ident(), []

        def routed(module: Any, args: Any, output: Any) -> None:
            if threading.get_ident() == thread:
                gates.append(output[0].topk(module.top_k, 1))

        def after(module: Any, args: Any, kwargs: Any, output: Tensor) -> None:
            if threading.get_ident() != thread:
                return
            values, index = gates.pop()
            written = output.view(module.num_experts, len(index), -1).transpose(0, 1)
            vectors = written.gather(1, index[..., None].expand(*index.shape, written.shape[-1]))
            do(args, kwargs, Slots(index, values, vectors).packed())

        mixture: Any = self.module
        with ExitStack() as stack:
            stack.callback(mixture.router.register_forward_hook(routed).remove)
            stack.callback(mixture.experts.register_forward_hook(after, prepend=True, with_kwargs=True).remove)
            yield


class SortedExperts(ExpertPoint):
    """JetMoE's experts: a matrix in and one out, given the slots sorted by expert, and gates after these."""

    @contextmanager
    def attach(self, do: Callable[[Any, Any, Tensor], Any]) -> Iterator[None]:
        """Read the router's order, then what the second matrix returns, and put it back in the tokens' order."""
        thread, orders = threading.get_ident(), []

        def routed(module: Any, args: Any, output: Any) -> None:
            if threading.get_ident() == thread:
                orders.append(output)

        def after(module: Any, args: Any, kwargs: Any, output: Tensor) -> None:
            if threading.get_ident() != thread:
                return
            order, _, gates, sizes, _ = orders.pop()
            experts = torch.arange(len(sizes), device=order.device).repeat_interleave(torch.tensor(sizes).to(order))
            back = order.argsort()
            vectors = (output * gates[:, None])[back].unflatten(0, (-1, mixture.router.top_k))
            shape = vectors.shape[:2]
            do(args, kwargs, Slots(experts[back].view(shape), gates[back].view(shape), vectors).packed())

        mixture: Any = self.module
        with ExitStack() as stack:
            stack.callback(mixture.router.register_forward_hook(routed).remove)
            stack.callback(mixture.output_linear.register_forward_hook(after, prepend=True, with_kwargs=True).remove)
            yield


def point_of(mixture: Any) -> tuple[ExpertPoint, int] | None:
    """Where the experts of a mixture are read, and how many there are; None for what is no mixture.

    Raises InputError for experts that are held in a way this package does not know.
    """
    experts, router = getattr(mixture, "experts", None), getattr(mixture, "router", None)
    if isinstance(getattr(getattr(mixture, "output_linear", None), "num_experts", None), int) and router is not None:
        return SortedExperts(mixture, "in"), mixture.output_linear.num_experts
    if not isinstance(experts, nn.Module):
        return None
    names = list(inspect.signature(type(experts).forward).parameters)[1:]
    if isinstance(count := getattr(experts, "num_experts", None), int):
        if len(names) == 3:
            return FusedExperts(experts, "in"), count
        if len(names) == 1 and isinstance(getattr(router, "top_k", None), int):
            return ScaledInputs(mixture, "in"), count
    raise InputError(f"its {type(experts).__name__} hold the experts in a way that this package does not know")
