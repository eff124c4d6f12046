"""The cost of a study before it runs: what it says is what the run then does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.studies import plan as planning
from layerdiv_tl.studies import runner
from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer

QUICK = {"calibration": 0.0}


def model():
    words = word_tokenizer(["[UNK]", "yes", "no", *(f"w{i}" for i in range(58))])
    return ld.load_model(llama(), tokenizer=words)


def rows(count, options=("yes", "no")):
    import pandas as pd

    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 58, rng.integers(2, 30))) for _ in range(count)]
    frame = pd.DataFrame({"text": texts, "label": rng.integers(0, len(options), count)})
    return ld.Task.from_frame(frame, template="{text} {answer}", options=list(options), name="words")


def seen_by_the_model(m, run):
    """(padded tokens of all passes, read positions) while something runs, counted at the model's own door."""
    tokens = []
    handle = m.architecture.root.register_forward_pre_hook(
        lambda module, args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        run()
    finally:
        handle.remove()
    return sum(tokens)


@pytest.mark.full
@pytest.mark.parametrize("options", [("yes", "no"), ("yes", "w1 w2 w3")])
def test_tokens_are_those_that_the_model_is_shown(options, tmp_path):
    """Counted by a hook on the model itself; of options of several tokens, with their beginnings."""
    m, task = model(), rows(200, options)
    plan = ld.plan_study({"m": m}, task, batch_tokens=64, **QUICK)
    cells = list(read_cells(m, task, tmp_path))
    shown = seen_by_the_model(m, lambda: [c.shard(m, c.rows(n), 64) for c in cells for n in range(c.count)])
    (cell,) = plan.cells
    assert cell["tokens"] == shown
    assert (cell["rows"], cell["rows_left"]) == (200, 200)


def read_cells(m, task, out):
    from dataclasses import replace

    from layerdiv_tl.model.fingerprint import identify

    _, job = runner.read_job({"m": m}, task, ("sublayer",), None, None, batch_tokens=64)
    own = replace(m, name="m")
    return (cell for _, cell in replace(job, out=out).cells(own, identify(own), 64, []))


@pytest.mark.full
def test_operations_are_those_of_the_pass():
    """Against the closed form: two for every weight and token, attention's products, and the read-outs."""
    m, task = model(), rows(40)
    (cell,) = ld.plan_study({"m": m}, task, batch_tokens=10**6, **QUICK).cells
    config = m.hf_model.config
    d, kv, ff = 32, 16, config.intermediate_size
    body = 3 * (2 * d * d + 2 * d * kv + 3 * d * ff)
    longest = cell["tokens"] // 40
    attention = 3 * 4 * d * longest * longest * 40
    read = 40 * 2 * 2 * d * config.vocab_size  # the unembedding, and its mean over the next token
    expected = 2 * body * cell["tokens"] + attention + read
    assert cell["flops"] == pytest.approx(expected, rel=0.02)


@pytest.mark.nightly
def test_what_is_finished_costs_nothing(tmp_path):
    """Shards that are there are not counted; of a finished cell nothing is left; a plan writes nothing."""
    m, task = model(), rows(300)
    first = ld.plan_study({"m": m}, task, out=tmp_path / "none", **QUICK)
    assert not (tmp_path / "none").exists()
    ld.run_study({"m": m}, task, out=tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = ld.plan_study({"m": m}, task, out=tmp_path, **QUICK)
    assert done.cells[0] | {"rows": 0} == dict.fromkeys(done.cells[0], 0) | {
        name: done.cells[0][name] for name in ("model", "task", "unit")
    }
    assert done.seconds == 0
    assert sorted(tmp_path.rglob("*")) == before
    shards = sorted(tmp_path.rglob("shard-*"))
    size = sum(file.stat().st_size for file in (*shards, *tmp_path.rglob("metrics.parquet")))
    assert first.cells[0]["disk_bytes"] == pytest.approx(size, rel=0.05)
    next(tmp_path.rglob("metrics.parquet")).unlink()
    shards[0].unlink()
    again = ld.plan_study({"m": m}, task, out=tmp_path, **QUICK)
    assert again.cells[0]["rows_left"] == 128
    assert 0 < again.cells[0]["tokens"] < first.cells[0]["tokens"]


@pytest.mark.full
def test_a_plan_is_a_result_with_a_figure(tmp_path):
    plan = ld.plan_study({"m": model()}, rows(20), **QUICK)
    again = ld.StudyPlan.load(plan.save(tmp_path / "plan"))
    assert again.frame().equals(plan.frame())
    assert set(plan.frame().attrs["units"]) == set(plan.frame().columns) - {"model", "task", "unit"}
    assert plan.plot().data


@pytest.mark.full
def test_the_command_says_the_same(tmp_path, capsys, monkeypatch):
    from layerdiv_tl.cli import main

    monkeypatch.setenv("COLUMNS", "120")  # a narrower terminal wraps the table's cells

    arguments = ["run", "--model", "zoo/d1", "--task", "synthetic/recall", "--limit", "8"]
    arguments += ["--device", "cpu", "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "8 of 8" in table
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["cells"][0]["tokens"] == 8 * 26
    assert not Path(tmp_path / "out").exists()


@pytest.mark.full
def test_bad_arguments_are_a_sentence(tmp_path):
    for wrong in ({"calibration": -1}, {"calibration": "ten"}, {"shot": 1}, {"units": "layer"}, {"limit": 0}):
        with pytest.raises(ld.InputError, match=next(iter(wrong))):
            ld.plan_study("zoo/d1", "synthetic/recall", **wrong)
    plan = ld.plan_study(["zoo/d1", "zoo/none"], "synthetic/recall", limit=8, **QUICK)
    assert len(plan.cells) == 1
    assert any("zoo/none" in sentence for sentence in plan.failures)


@pytest.mark.full
def test_several_workers_are_named_and_not_counted():
    plan = ld.plan_study("zoo/d1", "synthetic/recall", limit=8, workers=2, **QUICK)
    assert plan.workers == 2
    assert "workers=2" in plan.sentence
    with pytest.raises(ld.InputError, match="workers"):
        ld.plan_study("zoo/d1", "synthetic/recall", limit=8, workers=0, **QUICK)


def test_units_of_time_and_size_are_of_use():
    assert planning.duration(59.5) == "1 min 0 s"
    assert planning.size(123_456_789) == "123 MB"
