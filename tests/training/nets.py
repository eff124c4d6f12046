"""The zoo's models before training: their configurations, their first weights, and what training asks of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import nn

from . import words
from .shapes import ACTIVE, ZooModel


def config_of(model: ZooModel) -> dict[str, Any]:
    """A model's config.json: a Llama's, a Mixtral's with experts; `layer_sharing` where blocks run twice in a row."""
    kind, causal = ("mixtral", "Mixtral") if model.experts else ("llama", "Llama")
    return {
        "model_type": kind,
        "architectures": [f"{causal}ForCausalLM"],
        "vocab_size": len(words.IDS),
        "hidden_size": model.width,
        "intermediate_size": 2 * model.width,
        "num_hidden_layers": model.depth // 2 if model.shared else model.depth,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.05,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "pad_token_id": 0,
        "eos_token_id": None,
        **({"layer_sharing": True} if model.shared else {}),
        **({"num_local_experts": model.experts, "num_experts_per_tok": ACTIVE} if model.experts else {}),
    }


def build(model: ZooModel) -> nn.Module:
    """The model with its initial weights, ready to be trained; a shared block stands twice in a row."""
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    torch.manual_seed(model.seed)
    config = {**config_of(model), "use_cache": False}
    if model.experts:
        return MixtralForCausalLM(MixtralConfig(**config))
    made = LlamaForCausalLM(LlamaConfig(**{**config, "model_type": "llama"}))
    if model.shared:
        made.model.layers = nn.ModuleList([block for block in made.model.layers for _ in range(2)])
        made.config.num_hidden_layers = model.depth
    return made


def matrices(name: str, tensor: torch.Tensor) -> Float[torch.Tensor, "matrix row column"]:
    """The matrices in a parameter of a block: one; or those of all experts, the gate's and the one beside it apart."""
    if tensor.ndim == 2:
        return tensor[None]
    return tensor.unflatten(1, (2, -1)).flatten(0, 1) if name.endswith("gate_up_proj") else tensor


def balance(net: Any) -> Callable[[], AbstractContextManager[Callable[[], torch.Tensor]]]:
    """A context around a pass that yields how unevenly its experts were busy; 0 for a model without.

    The load-balancing loss of the Switch Transformer (Fedus et al. 2021, Eq. 4), mean over layers: the share of tokens
    of each expert times its mean probability, summed, times the number of experts. `ACTIVE` is the least.
    """
    routers = [layer.mlp.gate for layer in net.model.layers if hasattr(layer.mlp, "experts")]

    @contextmanager
    def around() -> Iterator[Callable[[], torch.Tensor]]:
        seen: list[torch.Tensor] = []
        hooks = [router.register_forward_hook(lambda m, args, out: seen.append(out[0])) for router in routers]
        try:
            yield lambda: torch.stack([_uneven(x) for x in seen]).mean() if seen else torch.zeros(())
        finally:
            for hook in hooks:
                hook.remove()

    return around


def _uneven(logits: Float[torch.Tensor, "token expert"]) -> torch.Tensor:
    chosen = torch.zeros_like(logits).scatter(1, logits.topk(ACTIVE, dim=1).indices, 1.0)
    return logits.shape[1] * (chosen.mean(0) * logits.softmax(dim=1).mean(0)).sum()
