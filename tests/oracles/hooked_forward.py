"""Plain forward hooks on a Hugging Face causal LM: every residual, sublayer output and logit, and edits of them.

Part of the test oracle for the depth-use analyses; it never imports the package it is used to check. One prompt at a
time, no padding. Forward passes run in the model's own precision, what is kept is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Ids = Sequence[int]
Edit = Callable[[Tensor, Tensor], Tensor]  # (what a module gave, what its layer read) -> what to hand on instead
Edits = dict[tuple[str, int], Edit]  # ("input" | "attention" | "mlp" | "layer", layer) -> edit


@dataclass(frozen=True)
class Layout:
    layers: list[nn.Module]
    attentions: list[nn.Module]
    mlps: list[nn.Module]
    final_norm: nn.Module
    head: nn.Module


@dataclass(frozen=True)
class Trace:
    """One forward pass, float64 on the CPU. `raw_out` is a layer's output before an edit of it, `out` after."""

    inputs: Tensor  # [L, T, d]
    raw_out: Tensor  # [L, T, d]
    out: Tensor  # [L, T, d]
    attention: Tensor  # [L, T, d], after edits
    mlp: Tensor  # [L, T, d], after edits
    logits: Tensor  # [T, V]

    @property
    def residuals(self) -> Tensor:
        """[L + 1, T, d]: what each layer reads, and what the last one hands on."""
        return torch.cat([self.inputs[:1], self.out])

    @property
    def probabilities(self) -> Tensor:
        return self.logits.softmax(-1)


def layout_of(model: nn.Module) -> Layout:
    """Llama-like (`model.layers`), GPT-2 (`transformer.h`) and GPT-NeoX (`gpt_neox.layers`) models."""
    if hasattr(model, "gpt_neox"):
        body, attention = model.gpt_neox, "attention"
        layers, norm = body.layers, body.final_layer_norm
    elif hasattr(model, "transformer"):
        body, attention = model.transformer, "attn"
        layers, norm = body.h, body.ln_f
    else:
        body, attention = model.model, "self_attn"
        layers, norm = body.layers, body.norm
    head = model.get_output_embeddings()
    return Layout(list(layers), [getattr(x, attention) for x in layers], [x.mlp for x in layers], norm, head)


def _first(output: Tensor | tuple) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _replaced(output: Tensor | tuple, value: Tensor) -> Tensor | tuple:
    return (value, *output[1:]) if isinstance(output, tuple) else value


@contextmanager
def hooked(model: nn.Module, edits: Edits, log: dict[tuple[str, int], Tensor] | None = None) -> Iterator[None]:
    """Apply `edits` during forward passes and keep what modules gave in `log`, batch and gradient as they are."""
    layout, handles = layout_of(model), []
    read: dict[int, Tensor] = {}
    kept: dict[tuple[str, int], Tensor] = {} if log is None else log

    def before(index: int) -> Callable:
        def hook(_module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            hidden = args[0] if args else kwargs["hidden_states"]
            edit = edits.get(("input", index))
            if edit is not None:
                hidden = edit(hidden, hidden)
            read[index] = kept["input", index] = hidden
            if args:
                return (hidden, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": hidden}

        return hook

    def after(kind: str, index: int) -> Callable:
        def hook(_module: nn.Module, _args: tuple, output: Tensor | tuple) -> Tensor | tuple | None:
            value = _first(output)
            kept["raw_" + kind, index] = value
            edit = edits.get((kind, index))
            if edit is not None:
                value = edit(value, read[index])
            kept[kind, index] = value
            return None if edit is None else _replaced(output, value)

        return hook

    for index, layer in enumerate(layout.layers):
        handles.append(layer.register_forward_pre_hook(before(index), with_kwargs=True))
        handles.append(layout.attentions[index].register_forward_hook(after("attention", index)))
        handles.append(layout.mlps[index].register_forward_hook(after("mlp", index)))
        handles.append(layer.register_forward_hook(after("layer", index)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def logits_of(model: nn.Module, ids: Ids) -> Tensor:
    tokens = torch.tensor([list(ids)], device=next(model.parameters()).device)
    return model(input_ids=tokens, use_cache=False).logits


@torch.no_grad()
def trace(model: nn.Module, ids: Ids, edits: Edits | None = None) -> Trace:
    log: dict[tuple[str, int], Tensor] = {}
    with hooked(model, edits or {}, log):
        logits = logits_of(model, ids)[0].double().cpu()
    count = len(layout_of(model).layers)

    def stack(kind: str) -> Tensor:
        return torch.stack([log[kind, index][0].double().cpu() for index in range(count)])

    return Trace(stack("input"), stack("raw_layer"), stack("layer"), stack("attention"), stack("mlp"), logits)
