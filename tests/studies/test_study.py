"""Studies: every number follows from the rows; nothing is lost, mixed or repeated when a run is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.cli import main
from layerdiv_tl.ensemble.losses import LOSSES
from layerdiv_tl.studies import shards
from layerdiv_tl.studies.grid import tasks_of
from layerdiv_tl.studies.runner import run_study
from layerdiv_tl.studies.study_jobs import dry_run
from layerdiv_tl.tasks.specs import EIGHT_TASKS
from tests.conftest import llama
from tests.oracles.brute_force import reference
from tests.oracles.brute_force_ensemble import brier, cross_entropy, paper_form, squared
from tests.oracles.tokenizers import word_tokenizer


@pytest.fixture(scope="module")
def words():
    """A tokenizer of whole words, for tiny models."""
    return word_tokenizer(["[UNK]", "yes", "no", *(f"w{i}" for i in range(58))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory, words):
    """Two tiny models on disk, as users have them."""
    place = tmp_path_factory.mktemp("models")
    for number in range(2):
        llama(seed=number, tie_word_embeddings=False).save_pretrained(place / f"tiny-{number}")
        words.save_pretrained(place / f"tiny-{number}")
    return place


def rows(count, seed=0):
    """A task of random words, longer and shorter ones."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 58, rng.integers(2, 30))) for _ in range(count)]
    frame = pd.DataFrame({"text": texts, "label": rng.integers(0, 2, count)})
    return ld.Task.from_frame(frame, template="{text} {answer}", options=["yes", "no"], name="words")


def files(place):
    """{path: bytes} of what must be the same whoever ran it."""
    return {
        str(file.relative_to(place)): file.read_bytes()
        for file in sorted(Path(place).rglob("*"))
        if file.suffix in (".parquet", ".safetensors")
    }


@pytest.mark.full
def test_metrics_are_those_of_the_rows(folder, tmp_path):
    """Every table of every loss, against decompose on all rows at once; shards change nothing."""
    task = rows(300)
    study = run_study(folder / "tiny-0", task, units=("sublayer", "head"), out=tmp_path)
    assert repr(study) == "Study(1 models × 1 tasks × 2 units, 2 cells)"
    model = ld.load_model(folder / "tiny-0")
    for unit in ("sublayer", "head"):
        c = ld.contributions(model, task.prompts, task.resolve(model).option_ids, unit=unit)
        metrics = study.frame().query("unit == @unit")
        for loss in LOSSES:
            d = ld.decompose(c, task.labels, loss=loss)
            tables = {"components": d.by_component(full=True), "modules": d.by_module(), "depth": d.by_depth()}
            tables["depth_recomputed"] = d.by_depth("recomputed")
            for table, frame in tables.items():
                mine = metrics[(metrics["loss"] == loss) & (metrics["table"] == table)]
                for term in mine["term"].unique():
                    found = mine[mine["term"] == term]
                    np.testing.assert_allclose(found["mean"], frame[term], rtol=1e-3, atol=1e-4)
                    if term == "accuracy":
                        np.testing.assert_allclose(found["low"], frame["accuracy_low"], atol=1e-3)
            totals = metrics[(metrics["loss"] == loss) & (metrics["table"] == "totals")].set_index("term")
            assert totals["mean"]["loss"] == pytest.approx(d.loss, rel=1e-4)
            assert totals["mean"]["zero_bias"] == pytest.approx(d.zero_bias)
            assert totals["examples"]["loss"] == 300
    assert metrics[metrics["term"] == "identity_gap"]["mean"].item() <= 1e-6
    stored = study.contributions("tiny-0", "words", "head")
    np.testing.assert_allclose(stored.values, c.values, atol=1e-4)
    np.testing.assert_array_equal(stored.labels, task.labels)
    assert ld.decompose(stored, stored.labels).loss == pytest.approx(ld.decompose(c, task.labels).loss, rel=1e-4)


@pytest.mark.full
def test_no_task_or_model_hides_another(words, monkeypatch):
    """Two tasks of one name are refused, one named twice is run once; the default model takes the name it is given."""
    model = ld.load_model(llama(), tokenizer=words)
    with pytest.raises(ld.InputError, match="'words'"):
        run_study({"m": model}, [rows(8), rows(9, seed=1)])
    assert tasks_of(["rte", "all", "rte"]) == ["rte", *(name for name in EIGHT_TASKS if name != "rte")]
    monkeypatch.setattr("layerdiv_tl.studies.grid.load_model", lambda x, **options: model)
    assert run_study({"mine": "default"}, rows(8)).metrics["model"].unique().tolist() == ["mine"]
    assert run_study("default", rows(8)).metrics["model"].unique().tolist() == [model.name]


@pytest.mark.full
def test_other_folders_are_no_cells(words, tmp_path):
    """What lies next to a study, as deep as its cells, is not said to be unfinished."""
    run_study({"m": ld.load_model(llama(), tokenizer=words)}, rows(8), out=tmp_path)
    (tmp_path / "my" / "own" / "notes").mkdir(parents=True)
    (tmp_path / "my" / "own" / "notes" / "a.txt").write_text("mine")
    assert ld.Study.load(tmp_path).failures == ()


@pytest.mark.full
def test_answers_are_the_models_own(folder, tmp_path):
    """The second source: plain Hugging Face passes over the rendered prompts, to 1e-6."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    task = rows(40)
    study = run_study(folder / "tiny-0", task, out=tmp_path)
    hf, tokenizer = (cls.from_pretrained(folder / "tiny-0") for cls in (AutoModelForCausalLM, AutoTokenizer))
    ids = [tokenizer.convert_tokens_to_ids(option.strip()) for option in task.options]
    logits = []
    with torch.no_grad():
        for prompt in task.prompts:
            logits.append(hf(**tokenizer(prompt, return_tensors="pt")).logits[0, -1, ids])
    logits = torch.stack(logits).double()
    stored = study.contributions("tiny-0", "words")
    np.testing.assert_allclose(stored.model_logits, logits, atol=1e-5)
    totals = study.totals().set_index(["loss", "term"])["mean"]
    accuracy = (logits.argmax(1).numpy() == task.labels).mean()
    assert totals["squared", "accuracy"] == pytest.approx(accuracy)
    nats = torch.nn.functional.cross_entropy(logits, torch.as_tensor(task.labels))
    assert totals["cross_entropy", "loss"] == pytest.approx(float(nats), rel=1e-6)
    table = study.table()
    assert table["accuracy", "words"].item() == pytest.approx(100 * accuracy)
    assert table["uniform", "words"].item() == pytest.approx(25)
    assert "[" in study.table(intervals=True)["MSE", "words"].item()


@pytest.mark.full
def test_metrics_are_those_of_plain_passes(folder, tmp_path):
    """Every total, from the rendered prompts alone: Hugging Face passes in float64, caught by hooks, to 1e-6."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    task = rows(12)
    study = run_study(folder / "tiny-0", task, out=tmp_path, load={"dtype": "float64"})
    hf = AutoModelForCausalLM.from_pretrained(folder / "tiny-0", dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tiny-0")
    ids = [tokenizer.convert_tokens_to_ids(option.strip()) for option in task.options]
    u = np.stack([reference(hf.eval(), tokenizer(prompt)["input_ids"], ids).values for prompt in task.prompts])
    t = np.eye(2)[task.labels]
    totals = study.totals().set_index(["loss", "term"])["mean"]
    both = squared(u, t)
    found = {"paper": paper_form(u, t), "cross_entropy": cross_entropy(u, t), "brier": brier(u, t), "squared": both.raw}
    for loss, brute in found.items():
        for term in ("loss", "bias", "diversity"):
            assert totals[loss, term] == pytest.approx(getattr(brute, term), rel=1e-6), (loss, term)
    assert totals["squared", "diversity_centered"] == pytest.approx(both.centered.diversity, rel=1e-6)


@pytest.mark.nightly
def test_a_study_is_of_what_was_asked_for(folder, tmp_path):
    """Other cells in the folder stay out of a run's result; of two limits a load takes the later."""
    few = run_study(folder / "tiny-0", rows(10), out=tmp_path)
    many = run_study(folder / "tiny-0", rows(30), out=tmp_path)
    other = run_study(folder / "tiny-1", rows(10), out=tmp_path)
    for study, count in ((few, 10), (many, 30), (other, 10)):
        assert study.frame()["examples"].max() == count
        assert len(study.cells) == 1
        assert study.table().shape[0] == 1
    both = ld.Study.load(tmp_path)
    assert both.table().index.tolist() == ["tiny-0", "tiny-1"]
    assert len(both.cells) == 2
    own = run_study({"my name": folder / "tiny-0"}, rows(10), out=tmp_path)
    assert own.table().index.tolist() == ["my name"]


@pytest.mark.full
def test_a_second_run_computes_nothing(folder, tmp_path, monkeypatch):
    first = run_study(folder / "tiny-0", rows(150), out=tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr(shards, "contributions", None)  # a call would fail
    again = run_study(folder / "tiny-0", rows(150), out=tmp_path)
    assert files(tmp_path) == before
    assert again.frame().equals(first.frame())
    assert ld.Study.load(tmp_path).frame().equals(first.frame())


@pytest.mark.nightly
def test_other_settings_never_mix(folder, tmp_path):
    """Another prompt, label, unit, batch size or attention goes into a folder of its own."""
    run_study(folder / "tiny-0", rows(20), out=tmp_path)
    before = files(tmp_path)
    task = rows(20)
    import dataclasses

    from transformers import AutoModelForCausalLM

    slow = AutoModelForCausalLM.from_pretrained(folder / "tiny-0", attn_implementation="eager")
    eager = ld.load_model(slow, tokenizer=folder / "tiny-0")
    changed = [
        {"models": {"tiny-1": folder / "tiny-1"}, "tasks": task},
        {"models": folder / "tiny-0", "tasks": rows(20, seed=1)},
        {"models": folder / "tiny-0", "tasks": dataclasses.replace(task, labels=1 - task.labels)},
        {"models": folder / "tiny-0", "tasks": task, "units": "head"},
        {"models": folder / "tiny-0", "tasks": task, "batch_tokens": 64},
        {"models": {"tiny-0": eager}, "tasks": task},
    ]
    for number, arguments in enumerate(changed, start=1):
        run_study(out=tmp_path, **arguments)
        now = files(tmp_path)
        assert {path: now[path] for path in before} == before
        assert len({Path(path).parent for path in now}) == number + 1


COMMAND = [sys.executable, "-m", "layerdiv_tl", "run", "--json", "--batch-tokens", "64"]


def start(arguments, **environment):
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def words_json(tmp_path_factory):
    """The task as a file, for the command line."""
    place = tmp_path_factory.mktemp("task")
    t = rows(700)
    frame = pd.DataFrame({"text": t.texts, "label": t.labels})
    frame.to_json(place / "rows.jsonl", orient="records", lines=True)
    about = {"template": "{text} {answer}", "options": ["yes", "no"], "data": "rows.jsonl", "name": "words"}
    (place / "words.json").write_text(json.dumps(about))
    return place / "words.json"


@pytest.fixture(scope="module")
def undisturbed(folder, words_json, tmp_path_factory):
    """What a run gives that nobody stops."""
    place = tmp_path_factory.mktemp("undisturbed")
    process = start(["--model", folder / "tiny-0", "--task", words_json, "--out", place])
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert json.loads(out)["failures"] == []
    return files(place)


@pytest.mark.nightly
@pytest.mark.parametrize("shards_seen", [0, 1, 3, 5, 6])
def test_killed_at_any_moment_it_goes_on(folder, words_json, undisturbed, tmp_path, shards_seen):
    """kill -9, again and again; the same command ends with the same bytes."""
    arguments = ["--model", folder / "tiny-0", "--task", words_json, "--out", tmp_path]
    process = start(arguments)
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None:
        if len(list(tmp_path.rglob("shard-*.safetensors"))) >= shards_seen:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start(arguments)
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert files(tmp_path) == undisturbed


ARRAY = {"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "1"}
LAUNCHES = {
    "unrelated": [{}, {}],
    "ranks": [{"RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "1", "WORLD_SIZE": "2"}],
    "array": [ARRAY | {"SLURM_ARRAY_TASK_ID": str(number)} for number in range(1, 5)],
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAUNCHES)
def test_two_processes_share_a_folder(folder, words_json, undisturbed, tmp_path, name):
    """Unrelated processes, the ranks of a launch, and the tasks of a SLURM array end with the same bytes as one."""
    arguments = ["--model", folder / "tiny-0", "--task", words_json, "--out", tmp_path / name]
    both = [start(arguments, **environment) for environment in LAUNCHES[name]]
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0] * len(both)
    assert files(tmp_path / name) == undisturbed
    assert [bool(text) for text in printed] == [True] + [name != "ranks"] * (len(both) - 1)


@pytest.mark.nightly
def test_accelerate_launches_it(folder, words_json, undisturbed, tmp_path):
    """`accelerate launch -m layerdiv_tl run …` with two processes on the CPU: the same bytes."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "layerdiv_tl", "run"]
    arguments = ["--model", folder / "tiny-0", "--task", words_json, "--out", tmp_path, "--batch-tokens", "64"]
    done = subprocess.run([*launch, *map(str, arguments)], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert files(tmp_path) == undisturbed


@pytest.mark.nightly
def test_a_shard_that_is_not_whole_is_computed_again(folder, tmp_path):
    first = run_study(folder / "tiny-0", rows(300), out=tmp_path)
    before = files(tmp_path)
    cell = Path(first.cells[0]["folder"])
    for damage in (b"", (cell / "shard-00001.safetensors").read_bytes()[:1000]):
        (cell / "shard-00001.safetensors").write_bytes(damage)
        (cell / "metrics.parquet").unlink()
        run_study(folder / "tiny-0", rows(300), out=tmp_path)
        assert files(tmp_path) == before


@pytest.mark.full
def test_metrics_of_another_version_are_made_again(folder, tmp_path, monkeypatch):
    """From their shards, without a pass; until then the cell is named as not finished."""
    first = run_study(folder / "tiny-0", rows(20), out=tmp_path)
    before = files(tmp_path)
    meta = next(tmp_path.rglob("meta.json"))
    about = json.loads(meta.read_text(encoding="utf-8"))
    for text in (json.dumps(about | {"format": "layerdiv_tl.study/1"}), "[]", "{"):
        meta.write_text(text, encoding="utf-8")
        with pytest.raises(ld.InputError, match="no finished study"):
            ld.Study.load(tmp_path)
        monkeypatch.setattr(shards, "contributions", None)  # a call would fail
        again = run_study(folder / "tiny-0", rows(20), out=tmp_path)
        assert files(tmp_path) == before
        assert again.frame().equals(first.frame())


@pytest.mark.full
def test_contributions_are_all_rows_or_none(folder, tmp_path):
    """A shard that somebody removed is missed, not passed over."""
    study = run_study(folder / "tiny-0", rows(300), out=tmp_path)
    cell = Path(study.cells[0]["folder"])
    (cell / "shard-00001.safetensors").unlink()
    with pytest.raises(ld.InputError, match="holds 172 of 300 rows"):
        study.contributions("tiny-0", "words")
    (cell / "metrics.parquet").unlink()
    again = run_study(folder / "tiny-0", rows(300), out=tmp_path)
    assert len(again.contributions("tiny-0", "words").rows) == 300


@pytest.mark.full
def test_a_failure_is_named_and_the_rest_goes_on(folder, tmp_path, capsys):
    """A model that is none, a task whose options are no tokens: sentences, exit code 1, and the others done."""
    from layerdiv_tl.cli import main

    broken = tmp_path / "broken"
    broken.mkdir()
    study = run_study({"tiny-0": folder / "tiny-0", "gone": broken}, [rows(20), "sample/topic"], out=tmp_path / "out")
    assert len(study.cells) == 1
    assert len(study.failures) == 2
    assert any("gone: the folder" in sentence for sentence in study.failures)
    assert any(sentence.startswith("tiny-0 on sample/topic: ") for sentence in study.failures)
    code = main(["run", "--model", str(broken), "--task", "sample/topic", "--out", str(tmp_path / "none")])
    assert code == 1
    assert "is not a model" in capsys.readouterr().err


def test_a_full_disk_is_reported(folder, tmp_path, monkeypatch):
    """Shards that cannot be written are an error of their cell, not of the grid."""

    def full(shard, path, of):
        raise ld.InputError(f"{str(path)!r} cannot be written (No space left on device): give the path of a file.")

    monkeypatch.setattr(shards, "save_result", full)
    with pytest.raises(ld.InputError, match="No space left"):
        run_study(folder / "tiny-0", rows(20), out=tmp_path)


@pytest.mark.nightly
def test_memory_does_not_grow_with_rows(folder, tmp_path):
    """Metrics are running sums over shards: the largest array is one shard's."""
    import tracemalloc

    peaks = []
    for count in (256, 1024):
        run_study(folder / "tiny-0", rows(count), out=tmp_path / str(count), units="head")
        cell = next((tmp_path / str(count)).glob("*/*/*"))
        loaded = (shards.Shard.load(file) for file in sorted(cell.glob("shard-*")))
        tracemalloc.start()
        shards.metrics_of(loaded)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@pytest.mark.full
def test_several_folders_are_one_study(folder, tmp_path):
    one = run_study(folder / "tiny-0", rows(20), out=tmp_path / "a")
    two = run_study(folder / "tiny-1", rows(20), out=tmp_path / "b")
    both = ld.Study.load(tmp_path / "a", tmp_path / "b")
    assert len(both.frame()) == len(one.frame()) + len(two.frame())
    assert both.table().index.tolist() == ["tiny-0", "tiny-1"]
    again = ld.Study.load(both.save(tmp_path / "c"))
    assert again.table().equals(both.table())
    with pytest.raises(ld.InputError, match="saved without its contributions"):
        again.contributions("tiny-0", "words")


@pytest.fixture(scope="module")
def grid(folder, tmp_path_factory):
    """Two models of different depth on two tasks."""
    import dataclasses

    deep = tmp_path_factory.mktemp("deep") / "deep"
    llama(seed=5, num_hidden_layers=5).save_pretrained(deep)
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(folder / "tiny-0").save_pretrained(deep)
    tasks = [dataclasses.replace(rows(120, seed=seed), name=f"words-{seed}") for seed in (0, 1)]
    return run_study([folder / "tiny-0", deep], tasks, out=tmp_path_factory.mktemp("grid"))


@pytest.mark.full
def test_curves_are_the_prefix_ensembles(grid, folder):
    """Fig. 5's numbers are by_depth's, each junction once; standardized they have mean 0 and spread 1."""
    curves = grid.curves()
    assert curves.groupby(["model", "task"]).size().to_dict() == {
        (model, f"words-{seed}"): count for model, count in (("tiny-0", 7), ("deep", 11)) for seed in (0, 1)
    }
    stored = grid.contributions("deep", "words-1")
    one = curves[(curves.model == "deep") & (curves.task == "words-1")]
    squared, paper = (ld.decompose(stored, stored.labels, loss=loss).by_depth() for loss in ("squared", "paper"))
    assert one["component"].tolist() == squared["component"].tolist()
    for name, expected in (
        ("mse", paper["loss"]),
        ("bias", paper["bias"]),
        ("diversity", squared["diversity"]),
        ("diversity_logit_centered", squared["diversity_logit_centered"]),
        ("accuracy", squared["accuracy"]),
    ):
        np.testing.assert_allclose(one[name], expected, rtol=1e-6)
    standard = grid.curves(standardized=True).groupby(["model", "task"])["mse"]
    np.testing.assert_allclose(standard.mean(), 0, atol=1e-12)
    np.testing.assert_allclose(standard.std(ddof=0), 1)
    recomputed = grid.curves(norm="recomputed")
    ends = curves.groupby(["model", "task"]).tail(1).index
    apart = (recomputed["mse"] - curves["mse"]).abs()
    assert apart[ends].max() < 1e-12
    assert apart.drop(ends).min() > 0


@pytest.mark.full
def test_the_papers_analyses_of_a_study(grid):
    """Figures 3, 4, 6 and the trade-off from the stored numbers, against their own functions."""
    from scipy.stats import pearsonr

    table = grid.correlations(n_resamples=50)
    row = table.query(
        "aggregation == 'per_model' and task == 'words-0' and metric == 'mse' and coefficient == 'pearson'"
    )
    curves = grid.curves().query("task == 'words-0'")
    own = [pearsonr(curve.accuracy, -curve.mse).statistic for _, curve in curves.groupby("model")]
    assert row["r"].item() == pytest.approx(np.tanh(np.mean(np.arctanh(own))))
    assert set(table["metric"]) >= {"mse", "bias", "diversity", "diversity_centered", "cross_entropy"}

    shares = grid.shares().query("model == 'deep' and term == 'diversity' and gauge == 'centered'").set_index("module")
    expected = []
    for seed in (0, 1):
        stored = grid.contributions("deep", f"words-{seed}")
        modules = ld.decompose(stored, stored.labels).by_module().set_index("module")
        expected.append(modules["diversity_share_centered"])
    np.testing.assert_allclose(shares["share"], (sum(expected) / 2)[shares.index])
    assert shares["member_share"]["mlp"] == pytest.approx(5 / 11)
    paper = grid.shares(form="paper").query("term == 'bias' and gauge == 'raw'")
    np.testing.assert_allclose(paper.groupby("model")["share"].sum(), 1)

    fit = grid.scaling()
    assert sorted(fit.x.tolist()) == [7, 11]
    assert fit.y.tolist() == grid.table()["accuracy", "Avg."].tolist()
    assert grid.tradeoff_signs(n_resamples=50).counts.sum() == 2 * (6 + 10)
    found = grid.reweight("deep", "words-0", train=40)
    stored = grid.contributions("deep", "words-0")
    assert len(found.weights) == len(stored.components)
    np.testing.assert_allclose(found.before, stored.values.sum(1))


@pytest.mark.full
def test_training_seeds_of_one_shape_are_one_point_of_the_scaling_curve():
    """As in claim 7: seeds are no further sizes."""
    study = ld.run_study(["zoo/d1", "zoo/d2", "zoo/d2-seed1"], "synthetic/recall", limit=16)
    bits = study.table()["cross-entropy"]["Avg."]
    fit = study.scaling("cross-entropy")
    assert fit.x.tolist() == [3, 5]
    np.testing.assert_allclose(fit.y, [bits["zoo/d1"], (bits["zoo/d2"] + bits["zoo/d2-seed1"]) / 2])
    points = study.plot(kind="scaling", quantity="cross-entropy").data[-1]
    assert ["zoo/d1" in points.hovertext[0], "zoo/d2<" in points.hovertext[1]] == [True, True]


@pytest.mark.full
def test_no_text_is_kept_unless_asked_for(folder, tmp_path):
    """A row's license may not allow it to be passed on."""
    task = rows(20)
    run_study(folder / "tiny-0", task, out=tmp_path / "a")
    few = task.take(range(5))  # captions quote the ends of few prompts
    run_study(folder / "tiny-0", few, out=tmp_path / "a")
    ld.run_depth(folder / "tiny-0", texts=list(few.prompts), out=tmp_path / "a")
    for data in files(tmp_path / "a").values():
        assert task.prompts[0][-20:].encode() not in data
    assert not list((tmp_path / "a").rglob("prompts.jsonl"))
    run_study(folder / "tiny-0", task, out=tmp_path / "b", keep_text=True)
    (kept,) = (tmp_path / "b").rglob("prompts.jsonl")
    assert [json.loads(line)["prompt"] for line in kept.read_text().splitlines()] == list(task.prompts)
    run_study(folder / "tiny-0", task, out=tmp_path / "a", keep_text=True)  # asked for when all else is done
    assert len(list((tmp_path / "a").rglob("prompts.jsonl"))) == 1


@pytest.mark.full
def test_long_rows_are_cut_and_counted(folder, tmp_path):
    """A row longer than the context loses words from the left, and the settings say how many rows did."""
    words = " ".join(["w1"] * 100)
    frame = pd.DataFrame({"text": [words, "w2 w3"], "label": [0, 1]})
    task = ld.Task.from_frame(frame, template="w9 {text} {answer}", options=["yes", "no"], name="long")
    study = run_study(folder / "tiny-0", task, out=tmp_path)
    assert study.cells[0]["truncated"] == 1
    assert study.contributions("tiny-0", "long").lengths.max() == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"models": []}, "there are no models"),
        ({"tasks": []}, "there are no tasks"),
        ({"tasks": "nothing"}, "there is no task 'nothing'"),
        ({"units": "layer"}, "units='layer'"),
        ({"units": ()}, "units=\\(\\)"),
        ({"limit": 0, "tasks": "sample/topic"}, "limit=0"),
        ({"models": {"a b": None, "a-b": None}}, "too alike for folders"),
        ({"models": [None, "default"]}, "two models are called"),
        ({"out": "/proc/none"}, "cannot be made"),
    ],
)
def test_bad_input_is_a_sentence(folder, tmp_path, arguments, message):
    with pytest.raises(ld.InputError, match=message):
        run_study(**{"models": folder / "tiny-0", "tasks": rows(5), "out": tmp_path, **arguments})


@pytest.mark.full
def test_bad_questions_are_answered_in_a_sentence(folder, tmp_path):
    study = run_study(folder / "tiny-0", rows(5), out=tmp_path / "out")
    with pytest.raises(ld.InputError, match="unit='head'"):
        study.table("head")
    for question in (study.curves, study.shares):
        with pytest.raises(ld.InputError, match="unit 'head'"):
            question("head")
    with pytest.raises(ld.InputError, match="form='raw' is unknown"):
        study.shares(form="raw")
    with pytest.raises(ld.InputError, match="quantity="):
        study.scaling("speed")
    with pytest.raises(ld.InputError, match="two different x"):
        study.scaling()
    with pytest.raises(ld.InputError, match="has no cell of 'other'"):
        study.contributions("other", "words")
    with pytest.raises(ld.InputError, match="there is no folder"):
        ld.Study.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ld.InputError, match="holds no finished study"):
        ld.Study.load(tmp_path / "empty")


@pytest.mark.full
def test_a_dry_run_counts_what_is_left_and_writes_nothing(tmp_path, capsys):
    """Rows and tokens of shards that are not there yet; the command says the same."""
    out = tmp_path / "out"
    grid = (["zoo/d1", "zoo/none"], "synthetic/recall", "sublayer", 200, out, None)
    first, failures = dry_run(*grid)
    assert not out.exists()
    assert [s for s in failures if "zoo/none" in s] == failures
    assert first[["rows", "rows_left", "tokens"]].values.tolist() == [[200, 200, 200 * 26]]
    assert first["seconds"].item() > 0
    arguments = ["run", "--model", "zoo/d1", "--task", "synthetic/recall", "--limit", "200", "--out", str(out)]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 200 * 26
    assert not out.exists()
    ld.run_study(*grid[:5])
    before = sorted(out.rglob("*"))
    done, _ = dry_run(*grid)
    assert done[["rows_left", "tokens", "seconds"]].values.tolist() == [[0, 0, 0]]
    assert sorted(out.rglob("*")) == before
    next(out.rglob("meta.json")).unlink()
    next(out.rglob("shard-00000*")).unlink()
    assert dry_run(*grid)[0]["rows_left"].item() == 128
    with pytest.raises(ld.InputError, match="zoo/none"):
        dry_run("zoo/none", *grid[1:])
