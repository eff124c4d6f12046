"""Intervals of means and of what is made of means: laws, and second sources. Coverage is in `calibration`."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binomtest, t, ttest_1samp

from layerdiv_tl.ensemble.intervals import (
    LEAST,
    LONGEST,
    estimate,
    estimate_function,
    estimates_frame,
    interval_note,
    jackknife,
    leave_one_out,
    percentile_interval,
    wilson,
)
from layerdiv_tl.errors import InputError


def mean_interval(values):
    return estimate(values)[1:3]


def cluster_means(sums, counts):
    return estimate(sums, counts=counts)[:3]


def share_means(sums, counts):
    return estimate(sums, "share", counts=counts)[:3]


def paired_interval(differences, counts=None):
    return estimate(differences, "difference", counts=counts)[1:3]


def skewed(*shape, seed=0):
    return np.random.default_rng(seed).lognormal(size=shape)


def test_rows_that_are_not_skewed_have_students_interval():
    """The second source: scipy's t test, of rows whose third moment is 0."""
    half = np.random.default_rng(0).normal(size=(10, 3))
    values = 7 + np.concatenate([half, -half])
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose(mean_interval(values), expected, rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_skewed_rows_have_halls_interval(seed):
    """An end is where Hall's cubic polynomial of t, root-found, is Student's quantile, between one and two of these."""
    values = skewed(24, seed=seed)
    n, mean, error = 24, values.mean(), values.std(ddof=1) / np.sqrt(24)
    a = ((values - mean) ** 3).mean() / values.std() ** 3 * n / (n - 4) / np.sqrt(n)
    q = t.ppf(0.975, n - 1)
    above, below = (brentq(lambda x, y=y: x + a * x**2 / 3 + a**2 * x**3 / 27 + a / 6 - y, -1e4, 1e4) for y in (q, -q))
    above, below = np.clip([above, -below], q, LONGEST * q)
    expected = max(0.0, mean - error * above), mean + error * below
    np.testing.assert_allclose(mean_interval(values), expected, rtol=1e-8)


def test_intervals_move_and_grow_with_the_values():
    """That of −a x − b is −a times that of x, less b; of constant values it is the value."""
    values = skewed(30, 4) - 2
    low, high = mean_interval(values)
    moved_low, moved_high = mean_interval(-3 * values - 1e4)
    np.testing.assert_allclose([-3 * high - 1e4, -3 * low - 1e4], [moved_low, moved_high], rtol=1e-9)
    assert mean_interval(np.full(20, -0.1)) == (pytest.approx(-0.1), pytest.approx(-0.1))


def test_too_few_examples_have_no_interval_and_it_is_said():
    """From LEAST examples on there is one; columns count those that they have."""
    values = skewed(LEAST, 2)
    values[0, 1] = np.nan
    low, high = mean_interval(values)
    assert np.isfinite([low[0], high[0]]).all()
    assert np.isnan([low[1], high[1]]).all()
    assert np.isnan(mean_interval(values[1:])).all()
    for clusters in (values[1:, :1], values[:, 1:]):
        counts = np.isfinite(clusters).astype(float)
        assert np.isnan(cluster_means(np.nan_to_num(clusters), counts)[1:]).all()
    assert "no intervals" in interval_note(LEAST - 1)
    assert "no intervals" not in interval_note(LEAST)
    with pytest.raises(InputError):
        mean_interval(values[:0])


def test_missing_examples_are_left_out():
    values = skewed(20, 3)
    values[3:7, 1] = np.nan
    np.testing.assert_allclose(
        np.array(mean_interval(values))[:, 1], mean_interval(np.delete(values[:, 1], slice(3, 7))), rtol=1e-12
    )


def test_an_outlier_does_not_stretch_an_interval_without_need():
    """Twelve rows of which one lies far below: Hall's rule without a limit went to −5.7, next to the outlier itself."""
    rows = np.array([-2.1, 2.67, 0.16, 1.68, 3.98, -5.86, 2.05, 1.47, 2.95, -0.36, 2.22, 1.43])
    student = ttest_1samp(rows, 0).confidence_interval()
    low, high = mean_interval(rows)
    assert high == pytest.approx(student.high)
    assert low >= rows.mean() - LONGEST * (rows.mean() - student.low) - 1e-9


def test_n_counts_the_rows_that_have_a_value():
    """Ten rows of which seven are known have no interval, and the note says seven."""
    rows = np.where(np.arange(10) < 7, np.arange(10.0), np.nan)
    for known in (estimate(rows), estimate(rows, clusters=np.arange(10))):
        assert (known.value, known.n) == (3.0, 7)
        assert np.isnan([known.low, known.high]).all()
    both = estimate(np.stack([rows, np.arange(10.0)], 1))
    assert both.n.tolist() == [7, 10]
    frame = estimates_frame({"all": both, "some": estimate(rows)})
    assert frame.attrs["intervals"] == "95 % intervals over 7 to 10 rows, none below 8"
    assert estimates_frame([{"some": estimate(rows)}]).attrs["intervals"].startswith("no intervals: 7 rows")


def test_one_mean_has_one_interval_however_it_is_made():
    """The jackknife's, and that of clusters of one token, are that of the mean, also far from 0."""
    values = skewed(40, 3)
    for shift in (0.0, 1e6):
        expected = np.array(mean_interval(shift + values))
        left_out = jackknife((shift + values).mean(0), leave_one_out(shift + values))
        np.testing.assert_allclose(left_out, expected, rtol=1e-9)
        np.testing.assert_allclose(cluster_means(shift + values, np.ones((40, 1)))[1:], expected, rtol=1e-9)
        np.testing.assert_allclose(expected - shift, mean_interval(values), atol=1e-8)


def test_the_interval_of_a_ratio_is_the_jackknifes_by_hand():
    """Leave each cluster out in a loop."""
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 40, 60)
    sums = np.array([rng.normal(3, 1, n).sum() for n in counts])
    left_out = np.array([np.delete(sums, i).sum() / np.delete(counts, i).sum() for i in range(60)])
    mean, low, high = cluster_means(sums, counts.astype(float))
    assert mean == pytest.approx(sums.sum() / counts.sum())
    np.testing.assert_allclose((low, high), jackknife(mean, left_out), rtol=1e-9)
    # Its variance is Tukey's.
    half = t.ppf(0.975, 59) * np.sqrt(59 / 60 * ((left_out - left_out.mean()) ** 2).sum())
    assert low <= mean - half + 1e-12
    assert high >= mean + half - 1e-12
    assert high - low <= 2 * LONGEST * half


def test_what_cannot_be_below_0_has_no_interval_there():
    """Losses and distances end at 0, shares at 0 and 1."""
    values = np.append(np.zeros(11), 1.0)
    assert mean_interval(values)[0] == 0
    assert cluster_means(values, np.ones(12))[1] == 0
    assert mean_interval(values - 1e-9)[0] < 0
    share = np.append(np.full(19, 0.999), 0.5)
    assert jackknife(share.mean(), leave_one_out(share), within=(0.0, 1.0))[1] <= 1


def test_paired_shares_are_bonett_and_prices():
    """One more row won, one more lost; no difference at all is not certainty."""
    won, lost, rows = 9, 4, 50
    values = np.repeat([1.0, -1.0, 0.0], [won, lost, rows - won - lost])
    p, q = (won + 1) / (rows + 2), (lost + 1) / (rows + 2)
    half = t.ppf(0.975, rows + 1) * np.sqrt((p + q - (p - q) ** 2) / (rows + 2))
    np.testing.assert_allclose(paired_interval(values), (p - q - half, p - q + half))
    np.testing.assert_allclose(paired_interval(3 * values, np.full(rows, 3.0)), paired_interval(values))
    low, high = paired_interval(np.zeros(rows))
    assert low == -high < 0


@pytest.mark.parametrize("n_resamples", [1, 2, 7, 400, 1000])
def test_percentiles_are_numpys(n_resamples):
    """The second source: numpy's quantile, ties and missing draws included."""
    drawn = np.random.default_rng(n_resamples).normal(size=(n_resamples, 9)).round(1)
    before = drawn.copy()
    np.testing.assert_allclose(percentile_interval(drawn), np.quantile(drawn, [0.025, 0.975], axis=0), atol=1e-12)
    np.testing.assert_array_equal(drawn, before)
    if n_resamples > 1:
        drawn[0, 3] = np.nan
    np.testing.assert_allclose(percentile_interval(drawn), np.nanquantile(drawn, [0.025, 0.975], axis=0), atol=1e-12)


def test_shares_of_rows_that_agree_are_trials():
    """Eight texts in which all or no tokens agree are eight trials: scipy's Wilson, never empty, not above 1."""
    rng = np.random.default_rng(2)
    for sizes in (np.ones(8), np.full(8, 30.0)):
        for right in (0, 3, 7, 8):
            sums = sizes * (np.arange(8) < right)
            expected = binomtest(right, 8).proportion_ci(method="wilson")
            np.testing.assert_allclose(share_means(sums, sizes), (right / 8, *expected), atol=1e-12)
    # One long text among short ones is no more trials than its weight allows, as the variance of a weighted mean says.
    sizes = np.array([1.0, 2, 3, 4, 5, 6, 7, 100])
    trials = 1 / ((sizes / sizes.sum()) ** 2).sum()
    expected = 1 / (1 + 1.959964**2 / trials)  # of as many hits as trials
    np.testing.assert_allclose(share_means(sizes, sizes), (1, expected, 1), rtol=1e-6)
    # Texts whose tokens differ keep the interval of a mean; too few texts have none.
    partly = 30 * rng.random((9, 3)), np.full((9, 1), 30.0)
    np.testing.assert_array_equal(share_means(*partly)[:2], cluster_means(*partly)[:2])
    assert share_means(np.append(np.ones(11), 0.5), np.ones(12))[2] <= 1
    assert np.isnan(share_means(np.ones(7), np.ones(7))[1:]).all()
    drawn = (rng.random((8, 2000)) < 0.9) * 30.0
    low, high = share_means(drawn, np.full((8, 1), 30.0))[1:]
    assert np.mean((low <= 0.9) & (high >= 0.9)) > 0.9


def test_wilson_against_scipy():
    """A second source: scipy's own Wilson interval, one by one and all at once."""
    given = [(0, 10), (3, 7), (50, 80), (80, 80)]
    expected = [binomtest(hits, trials).proportion_ci(method="wilson") for hits, trials in given]
    for (hits, trials), (low, high) in zip(given, expected, strict=True):
        assert wilson(hits, trials) == pytest.approx((low, high))
    np.testing.assert_allclose(wilson(*np.array(given, dtype=float).T), np.array(expected).T, atol=1e-12)
    counts = np.arange(1.0, 200)  # of some, rounding would leave 1 − 1e-16
    assert (wilson(counts, counts)[1] == 1).all()
    assert (wilson(0 * counts, counts)[0] == 0).all()


def test_clusters_of_examples_are_sums_with_counts():
    """Whatever is estimated; examples without a value are left out of a mean."""
    shares, clusters = np.random.default_rng(0).random((24, 3)), np.arange(24) // 2
    sums, counts = shares.reshape(12, 2, 3).sum(1), np.full((12, 1), 2.0)
    for kind in ("mean", "share", "difference"):
        found, expected = estimate(shares, kind, clusters=clusters), estimate(sums, kind, counts=counts)
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-12)
        np.testing.assert_allclose(found.value, shares.mean(0), rtol=1e-12)
        assert found.n == expected.n == 12
    np.testing.assert_allclose(estimate(shares, "share")[1:3], wilson(shares.sum(0), 24))
    shares[3, 1] = np.nan
    assert estimate(shares).value[1] == pytest.approx(np.nanmean(shares[:, 1]))


def test_a_function_of_means_has_the_jackknifes_interval():
    """As leaving rows out by hand; of the mean itself it is the mean's interval."""
    x, y = skewed(2, 20, 3)
    left_out = np.stack([np.delete(y, i, 0).mean(0) / np.delete(x, i, 0).mean(0) for i in range(20)])
    found = estimate_function(np.divide, y, x, within=(0.0, 1e9))
    np.testing.assert_allclose(found.value, y.mean(0) / x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found[1:3], jackknife(found.value, left_out, within=(0.0, 1e9)), rtol=1e-9)
    np.testing.assert_allclose(estimate_function(lambda mean: mean, x)[:3], estimate(x)[:3], rtol=1e-9)


def test_a_frame_of_estimates_has_their_columns_units_and_note():
    values = skewed(9, 2)
    columns = {"layer": [0, 1], "norm": estimate(values, over="texts"), "rank": [1, 2]}
    frame = estimates_frame(columns, {"norm": "logits", "rank": "rank"}, gap=0.5)
    assert list(frame) == ["layer", "norm", "norm_low", "norm_high", "rank"]
    np.testing.assert_array_equal(frame["norm_low"], mean_interval(values)[0])
    assert frame.attrs["units"] == {name: "logits" for name in ("norm", "norm_low", "norm_high")} | {"rank": "rank"}
    assert frame.attrs["intervals"] == interval_note(9, "texts")
    assert frame.attrs["gap"] == 0.5
    rows = [{"layer": i, "norm": estimate(values[:, i])} for i in range(2)]
    np.testing.assert_allclose(estimates_frame(rows)["norm_high"], frame["norm_high"], rtol=1e-12)
