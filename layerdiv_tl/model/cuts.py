"""Units as users give them: a name, or a `Cut` of their own, which takes sublayers' writes apart into named parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from torch import Tensor

from .._checks import listed, shown
from ..components import Component, Unit
from ..errors import InputError
from .architecture import CustomUnit, HookPoint, Sublayer, SublayerCut, UnitLike, Values, Vectors


class Cut(CustomUnit):
    """A unit of your own: a way to take sublayers' writes to the residual stream apart into named parts.

    A subclass says which parts a sublayer has (`parts`) and what each of them writes (`split`); what they leave of the
    write is a row of its own, `L3.mlp.error`, so that all rows sum to the logits whatever the parts are. `name` is what
    results call the unit. The example halves the d numbers of a write; groups of neurons or heads are `groups`.

    >>> class Halves(Cut):
    ...     name = "half of the stream"
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


def unit_of(unit: Any) -> UnitLike:
    """A unit as it was given. Raises InputError for what is neither a unit's name nor a `Cut`."""
    if not isinstance(unit, CustomUnit) and not (isinstance(unit, str) and unit in get_args(Unit)):
        names = ", ".join(map(repr, get_args(Unit)))
        raise InputError(f"unit={shown(unit)} is unknown: use {names}, ld.groups(...), ld.dictionary(...) or a ld.Cut.")
    return cast(UnitLike, unit)


def is_fine(unit: UnitLike) -> bool:
    """Whether a unit has thousands of rows in a sublayer."""
    return unit == "neuron" if isinstance(unit, str) else unit.is_fine


def unit_name(unit: UnitLike) -> str:
    """What results call a unit."""
    return unit if isinstance(unit, str) else unit.name
