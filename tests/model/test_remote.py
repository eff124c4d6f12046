"""Models that run elsewhere give the contributions that they give here, and only these travel."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerdiv_tl as ld

from ..oracles.families import FAMILIES
from ..oracles.vllm_engine import remote_bridge, serve, stub_vllm

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10], [11, 12, 13, 14]]
OPTIONS: list[Any] = [[7, 9, 11, 13], [[[7, 9], [4], [5, 6, 8]]]]
NNSIGHT = ["llama_biased", "gpt2", "neox_parallel", "gemma2", "granite", "opt", "cohere", "bloom"]
FIELDS = ("values", "model_logits", "log_likelihood", "expectations", "normalizer", "junction_scale", "statistic")


def assert_same(a: ld.Contributions, b: ld.Contributions, rounding: float = 1e-5) -> None:
    assert a.components == b.components
    assert a.junctions == b.junctions
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        np.testing.assert_allclose(y, x, atol=rounding * max(1.0, np.abs(x).max()), err_msg=name)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_vllm(monkeypatch)


@pytest.fixture
def nnsight() -> Any:
    """Imported where it is used: it gives every object in the process a method."""
    import nnsight

    return nnsight


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("family", ["llama_biased", "qwen2", "granite"])
def test_a_remote_bridge_gives_what_the_model_gives_here(family: str, options: Any) -> None:
    network = FAMILIES[family]()
    bridge, _ = remote_bridge(network)
    # An engine shows Granite's embedding before its factor.
    if family == "granite":
        with pytest.raises(ld.InputError, match="cannot be decomposed"):
            ld.contributions(bridge, PROMPTS, options)
        return
    assert_same(ld.contributions(network, PROMPTS, options), ld.contributions(bridge, PROMPTS, options))


@pytest.mark.usefixtures("vllm")
def test_a_remote_bridge_in_half_precision_has_its_rounding_as_a_row() -> None:
    network = FAMILIES["llama"]().bfloat16()
    bridge, _ = remote_bridge(network)
    here, there = ld.contributions(network, PROMPTS, OPTIONS[0]), ld.contributions(bridge, PROMPTS, OPTIONS[0])
    assert there.components[-1].label == "rounding"
    assert_same(here, there, 2e-2)
    assert there.identity_gap < 2e-2


@pytest.mark.usefixtures("vllm")
def test_only_contributions_travel() -> None:
    network = FAMILIES["llama"]()
    model = ld.load_model(remote_bridge(network)[0])
    c = ld.contributions(model, PROMPTS, OPTIONS[0])
    rows, options = len(c.components), 4
    assert model.engine is not None
    # A few numbers for each row and option, and no vector of the stream.
    assert model.engine.received / len(PROMPTS) == 8 * (rows * (options + 2) + 3 * options + 5)


@pytest.mark.usefixtures("vllm")
def test_what_a_remote_model_cannot_do_is_refused() -> None:
    network = FAMILIES["llama"]()
    model = ld.load_model(remote_bridge(network)[0])
    for ask in (
        lambda: ld.contributions(model, PROMPTS, OPTIONS[0], unit="head"),
        lambda: ld.contributions(model, PROMPTS, directions=[[1.0] * 32]),
        lambda: ld.profile(model, [PROMPTS[0]]),
        lambda: ld.compare(model, network, PROMPTS, OPTIONS[0]),
        lambda: ld.compare(network, model, PROMPTS),
        lambda: ld.source_tokens(model, PROMPTS, OPTIONS[0]),
        lambda: ld.contributions(remote_bridge(network, ranks=2)[0], PROMPTS, OPTIONS[0]),
        lambda: ld.plan_study({"m": model}, ld.task("synthetic/recall", limit=8)),
        lambda: ld.load_model(remote_bridge(network)[0], remote=True),
        lambda: ld.load_model(network, remote=True),
        lambda: ld.load_model(remote_bridge(network)[0], dtype="float32"),
    ):
        with pytest.raises(ld.InputError):
            ask()


@pytest.mark.full
@pytest.mark.usefixtures("vllm")
def test_a_server_that_dies_costs_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerdiv_tl.studies import shards

    monkeypatch.setattr(shards, "ROWS", 8)
    network, t = ld.load_model("zoo/d1"), ld.task("synthetic/recall", limit=40)

    def measured(out: Path, lives: int) -> tuple[dict[str, bytes], int]:
        bridge, llm = remote_bridge(network.hf_model, network.tokenizer)
        llm.lives = lives
        dies = pytest.raises(ld.InputError, match="engine is gone") if lives < 100 else contextlib.nullcontext()
        with dies:
            ld.run_study({"m": bridge}, t, out=out)
        return {f.name: f.read_bytes() for f in out.rglob("*.safetensors")}, llm.requests

    whole, all_requests = measured(tmp_path / "whole", 10**6)
    assert len(whole) == 5
    begun, _ = measured(tmp_path / "cut", 8 + 8 + 3)
    assert len(begun) == 2
    ended, requests = measured(tmp_path / "cut", 10**6)
    assert ended == whole
    assert requests == all_requests - 2 * 8


@pytest.mark.full
@pytest.mark.usefixtures("vllm")
def test_a_client_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 of a client in a study; its engine lives on, and the next client ends with the same bytes."""
    from layerdiv_tl.studies import shards

    monkeypatch.setattr(shards, "ROWS", 8)
    network, t = ld.load_model("zoo/d1"), ld.task("synthetic/recall", limit=40)
    bridge, llm = remote_bridge(network.hf_model, network.tokenizer)
    ld.run_study({"m": bridge}, t, out=tmp_path / "whole")
    all_requests, port = llm.requests, serve(llm)

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.oracles.vllm_engine", str(port), str(tmp_path / "killed")]
        return subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def numbers(out: Path) -> dict[str, bytes]:
        files = [*out.rglob("*.safetensors"), *out.rglob("metrics.parquet")]
        return {file.name: file.read_bytes() for file in files}

    client, deadline = start(), time.time() + 120
    while client.poll() is None and time.time() < deadline and len(numbers(tmp_path / "killed")) < 2:
        time.sleep(0.002)
    client.kill()
    client.wait()
    begun = numbers(tmp_path / "killed")
    assert 2 <= len(begun) < 5
    before = llm.requests
    assert start().wait(timeout=300) == 0
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    assert llm.requests - before == all_requests - 8 * len(begun)


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
    assert ld.load_model(nnsight.NNsight(other)).engine.skeleton.remote_hash != model.engine.skeleton.remote_hash


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
