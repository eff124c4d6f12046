"""Predictions that a student writes down before a number is shown, compared with the measured value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .compare import aligned, plain
from .exercise import Shown

CLOSE = 0.1


@dataclass(frozen=True)
class Prediction:
    """A written prediction, or `...` for none."""

    value: Any

    @property
    def unwritten(self) -> bool:
        """Whether three dots stand in place of a prediction, or of one of several."""
        return self.value is ... or (isinstance(self.value, (list, tuple)) and ... in self.value)

    def __repr__(self) -> str:
        return "(no prediction yet: write it in place of the three dots)" if self.unwritten else f"{self.value}"

    def compare(self, measured: Any, unit: str = "", digits: int = 2, *, ordered: bool = False) -> Shown:
        """Compare the prediction with the measurement: one or several numbers or names.

        Names are compared in any order or, where they answer a question each (`ordered`), place by place.

        >>> predict(5).compare(8.66, "logits")
        you wrote 5; measured 8.66 logits: too low by 3.66
        >>> predict("late").compare("late")
        you wrote late; measured late: yes
        >>> predict(0.61).compare(0.58)
        you wrote 0.61; measured 0.58: close
        >>> predict(["L0.H1", "L2.H3"]).compare(["L2.H3", "L4.H0"])
        you wrote L0.H1, L2.H3; measured L2.H3, L4.H0: 1 of 2 found, 1 wrong
        >>> predict(["no", "yes"]).compare(["yes", "no"], ordered=True)
        you wrote no, yes; measured yes, no: 0 of 2 right
        >>> predict(...).compare(8.66)
        you wrote nothing; measured 8.66
        """
        target = plain(measured)
        shown = _shown(target, digits) + (f" {unit}" if unit else "")
        if self.unwritten or self.value is None:
            return Shown(f"you wrote nothing; measured {shown}")
        try:
            mine = plain(self.value)
        except (TypeError, ValueError):
            return Shown(f"you wrote {self.value}; measured {shown}")
        return Shown(f"you wrote {_shown(mine, digits)}; measured {shown}: {_verdict(mine, target, digits, ordered)}")


def predict(value: Any) -> Prediction:
    """Write down a prediction: a number, a name, or several in a list. Three dots mean none yet."""
    return Prediction(value)


def _shown(value: Any, digits: int) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, tuple):
        return ", ".join(_shown(part, digits) for part in value)
    return ", ".join(f"{x:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{x:.0f}" for x in value.ravel())


def _verdict(mine: Any, target: Any, digits: int, ordered: bool) -> str:
    if isinstance(target, str):
        return "yes" if isinstance(mine, str) and mine.strip().lower() == target.strip().lower() else "no"
    if isinstance(target, tuple) and any(isinstance(part, str) for part in target):
        mine = mine if isinstance(mine, tuple) else () if np.size(mine) == 0 else (mine,)
        names, right = ([str(part).strip().lower() for part in parts] for parts in (mine, target))
        if ordered:
            return f"{sum(a == b for a, b in zip(names, right, strict=False))} of {len(right)} right"
        matched = set(names) & set(right)
        wrong = len(set(names) - matched)
        return f"{len(matched)} of {len(set(right))} found{f', {wrong} wrong' if wrong else ''}"
    target = np.stack(target) if isinstance(target, tuple) else target
    mine = aligned(mine, target)
    if not isinstance(mine, np.ndarray) or mine.shape != target.shape:
        return f"{target.size} number{'s' * (target.size > 1)} would compare"
    off = mine - target
    near = np.abs(off) <= CLOSE * np.abs(target)
    if target.ndim:
        return f"{int(near.sum())} of {target.size} within {CLOSE:.0%}"
    return "close" if near else f"too {'high' if off > 0 else 'low'} by {_shown(np.abs(off), digits)}"
