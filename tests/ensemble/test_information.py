"""Information in ensembles: against Gaussian truths, numpy by hand, and as laws."""

import sys
from math import log2
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import digamma

import layerdiv_tl as ld
from layerdiv_tl.ensemble.information.classifier import SMOOTHING, bound_rows, linear_rows
from layerdiv_tl.ensemble.information.gaussian import (
    TERMS,
    Gaussian,
    bias_of_half_logdet,
    information_of_means,
    normal_scores,
)
from layerdiv_tl.ensemble.information.information import fano
from layerdiv_tl.ensemble.information.sample import Sample, subsamples
from layerdiv_tl.errors import InputError
from tests.conftest import gpt2, llama

QUICK = {"n_permutations": 0, "n_resamples": 0, "check": False}


def covariances(members):
    """Independent, equicorrelated, and two blocks."""
    half = members // 2
    block = np.eye(members)
    block[:half, :half], block[half:, half:] = 0.5, 0.3
    np.fill_diagonal(block, 1.0)
    return {
        "independent": np.eye(members),
        "equicorrelated": 0.7 * np.eye(members) + 0.3,
        "block": block,
    }


def total_correlation(covariance):
    return -np.linalg.slogdet(covariance)[1] / 2 / np.log(2)


def draw(rng, covariance, n, classes=4):
    """Members that know nothing of the label, their own scales and laws, and labels."""
    x = rng.normal(size=(n, len(covariance))) @ np.linalg.cholesky(covariance).T
    x[:, ::2] = np.exp(x[:, ::2])
    return x, rng.permutation(np.arange(n) % classes)


def from_the_numbers(x, y):
    """(TC, TC|Y) of Gaussian numbers from determinants, less Wishart's bias: unbiased, with scipy alone."""

    def one(rows):
        n, d = rows.shape
        shrunk = digamma((n - np.arange(1, d + 1)) / 2).sum() - d * digamma((n - 1) / 2)
        return (-np.linalg.slogdet(np.corrcoef(rows.T))[1] + shrunk) / 2 / np.log(2)

    return one(x), sum((y == c).mean() * one(x[y == c]) for c in set(y))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["independent", "equicorrelated", "block"])
def test_mean_error_is_small_at_129_members_and_2000_rows(kind):
    """|mean error| ≤ 0.1 bit over 100 ensembles: TC, TC|Y, relevancy and I under the null, one contrast each.

    A single TC of dependent members varies by 0.9 bit from draw to draw, so the estimate from ranks is paired with
    the one from the Gaussian numbers themselves, which is unbiased.
    """
    covariance = covariances(129)[kind]
    rng, errors, numbers = np.random.default_rng(3), [], []
    for _ in range(100):
        x, y = draw(rng, covariance, 2000)
        terms = Sample(normal_scores(x), np.arange(129), y, tuple("0123"), 0).estimate().totals()
        x[:, ::2] = np.log(x[:, ::2])
        free, given = from_the_numbers(x, y)
        numbers.append([free, given])
        errors.append([terms[t] for t in TERMS] - np.array([0, free, given, 0, 0]))
    assert np.abs(np.mean(errors, 0)).max() <= 0.1
    off = np.mean(numbers, 0) - total_correlation(covariance)
    assert (np.abs(off) < 3 * np.std(numbers, 0) / 10).all()


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
    conditional = total_correlation(covariance)
    truth = np.array([relevancy, relevancy + conditional - joint, conditional, joint, joint - relevancy])
    rng, found = np.random.default_rng(29), []
    for _ in range(10):
        y = rng.permutation(np.arange(rows) % classes)
        x = means[y] + rng.normal(size=(rows, members)) @ np.linalg.cholesky(covariance).T
        x[:, ::2] = np.exp(x[:, ::2] / 3)
        found.append(list(ld.information(x, y, **QUICK).terms.values()))
    found = np.array(found)
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - truth) < 4 * error + 0.005 + 0.01 * np.abs(truth)).all()
    # With 61 members the joint information of noise stays within hundredths of a bit.
    assert np.abs(found[:, 3] - joint).max() < 0.15


def test_unequal_covariances_are_warned_of_and_equal_ones_rarely():
    """Correlations of +0.8 and −0.8 are in no term of a pooled law; z of equal covariances has mean 0, deviation 1."""
    rng, y = np.random.default_rng(6), np.arange(4000) % 2
    z = rng.normal(size=(4000, 2))
    x = np.stack([z[:, 0], np.where(y == 0, 0.8, -0.8) * z[:, 0] + 0.6 * z[:, 1]], 1)
    assert any("covariances of the classes differ" in warning for warning in ld.information(x, y, **QUICK).warnings)
    found = []
    for _ in range(40):
        rows, labels = rng.normal(size=(240, 40)), np.arange(240) % 3
        found.append(Gaussian(normal_scores(rows), np.arange(40), labels, 3).inequality())
    assert abs(np.mean(found)) < 0.6
    assert 0.6 < np.std(found) < 1.5


def test_wisharts_bias_is_that_of_drawn_covariances():
    rng = np.random.default_rng(7)
    half = [np.linalg.slogdet(np.cov(rng.normal(size=(20, 6)).T))[1] / 2 for _ in range(4000)]
    assert np.mean(half) == pytest.approx(bias_of_half_logdet(20, 6)[-1], abs=4 * np.std(half) / np.sqrt(4000))


def test_a_monotone_change_of_a_member_changes_nothing():
    """The copula is all the Gaussian estimate sees: exp, cubes and scales are not told apart."""
    rng = np.random.default_rng(8)
    x, y = draw(rng, covariances(5)["block"], 300, 2)
    same = np.stack([np.exp(x[:, 0] / 5), x[:, 1] ** 3, 7 * x[:, 2], -x[:, 3], np.tanh(x[:, 4])], 1)
    one, other = (ld.information(a, y, **QUICK) for a in (x, same))
    assert one.terms == pytest.approx(other.terms, abs=1e-9)


@pytest.mark.nightly
def test_nulls_are_calibrated():
    """Members that know nothing of the label: p ≤ 0.1 about one time in ten, for every term that has a null."""
    rng, p = np.random.default_rng(10), []
    for seed in range(40):
        u, y = rng.normal(size=(200, 4, 2)), rng.integers(0, 2, 200)
        found = ld.information(u, y, n_permutations=19, n_resamples=0, seed=seed, check=False).frame()
        p.append(found["p"].to_numpy())
    often = (np.array(p) <= 0.1).mean(0)
    assert (often <= 0.3).all()
    assert often.mean() > 0.01


@pytest.mark.full
def test_members_that_know_and_repeat_each_other_lie_outside_their_nulls():
    rng = np.random.default_rng(11)
    y = np.arange(600) % 2
    x = 0.7 * y[:, None] + 0.7 * rng.normal(size=(600, 1)) + rng.normal(size=(600, 4))
    frame = ld.information(x, y, n_permutations=60, n_resamples=20).frame().set_index("term")
    assert not frame.loc[["relevancy", "redundancy", "conditional_redundancy", "joint"], "inside_null"].any()
    assert (frame["p"].loc[["relevancy", "joint"]] <= 2 / 61).all()
    noise = ld.information(rng.normal(size=(300, 5)), y[:300], n_permutations=60, n_resamples=0)
    assert noise.frame().set_index("term").loc["joint", "inside_null"]


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
    i = ld.information(u, y, **QUICK)
    frame = i.along(n_resamples=3)
    for k in (2, 5, 6):
        alone = ld.information(u[:, :k], y, **QUICK)
        for term in TERMS:
            assert frame.loc[k - 1, term] == pytest.approx(alone.terms[term], abs=1e-9)
    difference = frame["relevancy"] + frame["conditional_redundancy"] - frame["redundancy"]
    assert np.abs(frame["joint"] - difference).max() < 1e-9
    assert frame["gain"].sum() == pytest.approx(i.joint)
    assert (frame["joint_low"] < frame["joint"]).all()
    assert list(frame["component"]) == [f"M{m}" for m in range(6)]
    other = i.along([3, 1, 4], n_resamples=0)
    assert list(other["component"]) == ["M3", "M1", "M4"]
    assert other["joint"].iloc[-1] == pytest.approx(ld.information(u[:, [1, 3, 4]], y, **QUICK).joint, abs=1e-9)


def test_a_components_gain_is_what_is_lost_without_it(ensemble):
    u, y = ensemble
    i = ld.information(u, y, **QUICK)
    frame = i.by_component()
    for m in (0, 3):
        assert frame.loc[m, "gain"] == pytest.approx(i.joint - ld.information(np.delete(u, m, 1), y, **QUICK).joint)
    assert frame["relevancy"].sum() == pytest.approx(i.relevancy)


@pytest.mark.full
def test_members_independent_given_the_label_add_less_and_less():
    """Theorem 7: gains of equal members fall."""
    y = np.arange(8000) % 2
    x = 0.6 * y[:, None] + np.random.default_rng(14).normal(size=(8000, 10))
    gain = ld.information(x, y, **QUICK).along(n_resamples=0)["gain"]
    assert gain[:3].sum() > gain[3:6].sum() > gain[6:9].sum() > 0


def test_the_bound_is_never_above_the_labels_entropy_and_below_the_truth_where_classes_overlap():
    """The linear classifier is nearly the Bayes rule of shifted Gaussians: 0.1 bits below the truth at most."""
    rng, y = np.random.default_rng(18), np.arange(3000) % 3
    sure = ld.information(20 * np.eye(3)[y][:, None] + rng.normal(size=(3000, 4, 3)), y, **QUICK | {"check": True})
    assert 1.4 < sure.lower_bound.value <= sure.label_entropy == pytest.approx(log2(3))
    x = rng.normal(size=(2000, 4)) + 1.5 * (np.arange(2000)[:, None] % 2)
    truth = bits_of_means(np.array([[0.0], [3.0]]))
    assert truth - 0.1 < linear_rows(x, np.arange(2000) % 2, 0).mean() < truth + 0.02


def test_trees_find_what_no_line_separates():
    """The sign of a product: the linear rows find nothing, the trees half of the bit; the estimate warns."""
    x = np.random.default_rng(3).normal(size=(1000, 2))
    y = (x.prod(1) > 0).astype(int)
    assert abs(linear_rows(x, y, 0).mean()) < 0.02
    assert bound_rows(x, y, 0).mean() > 0.5
    assert "clearly too small" in ld.information(x, y, n_permutations=0, n_resamples=0).warnings[0]


def test_a_few_rows_that_a_classifier_is_sure_of_and_wrong_do_not_decide_its_bound():
    """Half of the rows are told apart clearly; among few rows of many members no seed may say that nothing is known."""
    rng = np.random.default_rng(5)
    labels = np.arange(44) % 2
    members = rng.normal(size=(44, 8)) + 2.2 * (labels[:, None] - 0.5) * (np.arange(8) < 3)
    members[:2] *= -6  # far on the wrong side
    for seed in range(4):
        rows = linear_rows(normal_scores(members), labels, seed)
        assert rows.min() > np.log2(SMOOTHING / (44 + SMOOTHING)) - 1e-9
        assert rows.mean() > 0.2


def test_bounds_of_the_error_hold_for_the_best_rule():
    """Two Gaussians 1.5 apart: the Bayes rule errs in 22.7 %, above the sharp Fano bound and below Hellman-Raviv's."""
    rng, y = np.random.default_rng(20), np.arange(4000) % 2
    i = ld.information(rng.normal(size=(4000, 1)) + 1.5 * y[:, None], y, n_permutations=0, n_resamples=0)
    frame = i.error_bounds().set_index("information")
    assert (frame["fano"] < 0.227).all()
    assert (frame["hellman_raviv"] > 0.227).all()
    assert (frame["fano_printed"] <= 0).all()  # as Eq. 12 prints it, of two options
    assert list(frame.index) == ["estimate", "lower bound"]
    remaining = i.label_entropy - i.joint
    e = fano(remaining, 4)
    assert -e * log2(e) - (1 - e) * log2(1 - e) + e * log2(3) == pytest.approx(remaining)


def test_an_estimate_far_above_the_classifiers_is_warned_of(monkeypatch):
    """What the bound supports is not; an estimate of which classifiers find a tenth is."""
    y = np.arange(1000) % 2
    x = np.random.default_rng(32).normal(size=(1000, 8)) + 0.5 * y[:, None]
    assert not ld.information(x, y, n_permutations=0, n_resamples=0).warnings
    module = sys.modules["layerdiv_tl.ensemble.information.information"]  # the package's name is the function
    monkeypatch.setattr(module, "bound_rows", lambda *sample: bound_rows(*sample) / 10)
    assert "far too large" in ld.information(x, y, n_permutations=0, n_resamples=0).warnings[0]
    twice = ld.information(np.repeat(x, 2, 0), np.repeat(y, 2), **QUICK)
    assert any("1000 rows occur more than once" in warning for warning in twice.warnings)


def test_subsamples_are_without_replacement_and_spare_small_classes():
    y = np.array([0] * 90 + [1] * 10)
    kept = list(subsamples(y, 7, 50, 0))
    assert all(len(np.unique(rows)) == len(rows) == 80 for rows in kept)
    assert all((y[rows] == 1).sum() >= 7 for rows in kept)
    assert len({tuple(rows) for rows in kept}) == 50


@pytest.mark.full
def test_equal_seeds_are_equal_and_others_differ():
    rng = np.random.default_rng(21)
    x, y = rng.normal(size=(100, 3)), np.arange(100) % 2
    one, same, other = (ld.information(x, y, n_permutations=5, n_resamples=5, seed=s) for s in (1, 1, 2))
    assert one.intervals == same.intervals
    assert one.intervals != other.intervals
    np.testing.assert_array_equal(one.null["joint"], same.null["joint"])


def test_contributions_and_arrays_are_taken():
    """A model's own components, by name, and its own labels; the constant, the same for every example, is left out."""
    rng = np.random.default_rng(22)
    prompts = [rng.integers(1, 60, 6).tolist() for _ in range(120)]
    labels = rng.integers(0, 2, 120)
    c = ld.contributions(llama(), prompts, [7, 30])
    i = ld.information(c, labels, **QUICK)
    assert i.components == c.components
    assert i.terms == ld.information(c.values, labels, components=[x.label for x in c.components], **QUICK).terms
    own = SimpleNamespace(**{name: getattr(c, name) for name in c.__dataclass_fields__} | {"labels": labels})
    assert ld.information(own, **QUICK).terms == i.terms

    c = ld.contributions(gpt2(), prompts, [7, 30])
    i = ld.information(c, labels, **QUICK)
    assert i.components == c.components[:-1]
    assert "left out" in i.warnings[0]


def test_groups_are_sums_of_neighbors(ensemble):
    u, y = ensemble
    i = ld.information(u, y, n_groups=4, **QUICK)
    summed = np.stack([u[:, :2].sum(1), u[:, 2:4].sum(1), u[:, 4], u[:, 5]], 1)
    assert i.terms == ld.information(summed, y, **QUICK).terms
    assert i.spans == ("M0 … M1", "M2 … M3", "M4", "M5")


def test_contrasts_ignore_what_all_options_share(ensemble):
    """Softmax cannot see a shift, and so it is not information; few rows take fewer contrasts, and say so."""
    u, y = ensemble
    shift = np.random.default_rng(23).normal(size=(480, 6, 1)) * 100
    one, other = (ld.information(x, y, **QUICK) for x in (u, u + shift))
    assert one.terms == pytest.approx(other.terms, abs=1e-6)
    assert one.features.shape == (480, 18)
    few = ld.information(np.random.default_rng(24).normal(size=(160, 10, 4)), np.arange(160) % 4, **QUICK)
    assert few.features.shape == (160, 20)
    assert "2 leading contrasts of 3" in few.warnings[0]


@pytest.mark.full
def test_results_are_saved_and_loaded_whole(ensemble, tmp_path):
    i = ld.information(*ensemble, n_permutations=5, n_resamples=5)
    again = ld.load(i.save(tmp_path / "i.safetensors"))
    assert repr(again) == repr(i)
    for one, other in ((i.frame(), again.frame()), (i.by_component(), again.by_component())):
        assert one.equals(other)
    assert again.along(n_resamples=3).equals(i.along(n_resamples=3))


NORMAL = np.random.default_rng(26).normal(size=(100, 3))
HALF = np.arange(100) % 2
CONSTANT, COPIED, BROKEN = NORMAL.copy(), NORMAL.copy(), NORMAL.copy()
CONSTANT[:, 1], COPIED[:, 2], BROKEN[0, 0] = 3.0, np.exp(COPIED[:, 0]), np.nan


@pytest.mark.parametrize(
    ("given", "labels", "options", "about"),
    [
        (NORMAL, np.zeros(100, int), {}, "label '0'"),
        (CONSTANT, HALF, {}, "M1: "),
        (COPIED, HALF, {}, "M[02] and M[02]"),
        (BROKEN, HALF, {}, "not finite"),
        (NORMAL[:10], [0] * 7 + [1] * 3, {}, "class '1' .* at least 8"),
        (np.random.default_rng(0).normal(size=(100, 60)), HALF, {}, "class '0' .*n_groups="),
        (NORMAL, HALF[:-1], {}, "99 labels"),
        (NORMAL, None, {}, "label"),
        (NORMAL, HALF + 0.5, {}, "labels"),
        ((NORMAL > 0).astype(int), HALF, {}, "votes"),
        (NORMAL, HALF, {"n_resamples": 10**9}, "n_resamples=1000000000 .*10000"),
    ],
)
def test_what_would_give_a_wrong_number_is_refused(given, labels, options, about):
    with pytest.raises(InputError, match=about):
        ld.information(given, labels, **options)


def test_gaussians_with_several_columns_per_member_are_whole_members():
    """Total correlation counts what members share, not what a member's own contrasts share."""
    rng = np.random.default_rng(27)
    shared = rng.normal(size=(1000, 1))
    x = np.concatenate([shared + 0.3 * rng.normal(size=(1000, 2)), rng.normal(size=(1000, 2))], 1)
    g = Gaussian(normal_scores(x), np.array([0, 0, 1, 1]), np.arange(1000) % 2, 2)
    assert abs(g.totals()["redundancy"]) < 0.02
