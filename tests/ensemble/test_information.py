"""Information in ensembles: against counting by hand, Gaussian truths, scipy-free oracles, and as laws."""

import dataclasses
import itertools
import re
import sys
from collections import Counter
from math import log, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma
from scipy.stats import binom, binomtest

import layerdiv_tl as ld
from layerdiv_tl.ensemble.information.estimator import TERMS, Estimator
from layerdiv_tl.ensemble.information.gaussian import (
    Gaussian,
    _inequality,
    bias_of_half_logdet,
    information_of_means,
    normal_scores,
)
from layerdiv_tl.ensemble.information.information import bound_rows
from layerdiv_tl.ensemble.information.result import fano
from layerdiv_tl.ensemble.information.sample import Sample, subsamples
from layerdiv_tl.ensemble.information.variational import SMOOTHING
from layerdiv_tl.ensemble.information.votes import TableVotes, TreeVotes
from layerdiv_tl.errors import InputError
from layerdiv_tl.results import Result
from tests.conftest import gpt2, llama

QUICK = {"n_permutations": 0, "n_resamples": 0, "check": False}


# Counting by hand: dictionaries of tuples, nothing of the package


def entropy(rows, corrected=False):
    """Plug-in entropy of a list of hashable outcomes, in bits; with Miller and Madow's (cells − 1)/(2n) nats."""
    counts, n = Counter(rows), len(rows)
    plug = -sum(c / n * log2(c / n) for c in counts.values())
    return plug + (len(counts) - 1) / (2 * n * log(2)) * corrected


def by_hand(votes, y, corrected=False):
    """Eq. 13's terms of votes, from joint tables."""

    def terms(rows):
        columns = list(zip(*rows, strict=True))
        return [entropy(column, corrected) for column in columns], entropy(rows, corrected)

    votes, y = [tuple(v) for v in np.asarray(votes).tolist()], list(np.asarray(y).tolist())
    single, joint = terms(votes)
    single_given, joint_given = np.zeros(len(single)), 0.0
    for label in set(y):
        inside = [v for v, other in zip(votes, y, strict=True) if other == label]
        s, j = terms(inside)
        share = len(inside) / len(votes)
        single_given, joint_given = single_given + share * np.array(s), joint_given + share * j
    relevancy = sum(single) - sum(single_given)
    redundancy, conditional = sum(single) - joint, sum(single_given) - joint_given
    values = (relevancy, redundancy, conditional, joint - joint_given, conditional - redundancy)
    return dict(zip(TERMS, values, strict=True))


TOYS = {
    "xor": (lambda a, b, c: [a, b], lambda a, b, c: a ^ b, (0, 0, 1, 1)),
    "xor of three": (lambda a, b, c: [a, b, c], lambda a, b, c: a ^ b ^ c, (0, 0, 1, 1)),
    "copies": (lambda a, b, c: [a, a, a], lambda a, b, c: a, (3, 2, 0, 1)),
    "independent of the label": (lambda a, b, c: [a, b], lambda a, b, c: c, (0, 0, 0, 0)),
    "independent and told": (lambda a, b, c: [a, b], lambda a, b, c: 2 * a + b, (2, 0, 0, 2)),
}


def toy(name, times=300):
    members, label, truth = TOYS[name]
    cube = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)] * times
    votes, y = np.array([members(*bits) for bits in cube]), np.array([label(*bits) for bits in cube])
    return votes, y, dict(zip(("relevancy", "redundancy", "conditional_redundancy", "joint"), truth, strict=True))


@pytest.mark.parametrize("name", TOYS)
def test_toys_are_exact_in_sign_and_size(name):
    """XOR is pure synergy, copies pure redundancy, independent votes neither."""
    votes, y, truth = toy(name)
    i = ld.information(votes, y, **QUICK)
    hand = by_hand(votes, y)
    assert i.method == "table"
    for term, value in truth.items():
        assert getattr(i, term) == pytest.approx(value, abs=0.01)
        assert hand[term] == pytest.approx(value, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(2, 3), st.integers(2, 3))
def test_joint_tables_are_miller_madow_by_hand(seed, members, options, classes):
    """Every term of every prefix is what counting tuples gives."""
    rng = np.random.default_rng(seed)
    n = 4 * options**members * classes + 40
    y = rng.permutation(np.arange(n) % classes)
    copied = rng.random((n, members)) < 0.5
    votes = np.where(copied, y[:, None] % options, rng.integers(0, options, (n, members)))
    estimate = TableVotes(votes, y, options, classes)
    for k in range(members):
        hand = by_hand(votes[:, : k + 1], y, corrected=True)
        for term, values in estimate.chain(range(members)).items():
            assert values[k] == pytest.approx(hand[term], abs=1e-9)


# Trees


def markov_votes(rng, n, members, stay=0.8):
    """A chain of votes that repeat their neighbor four times out of five: a tree, so its bound is reached."""
    votes = rng.integers(0, 2, (n, members))
    for m in range(1, members):
        votes[:, m] = np.where(rng.random(n) < stay, votes[:, m - 1], 1 - votes[:, m - 1])
    return votes


def test_a_chain_of_votes_has_the_total_correlation_of_its_edges():
    """Σ of (1 − h(0.8)) over 39 edges: the bound is reached where the votes are a tree."""
    rng = np.random.default_rng(1)
    errors = []
    for seed in range(5):
        votes, y = markov_votes(rng, 3000, 40), rng.integers(0, 2, 3000)
        i = ld.information(votes, y, seed=seed, **QUICK)
        truth = 39 * (1 + 0.8 * log2(0.8) + 0.2 * log2(0.2))
        assert i.method == "tree"
        errors.append([i.redundancy - truth, i.conditional_redundancy - truth, i.joint])
    assert np.abs(np.mean(errors, 0)).max() < 0.2


def test_choosing_a_tree_does_not_inflate_independent_votes():
    """Of independent votes the bound is 0 on average, though the best of many noisy trees is measured."""
    rng = np.random.default_rng(2)
    found = [
        ld.information(rng.integers(0, 4, (1000, 30)), rng.integers(0, 2, 1000), seed=s, **QUICK) for s in range(10)
    ]
    same = np.array([[i.redundancy, i.conditional_redundancy, i.relevancy] for i in found])
    assert (np.abs(same.mean(0)) < 3 * same.std(0, ddof=1) / np.sqrt(10) + 0.01).all()


def test_a_tree_is_a_lower_bound_and_misses_what_only_three_share():
    votes, y, _ = toy("xor of three", times=300)
    tree = TreeVotes(votes, y, 2, 2, np.arange(len(y)) // 8 % 2).totals()
    assert tree["conditional_redundancy"] == pytest.approx(0, abs=0.01)
    assert ld.information(votes, y, **QUICK).conditional_redundancy == pytest.approx(1, abs=0.01)


# Gaussian truths


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
        terms = Sample("gaussian", normal_scores(x), np.arange(129), y, tuple("0123"), 0).estimate().totals()
        x[:, ::2] = np.log(x[:, ::2])
        free, given = from_the_numbers(x, y)
        numbers.append([free, given])
        errors.append([terms[t] for t in TERMS] - np.array([0, free, given, 0, 0]))
    assert np.abs(np.mean(errors, 0)).max() <= 0.1
    off = np.mean(numbers, 0) - total_correlation(covariance)
    assert (np.abs(off) < 3 * np.std(numbers, 0) / 10).all()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "members", "rows"),
    [
        *itertools.product(("independent", "equicorrelated", "block"), (8,), (500, 5000)),
        ("equicorrelated", 61, 2000),
        ("block", 129, 2000),
    ],
)
def test_intervals_cover_the_truth(kind, members, rows):
    """At least 90 % of 95 % intervals hold the truth, for every term; a case with 129 members takes minutes."""
    covariance = covariances(members)[kind]
    truth = dict.fromkeys(TERMS, 0.0) | dict.fromkeys(TERMS[1:3], total_correlation(covariance))
    rng, inside = np.random.default_rng(4), []
    repeats = 50 if members < 129 else 20
    for seed in range(repeats):
        x, y = draw(rng, covariance, rows)
        i = ld.information(x, y, n_permutations=0, n_resamples=60, seed=seed, check=False)
        inside.append([i.intervals[t][0] <= truth[t] <= i.intervals[t][1] for t in TERMS])
    # What 90 % covered shows at least with 98 % probability: 40 of 50, 15 of 20.
    assert np.sum(inside, 0).min() >= binom.ppf(0.02, repeats, 0.9)
    assert np.mean(inside) >= 0.9


@pytest.mark.full
def test_opposite_correlations_are_synergy():
    """Classes with correlations of +0.8 and −0.8: relevancy 0, TC|Y = −½ log2(1 − 0.64) = 0.737, I = 0.452 bits.

    I is that of the two densities by quadrature (tests/calibration); the pooled law has no correlation, and TC 0.285.
    """
    rng = np.random.default_rng(6)
    y = np.arange(4000) % 2
    z = rng.normal(size=(4000, 2))
    sign = np.where(y == 0, 0.8, -0.8)
    x = np.stack([z[:, 0], sign * z[:, 0] + 0.6 * z[:, 1]], 1)
    i = ld.information(x, y, n_permutations=50, n_resamples=50)
    assert i.conditional_redundancy == pytest.approx(-log2(1 - 0.64) / 2, abs=0.05)
    assert i.joint == pytest.approx(0.4522, abs=0.03)
    assert i.redundancy == pytest.approx(0.2848, abs=0.05)
    assert abs(i.relevancy) < 0.01
    assert not i.frame().set_index("term").loc["diversity", "inside_null"]
    assert not any("classifier" in warning for warning in i.warnings)


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


@pytest.mark.full
@pytest.mark.parametrize(("members", "wide", "apart"), [(1, 3.0, 0.0), (5, 2.0, 1.0), (12, 1.5, 0.3)])
def test_classes_of_unequal_width_have_the_terms_of_their_mixture(members, wide, apart):
    """Independent members with deviations 1 and `wide`: I within 3 % by a mean over draws, TC(U|Y) 0.

    One Gaussian fitted to all rows gives 0.204 of 0.268 bits for the first.
    """
    rng = np.random.default_rng(31)
    deviations, means = (1.0, wide), (0.0, apart)

    def truth(dims, draws=200_000):
        noise, total = rng.normal(size=(draws, dims)), 0.0
        for mean, deviation in zip(means, deviations, strict=True):
            x = mean + deviation * noise
            fall = [((x - m) ** 2).sum(1) / 2 / d**2 + dims * np.log(d) for m, d in zip(means, deviations, strict=True)]
            own = fall[deviations.index(deviation)]
            total += (1 - np.logaddexp(own - fall[0], own - fall[1]) / np.log(2)).mean() / 2
        return total

    found = []
    for _ in range(10):
        y = rng.permutation(np.arange(2000) % 2)
        x = rng.normal(size=(2000, members)) * np.array(deviations)[y][:, None] + apart * y[:, None]
        i = ld.information(x, y, **QUICK)
        found.append([i.relevancy, i.joint, i.conditional_redundancy])
    error = 4 * np.std(found, 0, ddof=1) / np.sqrt(10)
    expected = np.array([members * truth(1), truth(members), 0.0])
    assert (np.abs(np.mean(found, 0) - expected) < error + 0.03 * expected + 0.003).all()


def test_equal_covariances_are_rarely_called_unequal():
    """z of equal covariances has mean 0 and deviation 1 with half as many columns as rows of a class; 5 is never."""
    rng, z = np.random.default_rng(30), []
    for _ in range(40):
        rows = rng.normal(size=(3, 80, 40))
        within = np.stack([np.cov(r.T) for r in rows])
        z.append(_inequality(within.mean(0), within, np.array([80, 80, 80])))
    assert abs(np.mean(z)) < 0.6
    assert 0.6 < np.std(z) < 1.5


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


# Nulls


@pytest.mark.nightly
@pytest.mark.parametrize("estimator", ["gaussian", "vote", "variational"])
def test_nulls_are_calibrated(estimator):
    """Members that know nothing of the label: p ≤ 0.1 about one time in ten, for every term that has a null."""
    rng, p = np.random.default_rng(10), []
    for seed in range(20 if estimator == "variational" else 40):
        u, y = rng.normal(size=(200, 4, 2)), rng.integers(0, 2, 200)
        found = ld.information(u, y, estimator, n_permutations=19, n_resamples=0, seed=seed, check=False).frame()
        p.append(found["p"].to_numpy())
    often = (np.array(p) <= 0.1).mean(0)
    known = np.isfinite(p).all(0)
    assert known.sum() == (3 if estimator == "variational" else 5)
    assert (often[known] <= 0.3).all()
    assert often[known].mean() > 0.01


@pytest.mark.full
def test_members_that_know_and_repeat_each_other_lie_outside_their_nulls():
    rng = np.random.default_rng(11)
    y = np.arange(600) % 2
    shared = rng.normal(size=600)
    x = 0.7 * y[:, None] + 0.7 * shared[:, None] + rng.normal(size=(600, 4))
    i = ld.information(x, y, n_permutations=60, n_resamples=20)
    frame = i.frame().set_index("term")
    assert not frame.loc[["relevancy", "redundancy", "conditional_redundancy", "joint"], "inside_null"].any()
    assert not any("inside its null" in w for w in i.warnings if "Diversity" not in w)
    assert (frame["p"].loc[["relevancy", "joint"]] <= 2 / 61).all()


# The identity, and one thing computed two ways


@pytest.fixture(scope="module")
def ensemble():
    """Four-way logits of six members that know something of the label and resemble each other."""
    rng = np.random.default_rng(13)
    y = rng.permutation(np.arange(480) % 4)
    common = rng.normal(size=(480, 1, 4))
    u = 0.6 * np.eye(4)[y][:, None] + 0.5 * common + rng.normal(size=(480, 6, 4)) * np.linspace(0.5, 2, 6)[:, None]
    return u + 10 * rng.normal(size=(480, 6, 1)), y


@pytest.mark.parametrize("estimator", ["gaussian", "vote"])
def test_the_identity_holds_for_every_prefix(ensemble, estimator):
    """I = relevancy + conditional redundancy − redundancy to 1e-9."""
    i = ld.information(*ensemble, estimator, **QUICK)
    assert i.joint == pytest.approx(i.relevancy + i.conditional_redundancy - i.redundancy, abs=1e-9)
    terms = i.gain_curve(n_permutations=0, n_resamples=0).terms
    difference = terms["relevancy"] + terms["conditional_redundancy"] - terms["redundancy"]
    assert np.abs(terms["joint"] - difference).max() < 1e-9


@pytest.mark.full
@pytest.mark.parametrize("estimator", ["gaussian", "vote", "variational"])
def test_the_gain_curve_is_information_of_the_first_members(ensemble, estimator):
    """Depth: step k is what `information` says of the first k members alone."""
    u, y = ensemble
    options = {} if estimator == "vote" else {"n_contrasts": 3}
    i = ld.information(u, y, estimator, **QUICK, **options)
    curve = i.gain_curve(n_permutations=0, n_resamples=0).frame()
    for k in (2, 5, 6):
        alone = ld.information(u[:, :k], y, estimator, **QUICK, **options)
        if alone.method == i.method:
            assert curve.loc[k - 1, "joint"] == pytest.approx(alone.joint, abs=1e-9)
            assert curve.loc[k - 1, "relevancy"] == pytest.approx(alone.relevancy, abs=1e-9)
    assert curve["gain"].sum() == pytest.approx(i.joint)
    assert list(curve["component"]) == [f"M{m}" for m in range(6)]


@pytest.mark.parametrize("estimator", ["gaussian", "vote", "variational"])
def test_a_components_gain_is_what_is_lost_without_it(ensemble, estimator):
    u, y = ensemble
    options = {} if estimator == "vote" else {"n_contrasts": 3}
    i = ld.information(u, y, estimator, **QUICK, **options)
    frame = i.by_component()
    for m in (0, 3):
        rest = ld.information(np.delete(u, m, 1), y, estimator, **QUICK, **options)
        if rest.method == i.method:
            assert frame.loc[m, "gain"] == pytest.approx(i.joint - rest.joint, abs=1e-9)
    assert frame["relevancy"].sum() == pytest.approx(i.relevancy)


def test_conditioning_step_by_step_is_joint_information_set_by_set(ensemble):
    """The greedy order is that of determinants of every set; gaps are differences of a chain's gains by hand."""
    u, y = ensemble
    i = ld.information(u, y, **QUICK)
    for labels in (y, *(np.random.default_rng(seed).permutation(y) for seed in range(5))):
        fast = i.estimate(labels=labels)
        assert list(fast.greedy_order()) == list(Estimator.greedy_order(fast))
    fast, order = i.estimate(), [3, 1, 4, 0, 5, 2]
    for k, later, new in ((0, 1, 2), (1, 3, 5), (2, 4, 5)):
        early, late = (np.diff(fast.chain([*order[:n], order[new]])["joint"], prepend=0.0)[-1] for n in (k, later))
        np.testing.assert_allclose(fast.submodularity_gaps(order, np.array([[k, later, new]])), early - late, atol=1e-9)


def test_greedy_begins_with_the_most_relevant_and_random_is_a_mean(ensemble):
    i = ld.information(*ensemble, **QUICK)
    greedy = i.gain_curve("greedy", n_permutations=0, n_resamples=0)
    assert greedy.orders[0, 0] == i.by_component()["relevancy"].argmax()
    assert greedy.terms["joint"][2] >= i.gain_curve(n_permutations=0, n_resamples=0).terms["joint"][2]
    random = i.gain_curve("random", n_permutations=0, n_resamples=0, orders=3)
    chains = [i.estimate().chain(order)["joint"] for order in random.orders]
    np.testing.assert_allclose(random.terms["joint"], np.mean(chains, 0))
    assert "component" not in random.frame()


# Diminishing gains


@pytest.mark.full
def test_members_independent_given_the_label_add_less_and_less():
    """Theorem 7: independent given Y, nearly all sampled pairs obey submodularity; and the null does not."""
    rng = np.random.default_rng(14)
    y = np.arange(8000) % 2
    x = 0.6 * y[:, None] + rng.normal(size=(8000, 10))
    curve = ld.information(x, y, **QUICK).gain_curve(n_permutations=20, n_resamples=10)
    row = curve.diminishing().iloc[0]
    assert row["share"] > 0.8
    assert not row["inside_null"]
    assert row["low"] <= row["share"] <= row["high"]


def test_parity_adds_more_and_more():
    """XOR of three: the last member brings everything, so pairs that include it disobey."""
    votes, y, _ = toy("xor of three")
    curve = ld.information(votes, y, **QUICK).gain_curve(n_permutations=0, n_resamples=0)
    np.testing.assert_allclose(curve.gains, [0, 0, 1], atol=0.01)
    assert curve.diminishing()["share"][0] < 0.5
    # Orders that all agree are trials: scipy's Wilson, and no empty interval.
    sure = dataclasses.replace(curve, shares=np.ones(10)).diminishing().iloc[0]
    assert (sure.share, sure.low, sure.high) == pytest.approx((1, *binomtest(10, 10).proportion_ci(method="wilson")))


@pytest.mark.full
def test_a_dip_of_noise_is_called_one():
    """Members that know nothing make the estimate dip, no deeper than shuffled labels do; the statement says so."""
    rng = np.random.default_rng(15)
    i = ld.information(rng.normal(size=(400, 12)), rng.integers(0, 2, 400), **QUICK)
    curve = i.gain_curve(n_permutations=60, n_resamples=0)
    frame = curve.frame()
    assert frame["dip"].any()
    assert (frame["dip"] == (frame["gain"] < 0)).all()
    assert frame.loc[frame["dip"], "inside_null"].all()
    assert "none deeper than" in curve.statement
    planted = dataclasses.replace(curve, gains=np.where(np.arange(12) == 4, -1.0, curve.gains))
    assert "(k = 5)" in planted.statement


# The variational bound, and bounds of the error


def shifted(rng, n=4000, shift=1.5, members=6):
    """Two classes apart by `shift` along members that are independent given the label; the posterior's logit."""
    y = rng.permutation(np.arange(n) % 2)
    x = shift * (y[:, None] - 0.5) / np.sqrt(members) + rng.normal(size=(n, members))
    return x, y, shift / np.sqrt(members) * x.sum(1)


def test_the_variational_estimate_never_exceeds_the_labels_entropy():
    rng = np.random.default_rng(18)
    y = np.arange(300) % 3
    i = ld.information(20 * np.eye(3)[y][:, None] + rng.normal(size=(300, 4, 3)), y, "variational", **QUICK)
    assert 1.4 < i.joint <= i.label_entropy == pytest.approx(log2(3))


def test_a_few_rows_that_a_classifier_is_sure_of_and_wrong_do_not_decide_its_bound():
    """Half of the rows are told apart clearly; among few rows of many members no seed may say that nothing is known."""
    rng = np.random.default_rng(5)
    labels = np.arange(44) % 2
    members = rng.normal(size=(44, 8)) + 2.2 * (labels[:, None] - 0.5) * (np.arange(8) < 3)
    members[:2] *= -6  # far on the wrong side
    found = [
        ld.information(np.stack([members, -members], 2), labels, seed=seed, n_permutations=0, n_resamples=0)
        for seed in range(4)
    ]
    for i in found:
        rows = i.classifier.joint_rows
        assert rows.min() > np.log2(SMOOTHING / (44 + SMOOTHING)) - 1e-9
        assert i.classifier.right.mean() > 0.8
        assert rows.mean() > 0.2


def test_far_apart_classes_are_told_and_not_more_than_their_entropy():
    """Four members, each two unit Gaussians 4 apart: 0.913 bits by quadrature, and together nearly 1."""
    x, y, _ = shifted(np.random.default_rng(19), 2000, 8.0, 4)
    i = ld.information(x, y, **QUICK)
    assert 0.999 < i.joint <= i.label_entropy
    assert i.relevancy == pytest.approx(4 * bits_of_means(np.array([[0.0], [4.0]])), abs=0.08)
    assert i.warnings[0].startswith("The relevancy may be too large")  # 0.913 bits each: as calibrated
    assert i.bounds().frame().set_index("name").loc["hellman_raviv", "error"] < 0.05


def test_no_estimate_above_the_labels_entropy_is_shown_as_a_number():
    """A tree of votes may exceed H(Y): it is warned of, and the repr says the first sentence."""
    rng = np.random.default_rng(20)
    y = np.arange(400) % 2
    i = ld.information(np.where(rng.random((400, 12)) < 0.9, y[:, None], 1 - y[:, None]), y, **QUICK)
    assert i.method == "tree"
    assert i.joint > i.label_entropy
    assert "exceeds H(Y)" in i.warnings[0]
    assert "joint above H(Y), diversity unknown" in repr(i)
    assert i.warnings[0].split(". ")[0] in repr(i)


@pytest.mark.parametrize("options", [2, 3, 4, 7])
def test_sharp_fano_is_the_least_error_allowed(options):
    """Inverted by a fine grid; never below the printed form; Hellman-Raviv is half."""
    grid = np.linspace(0, 1 - 1 / options, 20001)[1:]
    allowed = -grid * np.log2(grid) - (1 - grid) * np.log2(1 - grid) + grid * np.log2(options - 1)
    for remaining in np.linspace(0.05, log2(options) - 1e-6, 9):
        sharp = fano(remaining, options)
        assert sharp == pytest.approx(grid[np.argmax(allowed >= remaining)], abs=1e-4)
        printed = (remaining - 1) / log2(options)
        assert printed <= sharp + 1e-9
        assert sharp <= remaining / 2 + 1e-9
        assert options > 2 or printed <= 0


def test_bounds_hold_the_best_rules_error_and_say_which_side_is_valid():
    """Hellman-Raviv from the lower end of I holds the Bayes error; observed errors are counted by hand."""
    rng = np.random.default_rng(20)
    x, y, logit = shifted(rng)
    u = np.stack([-x, x], 2) / 2
    b = ld.information(u, y, **QUICK).bounds()
    frame = b.frame().set_index("name")
    bayes = ((logit > 0) != y).mean()
    assert frame.loc["hellman_raviv", "high"] > bayes > frame.loc["fano", "low"] - 0.02
    assert frame.loc["hellman_raviv", "error"] == pytest.approx((b.label_entropy - b.information) / 2)
    assert frame.loc["hellman_raviv", "high"] == pytest.approx((b.label_entropy - b.low) / 2)
    assert frame.loc["fano", "high"] == pytest.approx(fano(b.label_entropy - b.low, 2))
    assert frame.loc["ensemble", "error"] == pytest.approx((u.sum(1).argmax(1) != y).mean())
    assert bool(frame.loc["hellman_raviv", "valid"])
    assert not frame.loc["fano", "valid"]
    upper, lower = frame.loc["hellman_raviv", "high"], b.low  # not the estimate, which limits nothing
    assert f"at most {100 * upper:.3g}%" in b.statement
    assert f"at least {lower:.3g} of" in b.statement
    said = float(re.search(r"at most ([\d.]+)", b.plot().layout.title.text)[1])
    assert 100 * upper <= said < 100 * upper + 1


def test_a_majority_is_the_ensembles_answer():
    """Votes are counted, and a shared first place counts in part."""
    votes = np.array([[0, 0, 1], [1, 1, 0], [0, 2, 1], [1, 1, 1]] * 20)
    y = np.array([0, 1, 2, 0] * 20)
    errors = ld.information(votes, y, **QUICK).bounds().errors
    assert errors["ensemble"][0] == pytest.approx((0 + 0 + 2 / 3 + 1) / 4)


# Draws


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


# What is given


def test_contributions_shards_and_arrays_are_taken(tmp_path):
    """A model's own components, by name; the constant, the same for every example, is left out."""
    rng = np.random.default_rng(22)
    prompts = [rng.integers(1, 60, 6).tolist() for _ in range(120)]
    labels = rng.integers(0, 2, 120)
    c = ld.contributions(llama(), prompts, [7, 30])
    i = ld.information(c, labels, **QUICK)
    assert i.components == c.components
    array = ld.information(c.values, labels, components=[x.label for x in c.components], **QUICK)
    assert i.terms == array.terms
    assert i.bounds().errors["ensemble"][0] == pytest.approx((c.logits.argmax(1) != labels).mean())

    c = ld.contributions(gpt2(), prompts, [7, 30])
    assert c.components[-1].kind == "constant"
    i = ld.information(c, labels, **QUICK)
    assert i.components == c.components[:-1]
    assert "left out" in i.warnings[0]
    assert ld.information(c, labels, "vote", **QUICK).components == c.components


def test_groups_are_sums_of_neighbors(ensemble):
    u, y = ensemble
    i = ld.information(u, y, n_groups=4, **QUICK)
    summed = np.stack([u[:, :2].sum(1), u[:, 2:4].sum(1), u[:, 4], u[:, 5]], 1)
    assert i.terms == ld.information(summed, y, **QUICK).terms
    assert i.spans == ("M0 … M1", "M2 … M3", "M4", "M5")
    assert list(i.by_component()["component"]) == ["M0", "M1", "M2", "M3"]


def test_contrasts_ignore_what_all_options_share(ensemble):
    """Softmax cannot see a shift, and so it is not information; one contrast is each member's widest."""
    u, y = ensemble
    shift = np.random.default_rng(23).normal(size=(480, 6, 1)) * 100
    one, other = (ld.information(x, y, **QUICK) for x in (u, u + shift))
    assert one.terms == pytest.approx(other.terms, abs=1e-6)
    single = ld.information(u, y, n_contrasts=1, **QUICK)
    assert single.features.shape == (480, 6)
    centered = u[:, 2] - u[:, 2].mean(1, keepdims=True)
    widest = np.linalg.svd(centered - centered.mean(0))[0][:, 0]
    assert abs(np.corrcoef(np.argsort(np.argsort(widest)), np.argsort(np.argsort(single.features[:, 2])))[0, 1]) > 0.999


def test_few_rows_take_fewer_contrasts_and_say_so():
    rng = np.random.default_rng(24)
    i = ld.information(rng.normal(size=(160, 10, 4)), np.arange(160) % 4, **QUICK)
    assert i.features.shape == (160, 20)
    assert "2 leading contrasts of 3" in i.warnings[0]


def test_int_arrays_are_votes():
    rng = np.random.default_rng(25)
    votes, y = rng.integers(0, 3, (200, 4)), np.arange(200) % 2
    assert ld.information(votes, y, **QUICK).method in ("table", "tree")
    assert ld.information(votes.astype(float), y, **QUICK).method == "gaussian"
    assert ld.information(votes.tolist(), y.tolist(), **QUICK).method in ("table", "tree")
    assert ld.information(votes, y, "variational", **QUICK).method == "variational"
    assert ld.information(votes, np.where(y, "yes", "no"), **QUICK).classes == ("no", "yes")


@pytest.mark.nightly
@pytest.mark.parametrize("estimator", ["gaussian", "vote", "variational"])
def test_results_are_saved_and_loaded_whole(ensemble, estimator, tmp_path):
    i = ld.information(*ensemble, estimator, n_permutations=5, n_resamples=5)
    for result in (i, i.bounds(), i.gain_curve(n_permutations=3, n_resamples=3)):
        loaded = Result.load(result.save(tmp_path / "x.safetensors"))
        assert type(loaded) is type(result)
        assert loaded.frame().equals(result.frame())
        assert repr(loaded) == repr(result)
    again = ld.Information.load(i.save(tmp_path / "i.safetensors"))
    assert again.by_component().equals(i.by_component())


NORMAL = np.random.default_rng(26).normal(size=(100, 3))
HALF = np.arange(100) % 2
CONSTANT, COPIED, SUMMED = NORMAL.copy(), NORMAL.copy(), NORMAL.copy()
CONSTANT[:, 1], COPIED[:, 2] = 3.0, np.exp(COPIED[:, 0])
BROKEN = NORMAL.copy()
BROKEN[0, 0] = np.nan


@pytest.mark.parametrize(
    ("given", "labels", "options", "said"),
    [
        (NORMAL, np.zeros(100, int), {}, "label '0'"),
        (CONSTANT, HALF, {}, "M1: "),
        (COPIED, HALF, {}, "M[02] and M[02]"),
        (BROKEN, HALF, {}, "not finite"),
        (NORMAL[:3], [0, 1, 2], {}, "class '0' .* at least 8"),
        (np.zeros((3, 2, 4)) + NORMAL[:3, :2, None], [0, 1, 2], {}, "class '0'"),
        (np.random.default_rng(0).normal(size=(100, 60)), HALF, {}, "class '0' .*n_groups="),
        (NORMAL, HALF[:-1], {}, "99 labels"),
        (NORMAL, None, {}, "label"),
        (NORMAL, HALF + 0.5, {}, "labels"),
        (NORMAL, HALF, {"estimator": "kraskov"}, "estimator="),
        (NORMAL, HALF, {"estimator": "vote"}, "votes"),
        ((NORMAL > 0).astype(int), HALF, {"estimator": "gaussian"}, "estimator='vote'"),
        ((NORMAL > 0).astype(int), HALF, {"n_groups": 2}, "groups"),
        (NORMAL, HALF, {"n_permutations": -1}, "n_permutations=-1"),
        (NORMAL, HALF, {"n_resamples": 1.5}, "n_resamples=1.5"),
        (NORMAL, HALF, {"n_groups": 0}, "n_groups=0"),
        (NORMAL, HALF, {"confidence_level": 2}, "confidence_level=2"),
        (NORMAL, HALF, {"confidence_level": "a"}, "confidence_level='a'"),
        (NORMAL, HALF, {"estimator": np.array(["vote", "gaussian"])}, "estimator="),
        (NORMAL, HALF, {"n_permutations": 10**9}, "n_permutations=1000000000 .*10000"),
        (NORMAL, HALF, {"n_resamples": 10**9}, "n_resamples=1000000000 .*10000"),
        (NORMAL, HALF, {"check": "yes"}, "check='yes'"),
        (NORMAL, HALF, {"components": ["L0.mlp"]}, "components"),
        (NORMAL[:, 0], HALF, {}, "shape"),
        (NORMAL[:, :0], HALF, {}, "0 members"),
        ([["a"]], [0], {}, "ensemble"),
    ],
)
def test_bad_input_is_a_sentence(given, labels, options, said):
    with pytest.raises(InputError, match=said) as caught:
        ld.information(given, labels, **options)
    assert str(caught.value).endswith(".")


def test_bad_orders_are_a_sentence():
    i = ld.information(NORMAL, HALF, **QUICK)
    for order in ("deep", np.array(["deep", "greedy"])):
        with pytest.raises(InputError, match="order="):
            i.gain_curve(order)
    with pytest.raises(InputError, match="orders=1000000000"):
        i.gain_curve(orders=10**9)
    votes = np.random.default_rng(0).integers(0, 2, (100, 41))
    with pytest.raises(InputError, match="41 members"):
        ld.information(votes, HALF, **QUICK).gain_curve("greedy")


def test_one_member_is_an_ensemble_of_its_own():
    """No redundancy; the joint is the relevancy."""
    i = ld.information(NORMAL[:, :1], HALF, n_permutations=5, n_resamples=5)
    assert i.joint == pytest.approx(i.relevancy)
    assert i.redundancy == pytest.approx(0)
    assert i.by_component()["gain"][0] == pytest.approx(i.joint)
    assert len(i.gain_curve(n_permutations=2, n_resamples=2).frame()) == 1


def test_copies_are_no_trouble_to_votes_and_classifiers():
    votes = (NORMAL[:, [0, 0, 1]] > 0).astype(int)
    i = ld.information(votes, HALF, n_permutations=5, n_resamples=5)
    assert i.redundancy > 0.9
    assert np.isfinite(ld.information(COPIED, HALF, "variational", **QUICK).joint)


@pytest.mark.full
def test_a_shuffle_that_leaves_a_member_constant_is_no_draw():
    """Two odd rows, one in each class: half of the shuffles put both in one, where nothing can be estimated."""
    x = NORMAL.copy()
    x[:, 1] = 0.0
    x[[0, 1], 1] = 5.0, 7.0
    i = ld.information(x, HALF, n_permutations=40, n_resamples=40)
    assert 5 < len(i.null["joint"]) < 35
    assert np.isfinite([*i.intervals["joint"], *i.frame()["null_low"]]).all()
    assert np.isfinite(i.gain_curve(n_permutations=10, n_resamples=10).frame()["joint_null_low"]).all()


def test_gaussians_with_several_columns_per_member_are_whole_members():
    """Total correlation counts what members share, not what a member's own contrasts share."""
    rng = np.random.default_rng(27)
    shared = rng.normal(size=(1000, 1))
    x = np.concatenate([shared + 0.3 * rng.normal(size=(1000, 2)), rng.normal(size=(1000, 2))], 1)
    g = Gaussian(normal_scores(x), np.array([0, 0, 1, 1]), np.arange(1000) % 2, 2)
    assert abs(g.totals()["redundancy"]) < 0.02


@pytest.mark.full
def test_nothing_but_noise_is_warned_of():
    rng = np.random.default_rng(12)
    i = ld.information(rng.normal(size=(300, 5)), rng.integers(0, 2, 300), n_permutations=60, n_resamples=0)
    assert any("Joint" in w and "inside its null" in w for w in i.warnings)
    assert i.frame().set_index("term").loc["joint", "inside_null"]


@pytest.mark.full
def test_an_estimate_far_above_the_classifiers_is_warned_of(monkeypatch):
    """What the bound supports is not; an estimate of which classifiers find a tenth is."""
    rng = np.random.default_rng(32)
    y = np.arange(1000) % 2
    x = rng.normal(size=(1000, 8)) + 0.5 * y[:, None]
    assert not ld.information(x, y, n_permutations=0, n_resamples=0).warnings
    module = sys.modules["layerdiv_tl.ensemble.information.information"]  # the package's name is the function
    monkeypatch.setattr(module, "bound_rows", lambda sample: bound_rows(sample) / 10)
    warnings = ld.information(x, y, n_permutations=0, n_resamples=0).warnings
    assert any("far too large" in warning for warning in warnings)
