"""A pass as blocks of component rows; a contribution is the inner product of a row and a direction (Eq. 2-3).

A pass holds what each embedding and sublayer adds to the final residual stream, z = Σ z_i. Each z_i is one row, or is
cut into heads or neurons with values x before the output map W: z_i = scale · (Σ_part x_part W_part + b). A norm
between the map and the stream is linear at its own statistic: gain · center(·) / divisor. The same holds for
non-additive steps of the stream (`model.stream_path`). A read-out direction has d + 1 numbers; the last is what the
read-out itself adds. The `constant` is therefore a row, too, and so is the rounding error of half precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.architecture import HALF, Architecture, OutputMap, Sublayer, UnitLike
from ..model.capture import Activations, SublayerOutput
from ..model.groups import Groups, rest_of
from ..model.norm import Linear
from ..model.stream_path import to_final_stream

# The advice for passes with different components.
ALIKE = "give texts that run alike, so that they have common components, or one at a time"


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of one write, and the map that pulls read-out directions back to them.

    Row r adds Σ_w x[r, w] · back(D)[r, w] / (divisor · σ) to the value read along a direction D.

    Attributes:
        components: The rows.
        x: `[position, slot, width]`: stream vectors; with `output_map` its input, the values of heads or neurons; if
            `is_constant` σ, which multiplies the last number of a direction.
        divisor: `[position]`, the divisor of everything after the output map; None where nothing divides.
        index: `[position, slot]`, the row that each slot belongs to; None if slot and row numbers agree.
    """

    components: Sequence[Component]
    x: Float[Tensor, "position slot width"]
    output_map: OutputMap | None = None
    divisor: Float[Tensor, " position"] | None = None
    index: Int[Tensor, "position slot"] | None = None
    is_constant: bool = False

    @property
    def is_stream(self) -> bool:
        """True if the slots are stream vectors."""
        return self.output_map is None and not self.is_constant

    def at(self, some: slice) -> Block:
        """Select some positions."""
        divisor, index = (None if x is None else x[some] for x in (self.divisor, self.index))
        return replace(self, x=self.x[some], divisor=divisor, index=index)

    def scattered(self, of_slots: Float[Tensor, "position slot *more"]) -> Float[Tensor, "position row *more"]:
        """Add up the numbers of each row's slots; rows without a slot are zero."""
        if self.index is None:
            return of_slots
        index = self.index.to(of_slots.device).reshape(*self.index.shape, *[1] * (of_slots.dim() - 2))
        out = of_slots.new_zeros(len(of_slots), len(self.components), *of_slots.shape[2:])
        return out.scatter_add_(1, index.expand_as(of_slots), of_slots)

    def vectors(self, which: list[int] | slice = slice(None)) -> Float[Tensor, "position row d"]:
        """The stream vectors of some rows, in float64."""
        if self.output_map is None:
            return self.scattered(self.x.double())[:, which]
        maps = self._weight.unflatten(0, (self.output_map.count, -1))[which].double()
        vectors = torch.bmm(self.x[:, which].double().transpose(0, 1), maps)
        return _to_stream(self.output_map.maps, vectors, self.divisor).transpose(0, 1)

    def total(self) -> Float[Tensor, "position d"]:
        """The sum of all rows' stream vectors, in float64."""
        if self.output_map is None:
            return self.x.double().sum(1)
        return _to_stream(self.output_map.maps, self.x.flatten(1).double() @ self._weight.double(), self.divisor)

    @property
    def _weight(self) -> Float[Tensor, "value d"]:
        assert self.output_map is not None
        return self.output_map.projection()[0].to(self.x.device)


@dataclass(frozen=True, eq=False)
class Write:
    """The output that one embedding or sublayer adds to the final residual stream.

    Attributes:
        junction: The whole embedding or sublayer, after which the stream may have a junction; None for the constant and
            for rounding, which no part of the model writes.
        vector: `[position, d]`, the vector added in the pass; its blocks sum to it.
    """

    junction: Component | None
    vector: Float[Tensor, "position d"]
    blocks: tuple[Block, ...]

    @classmethod
    def whole(cls, junction: Component, vector: Tensor, row: Component | None = None) -> Write:
        """Make a write of one row."""
        return cls(junction, vector, (Block((row or junction,), vector[:, None]),))

    @property
    def components(self) -> list[Component]:
        """The rows of the write."""
        return [component for block in self.blocks for component in block.components]

    @property
    def is_cut(self) -> bool:
        """True if a part of the model wrote it and it has several rows."""
        return self.junction is not None and any(not b.is_stream or len(b.components) > 1 for b in self.blocks)


def are_partial(junctions: Sequence[Component], parallel: bool) -> list[bool]:
    """Mark the junctions at which the stream never stands: an embedding before its positions, or between sublayers that
    read the same stream (`parallel`). If hooks add something in a layer, all its junctions before that are partial.
    """
    # Unfinished writes or layers, each with what follows it.
    unfinished = [("embed", "pos_embed"), ("mixer", "attn"), ("mlp", "moe")]
    unfinished += [(kind, f"{kind}.error") for kind in ("attn", "mixer", "mlp", "moe", "ple", "laurel")]
    unfinished += [(kind, "mlp") for kind in ("attn", "mixer")] * parallel
    steered = [(a.layer, a.repeat) for a in junctions if a.kind == "intervention"]
    partial = [a.kind != "intervention" and (a.layer, a.repeat) in steered for a in junctions]
    for i, (a, b) in enumerate(pairwise(junctions)):
        partial[i] |= a.layer == b.layer and (a.kind, b.kind) in unfinished
    return partial


class StreamWalk:
    """Name the writes of an architecture's passes at one unit. The names, thousands in an MLP, are made once."""

    def __init__(self, architecture: Architecture, unit: UnitLike) -> None:
        self.architecture, self.unit = architecture, unit
        self.has_constant = architecture.constant
        self._names: dict[tuple[Sublayer, int | None], list[Component]] = {}

    def writes(self, activations: Activations) -> list[Write]:
        """List all writes that sum to the logits: embeddings, then sublayers in execution order, each as it stands in
        the final stream, then the rows that no part of the model wrote.
        """
        activations = to_final_stream(activations)
        writes = list(self._of_modules(activations))
        if isinstance(self.unit, Groups):
            writes = _grouped(writes, self.unit)
        if activations.stream_bias is not None:
            writes.append(Write.whole(Component("stream_bias"), activations.stream_bias))
        return writes + self._of_read_out(writes, activations)

    def _of_modules(self, activations: Activations) -> Iterator[Write]:
        embeddings = ((Component("embed"), activations.embed), (Component("pos_embed"), activations.pos_embed))
        yield from (Write.whole(name, vector) for name, vector in embeddings if vector is not None)
        beyond: dict[Component, Tensor] = {}  # changes by hooks in cut outputs belong to the layer's intervention
        for output, repeat in zip(activations.sublayer_outputs, activations.repeats, strict=True):
            sublayer, key = output.sublayer, (output.sublayer, repeat)
            if key not in self._names:
                self._names[key] = sublayer.components(self.unit, repeat)
            junction = Component(sublayer.kind, sublayer.layer, repeat=repeat)
            intervention = replace(junction, kind="intervention")
            if beyond and intervention not in beyond:  # the next layer
                yield from (Write.whole(name, vector) for name, vector in beyond.items())
                beyond = {}
            names, vector = self._names[key], output.output
            beside: list[Write] = []  # rows of their own
            if output.cut is not None and output.cut.error:
                *names, error = names
            blocks = cut_output(output, names)
            if output.cut is not None and output.cut.error and blocks:
                whole, vector = vector.double(), _total(blocks)
                beside.insert(0, Write.whole(error, whole - vector))
            if output.hooked and blocks and blocks[0].output_map is not None:
                changed = _beyond(blocks, vector, activations.dtype)
                vector = vector - changed
                beyond[intervention] = beyond.get(intervention, 0.0) + changed
            if junction in beyond:
                vector = vector + beyond.pop(junction)
            yield Write(junction, vector, blocks) if blocks else Write.whole(junction, vector, names[0])
            yield from beside
        yield from (Write.whole(name, vector) for name, vector in beyond.items())

    def _of_read_out(self, writes: Sequence[Write], activations: Activations) -> list[Write]:
        """Make rows of the read-out's constant and of the rounding error of half precision, so that rows still sum."""
        final, rest = activations.final.double(), []
        if self.has_constant:
            sigma = self.architecture.norm.statistic(final)[:, None, None]
            rest.append(
                Write(None, torch.zeros_like(final), (Block((Component("constant"),), sigma, is_constant=True),))
            )
        if activations.dtype in HALF:
            lost = final - _total([block for write in writes for block in write.blocks])
            rest.append(Write(None, lost, (Block((Component("rounding"),), lost[:, None]),)))
        return rest


def _grouped(writes: Sequence[Write], unit: Groups) -> list[Write]:
    """Move the members of groups out of every write into separate writes, which come last."""
    unit.check({component for write in writes for component in write.components})
    left: list[Write] = []
    sums: dict[str, Tensor] = {}
    for write in writes:
        rest, groups = write.vector.double(), [unit.group_of(component) for component in write.components]
        if groups == [None]:
            left.append(write)
            continue
        for block in write.blocks:
            own_groups = [unit.group_of(component) for component in block.components]
            for name in dict.fromkeys(filter(None, own_groups)):
                # A write of one row is taken as captured.
                which = [i for i, group in enumerate(own_groups) if group == name]
                own = write.vector.double() if len(groups) == 1 else block.vectors(which).sum(1)
                sums[name] = sums.get(name, 0.0) + own
                rest = rest - own
        if None in groups:
            row = rest_of(next(c for c, group in zip(write.components, groups, strict=True) if group is None))
            assert write.junction is not None
            left.append(Write.whole(write.junction, rest, row))
    return left + [
        Write.whole(name, sums[group]) for group in unit.members for name in [Component("group", name=group)]
    ]


def cut_output(output: SublayerOutput, names: Sequence[Component]) -> tuple[Block, ...]:
    """Cut an output into blocks, the bias last; empty for an output that stays whole."""
    if output.vectors is not None:
        return (Block(names, output.vectors.vectors, index=output.vectors.index),)
    if output.values is None or output.cut is None:
        return ()
    output_map = output.cut.output_map
    assert output_map is not None
    post = output_map.post
    divisor = None if post is None or output.post is None else post.divisor(output.post)
    if output.path_divisor is not None:
        divisor = output.path_divisor if divisor is None else divisor * output.path_divisor
    parts = Block(names[: output_map.count], output.values.unflatten(1, (output_map.count, -1)), output_map, divisor)
    if not output_map.bias:
        return (parts,)
    # The biases of the output map and of the norm after it, which no part wrote.
    (weight, bias), device = output_map.projection(), parts.x.device
    total = torch.zeros(len(parts.x), weight.shape[1], dtype=torch.float64, device=device)
    if bias is not None:
        total = total + _to_stream(output_map.maps, bias.to(device).double().expand_as(total), divisor)
    if post is not None and post.bias is not None:
        own = post.bias.to(device).expand_as(total)
        total = total + _to_stream(output_map.maps[1:], own, output.path_divisor)
    return parts, Block(names[output_map.count :], total[:, None])


def _to_stream(maps: Sequence[Linear], x: Tensor, divisor: Tensor | None) -> Float[Tensor, "... position d"]:
    """Apply the maps between a write and the stream."""
    for linear in maps:
        x = linear.linear(x)
    return x if divisor is None else x / divisor[:, None]


def _total(blocks: Sequence[Block]) -> Float[Tensor, "position d"]:
    """Sum the stream vectors of some blocks, in float64."""
    whole = [block.x.double() for block in blocks if block.is_stream]
    totals = [block.total() for block in blocks if block.output_map is not None]
    return torch.cat([*whole, *(total[:, None] for total in totals)], 1).sum(1)


def _beyond(blocks: Sequence[Block], vector: Tensor, dtype: torch.dtype) -> Float[Tensor, "position d"]:
    """Subtract the sum of its parts from an output that hooks changed; zero where rounding explains the rest."""
    whole = _total(blocks)
    changed = vector.double() - whole
    noticed = changed.norm(dim=1) > (1e-2 if dtype in HALF else 1e-5) * whole.norm(dim=1)
    return torch.where(noticed[:, None], changed, 0.0).to(vector.dtype)


class Rows:
    """All rows of some positions side by side, ready to be multiplied with read-out directions.

    Attributes:
        writes, blocks: The writes as they stand in the stream, and their blocks. Each block's `x` is divided by what
            follows its output map and, unless `divide` is False, by σ, so that products are logits.
        components, places: The names of all rows, and the slice of each block's rows among them.
        streams: `[position, slot, d]`, the stream vectors of all blocks that have them, in float64: along the
            directions that all ids share they are large and cancel.
        final, sigma: The final stream and the final norm's statistic for it, in float64.
    """

    def __init__(
        self,
        walk: StreamWalk,
        activations: Activations,
        dtype: torch.dtype = torch.float64,
        device: torch.device | None = None,
        divide: bool = True,
    ) -> None:
        device = device or activations.final.device
        self.writes = walk.writes(activations)
        self.final = activations.final.to(device).double()
        self.sigma: Float[Tensor, " position"] = walk.architecture.norm.statistic(self.final)
        sigma = self.sigma if divide else torch.ones_like(self.sigma)
        blocks = [block for write in self.writes for block in write.blocks]
        vectors = [block.x.to(device).double() for block in blocks if block.is_stream]
        self.streams = torch.cat(vectors, 1).div_(sigma[:, None, None])
        slots = iter(self.streams.split([x.shape[1] for x in vectors], 1))
        self.blocks: list[Block] = []
        self.components: list[Component] = []
        self.places: list[slice] = []
        for block in blocks:
            if block.is_stream:
                x = next(slots)
            else:
                divisor = sigma if block.divisor is None else sigma * block.divisor.to(sigma)
                is_single = block.output_map is not None and block.x.shape[2] == 1  # thousands of neurons
                precision = dtype if is_single else torch.float64
                x = block.x.to(device, precision) / divisor.to(precision)[:, None, None]
            self.blocks.append(replace(block, x=x, divisor=None))
            self.places.append(slice(len(self.components), len(self.components) + len(block.components)))
            self.components += block.components

    def vectors(self, which: Sequence[int]) -> Float[Tensor, "position row d+1"]:
        """Return some rows as float64 vectors, whose product with a direction is what the row adds to the logit."""
        out = self.final.new_zeros(len(self.final), len(which), self.final.shape[1] + 1)
        for block, place in zip(self.blocks, self.places, strict=True):
            wanted = {n: row - place.start for n, row in enumerate(which) if place.start <= row < place.stop}
            if wanted and block.is_constant:
                out[:, list(wanted), -1] = block.x[:, :, 0]
            elif wanted:  # all rows of a block at once: row by row, hundreds of heads take seconds
                out[:, list(wanted), :-1] = block.vectors(list(wanted.values())).to(out)
        return out


def merge(several: Sequence[Sequence[Component]]) -> tuple[Component, ...]:
    """Merge lists of components, in stream order."""
    merged = list(several[0])
    for names in several[1:]:
        known = set(merged)
        for place, name in enumerate(names):
            if name not in known:
                merged.insert(merged.index(names[place - 1]) + 1 if place else 0, name)
    return tuple(merged)


def in_rows(rows: Sequence[Component], components: Sequence[Component], values: np.ndarray) -> np.ndarray:
    """Spread values `[example, component, …]` over the rows of a longer list of components; other rows are zero."""
    if rows == components:
        return values
    place_of = {name: place for place, name in enumerate(rows)}
    out = np.zeros((len(values), len(rows), *values.shape[2:]))
    out[:, [place_of[c] for c in components]] = values
    return out


def check_finite(writes: Sequence[Write], *outputs: Tensor) -> None:
    """Raise InputError for non-finite numbers, naming the component that wrote the first of them."""
    broken = (write.junction.label for write in writes if write.junction and not write.vector.isfinite().all())
    first = next(broken, None if all(x.isfinite().all() for x in outputs) else "the read-out")
    if first is not None:
        broken_by = "its weights or its precision are broken (NaN weights, an overflow in float16)"
        if outputs[0].dtype == torch.float64:  # Transformers' softmax is in float32, where the mask becomes −∞
            broken_by = "its weights are NaN, or a sliding window meets padding: run rows one by one, batch_tokens=1"
        raise InputError(f"the model gives numbers that are not finite, first in {first}: {broken_by}.")
