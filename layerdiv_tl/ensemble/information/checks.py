"""Reasons why an estimate may be wrong: it contradicts a variational bound, exceeds H(Y), or ranks hide differences."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from ..intervals import Estimate
from .estimator import BITS, Columns, Estimator, Owner, entropy_of_labels, normal_quantile
from .gaussian import Gaussian, normal_scores
from .sample import Sample, one_hot
from .variational import Variational, nonlinear_rows

# One-sided: by chance the bound exceeds a correct estimate about one time in a hundred.
BOUND_Z = NormalDist().inv_cdf(0.99)
# Bits that change no conclusion; two classifiers may differ by these where rows are few.
NEGLIGIBLE = 0.02
# Excess over the lower bound, in bits and relative to the bound, at which an estimate is far too large.
LARGE = 0.1
# The share of a class's own entropy from which on a member alone separates that class.
SEPARATED = 0.9
# Draws that measure the ranking error: a paired difference, which varies little.
N_PAIRS = 20


def rank_error(i: Sample, estimate: Gaussian) -> float:
    """Compute the bits by which ranks misstate the redundancy of Gaussian members with these correlations.

    Negative for near copies, whose small differences are lost in the spacing of the ranks.
    """
    n = len(i.labels)
    root, rng = np.linalg.cholesky(estimate.covariance), np.random.default_rng([i.seed, 7])
    errors = []
    for _ in range(N_PAIRS):
        x = rng.normal(size=(n, len(root))) @ root.T
        errors.append(_total_correlation(normal_scores(x), i.owner) - _total_correlation(x, i.owner))
    return float(np.mean(errors))


def _total_correlation(x: Columns, owner: Owner) -> float:
    """Compute total correlation of Gaussian members, in bits, plug-in."""
    r = np.corrcoef(x.T).reshape(x.shape[1], x.shape[1])
    several = np.flatnonzero(np.bincount(owner) > 1)
    alone = sum(np.linalg.slogdet(r[np.ix_(owner == m, owner == m)])[1] for m in several)
    return float(alone - np.linalg.slogdet(r)[1]) / 2 / BITS


def bound_rows(i: Sample, x: Columns | None = None) -> Float[np.ndarray, " example"] | None:
    """Return log2 q(y|u)/p(y) of each held-out row by a linear classifier or boosted trees, whichever finds more;
    their mean is a lower bound of I(U; Y). None for members that never vary.
    """
    if x is None:
        x = one_hot(i.features)[0] if i.votes else i.features
    if not x.shape[1]:
        return None
    linear = Variational(x, np.zeros(x.shape[1], dtype=int), i.labels, len(i.classes), 1, i.seed).joint_rows
    nonlinear = nonlinear_rows(x, i.labels, len(i.classes), i.seed)
    return nonlinear if nonlinear.mean() > linear.mean() else linear


def lower_bound(rows: Float[np.ndarray, " example"], label_entropy: float, confidence_level: float) -> Estimate:
    """Average the rows in bits, with a normal interval, between 0 and H(Y)."""
    mean, half = float(rows.mean()), normal_quantile(confidence_level) * float(rows.std(ddof=1)) / np.sqrt(len(rows))
    value, low, high = (float(np.clip(end, 0.0, label_entropy)) for end in (mean, mean - half, mean + half))
    return Estimate(value, low, high, len(rows))


def exceeds_entropy(joint: float, i: Sample) -> bool:
    """Check whether a joint information exceeds H(Y), which is impossible, by more than the entropy's own bias."""
    # Votes are corrected by Miller and Madow's term, which the plug-in entropy of the labels lacks.
    bias = (len(i.classes) - 1) / (2 * len(i.labels) * BITS)
    return bool(joint > entropy_of_labels(i.labels) + bias + 1e-9)


def contradictions(
    i: Sample,
    estimate: Estimator,
    terms: dict[str, float],
    intervals: dict[str, tuple[float, float]],
    confidence_level: float,
    rows: Float[np.ndarray, " example"] | None,
) -> list[str]:
    """List reasons why the terms may be wrong; without a bound's `rows`, only those that are cheap to check."""
    joint, entropy, found = terms["joint"], entropy_of_labels(i.labels), []
    error = {term: (high - low) / 2 / normal_quantile(confidence_level) for term, (low, high) in intervals.items()}
    if isinstance(estimate, Gaussian):
        # Measured in tests/calibration.
        if estimate.separate and len(i.classes) > 2:
            found.append(
                "The joint information may be too large by 0.2 bits, and its interval may miss the truth: there are "
                "more than two classes, of unequal covariances."
            )
        share = estimate.share
        of_one_class = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)).max()
        if estimate.relevancies.max() > SEPARATED * of_one_class:
            found.append(
                "The relevancy may be too large by up to 3 %, and its interval may miss the truth: some members "
                "separate a class."
            )
    if rows is not None and isinstance(estimate, Gaussian):
        off = rank_error(i, estimate)
        if abs(off) > max(np.nan_to_num(error["redundancy"]) / 2, NEGLIGIBLE):
            found.append(
                f"The redundancy ({terms['redundancy']:.3g} bits) is too {'small' if off < 0 else 'large'} by "
                f"{abs(off):.2g} bits or more: some members are near copies, and ranking hides differences smaller "
                "than one rank."
            )
    if exceeds_entropy(joint, i):
        found.append(
            f"The joint information ({joint:.3g} bits) exceeds H(Y) = {entropy:.3g}, which no information does: the "
            "estimator's assumption does not hold. bounds() takes a variational estimate."
        )
    if rows is None:
        return found
    bound = lower_bound(rows, entropy, confidence_level)
    own = rows.std(ddof=1) / np.sqrt(len(rows))
    if i.method == "variational":
        is_exceeded = _is_clearly_positive(rows - i.classifier.joint_rows)
    else:
        both = np.hypot(own, own if np.isnan(error["joint"]) else error["joint"])
        is_exceeded = bound.value - joint > BOUND_Z * both + NEGLIGIBLE
    if is_exceeded:
        name = "lower bound by a linear classifier" if i.method == "variational" else "estimate"
        found.append(
            f"A nonlinear classifier finds at least {_shown(bound)} about unseen labels: the {name} ({joint:.3g} bits) "
            "is clearly too small."
        )
    low = intervals["joint"][0]
    if i.method == "gaussian" and (joint if np.isnan(low) else low) - bound.high > max(bound.high, LARGE):
        found.append(
            f"The joint information ({joint:.3g} bits) may be far too large: of it, classifiers find {_shown(bound)} "
            "about unseen labels."
        )
    whole = None if i.all_contrasts is None else bound_rows(i, i.all_contrasts)
    if whole is not None and _is_clearly_positive(whole - rows):
        way = "Use more contrasts" + ("" if i.method == "variational" else ", or estimator='variational'")
        found.append(
            "The contrasts left out depend on the label: all contrasts hold at least "
            f"{_shown(lower_bound(whole, entropy, confidence_level))}, the {len(i.owner)} used at least "
            f"{_shown(bound)}. {way}."
        )
    return found


def _is_clearly_positive(difference: np.ndarray) -> bool:
    """Check whether a mean over rows exceeds the negligible amount by more than its error."""
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() > NEGLIGIBLE + BOUND_Z * error)


def _shown(bound: Estimate) -> str:
    return f"{bound.value:.3g} bits [{bound.low:.3g}, {bound.high:.3g}]"
