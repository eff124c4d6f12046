"""`information`: the estimate of Eq. 13 from an ensemble and labels, with the reasons why it may be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from statistics import NormalDist
from typing import Any, get_args

import numpy as np
from jaxtyping import Float

from ..._checks import choice, flag, number, whole_number
from ...components import Component
from ..intervals import LEVEL, Estimate
from ..validation import Ensemble
from .estimator import (
    BITS,
    TERMS,
    Columns,
    Estimator,
    EstimatorName,
    Owner,
    entropy_of_labels,
    mean_with_error,
    normal_quantile,
    single_threaded_blas,
)
from .gaussian import Gaussian, normal_scores
from .result import LABELS, NULL_MODEL, Information
from .sample import MAX_DRAWS, MAX_SEED, Sample, are_votes, one_hot, prepare
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


def information(
    ensemble: Ensemble | Float[np.ndarray, "example member option"] | np.ndarray,
    labels: Sequence[int] | Sequence[str] | np.ndarray,
    estimator: EstimatorName | None = None,
    n_permutations: int = 200,
    n_resamples: int = 200,
    seed: int = 0,
    *,
    n_groups: int | None = None,
    n_contrasts: int | None = None,
    components: Sequence[str | Component] | None = None,
    confidence_level: float = LEVEL,
    check: bool = True,
) -> Information:
    """Information-theoretic diversity (Theorem 4): I(U; Y) = relevancy + TC(U|Y) − TC(U), in bits.

    Args:
        ensemble: `Contributions`, an array `[example, member, option]` of logits, `[example, member]` of numbers, or
            `[example, member]` of whole numbers: votes.
        labels: One for each example: option indices or texts, or any classes where there are no options. Where every
            example has options of its own, its class is the index of the right one.
        estimator: "gaussian" (default): members' contrasts over options are Gaussian within classes after monotone
            transforms, so all terms come from one mixture, without bias (`Gaussian`). "vote" (default for whole
            numbers): each member's preferred option; the joint table if it has four rows per cell (`TableVotes`), else
            a tree's lower bound of total correlation (`TreeVotes`). "variational": a classifier's information about
            held-out labels, a lower bound of I (`Variational`).
        n_permutations, n_resamples, seed, confidence_level: Shuffles for the nulls; subsamples without replacement for
            the intervals (the variational one uses the spread over held-out rows); both 0 is quick. Equal seeds give
            equal results.
        n_groups, n_contrasts: First sum neighbors along the stream to at most this many members: 12 with few rows.
            Principal contrasts per member: by default K − 1 for K options, fewer where rows do not suffice.
        components: Names for the members of a plain array.
        check: Compare the joint information with a variational lower bound (`i.lower_bound`), and look for near copies;
            `i.warnings` then begins with a sentence where the estimate may be wrong.

    Rows must be independent. Intervals are normal, with a standard error from subsamples of four fifths: up to twice
    too wide under independence, and only as good as the estimator's assumptions: read `i.warnings`. Intervals of lower
    bounds (variational) are not negative, only their low end bounds I, and the diversity has none.

    Raises InputError for one class, classes of fewer than 8 rows, and numbers that are not finite; and, for the
    Gaussian, for members that never vary or are fixed by the others (copies), and a class with fewer than twice as
    many rows as dimensions.

    >>> votes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 500)
    >>> i = information(votes, votes[:, 0] ^ votes[:, 1], n_permutations=0, n_resamples=0)
    >>> [f"{x:.2g}" for x in (i.conditional_redundancy, i.joint, i.diversity)], abs(i.relevancy + i.redundancy) < 0.01
    (['1', '1', '1'], True)
    """
    if estimator is None:
        estimator = "vote" if are_votes(ensemble) else "gaussian"
    choice("estimator", estimator, get_args(EstimatorName))
    n_permutations = whole_number("n_permutations", n_permutations, 0, MAX_DRAWS)
    n_resamples = whole_number("n_resamples", n_resamples, 0, MAX_DRAWS)
    seed = whole_number("seed", seed, 0, MAX_SEED)
    confidence_level = number("confidence_level", confidence_level, above=0, below=1)
    flag("check", check)
    sample = prepare(ensemble, labels, estimator, seed, n_groups, n_contrasts, components)
    with single_threaded_blas():
        numbers = _measure(sample, n_permutations, n_resamples, confidence_level)
        rows = bound_rows(sample) if check else None
        given = {field.name: getattr(sample, field.name) for field in fields(sample)}
        i = Information(**given | numbers, confidence_level=confidence_level, bound_rows=rows)
        warnings = [*_contradictions(i), *i.warnings, *_cautions(i)]
    error = str(getattr(ensemble, "error_note", ""))  # of a dictionary or another cut
    warnings += [f"{error[0].upper()}{error[1:]}."] if error else []
    model, task = (str(getattr(ensemble, name, "")) for name in ("model", "task"))
    return replace(i, warnings=tuple(warnings), model=model, task=task)


def _measure(sample: Sample, n_permutations: int, n_resamples: int, confidence_level: float) -> dict[str, Any]:
    """Compute terms and relevancies of members, with intervals and nulls."""

    def both(estimate: Estimator) -> np.ndarray:
        return np.concatenate([list(estimate.totals().values()), estimate.relevancies])

    estimate, count, joint = sample.estimate(), len(TERMS), TERMS.index("joint")
    values = both(estimate)
    if isinstance(estimate, Variational):
        # Rows held out from the classifiers are independent of one another.
        errors = mean_with_error(np.concatenate([list(estimate.rows().values()), estimate.single_rows]))[1]
    else:
        errors = sample.standard_errors(both, values, n_resamples)
    ends = values + normal_quantile(confidence_level) * np.stack([-errors, errors])
    by_labels = np.reshape(sample.with_shuffled_labels(both, n_permutations), (-1, len(values)))
    if isinstance(estimate, Variational):
        # Information is not negative; a difference of two bounds, with unknown slack each, has no interval.
        ends = np.maximum(ends, 0.0)
        ends[:, TERMS.index("diversity")] = np.nan
        by_members = np.full((n_permutations, count), np.nan)  # it has no redundancies to compare
    else:
        totals = sample.with_shuffled_members(lambda e: list(e.totals().values()), n_permutations)
        by_members = np.reshape(totals, (-1, count))
    ends[1, joint] = max(values[joint], min(ends[1, joint], entropy_of_labels(sample.labels)))
    draws = {term: by_labels if NULL_MODEL[term] == LABELS else by_members for term in TERMS}
    return {
        "terms": dict(zip(TERMS, values.tolist(), strict=False)),
        "intervals": dict(zip(TERMS, map(tuple, ends.T.tolist()), strict=False)),
        "null": {term: draws[term][:, place].copy() for place, term in enumerate(TERMS)},
        "member_intervals": ends[:, count:],
        "member_null": by_labels[:, count:],
    }


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


def _rank_error(i: Sample, estimate: Gaussian) -> float:
    """Compute the bits by which ranks misstate the redundancy of Gaussian members with these correlations.

    Negative for near copies, whose small differences are lost in the spacing of the ranks.
    """
    n = len(i.labels)
    root, rng = np.linalg.cholesky(estimate.covariance), np.random.default_rng([i.seed, 7])
    drawn = [rng.normal(size=(n, len(root))) @ root.T for _ in range(N_PAIRS)]
    return float(
        np.mean([_total_correlation(normal_scores(x), i.owner) - _total_correlation(x, i.owner) for x in drawn])
    )


def _total_correlation(x: Columns, owner: Owner) -> float:
    """Compute total correlation of Gaussian members, in bits, plug-in."""
    r = np.corrcoef(x.T).reshape(x.shape[1], x.shape[1])
    several = np.flatnonzero(np.bincount(owner) > 1)
    alone = sum(np.linalg.slogdet(r[np.ix_(owner == m, owner == m)])[1] for m in several)
    return float(alone - np.linalg.slogdet(r)[1]) / 2 / BITS


def _contradictions(i: Information) -> Iterator[str]:
    """List reasons why the terms may be wrong; without a bound's rows, only those that are cheap to check."""
    joint, rows, estimate = i.joint, i.bound_rows, i.estimate()
    error = {term: (high - low) / 2 / normal_quantile(i.confidence_level) for term, (low, high) in i.intervals.items()}
    if isinstance(estimate, Gaussian):
        # Measured in tests/calibration.
        if estimate.separate and len(i.classes) > 2:
            yield (
                "The joint information may be too large by 0.2 bits, and its interval may miss the truth: there are "
                "more than two classes, of unequal covariances."
            )
        share = estimate.share
        of_one_class = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)).max()
        if estimate.relevancies.max() > SEPARATED * of_one_class:
            yield (
                "The relevancy may be too large by up to 3 %, and its interval may miss the truth: some members "
                "separate a class."
            )
        off = 0.0 if rows is None else _rank_error(i, estimate)
        if abs(off) > max(np.nan_to_num(error["redundancy"]) / 2, NEGLIGIBLE):
            yield (
                f"The redundancy ({i.redundancy:.3g} bits) is too {'small' if off < 0 else 'large'} by "
                f"{abs(off):.2g} bits or more: some members are near copies, and ranking hides differences smaller "
                "than one rank."
            )
    if i.exceeds_entropy:
        yield (
            f"The joint information ({joint:.3g} bits) exceeds H(Y) = {i.label_entropy:.3g}, which no information "
            "does: the estimator's assumption does not hold. bounds() takes a variational estimate."
        )
    if rows is None:
        return
    bound, low = i.bound_of(rows), i.intervals["joint"][0]
    if i.method == "variational":
        name, is_exceeded = "lower bound by a linear classifier", _is_positive(rows - i.classifier.joint_rows)
    else:
        own = mean_with_error(rows)[1]
        both = np.hypot(own, own if np.isnan(error["joint"]) else error["joint"])
        name, is_exceeded = "estimate", bound.value - joint > BOUND_Z * both + NEGLIGIBLE
    if is_exceeded:
        yield (
            f"A nonlinear classifier finds at least {_shown(bound)} about unseen labels: the {name} ({joint:.3g} bits) "
            "is clearly too small."
        )
    if i.method == "gaussian" and (joint if np.isnan(low) else low) - bound.high > max(bound.high, LARGE):
        yield (
            f"The joint information ({joint:.3g} bits) may be far too large: on rows that they have not seen, "
            f"classifiers find {_shown(bound)}."
        )
    whole = None if i.all_contrasts is None else bound_rows(i, i.all_contrasts)
    if whole is not None and _is_positive(whole - rows):
        way = "Use more contrasts" + ("" if i.method == "variational" else ", or estimator='variational'")
        yield (
            f"The contrasts left out depend on the label: all contrasts hold at least {_shown(i.bound_of(whole))}, the "
            f"{len(i.owner)} used at least {_shown(bound)}. {way}."
        )


def _is_positive(difference: Float[np.ndarray, " example"]) -> bool:
    """Check whether a mean over rows exceeds the negligible amount by more than its error."""
    mean, error = mean_with_error(difference)
    return bool(mean > NEGLIGIBLE + BOUND_Z * error)


def _shown(bound: Estimate) -> str:
    return f"{bound.value:.2g} bits ({bound.low:.2g} to {bound.high:.2g})"


def _cautions(i: Information) -> Iterator[str]:
    """List further warnings to read before the numbers."""
    counts, dims = np.bincount(i.labels), len(i.owner)
    if len(i.classes) < i.options:
        yield f"{i.options - len(i.classes)} of {i.options} options are no example's label."
    small, rows = i.classes[int(counts.argmin())], counts.min()
    if rows < dims:
        yield f"Class {small!r} has fewer rows ({rows}) than there are dimensions ({dims})."
    elif i.method == "gaussian" and rows < 4 * dims:
        yield (
            f"{len(i.components)} members are many for {len(i.labels)} rows: class {small!r} has {rows} rows "
            f"for {dims} dimensions. The estimates are noisy; n_groups= makes fewer members."
        )
    if not i.votes and (repeats := len(i.features) - len(np.unique(i.features, axis=0))):
        yield f"{repeats} rows occur more than once: the estimates take rows for independent."
    if i.method == "tree":
        yield (
            "Too many votes for a joint table: both redundancies are lower bounds (a tree's), the joint information "
            "and the diversity are none."
        )
    for row in i.frame().itertuples():
        if row.inside_null:
            yield (
                f"{str(row.term).replace('_', ' ').capitalize()} ({row.bits:.3g} bits) lies inside its null "
                f"({row.null_model}: {row.null_low:.3g} to {row.null_high:.3g})."
            )
