"""The replication script on the zoo: all statements have data, and numbers are those of plain arithmetic."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import layerdiv_tl as ld

SCRIPT = Path(__file__).parents[2] / "notebooks" / "replication.py"


def load_script():
    spec = importlib.util.spec_from_file_location("replication", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return load_script()


@pytest.mark.nightly
def test_every_statement_is_measured_on_the_zoo(script, tmp_path, capsys):
    statements = script.main(["--out", str(tmp_path), "--limit", "12"])
    printed = capsys.readouterr().out
    assert "Failed" not in printed
    assert {statement.number for statement in statements} == set(range(1, 13))
    for statement in statements:
        assert np.isfinite(statement.estimate.value), statement
        assert str(statement) in printed
    assert sum(np.isfinite(statement.estimate.low) for statement in statements) > 8
    totals = ld.Grid(tmp_path).frame(
        lambda c, cell: ld.decompose(c, loss="paper").frame().iloc[:1], analysis="contributions"
    )
    of_models = (totals["bias"] / totals["zero_bias"]).groupby(totals["model"]).mean()
    shapes = of_models.groupby(ld.zoo.models().set_index("name")["shape"]).mean()
    sixth = next(statement.estimate for statement in statements if statement.number == 6)
    ends = stats.t.interval(0.95, len(shapes) - 1, shapes.mean(), stats.sem(shapes))
    np.testing.assert_allclose(sixth[:3], [shapes.mean(), *ends])


def test_steps_are_counted_by_hand(script):
    accuracy, bias, diversity = (pd.Series(x) for x in ([0.5, 0.5, 0.7, 0.7], [3.0, 2, 1, 2], [2.0, 1, 2, 3]))
    counts = script.count_steps(accuracy, bias, diversity)
    assert counts.tolist() == [[2, 0], [0, 1]]
    assert script.share_difference(counts) == 1.0


def test_the_jackknife_of_a_mean_is_students(script):
    x = np.random.default_rng(0).normal(size=9)
    found = script.jackknife(np.mean, x.tolist())
    np.testing.assert_allclose(found[:3], [x.mean(), *stats.t.interval(0.95, 8, x.mean(), stats.sem(x))])
    assert np.isnan(script.jackknife(np.mean, x[:7].tolist()).low)
