"""Depth studies: what is kept, gone on with, claimed and shown is what the analyses give."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.cli import main
from layerdiv_tl.depth.layer_maps import LayerMaps
from layerdiv_tl.depth.residual_norms import ResidualNorms
from layerdiv_tl.depth.skipping import Skip
from layerdiv_tl.studies.depth_study import Analysis, DepthStudy
from layerdiv_tl.views.findings import depth_findings
from tests.conftest import llama
from tests.studies.test_study import words  # noqa: F401  (words is a fixture)

TEXTS = ["yes no hot cold big", "no no hot big yes cold", "cold hot big yes no no", "big big hot yes"]
QUESTIONS = pd.DataFrame({"text": TEXTS, "answer": [" yes", " no", " no", " yes"], "hops": [1, 1, 2, 2]})
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def models(words):  # noqa: F811
    return {name: ld.load_model(llama(seed=i), tokenizer=words) for i, name in enumerate(("one", HOSTILE))}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("depth")


@pytest.fixture(scope="module")
def study(models, place):
    return ld.run_depth(models, texts=TEXTS, out=place, ask=QUESTIONS, drop=1)


@pytest.mark.full
def test_every_analysis_is_that_of_its_own_function(study, models):
    """The standard set gives what calling the functions gives."""
    texts = [list(ids) for ids in models["one"].tokenizer(TEXTS, add_special_tokens=False)["input_ids"]]
    own = {a.name: a.result for a in study.analyses if a.model == "one"}
    again = {
        "residual_norms": ld.depth.residual_norms(models["one"], texts),
        "skip": ld.depth.skip(models["one"], texts),
        "skip_future": ld.depth.skip(models["one"], texts, mode="future"),
        "logit_lens": ld.depth.logit_lens(models["one"], texts),
        "agreement": ld.depth.agreement(models["one"], texts),
        "drop_plan": ld.depth.drop_plan(models["one"], texts, 1),
    }
    assert set(own) == {*again, "depth_score"}
    for name, result in again.items():
        pd.testing.assert_frame_equal(own[name].frame(), result.frame(), check_exact=False, rtol=1e-5, atol=1e-6)
    maps = [a for a in study.analyses if a.name == "map_layers"]
    assert [(a.model, a.result.source, a.result.target) for a in maps] == [(HOSTILE, "one", HOSTILE)]
    direct = ld.depth.map_layers(models["one"], models[HOSTILE], TEXTS)
    np.testing.assert_allclose(maps[0].result.error, direct.error, rtol=1e-4)


@pytest.mark.full
def test_what_is_finished_is_not_computed_again(study, models, place, monkeypatch):
    """Started again nothing runs; what was lost or half written is made again, alone."""
    runs = []

    def counted(name):
        real = getattr(ld.depth, name)
        return lambda *args, **options: (runs.append(name), real(*args, **options))[1]

    for name in ("residual_norms", "skip", "logit_lens", "agreement", "drop_plan", "depth_score", "map_layers"):
        monkeypatch.setattr(ld.depth, name, counted(name))
    again = ld.run_depth(models, texts=TEXTS, out=place, ask=QUESTIONS, drop=1)
    assert runs == []
    pd.testing.assert_frame_equal(again.frame(), study.frame())
    next(place.glob("depth/one/logit_lens-*.json")).unlink()
    next(place.glob("depth/one/residual_norms-*.safetensors")).unlink()
    again = ld.run_depth(models, texts=TEXTS, out=place, ask=QUESTIONS, drop=1)
    assert runs == ["residual_norms", "logit_lens"]
    pd.testing.assert_frame_equal(again.frame(), study.frame())
    ld.run_depth(models, texts=TEXTS, out=place, ask=QUESTIONS, drop=2)
    assert runs[2:] == ["drop_plan", "drop_plan"]  # only what depends on it
    assert {len(p.dropped) for _, p in DepthStudy.load(place).of(ld.depth.DropPlan)} == {2}  # the last one counts


@pytest.mark.full
@pytest.mark.parametrize(("name", "asked"), [("zoo/d1", "k_hop"), ("words", None)])
def test_a_model_is_asked_what_its_tokenizer_knows(name, asked, models):
    """By default in words it knows; the answers of questions that were asked for are not scored as unknown."""
    model = models["one"] if name == "words" else ld.load_model(name)
    with pytest.raises(ld.InputError, match="answer 0.*<unknown>|answer 0.*UNK"):
        ld.run_depth(model, texts=TEXTS, analyses="depth_score", ask="sample/hops", questions=2)
    found = ld.run_depth(model, texts=TEXTS, questions=1)
    assert not found.failures
    scores = [a.result for a in found.analyses if a.name == "depth_score"]
    assert len(scores) == (asked is not None)
    assert not asked or set(scores[0].groups) == {1, 2, 3, 4}


@pytest.mark.full
def test_loading_and_saving_give_the_same(study, tmp_path):
    study.save(tmp_path / "copy")
    again = DepthStudy.load(tmp_path / "copy")
    pd.testing.assert_frame_equal(again.frame(), study.frame())
    pd.testing.assert_frame_equal(again.claims(), study.claims())
    broken = next((tmp_path / "copy").glob("depth/one/logit_lens-*.safetensors"))
    broken.write_bytes(b"nothing")
    assert len(DepthStudy.load(tmp_path / "copy").failures) == 1


@pytest.mark.nightly
def test_a_fresh_process_reads_every_analysis(study, tmp_path):
    """Who only loads has imported nothing else."""
    study.save(tmp_path)
    code = "import layerdiv_tl as ld; s = ld.DepthStudy.load('.'); print(len(s.analyses), s.failures)"
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[0] == f"{len(study.analyses)} ()"


@pytest.mark.full
def test_the_tidy_frame_holds_every_analysis(study):
    """A number of it is a number of the analysis, with its interval."""
    frame = study.frame()
    assert set(frame["analysis"]) == {a.name for a in study.analyses}
    sizes = study.of(ResidualNorms)[0][1].frame().set_index("component")
    at = frame.query(
        "model == 'one' and analysis == 'residual_norms' and component == 'L1.mlp' and quantity == 'relative_norm'"
    )
    assert at[["value", "low", "high"]].values[0].tolist() == pytest.approx(
        sizes.loc["L1.mlp", ["relative_norm", "relative_norm_low", "relative_norm_high"]].tolist(), nan_ok=True
    )
    names = [name for name in frame if name not in ("value", "low", "high")]
    assert not frame.duplicated(names).any(), "each number has a name of its own: of maps, the target"
    maps = frame[frame["analysis"] == "map_layers"]
    assert set(maps["quantity"]) == {"error"}
    assert maps["target"].notna().all()


def made(*results, model="m"):
    """A study of results that were made by hand."""
    about = {"settings": {"weights": "0" * 64, "dtype": "float32"}, "versions": {"layerdiv_tl": "0"}}
    about |= {"seconds": 0.0, "finished": "2000-01-01T00:00"}
    names = {ResidualNorms: "residual_norms", Skip: "skip_future", LayerMaps: "map_layers"}
    return tuple(Analysis(model, names[type(r)], "texts", r, about) for r in results)


def sizes_of(levels, texts=12, seed=0):
    """`Sizes` of layers that write so much, give or take a tenth, in every text."""
    rng = np.random.default_rng(seed)
    names = tuple(ld.Component("layer", i) for i in range(len(levels)))
    relative = np.asarray(levels) * (1 + 0.1 * rng.normal(size=(3 * texts, len(levels))))
    return ResidualNorms(names, relative, np.zeros_like(relative), relative, np.repeat(np.arange(texts), 3), "m")


def skip_of(effect, output, texts=12, seed=0):
    """A `Skip` with this effect of s on l, and on the answers."""
    rng = np.random.default_rng(seed)
    count = len(output)
    names = tuple(ld.Component("layer", i) for i in range(count))
    later = np.full((texts, count, count), np.nan)
    for s in range(count):
        for layer in range(s + 1, count):
            later[:, s, layer] = effect(s, layer) * (1 + 0.05 * rng.normal(size=texts))
    answers = np.asarray(output) * (1 + 0.05 * rng.normal(size=(2 * texts, count)))
    text = np.repeat(np.arange(texts), 2)
    return Skip(names, names, later, later, answers, answers, text, np.tile([0, 1], texts), "layer", "future", "m")


def claim(analyses, number):
    frame = DepthStudy(tuple(analyses), (), ()).claims()
    return frame[frame["number"] == number].set_index("variant")


@pytest.mark.parametrize(
    ("levels", "verdict", "ratio"),
    [
        ([1, 1, 0.5, 0.5], "confirmed", 0.5),
        ([0.5, 0.5, 1, 1], "refuted", 2),
        ([1, 2, 0.5], "confirmed", 1 / 3),  # of an odd number the middle layer is earlier
        ([1, 1, 1, 1], "within noise", 1),
    ],
)
def test_claim_9_is_the_ratio_of_the_halves(levels, verdict, ratio):
    row = claim(made(sizes_of(levels)), 9).loc["mean of layers"]
    assert (row["verdict"], row["interval_over"]) == (verdict, "texts")
    assert row["estimate"] == pytest.approx(ratio, rel=0.06)


def test_claim_9_over_models_is_of_logarithms():
    """Eight models have an interval over models, that of logarithms, so never below 0; three speak of themselves."""
    from layerdiv_tl.ensemble.intervals import jackknife, leave_one_out

    results = [sizes_of([1, 1, r, r], seed=i) for i, r in enumerate((0.4, 0.5, 0.7, 0.3, 0.6, 0.5, 0.4, 0.6))]
    analyses = [a for i, r in enumerate(results) for a in made(r, model=f"m{i}")]
    row = claim(analyses, 9).loc["mean of layers"]
    logs = np.log([r.relative_norm[:, 2:].mean() / r.relative_norm[:, :2].mean() for r in results])
    low, high = jackknife(logs.mean(), leave_one_out(logs))
    assert (row["interval_over"], row["n"]) == ("models", 8)
    assert row[["estimate", "low", "high"]].tolist() == pytest.approx(np.exp([logs.mean(), low, high]))
    few = claim(analyses[:3], 9).loc["mean of layers"]
    assert (few["interval_over"], few["n"]) == ("texts", 12)


@pytest.mark.parametrize("texts", [2, 7])
def test_claims_9_and_10_are_not_decided_from_few_texts(texts):
    """However clear they look; eight is the least."""
    nine = claim(made(sizes_of([1, 1, 0.1, 0.1], texts=texts)), 9)
    ten = claim(made(skip_of(lambda s, later: 2 if s < 2 else 1, [2, 2, 1, 1], texts=texts)), 10)
    assert set(nine["verdict"]) == set(ten["verdict"]) == {"not tested"}
    assert nine["rationale"].str.contains("an interval needs 8 texts").all()
    assert nine["estimate"].iloc[0] == pytest.approx(0.1, rel=0.2)


def test_claim_12_leaves_out_models_with_all_their_pairs():
    """Eight models in 28 pairs are eight that count, not 28."""
    names = tuple(ld.Component("layer", i) for i in range(5))
    rng, maps = np.random.default_rng(0), []
    for a in range(8):
        for b in range(a):
            error = np.abs(np.arange(5)[:, None] - np.arange(5)[None]) + 1.5 * rng.random((8, 5, 5))
            maps += made(LayerMaps(names, names, error, error, np.full(8, 5), 40, 0.0, f"m{a}", f"m{b}"))
    row = claim(maps, 12).iloc[0]
    assert (row["interval_over"], row["n"]) == ("models", 8)
    assert "28 pairs" in row["rationale"]


def test_claim_10_tells_distance_from_depth():
    """Where an effect falls with distance alone, late layers only seem to disturb more; with depth, less."""
    near = claim(made(skip_of(lambda s, later: 1 / (later - s), [1, 1, 1, 1, 0.3, 0.3, 0.3, 0.3])), 10)
    assert near["verdict"].to_dict() == {
        "answers": "confirmed",
        "later layers": "refuted",
        "later layers, equally far": "within noise",
    }
    deep = claim(made(skip_of(lambda s, later: (2 if s < 4 else 1) / (later - s), [1] * 8)), 10)
    assert deep.loc["later layers, equally far", "verdict"] == "confirmed"
    assert deep.loc["later layers, equally far", "estimate"] == pytest.approx(0.5, rel=0.05)
    assert deep.loc["answers", "verdict"] == "within noise"


def test_claim_10_by_loops():
    """The mean over distances of the means over pairs, a second time."""
    skip = skip_of(lambda s, later: (1 + s) / later, [1] * 6)
    mean, count = skip.downstream_change.mean(0), 6
    halves = []
    for half in (range(3, 6), range(3)):
        levels = []
        for d in range(1, 3):
            levels.append(np.mean([mean[s, s + d] for s in half if s + d < count]))
        halves.append(np.mean(levels))
    row = claim(made(skip), 10).loc["later layers, equally far"]
    assert row["estimate"] == pytest.approx(halves[0] / halves[1], rel=1e-9)


def test_claim_10_leaves_out_the_last_layer():
    """What it wrote at earlier tokens nothing reads: its zero says nothing about depth, and alone decides nothing."""
    row = claim(made(skip_of(lambda s, later: 1, [1, 1, 1, 0])), 10).loc["answers"]
    assert row["estimate"] == pytest.approx(1, rel=0.05)
    assert claim(made(skip_of(lambda s, later: 1, [1, 0])), 10).loc["answers", "verdict"] == "not tested"


def test_two_models_that_read_the_same_texts_are_not_two_samples():
    """The same model twice has the interval it has alone; n counts texts, which the interval is over."""
    sizes = sizes_of([1, 1, 0.8, 0.8])
    alone = claim(made(sizes), 9)[["estimate", "low", "high", "n"]]
    twice = claim((*made(sizes, model="a"), *made(sizes, model="b")), 9)[["estimate", "low", "high", "n"]]
    pd.testing.assert_frame_equal(alone, twice)
    assert set(alone["n"]) == {12}


def test_claims_take_what_was_finished_last():
    """Of two runs on other texts the later one, whatever the texts are called."""
    (late,) = made(sizes_of([1, 1, 0.5, 0.5]))
    (early,) = made(sizes_of([0.5, 0.5, 1, 1]))
    early = replace(early, dataset="z", about=early.about | {"finished": "1999-01-01"})
    for order in ((late, early), (early, late)):
        assert claim(order, 9).loc["mean of layers", "verdict"] == "confirmed"


def test_claim_12_names_both_models_and_keeps_every_pair():
    names = tuple(ld.Component("layer", i) for i in range(4))
    error = np.random.default_rng(0).random((8, 4, 4))
    pairs = [LayerMaps(names, names, error, error, np.full(8, 5), 40, 0.0, s, "t") for s in ("a", "b")]
    row = claim([a for maps in pairs for a in made(maps, model="t")], 12).iloc[0]
    assert "a to t and b to t" in row["rationale"]


@pytest.mark.full
@pytest.mark.filterwarnings("error", "ignore:the tokenizer .* does not know")
def test_a_model_of_one_layer_has_no_halves(words, tmp_path):  # noqa: F811
    """Everything else is there, and no claim about halves has a number."""
    study = ld.run_depth(ld.load_model(llama(num_hidden_layers=1), tokenizer=words), texts=TEXTS, questions=2)
    assert set(study.claims()["verdict"]) == {"not tested"}
    assert not study.failures
    study.report(tmp_path / "r.html")


@pytest.mark.full
def test_one_text_has_a_page_and_no_intervals(models, tmp_path):
    study = ld.run_depth({"one": models["one"]}, texts=TEXTS[:1], questions=0)
    assert [f.split(" of")[0] for f in study.failures] == ["drop_plan"]
    assert not any("nan" in finding.text for finding in depth_findings(study))
    page = study.report(tmp_path / "r.html").read_text()
    assert "No intervals: 1 text" in page.replace("\\u003cbr>", " ")


@pytest.mark.full
def test_maps_are_made_from_the_texts_that_both_models_read(words):  # noqa: F811
    """One text of a token and one beyond the context cost the other analyses nothing, nor the maps."""
    tiny = {n: ld.load_model(llama(seed=i, max_position_embeddings=8), tokenizer=words) for i, n in enumerate("ab")}
    texts = [*TEXTS, "yes", "no big hot " * 9]
    study = ld.run_depth(tiny, texts=texts, questions=0)
    assert not study.failures
    (_, maps), cut = study.of(LayerMaps)[0], [*TEXTS, ("no big hot " * 9)[: 8 * 4]]
    rows = [ids[:8] for ids in words(cut, add_special_tokens=False)["input_ids"]]
    np.testing.assert_allclose(maps.error, ld.depth.map_layers(*tiny.values(), rows).error, rtol=1e-6)


@pytest.mark.full
def test_names_of_one_folder_are_two_models(models, tmp_path):
    """The same weights under a name that makes the same folder are measured under that name too."""
    for name in ("a b", "a/b"):
        ld.run_depth({name: models["one"]}, texts=TEXTS, out=tmp_path, questions=0)
    assert set(DepthStudy.load(tmp_path).models) == {"a b", "a/b"}


def test_an_exported_plan_is_no_analysis(study, tmp_path):
    """Half of one, as another process may be writing it, is none of `load`'s business."""
    study.save(tmp_path)
    (tmp_path / "depth" / "one" / "drop_plan-4-texts.json").write_text('{"drop_at')
    assert DepthStudy.load(tmp_path).failures == ()


def test_a_folder_that_cannot_be_is_refused_before_anything_is_run(models, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ld.InputError, match=r"out=.*file' cannot be made"):
        ld.run_depth({"no": tmp_path / "none", "one": models["one"]}, texts=TEXTS, out=tmp_path / "file")


@pytest.mark.full
def test_results_of_other_rules_are_not_mixed_in(models, tmp_path):
    """What an earlier format wrote is not loaded."""
    one = {"one": models["one"]}
    ld.run_depth(one, texts=TEXTS, out=tmp_path, questions=0, drop=1)
    for file in tmp_path.glob("depth/one/*.json"):
        about = json.loads(file.read_text())
        file.write_text(json.dumps(about | {"format": "layerdiv_tl.depth/1"}))
    with pytest.raises(ld.InputError, match="holds no depth analyses"):
        DepthStudy.load(tmp_path)


@pytest.mark.full
def test_names_may_be_longer_than_file_names(models, tmp_path):
    study = ld.run_depth({300 * "n": models["one"]}, texts=TEXTS, out=tmp_path, questions=0)
    assert (study.models, study.failures) == ((300 * "n",), ())


@pytest.mark.full
def test_texts_may_be_a_column_of_ids(models):
    rows = pd.Series([np.arange(1, 7), np.arange(2, 9), np.arange(3, 8), np.arange(1, 5)])
    assert not ld.run_depth(models, texts=rows, questions=0).failures


def test_claim_12_is_about_the_diagonal():
    names = tuple(ld.Component("layer", i) for i in range(6))
    error = np.abs(np.arange(6)[:, None] - np.arange(6)[None]) + np.random.default_rng(0).random((8, 6, 6)) / 10
    for table, verdict in ((error, "confirmed"), (error[:, ::-1], "refuted")):
        maps = LayerMaps(names, names, table, table, np.full(8, 5), 40, 0.0, "a", "b")
        assert claim(made(maps), 12)["verdict"].tolist() == [verdict]


@pytest.mark.full
def test_without_depth_analyses_the_claims_say_how_to_get_them():
    from tests.replication.test_claims import planted

    frame = planted().claims(n_resamples=20)
    late = frame[frame["number"] >= 9]
    assert late["number"].tolist() == [9, 10, 11, 12]
    assert set(late["verdict"]) == {"not tested"}
    assert late["rationale"].str.contains("layerdiv depth").all()


def test_sentences_hold_the_frames_numbers(study):
    """Each figure in a sentence is one of the analysis it is about."""
    said = [finding.text for finding in depth_findings(study)]
    plan = study.of(ld.depth.DropPlan)[0][1]
    grown = plan.frame().set_index(["plan", "dropped"])["loss_growth"]
    sentence = next(s for s in said if s.startswith("one on texts: without"))
    shown = [float(x) for x in re.findall(r"-?\d+\.\d+", sentence)]
    assert shown[:3] == pytest.approx([grown["plan", 1], grown["block_influence", 1], grown["random", 1]], abs=0.006)
    table = study.of(ld.depth.Agreement)[0][1].correlations().query("effect == 'loss' and kind == 'all'")
    best = table.loc[table["correlation"].idxmax()]
    sentence = next(s for s in said if s.startswith("one on 4 texts: the loss that removing"))
    assert float(re.findall(r"ρ (-?\d+\.\d+)", sentence)[0]) == pytest.approx(best["correlation"], abs=0.006)


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), pytest.param(1600, "light", marks=pytest.mark.nightly)])
def test_the_page_in_a_browser(study, tmp_path, browser, width, scheme):
    """Offline: no request, no complaint, hostile names inert; every figure is drawn, nothing is wider than it."""
    path = study.report(tmp_path / "depth.html")
    assert HOSTILE not in path.read_text()
    with browser.open(path, width, scheme) as opened:
        opened.page.evaluate("document.querySelectorAll('.ld-panel').forEach((panel) => { panel.hidden = false; })")
        opened.scroll()
        opened.page.wait_for_function("[...document.querySelectorAll('.chart')].every((c) => c.data)", timeout=60_000)
        assert opened.wider_than_window() <= 0
        assert not opened.requests
        assert not [c for c in opened.complaints if "GPU" not in c and "WebGL" not in c]
    with browser.open(path, width, scheme) as opened:
        assert not opened.violations()  # last: without axe-core, this skips


@pytest.mark.nightly
def test_the_command_line_writes_all_of_it(tmp_path, models, capsys, words):  # noqa: F811
    """Numbers, frames, plans in LLM-Drop's form, a page; a report of the folder; the same again at once."""
    models["one"].tokenizer.save_pretrained(tmp_path / "model")
    llama().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS))
    out = tmp_path / "out"
    command = ["depth", "--model", str(tmp_path / "model"), "--text", str(tmp_path / "texts.txt"), "--out", str(out)]
    command += ["--drop", "1", "--part", "sublayer", "--score", "block_influence", "--questions", "2"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "9. The later half of the layers contributes less" in told
    folder = out / "depth" / "model"
    lists = json.loads((folder / "drop_plan-4-texts.json").read_text())
    assert len(lists["drop_attn_list"]) + len(lists["drop_mlp_list"]) == 1
    frame = pd.read_csv(folder / "drop_plan-4-texts-components.csv")
    assert frame["drop"].sum() == 1
    assert frame.loc[frame["drop"], "score"].item() == frame["score"].min()
    assert (out / "depth.html").is_file()
    capsys.readouterr()
    assert main(["report", str(out), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "drop plan" in Path(told["page"]).read_text()
    assert any("without 1 of" in finding for finding in told["findings"])
    assert main([*command, "--json"]) == 0

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert {row["number"] for row in told["claims"]} == {9, 10, 11, 12}
    # With a folder that is not there, what is in the others is no answer.
    assert main(["report", str(out), str(tmp_path / "nowhere"), "-o", str(tmp_path / "no.html")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "no.html").exists()


@pytest.mark.parametrize(
    "asked",
    [
        {"analyses": "effect"},
        {"analyses": []},
        {"analyses": "effects", "texts": TEXTS},
        {"analyses": "map_layers", "texts": TEXTS},
        {"analyses": ["depth_score"], "texts": TEXTS, "questions": 0},
        {"analyses": ["depth_score", "map_layers"], "texts": TEXTS, "questions": 0},
    ],
)
def test_analyses_that_cannot_be_made_are_refused(models, asked):
    with pytest.raises(ld.InputError, match="analyses|effects|map_layers|depth_score"):
        ld.run_depth(models["one"], **asked)


def test_an_analysis_alone_needs_what_it_reads():
    """Effects read no texts and drop nothing; of one layer none can go, which is said where a plan is asked for."""
    task = ld.task("synthetic/recall", limit=4)
    done = ld.run_depth("zoo/d1", task, ["a"], analyses="effects", drop=5)
    assert [a.name for a in done.analyses] == ["effects"]
    with pytest.raises(ld.InputError, match="drop_plan"):
        ld.run_depth("zoo/d1", task, analyses="drop_plan")
    with pytest.raises(ld.InputError, match="4 tokens"):
        ld.run_depth("zoo/d1", task, ["a"], analyses="skip")


@pytest.mark.full
def test_some_analyses_alone_have_a_page(models, tmp_path):
    """Without curves by layer the page opens with the first one's own figure, and a plot of all is refused."""
    study = ld.run_depth({"one": models["one"]}, texts=TEXTS, out=tmp_path, analyses="agreement")
    assert [a.name for a in study.analyses] == ["agreement"]
    assert "agreement" in study.report(tmp_path / "d.html").read_text()
    with pytest.raises(ld.InputError, match="curves"):
        study.plot()
    study = ld.run_depth({"one": models["one"]}, texts=TEXTS, out=tmp_path, analyses=["skip"])
    assert len(study.plot().data) == 1


@pytest.mark.nightly
def test_a_report_of_a_study_shows_the_depth_analyses_beside_it(models, tmp_path):
    from layerdiv_tl.studies.runner import run_study

    frame = pd.DataFrame({"text": ["hot big", "cold big"] * 12, "label": [0, 1] * 12})
    task = ld.Task.from_frame(frame, template="{text} {answer}", options=["yes", "no"], name="t")
    one = {"one": models["one"]}
    whole = run_study(one, task, out=tmp_path)
    assert whole.depth is None
    eight = [*TEXTS, *(" ".join(reversed(text.split())) for text in TEXTS)]
    ld.run_depth(one, task, eight, out=tmp_path, questions=0, drop=1)
    whole = ld.Study.load(tmp_path)
    claims = whole.claims(n_resamples=20).set_index("number")
    assert (claims.loc[9, "interval_over"] == "texts").all()
    assert "Depth, model by model" in whole.report(tmp_path / "r.html").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--text", "missing.txt"], "--text missing.txt cannot be read"),
        (["--text", "empty.txt"], "--text empty.txt is empty"),
        (["--text", "short.txt"], "no text has 4 tokens"),
        (["--text", "texts.txt", "--drop", "9"], "--drop 9 must be below 3"),
        (["--task", "nonsense"], "there is no task 'nonsense'"),
    ],
)
def test_wrong_input_is_a_sentence(arguments, sentence, tmp_path, monkeypatch, models, capsys):
    monkeypatch.chdir(tmp_path)
    models["one"].tokenizer.save_pretrained("model")
    llama().save_pretrained("model")
    for name, text in (("empty.txt", "\n\n"), ("short.txt", "yes"), ("texts.txt", "\n\n".join(TEXTS))):
        (tmp_path / name).write_text(text)
    assert main(["depth", "--model", "model", "--out", "out", "--questions", "0", *arguments]) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.full
def test_a_word_is_several_tasks_and_nonsense_is_refused_before_anything_runs(tmp_path, monkeypatch):
    """`zoo` is what the zoo was trained on; what cannot be dropped or asked is said at once."""
    monkeypatch.setattr(ld.depth, "residual_norms", lambda *given, **options: pytest.fail("it ran"))
    with pytest.raises(ld.InputError, match="drop="):
        ld.run_depth("zoo/d1", "zoo", drop=0)
    with pytest.raises(ld.InputError, match="drop=1 must be below 1"):
        ld.run_depth("zoo/d1", "synthetic/recall", drop=1, limit=8, questions=0)
    with pytest.raises(ld.InputError, match="questions="):
        ld.run_depth("zoo/d1", "zoo", questions=-1)
    monkeypatch.setattr("layerdiv_tl.studies.grid.load_model", lambda *given, **options: pytest.fail("it was loaded"))
    with pytest.raises(ld.InputError, match="'nonsense'"):
        ld.run_depth("zoo/d1", "zoo", ask="nonsense")
    monkeypatch.undo()
    study = ld.run_depth("zoo/d1", ["zoo"], out=tmp_path, limit=8, questions=0)
    assert [a.dataset for a in study.analyses if a.name == "agreement"] == sorted(ld.zoo.TASKS)


def test_claim_11_needs_right_answers():
    """How deep the layers lie that wrong answers rest on confirms nothing."""
    names = tuple(ld.Component("layer", i) for i in range(4))
    hops = np.repeat([1.0, 2.0], 8)
    effects = np.random.default_rng(0).random((16, 4))
    for rank, verdict in ((1, "confirmed"), (2, "not tested")):
        ranks, ids = np.full(16, rank), tuple(map(str, range(16)))
        score = ld.depth.DepthScore(
            names, effects + 1, hops, np.full(16, 5), np.ones(16, int), np.full(16, 0.5), ranks,
            (ranks == 1) * 1.0, ids, "hops", "skip", "layer", "m",
        )  # fmt: skip
        about = made(sizes_of([1, 1, 1]))[0].about
        frame = claim((Analysis("m", "depth_score", "texts", score, about),), 11)
        assert frame.loc["all questions", "verdict"] == verdict


@pytest.mark.full
def test_a_model_that_fails_is_named_and_the_others_go_on(models, tmp_path):
    study = ld.run_depth({"no": tmp_path / "none", "one": models["one"]}, texts=TEXTS, questions=0, drop=1)
    assert study.models == ("one",)
    assert study.failures[0].startswith("no: ")
    for nothing in ([], "one text"):
        with pytest.raises(ld.InputError, match="texts"):
            ld.run_depth(models, texts=nothing)
    with pytest.raises(ld.InputError, match="there is no folder"):
        DepthStudy.load(tmp_path / "nowhere")
    with pytest.raises(ld.InputError, match="holds no depth analyses"):
        DepthStudy.load(tmp_path)
