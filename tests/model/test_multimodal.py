"""Models that also take pictures: with text alone, through a causal language model that shares their modules."""

import copy

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import fingerprint
from tests.oracles.families import BASE, LINEAR, reinitialize

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 20, 0]]
OPTIONS = [7, 30, 2]
VISION = {
    **{"hidden_size": 32, "embed_dim": 32, "out_hidden_size": 32, "projection_dim": 32, "vision_output_dim": 32},
    **{"projector_input_dim": 32, "projector_output_dim": 32, "intermediate_size": 32, "in_channels": 3},
    **{"num_hidden_layers": 1, "depth": 1, "num_attention_heads": 2, "num_heads": 2, "image_size": 16, "patch_size": 8},
}
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
# Model type: (options of its text config, the class that it is read as).
WRAPPERS = {
    "llava": ({}, "LlamaForCausalLM"),
    "qwen2_5_vl": (SECTIONS, "Qwen2_5_VLTextTextSide"),
    "gemma3": ({"head_dim": 12}, "Gemma3ForCausalLM"),
    "qwen3_vl": (SECTIONS, "Qwen3VLTextTextSide"),
    "qwen3_vl_moe": (SECTIONS, "Qwen3VLMoeTextTextSide"),
    "qwen3_5": (LINEAR, "Qwen3_5ForCausalLM"),
    "glm4v": (
        {"rope_parameters": SECTIONS["rope_parameters"] | {"partial_rotary_factor": 1.0}},
        "Glm4vTextTextSide",
    ),
    "mistral3": ({}, "MistralForCausalLM"),
    "smolvlm": ({}, "LlamaForCausalLM"),
    "idefics3": ({}, "LlamaForCausalLM"),
    "llava_next": ({}, "LlamaForCausalLM"),
    "llava_onevision": ({}, "Qwen2ForCausalLM"),
    "qwen3_5_moe": (LINEAR, "Qwen3_5MoeForCausalLM"),
    "internvl": ({}, "Qwen2ForCausalLM"),
    "paligemma": ({}, "GemmaForCausalLM"),
    "lfm2_vl": ({}, "Lfm2ForCausalLM"),
    "aya_vision": ({}, "Cohere2TextSide"),  # which does not scale its logits as Cohere2 does
    "llama4": ({"intermediate_size_mlp": 40, "attention_chunk_size": 8}, "Llama4ForCausalLM"),
    "mllama": ({}, "MllamaTextTextSide"),
}
FAST = ("llava", "qwen2_5_vl")


def wrapper(name):
    """A tiny multimodal model with every number random."""
    config = CONFIG_MAPPING[name]()
    text = config.get_text_config()
    for key, part in list(vars(config).items()):
        if hasattr(part, "model_type"):
            options = {**BASE, **WRAPPERS[name][0]} if part is text else VISION
            known = (field for field in options if hasattr(part, field) or field == "projection_dim")
            kept = {field: options[field] for field in known}
            setattr(config, key, type(part)(**kept))
        elif key in ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id"):
            setattr(config, key, 60)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    reinitialize(model, 0, 0.5)
    return model


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.full) for n in WRAPPERS])
def test_the_text_side_of_a_multimodal_model_is_exact(name):
    """Logits bit for bit those of the whole model (1e-6 where it adds a mask), every unit closes, nothing is copied."""
    whole = wrapper(name)
    model = ld.load_model(whole)
    shell = model.hf_model
    assert type(shell).__name__ == WRAPPERS[name][1]
    assert {id(p) for p in shell.parameters()} <= {id(p) for p in whole.parameters()}
    with torch.no_grad():
        for ids in PROMPTS:
            one, two = (m(input_ids=torch.tensor([ids]), use_cache=False).logits for m in (whole, shell))
            assert torch.equal(one, two) or (name == "paligemma" and (one - two).abs().max() < 1e-5)
    for unit in ("sublayer", "head", "neuron") if name in FAST else ("head",):
        c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
        assert c.identity_gap <= 1e-6
        assert np.isfinite(c.values).all()
    assert model.provenance["architecture"] == type(whole).__name__
    assert shell.generation_config is whole.generation_config  # which tokens end a turn


@pytest.mark.full
def test_a_multimodal_model_on_disk_is_found_and_hashed_with_its_text_weights(tmp_path):
    whole = wrapper("llava")
    whole.save_pretrained(tmp_path / "llava")
    model = ld.load_model(tmp_path / "llava", device="cpu")
    one, two = (ld.contributions(m, PROMPTS, OPTIONS).values for m in (model, whole))
    np.testing.assert_allclose(one, two, atol=1e-6)
    other = copy.deepcopy(whole)
    other.lm_head.weight.data[3] *= 2
    assert fingerprint(ld.load_model(other)) != fingerprint(ld.load_model(whole))


def test_a_model_without_a_text_side_is_refused():
    """BLIP's decoder answers nothing without a picture."""
    config = CONFIG_MAPPING["blip"]()
    for part in (config.text_config, config.vision_config):
        for key, value in {**VISION, "vocab_size": 61}.items():
            if hasattr(part, key):
                setattr(part, key, value)
    model = AutoModelForImageTextToText.from_config(config)
    with pytest.raises(ld.InputError, match="BlipForConditionalGeneration"):
        ld.load_model(model)
