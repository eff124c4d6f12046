"""Eq. 13 of an ensemble as a result: every term with its interval and its null, in bits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from ...components import component_columns
from ...results import Result
from ..intervals import interval
from .bounds import Bounds, bounds_of
from .estimator import BITS, TERMS, Estimator, entropy_of_labels, single_threaded_blas
from .gain_curve import GainCurve, Order, gain_curve_of
from .resampling import Sample
from .variational import LowerBound

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

# Whether each term is an estimate or a bound, by the estimator's method.
_BOUND = {
    "gaussian": dict.fromkeys(TERMS, "estimate"),
    "table": dict.fromkeys(TERMS, "estimate"),
    "tree": dict(zip(TERMS, ("estimate", "lower bound", "lower bound", "no bound", "no bound"), strict=True)),
    "variational": dict(zip(TERMS, ("lower bound", "none", "none", "lower bound", "no bound"), strict=True)),
}
# The shuffling each term is compared with: one that leaves everything else as it is.
LABELS, MEMBERS = "labels shuffled", "members shuffled within classes"
NULL_MODEL = dict(zip(TERMS, (LABELS, MEMBERS, MEMBERS, LABELS, LABELS), strict=True))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Information(Sample, Result):
    """Relevancy, redundancies, joint information and diversity of an ensemble (Eq. 13). Made by `information`.

    The data, as the estimators take them, are those of `Sample`.

    Attributes:
        terms, intervals, null: By term, in bits: estimate, (low, high), and draws of the null `[draw]` (see
            `NULL_MODEL`), without those whose covariance is singular.
        member_intervals, member_null: `[2, member]`, low and high of the relevancies; `[draw, member]`, relevancies
            with shuffled labels.
        lower_bound: A nonlinear lower bound of the joint information; None with `check=False`.
        doubts, warnings: Sentences on why the terms may be wrong; all sentences to read before the numbers, these
            first.
    """

    terms: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    null: dict[str, Float[np.ndarray, " draw"]]
    member_intervals: Float[np.ndarray, "2 member"]
    member_null: Float[np.ndarray, "draw member"]
    confidence_level: float
    lower_bound: LowerBound | None = None
    doubts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

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
        """H(Y), plug-in, bits: the most information there can be about the label."""
        return entropy_of_labels(self.labels)

    @property
    def exceeds_entropy(self) -> bool:
        """Whether the joint information exceeds H(Y), as no information does, by more than the entropy's own bias."""
        # Votes are corrected by Miller and Madow's term, which the plug-in entropy of the labels lacks.
        bias = (len(self.classes) - 1) / (2 * len(self.labels) * BITS)
        return bool(self.joint > self.label_entropy + bias + 1e-9)

    @cached_property
    def _estimate(self) -> Estimator:
        return self.estimate()

    figures: ClassVar = {"terms": "information.term_bars", "members": "information.member_bars"}

    def plot(self, kind: Literal["terms", "members"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per term, in bits.

        `bits` with `low`, `high`; `null` (median), `null_low`, `null_high` and `p` of the null that `null_model`
        names, two-sided; `inside_null`; `bound`: whether it is an estimate, a lower bound, or no bound. `attrs` has
        the `warnings`, and `lower_bound`: bits, low and high.
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
            frame.attrs["lower_bound"] = [bound.bits, bound.low, bound.high]
        return frame

    def by_component(self) -> pd.DataFrame:
        """One row per member, in bits: `relevancy` I(u_i; Y), and `gain` I(U; Y) − I(U without it; Y).

        `span` is what the member holds; `low`, `high` and `null_low`, `null_high` (labels shuffled) are the
        relevancy's; `gain` is the member's information that all the others together do not have.
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
        """Eq. 12's bounds of the error with the errors observed, from a variational estimate of I. See `Bounds`."""
        return bounds_of(self)

    def gain_curve(
        self, order: Order = "depth", *, n_permutations: int = 50, n_resamples: int = 50, orders: int = 10
    ) -> GainCurve:
        """Every term as members are added one by one (Theorems 5-8, Fig. 2 and 6), with what noise would give.

        Args:
            order: "depth": in stream order; "greedy": always the one that adds most, which takes luck for gain (the
                null is as greedy); "random": the mean over `orders` random orders.
            n_permutations, n_resamples: Shuffles of the labels, and subsamples of rows.
            orders: Random orders, also of the test for diminishing gains.

        Raises InputError for an unknown order, for the greedy one of more than 40 members unless Gaussian, and for that
        of depth with groups, which have no place there.
        """
        with single_threaded_blas():
            return gain_curve_of(self, order, n_permutations, n_resamples, orders)

    def __repr__(self) -> str:
        shown = {term: f"{self.terms[term]:.3g}" for term in TERMS}
        if self.exceeds_entropy:
            shown |= {"joint": "above H(Y)", "diversity": "unknown"}
        terms = ", ".join(f"{term} {value}" for term, value in shown.items())
        warned = "; " + re.split(r"\.(?: (?=[A-Z])|$)", self.warnings[0])[0] if self.warnings else ""
        counts = f"{len(self.components)} members, {len(self.labels)} rows"
        return f"Information({counts}, {self.method}: {terms} bits{warned})"


def _two_sided(value: float, null: Float[np.ndarray, " draw"]) -> float:
    """p of a value among draws of its null: twice the smaller tail, the value counted in; NaN without draws."""
    if not len(null) or not np.isfinite(value) or not np.isfinite(null).all():
        return np.nan
    tail = min(int((null >= value).sum()), int((null <= value).sum()))
    return min(1.0, 2 * (1 + tail) / (1 + len(null)))
