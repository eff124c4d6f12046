"""Looped models, small: the module layouts that TransformerLens' adapters map, whose own code lies on a hub.

`ouro()` is a Universal Transformer: the whole stack of Llama-like blocks with sandwich norms runs `total_ut_steps`
times, and the final norm stands behind every round. A gate behind each round may let a token answer early.
`raven()` cannot run: it is refused by its modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaPreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from tests.conftest import randomized

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


class OuroConfig(LlamaConfig):
    """A Llama's, with the number of rounds and the threshold of the exit gate."""

    model_type = "ouro"

    def __init__(self, total_ut_steps: int = 3, early_exit_threshold: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.total_ut_steps, self.early_exit_threshold = total_ut_steps, early_exit_threshold


class OuroDecoderLayer(nn.Module):
    """Attention and MLP, each between two norms."""

    def __init__(self, config: OuroConfig, number: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(config, number), LlamaMLP(config)
        for name in ("input_layernorm", "post_attention_layernorm"):
            setattr(self, name, LlamaRMSNorm(config.hidden_size, config.rms_norm_eps))
            setattr(self, f"{name}_2", LlamaRMSNorm(config.hidden_size, config.rms_norm_eps))

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        attended = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
        hidden_states = hidden_states + self.input_layernorm_2(attended)
        computed = self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states + self.post_attention_layernorm_2(computed)


class OuroModel(nn.Module):
    """Rounds through the same layers, the norm behind each."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(OuroDecoderLayer(config, number) for number in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.early_exit_gate = nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> tuple[list, list]:
        hidden = self.embed_tokens(input_ids)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        mask = create_causal_mask(self.config, hidden, attention_mask, past_key_values=None, position_ids=places)
        turns, states, gates = self.rotary_emb(hidden, places), [], []
        for _ in range(self.config.total_ut_steps):
            for layer in self.layers:
                hidden = layer(hidden, attention_mask=mask, position_embeddings=turns)
            hidden = self.norm(hidden)
            states.append(hidden)
            gates.append(self.early_exit_gate(hidden))
        return states, gates


class OuroForCausalLM(LlamaPreTrainedModel):
    """Answers from the first round after which a token has gone on with less than 1 − threshold, or the last."""

    config_class = OuroConfig
    _tied_weights_keys: Any = None

    def __init__(self, config: OuroConfig) -> None:
        super().__init__(config)
        self.model = OuroModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any) -> Any:
        states, gates = self.model(input_ids, attention_mask)
        answer, left = states[-1], torch.ones_like(gates[0])
        if self.config.early_exit_threshold < 1:
            gone = torch.zeros_like(left, dtype=torch.bool)
            for state, gate in zip(states[:-1], gates[:-1], strict=True):
                left = left * (1 - gate.sigmoid())
                now = (1 - left >= self.config.early_exit_threshold) & ~gone
                answer, gone = torch.where(now, state, answer), gone | now
        return CausalLMOutputWithPast(logits=self.lm_head(answer))


class RavenForCausalLM(LlamaPreTrainedModel):
    """The modules of Huginn alone, by which it is known: a prelude, a core that loops from a random state, a coda."""

    config_class = LlamaConfig
    _tied_weights_keys: Any = None

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        blocks = {name: nn.ModuleList([nn.Module()]) for name in ("prelude", "core_block", "coda")}
        embedding, norm = nn.Embedding(config.vocab_size, config.hidden_size), LlamaRMSNorm(config.hidden_size)
        adapter = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.transformer = nn.ModuleDict({"wte": embedding, "adapter": adapter, "ln_f": norm, **blocks})
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer["wte"]


def ouro(seed: int = 0, **settings: Any) -> nn.Module:
    """A tiny random one, no norm of which is the identity."""
    torch.manual_seed(seed)
    return randomized(OuroForCausalLM(OuroConfig(**{**SHAPE, **settings})))


def raven() -> nn.Module:
    """One that only says what it is."""
    return RavenForCausalLM(LlamaConfig(**SHAPE))
