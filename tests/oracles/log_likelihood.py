"""Options of several tokens from the definition: one plain pass of prompt and option, hooks, whole rows of logits.

For Llama and Mixtral, Gemma 2 and GPT-2 of Hugging Face. Everything is float64 after the pass; nothing is shared with
the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tests.oracles.hooked_forward import layout_of, trace


@dataclass
class Scored:
    """One option after one prompt: its numbers by component (in the order in which they write), and its log p."""

    values: np.ndarray
    parts: np.ndarray
    log_likelihood: float
    minus_entropy: float
    normalizer: float


@torch.no_grad()
def score(model: torch.nn.Module, prompt: list[int], option: list[int]) -> Scored:
    """The option's tokens one after another, each by the whole distribution before it."""
    ids = [*prompt, *option]
    seen, norm = trace(model, ids), layout_of(model).final_norm
    embedding = [seen.inputs[0]]
    if hasattr(model, "transformer"):
        embedding = [model.transformer.wte.weight[ids], model.transformer.wpe.weight[: len(ids)]]
    sublayers = [write for pair in zip(seen.attention, seen.mlp, strict=True) for write in pair]
    stream, final = torch.stack([x.double() for x in [*embedding, *sublayers]]), seen.out[-1]
    if isinstance(norm, torch.nn.LayerNorm):
        stream, final = (x - x.mean(-1, keepdim=True) for x in (stream, final))
    sigma = (final.square().mean(-1) + getattr(norm, "variance_epsilon", getattr(norm, "eps", None))).sqrt()
    gain = norm.weight.double() + (model.config.model_type == "gemma2")
    bias = getattr(norm, "bias", torch.zeros(len(gain))).double()
    unembedding = model.lm_head.weight.double()
    found = Scored(np.zeros(len(stream) + 1), np.zeros(len(stream) + 1), 0.0, 0.0, 0.0)
    for at, token in enumerate(option, start=len(prompt) - 1):
        normed = torch.cat([stream[:, at] / sigma[at] * gain, bias[None]])
        u = normed @ unembedding.T  # [component and constant, vocabulary]
        p, log_p = seen.logits[at].softmax(-1), seen.logits[at].log_softmax(-1)
        parts = u[:, token] - u @ p
        found.values += u[:, token].numpy()
        found.parts += parts.numpy()
        found.log_likelihood += float(log_p[token])
        found.minus_entropy += float((p * log_p).sum())
        found.normalizer += float(log_p[token] - parts.sum())
    return found
