"""The catalog against Table 4, against transformers' own models, and against models taken apart."""

import json

import pandas as pd
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import layerdiv_tl as ld
from layerdiv_tl.model.pretrained import MOBILELLM
from layerdiv_tl.studies.paper_models import (
    DEPTH,
    DIVERSITY,
    catalog,
    task_records,
)
from layerdiv_tl.tasks.specs import task_specs
from tests.conftest import llama
from tests.oracles import config_counts
from tests.oracles.config_counts import component_count
from tests.oracles.families import FAMILIES, each

# Parameter size and layer size as the paper prints them.
TABLE_4 = """
facebook/MobileLLM-125M 125M 61
facebook/MobileLLM-125M-layer-share 125M 121
facebook/MobileLLM-350M 350M 65
facebook/MobileLLM-350M-layer-share 350M 129
meta-llama/Llama-3.2-1B-Instruct 1B 33
meta-llama/Llama-3.2-3B-Instruct 3B 57
microsoft/Phi-3-mini-128k-instruct 3.8B 65
microsoft/Phi-3.5-mini-instruct 3.8B 65
meta-llama/Llama-2-7b-hf 7B 65
mistralai/Mistral-7B-Instruct-v0.1 7B 65
mistralai/Mistral-7B-Instruct-v0.3 7B 65
meta-llama/Meta-Llama-3-8B-Instruct 8B 65
meta-llama/Llama-3.1-8B-Instruct 8B 65
meta-llama/Llama-2-13b-hf 13B 81
microsoft/Phi-3-medium-4k-instruct 14B 81
microsoft/phi-4 14.7B 81
"""


def test_components_are_those_of_table_4():
    printed = [line.split() for line in TABLE_4.split("\n") if line]
    paper = [entry for entry in catalog() if DIVERSITY in entry.papers]
    assert [entry.name for entry in paper] == [name for name, _, _ in printed]
    assert [entry.components for entry in paper] == [int(count) for _, _, count in printed]
    assert [entry.components for entry in catalog()] == [component_count(entry.config) for entry in catalog()]
    for entry, (_, size, _) in zip(paper, printed, strict=True):
        said = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
        assert abs(entry.parameters / said - 1) < 0.25  # "1B" is 1.24B


@pytest.mark.nightly
@pytest.mark.parametrize("entry", catalog(), ids=lambda entry: entry.name)
def test_parameters_are_those_of_transformers(entry):
    """The whole model is built, without memory, from the entry's config."""
    config = dict(entry.config)
    if config["model_type"] == "mobilellm":  # its blocks are Llama's, its embeddings are shared
        config |= {"model_type": "llama", "tie_word_embeddings": config["share_embedding"]}
    config.setdefault("tie_word_embeddings", False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](pad_token_id=0, **config))
    assert entry.parameters == model.num_parameters()
    assert entry.gigabytes == round(2 * entry.parameters / 1e9, 1)
    if entry.config["model_type"] != "mobilellm":
        assert entry.architecture == type(model).__name__


def test_the_default_model_is_the_one_loaded(smol_entry):
    assert smol_entry.load == "ld.load_model()"
    assert not smol_entry.papers


@pytest.mark.full
def test_the_default_entry_is_the_default_model(smol, smol_entry):
    assert smol.name == smol_entry.name == ld.load_model(smol_entry.name).name  # as `layerdiv models` says
    assert len(smol.components()) == smol_entry.components
    assert smol.provenance["parameters"] == smol_entry.parameters
    assert len(smol.components("head")) == component_count(smol_entry.config, "head")


@pytest.fixture
def smol_entry():
    return catalog()[0]


def test_every_model_can_be_loaded():
    """By TransformerLens' adapters, or by a mapping of our own; none asks to run foreign code."""
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

    for entry in catalog():
        assert entry.architecture in SUPPORTED_ARCHITECTURES or entry.config["model_type"] == MOBILELLM
        assert "trust_remote_code" not in entry.load
        assert ('device_map="auto"' in entry.load) is (entry.gigabytes > 80)
        assert DEPTH in entry.papers or DIVERSITY in entry.papers or entry.loading == "from PyPI"


@pytest.mark.parametrize("family", each(FAMILIES))
def test_counts_are_those_of_the_model_taken_apart(family):
    """Of every family whose components follow from its config, at both units."""
    model = FAMILIES[family]()
    config = model.config.to_dict() if hasattr(model, "config") else {}
    if config.get("model_type") in config_counts.FAMILIES:
        loaded = ld.load_model(model)
        for unit in ("sublayer", "head"):
            assert component_count(config, unit) == len(loaded.components(unit))


def test_families_of_the_papers_are_counted():
    counted = {FAMILIES[name]().config.model_type for name in ("llama", "phi3", "mistral", "qwen2", "qwen3")}
    assert counted | {"mobilellm"} == {entry.config["model_type"] for entry in catalog()} <= set(config_counts.FAMILIES)


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_a_shared_layer_counts_once_per_use(unit):
    """MobileLLM's layer sharing on a Llama: every block is listed, and runs, twice in a row."""
    tiny = llama()
    said = tiny.config.to_dict() | {"model_type": "mobilellm", "layer_sharing": True}
    tiny.model.layers = torch.nn.ModuleList([block for block in tiny.model.layers for _ in range(2)])
    tiny.config.num_hidden_layers *= 2
    parts = ld.contributions(tiny, [[3, 4, 5]], [[7, 8]], unit=unit)
    assert len(parts.components) == component_count(said, unit)


@pytest.mark.full
def test_frames_and_records():
    frame = pd.DataFrame([entry.record() for entry in catalog()])
    assert frame.name.tolist() == [entry.name for entry in catalog()]
    assert frame.name.is_unique
    assert frame.components.dtype == frame.parameters.dtype == "int64"
    records = task_records()
    assert [record["name"] for record in records] == list(task_specs())
    assert json.loads(json.dumps(records)) == records
    for record in records:
        if not task_specs()[record["name"]].file_names:  # the number of rows and their source are those of the task
            task = ld.task(record["name"])
            assert (len(task), task.source, task.license) == (record["rows"], record["source"], record["license"])
