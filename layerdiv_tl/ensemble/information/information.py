"""`information`: an estimator on all rows, on subsamples for intervals, and on shuffled rows for nulls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import NormalDist
from typing import Any, cast, get_args

import numpy as np
from jaxtyping import Float

from ..._checks import choice, whole_number
from ...components import Component
from ...errors import InputError
from ..intervals import LEVEL
from ..validation import Ensemble
from .checks import checks, warnings_of
from .discrete import table_fits
from .estimator import TERMS, EstimatorName, single_threaded_blas
from .features import MAX_DRAWS, MAX_SEED, Members, are_votes, prepare
from .gaussian import Gaussian, normal_scores, refuse_singular
from .resampling import deviation, scale, shuffled_labels, shuffled_members, subsamples
from .result import LABELS, MEMBERS, SHUFFLED, Information
from .source import Source
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

    ensemble
        `Contributions`, an array `[example, member, option]` of logits, `[example, member]` of numbers, or
        `[example, member]` of whole numbers: votes.
    labels
        One for each example: option indices or texts, or any classes where there are no options.
    estimator
        "gaussian" (default): Gaussian copula of the members' contrasts over options, its bias removed
        (`Gaussian`). "vote" (default for whole numbers): each member's preferred option; the joint table where it
        has four rows a cell (`TableVotes`), else a tree's lower bound of total correlation (`TreeVotes`).
        "variational": what a classifier knows of unseen labels, a lower bound of I (`Variational`).
    null, draws, seed, level
        Shuffles for the nulls; subsamples without replacement for the intervals (the variational one uses the
        spread over unseen rows instead); both 0 is quick. Equal seeds give equal results.
    groups
        Sum neighbors along the stream to at most this many members first: with few rows, 12.
    contrasts
        Principal contrasts per member: K − 1 for K options by default, fewer where rows do not suffice.
    components
        Names for the members of a plain array.
    check
        Whether to test the Gaussian assumption (`i.fit`, a `GaussianFit`) and to compare the joint information with
        a nonlinear lower bound (`i.lower_bound`, a `LowerBound`), with a sentence in `i.doubts` and `i.warnings`
        where they disagree. About six seconds of one core for 122 columns and 2000 rows, half a second for four.

    Intervals are normal, with a standard error from subsamples of four fifths: where the truth is independence
    they are up to twice too wide, elsewhere as wide as they should. They hold what an estimator's assumption leaves
    uncertain, not the assumption: read `i.doubts`. Of lower bounds (variational) they are the interval of what the
    classifiers know, so that only the low end limits the information; they do not go below 0, and the difference
    of two lower bounds (diversity) has none. Rows must be independent.

    Raises InputError for one class, classes of fewer than 8 rows, and numbers that are not finite; and, for the
    Gaussian, for members that never vary, members that the others fix (copies), and a class with fewer than
    twice as many rows as dimensions.

    >>> votes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 500)
    >>> i = information(votes, votes[:, 0] ^ votes[:, 1], n_permutations=0, n_resamples=0)
    >>> [f"{x:.2g}" for x in (i.conditional_redundancy, i.joint, i.diversity)], abs(i.relevancy + i.redundancy) < 0.01
    (['1', '1', '1'], True)
    """
    if estimator is None:
        estimator = "vote" if not isinstance(ensemble, Ensemble) and are_votes(ensemble) else "gaussian"
    choice("estimator", estimator, get_args(EstimatorName))
    n_permutations, n_resamples = (
        whole_number("null", n_permutations, 0, MAX_DRAWS),
        whole_number("n_resamples", n_resamples, 0, MAX_DRAWS),
    )
    seed = whole_number("seed", seed, 0, MAX_SEED)
    if (
        isinstance(confidence_level, bool)
        or not isinstance(confidence_level, int | float | np.number)
        or not 0 < confidence_level < 1
    ):
        raise InputError(f"confidence_level={confidence_level!r:.40} must be a number between 0 and 1.")
    if not isinstance(check, bool | np.bool_):
        raise InputError(f"check={check!r:.40} must be True or False.")
    confidence_level = float(confidence_level)
    given = prepare(ensemble, labels, estimator, n_groups, n_contrasts, components)
    method: str = estimator
    if estimator == "vote":
        options = int(given.features.max()) + 1
        fits = table_fits(len(given.labels), options, len(given.components), len(given.classes))
        method = "table" if fits else "tree"
    features = given.features if given.votes else normal_scores(given.features)
    source = Source(method, features, given.owner, given.labels, len(given.classes), seed)
    if estimator == "gaussian":
        _refuse_small_classes(given)
        refuse_singular(cast(Gaussian, source.on()), given.spans, given.owner, given.classes)
    with single_threaded_blas():
        found = _measured(source, n_permutations, n_resamples, confidence_level)
        found |= (
            checks(source, given, found, confidence_level)
            if check
            else {"fit": None, "lower_bound": None, "doubts": ()}
        )
    result = Information(
        features=features,
        owner=given.owner,
        labels=given.labels,
        classes=given.classes,
        options=given.options,
        correct=given.correct,
        components=given.components,
        spans=given.spans,
        votes=given.votes,
        method=method,
        warnings=given.notes,
        seed=seed,
        confidence_level=confidence_level,
        **found,
    )
    return replace(result, warnings=warnings_of(result, given.notes))


def _measured(source: Source, n_permutations: int, n_resamples: int, confidence_level: float) -> dict[str, Any]:
    """Terms, intervals and nulls."""
    estimate, y = source.on(), source.labels
    z = NormalDist().inv_cdf(0.5 + confidence_level / 2)
    terms = estimate.totals()
    values = {"": np.array(list(terms.values())), "member": estimate.relevancies}
    if isinstance(estimate, Variational):
        # Rows that the classifiers have not seen are independent of one another.
        rows = {"": np.stack(list(estimate.rows().values())), "member": estimate.single_rows}
        errors = {key: x.std(1, ddof=1) / np.sqrt(len(y)) for key, x in rows.items()}
    elif n_resamples > 1:
        least = len(source.owner) + 2 if source.method == "gaussian" else 5
        drawn: dict[str, list[np.ndarray]] = {"": [], "member": []}
        for rows_kept in subsamples(y, least, n_resamples, source.seed):
            with suppress(np.linalg.LinAlgError):
                some = source.on(rows_kept)
                drawn[""].append(np.array(list(some.totals().values())))
                drawn["member"].append(some.relevancies)
        errors = {key: scale(y) * deviation(np.reshape(x, (-1, len(values[key])))) for key, x in drawn.items()}
    else:
        errors = {key: np.full(len(x), np.nan) for key, x in values.items()}
    nulls: dict[str, list[float]] = {term: [] for term in TERMS}
    member_null: list[np.ndarray] = []
    # A shuffle may leave a member constant in a class: there is no Gaussian estimate of it, and no draw.
    for labels in shuffled_labels(y, n_permutations, source.seed):
        with suppress(np.linalg.LinAlgError):
            other = source.on(labels=labels)
            for term, value in other.totals().items():
                if SHUFFLED[term] == LABELS:
                    nulls[term].append(value)
            member_null.append(other.relevancies)
    if source.method == "variational":
        nulls |= {term: [np.nan] * n_permutations for term in TERMS if SHUFFLED[term] == MEMBERS}
    else:
        for features in shuffled_members(source.features, source.owner, y, n_permutations, source.seed):
            with suppress(np.linalg.LinAlgError):
                for term, value in source.on(features=features).totals().items():
                    if SHUFFLED[term] == MEMBERS:
                        nulls[term].append(value)
    ends = {key: values[key] + z * np.stack([-errors[key], errors[key]]) for key in values}
    if isinstance(estimate, Variational):
        # Information is not below 0; and a difference of two bounds, of unknown slack each, has no interval.
        ends = {key: np.maximum(x, 0.0) for key, x in ends.items()}
        ends[""][:, TERMS.index("diversity")] = np.nan
    return {
        "terms": terms,
        "intervals": {t: (float(low), float(high)) for t, low, high in zip(TERMS, *ends[""], strict=True)},
        "null": {term: np.array(found, dtype=np.float64) for term, found in nulls.items()},
        "member_intervals": ends["member"],
        "member_null": np.reshape(member_null, (-1, source.members)),
    }


def _refuse_small_classes(given: Members) -> None:
    counts, dims = np.bincount(given.labels), len(given.owner)
    if counts.min() < 2 * dims:
        groups = max(1, int(counts.min()) // 2 * len(given.components) // dims)
        raise InputError(
            f"class {given.classes[int(counts.argmin())]!r} has {counts.min()} rows for {dims} dimensions: a Gaussian "
            f"estimate needs twice as many rows as dimensions. Give more rows, groups={min(groups, 12)}, or "
            "estimator='vote' or 'variational'."
        )
