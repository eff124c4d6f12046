"""What is kept under a model's name is that model's: all its weights, its tokenizer, no hooks, no second model."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import fingerprint, identify, tokenizer_fingerprint
from layerdiv_tl.studies import shards
from layerdiv_tl.studies.runner import run_study
from tests.conftest import llama, tied
from tests.studies.test_study import rows, words  # noqa: F401  (words is a fixture)

TEXTS = ["yes no w1 w2 w3", "no no w1 yes w4 w5", "w3 w1 yes no no"]


def loaded(net, tokenizer):
    return ld.load_model(net, tokenizer=tokenizer)


@pytest.fixture
def model(words):  # noqa: F811
    return loaded(llama(), words)


def weight(net):
    return net.model.layers[1].mlp.down_proj.weight


def changed_number(net):
    """The last number of a matrix."""
    weight(net).data[-1, -1] += 0.5


def unsampled_columns(net):
    """Every number that one in 1024 evenly spaced ones misses, of all that neurons and heads write."""
    for layer in net.model.layers:
        for matrix in (layer.mlp.down_proj.weight, layer.self_attn.o_proj.weight):
            flat = matrix.data.flatten()
            missed = torch.ones(len(flat), dtype=torch.bool)
            missed[:: max(1, -(-len(flat) // 1024))] = False
            matrix.data[missed.view_as(matrix)] = 0


def changed_buffer(net):
    net.model.rotary_emb.original_inv_freq.mul_(1.5)
    net.model.rotary_emb.inv_freq.mul_(1.5)


def changed_epsilon(net):
    net.model.norm.variance_epsilon = 0.1


def other_activation(net):
    net.model.layers[1].mlp.act_fn = nn.ReLU()


def swapped_layers(net):
    """The same tensors in other places."""
    first, second = net.model.layers[0].mlp.down_proj, net.model.layers[1].mlp.down_proj
    first.weight, second.weight = second.weight, first.weight


def half_precision(net):
    net.to(torch.bfloat16)


def shared_layer(net):
    """A block takes the place of an equal copy of itself: the same numbers, tied."""
    net.model.layers[2] = net.model.layers[1]


CHANGES = [changed_number, unsampled_columns, changed_buffer, changed_epsilon, other_activation, swapped_layers]
CHANGES += [half_precision, shared_layer]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_is_another_model(change):
    """One number, a buffer, an attribute, a place, a precision; unchanged it is the same one, loaded again too."""
    net = llama(hidden_size=64, intermediate_size=96)
    before = fingerprint(ld.load_model(net))
    assert fingerprint(ld.load_model(llama(hidden_size=64, intermediate_size=96))) == before
    change(net)
    assert fingerprint(ld.load_model(net)) != before


def test_a_number_in_eight_bits_counts():
    """Float8 has no arithmetic, and is told all the same."""
    found = []
    for value in (0.5, 1.0):
        net = llama()
        weight(net).data = torch.full_like(weight(net), 0.5).to(torch.float8_e4m3fn)
        weight(net).data.view(torch.uint8)[3, 4] = torch.tensor([value]).to(torch.float8_e4m3fn).view(torch.uint8)[0]
        found.append(fingerprint(ld.load_model(net)))
    assert len(set(found)) == 2


@pytest.mark.filterwarnings("ignore")
def test_scales_of_packed_weights_count():
    """Of an int8 layer of PyTorch neither numbers nor scale are parameters."""
    net = llama()
    net.model.layers[1].mlp = torch.ao.quantization.quantize_dynamic(net.model.layers[1].mlp, {nn.Linear})
    before = fingerprint(ld.load_model(net))
    assert fingerprint(ld.load_model(net)) == before
    layer = net.model.layers[1].mlp.down_proj
    values, bias = layer._weight_bias()
    doubled = torch._make_per_tensor_quantized_tensor(values.int_repr(), 2 * values.q_scale(), values.q_zero_point())
    layer.set_weight_bias(doubled, bias)
    assert fingerprint(ld.load_model(net)) != before


@pytest.mark.full
def test_where_weights_lie_does_not_count(tmp_path):
    """In memory, read from a folder, offloaded to memory or to disk: one model; moved offloaded weights count."""
    from accelerate import cpu_offload, disk_offload

    net = llama()
    before = fingerprint(ld.load_model(net))
    net.save_pretrained(tmp_path / "saved")
    assert fingerprint(ld.load_model(tmp_path / "saved")) == before
    assert fingerprint(ld.load_model(cpu_offload(llama(), execution_device="cpu"))) == before
    offloaded = ld.load_model(disk_offload(llama(), tmp_path / "offload", execution_device="cpu"))
    assert identify(offloaded).weights == before
    changed = llama()
    changed_number(changed)
    assert fingerprint(ld.load_model(disk_offload(changed, tmp_path / "other", execution_device="cpu"))) != before


def test_running_a_model_makes_it_no_other_one(model):
    """Nor does asking Transformers for its hidden states, which leaves Transformers' hooks in it."""
    before = identify(model)
    ld.contributions(model, ["yes no w1", "w2"], [1, 2])
    model.architecture.root(input_ids=torch.tensor([[1, 2, 3]]), output_hidden_states=True, output_attentions=True)
    assert identify(model) == before


def test_tied_blocks_are_accounted_for():
    """A block that is listed twice is not two equal blocks."""
    equal = tied(0, 1)
    equal.model.layers[1].load_state_dict(equal.model.layers[0].state_dict())
    assert fingerprint(ld.load_model(tied(0, 0))) != fingerprint(ld.load_model(equal))


def test_adapters_count():
    """Which adapters there are, which is on, their scaling."""
    peft = pytest.importorskip("peft")
    net = llama()
    found = [fingerprint(ld.load_model(net))]
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    for name in ("a", "b"):
        net.add_adapter(copy.deepcopy(settings), name)
        found.append(identify(ld.load_model(net)).weights)
    net.set_adapter("a")
    found.append(identify(ld.load_model(net)).weights)
    net.model.layers[0].self_attn.q_proj.scaling["a"] = 3.0
    found.append(identify(ld.load_model(net)).weights)
    net.disable_adapters()
    found.append(identify(ld.load_model(net)).weights)
    assert len(set(found)) == 6
    net.enable_adapters()
    assert identify(ld.load_model(net)).weights == found[-2]


class Scaled(nn.Module):
    """Somebody's module in a model's place."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 0


def test_a_module_of_ones_own_counts(words):  # noqa: F811
    """Another class in a sublayer's place is another model, not a refused one: its text and weights are hashed."""
    net = llama()
    before = identify(loaded(net, words)).weights
    net.model.layers[1].mlp = Scaled(net.model.layers[1].mlp)
    assert identify(loaded(net, words)).weights != before


def with_bos(tokenizer):
    """The tokenizer with a token in front of every text."""
    from tokenizers.processors import TemplateProcessing

    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.post_processor = TemplateProcessing(single="w9 $A", special_tokens=[("w9", 12)])
    return other


def test_tokenizers_are_told_apart(words):  # noqa: F811
    """A token in front, the vocabulary, special tokens, the chat template; padding and a call do not count."""
    before = tokenizer_fingerprint(words)
    padded = copy.deepcopy(words)
    padded.pad_token = "w3"
    padded(["yes", "no no no"], padding=True, truncation=True, max_length=2)
    assert tokenizer_fingerprint(padded) == tokenizer_fingerprint(copy.deepcopy(words)) == before
    found = {before, tokenizer_fingerprint(with_bos(words)), tokenizer_fingerprint(None)}
    for name, value in (("chat_template", "{{ messages }}"), ("bos_token", "w4"), ("split_special_tokens", True)):
        other = copy.deepcopy(words)
        setattr(other, name, value)
        found.add(tokenizer_fingerprint(other))
    other = copy.deepcopy(words)
    other.add_tokens(["new"])
    found.add(tokenizer_fingerprint(other))
    assert len(found) == 7


def zeros(module, args, output=None):
    """A hook of any kind, which changes what matrices return."""
    return output * 0 if isinstance(output, torch.Tensor) else None


class Half(nn.Module):
    def forward(self, x):
        return x / 2


def hooked(net, how):
    mlp = net.model.layers[1].mlp
    match how:
        case "forward hook":
            mlp.down_proj.register_forward_hook(zeros)
        case "pre-hook":
            mlp.down_proj.register_forward_pre_hook(zeros)
        case "on the model":
            net.register_forward_hook(zeros)
        case "patched":
            mlp.forward = lambda x: x * 0
        case "patched inside":
            mlp.act_fn = torch.no_grad()(lambda x: x * 0)
        case "parametrized":
            nn.utils.parametrize.register_parametrization(mlp.down_proj, "weight", Half())
        case "accelerate":
            from accelerate.hooks import ModelHook, add_hook_to_module

            add_hook_to_module(mlp, type("Mine", (ModelHook,), {"__module__": __name__})())


HOOKS = ["forward hook", "pre-hook", "on the model", "patched", "patched inside", "parametrized", "accelerate"]


@pytest.mark.full
@pytest.mark.parametrize("how", HOOKS)
def test_what_is_kept_refuses_hooks(model, tmp_path, how):
    """Studies, depth studies and plans name the place; nothing is computed or taken from the folder."""
    task = rows(8)
    run_study({"m": model}, task, out=tmp_path)
    if how == "patched inside":
        del model.architecture.root.model.layers[1].mlp.act_fn
    hooked(model.architecture.root, how)
    place = "the model itself" if how == "on the model" else "model.layers.1.mlp"
    for run in (
        lambda: run_study({"m": model}, task, out=tmp_path),
        lambda: ld.run_depth({"m": model}, texts=TEXTS, out=tmp_path, questions=0),
        lambda: ld.depth.drop_plan(model, TEXTS, 1),
    ):
        with pytest.raises(ld.InputError, match=place):
            run()


def test_hooks_of_all_modules_and_of_a_class_are_refused(model, monkeypatch):
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        with pytest.raises(ld.InputError, match="every module"):
            identify(model)
    finally:
        handle.remove()
    identify(model)
    monkeypatch.setattr(type(model.architecture.root.model.layers[0].mlp), "forward", lambda self, x: x * 0)
    with pytest.raises(ld.InputError, match="LlamaMLP"):
        identify(model)


def test_hooks_of_transformer_lens_are_refused(words):  # noqa: F811
    from transformer_lens.model_bridge import TransformerBridge

    own = copy.deepcopy(words)  # TransformerLens changes what it is given
    bridge = TransformerBridge.boot_transformers("a-label", hf_model=llama(), tokenizer=own, device="cpu")
    model = ld.load_model(bridge)
    before = identify(model)
    bridge.run_with_cache(torch.tensor([[1, 2, 3]]))
    assert identify(model) == before
    with (
        bridge.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", lambda x, hook: x * 0)]),
        pytest.raises(ld.InputError, match=r"blocks\.1"),
    ):
        identify(model)
    bridge.add_perma_hook("blocks.1.hook_mlp_out", lambda x, hook: x * 0)
    with pytest.raises(ld.InputError, match=r"blocks\.1"):
        identify(model)


def test_contributions_take_hooked_models_as_before(model):
    """Nothing is kept on disk there: an MLP that is hooked to zero writes zeros."""
    model.architecture.root.model.layers[1].mlp.down_proj.register_forward_hook(lambda module, args, output: output * 0)
    c = ld.contributions(model, ["yes no w1"], [1, 2])
    at = [component.label for component in c.components].index("L1.mlp")
    np.testing.assert_array_equal(c.values[0, at], 0)


@pytest.mark.full
def test_two_models_of_one_name_are_refused(model, words, tmp_path, monkeypatch):  # noqa: F811
    """At a run, before anything is computed: other weights, then another tokenizer; both models are named."""
    first = run_study({"m": model}, rows(8), out=tmp_path)
    net = llama()
    unsampled_columns(net)
    changed_number(net)
    others = {"weights": loaded(net, words), "tokenizer": loaded(llama(), with_bos(words))}
    others["weights and tokenizer"] = loaded(llama(seed=1, num_hidden_layers=2), with_bos(words))
    monkeypatch.setattr(shards, "contributions", None)  # a call would fail
    for what, other in others.items():
        for run in (
            lambda other=other: run_study({"m": other}, rows(8), out=tmp_path),
            lambda other=other: ld.run_depth({"m": other}, texts=TEXTS, out=tmp_path, questions=0),
        ):
            with pytest.raises(ld.InputError, match=f"other {what}:") as refused:
                run()
            for one in (model, other):
                assert f"{one.provenance['parameters']:,} parameters" in str(refused.value)
                assert identify(one).weights[:8] in str(refused.value)
    assert ld.Study.load(tmp_path).metrics.equals(first.metrics)


@pytest.mark.full
def test_two_models_of_one_name_are_not_loaded_together(model, words, tmp_path):  # noqa: F811
    """From two folders, or copied into one, also where one is a study and the other its depth analyses."""
    other = loaded(llama(seed=1), words)
    run_study({"m": model}, rows(8), out=tmp_path / "a")
    run_study({"m": other}, rows(9), out=tmp_path / "b")
    ld.run_depth({"m": other}, texts=TEXTS, out=tmp_path / "c", questions=0)
    shutil.copytree(tmp_path / "a", tmp_path / "both")
    shutil.copytree(tmp_path / "b", tmp_path / "both", dirs_exist_ok=True)
    for folders in (("a", "b"), ("both",)):
        with pytest.raises(ld.InputError, match="'m'"):
            ld.Study.load(*(tmp_path / name for name in folders))
    shutil.copytree(tmp_path / "c", tmp_path / "a", dirs_exist_ok=True)
    with pytest.raises(ld.InputError, match="'m'"):
        ld.Study.load(tmp_path / "a").depth  # noqa: B018
    ld.run_depth({"m": model}, texts=TEXTS, out=tmp_path / "d", questions=0)
    with pytest.raises(ld.InputError, match="'m'"):
        ld.DepthStudy.load(tmp_path / "c", tmp_path / "d")
    assert ld.Study.load(tmp_path / "b").models()["model"].tolist() == ["m"]


@pytest.mark.full
def test_one_of_several_models_is_refused_alone(model, words, tmp_path):  # noqa: F811
    """The others go on."""
    run_study({"m": model}, rows(8), out=tmp_path)
    study = run_study({"m": loaded(llama(seed=1), words), "n": model}, rows(8), out=tmp_path)
    assert [one.startswith("m: two models") for one in study.failures] == [True]
    assert study.models()["model"].tolist() == ["n"]


@pytest.mark.nightly
def test_the_same_model_goes_on(words, tmp_path, monkeypatch):  # noqa: F811
    """Loaded again, from another place, with other tasks, units and rows: one study."""
    llama().save_pretrained(tmp_path / "m")
    words.save_pretrained(tmp_path / "m")
    out = tmp_path / "out"
    run_study({"m": loaded(llama(), words)}, rows(8), out=out)
    run_study(tmp_path / "m", dataclasses.replace(rows(8, seed=1), name="others"), out=out)
    run_study(tmp_path / "m", rows(8), "head", out=out)
    ld.run_depth(tmp_path / "m", texts=TEXTS, out=out, questions=0)
    study = ld.Study.load(out)
    assert len(study.cells) == 3
    assert not study.failures
    assert study.depth is not None
    saved = study.save(tmp_path / "copy")  # with the model's card
    run_study(tmp_path / "m", rows(9), out=saved)
    with pytest.raises(ld.InputError, match="two models"):
        run_study({"m": loaded(llama(seed=1), words)}, rows(9), out=saved)
    monkeypatch.setattr(shards, "contributions", None)  # a call would fail
    assert run_study(tmp_path / "m", rows(8), out=out).metrics["examples"].max() == 8


@pytest.mark.full
def test_cells_name_all_that_numbers_follow_from(model, tmp_path):
    """The token ids, the tokenizer and the way of computing are settings, next to the weights."""
    settings = run_study({"m": model}, rows(8), out=tmp_path).cells[0]["settings"]
    assert settings["fingerprint"] == fingerprint(model)
    assert settings["tokenizer"] == tokenizer_fingerprint(model.tokenizer)
    assert settings["attention"] == "sdpa"
    assert len(settings["tokens"]) == 64
    about = ld.run_depth({"m": model}, texts=TEXTS, out=tmp_path, questions=0).analyses[0].about["settings"]
    assert {name: about[name] for name in ("tokenizer", "attention")} == {
        name: settings[name] for name in ("tokenizer", "attention")
    }
    assert about["weights"] == settings["fingerprint"]


@pytest.mark.full
def test_folders_of_earlier_versions_are_said_and_not_mixed(model, tmp_path):
    """A cell or analysis of another format is left out with a sentence; alone it is an error."""
    study = run_study({"m": model}, rows(8), out=tmp_path)
    ld.run_depth({"m": model}, texts=TEXTS, out=tmp_path, questions=0)
    old = tmp_path / "old" / "words" / "sublayer-0"
    shutil.copytree(study.cells[0]["folder"], old)
    for file, version in (
        (old / "meta.json", "study/2"),
        (next(tmp_path.glob("depth/m/logit_lens-*.json")), "depth/1"),
    ):
        about = json.loads(file.read_text()) | {"format": f"layerdiv_tl.{version}"}
        about["settings"].pop("tokenizer")
        file.write_text(json.dumps(about))
    again = ld.Study.load(tmp_path)
    assert again.metrics.equals(study.metrics)
    assert [one.startswith("old: another version") for one in again.failures] == [True]
    assert any("another version" in one for one in again.depth.failures)
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(ld.InputError, match="another version"):
        ld.Study.load(tmp_path)


STRANGE = [5, 1.5, True, b"x", object(), {"a"}, {1: 2}, "", "\0", [[]], [None], np.arange(3), float("nan")]


@pytest.mark.parametrize("name", ["units", "load", "data", "out", "limit", "template", "shots", "seed", "train"])
def test_strange_arguments_of_a_study_end_in_a_sentence(model, tmp_path, monkeypatch, name):
    """Whatever is given: an InputError or a study, and never a folder where the program was started."""
    monkeypatch.chdir(tmp_path)
    for value in STRANGE:
        _says({"models": {"m": model}, "tasks": "sample/topic", "limit": 4, "out": tmp_path / "out", name: value})
    assert {file.name for file in tmp_path.iterdir()} <= {"out"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["tasks", "models", "chat", "multi_token", "keep_text", "workers", "batch_tokens"])
def test_strange_models_tasks_and_flags_end_in_a_sentence(model, tmp_path, name):
    for value in STRANGE:
        _says({"models": {"m": model}, "tasks": rows(4), "out": tmp_path / "out", name: value})


DEPTH = "models tasks texts out data limit drop part score ask questions load seed multi_token batch_tokens"


@pytest.mark.full
@pytest.mark.parametrize("name", DEPTH.split())
def test_strange_arguments_of_a_depth_study_end_in_a_sentence(model, tmp_path, name, monkeypatch):
    # The arguments, not the analyses.
    monkeypatch.setattr("layerdiv_tl.studies.depth_jobs.analyses_of", lambda *given: [])
    for value in STRANGE:
        asked = {"models": {"m": model}, "texts": TEXTS, "out": tmp_path / "out", name: value}
        _says(asked, ld.run_depth)


@pytest.mark.full
def test_strange_folders_are_refused(model, tmp_path):
    study = run_study({"m": model}, rows(4), out=tmp_path)
    for value in STRANGE:
        for load in (ld.Study.load, ld.DepthStudy.load, study.save):
            with pytest.raises(ld.InputError):
                load(value)


def _says(asked, run=run_study):
    """Whatever is wrong is an InputError, and not another error's text in one."""
    told = ""
    try:
        run(**asked)
    except ld.InputError as error:
        told = str(error)
    assert "Error:" not in told, asked


@pytest.mark.full
def test_of_the_default_model_every_number_counts(smol, tmp_path):
    """Zeroed wherever one number in 576 of a matrix is missed, it is another model; untouched, the same."""
    before = fingerprint(smol)
    net = copy.deepcopy(smol.architecture.root)
    assert fingerprint(ld.load_model(net)) == before
    unsampled_columns(net)
    assert fingerprint(ld.load_model(net)) != before
    task = ld.task("sample/sentiment", limit=4)
    run_study({"m": smol}, task, out=tmp_path)
    with pytest.raises(ld.InputError, match="'m'"):
        run_study({"m": ld.load_model(net, tokenizer=smol.tokenizer)}, task, out=tmp_path)
