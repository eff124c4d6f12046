"""Models that reuse layers next to models that do not: which is held against which, and by how much they differ."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import layerdiv_tl as ld
from layerdiv_tl.studies.study import Study
from layerdiv_tl.views import style
from layerdiv_tl.views.findings import layer_sharing_findings, study_findings
from layerdiv_tl.views.html import Page
from layerdiv_tl.views.study_page import _layer_sharing, study_page
from layerdiv_tl.views.tables import layer_sharing_table

pytestmark = pytest.mark.full  # studies of several models

TERMS = {("squared", "accuracy"): 100, ("paper", "loss"): 100, ("paper", "bias"): 100, ("paper", "zero_bias"): 100}
TERMS |= {("squared", f"diversity{kind}"): 1 for kind in ("", "_centered", "_logit", "_logit_centered")}
DIVERSITIES = ("diversity", "diversity_centered", "diversity_logit", "diversity_logit_centered")
# Parameters, members, and whether layers run twice; as in the zoo.
D2, D4, D8, SHARED = (94, 5, False), (177, 9, False), (341, 17, False), (177, 17, True)


def made(models, tasks=8, seed=0):
    """A study of drawn totals of these {name: (parameters, members, reuses)}."""
    rows, cells = [], []
    for name, (parameters, members, reuses) in models.items():
        about = {"model": name, "unit": "sublayer"}
        found = {"parameters": parameters, "architecture": "Made", "dtype": "float32", "source": "made"}
        for task in (f"t{i}" for i in range(tasks)):
            rng = np.random.default_rng([seed, *map(ord, name + task)])
            cells.append({"settings": about | {"task": task}, "provenance": found, "folder": "nowhere"})
            for loss, term in TERMS:
                row = {"loss": loss, "table": "totals", "term": term, "mean": rng.uniform(0.1, 1), "members": members}
                rows.append({**about, "task": task, **row})
            if reuses:
                rows.append({**about, "task": task, "table": "components", "repeat": 2})
    columns = ["model", "task", "unit", "loss", "table", "module", "repeat", "partial", "term", "members", "mean"]
    return Study(pd.DataFrame(rows).reindex(columns=columns), tuple(cells), (), ())


def value(study, model, task, loss, term):
    m = study.metrics
    at = (m["model"] == model) & (m["task"] == task) & (m["loss"] == loss) & (m["term"] == term)
    return m.loc[at, "mean"].item()


def test_every_number_is_that_of_the_tasks():
    """Means over tasks, and the geometric mean of ratios with an interval no shorter than that of scipy's t test."""
    study = made({"d4": D4, "shared": SHARED, "d8": D8})
    frame = study.layer_sharing()
    assert frame[["model", "baseline", "matched_on"]].values.tolist() == [
        ["shared", "d4", "same parameters"],
        ["shared", "d8", "same depth"],
    ]
    assert frame[["parameters", "parameters_baseline", "members", "members_baseline"]].values.tolist() == [
        [177, 177, 17, 9],
        [177, 341, 17, 17],
    ]
    names = {("squared", "accuracy"): "accuracy", ("paper", "loss"): "MSE", ("paper", "bias"): "bias"}
    names |= {("squared", term): term for term in DIVERSITIES}
    tasks = [f"t{i}" for i in range(8)]
    for row in frame.to_dict("records"):
        assert (row["interval_over"], row["n"], row["tasks"]) == ("tasks", 8, 8)
        for (loss, term), name in names.items():
            own, plain = ([value(study, row[key], t, loss, term) for t in tasks] for key in ("model", "baseline"))
            assert row[name] == pytest.approx(TERMS[loss, term] * np.mean(own))
            assert row[f"{name}_baseline"] == pytest.approx(TERMS[loss, term] * np.mean(plain))
            if name in DIVERSITIES:
                logs = np.log(np.array(own) / plain)
                ends = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
                assert row[f"{name}_ratio"] == pytest.approx(stats.gmean(np.array(own) / plain))
                assert row[f"{name}_ratio_low"] <= np.exp(ends.low) * (1 + 1e-9) < row[f"{name}_ratio"]
                assert row[f"{name}_ratio_high"] >= np.exp(ends.high) * (1 - 1e-9) > row[f"{name}_ratio"]


def zoo(seeds=3):
    """Three seeds, in an order that puts the wrong partner first."""
    ends = ["" if seed == 0 else f"-seed{seed}" for seed in range(seeds)][::-1]
    kinds = {"d4": D4, "d8": D8, "d8-shared": SHARED}
    return made({f"zoo/{shape}{end}": kind for shape, kind in kinds.items() for end in ends})


def test_partners_are_of_the_same_seed():
    """In the reuse table and in claim 8; of another seed, or of none, where there is no such partner."""
    study = zoo()
    pairs = study.layer_sharing().query("interval_over == 'tasks'")
    assert len(pairs) == 6
    for row in pairs.to_dict("records"):
        assert ld.zoo.seeds([row["model"]])[row["model"]][1] == ld.zoo.seeds([row["baseline"]])[row["baseline"]][1]
    rationale = study.claims(n_resamples=20).query("number == 8")["rationale"]
    for end in ("", "-seed1", "-seed2"):
        assert rationale.str.contains(f"zoo/d8-shared{end} over zoo/d4{end}[,;]").all()
    found = made({"zoo/d4-seed1": D4, "zoo/d8-seed1": D8, "zoo/d8-shared": SHARED}).layer_sharing()
    assert found[["baseline", "matched_on"]].values.tolist() == [["zoo/d4-seed1", "same parameters"]]


def test_pairs_over_seeds():
    """Their ratio is the geometric mean of the seeds', with Student's interval over these; they stand first."""
    frame = zoo().layer_sharing()
    over, pairs = frame[:2], frame[2:]
    assert over[["model", "baseline", "matched_on", "interval_over", "n", "tasks"]].values.tolist() == [
        ["d8-shared", "d4", "same parameters", "seeds", 3, 8],
        ["d8-shared", "d8", "same depth", "seeds", 3, 8],
    ]
    for row in over.to_dict("records"):
        of = pairs[pairs["matched_on"] == row["matched_on"]]
        assert row["accuracy"] == pytest.approx(of["accuracy"].mean())
        for name in DIVERSITIES:
            logs = np.log(of[f"{name}_ratio"])
            ends = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
            assert row[f"{name}_ratio"] == pytest.approx(np.exp(logs.mean()))
            assert row[f"{name}_ratio_low"] == pytest.approx(np.exp(ends.low))
            assert row[f"{name}_ratio_high"] == pytest.approx(np.exp(ends.high))
    two = zoo(seeds=2).layer_sharing().query("interval_over == 'seeds'")
    assert two["n"].tolist() == [2, 2]
    assert two["diversity_ratio"].notna().all()
    assert two["diversity_ratio_low"].isna().all()
    assert set(zoo(seeds=1).layer_sharing()["interval_over"]) == {"tasks"}


def test_seeds_can_be_told():
    """Models of any name, and copies of one another leave an interval of width 0."""
    one = made({"baseline": D4, "shared": SHARED})
    frames, cells, seeds = [], [], {}
    for seed in "abc":
        for shape in ("baseline", "shared"):
            seeds[shape + seed] = (shape, seed)
            frames.append(one.metrics[one.metrics["model"] == shape].assign(model=shape + seed))
            cells += [
                c | {"settings": c["settings"] | {"model": shape + seed}}
                for c in one.cells
                if c["settings"]["model"] == shape
            ]
    study = replace(one, metrics=pd.concat(frames, ignore_index=True), cells=tuple(cells))
    row = study.layer_sharing(seeds=seeds).iloc[0]
    assert (row["model"], row["baseline"], row["interval_over"], row["n"]) == ("shared", "baseline", "seeds", 3)
    np.testing.assert_allclose(row["diversity_ratio_low"], row["diversity_ratio_high"], rtol=1e-12)
    assert row["diversity_ratio"] == pytest.approx(one.layer_sharing()["diversity_ratio"].item())
    with pytest.raises(ld.InputError, match="seeds names 'nobody'"):
        study.layer_sharing(seeds={"nobody": ("shape", 0)})


def test_the_order_of_models_changes_nothing():
    """Rows, pairs and numbers are the same whatever order the study has its models in."""
    study = zoo()
    parts = [study.metrics[study.metrics["model"] == name] for name in study.metrics["model"].unique()]
    order = np.random.default_rng(0).permutation(len(parts))
    other = replace(study, metrics=pd.concat([parts[at] for at in order], ignore_index=True), cells=study.cells[::-1])
    columns = ["model", "baseline", "matched_on"]
    straight, shuffled = (
        frame.sort_values(columns, ignore_index=True) for frame in (study.layer_sharing(), other.layer_sharing())
    )
    pd.testing.assert_frame_equal(straight, shuffled)
    assert study.layer_sharing()["interval_over"].tolist() == other.layer_sharing()["interval_over"].tolist()


def test_a_pair_turned_round_has_the_inverse_ratio():
    """Named pairs are taken as they are named, and held says what is the same about them."""
    study = made({"d2": D2, "d4": D4, "shared": SHARED})
    there, back = (study.layer_sharing(pairs=pair).iloc[0] for pair in ({"shared": "d4"}, {"d4": "shared"}))
    assert there["diversity_ratio"] * back["diversity_ratio"] == pytest.approx(1)
    assert there["diversity_ratio_low"] * back["diversity_ratio_high"] == pytest.approx(1)
    assert there["matched_on"] == back["matched_on"] == "same parameters"
    assert study.layer_sharing(pairs={"shared": "d2"})["matched_on"].item() == "as given"


def test_a_wider_or_narrower_model_of_the_same_depth_is_no_partner():
    """What unrolling could not give: fewer parameters than the model itself, or more than each use its own."""
    others = {"narrow": (100, 17, False), "wide": (400, 17, False), "shared": SHARED}
    found = made(others | {"d8": D8}).layer_sharing()
    assert found[["baseline", "matched_on"]].values.tolist() == [["d8", "same depth"]]
    for name in ("narrow", "wide"):
        with pytest.raises(ld.InputError, match="no model here reuses its layers"):
            made({name: others[name], "shared": SHARED}).layer_sharing()


def test_tasks_that_one_model_lacks_are_left_out():
    """The row is that of the tasks both have; without any, or without a pair, one is told so."""
    study = made({"d4": D4, "shared": SHARED}, tasks=4)
    one = (study.metrics["model"] == "d4") & study.metrics["task"].isin(["t0", "t1"])
    row = replace(study, metrics=study.metrics[~one]).layer_sharing().iloc[0]
    assert (row["tasks"], row["interval_over"], row["n"]) == (2, "tasks", 2)
    assert np.isnan(row["diversity_ratio_low"])
    own = [value(study, "shared", t, "squared", "accuracy") for t in ("t2", "t3")]
    assert row["accuracy"] == pytest.approx(100 * np.mean(own))
    apart = ((study.metrics["model"] == "d4") & study.metrics["task"].isin(["t0", "t1"])) | (
        (study.metrics["model"] == "shared") & study.metrics["task"].isin(["t2", "t3"])
    )
    with pytest.raises(ld.InputError, match="has a task in common with its pair"):
        replace(study, metrics=study.metrics[~apart]).layer_sharing()
    with pytest.raises(ld.InputError, match="no model here reuses its layers"):
        made({"d4": D4, "d8": D8}).layer_sharing()
    for pairs, message in (
        ({"shared": "d9"}, "pairs names 'd9'"),
        ({"d4": "d4"}, "with itself"),
        (["d4"], "must be"),
    ):
        with pytest.raises(ld.InputError, match=message):
            study.layer_sharing(pairs=pairs)
    with pytest.raises(ld.InputError, match="unit='head'"):
        study.layer_sharing(unit="head")


@pytest.fixture(scope="module")
def real():
    """A model whose two blocks run twice, next to the two it can be held against."""
    tasks = ["synthetic/recall", "synthetic/k_hop"]
    return ld.run_study(["zoo/d2", "zoo/d4", "zoo/d4-shared"], tasks, limit=24)


@pytest.mark.nightly
def test_models_of_the_zoo(real):
    """The ratio of diversities from contributions themselves: Σ (u − ū)² over members, options and rows."""

    def diversity(model, name, centered):
        task = ld.task(name, limit=24)
        u = ld.contributions(model, task.prompts, task.options).values
        if centered:
            u = u - u.mean(2, keepdims=True)
        return ((u - u.mean(1, keepdims=True)) ** 2).mean(), u.shape[1]

    frame = real.layer_sharing().set_index("baseline")
    assert frame["matched_on"].to_dict() == {"zoo/d2": "same parameters", "zoo/d4": "same depth"}
    for plain in ("zoo/d2", "zoo/d4"):
        for centered in (False, True):
            ratios, fair = [], []
            for name in ("synthetic/recall", "synthetic/k_hop"):
                (a, m), (b, n) = (diversity(model, name, centered) for model in ("zoo/d4-shared", plain))
                ratios.append(a / b)
                fair.append(m**2 * a / (n**2 * b))
            end = "_centered" * centered
            assert frame[f"diversity{end}_ratio"][plain] == pytest.approx(stats.gmean(ratios), rel=1e-5)
            assert frame[f"diversity_logit{end}_ratio"][plain] == pytest.approx(stats.gmean(fair), rel=1e-5)
    same = frame.loc["zoo/d4"]
    assert same["diversity_centered_ratio"] == pytest.approx(same["diversity_logit_centered_ratio"])


@pytest.mark.nightly
def test_the_report_shows_pairs(real):
    """The table and its two sentences hold the frame's numbers, and are left out where nothing is reused."""
    frame = real.layer_sharing()
    shown = layer_sharing_table(frame)
    for (_, row), text in zip(frame.iterrows(), shown.to_dict("records"), strict=True):
        assert text["reuses layers"] == f"{row['model']}\nagainst {row['baseline']}"
        assert float(text["diversity, centered"].split("\n")[0]) == pytest.approx(
            row["diversity_centered_ratio"], rel=0.06
        )
        ends = text["|L|² × diversity, raw"].partition("\n")[2]
        assert bool(ends) == np.isfinite(row["diversity_logit_ratio_low"])
    said = list(layer_sharing_findings(frame))
    assert [sentence in list(study_findings(real)) for sentence in said] == [True, True]
    points = frame.set_index("matched_on").eval("accuracy - accuracy_baseline")["same depth"]
    assert said[1].text.endswith(f"{style.number(abs(points))} points {'less' if points < 0 else 'more'} accuracy.")
    page = study_page(real).html()
    assert "Reuse of layers, before and after the size correction" in page
    without = real.metrics["model"] != "zoo/d4-shared"
    cells = tuple(c for c in real.cells if c["settings"]["model"] != "zoo/d4-shared")
    bare = Page("nothing is reused")
    _layer_sharing(bare, replace(real, metrics=real.metrics[without], cells=cells), "sublayer")
    assert not bare.blocks


def test_sentences_on_several_pairs():
    """Over seeds where there are seeds; of several pairs their geometric mean, and from where to where."""
    frame = zoo().layer_sharing()
    first = next(layer_sharing_findings(frame)).text
    assert first.startswith("d8-shared, which reuses layers, has ")
    assert "of d4, with as many parameters" in first
    assert re.search(r"has [\d.]+ times \([\d.]+ to [\d.]+(, not clearly 1)?\) the centered diversity of d4", first)
    pairs = frame[frame["interval_over"] == "tasks"]
    several = next(layer_sharing_findings(pairs)).text
    ratio = stats.gmean(pairs.query("matched_on == 'same parameters'")["diversity_centered_ratio"])
    assert float(several.split()[5]) == pytest.approx(ratio, rel=0.06)
    assert "(3 pairs: " in several
    of = pairs.query("matched_on == 'same parameters'")
    clear = ((of["diversity_centered_ratio_low"] > 1) | (of["diversity_centered_ratio_high"] < 1)).sum()
    assert f", {clear} clearly not 1) the centered diversity" in several
