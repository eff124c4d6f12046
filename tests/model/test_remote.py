"""Models that run elsewhere give the contributions that they give here, and what these need travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.attribution.results import Contributions
from layerdiv_tl.model.fingerprint import fingerprint
from layerdiv_tl.model.remote import RemotePath

from ..oracles.families import FAMILIES

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10], [11, 12, 13, 14]]
OPTIONS: list[Any] = [[7, 9, 11, 13], [[[7, 9], [4], [5, 6, 8]]]]
NNSIGHT = ["llama_biased", "gpt2", "neox_parallel", "gemma2", "granite", "opt", "cohere", "bloom", "mixtral"]
FIELDS = ("values", "model_logits", "log_likelihood", "normalizer", "expectations")
OF_ONE_TOKEN = ("vocabulary_means",)


def assert_same(a: Contributions, b: Contributions, rounding: float = 1e-5) -> None:
    assert a.components == b.components
    assert a.junctions == b.junctions
    for name in (*FIELDS, *OF_ONE_TOKEN):
        x, y = getattr(a, name), getattr(b, name)
        if name in OF_ONE_TOKEN and x is None:
            assert y is None
            continue
        np.testing.assert_allclose(y, x, atol=rounding * max(1.0, np.abs(x).max()), err_msg=name)


@pytest.fixture
def nnsight() -> Any:
    """Imported where it is used: it gives every object in the process a method."""
    import nnsight

    return nnsight


def test_half_precision_has_its_rounding_as_a_row(nnsight: Any) -> None:
    network = FAMILIES["llama"]().bfloat16()
    here, there = (ld.contributions(x, PROMPTS, OPTIONS[0]) for x in (network, nnsight.NNsight(network)))
    assert there.components[-1].label == "rounding"
    assert_same(here, there)
    assert there.identity_gap < 2e-2


def test_groups_of_whole_sublayers_are_read(nnsight: Any) -> None:
    network = FAMILIES["llama"]()
    unit = ld.groups({"mine": ["L0.attn", "L1.mlp"]})
    here, there = (ld.contributions(x, PROMPTS, [7, 9], unit=unit) for x in (network, nnsight.NNsight(network)))
    assert_same(here, there)


def test_in_small_batches_and_in_training_mode(nnsight: Any) -> None:
    network = FAMILIES["gpt2"]()
    here = ld.contributions(network, PROMPTS, OPTIONS[0])
    there = ld.contributions(nnsight.NNsight(network.train()), PROMPTS, OPTIONS[0], batch_tokens=4)
    assert_same(here, there)
    assert network.training


REFUSED: list[Callable[[Any], Any]] = [
    lambda model: ld.contributions(model, PROMPTS, [7, 9], unit="head"),
    lambda model: ld.contributions(model, PROMPTS, [7, 9], unit="neuron"),
    lambda model: ld.contributions(model, PROMPTS, {"a": [1.0] * 32}),
    lambda model: ld.logit_difference(model, PROMPTS, 7, 9),
    lambda model: ld.profile(model, [PROMPTS[0]]),
    lambda model: ld.source_tokens(model, PROMPTS, OPTIONS[0]),
    lambda model: ld.attention_patterns(model, PROMPTS[0]),
    lambda model: ld.effects(model, PROMPTS, [7, 9]),
    lambda model: ld.continuation(model, PROMPTS, [[5, 6]] * 4),
    lambda model: ld.top_tokens(model, PROMPTS[0]),
    lambda model: model.components("head"),
    lambda model: model.hf_model,
    lambda model: model.bridge,
    lambda model: model.root(torch.tensor([[1]])),
    fingerprint,
]


@pytest.mark.parametrize("ask", REFUSED)
def test_what_a_remote_model_cannot_do_is_refused(nnsight: Any, ask: Callable[[Any], Any]) -> None:
    with pytest.raises(ld.InputError, match="elsewhere"):
        ask(ld.load_model(nnsight.NNsight(FAMILIES["llama"]())))


def test_arguments_that_do_not_apply_are_refused(nnsight: Any) -> None:
    with pytest.raises(ld.InputError, match="takes no dtype"):
        ld.load_model(nnsight.NNsight(FAMILIES["llama"]()), dtype="float32")


def test_a_path_of_more_than_additions_is_refused(nnsight: Any) -> None:
    with pytest.raises(ld.InputError, match="load it here"):
        ld.load_model(nnsight.NNsight(FAMILIES["nanochat"]()))


def test_no_matrix_is_here(nnsight: Any) -> None:
    """The skeleton has vectors, and of matrices the shapes: one number each."""
    network = FAMILIES["gpt2"]()
    path = ld.load_model(nnsight.NNsight(network)).path
    assert isinstance(path, RemotePath)
    for name, own in path.module.named_parameters():
        if own.dim() > 1:
            assert own.isnan().all()
            assert own.untyped_storage().nbytes() == own.element_size()
        else:
            assert torch.equal(own, network.get_parameter(name))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "family", [pytest.param(n, marks=pytest.mark.full if n == "llama_biased" else pytest.mark.nightly) for n in NNSIGHT]
)
def test_an_nnsight_trace_gives_what_the_model_gives_here(nnsight: Any, family: str, options: Any) -> None:
    network = FAMILIES[family]()
    here, there = (ld.contributions(x, PROMPTS, options) for x in (network, nnsight.NNsight(network)))
    assert_same(here, there)
    assert there.identity_gap < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("options", OPTIONS)
def test_what_would_be_sent_to_ndif_runs_without_this_package(nnsight: Any, options: Any) -> None:
    zoo = ld.load_model("zoo/d2")
    wrapped = nnsight.TransformersModel(zoo.hf_model, task="text-generation", tokenizer=zoo.tokenizer)
    # "local": sent and received as with NDIF, with everything hidden that is not on its servers.
    for remote in (False, "local"):
        model = ld.load_model(wrapped, remote=remote)
        assert model.provenance["device"] == "remote"
        assert_same(ld.contributions(zoo, PROMPTS, options), ld.contributions(model, PROMPTS, options))


@pytest.mark.full
def test_a_model_whose_weights_were_never_here(nnsight: Any, stories_folder: Any) -> None:
    """Nnsight makes it without weights, as for NDIF, and loads them for the first trace."""
    tokenizer = ld.load_model(stories_folder).tokenizer
    wrapped = nnsight.TransformersModel(str(stories_folder), task="text-generation", tokenizer=tokenizer)
    assert all(p.is_meta for p in wrapped._module.parameters())
    model = ld.load_model(wrapped)
    assert_same(ld.contributions(stories_folder, PROMPTS, [7, 9]), ld.contributions(model, PROMPTS, [7, 9]))
