"""Where a model's components are read: hook points of its residual stream and read-out.

`huggingface` and `transformer_lens` each find these places in one kind of model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..components import Component, Kind, Unit
from ..errors import InputError
from .norm import AffineStep, Linear, Norm, gain

# The reasons why a sublayer has no heads or neurons.
WHY_WHOLE = {
    "mixture": "it is a mixture of experts, which routes each token to different neurons",
    "wrapped": "its output projection is wrapped or quantized, so its weights cannot be read",
    "gated": "its output projection is followed by a gate that differs between tokens",
    "streams": "its output enters several streams with different maps, so that its parts have no common map",
    "hidden": "it has no output projection that this package can see",
}

HALF = (torch.float16, torch.bfloat16)
SublayerKind = Literal["attn", "mixer", "mlp", "moe", "ple", "laurel", "intervention"]
KINDS: tuple[SublayerKind, ...] = ("attn", "mlp")  # those of TransformerLens' blocks
# For each kind of sublayer: the unit that cuts it, its rows there, the row of its bias, and its name.
_CUT: dict[str, tuple[Unit, Kind, Kind, str]] = {
    "attn": ("head", "head", "attn_bias", "attention"),
    "mixer": ("head", "mixer_head", "mixer_bias", "mixer"),
    "mlp": ("neuron", "neuron", "mlp_bias", "MLP"),
    "moe": ("neuron", "neuron", "mlp_bias", "mixture of experts"),
}


@dataclass(frozen=True, eq=False)
class HookPoint:
    """A place in the running model: the input ("in") or output ("out") of a module, and its TransformerLens name.

    `item` selects an output of a module that returns several; `streams_first` marks values `[stream, row, token, d]`.
    """

    module: nn.Module
    side: Literal["in", "out"] = "out"
    name: str = ""
    item: int = 0
    streams_first: bool = False


@dataclass(frozen=True, eq=False)
class OutputMap:
    """A sublayer's output as the sum over its heads or neurons.

    Attributes:
        count, hook_point: The number of heads or neurons, and the point before the output projection with their values.
        projection: Returns its weight W `[count·width, d]` and its bias or None.
        bias: True if a part belongs to no head or neuron: that bias where it is not zero, or a post-norm's.
        scale: The factor on the path to the stream (Granite's), a number or `[d]`.
        post, post_hook_point: The norm between the projection and the stream, and the point that shows its input or its
            statistic.
        path: The maps on the path to the final stream: gains, and norms without their statistics.
    """

    count: int
    hook_point: HookPoint
    projection: Callable[[], tuple[Tensor, Tensor | None]]
    bias: bool
    scale: float | Tensor = 1.0
    post: Norm | None = None
    post_hook_point: HookPoint | None = None
    path: tuple[Linear, ...] = ()
    _extended: dict[tuple[Linear, ...], OutputMap] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def maps(self) -> tuple[Linear, ...]:
        """All linear maps behind the projection, in order, the post-norm's first."""
        scale = () if isinstance(self.scale, float) and self.scale == 1.0 else (gain(self.scale),)
        return (*filter(None, [self.post]), *scale, *self.path)

    def with_post(self, norm: Norm, point: HookPoint) -> OutputMap:
        """Return the map with a norm between the projection and the stream, and the point where it is read."""
        return replace(self, post=norm, post_hook_point=point, bias=self.bias or norm.bias is not None)

    def followed_by(self, path: tuple[Linear, ...]) -> OutputMap:
        """Return the map with a longer path; one object for each path, because results are cached by output map."""
        if path not in self._extended:
            self._extended[path] = replace(self, path=(*self.path, *path))
        return self._extended[path]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Parts that are stream vectors, one in each slot; `index` gives the part of a slot (None: slot i is part i).

    A part without a slot at a position is zero there.
    """

    vectors: Float[Tensor, "row slot d"]
    index: Int[Tensor, "row slot"] | None = None

    def __getitem__(self, some: slice | Tensor) -> Vectors:
        """Select some rows."""
        return Vectors(self.vectors[some], None if self.index is None else self.index[some])


Values = Tensor | Vectors


@dataclass(frozen=True, eq=False)
class SublayerCut:
    """The parts of one sublayer at one unit.

    Attributes:
        rows: Returns a repeat's parts, last the bias of `output_map`.
        points: The points to read in addition to the sublayer's output.
        read: Maps the values at `points` and the write, `[row, _]`, to the values before `output_map`, `[row,
            part·width]`; without an output map, to `Vectors`.
        error: True if the write minus the sum of the parts is a row of its own.
    """

    rows: Callable[[int | None], list[Component]]
    points: tuple[HookPoint, ...]
    read: Callable[[Callable[[HookPoint], Tensor], Tensor], Values]
    output_map: OutputMap | None = None
    error: bool = False


def linear_cut(output_map: OutputMap, layer: int, kind: Kind, bias: Kind) -> SublayerCut:
    """Cut into heads or neurons, whose values stand side by side before an output projection."""

    def rows(repeat: int | None) -> list[Component]:
        parts = [Component(kind, layer, index, repeat) for index in range(output_map.count)]
        return parts + ([Component(bias, layer, repeat=repeat)] if output_map.bias else [])

    points = (output_map.hook_point, *filter(None, [output_map.post_hook_point]))
    return SublayerCut(rows, points, lambda seen, write: seen(output_map.hook_point), output_map)


class CustomUnit(ABC):
    """A unit that is not just a name; `name` is its name in results."""

    name: str = "custom"
    is_fine: bool = False  # whether a sublayer has thousands of rows

    @abstractmethod
    def of(self, sublayer: Sublayer) -> SublayerCut | None:
        """Cut a sublayer; None for one that stays whole."""

    def rows_of(self, architecture: Architecture, rows: list[Component]) -> list[Component]:
        """Turn the rows of embeddings and sublayers into those of this unit. Raises InputError if it does not fit."""
        return rows


UnitLike = Unit | CustomUnit


@dataclass(frozen=True, eq=False)
class Sublayer:
    """An attention, mixer or MLP: the place where its output is read, and its parts.

    `scale`: the number or vector `[d]` that multiplies the output on its way to the stream. Interventions are
    sublayers, too: what the user's hooks add after a layer, or with `layer` None to the embedding. `inputs`: its
    module's input. `mixture`: its cut into experts; `experts_reason`: why there is none.
    """

    kind: SublayerKind
    layer: int
    hook_point: HookPoint
    scale: float | Tensor = 1.0
    output_map: OutputMap | None = None
    uncut_reason: str = ""
    inputs: HookPoint | None = None
    mixture: CustomUnit | None = None
    experts_reason: str = ""

    def added(self, output: Tensor) -> Tensor:
        """The vector that an output adds to the stream."""
        if isinstance(self.scale, Tensor):
            return output * self.scale.to(output.device)
        return output if self.scale == 1.0 else output * self.scale

    def scaled(self, factor: float | Tensor) -> Sublayer:
        """Return the sublayer with its output multiplied by a number or vector on its way to the stream."""
        factor = factor.detach().double().flatten() if isinstance(factor, Tensor) else factor
        output_map = self.output_map
        output_map = None if output_map is None else replace(output_map, scale=output_map.scale * factor)
        return replace(self, scale=self.scale * factor, output_map=output_map)

    def whole(self, why: str) -> Sublayer:
        """Return the sublayer without heads or neurons, for a reason among `WHY_WHOLE`."""
        return replace(self, output_map=None, uncut_reason=WHY_WHOLE[why])

    def cut(self, unit: UnitLike) -> SublayerCut | None:
        """Cut at a unit: heads of attention, neurons or experts of MLPs; None if it stays whole, e.g. a mixer without
        heads.

        Raises InputError if it cannot be cut.
        """
        if isinstance(unit, CustomUnit):
            return unit.of(self)
        if unit == "expert":
            if self.experts_reason:
                raise InputError(f"{self} has no rows at unit='expert': {self.experts_reason}; use unit='sublayer'.")
            return None if self.mixture is None else self.mixture.of(self)
        named = _CUT.get(self.kind)  # interventions have none
        if named is None or unit != named[0] or (self.kind == "mixer" and self.output_map is None):
            return None
        if self.output_map is None:
            instead = "'expert'" if self.mixture else "'sublayer'"
            raise InputError(f"{self} has no rows at unit={unit!r}: {self.uncut_reason}; use unit={instead}.")
        return linear_cut(self.output_map, self.layer, *named[1:3])

    def components(self, unit: UnitLike, repeat: int | None = None) -> list[Component]:
        """List its components at a unit, last the error of its cut.

        Raises InputError if it cannot be cut.
        """
        cut, whole = self.cut(unit), Component(self.kind, self.layer, repeat=repeat)
        rows = [whole] if cut is None else cut.rows(repeat)
        if cut is not None and cut.error:
            rows.append(replace(whole, kind=cast(Kind, f"{self.kind}.error")))
        return rows

    def __str__(self) -> str:
        return f"the {_CUT[self.kind][3] if self.kind in _CUT else self.kind} of layer {self.layer}"


@dataclass(frozen=True, eq=False)
class StreamOp:
    """An affine operation on the stream between two sublayers.

    Attributes:
        points, measure: The places that show the coefficients of a pass, and the function that maps the values there,
            each `[row, _]`, to fields of the step.
        step: The coefficients that are the same in every pass.
    """

    points: tuple[HookPoint, ...] = ()
    measure: Callable[..., dict[str, Any]] | None = None
    step: AffineStep = field(default_factory=AffineStep)

    def step_of(self, seen: Sequence[Tensor]) -> AffineStep:
        """Make the step of a pass from the values at its points."""
        return self.step if self.measure is None else replace(self.step, **self.measure(*seen))


StreamItem = Sublayer | StreamOp | HookPoint


@dataclass(frozen=True, eq=False)
class Architecture:
    """All hook points and parts of one model. `sublayers` are in stream order.

    Attributes:
        stream_in, stream_out, blocks: The stream entering the first block (embedding and position embedding), the final
            norm, and every block.
        norm, norm_module, unembed, unembed_rows: The read-out: the final norm as numbers and as a module, the
            unembedding, and its rows `[id, d]` and biases for some token ids (all for None).
        transform, logits: The map from the unembedding's output to logits; runs the model, (ids, mask) -> logits,
            with ids and mask from any device.
        dtype: The stream's precision. Half precisions round at every addition; the rounding error is a row.
        vocabulary, outputs, context: The number of input ids and of output ids, and the longest text, in tokens.
        length_switch: The length from which positions are computed differently (LongRoPE): longer and shorter prompts
            must not share a batch.
        to_unembed: Maps the normed stream to the unembedding's input; `norm` or `unembed_rows` already include it.
        window: The size in tokens of the smallest attention window; None for full attention.
        parallel, constant: True if attention and MLP of a block read the same stream; True if the read-out has a
            constant, which no component wrote.
        stream_ops: For a stream that passes more than additions, all items on its path, in order (including the inputs
            of blocks and of the final norm, where it is checked).
        remote: The name of the engine, if the model runs outside this process; its modules here then have no matrices.
    """

    root: nn.Module
    stream_in: HookPoint
    pos_embed: HookPoint | None
    sublayers: tuple[Sublayer, ...]
    stream_out: HookPoint
    blocks: tuple[HookPoint, ...]
    norm: Norm
    norm_module: nn.Module
    unembed: nn.Module
    unembed_rows: Callable[[Tensor | None], tuple[Tensor, Tensor | None]]
    transform: Callable[[Tensor], Tensor]
    logits: Callable[..., Tensor]
    device: torch.device
    dtype: torch.dtype
    vocabulary: int
    outputs: int
    context: int | None
    length_switch: int | None
    parallel: bool
    constant: bool
    window: int | None = None
    to_unembed: Callable[[Tensor], Tensor] = field(default_factory=nn.Identity)
    stream_ops: tuple[StreamItem, ...] = ()
    remote: str = ""

    @cached_property
    def logit_multiplier(self) -> float:
        """The factor on the unembedding's output, measured on the transform."""
        return float(self.transform(torch.tensor([1e-4], dtype=torch.float64)) / 1e-4)

    @cached_property
    def soft_cap(self) -> float | None:
        """The soft cap of the logits; None if they have none."""
        large = float(self.transform(torch.tensor([1e6], dtype=torch.float64)))
        return None if abs(large / 1e6 / self.logit_multiplier - 1) < 1e-6 else large

    @property
    def stream_bias(self) -> bool:
        """True if operations on the stream have biases, which no component wrote."""
        return any(isinstance(item, StreamOp) and item.step.bias is not None for item in self.stream_ops)

    @property
    def has_prefixes(self) -> bool:
        """True if a logit lens at a junction is meaningful: only scalars stand between it and the read-out."""
        ops = [item for item in self.stream_ops if isinstance(item, StreamOp)]
        return all(not op.points and op.step.is_scalar for op in ops)

    @property
    def roots(self) -> list[Any]:
        """The model, and the one it wraps, which a bridge keeps outside its own modules."""
        return [self.root, *filter(None, [getattr(self.root, "original_model", None)])]

    def components(
        self, unit: UnitLike = "sublayer", order: Sequence[tuple[Sublayer, int | None]] | None = None
    ) -> tuple[Component, ...]:
        """List the components of one pass in stream order; every layer once, or by `order` (sublayer, repeat)."""
        self._check(unit)
        rows = [Component("embed")]
        if self.pos_embed is not None:
            rows.append(Component("pos_embed"))
        for sublayer, repeat in order or [(sublayer, None) for sublayer in self.sublayers]:
            rows += sublayer.components(unit, repeat)
        if isinstance(unit, CustomUnit):
            rows = unit.rows_of(self, rows)
        if self.stream_bias:
            rows.append(Component("stream_bias"))
        if self.constant:
            rows.append(Component("constant"))
        if self.dtype in HALF:
            rows.append(Component("rounding"))
        return tuple(rows)

    def hook_points(self, unit: UnitLike = "sublayer") -> list[HookPoint]:
        """List all points to read at a unit. Raises InputError for a unit without rows here."""
        self._check(unit)
        points: list[HookPoint | None] = [self.stream_in, self.stream_out, *(s.hook_point for s in self.sublayers)]
        points.append(self.pos_embed)
        points += [
            point for item in dict.fromkeys(self.stream_ops) if isinstance(item, StreamOp) for point in item.points
        ]
        for sublayer in self.sublayers:
            cut = sublayer.cut(unit)
            points += () if cut is None else cut.points
        return [point for point in dict.fromkeys(points) if point is not None]

    def _check(self, unit: UnitLike) -> None:
        """Raise InputError for a unit at which this model has no rows of its own."""
        if unit == "expert" and not any(s.mixture or s.experts_reason for s in self.sublayers):
            raise InputError("this model has no mixture of experts, so unit='expert' has no rows: use unit='neuron'.")
