"""What cannot be used is answered by one sentence that says what to do, and never by a number."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import gpt2, llama

GOOD = {"prompts": [[1, 2, 3]], "options": [7, 9]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": []}, "there are no prompts"),
        ({"prompts": [[1], []]}, "prompt 1 is empty"),
        ({"prompts": [""]}, "without a tokenizer"),
        ({"prompts": ["text"]}, "without a tokenizer: pass load_model"),
        ({"prompts": [[1, 99]]}, "prompt 0 holds the token id 99, but the vocabulary has ids 0 to 60"),
        ({"prompts": [[1, -1]]}, "holds the token id -1"),
        ({"prompts": [[1, 2.5]]}, "holds 2.5"),
        ({"prompts": [[1, True]]}, "holds True"),
        ({"prompts": [[1] * 65]}, "prompt 0 has 65 tokens, but .* reads at most 64"),
        ({"options": []}, "options is empty"),
        ({"options": [[]]}, "options of prompt 0 is empty"),
        ({"options": None}, "options is empty"),
        ({"options": "Yes"}, "options='Yes' must be a list"),
        ({"options": b"ab"}, "options=.* must be a list"),
        ({"prompts": b"ab"}, "prompts=b'ab' must be"),
        ({"prompts": [b"ab"]}, "prompt 0=b'ab' must be"),
        ({"options": [[[7]], [[9]]]}, "2 lists for 1 prompts"),
        ({"options": [[[7], [9]]]}, r"options of prompt 0 holds \[7\]"),
        ({"components": [0]}, "components="),
        ({"components": 0}, "components="),
        ({"options": [7, 7]}, "are the same token"),
        ({"options": [7, 99]}, "options holds the token id 99"),
        ({"options": [" Yes", " No"]}, "without a tokenizer"),
        ({"options": [" Yes", 7]}, "not a mixture"),
        ({"options": [[1, 2], [3, 4]]}, "2 lists for 1 prompts"),
        ({"prompts": [[1], [2]], "options": [[1, 2], [3]]}, "same number of options"),
        ({"unit": "layer"}, "unit='layer' is unknown"),
        ({"position": "first"}, "position='first' is unknown"),
        ({"position": 3}, "position 3 does not exist in prompt 0, which has 3 tokens"),
        ({"position": -4}, "position -4 does not exist"),
        ({"position": [0, 1]}, "does not fit 1 prompts"),
        ({"position": 1.0}, "position=1.0 must be"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"components": ["L9.attn"]}, "asks for L9.attn"),
        ({"components": ["attention"]}, "is not a component label"),
        ({"components": []}, "components="),
        ({"components": ["L0.N3"]}, "asks for L0.N3, which this model does not have at this unit"),
        ({"components": ["L0.N48"], "unit": "neuron"}, "asks for L0.N48"),
        ({"unit": "neurons"}, "unit='neurons' is unknown: use 'sublayer', 'head' or 'neuron'"),
        ({"top": 0}, "top=0 must be"),
        ({"top": True}, "top=True must be"),
        ({"top": 2, "components": ["embed"]}, "top and components cannot be combined"),
        ({"prompts": [[1, 2], "text"]}, "prompt 1 is text"),
        ({"prompts": 7}, "prompts=7 must be a list of texts"),
        ({"prompts": [None]}, "prompt 0=None must be"),
        ({"prompts": [[[1, 2]]]}, r"prompt 0 holds \[1, 2\]"),
        ({"options": 7}, "options=7 must be a list"),
        ({"options": [None, 7]}, "options holds None"),
        ({"options": [7.0, 8]}, "options holds 7.0"),
        ({"position": None}, "position=None must be"),
        ({"position": [True]}, "does not fit"),
        ({"batch_tokens": 4.5}, "batch_tokens=4.5"),
        ({"prompts": None}, "there are no prompts"),
        ({"prompts": {"input_ids": [[1, 2]]}}, "prompts={'input_ids.* must be a list of texts"),
        ({"prompts": torch.tensor(5)}, "prompts=.* must be a list"),
        ({"options": {"Yes": 7}}, "options=.* must be a list"),
        ({"components": ["L0@2.attn"]}, "asks for L0@2.attn, but this run has no such row"),
    ],
)
def test_bad_arguments_of_contributions(change, message):
    with pytest.raises(ld.InputError, match=message):
        ld.contributions(llama(), **{**GOOD, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([" elephant", " the"], r"option ' elephant' is \d+ tokens \['▁"),
        ([" elephants", " elephant"], "' elephant' starts with the same token"),
        (["", " the"], "option '' is 0 tokens"),
        ([" the", " the"], "are the same token"),
    ],
)
def test_options_that_are_no_single_token(stories, options, message):
    with pytest.raises(ld.InputError, match=message):
        ld.contributions(stories, ["Once upon"], options)


def test_an_empty_text(stories):
    with pytest.raises(ld.InputError, match="prompt 0 is empty"):
        ld.contributions(stories, [""], [300, 301])


@pytest.mark.parametrize("place", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_weights_that_are_nan(place):
    """NaN anywhere on the way to the logits gives a sentence, not NaN."""
    model = llama()
    model.get_parameter(place).data.fill_(float("nan"))
    with pytest.raises(ld.InputError, match=r"not finite|NaN"):
        ld.contributions(model, **GOOD)


def test_the_place_of_the_first_nan_is_named():
    model = llama()
    model.model.layers[1].self_attn.o_proj.weight.data.fill_(float("nan"))
    with pytest.raises(ld.InputError, match="first in L1.attn"):
        ld.contributions(model, **GOOD)


def test_a_model_that_does_not_sum_is_refused_with_the_place():
    """A write that no component names breaks the sum, and the message says where."""
    model = llama()
    hook = model.model.layers[1].register_forward_hook(lambda module, args, output: output + 1.0)
    with pytest.raises(
        ld.InputError, match="its residual stream between the input of block 1 and the input of block 2"
    ):
        ld.contributions(model, **GOOD)
    hook.remove()
    model.model.layers[2].register_forward_hook(lambda module, args, output: output + 1.0)
    with pytest.raises(ld.InputError, match="stream between the input of block 2 and the final norm"):
        ld.contributions(model, **GOOD)


def test_a_change_behind_the_unembedding_is_refused():
    """Logits that the model makes of its unembedding's output in a way nobody declared are not explained."""
    model = llama()
    forward = model.forward

    def warmer(**kwargs):
        output = forward(**kwargs)
        output.logits = output.logits * 2
        return output

    model.forward = warmer
    with pytest.raises(ld.InputError, match="changes what its unembedding returned in a way"):
        ld.contributions(model, **GOOD)


def test_heads_that_do_not_sum_are_refused():
    """An output projection that does more than its weights say (an adapter, say) cannot be cut into heads."""
    model = llama()
    model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda module, args, output: output + 1.0)
    assert ld.contributions(model, **GOOD).identity_gap <= 1e-6
    with pytest.raises(ld.InputError, match="its heads do not add up to their sublayers"):
        ld.contributions(model, **GOOD, unit="head")


def test_a_readout_that_is_no_norm_and_matrix_is_refused():
    model = llama()
    model.lm_head.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.raises(ld.InputError, match="do not give its logits"):
        ld.contributions(model, **GOOD)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("/no/such/folder", "there is no folder or file"),
        ("./nothing-here", "there is no folder or file"),
        ("model.gguf", "there is no file 'model.gguf'"),
        ("", r"load_model\(''\) names nothing"),
        ("nobody/no-such-model", "could not be loaded as a Hugging Face id"),
        (42, "a int is not a model"),
        (torch.nn.Linear(2, 2), "a Linear is not a model"),
    ],
)
def test_what_is_no_model(x, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ld.InputError, match=message):
        ld.load_model(x)


def test_folders_that_are_no_model(tmp_path):
    with pytest.raises(ld.InputError, match=r"has no config\.json\): give the folder"):
        ld.load_model(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ld.InputError, match="give the file itself"):
        ld.load_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ld.InputError, match="cannot be loaded"):
        ld.load_model(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ld.InputError, match="is a file, but not a .gguf file"):
        ld.load_model(tmp_path / "weights.bin")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf at all", b"GGUF\x03\0\0\0" + b"\xff" * 200])
def test_a_corrupt_gguf(tmp_path, content):
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(ld.InputError, match="is not a GGUF file that can be read"):
        ld.load_model(tmp_path / "broken.gguf")


def test_a_truncated_checkpoint(tmp_path, stories_folder):
    """A download that stopped half-way is a sentence too."""
    folder = tmp_path / "half"
    shutil.copytree(stories_folder, folder, copy_function=shutil.copyfile)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ld.InputError, match="cannot be loaded"):
        ld.load_model(folder)


def test_a_folder_without_tokenizer_takes_ids_only(tmp_path):
    llama().save_pretrained(tmp_path)
    model = ld.load_model(tmp_path)
    assert model.tokenizer is None
    assert ld.contributions(model, **GOOD).identity_gap < 1e-6
    with pytest.raises(ld.InputError, match="without a tokenizer"):
        ld.contributions(model, ["text"], [7, 9])
    with pytest.raises(ld.InputError, match="no tokenizer could be loaded"):
        ld.load_model(tmp_path, tokenizer=str(tmp_path))


def test_device_and_dtype_of_a_model_in_memory():
    """The user's model is not moved behind their back; a copy may be."""
    model = llama()
    with pytest.raises(ld.InputError, match="move your own model"):
        ld.load_model(model, dtype="float64")
    copied = ld.load_model(model, dtype="float64", copy=True)
    assert copied.provenance["dtype"] == "float64"
    assert next(model.parameters()).dtype == torch.float32
    assert ld.contributions(copied, **GOOD).identity_gap < 1e-6
    with pytest.raises(ld.InputError, match="dtype='float33'"):
        ld.load_model(model, dtype="float33", copy=True)


@pytest.mark.parametrize("device", ["cuda:99", "nowhere"])
def test_a_device_that_is_not_there(stories_folder, device):
    with pytest.raises(ld.InputError, match=f"cannot be put on device='{device}'"):
        ld.load_model(stories_folder, device=device)
    with pytest.raises(ld.InputError, match=f"cannot be put on device='{device}'"):
        ld.load_model(llama(), device=device, copy=True)


def test_dtype_and_tokenizer_pass_through(stories_folder):
    model = ld.load_model(stories_folder, dtype="float64", device="cpu", tokenizer=str(stories_folder))
    assert model.provenance["dtype"] == "float64"
    assert ld.contributions(model, ["Once upon"], [300, 301]).identity_gap < 1e-6
    with pytest.raises(ld.InputError, match="dtype='float33'"):
        ld.load_model(stories_folder, dtype="float33")
    mapped = ld.load_model(stories_folder, device_map={"": "cpu"})
    assert ld.contributions(mapped, ["Once upon"], [300, 301]).identity_gap < 1e-6


def test_models_that_are_no_sum_are_refused_with_the_reason():
    """Post-norm stacks and encoders have no final norm on the stream."""
    from transformers import BertConfig, BertLMHeadModel, OpenAIGPTConfig, OpenAIGPTLMHeadModel

    gpt = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=61, n_embd=32, n_layer=2, n_head=4))
    with pytest.raises(ld.InputError, match="cannot be decomposed"):
        ld.load_model(gpt)
    small = BertConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    with pytest.raises(ld.InputError, match=r"cannot be decomposed|does not know the architecture"):
        ld.load_model(BertLMHeadModel(small))


def test_files_that_are_no_result(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(ld.InputError, match="there is no file"):
        ld.Contributions.load(path)
    path.write_bytes(b"junk that is no safetensors file at all")
    with pytest.raises(ld.InputError, match="is not a saved Contributions"):
        ld.Contributions.load(path)
    ld.decompose(np.zeros((1, 2, 2)), [0]).save(path)
    with pytest.raises(ld.InputError, match="holds a Decomposition"):
        ld.Contributions.load(path)
    code = f"import layerdiv_tl as ld; ld.Contributions.load({str(path)!r})"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "holds a Decomposition" in fresh.stderr.splitlines()[-1]
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2)}, path)
    with pytest.raises(ld.InputError, match="was not written by this version"):
        ld.Contributions.load(path)


def test_a_path_that_cannot_be_written(tmp_path):
    d = ld.decompose(np.zeros((1, 2, 2)), [0])
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(ld.InputError, match="cannot be written"):
            d.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_selection_that_leaves_nothing():
    c = ld.contributions(gpt2(), **GOOD)
    with pytest.raises(ld.InputError, match="no component is left"):
        c.select(kind="mlp", layer=9)
