"""A grid of cells: what is stored is whole, and of this model, these rows and options; the rest is computed."""

import contextlib
import dataclasses
import errno
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl import results
from layerdiv_tl.studies import grid as grids
from tests.conftest import llama
from tests.oracles.tokenizers import word_tokenizer

MODELS = ["zoo/d1", "zoo/d2"]
TASKS = ["synthetic/recall", "synthetic/modular:largest=19"]
ROOT = Path(__file__).parents[2]
# Run in a process of its own, which is then killed.
SCRIPT = """
import sys, layerdiv_tl as ld
tasks = ["synthetic/recall", "synthetic/k_hop"]
grid = ld.Grid(sys.argv[1]).run(ld.contributions, ["zoo/d1", "zoo/d2"], tasks, limit=64)
assert not grid.failures, grid.failures
"""


def run(folder, models=MODELS, rows=TASKS, function=ld.contributions, limit=8, **options):
    return ld.Grid(folder).run(function, models, rows, limit=limit, **options)


def numbers(folder):
    """{model, rows, analysis, options: contributions} of all cells in a folder."""
    return {
        (about["model"], about["rows"], about["analysis"], str(about["options"])): cell.result.values
        for cell in ld.Grid(folder).cells()
        for about in [cell.about]
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, values in one.items():
        np.testing.assert_array_equal(values, other[key], err_msg=str(key))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished grid of two models on two tasks."""
    return run(tmp_path_factory.mktemp("grid")).folder


@pytest.fixture
def copied(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_cell_is_what_the_function_returns(whole):
    grid = ld.Grid(whole)
    assert len(list(grid.cells())) == 4
    for cell in grid.cells():
        task = ld.task(cell.about["rows"], limit=8)
        np.testing.assert_array_equal(cell.result.values, ld.contributions(cell.about["model"], task).values)
        np.testing.assert_array_equal(cell.result.labels, task.labels)
    frame = grid.frame(model="zoo/d2")
    assert frame.columns[:2].tolist() == ["model", "rows"]
    assert frame["rows"].unique().tolist() == sorted(TASKS)


def test_what_is_there_is_not_computed_again(copied, monkeypatch):
    files = {file: file.stat().st_mtime_ns for file in copied.rglob("*.*")}
    monkeypatch.setattr(grids, "quiet", lambda: 1 / 0)  # entered before the function is called
    assert not run(copied).failures
    assert {file: file.stat().st_mtime_ns for file in copied.rglob("*.*")} == files


def test_other_options_and_rows_are_other_cells(copied):
    grid = run(copied, "zoo/d2", TASKS[0], unit="head")
    assert {cell.about["options"]["unit"] for cell in grid.cells()} == {"head"}
    grid.run(ld.contributions, "zoo/d2", TASKS[0], limit=8)
    assert grid.frame()["unit"].unique().tolist() == ["head", "sublayer"]
    assert "unit" not in grid.frame(unit="head")
    run(copied, "zoo/d2", TASKS[0], limit=4)
    with pytest.raises(ld.InputError, match="count=[48]"):
        ld.Grid(copied).frame(model="zoo/d2", rows=TASKS[0], unit="sublayer")
    assert ld.Grid(copied).frame(model="zoo/d2", rows=TASKS[0], count=4)["example"].nunique() == 4


def test_changed_labels_or_prompts_are_other_cells(tmp_path):
    task = ld.task(TASKS[0], limit=8)
    relabeled = dataclasses.replace(task, labels=task.labels[::-1].copy())
    reworded = dataclasses.replace(task, prompts=(*task.prompts[:-1], task.prompts[0]))
    for number, rows in enumerate((task, relabeled, reworded), 1):
        run(tmp_path, "zoo/d1", rows)
        assert len(list(ld.Grid(tmp_path).cells())) == number


def test_other_weights_under_one_name_are_never_mixed(tmp_path):
    """Nothing of the first model is given back for the second, and no frame joins the two."""
    words = word_tokenizer(["[UNK]", "yes", "no", *(f"w{i}" for i in range(58))])
    task = ld.Task("t", ("w1 w2", "w3 w4 w5"), (" yes", " no"), np.array([0, 1]), ("", ""), "", "", "")
    models = [ld.load_model(llama(seed=seed), tokenizer=words) for seed in (0, 1)]
    found = [next(run(tmp_path, {"m": model}, task).cells()) for model in models]
    for cell, model in zip(found, models, strict=True):
        np.testing.assert_array_equal(cell.result.values, ld.contributions(model, task).values)
    with pytest.raises(ld.InputError, match="weights="):
        ld.Grid(tmp_path).frame()
    with torch.no_grad():  # trained a little
        models[0].hf_model.lm_head.weight[5, 5] += 1e-6
    assert next(run(tmp_path, {"m": models[0]}, task).cells()).about["weights"] != found[0].about["weights"]


def test_a_model_with_hooks_is_not_stored(tmp_path):
    model = llama()
    model.model.layers[0].register_forward_hook(lambda module, args, output: output)
    with pytest.warns(UserWarning, match="forward hook"):
        grid = run(tmp_path, {"hooked": ld.load_model(model, tokenizer=word_tokenizer(["[UNK]"]))}, TASKS[0])
    assert not list(tmp_path.iterdir())
    assert len(grid.failures) == 1


def picky(model, rows, *, count: int = 3):
    if model.name == "zoo/d1":
        raise RuntimeError("out of luck")
    return ld.contributions(model, rows.select(range(count)))


def test_failures_are_collected_and_the_others_continue(tmp_path):
    with pytest.warns(UserWarning, match="4 more"):
        grid = run(tmp_path, ["zoo/nowhere", *MODELS], ["no task", *TASKS], picky)
    assert len(grid.failures) == 5
    assert [failure.rpartition(": R")[0] for failure in grid.failures[3:]] == [f"zoo/d1 on {task}" for task in TASKS]
    assert "RuntimeError: out of luck" in grid.failures[3]
    assert [cell.result.values.shape[0] for cell in grid.cells()] == [3, 3]
    assert "5 failed" in repr(grid)
    with pytest.raises(ld.InputError, match="out of luck"):
        grid.frame(model="zoo/d1")


def test_functions_models_and_options_must_be_nameable(tmp_path):
    """A lambda has the name of any other, and what JSON cannot hold would be the same as anything."""
    for function in (lambda model, rows: None, partial(ld.contributions, unit="head")):
        with pytest.raises(ld.InputError, match="name of its own"):
            run(tmp_path, function=function)
    with pytest.raises(TypeError, match="JSON"):
        run(tmp_path, unit=ld.groups({"g": ["L0.attn"]}))
    for models in (["zoo/d1", "zoo/d1"], {1: "zoo/d1", "1": "zoo/d2"}):
        with pytest.raises(ld.InputError, match="one name"):
            run(tmp_path, models)
    with pytest.raises(AttributeError, match="name"):
        run(tmp_path, [llama()])


def test_any_analysis_is_a_cell(tmp_path):
    """Texts, questions, effects: whatever takes a model and rows, in one folder."""
    grid = ld.Grid(tmp_path).run(ld.depth.skip, "zoo/d2", {"two texts": [[1, 2, 3, 4, 5], [3, 16, 5, 22]]})
    grid.run(ld.depth.skip, "zoo/d2", {"two texts": [[1, 2, 3, 4, 5], [3, 16, 5, 22]]}, mode="future")
    grid.run(ld.depth.depth_score, "zoo/d2", ld.depth.questions("synthetic/k_hop", limit=4))
    grid.run(ld.effects, {"small": {"x": "zoo/d2", "dtype": "float64"}}, TASKS[0], limit=8)
    kinds = [type(cell.result).__name__ for cell in grid.cells()]
    assert kinds == ["Skip", "Skip", "DepthScore", "Effects"]
    assert grid.frame(analysis="skip")["mode"].unique().tolist() == ["current", "future"]
    assert grid.frame()["analysis"].unique().tolist() == ["skip", "depth_score", "effects"]
    code = f"import layerdiv_tl as ld; print([cell.result for cell in ld.Grid({str(tmp_path)!r}).cells()])"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert all(kind in fresh.stdout for kind in kinds)


@pytest.mark.parametrize("where", ["cut off", "result", "description"])
def test_a_damaged_cell_is_not_read_and_computed_again(copied, whole, where):
    cell = next(ld.Grid(copied).cells())
    content = bytearray(cell.path.read_bytes())
    if where == "cut off":
        content = content[:-8]
    else:
        content[content.index(b"NUMPY") + 150 if where == "result" else content.index(b'"weights"') + 15] ^= 1
    cell.path.write_bytes(content)
    if where == "result":
        with pytest.raises(ld.InputError, match="is damaged"):
            _ = cell.result
    else:
        assert len(list(ld.Grid(copied).cells())) == 3
    assert not run(copied).failures
    assert_same(numbers(copied), numbers(whole))


def test_a_full_disk_leaves_no_half_cell(tmp_path, whole, monkeypatch):
    """The failed cells are named; once there is room, the next run computes them."""
    save, written = results.Result.save, []

    def full(result, path):
        if len(written) == 2:
            with results.written(Path(path)) as partial_file:
                partial_file.write_bytes(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        return save(result, path)

    with monkeypatch.context() as patch:
        patch.setattr(results.Result, "save", full)
        with pytest.warns(UserWarning, match="No space"):
            grid = run(tmp_path)
    assert len(grid.failures) == 2
    assert len(list(grid.cells())) == 2
    assert len(list(tmp_path.rglob("*.*"))) == 2
    assert not run(tmp_path).failures
    assert_same(numbers(tmp_path), numbers(whole))


@contextlib.contextmanager
def mounted(folder, *options):
    """A small file system, where this process may mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(["size=100k", *options]), "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_small_disk(tmp_path, whole):
    with mounted(tmp_path / "disk") as disk:
        with pytest.warns(UserWarning, match="pace"):
            grid = run(disk, limit=64)
        assert 0 < len(list(grid.cells())) < 4
        for cell in ld.Grid(disk).cells():
            assert len(cell.result.values) == 64
        assert not list(disk.rglob(".*.partial"))


def test_a_read_only_folder_is_read(tmp_path, whole):
    with mounted(tmp_path / "disk") as disk:
        shutil.copytree(whole, disk, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert not run(disk).failures
        assert_same(numbers(disk), numbers(whole))
        with pytest.warns(UserWarning, match="cannot be written|Read-only"):
            run(disk, limit=4)
        assert_same(numbers(disk), numbers(whole))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors_give_the_same_cells(tmp_path, whole, kind):
    context = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2, context) as executor:
        grid = run(tmp_path, executor=executor)
    assert not grid.failures
    assert [cell.about["model"] for cell in grid.cells()] == ["zoo/d1", "zoo/d1", "zoo/d2", "zoo/d2"]
    assert_same(numbers(tmp_path), numbers(whole))


def dies(model, rows):
    if model.name == "zoo/d1":
        os._exit(9)
    return ld.contributions(model, rows)


@pytest.mark.full
def test_a_pool_that_breaks_is_a_failure_and_not_a_loss(tmp_path):
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with executor, pytest.warns(UserWarning, match="Broken"):
        grid = run(tmp_path, MODELS[::-1], TASKS[0], dies, executor=executor)
    assert [cell.about["model"] for cell in grid.cells()] == ["zoo/d2"]
    assert "zoo/d1" in grid.failures[0]


def start(folder):
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.nightly
def test_kills_lose_nothing_but_the_running_cell(tmp_path):
    """SIGKILL at twenty random instants: every cell that is there is whole and right, and stays."""
    began = time.monotonic()
    assert start(tmp_path / "whole").wait() == 0
    takes = time.monotonic() - began
    expected = numbers(tmp_path / "whole")
    draw, kept = random.Random(0), {}
    for _ in range(20):
        process = start(tmp_path / "cut")
        time.sleep(draw.uniform(0.5 * takes, 1.05 * takes))
        process.kill()
        process.wait()
        now = numbers(tmp_path / "cut")
        assert_same({key: expected[key] for key in now}, now)
        assert kept.keys() <= now.keys()
        kept = now
        if len(kept) == len(expected):
            shutil.rmtree(tmp_path / "cut")
            kept = {}
    assert start(tmp_path / "cut").wait() == 0
    assert_same(numbers(tmp_path / "cut"), expected)


@pytest.mark.nightly
def test_two_runs_share_a_folder(tmp_path):
    processes = [start(tmp_path / "both") for _ in range(2)]
    for process in processes:
        assert process.wait() == 0, process.stderr.read().decode()
    assert start(tmp_path / "one").wait() == 0
    assert_same(numbers(tmp_path / "both"), numbers(tmp_path / "one"))
    assert not list(tmp_path.rglob(".*.partial"))


def slow(model, rows):
    time.sleep(0.5)
    return ld.contributions(model, rows)


@pytest.mark.full
def test_dask_goes_on_when_a_worker_is_killed(tmp_path):
    """A local cluster of two processes; one of them dies in the middle, and its cells are computed by the other."""
    distributed = pytest.importorskip("dask.distributed")
    models = ["zoo/d1", "zoo/d2", "zoo/d4"]
    cluster = distributed.LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client, ThreadPoolExecutor(1) as beside:
        first, _ = client.run(os.getpid).values()
        killed = beside.submit(kill_after_first_cell, tmp_path, first)
        grid = run(tmp_path / "dask", models, function=slow, executor=client.get_executor())
        assert killed.result()
    assert not grid.failures
    expected = numbers(run(tmp_path / "here", models, function=slow).folder)
    assert len(expected) == 6
    assert_same(numbers(tmp_path / "dask"), expected)


def kill_after_first_cell(folder, pid):
    """Kill a process once a cell is finished; return whether other cells were not."""
    while not list(folder.rglob("*.npz")):
        time.sleep(0.02)
    os.kill(pid, 9)
    return len(list(folder.rglob("*.npz"))) < 6


def test_an_option_called_options_is_an_option(tmp_path):
    """A cell is found by it, and the frame has a column of its values."""
    grid = ld.Grid(tmp_path)
    for options in ([5, 6], [7, 8]):
        grid.run(ld.contributions, "zoo/d1", {"ids": [[1, 2]]}, options=options)
    assert len(list(grid.cells(options=[7, 8]))) == 1
    assert grid.frame()["options"].map(tuple).unique().tolist() == [(5, 6), (7, 8)]
