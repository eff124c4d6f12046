"""What the zoo's experiment adds to a study: processes that share it, information per cell, figures against size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.cli import main
from layerdiv_tl.studies import zoo_experiment as experiment
from layerdiv_tl.studies.information import PATTERN, stored_information
from layerdiv_tl.views import study_page as report
from layerdiv_tl.views.figures.size import SHUFFLED, information_panels
from layerdiv_tl.views.html import Page

pytestmark = pytest.mark.full  # studies of several models

MODELS = ["zoo/d1", "zoo/d2", "zoo/d4-shared"]
TASKS = ["synthetic/recall", "synthetic/modular:largest=19"]
QUICK = {"n_permutations": 8, "n_resamples": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def study(folder):
    return ld.run_study(MODELS, TASKS, limit=160, out=folder)


@pytest.mark.nightly
def test_several_processes_give_the_same_numbers(study, tmp_path):
    """A study that processes share equals one made by a single process, and says what failed in any of them."""
    (tmp_path / "broken").mkdir()
    shared = ld.run_study([*MODELS[:2], str(tmp_path / "broken")], TASKS, limit=160, out=tmp_path / "out", workers=2)
    one = study.metrics[study.metrics["model"].isin(MODELS[:2])]
    keys = ["model", "task", "loss", "table", "component", "term"]
    for column in ("mean", "low", "high"):
        both = [frame.sort_values(keys, ignore_index=True)[column] for frame in (one, shared.metrics)]
        pd.testing.assert_series_equal(*both, rtol=1e-9, atol=1e-12)
    assert any(told.startswith("broken:") for told in shared.failures)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_a_number_of_processes_is_one_or_more(workers, tmp_path):
    """Anything but a whole number from 1 is refused before anything runs."""
    with pytest.raises(ld.InputError, match=r"workers="):
        ld.run_study(MODELS, TASKS, out=tmp_path, workers=workers)
    assert not list(tmp_path.iterdir())


def test_models_in_memory_cannot_be_shared(tmp_path):
    """Several processes need names: a model of this process is refused with its name."""
    model = ld.load_model("zoo/d1")
    with pytest.raises(ld.InputError, match="workers=.*'mine'"):
        ld.run_study({"mine": model}, TASKS, out=tmp_path, workers=2)


@pytest.mark.nightly
def test_information_of_a_cell_is_that_of_its_contributions(study):
    """Every number of the frame is what `ld.information` gives for the cell; other settings are other numbers."""
    frame = study.information(["gaussian", "vote"], models=["zoo/d2"], tasks=TASKS[:1], **QUICK)
    shard = study.contributions("zoo/d2", TASKS[0])
    for estimator, part in frame.groupby("estimator"):
        i = ld.information(shard, shard.labels, estimator, n_contrasts=1, **QUICK)
        np.testing.assert_array_equal(part[["bits", "low", "high", "null"]], i.frame()[["bits", "low", "high", "null"]])
        assert set(part["label_entropy"]) == {i.label_entropy}
        assert set(part["members"]) == {len(i.components)} == {5}
        assert part["warnings"].iloc[0].splitlines() == list(i.warnings)
    other = study.information(models=["zoo/d2"], tasks=TASKS[:1], n_contrasts=2, **QUICK)
    assert not np.array_equal(other["bits"], frame[frame["estimator"] == "gaussian"]["bits"])


@pytest.mark.nightly
def test_information_is_kept_beside_the_metrics(study, folder, tmp_path, monkeypatch):
    """What was computed once is read again, by another process's study and by a copy; nothing is computed for it."""
    first = study.information(tasks=TASKS[:1], **QUICK)
    monkeypatch.setattr("layerdiv_tl.studies.information.information", None)
    for again in (ld.Study.load(folder), ld.Study.load(study.save(tmp_path / "copy"))):
        pd.testing.assert_frame_equal(again.information(tasks=TASKS[:1], **QUICK), first)
        assert len(stored_information(again.cells)) >= len(first)


def test_cells_with_too_few_rows_are_named(study):
    """Cells that cannot be estimated are left out with the reason; where all are, the reason is the answer."""
    # 3 models of 3, 5 and 9 members, 3 contrasts each, of 160 rows: the last needs 54 rows of every class.
    frame = study.information(tasks=TASKS[:1], n_contrasts=3, **QUICK)
    assert set(frame["model"]) == {"zoo/d1", "zoo/d2"}
    assert [told.split(" on ")[0] for told in frame.attrs["left_out"]] == ["zoo/d4-shared"]
    with pytest.raises(ld.InputError, match="zoo/d4-shared on .* needs twice as many rows"):
        study.information(models=["zoo/d4-shared"], tasks=TASKS[:1], n_contrasts=3, **QUICK)
    with pytest.raises(ld.InputError, match="models=.*'zoo/d9'.*'zoo/d1', 'zoo/d2'"):
        study.information(models=["zoo/d9"])
    with pytest.raises(ld.InputError, match="unit='head' .*sublayer"):
        study.information(unit="head")


def test_what_is_no_choice_of_information_is_refused(study):
    """No names, and settings that are no numbers: a sentence; one name is itself, a number of numpy's a number."""
    for wrong, message in (
        ({"estimator": []}, r"estimator=\[\]"),
        ({"estimator": None}, "estimator=None"),
        ({"models": []}, r"models=\[\]"),
        ({"tasks": 5}, "tasks=5"),
        ({"seed": np.random.default_rng(0)}, "seed=.* must be a whole number"),
        ({"n_groups": "two"}, "n_groups='two' must be a whole number"),
    ):
        with pytest.raises(ld.InputError, match=message):
            study.information(**({"estimator": "vote"} | wrong))
    one = study.information(
        ["vote", "vote"], models="zoo/d1", tasks=TASKS[0], n_permutations=np.int64(8), n_resamples=8
    )
    several = study.information("vote", models=["zoo/d1"], tasks=TASKS[:1], **QUICK)
    pd.testing.assert_frame_equal(one, several)


def test_a_file_that_was_cut_off_is_computed_again(study):
    """Half a file of information is no traceback, neither in the report's frame nor where it is asked for."""
    asked = {"models": "zoo/d1", "tasks": TASKS[0], "n_permutations": 8, "n_resamples": 9}
    study.information("vote", **(asked | {"models": "zoo/d2"}))
    before = {cell["folder"]: set(Path(cell["folder"]).glob(PATTERN)) for cell in study.cells}
    first = study.information("vote", **asked)
    (file,) = (new for folder, files in before.items() for new in set(Path(folder).glob(PATTERN)) - files)
    many = len(stored_information(study.cells))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert len(stored_information(study.cells)) == many - len(first)
    pd.testing.assert_frame_equal(study.information("vote", **asked), first)
    assert len(stored_information(study.cells)) == many


def test_a_folder_that_may_only_be_read_keeps_nothing(study, monkeypatch):
    """On a disk that can only be read, writing and removing both fail: the numbers are there all the same."""

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert len(study.information("vote", models="zoo/d1", tasks=TASKS[0], n_permutations=8, n_resamples=10)) == 5


@pytest.mark.nightly
def test_the_report_keeps_estimates_of_other_settings_apart(study):
    """One figure for each setting, each with every model once, and its caption says which it is."""
    cells = tuple(cell for cell in study.cells if cell["settings"]["model"] == "zoo/d1")
    several = replace(study, metrics=study.metrics.query("model == 'zoo/d1'"), cells=cells)
    for contrasts in (1, 2):
        several.information("gaussian", tasks=TASKS[0], n_contrasts=contrasts, n_permutations=8, n_resamples=11)
    frame = stored_information(several.cells)
    assert frame.groupby(["model", "task", "term", "estimator", "settings"]).size().max() == 1
    page = Page("information")
    report._information(page, several)
    assert "n_contrasts=2" in page.html()
    one = several.information("gaussian", tasks=TASKS[0], n_contrasts=1, n_permutations=8, n_resamples=11)
    with pytest.raises(ld.InputError, match="no estimate of these models"):
        information_panels(one, study.models().query("model == 'zoo/d2'"))


@pytest.mark.parametrize("against", ["members", "parameters"])
def test_a_figure_of_sizes_shows_the_means_over_tasks(study, against):
    """Every point is the table's average at its model's size; buttons exchange the sizes and nothing else."""
    figure = study.plot(kind="size", against=against)
    models = study.models().set_index("model")
    table = study.table()
    headings = [note.text for note in figure.layout.annotations]
    for quantity in ("accuracy", "cross-entropy", "diversity"):
        panel = next(n for n, text in enumerate(headings) if text.startswith(quantity))
        traces = [t for t in figure.data if (t.xaxis or "x") == f"x{panel + 1 if panel else ''}"]
        points = {(x, round(y, 9)) for t in traces if t.mode == "markers" for x, y in zip(t.x, t.y, strict=True)}
        wanted = {(models[against][m], round(table[quantity]["Avg."][m], 9)) for m in MODELS}
        assert points == wanted
    menu = figure.layout.updatemenus[0].buttons
    assert [button.label for button in menu] == ["components |L|", "parameters"]
    for button, column in zip(menu, ("members", "parameters"), strict=True):
        new = button.args[0]["x"]
        assert len(new) == len(figure.data)
        assert {x for part in new for x in part if x is not None} == set(models[column])
    with pytest.raises(ld.InputError, match="against='depth'.*'members' or 'parameters'"):
        study.plot(kind="size", against="depth")


def test_whiskers_of_sizes_are_of_independent_tasks(study):
    """The upper half-width of a mean over tasks is the root of the tasks' squared ones, over their number."""
    figure = study.plot(kind="size")
    rows = study.totals().query("loss == 'cross_entropy' and term == 'loss' and model == 'zoo/d2'")
    half = np.sqrt(((rows["high"] - rows["mean"]) ** 2).sum()) / len(rows)
    panel = next(n for n, note in enumerate(figure.layout.annotations) if note.text.startswith("cross-entropy"))
    whiskers = {
        name: w
        for t in figure.data
        if t.xaxis == f"x{panel + 1}"
        for name, w in zip([text.split("</b>")[0][3:] for text in t.hovertext], t.error_y.array, strict=True)
    }
    assert whiskers["zoo/d2"] == pytest.approx(half)


def test_whiskers_of_accuracy_end_at_all_right(study):
    """No accuracy is above 100 % or below 0: Wilson's intervals are one-sided there, and so are those of means."""
    m = study.metrics.copy()
    sure = (m["table"] == "totals") & (m["loss"] == "squared") & (m["term"] == "accuracy") & (m["model"] == "zoo/d1")
    m.loc[sure, ["mean", "low", "high"]] = (1.0, 0.9, 1.0)
    figure = replace(study, metrics=m).plot(kind="size")
    ends = {
        text.split("</b>")[0][3:]: (y, up, down)
        for t in figure.data
        if t.xaxis in (None, "x")
        for text, y, up, down in zip(t.hovertext, t.y, t.error_y.array, t.error_y.arrayminus, strict=True)
    }
    assert ends["zoo/d1"] == pytest.approx((100, 0, 10 * np.sqrt(len(TASKS)) / len(TASKS)))


def test_one_row_leaves_no_interval(tmp_path):
    """Where a task's mean has no interval, the mean over tasks has none: not one of width 0."""
    figure = ld.run_study("zoo/d1", TASKS, limit=1, out=tmp_path).plot(kind="size")
    assert not any("95 %" in text for t in figure.data if t.xaxis == "x4" for text in t.hovertext or ())


@pytest.mark.nightly
def test_every_task_has_its_own_entropy(study):
    """Tasks of other H(Y) have dashed lines of their own: one of the largest would hide what exceeds the others."""
    frame = study.information("vote", **QUICK)
    entropies = frame.groupby("task")["label_entropy"].max()
    assert np.ptp(entropies) > 0.5
    figure = information_panels(frame, study.models())
    (line,) = (t for t in figure.data if t.name == "H(Y)")
    drawn = {y for y in line.y if y is not None}
    assert all(min(abs(y - entropy) for y in drawn) < 0.01 for entropy in frame["label_entropy"])
    for button in figure.layout.updatemenus[0].buttons:
        assert [len(x) for x in button.args[0]["x"]] == [len(t.y) for t in figure.data]


def test_a_figure_of_information_shows_estimates_and_what_shuffled_rows_give(study):
    """Points are the frame's bits, gray ones its nulls; frames of two estimators are refused."""
    frame = study.information(tasks=TASKS[:1], **QUICK)
    figure = study.plot(kind="information", tasks=TASKS[:1], **QUICK)
    shown = [t for t in figure.data if t.xaxis in (None, "x")]
    wanted = frame[frame["term"] == "relevancy"]
    gray = [y for t in shown if t.name.startswith(SHUFFLED) for y in t.y]
    plain = [y for t in shown if not t.name.startswith(SHUFFLED) for y in t.y]
    assert sorted(plain) == sorted(wanted["bits"])
    assert sorted(gray) == sorted(wanted["null"])
    both = study.information(["gaussian", "vote"], tasks=TASKS[:1], **QUICK)
    with pytest.raises(ld.InputError, match="estimators gaussian, vote: give those of one"):
        information_panels(both, study.models())


def test_neurons_have_no_prefixes(tmp_path):
    """A study at unit neuron has totals, components and modules, and no curves along depth."""
    found = ld.run_study("zoo/d1", TASKS[:1], "neuron", limit=32, out=tmp_path)
    assert {"totals", "components", "modules"} <= set(found.metrics["table"])
    assert not found.metrics["table"].str.startswith("depth").any()
    with pytest.raises(ld.InputError, match="run it at unit 'sublayer'"):
        found.curves()
    parts = found.modules("neuron")[["bias", "diversity"]].sum()
    whole = found.totals().query("loss == 'squared'").set_index("term")["mean"]
    np.testing.assert_allclose(parts, whole[["bias", "diversity"]], rtol=1e-9)


@pytest.mark.nightly
def test_a_page_of_many_cells_shows_the_components_of_the_best(study, monkeypatch, tmp_path):
    """Where a page has no room for every cell, the most accurate models' components are shown, and it is said."""
    whole = study.report(tmp_path / "all.html").read_text()
    monkeypatch.setattr(report, "MOST_CELLS", 3)
    monkeypatch.setattr(report, "BEST", 1)
    short = study.report(tmp_path / "best.html").read_text()
    best = study.best(1)[0]
    for name in MODELS:
        title = f"{name} on {TASKS[0]}, unit sublayer"
        assert title in whole
        assert (title in short) == (name == best)
    assert "1 most accurate models" in short


@pytest.mark.nightly
def test_the_whole_experiment_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    """One command measures, estimates and reports; asked again it computes nothing; unknown names are refused."""
    for name, rows in (("MANY", 200), ("SOME", 64), ("FEW", 32), ("QUESTIONS", 4), ("PROMPTS", 8)):
        monkeypatch.setattr(experiment, name, rows)
    monkeypatch.setattr(experiment, "ESTIMATORS", {"vote": 4})
    command = ["zoo", "--model", "zoo/d1", "zoo/d2", "--workers", "1", "--out", str(tmp_path / "out")]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["number"] for row in told["claims"]} == set(range(1, 13))
    study = ld.Study.load(tmp_path / "out")
    assert set(study.metrics["unit"]) == {"sublayer", "neuron"}
    assert {cell["settings"]["rows"] for cell in study.cells if cell["settings"]["unit"] == "neuron"} == {32}
    assert set(study.information("vote", tasks=experiment.INFORMED, n_permutations=4)["model"]) == {"zoo/d1", "zoo/d2"}
    assert study.depth.models == ("zoo/d2",)
    page = (tmp_path / "out" / "index.html").read_text()
    for words in ("Information", "neuron", "depth score"):
        assert words.lower() in page.lower()
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*") if file.suffix != ".html"}
    assert main(command) == 0
    assert "Open" in capsys.readouterr().out
    assert files == {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*") if file.suffix != ".html"}
    assert main(["zoo", "--model", "zoo/d5", "--out", str(tmp_path / "no")]) == 1
    assert "'zoo/d5'" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_run_command_estimates_information(tmp_path, capsys):
    """`layerdiv run --information` keeps estimates with the study, and says which cells have too few rows."""
    command = ["run", "--model", "zoo/d1", "--task", TASKS[0], "--out", str(tmp_path), "--information", "vote"]
    assert main([*command, "--limit", "120"]) == 0
    assert "bits" in capsys.readouterr().out
    assert len(list(tmp_path.rglob(PATTERN))) == 1
    assert main([*command, "--limit", "120", "--json"]) == 0
    bits = json.loads(capsys.readouterr().out)["information"]
    shown = ld.Study.load(tmp_path).information("vote")
    assert [row["bits"] for row in bits] == pytest.approx(shown["bits"].tolist())
    assert main([*command, "--limit", "24", "--json"]) == 1
    told = capsys.readouterr()
    assert "class ' red' has 6 of 24 rows" in told.err
    assert json.loads(told.out)["rows"]


@pytest.mark.nightly
def test_a_model_that_cannot_be_read_stops_no_experiment(tmp_path, monkeypatch):
    """The others are measured, estimated and reported, and its failure is named."""
    for name, rows in (("MANY", 200), ("SOME", 16), ("FEW", 16), ("QUESTIONS", 2), ("PROMPTS", 4)):
        monkeypatch.setattr(experiment, name, rows)
    monkeypatch.setattr(experiment, "ESTIMATORS", {"vote": 4})
    monkeypatch.setattr(experiment.zoo, "TASKS", (*experiment.INFORMED, "synthetic/recall"))
    monkeypatch.setattr(experiment.zoo, "NAMES", (*experiment.zoo.NAMES, "zoo/d9"))
    found = experiment.run_zoo(tmp_path / "some", ["zoo/d1", "zoo/d9"], workers=1)
    assert set(found.metrics["model"]) == {"zoo/d1"}
    assert any(told.startswith("zoo/d9: ") for told in found.failures)
    mixture = experiment.run_zoo(tmp_path / "moe", ["zoo/moe"], workers=1)  # whose neurons are others at each token
    assert mixture.failures == ()
    assert set(mixture.metrics["unit"]) == {"sublayer"}


def test_information_goes_by_the_names_that_a_study_has(study):
    """A study whose models go by other names, as those over seeds do, shows what was kept under them."""
    first = study.information(models=["zoo/d1"], tasks=TASKS[:1], **QUICK)
    cells = tuple(c | {"settings": c["settings"] | {"model": f"my {c['settings']['model']}"}} for c in study.cells)
    other = replace(study, cells=cells, metrics=study.metrics.assign(model="my " + study.metrics["model"]))
    again = other.information(models=["my zoo/d1"], tasks=TASKS[:1], **QUICK)
    assert set(again["model"]) == {"my zoo/d1"}
    pd.testing.assert_frame_equal(again.drop(columns="model"), first.drop(columns="model"))


def test_a_misspelled_estimator_is_said_before_anything_is_computed(study, monkeypatch):
    """One wrong name among right ones costs no hours of the others."""
    monkeypatch.setattr("layerdiv_tl.studies.information.information", lambda *a, **k: pytest.fail("it was computed"))
    with pytest.raises(ld.InputError, match="'gausian'.*'gaussian'"):
        study.information(["gaussian", "gausian"], seed=77)


def test_seeds_are_of_a_list_of_names():
    """What is no list of names is refused; what is no name of the zoo is left out."""
    for wrong in (5, ["zoo/d1", ["zoo/d2"]], ["zoo/d1", None]):
        with pytest.raises(ld.InputError, match="names="):
            ld.zoo.seeds(wrong)
    assert ld.zoo.seeds(["zoo/d1", "gpt2"]) == {"zoo/d1": ("d1", 0)}
