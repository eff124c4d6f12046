"""Names of models: what is asked of the hub, how long that may take, and what a misspelt name is told."""

import json
import os
import subprocess
import sys
import time

import pytest
from conftest import llama

import layerdiv_tl as ld
from layerdiv_tl.stream import hub

CLOSED = "http://127.0.0.1:9"  # a port that nothing listens at
SCRIPT = """
import json, sys, time
import layerdiv_tl as ld, transformers
start, told = time.perf_counter(), ""
try:
    told = repr(ld.load_model(sys.argv[1], **json.loads(sys.argv[2])).tokenizer)
except ld.InputError as error:
    told = "InputError: " + str(error)
print(json.dumps([time.perf_counter() - start, told]))
"""


def load(name, settings=None, **environment):
    """(seconds, tokenizer or sentence) of a load in a process of its own: the hub's client reads its settings once."""
    here = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, json.dumps(settings or {})],
        env={**here, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A cache of the hub's client that holds one model, as a download leaves it."""
    home = tmp_path_factory.mktemp("hf")
    repo = home / "hub" / "models--somebody--tiny-llama"
    commit = "0123456789abcdef0123456789abcdef01234567"
    llama().save_pretrained(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    return str(home)


def test_an_id_that_is_not_here_is_refused_at_once_where_the_hub_does_not_answer(home):
    """With names that were meant; a minute of tries was what it took before."""
    seconds, told = load("somebody/tiny-lama", HF_HOME=home, HF_ENDPOINT=CLOSED)
    assert told.startswith("InputError")
    assert CLOSED in told
    assert "'somebody/tiny-llama'" in told
    assert seconds < 10


def test_an_id_that_is_here_loads_without_the_hub(home):
    """At once, though the client would ask the hub first."""
    for environment in ({"HF_ENDPOINT": CLOSED}, {"HF_HUB_OFFLINE": "1"}):
        seconds, told = load("somebody/tiny-llama", HF_HOME=home, **environment)
        assert told == "None"
        assert seconds < 15


def test_offline_nothing_is_asked(home):
    _, told = load("somebody/tiny-lama", HF_HOME=home, HF_HUB_OFFLINE="1", HF_ENDPOINT=CLOSED)
    assert told.startswith("InputError")
    assert "HF_HUB_OFFLINE" in told
    assert CLOSED not in told


def test_a_tokenizer_by_id_is_refused_at_once_too(home):
    seconds, told = load("somebody/tiny-llama", {"tokenizer": "nobody/nothing"}, HF_HOME=home, HF_ENDPOINT=CLOSED)
    assert told.startswith("InputError")
    assert "'nobody/nothing'" in told
    assert seconds < 15


def test_a_hub_that_never_answers_costs_two_seconds(monkeypatch):
    """A server that takes the connection and says nothing; HF_HUB_ETAG_TIMEOUT is how long to wait."""
    import socket

    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
        for limit in (hub.PATIENCE, 0.5):
            start = time.perf_counter()
            assert hub.unreachable() is not None
            assert time.perf_counter() - start < limit + 3
            monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.5")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("zoo/d44", "zoo/d4"),
        ("SmolLM2-135M-Instrukt", "default"),
        ("somebody/a b c", None),
        ("x" * 5000, None),
        ("./modle", "model"),
    ],
)
def test_a_misspelt_name_is_told_what_may_be_meant(name, meant, tmp_path, monkeypatch):
    llama().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ld.InputError) as caught:
        ld.load_model(name)
    assert meant is None or repr(meant) in str(caught.value) or f"{meant}," in str(caught.value)


def test_default_is_a_name(smol):
    assert ld.load_model("default").provenance["source"] == smol.provenance["source"]
