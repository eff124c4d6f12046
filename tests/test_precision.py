"""Half precisions and offloaded weights: what rounding loses has a name, and nothing needs to be in memory."""

import numpy as np
import pytest
import torch
from conftest import TEXTS, gpt2, llama
from families import FAMILIES

import layerdiv_tl as ld

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "make", [llama, gpt2, FAMILIES["gemma2"], FAMILIES["granite"]], ids=["llama", "gpt2", "gemma2", "granite"]
)
@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_half_precision_names_its_rounding(make, dtype, unit):
    """Gap ≤ 2e-2, and a `rounding` row that is not zero and of that order."""
    model = make().to(dtype)
    c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    assert c.components[-1].label == "rounding"
    assert c.components == ld.load_model(model).components(unit)
    assert c.identity_gap <= 2e-2
    size = np.abs(c.values).sum(1).max()
    assert 0 < np.abs(c.select(kind="rounding").values).max() <= 2e-2 * size
    with torch.no_grad():
        plain = model(torch.tensor(PROMPTS[:1])).logits[0, -1, OPTIONS].double().numpy()
    np.testing.assert_array_equal(c.model_logits[0], plain)


@pytest.mark.parametrize("make", [llama, gpt2, FAMILIES["gemma2"]], ids=["llama", "gpt2", "gemma2"])
def test_half_precision_is_near_full(make):
    """bfloat16 weights run in float32 or in bfloat16 give nearly the same parts."""
    rounded = make().to(torch.bfloat16)
    full = ld.contributions(ld.load_model(rounded, copy=True, dtype="float32"), PROMPTS, OPTIONS)
    half = ld.contributions(rounded, PROMPTS, OPTIONS)
    size = np.abs(full.values).sum(1).max()
    for component in full.components:
        near = half.select(label=component.label).values - full.select(label=component.label).values
        assert np.abs(near).max() <= 3e-2 * size


def test_full_precision_has_no_rounding_row(stories):
    assert "rounding" not in {component.kind for component in stories.components("head")}


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_weights_on_disk(stories_folder, stories, tmp_path, unit):
    """With accelerate's disk offload the unembedding and the norm lie nowhere in memory; the numbers are the same."""
    from accelerate import disk_offload
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(stories_folder)
    disk_offload(model, str(tmp_path / "weights"), execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    loaded = ld.load_model(model, tokenizer=AutoTokenizer.from_pretrained(stories_folder))
    c = ld.contributions(loaded, TEXTS, [300, 301], unit=unit)
    expected = ld.contributions(stories, TEXTS, [300, 301], unit=unit)
    assert c.components == expected.components
    np.testing.assert_allclose(c.values, expected.values, atol=1e-6)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_device_map(stories_folder, stories):
    """device_map goes through to from_pretrained."""
    places = {
        "model.embed_tokens": "cpu",
        "model.layers": "cpu",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    loaded = ld.load_model(stories_folder, device_map=places)
    c = ld.contributions(loaded, TEXTS, [300, 301])
    np.testing.assert_allclose(c.values, ld.contributions(stories, TEXTS, [300, 301]).values, atol=1e-6)


@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_a_copy_is_another_model(make):
    """copy=True works on weights of its own: changing them leaves the user's model alone."""
    model = make()
    copied = ld.load_model(model, copy=True)
    assert copied.anatomy.root is not model
    before = ld.contributions(model, PROMPTS, OPTIONS).values
    with torch.no_grad():
        for parameter in copied.anatomy.root.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(ld.contributions(model, PROMPTS, OPTIONS).values, before)
