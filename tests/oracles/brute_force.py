"""Brute-force reference for direct logit contributions: a test oracle, slow and literal on purpose.

It is written from the definitions alone, with PyTorch and Hugging Face transformers, and never imports
the package it is used to check. One prompt at a time, no padding. The writes to the residual stream are
caught with plain forward hooks; everything after that is float64 arithmetic on those writes.

    u(v) = sum_j W_U[v, j] * gain[j] * center(write)[j] / sigma(final residual)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, LlamaForCausalLM


@dataclass(frozen=True)
class Reference:
    labels: list[str]
    values: np.ndarray  # float64 [component, option]
    model_logits: np.ndarray  # [option], straight from the model's forward
    junction_scale: np.ndarray  # float64 [junction], the last is 1


@dataclass(frozen=True)
class Layout:
    """Where one of the two architectures keeps the modules that write to the residual stream."""

    embeddings: list[tuple[str, nn.Module]]
    attentions: list[nn.Module]
    output_projections: list[nn.Module]
    mlps: list[nn.Module]
    n_heads: int
    final_norm: nn.Module
    eps: float
    centered: bool  # True: LayerNorm; False: RMSNorm


def layout_of(model: LlamaForCausalLM | GPT2LMHeadModel) -> Layout:
    if isinstance(model, LlamaForCausalLM):
        return Layout(
            embeddings=[("embed", model.model.embed_tokens)],
            attentions=[layer.self_attn for layer in model.model.layers],
            output_projections=[layer.self_attn.o_proj for layer in model.model.layers],
            mlps=[layer.mlp for layer in model.model.layers],
            n_heads=model.config.num_attention_heads,
            final_norm=model.model.norm,
            eps=model.model.norm.variance_epsilon,
            centered=False,
        )
    if isinstance(model, GPT2LMHeadModel):
        return Layout(
            embeddings=[("embed", model.transformer.wte), ("pos_embed", model.transformer.wpe)],
            attentions=[block.attn for block in model.transformer.h],
            output_projections=[block.attn.c_proj for block in model.transformer.h],
            mlps=[block.mlp for block in model.transformer.h],
            n_heads=model.config.num_attention_heads,
            final_norm=model.transformer.ln_f,
            eps=model.transformer.ln_f.eps,
            centered=True,
        )
    raise TypeError(f"no layout for {type(model).__name__}")


def double(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float64).numpy().copy()


@contextmanager
def caught(
    outputs_of: dict[str, nn.Module], inputs_of: dict[str, nn.Module], position: int
) -> Iterator[dict[str, np.ndarray]]:
    """Fill a dict with the named modules' outputs and inputs at one position; remove the hooks afterwards."""
    seen: dict[str, np.ndarray] = {}
    handles = []
    for name, module in outputs_of.items():

        def keep_output(_module: nn.Module, _args: tuple, output: Tensor | tuple, name: str = name) -> None:
            tensor = output[0] if isinstance(output, tuple) else output  # an attention returns a tuple
            seen[name] = double(tensor[0, position])

        handles.append(module.register_forward_hook(keep_output))
    for name, module in inputs_of.items():

        def keep_input(_module: nn.Module, args: tuple, name: str = name) -> None:
            seen[name] = double(args[0][0, position])

        handles.append(module.register_forward_pre_hook(keep_input))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def output_matrix(projection: nn.Module) -> np.ndarray:
    """W_O as [in, out]: Conv1D stores it so, Linear stores the transpose."""
    weight = double(projection.weight)
    return weight.T if isinstance(projection, nn.Linear) else weight


def sigma_of(x: np.ndarray, eps: float, centered: bool) -> float:
    if centered:
        x = x - x.mean()
    return float(np.sqrt((x * x).mean() + eps))


def frozen_readout(
    model: LlamaForCausalLM | GPT2LMHeadModel, write: np.ndarray, sigma: float, option_ids: list[int]
) -> np.ndarray:
    """u(v) for each option: the final norm without its bias, its statistic held at sigma, then W_U."""
    layout = layout_of(model)
    centered = write - write.mean() if layout.centered else write
    normed = double(layout.final_norm.weight) * centered / sigma
    unembedding = double(model.lm_head.weight[option_ids])
    return np.array([np.sum(row * normed) for row in unembedding], dtype=np.float64)


def constant_term(model: LlamaForCausalLM | GPT2LMHeadModel, option_ids: list[int]) -> np.ndarray | None:
    """W_U @ (norm bias) + b_U for each option, or None where the model has neither bias."""
    norm_bias = getattr(layout_of(model).final_norm, "bias", None)
    logit_bias = model.lm_head.bias
    if norm_bias is None and logit_bias is None:
        return None
    constant = np.zeros(len(option_ids))
    if norm_bias is not None:
        constant = constant + double(model.lm_head.weight[option_ids]) @ double(norm_bias)
    if logit_bias is not None:
        constant = constant + double(logit_bias[option_ids])
    return constant


def run(
    model: LlamaForCausalLM | GPT2LMHeadModel, ids: list[int], position: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], Tensor]:
    """The sublayer-level writes and the head-level writes (both in stream order), and the model's logits."""
    layout = layout_of(model)
    outputs_of: dict[str, nn.Module] = dict(layout.embeddings)
    inputs_of: dict[str, nn.Module] = {}
    for i in range(len(layout.attentions)):
        outputs_of[f"L{i}.attn"] = layout.attentions[i]
        outputs_of[f"L{i}.mlp"] = layout.mlps[i]
        inputs_of[f"L{i}.z"] = layout.output_projections[i]
    with torch.no_grad(), caught(outputs_of, inputs_of, position) as seen:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, position]

    sublayers = {label: seen[label] for label in outputs_of}
    heads: dict[str, np.ndarray] = {label: seen[label] for label, _ in layout.embeddings}
    for i, projection in enumerate(layout.output_projections):
        z = seen[f"L{i}.z"]
        w_o = output_matrix(projection)
        width = len(z) // layout.n_heads
        for h in range(layout.n_heads):
            rows = slice(h * width, (h + 1) * width)
            heads[f"L{i}.H{h}"] = z[rows] @ w_o[rows]
        if projection.bias is not None:
            heads[f"L{i}.attn_bias"] = double(projection.bias)
        heads[f"L{i}.mlp"] = seen[f"L{i}.mlp"]
    return sublayers, heads, logits


def reference(
    model: LlamaForCausalLM | GPT2LMHeadModel,
    ids: list[int],
    option_ids: list[int],
    unit: str = "sublayer",
    position: int = -1,
) -> Reference:
    """Direct contributions of every component to the options' logits at one position of one prompt."""
    if unit not in ("sublayer", "head"):
        raise ValueError(f"unit must be 'sublayer' or 'head', not {unit!r}")
    if model.training:
        raise ValueError("the model must be in eval mode")
    layout = layout_of(model)
    sublayers, heads, logits = run(model, ids, position)

    # The stream after each sublayer-level write; the last one is the full final residual.
    stream = np.zeros(model.config.hidden_size)
    sigmas: list[float] = []
    for write in sublayers.values():
        stream = stream + write
        sigmas.append(sigma_of(stream, layout.eps, layout.centered))
    final_sigma = sigmas[-1]

    labels: list[str] = []
    values: list[np.ndarray] = []
    for label, write in (sublayers if unit == "sublayer" else heads).items():
        labels.append(label)
        values.append(frozen_readout(model, write, final_sigma, option_ids))
    constant = constant_term(model, option_ids)
    if constant is not None:
        labels.append("constant")
        values.append(constant)

    return Reference(
        labels=labels,
        values=np.stack(values),
        model_logits=logits[option_ids].numpy(),
        junction_scale=np.array(sigmas) / final_sigma,
    )
