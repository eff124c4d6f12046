"""The walk from a pass to named components, which every read-out shares (Eq. 2-3).

A pass holds what each embedding and sublayer adds to the final residual stream, z = Σ z_i. Each z_i is one component,
or is cut into heads or neurons with values x before the output map W: z_i = scale · (Σ_part x_part W_part + b). A norm
between the map and the stream is linear at its own statistic: gain · center(·) / divisor. So is what follows where the
stream passes more than additions: `model.stream_path`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.architecture import HALF, Architecture, OutputMap, Sublayer
from ..model.capture import Activations, SublayerOutput
from ..model.cuts import UnitLike
from ..model.groups import Groups, rest_of
from ..model.stream_path import to_final_stream

# What to do about passes with different components.
ALIKE = "give texts that run alike, so that they have common components, or one at a time"


@dataclass(frozen=True, eq=False)
class Parts:
    """The heads or neurons of one write.

    Attributes:
        values, divisor: `[position, part, width]`, the input of the output map; `[position]`, what everything after it
            divides by.
        passed: `[position]`, what of that divides behind the norm after the map.
    """

    output_map: OutputMap
    values: Float[Tensor, "position part width"]
    divisor: Float[Tensor, " position"] | None
    passed: Float[Tensor, " position"] | None = None

    def vectors(self, which: list[int] | slice = slice(None)) -> Float[Tensor, "position part d"]:
        """The stream vectors of some parts, in float64."""
        weight, _ = self.output_map.projection()
        values = self.values[:, which].double().transpose(0, 1)
        maps = weight.to(values.device).unflatten(0, (self.output_map.count, -1))[which].double()
        return self._to_stream(torch.bmm(values, maps)).transpose(0, 1)

    def total(self) -> Float[Tensor, "position d"]:
        """The sum of all parts' stream vectors, in float64."""
        weight, _ = self.output_map.projection()
        values = self.values.flatten(1).double()
        return self._to_stream(values @ weight.to(values.device).double())

    def bias(self) -> Float[Tensor, "position d"]:
        """The stream vector that no part wrote, in float64: the bias of the output map and of the norm after it."""
        (weight, bias), post, device = self.output_map.projection(), self.output_map.post, self.values.device
        total = torch.zeros(len(self.values), weight.shape[1], dtype=torch.float64, device=device)
        if bias is not None:
            total = total + self._to_stream(bias.to(device).double().expand_as(total))
        if post is not None and post.bias is not None:
            total = total + self._along((post.bias.to(device) * self.output_map.scale).expand_as(total), self.passed)
        return total

    def _to_stream(self, x: Float[Tensor, "... position d"]) -> Float[Tensor, "... position d"]:
        """An output of the map as it stands in the stream, without the norm's bias."""
        x, post = x * self.output_map.scale, self.output_map.post
        return self._along(x if post is None else post.linear(x), self.divisor)

    def _along(self, x: Float[Tensor, "... position d"], divisor: Tensor | None) -> Float[Tensor, "... position d"]:
        """What goes on from the norm after the map."""
        for step in self.output_map.path:
            x = step.linear(x)
        return x if divisor is None else x / divisor[:, None]


@dataclass(frozen=True, eq=False)
class VectorParts:
    """The parts of one write, of which those that write anything have a slot.

    Attributes:
        slots, index: `[position, slot, d]`, float64, and which of `count` parts each is; None: the part of its number.
    """

    slots: Float[Tensor, "position slot d"]
    index: Int[Tensor, "position slot"] | None
    count: int

    def scattered(self, of_slots: Float[Tensor, "position slot *more"]) -> Float[Tensor, "position part *more"]:
        """What is known of slots as that of all parts; the others have zero, and slots of one part add up."""
        if self.index is None:
            return of_slots
        index = self.index.to(of_slots.device).reshape(*self.index.shape, *[1] * (of_slots.dim() - 2))
        out = of_slots.new_zeros(len(of_slots), self.count, *of_slots.shape[2:])
        return out.scatter_add_(1, index.expand_as(of_slots), of_slots)

    def vectors(self, which: list[int] | slice = slice(None)) -> Float[Tensor, "position part d"]:
        """The stream vectors of some parts, in float64."""
        return self.scattered(self.slots)[:, which]

    def total(self) -> Float[Tensor, "position d"]:
        """The sum of all parts' stream vectors, in float64."""
        return self.slots.sum(1)


@dataclass(frozen=True, eq=False)
class StreamWrite:
    """What one embedding or sublayer adds to the final residual stream.

    Attributes:
        junction, components: The whole embedding or sublayer, and its rows: itself, or its parts and, if any, last
            their bias.
        vector, parts: `[position, d]`, and how it is cut; None for a whole write.
    """

    junction: Component
    components: Sequence[Component]
    vector: Float[Tensor, "position d"]
    parts: Parts | VectorParts | None = None


class StreamWalk:
    """Names the writes of an architecture's passes at one unit; the names, thousands in an MLP, are made once."""

    def __init__(self, architecture: Architecture, unit: UnitLike) -> None:
        self.architecture, self.unit = architecture, unit
        self._names: dict[tuple[Sublayer, int | None], list[Component]] = {}

    def writes(self, activations: Activations) -> list[StreamWrite]:
        """The embeddings, then the sublayers in the order they ran, each as it stands in the final stream."""
        activations = to_final_stream(activations, self.architecture)
        embeddings = ((Component("embed"), activations.embed), (Component("pos_embed"), activations.pos_embed))
        writes = [StreamWrite(name, (name,), vector) for name, vector in embeddings if vector is not None]
        beyond: dict[Component, Tensor] = {}  # what hooks changed in cut outputs goes with the layer's intervention
        for output, repeat in zip(activations.sublayer_outputs, activations.repeats, strict=True):
            sublayer, key = output.sublayer, (output.sublayer, repeat)
            if key not in self._names:
                self._names[key] = sublayer.components(self.unit, repeat)
            junction = Component(sublayer.kind, sublayer.layer, repeat=repeat)
            intervention = replace(junction, kind="intervention")
            if beyond and intervention not in beyond:  # the next layer
                writes += [StreamWrite(name, (name,), vector) for name, vector in beyond.items()]
                beyond = {}
            names, vector = self._names[key], output.output
            beside: list[tuple[Component, Tensor]] = []  # rows of their own
            if output.adapter is not None:
                *names, adapter = names
                vector = vector - output.adapter
                beside.append((adapter, output.adapter))
            has_error = output.cut is not None and output.cut.error
            parts = _parts(output, len(names) - has_error)
            if has_error and parts is not None:
                *names, error = names
                whole, vector = vector.double(), parts.total() + (parts.bias() if isinstance(parts, Parts) else 0.0)
                beside.insert(0, (error, whole - vector))
            if output.hooked and isinstance(parts, Parts):
                changed = _beyond(parts, vector, activations.dtype)
                vector = vector - changed
                beyond[intervention] = beyond.get(intervention, 0.0) + changed
            if junction in beyond:
                vector = vector + beyond.pop(junction)
            writes.append(StreamWrite(junction, names, vector, parts))
            writes += [StreamWrite(name, (name,), vector) for name, vector in beside]
        if isinstance(self.unit, Groups):
            writes = _grouped(writes, self.unit)
        if activations.stream_bias is not None:
            beyond[Component("stream_bias")] = activations.stream_bias
        return writes + [StreamWrite(name, (name,), vector) for name, vector in beyond.items()]


def _grouped(writes: Sequence[StreamWrite], unit: Groups) -> list[StreamWrite]:
    """What groups leave of every write, then the groups."""
    unit.check({component for write in writes for component in write.components})
    left: list[StreamWrite] = []
    sums: dict[str, Tensor] = {}
    for write in writes:
        rest, groups = write.vector.double(), [unit.group_of(component) for component in write.components]
        for name in dict.fromkeys(filter(None, groups)):
            which, parts = [i for i, group in enumerate(groups) if group == name], write.parts
            if parts is None:
                own = rest
            elif isinstance(parts, Parts):  # whose bias, if any, stands last
                heads = [i for i in which if i < parts.output_map.count]
                own = parts.vectors(heads).sum(1) + (parts.bias() if len(heads) < len(which) else 0.0)
            else:
                own = parts.vectors(which).sum(1)
            sums[name] = sums.get(name, 0.0) + own
            rest = rest - own
        if write.parts is None and groups[0] is None:
            left.append(write)
        elif None in groups:
            row = rest_of(next(c for c, group in zip(write.components, groups, strict=True) if group is None))
            left.append(StreamWrite(write.junction, (row,), rest))
    return left + [
        StreamWrite(name, (name,), sums[group]) for group in unit.members for name in [Component("group", name=group)]
    ]


def _beyond(parts: Parts, vector: Float[Tensor, "position d"], dtype: torch.dtype) -> Float[Tensor, "position d"]:
    """What an output that hooks changed holds beyond the sum of its parts; zero where rounding explains it."""
    whole = parts.total() + parts.bias()
    changed = vector.double() - whole
    noticed = changed.norm(dim=1) > (1e-2 if dtype in HALF else 1e-5) * whole.norm(dim=1)
    return torch.where(noticed[:, None], changed, 0.0).to(vector.dtype)


def _parts(output: SublayerOutput, count: int) -> Parts | VectorParts | None:
    """The parts of an output; `count` is the number of those that are vectors."""
    if output.vectors is not None:
        return VectorParts(output.vectors.vectors.double(), output.vectors.index, count)
    if output.values is None or output.cut is None:
        return None
    output_map = output.cut.output_map
    assert output_map is not None
    post = output_map.post
    divisor = None if post is None or output.post is None else post.divisor(output.post)
    if output.passed is not None:
        divisor = output.passed if divisor is None else divisor * output.passed
    return Parts(output_map, output.values.unflatten(1, (output_map.count, -1)), divisor, output.passed)


def pull_back(
    output_map: OutputMap, directions: Float[Tensor, "n d"], dtype: torch.dtype | None = None
) -> Float[Tensor, "n _"]:
    """Stream directions as directions of the values before an output map, `[n, part·width]`, on their own device.

    The map's scale, the gain of the norm after it and the maps on its path are folded in. `dtype` is that of the
    product; None is the weights' own, at least float32.
    """
    weight, _ = output_map.projection()
    dtype = dtype or torch.promote_types(weight.dtype, torch.float32)
    folded = directions * output_map.scale
    for step in reversed(output_map.path):
        folded = step.fold(folded)
    folded = folded if output_map.post is None else output_map.post.fold(folded)
    return (folded.to(weight.device, dtype) @ weight.to(dtype).T).to(directions.device)


def check_finite(writes: Sequence[StreamWrite], *outputs: Tensor) -> None:
    """Raise InputError for numbers that are not finite, with the component that wrote the first of them."""
    broken = (write.junction.label for write in writes if not write.vector.isfinite().all())
    first = next(broken, None if all(x.isfinite().all() for x in outputs) else "the read-out")
    if first is not None:
        broken_by = "its weights or its precision are broken (NaN weights, an overflow in float16)"
        raise InputError(f"the model gives numbers that are not finite, first in {first}: {broken_by}.")
