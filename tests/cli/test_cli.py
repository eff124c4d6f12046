"""The command line: exit codes, streams, one sentence for every failure, any encoding."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.cli import OPTIONS, main

TEXT = ld.task("synthetic/recall", limit=1).prompts[0]
ENCODINGS = ("ascii", "cp1252", "cp932")


def in_encoding(encoding, *arguments, cwd=None):
    """Run the command in a process without a terminal, whose streams have an encoding that lacks Σ or −."""
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "layerdiv_tl", *arguments]
    return subprocess.run(command, capture_output=True, cwd=cwd, env=environment, check=False)


def test_bad_usage_is_2(capsys):
    for arguments in ([], ["nonsense"], ["demo", "--nonsense"], ["demo", "zoo/d2"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    assert "usage: layerdiv" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"layerdiv {ld.__version__}\n"


@pytest.mark.parametrize("command", OPTIONS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"layerdiv {command}" in capsys.readouterr().out


def test_a_model_is_checked(capsys):
    """The gaps are those of `ld.contributions`, and what the model is is printed."""
    assert main(["check", "zoo/d2"]) == 0
    printed = capsys.readouterr().out
    assert "LlamaForCausalLM" in printed
    assert f"{ld.load_model('zoo/d2').provenance['parameters']:,}" in printed
    gaps = [float(gap) for gap in re.findall(r"identity gap (\S+)", printed)]
    assert len(gaps) == 2
    assert max(gaps) < 1e-6


def test_a_model_that_does_not_add_up_fails_its_check(monkeypatch, capsys):
    from tests.attribution.test_exactness import rewrite
    from tests.conftest import llama

    network = llama()
    model = ld.load_model(network)
    rewrite(network, "model.layers.1", torch.erf)
    monkeypatch.setattr("layerdiv_tl.model.load.load_model", lambda *arguments, **options: model)
    assert main(["check", "leaking"]) == 1
    assert "cannot be decomposed" in capsys.readouterr().out


def test_a_text_is_explored(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["explore", TEXT, "--model", "zoo/d2", "--out", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    record = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    assert record["model"] == "zoo/d2"


def test_a_text_comes_from_the_standard_input(tmp_path):
    command = [sys.executable, "-m", "layerdiv_tl", "explore", "-", "--model", "zoo/d2", "--out"]
    done = subprocess.run([*command, str(tmp_path / "page.html")], input=TEXT.encode() + b"\n", check=False)
    assert done.returncode == 0
    assert (tmp_path / "page.html").is_file()


def test_models_run_on_tasks_and_are_reported(tmp_path, capsys):
    """The folder is a grid, whose cells are `ld.contributions` of the rows; the page is made of them."""
    out, tasks = str(tmp_path / "grid"), ["synthetic/recall", "synthetic/k_hop"]
    command = ["run", "--model", "zoo/d1", "zoo/d2", "--task", *tasks, "--limit", "8", "--out", out]
    assert main(command) == 0
    assert "zoo/d2" in capsys.readouterr().out
    cells = list(ld.Grid(out).cells())
    assert {(cell.about["model"], cell.about["rows"]) for cell in cells} == {
        (model, task) for model in ("zoo/d1", "zoo/d2") for task in tasks
    }
    c = next(cell.result for cell in cells if cell.about["model"] == "zoo/d2" and cell.about["rows"] == tasks[0])
    wanted = ld.contributions("zoo/d2", ld.task(tasks[0], limit=8))
    np.testing.assert_array_equal(c.values, wanted.values)
    assert main(["report", out, "--out", str(tmp_path / "page.html")]) == 0
    assert "zoo/d2" in (tmp_path / "page.html").read_text(encoding="utf-8")
    # A model that does not exist fails alone.
    assert main([*command, "--model", "zoo/d99"]) == 1
    assert "zoo/d99" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["explore", TEXT, "--model", "zoo/d2"],
        ["check", "zoo/d2"],
        ["run", "--model", "zoo/d2", "--task", "synthetic/recall"],
    ],
    ids=lambda command: command[0],
)
def test_how_to_load_reaches_every_command(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out = [] if command[0] == "check" else ["--out", str(tmp_path / "out.html")]
    loaded = []
    for place in ("model.load", "studies.grid"):
        monkeypatch.setattr(f"layerdiv_tl.{place}.load_model", lambda *names, **given: loaded.append(given) or 1 / 0)
    assert main([*command, *out, "--dtype", "float64", "--device", "cpu"]) == 1
    assert (loaded[0]["dtype"], loaded[0]["device"]) == ("float64", "cpu")


def test_a_failure_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("LAYERDIV_DEBUG", raising=False)
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 1
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    monkeypatch.setattr("layerdiv_tl.model.load.load_model", lambda name=None: 1 / 0)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    *_, surprise = printed = capsys.readouterr().err.splitlines()
    assert surprise.startswith("layerdiv: ZeroDivisionError: division by zero")
    assert sum(line.startswith("layerdiv:") for line in printed) == 3
    monkeypatch.setenv("LAYERDIV_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["demo", "--out", str(tmp_path)])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_encoding_of_the_console_will_do(encoding, tmp_path):
    """Without a terminal: helps, results and failures are printed, whatever their characters."""
    for arguments, code in ((["run", "--help"], 0), (["check", "zoo/d1"], 0), (["check", "zoo/−Σ→"], 1)):
        done = in_encoding(encoding, *arguments)
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
        assert b"UnicodeEncodeError" not in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_results_are_printed_in_any_encoding(encoding, tmp_path):
    explored = in_encoding(encoding, "explore", TEXT, "--model", "zoo/d2", cwd=tmp_path)
    assert explored.returncode == 0, explored.stderr
    run = ["run", "--model", "zoo/d1", "--task", "synthetic/recall", "--limit", "4", "--out", "grid"]
    done = in_encoding(encoding, *run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_demo_writes_its_page_and_the_explorer(tmp_path, smol, capsys):
    """README's component leads; under 60 words stand before the figure; the explorer opens on a head."""
    assert main(["demo", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    before = page[page.index("<main>") : page.index("class=chart")]
    words = html.unescape(re.sub("<[^>]*>", " ", before)).split()
    assert len(words) < 60
    assert "logit difference, logits: L29.mlp " in printed
    explorer = (tmp_path / "explorer.html").read_text(encoding="utf-8")
    chosen, model = json.loads(re.search(r'id="data">(.*?)</script>', explorer)[1])["chosen"], ld.load_model()
    assert chosen["component"] == "L21.H1"
    assert [model.tokenizer.decode([chosen[name]]) for name in ("target", "minus")] == [" negative", " positive"]
