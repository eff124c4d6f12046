"""Checkpoints along training: the study's own numbers, and the order in which planted curves move."""

import json
from dataclasses import replace

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.studies.over_training import OverTraining, checkpoints, crossing
from layerdiv_tl.views import style
from layerdiv_tl.views.depth_page import depth_page
from layerdiv_tl.views.findings import depth_findings

TASK = "synthetic/recall"


@pytest.fixture(scope="module")
def study():
    models = {"d2@step10": "zoo/d2", "d2@step2": "zoo/d2-seed1", "d2-seed1@step2": "zoo/d2-seed2", "other": "zoo/d1"}
    return ld.run_study(models, [TASK], limit=64)


def curves(lags):
    """Accuracy rises at step 500, diversity later by so many steps; one seed for each lag, and a flat loss."""
    steps = np.tile(np.arange(0, 2001, 100), len(lags))
    seeds = np.repeat(np.arange(len(lags)), 21)
    rise = {"accuracy": np.full(len(steps), 500.0), "diversity": 500.0 + np.array(lags, dtype=float)[seeds]}
    totals = {name: np.clip((steps - at) / 400 + 0.5, 0, 1) for name, at in rise.items()}
    totals |= {"loss": np.ones(len(steps)), "loss_low": np.zeros(len(steps)), "loss_high": 2 * np.ones(len(steps))}
    names = {"run": tuple(f"d4-seed{s}" for s in seeds), "shape": ("d4",) * len(steps), "task": ("t",) * len(steps)}
    names |= {"seed": seeds, "step": steps}
    parts = {"component": ("embed",) * len(steps), "bias": np.zeros(len(steps))}
    return OverTraining(names | totals, names | parts, unit="sublayer")


@pytest.mark.full
def test_numbers_are_those_of_the_study(study):
    """Runs and steps come from names or from `steps`; totals and components are those of the study's tables."""
    training = study.over_training()
    frame, table = training.frame(), study.summary().set_index("model")
    assert frame[["run", "seed", "step"]].values.tolist() == [["d2", 0, 2], ["d2", 0, 10], ["d2-seed1", 1, 2]]
    for row in frame.itertuples():
        cell = table.loc[f"{row.run}@step{row.step}"]
        assert (row.accuracy, row.loss, row.diversity) == (cell["accuracy"], cell["cross_entropy"], cell["diversity"])
    own = study.components().set_index("model")
    parts = training.by_component()
    some = parts[(parts["run"] == "d2") & (parts["step"] == 10)]
    assert some["component"].tolist() == own.loc["d2@step10", "component"].tolist()
    np.testing.assert_array_equal(some["bias"], own.loc["d2@step10", "bias"])
    chosen = study.over_training(steps={"other": 3, "d2@step10": 1, "d2@step2": 2, "d2-seed1@step2": 5})
    assert set(chosen.frame()["step"]) == {1, 2, 3, 5}
    bits = study.over_training(estimator="vote").frame()
    assert (bits["joint_low"] <= bits["joint"]).all()


@pytest.mark.nightly
def test_effects_of_the_same_folder_stand_beside_the_rest(tmp_path):
    """Direct and total effects per component are those of `ld.effects`; NaN for what is not ablated or was not run."""
    models = {"d2@step1": "zoo/d2", "d2@step2": "zoo/d2-seed1", "d2@step3": "zoo/d2-seed2"}
    ld.run_study(models, TASK, limit=8, out=tmp_path)
    two = {name: models[name] for name in ("d2@step1", "d2@step2")}
    done = ld.run_depth(two, TASK, limit=8, out=tmp_path, analyses="effects")
    assert [a.name for a in done.analyses] == ["effects", "effects"]
    assert {"direct", "total"} < set(done.frame()["quantity"])
    assert "index" not in set(done.frame()["quantity"])
    training = ld.Study.load(tmp_path).over_training()
    effects = ld.effects("zoo/d2-seed1", ld.task(TASK, limit=8))
    frame, parts = training.frame().set_index("step"), training.by_component().set_index(["step", "component"])
    for name in ("direct", "total"):
        values = effects.effect(name)
        assert frame[f"{name}_effect"][2] == pytest.approx(values.sum(1).mean())
        assert frame[f"{name}_effect_low"][2] < frame[f"{name}_effect"][2] < frame[f"{name}_effect_high"][2]
        for component, value in zip(effects.components, values.mean(0), strict=True):
            assert parts[f"{name}_effect"][2, component.label] == pytest.approx(value)
        assert np.isnan(parts[f"{name}_effect"][2, "embed"])
        assert np.isnan(frame[f"{name}_effect"][3])
    said = [(finding.text, finding.figure) for finding in depth_findings(done)]
    table = effects.frame().set_index("component")
    most = table["total"].idxmax()
    shown = [style.number(table[name][most]) for name in ("total", "direct")]
    assert len(said) == 2
    assert all(word in said[1][0] for word in ("d2@step2", TASK, most, *shown))
    assert f'id="{said[1][1]}"' in depth_page(done).html()
    figure = training.plot(quantities=["total_effect"])
    assert (len(figure.data), figure.layout.yaxis.title.text) == (1, "logits")
    ld.run_depth({"d2@step1": "zoo/d2"}, TASK, limit=4, out=tmp_path, analyses="effects")
    mixed = ld.Study.load(tmp_path).over_training().frame().set_index("step")["total_effect"]
    assert mixed.notna().tolist() == [True, False, False]  # the others are of other rows


@pytest.mark.full
def test_units_are_those_of_the_task_that_is_shown(tmp_path):
    """Log-likelihoods of options of several tokens are in nats, and the menu of tasks changes the axes with them."""
    rows = ld.task(TASK, limit=8)
    options = [" red blue", " blue"]
    file = tmp_path / "long.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p, "options": options, "label": 0}) for p in rows.prompts))
    models = {"d2@step1": "zoo/d2", "d2@step2": "zoo/d2-seed1"}
    out = {"limit": 8, "out": tmp_path / "study"}
    study = ld.run_study(models, [rows, ld.task(file)], **out)
    ld.run_depth(models, [rows, ld.task(file)], analyses="effects", **out)
    training = ld.Study.load(study.folders[0]).over_training()
    shown = ["loss", "bias", "direct_effect"]
    parts = training.by_component().groupby("task", sort=False)["component"].agg(set)
    assert parts["long"] - parts[TASK] == {"constant"}
    single, several = ({name: training.units(task)[name] for name in shown} for task in (TASK, "long"))
    assert single == dict(zip(shown, ("nats", "logits²", "logits"), strict=True))
    assert several == dict(zip(shown, ("nats", "nats²", "nats"), strict=True))
    figure = training.plot(quantities=shown, task=TASK)
    assert [axis.title.text for axis in figure.select_yaxes()] == list(single.values())
    button = next(b for b in figure.layout.updatemenus[0].buttons if b.label == "long")
    assert [button.args[1][f"yaxis{n}.title.text"] for n in (2, 3)] == list(several.values())[1:]
    kept = OverTraining.load(training.save(tmp_path / "t.safetensors"))
    assert kept.units("long") == training.units("long")
    with pytest.raises(ld.InputError, match="task"):
        training.units("short")


@pytest.mark.parametrize(("lags", "order"), [((300, 320, 280), "later"), ((-200, -210, -190), "before")])
def test_the_order_of_planted_curves_is_found(lags, order):
    """The lag is the planted one, its interval over seeds excludes 0; what does not move has no lag."""
    training = curves(lags)
    found = training.order().set_index("quantity")
    assert found["lag"]["diversity"] == pytest.approx(np.mean(lags))
    assert found["order"].tolist() == ["", order, "does not move"]
    assert found["lag_low"]["diversity"] < np.mean(lags) < found["lag_high"]["diversity"]
    assert training.order("diversity").set_index("quantity")["lag"]["accuracy"] == pytest.approx(-np.mean(lags))
    apart = curves((300, -300, 10)).order().set_index("quantity")
    assert apart["order"]["diversity"] == "not told apart"
    assert curves(lags[:2]).order()["lag_low"].isna().all()  # two seeds have no interval


def test_what_stands_still_or_is_missing_is_said():
    """A reference that stands still is named; a gap between checkpoints is bridged, one at an end leaves no way."""
    training = curves((300, 320, 280))
    still = training.order("loss").set_index("quantity")["order"]
    assert still["diversity"] == "loss does not move"
    values = training.totals["diversity"].copy()
    values[training.totals["step"] == 800] = np.nan
    bridged = replace(training, totals=training.totals | {"diversity": values}).order().set_index("quantity")
    assert (bridged["n"]["diversity"], bridged["order"]["diversity"]) == (3, "later")
    assert bridged["resolution"]["diversity"] > training.order().set_index("quantity")["resolution"]["diversity"]
    values[training.totals["step"] == 2000] = np.nan
    cut = replace(training, totals=training.totals | {"diversity": values}).order().set_index("quantity")
    assert cut["order"]["diversity"] == "not measured"


def test_crossings_are_those_of_a_fine_grid():
    """Against a search along the interpolated curve, rising and falling, at any share."""
    rng = np.random.default_rng(0)
    for share in (0.1, 0.5, 0.9):
        for _ in range(20):
            steps, values = np.cumsum(rng.integers(1, 50, 9)).astype(float), rng.normal(size=9)
            fine = np.linspace(steps[0], steps[-1], 200_001)
            gone = (np.interp(fine, steps, values) - values[0]) / (values[-1] - values[0])
            assert crossing(steps, values, share)[0] == pytest.approx(fine[(gone >= share).argmax()], abs=0.01)


def test_what_has_no_steps_is_refused(study):
    """No two checkpoints of one run, two of one step, names that are not there, a share that is none."""
    with pytest.raises(ld.InputError, match="step1000"):
        checkpoints(["gpt2", "d4@step3"])
    with pytest.raises(ld.InputError, match="same run and step"):
        checkpoints(["d4@step3", "d4_step3", "d4@step5"])
    with pytest.raises(ld.InputError, match="steps"):
        study.over_training(steps={"nobody": 3})
    with pytest.raises(ld.InputError, match="estimator"):
        study.over_training(estimator=["vote", "gaussian"])
    with pytest.raises(ld.InputError, match="share"):
        curves((1, 2, 3)).reached(1.5)
    with pytest.raises(ld.InputError, match="reference"):
        curves((1, 2, 3)).order("mood")


@pytest.mark.full
def test_it_is_kept_and_drawn(study, tmp_path):
    """A file holds all of it; each run is a line of the frame's numbers."""
    training = curves((300, 320, 280))
    kept = OverTraining.load(training.save(tmp_path / "t.safetensors"))
    assert kept.frame().equals(training.frame())
    assert kept.by_component().equals(training.by_component())
    figure = training.plot(quantities=["diversity"])
    assert len(figure.data) == 3
    np.testing.assert_array_equal(np.concatenate([line.y for line in figure.data]), training.totals["diversity"])
    assert study.over_training().plot().data
