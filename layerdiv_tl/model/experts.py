"""A mixture of experts as the sum of what its experts write: routed ones by their gates, shared ones, a bias.

    output(token) = factor · map( Σ_{e routed} gate_e · expert_e(x) ) + Σ_s gate_s · shared_s(x) + bias

`factor` and `map` are what a few families have between the routed experts and the output: a number (Laguna, MiniMax
M3), a matrix (Nemotron-H) or a norm, which is linear at its own statistic (Gemma 4). All of it is read where the model
computes it; that the parts sum to the sublayer's output is checked in every pass, as for heads.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component
from ..errors import InputError
from .architecture import CustomUnit, HookPoint, Sublayer, SublayerCut, Vectors
from .batches import upcast
from .norm import Norm
from .weights import linear_map

# How families call the experts that every token goes to.
_SHARED = ("shared_expert", "shared_experts", "shared_mlp")
_ROUTERS = ("gate", "router")
# Ways of Transformers to run all experts at once that add the slots of a token in their own order.
_ADD_IN_ORDER = ("grouped_mm", "batched_mm")


# Where routed experts are read. A token goes to k of n experts: it has k slots, each with the number of an expert, its
# gate and what it wrote. In nearly all families one module holds all experts; it is given (token, experts, gates) and
# returns the sum over the slots. Given every slot as a token of its own with a single expert, the same module returns
# the terms of that sum, by as many operations as before: nothing is computed twice, and no family's formula is here.


@dataclass(frozen=True, eq=False)
class RoutedOutputs:
    """What the routed experts of some tokens wrote: which expert, with which gate, wrote what (gate × output)."""

    index: Int[Tensor, "token k"]
    gates: Float[Tensor, "token k"]
    vectors: Float[Tensor, "token k d"]

    def packed(self) -> Float[Tensor, "token _"]:
        """All of it as one array of numbers."""
        numbers = upcast(self.gates), self.index.to(torch.promote_types(self.gates.dtype, torch.float32))
        k = torch.full_like(numbers[0][:, :1], numbers[0].shape[1])
        return torch.cat([upcast(self.vectors).flatten(1), *numbers, k], 1)

    @classmethod
    def unpacked(cls, packed: Float[Tensor, "token _"]) -> RoutedOutputs:
        """The outputs from what `packed` made of them."""
        packed, k = packed[:, :-1], int(packed[0, -1])
        vectors, gates, index = packed.split([packed.shape[1] - 2 * k, k, k], 1)
        return cls(index.long(), gates, vectors.unflatten(1, (k, -1)))


@dataclass(frozen=True, eq=False)
class ExpertPoint(HookPoint):
    """The experts in a mixture: shows the packed `RoutedOutputs` of every token. A subclass knows how they are held."""

    @property
    def experts(self) -> Any:
        """The module that returns what experts wrote."""
        return self.module

    def watch_router(self, note: Callable[..., Any]) -> Any:
        """Call `note` with the router's output whenever it has run; the handle of that hook."""
        router: Any = self.module.router
        return router.register_forward_hook(lambda module, args, output: note(self.read_router(output)))

    def read_router(self, output: Any) -> Any:
        """What `read_outputs` needs of a router's output."""
        return output

    def read_outputs(self, noted: Any, output: Tensor) -> tuple[RoutedOutputs, Tensor | None]:
        """What every expert wrote, from what was noted and what the experts return; and what they return instead."""
        raise NotImplementedError

    @contextmanager
    def attach(self, do: Callable[[Any, Any, Tensor], Any]) -> Iterator[None]:
        """Call `do(args, kwargs, packed outputs)` whenever the experts have run in this thread."""
        thread, noted = threading.get_ident(), list[Any]()

        def note(x: Any) -> None:
            if threading.get_ident() == thread:
                noted.append(x)

        def after(module: Any, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
            if threading.get_ident() != thread:
                return None
            outputs, instead = self.read_outputs(noted.pop(), output)
            do(args, kwargs, outputs.packed())
            return instead

        with ExitStack() as stack:
            stack.callback(self.watch_router(note).remove)
            stack.callback(self.experts.register_forward_hook(after, prepend=True, with_kwargs=True).remove)
            yield


class FusedExperts(ExpertPoint):
    """Experts in one module that is given (token, experts, gates): it is given every slot as a token instead."""

    def watch_router(self, note: Callable[..., Any]) -> Any:
        """Note what the experts are given."""
        signature, thread = inspect.signature(type(self.module).forward), threading.get_ident()

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return None
            _, x, index, gates = signature.bind(module, *args, **kwargs).args
            spread = x.flatten(0, -2).repeat_interleave(index.shape[-1], 0), index.reshape(-1, 1), gates.reshape(-1, 1)
            note((x, index.flatten(0, -2), gates.flatten(0, -2), spread))
            return (spread, {}) if self._adds_in_order(x, gates) else None

        return self.module.register_forward_pre_hook(before, with_kwargs=True)

    def read_outputs(self, noted: Any, output: Tensor) -> tuple[RoutedOutputs, Tensor | None]:
        """The terms, and their sum, which goes on."""
        x, index, gates, spread = noted
        in_order = self._adds_in_order(x, gates)
        vectors: Tensor = (output if in_order else self.module.forward(*spread)).reshape(*index.shape, -1)
        return RoutedOutputs(index, gates, vectors), vectors.sum(1).view(*x.shape[:-1], -1) if in_order else None

    def _adds_in_order(self, x: Tensor, gates: Tensor) -> bool:
        """Whether the sum of the slots is what the module returns itself, to the last bit."""
        how = getattr(getattr(self.module, "config", None), "_experts_implementation", None)
        return how in _ADD_IN_ORDER and gates.dtype == x.dtype


class ScaledInputs(ExpertPoint):
    """Llama 4's experts: every one is given every token, times its gate, which is 0 at most."""

    @property
    def experts(self) -> Any:
        """The module in the mixture that holds the experts."""
        return self.module.experts

    def read_router(self, output: Any) -> Any:
        """The gates and numbers of the chosen experts."""
        return output[0].topk(self.module.top_k, 1)

    def read_outputs(self, noted: Any, output: Tensor) -> tuple[RoutedOutputs, Tensor | None]:
        """The chosen experts' outputs."""
        gates, index = noted
        mixture: Any = self.module
        written = output.view(mixture.num_experts, len(index), -1).transpose(0, 1)
        vectors = written.gather(1, index[..., None].expand(*index.shape, written.shape[-1]))
        return RoutedOutputs(index, gates, vectors), None


class SortedExperts(ExpertPoint):
    """JetMoE's experts: a matrix in and one out, given the slots sorted by expert, and gates after these."""

    @property
    def experts(self) -> Any:
        """The second matrix."""
        return self.module.output_linear

    def read_outputs(self, noted: Any, output: Tensor) -> tuple[RoutedOutputs, Tensor | None]:
        """The second matrix's outputs, put back in the tokens' order."""
        order, _, gates, sizes, _ = noted
        router: Any = self.module.router
        experts = torch.arange(len(sizes), device=order.device).repeat_interleave(torch.tensor(sizes).to(order))
        back = order.argsort()
        vectors = (output * gates[:, None])[back].unflatten(0, (-1, router.top_k))
        shape = vectors.shape[:2]
        return RoutedOutputs(experts[back].view(shape), gates[back].view(shape), vectors), None


@dataclass(frozen=True, eq=False)
class Shared:
    """An expert that every token goes to: where its output, and its gate before the sigmoid, are read."""

    point: HookPoint
    gate: HookPoint | None = None


@dataclass(frozen=True, eq=False)
class Mixture(CustomUnit):
    """How the output of a mixture of experts is the sum of its parts: what unit="expert" takes it apart into.

    Attributes:
        count, slots: How many routed experts there are, and where the active ones are read.
        shared: The experts that every token goes to.
        factor, shared_factor: What the model multiplies the sum of the routed, and of the shared experts by.
        after: Gives the matrix `[in, d]`, and its bias, between the routed experts and the output.
        norm, norm_point: The norm there, and where its input is read.
        bias: Gives what the mixture adds to all that.
        router: The module that sends tokens to experts; None where it is not known.
        post, post_point: The norm between the mixture and the stream, and where its input is read.
    """

    count: int
    slots: ExpertPoint
    router: nn.Module | None = None
    shared: tuple[Shared, ...] = ()
    factor: float = 1.0
    shared_factor: float = 1.0
    after: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    norm: Norm | None = None
    norm_point: HookPoint | None = None
    bias: Callable[[], Tensor] | None = None
    post: Norm | None = None
    post_point: HookPoint | None = None

    @property
    def points(self) -> tuple[HookPoint, ...]:
        """Every place that has to be read."""
        shared = (point for own in self.shared for point in (own.point, own.gate))
        return tuple(p for p in (self.slots, *shared, self.norm_point, self.post_point) if p is not None)

    def has_bias(self) -> bool:
        """Whether there is a part that no expert wrote."""
        own = self.bias is not None or (self.after is not None and self.after()[1] is not None)
        return own or (self.post is not None and self.post.bias is not None)

    def of(self, sublayer: Sublayer) -> SublayerCut:
        """How a sublayer that is this mixture is cut: its experts, its shared experts, its bias."""
        biased, layer = self.has_bias(), sublayer.layer

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

        return SublayerCut(rows, self.points, read)

    def _read(
        self, seen: Callable[[HookPoint], Float[Tensor, "position _"]]
    ) -> tuple[Int[Tensor, "position k"], Float[Tensor, "position part d"], Float[Tensor, "_ d"] | None]:
        """From what the points showed: which routed experts were active, what these and the shared ones wrote, a bias.

        All are float64 and behind the post-norm; `bias` is None where experts wrote everything.
        """
        routed = RoutedOutputs.unpacked(seen(self.slots).double())
        vectors, bias = routed.vectors, None if self.bias is None else self.bias().double()
        # What stands between the routed experts and their sum with the shared ones: a matrix, a norm, a factor.
        if self.after is not None:
            weight, added = self.after()
            vectors = vectors @ weight.to(vectors)
            bias = bias if added is None else added.double()
        if self.norm is not None and self.norm_point is not None:
            vectors = self.norm.linear(vectors) / self.norm.divisor(seen(self.norm_point))[:, None, None]
        shared = [self._shared(own, seen)[:, None] * self.shared_factor for own in self.shared]
        vectors = torch.cat([vectors * self.factor, *shared], 1)
        # The norm on the way to the stream is linear at its own statistic.
        if self.post is not None and self.post_point is not None:
            divisor = self.post.divisor(seen(self.post_point))[:, None]
            vectors = self.post.linear(vectors) / divisor[..., None]
            bias = None if bias is None else self.post.linear(bias.to(vectors.device)) / divisor
            if self.post.bias is not None:
                bias = self.post.bias.to(vectors.device) + (0.0 if bias is None else bias)
        return routed.index, vectors, bias

    @staticmethod
    def _shared(own: Shared, read: Callable[[HookPoint], Tensor]) -> Float[Tensor, "position d"]:
        """What a shared expert wrote."""
        written = read(own.point).double()
        return written if own.gate is None else written * read(own.gate).double().sigmoid()


def mixture_of(module: Any, block: Any, norm: Callable[[nn.Module], Norm]) -> Mixture | None:
    """How a sublayer of a block is the sum of its experts; None where it is no mixture. `norm` reads a norm.

    Raises InputError where it is a mixture whose experts cannot be read.
    """
    inside = getattr(block, "enable_moe_block", False)  # Gemma 4 spreads its mixture over the block
    if inside:
        module = block
    if (found := _point_of(module)) is None:
        return None
    point, count = found
    router = next((x for name in _ROUTERS if isinstance(x := getattr(module, name, None), nn.Module)), None)
    if inside:
        last = block.post_feedforward_layernorm_2
        own = Shared(HookPoint(block.post_feedforward_layernorm_1))
        return Mixture(count, point, router, (own,), norm=norm(last), norm_point=HookPoint(last, "in"))
    averaged = getattr(module, "shared_expert_combination_strategy", "sum") == "average"
    half = 0.5 if averaged and any(_shared_of(module)) else 1.0
    after = getattr(module, "fc2_latent_proj", None)
    bias = getattr(module, "bias", None)
    return Mixture(
        count,
        point,
        router,
        tuple(_shared_of(module)),
        factor=half * _factor(module),
        shared_factor=half,
        after=(lambda: linear_map(after)) if isinstance(after, nn.Linear) else None,
        bias=(lambda: bias.detach()) if isinstance(bias, Tensor) else None,
    )


def mixture_in(
    kind: str, module: Any, block: Any, post: nn.Module | None, norm: Callable[[nn.Module], Norm]
) -> tuple[Mixture | None, str]:
    """The mixture that a sublayer is, or why it is one that cannot be cut; (None, "") for any other.

    `post` stands between the sublayer and the stream.
    """
    if kind not in ("mlp", "moe"):
        return None, ""
    try:
        found = mixture_of(module, block, norm)
    except InputError as error:
        return None, str(error)
    if found is None or post is None:
        return found, ""
    if "Norm" not in type(post).__name__:
        return None, f"what it writes passes a {type(post).__name__} on the way to the stream"
    return replace(found, post=norm(post), post_point=HookPoint(post, "in")), ""


def _shared_of(module: Any) -> Iterator[Shared]:
    """The experts that every token goes to."""
    gate = getattr(module, "shared_expert_gate", None)
    for name in _SHARED:
        if isinstance(own := getattr(module, name, None), nn.Module):
            yield Shared(HookPoint(own), HookPoint(gate) if isinstance(gate, nn.Module) else None)


def _factor(module: Any) -> float:
    """What a mixture multiplies the sum of its routed experts by; elsewhere the router has done it."""
    code = inspect.unwrap(type(module).forward).__code__
    return float(module.routed_scaling_factor) if "routed_scaling_factor" in code.co_names else 1.0


def _point_of(mixture: Any) -> tuple[ExpertPoint, int] | None:
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
