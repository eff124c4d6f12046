"""GGUF files of one's own: converted once, known by their content, whatever else writes into the cache."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model import pretrained
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


def folders(cache):
    return sorted(p.name for p in cache.iterdir())


@pytest.mark.full
def test_it_is_the_model_of_the_file(tmp_path, cache):
    """Against the weights the file was written from, and against reading it without a cache."""
    from transformers import AutoModelForCausalLM

    model = write_gguf(tmp_path / "tiny.gguf")
    loaded = ld.load_model(tmp_path / "tiny.gguf")
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype="auto").eval()
    np.testing.assert_allclose(logits(loaded), logits(model), atol=1e-5)
    np.testing.assert_array_equal(logits(loaded), logits(direct))
    assert (loaded.name, loaded.provenance["source"]) == ("tiny.gguf", str(tmp_path / "tiny.gguf"))
    assert loaded.provenance["dtype"] == str(direct.dtype).removeprefix("torch.")
    assert loaded.tokenizer.convert_tokens_to_ids("▁c") == 5


def test_the_second_load_converts_nothing(tmp_path, cache, monkeypatch, capsys):
    """And nothing is said."""
    write_gguf(tmp_path / "tiny.gguf")
    first = logits(ld.load_model(tmp_path / "tiny.gguf"))
    told = capsys.readouterr()
    assert "tiny.gguf" in told.err
    assert told.out == ""
    monkeypatch.setattr(pretrained, "convert_gguf", lambda *_: pytest.fail("converted again"))
    np.testing.assert_array_equal(logits(ld.load_model(tmp_path / "tiny.gguf")), first)
    assert capsys.readouterr().err == ""


@pytest.mark.full
def test_another_file_at_the_same_path_is_another_model(tmp_path, cache):
    """Of the same size, with the old one's times put back: content decides, of copies too, and both stay."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    os.utime(path, (time.time() - 9, time.time() - 9))
    before, first = path.stat(), logits(ld.load_model(path))
    other = write_gguf(path, seed=1)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = logits(ld.load_model(path))
    np.testing.assert_allclose(second, logits(other), atol=1e-5)
    assert np.abs(second - first).max() > 0.1
    (tmp_path / "copy.gguf").write_bytes(path.read_bytes())
    np.testing.assert_array_equal(logits(ld.load_model(tmp_path / "copy.gguf")), second)
    assert len(folders(cache)) == 2


@pytest.mark.full
@pytest.mark.parametrize("half", [False, True])
def test_dtype_and_device_are_those_asked_for(tmp_path, cache, half):
    """bfloat16 from the conversion is bfloat16 from the file, bit for bit."""
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "tiny.gguf", half=half)
    loaded = ld.load_model(tmp_path / "tiny.gguf", dtype="bfloat16", device="cpu")
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.bfloat16)
    assert loaded.provenance["dtype"] == "bfloat16"
    for (name, ours), (_, theirs) in zip(loaded.root.named_parameters(), direct.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert ld.load_model(tmp_path / "tiny.gguf", device_map={"": "cpu"}).provenance["device"] == "cpu"


def test_a_cache_that_cannot_be_written_is_refused_with_the_way_out(tmp_path, monkeypatch):
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAYERDIV_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ld.InputError, match="LAYERDIV_CACHE"):
        ld.load_model(tmp_path / "tiny.gguf")


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path, cache, monkeypatch):
    """A download may still be going on."""
    write_gguf(tmp_path / "tiny.gguf")
    plain = pretrained.convert_gguf

    def meanwhile(gguf, folder):
        plain(gguf, folder)
        write_gguf(gguf, seed=1)

    monkeypatch.setattr(pretrained, "convert_gguf", meanwhile)
    with pytest.raises(ld.InputError, match="changed"):
        ld.load_model(tmp_path / "tiny.gguf")
    assert folders(cache) == []


SCRIPT = """
import sys, time
from layerdiv_tl.model import pretrained
import layerdiv_tl as ld
plain = pretrained.convert_gguf
def slow(gguf, folder):
    plain(gguf, folder)
    print("written", flush=True)
    time.sleep(float(sys.argv[2]))
pretrained.convert_gguf = slow
model = ld.load_model(sys.argv[1])
print(ld.contributions(model, [[3, 4, 5], [7, 8]], [10, 11]).model_logits.tobytes().hex())
"""


def start(path, wait):
    command = [sys.executable, "-c", SCRIPT, str(path), str(wait)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.nightly
def test_two_processes_at_once_and_one_that_was_killed(tmp_path, cache):
    """The killed one leaves a part that is never taken for a model; two at once end with one whole folder."""
    write_gguf(tmp_path / "tiny.gguf")
    killed = start(tmp_path / "tiny.gguf", 600)
    assert killed.stdout.readline() == "written\n"
    killed.kill()
    killed.wait()
    (left,) = folders(cache)
    assert left.endswith(".partial")
    both = [start(tmp_path / "tiny.gguf", 2) for _ in range(2)]
    answers = {process.communicate(timeout=600)[0].splitlines()[-1] for process in both}
    assert len(answers) == 1
    assert [name for name in folders(cache) if name != left] == [next(n for n in folders(cache) if n[0] == "g")]
    assert left in folders(cache)


@pytest.mark.nightly
@pytest.mark.parametrize("blocks", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_a_quantized_file_is_decomposed_as_the_numbers_that_it_holds(tmp_path, cache, blocks, unit):
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
