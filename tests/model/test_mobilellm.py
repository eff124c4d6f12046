"""MobileLLM checkpoints: read without their own code, equal to a forward pass written from the paper."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import layerdiv_tl as ld

# As facebook/MobileLLM-125M's config.json says it, small.
CONFIG = {
    "architectures": ["MobileLLMForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_mobilellm.MobileLLMForCausalLM"},
    "model_type": "mobilellm",
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 777.0,
    "tie_word_embeddings": False,
    "vocab_size": 50,
}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5]]
OPTIONS = [7, 8, 9]


def checkpoint(folder, shared_layers, shared_embedding, **changed):
    """Random weights under the names that MobileLLM's have."""
    torch.manual_seed(0)
    c = CONFIG | {"layer_sharing": shared_layers, "share_embedding": shared_embedding} | changed
    d, m, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    kv = d // c["num_attention_heads"] * c["num_key_value_heads"]
    weights = {"model.embed_tokens.weight": torch.randn(v, d), "model.norm.weight": 1 + 0.1 * torch.randn(d)}
    if not shared_embedding:
        weights["lm_head.weight"] = torch.randn(v, d)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes = {"self_attn.q_proj": (d, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d)}
        shapes |= {"self_attn.o_proj": (d, d), "mlp.gate_proj": (m, d), "mlp.up_proj": (m, d), "mlp.down_proj": (d, m)}
        weights |= {f"{at}.{name}.weight": torch.randn(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}.{norm}.weight"] = 1 + 0.1 * torch.randn(d)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def plain(folder, ids):
    """The last token's logits: embeddings, rotary grouped attention, gated MLPs, RMS norms; in float64."""
    c = json.loads((folder / "config.json").read_text())
    w = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    size, length = c["hidden_size"] // heads, len(ids)

    def norm(x, gain):
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * gain

    def turn(x):  # [token, head, size]: the first half of a head's numbers with the second
        angle = torch.arange(length).double()[:, None] / c["rope_theta"] ** (torch.arange(0, size, 2).double() / size)
        cos, sin = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def block(x, at):
        y = norm(x, w[f"{at}.input_layernorm.weight"])
        q, k, v = ((y @ w[f"{at}.self_attn.{n}_proj.weight"].T).reshape(length, -1, size) for n in ("q", "k", "v"))
        q, k = turn(q), turn(k)
        out = []
        for head in range(heads):
            of = head // (heads // groups)
            score = q[:, head] @ k[:, of].T / size**0.5
            score = score.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
            out.append(score.softmax(-1) @ v[:, of])
        x = x + torch.cat(out, -1) @ w[f"{at}.self_attn.o_proj.weight"].T
        y = norm(x, w[f"{at}.post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(y @ w[f"{at}.mlp.gate_proj.weight"].T)
        return x + (gate * (y @ w[f"{at}.mlp.up_proj.weight"].T)) @ w[f"{at}.mlp.down_proj.weight"].T

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        for _ in range(2 if c["layer_sharing"] else 1):
            x = block(x, f"model.layers.{layer}")
    read = w["model.embed_tokens.weight"] if c["share_embedding"] else w["lm_head.weight"]
    return (norm(x[-1], w["model.norm.weight"]) @ read.T).numpy()


@pytest.mark.parametrize("shared_layers", [False, True])
@pytest.mark.parametrize("shared_embedding", [False, True])
def test_logits_are_those_of_a_plain_pass(tmp_path, shared_layers, shared_embedding):
    """And the components sum to them, at every unit; a shared block has a row for every use."""
    folder = checkpoint(tmp_path / "mobile", shared_layers, shared_embedding)
    model = ld.load_model(folder)
    for unit in ("sublayer", "head", "neuron"):
        c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
        assert c.identity_gap <= 1e-6
        expected = [plain(folder, ids)[OPTIONS] for ids in PROMPTS]
        np.testing.assert_allclose(c.model_logits, expected, atol=1e-4)
    repeats = ("@1", "@2") if shared_layers else ("",)
    labels = [f"L{layer}{repeat}.{kind}" for layer in range(3) for repeat in repeats for kind in ("attn", "mlp")]
    c = ld.contributions(model, PROMPTS, OPTIONS)
    assert [x.label for x in c.components] == [x.label for x in model.components()] == ["embed", *labels]


@pytest.mark.parametrize(
    ("changed", "drop", "says"),
    [
        ({"layer_sharing": 3}, None, "layer_sharing: 3"),
        ({"share_embedding": "yes"}, None, "share_embedding: 'yes'"),
        ({}, "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"),
        ({"num_hidden_layers": 2}, None, "model.layers.2"),
        ({"intermediate_size": 41}, None, "shapes|mismatch"),
    ],
)
def test_what_a_config_does_not_explain_is_refused(tmp_path, changed, drop, says):
    """Another way of sharing, missing, left-over and misshapen tensors: never random numbers in their place."""
    folder = checkpoint(tmp_path / "mobile", True, True)
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | changed))
    if drop:
        weights = load_file(folder / "model.safetensors")
        del weights[drop]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ld.InputError, match=says):
        ld.load_model(folder)
