"""`information`: Eq. 13 of an ensemble, every term with its interval and its null, in bits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float

from ..._checks import choice, flag, number, whole_number
from ...components import Component, component_columns
from ...results import Result
from ..intervals import LEVEL, Estimate, interval
from ..validation import Ensemble
from .bounds import Bounds, bounds_of
from .checks import bound_rows, contradictions, exceeds_entropy, lower_bound
from .estimator import TERMS, Estimator, EstimatorName, entropy_of_labels, normal_quantile, single_threaded_blas
from .gain_curve import GainCurve, Order, gain_curve_of
from .sample import MAX_DRAWS, MAX_SEED, Sample, are_votes, prepare
from .variational import Variational

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

# Each term's status, an estimate or a bound, by the estimator's method.
_BOUND = {
    "gaussian": dict.fromkeys(TERMS, "estimate"),
    "table": dict.fromkeys(TERMS, "estimate"),
    "tree": dict(zip(TERMS, ("estimate", "lower bound", "lower bound", "no bound", "no bound"), strict=True)),
    "variational": dict(zip(TERMS, ("lower bound", "none", "none", "lower bound", "no bound"), strict=True)),
}
# The shuffling that each term is compared with, which leaves everything else unchanged.
LABELS, MEMBERS = "labels shuffled", "members shuffled within classes"
NULL_MODEL = dict(zip(TERMS, (LABELS, MEMBERS, MEMBERS, LABELS, LABELS), strict=True))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Information(Sample, Result):
    """Relevancy, redundancies, joint information and diversity of an ensemble (Eq. 13). Made by `information`.

    The data fields are those of `Sample`.

    Attributes:
        terms, intervals, null: By term, in bits: estimate, (low, high), and draws of the null `[draw]` (see
            `NULL_MODEL`), except those with a singular covariance.
        member_intervals, member_null: `[2, member]`, low and high of the relevancies; `[draw, member]`, relevancies
            with shuffled labels.
        bound_rows: `[example]`, log2 q(y|u)/p(y) of each row by a classifier fitted without it, linear or boosted
            trees, whichever finds more; None with `check=False`.
        warnings: Sentences to read before the numbers, starting with reasons why the terms may be wrong.
    """

    terms: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    null: dict[str, Float[np.ndarray, " draw"]]
    member_intervals: Float[np.ndarray, "2 member"]
    member_null: Float[np.ndarray, "draw member"]
    confidence_level: float
    bound_rows: Float[np.ndarray, " example"] | None = None

    @property
    def relevancy(self) -> float:
        """Σ_i I(u_i; Y), bits."""
        return self.terms["relevancy"]

    @property
    def redundancy(self) -> float:
        """TC(U), the members' total correlation, bits; NaN for the variational estimator."""
        return self.terms["redundancy"]

    @property
    def conditional_redundancy(self) -> float:
        """TC(U|Y), the total correlation within classes, bits; NaN for the variational estimator."""
        return self.terms["conditional_redundancy"]

    @property
    def joint(self) -> float:
        """I(U; Y), bits."""
        return self.terms["joint"]

    @property
    def diversity(self) -> float:
        """The information-theoretic diversity, TC(U|Y) − TC(U) = I(U; Y) − relevancy, bits."""
        return self.terms["diversity"]

    @property
    def label_entropy(self) -> float:
        """H(Y), plug-in, bits: the upper limit of information about the label."""
        return entropy_of_labels(self.labels)

    @property
    def exceeds_entropy(self) -> bool:
        """Whether the joint information exceeds H(Y), which is impossible, by more than the entropy's own bias."""
        return exceeds_entropy(self.joint, self)

    @property
    def lower_bound(self) -> Estimate | None:
        """A variational lower bound of I(U; Y) in bits, with its interval, of which only the low end bounds I too."""
        if self.bound_rows is None:
            return None
        return lower_bound(self.bound_rows, self.label_entropy, self.confidence_level)

    @cached_property
    def _estimate(self) -> Estimator:
        return self.estimate()

    figures: ClassVar = {"terms": "information.term_bars", "members": "information.member_bars"}

    def plot(self, kind: Literal["terms", "members"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per term, in bits.

        `bits` with `low`, `high`; `null` (median), `null_low`, `null_high` and two-sided `p` of the null that
        `null_model` names; `inside_null`; `bound`: an estimate, a lower bound, or no bound. `attrs` has the `warnings`,
        and `lower_bound`: bits, low and high.
        """
        import pandas as pd

        rows = []
        for term, value in self.terms.items():
            null = self.null[term]
            low, high = map(float, interval(null, self.confidence_level))
            row = {"term": term, "bits": value, "low": self.intervals[term][0], "high": self.intervals[term][1]}
            row |= {"null": float(np.median(null)) if len(null) else np.nan, "null_low": low, "null_high": high}
            row |= {"p": _two_sided(value, null), "inside_null": bool(low <= value <= high)}
            rows.append(row | {"null_model": NULL_MODEL[term], "bound": _BOUND[self.method][term]})
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = dict.fromkeys(("bits", "low", "high", "null", "null_low", "null_high"), "bits")
        frame.attrs |= {"rows": len(self.labels), "members": len(self.components), "warnings": list(self.warnings)}
        frame.attrs |= {name: getattr(self, name) for name in ("method", "label_entropy", "confidence_level", "seed")}
        if bound := self.lower_bound:
            frame.attrs["lower_bound"] = [float(end) for end in bound[:3]]
        return frame

    def by_component(self) -> pd.DataFrame:
        """One row per member, in bits: `relevancy` I(u_i; Y), and `gain` I(U; Y) − I(U without it; Y).

        `span` is what the member contains; `low`, `high` and `null_low`, `null_high` (labels shuffled) are the
        relevancy's; `gain` is the member's information that all the others together lack.
        """
        import pandas as pd

        null_low, null_high = interval(self.member_null, self.confidence_level)
        columns = {
            "span": self.spans,
            "relevancy": self._estimate.relevancies,
            "low": self.member_intervals[0],
            "high": self.member_intervals[1],
            "null_low": null_low,
            "null_high": null_high,
            "gain": self._estimate.marginals(),
        }
        frame = pd.DataFrame(component_columns(self.components) | columns)
        frame.attrs["units"] = dict.fromkeys(list(columns)[1:], "bits")
        return frame

    def bounds(self) -> Bounds:
        """Bound the error by Eq. 12 from a variational estimate of I, with the observed errors. See `Bounds`."""
        return bounds_of(self, self.confidence_level)

    def gain_curve(
        self, order: Order = "depth", *, n_permutations: int = 50, n_resamples: int = 50, orders: int = 10
    ) -> GainCurve:
        """Compute every term as members are added one by one (Theorems 5-8, Fig. 2 and 6), with a noise null.

        Args:
            order: "depth": in stream order; "greedy": always the member with the largest gain, which mistakes luck for
                gain (the null is searched as greedily); "random": the mean over `orders` random orders.
            n_permutations, n_resamples: Shuffles of the labels, and subsamples of rows.
            orders: Number of random orders, also for the test of diminishing gains.

        Raises InputError for an unknown order, for "greedy" with more than 40 members unless Gaussian, and for "depth"
        with groups, which have no place along depth.
        """
        with single_threaded_blas():
            return gain_curve_of(self, self.confidence_level, order, n_permutations, n_resamples, orders)

    def __repr__(self) -> str:
        shown = {term: f"{self.terms[term]:.3g}" for term in TERMS}
        if self.exceeds_entropy:
            shown |= {"joint": "above H(Y)", "diversity": "unknown"}
        terms = ", ".join(f"{term} {value}" for term, value in shown.items())
        warned = "; " + re.split(r"\.(?: (?=[A-Z])|$)", self.warnings[0])[0] if self.warnings else ""
        counts = f"{len(self.components)} members, {len(self.labels)} rows"
        return f"Information({counts}, {self.method}: {terms} bits{warned})"


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
        measured = _measure(sample, n_permutations, n_resamples, confidence_level)
        rows = bound_rows(sample) if check else None
        first = contradictions(
            sample, sample.estimate(), measured["terms"], measured["intervals"], confidence_level, rows
        )
    given = {field.name: getattr(sample, field.name) for field in fields(sample)}
    i = Information(**given | measured, confidence_level=confidence_level, bound_rows=rows)
    warnings = [*first, *i.warnings, *_cautions(i)]
    error = str(getattr(ensemble, "error_note", ""))  # of a dictionary or another cut
    return replace(i, warnings=(*warnings, *([f"{error[0].upper()}{error[1:]}."] if error else [])))


def _measure(sample: Sample, n_permutations: int, n_resamples: int, confidence_level: float) -> dict[str, Any]:
    """Compute terms and relevancies of members, with intervals and nulls."""

    def both(estimate: Estimator) -> np.ndarray:
        return np.concatenate([list(estimate.totals().values()), estimate.relevancies])

    estimate = sample.estimate()
    values = both(estimate)
    if isinstance(estimate, Variational):
        # Rows held out from the classifiers are independent of one another.
        rows = np.concatenate([list(estimate.rows().values()), estimate.single_rows])
        errors = rows.std(1, ddof=1) / np.sqrt(len(sample.labels))
    else:
        errors = sample.standard_errors(sample.on_subsamples(both, n_resamples), len(values))
    ends = values + normal_quantile(confidence_level) * np.stack([-errors, errors])
    if isinstance(estimate, Variational):
        # Information is not negative; a difference of two bounds, with unknown slack each, has no interval.
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


def _two_sided(value: float, null: Float[np.ndarray, " draw"]) -> float:
    """Compute p of a value among draws of its null: twice the smaller tail, counting the value; NaN without draws."""
    if not len(null) or not np.isfinite(value) or not np.isfinite(null).all():
        return np.nan
    tail = min(int((null >= value).sum()), int((null <= value).sum()))
    return min(1.0, 2 * (1 + tail) / (1 + len(null)))


def _cautions(i: Information) -> list[str]:
    """Collect further warnings to read before the numbers."""
    counts, dims, warnings = np.bincount(i.labels), len(i.owner), list[str]()
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
    return warnings
