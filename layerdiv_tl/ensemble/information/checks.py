"""Where an estimate's assumptions fail: `Information.doubts`, and `Information.warnings` in full."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .estimator import BITS, Columns, Owner, normal_quantile
from .gaussian import Gaussian, normal_scores
from .resampling import one_hot
from .variational import LowerBound, lower_bound

if TYPE_CHECKING:
    from .result import Information

# One-sided: the bound exceeds a right estimate about one time in a hundred.
BOUND_Z = NormalDist().inv_cdf(0.99)
# Bits that change no conclusion, by which two classifiers may differ for want of rows.
NEGLIGIBLE = 0.02
# Bits, and as many as the bound itself, by which an estimate lies far above the lower bound.
LARGE = 0.1
# Draws that measure the error of ranking: it is a difference of pairs, which varies little.
N_PAIRS = 20


def rank_error(i: Information) -> float:
    """Bits by which ranks misstate the redundancy of Gaussian members correlated as these are within classes.

    Below 0 for near copies, whose small differences drown in the spacing of the ranks.
    """
    n, estimate = len(i.labels), cast(Gaussian, i.estimate())
    root, rng = np.linalg.cholesky(estimate.covariance), np.random.default_rng([i.seed, 7])
    errors = []
    for _ in range(N_PAIRS):
        x = rng.normal(size=(n, len(root))) @ root.T
        errors.append(_total_correlation(normal_scores(x), i.owner) - _total_correlation(x, i.owner))
    return float(np.mean(errors))


def _total_correlation(x: Columns, owner: Owner) -> float:
    """Of Gaussian members, in bits, plug-in."""
    r = np.corrcoef(x.T).reshape(x.shape[1], x.shape[1])
    several = np.flatnonzero(np.bincount(owner) > 1)
    alone = sum(np.linalg.slogdet(r[np.ix_(owner == m, owner == m)])[1] for m in several)
    return float(alone - np.linalg.slogdet(r)[1]) / 2 / BITS


def check_assumptions(i: Information, check: bool) -> dict[str, Any]:
    """The fields `lower_bound` and `doubts` of an `Information`; without `check` only what costs nothing."""
    y, classes = i.labels, len(i.classes)
    error = {term: (high - low) / 2 / normal_quantile(i.confidence_level) for term, (low, high) in i.intervals.items()}
    columns = one_hot(i.features)[0] if i.votes else i.features
    bound = lower_bound(columns, y, classes, i.seed, i.confidence_level) if check and columns.shape[1] else None
    doubts = []
    if check and i.method == "gaussian":
        off = rank_error(i)
        if abs(off) > max(np.nan_to_num(error["redundancy"]) / 2, NEGLIGIBLE):
            doubts.append(
                f"The redundancy ({i.redundancy:.3g} bits) is too {'small' if off < 0 else 'large'} by {abs(off):.2g} "
                "bits or more: some members are near copies, and their differences drown in the spacing of ranks."
            )
    if i.exceeds_entropy:
        doubts.append(
            f"The joint information ({i.joint:.3g} bits) exceeds H(Y) = {i.label_entropy:.3g}, which no information "
            "does: the estimator's assumption does not hold. bounds() takes a variational estimate."
        )
    if bound and _is_exceeded(bound, i, error["joint"]):
        name = "lower bound by a linear classifier" if i.method == "variational" else "estimate"
        doubts.append(
            f"A nonlinear classifier finds at least {_interval(bound)} about unseen labels: the {name} "
            f"({i.joint:.3g} bits) is clearly too small."
        )
    low = i.intervals["joint"][0]
    low = i.joint if np.isnan(low) else low
    if bound and i.method == "gaussian" and low - bound.high > max(bound.high, LARGE):
        doubts.append(
            f"The joint information ({i.joint:.3g} bits) may be far too large: of it, a nonlinear classifier finds "
            f"{_interval(bound)} about unseen labels."
        )
    if bound and i.all_contrasts is not None:
        whole = lower_bound(i.all_contrasts, y, classes, i.seed, i.confidence_level)
        if _is_clearly_positive(whole.rows - bound.rows):
            way = "Use more contrasts" + ("" if i.method == "variational" else ", or estimator='variational'")
            doubts.append(
                f"The contrasts left out depend on the label: all contrasts hold at least {_interval(whole)}, the "
                f"{len(i.owner)} used at least {_interval(bound)}. {way}."
            )
    return {"lower_bound": bound, "doubts": tuple(doubts)}


def _is_exceeded(bound: LowerBound, i: Information, error: float) -> bool:
    """Whether the bound lies above the joint information by more than both errors explain."""
    if i.method == "variational":
        return _is_clearly_positive(bound.rows - i.classifier.joint_rows)
    own = bound.rows.std(ddof=1) / np.sqrt(len(bound.rows))
    return bound.bits - i.joint > BOUND_Z * np.hypot(own, own if np.isnan(error) else error) + NEGLIGIBLE


def _is_clearly_positive(difference: np.ndarray) -> bool:
    """Whether a mean over rows exceeds what is negligible by more than its error."""
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() > NEGLIGIBLE + BOUND_Z * error)


def _interval(bound: LowerBound) -> str:
    return f"{bound.bits:.3g} bits [{bound.low:.3g}, {bound.high:.3g}]"


def warnings_of(i: Information) -> tuple[str, ...]:
    """What should be read before the numbers."""
    counts, dims, warnings = np.bincount(i.labels), len(i.owner), [*i.notes, *i.doubts]
    if len(i.classes) < i.options:
        warnings.append(f"{i.options - len(i.classes)} of {i.options} options are no example's label.")
    small = i.classes[int(counts.argmin())]
    if counts.min() < dims:
        warnings.append(f"Class {small!r} has fewer rows ({counts.min()}) than there are dimensions ({dims}).")
    elif i.method == "gaussian" and counts.min() < 4 * dims:
        warnings.append(
            f"{len(i.components)} members are many for {len(i.labels)} rows: class {small!r} has {counts.min()} rows "
            f"for {dims} dimensions. The estimates are noisy; n_groups= makes fewer members."
        )
    if not i.votes and (repeats := len(i.features) - len(np.unique(i.features, axis=0))):
        warnings.append(f"{repeats} rows occur more than once: the estimates take rows for independent.")
    if i.method == "tree":
        warnings.append(
            "Too many votes for a joint table: both redundancies are lower bounds (a tree's), the joint information "
            "and the diversity are none."
        )
    for row in i.frame().itertuples():
        if row.inside_null:
            warnings.append(
                f"{str(row.term).replace('_', ' ').capitalize()} ({row.bits:.3g} bits) lies inside its null "
                f"({row.null_model}: {row.null_low:.3g} to {row.null_high:.3g})."
            )
    return tuple(warnings)
