"""A mixture of experts as the sum of what its experts write: routed ones by their gates, shared ones, a bias.

    output(token) = factor · map( Σ_{e routed} gate_e · expert_e(x) ) + Σ_s gate_s · shared_s(x) + bias

`factor` and `map` are what a few families have between the routed experts and the output: a number (Laguna, MiniMax
M3), a matrix (Nemotron-H) or a norm, which is linear at its own statistic (Gemma 4). All of it is read where the model
computes it; that the parts sum to the sublayer's output is checked in every pass, as for heads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component
from ..errors import InputError
from .architecture import CustomUnit, HookPoint, Sublayer, SublayerCut, Vectors
from .expert_points import ExpertPoint, Slots, point_of
from .norm import Norm
from .weights import linear_map

# How families call the experts that every token goes to.
_SHARED = ("shared_expert", "shared_experts", "shared_mlp")
_ROUTERS = ("gate", "router")


@dataclass(frozen=True, eq=False)
class ExpertParts:
    """What the parts of a mixture wrote at some positions, in float64, before anything that follows the sublayer.

    Attributes:
        index, gates, vectors: Of the routed experts that were active: which, with which gate, and gate × output.
        shared: What every shared expert wrote.
        bias: What no expert wrote; None where there is none.
    """

    index: Int[Tensor, "position k"]
    gates: Float[Tensor, "position k"]
    vectors: Float[Tensor, "position k d"]
    shared: Float[Tensor, "position s d"]
    bias: Float[Tensor, " d"] | None

    def total(self) -> Float[Tensor, "position d"]:
        """The sum of all parts."""
        total = self.vectors.sum(1) + self.shared.sum(1)
        return total if self.bias is None else total + self.bias


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
            parts = self.parts(seen)
            vectors = [parts.vectors, parts.shared]
            bias = parts.bias
            if self.post is not None and self.post_point is not None:
                divisor = self.post.divisor(seen(self.post_point))[:, None, None]
                vectors = [self.post.linear(x) / divisor for x in vectors]
                bias = None if bias is None else self.post.linear(bias) / divisor[:, 0]
                if self.post.bias is not None:
                    bias = self.post.bias.to(write.device) + (0.0 if bias is None else bias)
            if bias is not None:
                vectors.append(bias.expand(len(write), -1)[:, None])
            every = torch.arange(self.count, len(rows(None)), device=write.device).expand(len(write), -1)
            return Vectors(sublayer.added(torch.cat(vectors, 1)).to(write), torch.cat([parts.index, every], 1))

        return SublayerCut(rows, self.points, read)

    def parts(self, read: Callable[[HookPoint], Float[Tensor, "position _"]]) -> ExpertParts:
        """The parts from what the points showed at some positions."""
        slots = Slots.unpacked(read(self.slots).double())
        vectors, bias = slots.vectors, None if self.bias is None else self.bias().double()
        if self.after is not None:
            weight, added = self.after()
            vectors = vectors @ weight.to(vectors)
            bias = bias if added is None else added.double()
        if self.norm is not None and self.norm_point is not None:
            divisor = self.norm.divisor(read(self.norm_point))
            vectors = self.norm.linear(vectors) / divisor[:, None, None]
        shared = [self._shared(own, read) * self.shared_factor for own in self.shared]
        return ExpertParts(
            slots.index,
            slots.gates,
            vectors * self.factor,
            torch.stack(shared, 1) if shared else vectors.new_zeros(len(vectors), 0, vectors.shape[2]),
            None if bias is None else bias.to(vectors.device),
        )

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
    if (found := point_of(module)) is None:
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
