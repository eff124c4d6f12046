"""Where a model writes to its residual stream: found by the names of its modules, checked by every pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..components import Component, Kind

Names = Mapping[str, tuple[str, ...]]
# Class names of mixers whose name in the block may also be that of softmax attention.
_NOT_ATTENTION = re.compile("Delta|Rwkv|Mamba|Recurrent|Lightning|LSTM|Conv")


@dataclass(frozen=True)
class Form:
    """How a module returns `[n, t, d]`.

    Attributes:
        others: The type and number of further outputs; None where it returns a tensor.
        merged: True if rows and tokens are merged, `[n*t, d]`.
        width: d.
    """

    others: tuple[Any, int] | None
    merged: bool
    width: int

    def of(self, x: Tensor) -> Any:
        """A tensor as the module would return it; its further outputs are None."""
        x = x.flatten(0, 1) if self.merged else x
        return x if self.others is None else self.others[0]([x, *[None] * self.others[1]])


@dataclass(eq=False)
class Writer:
    """A part of the model that writes to the residual stream.

    Attributes:
        component: Its name; `layer` numbers the distinct blocks from 0.
        owner: The sublayer.
        projection: The matrix at its end, whose input can be cut into heads or neurons; the owner where there is none.
        source: The module that shows the projection's input: itself, what a TransformerLens component wraps, or a hook
            point, which gives it.
        heads: The number of equal parts of the projection's input that are heads; 0 for an MLP.
        experts: The module that adds its routed experts' outputs, for a mixture.
        block: The block that it is in; None for embeddings.
        place: The module whose output is the write.
        maps: The modules from the projection to the write, each given the output of the one before: the projection
            alone, or with the norm between a sublayer and the stream.
        form: How `place` returns it.
        behind: The module before such a norm, and how it returns; None where the sublayer's output is the write.
        is_partial: True if the stream after this write is read by nothing: the next writer does not see it.
    """

    component: Component
    owner: nn.Module
    projection: nn.Module
    heads: int = 0
    experts: nn.Module | None = None
    block: nn.Module | None = None
    place: nn.Module = field(default_factory=nn.Identity)
    source: nn.Module = field(default_factory=nn.Identity)
    maps: tuple[nn.Module, ...] = ()
    form: Form = Form(None, False, 0)
    behind: tuple[nn.Module, Form] | None = None
    is_partial: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of its component."""
        return self.component.kind

    def is_cut(self, unit: str) -> bool:
        """Whether it has heads, neurons or experts."""
        if unit == "head":
            return self.heads > 0
        if unit == "expert":
            return self.experts is not None
        is_matrix = self.projection is not self.owner or count_inputs(self.owner) is not None
        return unit == "neuron" and self.kind in ("mlp", "moe") and self.experts is None and is_matrix


def find_writers(model: Any, names: Names) -> list[Writer]:
    """Find all writers of a Hugging Face model, in the order of its modules."""
    base = getattr(model, "base_model", model)
    lists = [
        (parent, found)
        for parent in base.modules()
        if isinstance(found := first(parent, names["blocks"]), nn.ModuleList)
    ]
    blocks = list(dict.fromkeys(b for _, found in lists for b in found if any(_sublayers(b, names))))
    embed = model.get_input_embeddings()
    writers = [Writer(Component("embed"), embed, embed)]
    if lists and (positions := first(lists[0][0], names["positions"])) is not None:
        writers.append(Writer(Component("pos_embed"), positions, positions))
    for layer, block in enumerate(blocks):
        writers += [_writer(model, names, block, layer, kind, module) for kind, module in _sublayers(block, names)]
    # A module that is found twice counts once, where it is found last.
    return list({w.projection: w for w in reversed(writers)}.values())[::-1]


def _sublayers(block: nn.Module, names: Names) -> Iterator[tuple[Kind, nn.Module]]:
    """Kind and module of each part of a block that writes."""
    for role, roles in (("mixing", ("mixer", "attention")), *((role, (role,)) for role in ("mlp", "ple", "laurel"))):
        seen: set[nn.Module] = set()
        for name in (name for each in roles for name in names[each]):
            module = first(unwrapped(block), (name,))
            if module is None or seen & set(module.modules()):
                continue
            kind: Any = role
            if role == "mixing":
                kind = _kind_of_mixer(name, module, names)
            elif role == "mlp" and seen:
                kind = "moe"
            seen |= set(module.modules())
            yield kind, module


def _kind_of_mixer(name: str, module: nn.Module, names: Names) -> Kind:
    """The kind of a sublayer that mixes tokens, by its class; a `mixer` may be an MLP (Nemotron-H)."""
    cls = type(unwrapped(module)).__name__
    if name == "mixer" and re.search("MLP|MoE", cls):
        return "mlp"
    may_attend = name in (*names["attention"], "mixer", "temporal_block")
    return "attn" if may_attend and re.search("[Aa]ttention", cls) and not _NOT_ATTENTION.search(cls) else "mixer"


def _writer(model: Any, names: Names, block: nn.Module, layer: int, kind: Kind, module: nn.Module) -> Writer:
    cls = type(unwrapped(module)).__name__
    experts = module if "Experts" in cls else first(module, names["experts"])
    projection = first(module, names["projection"])
    if isinstance(module, nn.Sequential):
        projection = list(module.children())[-1]
    if isinstance(module, nn.Linear) or cls == "Conv1D":
        projection = module
    writer = Writer(Component(kind, layer), module, module, block=block)
    weight = getattr(projection, "weight", None)
    is_matrix = isinstance(weight, Tensor) and weight.dim() == 2
    if experts is not None or (kind in ("mlp", "moe") and "moe" in cls.lower() and not is_matrix):
        writer.experts = experts
    elif isinstance(weight, Tensor):
        writer.projection = projection
        if kind in ("attn", "mixer"):
            writer.heads = _heads(model, names, kind, module)
    return writer


def _heads(model: Any, names: Names, kind: Kind, module: nn.Module) -> int:
    """The number of heads of a sublayer, from the module itself; 0 for a mixer that has none."""
    own = next((n for name in names["heads"] if isinstance(n := getattr(module, name, None), int)), 0)
    if not own and kind == "attn":
        own = int(getattr(model.config.get_text_config(), "num_attention_heads", 0))
    # A differential head is two halves of twice the width.
    return own // 2 if type(unwrapped(module)).__name__.startswith("DiffLlama") else own


def first(module: nn.Module, names: tuple[str, ...]) -> Any:
    """The first child of these names, which may be paths; None if there is none."""
    for name in names:
        found: Any = module
        for step in name.split("."):
            found = getattr(found, step, None)
        if isinstance(found, nn.Module):
            return found
    return None


def unwrapped(module: Any) -> Any:
    """The module inside a TransformerLens component; any other one is returned."""
    return getattr(module, "original_component", module)


def count_inputs(matrix: nn.Module) -> int | None:
    """The number of a matrix's inputs, if its weight says so."""
    module: Any = unwrapped(matrix)
    weight = getattr(module, "weight", getattr(module, "matrix", None))
    if not isinstance(weight, Tensor) or weight.dim() < 2:
        return None
    is_transposed = type(module).__name__ in ("Conv1D", "Matrix")
    return int(weight.shape[:-1].numel() if is_transposed else weight.shape[1])
