"""Names of models: what is asked of the hub, how long that may take, and how it is refused."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

import layerdiv_tl as ld
from layerdiv_tl.model import hub
from tests.conftest import llama

CLOSED = "http://127.0.0.1:9"  # a port that nothing listens at


@pytest.fixture
def broken():
    """A hub that hangs up on whoever calls: its address, and a list that grows with every call."""
    calls = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()
                calls.append(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", calls
        server.shutdown(socket.SHUT_RDWR)


SCRIPT = """
import json, sys
import layerdiv_tl as ld
try:
    told = repr(ld.load_model(sys.argv[1], **json.loads(sys.argv[2])).tokenizer)
except ld.InputError as error:
    told = "InputError: " + str(error)
print(json.dumps(told))
"""


def load(name, settings=None, **environment):
    """Tokenizer or sentence of a load in a process of its own: the hub's client reads its settings once."""
    here = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, json.dumps(settings or {})],
        env={**here, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
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


@pytest.mark.nightly
def test_an_id_that_is_not_here_is_refused_after_one_call(home, broken):
    """The hub's own client calls again for most of a minute."""
    address, calls = broken
    told = load("somebody/tiny-lama", HF_HOME=home, HF_ENDPOINT=address)
    assert told.startswith("InputError")
    assert address in told
    assert len(calls) == 1


@pytest.mark.nightly
def test_an_id_that_is_here_loads_without_the_hub(home, broken):
    """The client alone would ask the hub for every file first, several times; once it asks what to call itself."""
    address, calls = broken
    assert load("somebody/tiny-llama", HF_HOME=home, HF_ENDPOINT=address) == "None"
    assert 1 <= len(calls) <= 2
    calls.clear()
    assert load("somebody/tiny-llama", HF_HOME=home, HF_ENDPOINT=address, HF_HUB_OFFLINE="1") == "None"
    assert calls == []


@pytest.mark.nightly
def test_a_revision_is_loaded_by_its_name(tmp_path):
    """From a cache that holds two checkpoints and no main; another step is refused."""
    repo = tmp_path / "hub" / "models--somebody--steps"
    for number, step in enumerate(("step1", "step1000")):
        llama(seed=number, vocab_size=61 + number).save_pretrained(repo / "snapshots" / (str(number) * 40))
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / step).write_text(str(number) * 40)
    here = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    script = SCRIPT.replace(
        "told = repr(", "told = repr((m := ld.load_model(sys.argv[1])).vocabulary) + m.provenance['revision']; ("
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "somebody/steps@step1000", "{}"],
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == "62" + "1" * 40
    told = load("somebody/steps@step7", **here)
    assert told.startswith("InputError")
    assert "step7" in told


@pytest.mark.nightly
def test_offline_nothing_is_asked(home, broken):
    address, calls = broken
    told = load("somebody/tiny-lama", HF_HOME=home, HF_HUB_OFFLINE="1", HF_ENDPOINT=address)
    assert told.startswith("InputError")
    assert "HF_HUB_OFFLINE" in told
    assert calls == []


@pytest.mark.nightly
def test_a_tokenizer_by_id_is_refused_at_once_too(home):
    told = load("somebody/tiny-llama", {"tokenizer": "nobody/nothing"}, HF_HOME=home, HF_ENDPOINT=CLOSED)
    assert told.startswith("InputError")
    assert "'nobody/nothing'" in told
    assert CLOSED in told


@pytest.mark.full
def test_a_hub_that_never_answers_costs_two_seconds(monkeypatch):
    """A server that takes the connection and says nothing; HF_HUB_ETAG_TIMEOUT is how long to wait."""
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


@pytest.mark.parametrize("name", ["zoo/d44", "somebody/a b c", "x" * 5000, "./modle"])
def test_what_names_no_model_is_refused(name):
    with pytest.raises(ld.InputError):
        ld.load_model(name)


@pytest.mark.full
def test_default_is_a_name(smol):
    assert ld.load_model("default").provenance["source"] == smol.provenance["source"]
