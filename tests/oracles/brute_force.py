"""Brute-force reference for direct logit contributions: a test oracle, slow and literal on purpose.

It is written from the definitions alone, for Hugging Face's Llama and GPT-2, and never imports the package it is used
to check. One prompt at a time, no padding. The writes to the residual stream are caught with plain forward hooks;
everything after that is float64 arithmetic on those writes.

    u(v) = sum_j W_U[v, j] * gain[j] * center(write)[j] / sigma(final residual)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from tests.oracles.hooked_forward import layout_of, trace

Model = Any  # LlamaForCausalLM or GPT2LMHeadModel
Writes = dict[str, np.ndarray]


@dataclass(frozen=True)
class Reference:
    labels: list[str]
    values: np.ndarray  # float64 [component, option]
    model_logits: np.ndarray  # [option], straight from the model's forward


def double(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy().copy()


def center(model: Model, write: np.ndarray) -> np.ndarray:
    """What a LayerNorm subtracts and an RMSNorm leaves."""
    return write - write.mean() if isinstance(layout_of(model).final_norm, nn.LayerNorm) else write


def sigma_of(model: Model, stream: np.ndarray) -> float:
    """The final norm's statistic of a stream."""
    norm, x = layout_of(model).final_norm, center(model, stream)
    return float(np.sqrt((x * x).mean() + getattr(norm, "variance_epsilon", getattr(norm, "eps", None))))


def frozen_readout(model: Model, write: np.ndarray, sigma: float, option_ids: list[int]) -> np.ndarray:
    """u(v) for each option: the final norm without its bias, its statistic held at sigma, then W_U."""
    normed = double(layout_of(model).final_norm.weight) * center(model, write) / sigma
    return np.array([np.sum(row * normed) for row in double(model.lm_head.weight[option_ids])])


def constant_term(model: Model, option_ids: list[int]) -> np.ndarray | None:
    """W_U @ (norm bias) + b_U for each option, or None where the model has neither bias."""
    norm_bias, logit_bias = getattr(layout_of(model).final_norm, "bias", None), model.lm_head.bias
    if norm_bias is None and logit_bias is None:
        return None
    constant = np.zeros(len(option_ids))
    if norm_bias is not None:
        constant = constant + double(model.lm_head.weight[option_ids]) @ double(norm_bias)
    if logit_bias is not None:
        constant = constant + double(logit_bias[option_ids])
    return constant


def writes_of(model: Model, ids: list[int], position: int = -1) -> tuple[Writes, Writes, Tensor]:
    """What sublayers and what heads write at a position (both in stream order), and the model's logits there."""
    seen, layout = trace(model, ids), layout_of(model)
    embedding = double(model.get_input_embeddings().weight[ids[position]])
    sublayers = {"embed": embedding}
    if hasattr(model, "transformer"):
        sublayers["pos_embed"] = double(model.transformer.wpe.weight[range(len(ids))[position]])
    heads = dict(sublayers)
    for i, projection in enumerate(layout.projections):
        # W_O as [in, out]: Conv1D stores it so, Linear stores the transpose.
        w_o = double(projection.weight).T if isinstance(projection, nn.Linear) else double(projection.weight)
        z = seen.values[i, position].numpy()
        for h, rows in enumerate(np.split(np.arange(len(z)), model.config.num_attention_heads)):
            heads[f"L{i}.H{h}"] = z[rows] @ w_o[rows]
        if projection.bias is not None:
            heads[f"L{i}.attn_bias"] = double(projection.bias)
        sublayers[f"L{i}.attn"] = seen.attention[i, position].numpy()
        sublayers[f"L{i}.mlp"] = heads[f"L{i}.mlp"] = seen.mlp[i, position].numpy()
    return sublayers, heads, seen.logits[position]


def reference(
    model: Model, ids: list[int], option_ids: list[int], unit: str = "sublayer", position: int = -1
) -> Reference:
    """Direct contributions of every component to the options' logits at one position of one prompt."""
    sublayers, heads, logits = writes_of(model, ids, position)
    sigma = sigma_of(model, np.sum(list(sublayers.values()), axis=0))
    members = sublayers if unit == "sublayer" else heads
    values = {label: frozen_readout(model, write, sigma, option_ids) for label, write in members.items()}
    constant = constant_term(model, option_ids)
    if constant is not None:
        values["constant"] = constant
    return Reference(list(values), np.stack(list(values.values())), logits[option_ids].numpy())
