"""What each head reads at every token before its output projection: the weights of its attention, and the values.

They are the two factors of a product that the model itself forms, seen while it runs. Which product that is, is told by
its result, which must be what goes into the output projection; so grouped, shared, latent and fused projections,
sliding windows and sinks need no cases of their own. A multiple of the product will do: a gate, or a norm at its
statistic, is held at what the pass made it, as all coefficients between a component and the logits are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .architecture import HALF, Architecture, Sublayer
from .attention import eager
from .batches import upcast
from .capture import HookPoint, answers, on
from .transformer_lens import is_transformer_lens

_PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)
_MULTIPLES = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
# How many multiplications in a row are gone back through: those of a norm with a gain, and a gate.
_STEPS = 4


@dataclass(frozen=True, eq=False)
class SourceValues:
    """The factors of one run of one attention: what its output projection reads is gate · Σ_source weight × value.

    Attributes:
        weights: `[row, head, query, source]`, after softmax, mask and sinks.
        values: `[row, head, source, width]`, of every head of queries.
        gate: `[row, head, query, width]`, or None where nothing stands between.
    """

    weights: Float[Tensor, "row head query source"]
    values: Float[Tensor, "row head source width"]
    gate: Float[Tensor, "row head query width"] | None = None


class SourceWatch:
    """Sees the factors of all attentions in a pass of `ids` that runs inside its `watching()`.

    `seen` has, for each sublayer that is cut into heads (by its id), one entry for every time it ran; None where what
    its output projection reads is no multiple of such a product.
    """

    def __init__(self, architecture: Architecture, ids: Int[Tensor, "row token"]) -> None:
        self.architecture, (self.rows, self.tokens) = architecture, ids.shape
        self.sublayers = [s for s in architecture.sublayers if s.kind == "attn" and s.output_map is not None]
        self.seen: dict[Sublayer, list[SourceValues | None]] = {s: [] for s in self.sublayers}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Attention is computed step by step here, and looked at; afterwards the model is as it was."""
        root, products = self.architecture.root, _Products(self.tokens)
        with ExitStack() as stack:
            stack.enter_context(nullcontext() if is_transformer_lens(root) else eager(root))
            for sublayer in self.sublayers:
                assert sublayer.output_map is not None
                keep = partial(self._keep, products, sublayer)
                stack.enter_context(on(sublayer.output_map.hook_point, keep))
            stack.enter_context(products)
            yield

    def _keep(self, products: _Products, sublayer: Sublayer, args: Any, kwargs: Any, read: Tensor) -> None:
        assert sublayer.output_map is not None
        shape = (self.rows, sublayer.output_map.count, self.tokens)
        read = read.reshape(self.rows, self.tokens, sublayer.output_map.count, -1).transpose(1, 2)
        near = (1e-2 if read.dtype in HALF else 1e-5) * float(read.abs().max())
        factors = products.factors(read, shape, near)
        if factors is None:
            self.seen[sublayer].append(None)
        else:
            weights, values, gate = factors
            device = self.architecture.device
            own = None if gate is None else upcast(gate).to(device)
            self.seen[sublayer].append(SourceValues(upcast(weights).to(device), upcast(values).to(device), own))
        products.clear()


class _Products(TorchFunctionMode):
    """Keeps what is multiplied in a pass: factors and results that may be attention over `tokens` tokens, and gates."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.clear()

    def clear(self) -> None:
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []
        self.multiples: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if len(args) == 2 and all(isinstance(x, Tensor) for x in args):
            a, b = args
            if func in _PRODUCTS and a.shape[-2:] == (self.tokens, self.tokens) and min(a.dim(), b.dim()) > 2:
                self.products.append((a, b, out))
            elif func in _MULTIPLES and self.products:
                self.multiples.append((a, b, out))
        return out

    def factors(
        self, wanted: Tensor, shape: tuple[int, int, int], near: float, gate: Tensor | None = None, steps: int = _STEPS
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """(weights, values, gate) of a tensor `[row, head, query, width]`; None where it is no multiple of a product.

        `shape` is (rows, heads, tokens), `near` by how much a number may be off, `gate` what is divided out already.
        """
        for weights, values, product in reversed(self.products):
            if product.shape[:-2].numel() == shape[0] * shape[1] and _is_near(product, wanted, shape, near):
                parts = (x.expand(*product.shape[:-2], *x.shape[-2:]) for x in (weights, values))
                weights, values = (x.reshape(*shape[:2], *x.shape[-2:]) for x in parts)
                return weights, values, gate
        for a, b, out in reversed(self.multiples if steps else []):
            if not _is_near(out, wanted, shape, near):
                continue
            for inner, factor in ((a, b), (b, a)):
                if inner.shape != out.shape:
                    continue
                pairs = zip(_by_head(inner, shape), _by_head(factor.expand_as(out), shape), strict=True)
                for x, own in pairs:
                    whole = own if gate is None else own * gate
                    found = self.factors(
                        x, shape, near * float(x.abs().max() / wanted.abs().max().clamp_min(1e-30)), whole, steps - 1
                    )
                    if found is not None:
                        return found
        return None


def _is_near(x: Tensor, wanted: Tensor, shape: tuple[int, int, int], near: float) -> bool:
    ways = _by_head(x, shape) if x.numel() == wanted.numel() else []
    return any(float((way - wanted).abs().max()) <= near for way in ways)


def _by_head(x: Tensor, shape: tuple[int, int, int]) -> list[Tensor]:
    """The ways in which a tensor may be read as `[row, head, token, width]`."""
    rows, heads, tokens = shape
    ways = []
    if x.shape[0] == rows * tokens or x.shape[1] == tokens:
        ways.append(x.reshape(rows, tokens, heads, -1).transpose(1, 2))
    if x.dim() > 2 and x.shape[-2] == tokens:
        ways.append(x.reshape(rows, heads, tokens, -1))
    return ways


def value_biases(architecture: Architecture) -> dict[Sublayer, Float[Tensor, "head width"] | None]:
    """What the values of each attention are for an input of zeros: its value bias.

    None where that is nothing, or where it is not the same at every token, so that no constant can be told apart.
    """
    ids, root = torch.zeros(1, 2, dtype=torch.long, device=architecture.device), architecture.root
    watch = SourceWatch(architecture, ids)
    owners = {child: parent for parent in root.modules() for child in parent.children()}
    with ExitStack() as stack:
        for sublayer in watch.sublayers:
            attention = _attention_of(architecture, sublayer, owners)
            stack.enter_context(on(HookPoint(attention, "in"), lambda a, k, x: None if x is None else x * 0.0))
        stack.enter_context(watch.watching())
        answers(architecture, ids, torch.ones_like(ids), torch.ones_like(ids[:, 0]))
    found: dict[Sublayer, Tensor | None] = {}
    for key, runs in watch.seen.items():
        values = runs[0].values[0] if runs and runs[0] is not None else None
        is_bias = values is not None and bool(values.any()) and torch.equal(values[:, 0], values[:, 1])
        found[key] = values[:, 0] if is_bias and values is not None else None
    return found


def _attention_of(architecture: Architecture, sublayer: Sublayer, owners: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module that reads the stream and holds an attention's output projection."""
    assert sublayer.output_map is not None
    if is_transformer_lens(architecture.root):
        blocks: Any = architecture.root.blocks
        attention: nn.Module = blocks[sublayer.layer].attn
        return attention
    module = owners[sublayer.output_map.hook_point.module]
    while hasattr(module, "base_layer"):  # an adapted projection holds the projection
        module = owners[module]
    return module
