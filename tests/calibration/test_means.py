"""How often 95 % intervals of means, and of what is made of means, hold the truth: measured, not promised.

Each test states the nominal rate, 95 %, and what was measured with the seeds below. The percentile bootstrap that
these intervals replace held the truth of log-normal rows in 77 % (8 rows), 86 % (16) and 88 % (32).
"""

import numpy as np
import pytest

from layerdiv_tl.ensemble.auc import member_auc
from layerdiv_tl.ensemble.fits import slope
from layerdiv_tl.ensemble.intervals import LEAST, estimate, jackknife, leave_one_out

pytestmark = pytest.mark.nightly
SAMPLES = 4000
ROWS = (LEAST, 12, 16, 32, 64, 200)
LAWS = {
    "normal": (lambda rng, shape: rng.normal(size=shape), 0.0),
    "Student, 3 degrees": (lambda rng, shape: rng.standard_t(3, size=shape), 0.0),
    "uniform": (lambda rng, shape: rng.random(shape), 0.5),
    "exponential": (lambda rng, shape: rng.exponential(size=shape), 1.0),
    "log-normal": (lambda rng, shape: rng.lognormal(size=shape), np.exp(0.5)),
    "one in two": (lambda rng, shape: (rng.random(shape) < 0.5).astype(float), 0.5),
}


def tokens(sums, counts):
    return estimate(sums, counts=counts)[:3]


def held(ends, truth):
    """The share of intervals that hold it."""
    low, high = ends
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    return float(((low <= truth + 1e-12) & (truth - 1e-12 <= high)).mean())


@pytest.mark.parametrize("law", LAWS)
def test_means_of_rows(law):
    """Nominal 95 %. Measured at 8, 12, 16, 32, 64, 200 rows (%):

    normal              96.2 95.8 95.5 95.5 95.3 95.5
    Student, 3 degrees  97.4 96.2 96.0 96.1 95.9 95.1
    uniform             97.7 97.8 97.5 96.5 95.8 94.9
    exponential         95.0 95.4 96.2 96.0 95.7 95.5
    log-normal          91.9 92.5 93.3 94.3 95.1 95.5
    one in two          99.3 99.3 99.6 98.1 96.6 95.9
    """
    draw, truth = LAWS[law]
    rng = np.random.default_rng(0)
    rates = [held(estimate(draw(rng, (n, SAMPLES)))[1:3], truth) for n in ROWS]
    assert min(rates) >= (0.91 if law == "log-normal" else 0.93)
    assert max(rates[2:]) <= (1.0 if law == "one in two" else 0.975)  # nor are they wide for nothing


def test_means_of_rare_events():
    """Nominal 95 %. Of an event in one row of ten a mean's interval holds the truth in 58, 82, 96, 99, 97 %
    (8, 16, 32, 64, 200 rows): where no row shows it, nothing does. Proportions have Wilson's instead, differences
    of proportions that of the next test.
    """
    rng = np.random.default_rng(0)
    rates = [held(estimate((rng.random((n, SAMPLES)) < 0.1) * 1.0)[1:3], 0.1) for n in (8, 16, 32, 64, 200)]
    assert rates[0] < 0.7
    assert min(rates[2:]) > 0.9


@pytest.mark.parametrize(("won", "lost"), [(0.02, 0.0), (0.05, 0.05), (0.1, 0.05), (0.3, 0.1)])
def test_paired_shares(won, lost):
    """Nominal 95 %. Measured from 8 to 200 rows: 95 to 100 %; a mean's interval: down to 15 %."""
    rng = np.random.default_rng(0)
    rates = []
    for n in (8, 16, 32, 64, 200):
        u = rng.random((n, SAMPLES))
        rates.append(held(estimate((u < won) * 1.0 - (u > 1 - lost) * 1.0, "difference")[1:3], won - lost))
    assert min(rates) >= 0.92


@pytest.mark.parametrize("law", ["exponential", "log-normal"])
def test_shares_and_ratios(law):
    """Nominal 95 %. Measured from 8 to 200 rows, a share of a sum of three: exponential 95 to 96 %,
    log-normal 92 to 94 %; a ratio of two means whose rows go together: 92 to 95 % and 91 to 94 %."""
    draw, _ = LAWS[law]
    rng = np.random.default_rng(0)
    shares, ratios = [], []
    for n in ROWS:
        part, rest = draw(rng, (n, SAMPLES)), draw(rng, (2, n, SAMPLES)).sum(0)
        left_out = leave_one_out(part) / leave_one_out(part + rest)
        share = part.mean(0) / (part + rest).mean(0)
        shares.append(held(jackknife(share, left_out, within=(0, 1)), 1 / 3))
        below = draw(rng, (n, SAMPLES))
        above = 2 * below * rng.uniform(0.5, 1.5, below.shape)
        left_out = leave_one_out(above) / leave_one_out(below)
        ratios.append(held(jackknife(above.mean(0) / below.mean(0), left_out), 2.0))
    assert min(shares) >= 0.91
    assert min(ratios) >= 0.91


def clustered(rng, texts, common, skewed, heavy=False):
    """Sums and counts of tokens of texts of different lengths; `common` is the share of variance that a text has in
    common. The truth is 0."""
    counts = np.clip(rng.lognormal(3, 1.0 if heavy else 0.5, (texts, SAMPLES)).round(), 1, 400)
    shared = rng.normal(size=counts.shape)
    if skewed:
        shared = (rng.lognormal(size=counts.shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    noise = rng.normal(size=counts.shape) * np.sqrt(counts)
    return np.sqrt(common) * shared * counts + np.sqrt(1 - common) * noise, counts


@pytest.mark.parametrize("common", [0, 0.3, 1])
def test_means_of_tokens_of_texts(common):
    """Nominal 95 %, texts of 5 to 80 tokens that share no, 30 % or all of their tokens' variance.

    Measured with 8, 9, 20 and 50 texts: 95 to 97 %. Fewer have no interval: resampled percentiles held the truth in
    50 % (2 texts), 74 % (3) and 83 % (5), and tokens taken as independent in 69 %.
    """
    rng = np.random.default_rng(0)
    rates = [held(tokens(*clustered(rng, n, common, skewed=False))[1:], 0.0) for n in (8, 9, 20, 50)]
    assert 0.935 <= min(rates) <= max(rates) <= 0.98
    for few in (2, 3, 5, LEAST - 1):
        assert np.isnan(tokens(*clustered(rng, few, common, skewed=False))[1:]).all()


@pytest.mark.parametrize("heavy", [False, True])
def test_means_of_tokens_of_odd_texts(heavy):
    """Nominal 95 %, the hard case: what texts have in common is log-normal. With 8, 20, 50 texts of 5 to 80 tokens
    89, 91, 94 %; with lengths that are log-normal too (1 to 400 tokens) 85, 87, 89 %: there a text
    that holds most of the truth may not be among those seen, and no interval can know.
    """
    rng = np.random.default_rng(0)
    rates = [held(tokens(*clustered(rng, n, 1, skewed=True, heavy=heavy))[1:], 0.0) for n in (8, 20, 50)]
    assert min(rates) >= (0.82 if heavy else 0.88)


def test_slopes():
    """Nominal 95 %, the slope over three groups of 3, 8, 20 questions beside a length, errors log-normal and larger
    in later groups: 97, 96, 95 %. Percentiles of resamples: 86, 89, 93 %."""
    rng, rates = np.random.default_rng(0), []
    for each in (3, 8, 20):
        x = np.repeat([1.0, 2.0, 3.0], each)
        found = []
        for _ in range(600):
            length = rng.normal(size=len(x)) + 0.8 * x
            y = 0.5 * x + 0.3 * length + (rng.lognormal(size=len(x)) - np.exp(0.5)) * np.sqrt(x)
            s = slope(x, y, length)
            found.append((s.low, s.high))
        rates.append(held(np.array(found).T, 0.5))
    assert 0.92 <= min(rates) <= max(rates) <= 0.995


def test_slopes_at_equal_length():
    """Nothing rises beyond the covariate: the interval leaves out 0 in nominally 5 %, measured 4 to 6 %."""
    rng = np.random.default_rng(0)
    for n in (12, 24):
        excluded = 0
        for _ in range(200):
            hops = np.repeat([1.0, 2, 3], n // 3)
            length = 4 * hops + rng.integers(0, 4, n) + rng.integers(0, 3, n)
            found = slope(hops, 0.3 * length + rng.normal(size=n), length, rng.gamma(1.0, 1, n) + 0.02)
            excluded += not found.low <= 0 <= found.high
        assert excluded / 200 < 0.1


@pytest.mark.parametrize("is_skewed", [False, True])
@pytest.mark.parametrize("options", [2, 4, 8])
def test_auc_of_members(options, is_skewed):
    """Nominal 95 %. Measured with 8 rows a label and 200 rows, AUC 0.5 to 1: 93.9 to 100 %."""
    rng = np.random.default_rng(options)

    def draw(rows, members, effect):
        labels, u = np.arange(rows) % options, rng.normal(size=(rows, members, options))
        u = (np.exp(0.7 * u) if is_skewed else u) + effect * np.eye(options)[labels][:, None, :]
        return u * (np.exp(0.5 * rng.normal(size=(rows, members, 1))) if is_skewed else 1), labels

    for effect in (0, 1, 2, 4):
        truth = member_auc(*draw(40_000, 10, effect)).value.mean()
        for rows in (8 * options, 200):
            found = member_auc(*draw(rows, 2000, effect))
            assert held(found[1:3], truth) > 0.935, (effect, rows)


@pytest.mark.parametrize(("rare", "rows"), [(8, 16), (8, 44), (8, 200), (20, 40)])
def test_auc_of_pure_noise(rare, rows):
    """Nominal 5 %. Intervals that exclude 0.5 with 8 rows of a label: 3 to 7 %; below that there is none."""
    u = np.random.default_rng(0).normal(size=(rows, SAMPLES, 2))
    _, low, high, *_ = member_auc(u, (np.arange(rows) < rare).astype(int))
    assert ((low > 0.5) | (high < 0.5)).mean() < 0.08
    assert np.isnan(member_auc(u[:, :3], (np.arange(rows) < 7).astype(int)).low).all()
