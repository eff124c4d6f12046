"""Quantized weights: sublayers as they come, heads and neurons through the numbers that the weights stand for."""

import copy

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import fingerprint
from tests.oracles.families import FAMILIES

quantization = pytest.importorskip("torchao.quantization")
PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]


def quantized(model, config, unembedding=True):
    def chosen(module, name):
        return isinstance(module, torch.nn.Linear) and (unembedding or name != "lm_head")

    quantization.quantize_(model, config, filter_fn=chosen)
    return model


def plain(model):
    """The same model with every quantized weight as the numbers that it stands for."""
    model = copy.deepcopy(model)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(weight, "dequantize") and hasattr(weight, "__tensor_flatten__"):
            module.weight = torch.nn.Parameter(weight.dequantize().detach())
    return model


BITS = {
    8: quantization.Int8WeightOnlyConfig,
    4: lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),  # Int4WeightOnlyConfig needs CUDA's kernels
}


@pytest.mark.full
@pytest.mark.parametrize("bits", BITS)
def test_weights_in_few_bits_are_exact_at_every_unit(bits):
    """The numbers are those of the model with dequantized weights; the whole vocabulary is read the same way."""
    model = quantized(FAMILIES["llama_biased"](), BITS[bits]())
    assert "torchao" in type(model.lm_head.weight).__module__
    for unit in ("sublayer", "head", "neuron"):
        one, two = (ld.contributions(m, PROMPTS, OPTIONS, unit=unit) for m in (model, plain(model)))
        assert one.identity_gap <= 1e-6
        assert one.components == two.components
        np.testing.assert_allclose(one.values, two.values, atol=1e-5)
    assert ld.profile(model, PROMPTS[0], unit="head").identity_gap <= 1e-6


@pytest.mark.parametrize("bits", BITS)
def test_quantized_weights_are_told_apart_by_their_numbers(bits):
    """The same numbers are the same model, one other number is another, and so are plain weights."""
    found = []
    for change in (0, 0, 9):
        model = FAMILIES["llama_biased"]()
        model.model.layers[1].mlp.up_proj.weight.data[20, 20] += change
        found.append(fingerprint(ld.load_model(quantized(model, BITS[bits]()))))
    plain = fingerprint(ld.load_model(FAMILIES["llama_biased"]()))
    assert found[0] == found[1]
    assert len({*found, plain}) == 3


def test_a_projection_that_rounds_its_input_has_sublayers_but_no_heads():
    model = quantized(FAMILIES["llama"](), quantization.Int8DynamicActivationInt8WeightConfig(), unembedding=False)
    assert ld.contributions(model, PROMPTS, OPTIONS).identity_gap <= 1e-6
    with pytest.raises(ld.InputError, match="no gradient"):
        ld.contributions(model, PROMPTS, OPTIONS, unit="head")


def test_adapters_on_quantized_weights_are_exact():
    peft = pytest.importorskip("peft")
    model = quantized(FAMILIES["llama"](), quantization.Int8WeightOnlyConfig(), unembedding=False)
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=3, target_modules=["o_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    ).eval()
    for unit in ("sublayer", "head"):
        assert ld.contributions(model, PROMPTS, OPTIONS, unit=unit).identity_gap <= 1e-6
