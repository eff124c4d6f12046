"""MobileLLM (Liu et al. 2024) as the Llama that it is, its blocks shared where it shares them.

Its checkpoints come with code of their own, written for an older Transformers. Their blocks are Llama's and
so are their tensors' names; `share_embedding` ties the unembedding to the embedding, and `layer_sharing`
runs every block twice in a row.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import InputError

MODEL_TYPE = "mobilellm"
# Settings that a Llama's config has too.
_LLAMA = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings rms_norm_eps attention_bias mlp_bias bos_token_id eos_token_id "
    "initializer_range".split()
)


def mobilellm_config(place: str, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """A MobileLLM's config.json; None for any other model, and where no config can be read."""
    from transformers import PretrainedConfig

    if "gguf_file" in kwargs:
        return None
    try:
        settings, _ = PretrainedConfig.get_config_dict(place, local_files_only=kwargs.get("local_files_only", False))
    except Exception:  # loading the model has the better message
        return None
    return settings if settings.get("model_type") == MODEL_TYPE else None


def load_mobilellm(place: str, settings: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    """The checkpoint as a `LlamaForCausalLM`; a shared block stands twice in a row in its list of blocks.

    Raises InputError for a way of sharing that the config does not explain, and for tensors that are missing,
    have other shapes, or belong to nothing.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    for name in ("layer_sharing", "share_embedding"):
        if not isinstance(settings.get(name, False), bool):
            raise InputError(
                f"{place!r} says {name}: {settings[name]!r}, but true or false is all that is known of it."
            )
    if settings.get("share_embedding") is None and "tie_word_embeddings" not in settings:
        raise InputError(f"the config in {place!r} does not say whether it shares its embedding (share_embedding).")
    own = {name: settings[name] for name in _LLAMA if settings.get(name) is not None}
    # Older configs say rotary angles in two places, newer ones in one.
    rope = settings.get("rope_parameters") or {"rope_type": "default"} | (settings.get("rope_scaling") or {})
    rope.setdefault("rope_theta", settings.get("rope_theta", 10000.0))
    tied = bool(settings.get("share_embedding", settings.get("tie_word_embeddings")))
    config = LlamaConfig(**own, rope_parameters=rope, tie_word_embeddings=tied)
    kwargs = {name: value for name, value in kwargs.items() if name != "trust_remote_code"}
    model, loading = LlamaForCausalLM.from_pretrained(place, config=config, output_loading_info=True, **kwargs)
    for what, names in (
        ("lacks", loading["missing_keys"]),
        ("has tensors that no block takes:", loading["unexpected_keys"]),
        ("has tensors of other shapes than its config says:", [key[0] for key in loading["mismatched_keys"]]),
    ):
        if names:
            raise InputError(f"the checkpoint in {place!r} {what} {', '.join(sorted(names)[:3])}: get a whole copy.")
    if settings.get("layer_sharing"):
        model.model.layers = nn.ModuleList([block for block in model.model.layers for _ in range(2)])
        model.config.num_hidden_layers *= 2
        # Both uses of a block would write into the same place of a cache.
        model.config.use_cache = model.generation_config.use_cache = False
    return model
