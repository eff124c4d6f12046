"""What is not what it seems: tokens beyond a vocabulary, tables, sets, models without weights, settings as text."""

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import gpt2, llama

PROMPTS, OPTIONS = [[3, 4, 5], [7, 8]], [10, 11]


@pytest.fixture(scope="module")
def small(stories):
    """stories260K's tokenizer, of 512 tokens, with a model of 300 ids."""
    return ld.load_model(llama(vocab_size=300), tokenizer=stories.tokenizer)


def beyond(model):
    """A word that is one token, of an id that the model does not have."""
    words = (model.tokenizer.convert_ids_to_tokens(i).replace("▁", " ") for i in range(300, 512))
    tokenizer = model.tokenizer
    return next(w for w in words if w[0] == " " and len(tokenizer("a" + w, add_special_tokens=False)["input_ids"]) == 2)


TEXT = "Once upon a time there was a little girl"  # holds tokens of ids beyond 300


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: ld.contributions(m, [TEXT], [5, 6]),
        lambda m: ld.contributions(m, [[5, 6]], [" little", beyond(m)]),
        lambda m: ld.profile(m, TEXT),
        lambda m: ld.explore(m, TEXT),
        lambda m: ld.explore(m, [5, 6], target=beyond(m)),
        lambda m: ld.attention_patterns(m, TEXT),
        lambda m: ld.depth.skip(m, [TEXT]),
        lambda m: ld.depth.erase(m, [[5, 6, 7]], answers=[" little"]),
        lambda m: ld.contributions(m, ld.task("sample/sentiment", limit=4, template="{text} {answer}")),
    ],
)
def test_a_tokenizer_larger_than_the_vocabulary(small, ask):
    """Said with the token, its id and the size of the vocabulary, wherever text comes in."""
    with pytest.raises(ld.InputError, match="299"):
        ask(small)


def test_only_true_runs_the_code_of_a_checkpoint(tmp_path):
    """Its code leaves a file behind; a text, even "True", leaves none."""
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mark = tmp_path / "ran"
    (tmp_path / "own.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        "class C(LlamaConfig):\n    model_type = 'own'\nclass M(LlamaForCausalLM):\n    config_class = C\n"
    )
    for value in ("False", "True", 1, np.True_, False):
        with pytest.raises(ValueError, match="trust_remote_code"):
            ld.load_model(tmp_path, trust_remote_code=value)
        assert not mark.exists()
    with pytest.raises(OSError, match="no file named"):  # it runs, and has no weights
        ld.load_model(tmp_path, trust_remote_code=True)
    assert mark.exists()


FRAME = pd.DataFrame({"a": ["x", "y"], "text": ["Once upon", "One day"]})


class Table:
    """As polars, pyarrow and datasets have them: columns by name, and iteration over something else."""

    column_names = ("text", "label")

    def __iter__(self):
        return iter(self.column_names)


@pytest.mark.parametrize("table", [FRAME, Table(), {"text": ["Once"]}, {5, 6}], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize(
    "ask",
    [
        lambda m, t: ld.contributions(m, t, [300, 301]),
        lambda m, t: ld.contributions(m, [t], [300, 301]),
        lambda m, t: ld.contributions(m, ["Once"], t),
        lambda m, t: ld.contributions(m, ["Once", "One"], [300, 301], position=t),
        ld.profile,
        ld.explore,
        ld.attention_patterns,
        lambda m, t: ld.depth.residual_norms(m, t),
        lambda m, t: ld.depth.skip(m, t),
        lambda m, t: ld.depth.map_layers(m, m, t),
        lambda m, t: ld.depth.erase(m, ["Once upon", "One day"], answers=t),
    ],
)
def test_tables_and_sets_are_not_lists(stories, ask, table):
    """Iteration would give the names of columns, or an order that nobody gave."""
    with pytest.raises((ld.InputError, TypeError)):
        ask(stories, table)


def test_a_model_in_memory_is_copied_for_another_precision():
    """The user's model stays as it is; what cannot be applied to it is refused."""
    model = llama()
    copied = ld.load_model(model, dtype="float64")
    assert copied.provenance["dtype"] == "float64"
    assert next(model.parameters()).dtype == torch.float32
    for x, settings in ((copied, {"dtype": "float32"}), (model, {"device_map": "auto"})):
        with pytest.raises(ld.InputError, match="is loaded already"):
            ld.load_model(x, **settings)


def test_weights_that_accelerate_has_put_away_are_read_where_they_are():
    from accelerate import cpu_offload

    whole = ld.contributions(llama(), PROMPTS, OPTIONS).values
    offloaded = ld.contributions(cpu_offload(llama(), execution_device="cpu"), PROMPTS, OPTIONS).values
    np.testing.assert_allclose(offloaded, whole, atol=1e-6)


def test_a_task_made_by_hand_has_ordered_options_and_labels_of_them():
    made = {"name": "t", "template": "", "source": "", "license": ""}
    good = {"prompts": ("a", "b"), "options": (" x", " y"), "labels": np.array([0, 1])}
    assert len(ld.Task(**made, **good)) == 2
    bad = {"options": ({" x", " y"}, {" x": 0}.keys()), "prompts": ({"a", "b"}, FRAME)}
    bad["labels"] = ({0: 1, 1: 0}, np.array([0, 2]), np.array([-1, 0]), np.array([0]), np.array([0.0, 1.0]), {0, 1})
    for name, values in bad.items():
        for value in values:
            with pytest.raises(ld.InputError, match=name):
                ld.Task(**made, **{**good, name: value})


def test_an_identity_for_a_final_norm_is_read_out_exactly():
    """The stream goes to the unembedding as it is: contributions are plain products, by hand."""
    model = llama()
    model.model.norm = torch.nn.Identity()
    c = ld.contributions(model, PROMPTS, OPTIONS)
    written = []
    hooks = [
        layer.mlp.register_forward_hook(lambda m, a, out: written.append(out[0, -1])) for layer in model.model.layers
    ]
    with torch.no_grad():
        logits = model(torch.tensor(PROMPTS[:1])).logits[0, -1, OPTIONS]
        direct = torch.stack(written) @ model.lm_head.weight[OPTIONS].T
    for hook in hooks:
        hook.remove()
    rows = [i for i, component in enumerate(c.components) if component.kind == "mlp"]
    np.testing.assert_allclose(c.values[0, rows], direct.double(), atol=1e-5)
    np.testing.assert_allclose(c.logits[0], logits.double(), atol=1e-5)


def test_a_default_device_other_than_the_cpu_is_refused() -> None:
    model = ld.load_model(llama())
    with torch.device("meta"):
        for use in (lambda: ld.load_model(llama()), lambda: ld.contributions(model, [[1, 2]], [3, 4])):
            with pytest.raises(ld.InputError, match=r"meta by default .*set_default_device\('cpu'\)"):
                use()


def test_a_model_whose_modules_were_replaced_is_loaded_again() -> None:
    """What was found in them is not of the new ones; weights may change."""
    model = llama()
    loaded = ld.load_model(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    assert ld.contributions(loaded, [[1, 2]], [3, 4]).identity_gap <= 1e-6
    model.model.layers[1].mlp.down_proj = torch.nn.Linear(*reversed(model.model.layers[1].mlp.down_proj.weight.shape))
    with pytest.raises(ld.InputError, match="load it again"):
        ld.contributions(loaded, [[1, 2]], [3, 4])
    assert ld.contributions(model, [[1, 2]], [3, 4], unit="neuron").identity_gap <= 1e-6
    model.double()
    with pytest.raises(ld.InputError, match="load it again"):
        ld.contributions(loaded, [[1, 2]], [3, 4])


@pytest.mark.parametrize("again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy], ids=["pickled", "copied"])
@pytest.mark.parametrize("has_bridge", [False, True])
def test_a_model_survives_a_pickle(stories, again, has_bridge):
    """Joblib and multiprocessing send models so; a bridge over it is booted again."""
    model = ld.load_model(stories.root, tokenizer=stories.tokenizer)
    assert model.bridge is not None or not has_bridge
    found = again(replace(model, name="another name"))
    assert found.name == "another name"
    assert found.provenance == model.provenance
    assert found.root is not model.root
    one, two = (ld.contributions(m, ["Once upon"], [" a", " the"]).values for m in (found, model))
    np.testing.assert_array_equal(one, two)


def test_weights_made_in_inference_mode(stories_folder):
    """They allow no gradients: it is said so where these are needed; what is loaded there by name is like any other."""
    with torch.inference_mode():
        net, loaded = llama(), ld.load_model(stories_folder)
    assert ld.contributions(net, [[1, 2]], [7, 9]).identity_gap < 1e-6
    with pytest.raises(ld.InputError, match=r"inference_mode\(\).*deepcopy"):
        ld.source_tokens(net, [[1, 2]], [7, 9])
    for model in (copy.deepcopy(net), loaded):
        assert ld.source_tokens(model, [[1, 2]], [7, 9]).identity_gap < 1e-6
        assert ld.depth.integrated_gradients(model, [[1, 2]], answers=[7]) is not None


def test_the_bridge_of_a_model_in_training():
    """Dropout is on in it, and stays on; the bridge has none."""
    net = gpt2().train()
    ids = torch.tensor([[5, 4, 3]])
    assert ld.load_model(net).bridge(ids).allclose(copy.deepcopy(net).eval()(ids).logits, atol=1e-4)
    assert all(module.training for module in net.modules())
