"""The report: what it says is what the frames say; it stands alone, whatever names and gaps a study has."""

from __future__ import annotations

import html
import re

import markupsafe
import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.cli import main
from layerdiv_tl.studies.runner import run_study
from layerdiv_tl.views import style
from layerdiv_tl.views.demo import reader_or_counterweight
from layerdiv_tl.views.findings import _falls, study_findings
from layerdiv_tl.views.html import Block
from layerdiv_tl.views.study_page import command_of, study_page
from layerdiv_tl.views.tables import claims_table, quantity_table
from tests.conftest import llama
from tests.studies.test_study import rows, words  # noqa: F401  (words is a fixture)

pytestmark = pytest.mark.full  # studies of several models

METHODS = "Methods and sources"
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def study(tmp_path_factory, words):  # noqa: F811
    """Three tiny models on three tasks at two units."""
    models = {f"m{i}": ld.load_model(llama(seed=i, num_hidden_layers=2 + i), tokenizer=words) for i in range(3)}
    tasks = []
    for i in range(3):
        frame = pd.DataFrame({"text": rows(24, seed=i).prompts, "label": rows(24, seed=i).labels})
        frame["text"] = frame["text"].str.replace(" {answer}", "")
        tasks.append(ld.Task.from_frame(frame, template="{text} {answer}", options=["yes", "no"], name=f"t{i}"))
    return run_study(models, tasks, units=("sublayer", "head"), out=tmp_path_factory.mktemp("study"))


@pytest.mark.nightly
def test_single_tokens_and_sequences_have_one_report(words, tmp_path):  # noqa: F811
    """Log-likelihoods have a component more, the normalizer; both kinds of task stand in each table."""
    model = ld.load_model(llama(seed=0), tokenizer=words)
    several = ld.Task.from_frame(
        pd.DataFrame({"text": rows(24).prompts, "label": rows(24).labels}),
        template="{text} {answer}",
        options=["yes yes", "no"],
        name="several",
    )
    mixed = run_study({"m": model}, [several, rows(24)])
    assert not mixed.failures
    assert mixed.summary().set_index("task")["accuracy_token"].notna().tolist() == [True, False]
    shares = mixed.shares()
    assert (shares["tasks"] == 2).all()
    assert "constant" in set(shares["module"])
    page = mixed.report(tmp_path / "mixed.html").read_text()
    assert "several" in page
    assert "constant" in page


@pytest.mark.nightly
def test_options_of_each_prompt_have_a_report(words, tmp_path):  # noqa: F811
    """Beside a task whose prompts share theirs."""
    task = rows(6)
    own = ld.Task("own", task.prompts, ((" yes", " no"), (" no", " yes yes")) * 3, task.labels, task.texts, "", "", "")
    study = run_study({"m": ld.load_model(llama(seed=0), tokenizer=words)}, [own, rows(24)])
    assert not study.failures
    page = html.unescape(study.report(tmp_path / "own.html").read_text())
    assert "2 of each prompt's own" in page


def test_a_menu_stands_under_the_heading_of_the_figure_that_it_changes():
    """Below an opening, as in the demo, a model's figure with a menu of tasks is one of several."""
    study = run_study("zoo/d2", ["synthetic/recall", "synthetic/k_hop"], limit=24)
    page = study_page(study, opening=Block("")).html()
    figures = page[page.index("<h2>Figures</h2>") : page.index("<h2>All numbers</h2>")]
    assert figures.count("class=chart") > figures.count("<h3>") > 1
    for own in figures.split("<h3>")[1:]:
        assert own.count("<select") == (own.count("class=chart") > 1)


def numbers(text):
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text.replace("−", "-"))]


def sentences(study):
    return [finding.text for finding in study_findings(study)]


def test_a_clear_fall_of_accuracy_is_found():
    """Wilson's intervals decide: of 44 rows, 82 % and 52 % are apart, 82 % and 70 % are not."""
    curve = pd.DataFrame({"model": "m", "task": "t", "component": ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"]})
    summary = pd.DataFrame({"task": ["t"], "rows": [44]})
    for fallen in (0.52, 0.7):
        told = _falls(curve.assign(accuracy=[0.5, 0.82, 0.6, fallen, 0.84]), summary)
        assert told.startswith(" On t it rises to 82 % after L0.attn, falls to 52 % before L1.mlp") == (fallen < 0.6)
        assert bool(told) == (fallen < 0.6)


@pytest.mark.nightly
def test_sentences_hold_the_frames_numbers(study):
    """Each figure in a sentence, computed a second time."""
    said = sentences(study)
    summary, totals = study.summary(), study.totals().query("unit == 'sublayer'")
    accuracy, chance = numbers(said[0])[:2]
    assert accuracy == pytest.approx(100 * summary["accuracy"].mean(), abs=0.6)
    assert chance == 50
    curves = study.curves().groupby(["model", "task"])["accuracy"]
    half = np.mean([curve.to_numpy()[(len(curve) - 1) // 2] for _, curve in curves])
    late = next(numbers(s) for s in said if "half of the layers" in s)
    assert late[:3] == pytest.approx([100 * x for x in (half, *summary[["chance", "accuracy"]].mean())], abs=0.6)
    shares = study.shares().query("term == 'diversity' and gauge == 'centered'").groupby("module")["share"].mean()
    most = f"{style.MODULE_NAME[shares.idxmax()]} components"
    assert numbers(next(s for s in said if most in s))[0] == pytest.approx(100 * shares.max(), abs=0.6)
    by = totals.set_index(["loss", "term", "model", "task"])["mean"].sort_index()
    off = (by["paper", "loss"] - by["paper", "zero_bias"]).abs() * 100
    median, largest = [n for s in said if "Eq. 14" in s for n in numbers(s)][3:5]
    assert (median, largest) == (pytest.approx(off.median(), rel=0.06), pytest.approx(off.max(), rel=0.06))
    shift = 1 - by["squared", "diversity_centered"] / by["squared", "diversity"]
    assert numbers(next(s for s in said if "shift" in s))[0] == pytest.approx(100 * shift.median(), abs=0.6)
    nats = numbers(next(s for s in said if "nats" in s))[::2]
    assert nats[0] == pytest.approx(by["cross_entropy", "loss"].mean(), rel=0.05)
    assert nats[1] == pytest.approx(np.log(2), rel=0.01)


def test_one_table_has_all_units_and_baselines(study):
    """Rows are models at units, each with its own number; below them what they are compared with."""
    table = quantity_table(study, ("sublayer", "head"), "diversity centered").set_index("model")
    for unit in ("sublayer", "head"):
        expected = study.table(unit)["diversity centered"].loc["m2", "t1"]
        assert numbers(table.loc[f"m2, unit {unit}", "t1"])[0] == pytest.approx(expected, rel=1e-3)
    accuracy = quantity_table(study, ("sublayer",), "accuracy").set_index("model")
    assert accuracy.loc["guessing", "t0"] == "50"
    assert accuracy.index[-1] == "bag of words"


def test_components_are_those_of_decompose(study):
    """The wide frames of a study are by_component and by_module of its stored contributions."""
    for unit in ("sublayer", "head"):
        shard = study.contributions("m0", "t0", unit)
        d = ld.decompose(shard, shard.labels)
        mine = study.components(unit).query("model == 'm0' and task == 't0'")
        theirs = d.by_component(full=True)
        assert mine["component"].tolist() == theirs["component"].tolist()
        assert set(mine) - {"model", "task"} <= set(theirs)
        for term in ("bias", "diversity_centered", "net", "accuracy"):
            np.testing.assert_allclose(mine[term], theirs[term], rtol=1e-6)
        modules = study.modules(unit).query("model == 'm0' and task == 't0'").set_index("module")
        np.testing.assert_allclose(modules["bias"], d.by_module().set_index("module")["bias"][modules.index], rtol=1e-6)
    nats = study.components(loss="cross_entropy").query("model == 'm0' and task == 't0'")
    shard = study.contributions("m0", "t0")
    expected = ld.decompose(shard, shard.labels, loss="cross_entropy").by_component(full=True)["bias"]
    np.testing.assert_allclose(nats["bias"], expected, rtol=1e-6)
    with pytest.raises(ld.InputError, match="loss='nothing'"):
        study.components(loss="nothing")
    with pytest.raises(ld.InputError, match="unit='neuron'"):
        study.summary("neuron")


def test_answers_and_baselines(study, words):  # noqa: F811
    """Shares of answers add up to one and are the model's; guessing is 1/K."""
    for row in study.summary().to_dict("records"):
        logits = study.contributions(row["model"], row["task"]).model_logits
        assert row["answers"][" yes"] == pytest.approx((logits.argmax(1) == 0).mean())
        assert sum(row["answers"].values()) == pytest.approx(1)
        assert row["chance"] == 0.5
        assert row["bag_of_words_low"] <= row["bag_of_words"] <= row["bag_of_words_high"]
    few = run_study({"m": ld.load_model(llama(), tokenizer=words)}, rows(6))
    assert np.isnan(few.summary()["bag_of_words"]).all()
    assert "bag of words" in sentences(study)[0]
    assert "bag of words" not in sentences(few)[0]
    part = ld.Study(study.metrics.query("model != 'm1'"), study.cells, (), study.folders)
    assert len(part.summary()) == 6  # a cell without metrics has no row


def test_a_reason_is_given_only_where_it_holds(study):
    """MSE that is far from the uniform prediction's is not called nearly uniform."""
    assert "nearly uniform" not in " ".join(sentences(far(study, 0.05)))
    assert "nearly uniform" in " ".join(sentences(far(study, 0.249)))


def far(study, mse):
    at = (study.metrics["loss"] == "paper") & (study.metrics["term"] == "loss")
    return ld.Study(study.metrics.assign(mean=study.metrics["mean"].mask(at, mse)), study.cells, (), study.folders)


@pytest.mark.nightly
def test_the_report_is_one_page(study, tmp_path, capsys):
    """From Python and from the shell; every section, all cells' components, no other host."""
    page = study.report(tmp_path / "report.html").read_text(encoding="utf-8")
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings == ["What came out", "Figures", "All numbers", "Components", METHODS]  # it tests no claim
    assert "cannot be tested here" in page[page.index(f"{METHODS}</h2>") :]
    first = page[page.index("What came out</h2>") : page.index("Figures</h2>")]
    assert first.count("class=chart") == 1
    assert first[: first.index("<details")].count("<li>") == 5
    assert page.count("class=chart") == 18 + 6 + 1
    assert page.count("<option>") == 18
    links = re.findall('href="#(.*?)"', page)
    assert len(links) >= 12
    assert all(f'id="{name}"' in page for name in links)
    assert "Left out" not in page
    assert "&lt;/" not in page[page.index("What came out</h2>") :]  # no end of an element is shown as text
    own = page[page.index("</script>") :]
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*['\"]?https?:", own)
    assert main(["report", study.folders[0], "-o", str(tmp_path / "again.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "again.html")
    assert (tmp_path / "again.html").stat().st_size == pytest.approx(len(page.encode()), rel=0.01)
    with pytest.raises(ld.InputError, match="cannot be written"):
        study.report(tmp_path / "report.html" / "below.html")
    assert main(["report", str(tmp_path / "nothing")]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.nightly
def test_what_a_study_lacks_is_said(study, tmp_path):
    """Without contributions, of one model on one task: a page that names what is left out."""
    saved = ld.Study.load(study.save(tmp_path / "saved"))
    assert "saved without its contributions" in study_page(saved).html()
    cells = [study.cells[0] | {"folder": str(tmp_path)}, *study.cells[1:]]  # one without, the others with
    page = study_page(ld.Study(study.metrics, tuple(cells), (), study.folders)).html()
    assert "1 cell left out: this study was saved without its contributions" in page
    assert page.count("<option>") == 17
    one = ld.Study(
        study.metrics.query("model == 'm0' and task == 't0'"),
        tuple(c for c in study.cells if c["settings"]["model"] == "m0" and c["settings"]["task"] == "t0"),
        ("m9: could not be loaded",),
        study.folders,
    )
    page = study_page(one).html()
    assert "m9: could not be loaded" in page
    assert "claims" not in page[page.index("What came out") :]  # one model can show nothing about them
    assert "verdict" not in page
    assert set(claims_table(one.claims(n_resamples=20))["verdict"]) == {"not tested"}


@pytest.mark.nightly
def test_names_stay_text(study):
    """A model called like HTML."""
    metrics = study.metrics.replace({"model": {"m0": HOSTILE}, "task": {"t0": HOSTILE}})
    cells = []
    for cell in study.cells:
        names = {"m0": HOSTILE, "t0": HOSTILE}
        settings = cell["settings"]
        settings = settings | {name: names.get(settings[name], settings[name]) for name in ("model", "task")}
        cells.append(cell | {"settings": settings, "source": HOSTILE, "license": HOSTILE})
    page = study_page(ld.Study(metrics, tuple(cells), (HOSTILE,), (HOSTILE,)), HOSTILE).html()
    assert "<img src=x" not in page
    assert page.count("</script>") == page.count("<script")
    # plotly reads HTML in titles and hovers: there, too, it must have been escaped before it became JSON.
    drawn = "".join(re.findall(r"<script type='application/json'>(.*?)</script>", page, flags=re.S))
    assert drawn.count("img src=x") > 18
    assert "\\u003cimg" not in drawn


@pytest.mark.nightly
def test_the_command_measures_the_same(study, tmp_path, capsys):
    """What the page prints finds every number done already; models or tasks in memory have no command."""
    import shlex

    llama(vocab_size=300).save_pretrained(tmp_path / "tiny")
    bytes_tokenizer().save_pretrained(tmp_path / "tiny")
    arguments = ["--task", "sample/sentiment", "--limit", "12", "--chat", "--multi-token", "--unit", "head"]
    arguments += ["--dtype", "bfloat16", "--batch-tokens", "512"]
    assert command_of(study) is None
    assert main(["run", "--model", str(tmp_path / "tiny"), *arguments, "--out", str(tmp_path / "study")]) == 0
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("*.*")}
    command = shlex.split(command_of(ld.Study.load(tmp_path / "study")))
    assert command[0] == "layerdiv"
    assert main([*command[1:-1], str(tmp_path / "study")]) == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("*.*")} == before
    mine = ld.task("sample/sentiment", limit=12, template="{text} {answer}")
    assert command_of(run_study(tmp_path / "tiny", mine, multi_token=True)) is None
    rows = pd.DataFrame({"text": mine.texts, "label": mine.labels})
    data = rows.rename(columns={"text": "sentence"})
    assert command_of(run_study(tmp_path / "tiny", "sst2", data=data, multi_token=True)) is None


def bytes_tokenizer():
    """A tokenizer that takes any text, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return made


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_the_report_in_a_browser(study, tmp_path, browser, width, scheme):
    """Offline: no request, no complaint; every figure is drawn, in the reader's colors; nothing is wider than it;
    axe-core has no objection; the contents follow, keys open what a finding links to and change the table.
    """
    page = study.report(tmp_path / "report.html")
    with browser.open(page, width, scheme) as opened:
        show = "document.querySelectorAll('.ld-panel').forEach((panel) => { panel.hidden = %s; })"
        assert opened.page.evaluate("document.documentElement.scrollHeight") < 12_000
        here = opened.page.locator("nav a[aria-current=true]")
        assert here.inner_text() == "What came out"
        opened.page.locator("li a").first.press("Enter")
        assert opened.page.url.endswith("#table")
        table = opened.page.locator("section", has=opened.page.locator("h2", has_text="All numbers"))
        table.locator("button", has_text="entropy").last.press("Enter")
        assert table.locator("figcaption:visible").inner_text().startswith("Entropy H(p)")
        opened.page.locator("nav a", has_text="All numbers").press("Enter")
        opened.page.wait_for_function("document.querySelector('nav a[aria-current=true]').text === 'All numbers'")
        opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        opened.page.evaluate(show % "false")
        opened.scroll()
        opened.page.wait_for_function("[...document.querySelectorAll('.chart')].every((c) => c.data)", timeout=60_000)
        grounds = opened.page.evaluate(
            "[...document.querySelectorAll('.chart')].map((c) => c._fullLayout.paper_bgcolor)"
        )
        assert set(grounds) == {(style.DARK if scheme == "dark" else style.LIGHT).paper}
        assert opened.wider_than_window() <= 0
        assert not opened.requests
        assert not [c for c in opened.complaints if "GPU" not in c and "WebGL" not in c]
    with browser.open(page, width, scheme) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert not opened.violations()  # last: without axe-core, this skips


def test_the_demos_finding_holds_the_frames_numbers():
    """The first of the list and what it writes, by plain arrays; the explorer shows a row that it writes against."""
    model, task = ld.load_model("zoo/d4"), ld.task("synthetic/recall", limit=64)
    block, sentences, explorer = reader_or_counterweight(model, task, "explorer.html")
    rows, said = task.resolve(model), " ".join(sentences)
    c = ld.contributions(model, rows.prompts[:32], rows.option_ids)
    u = c.values - c.values.mean(2, keepdims=True)
    gold = np.eye(4)[rows.labels[:32]]
    difference = (u * gold[:, None]).sum(2).mean(0) * 4 / 3
    first = int(difference.argmax())
    alone = (u[:, first].argmax(1) == rows.labels[:32]).mean()
    assert re.match(rf"On 32 rows of {task.name}, such as '.*', {c.components[first].label} is first", said)
    found = re.search(r"others' mean: ([\d.]+) logits \(95 % interval (.*) to (.*?)\) on average", said)
    assert float(found[1]) == round(difference[first], 1)
    assert f"Alone it is right on {style.percent(alone)} (" in said
    for how in ("mean", "zero"):
        e = ld.effects(model, rows.take(range(32, 64)), components=[c.components[first]], ablation=how)
        cost = re.search(rf"{how} ablation,.*? by (.*?\))", said, re.IGNORECASE)[1]
        ends = -e.frame()[["total_loss", "total_loss_high", "total_loss_low"]].iloc[0]
        assert cost == style.estimate(*ends, unit="nats")
    assert all(str(markupsafe.escape(sentence)) in block.html for sentence in sentences)
    now, (text,) = explorer.selection, explorer.texts
    assert now.component == c.components[first].label
    ids = [model.tokenizer(prompt)["input_ids"] for prompt in rows.prompts[32:]]
    assert text.sublayers.token_ids.tolist() in ids
