"""A TransformerBridge, through TransformerLens' hook names, gives what the Hugging Face modules give."""

import numpy as np
import pytest
from conftest import TEXTS, gpt2, llama

import layerdiv_tl as ld

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6], [3], [17, 11, 60, 0]]


def boot(model, tokenizer=None):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    if tokenizer is None:  # with None the bridge would ask the hub
        words = Tokenizer(WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w2")
    return TransformerBridge.boot_transformers("a-label", hf_model=model, tokenizer=tokenizer, device="cpu")


@pytest.mark.parametrize("make", [llama, gpt2, lambda: llama(attention_bias=True)], ids=["llama", "gpt2", "biased"])
@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_both_ways_give_the_same_numbers(make, unit):
    """Hook points and modules see the same writes."""
    plain = ld.contributions(make(), PROMPTS, [7, 30], unit=unit)
    bridged = ld.contributions(boot(make()), PROMPTS, [7, 30], unit=unit)
    assert bridged.components == plain.components
    assert bridged.identity_gap <= 1e-6
    np.testing.assert_allclose(bridged.values, plain.values, atol=1e-5)
    np.testing.assert_allclose(bridged.junction_scale, plain.junction_scale, rtol=1e-5)


def test_stories_through_a_bridge(stories_folder, stories):
    """The same on a trained model, with text and the bridge's own tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    bridge = boot(AutoModelForCausalLM.from_pretrained(stories_folder), AutoTokenizer.from_pretrained(stories_folder))
    for unit in ("sublayer", "head"):
        c = ld.contributions(bridge, TEXTS, [300, 301], unit=unit)
        assert c.identity_gap <= 1e-6
        np.testing.assert_allclose(c.values, ld.contributions(stories, TEXTS, [300, 301], unit=unit).values, atol=1e-5)


def test_hook_names_name_what_a_cache_needs():
    """Every hook name exists, and a cache of them holds the writes that sum to the final stream."""
    import torch

    bridge = boot(gpt2())
    names = ld.load_model(gpt2()).hook_names("head")
    assert names == ld.load_model(bridge).hook_names("head")
    _, cache = bridge.run_with_cache(torch.tensor(PROMPTS[:1]), names_filter=list(names))
    assert set(names) <= set(cache)
    writes = cache["hook_embed"] + cache["hook_pos_embed"]
    for layer in range(3):
        writes = writes + cache[f"blocks.{layer}.hook_attn_out"] + cache[f"blocks.{layer}.hook_mlp_out"]
    torch.testing.assert_close(writes, cache["blocks.2.hook_resid_post"], atol=1e-5, rtol=1e-5)


def test_compatibility_mode_is_taken_as_it_is():
    """center_unembed shifts all logits of a position; the parts follow, and centred they do not move."""
    plain = ld.contributions(llama(), PROMPTS, [7, 30], unit="head")
    bridge = boot(llama())
    bridge.enable_compatibility_mode()
    folded = ld.contributions(bridge, PROMPTS, [7, 30], unit="head")
    assert folded.identity_gap <= 1e-6
    centred = [c.values - c.values.mean(2, keepdims=True) for c in (plain, folded)]
    np.testing.assert_allclose(centred[1], centred[0], atol=1e-5)
    assert np.abs(folded.values - plain.values).max() > 1e-3
