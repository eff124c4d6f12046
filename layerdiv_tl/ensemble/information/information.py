"""`information`: an estimator on all rows, on subsamples for intervals, and on shuffled rows for nulls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
from jaxtyping import Float

from ..._checks import choice, flag, number, whole_number
from ...components import Component
from ..intervals import LEVEL
from ..validation import Ensemble
from .checks import check_assumptions, warnings_of
from .estimator import (
    TERMS,
    Estimator,
    EstimatorName,
    entropy_of_labels,
    normal_quantile,
    single_threaded_blas,
)
from .features import MAX_DRAWS, MAX_SEED, are_votes, prepare
from .resampling import Sample
from .result import LABELS, NULL_MODEL, Information
from .variational import Variational


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
            example has options of its own, its class is the place of the right one among them.
        estimator: "gaussian" (default): members' contrasts over options are Gaussian within classes, each after a
            monotone change, so that all terms are those of one mixture, without bias (`Gaussian`). "vote"
            (default for whole numbers): each member's preferred option; the joint table where it has four rows a cell
            (`TableVotes`), else a tree's lower bound of total correlation (`TreeVotes`).
            "variational": a classifier's information about unseen labels, a lower bound of I (`Variational`).
        n_permutations, n_resamples, seed, confidence_level: Shuffles for the nulls; subsamples without replacement for
            the intervals (the variational one uses the spread over unseen rows instead); both 0 is quick. Equal seeds
            give equal results.
        n_groups, n_contrasts: Sum neighbors along the stream to at most so many members first: with few rows, 12.
            Principal contrasts per member: K − 1 for K options by default, fewer where rows do not suffice.
        components: Names for the members of a plain array.
        check: Compare the joint information with a nonlinear lower bound (`i.lower_bound`), and look for near copies;
            `i.doubts` has a sentence where the estimate may be wrong. About six seconds of one core for 122 columns and
            2000 rows, half a second for four.

    Rows must be independent. Intervals are normal, with a standard error from subsamples of four fifths: up to twice
    too wide where the truth is independence, and only as good as the estimator's assumption: read `i.doubts`. Those of
    lower bounds (variational) do not go below 0, only their low end limits I, and the diversity has none.

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
        i = Information(
            **{field.name: getattr(sample, field.name) for field in fields(sample)},
            **_measure(sample, n_permutations, n_resamples, confidence_level),
            confidence_level=confidence_level,
        )
        i = replace(i, **check_assumptions(i, check))
    error = str(getattr(ensemble, "error_note", ""))  # of a dictionary or another cut
    return replace(i, warnings=(*warnings_of(i), *([f"{error[0].upper()}{error[1:]}."] if error else [])))


def _measure(sample: Sample, n_permutations: int, n_resamples: int, confidence_level: float) -> dict[str, Any]:
    """Terms and relevancies of members, with intervals and nulls."""

    def both(estimate: Estimator) -> np.ndarray:
        return np.concatenate([list(estimate.totals().values()), estimate.relevancies])

    estimate = sample.estimate()
    values = both(estimate)
    if isinstance(estimate, Variational):
        # Rows that the classifiers have not seen are independent of one another.
        rows = np.concatenate([list(estimate.rows().values()), estimate.single_rows])
        errors = rows.std(1, ddof=1) / np.sqrt(len(sample.labels))
    else:
        errors = sample.standard_errors(sample.on_subsamples(both, n_resamples), len(values))
    ends = values + normal_quantile(confidence_level) * np.stack([-errors, errors])
    if isinstance(estimate, Variational):
        # Information is not below 0; and a difference of two bounds, of unknown slack each, has no interval.
        ends = np.maximum(ends, 0.0)
        ends[:, TERMS.index("diversity")] = np.nan
    by_labels = np.reshape(sample.with_shuffled_labels(both, n_permutations), (-1, len(values)))
    if isinstance(estimate, Variational):  # has no redundancies to compare
        by_members = np.full((n_permutations, len(TERMS)), np.nan)
    else:
        totals = sample.with_shuffled_members(lambda e: list(e.totals().values()), n_permutations)
        by_members = np.reshape(totals, (-1, len(TERMS)))
    null = {
        term: (by_labels if NULL_MODEL[term] == LABELS else by_members)[:, place].copy()
        for place, term in enumerate(TERMS)
    }
    count, joint = len(TERMS), TERMS.index("joint")
    ends[1, joint] = max(values[joint], min(ends[1, joint], entropy_of_labels(sample.labels)))
    return {
        "terms": dict(zip(TERMS, values.tolist(), strict=False)),
        "intervals": dict(zip(TERMS, map(tuple, ends.T.tolist()), strict=False)),
        "null": null,
        "member_intervals": ends[:, count:],
        "member_null": by_labels[:, count:],
    }
