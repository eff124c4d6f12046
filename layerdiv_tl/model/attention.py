"""What each head looks at: attention patterns of a text, with the model left as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..components import Component, labels_of, positions
from ..errors import InputError
from ..results import Result
from . import tokenization as reading
from .architecture import HALF, HookPoint
from .batches import inference_mode_for, pad, upcast
from .hooks import on, only_at
from .load import Model, load_model
from .transformer_lens import is_transformer_lens

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class AttentionPatterns(Result):
    """How much each head reads, at every token, of every token up to there. Made by `attention_patterns`.

    components
        The heads.
    token_ids, tokens
        `[token]`: ids and their texts.
    patterns
        `[head, query, key]`, at least 0, zero where key > query. A row sums to 1; to less in models whose heads have a
        sink beside the tokens (GPT-OSS), which takes the rest.
    model
        The model's name.
    """

    components: tuple[Component, ...]
    token_ids: Int[np.ndarray, " token"]
    tokens: tuple[str, ...]
    patterns: Float[np.ndarray, "head query key"]
    model: str

    def frame(self) -> pd.DataFrame:
        """One row per head, query and key that is not behind it."""
        import pandas as pd

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
    """What some heads of a model look at in a text.

    A Hugging Face model shows its patterns only where its attention is computed step by step ("eager"): it is switched
    to that for one pass and put back. TransformerLens models are read at `hook_pattern`.

    model
        A `Model`, or anything `load_model` takes.
    text_or_ids
        One text, or one list of token ids, at most as long as the model reads.
    heads
        Labels or components (`"L3.H5"`), or None for all.

    Raises InputError for heads that do not exist, for models that do not show what their heads look at, or compute
    something else when they do, and for texts whose patterns memory cannot hold.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> a = attention_patterns(tiny, [1, 2, 3], ["L0.H1", "L1.H0"])
    >>> a.patterns.shape, bool(np.allclose(a.patterns.sum(2), 1))
    ((2, 3, 3), True)
    """
    model = load_model(model)
    rows = reading.encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"attention patterns are of one text, but {len(rows)} were given: ask for one after another.")
    model.architecture.components("head")  # refuses, with the reason, attention that has no heads to name
    repeats = list(dict.fromkeys((write.layer, repeat) for write, repeat in model.sublayer_order))
    places = _places(model, repeats)
    chosen = list(places)
    if heads is not None:
        chosen = [chosen[positions(chosen, label=label)[0]] for label in labels_of("heads", heads)]
    _check_room(len(places), len(rows[0]))
    ids, mask = (x.to(model.architecture.device) for x in pad(rows))
    with inference_mode_for(model.architecture):
        shown = _hooked if is_transformer_lens(model.architecture.root) else _asked
        found = shown(model, ids, mask, repeats, [places[component] for component in chosen])
    return AttentionPatterns(
        components=tuple(chosen),
        token_ids=np.array(rows[0]),
        tokens=reading.token_texts(model, np.array(rows[0])),
        patterns=found.double().cpu().numpy(),
        model=model.name,
    )


def _places(model: Model, repeats: Sequence[tuple[int, int | None]]) -> dict[Component, tuple[int, int]]:
    """Every head of every use of every layer -> (block in order of use, head)."""
    splits = {write.layer: write.output_map for write in model.architecture.sublayers if write.kind == "attn"}
    places = {}
    for block, (layer, repeat) in enumerate(repeats):
        split = splits.get(layer)
        for head in range(0 if split is None else split.count):
            places[Component("head", layer, head, repeat)] = (block, head)
    return places


def _check_room(heads: int, length: int) -> None:
    import psutil

    needed = 2 * 4 * heads * length**2
    if needed > psutil.virtual_memory().available:
        raise InputError(
            f"the attention of {heads} heads over {length} tokens needs {needed / 2**30:.1f} GiB, more than is free "
            "here: take a shorter text."
        )


def _asked(
    model: Model,
    ids: Tensor,
    mask: Tensor,
    repeats: Sequence[tuple[int, int | None]],
    places: Sequence[tuple[int, int]],
) -> Float[Tensor, "head query key"]:
    """From a Hugging Face model, asked for its attentions."""
    architecture = model.architecture
    with only_at(architecture.unembed, mask.sum(1) - 1):  # logits of all positions would be larger than the patterns
        plain = architecture.logits(ids, mask)
        with _eager(architecture.root):
            out = architecture.root(
                input_ids=ids, attention_mask=mask, use_cache=False, output_attentions=True, return_dict=True
            )
    found = getattr(out, "attentions", None)
    if not found or len(found) != len(repeats) or any(layer is None for layer in found):
        raise InputError(_hidden(model))
    # A model may say nothing at all at this token.
    gap = float((out.logits - plain).abs().max() / plain.abs().max().clamp_min(1e-6))
    if not gap <= (5e-2 if architecture.dtype in HALF else 1e-3):
        raise InputError(
            f"{model.name} answers differently (by {gap:.1e} of its logits) when it shows its attention patterns, so "
            "they would not be those of the model that is measured: give one loaded with attn_implementation='eager'."
        )
    return torch.stack([upcast(found[block][0, head]).to(architecture.device) for block, head in places])


def _hooked(
    model: Model,
    ids: Tensor,
    mask: Tensor,
    repeats: Sequence[tuple[int, int | None]],
    places: Sequence[tuple[int, int]],
) -> Float[Tensor, "head query key"]:
    """From a TransformerLens model, at its own hook points."""
    architecture = model.architecture
    hooks: Any = architecture.root.hook_dict
    layers = {repeats[block][0] for block, _ in places}
    seen: dict[int, list[Tensor]] = {layer: [] for layer in layers}  # one of every repeat

    def keep(layer: int, args: Any, kwargs: Any, pattern: Tensor) -> None:
        seen[layer].append(upcast(pattern[0]).to(architecture.device))

    with ExitStack() as stack:
        stack.enter_context(only_at(architecture.unembed, mask.sum(1) - 1))
        for layer in layers:
            if (name := f"blocks.{layer}.attn.hook_pattern") in hooks:
                stack.enter_context(on(HookPoint(hooks[name]), partial(keep, layer)))
        architecture.logits(ids, mask)
    shown = []
    for block, head in places:
        layer, repeat = repeats[block]
        if len(seen[layer]) < (repeat or 1):
            raise InputError(_hidden(model))
        shown.append(seen[layer][(repeat or 1) - 1][head])
    return torch.stack(shown)


def _hidden(model: Model) -> str:
    return (
        f"{model.name} ({model.provenance['architecture']}) does not show what its heads look at, so there are no "
        "attention patterns of it."
    )


@contextmanager
def _eager(root: Any) -> Iterator[None]:
    """Attention computed step by step; what was set, and what transformers hangs on a model to show it, is put back."""
    name, mark = "_attn_implementation_internal", "_output_capturing_hooks_installed"
    # Parts of a model may have configurations of their own. The public setter also writes to those of the parts.
    parts = list(root.modules())
    configs = {id(config): config for part in parts if hasattr(config := getattr(part, "config", None), name)}
    ways = {key: getattr(config, name) for key, config in configs.items()}
    hooks = [set(part._forward_hooks) for part in parts]
    unmarked = [part for part in parts if not hasattr(part, mark)]
    try:
        for config in configs.values():
            setattr(config, name, "eager")
        yield
    finally:
        for key, config in configs.items():
            setattr(config, name, ways[key])
        for part, known in zip(parts, hooks, strict=True):
            for key in set(part._forward_hooks) - known:
                del part._forward_hooks[key]
        for part in unmarked:
            part.__dict__.pop(mark, None)
