"""The catalog against Table 4, against transformers' own models, and against models taken apart."""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import layerdiv_tl as ld
from tests.conftest import llama
from tests.oracles import config_counts
from tests.oracles.config_counts import component_count
from tests.oracles.families import FAMILIES, each
from tests.studies.test_replication import load_script

script = load_script()
CATALOG = script.catalog()

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
    paper = CATALOG[[script.DIVERSITY in papers for papers in CATALOG["papers"]]]
    assert paper["name"].tolist() == [name for name, _, _ in printed]
    assert paper["components"].tolist() == [int(count) for _, _, count in printed]
    assert CATALOG["components"].tolist() == [component_count(config) for config in CATALOG["config"]]
    for parameters, (_, size, _) in zip(paper["parameters"], printed, strict=True):
        stated = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
        assert abs(parameters / stated - 1) < 0.25  # "1B" is 1.24B


@pytest.mark.nightly
@pytest.mark.parametrize("place", CATALOG.index, ids=CATALOG["name"].tolist())
def test_parameters_are_those_of_transformers(place):
    """The whole model is built, without memory, from the entry's config."""
    config, parameters = CATALOG.loc[place, ["config", "parameters"]]
    settings = dict(config)
    if settings["model_type"] == "mobilellm":  # its blocks are Llama's, its embeddings are shared
        settings |= {"model_type": "llama", "tie_word_embeddings": settings["share_embedding"]}
    settings.setdefault("tie_word_embeddings", False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[settings["model_type"]](pad_token_id=0, **settings))
    assert parameters == model.num_parameters()
    if config["model_type"] != "mobilellm":
        assert config["architectures"][0] == type(model).__name__


@pytest.mark.full
def test_the_default_entry_is_the_default_model(smol):
    entry = CATALOG.loc[0]
    assert smol.name == entry["name"] == ld.load_model(entry["name"]).name
    assert not entry["papers"]
    assert len(smol.components()) == entry["components"]
    assert smol.provenance["parameters"] == entry["parameters"]
    assert len(smol.components("head")) == component_count(entry["config"], "head")


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
    assert (
        counted | {"mobilellm"} == {config["model_type"] for config in CATALOG["config"]} <= set(config_counts.FAMILIES)
    )


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_a_shared_layer_counts_once_per_use(unit):
    """MobileLLM's layer sharing on a Llama: every block is listed, and runs, twice in a row."""
    tiny = llama()
    said = tiny.config.to_dict() | {"model_type": "mobilellm", "layer_sharing": True}
    tiny.model.layers = torch.nn.ModuleList([block for block in tiny.model.layers for _ in range(2)])
    tiny.config.num_hidden_layers *= 2
    parts = ld.contributions(tiny, [[3, 4, 5]], [[7, 8]], unit=unit)
    assert len(parts.components) == component_count(said, unit)
