"""Models that run elsewhere give the contributions that they give here, and only these travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.attribution.results import Contributions

from ..oracles.families import FAMILIES

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10], [11, 12, 13, 14]]
OPTIONS: list[Any] = [[7, 9, 11, 13], [[[7, 9], [4], [5, 6, 8]]]]
NNSIGHT = ["llama_biased", "gpt2", "neox_parallel", "gemma2", "granite", "opt", "cohere", "bloom"]
FIELDS = ("values", "model_logits", "log_likelihood", "expectations", "normalizer", "junction_scale", "statistic")


def assert_same(a: Contributions, b: Contributions, rounding: float = 1e-5) -> None:
    assert a.components == b.components
    assert a.junctions == b.junctions
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
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
    assert_same(here, there, 2e-2)
    assert there.identity_gap < 2e-2


def test_only_contributions_travel(nnsight: Any) -> None:
    """What comes back does not grow with the width of the stream: of every prompt a few numbers per row and option."""
    model = ld.load_model(nnsight.NNsight(FAMILIES["llama"]()))
    c = ld.contributions(model, PROMPTS, OPTIONS[0])
    rows, options = len(c.components), 4
    assert model.engine is not None
    assert model.engine.received / len(PROMPTS) <= 8 * (rows * (options + 2) + 3 * options + 5)


def test_what_a_remote_model_cannot_do_is_refused(nnsight: Any) -> None:
    network = FAMILIES["llama"]()
    wrapped = nnsight.NNsight(network)
    model = ld.load_model(wrapped)
    for ask in (
        lambda: ld.contributions(model, PROMPTS, {"a": [1.0] * 32}),
        lambda: ld.profile(model, [PROMPTS[0]]),
        lambda: ld.source_tokens(model, PROMPTS, OPTIONS[0]),
        lambda: ld.load_model(network, remote=True),
        lambda: ld.load_model(wrapped, dtype="float32"),
    ):
        with pytest.raises(ld.InputError):
            ask()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize(
    "family", [pytest.param(n, marks=pytest.mark.full if n == "llama_biased" else pytest.mark.nightly) for n in NNSIGHT]
)
def test_an_nnsight_trace_gives_what_the_model_gives_here(nnsight: Any, family: str, unit: Any, options: Any) -> None:
    network = FAMILIES[family]()
    model = ld.load_model(nnsight.NNsight(network))
    if family == "gemma2" and unit != "sublayer":  # a norm stands between its heads and the stream
        with pytest.raises(ld.InputError):
            ld.contributions(model, PROMPTS, options, unit=unit)
        return
    here, there = (ld.contributions(x, PROMPTS, options, unit=unit) for x in (network, model))
    assert_same(here, there)
    assert there.identity_gap < 1e-6


@pytest.mark.full
def test_what_would_be_sent_to_ndif_runs_without_this_package(nnsight: Any) -> None:
    zoo = ld.load_model("zoo/d2")
    network = zoo.hf_model
    wrapped = nnsight.TransformersModel(network, task="text-generation", tokenizer=zoo.tokenizer)
    # "local": sent and received as with NDIF, with everything hidden that is not on its servers.
    for remote in (False, "local"):
        model = ld.load_model(wrapped, remote=remote)
        there = ld.contributions(model, PROMPTS, OPTIONS[0], unit="head")
        assert_same(ld.contributions(network, PROMPTS, OPTIONS[0], unit="head"), there)


@pytest.mark.full
def test_a_remote_skeleton_has_no_matrices(nnsight: Any) -> None:
    model = ld.load_model(nnsight.NNsight(FAMILIES["llama"]()))
    assert model.engine is not None
    assert all(p.is_meta == (p.dim() > 1) for p in model.engine.skeleton.parameters())
    other = FAMILIES["llama"](seed=1)
    assert ld.load_model(nnsight.NNsight(other)).engine.remote_hash != model.engine.remote_hash


@pytest.mark.full
@pytest.mark.parametrize(
    ("remote", "about"),
    [("nowhere", "^remote is"), (5, "^remote is"), (None, "^remote is"), (True, "hub"), ("http://127.0.0.1:9", "hub")],
)
def test_places_where_a_trace_cannot_run_are_refused(nnsight: Any, remote: Any, about: str) -> None:
    """A model from a local folder has no id by which a server would find it."""
    zoo = ld.load_model("zoo/d2")
    wrapped = nnsight.TransformersModel(zoo.hf_model, task="text-generation", tokenizer=zoo.tokenizer)
    with pytest.raises(ld.InputError, match=about):
        ld.load_model(wrapped, remote=remote)
    with pytest.raises(ld.InputError, match="^remote is|here only"):
        ld.load_model(nnsight.NNsight(zoo.hf_model), remote=remote)
