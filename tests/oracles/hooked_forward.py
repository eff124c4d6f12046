"""Plain forward hooks on a Hugging Face causal LM: every residual, sublayer output and logit, and edits of them.

A test oracle: it never imports the package it is used to check. One prompt at a time, no padding, no block listed
twice. Forward passes run in the model's own precision, what is kept is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Ids = Sequence[int]
Edit = Callable[[Tensor, Tensor], Tensor]  # (what stands there, what the layer or projection read) -> what instead
# A place is a kind and a layer: its "input", the "values" that the output projection of attention reads, what
# "attention" and "mlp" add to the stream, the output of the "layer".
Place = tuple[str, int]
Edits = Mapping[Place, Edit]


@dataclass(frozen=True)
class Layout:
    layers: list[nn.Module]
    attentions: list[nn.Module]
    projections: list[nn.Module]
    mlps: list[nn.Module]
    final_norm: nn.Module
    head: nn.Module


@dataclass(frozen=True)
class Trace:
    """One forward pass, float64 on the CPU. `raw_out` is a layer's output before an edit of it, `out` after."""

    inputs: Tensor  # [L, T, d]
    values: Tensor  # [L, T, heads * width], after edits
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
    """GPT-NeoX, GPT-2, Llama-like models, and those with norms after the sublayers too (Gemma 2)."""
    if hasattr(model, "gpt_neox"):
        layers, norm = model.gpt_neox.layers, model.gpt_neox.final_layer_norm
        attentions = [x.attention for x in layers]
        projections = [x.dense for x in attentions]
    elif hasattr(model, "transformer"):
        layers, norm = model.transformer.h, model.transformer.ln_f
        attentions = [x.attn for x in layers]
        projections = [x.c_proj for x in attentions]
    else:
        layers, norm = model.model.layers, model.model.norm
        attentions = [x.self_attn for x in layers]
        projections = [x.o_proj for x in attentions]
    mlps = [x.mlp for x in layers]
    if hasattr(layers[0], "post_feedforward_layernorm"):
        attentions = [x.post_attention_layernorm for x in layers]
        mlps = [x.post_feedforward_layernorm for x in layers]
    return Layout(list(layers), attentions, projections, mlps, norm, model.get_output_embeddings())


@contextmanager
def hooked(model: nn.Module, edits: Edits, log: dict[Place, Tensor] | None = None) -> Iterator[None]:
    """Apply `edits` during forward passes and keep what stands at every place in `log`, batch and gradient as they are.

    `log["raw_layer", l]` is a layer's output before an edit of it.
    """
    layout, handles = layout_of(model), []
    kept: dict[Place, Tensor] = {} if log is None else log

    def before(kind: str, index: int) -> Callable:
        def hook(_module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            value = args[0] if args else kwargs["hidden_states"]
            if edit := edits.get((kind, index)):
                value = edit(value, value)
            kept[kind, index] = value
            return ((value, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": value})

        return hook

    def after(kind: str, index: int) -> Callable:
        def hook(_module: nn.Module, _args: tuple, output: Tensor | tuple) -> Tensor | tuple:
            value = output[0] if isinstance(output, tuple) else output
            kept["raw_" + kind, index] = value
            if edit := edits.get((kind, index)):
                value = edit(value, kept["input", index])
            kept[kind, index] = value
            return (value, *output[1:]) if isinstance(output, tuple) else value

        return hook

    for index, layer in enumerate(layout.layers):
        handles.append(layer.register_forward_pre_hook(before("input", index), with_kwargs=True))
        handles.append(layout.projections[index].register_forward_pre_hook(before("values", index), with_kwargs=True))
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
    log: dict[Place, Tensor] = {}
    with hooked(model, edits or {}, log):
        logits = logits_of(model, ids)[0].double().cpu()
    count = len(layout_of(model).layers)
    kinds = ("input", "values", "raw_layer", "layer", "attention", "mlp")
    return Trace(
        *(torch.stack([log[kind, index][0].double().cpu() for index in range(count)]) for kind in kinds), logits
    )
