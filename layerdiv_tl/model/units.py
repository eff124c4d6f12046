"""What a component is: a sublayer's write, or its heads, neurons, experts, latents or groups of these.

A unit cuts a write by pulling the gradient at it back to the input of the module that writes: the part of gradient ×
input that belongs to a head or a neuron is its contribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .._checks import shown
from ..components import Component, Kind, Unit
from ..errors import InputError
from .experts import count_experts, cut_experts
from .frozen import Frozen
from .patching import frozen, silent, tensor
from .path import Path
from .writers import Writer, count_inputs, unwrapped

# The rows of a sublayer's parts, and of what it adds besides them.
_PART: dict[str, Kind] = {"attn": "head", "mixer": "mixer_head", "mlp": "neuron", "moe": "neuron"}
_BIAS: dict[str, Kind] = {"attn": "attn_bias", "mixer": "mixer_bias", "mlp": "mlp_bias", "moe": "mlp_bias"}
_NAMES: dict[tuple[Kind, Component, int], tuple[Component, ...]] = {}

# Components, and their contributions `[K, n, component]`.
Parts = tuple[tuple[Component, ...], Tensor]


class CustomUnit:
    """A unit that is not just a name; `name` is its name in results."""

    name = "custom"

    def cut_of(self, writer: Writer) -> str | None:
        """What the pass has to keep to cut a write: "head", "neuron", "expert" or "input"; None to keep nothing."""
        raise NotImplementedError

    def split(self, writer: Writer, whole: Component, write: Tensor, received: Any, g: Tensor) -> list[Parts] | None:
        """Contributions `[K, n, part]` of the parts of a write to K numbers at n reads; None if it stays whole.

        Args:
            whole: Its name; a part may be `replace(whole, name="first half")`.
            write, received: `[n, t, d]`, and what `cut_of` asked to keep.
            g: The gradients `[K, n, t, d]` at the write. Parts must sum to gradient · write.
        """
        raise NotImplementedError

    def merged(
        self, components: list[Component], values: Float[Tensor, "K n component"]
    ) -> tuple[list[Component], Float[Tensor, "K n component"]]:
        """Join rows of different writes."""
        return components, values

    def check(self, path: Path) -> None:
        """Raise InputError if the unit does not fit a model."""


UnitLike = Unit | CustomUnit


def unit_of(unit: Any) -> UnitLike:
    """Check a unit. Raises InputError for anything but a unit's name, groups or a dictionary."""
    if not isinstance(unit, CustomUnit) and not (isinstance(unit, str) and unit in get_args(Unit)):
        names = ", ".join(map(repr, get_args(Unit)))
        raise InputError(f"unit={shown(unit)} is unknown: use {names}, ld.groups(...) or ld.dictionary(...).")
    return cast(UnitLike, unit)


def unit_name(unit: UnitLike) -> str:
    """The unit's name in results."""
    return unit if isinstance(unit, str) else unit.name


def check_unit(unit: UnitLike, path: Path) -> None:
    """Raise InputError for a unit at which a model has no rows of its own."""
    if isinstance(unit, CustomUnit):
        unit.check(path)
        return
    writers = path.writers
    kinds = {"head": ("attn",), "neuron": ("mlp", "moe"), "expert": ()}.get(unit, ())
    for writer in writers:
        if writer.kind in kinds and not writer.is_cut(unit):
            raise InputError(f"{writer.component} has no {unit}s: take another unit=.")
    if unit == "expert" and not any(w.is_cut("expert") for w in writers):
        raise InputError("this model has no mixture of experts: take another unit=.")


def cut_of(unit: UnitLike, writer: Writer) -> str | None:
    """What a pass has to keep to cut a write at a unit."""
    if isinstance(unit, CustomUnit):
        return unit.cut_of(writer)
    return unit if writer.is_cut(unit) else None


def split(
    unit: UnitLike, writer: Writer, whole: Component, write: Tensor, received: Any, g: Float[Tensor, "K n t d"]
) -> list[Parts]:
    """Contributions of the parts of a write at a unit; of the write itself where it stays whole.

    Args:
        whole: The name of this call of the writer.
        write, received: `[n, t, d]`, and what the pass kept for the cut.
        g: The gradients at the write, in float64.
    """
    parts = None
    if isinstance(unit, CustomUnit):
        parts = unit.split(writer, whole, write, received, g)
    elif received is not None:
        parts = cut(unit, writer, whole, write, received, g)
    return [((whole,), total(g, write)[..., None])] if parts is None else parts


def cut(unit: str, writer: Writer, whole: Component, write: Tensor, received: Any, g: Tensor) -> list[Parts] | None:
    """Contributions of a write's heads, neurons or experts, and of what it adds besides these."""
    if unit == "expert":
        found = cut_experts(writer, write, received, g)
        if found is None:
            return None
        u, rest = found
        return [(names_of("expert", whole, u.shape[-1]), u), (names_of("shared_expert", whole, 1), rest[..., None])]
    at_input, bias = pull_back(writer.maps, received, g)
    u = (at_input * received.to(at_input)).sum(2)
    if unit == "head":
        u = u.unflatten(-1, (writer.heads, -1)).sum(-1)
    parts = [(names_of(_PART[writer.kind], whole, u.shape[-1]), u)]
    return parts if bias is None else [*parts, ((replace(whole, kind=_BIAS[writer.kind]),), bias[..., None])]


def count_of(writer: Writer, unit: str) -> int:
    """The number of a writer's heads, neurons or experts; 0 where it has none."""
    if not writer.is_cut(unit):
        return 0
    if unit == "head":
        return writer.heads
    return count_experts(writer.experts) if unit == "expert" else count_inputs(writer.maps[0]) or 0


def names_of(kind: Kind, whole: Component, count: int) -> tuple[Component, ...]:
    """Names of the parts of a sublayer; made once, as there may be tens of thousands."""
    key = kind, whole, count
    if key not in _NAMES:
        _NAMES[key] = tuple(Component(kind, whole.layer, index, whole.repeat) for index in range(count))
    return _NAMES[key]


def total(g: Float[Tensor, "K n t d"], write: Float[Tensor, "n t d"]) -> Float[Tensor, "K n"]:
    """Gradient · write."""
    return torch.einsum("kntd,ntd->kn", g, write.to(g))


def pull_back(
    maps: Sequence[nn.Module], x: Float[Tensor, "n t width"], g: Float[Tensor, "K n t d"]
) -> tuple[Float[Tensor, "K n t width"], Float[Tensor, "K n"] | None]:
    """From gradients at a write those at the input of the maps that end in it, and the contribution of their biases."""
    if (plain := _plain_matrix(maps)) is not None:
        weight, bias = plain
        return (g.to(weight) @ weight).to(g), None if bias is None else (g * bias.to(g)).sum((-1, -2))
    leaf, y, constants = _through(maps, x.expand(len(g), *x.shape))
    at_input, *at_biases = torch.autograd.grad(y, [leaf, *constants], g.to(y).reshape(y.shape), allow_unused=True)
    of_biases: Tensor | None = None
    for at, value in zip(at_biases, constants, strict=True):
        if at is None:
            continue
        own = (at.to(g) * value.detach().to(g)).view(*g.shape[:2], -1).sum(-1)
        of_biases = own if of_biases is None else of_biases + own
    return at_input.to(g), of_biases


def _plain_matrix(maps: Sequence[nn.Module]) -> tuple[Float[Tensor, "d width"], Float[Tensor, " d"] | None] | None:
    """Weight and bias where a plain linear layer alone writes, in at least float32; None for anything else."""
    module: Any = unwrapped(maps[0])
    weight = getattr(module, "weight", None)
    if len(maps) > 1 or type(module) is not nn.Linear or type(weight) is not nn.Parameter or weight.is_meta:
        return None
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32)), module.bias


def _through(maps: Sequence[nn.Module], x: Float[Tensor, "K n t width"]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Run maps, with their norms frozen, on a leaf that holds x; the leaf, the output, and leaves for their biases."""
    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        for one in maps:
            stack.enter_context(silent(one))
            stack.enter_context(frozen(one))
        dtype = torch.promote_types(x.dtype, torch.float32)
        leaf = x.detach().to(dtype).clone().requires_grad_()
        with Frozen(dtype) as mode:
            y = leaf.flatten(0, 1)
            for one in maps:
                y = tensor(unwrapped(one).forward(y))
    if not y.requires_grad:
        raise InputError(
            f"{type(unwrapped(maps[0])).__name__} has no gradient (it may be quantized with dynamic activations), so "
            "its input cannot be cut: use unit='sublayer', or dequantize it."
        )
    return leaf, y, mode.constants


def part_vectors(
    writer: Writer, whole: Component, write: Float[Tensor, "n t d"], received: Any, unit: UnitLike, step: int
) -> Iterator[tuple[tuple[Component, ...], Float[Tensor, "part n t d"]]]:
    """Yield what heads or neurons write, `step` at a time, then the bias; the write itself if it is whole."""
    if received is None:
        yield (whole,), write[None]
        return
    count = writer.heads if unit == "head" else received.shape[-1]
    names = names_of(_PART[writer.kind], whole, count)
    if (plain := _plain_matrix(writer.maps)) is not None:
        weight, bias = plain
        columns, inputs = weight.unflatten(1, (count, -1)), received.to(weight).unflatten(-1, (count, -1))
        for start in range(0, count, step):
            here = slice(start, start + step)
            yield names[here], torch.einsum("ntpw,dpw->pntd", inputs[:, :, here], columns[:, here])
        if bias is not None:
            yield (replace(whole, kind=_BIAS[writer.kind]),), bias.detach().to(weight).expand(1, *write.shape)
        return
    with torch.inference_mode(False), torch.enable_grad():
        leaf, y, constants = _through(writer.maps, received[None])
        y = y.reshape(write.shape)
        v = torch.zeros_like(y, requires_grad=True)
        # As in `attribution.carried`: the maps are applied to each part by differentiating their transpose.
        (pulled,) = torch.autograd.grad(y, leaf, v, create_graph=True)
        rest = y.detach().clone()
        width = leaf.shape[-1] // count
        for start in range(0, count, step):
            some = range(start, min(start + step, count))
            parts = leaf.new_zeros(len(some), *leaf.shape)
            for number, part in enumerate(some):
                own = slice(part * width, (part + 1) * width)
                parts[number, ..., own] = leaf.detach()[..., own]
            (z,) = torch.autograd.grad(pulled, v, parts, retain_graph=True, is_grads_batched=True)
            rest -= z.sum(0)
            yield names[start : start + len(some)], z
    if constants:
        yield (replace(whole, kind=_BIAS[writer.kind]),), rest[None]
