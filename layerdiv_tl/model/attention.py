"""Attention patterns of a text, with the model left as it was."""

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
from .architecture import HALF, HookPoint
from .batches import inference_mode_for, pad, upcast
from .capture import answers, on, only_at
from .load import Model, as_model
from .prompts import encode_one, token_texts
from .transformer_lens import is_transformer_lens

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class AttentionPatterns(Result):
    """Attention patterns: the weight of each key token at each query token. Made by `attention_patterns`.

    Attributes:
        components: The heads.
        token_ids, tokens: `[token]`: ids and their texts.
        patterns: `[head, query, key]`, at least 0, zero where key > query. A row sums to 1; to less in models whose
            heads have a sink besides the tokens (GPT-OSS), which takes the rest.
    """

    components: tuple[Component, ...]
    token_ids: Int[np.ndarray, " token"]
    tokens: tuple[str, ...]
    patterns: Float[np.ndarray, "head query key"]
    model: str

    def frame(self) -> pd.DataFrame:
        """One row per head, query and key up to it."""
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
    """Attention patterns of some heads of a model in a text.

    A Hugging Face model shows its patterns only where its attention is computed step by step ("eager"): it is switched
    to that for one pass and put back. TransformerLens models are read at `hook_pattern`.

    Args:
        model, text_or_ids: A `Model`, or anything `load_model` takes; one text or one list of ids, at most as long as
            the model reads.
        heads: Labels or components (`"L3.H5"`), or None for all.

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
    import psutil

    model = as_model(model)
    architecture, row = model.architecture, encode_one(model, text_or_ids)
    architecture.components("head")  # refuses, with the reason, attention that has no heads to name
    # Every head of every repeat of every layer, and where its pattern stands: (number of the block, head).
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
    if needed > psutil.virtual_memory().available:
        raise InputError(
            f"the attention of {len(places)} heads over {len(row)} tokens needs {needed / 2**30:.1f} GiB, more "
            "than is free here: take a shorter text."
        )
    ids, mask = (x.to(architecture.device) for x in pad([row]))
    with inference_mode_for(architecture):
        read = _from_hooks if is_transformer_lens(architecture.root) else _from_outputs
        patterns = read(model, ids, mask, blocks)
        if patterns is None or any(patterns[places[component][0]] is None for component in chosen):
            raise InputError(f"{model.name} ({model.provenance['architecture']}) does not show what its heads look at.")
        shown = torch.stack([patterns[block][head] for block, head in (places[component] for component in chosen)])
    return AttentionPatterns(
        components=tuple(chosen),
        token_ids=np.array(row),
        tokens=token_texts(model, row),
        patterns=shown.double().cpu().numpy(),
        model=model.name,
    )


def _from_outputs(model: Model, ids: Tensor, mask: Tensor, blocks: Sequence[tuple[int, int | None]]) -> Any:
    """Every block's patterns `[head, query, key]` from a Hugging Face model; None without."""
    architecture = model.architecture
    with only_at(architecture.unembed, mask.sum(1) - 1):  # logits of all positions would be larger than the patterns
        plain = architecture.logits(ids, mask)
        options = {"use_cache": False, "output_attentions": True, "return_dict": True}
        with eager(architecture.root):
            out = architecture.root(input_ids=ids, attention_mask=mask, **options)
    attentions = getattr(out, "attentions", None)
    if not attentions or len(attentions) != len(blocks) or any(layer is None for layer in attentions):
        return None
    # A model's logits may be zero at this token.
    gap = float((out.logits - plain).abs().max() / plain.abs().max().clamp_min(1e-6))
    if not gap <= (5e-2 if architecture.dtype in HALF else 1e-3):
        raise InputError(
            f"{model.name} answers differently (by {gap:.1e} of its logits) when it shows its attention patterns: give "
            "one loaded with attn_implementation='eager'."
        )
    return [upcast(pattern[0]).to(architecture.device) for pattern in attentions]


def _from_hooks(model: Model, ids: Tensor, mask: Tensor, blocks: Sequence[tuple[int, int | None]]) -> Any:
    """Every block's patterns `[head, query, key]` from a TransformerLens model; None for a block without."""
    architecture = model.architecture
    hooks: Any = architecture.root.hook_dict
    seen: dict[int, list[Tensor]] = {layer: [] for layer, _ in blocks}  # one of every repeat

    def keep(layer: int, args: Any, kwargs: Any, pattern: Tensor) -> None:
        seen[layer].append(upcast(pattern[0]).to(architecture.device))

    with ExitStack() as stack:
        for layer in seen:
            if (name := f"blocks.{layer}.attn.hook_pattern") in hooks:
                stack.enter_context(on(HookPoint(hooks[name]), partial(keep, layer)))
        answers(architecture, ids, mask, mask.sum(1) - 1)
    repeats = [(seen[layer], repeat or 1) for layer, repeat in blocks]
    return [patterns[repeat - 1] if len(patterns) >= repeat else None for patterns, repeat in repeats]


@contextmanager
def eager(root: Any) -> Iterator[None]:
    """Attention computed step by step; what was set, and what transformers hangs on a model to show it, is put back."""
    name, mark = "_attn_implementation_internal", "_output_capturing_hooks_installed"
    # Parts of a model may have configurations of their own. The public setter also writes to those of the parts.
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
