"""Where an estimate's assumptions fail: `Information.doubts`, and `Information.warnings` in full."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from .estimator import BITS, normal_quantile
from .features import Features
from .fit import GaussianFit, gaussian_fit
from .lower_bound import LowerBound, lower_bound
from .resampling import Sample, one_hot

if TYPE_CHECKING:
    from .result import Information

# At these one-sided levels all checks of one estimate together raise doubt falsely about one time in 25.
FIT_LEVEL, BOUND_Z = 0.02, NormalDist().inv_cdf(0.99)
# Bits that change no conclusion, by which two classifiers may differ for want of rows.
NEGLIGIBLE = 0.02
UNCHECKED: dict[str, Any] = {"fit": None, "lower_bound": None, "doubts": ()}


def check_assumptions(
    sample: Sample, data: Features, fields: dict[str, Any], confidence_level: float
) -> dict[str, Any]:
    """The fields `fit`, `lower_bound` and `doubts` of an `Information` with these terms and intervals."""
    y, classes, seed = sample.labels, sample.classes, sample.seed
    fit = gaussian_fit(sample.features, sample.owner, y, classes, seed) if sample.method == "gaussian" else None
    columns = one_hot(sample.features)[0] if sample.votes else sample.features
    bound = lower_bound(columns, y, classes, seed, confidence_level) if columns.shape[1] else None
    error = {}
    for term in ("redundancy", "joint"):
        low, high = fields["intervals"][term]
        error[term] = (high - low) / 2 / normal_quantile(confidence_level)
    doubts = _doubts_of_fit(fit, fields["terms"]["redundancy"], error["redundancy"]) if fit else []
    if bound and _is_exceeded(bound, sample, fields["terms"]["joint"], error["joint"]):
        name = "lower bound by a linear classifier" if sample.method == "variational" else "estimate"
        doubts.append(
            f"A nonlinear classifier finds at least {_interval(bound)} about unseen labels: the {name} "
            f"({fields['terms']['joint']:.3g} bits) is clearly too small."
        )
    if bound and data.all_contrasts is not None:
        whole = lower_bound(data.all_contrasts, y, classes, seed, confidence_level)
        if _is_clearly_positive(whole.rows - bound.rows):
            doubts.append(
                f"The contrasts left out depend on the label: all contrasts hold at least {_interval(whole)}, the "
                f"{len(sample.owner)} used at least {_interval(bound)}. Use more contrasts, or estimator='variational'."
            )
    return {"fit": fit, "lower_bound": bound, "doubts": tuple(doubts)}


def _doubts_of_fit(fit: GaussianFit, redundancy: float, error: float) -> list[str]:
    doubts = []
    if fit.p <= FIT_LEVEL:
        parts = {"over all rows": fit.p_all_rows, "within classes": fit.p_within_classes}
        where = " and ".join(name for name, p in parts.items() if p <= FIT_LEVEL) or "over all rows or within classes"
        doubts.append(
            f"The members are not jointly Gaussian {where} (test of fit: p = {fit.p:.2g}), as the Gaussian estimate "
            "assumes: its terms and their intervals may be wrong. Compare the lower bound."
        )
    if abs(fit.rank_error) > max(np.nan_to_num(error) / 2, NEGLIGIBLE):
        side = "small" if fit.rank_error < 0 else "large"
        doubts.append(
            f"The redundancy ({redundancy:.3g} bits) is too {side} by {abs(fit.rank_error):.2g} bits "
            "or more: some members are near copies, and their differences drown in the spacing of ranks."
        )
    return doubts


def _is_exceeded(bound: LowerBound, sample: Sample, joint: float, error: float) -> bool:
    """Whether the bound lies above the joint information by more than both errors explain."""
    if sample.method == "variational":
        return _is_clearly_positive(bound.rows - sample.classifier.joint_rows)
    own = bound.rows.std(ddof=1) / np.sqrt(len(bound.rows))
    return bound.bits - joint > BOUND_Z * np.hypot(own, own if np.isnan(error) else error) + NEGLIGIBLE


def _is_clearly_positive(difference: np.ndarray) -> bool:
    """Whether a mean over rows exceeds what is negligible by more than its error."""
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() > NEGLIGIBLE + BOUND_Z * error)


def _interval(bound: LowerBound) -> str:
    return f"{bound.bits:.3g} bits [{bound.low:.3g}, {bound.high:.3g}]"


def warnings_of(i: Information, notes: tuple[str, ...]) -> tuple[str, ...]:
    """What should be read before the numbers, beginning with `notes`."""
    counts, dims, warnings = np.bincount(i.labels), len(i.owner), [*notes, *i.doubts]
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
    # The plug-in entropy of the labels is itself too small by Miller and Madow's term, which the estimates have.
    allowed = i.label_entropy + (len(i.classes) - 1) / (2 * len(i.labels) * BITS) + 1e-9
    if i.method != "variational" and i.joint > allowed:
        warnings.append(
            f"The joint information ({i.joint:.3g} bits) exceeds H(Y) = {i.label_entropy:.3g}, which no information "
            "does: the estimator's assumption does not hold. bounds() takes a variational estimate."
        )
    for row in i.frame().itertuples():
        if row.inside_null:
            warnings.append(
                f"{str(row.term).replace('_', ' ').capitalize()} ({row.bits:.3g} bits) lies inside its null "
                f"({row.null_model}: {row.null_low:.3g} to {row.null_high:.3g})."
            )
    return tuple(warnings)
