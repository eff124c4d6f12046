"""Bounds of the classification error from the information about the label (Eq. 12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from scipy.optimize import brentq

from ...results import Result
from ..intervals import estimate
from .estimator import entropy_of_labels, mean_with_error, normal_quantile
from .sample import Sample

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


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
    """

    label_entropy: float
    information: float
    low: float
    high: float
    options: int
    errors: dict[str, tuple[float, float, float]]
    confidence_level: float

    figures: ClassVar = {"bounds": "information.bound_marks"}

    def plot(self, kind: Literal["bounds"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per bound and per observed error, as shares of rows.

        `bound` is lower or upper; `valid`: whether a lower bound of I keeps the bound (missing for observations); `low`
        and `high` come from those of I, or are Wilson's.
        """
        import pandas as pd

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
            f"The members hold at least {max(self.information, 0.0):.3g} of {self.label_entropy:.3g} bits, so the best "
            f"rule errs at most {_percent(upper['error'])} of the time (up to {_percent(upper['high'])} for the "
            "interval's end)."
        )
        observed = [
            f"The {name} errs {_percent(error)} of the time, {'above' if low > upper['high'] else 'not above'} that."
            for name, (error, low, _) in self.errors.items()
        ]
        return " ".join([first, *observed])

    def __repr__(self) -> str:
        return f"Bounds({self.statement})"


def bounds_of(i: Sample, confidence_level: float) -> Bounds:
    """Compute the bounds from rows held out from the variational estimate's classifier."""
    mean, error = map(float, mean_with_error(i.classifier.joint_rows))
    half = normal_quantile(confidence_level) * error
    errors: dict[str, Any] = {}
    for name, right in (("ensemble", i.correct), ("classifier", i.classifier.right)):
        if right is not None:
            errors[name] = tuple(map(float, estimate(1 - right, "share", confidence_level=confidence_level)[:3]))
    return Bounds(entropy_of_labels(i.labels), mean, mean - half, mean + half, i.options, errors, confidence_level)


def _percent(share: float) -> str:
    """Format in three digits, so that small shares are not all 0.0%."""
    return f"{100 * share:.3g}%"
