"""What heads attend to: the attention patterns of a text, without changes to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .._checks import check_memory
from ..components import Component, labels_of, positions
from ..errors import InputError
from ..results import Plot, Result
from .batches import pad
from .cache import is_transformer_lens
from .frozen import SAME_ANSWERS, answer_gap, tolerance, upcast
from .load import Model, as_model
from .patching import hooks
from .prompts import encode_one, token_texts
from .writers import Writer

# A call of an attention, and the pattern `[row, head, query, key]` of each.
Call = tuple[Writer, int]
Patterns = dict[Call, Tensor]


def _sharpest_frame(patterns: AttentionPatterns, heads: int = 4) -> pd.DataFrame:
    """The rows of the heads that attend most sharply beyond the first token, to which idle heads attend."""
    frame = patterns.frame()
    frame.attrs["about"] = f"{len(patterns.tokens)} tokens"
    sharpest = patterns.patterns[:, 1:, 1:].max(-1, initial=0.0).sum(-1)
    kept = np.sort(np.argsort(-sharpest, kind="stable")[:heads])
    return frame[frame["component"].isin([patterns.components[i].label for i in kept])]


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

    figures: ClassVar = {
        "maps": Plot(
            "Attention from each token to others",
            "A map query × key of each of the `heads` that attend most to single tokens other than the first.",
            "shapes.heat",
            _sharpest_frame,
            {
                "row": "query",
                "column": "key",
                "value": "weight",
                "row_name": "query_token",
                "column_name": "key_token",
                "panel": "component",
            },
        )
    }

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

    Raises InputError for heads that do not exist, and for models that return no attention patterns or compute different
    logits when they do.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> a = attention_patterns(tiny, [1, 2, 3], ["L0.H1", "L1.H0"])
    >>> a.patterns.shape, bool(np.allclose(a.patterns.sum(2), 1))
    ((2, 3, 3), True)
    """
    model = as_model(model)
    row = encode_one(model, text_or_ids)
    attentions = [(writer, call) for writer, call in model.path.calls if writer.kind == "attn"]
    places = [(call, head) for call in attentions for head in range(call[0].heads)]
    every = heads_of(model)
    chosen = list(range(len(every)))
    if heads is not None:
        chosen = [positions(every, label=label)[0] for label in labels_of("heads", heads)]
    count = len(row)
    needed = 4 * len(every) * count**2 + 16 * len(chosen) * count**2 + patterns_size(model, count, count)
    check_memory(needed, f"patterns of {len(every)} heads × {count}² tokens", "take a shorter text, or fewer heads")
    with model.path.session(), torch.inference_mode():
        read = _from_hooks if is_transformer_lens(model.root) else _from_outputs
        patterns = {call: x for call, x in read(model, row, attentions).items() if x.shape[1] == call[0].heads}
        if any(places[i][0] not in patterns for i in chosen):
            raise InputError(
                f"{model.name} ({model.provenance['architecture']}) returns no patterns of these heads: load it with "
                "attn_implementation='eager'."
            )
        shown = [patterns[call][0, head] for call, head in (places[i] for i in chosen)]
        shown = [upcast(pattern).double().cpu() for pattern in shown]
    return AttentionPatterns(
        components=tuple(every[i] for i in chosen),
        token_ids=np.array(row),
        tokens=token_texts(model, row),
        patterns=torch.stack(shown).numpy(),
        model=model.name,
    )


def heads_of(model: Model) -> tuple[Component, ...]:
    """All attention heads, in stream order. Raises InputError for a model without any."""
    heads = tuple(c for c in model.components("head") if c.kind == "head")
    if not heads:
        raise InputError(f"{model.name} has no attention heads.")
    return heads


def patterns_size(model: Model, tokens: int, batch_tokens: int) -> int:
    """The bytes of one layer's scores, mask and patterns in a batch of texts, which step-by-step attention holds."""
    heads = max(writer.heads for writer in model.path.writers)
    return 4 * 4 * heads * tokens * batch_tokens


def _from_outputs(model: Model, row: Sequence[int], attentions: Sequence[Call]) -> Patterns:
    """What a Hugging Face model returns; nothing where that is not a pattern for each of its attentions."""
    ids, mask = pad([row])
    last = torch.tensor([0]), torch.tensor([len(row) - 1])  # all logits would be larger than the patterns
    plain = model.path.logits(ids, mask, last)
    inputs = {"input_ids": ids.to(model.path.device), "attention_mask": mask.to(model.path.device)}
    with eager(model.root), hooks() as add:
        add(model.path.unembed.register_forward_pre_hook(lambda m, args: (args[0][:, -1:], *args[1:])))
        out = model.root(**inputs, use_cache=False, output_attentions=True, return_dict=True)
    found = [pattern for pattern in getattr(out, "attentions", None) or () if pattern is not None]
    if len(found) != len(attentions):
        return {}
    check_same_answers(model, out.logits, plain)
    return dict(zip(attentions, found, strict=True))


def _from_hooks(model: Model, row: Sequence[int], attentions: Sequence[Call]) -> Patterns:
    """What passes a TransformerLens model's `hook_pattern`."""
    found: Patterns = {}

    def listen(writer: Writer) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, pattern: Tensor) -> None:
            found[writer, sum(known is writer for known, _ in found)] = pattern

        return keep

    with hooks() as add:
        for writer in dict.fromkeys(writer for writer, _ in attentions):
            point: Any = getattr(writer.owner, "hook_pattern", None)
            if point is not None:
                add(point.register_forward_hook(listen(writer)))
        model.path.run(*pad([row]))
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
    if not gap <= tolerance(model.path.dtype, SAME_ANSWERS):
        raise InputError(
            f"{model.name} gives other logits (off by {gap:.1e} of the largest) with attn_implementation='eager'."
        )
