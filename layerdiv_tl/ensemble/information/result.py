"""The results: `Information`, every term of Eq. 13 with its interval and its null, in bits; and `Bounds` (Eq. 12)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from scipy.optimize import brentq

from ...components import component_columns
from ...results import NumberProperty, Result
from ..intervals import Estimate, estimate, estimates_frame, percentile_interval
from .estimator import (
    BITS,
    TERMS,
    Estimator,
    entropy_of_labels,
    mean_with_error,
    normal_quantile,
    single_threaded_blas,
)
from .gain_curve import GainCurve, Order, gain_curve_of
from .sample import Sample


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


# Name: the bound from H(Y|U) and K, its side, and whether a lower bound of the information keeps it valid.
_BOUNDS: dict[str, tuple[Callable[[float, int], float], str, bool]] = {
    # As Eq. 12 prints it: at most 0 for two options.
    "fano_printed": (lambda remaining, options: (remaining - 1) / float(np.log2(options)), "lower", False),
    "fano": (fano, "lower", False),
    # Of the Bayes rule's error (Hellman and Raviv 1970).
    "hellman_raviv": (lambda remaining, options: remaining / 2, "upper", True),
}


@dataclass(frozen=True, eq=False, repr=False)
class Bounds(Result):
    """Bounds of the error from an estimate of I(U; Y), with the observed errors. Made by `Information.bounds`.

    The estimate is variational, a lower bound of I, so H(Y|U) = H(Y) − I is overestimated. That **keeps Hellman and
    Raviv's upper bound valid and breaks Fano's lower one**, which would need an upper bound of I: members with more
    information than the classifier found may err less than "fano". Hellman-Raviv holds for the Bayes rule: a model's
    own answer may exceed it, which is a finding and not a mistake.

    Attributes:
        label_entropy, information, low, high: H(Y), and the variational I with its interval over unseen rows, in bits.
        options: K of the bounds.
        errors: {name: (error, low, high)}, shares of rows: "ensemble" (all members together, where they give an
            answer), "classifier" (the linear discriminant on unseen rows).
        model, task, rows: As in `Information`, and the number of examples.
    """

    label_entropy: float
    information: float
    low: float
    high: float
    options: int
    errors: dict[str, tuple[float, float, float]]
    confidence_level: float
    model: str = ""
    task: str = ""
    rows: int = 0

    figures: ClassVar = {"bounds": "information.bound_marks"}

    def plot(self, kind: Literal["bounds"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per bound and per observed error, as shares of rows.

        `bound` is lower or upper; `valid`: whether a lower bound of I keeps the bound (missing for observations); `low`
        and `high` come from those of I, or are Wilson's.
        """
        # More information means less error, so its high end gives the low one.
        remaining = self.label_entropy - np.clip([self.information, self.high, self.low], 0.0, self.label_entropy)
        rows: list[tuple[Any, ...]] = []
        for name, (bound, side, valid) in _BOUNDS.items():
            rows.append((name, "bound", *(bound(float(bits), self.options) for bits in remaining), side, valid))
        rows += [(name, "observed", *values, "", None) for name, values in self.errors.items()]
        frame = pd.DataFrame(rows, columns=["name", "kind", "error", "low", "high", "bound", "valid"])
        frame["valid"] = frame["valid"].astype("boolean")
        frame.attrs["units"] = dict.fromkeys(("error", "low", "high"), "share of rows")
        names = ("label_entropy", "information", "options", "confidence_level")
        frame.attrs |= {name: getattr(self, name) for name in names}
        return frame

    @property
    def statement(self) -> str:
        """The bounds in one or two sentences."""
        upper: Any = self.frame().set_index("name").loc["hellman_raviv"]
        first = (
            f"The members hold at least {max(self.low, 0.0):.3g} of {self.label_entropy:.3g} bits (the low end of the "
            f"estimate {self.information:.3g}), so the best rule errs at most {_percent(upper['high'])} of the time."
        )
        observed = [
            f"The {name} errs {_percent(error)} of the time, {'above' if low > upper['high'] else 'not above'} that."
            for name, (error, low, _) in self.errors.items()
        ]
        return " ".join([first, *observed])

    def __repr__(self) -> str:
        return f"Bounds({self.statement})"


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


def _bits(term: str, doc: str) -> NumberProperty:
    return NumberProperty(lambda information: information.terms[term], doc=doc)


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
    redundancy = _bits("redundancy", "TC(U), the members' total correlation, bits; NaN for the variational estimator.")
    conditional_redundancy = _bits(
        "conditional_redundancy",
        "TC(U|Y), the total correlation within classes, bits; NaN for the variational estimator.",
    )
    joint = _bits("joint", "I(U; Y), bits.")
    diversity = _bits("diversity", "Information-theoretic diversity, TC(U|Y) − TC(U) = I(U; Y) − relevancy, bits.")

    @property
    def label_entropy(self) -> float:
        """H(Y), plug-in, bits: the upper limit of information about the label."""
        return entropy_of_labels(self.labels)

    @property
    def exceeds_entropy(self) -> bool:
        """Whether the joint information exceeds H(Y), which is impossible, by more than the entropy's own bias."""
        # Votes are corrected by Miller and Madow's term, which the plug-in entropy of the labels lacks.
        bias = (len(self.classes) - 1) / (2 * len(self.labels) * BITS)
        return bool(self.joint > self.label_entropy + bias + 1e-9)

    @property
    def lower_bound(self) -> Estimate | None:
        """A variational lower bound of I(U; Y) in bits, with its interval, of which only the low end bounds I too."""
        return None if self.bound_rows is None else self.bound_of(self.bound_rows)

    def bound_of(self, rows: Float[np.ndarray, " example"]) -> Estimate:
        """Average rows like `bound_rows`, with a normal interval, between 0 and H(Y)."""
        mean, error = mean_with_error(rows)
        half = normal_quantile(self.confidence_level) * error
        value, low, high = np.clip([mean, mean - half, mean + half], 0.0, self.label_entropy).tolist()
        return Estimate(value, low, high, len(rows))

    @cached_property
    def _estimate(self) -> Estimator:
        return self.estimate()

    figures: ClassVar = {"terms": "information.term_bars", "members": "information.member_bars"}

    def plot(self, kind: Literal["terms", "members"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per term, in bits.

        `bits` with `low`, `high`; `null` (median), `null_low`, `null_high` and two-sided `p` of the null that
        `null_model` names; `inside_null`; `bound`: an estimate, a lower bound, or no bound. `attrs` has the `warnings`,
        and `lower_bound`: bits, low and high.
        """
        rows = []
        for term, value in self.terms.items():
            null = self.null[term]
            low, high = map(float, percentile_interval(null, self.confidence_level))
            row = {"term": term, "bits": value, "low": self.intervals[term][0], "high": self.intervals[term][1]}
            row |= {"null": float(np.median(null)) if len(null) else np.nan, "null_low": low, "null_high": high}
            row |= {"p": _two_sided(value, null), "inside_null": bool(low <= value <= high)}
            rows.append(row | {"null_model": NULL_MODEL[term], "bound": _BOUND[self.method][term]})
        frame = pd.DataFrame(rows)
        frame.attrs["units"] = dict.fromkeys(("bits", "low", "high", "null", "null_low", "null_high"), "bits")
        frame.attrs |= {"rows": len(self.labels), "members": len(self.components), "warnings": list(self.warnings)}
        frame.attrs |= {name: getattr(self, name) for name in ("method", "label_entropy", "confidence_level", "seed")}
        if bound := self.lower_bound:
            frame.attrs["lower_bound"] = list(bound[:3])
        return frame

    def by_component(self) -> pd.DataFrame:
        """One row per member, in bits: `relevancy` I(u_i; Y), and `gain` I(U; Y) − I(U without it; Y).

        `span` is what the member contains; `null_low` and `null_high` (labels shuffled) are the relevancy's; `gain` is
        the member's information that all the others together lack.
        """
        numbers = {"relevancy": self._estimate.relevancies}
        numbers |= dict(zip(("relevancy_low", "relevancy_high"), self.member_intervals, strict=True))
        null = percentile_interval(self.member_null, self.confidence_level)
        numbers |= dict(zip(("null_low", "null_high"), null, strict=True)) | {"gain": self._estimate.marginals()}
        columns = component_columns(self.components) | {"span": self.spans} | numbers
        return estimates_frame(columns, dict.fromkeys(numbers, "bits"))

    def bounds(self) -> Bounds:
        """Bound the error by Eq. 12 from a variational estimate of I, with the observed errors. See `Bounds`."""
        mean, error = map(float, mean_with_error(self.classifier.joint_rows))
        half, level = normal_quantile(self.confidence_level) * error, self.confidence_level
        errors: dict[str, Any] = {}
        for name, right in (("ensemble", self.correct), ("classifier", self.classifier.right)):
            if right is not None:
                errors[name] = tuple(map(float, estimate(1 - right, "share", confidence_level=level)[:3]))
        about = (self.options, errors, level, self.model, self.task, len(self.labels))
        return Bounds(self.label_entropy, mean, mean - half, mean + half, *about)

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


def _two_sided(value: float, null: Float[np.ndarray, " draw"]) -> float:
    """Compute p of a value among draws of its null: twice the smaller tail, counting the value; NaN without draws."""
    if not len(null) or not np.isfinite(value) or not np.isfinite(null).all():
        return np.nan
    tail = min(int((null >= value).sum()), int((null <= value).sum()))
    return min(1.0, 2 * (1 + tail) / (1 + len(null)))


def _percent(share: float) -> str:
    """Format in three digits, so that small shares are not all 0.0%."""
    return f"{100 * share:.3g}%"
