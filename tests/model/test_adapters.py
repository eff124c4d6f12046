"""PEFT's adapters: the numbers of `merge_and_unload` with the model left as it is, or rows of their own."""

import copy

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import fingerprint, identify
from tests.conftest import tied
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


def modules(c):
    """{module and layer: the sum of its rows}."""
    return {(x.module, x.layer): c.select(module=x.module, layer=x.layer).logits for x in c.components if x.layer}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.full) for n in CASES])
def test_merged_is_merge_and_unload_and_rows_of_adapters_sum_to_the_same(name):
    """Both ways close at every unit; the model itself is left as it was."""
    base, settings = CASES[name]
    model = adapted(family(base), lora(**settings))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    reference, whole, split = merged(model), ld.load_model(model), ld.load_model(model, adapters="component")
    with torch.no_grad():
        plain = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1, OPTIONS] for ids in PROMPTS]
    for unit in UNITS if name != "mixer" else UNITS[:2]:
        expected, one, two = (ld.contributions(m, PROMPTS, OPTIONS, unit=unit) for m in (reference, whole, split))
        assert max(one.identity_gap, two.identity_gap) <= 1e-6
        assert one.components == expected.components
        np.testing.assert_allclose(one.values, expected.values, atol=2e-5)
        np.testing.assert_allclose(one.model_logits, torch.stack(plain), atol=1e-5)
        kinds = {x.kind for x in two.components} - {x.kind for x in one.components}
        assert kinds
        assert all(kind.endswith(".lora") for kind in kinds)
        sums, sublayers = modules(two), modules(ld.contributions(whole, PROMPTS, OPTIONS))
        for place in sublayers:
            np.testing.assert_allclose(sums[place], sublayers[place], atol=2e-6 * np.abs(one.values).sum(1).max())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_row_of_an_adapter_is_what_goes_where_it_is_switched_off():
    """LoRA on the last write alone changes nothing before it: its row is the difference to the base model's write."""
    model = adapted(FAMILIES["llama"](), lora(target_modules=r".*layers\.2\.mlp\.down_proj"))
    c = ld.contributions(ld.load_model(model, adapters="component"), PROMPTS, OPTIONS)
    with model.disable_adapter():
        base = ld.contributions(model, PROMPTS, OPTIONS)
    assert c.components == (*base.components, ld.Component("mlp.lora", 2))
    # Another stream has another statistic of the final norm, which is one factor for all rows.
    factor = c.values[:, :-1] / base.values
    np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1, :1], factor.shape), rtol=1e-4)
    assert np.abs(c.values[:, -1]).max() > 0.1


@pytest.mark.full
def test_several_adapters_write_together_and_what_is_on_is_what_counts():
    """Two adapters are one row; switching and scaling them is another model; merged in place they have no row."""
    model = peft.get_peft_model(FAMILIES["llama"](), lora(target_modules=OUTPUTS))
    model.add_adapter("b", lora(r=5, target_modules=["o_proj", "up_proj"]))
    drawn(model)
    model.base_model.set_adapter(["default", "b"])
    both = ld.load_model(model)
    c, two = (
        ld.contributions(m, PROMPTS, OPTIONS, unit="head") for m in (both, ld.load_model(model, adapters="component"))
    )
    np.testing.assert_allclose(
        c.values, ld.contributions(merged(model), PROMPTS, OPTIONS, unit="head").values, atol=1e-5
    )
    assert [x.label for x in two.components if x.layer == 1][-4:] == ["L1.H3", "L1.attn.lora", "L1.mlp", "L1.mlp.lora"]
    assert both.provenance["adapters"] == {"names": ["default", "b"], "as": "merged"}
    prints = [fingerprint(both), fingerprint(ld.load_model(model, adapters="component"))]
    model.set_adapter("b")
    prints.append(fingerprint(ld.load_model(model)))
    assert ld.load_model(model).name.endswith("+b")
    model.base_model.model.model.layers[0].self_attn.o_proj.scaling["b"] *= 2
    prints.append(identify(ld.load_model(model)).weights)
    assert len(set(prints)) == 4
    model.merge_adapter()
    assert ld.contributions(model, PROMPTS, OPTIONS, unit="head").identity_gap <= 1e-6
    with pytest.raises(ld.InputError, match="unmerge_adapter"):
        ld.load_model(model, adapters="component")


def test_layers_that_run_twice_have_a_row_of_the_adapter_for_each_repeat():
    model = adapted(tied(0, 1, 0), lora(target_modules=OUTPUTS))
    c = ld.contributions(ld.load_model(model, adapters="component"), PROMPTS, OPTIONS)
    assert {"L0@1.attn.lora", "L0@2.attn.lora", "L1.mlp.lora"} < {x.label for x in c.components}
    assert c.identity_gap <= 1e-6


def test_other_kinds_of_adapters_are_read_as_they_are_and_not_split():
    settings = {"target_modules": ["k_proj", *OUTPUTS], "feedforward_modules": ["down_proj"]}
    model = adapted(FAMILIES["llama"](), peft.IA3Config(task_type="CAUSAL_LM", **settings))
    for unit in UNITS:
        one, reference = (ld.contributions(m, PROMPTS, OPTIONS, unit=unit) for m in (model, merged(model)))
        np.testing.assert_allclose(one.values, reference.values, atol=1e-5)
    with pytest.raises(ld.InputError, match="adapters='merged'"):
        ld.load_model(model, adapters="component")


def test_what_cannot_be_taken_apart_is_refused():
    """Virtual tokens, adapters that switch on within a text, no adapters, hooks on an adapter, ablation of its row."""
    prompt = peft.get_peft_model(
        FAMILIES["llama"](), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    activated = peft.get_peft_model(FAMILIES["llama"](), lora(target_modules=OUTPUTS, alora_invocation_tokens=[5, 1]))
    for model in (prompt, activated):
        with pytest.raises(ld.InputError, match="PeftModel"):
            ld.load_model(model)
    with pytest.raises(ld.InputError, match="adapters"):
        ld.load_model(FAMILIES["llama"](), adapters="component")
    with pytest.raises(ld.InputError, match="adapters"):
        ld.load_model(FAMILIES["llama"](), adapters="rows")
    unbiased = adapted(FAMILIES["llama"](), lora(target_modules=OUTPUTS, lora_bias=True))
    with pytest.raises(ld.InputError, match="merge"):  # as merge_and_unload
        ld.contributions(unbiased, PROMPTS, OPTIONS, unit="head")
    model = adapted(FAMILIES["llama"](), lora(target_modules=OUTPUTS))
    split = ld.load_model(model, adapters="component")
    with pytest.raises(ld.InputError, match="adapters='merged'"):
        ld.effects(split, PROMPTS, options=OPTIONS, labels=[0, 1, 2], ablation="zero")
    hooked = model.base_model.model.model.layers[1].self_attn.o_proj
    with hooked.register_forward_hook(lambda module, args, output: 2 * output):
        with pytest.raises(ld.InputError, match="hook"):
            ld.contributions(split, PROMPTS, OPTIONS)
        assert ld.contributions(model, PROMPTS, OPTIONS).identity_gap <= 1e-6


@pytest.mark.full
def test_the_other_rooms_take_rows_of_adapters():
    """Profile, decomposition, explorer and depth analyses work on a model with rows of adapters."""
    model = ld.load_model(adapted(FAMILIES["llama"](), lora(target_modules=OUTPUTS)), adapters="component")
    c = ld.contributions(model, PROMPTS, OPTIONS)
    d = ld.decompose(c, [0, 1, 2])
    assert d.gap <= 1e-9
    assert set(d.by_module()["module"]) == {"embedding", "attention", "mlp"}
    assert [j.label for j, partial in zip(c.junctions, c.partial_junctions, strict=True) if partial][:1] == ["L0.attn"]
    profile = ld.profile(model, PROMPTS[0], unit="head")
    assert profile.identity_gap <= 1e-6
    assert "L2.mlp.lora" in [x.label for x in profile.components]
    assert "25 components" in repr(ld.explore(model, PROMPTS[0]))  # 13 rows, and 12 heads
    assert len(ld.depth.skip(model, [PROMPTS[0]], mode="future").layers) == 3


@pytest.mark.full
def test_a_folder_of_adapters_names_its_base(tmp_path):
    """What PEFT saves is loaded with the base model that it names."""
    from transformers import AutoModelForCausalLM

    FAMILIES["llama"]().save_pretrained(tmp_path / "base")
    model = adapted(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), lora(target_modules=OUTPUTS))
    model.save_pretrained(tmp_path / "tuned")
    loaded = ld.load_model(tmp_path / "tuned", device="cpu", adapters="component")
    assert loaded.name == "tuned+default"
    one, two = (ld.contributions(m, PROMPTS, OPTIONS).logits for m in (loaded, model))
    np.testing.assert_allclose(one, two, atol=1e-6)
