"""The check of a model: gaps are those of contributions, and a broken stream is named with its place."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.attribution.exactness import exactness
from layerdiv_tl.cli import main
from layerdiv_tl.pytest_plugin import assert_exact  # noqa: F401
from tests.conftest import llama


def leaking(layer: int = 1) -> torch.nn.Module:
    """A model with a block that writes to the stream outside its sublayers."""
    model = llama(num_hidden_layers=3)
    forward = model.model.layers[layer].forward
    model.model.layers[layer].forward = lambda x, *args, **kwargs: forward(x, *args, **kwargs) + 0.1
    return model


def test_gaps_are_those_of_contributions():
    model, prompts = ld.load_model("zoo/moe"), [[3, 1, 4], [1, 5]]
    frame = exactness(model, prompts).set_index("unit")
    assert list(frame.index) == ["sublayer", "head", "neuron", "expert"]
    for unit in ("sublayer", "head", "expert"):
        c = ld.contributions(model, prompts, [0, 1], unit=unit)
        wanted = [len(c.components), c.identity_gap, c.absolute_gap, ""]
        assert frame.loc[unit].tolist() == wanted
    assert "expert" in frame.loc["neuron", "reason"]


def test_a_broken_stream_is_named(assert_exact):  # noqa: F811
    assert exactness(leaking())["reason"][:3].str.contains("between the input of block 1 and").all()
    assert_exact(llama())
    with pytest.raises(AssertionError, match="input of block 1"):
        assert_exact(leaking())
    with pytest.raises(ld.InputError, match="not a model"):
        exactness(3)
    with pytest.raises(ld.InputError, match="no prompts"):
        exactness("zoo/d2", [])


def test_the_command_fails_where_the_sum_breaks(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch):
    llama().save_pretrained(tmp_path)
    assert main(["check", str(tmp_path)]) == 0
    assert "sums to the logits" in capsys.readouterr().out
    monkeypatch.setattr("layerdiv_tl.model.load.load_model", lambda *args, **options: ld.load_model(leaking()))
    assert main(["check", str(tmp_path), "--json"]) == 1


@pytest.mark.full
def test_the_plugin_is_found_by_pytest(tmp_path: Path):
    (tmp_path / "test_mine.py").write_text("def test_it(assert_exact): assert_exact('zoo/d2')")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "layerdiv_tl.pytest_plugin", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 passed" in done.stdout
