"""The papers' tables against decompositions, scipy and Student's t."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import layerdiv_tl as ld
from layerdiv_tl.studies import tables

MODELS, TASKS = ["zoo/d1", "zoo/d2", "zoo/d4-shared"], ["synthetic/recall", "synthetic/modular:largest=19"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return ld.Grid(tmp_path_factory.mktemp("grid")).run(ld.contributions, MODELS, TASKS, limit=24)


@pytest.fixture(scope="module")
def cells(grid):
    """{(model, task): contributions and labels}"""
    return {(c.about["model"], c.about["rows"]): (c.result, c.result.labels) for c in grid.cells()}


def test_table_1_holds_what_a_decomposition_says(grid, cells):
    table = tables.table(grid)
    for (model, task), (c, labels) in cells.items():
        row = table.loc[model].xs(task, level="rows")
        paper, squared = (ld.decompose(c, labels, loss=loss, gauge="raw") for loss in ("paper", "squared"))
        assert row["accuracy"] == 100 * (c.logits.argmax(1) == labels).mean() == pytest.approx(100 * squared.accuracy)
        assert row["mse"] == pytest.approx(100 * paper.loss)
        assert row["bias"] == pytest.approx(100 * paper.bias)
        assert row["diversity"] == pytest.approx(paper.diversity)
        log_p = c.logits - np.logaddexp.reduce(c.logits, axis=1)[:, None]
        assert row["cross_entropy"] == pytest.approx(-log_p[np.arange(len(labels)), labels].mean(), rel=1e-9)
    for quantity in tables.TERMS:
        block = table[quantity]
        np.testing.assert_allclose(block[tables.AVERAGE], block[TASKS].mean(axis=1))


def test_curves_end_at_the_table(grid):
    curves, table = tables.curves(grid), tables.table(grid)
    last = curves.groupby(["model", "rows"], sort=False).last()
    for (model, task), row in last.iterrows():
        for name in tables.SIGNS:
            factor = 100 if name in tables.HUNDREDTHS else 1
            assert factor * row[name] == pytest.approx(table.loc[model, (name, task)])
    assert curves.groupby(["model", "rows"])["junction"].apply(lambda x: x.tolist() == list(range(len(x)))).all()


def test_modules_share_what_components_hold(grid):
    components, modules = grid.frame(lambda c, cell: ld.decompose(c).by_component()), tables.modules(grid)
    shares = tables.shares(modules)
    keys = ["model", "rows"]
    members = components.groupby(keys).size()
    for term in ("bias", "diversity"):
        whole = modules.groupby(keys)[term].sum()
        np.testing.assert_allclose(whole, components.groupby(keys)[term].sum() / members)
        of_term = shares[shares["term"] == term]
        np.testing.assert_allclose(of_term.groupby("model")["share"].sum(), 1)
        np.testing.assert_allclose(of_term.groupby("model")["member_share"].sum(), 1)
    mean = modules.assign(share=modules["bias"] / modules.groupby(keys)["bias"].transform("sum"))
    mean = mean[(mean["model"] == "zoo/d2") & (mean["module"] == "mlp")]["share"].mean()
    found = shares.query("model == 'zoo/d2' and module == 'mlp' and term == 'bias'")["share"].item()
    assert found == pytest.approx(mean)


def test_texts_without_labels_and_two_units_have_no_tables(tmp_path):
    unlabeled = ld.Grid(tmp_path / "a").run(ld.contributions, "zoo/d1", {"t": [[1, 2, 3]]}, options=[1, 2])
    with pytest.raises(ld.InputError, match="give either labels"):
        tables.table(unlabeled)
    two = ld.Grid(tmp_path / "b").run(ld.contributions, "zoo/d1", TASKS[0], limit=4)
    two.run(ld.contributions, "zoo/d1", TASKS[0], limit=4, unit="head")
    with pytest.raises(ld.InputError, match="unit="):
        tables.table(two)
    assert len(tables.table(two, unit="head")) == 1


def test_sizes(grid):
    sizes = tables.sizes(grid).set_index("model")
    for name in MODELS:
        model = ld.load_model(name)
        assert sizes.loc[name, "members"] == len(model.components())
        assert sizes.loc[name, "parameters"] == sum(p.numel() for p in model.hf_model.parameters())
    assert sizes["reuses"].tolist() == [False, False, True]


@pytest.mark.parametrize("coefficient", tables.COEFFICIENTS)
def test_correlations_are_scipys(grid, coefficient):
    correlate = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[coefficient]
    found = tables.correlations(tables.curves(grid)).query(f"coefficient == {coefficient!r}")
    for (model, task), curve in tables.curves(grid).groupby(["model", "rows"]):
        r = found[(found["model"] == model) & (found["rows"] == task)].set_index("metric")["r"]
        assert r["mse"] == pytest.approx(-correlate(curve["accuracy"], curve["mse"]).statistic)
        assert r["diversity"] == pytest.approx(correlate(curve["accuracy"], curve["diversity"]).statistic)


def test_flat_curves_have_no_correlation():
    curve = pd.DataFrame({"model": "m", "rows": "t", "accuracy": [0.0, 1, 2, 3], "mse": [3.0, 2, 2, 0]})
    for flat in (curve.assign(mse=1.0), curve.assign(accuracy=0.0), curve.assign(mse=[1.0, 1, 1, 1 + 1e-15])):
        assert tables.correlations(flat)["r"].isna().all()
    assert tables.correlations(curve)["r"].between(0.9, 1).all()
