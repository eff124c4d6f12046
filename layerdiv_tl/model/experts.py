"""A mixture of experts as the sum of its experts' outputs: routed ones times their gates, shared ones, a bias.

    output(token) = factor · map( Σ_{e routed} gate_e · expert_e(x) ) + Σ_s gate_s · shared_s(x) + bias

`factor` and `map` stand in a few families between the routed experts and the output: a number (Laguna, MiniMax M3), a
matrix (Nemotron-H) or a norm, which is linear at its own statistic (Gemma 4). All of it is read where the model
computes it. Every pass checks that the parts sum to the sublayer's output, as for heads.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component
from .architecture import CustomUnit, HookPoint, Sublayer, SublayerCut, Vectors
from .batches import upcast
from .capture import hook
from .norm import Norm
from .weights import linear_map

# Families' names of the experts that every token goes to.
_SHARED = ("shared_expert", "shared_experts", "shared_mlp")
_ROUTERS = ("gate", "router")
# Implementations in Transformers that run all experts at once and add a token's slots in their own order.
_ADD_IN_ORDER = ("grouped_mm", "batched_mm")


# Reading routed experts: a token goes to k of n experts, so it has k slots, each with the index of an expert, its
# gate and its output. In nearly all families one module holds all experts: it receives (token, experts, gates) and
# returns the sum over the slots. Given every slot as a token of its own with a single expert, the same module returns
# the terms of that sum, by as many operations as before: nothing is computed twice, and no family's formula is needed.


@dataclass(frozen=True, eq=False)
class RoutedOutputs:
    """Outputs of the routed experts for some tokens: the expert, its gate, and gate × output."""

    index: Int[Tensor, "token k"]
    gates: Float[Tensor, "token k"]
    vectors: Float[Tensor, "token k d"]

    def packed(self) -> Float[Tensor, "token _"]:
        """All fields as one array of numbers."""
        numbers = upcast(self.gates), self.index.to(torch.promote_types(self.gates.dtype, torch.float32))
        k = torch.full_like(numbers[0][:, :1], numbers[0].shape[1])
        return torch.cat([upcast(self.vectors).flatten(1), *numbers, k], 1)

    @classmethod
    def unpacked(cls, packed: Float[Tensor, "token _"]) -> RoutedOutputs:
        """Restore the outputs from `packed`."""
        packed, k = packed[:, :-1], int(packed[0, -1])
        vectors, gates, index = packed.split([packed.shape[1] - 2 * k, k, k], 1)
        return cls(index.long(), gates, vectors.unflatten(1, (k, -1)))


@dataclass(frozen=True, eq=False)
class ExpertPoint(HookPoint):
    """Hook point at the experts of a mixture; shows the packed `RoutedOutputs` of every token.

    Attributes:
        experts: The module that returns the experts' outputs.
        router: The module whose output chooses them; None where `experts` receives the choice.
        read: Maps the choice and the experts' return value to each expert's output and, if any, a replacement for that
            return value.
    """

    experts: Any = None
    router: Any = None
    read: Callable[[Any, Tensor], tuple[RoutedOutputs, Tensor | None]] = field(kw_only=True)

    @contextmanager
    def attach(self, do: Callable[[Any, Any, Tensor], Any]) -> Iterator[None]:
        """Call `do(args, kwargs, packed outputs)` whenever the experts have run in this thread."""
        thread, chosen = threading.get_ident(), list[Any]()

        def choose(module: Any, args: Any, output: Any) -> None:
            if threading.get_ident() == thread:
                chosen.append(output)

        def spread(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return None
            _, x, index, gates = inspect.signature(type(module).forward).bind(module, *args, **kwargs).args
            slots = x.flatten(0, -2).repeat_interleave(index.shape[-1], 0), index.reshape(-1, 1), gates.reshape(-1, 1)
            chosen.append((x, index.flatten(0, -2), gates.flatten(0, -2), slots))
            return (slots, {}) if _adds_in_order(module, x, gates) else None

        def after(args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
            outputs, instead = self.read(chosen.pop(), output)
            do(args, kwargs, outputs.packed())
            return instead

        if self.router is None:
            handle = self.experts.register_forward_pre_hook(spread, with_kwargs=True)
        else:
            handle = self.router.register_forward_hook(choose)
        try:
            with hook(HookPoint(self.experts), after, prepend=True):
                yield
        finally:
            handle.remove()


def _adds_in_order(experts: Any, x: Tensor, gates: Tensor) -> bool:
    """True if the sum of the slots equals the fused experts' own return value to the last bit."""
    how = getattr(getattr(experts, "config", None), "_experts_implementation", None)
    return how in _ADD_IN_ORDER and gates.dtype == x.dtype


def _read_fused(experts: Any, chosen: Any, output: Tensor) -> tuple[RoutedOutputs, Tensor | None]:
    """Read experts in one module by running every slot as a token, unless already so; returns the sum of the slots."""
    x, index, gates, slots = chosen
    in_order = _adds_in_order(experts, x, gates)
    vectors: Tensor = (output if in_order else experts.forward(*slots)).reshape(*index.shape, -1)
    return RoutedOutputs(index, gates, vectors), vectors.sum(1).view(*x.shape[:-1], -1) if in_order else None


def _read_scaled(mixture: Any, chosen: Any, output: Tensor) -> tuple[RoutedOutputs, None]:
    """Read Llama 4's experts: each gets every token times its gate, which is 0 for inactive experts."""
    gates, index = chosen[0].topk(mixture.top_k, 1)
    written = output.view(mixture.num_experts, len(index), -1).transpose(0, 1)
    vectors = written.gather(1, index[..., None].expand(*index.shape, written.shape[-1]))
    return RoutedOutputs(index, gates, vectors), None


def _read_sorted(mixture: Any, chosen: Any, output: Tensor) -> tuple[RoutedOutputs, None]:
    """Read JetMoE's experts: input and output matrices, slots sorted by expert, gates applied after these."""
    order, _, gates, sizes, _ = chosen
    experts = torch.arange(len(sizes), device=order.device).repeat_interleave(torch.tensor(sizes).to(order))
    back = order.argsort()
    vectors = (output * gates[:, None])[back].unflatten(0, (-1, mixture.router.top_k))
    shape = vectors.shape[:2]
    return RoutedOutputs(experts[back].view(shape), gates[back].view(shape), vectors), None


@dataclass(frozen=True, eq=False)
class Mixture(CustomUnit):
    """The output of a mixture of experts as the sum of its parts, the rows of unit="expert".

    Attributes:
        count, slots: The number of routed experts, and the point where the active ones are read.
        router: The module that sends tokens to experts; None if unknown.
        shared: The points of the outputs of experts that every token goes to, and of their gates before the sigmoid.
        factor, shared_factor: The model's factors on the sum of the routed and of the shared experts.
        after: Returns the matrix `[in, d]`, and its bias, between the routed experts and the output.
        norm, post: The norms there, and between the mixture and the stream, each with the point of its input.
        bias: Returns the bias that the mixture adds to all that.
    """

    count: int
    slots: ExpertPoint
    router: nn.Module | None = None
    shared: tuple[tuple[HookPoint, HookPoint | None], ...] = ()
    factor: float = 1.0
    shared_factor: float = 1.0
    after: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    norm: tuple[Norm, HookPoint] | None = None
    bias: Callable[[], Tensor] | None = None
    post: tuple[Norm, HookPoint] | None = None

    def of(self, sublayer: Sublayer) -> SublayerCut:
        """Cut a sublayer that is this mixture into its experts, shared experts and bias."""
        biased, layer = (
            self.bias is not None or (self.after is not None and self.after()[1] is not None),
            sublayer.layer,
        )
        biased = biased or (self.post is not None and self.post[0].bias is not None)
        points = [self.slots, *(point for pair in self.shared for point in pair if point is not None)]
        points += [point for _, point in filter(None, (self.norm, self.post))]

        def rows(repeat: int | None) -> list[Component]:
            names = [Component("expert", layer, index, repeat) for index in range(self.count)]
            names += [Component("shared_expert", layer, index, repeat) for index in range(len(self.shared))]
            return names + ([Component("mlp_bias", layer, repeat=repeat)] if biased else [])

        def read(seen: Callable[[HookPoint], Tensor], write: Tensor) -> Vectors:
            index, vectors, bias = self._read(seen)
            if bias is not None:
                vectors = torch.cat([vectors, bias.to(vectors).expand(len(write), -1)[:, None]], 1)
            every = torch.arange(self.count, len(rows(None)), device=write.device).expand(len(write), -1)
            return Vectors(sublayer.added(vectors).to(write), torch.cat([index, every], 1))

        return SublayerCut(rows, tuple(points), read)

    def _read(
        self, seen: Callable[[HookPoint], Float[Tensor, "position _"]]
    ) -> tuple[Int[Tensor, "position k"], Float[Tensor, "position part d"], Float[Tensor, "_ d"] | None]:
        """Compute from the points: the active routed experts, the outputs of these and of the shared ones, and a bias.

        All are float64 and after the post-norm; `bias` is None if experts wrote everything.
        """
        routed = RoutedOutputs.unpacked(seen(self.slots).double())
        vectors, bias = routed.vectors, None if self.bias is None else self.bias().double()
        # Between the routed experts and their sum with the shared ones: a matrix, a norm, a factor.
        if self.after is not None:
            weight, added = self.after()
            vectors = vectors @ weight.to(vectors)
            bias = bias if added is None else added.double()
        if self.norm is not None:
            norm, point = self.norm
            vectors = norm.term(vectors, norm.divisor(seen(point)))
        written = [vectors * self.factor]
        for output, gate in self.shared:
            x = seen(output).double() * self.shared_factor
            written.append((x if gate is None else x * seen(gate).double().sigmoid())[:, None])
        vectors = torch.cat(written, 1)
        # The norm on the way to the stream is linear at its own statistic.
        if self.post is not None:
            norm, point = self.post
            divisor = norm.divisor(seen(point))
            vectors = norm.term(vectors, divisor)
            bias = None if bias is None else norm.term(bias.to(vectors.device).expand(len(divisor), -1), divisor)
            if norm.bias is not None:
                bias = norm.bias.to(vectors.device) + (0.0 if bias is None else bias)
        return routed.index, vectors, bias


def mixture_in(
    kind: str, module: Any, block: Any, post: nn.Module | None, norm: Callable[[nn.Module], Norm]
) -> tuple[Mixture | None, str]:
    """Find the mixture that a sublayer is, or why it cannot be cut; (None, "") for any other sublayer.

    `post` stands between the sublayer and the stream; `norm` reads a norm.
    """
    if kind not in ("mlp", "moe"):
        return None, ""
    inside = getattr(block, "enable_moe_block", False)  # Gemma 4 spreads its mixture over the block
    module = block if inside else module
    slots, count, why = _slots_of(module)
    if slots is None:
        return None, why
    if post is not None and "Norm" not in type(post).__name__:
        return None, f"its output passes a {type(post).__name__} on the way to the stream"
    router = next((x for name in _ROUTERS if isinstance(x := getattr(module, name, None), nn.Module)), None)
    made = Mixture(count, slots, router, post=None if post is None else (norm(post), HookPoint(post, "in")))
    if inside:
        shared, last = HookPoint(block.post_feedforward_layernorm_1), block.post_feedforward_layernorm_2
        return replace(made, shared=((shared, None),), norm=(norm(last), HookPoint(last, "in"))), ""
    gate = getattr(module, "shared_expert_gate", None)
    gate_point = HookPoint(gate) if isinstance(gate, nn.Module) else None
    found = [own for name in _SHARED if isinstance(own := getattr(module, name, None), nn.Module)]
    is_mean = bool(found) and getattr(module, "shared_expert_combination_strategy", "sum") == "average"
    half = 0.5 if is_mean else 1.0
    after, bias = getattr(module, "fc2_latent_proj", None), getattr(module, "bias", None)
    made = replace(
        made,
        shared=tuple((HookPoint(own), gate_point) for own in found),
        factor=half * _factor(module),
        shared_factor=half,
        after=partial(linear_map, after) if isinstance(after, nn.Linear) else None,
        bias=bias.detach if isinstance(bias, Tensor) else None,
    )
    return made, ""


def _factor(module: Any) -> float:
    """The mixture's factor on the sum of its routed experts; 1 where the router already applies it."""
    code = inspect.unwrap(type(module).forward).__code__
    return float(module.routed_scaling_factor) if "routed_scaling_factor" in code.co_names else 1.0


def _slots_of(mixture: Any) -> tuple[ExpertPoint | None, int, str]:
    """Find the point of a mixture's experts, and their number; or None, with the reason if it is a mixture."""
    experts, router = getattr(mixture, "experts", None), getattr(mixture, "router", None)
    last = getattr(mixture, "output_linear", None)
    if isinstance(count := getattr(last, "num_experts", None), int) and router is not None:
        return ExpertPoint(mixture, "in", experts=last, router=router, read=partial(_read_sorted, mixture)), count, ""
    if not isinstance(experts, nn.Module):
        return None, 0, ""
    given = len(inspect.signature(type(experts).forward).parameters) - 1
    if isinstance(count := getattr(experts, "num_experts", None), int):
        if given == 3:
            return ExpertPoint(experts, "in", experts=experts, read=partial(_read_fused, experts)), count, ""
        if given == 1 and isinstance(getattr(router, "top_k", None), int):
            read = partial(_read_scaled, mixture)
            return ExpertPoint(mixture, "in", experts=experts, router=router, read=read), count, ""
    return None, 0, f"its {type(experts).__name__} hold the experts in a way that this package does not know"
