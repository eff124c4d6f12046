"""How a unit takes one sublayer's write apart: what is read for it in a pass, and the parts that follow.

Heads, neurons and a dictionary's latents are values in front of a linear map; other cuts give stream vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from jaxtyping import Float, Int
from torch import Tensor

from .._checks import listed, shown
from ..components import Component, Kind, Unit
from ..errors import InputError

if TYPE_CHECKING:
    from .architecture import Architecture, HookPoint, OutputMap, Sublayer


@dataclass(frozen=True, eq=False)
class Vectors:
    """Parts that are stream vectors: one in each slot, which belongs to part `index` (None: to the slot's own).

    A part without a slot at some position writes nothing there.
    """

    vectors: Float[Tensor, "row slot d"]
    index: Int[Tensor, "row slot"] | None = None

    def __getitem__(self, some: slice | Tensor) -> Vectors:
        """The same for some rows."""
        return Vectors(self.vectors[some], None if self.index is None else self.index[some])


Values = Tensor | Vectors


@dataclass(frozen=True, eq=False)
class SublayerCut:
    """The parts of one sublayer at one unit.

    Attributes:
        rows: A repeat's parts, last the bias that `output_map` has.
        points: What must be read beside the sublayer's output.
        read: From what `points` show and the write, `[row, _]`: the values in front of `output_map`, `[row,
            part·width]`; without one, `Vectors`.
        error: Whether what the parts do not sum to is a row of its own.
    """

    rows: Callable[[int | None], list[Component]]
    points: tuple[HookPoint, ...]
    read: Callable[[Callable[[HookPoint], Tensor], Tensor], Values]
    output_map: OutputMap | None = None
    error: bool = False


def linear_cut(output_map: OutputMap, layer: int, kind: Kind, bias: Kind, error: bool = False) -> SublayerCut:
    """Heads or neurons: what stands before an output projection, side by side."""

    def rows(repeat: int | None) -> list[Component]:
        parts = [Component(kind, layer, index, repeat) for index in range(output_map.count)]
        return parts + ([Component(bias, layer, repeat=repeat)] if output_map.bias else [])

    points = (output_map.hook_point, *filter(None, [output_map.post_hook_point]))
    return SublayerCut(rows, points, lambda seen, write: seen(output_map.hook_point), output_map, error)


class CustomUnit(ABC):
    """A unit that is more than a name: `name` is what results call it."""

    name: str = "custom"
    has_many: bool = False  # thousands of rows in a sublayer

    @abstractmethod
    def of(self, sublayer: Sublayer) -> SublayerCut | None:
        """How it takes a sublayer apart; None for one that stays whole."""

    def rows_of(self, architecture: Architecture, rows: list[Component]) -> list[Component]:
        """The rows of this unit, from those of embeddings and sublayers. Raises InputError where it does not fit."""
        return rows


class Cut(CustomUnit):
    """A unit of your own: a way to take sublayers' writes to the residual stream apart into named parts.

    A subclass says which parts a sublayer has (`parts`) and what each of them writes (`split`); what they leave of the
    write is a row of its own, `L3.mlp.error`, so that all rows sum to the logits whatever the parts are. `name` is what
    results call the unit.

    >>> class Halves(Cut):
    ...     name = "half"
    ...     def parts(self, sublayer):
    ...         return ["first", "second"] if sublayer.kind == "mlp" else None
    ...     def split(self, sublayer, inputs, write):
    ...         first = write.clone()
    ...         first[:, write.shape[1] // 2 :] = 0
    ...         return torch.stack([first, write - first], 1)
    >>> import torch, layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=1, num_attention_heads=2))
    >>> c = ld.contributions(tiny, [[1, 2, 3]], options=[7, 9], unit=Halves())
    >>> [component.label for component in c.components]
    ['embed', 'L0.attn', 'L0.mlp:first', 'L0.mlp:second', 'L0.mlp.error']
    """

    @abstractmethod
    def parts(self, sublayer: Component) -> Sequence[str] | None:
        """The names of a sublayer's parts, the same at every call; None for one that stays whole."""

    @abstractmethod
    def split(self, sublayer: Component, inputs: Any, write: Any) -> Any:
        """What each part writes, a tensor `[position, part, d]`.

        Args:
            sublayer: Which one, without a repeat.
            inputs: `[position, _]`: what its module was given, as a rule the stream after its norm; None where no one
                module is given it (OPT's MLPs).
            write: `[position, d]`: what it adds to the stream; both float32 or wider, on the model's device.
        """

    def of(self, sublayer: Sublayer) -> SublayerCut | None:
        """The parts of one sublayer. Raises InputError for names that are none."""
        whole = Component(sublayer.kind, sublayer.layer)
        names = None if sublayer.kind == "intervention" else self.parts(whole)
        if names is None:
            return None
        names, what = listed("parts", names, "a list of names"), f"the cut {self.name!r}"
        if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise InputError(f"{what} must name the parts of {whole} by texts that differ, not {shown(names)}.")
        point = sublayer.inputs

        def rows(repeat: int | None) -> list[Component]:
            return [replace(whole, repeat=repeat, name=name) for name in names]

        def read(seen: Callable[[HookPoint], Tensor], write: Tensor) -> Values:
            given = None if point is None else seen(point)
            vectors, shape = self.split(whole, given, write), (len(write), len(names), write.shape[1])
            if not isinstance(vectors, Tensor) or tuple(vectors.shape) != shape or not vectors.is_floating_point():
                got: Any = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
                raise InputError(f"{what} must split {whole} into a tensor of the shape {shape}, not {got}.")
            if not bool(vectors.isfinite().all()):
                raise InputError(f"{what} splits {whole} into numbers that are not finite.")
            return Vectors(vectors.detach().to(write))

        return SublayerCut(rows, () if point is None else (point,), read, error=True)


UnitLike = Unit | CustomUnit


def unit_of(unit: Any) -> UnitLike:
    """A unit as it was given. Raises InputError for what is neither a unit's name nor a `Cut`."""
    if not isinstance(unit, CustomUnit) and not (isinstance(unit, str) and unit in get_args(Unit)):
        names = ", ".join(map(repr, get_args(Unit)))
        raise InputError(f"unit={shown(unit)} is unknown: use {names}, ld.groups(...), ld.dictionary(...) or a ld.Cut.")
    return cast(UnitLike, unit)


def has_many(unit: UnitLike) -> bool:
    """Whether a unit has thousands of rows in a sublayer."""
    return unit == "neuron" if isinstance(unit, str) else unit.has_many


def unit_name(unit: UnitLike) -> str:
    """What results call a unit."""
    return unit if isinstance(unit, str) else unit.name
