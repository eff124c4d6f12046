"""GGUF files of one's own are the model of the file."""

from pathlib import Path

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import llama

PROMPTS, OPTIONS = [[3, 4, 5], [7, 8]], [10, 11]


def write_gguf(path: Path, seed: int = 0, half: bool = False, blocks: str = "") -> torch.nn.Module:
    """A tiny Llama as a GGUF file, after llama.cpp's names and its order of the rotated dimensions.

    `blocks` names a quantization (Q8_0, Q4_0), of every matrix whose rows are whole blocks of 32 numbers.
    """
    import gguf

    model = llama(seed, vocab_size=32, num_key_value_heads=4)
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(32)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"▁{chr(97 + i)}" for i in range(26)), "▁", "a", "b"]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 32)
    writer.add_token_types([2, 3, 3] + [1] * 29)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    names |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for name, value in model.state_dict().items():
        if name.startswith("model.layers."):
            layer, part = name.split(".")[2], name.split(".")[-2]
            if part in ("q_proj", "k_proj"):
                value = value.unflatten(0, (4, 2, -1)).transpose(1, 2).flatten(0, 2)
            to = f"blk.{layer}.{names[part]}.weight"
        else:
            to = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[name.split(".")[-2]]
            to += ".weight"
        array = value.numpy()
        if blocks and array.ndim == 2 and array.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType[blocks]
            writer.add_tensor(to, gguf.quants.quantize(array, kind), raw_dtype=kind)
            continue
        writer.add_tensor(to, array.astype(np.float16) if half and array.ndim == 2 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def logits(model):
    return ld.contributions(model, PROMPTS, OPTIONS).model_logits


@pytest.mark.full
def test_it_is_the_model_of_the_file(tmp_path):
    """Against the weights the file was written from, and against Transformers' own reading."""
    from transformers import AutoModelForCausalLM

    model = write_gguf(tmp_path / "tiny.gguf")
    loaded = ld.load_model(tmp_path / "tiny.gguf")
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype="auto").eval()
    np.testing.assert_allclose(logits(loaded), logits(model), atol=1e-5)
    np.testing.assert_array_equal(logits(loaded), logits(direct))
    assert (loaded.name, loaded.provenance["source"]) == ("tiny.gguf", str(tmp_path / "tiny.gguf"))
    assert loaded.provenance["dtype"] == str(direct.dtype).removeprefix("torch.")
    assert loaded.tokenizer.convert_tokens_to_ids("▁c") == 5


@pytest.mark.full
@pytest.mark.parametrize("half", [False, True])
def test_dtype_and_device_are_those_asked_for(tmp_path, half):
    """As Transformers reads it, bit for bit."""
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "tiny.gguf", half=half)
    loaded = ld.load_model(tmp_path / "tiny.gguf", dtype="bfloat16", device="cpu")
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.bfloat16)
    assert loaded.provenance["dtype"] == "bfloat16"
    for (name, ours), (_, theirs) in zip(loaded.root.named_parameters(), direct.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert ld.load_model(tmp_path / "tiny.gguf", device_map={"": "cpu"}).provenance["device"] == "cpu"


@pytest.mark.nightly
@pytest.mark.parametrize("blocks", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_a_quantized_file_is_decomposed_as_the_numbers_that_it_holds(tmp_path, blocks, unit):
    """Exact at every unit, with the logits of Transformers' own dequantized model, which are not the original's."""
    from transformers import AutoModelForCausalLM

    original = write_gguf(tmp_path / "small.gguf", blocks=blocks)
    c = ld.contributions(ld.load_model(tmp_path / "small.gguf"), PROMPTS, OPTIONS, unit=unit)
    assert c.identity_gap <= 1e-6
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf", dtype=torch.float32).eval()
    with torch.no_grad():
        plain, unquantized = (m(torch.tensor(PROMPTS[:1])).logits[0, -1, OPTIONS] for m in (direct, original))
    np.testing.assert_allclose(c.model_logits[0], plain.numpy(), atol=1e-5)
    assert np.abs(c.model_logits[0] - unquantized.numpy()).max() > 1e-4
