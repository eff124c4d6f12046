"""How wrong a model must be, and need not be, for what its members tell about the label (Eq. 12)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from ...results import Result
from ..intervals import wilson
from .variational import Variational

if TYPE_CHECKING:
    import pandas as pd


def fano(remaining: float, options: int) -> float:
    """The smallest error e with h(e) + e·log2(K − 1) ≥ `remaining` = H(Y|U) bits, K options (Fano 1961).

    >>> fano(1.0, 2), fano(0.0, 4), round(fano(2.0, 4), 3)
    (0.5, 0.0, 0.75)
    """
    from scipy.optimize import brentq

    def allowed(e: float) -> float:
        h = 0.0 if e in (0.0, 1.0) else -e * np.log2(e) - (1 - e) * np.log2(1 - e)
        return float(h + e * np.log2(options - 1))

    most = 1 - 1 / options
    if remaining <= 0:
        return 0.0
    if remaining >= allowed(most):
        return most
    return float(brentq(lambda e: allowed(e) - remaining, 0.0, most, xtol=1e-12))


def printed_fano(remaining: float, options: int) -> float:
    """(H(Y|U) − 1)/log2 K, as Eq. 12 prints it: at most 0 for two options.

    >>> printed_fano(1.0, 2), printed_fano(2.0, 4)
    (0.0, 0.5)
    """
    return (remaining - 1) / float(np.log2(options))


def hellman_raviv(remaining: float, options: int) -> float:
    """H(Y|U)/2: the best rule errs at most so often (Hellman and Raviv 1970).

    >>> hellman_raviv(1.0, 2)
    0.5
    """
    return remaining / 2


_BOUNDS = {
    "fano_printed": (printed_fano, "lower", False),
    "fano": (fano, "lower", False),
    "hellman_raviv": (hellman_raviv, "upper", True),
}


@dataclass(frozen=True, eq=False, repr=False)
class Bounds(Result):
    """Bounds of the error from an estimate of I(U; Y), and the errors observed. Made by `Information.bounds`.

    The estimate is variational: a lower bound of I, so H(Y|U) = H(Y) − I is estimated from above, within
    0 … H(Y). That **keeps Hellman and Raviv's upper bound valid and breaks Fano's lower one**, which would need I
    from above: members that tell more than the classifier found may err less than "fano". Hellman-Raviv
    holds for the Bayes rule: a model's own answer may exceed it, which is a finding and no error.

    label_entropy, information, low, high
        H(Y), and the variational I with its interval over unseen rows, in bits.
    options
        K of the bounds.
    errors
        {who: (error, low, high)}, shares of rows: "ensemble" (all members together, where they give an
        answer), "classifier" (the linear discriminant on unseen rows).
    """

    label_entropy: float
    information: float
    low: float
    high: float
    options: int
    errors: dict[str, tuple[float, float, float]]
    confidence_level: float

    def frame(self) -> pd.DataFrame:
        """One row per bound and per observed error, as shares of rows.

        `bound` is lower or upper; `valid` says whether an I that is estimated from below keeps the bound
        (missing for observations); `low`, `high` carry the interval of I through, or are Wilson's.
        """
        import pandas as pd

        rows: list[tuple[Any, ...]] = []
        for name, (bound, side, valid) in _BOUNDS.items():
            at = [bound(self._remaining(bits), self.options) for bits in (self.information, self.high, self.low)]
            rows.append((name, "bound", at[0], at[1], at[2], side, valid))
        rows += [(name, "observed", *values, "", None) for name, values in self.errors.items()]
        frame = pd.DataFrame(rows, columns=["name", "kind", "error", "low", "high", "bound", "valid"])
        frame["valid"] = frame["valid"].astype("boolean")
        frame.attrs["units"] = dict.fromkeys(("error", "low", "high"), "share of rows")
        frame.attrs |= {
            name: getattr(self, name) for name in ("label_entropy", "information", "options", "confidence_level")
        }
        return frame

    @property
    def statement(self) -> str:
        """The bounds in one sentence or two."""
        frame = self.frame().set_index("name")
        upper, found = frame.loc["hellman_raviv"], frame[frame["kind"] == "observed"]
        said = [
            f"The members tell at least {max(self.information, 0.0):.3g} of {self.label_entropy:.3g} bits, so the best "
            f"rule errs at most {upper.error:.1%} of the time (up to {upper.high:.1%} for the interval's end)."
        ]
        for name, row in found.iterrows():
            how = "above" if row.low > upper.high else "not above"
            said.append(f"The {name} errs {row.error:.1%} of the time, {how} that.")
        return " ".join(said)

    def __repr__(self) -> str:
        return f"Bounds({self.statement})"

    def _remaining(self, bits: float) -> float:
        return self.label_entropy - float(np.clip(bits, 0.0, self.label_entropy))


def bounds_of(
    classifier: Variational, label_entropy: float, options: int, correct: np.ndarray | None, confidence_level: float
) -> Bounds:
    """From the rows that a classifier has not seen."""
    rows, z = classifier.joint_rows, NormalDist().inv_cdf(0.5 + confidence_level / 2)
    error = z * float(rows.std(ddof=1)) / np.sqrt(len(rows))
    answers = {"ensemble": correct, "classifier": classifier.right.astype(float)}
    errors = {}
    for name, right in answers.items():
        if right is not None:
            wrong = float((1 - right).sum())
            errors[name] = (wrong / len(right), *wilson(wrong, len(right), confidence_level))
    mean = float(rows.mean())
    return Bounds(
        label_entropy=label_entropy,
        information=mean,
        low=mean - error,
        high=mean + error,
        options=options,
        errors=errors,
        confidence_level=confidence_level,
    )
