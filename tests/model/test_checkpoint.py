"""Checkpoints are loaded whole or refused by the names of their tensors, at every way in."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import layerdiv_tl as ld
from tests.model.test_adapters import OUTPUTS, adapted, lora
from tests.model.test_converted import write_gguf
from tests.model.test_multimodal import WRAPPERS, wrapper
from tests.oracles.families import BY_STRUCTURE, FAMILIES, each


def edit(folder, change=lambda tensors: tensors, file="model.safetensors", **settings):
    """Change the tensors of a saved model, and settings of its config."""
    tensors = load_file(folder / file)
    save_file(change(dict(tensors)), folder / file, metadata={"format": "pt"})
    if settings:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))


def without(part):
    return lambda tensors: {name: x for name, x in tensors.items() if part not in name}


def renamed(old, new):
    return lambda tensors: {name.replace(old, new): x for name, x in tensors.items()}


def with_(name, *shape):
    return lambda tensors: tensors | {name: torch.ones(shape)}


@pytest.mark.parametrize(
    ("change", "settings", "named"),
    [
        (without("layers.1.mlp.up_proj"), {}, "layers.1.mlp.up_proj.weight"),
        (without("lm_head"), {}, "lm_head.weight"),
        (without("model.norm"), {}, "model.norm.weight"),
        (renamed("up_proj", "up"), {}, "layers.0.mlp.up_proj.weight"),
        (with_("model.layers.0.self_attn.q_proj.bias", 32), {}, "q_proj.bias"),
        (dict, {"num_hidden_layers": 5}, "layers.3.input_layernorm.weight"),
        (dict, {"num_hidden_layers": 2}, "layers.2.input_layernorm.weight"),
        (dict, {"intermediate_size": 60}, "layers.0.mlp.down_proj.weight"),
    ],
)
def test_tensors_that_are_missing_left_over_or_misshapen_are_refused_by_name(tmp_path, change, settings, named):
    """A checkpoint that is not its config's model has no numbers: Transformers would make some of them up."""
    FAMILIES["llama"]().save_pretrained(tmp_path)
    edit(tmp_path, change, **settings)
    with pytest.raises(ld.InputError, match=named):
        ld.load_model(tmp_path)


@pytest.mark.parametrize("part", ["experts.2.w1", "experts.0", "experts", "gate.weight"])
def test_experts_that_transformers_puts_together_are_whole_too(tmp_path, part):
    """A mixture of which one expert, or a part of one, is missing has no numbers."""
    FAMILIES["mixtral"]().save_pretrained(tmp_path)
    edit(tmp_path, without(part))
    with pytest.raises((ld.InputError, RuntimeError), match="lacks|of other shapes|CONVERSION"):
        ld.load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama_tied", without("lm_head")),
        ("llama", with_("model.layers.0.self_attn.rotary_emb.inv_freq", 4)),
        ("gpt2", with_("transformer.h.0.attn.bias", 1, 1, 64, 64)),
        ("gpt2", lambda tensors: renamed("transformer.", "")(with_("h.1.attn.masked_bias")(tensors))),
        ("gptj", with_("transformer.h.0.attn.bias", 1, 1, 64, 64)),
        ("codegen", with_("transformer.h.0.attn.causal_mask", 1, 1, 64, 64)),
        ("gpt_neo", with_("transformer.h.0.attn.attention.masked_bias")),
        ("neox_parallel", with_("gpt_neox.layers.0.attention.rotary_emb.inv_freq", 4)),
        ("xglm", with_("model.embed_positions.weights", 66, 32)),
    ],
)
def test_what_is_tied_or_made_by_the_modules_may_be_missing_or_stored(tmp_path, name, change):
    """Tied weights, and masks and positions that older versions stored, change no number."""
    model = FAMILIES[name]()
    model.save_pretrained(tmp_path)
    edit(tmp_path, change)
    loaded = ld.load_model(tmp_path, device="cpu").hf_model
    ids = torch.tensor([[5, 1, 4]])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize("size", ["5GB", "20KB"])
@pytest.mark.parametrize("name", each(FAMILIES | BY_STRUCTURE))
def test_every_family_loads_as_it_was_saved(tmp_path, name, size):
    """What Transformers saves, in one file or in several, is never refused, and is what Transformers loads."""
    model = (FAMILIES | BY_STRUCTURE)[name]()
    model.save_pretrained(tmp_path, max_shard_size=size)
    loaded = ld.load_model(tmp_path, device="cpu").hf_model
    theirs, ids = type(model).from_pretrained(tmp_path).eval(), torch.tensor([[5, 1, 4]])
    with torch.no_grad():  # RWKV divides weights of later layers when it runs
        ours, theirs = (model(ids, use_cache=False).logits for model in (loaded.eval(), theirs))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", [pytest.param(x, marks=() if x == "llava" else pytest.mark.full) for x in WRAPPERS])
def test_models_that_take_pictures_are_whole_or_refused(tmp_path, name):
    """They load as they were saved; a missing norm of the text side is named."""
    wrapper(name).save_pretrained(tmp_path)
    ld.load_model(tmp_path, device="cpu")
    of_text = [key for key in load_file(tmp_path / "model.safetensors") if "vision" not in key and "layers.2." in key]
    last = sorted(key for key in of_text if "norm" in key)[-1]
    edit(tmp_path, without(last))
    with pytest.raises(ld.InputError, match="norm"):
        ld.load_model(tmp_path)


@pytest.mark.full
def test_adapters_and_their_base_are_whole_or_refused(tmp_path):
    """Transformers reports on the adapters alone; the numbers of a whole pair stay those of Transformers to the bit."""
    FAMILIES["llama"]().to(torch.bfloat16).save_pretrained(tmp_path / "base")
    model = adapted(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), lora(target_modules=OUTPUTS))
    model.save_pretrained(tmp_path / "tuned")
    ours = ld.load_model(tmp_path / "tuned", device="cpu").hf_model
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned", dtype="auto")
    for (name, one), (_, two) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert one.dtype == two.dtype
        assert torch.equal(one, two), name
    edit(tmp_path / "tuned", without("layers.1.mlp.down_proj.lora_B"), "adapter_model.safetensors")
    with pytest.raises(ld.InputError, match=r"layers.1.mlp.down_proj.lora_B"):
        ld.load_model(tmp_path / "tuned")
    model.save_pretrained(tmp_path / "tuned")
    edit(tmp_path / "base", without("layers.1.mlp.up_proj"))
    with pytest.raises(ld.InputError, match=r"layers.1.mlp.up_proj"):
        ld.load_model(tmp_path / "tuned")
    for file in (tmp_path / "base").iterdir():  # adapters next to the weights that they are for
        (tmp_path / "tuned" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ld.InputError, match=r"layers.1.mlp.up_proj"):
        ld.load_model(tmp_path / "tuned")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda name: None if name == "blk.1.ffn_up.weight" else name, "layers.1.mlp.up_proj.weight"),
        (lambda name: name.replace("ffn_up", "ffn_upper"), "layers.0.mlp.up_proj.weight"),
        (lambda name: name.replace("blk.2.", "blk.7."), "layers.2.input_layernorm.weight"),
    ],
)
def test_a_gguf_file_is_whole_or_refused(tmp_path, monkeypatch, change, named):
    import gguf

    write = gguf.GGUFWriter.add_tensor
    monkeypatch.setattr(
        gguf.GGUFWriter, "add_tensor", lambda self, name, x: write(self, change(name), x) if change(name) else None
    )
    write_gguf(tmp_path / "part.gguf")
    with pytest.raises(ld.InputError, match=named):
        ld.load_model(tmp_path / "part.gguf")


@pytest.mark.nightly
def test_the_logging_level_of_transformers_stays_the_users():
    """TransformerLens silences Transformers when it is imported: a model is loaded without it."""
    script = """
import logging
import transformers
from tests.conftest import llama
import layerdiv_tl as ld
before = logging.getLogger("transformers").level
ld.load_model(llama())
assert logging.getLogger("transformers").level == before == logging.WARNING, before
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_threads_that_load_models_leave_transformers_as_it_was():
    """Transformers ties no weights while it loads; once two threads are done, it does again."""
    from transformers import PreTrainedModel

    tie = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ld.load_model, ["zoo/d1", "zoo/d2", "zoo/d4"] * 4))
    assert PreTrainedModel.tie_weights is tie


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "weights.gguf"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, stories_folder, name):
    """What a clone without LFS leaves in place of large files has headers that are "too large", or no tokenizer."""
    folder = shutil.copytree(stories_folder, tmp_path / "model")
    (folder / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1000\n")
    with pytest.raises(ld.InputError, match=f"{name} is a pointer of Git LFS .*git lfs pull"):
        ld.load_model(folder / name if name.endswith("gguf") else folder)


def test_adapters_without_peft_are_named(tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text("{}")
    monkeypatch.setattr("transformers.utils.is_peft_available", lambda: False)
    with pytest.raises(ld.InputError, match="pip install peft"):
        ld.load_model(tmp_path)
