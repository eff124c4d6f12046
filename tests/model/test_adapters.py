"""PEFT's adapters: the numbers of `merge_and_unload` with the model left as it is."""

import copy

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import identify
from tests.oracles.families import FAMILIES, family

peft = pytest.importorskip("peft")
PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]
OUTPUTS = ["o_proj", "down_proj"]
UNITS = ("sublayer", "head", "neuron")
# Model and LoRA settings: a Conv1D with biases of its own, post-norms, mixers, embeddings and unembeddings.
CASES = {
    "llama": ("llama", {"target_modules": [*OUTPUTS, "q_proj", "up_proj"]}),
    "conv1d": ("gpt2", {"target_modules": ["c_proj"], "fan_in_fan_out": True, "lora_bias": True}),
    "conv1d_dora": ("gpt2", {"target_modules": ["c_proj"], "fan_in_fan_out": True, "use_dora": True}),
    "post_norm_dora": ("gemma2", {"target_modules": OUTPUTS, "use_dora": True, "use_rslora": True}),
    "mixer": ("qwen3_next", {"target_modules": ["out_proj", "o_proj"]}),
    "scaled": ("granite", {"target_modules": OUTPUTS}),
    "embeddings": ("llama", {"target_modules": ["o_proj", "embed_tokens", "lm_head"]}),
    "whole_modules": ("llama", {"target_modules": ["o_proj"], "modules_to_save": ["lm_head", "norm", "mlp"]}),
    "tokens": ("llama_tied", {"target_modules": ["o_proj"], "trainable_token_indices": [5, 7]}),
}
FAST = ("llama", "conv1d_dora")


def lora(**settings):
    return peft.LoraConfig(**{"r": 3, "lora_alpha": 5, "lora_dropout": 0.1, "task_type": "CAUSAL_LM", **settings})


def adapted(model, config):
    """A model with adapters whose every number is random."""
    return drawn(peft.get_peft_model(model, config))


def drawn(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("lora_", "token_adapter", "modules_to_save", "ia3_")):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def merged(model):
    return copy.deepcopy(model).merge_and_unload()


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.full) for n in CASES])
def test_components_are_those_of_merge_and_unload(name):
    """At every unit; the model itself is left as it was."""
    base, settings = CASES[name]
    model = adapted(family(base), lora(**settings))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    reference, loaded = merged(model), ld.load_model(model)
    with torch.no_grad():
        plain = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1, OPTIONS] for ids in PROMPTS]
    # The mixer's recurrence magnifies what float32 rounds: 1.6e-5 was seen, and its kernels have no float64.
    atol = 5e-5 if name == "mixer" else 1e-5
    for unit in UNITS if name != "mixer" else UNITS[:2]:
        expected, c = (ld.contributions(m, PROMPTS, OPTIONS, unit=unit) for m in (reference, loaded))
        assert c.identity_gap <= 1e-6
        assert c.components == expected.components
        np.testing.assert_allclose(c.values, expected.values, atol=2 * atol)
        np.testing.assert_allclose(c.model_logits, torch.stack(plain), atol=atol)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.full
def test_several_adapters_write_together_and_what_is_on_is_what_counts():
    """Switching and scaling adapters gives another model, with another name and another identity."""
    model = peft.get_peft_model(FAMILIES["llama"](), lora(target_modules=OUTPUTS))
    model.add_adapter("b", lora(r=5, target_modules=["o_proj", "up_proj"]))
    drawn(model)
    model.base_model.set_adapter(["default", "b"])
    both = ld.load_model(model)
    c, expected = (ld.contributions(m, PROMPTS, OPTIONS, unit="head") for m in (both, merged(model)))
    np.testing.assert_allclose(c.values, expected.values, atol=1e-5)
    assert both.provenance["adapters"] == ["default", "b"]
    prints = [identify(both).weights]
    model.set_adapter("b")
    prints.append(identify(ld.load_model(model)).weights)
    assert ld.load_model(model).name.endswith("+b")
    model.base_model.model.model.layers[0].self_attn.o_proj.scaling["b"] *= 2
    prints.append(identify(ld.load_model(model)).weights)
    assert len(set(prints)) == 3
    model.merge_adapter()
    assert ld.contributions(model, PROMPTS, OPTIONS, unit="head").identity_gap <= 1e-6


def test_other_kinds_of_adapters_are_read_as_they_are():
    settings = {"target_modules": ["k_proj", *OUTPUTS], "feedforward_modules": ["down_proj"]}
    model = adapted(FAMILIES["llama"](), peft.IA3Config(task_type="CAUSAL_LM", **settings))
    for unit in UNITS:
        one, reference = (ld.contributions(m, PROMPTS, OPTIONS, unit=unit) for m in (model, merged(model)))
        np.testing.assert_allclose(one.values, reference.values, atol=1e-5)


def test_what_cannot_be_taken_apart_is_refused():
    """Virtual tokens, and adapters that switch on within a text."""
    prompt = peft.get_peft_model(
        FAMILIES["llama"](), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    activated = peft.get_peft_model(FAMILIES["llama"](), lora(target_modules=OUTPUTS, alora_invocation_tokens=[5, 1]))
    for model in (prompt, activated):
        with pytest.raises(ld.InputError, match="PeftModel"):
            ld.load_model(model)


def test_biases_that_peft_cannot_merge_are_read():
    """What the adapted module does is what counts."""
    unbiased = adapted(FAMILIES["llama"](), lora(target_modules=OUTPUTS, lora_bias=True))
    assert ld.contributions(unbiased, PROMPTS, OPTIONS, unit="head").identity_gap <= 1e-6


@pytest.mark.full
def test_a_folder_of_adapters_names_its_base(tmp_path):
    """What PEFT saves is loaded with the base model that it names."""
    from transformers import AutoModelForCausalLM

    FAMILIES["llama"]().save_pretrained(tmp_path / "base")
    model = adapted(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), lora(target_modules=OUTPUTS))
    model.save_pretrained(tmp_path / "tuned")
    loaded = ld.load_model(tmp_path / "tuned", device="cpu")
    assert loaded.name == "tuned+default"
    one, two = (ld.contributions(m, PROMPTS, OPTIONS).logits for m in (loaded, model))
    np.testing.assert_allclose(one, two, atol=1e-6)
