"""Print how often rules for 95 % intervals hold the truth, and how wide they are.

    python -m tests.calibration.interval_rules --samples 4000

Rows are rules, columns populations; a cell is the share of intervals that hold the mean, and their mean width relative
to Student's t. The package's rule is "Hall, at most twice t". A second table is the AUC of members of pure noise: the
share of intervals that exclude 0.5, by the rows of the rarer label.
"""

import argparse
import sys

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from layerdiv_tl.ensemble import auc
from layerdiv_tl.ensemble.intervals import LONGEST, estimate

ROWS = (8, 12, 16, 32, 64, 200)
# Twelve rows of a normal law with an outlier, to which Hall's rule without a limit gives −5.7 to 2.55.
OUTLIER = np.array([[-2.1, 2.67, 0.16, 1.68, 3.98, -5.86, 2.05, 1.47, 2.95, -0.36, 2.22, 1.43]])


def populations(rng, samples, rows):
    """Samples `[sample, row]` by name, and their true means."""
    normal = rng.normal(size=(samples, rows))
    is_outlier = rng.random((samples, rows)) < 0.05
    sign = np.where(rng.random((samples, rows)) < 0.5, -6.0, 6.0)
    return {
        "normal": (normal, 0.0),
        "log-normal": (np.exp(rng.normal(size=(samples, rows))), np.exp(0.5)),
        "5 % at ±6": (np.where(is_outlier, sign, normal), 0.0),
        "5 % at +6": (np.where(is_outlier, 6.0, normal), 0.3),
    }


def moments(x):
    """Mean, its standard error, and the skewness."""
    moved = x - x.mean(1, keepdims=True)
    skew = (moved**3).mean(1) / np.maximum((moved**2).mean(1), 1e-300) ** 1.5
    return x.mean(1), x.std(1, ddof=1) / np.sqrt(x.shape[1]), skew


def student(x):
    mean, error, _ = moments(x)
    half = stdtrit(x.shape[1] - 1, 0.975) * error
    return mean - half, mean + half


def hall(x, longest=np.inf, bound=np.inf):
    """Hall's transformation, on neither side shorter than Student's or longer than `longest` times it; `bound` limits
    the skewness of the mean."""
    mean, error, skew = moments(x)
    n, q = x.shape[1], stdtrit(x.shape[1] - 1, 0.975)
    a = np.clip(skew * n / (n - 4) / np.sqrt(n), -bound, bound)
    a = np.where(np.abs(a) < 1e-6, 1e-6, a)
    above, below = (3 / a * (np.cbrt(1 + a * (y - a / 6)) - 1) for y in (q, -q))
    return mean - error * np.clip(above, q, longest * q), mean - error * np.clip(below, -longest * q, -q)


def johnson(x):
    """Johnson's (1978): Student's interval, moved by skewness · s / (6 n)."""
    mean, error, skew = moments(x)
    half, moved = stdtrit(x.shape[1] - 1, 0.975) * error, skew * error / (6 * np.sqrt(x.shape[1]))
    return mean + moved - half, mean + moved + half


def student_or_johnson(x):
    """The farther end of Student's and Johnson's."""
    ends = np.array([student(x), johnson(x)])
    return ends[:, 0].min(0), ends[:, 1].max(0)


def bca(x, draws=1000):
    """The bootstrap's bias-corrected and accelerated percentiles (Efron 1987)."""
    n = x.shape[1]
    weights = np.random.default_rng(9).multinomial(n, np.full(n, 1 / n), draws) / n
    means, moved = np.sort(x @ weights.T, 1), x - x.mean(1, keepdims=True)
    speed = (moved**3).sum(1) / (6 * (moved**2).sum(1) ** 1.5)
    bias = ndtri(np.clip((means < x.mean(1, keepdims=True)).mean(1), 1 / draws, 1 - 1 / draws))
    ends = []
    for z in ndtri([0.025, 0.975]):
        share = ndtr(bias + (bias + z) / (1 - speed * (bias + z)))
        ends.append(means[np.arange(len(x)), np.clip((share * draws).astype(int), 0, draws - 1)])
    return ends


RULES = {
    "Student's t": student,
    "Hall, no limit": hall,
    "Hall, skewness ≤ 0.4": lambda x: hall(x, bound=0.4),
    "Hall, at most twice t": lambda x: hall(x, LONGEST),
    "Johnson's t": johnson,
    "t or Johnson's, farther": student_or_johnson,
    "BCa": bca,
    "the package": lambda x: estimate(x.T)[1:3],
}


def rates(rule, x, truth):
    """(share of intervals that hold the truth, their mean width relative to Student's)."""
    low, high = rule(x)
    return ((low <= truth) & (truth <= high)).mean(), np.mean(high - low) / np.mean(np.subtract(*student(x)[::-1]))


def auc_exclusions(rare, rows, samples, seed=0):
    """The share of AUC intervals of pure noise that exclude 0.5, without the limit on rare labels."""
    u = np.random.default_rng(seed).normal(size=(rows, samples, 2))
    least, auc.LEAST = auc.LEAST, 1
    try:
        _, low, high, *_ = auc.member_auc(u, (np.arange(rows) < rare).astype(int))
    finally:
        auc.LEAST = least
    return ((low > 0.5) | (high < 0.5)).mean()


def main(samples):
    for name, rule in RULES.items():
        low, high = rule(OUTLIER)
        print(f"{name:24} {low[0]:6.2f} to {high[0]:.2f} for twelve rows with an outlier")
    for n in ROWS:
        laws = populations(np.random.default_rng(0), samples, n)
        print(f"\n{n} rows: % that hold the truth, width / t\n{'':24}", *(f"{name:>14}" for name in laws))
        for name, rule in RULES.items():
            cells = (rates(rule, x, truth) for x, truth in laws.values())
            print(f"{name:24}", *(f"{100 * held:8.1f} {width:5.2f}" for held, width in cells))
    print("\nAUC of noise: % of intervals that exclude 0.5, by rows of the rarer label (of 21, 44, 200 rows)")
    for rare in (1, 2, 3, 5, 8, 10):
        print(f"{rare:4}", *(f"{100 * auc_exclusions(rare, rows, samples):6.1f}" for rows in (21, 44, 200)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4000)
    sys.exit(main(parser.parse_args().samples))
