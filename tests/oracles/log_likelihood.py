"""Options of several tokens from the definition: one plain pass of prompt and option, hooks, whole rows of logits.

For Llama and Mixtral (also with blocks listed twice), Gemma-2 and GPT-2 of Hugging Face. Everything is float64 after
the pass; nothing is shared with the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class Scored:
    """One option after one prompt: its numbers by component (in the order in which they write), and its log p."""

    values: np.ndarray
    parts: np.ndarray
    log_likelihood: float
    minus_entropy: float
    normalizer: float


def score(model: torch.nn.Module, prompt: list[int], option: list[int]) -> Scored:
    """The option's tokens one after another, each by the whole distribution before it."""
    writes: list[torch.Tensor] = []
    finals: list[torch.Tensor] = []

    def keep(module, args, output):
        writes.append((output[0] if isinstance(output, tuple) else output)[0].double())

    if hasattr(model, "transformer"):  # GPT-2
        inner, norm = model.transformer, model.transformer.ln_f
        distinct = [inner.wte, inner.wpe, *(m for block in inner.h for m in (block.attn, block.mlp))]
        gain, bias, eps, centered = norm.weight.double(), norm.bias.double(), norm.eps, True
    else:
        inner, norm = model.model, model.model.norm
        blocks = list(dict.fromkeys(inner.layers))
        sandwich = model.config.model_type == "gemma2"
        names = ("post_attention_layernorm", "post_feedforward_layernorm") if sandwich else ("self_attn", "mlp")
        distinct = [getattr(block, name) for block in blocks for name in names]
        gain, bias, eps = norm.weight.double() + sandwich, torch.zeros(()).double(), model.config.rms_norm_eps
        centered = False
    hooks = [module.register_forward_hook(keep) for module in distinct]
    hooks.append(norm.register_forward_pre_hook(lambda module, args: finals.append(args[0][0].double())))
    if not hasattr(model, "transformer"):

        def embedding(module, args, kwargs):
            if not writes:  # a block that is listed first may be listed again
                writes.append((args[0] if args else kwargs["hidden_states"])[0].double())

        hooks.append(inner.layers[0].register_forward_pre_hook(embedding, with_kwargs=True))
    with torch.no_grad():
        logits = model(torch.tensor([prompt + option]), use_cache=False).logits[0].double()
    for hook in hooks:
        hook.remove()

    unembedding = model.lm_head.weight.detach().double()
    stream = torch.stack([w.expand(len(finals[0]), -1) for w in writes])
    final = finals[-1]
    deviation = final - final.mean(-1, keepdim=True) if centered else final
    sigma = (deviation.square().mean(-1) + eps).sqrt()
    stream = stream - stream.mean(-1, keepdim=True) if centered else stream
    normed = stream / sigma[:, None] * gain
    constant = unembedding @ (bias.expand(len(gain)) if bias.dim() == 0 else bias)
    result = Scored(np.zeros(len(writes) + 1), np.zeros(len(writes) + 1), 0.0, 0.0, 0.0)
    for t, token in enumerate(option):
        at = len(prompt) + t - 1
        u = torch.cat([normed[:, at] @ unembedding.T, constant[None]])  # [component, vocabulary]
        p = logits[at].softmax(-1)
        log_p = logits[at].log_softmax(-1)
        parts = (u[:, token] - u @ p).detach()
        result.values += u[:, token].detach().numpy()
        result.parts += parts.numpy()
        result.log_likelihood += float(log_p[token])
        result.minus_entropy += float((p * log_p).sum())
        result.normalizer += float(log_p[token] - parts.sum())
    return result
