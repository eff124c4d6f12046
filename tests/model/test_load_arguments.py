"""What is not what it seems: tokens beyond a vocabulary, tables, sets, models without weights, settings as text."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import llama

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
        lambda m: ld.task("sample/sentiment", limit=4, template="{text} {answer}").resolve(m, multi_token=True),
    ],
)
def test_a_tokenizer_larger_than_the_vocabulary(small, ask):
    """Said with the token, its id and the size of the vocabulary, wherever text comes in."""
    with pytest.raises(ld.InputError, match="299"):
        ask(small)


def test_a_model_without_weights():
    """Shapes alone are refused; weights that accelerate has put away are read where they are."""
    from accelerate import cpu_offload

    with torch.device("meta"):
        empty = llama()
    for settings in ({}, {"copy": True}):
        with pytest.raises(ld.InputError, match="meta device"):
            ld.load_model(empty, **settings)
    whole = ld.contributions(llama(), PROMPTS, OPTIONS).values
    offloaded = ld.contributions(cpu_offload(llama(), execution_device="cpu"), PROMPTS, OPTIONS).values
    np.testing.assert_allclose(offloaded, whole, atol=1e-6)


def test_a_device_map_is_for_a_checkpoint():
    """What comes with the package, or is in memory already, is not spread."""
    for model, more in (("zoo/d1", {}), (llama(), {"copy": True}), (llama(), {})):
        with pytest.raises(ld.InputError, match="device_map"):
            ld.load_model(model, device_map="auto", **more)


@pytest.mark.parametrize(
    "settings",
    [
        *({"trust_remote_code": value} for value in ("False", "True", 1, 0, None, np.True_)),
        *({"copy": value} for value in ("yes", 1, None)),
        *({"device": value} for value in (True, 1.5, ["cpu"], {}, "")),
        *({"device_map": value} for value in (True, 1.5, ["cpu"], {}, "")),
        *({"dtype": value} for value in (True, 5, ["float32"], "int8", torch.int64, "Tensor")),
        *({"tokenizer": value} for value in (5, True, ["a"], {}, "", lambda text: text)),
    ],
    ids=lambda settings: "-".join(f"{name}-{type(value).__name__}" for name, value in settings.items()),
)
def test_settings_of_other_types(settings, tmp_path):
    """On disk and in memory, in words that name the argument."""
    model = llama()
    model.save_pretrained(tmp_path)
    for x, more in ((tmp_path, {}), (model, {} if "copy" in settings else {"copy": True})):
        with pytest.raises(ld.InputError, match=next(iter(settings))):
            ld.load_model(x, **more, **settings)


def test_only_true_runs_the_code_of_a_checkpoint(tmp_path):
    """Its code leaves a file behind; a text, even "True", leaves none."""
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mark = tmp_path / "ran"
    (tmp_path / "own.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        "class C(LlamaConfig):\n    model_type = 'own'\nclass M(LlamaForCausalLM):\n    config_class = C\n"
    )
    for value in ("False", "True", 1, False):
        with pytest.raises(ld.InputError):
            ld.load_model(tmp_path, trust_remote_code=value)
        assert not mark.exists()
    with pytest.raises(ld.InputError):  # it runs, and has no weights
        ld.load_model(tmp_path, trust_remote_code=True)
    assert mark.exists()


FRAME = pd.DataFrame({"a": ["x", "y"], "text": ["Once upon", "One day"]})


class Table:
    """As polars, pyarrow and datasets have them: columns by name, and iteration over something else."""

    column_names = ("text", "label")

    def __iter__(self):
        return iter(self.column_names)


@pytest.mark.parametrize(
    "table",
    [FRAME, pd.DataFrame([[5, 6], [7, 8]]), Table(), {"text": ["Once"]}],
    ids=lambda table: type(table).__name__,
)
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
def test_a_table_is_not_read_as_the_names_of_its_columns(stories, ask, table):
    with pytest.raises(ld.InputError, match=r"is a table|=\{'text'|vectors of"):
        ask(stories, table)


def test_one_column_is_a_list_of_texts(stories):
    expected = ld.contributions(stories, ["Once upon", "One day"], [300, 301]).values
    np.testing.assert_array_equal(ld.contributions(stories, FRAME["text"], [300, 301]).values, expected)
    with pytest.raises(ld.InputError, match=r"\['text'\]"):
        ld.contributions(stories, FRAME, [300, 301])


UNORDERED = [set, frozenset, lambda x: dict.fromkeys(x)]


@pytest.mark.parametrize("unordered", UNORDERED)
def test_options_without_an_order(stories, unordered):
    """Label 0 is the first option, so there must be a first, everywhere."""
    words = ["no", "yes"]
    frame = pd.DataFrame({"q": ["a", "b"], "label": [0, 1]})
    with pytest.raises(ld.InputError, match="options"):
        ld.contributions(stories, ["Once"], unordered([300, 301]))
    with pytest.raises(ld.InputError):
        ld.contributions(stories, ["Once"], [unordered([300, 301])])
    with pytest.raises(ld.InputError, match="prompts="):
        ld.contributions(stories, unordered(["Once", "One"]), [300, 301])
    with pytest.raises(ld.InputError, match="options"):
        ld.Task.from_frame(frame, template="{q} is", options=unordered(words))


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
    assert (c.junction_scale == 1).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU of number 0")
def test_the_device_of_number_0_is_a_device(stories_folder):
    """0 is the first GPU, not nothing: where there is none it is refused."""
    with pytest.raises(ld.InputError, match="device"):
        ld.load_model(stories_folder, device=0)


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
