"""Exactness does not depend on the shape: random Llama- and GPT-2-like models, every unit."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import layerdiv_tl as ld
from tests.conftest import randomized


@st.composite
def models(draw):
    """A random small model of one of four kinds, with random weights everywhere."""
    kv, group, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([2, 4, 6]))
    eps, middle = draw(st.sampled_from([1e-6, 1e-5, 1e-3])), draw(st.integers(1, 20))
    shape = {"vocab_size": draw(st.integers(5, 40)), "num_hidden_layers": draw(st.integers(1, 4))}
    shape |= {"num_attention_heads": kv * group, "num_key_value_heads": kv, "hidden_size": kv * group * width}
    shape |= {"intermediate_size": middle, "n_inner": middle, "max_position_embeddings": 32, "pad_token_id": 0}
    shape |= dict.fromkeys(("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"), eps)
    shape |= dict.fromkeys(("attention_bias", "mlp_bias"), draw(st.booleans()))
    shape |= {name: draw(st.booleans()) for name in ("tie_word_embeddings", "use_parallel_residual")}
    kind = draw(st.sampled_from(["llama", "gpt2", "gpt_neox", "olmo2"]))
    if kind == "llama":
        shape["head_dim"] = draw(st.sampled_from([2, 8]))
    config = CONFIG_MAPPING[kind]
    own = {config.attribute_map.get(name, name): value for name, value in shape.items()}
    torch.manual_seed(draw(st.integers(0, 2**16)))
    known = {name: value for name, value in own.items() if name in config.__dataclass_fields__}
    return randomized(AutoModelForCausalLM.from_config(config(**known), dtype=torch.float32))


@pytest.mark.full
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(models(), st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=4))
def test_any_shape_is_exact_at_every_unit(model, prompts):
    """Parts sum to the model's logits, heads and neurons to their sublayer, one prompt or many."""
    loaded = ld.load_model(model)
    whole = ld.contributions(loaded, prompts, [0, 3])
    size = np.abs(whole.values).sum(1).max()
    with torch.no_grad():
        plain = np.array([model(torch.tensor([p])).logits[0, -1, [0, 3]].double().numpy() for p in prompts])
    assert np.abs(whole.logits - plain).max() <= 3e-6 * size
    for unit, module in (("head", "attention"), ("neuron", "mlp")):
        cut = ld.contributions(loaded, prompts, [0, 3], unit=unit)
        assert cut.identity_gap <= 3e-6
        for layer in {x.layer for x in whole.components if x.layer is not None}:
            parts, sublayer = (x.select(module=module, layer=layer).logits for x in (cut, whole))
            assert np.abs(parts - sublayer).max() <= 3e-6 * size
