"""Sentences about an estimate: where its assumptions fail, and what else to read before the numbers."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .estimator import BITS
from .features import Members
from .fit import GaussianFit, gaussian_fit
from .lower_bound import LowerBound, lower_bound
from .source import Source, one_hot
from .variational import Variational

if TYPE_CHECKING:
    from .result import Information

# At these levels, of one side each, all checks of one estimate together raise doubt falsely about one time in 25.
FIT, BOUND = 0.02, NormalDist().inv_cdf(0.99)
# Bits that no reading turns on, by which two classifiers may differ for want of rows.
NEGLIGIBLE = 0.02


def checks(source: Source, given: Members, found: dict[str, Any], confidence_level: float) -> dict[str, Any]:
    """`fit`, `lower_bound` and `doubts` of terms and intervals `found`."""
    y, classes, seed = source.labels, source.classes, source.seed
    fit = gaussian_fit(source.features, source.owner, y, classes, seed) if source.method == "gaussian" else None
    features = one_hot(source.features)[0] if source.votes else source.features
    bound = lower_bound(features, y, classes, seed, confidence_level) if features.shape[1] else None
    doubts = _misfit(fit, found, confidence_level) if fit else []
    doubts += _bound_above(source, bound, found, confidence_level) if bound else []
    if given.all_contrasts is not None and bound:
        whole = lower_bound(given.all_contrasts, y, classes, seed, confidence_level)
        if _clearly_above(whole.rows - bound.rows):
            doubts.append(
                f"The contrasts left out tell of the label: all contrasts tell at least {_interval(whole)}, the "
                f"{len(source.owner)} used at least {_interval(bound)}. Use more contrasts, or estimator='variational'."
            )
    return {"fit": fit, "lower_bound": bound, "doubts": tuple(doubts)}


def _misfit(fit: GaussianFit, found: dict[str, Any], confidence_level: float) -> list[str]:
    doubts = []
    if fit.p <= FIT:
        parts = {"over all rows": fit.p_all_rows, "within classes": fit.p_within_classes}
        where = " and ".join(name for name, p in parts.items() if p <= FIT) or "over all rows or within classes"
        doubts.append(
            f"The members are not jointly Gaussian {where} (test of fit: p = {fit.p:.2g}), as the Gaussian estimate "
            "assumes: its terms and their intervals may be wrong. Compare the lower bound."
        )
    low, high = found["intervals"]["redundancy"]
    error = (high - low) / 2 / NormalDist().inv_cdf(0.5 + confidence_level / 2)
    if np.isnan(error):
        error = NEGLIGIBLE
    if abs(fit.rank_error) > max(error / 2, NEGLIGIBLE):
        side = "small" if fit.rank_error < 0 else "large"
        doubts.append(
            f"The redundancy ({found['terms']['redundancy']:.3g} bits) is too {side} by {abs(fit.rank_error):.2g} bits "
            "or more: some members are near copies, and their differences drown in the spacing of ranks."
        )
    return doubts


def _bound_above(source: Source, bound: LowerBound, found: dict[str, Any], confidence_level: float) -> list[str]:
    """Whether the bound lies above the estimate by more than both errors explain."""
    joint = found["terms"]["joint"]
    if source.method == "variational":
        if not _clearly_above(bound.rows - cast(Variational, source.on()).joint_rows):
            return []
    else:
        own = bound.rows.std(ddof=1) / np.sqrt(len(bound.rows))
        low, high = found["intervals"]["joint"]
        error = (high - low) / 2 / NormalDist().inv_cdf(0.5 + confidence_level / 2)
        if bound.bits - joint <= BOUND * np.hypot(own, own if np.isnan(error) else error) + NEGLIGIBLE:
            return []
    name = "lower bound by a linear classifier" if source.method == "variational" else "estimate"
    return [
        f"A nonlinear classifier knows at least {_interval(bound)} of unseen labels: the {name} ({joint:.3g} bits) is "
        "clearly too small."
    ]


def _clearly_above(difference: np.ndarray) -> bool:
    """Whether a mean over rows exceeds what is negligible by more than its error."""
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() > NEGLIGIBLE + BOUND * error)


def _interval(bound: LowerBound) -> str:
    return f"{bound.bits:.3g} bits [{bound.low:.3g}, {bound.high:.3g}]"


def warnings_of(i: Information, notes: tuple[str, ...]) -> tuple[str, ...]:
    """What should be read before the numbers, beginning with `notes`."""
    counts, dims, said = np.bincount(i.labels), len(i.owner), [*notes, *i.doubts]
    if len(i.classes) < i.options:
        said.append(f"{i.options - len(i.classes)} of {i.options} options are no example's label.")
    small = i.classes[int(counts.argmin())]
    if counts.min() < dims:
        said.append(f"Class {small!r} has fewer rows ({counts.min()}) than there are dimensions ({dims}).")
    elif i.method == "gaussian" and counts.min() < 4 * dims:
        said.append(
            f"{len(i.components)} members are many for {len(i.labels)} rows: class {small!r} has {counts.min()} rows "
            f"for {dims} dimensions. The estimates are noisy; groups= makes fewer members."
        )
    if not i.votes and (twice := len(i.features) - len(np.unique(i.features, axis=0))):
        said.append(f"{twice} rows occur more than once: the estimates take rows for independent.")
    if i.method == "tree":
        said.append(
            "Too many votes for a joint table: both redundancies are lower bounds (a tree's), the joint information "
            "and the diversity are none."
        )
    # The plug-in entropy of the labels is itself too small by Miller and Madow's term, which the estimates have.
    allowed = i.label_entropy + (len(i.classes) - 1) / (2 * len(i.labels) * BITS) + 1e-9
    if i.method != "variational" and i.joint > allowed:
        said.append(
            f"The joint information ({i.joint:.3g} bits) exceeds H(Y) = {i.label_entropy:.3g}, which no information "
            "does: the estimator's assumption does not hold. bounds() takes a variational estimate."
        )
    for row in i.frame().itertuples():
        if row.inside_null:
            said.append(
                f"{str(row.term).replace('_', ' ').capitalize()} ({row.bits:.3g} bits) lies inside its null "
                f"({row.null_model}: {row.null_low:.3g} to {row.null_high:.3g})."
            )
    return tuple(said)
