"""Information in ensembles: against Gaussian truths, scipy by hand, and as laws."""

from dataclasses import replace
from math import log2

import numpy as np
import pytest
from scipy.stats import wishart

import layerdiv_tl as ld
from layerdiv_tl.ensemble.information.classifier import classifier_bound
from layerdiv_tl.ensemble.information.information import fano
from layerdiv_tl.ensemble.information.law import (
    TERMS,
    Law,
    half_logdet_bias,
    inequality,
    information_of_means,
    mixture_information,
)
from layerdiv_tl.ensemble.information.members import gaussianized
from tests.conftest import gpt2, llama


def bits_of_means(means, draws=200_000):
    """I of equally frequent classes, unit Gaussians at `[class, dim]`: a mean over draws, nothing of the package."""
    rng, classes, total = np.random.default_rng(0), len(means), 0.0
    noise = rng.normal(size=(draws, means.shape[1]))
    for own in means:
        density = [np.exp(-((noise + own - other) ** 2).sum(1) / 2) for other in means]
        total += np.log2(classes * np.exp(-(noise**2).sum(1) / 2) / np.sum(density, 0)).mean() / classes
    return total


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("apart", [0.1, 1.0, 3.0])
def test_information_of_means_is_a_mean_over_draws(classes, apart):
    means = np.random.default_rng(28).normal(size=(classes, classes - 1)) * apart
    found = information_of_means(means[None], np.full(classes, 1 / classes))[0]
    assert found == pytest.approx(bits_of_means(means), abs=0.01)


@pytest.mark.full
@pytest.mark.parametrize(("classes", "members", "rows"), [(2, 4, 400), (4, 12, 2000), (2, 61, 2000)])
@pytest.mark.parametrize("apart", [0.0, 0.3, 1.0])
def test_shifted_members_have_the_terms_of_their_mixture(classes, members, rows, apart):
    """Member i is shifted in class i mod K, members correlate by 0.2: no mean over 10 draws is off by 4 errors.

    One Gaussian fitted to all rows fails here: it gives 61 members 1 apart 2.15 bits about a label of 1 bit.
    """
    covariance = 0.8 * np.eye(members) + 0.2
    means = apart * (np.arange(members) % classes == np.arange(classes)[:, None])
    white = np.linalg.solve(np.linalg.cholesky(covariance), (means - means.mean(0)).T).T
    # Whitened means span K − 1 dimensions.
    left, size, _ = np.linalg.svd(white, full_matrices=False)
    joint = bits_of_means((left * size)[:, : classes - 1])
    relevancy = sum(bits_of_means(means[:, [m]]) * len(range(m, members, classes)) for m in range(classes))
    conditional = -np.linalg.slogdet(covariance)[1] / 2 / np.log(2)
    truth = np.array([relevancy, relevancy + conditional - joint, conditional, joint, joint - relevancy])
    rng, found = np.random.default_rng(29), []
    for _ in range(10):
        y = rng.permutation(np.arange(rows) % classes)
        x = means[y] + rng.normal(size=(rows, members)) @ np.linalg.cholesky(covariance).T
        x[:, ::2] = np.exp(x[:, ::2] / 3)
        scores = np.stack([gaussianized(column, y) for column in x.T], 1)
        found.append(Law.fit(scores, np.arange(members), y, members).chain()[:, -1])
    found = np.array(found)
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - truth) < 4 * error + 0.005 + 0.01 * np.abs(truth)).all()
    # With 61 members the joint information of noise stays within hundredths of a bit.
    assert np.abs(found[:, 3] - joint).max() < 0.15


@pytest.mark.parametrize("apart", [10, 1000])
def test_members_that_separate_the_classes_tell_the_label_and_no_more(apart):
    """Ranks do not say how far apart classes are: three members once had 2.981 ± 0.001 bits, whose truth is 3.000."""
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(2000, 3)) + apart * (np.arange(2000)[:, None] % 2)
        frame = ld.information(x, np.arange(2000) % 2).frame().set_index("term")
        for term, truth in (("relevancy", 3), ("joint", 1), ("diversity", -2)):
            row = frame.loc[term]
            assert row.bits_low - 1e-5 <= truth <= row.bits_high + 1e-5
            assert row.bits == pytest.approx(truth, abs=1e-4)


def test_the_law_of_samples_is_that_of_drawn_rows():
    """Intervals are drawn from Wishart and normal matrices: their spread is that of estimates on rows, by scipy."""
    rng, rows, members = np.random.default_rng(5), 400, 4
    y = np.arange(rows) % 2
    root = np.linalg.cholesky(0.3 + 0.7 * np.eye(members)).T
    shift = np.array([1.0, 0.5, 0.0, 0.0])

    def fitted():
        return Law.fit(rng.normal(size=(rows, members)) @ root + y[:, None] * shift, np.arange(members), y, members)

    found = np.array([fitted().chain() for _ in range(300)])
    drawn = np.sqrt(np.mean([fitted().draws(rng, 40).var(0, ddof=1) for _ in range(20)], 0))
    np.testing.assert_allclose(drawn[:, 1:], found.std(0)[:, 1:], rtol=0.25, atol=2e-3)
    half = [np.linalg.slogdet(wishart.rvs(20, np.eye(6) / 20, random_state=i))[1] / 2 for i in range(4000)]
    assert np.mean(half) == pytest.approx(half_logdet_bias(20, 6)[-1], abs=4 * np.std(half) / np.sqrt(4000))


def test_unequal_covariances_are_warned_of_and_equal_ones_rarely():
    """Correlations of +0.8 and −0.8 are in no term of a pooled law; z of equal covariances has mean 0, deviation 1."""
    rng, y = np.random.default_rng(6), np.arange(4000) % 2
    z = rng.normal(size=(4000, 2))
    x = np.stack([z[:, 0], np.where(y == 0, 0.8, -0.8) * z[:, 0] + 0.6 * z[:, 1]], 1)
    assert any("covariances of the classes differ" in warning for warning in ld.information(x, y).warnings)
    found = [inequality(rng.normal(size=(240, 40)), np.arange(240) % 3) for _ in range(40)]
    assert abs(np.mean(found)) < 0.6
    assert 0.6 < np.std(found) < 1.5


def test_a_monotone_change_of_a_member_changes_nothing():
    """The law sees the order of rows: exp, cubes and scales are not told apart."""
    rng, y = np.random.default_rng(8), np.arange(300) % 2
    x = rng.normal(size=(300, 5)) @ np.linalg.cholesky(0.4 + 0.6 * np.eye(5)).T + y[:, None]
    same = np.stack([np.exp(x[:, 0] / 5), x[:, 1] ** 3, 7 * x[:, 2], -x[:, 3], np.tanh(x[:, 4])], 1)
    one, other = (ld.information(a, y) for a in (x, same))
    assert one.terms == pytest.approx(other.terms, abs=2e-3)


@pytest.fixture(scope="module")
def ensemble():
    """Four-way logits of six members that know something of the label and resemble each other."""
    rng = np.random.default_rng(13)
    y = rng.permutation(np.arange(480) % 4)
    common = rng.normal(size=(480, 1, 4))
    u = 0.6 * np.eye(4)[y][:, None] + 0.5 * common + rng.normal(size=(480, 6, 4)) * np.linspace(0.5, 2, 6)[:, None]
    return u + 10 * rng.normal(size=(480, 6, 1)), y


def test_along_is_information_of_the_first_members(ensemble):
    """Every step is what `information` says of these members alone; Eq. 13 holds at each; gains add up (Theorem 5)."""
    u, y = ensemble
    i = ld.information(u, y)
    frame = i.along()
    for k in (2, 5, 6):
        alone = ld.information(u[:, :k], y)
        for term in TERMS:
            assert frame.loc[k - 1, term] == pytest.approx(alone.terms[term], abs=1e-9)
    difference = frame["relevancy"] + frame["conditional_redundancy"] - frame["redundancy"]
    assert np.abs(frame["joint"] - difference).max() < 1e-9
    assert frame["gain"].sum() == pytest.approx(i.joint)
    assert (frame["joint_low"] < frame["joint"]).all()
    assert list(frame["component"]) == [f"M{m}" for m in range(6)]


def test_a_components_gain_is_what_is_lost_without_it(ensemble):
    u, y = ensemble
    i = ld.information(u, y)
    frame = i.by_component()
    for m in (0, 3):
        assert frame.loc[m, "gain"] == pytest.approx(i.joint - ld.information(np.delete(u, m, 1), y).joint)
    assert frame["relevancy"].sum() == pytest.approx(i.relevancy)


def test_a_shift_of_all_options_is_no_information_and_groups_are_sums(ensemble):
    """All K − 1 contrasts of each member are read; equal seeds give equal intervals."""
    u, y = ensemble
    shift = np.random.default_rng(23).normal(size=(480, 6, 1)) * 100
    one, other = (ld.information(x, y) for x in (u, u + shift))
    assert one.terms == pytest.approx(other.terms, abs=1e-6)
    assert one.frame().equals(ld.information(u, y).frame())
    assert len(one.owner) == 18
    i = ld.information(u, y, n_groups=4)
    summed = np.stack([u[:, :2].sum(1), u[:, 2:4].sum(1), u[:, 4], u[:, 5]], 1)
    assert i.terms == ld.information(summed, y).terms
    assert i.spans == ("M0 … M1", "M2 … M3", "M4", "M5")


def test_continued_information_is_unbiased_where_nothing_is_told():
    """Estimates of a spread of 0 are as often negative, and so is their information."""
    rng = np.random.default_rng(3)
    spread = rng.normal(scale=0.05, size=(4000, 1, 1))
    bits = mixture_information(spread, np.array([0.5, 0.5]))
    assert abs(bits.mean()) < 4 * bits.std() / np.sqrt(4000)


def test_the_bound_is_never_above_the_labels_entropy_and_below_the_truth_where_classes_overlap():
    """The linear classifier is nearly the Bayes rule of shifted Gaussians: 0.1 bits below the truth at most."""
    rng, y = np.random.default_rng(18), np.arange(3000) % 3
    sure = ld.information(20 * np.eye(3)[y][:, None] + rng.normal(size=(3000, 4, 3)), y)
    assert 1.4 < sure.lower_bound.value <= sure.label_entropy == pytest.approx(log2(3))
    x, y = rng.normal(size=(2000, 4)) + 1.5 * (np.arange(2000)[:, None] % 2), np.arange(2000) % 2
    truth = bits_of_means(np.array([[0.0], [3.0]]))
    assert truth - 0.1 < classifier_bound(x, y, 0)[0] < truth + 0.02
    x[:2] *= -6  # rows of which a classifier is sure and wrong do not decide the bound
    assert truth - 0.15 < classifier_bound(x, y, 0)[0]


def test_what_classifiers_find_contradicts_the_law():
    """The sign of a product, which no mean shows; rows that repeat; and an ensemble of which nothing is said."""
    x = np.random.default_rng(3).normal(size=(1000, 2))
    i = ld.information(x, (x.prod(1) > 0).astype(int))
    assert "more than this law" in i.warnings[0]
    assert i.lower_bound.value > 0.5
    assert "more than this law" in repr(i)
    y = np.arange(1000) % 2
    x = np.random.default_rng(32).normal(size=(1000, 8)) + 0.5 * y[:, None]
    assert not ld.information(x, y).warnings
    twice = ld.information(np.repeat(x, 2, 0), np.repeat(y, 2))
    assert any("more than once: 1000" in warning for warning in twice.warnings)


def test_bounds_of_the_error_hold_for_the_best_rule():
    """Two Gaussians 1.5 apart: the Bayes rule errs in 22.7 %, above the sharp Fano bound and below Hellman-Raviv's."""
    rng, y = np.random.default_rng(20), np.arange(4000) % 2
    i = ld.information(rng.normal(size=(4000, 1)) + 1.5 * y[:, None], y)
    frame = i.error_bounds().set_index("information")
    assert (frame["fano"] < 0.227).all()
    assert (frame["hellman_raviv"] > 0.227).all()
    assert (frame["fano_printed"] <= 0).all()  # as Eq. 12 prints it, of two classes
    remaining = i.label_entropy - i.joint
    e = fano(remaining, 4)
    assert -e * log2(e) - (1 - e) * log2(1 - e) + e * log2(3) == pytest.approx(remaining)


def test_contributions_and_arrays_are_taken():
    """A model's own components by name and its own labels; a constant tells nothing, and counts for nothing."""
    rng = np.random.default_rng(22)
    prompts = [rng.integers(1, 60, 6).tolist() for _ in range(120)]
    labels = rng.integers(0, 2, 120)
    c = ld.contributions(llama(), prompts, [7, 30])
    i = ld.information(c, labels)
    assert i.components == c.components
    assert i.terms == ld.information(c.values, labels, components=[x.label for x in c.components]).terms
    assert ld.information(replace(c, labels=labels)).terms == i.terms
    c = ld.contributions(gpt2(), prompts, [7, 30])
    i = ld.information(c, labels)
    assert i.terms == pytest.approx(ld.information(c.values[:, :-1], labels).terms)
    assert [i.by_component()["relevancy"].iloc[-1], i.along()["gain"].iloc[-1]] == pytest.approx([0, 0], abs=1e-12)


NORMAL = np.random.default_rng(26).normal(size=(100, 3))
HALF = np.arange(100) % 2
SUM, COPIED, BROKEN = NORMAL.copy(), NORMAL.copy(), NORMAL.copy()
SUM[:, 2], COPIED[:, 2], BROKEN[0, 0] = NORMAL[:, 0] + NORMAL[:, 1], np.exp(COPIED[:, 0]), np.nan


@pytest.mark.parametrize(
    ("given", "labels", "about"),
    [
        (NORMAL, np.zeros(100, int), "0: 100"),
        (NORMAL[:10], [0] * 7 + [1] * 3, "8 rows each.* 1: 3"),
        (np.full((100, 2), 0.5), HALF, "nothing varies"),
        (SUM, HALF, "M0, M1, M2 determine"),
        (COPIED, HALF, "M0, M2 determine"),
        (BROKEN, HALF, "not finite"),
        (np.random.default_rng(0).normal(size=(100, 60)), HALF, "240 rows, .*n_groups=24"),
        (NORMAL, HALF[:-1], "100 examples"),
        (NORMAL, None, "label"),
        (NORMAL, HALF + 0.5, "labels"),
        ((NORMAL > 0).astype(int), HALF, "votes"),
    ],
)
def test_what_would_give_a_wrong_number_is_refused(given, labels, about):
    with pytest.raises(ld.InputError, match=about):
        ld.information(given, labels)
