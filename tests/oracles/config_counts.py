"""The number of a model's components from its config alone: a second source for `contributions` and the catalog."""

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
# Besides the embedding and two sublayers per block: rows outside the blocks (a position embedding, the constant of a
# final norm with bias); the setting that gives attention's output projection a bias, and its default.
_KINDS = (
    ("mistral mixtral phi3 qwen2 qwen2_moe exaone4 glm glm4 glm4_moe", 0, "", False),
    ("llama mobilellm qwen3 qwen3_moe smollm3 olmo olmo2 olmo3 olmoe granite granitemoe", 0, "attention_bias", False),
    ("gemma gemma2 gemma3_text vaultgemma cohere cohere2 apertus arcee nanochat", 0, "attention_bias", False),
    ("gptj codegen", 1, "", False),
    ("bloom phi", 1, "", True),
    ("falcon", 1, "bias", False),
    ("starcoder2", 1, "use_bias", True),
    ("gpt_neox", 1, "attention_bias", True),
    ("gpt2 gpt_neo", 2, "", True),
    ("opt", 2, "enable_bias", True),
)
FAMILIES = {family: kind for families, *kind in _KINDS for family in families.split()}


def component_count(config, unit="sublayer"):
    """Of a dict of config.json: the embedding and two sublayers per use of a block, an attention split at "head"."""
    config = config.get("text_config", config)
    outside, setting, default = FAMILIES[config["model_type"]]
    layers, heads = (next(config[name] for name in names if name in config) for names in (_LAYERS, _HEADS))
    attention = heads + bool(config.get(setting, default)) if unit == "head" else 1
    # MobileLLM's layer sharing runs every block twice in a row, and each repeat writes to the stream.
    return 1 + outside + (2 if config.get("layer_sharing") else 1) * layers * (attention + 1)
