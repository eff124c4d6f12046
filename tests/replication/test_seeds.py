"""Claims over training seeds: one study a seed, their mean, Student's interval over them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import layerdiv_tl as ld
from layerdiv_tl.views.study_page import _claims_over_seeds, study_page
from tests.replication.test_claims import curves, planted

pytestmark = pytest.mark.full  # studies of several models

KEYS = ["number", "variant"]


def alone(seed, models=5, **options):
    """What one seed gave, under the names of the shapes m0, m1, …; the last reuses the layers of one of its size."""
    rng = np.random.default_rng([7, seed])
    noise = {(f"m{i}", f"t{j}"): rng.normal() for i in range(models) for j in range(4)}

    def totals(model, task, members):
        level, z = 0.2 + 0.1 * np.log(members), noise[model, task]
        found = {("squared", "accuracy"): level + 0.002 * z, ("paper", "loss"): 1 - level + 0.002 * z}
        found |= {("paper", "bias"): 0.2 + 0.01 * z, ("paper", "zero_bias"): 0.25}
        reuses = 0.6 if model == f"m{models - 1}" else 1.0
        terms = (f"diversity{kind}" for kind in ("", "_centered", "_logit", "_logit_centered"))
        return found | {("squared", term): reuses * np.exp(0.1 * z + 0.1 * at) for at, term in enumerate(terms)}

    shares = {"embedding": 0.1 + 0.02 * seed, "attention": 0.3 - 0.01 * seed, "mlp": 0.6 - 0.01 * seed}

    def curve(model, task):  # in whole steps, so that accuracy stands still at times
        found = curves(1, seed, length=12)(model, task)
        return found | {"accuracy": np.round(found["accuracy"])}

    made = {"curve": curve, "totals": totals, "bias": shares, "diversity": shares}
    sizes = {f"m{models - 1}": 5 * 10**6, "m0": 5 * 10**6}
    return planted(models, parameters=sizes, reuses=[f"m{models - 1}"], **(made | options))


def together(studies, order=None):
    """One study of several, whose models are named after shape and seed; and what they are called."""
    frames, cells, seeds = [], [], {}
    for seed, study in studies.items():
        for shape in study.metrics["model"].unique():
            name = f"{shape}.{seed}"
            seeds[name] = (shape, seed)
            frames.append(study.metrics[study.metrics["model"] == shape].assign(model=name))
            for cell in study.cells:
                if cell["settings"]["model"] == shape:
                    cells.append(cell | {"settings": cell["settings"] | {"model": name}})
    if order is not None:
        frames = [frames[at].sort_values("task", ascending=bool(at % 2), kind="stable") for at in order]
        cells = cells[::-1]
        seeds = {name: seeds[name] for name in (frame["model"].iloc[0] for frame in frames)}
    first = next(iter(studies.values()))
    return replace(first, metrics=pd.concat(frames, ignore_index=True), cells=tuple(cells)), seeds


def over_seeds(study, seeds, **options):
    return study.claims(seeds=seeds, **options).set_index(KEYS)


@pytest.mark.nightly
def test_the_estimate_is_the_mean_of_what_every_seed_says_alone():
    """Each claim, from a study of one seed only, averaged; its interval is that of scipy's t test."""
    studies = {seed: alone(seed) for seed in range(4)}
    found = over_seeds(*together(studies))
    each = [study.claims(n_resamples=20).set_index(KEYS)["estimate"] for study in studies.values()]
    for key, row in found.query("number <= 8").iterrows():
        there, back = {1: (np.arctanh, np.tanh), 8: (np.log, np.exp)}.get(key[0], (float, float))
        values = [there(one[key]) for one in each]
        interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert row["estimate"] == pytest.approx(back(np.mean(values)), rel=1e-9), key
        assert (row["interval_over"], row["n"]) == ("seeds", 4), key
        if np.std(values) > 1e-9:
            assert (row["low"], row["high"]) == pytest.approx((back(interval.low), back(interval.high)), rel=1e-6), key
        else:
            assert row["low"] == pytest.approx(row["high"], rel=1e-9), key
    assert found.query("number <= 8")["p"].isna().all()
    assert "over seeds 0, 1, 2, 3 of m0, m1, m2, m3, m4" in found["rationale"][6, "Eq. 14"]
    assert "m4 over m0" in found["rationale"][8, "after it, raw"]
    assert found["verdict"][6, "Eq. 14"] == found["verdict"][7, "accuracy, all models"] == "confirmed"
    assert found["verdict"][8, "before the size correction, raw"] == "confirmed"


def test_seeds_that_are_copies_leave_no_doubt():
    """Intervals have width 0, and the estimates are those of one of them."""
    one = alone(0)
    found = over_seeds(*together({seed: one for seed in "abc"})).query("number <= 8")
    np.testing.assert_allclose(found["low"], found["high"], rtol=1e-12)
    np.testing.assert_allclose(
        found["estimate"], one.claims(n_resamples=20).set_index(KEYS)["estimate"][found.index], rtol=1e-9
    )


@pytest.mark.nightly
def test_the_order_of_models_changes_nothing():
    """Not a bit of it, whatever order the study, its tasks, its cells and the seeds have."""
    studies = {seed: alone(seed) for seed in range(3)}
    straight = over_seeds(*together(studies))
    for shuffle in (1, 2):
        other = over_seeds(*together(studies, order=np.random.default_rng(shuffle).permutation(15)))
        pd.testing.assert_frame_equal(straight, other, check_exact=True)


@pytest.mark.nightly
def test_what_a_seed_lacks_is_left_out_and_named():
    """A shape that one seed lacks, a task of a shape, and models that are not named: as if they were not there."""
    studies = {seed: alone(seed) for seed in range(3)}
    study, seeds = together(studies)
    seeds = {name: pair for name, pair in seeds.items() if name != "m1.2"}
    gone = (study.metrics["model"] == "m3.1") & (study.metrics["task"] == "t2")
    cells = tuple(
        cell for cell in study.cells if (cell["settings"]["model"], cell["settings"]["task"]) != ("m3.1", "t2")
    )
    study = replace(study, metrics=study.metrics[~gone], cells=cells)
    found = over_seeds(study, seeds)
    assert found.attrs["shapes"] == ["m0", "m2", "m3", "m4"]
    assert found.attrs["left out"] == ["m1.0", "m1.1", "m1.2", "m3 on t2"]
    assert found["rationale"][4, "raw"].endswith("left out: m1.0, m1.1, m1.2, m3 on t2")

    def without(one):
        m = one.metrics
        return replace(one, metrics=m[(m["model"] != "m1") & ~((m["model"] == "m3") & (m["task"] == "t2"))])

    each = [without(one).claims(n_resamples=20).set_index(KEYS)["estimate"][6, "Eq. 14"] for one in studies.values()]
    assert found["estimate"][6, "Eq. 14"] == pytest.approx(np.mean(each), rel=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize(("slope", "verdict"), [(1, "confirmed"), (-1, "not tested"), (None, "not tested")])
def test_returns_must_rise_to_diminish(slope, verdict):
    """The curvature of numpy's polyfit, seed by seed; it counts only where slopes over seeds lie above 0."""

    def totals(seed):
        # Without a slope told, it rises steeply in one seed and falls in another: on average it rises, not clearly.
        rise = slope if slope is not None else (-1, 0.5, 3)[seed]

        def made(model, task, members):
            x = np.log(members / 25)
            level = 0.5 + 0.3 * rise * x - 0.02 * (1 + 0.1 * seed) * (members / 50) ** 2
            return {("squared", "accuracy"): level, ("paper", "loss"): 1 - level}

        return made

    studies = {seed: alone(seed, totals=totals(seed)) for seed in range(3)}
    row = over_seeds(*together(studies)).loc[(7, "accuracy, all models")]
    members = 25 + 10 * np.arange(5)
    s = (members - members.mean()) / members.std()
    bends = [
        np.polyfit(s, [100 * totals(k)("m", "t", m)["squared", "accuracy"] for m in members], 2)[0] for k in range(3)
    ]
    assert row["estimate"] == pytest.approx(np.mean(bends), rel=1e-9)
    assert row["verdict"] == verdict
    assert ("no returns that could diminish" in row["rationale"]) == (verdict == "not tested")


def test_two_seeds_have_a_mean_and_no_interval():
    found = over_seeds(*together({seed: alone(seed) for seed in range(2)})).query("number <= 8")
    assert found["estimate"].notna().all()
    assert found["low"].isna().all()
    assert set(found["verdict"]) == {"not tested"}
    assert found["rationale"].str.contains("an interval needs 3 seeds").all()


def test_pairs_speak_of_shapes():
    """A pair of one seed stands for all; one that cannot is refused."""
    study, seeds = together({seed: alone(seed) for seed in range(3)})
    found = over_seeds(study, seeds, pairs={"m4.1": "m2.0"})
    assert "m4 over m2" in found["rationale"][8, "after it, raw"]
    assert found["n"][8, "after it, raw"] == 3
    del seeds["m2.2"]
    with pytest.raises(ld.InputError, match=r"pairs .*'m2\.0'"):
        study.claims(seeds=seeds, pairs={"m4.1": "m2.0"})
    with pytest.raises(ld.InputError, match="pairs .*'m9'"):
        study.claims(seeds=seeds, pairs={"m9": "m2.0"})


def test_what_is_no_seed_is_refused():
    """Too few, unknown names, two of one kind, other forms: each in a sentence that says what to do."""
    study, seeds = together({seed: alone(seed) for seed in range(2)})
    wrong = {
        "seeds holds 0 training seeds": {},
        "seeds holds 1 training seed:": {name: pair for name, pair in seeds.items() if pair[1] == 0},
        "seeds names 'm9'": seeds | {"m9": ("m9", 0)},
        r"'m0\.0' and 'm1\.0' are both seed 0 of shape 'm0'": seeds | {"m1.0": ("m0", 0)},
        r"seeds has 0 for 'm0\.0': give \(shape, seed\)": seeds | {"m0.0": 0},
        r"seeds has \(0, 'm0'\)": seeds | {"m0.0": (0, "m0")},
        r"seeds has \('m0', \[\]\)": seeds | {"m0.0": ("m0", [])},
        "no shape has all the seeds 0, 1": {"m0.0": ("m0", 0), "m1.1": ("m1", 1)},
        "must be {model:": ["m0.0", "m0.1"],
    }
    for message, given in wrong.items():
        with pytest.raises(ld.InputError, match=message):
            study.claims(seeds=given)
    with pytest.raises(ld.InputError, match="unit='head'"):
        study.claims(seeds=seeds, unit="head")


def test_the_zoo_knows_its_seeds():
    """Shape and seed make the name again; what is not of the zoo, and one name alone, are taken as they are."""
    seeds = ld.zoo.seeds()
    for name, (shape, seed) in seeds.items():
        assert name == f"zoo/{shape}" + (f"-seed{seed}" if seed else "")
    assert set(seeds) == set(ld.zoo.NAMES)
    assert ld.zoo.seeds("zoo/d4-seed2") == {"zoo/d4-seed2": ("d4", 2)}
    assert ld.zoo.seeds(["mine", "zoo/planted-copied", "zoo/d99"]) == {}


@pytest.fixture(scope="module")
def zoo():
    """Three seeds of two depths, and one model that has no other seed here."""
    names = [f"zoo/d{depth}{end}" for depth in (1, 2) for end in ("", "-seed1", "-seed2")]
    return ld.run_study([*names, "zoo/d4-shared"], "synthetic/recall", limit=24)


@pytest.mark.nightly
def test_models_of_the_zoo(zoo):
    """Claim 6 by hand from the table: the mean over seeds of the mean over depths of bias over uniform."""
    found = over_seeds(zoo, ld.zoo.seeds(zoo.models()["model"]))
    table = zoo.table()
    ratio = table["bias"]["synthetic/recall"] / table["uniform"]["synthetic/recall"]
    each = [ratio[[f"zoo/d{depth}{end}" for depth in (1, 2)]].mean() for end in ("", "-seed1", "-seed2")]
    row = found.loc[(6, "Eq. 14")]
    assert row["estimate"] == pytest.approx(np.mean(each), rel=1e-9)
    assert row["high"] - row["low"] == pytest.approx(2 * stats.t.ppf(0.975, 2) * stats.sem(each), rel=1e-6)
    assert found.attrs["left out"] == ["zoo/d4-shared"]


@pytest.mark.nightly
def test_the_report_shows_claims_over_seeds(zoo):
    """Below the first table, with the seeds and shapes said once; not where there are no three seeds."""
    page = study_page(zoo).html()
    after = page[page.index("What the papers claim</h2>") :]
    assert after.index("The table above treats every model") > after.index("Returns diminish")
    assert page.count("over seeds 0, 1, 2 of d1, d2; left out: zoo/d4-shared") == 1
    two = zoo.metrics["model"].isin(["zoo/d1", "zoo/d1-seed1"])
    cells = tuple(c for c in zoo.cells if c["settings"]["model"] in ("zoo/d1", "zoo/d1-seed1"))
    assert _claims_over_seeds(replace(zoo, metrics=zoo.metrics[two], cells=cells), "sublayer") is None
