"""What heads attend to, without changes to the model: the attention patterns of a text, and the values they weigh.

A pattern is read from the model itself. The values are the other factor of a product that the model computes, captured
while it runs. The product is identified by its result, the input of the output projection, so grouped, shared, latent
and fused projections, sliding windows and sinks need no special cases. A multiple of the product is accepted: gates,
and norms at their statistics, are held at their values in the pass, as are all coefficients between a component and the
logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._checks import check_memory
from ..components import Component, labels_of, positions
from ..errors import InputError
from ..results import Result
from .architecture import HALF, Architecture, HookPoint, Sublayer
from .batches import inference_mode_for, pad, upcast
from .capture import answers, hook, only_at, watching
from .load import Model, as_model
from .prompts import encode_one, token_texts
from .reconstruction import SAME_ANSWERS, answer_gap, tolerance
from .transformer_lens import is_transformer_lens

_PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)
_MULTIPLES = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
# The most successive multiplications to trace back: those of a norm with a gain, and a gate.
_STEPS = 4


@dataclass(frozen=True, eq=False)
class AttentionPatterns(Result):
    """Attention patterns: the weight of each key token at each query token. Made by `attention_patterns`.

    Attributes:
        components: The heads.
        token_ids, tokens: `[token]`: ids and their texts.
        patterns: `[head, query, key]`, at least 0, zero where key > query. A row sums to 1, or to less in models whose
            heads have a sink besides the tokens (GPT-OSS), which takes the rest.
    """

    components: tuple[Component, ...]
    token_ids: Int[np.ndarray, " token"]
    tokens: tuple[str, ...]
    patterns: Float[np.ndarray, "head query key"]
    model: str

    figures: ClassVar = {"maps": "attribution.attention_maps"}

    def plot(self, kind: Literal["maps"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per head, query and key up to it."""
        query, key = np.tril_indices(len(self.tokens))
        texts, heads = np.array(self.tokens, dtype=object), len(self.components)
        return pd.DataFrame(
            {
                "component": np.repeat([c.label for c in self.components], len(query)),
                "query": np.tile(query, heads),
                "key": np.tile(key, heads),
                "query_token": np.tile(texts[query], heads),
                "key_token": np.tile(texts[key], heads),
                "weight": self.patterns[:, query, key].reshape(-1),
            }
        )

    def __repr__(self) -> str:
        return f"AttentionPatterns({self.model}: {len(self.components)} heads × {len(self.tokens)} tokens)"


def attention_patterns(
    model: Any, text_or_ids: Any, heads: str | Component | Iterable[str | Component] | None = None
) -> AttentionPatterns:
    """Get the attention patterns of some heads of a model in a text.

    A Hugging Face model returns its patterns only with step-by-step ("eager") attention: it is switched to that for one
    pass and restored. TransformerLens models are read at `hook_pattern`.

    Args:
        model, text_or_ids: A `Model`, or anything `load_model` takes; one text or one list of ids, at most as long as
            the model reads.
        heads: Labels or components (`"L3.H5"`), or None for all.

    Raises InputError for heads that do not exist, for models that return no attention patterns or compute different
    logits when they do, and for texts whose patterns exceed memory.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> a = attention_patterns(tiny, [1, 2, 3], ["L0.H1", "L1.H0"])
    >>> a.patterns.shape, bool(np.allclose(a.patterns.sum(2), 1))
    ((2, 3, 3), True)
    """
    model = as_model(model)
    architecture, row = model.architecture, encode_one(model, text_or_ids)
    architecture.components("head")  # raises, with the reason, for attention without heads
    # Every head of every repeat of every layer, and the index of its pattern: (block, head).
    counts = {s.layer: s.output_map.count for s in architecture.sublayers if s.kind == "attn" and s.output_map}
    blocks = list(dict.fromkeys((sublayer.layer, repeat) for sublayer, repeat in model.sublayer_order))
    places = {
        Component("head", layer, head, repeat): (block, head)
        for block, (layer, repeat) in enumerate(blocks)
        for head in range(counts.get(layer, 0))
    }
    chosen = list(places)
    if heads is not None:
        chosen = [chosen[positions(chosen, label=label)[0]] for label in labels_of("heads", heads)]
    needed = 2 * 4 * len(places) * len(row) ** 2
    check_memory(needed, f"the patterns of {len(places)} heads over {len(row)} tokens", "take a shorter text")
    ids, mask = (x.to(architecture.device) for x in pad([row]))
    with inference_mode_for(architecture):
        read = _from_hooks if is_transformer_lens(architecture.root) else _from_outputs
        patterns = read(model, ids, mask, blocks)
        if patterns is None or any(patterns[places[component][0]] is None for component in chosen):
            raise InputError(
                f"{model.name} ({model.provenance['architecture']}) returns no attention patterns of these heads: "
                "load it with attn_implementation='eager', or choose others."
            )
        shown = torch.stack([patterns[block][head] for block, head in (places[component] for component in chosen)])
    return AttentionPatterns(
        components=tuple(chosen),
        token_ids=np.array(row),
        tokens=token_texts(model, row),
        patterns=shown.double().cpu().numpy(),
        model=model.name,
    )


def _from_outputs(model: Model, ids: Tensor, mask: Tensor, blocks: Sequence[tuple[int, int | None]]) -> Any:
    """Get every block's patterns `[head, query, key]` from a Hugging Face model; None without."""
    architecture = model.architecture
    with only_at(architecture.unembed, mask.sum(1) - 1):  # logits of all positions would be larger than the patterns
        plain = architecture.logits(ids, mask)
        options = {"use_cache": False, "output_attentions": True, "return_dict": True}
        with eager(architecture.root):
            out = architecture.root(input_ids=ids, attention_mask=mask, **options)
    attentions = getattr(out, "attentions", None)
    if not attentions or len(attentions) != len(blocks) or any(layer is None for layer in attentions):
        return None
    check_same_answers(model, out.logits, plain)
    return [upcast(pattern[0]).to(architecture.device) for pattern in attentions]


def _from_hooks(model: Model, ids: Tensor, mask: Tensor, blocks: Sequence[tuple[int, int | None]]) -> Any:
    """Get every block's patterns `[head, query, key]` from a TransformerLens model; None for a block without."""
    architecture = model.architecture
    hooks: Any = architecture.root.hook_dict
    names = {layer: f"blocks.{layer}.attn.hook_pattern" for layer, _ in blocks}
    points = {layer: HookPoint(hooks[name]) for layer, name in names.items() if name in hooks}
    with watching(points.values()) as seen:
        answers(architecture, ids, mask, mask.sum(1) - 1)
    found: list[Tensor | None] = []
    for layer, repeat in blocks:
        patterns = seen[points[layer]][(repeat or 1) - 1 :] if layer in points else []
        found.append(upcast(patterns[0][0]).to(architecture.device) if patterns else None)
    return found


@contextmanager
def eager(root: Any) -> Iterator[None]:
    """Use step-by-step attention within the context; the model's settings and transformers' hooks are restored."""
    name, mark = "_attn_implementation_internal", "_output_capturing_hooks_installed"
    # Parts of a model may have their own configurations, which the public setter also changes.
    parts = list(root.modules())
    configs = {id(config): config for part in parts if hasattr(config := getattr(part, "config", None), name)}
    ways = [(config, getattr(config, name)) for config in configs.values()]
    hooks = [set(part._forward_hooks) for part in parts]
    unmarked = [part for part in parts if not hasattr(part, mark)]
    try:
        for config, _ in ways:
            setattr(config, name, "eager")
        yield
    finally:
        for config, way in ways:
            setattr(config, name, way)
        for part, known in zip(parts, hooks, strict=True):
            for key in set(part._forward_hooks) - known:
                del part._forward_hooks[key]
        for part in unmarked:
            part.__dict__.pop(mark, None)


def check_same_answers(model: Model, logits: Tensor, plain: Tensor) -> None:
    """Raise InputError if a model's logits with step-by-step attention differ from its plain ones."""
    gap = answer_gap(logits, plain)
    if not gap <= tolerance(model.architecture.dtype, SAME_ANSWERS):
        raise InputError(
            f"{model.name} gives other logits (off by {gap:.1e} of the largest) when its attention is computed step by "
            "step: give one loaded with attn_implementation='eager'."
        )


@dataclass(frozen=True, eq=False)
class SourceValues:
    """The factors of one run of one attention: its output projection reads gate · Σ_source weight × value.

    Attributes:
        weights: `[row, head, query, source]`, after softmax, mask and sinks.
        values: `[row, head, source, width]`, for every query head.
        gate: `[row, head, query, width]`, or None without a gate.
    """

    weights: Float[Tensor, "row head query source"]
    values: Float[Tensor, "row head source width"]
    gate: Float[Tensor, "row head query width"] | None = None


class SourceWatch:
    """Captures the factors of all attentions in a pass of `ids` that runs inside its `watching()`.

    `seen` has, for each sublayer that is cut into heads, one entry per run; None where the input of its output
    projection is no multiple of such a product.
    """

    def __init__(self, architecture: Architecture, ids: Int[Tensor, "row token"]) -> None:
        self.architecture, (self.rows, self.tokens) = architecture, ids.shape
        self.sublayers = {s: s.output_map for s in architecture.sublayers if s.kind == "attn" and s.output_map}
        self.seen: dict[Sublayer, list[SourceValues | None]] = {s: [] for s in self.sublayers}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Compute attention step by step and capture it within the context; the model is restored afterwards."""
        root, products = self.architecture.root, _Products(self.tokens)
        with ExitStack() as stack:
            stack.enter_context(nullcontext() if is_transformer_lens(root) else eager(root))
            for sublayer, output_map in self.sublayers.items():
                stack.enter_context(hook(output_map.hook_point, partial(self._keep, products, sublayer)))
            stack.enter_context(products)
            yield

    def _keep(self, products: _Products, sublayer: Sublayer, args: Any, kwargs: Any, read: Tensor) -> None:
        count = self.sublayers[sublayer].count
        shape = (self.rows, count, self.tokens)
        read = read.reshape(self.rows, self.tokens, count, -1).transpose(1, 2)
        near = (1e-2 if read.dtype in HALF else 1e-5) * float(read.abs().max())
        factors = products.factors(read, shape, near)
        own = None if factors is None else [x if x is None else upcast(x).to(self.architecture.device) for x in factors]
        self.seen[sublayer].append(None if own is None else SourceValues(*own))  # type: ignore[arg-type]
        products.clear()


class _Products(TorchFunctionMode):
    """Records products in a pass: factors and results that may be attention over `tokens` tokens, and gates."""

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
        """Find (weights, values, gate) of a tensor `[row, head, query, width]`; None if it is no multiple of a product.

        `shape` is (rows, heads, tokens), `near` the tolerance, `gate` the factor that is divided out already.
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
    """List the ways to view a tensor as `[row, head, token, width]`."""
    rows, heads, tokens = shape
    ways = []
    if x.shape[0] == rows * tokens or x.shape[1] == tokens:
        ways.append(x.reshape(rows, tokens, heads, -1).transpose(1, 2))
    if x.dim() > 2 and x.shape[-2] == tokens:
        ways.append(x.reshape(rows, heads, tokens, -1))
    return ways


def value_biases(architecture: Architecture) -> dict[Sublayer, Float[Tensor, "head width"] | None]:
    """Compute the values of each attention for an input of zeros: its value bias.

    None where that is zero, or where it differs between tokens, so that no constant can be separated.
    """
    ids = torch.zeros(1, 2, dtype=torch.long, device=architecture.device)
    watch = SourceWatch(architecture, ids)
    with ExitStack() as stack:
        for point in (sublayer.inputs for sublayer in watch.sublayers):
            assert point is not None  # heads are found in a module
            stack.enter_context(hook(point, lambda a, k, x: None if x is None else x * 0.0))
        stack.enter_context(watch.watching())
        answers(architecture, ids, torch.ones_like(ids), torch.ones_like(ids[:, 0]))
    found: dict[Sublayer, Tensor | None] = {}
    for sublayer, runs in watch.seen.items():
        found[sublayer] = None
        if runs and runs[0] is not None:
            first, second = runs[0].values[0].unbind(1)  # of two equal tokens
            found[sublayer] = first if bool(first.any()) and torch.equal(first, second) else None
    return found
