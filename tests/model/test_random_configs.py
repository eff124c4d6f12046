"""Exactness does not depend on the shape: random Llama- and GPT-2-like models, every unit."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import layerdiv_tl as ld
from tests.conftest import randomized


@st.composite
def models(draw):
    """A random small model of one of four kinds, with random weights everywhere."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        Olmo2Config,
        Olmo2ForCausalLM,
    )

    kv, group, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([2, 4, 6]))
    heads, layers, vocabulary = kv * group, draw(st.integers(1, 4)), draw(st.integers(5, 40))
    tied, biased, parallel = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    eps = draw(st.sampled_from([1e-6, 1e-5, 1e-3]))
    kind = draw(st.sampled_from(["llama", "gpt2", "neox", "olmo2"]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    common = {"vocab_size": vocabulary, "num_hidden_layers": layers, "num_attention_heads": heads}
    common |= {"hidden_size": heads * width, "intermediate_size": draw(st.integers(1, 20)), "tie_word_embeddings": tied}
    common |= {"max_position_embeddings": 32}
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=vocabulary,
            n_layer=layers,
            n_head=heads,
            n_embd=heads * width,
            n_positions=32,
            n_inner=common["intermediate_size"],
            layer_norm_epsilon=eps,
            tie_word_embeddings=tied,
        )
        return randomized(GPT2LMHeadModel(config))
    if kind == "neox":
        config = GPTNeoXConfig(**common, use_parallel_residual=parallel, layer_norm_eps=eps, attention_bias=biased)
        return randomized(GPTNeoXForCausalLM(config))
    common |= {"num_key_value_heads": kv, "attention_bias": biased, "rms_norm_eps": eps}
    if kind == "olmo2":
        return randomized(Olmo2ForCausalLM(Olmo2Config(**common, pad_token_id=0)))
    return randomized(LlamaForCausalLM(LlamaConfig(**common, mlp_bias=biased, head_dim=draw(st.sampled_from([2, 8])))))


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
