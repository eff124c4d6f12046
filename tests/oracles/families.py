"""Tiny random causal language models, one per Hugging Face model family, as test material: no hub, no downloads.

``FAMILIES[name]()`` gives an fp32 model in eval mode on the CPU whose residual stream is a plain sum (embedding plus
what every attention and MLP layer writes); ``REFUSED[name]()`` gives one whose stream is not. Both take an optional
``seed``. Every parameter is drawn anew so that none is neutral: norm gains in [0.5, 1.5], biases N(0, 0.3), and weights
scaled by their fan-in. Special token ids are 0 (pad), 1 (bos) and 2 (eos); the vocabulary is ``VOCAB`` = 61 ids and the
context ``CONTEXT`` = 64 positions. Pass ids as ``model(**inputs(model, ids))``, which works for encoder-decoders too.
A key bias that no rotation follows is the one thing that changes nothing, by the softmax's own invariance.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

VOCAB = 61
CONTEXT = 64
D_MODEL = 32

BASE: dict[str, Any] = {  # a config takes those of these that it has, under its own names
    "vocab_size": VOCAB,
    "hidden_size": D_MODEL,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 56,
    "ffn_dim": 56,
    "ffn_hidden_size": 56,
    "d_ff": 56,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": CONTEXT,
    "max_seq_len": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# A leading "_" marks an option of this module, not of the config: _embed is the standard deviation of the embedding.
SCALED = {"_embed": D_MODEL**-0.5}  # the family multiplies its embedding by sqrt(d_model)
BIASED = {"attention_bias": True, "mlp_bias": True}
FOUR = {"num_hidden_layers": 4, "intermediate_size": 4 * D_MODEL}
SLIDING = {"num_hidden_layers": 4, "sliding_window": 8}  # the family mixes sliding and full attention
ALTERNATE = SLIDING | {"layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA2 = ALTERNATE | {"head_dim": 12, "query_pre_attn_scalar": 4, "_embed": 0.4}
CAPPED = GEMMA2 | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0}
GRANITE = {"embedding_multiplier": 6.0, "logits_scaling": 0.3, "residual_multiplier": 0.5, "attention_multiplier": 0.3}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6}
GROUPED = {"hidden_size": 48, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
DEEPSEEK = LATENT | GROUPED | {"v_head_dim": 10, "attention_bias": True}
NO_ROPE = {"num_hidden_layers": 4, "no_rope_layer_interval": 4}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # name: (model type, options beyond BASE)
    "gpt2": ("gpt2", {}),
    "gpt_neo": ("gpt_neo", FOUR | {"attention_types": [[["global", "local"], 2]], "window_size": 8}),
    "gptj": ("gptj", {"rotary_dim": 4}),
    "codegen": ("codegen", {"rotary_dim": 4}),
    "gpt_bigcode": ("gpt_bigcode", {}),
    "neox_parallel": ("gpt_neox", {"use_parallel_residual": True}),
    "neox_sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "opt": ("opt", {"word_embed_proj_dim": D_MODEL}),
    "bloom": ("bloom", {}),
    "mpt": ("mpt", {}),
    "falcon": ("falcon", {"bias": True}),
    "falcon_new_decoder": ("falcon", {"bias": True, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_alibi": ("falcon", {"bias": True, "alibi": True, "parallel_attn": False, "multi_query": False}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {"original_max_position_embeddings": CONTEXT}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm_parallel": ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True, "qk_layernorm": True}),
    "starcoder2": ("starcoder2", {}),
    "nemotron": ("nemotron", BIASED),
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_biased": ("llama", BIASED),
    "mistral": ("mistral", {"sliding_window": 8, "head_dim": 12}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 12, "attention_bias": True}),
    "gemma": ("gemma", SCALED | {"head_dim": 12, "attention_bias": True}),
    "gemma2": ("gemma2", CAPPED | {"attention_bias": True}),
    "gemma3": ("gemma3_text", ALTERNATE | SCALED | {"head_dim": 12, "query_pre_attn_scalar": 4}),
    "vaultgemma": ("vaultgemma", CAPPED),
    "olmo": ("olmo", {"attention_bias": True, "clip_qkv": 1.0}),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "olmo3": ("olmo3", SLIDING),
    "cohere": ("cohere", {"logit_scale": 0.4, "attention_bias": True, "use_qk_norm": True}),
    "cohere2": ("cohere2", SLIDING | {"logit_scale": 0.4, "attention_bias": True}),
    "granite": ("granite", GRANITE | BIASED | {"_embed": 1 / 6}),
    "granite_moe": ("granitemoe", GRANITE | {"attention_bias": True, "_embed": 1 / 6}),
    "smollm3": ("smollm3", NO_ROPE | BIASED),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "glm4_moe": ("glm4_moe", {"use_qk_norm": True, "attention_bias": True}),
    "exaone4": ("exaone4", SLIDING),
    "xglm": ("xglm", SCALED),
    "mixtral": ("mixtral", {}),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen3_moe": ("qwen3_moe", {"attention_bias": True}),
    "olmoe": ("olmoe", {"attention_bias": True}),
    "gpt_oss": ("gpt_oss", ALTERNATE | {"rope_parameters": ROPE}),
    "deepseek_v2": ("deepseek_v2", DEEPSEEK | {"topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("deepseek_v3", DEEPSEEK),
    "llama4": (
        "llama4_text",
        NO_ROPE | {"intermediate_size_mlp": 40, "interleave_moe_layer_step": 2, "attention_chunk_size": 8},
    ),
    "jetmoe": ("jetmoe", {}),
    "arcee": ("arcee", BIASED),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "seed_oss": ("seed_oss", BIASED | {"attention_out_bias": True}),
    "apertus": ("apertus", {"attention_bias": True, "rope_parameters": ROPE}),
    "hunyuan": ("hunyuan_v1_dense", {"attention_bias": True}),
    "nanochat": ("nanochat", {}),
}

MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16}
FALCON_H1 = {"ssm_out_multiplier": 0.7, "attention_out_multiplier": 1.3, "mlp_multipliers": [0.7, 0.4]}
MAMBA_2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
LINEAR |= {"num_hidden_layers": 4}
CONV = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
# Recurrent and linear-attention sublayers, most of them next to attention.
_HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("qwen3_next", LINEAR),
    "qwen3_5": ("qwen3_5_text", LINEAR),
    "qwen3_5_moe": ("qwen3_5_moe_text", LINEAR),
    "olmo_hybrid": ("olmo_hybrid", LINEAR),
    "kimi_linear": (
        "kimi_linear",
        LATENT
        | {"q_lora_rank": None, "v_head_dim": 10, "linear_head_dim": 8, "linear_num_heads": 4}
        | {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    "lfm2": ("lfm2", CONV),
    "lfm2_moe": ("lfm2_moe", CONV),
    "lfm3": ("lfm3", CONV),
    "mamba": ("mamba", {"state_size": 8, "time_step_rank": 4}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8, "time_step_rank": 4}),
    "mamba2": ("mamba2", {"num_heads": 4, "head_dim": 16, "expand": 2, "state_size": 8, "n_groups": 1}),
    "jamba": ("jamba", {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8}),
    "bamba": ("bamba", MAMBA_2 | {"attn_layer_indices": [1]}),
    "nemotron_h": ("nemotron_h", {}),
    "falcon_h1": ("falcon_h1", MAMBA | FALCON_H1 | {"lm_head_multiplier": 0.6}),
    "granite_hybrid": (
        "granitemoehybrid",
        GRANITE | MAMBA_2 | {"layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 40},
    ),
    "recurrent_gemma": ("recurrent_gemma", {"logits_soft_cap": 5.0}),
    "xlstm": ("xlstm", {"num_heads": 4}),
    "zamba": ("zamba", {"num_hidden_layers": 6, "n_mamba_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1}),
    "zamba2": (
        "zamba2",
        {"num_hidden_layers": 4, "n_mamba_heads": 4, "mamba_d_state": 8, "layer_types": ["mamba", "hybrid"] * 2},
    ),
}
# Architectures that TransformerLens does not list.
_UNLISTED: dict[str, tuple[str, dict[str, Any]]] = {
    "helium": ("helium", {}),
    "cwm": ("cwm", {}),
    "diffllama": ("diffllama", {}),
    "persimmon": ("persimmon", {}),
    "biogpt": ("biogpt", {}),
    "ctrl": ("ctrl", {}),
    "mbart": ("mbart", {"is_encoder_decoder": False, "decoder_layers": 3, "decoder_attention_heads": 4}),
    "ministral": ("ministral", {}),
    "minicpm3": ("minicpm3", LATENT | {"dim_model_base": 16, "scale_depth": 1.4}),
    "hyperclovax": ("hyperclovax", {"residual_multiplier": 0.5, "logits_scaling": 0.3}),
    "granite_swa": ("granite_swa", GRANITE),
    "granite_shared": ("granitemoeshared", GRANITE | {"shared_intermediate_size": 40}),
    "kolibri1": ("kolibri1", {}),
    "cohere2_moe": ("cohere2_moe", {"logit_scale": 0.4}),
    "aria": ("aria_text", {}),
    "dots1": ("dots1", {"n_shared_experts": 1}),
    "exaone_moe": ("exaone_moe", {}),
    "flint": ("flint", {}),
    "hunyuan_moe": ("hunyuan_v1_moe", {}),
    "hy_v3": ("hy_v3", {}),
    "inkling": ("inkling_text", {}),
    "mellum": ("mellum", {}),
    "mimo_v2_flash": ("mimo_v2_flash", {}),
    "minimax_m3": ("minimax_m3_vl_text", {}),
    "phimoe": ("phimoe", {}),
    "solar_open": ("solar_open", {}),
}
# Others that TransformerLens lists, or whose blocks are those of one above.
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": ("afmoe", {}),
    "bitnet": ("bitnet", {}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2}),
    "flex_olmo": ("flex_olmo", {}),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT | {"v_head_dim": 10}),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        LATENT | {"v_head_dim": 10, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 64},
    ),
    "jais2": ("jais2", {}),
    "laguna": ("laguna", {}),
    "minimax_m2": ("minimax_m2", {}),
    "ministral3": ("ministral3", {}),
    "youtu": ("youtu", LATENT | {"v_head_dim": 10}),
    "axk2": ("axk2", LATENT),
    "deepseek_v32": ("deepseek_v32", LATENT),
    "granite_moe_swa": ("granitemoe_swa", GRANITE),
    "pegasus": ("pegasus", {"is_encoder_decoder": False}),
    "blenderbot": ("blenderbot", {"is_encoder_decoder": False}),
}
GEMMA3N = ALTERNATE | SCALED | {"num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCAB, "laurel_rank": 8}
GEMMA3N |= {"hidden_size_per_layer_input": 8, "activation_sparsity_pattern": [0.9, 0.0, 0.9, 0.0]}
QWEN4 = LINEAR | {"layer_types": ["linear_attention", "full_attention"] * 2, "ple_layer_ids": [3], "ple_embed_dim": 16}
QWEN4 |= {"heads_per_ngram": 2, "ngram_vocab_size_base": 40, "hc_count": 3, "hc_lowrank": 8}
QWEN4 |= {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8}
QWEN4 |= {"indexer_compress_ratio": 2}
BART = {"is_encoder_decoder": False, "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 56}
GEMMA4 = ALTERNATE | SCALED
GEMMA4 |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 2}
# Streams that pass more than additions: gates, norms, mixing.
_PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma4": ("gemma4_text", GEMMA4),
    "gemma4_moe": ("gemma4_text", GEMMA4 | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}),
    "doge": ("doge", {}),
    "zaya": ("zaya", {"num_experts_per_tok": 1}),
    "beam": ("beam", {}),
    "rwkv": ("rwkv", {"attention_hidden_size": D_MODEL, "rescale_every": 2}),
    "openai_gpt": ("openai-gpt", {}),
    "opt_post_ln": ("opt", {"word_embed_proj_dim": D_MODEL, "do_layer_norm_before": False}),
    "opt_project_out": ("opt", {"word_embed_proj_dim": 24}),
    "opt_350m": ("opt", {"word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    "bloom_post_ln": ("bloom", {"apply_residual_connection_post_layernorm": True}),
    "bart": ("bart", BART),
    "minimax": ("minimax", {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    "deepseek_v4": ("deepseek_v4", {}),
    "hy_v4": ("hy_v4", {}),
    "hrm_text": ("hrm_text", {}),
    "inkling2": ("inkling2_text", {}),
    "gemma3n": ("gemma3n_text", GEMMA3N),
    "qwen4_exp": ("qwen4_exp_text", QWEN4),
    "plbart": ("plbart", BART),
    "trocr": ("trocr", {"d_model": D_MODEL} | {key: x for key, x in BART.items() if key != "is_encoder_decoder"}),
    "marian": ("marian", BART),
    "bigbird_pegasus": ("bigbird_pegasus", BART),
    "blenderbot_small": ("blenderbot-small", BART),
    "mvp": ("mvp", BART),
    "moshi": ("moshi", {}),
    "gemma4_unified": ("gemma4_unified_text", ALTERNATE | SCALED),
}
_REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"is_decoder": True}),
    "t5": ("t5", {"d_kv": 8, "num_decoder_layers": 3}),
}

# Norms that multiply by 1 + weight, and modules other than Conv1D that keep their weights as (input, output).
OFFSET_NORMS = {"GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "VaultGemmaRMSNorm", "NemotronLayerNorm1P"}
OFFSET_NORMS |= {
    "Qwen4ExpTextRMSNorm",
    "Qwen3NextRMSNorm",
    "Qwen3_5RMSNorm",
    "Qwen3_5MoeRMSNorm",
    "RecurrentGemmaRMSNorm",
}
# Buffers that training sets.
BUFFERS = {"e_score_correction_bias", "layer_scalar"}
TRANSPOSED = {"GptOssExperts", "Llama4TextExperts"}


def config_of(model_type: str, options: dict[str, Any]) -> PreTrainedConfig:
    """The tiny config: BASE where the config class has the field, then all of ``options``, and no dropout anywhere."""
    cls = CONFIG_MAPPING[model_type]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {
        f.name: 0.0 for f in fields.values() if "drop" in f.name and isinstance(f.default, float | int)
    }
    for key, value in (BASE | options).items():
        name = key if key in fields else cls.attribute_map.get(key, key)
        if name in fields:
            values[name] = value
        elif key in options and not key.startswith("_"):
            raise KeyError(f"{cls.__name__} has no option {key}")
    return cls(**values)


@torch.no_grad()
def reinitialize(model: PreTrainedModel, seed: int, embed_std: float) -> None:
    """Draw every parameter (and the routers' correction biases) anew, each from its own seed, so that none is neutral.

    Parameters of a kind not known here (attention sinks, activation slopes, state-space rates) keep the family's own
    initial value plus N(0, 0.3). Tied weights are drawn once, as the embedding they are met as first.
    """
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        kind = type(module).__name__
        own = dict(module.named_parameters(recurse=False))
        own |= {name: b for name, b in module.named_buffers(recurse=False) if name in BUFFERS}
        for name, tensor in own.items():
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {prefix}.{name}".encode()))
            normal = torch.randn(tensor.shape, generator=generator)
            if name.endswith("bias"):
                value = 0.3 * normal
            elif "Norm" in kind:
                value = torch.rand(tensor.shape, generator=generator) + (-0.5 if kind in OFFSET_NORMS else 0.5)
            elif isinstance(module, nn.Embedding):
                value = embed_std * normal
            elif tensor.ndim == 3 or name == "weight":
                fan_in = tensor.shape[-2] if isinstance(module, Conv1D) or kind in TRANSPOSED else tensor.shape[-1]
                value = fan_in**-0.5 * normal
            else:
                value = tensor + 0.3 * normal
            tensor.copy_(value)


def family(name: str, seed: int = 0) -> PreTrainedModel:
    """The tiny model of one family (a key of FAMILIES or of REFUSED); the global random state stays as it was."""
    model_type, options = (_FAMILIES | _HYBRIDS | _UNLISTED | _OTHERS | _PATHS | _REFUSED)[name]
    config = config_of(model_type, options)
    auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = auto.from_config(config, dtype=torch.float32).eval()
    model.config.architectures = [type(model).__name__]  # as a saved checkpoint has it; from_config leaves it None
    reinitialize(model, seed, options.get("_embed", 0.5 if getattr(config, "tie_word_embeddings", False) else 1.0))
    return model


def inputs(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """``ids`` (batch, position) as the arguments of a forward pass; an encoder-decoder reads them on both sides."""
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {name: partial(family, name) for name in _FAMILIES}
# Found by the structure of their modules, without TransformerLens; or not tested through a bridge.
BY_STRUCTURE = {name: partial(family, name) for name in _HYBRIDS | _UNLISTED | _OTHERS | _PATHS}
# A newcomer's `pytest` meets six of them, CI six more (scaling, sinks, latent attention, a hybrid, ALiBi, AltUp).
SIX = ("gpt2", "llama", "gemma2", "neox_parallel", "mixtral", "olmo2")
SIX_MORE = ("granite", "gpt_oss", "deepseek_v3", "qwen3_next", "bloom", "gemma3n")


def each(names: Iterable[str]) -> list[Any]:
    """Parameters for a test of every family: six run by default, six more are `full`, all others `nightly`."""
    marks: dict[str, Any] = dict.fromkeys(SIX, ()) | dict.fromkeys(SIX_MORE, pytest.mark.full)
    return [pytest.param(name, marks=marks.get(name, pytest.mark.nightly)) for name in names]


REFUSED: dict[str, Callable[..., PreTrainedModel]] = {name: partial(family, name) for name in _REFUSED}
