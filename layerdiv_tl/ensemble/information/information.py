"""`information`: the terms of Eq. 13 from an ensemble and labels, with their intervals and nulls, in bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import brentq

from ..._checks import choice, flag, number, whole_number
from ...components import Component, component_columns
from ...errors import InputError
from ...results import NumberProperty, Plot, Result
from ..intervals import ENDS, LEVEL, Estimate, estimates_frame, percentile_interval
from ..validation import EnsembleLike
from ..validation import Labels as GivenLabels
from .classifier import bound_rows
from .gaussian import TERMS, Gaussian, single_threaded_blas
from .sample import Sample, prepare

# One-sided: by chance the bound exceeds a correct estimate about one time in a hundred.
BOUND_Z = NormalDist().inv_cdf(0.99)
# Bits that change no conclusion; two estimates may differ by these where rows are few.
NEGLIGIBLE = 0.02
# Excess over the lower bound, in bits and relative to the bound, at which an estimate is far too large.
LARGE = 0.1
# z of the likelihood ratio from which on the covariances of the classes clearly differ.
CLEARLY_UNEQUAL = 5.0
# More draws add nothing and would take days. Seeds are written to files as 64 bits.
MAX_DRAWS, MAX_SEED = 10_000, 2**63 - 1
# The shuffling that each term is compared with, which leaves everything else unchanged.
LABELS, MEMBERS = "labels shuffled", "members shuffled within classes"
NULL_MODEL = dict(zip(TERMS, (LABELS, MEMBERS, MEMBERS, LABELS, LABELS), strict=True))


def information(
    ensemble: EnsembleLike | Float[np.ndarray, "example member"],
    labels: GivenLabels = None,
    *,
    n_permutations: int = 200,
    n_resamples: int = 200,
    seed: int = 0,
    n_groups: int | None = None,
    components: Sequence[str | Component] | None = None,
    confidence_level: float = LEVEL,
    check: bool = True,
) -> Information:
    """Information-theoretic diversity (Theorem 4): I(U; Y) = relevancy + TC(U|Y) − TC(U), in bits.

    Members' contrasts over options are Gaussian within classes, with one covariance, after monotone transforms, so all
    terms come from one mixture, without bias (`Gaussian`). Next to it stands what classifiers find on rows that they
    have not seen, a lower bound of I(U; Y) under any law (`lower_bound`).

    Args:
        ensemble: `Contributions`, an array `[example, member, option]` of logits, or `[example, member]` of numbers.
        labels: One for each example, by default the contributions' own: option indices or texts, or any classes where
            there are no options. Where every example has options of its own, its class is the index of the right one.
        n_permutations, n_resamples, seed, confidence_level: Shuffles for the nulls; subsamples without replacement for
            the intervals; both 0 is quick. Equal seeds give equal results.
        n_groups: First sum neighbors along the stream to at most this many members: 12 with few rows.
        components: Names for the members of a plain array.
        check: Compare the joint information with the lower bound.

    Rows must be independent. Intervals are normal, with a standard error from subsamples of four fifths: up to twice
    too wide under independence, and only as good as the estimator's assumptions: read `i.warnings`.

    Raises InputError for one class, classes of fewer than 8 rows or fewer than twice as many rows as dimensions,
    numbers that are not finite, and members that never vary or are fixed by the others (copies).

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(2000) % 2
    >>> i = information(rng.normal(size=(2000, 2)) + y[:, None], y, n_permutations=0, n_resamples=0)
    >>> [f"{x:.2f}" for x in (i.relevancy, i.redundancy, i.joint, i.diversity)]
    ['0.33', '0.02', '0.30', '-0.02']
    """
    n_permutations = whole_number("n_permutations", n_permutations, 0, MAX_DRAWS)
    n_resamples = whole_number("n_resamples", n_resamples, 0, MAX_DRAWS)
    seed = whole_number("seed", seed, 0, MAX_SEED)
    confidence_level = number("confidence_level", confidence_level, above=0, below=1)
    flag("check", check)
    sample = prepare(ensemble, labels, seed, n_groups, components)
    with single_threaded_blas():
        numbers = _measure(sample, n_permutations, n_resamples, confidence_level)
        rows = bound_rows(sample.features, sample.labels, seed) if check else None
        given = {field.name: getattr(sample, field.name) for field in fields(sample)}
        i = Information(**given | numbers, confidence_level=confidence_level, bound_rows=rows)
        warnings = [*_contradictions(i), *i.warnings]
    model, task = (str(getattr(ensemble, name, "")) for name in ("model", "task"))
    return replace(i, warnings=tuple(warnings), model=model, task=task)


def _measure(sample: Sample, n_permutations: int, n_resamples: int, confidence_level: float) -> dict[str, Any]:
    """Compute terms and relevancies of members, with intervals and nulls."""

    def both(estimate: Gaussian) -> np.ndarray:
        return np.concatenate([list(estimate.totals().values()), estimate.relevancies])

    values, count = both(sample.estimate()), len(TERMS)
    errors = sample.standard_errors(both, values, n_resamples)
    ends = values + _quantile(confidence_level) * np.stack([-errors, errors])
    by_labels = np.reshape(sample.with_shuffled_labels(both, n_permutations), (-1, len(values)))
    totals = sample.with_shuffled_members(lambda e: list(e.totals().values()), n_permutations)
    by_members = np.reshape(totals, (-1, count))
    joint = TERMS.index("joint")
    ends[1, joint] = max(values[joint], min(ends[1, joint], _entropy(sample.labels)))
    draws = {term: by_labels if NULL_MODEL[term] == LABELS else by_members for term in TERMS}
    return {
        "terms": dict(zip(TERMS, values.tolist(), strict=False)),
        "intervals": dict(zip(TERMS, map(tuple, ends.T.tolist()), strict=False)),
        "null": {term: draws[term][:, place].copy() for place, term in enumerate(TERMS)},
        "member_intervals": ends[:, count:],
        "member_null": by_labels[:, count:],
    }


def _bits(term: str, doc: str) -> NumberProperty:
    return NumberProperty(lambda information: information.terms[term], doc=doc)


def _term_frame(information: Information) -> pd.DataFrame:
    frame = information.frame()
    rows = frame.rename(columns={"term": "component", "low": "bits_low", "high": "bits_high"})
    if bound := information.lower_bound:
        ends = {"bits": bound.value, "bits_low": bound.low, "bits_high": bound.high}
        rows = pd.concat([rows, pd.DataFrame([{"component": "joint, at least"} | ends])], ignore_index=True)
    rows["component"] = rows["component"].str.replace("_", " ")
    rows.attrs = frame.attrs | {"units": {"bits": "bits"}, "about": _counts(information)}
    return rows


def _member_frame(information: Information) -> pd.DataFrame:
    frame = information.by_component().assign(component=list(information.spans))
    frame = frame.rename(columns={"low": "relevancy_low", "high": "relevancy_high"})
    frame.attrs |= {"units": {"relevancy": "bits", "gain": "bits"}, "about": _counts(information)}
    return frame


def _along_frame(information: Information, terms: Sequence[str] = ("joint",)) -> pd.DataFrame:
    frame, rows = information.along(), []
    for term in terms:
        choice("terms", term, TERMS)
        columns = {"members": frame["members"], "term": term.replace("_", " ")}
        rows.append(pd.DataFrame(columns | {f"bits{end}": frame[f"{term}{end}"] for end in ENDS}))
    joined = pd.concat(rows, ignore_index=True)
    joined.attrs = {"units": {"bits": "bits"}, "about": _counts(information)}
    return joined


def _counts(information: Information) -> str:
    return f"{len(information.components)} members, {len(information.labels)} rows"


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
        model, task: The names of the model and task whose contributions the members are; "" for an array.
    """

    terms: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    null: dict[str, Float[np.ndarray, " draw"]]
    member_intervals: Float[np.ndarray, "2 member"]
    member_null: Float[np.ndarray, "draw member"]
    confidence_level: float
    bound_rows: Float[np.ndarray, " example"] | None = None
    model: str = ""
    task: str = ""

    relevancy = _bits("relevancy", "Σ_i I(u_i; Y), bits.")
    redundancy = _bits("redundancy", "TC(U), the members' total correlation, bits.")
    conditional_redundancy = _bits("conditional_redundancy", "TC(U|Y), the total correlation within classes, bits.")
    joint = _bits("joint", "I(U; Y), bits.")
    diversity = _bits("diversity", "Information-theoretic diversity, TC(U|Y) − TC(U) = I(U; Y) − relevancy, bits.")

    figures: ClassVar = {
        "terms": Plot(
            "Information about the label",
            "Every term of Eq. 13 with its interval; gray: 95 % of shuffled rows. Last, the classifiers' lower bound.",
            "special.across",
            _term_frame,
            {"column": "bits"},
        ),
        "members": Plot(
            "Information by member",
            "Relevancy I(u_i; Y), and the information that no other member has.",
            "shapes.bars",
            _member_frame,
            {"columns": ("relevancy", "gain")},
        ),
        "along": Plot(
            "Information as members are added",
            'Terms of Eq. 13 of the first members in stream order (Fig. 2); `terms`, by default ("joint",).',
            "shapes.lines",
            _along_frame,
            {"columns": ("bits",), "x": "members", "by": "term"},
        ),
    }

    @property
    def label_entropy(self) -> float:
        """H(Y), plug-in, bits: the upper limit of information about the label."""
        return _entropy(self.labels)

    @property
    def lower_bound(self) -> Estimate | None:
        """A variational lower bound of I(U; Y) in bits, with its interval, of which only the low end bounds I too."""
        if self.bound_rows is None:
            return None
        mean = self.bound_rows.mean()
        half = _quantile(self.confidence_level) * _error(self.bound_rows)
        value, low, high = np.clip([mean, mean - half, mean + half], 0.0, self.label_entropy).tolist()
        return Estimate(value, low, high, len(self.bound_rows))

    def frame(self) -> pd.DataFrame:
        """One row per term, in bits.

        `bits` with `low`, `high`; `null` (median), `null_low`, `null_high` and two-sided `p` of the null that
        `null_model` names; `inside_null`. `attrs` has the `warnings`, and `lower_bound`: bits, low and high.
        """
        rows = []
        for term, value in self.terms.items():
            null = self.null[term]
            low, high = map(float, percentile_interval(null, self.confidence_level))
            row = {"term": term, "bits": value, "low": self.intervals[term][0], "high": self.intervals[term][1]}
            row |= {"null": float(np.median(null)) if len(null) else np.nan, "null_low": low, "null_high": high}
            row |= {"p": _two_sided(value, null), "inside_null": bool(low <= value <= high)}
            rows.append(row | {"null_model": NULL_MODEL[term]})
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = dict.fromkeys(("bits", "low", "high", "null", "null_low", "null_high"), "bits")
        frame.attrs |= {"rows": len(self.labels), "members": len(self.components), "warnings": list(self.warnings)}
        frame.attrs |= {name: getattr(self, name) for name in ("label_entropy", "confidence_level", "seed")}
        if bound := self.lower_bound:
            frame.attrs["lower_bound"] = list(bound[:3])
        return frame

    def by_component(self) -> pd.DataFrame:
        """One row per member, in bits: `relevancy` I(u_i; Y), and `gain` I(U; Y) − I(U without it; Y).

        `span` is what the member contains; `null_low` and `null_high` (labels shuffled) are the relevancy's; `gain` is
        the member's information that all the others together lack.
        """
        with single_threaded_blas():
            estimate = self.estimate()
            gains = estimate.gains()
        numbers = {"relevancy": estimate.relevancies}
        numbers |= dict(zip(("relevancy_low", "relevancy_high"), self.member_intervals, strict=True))
        null = percentile_interval(self.member_null, self.confidence_level)
        numbers |= dict(zip(("null_low", "null_high"), null, strict=True)) | {"gain": gains}
        columns = component_columns(self.components) | {"span": self.spans} | numbers
        return estimates_frame(columns, dict.fromkeys(numbers, "bits"))

    def along(self, order: Sequence[int] | None = None, n_resamples: int = 50) -> pd.DataFrame:
        """One row per member added: every term of Eq. 13 for the members up to it, and the `gain` of the joint.

        These are Theorems 5-8. True information never falls when a member is added (chain rule): a negative gain is an
        error of the estimate. Theorems 7 and 8 assume members that are independent given the label; where they are
        not, gains may grow, which refutes nothing.

        Args:
            order: The members' indices, by default those of the stream. Raises InputError for the stream's order of
                groups, which have no place along depth.
            n_resamples: Subsamples of the rows for the intervals.
        """
        if order is None and (groups := [c.label for c in self.components if c.kind == "group"]):
            raise InputError(f"{groups[0]} has no place along depth: give an order.")
        chosen = list(range(self.members)) if order is None else [int(member) for member in order]

        def curves(estimate: Gaussian) -> np.ndarray:
            terms = estimate.chain(chosen)
            return np.vstack([*terms.values(), np.diff(terms["joint"], prepend=0.0)])

        with single_threaded_blas():
            values = curves(self.estimate())
            halves = _quantile(self.confidence_level) * self.standard_errors(curves, values, n_resamples)
        columns: dict[str, Any] = {"members": np.arange(1, len(chosen) + 1)}
        columns |= component_columns([self.components[m] for m in chosen])
        columns["span"] = [self.spans[m] for m in chosen]
        for name, value, half in zip((*TERMS, "gain"), values, halves, strict=True):
            columns[name] = Estimate(value, value - half, value + half, len(self.labels))
        attrs = {"label_entropy": self.label_entropy, "warnings": list(self.warnings)}
        return estimates_frame(columns, dict.fromkeys((*TERMS, "gain"), "bits"), **attrs)

    def error_bounds(self) -> pd.DataFrame:
        """Bounds of the error of predicting the label (Eq. 12), as shares of rows; one row per estimate of I(U; Y).

        `fano` is the sharp lower bound, `fano_printed` that of Eq. 12 (at most 0 for two options): valid where I is
        not too small. `hellman_raviv` is the upper bound of the best rule's error, valid where I is not too large: the
        row `lower bound`, from what classifiers find, keeps it. A model's own answer may exceed it.
        """
        estimates = {"estimate": self.joint}
        if bound := self.lower_bound:
            estimates["lower bound"] = bound.value
        rows = []
        for name, bits in estimates.items():
            remaining = self.label_entropy - min(max(bits, 0.0), self.label_entropy)
            printed = (remaining - 1) / float(np.log2(self.options))
            bounds = {"fano": fano(remaining, self.options), "fano_printed": printed, "hellman_raviv": remaining / 2}
            rows.append({"information": name, "bits": bits} | bounds)
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = {"bits": "bits"} | dict.fromkeys(("fano", "fano_printed", "hellman_raviv"), "share")
        frame.attrs |= {"label_entropy": self.label_entropy, "options": self.options}
        return frame

    def __repr__(self) -> str:
        terms = ", ".join(f"{term} {self.terms[term]:.3g}" for term in TERMS)
        warned = "; " + re.split(r"\.(?: (?=[A-Z])|$)", self.warnings[0])[0] if self.warnings else ""
        return f"Information({len(self.components)} members, {len(self.labels)} rows: {terms} bits{warned})"


def fano(remaining: float, options: int) -> float:
    """The smallest error e with h(e) + e·log2(K − 1) ≥ `remaining` = H(Y|U) bits, K options (Fano 1961).

    >>> fano(1.0, 2), fano(0.0, 4), round(fano(2.0, 4), 3)
    (0.5, 0.0, 0.75)
    """

    def allowed(e: float) -> float:
        h = 0.0 if e in (0.0, 1.0) else -e * np.log2(e) - (1 - e) * np.log2(1 - e)
        return float(h + e * np.log2(options - 1))

    most = 1 - 1 / options
    if remaining <= 0:
        return 0.0
    if remaining >= allowed(most):
        return most
    return float(brentq(lambda e: allowed(e) - remaining, 0.0, most, xtol=1e-12))


def _contradictions(i: Information) -> Iterator[str]:
    """List reasons why the terms may be wrong."""
    joint, low, bound = i.joint, i.intervals["joint"][0], i.lower_bound
    if bound is not None and i.bound_rows is not None:
        error, of_joint = _error(i.bound_rows), (joint - low) / _quantile(i.confidence_level)
        both = np.hypot(error, error if np.isnan(of_joint) else of_joint)
        shown = f"{bound.value:.2g} bits ({bound.low:.2g} to {bound.high:.2g})"
        if bound.value - joint > BOUND_Z * both + NEGLIGIBLE:
            yield (
                f"A classifier finds at least {shown} about unseen labels: the estimate ({joint:.3g} bits) is clearly "
                "too small."
            )
        if (joint if np.isnan(low) else low) - bound.high > max(bound.high, LARGE):
            yield (
                f"The joint information ({joint:.3g} bits) may be far too large: on rows that they have not seen, "
                f"classifiers find {shown}."
            )
    z = i.estimate().inequality()
    if z > CLEARLY_UNEQUAL:
        yield (
            f"The covariances of the classes differ (z = {z:.0f}): the estimate pools them, and what lies in their "
            "difference is in no term."
        )
    if repeats := len(i.features) - len(np.unique(i.features, axis=0)):
        yield f"{repeats} rows occur more than once: the estimates take rows for independent."


def _entropy(y: np.ndarray) -> float:
    """H(Y), plug-in, in bits."""
    share = np.bincount(y) / len(y)
    return float(-(share * np.log2(share)).sum())


def _error(rows: Float[np.ndarray, " example"]) -> float:
    """Return the standard error of a mean over independent rows."""
    return float(rows.std(ddof=1) / np.sqrt(len(rows)))


def _quantile(confidence_level: float) -> float:
    """Return z of a two-sided normal interval."""
    return NormalDist().inv_cdf(0.5 + confidence_level / 2)


def _two_sided(value: float, null: Float[np.ndarray, " draw"]) -> float:
    """Compute p of a value among draws of its null: twice the smaller tail, counting the value; NaN without draws."""
    if not len(null) or not np.isfinite(value) or not np.isfinite(null).all():
        return np.nan
    tail = min(int((null >= value).sum()), int((null <= value).sum()))
    return min(1.0, 2 * (1 + tail) / (1 + len(null)))
