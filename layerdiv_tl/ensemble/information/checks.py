"""Where an estimate's assumptions fail: a test of fit, `Information.doubts`, and `Information.warnings` in full."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from ...results import Result
from .estimator import BITS, Columns, Labels, Owner, normal_quantile, standardize
from .resampling import one_hot
from .variational import LowerBound, lower_bound

if TYPE_CHECKING:
    import pandas as pd

    from .result import Information

# At these one-sided levels all checks of one estimate together raise doubt falsely about one time in 25.
FIT_LEVEL, BOUND_Z = 0.02, NormalDist().inv_cdf(0.99)
# Bits that change no conclusion, by which two classifiers may differ for want of rows.
NEGLIGIBLE = 0.02
N_DRAWS = 99
# Draws that measure the error of ranking: it is a difference of pairs, which varies little.
N_PAIRS = 20


@dataclass(frozen=True, eq=False, repr=False)
class GaussianFit(Result):
    """A test of fit: third and fourth moments of all pairs of columns against those of Gaussian rows.

    The hypothesis is that the scores are jointly Gaussian and independent of the label, the one law for which the
    Gaussian estimate is exact. The moments are E[a²b], E[a²b²] and E[a³b] of standardized columns a and b (a = b
    included: skewness and kurtosis), over all rows and within each class; the largest and the mean squared deviation of
    each kind are compared with those of `n_resamples` Gaussian data sets of the same size and covariance, made into
    scores in the same way. Not seen are slight shifts of means, and dependence of three columns at once.

    Attributes:
        p, p_all_rows, p_within_classes: Of both together, of the moments over all rows (a mixture of shifted classes),
            and within classes.
        rank_error: Bits by which scores, which are ranks, misstate the redundancy of Gaussian rows: below 0 for near
            copies, whose small differences drown in the spacing of the ranks.
    """

    p: float
    p_all_rows: float
    p_within_classes: float
    rank_error: float
    n_resamples: int

    def frame(self) -> pd.DataFrame:
        """One row: `p`, `p_all_rows`, `p_within_classes`, `rank_error` (bits), `n_resamples`."""
        import pandas as pd

        frame = pd.DataFrame([vars(self)])
        frame.attrs["units"] = {"rank_error": "bits"}
        return frame


def gaussian_fit(z: Columns, owner: Owner, y: Labels, classes: int, seed: int) -> GaussianFit:
    """Test normal scores `z` with labels `y`; `owner` is the member of each column."""
    rng = np.random.default_rng([seed, 7])
    n, dims = z.shape
    size, axes = np.linalg.eigh(np.corrcoef(z.T).reshape(dims, dims))
    root = axes * np.sqrt(np.maximum(size, 0.0))
    scores = ndtri(np.arange(1, n + 1) / (n + 1))
    deviations, errors = [_deviations(z, y, classes)], []
    for draw in range(N_DRAWS):
        normal = root @ rng.normal(size=(dims, n))
        scored = np.empty_like(normal)
        np.put_along_axis(scored, normal.argsort(1), scores[None], 1)
        deviations.append(_deviations(scored.T, y, classes))
        if draw < N_PAIRS:
            errors.append(_total_correlation(scored, owner) - _total_correlation(normal, owner))
    # All draws and the rows themselves are scaled alike, which keeps them exchangeable and p exact.
    values = standardize(np.log(np.maximum(deviations, 1e-300)))
    half = values.shape[1] // 2
    maxima = values.max(1), values[:, :half].max(1), values[:, half:].max(1)
    both, all_rows, within = (float((largest >= largest[0]).mean()) for largest in maxima)
    return GaussianFit(both, all_rows, within, float(np.mean(errors)), N_DRAWS)


def _deviations(z: Columns, y: Labels, classes: int) -> Float[np.ndarray, " statistic"]:
    """Largest and mean squared deviation of each kind of moment: over all rows, then within classes."""
    inside = np.stack([_moments(z[y == c]) for c in range(classes)])
    return np.concatenate([_moments(z, own=False), inside[:, :3].max(0), inside[:, 3:].sum(0)])


def _moments(x: Columns, own: bool = True) -> Float[np.ndarray, " 6"]:
    """Without `own`, of different columns only: over all rows each column's own moments are fixed by ranking."""
    n, x = len(x), x - x.mean(0)
    spread = x.std(0)
    x = (x / np.where(spread > 0, spread, 1.0)).astype(np.float32)
    square = x * x
    r = x.T @ x / n
    kinds = square.T @ x / n, square.T @ square / n - 1 - 2 * r * r, (square * x).T @ x / n - 3 * r
    if not own:
        for kind in kinds:
            np.fill_diagonal(kind, 0.0)
    largest, mean_square = [np.abs(kind).max() for kind in kinds], [np.square(kind).mean() for kind in kinds]
    return np.sqrt(n) * np.array(largest + mean_square, np.float64)


def _total_correlation(x: Float[np.ndarray, "column example"], owner: Owner) -> float:
    """Of Gaussian members, in bits, plug-in."""
    r = np.corrcoef(x).reshape(len(x), len(x))
    several = np.flatnonzero(np.bincount(owner) > 1)
    alone = sum(np.linalg.slogdet(r[np.ix_(owner == m, owner == m)])[1] for m in several)
    return float(alone - np.linalg.slogdet(r)[1]) / 2 / BITS


def check_assumptions(i: Information, check: bool) -> dict[str, Any]:
    """The fields `fit`, `lower_bound` and `doubts` of an `Information`; without `check` only what costs nothing."""
    y, classes = i.labels, len(i.classes)
    error = {term: (high - low) / 2 / normal_quantile(i.confidence_level) for term, (low, high) in i.intervals.items()}
    fit = gaussian_fit(i.features, i.owner, y, classes, i.seed) if check and i.method == "gaussian" else None
    columns = one_hot(i.features)[0] if i.votes else i.features
    bound = lower_bound(columns, y, classes, i.seed, i.confidence_level) if check and columns.shape[1] else None
    doubts = _doubts_of_fit(fit, i.redundancy, error["redundancy"]) if fit else []
    # The plug-in entropy of the labels is itself too small by Miller and Madow's term, which the estimates have.
    allowed = i.label_entropy + (classes - 1) / (2 * len(y) * BITS) + 1e-9
    if i.method != "variational" and i.joint > allowed:
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
    if bound and i.all_contrasts is not None:
        whole = lower_bound(i.all_contrasts, y, classes, i.seed, i.confidence_level)
        if _is_clearly_positive(whole.rows - bound.rows):
            way = "Use more contrasts" + ("" if i.method == "variational" else ", or estimator='variational'")
            doubts.append(
                f"The contrasts left out depend on the label: all contrasts hold at least {_interval(whole)}, the "
                f"{len(i.owner)} used at least {_interval(bound)}. {way}."
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
