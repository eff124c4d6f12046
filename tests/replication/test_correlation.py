"""Correlations along depth, the trade-off, the scaling fit and module shares: against scipy, by hand, and as laws."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from layerdiv_tl.ensemble.decompose import decompose
from layerdiv_tl.ensemble.fits import LogFit, log_fit
from layerdiv_tl.ensemble.permutation import by_cluster, cluster_numbers, model_permutations, permutation_p
from layerdiv_tl.errors import InputError
from layerdiv_tl.replication.correlation import SIGNS, correlations, curve_correlations, student_p
from layerdiv_tl.replication.shares import module_shares
from layerdiv_tl.replication.tradeoff import TradeOff, tradeoff_signs


def walks(rng, models=4, junctions=61, tasks=1, columns=("accuracy", "mse")):
    """Independent random walks along depth."""
    parts = [
        {"model": f"m{m}", "task": f"t{t}", "junction": np.arange(junctions)}
        | {column: rng.normal(size=junctions).cumsum() for column in columns}
        for m in range(models)
        for t in range(tasks)
    ]
    return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)


def cell(table, aggregation="pooled", task="t0", metric="mse", coefficient="pearson"):
    """One row of the table."""
    found = table.query(
        "aggregation == @aggregation and task == @task and metric == @metric and coefficient == @coefficient"
    )
    assert len(found) == 1
    return found.iloc[0]


def z_scored(frame, column):
    by_model = frame.groupby("model")[column]
    return (frame[column] - by_model.transform("mean")) / by_model.transform("std", ddof=0)


# Against scipy


def test_one_model_is_scipys_correlation_and_t_test():
    frame = walks(np.random.default_rng(0), models=1)
    table = correlations(frame, n_resamples=50)
    for coefficient, scipys in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        expected = scipys(frame["accuracy"], -frame["mse"])
        for aggregation in ("pooled", "per_model"):
            assert cell(table, aggregation, coefficient=coefficient).r == pytest.approx(expected.statistic)
        assert cell(table, coefficient=coefficient).p_t == pytest.approx(expected.pvalue)
        assert np.isnan(cell(table, coefficient=coefficient).low)


def test_pooled_is_scipys_correlation_of_z_scores():
    frame = walks(np.random.default_rng(1), models=8)
    frame = frame.drop(index=range(30))  # models of different lengths
    table = correlations(frame, n_resamples=50)
    accuracy, metric = z_scored(frame, "accuracy"), -z_scored(frame, "mse")
    for coefficient, scipys in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        expected, found = scipys(accuracy, metric), cell(table, coefficient=coefficient)
        assert (found.r, found.p_t) == pytest.approx((expected.statistic, expected.pvalue))
        assert (found.n, found.models) == (len(frame), 8)
        assert found.low < found.r < found.high


def test_per_model_is_scipys_t_test_of_fishers_z():
    frame = walks(np.random.default_rng(2), models=8)
    found = cell(correlations(frame, n_resamples=50), "per_model")
    z = np.arctanh([stats.pearsonr(f["accuracy"], -f["mse"]).statistic for _, f in frame.groupby("model")])
    expected = stats.ttest_1samp(z, 0)
    assert found.r == pytest.approx(np.tanh(z.mean()))
    assert found.p_t == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(np.tanh(expected.confidence_interval())))


def test_final_is_scipys_correlation_over_models():
    frame = walks(np.random.default_rng(3), models=7)
    table, last = correlations(frame, n_resamples=50), frame[frame["junction"] == 60]
    for coefficient, scipys in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        expected, found = scipys(last["accuracy"], -last["mse"]), cell(table, "final", coefficient=coefficient)
        assert (found.r, found.p_t) == pytest.approx((expected.statistic, expected.pvalue))
        assert np.isnan(found.p_permutation)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1, 1), st.integers(3, 200))
def test_students_p_is_that_of_pearsonr(r, n):
    beta = stats.beta(n / 2 - 1, n / 2 - 1, loc=-1, scale=2)
    assert student_p(r, n) == pytest.approx(2 * beta.sf(abs(r)), abs=1e-6)


@pytest.mark.full
def test_the_interval_is_the_jackknife_over_models():
    """Student's t and pseudo-values of atanh r, each model left out by hand and the rest ranked anew."""
    frame = walks(np.random.default_rng(4), models=8, junctions=9).round({"accuracy": 0})  # with ties
    for coefficient, scipys in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):

        def z(some, scipys=scipys):
            return np.arctanh(scipys(z_scored(some, "accuracy"), -z_scored(some, "mse")).statistic)

        full = z(frame)
        pseudo = [8 * full - 7 * z(frame[frame["model"] != f"m{m}"]) for m in range(8)]
        half = stats.t.ppf(0.975, 7) * stats.sem(pseudo)
        found = cell(correlations(frame, n_resamples=40), coefficient=coefficient)
        assert (found.low, found.high) == pytest.approx((np.tanh(full - half), np.tanh(full + half)))
    seven = cell(correlations(frame[frame["model"] != "m0"], n_resamples=40))
    assert np.isnan(seven.low)
    assert "no interval: 7 of 8 models" in seven.note


@pytest.mark.full
def test_models_of_a_cluster_count_as_one():
    """Three copies of each of eight models have the intervals and p-values of the eight."""
    frame = walks(np.random.default_rng(5), models=8, junctions=20)
    copies = pd.concat([frame.assign(model=frame["model"] + f"-{k}") for k in range(3)])
    clusters = {name: name[:2] for name in copies["model"].unique()}
    one, many = correlations(frame, n_resamples=800), correlations(copies, clusters=clusters, n_resamples=800)
    for aggregation, p in (("pooled", "p_permutation"), ("per_model", "p_permutation"), ("final", "p_t")):
        columns = ["r", "low", "high", p]
        assert cell(many, aggregation)[columns].tolist() == pytest.approx(cell(one, aggregation)[columns].tolist())
    assert cell(many, "per_model").p_t == pytest.approx(cell(one, "per_model").p_t)
    with pytest.raises(InputError, match="clusters"):
        correlations(copies, clusters=["m0"])


# By hand


def test_two_models_by_hand():
    """Curves 0, 1, 2 against 0, 1, 2 and against 0, 2, 1: r is 1 and 1/2, pooled 3/4."""
    frame = pd.DataFrame(
        {
            "model": ["a"] * 3 + ["b"] * 3,
            "task": "t0",
            "junction": [2, 1, 0, 0, 1, 2],
            "accuracy": [2, 1, 0, 0, 1, 2],
            "diversity": [20.0, 10.0, 0.0, 0.0, 2.0, 1.0],
        }
    )
    table = correlations(frame, n_resamples=20)
    assert cell(table, metric="diversity").r == pytest.approx(0.75)
    assert cell(table, "per_model", metric="diversity").r == pytest.approx(1.0)  # atanh 1 outweighs all
    assert cell(table, "final", metric="diversity").note.startswith("fewer than three models")


@pytest.mark.full
def test_the_average_is_fishers_and_untested():
    frame = walks(np.random.default_rng(6), models=8, tasks=4)
    table = correlations(frame, n_resamples=100)
    for aggregation in ("pooled", "per_model", "final"):
        rs = [cell(table, aggregation, f"t{t}").r for t in range(4)]
        average = cell(table, aggregation, "average")
        assert average.r == pytest.approx(np.tanh(np.arctanh(rs).mean()))
        assert average.low < average.r < average.high
        assert np.isnan([average.p_t, average.p_permutation]).all()


def test_the_sign_says_what_is_expected():
    depth = np.arange(20.0)
    frame = pd.DataFrame({"model": "m", "task": "t0", "junction": depth, "accuracy": depth})
    frame = frame.assign(mse=-(depth**2), bias=depth, diversity=np.sqrt(depth), own=depth)
    table = correlations(frame, n_resamples=20)
    assert list(dict.fromkeys(table["metric"])) == ["mse", "bias", "diversity"]
    assert [cell(table, metric=m, coefficient="spearman").r for m in ("mse", "bias", "diversity")] == pytest.approx(
        [1, -1, 1]
    )
    assert cell(correlations(frame, {"own": -1}, n_resamples=20), metric="own").r == pytest.approx(-1)
    assert set(SIGNS.values()) == {1, -1}


@pytest.mark.full
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(-100, 100))
def test_units_do_not_matter(seed, scale, offset):
    """Affine changes of a model's curve leave pooled and per-model readings alone; shuffled rows too."""
    rng = np.random.default_rng(seed)
    frame = walks(rng, models=2, junctions=12)
    other = frame.assign(mse=frame["mse"].where(frame["model"] == "m0", scale * frame["mse"] + offset))
    one, two = (correlations(f, n_resamples=20) for f in (frame, other.sample(frac=1, random_state=seed)))
    for aggregation in ("pooled", "per_model"):
        for coefficient in ("pearson", "spearman"):
            assert cell(two, aggregation, coefficient=coefficient).r == pytest.approx(
                cell(one, aggregation, coefficient=coefficient).r, abs=1e-9
            )


# Permutations of models


def test_the_p_counts_permutations_by_hand():
    """Five models of one depth have 120 permutations; every one of them by a loop."""
    import itertools

    frame = walks(np.random.default_rng(7), models=5, junctions=12, tasks=2)
    frame["mse"] -= 0.5 * frame["accuracy"]
    a, b = (
        np.array([[z_scored(f, c) for _, f in of.groupby("model")] for _, of in frame.groupby("task")])
        for c in ("accuracy", "mse")
    )
    totals = [np.sum(a * -b[:, list(way)]) for way in itertools.permutations(range(5))]
    expected = 2 * np.mean(np.array(totals) >= totals[0] - 1e-9)
    assert curve_correlations(frame, "mse", -1)[1] == pytest.approx(expected)


def test_permutations_stay_within_a_depth():
    ways = model_permutations([3, 5, 3, 3, 5, 3, 5], n_resamples=1000)
    assert ways.shape == (144, 7)
    assert len(np.unique(ways, axis=0)) == 144
    assert set(map(tuple, np.sort(ways[:, [1, 4, 6]], axis=1))) == {(1, 4, 6)}
    drawn = model_permutations([3] * 9, n_resamples=50, seed=1)
    assert drawn.shape == (51, 9)
    assert drawn[0].tolist() == list(range(9))
    assert (np.sort(drawn, axis=1) == np.arange(9)).all()
    assert not len(model_permutations([1, 1, 1, 1, 2, 3]))


def test_too_few_models_of_one_depth_have_no_p():
    frame = walks(np.random.default_rng(8), models=4)
    row = cell(correlations(frame, n_resamples=20))
    assert np.isnan(row.p_permutation)
    assert "too few models of one depth" in row.note


def test_means_of_clusters_leave_out_what_is_not_known():
    products = np.arange(9.0).reshape(3, 3)
    products[0, 2] = np.nan
    number = cluster_numbers(["a", "b", "c"], {"a": 1, "b": 1})
    np.testing.assert_allclose(by_cluster(products, number), [[2, 5], [6.5, 8]])


def test_a_real_association_is_found():
    """Eight models whose metric follows accuracy with as much noise."""
    rng = np.random.default_rng(9)
    frame = walks(rng, models=8)
    frame["mse"] = 0.5 * frame["mse"] - frame["accuracy"]
    table = correlations(frame, n_resamples=999)
    for coefficient in ("pearson", "spearman"):
        for aggregation in ("pooled", "per_model"):
            row = cell(table, aggregation, coefficient=coefficient)
            assert row.p_permutation < 0.01
            assert row.low > 0


@pytest.mark.full
def test_the_same_seed_gives_the_same_table_whatever_else_is_asked():
    frame = walks(np.random.default_rng(10), models=7, columns=("accuracy", "mse", "bias"))
    pd.testing.assert_frame_equal(correlations(frame, n_resamples=50), correlations(frame, n_resamples=50))
    alone = correlations(frame, {"bias": -1}, n_resamples=50)
    assert (
        cell(alone, metric="bias").p_permutation
        == cell(correlations(frame, n_resamples=50), metric="bias").p_permutation
    )


def test_a_p_is_twice_the_side_it_lies_on():
    assert permutation_p(np.array([1.0] + [0.5] * 9)) == pytest.approx(0.2)
    assert permutation_p(np.array([-1.0] + [-2.0] * 9)) == 1.0
    assert permutation_p(np.array([1.0, np.nan, 0.0, 0.0])) == 1.0
    assert np.isnan(permutation_p(np.array([np.nan, 0.0])))
    assert np.isnan(permutation_p(np.array([])))


# What cannot be correlated


def test_constant_and_missing_curves_are_left_out_with_a_reason():
    frame = walks(np.random.default_rng(11), models=3)
    whole = correlations(frame[frame["model"] == "m2"], n_resamples=20)
    frame.loc[frame["model"] == "m0", "accuracy"] = 0.1 + 0.2
    frame.loc[5 + 61, "mse"] = np.nan
    row = cell(correlations(frame, n_resamples=20))
    assert row.r == pytest.approx(cell(whole).r)
    assert row.models == 1
    assert row.note.endswith("left out: m0 (constant accuracy), m1 (metric is not finite)")
    assert "no interval: 1 of 8 models" in row.note
    row = cell(correlations(frame.assign(mse=1.0), n_resamples=20), "per_model")
    assert np.isnan([row.r, row.low, row.p_t, row.p_permutation]).all()
    assert row.note.startswith("no model has two curves that vary")
    average = cell(correlations(frame.assign(mse=1.0), n_resamples=20), task="average")
    assert np.isnan(average.r)


def test_one_junction_is_no_curve():
    frame = walks(np.random.default_rng(12), models=4, junctions=1)
    table = correlations(frame, n_resamples=20)
    assert np.isnan(cell(table).r)
    assert np.isfinite(cell(table, "final").r)


@pytest.mark.parametrize(
    ("change", "signs", "message"),
    [
        (lambda f: f.drop(columns="junction"), None, "no column 'junction'"),
        (lambda f: f.drop(columns="mse"), None, "no metric"),
        (lambda f: f, {"nothing": 1}, "no column 'nothing'"),
        (lambda f: f, {"mse": 2}, "signs"),
        (lambda f: f.iloc[:0], None, "no rows"),
        (lambda f: pd.concat([f, f.iloc[:1]]), None, "model m0, task t0, junction 0 stands"),
        (lambda f: f.assign(task=None), None, "names no"),
        (lambda f: f.assign(mse="x"), None, "'mse'"),
    ],
)
def test_frames_that_cannot_be_are_refused(change, signs, message):
    with pytest.raises(InputError, match=message):
        correlations(change(walks(np.random.default_rng(13), models=2, junctions=5)), signs)


# The trade-off claim


def test_the_trade_off_by_hand(tmp_path):
    frame = pd.DataFrame(
        {
            "model": "m",
            "task": "t",
            "junction": range(7),
            "accuracy": [0.5, 0.5, 0.6, 0.6, 0.4, 0.4, 0.4],
            "bias": [5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 2.0],
            "diversity": [5.0, 4.0, 5.0, 4.0, 3.0, 2.0, 1.0],
        }
    )
    found = tradeoff_signs(frame, n_resamples=50)
    # Steps: still together, rises apart, still together, falls together, still neither, still apart.
    assert found.counts.tolist() == [[0, 1, 0], [2, 1, 1], [1, 0, 0]]
    table = found.frame().set_index("accuracy")
    assert table.loc["still", "share"] == pytest.approx(2 / 3)
    assert table["steps"].sum() == 6
    assert found.difference == pytest.approx(2 / 3 - 1 / 2)
    assert np.isnan(found.low)
    assert TradeOff.load(found.save(tmp_path / "t.safetensors")).frame().equals(table.reset_index())
    assert tradeoff_signs(frame, still=0.3, n_resamples=5).counts[1].sum() == 6


def steps(rng, linked, models=4, junctions=61, tasks=2):
    """Accuracy that stands still in stretches; bias and diversity move together there, or anywhere."""
    parts = []
    for m in range(models):
        for t in range(tasks):
            moving = rng.random(junctions // 5 + 1).repeat(5)[: junctions - 1] < 0.5
            together = (
                np.where(moving, 0.3, 0.8) if linked else rng.random(junctions // 5 + 1).repeat(5)[: junctions - 1]
            )
            bias = rng.normal(size=junctions - 1)
            sign = np.where(rng.random(junctions - 1) < together, 1, -1)
            moves = {"accuracy": moving * rng.normal(size=junctions - 1), "bias": bias, "diversity": sign * bias}
            curves = {name: np.concatenate([[0.0], x]).cumsum() for name, x in moves.items()}
            curves["accuracy"][1:][~moving] = np.nan  # stands still exactly
            curves["accuracy"] = pd.Series(curves["accuracy"]).ffill().to_numpy()
            parts.append(pd.DataFrame({"model": f"m{m}", "task": f"t{t}", "junction": range(junctions)} | curves))
    return pd.concat(parts)


def test_a_trade_off_where_accuracy_stands_still_is_found():
    found = tradeoff_signs(steps(np.random.default_rng(0), linked=True, models=8))
    assert found.p < 0.01
    assert 0 < found.low < found.difference < found.high
    assert found.null_low < 0 < found.null_high < found.difference


@pytest.mark.full
def test_the_trade_offs_interval_is_the_jackknife_over_models():
    frame = steps(np.random.default_rng(1), linked=True, models=8)
    found = tradeoff_signs(frame, n_resamples=20)
    rest = [tradeoff_signs(frame[frame["model"] != f"m{m}"], n_resamples=20).difference for m in range(8)]
    pseudo = 8 * found.difference - 7 * np.array(rest)
    half = stats.t.ppf(0.975, 7) * stats.sem(pseudo)
    assert (found.low, found.high) == pytest.approx((found.difference - half, found.difference + half))
    few = tradeoff_signs(frame[frame["model"].isin(["m0", "m1", "m2", "m3"])], n_resamples=20)
    assert np.isnan([few.low, few.p, few.null_low]).all()


def test_a_trade_off_that_never_stands_still_has_no_difference():
    frame = walks(np.random.default_rng(2), columns=("accuracy", "bias", "diversity"))
    found = tradeoff_signs(frame, n_resamples=20)
    assert np.isnan([found.difference, found.p]).all()
    with pytest.raises(InputError, match="no step"):
        tradeoff_signs(frame[frame["junction"] == 0])
    with pytest.raises(InputError, match="still=-1"):
        tradeoff_signs(frame, still=-1)


# Scaling


def test_the_fit_is_scipys():
    rng = np.random.default_rng(0)
    x = rng.uniform(30, 200, 14)
    y = 0.2 + 0.1 * np.log(x) + 0.02 * rng.normal(size=14)
    fit, expected = log_fit(x, y), stats.linregress(np.log(x), y)
    rows = fit.frame().set_index("term")
    half = stats.t.ppf(0.975, 12) * expected.stderr
    assert (fit.slope, fit.intercept) == pytest.approx((expected.slope, expected.intercept))
    assert rows.loc["slope", "p"] == pytest.approx(expected.pvalue)
    assert tuple(rows.loc["slope", ["low", "high"]]) == pytest.approx((fit.slope - half, fit.slope + half))
    half = stats.t.ppf(0.975, 12) * expected.intercept_stderr
    assert rows.loc["intercept", "low"] == pytest.approx(fit.intercept - half)
    # Where ln x = 0 the curve is the intercept.
    assert fit.predict(1.0).loc[0, ["y", "low"]].tolist() == pytest.approx([fit.intercept, fit.intercept - half])


def test_curvature_and_aic_are_those_of_polyfit():
    rng = np.random.default_rng(1)
    x, y = rng.uniform(1, 10, 9), rng.normal(size=9)
    rows = log_fit(x, y).frame().set_index("term")
    s = (x - x.mean()) / x.std()
    (c, *_), cov = np.polyfit(s, y, 2, cov=True)
    assert rows.loc["curvature", "estimate"] == pytest.approx(c)
    half = stats.t.ppf(0.975, 6) * np.sqrt(cov[0, 0])
    assert rows.loc["curvature", "high"] == pytest.approx(c + half)

    def errors(z):
        return ((y - np.polyval(np.polyfit(z, y, 1), z)) ** 2).sum()

    assert rows.loc["aic_difference", "estimate"] == pytest.approx(9 * np.log(errors(x) / errors(np.log(x))))


def test_diminishing_and_constant_returns_are_told_apart():
    rng = np.random.default_rng(3)
    x = np.linspace(10, 300, 25)
    for y, sign in ((np.log(x), 1), (x / 100, -1)):
        rows = log_fit(x, y + 0.05 * rng.normal(size=25)).frame().set_index("term")
        assert sign * rows.loc["aic_difference", "estimate"] > 0
        assert (rows.loc["curvature", "high"] < 0) == (sign > 0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 500), st.floats(-5, 5)), min_size=2, max_size=8))
def test_any_points_give_numbers_or_nan(points):
    x, y = np.array(points).T
    if len(np.unique(x)) < 2 or np.ptp(np.log(x)) < 1e-3:
        return
    fit = log_fit(x, y)
    assert np.isfinite([fit.slope, fit.intercept]).all()
    assert len(fit.frame()) == 4
    assert np.isfinite(fit.predict(3.0)["y"]).all()


def test_two_points_have_a_line_and_no_interval(tmp_path):
    fit = log_fit([65, 129], [0.46, 0.46])
    assert fit.slope == pytest.approx(0)
    assert fit.frame()["low"].isna().all()
    assert LogFit.load(fit.save(tmp_path / "f.safetensors")).frame().equals(fit.frame())
    assert "2 points" in repr(fit)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1.0, 2.0], [1.0], "shapes"),
        ([0.0, 2.0], [1.0, 2.0], "logarithm"),
        ([2.0, 2.0], [1.0, 2.0], "two different x"),
        ([1.0, 2.0], [np.nan, 2.0], "not finite"),
    ],
)
def test_points_that_cannot_be_fitted_are_refused(x, y, message):
    with pytest.raises(InputError, match=message):
        log_fit(x, y)
    with pytest.raises(InputError, match="logarithm"):
        log_fit([1.0, 2.0], [1.0, 2.0]).predict([-1.0])


# Shares


def test_module_shares_are_those_of_by_module():
    rng = np.random.default_rng(0)
    names = ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"]
    frames = {
        f"t{t}": decompose(rng.normal(size=(6, 5, 3)), [0, 1, 2, 0, 1, 2], components=names).by_module() for t in (0, 1)
    }
    frame = pd.concat([f.assign(model="m", task=task) for task, f in frames.items()])
    table = module_shares(frame)
    for term, gauge, column in (
        ("bias", "raw", "bias_share"),
        ("diversity", "raw", "diversity_share"),
        ("diversity", "centered", "diversity_share_centered"),
    ):
        found = table[(table["term"] == term) & (table["gauge"] == gauge)]
        assert found["module"].tolist() == ["embedding", "attention", "mlp"]
        expected = np.mean([f[column].to_numpy() for f in frames.values()], 0)
        assert found["share"].tolist() == pytest.approx(expected.tolist())
        assert found["member_share"].tolist() == pytest.approx([0.2, 0.4, 0.4])
        assert found["excess"].sum() == pytest.approx(0)
    assert table.groupby(["term", "gauge"])["share"].sum().tolist() == pytest.approx([1.0] * 4)
    assert (table["tasks"] == 2).all()


def test_a_task_without_constant_has_none_of_it():
    """Log-likelihoods have a normalizer beside the members that logits have; any other difference is refused."""
    rows = {"module": ["attention", "mlp", "constant"], "members": [3, 3, 1], "diversity": [1.0, 2.0, 1.0]}
    several = pd.DataFrame({"model": "m", "task": "several"} | rows)
    single = several.iloc[:2].assign(task="single", diversity=[1.0, 3.0])
    for frame in (pd.concat([several, single]), pd.concat([single, several])):
        table = module_shares(frame)
        assert table["module"].tolist() == list(dict.fromkeys(frame["module"]))
        found = table.set_index("module")
        assert found["share"].to_dict() == pytest.approx({"attention": 0.25, "mlp": 0.625, "constant": 0.125})
        own = {"attention": (3 / 7 + 1 / 2) / 2, "mlp": (3 / 7 + 1 / 2) / 2, "constant": 1 / 14}
        assert found["member_share"].to_dict() == pytest.approx(own)
        assert (table["tasks"] == 2).all()
    with pytest.raises(InputError, match="differ from task to task"):
        module_shares(pd.concat([several, single.iloc[:1]]))


def test_shares_that_cannot_be():
    frame = pd.DataFrame({"model": "m", "task": "t", "module": ["attention", "mlp"], "members": [1, 1], "bias": 0.0})
    assert module_shares(frame)["share"].isna().all()
    other = frame.assign(task="u", members=[2, 2], bias=1.0)
    with pytest.raises(InputError, match="differ from task to task"):
        module_shares(pd.concat([frame, other]))
    with pytest.raises(InputError, match="none of the columns"):
        module_shares(frame.drop(columns="bias"))
