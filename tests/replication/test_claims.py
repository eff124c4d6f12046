"""The claims table: what is planted in a study's numbers is what the verdicts say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.cli.printing import print_claims
from layerdiv_tl.studies.study import Study
from layerdiv_tl.studies.tables import CURVES
from layerdiv_tl.views.tables import claims_table

pytestmark = pytest.mark.full  # studies of several models

# What every finished cell has among its totals.
DULL = {("squared", "accuracy"): 0.5, ("paper", "loss"): 0.2, ("paper", "bias"): 0.25, ("paper", "zero_bias"): 0.25}
DULL |= {("squared", f"diversity{kind}"): 1.0 for kind in ("", "_centered", "_logit", "_logit_centered")}
MODULES = {"embedding": 1, "attention": 12, "mlp": 12}


def planted(models=8, tasks=4, *, curve=None, bias=None, diversity=None, totals=None, parameters=None, reuses=()):
    """A study whose numbers are made: `curve(model, task)` frames, `bias` and `diversity` {module: share}, totals."""
    names = [f"m{i}" for i in range(models)]
    rng = np.random.default_rng(0)
    rows, cells = [], []
    for at, model in enumerate(names):
        members = 25 + 10 * at
        about = {"model": model, "unit": "sublayer", "rows": 16}
        size = (parameters or {}).get(model, 10**6)
        found = {"parameters": size, "architecture": "Made", "dtype": "float32", "source": "made"}
        for task in (f"t{i}" for i in range(tasks)):
            cells.append({"settings": about | {"task": task}, "provenance": found, "folder": "nowhere"})
            made = DULL | (totals(model, task, members) if totals else {})
            for (loss, term), value in made.items():
                row = {"loss": loss, "table": "totals", "term": term, "mean": value, "members": members}
                rows.append({**about, "task": task, **row})
            for loss, term, shares in (
                ("paper", "bias", bias),
                ("squared", "bias", bias),
                ("squared", "bias_centered", bias),
                ("squared", "diversity", diversity),
                ("squared", "diversity_centered", diversity),
            ):
                for module, n in MODULES.items():
                    share = (shares or {k: v / 25 for k, v in MODULES.items()})[module] + 0.002 * rng.normal()
                    row = {"loss": loss, "table": "modules", "term": term, "mean": share}
                    rows.append({**about, "task": task, "module": module, "members": n, **row})
            if curve is not None:
                for column, values in curve(model, task).items():
                    loss, term = CURVES[column]
                    for place, value in enumerate(values):
                        row = {
                            "loss": loss,
                            "table": "depth",
                            "term": term,
                            "mean": value,
                            "component": f"L{place}.mlp",
                        }
                        rows.append({**about, "task": task, "partial": False, "members": place + 1, **row})
            if model in reuses:
                rows.append({**about, "task": task, "table": "components", "repeat": 2})
    columns = ["model", "task", "unit", "loss", "table", "component", "module", "members", "repeat", "partial", "term"]
    return Study(pd.DataFrame(rows).reindex(columns=[*columns, "mean"]), tuple(cells), (), ())


def verdicts(study, **options):
    """{(number, reading): verdict}"""
    frame = study.claims(n_resamples=200, **options)
    assert (frame["low"] <= frame["estimate"]).eq(np.isfinite(frame["low"])).all()
    return dict(zip(zip(frame["number"], frame["variant"], strict=True), frame["verdict"], strict=True))


def claims_of(study):
    return study.claims(n_resamples=50)


def curves(relation, seed=0, length=31):
    """Curves of every model and task: white noise, where MSE follows accuracy as told."""

    def curve(model, task):
        rng = np.random.default_rng([seed, *map(ord, model + task)])
        accuracy = rng.normal(size=length)
        found = {name: rng.normal(size=length) for name in CURVES}
        found["accuracy"] = accuracy
        found["mse"] = -relation * accuracy + 0.5 * rng.normal(size=length)
        return found

    return curve


@pytest.mark.parametrize(("relation", "verdict"), [(1, "confirmed"), (-1, "refuted"), (0, "within noise")])
def test_mse_tracks_accuracy_where_it_was_made_to(relation, verdict):
    assert verdicts(planted(curve=curves(relation)))[1, "per model"] == verdict


def test_curves_of_one_model_are_not_tested():
    """However many tasks: they share the model's curve, and nothing else at the same depth to hold it against."""
    row = planted(models=1, tasks=12, curve=curves(1)).claims(n_resamples=100).iloc[0]
    assert (row["verdict"], row["interval_over"]) == ("not tested", "nothing")
    assert row["estimate"] > 0.8
    assert np.isnan([row["low"], row["p"]]).all()


def test_models_of_different_depths_are_not_tested():
    """Models swap curves with those of their own depth only, so eight depths have no p and no verdict."""

    def curve(model, task):
        return curves(1, length=31 + 2 * int(model[1:]))(model, task)

    row = planted(curve=curve).claims(n_resamples=100).iloc[0]
    assert row["low"] > 0.5
    assert np.isnan(row["p"])
    assert row["verdict"] == "not tested"
    two = planted(models=8, curve=lambda m, t: curves(1, length=31 + 2 * (int(m[1:]) % 2))(m, t))
    assert verdicts(two)[1, "per model"] == "confirmed"


def test_a_jump_that_all_models_share_is_no_relation():
    """Accuracy rises and MSE falls at the last layers of all models: r is high and nothing is confirmed."""

    def curve(model, task):
        late, found = np.arange(31) > 27, curves(0)(model, task)
        return found | {"accuracy": found["accuracy"] + 9 * late, "mse": found["mse"] - 9 * late}

    row = planted(curve=curve).claims(n_resamples=200).iloc[0]
    assert row["low"] > 0.5
    assert row["verdict"] == "within noise"


def test_a_verdict_names_its_population(capsys):
    """Eight tasks of one model, or of three, are not eight models; in frame, page and on the terminal."""
    shares = {"diversity": {"embedding": 0.0, "attention": 0.2, "mlp": 0.8}}
    tasks = [claims_of(planted(models=models, tasks=8, **shares)) for models in (1, 3)]
    models = claims_of(planted(models=9, tasks=2, **shares))
    populations = ("8 tasks of one model", "8 tasks of these 3 models", "9 models")
    for claims, population in zip((*tasks, models), populations, strict=True):
        row = claims[(claims["number"] == 4) & (claims["variant"] == "raw")].iloc[0]
        assert (row["verdict"], row["population"]) == ("confirmed", population)
        assert f"{row['verdict']}\nfor {population}" in claims_table(claims)["verdict"].tolist()
        print_claims(claims)
        assert f": {row['verdict']} for {population}, " in capsys.readouterr().out
    assert (claims["population"] == "").equals(claims["interval_over"].isin(["", "nothing"]))


def test_too_little_is_not_tested():
    """Two models on two tasks, or a study without depth tables, say nothing about others."""
    found = verdicts(planted(models=2, tasks=2, curve=curves(1)))
    assert set(found.values()) == {"not tested"}
    bare = verdicts(planted())
    assert bare[1, "per model"] == bare[2, "per model"] == bare[5, "centered"] == "not tested"


def test_what_was_left_out_is_not_counted():
    """Curves that never vary are told apart from those of the mean; steps that are missing are asked for."""

    def some_flat(model, task):
        found = curves(1)(model, task)
        return found | {"accuracy": np.full(31, 0.53)} if task == "t0" else found

    claims = planted(models=3, curve=some_flat).claims(n_resamples=50).set_index(["number", "variant"])
    assert "mean of 9 curves (3 more do not vary)" in claims["rationale"][1, "per model"]
    always_moving = planted(models=3, curve=curves(1)).claims(n_resamples=50).set_index(["number", "variant"])
    assert always_moving["rationale"][5, "centered"].endswith("an interval needs 8 models and steps of both kinds")


def test_spearman_below_pearson_is_estimated_and_not_tested():
    """One far junction, and accuracy counted over few rows of a curve that MSE follows: ranks fall alone."""

    def far(model, task):
        found = curves(0)(model, task)
        found["accuracy"][-1], found["mse"][-1] = 30, -30
        return found

    def counted(model, task):
        rng = np.random.default_rng([*map(ord, model + task)])
        level = 0.25 + 0.6 * (np.arange(31) > 24) * rng.uniform(0.5, 1)
        return curves(0)(model, task) | {"accuracy": rng.binomial(48, level) / 48, "mse": -level}

    for curve in (far, counted):
        row = planted(curve=curve).claims(n_resamples=50).iloc[1]
        assert row["high"] < 0
        assert row["verdict"] == "not tested"


def test_shares_that_follow_counts_and_shares_that_do_not():
    found = verdicts(planted())
    assert {found[3, reading] for reading in ("Eq. 14", "raw", "centered")} == {"confirmed"}
    found = verdicts(planted(bias={"embedding": 0.5, "attention": 0.2, "mlp": 0.3}))
    assert {found[3, reading] for reading in ("Eq. 14", "raw", "centered")} == {"refuted"}


def test_mlps_dominate_where_they_hold_more_than_half():
    for share, verdict in ((0.8, "confirmed"), (0.2, "refuted"), (0.5, "within noise")):
        study = planted(diversity={"embedding": 0.05, "attention": 0.95 - share, "mlp": share})
        assert verdicts(study)[4, "raw"] == verdict
        assert study.claims(n_resamples=50).set_index(["number", "variant"])["estimate"][4, "raw"] == pytest.approx(
            share, abs=0.01
        )


def test_a_trade_off_where_accuracy_stands_still():
    """Bias and diversity move together where it stands still and apart where it moves, or the other way round."""

    def curve(together_when_still):
        def made(model, task):
            rng = np.random.default_rng([*map(ord, model + task)])
            still = rng.random(40) < 0.5
            steps = np.where(still, 0.0, rng.choice([-1, 1], 40))
            bias = rng.choice([-1.0, 1.0], 40)
            diversity = np.where(still == together_when_still, bias, -bias)
            paths = {"accuracy": steps, "bias": bias, "diversity": diversity}
            paths |= {"bias_centered": bias, "diversity_centered": diversity}
            found = {name: np.r_[0, rng.normal(size=40)] for name in CURVES}
            return found | {name: np.r_[0, np.cumsum(path)] for name, path in paths.items()}

        return made

    assert verdicts(planted(curve=curve(True)))[5, "centered"] == "confirmed"
    assert verdicts(planted(curve=curve(False)))[5, "Eq. 14"] == "refuted"


def test_bias_beside_that_of_a_uniform_prediction():
    def totals(level):
        return lambda model, task, members: {("paper", "bias"): level * 0.25, ("paper", "zero_bias"): 0.25}

    assert verdicts(planted(totals=totals(0.98)))[6, "Eq. 14"] == "confirmed"
    assert verdicts(planted(totals=totals(0.1)))[6, "Eq. 14"] == "refuted"


def test_returns_that_diminish_and_returns_that_grow():
    """A logarithm bends down, a square bends up; models below 1B are left out of the other reading."""

    def totals(shape):
        return lambda model, task, members: {
            ("squared", "accuracy"): shape(members),
            ("paper", "loss"): 1 - shape(members),
        }

    large = {f"m{i}": 2 * 10**9 for i in range(8)}
    found = verdicts(planted(models=10, totals=totals(np.log), parameters=large))
    assert {found[7, f"{q}, {r}"] for q in ("accuracy", "MSE") for r in ("all models", "≥ 1B parameters")} == {
        "confirmed"
    }
    found = verdicts(planted(models=9, totals=totals(lambda n: n**2)))
    assert found[7, "accuracy, all models"] == found[7, "MSE, all models"] == "refuted"
    assert (7, "accuracy, ≥ 1B parameters") not in found
    assert verdicts(planted(models=3, totals=totals(np.log)))[7, "all models"] == "not tested"


@pytest.mark.parametrize("shape", [lambda n: -(n**2), lambda n: -((n - 70) ** 2), lambda n: 0.5 * n**0])
def test_what_does_not_rise_has_no_returns_to_diminish(shape):
    """Accuracy that falls ever faster, or rises and falls again, bends down too, and says nothing of returns."""
    study = planted(
        models=10,
        totals=lambda model, task, members: {
            ("squared", "accuracy"): shape(members),
            ("paper", "loss"): -shape(members),
        },
    )
    claims = study.claims(n_resamples=50).query("number == 7")
    assert claims["verdict"].tolist() == ["not tested", "not tested"]
    assert claims["rationale"].str.contains("no returns that could diminish").all()


@pytest.mark.nightly
def test_reuse_is_compared_with_the_model_of_its_size():
    """Half the diversity before the size correction, twice the diversity after it; pairs can be named."""

    def totals(model, task, members):
        noise = 1 + 0.01 * (ord(task[-1]) % 3)
        before, after = (0.5, 2.0) if model == "m3" else (1.0, 1.0)
        before, after = before * noise, after * noise
        terms = {"diversity": before, "diversity_centered": before}
        terms |= {"diversity_logit": after, "diversity_logit_centered": after}
        return {("squared", term): value for term, value in terms.items()}

    sizes = {"m0": 5 * 10**6, "m1": 10**6, "m2": 3 * 10**6, "m3": 10**6 + 10}
    study = planted(models=4, tasks=8, totals=totals, parameters=sizes, reuses=["m3"])
    found = verdicts(study)
    assert (
        found[8, "before the size correction, raw"] == found[8, "before the size correction, centered"] == "confirmed"
    )
    assert found[8, "after it, raw"] == found[8, "after it, centered"] == "refuted"
    row = study.claims(n_resamples=50).set_index(["number", "variant"]).loc[(8, "after it, raw")]
    assert row["estimate"] == pytest.approx(2, rel=0.05)
    assert "m3 over m1" in row["rationale"]
    other = study.claims(n_resamples=50, pairs={"m3": "m0"})
    assert other.loc[other["number"] == 8, "rationale"].str.contains("m3 over m0").all()
    with pytest.raises(ld.InputError, match="pairs .*'m9'"):
        study.claims(pairs={"m9": "m0"})
    assert verdicts(planted())[8, "raw"] == "not tested"


def test_a_unit_that_is_not_there():
    with pytest.raises(ld.InputError, match="unit='head'"):
        planted().claims(unit="head")


def test_the_best_models_and_their_curves():
    """Best by mean accuracy, as the paper's Fig. 5 chooses; curves of these only, of all tasks."""
    accuracy = {"m0": 0.2, "m1": 0.9, "m2": 0.5}
    study = planted(
        models=3, curve=curves(1), totals=lambda model, task, members: {("squared", "accuracy"): accuracy[model]}
    )
    assert study.best(2) == ["m1", "m2"]
    for count in (0, -1, "two", True):
        with pytest.raises(ld.InputError, match="count="):
            study.best(count)
    assert set(study.curves(models=study.best(2))["model"]) == {"m1", "m2"}
    with pytest.raises(ld.InputError, match="models=.*'m7'"):
        study.curves(models=["m7"])
    assert study.models()["members"].tolist() == [25, 35, 45]
    assert len(study.scaling().x) == 3
    with pytest.raises(ld.InputError):
        study.scaling(least_parameters=1e9)


def test_a_curve_that_never_moves_is_not_standardized():
    """What rounding makes of a constant (0.53, 61 times) has a spread of 1e-16, which is no curve of ±1."""
    study = planted(
        models=1, tasks=1, curve=lambda *_: curves(1, length=61)("m", "t") | {"accuracy": np.full(61, 0.53)}
    )
    frame = study.curves(standardized=True)
    assert frame["accuracy"].isna().all()
    assert frame["mse"].std(ddof=0) == pytest.approx(1)
    lines = {trace.name: trace.y for trace in study.plot(kind="curves").data}
    assert np.isnan(np.array(lines["accuracy"], dtype=float)).all()
    np.testing.assert_allclose(np.array(lines["MSE"], dtype=float), frame["mse"], atol=6e-5)
