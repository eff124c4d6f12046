"""From statistics to a verdict. Thresholds were set on planted networks of some seeds and tried on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..ensemble.intervals import LEAST

Word = Literal["averages", "redundant, not independent", "discretizes", "cooperates", "cannot tell"]
# Of every statistic: estimate, low, high.
Statistics = Mapping[str, tuple[float, float, float]]

# A member in place of all of its part costs less than this share of what leaving the group out costs.
STANDS_IN = 0.8
# What another order, or reading one stream side by side, may cost where it makes no difference; the same share.
NO_DAMAGE = 0.1
# Rescaling what is kept helps below this ratio to dropping alone, and hurts above 1.
HELPS = 1.0
# Errors are independent at κ = 1. Where κ is this share of the members, they all make the same error.
INDEPENDENT, SHARED = 1.0, 0.9
# The members' own writes must bring this share of what could be gained over the answer without them.
GAIN = 0.25

LIMITS = (
    "direct contributions leave out what later layers do with a write (ld.effects measures that half)",
    "reruns put layers on streams that they never saw: small damage is evidence, large damage is weaker",
    "thresholds are from planted networks without attention, of 8 to 24 layers, not from language models",
)


@dataclass(frozen=True)
class Verdict:
    """A verdict in words, what led to it, and what it leaves open."""

    word: Word
    reasons: tuple[str, ...]
    limits: tuple[str, ...] = LIMITS

    def __str__(self) -> str:
        return f"{self.word}: " + "; ".join(self.reasons)


def judge(statistics: Statistics, floor_known: bool, largest_kappa: float) -> Verdict:
    """The verdict. Where an interval holds a threshold, what hangs on it cannot be told.

    - Members stand in for one another if one of them in place of its whole part costs clearly less than leaving the
      group out. If so, and neither order nor reading one stream side by side matters, they *average* (κ from 1 on:
      their errors cancel as independent ones do) or are *redundant, not independent* (κ < 1, or near its largest:
      copies).
      If order or side-by-side reading matters, they *discretize*: like steps, each acts on what the others did.
    - If not, and κ < 1 or rescaling what is kept hurts more than dropping alone, they *cooperate*: none stands for all.

    Args:
        statistics: As `EnsembleTest.statistics`.
        floor_known: Whether the least possible loss is known. If not, κ is an upper limit: noise in labels is an error
            that all members share, so that κ above 1 says nothing.
        largest_kappa: What κ would be for exact copies: the members of a part.
    """
    if "repeat" not in statistics:
        return Verdict("cannot tell", ("no layers were run again (draws=0): κ alone does not tell regimes apart",))
    if np.isnan(statistics["damage"][1]):
        return Verdict("cannot tell", (f"there are fewer than {LEAST} rows, so that no statistic has an interval",))
    said = {name: _said(*values) for name, values in statistics.items()}
    if not _above(statistics["damage"], 0.0):
        return Verdict("cannot tell", (f"leaving the group out costs {said['damage']} nats: nothing to divide by",))
    if not _above(statistics["gain"], GAIN):
        gain = f"the members' own writes bring {said['gain']} of what could be gained"
        return Verdict("cannot tell", (f"{gain}, not clearly more than {GAIN:g}: κ would say little",))
    stands_in = _below(statistics["repeat"], STANDS_IN)
    repeat = f"one member in place of its part costs {said['repeat']} of leaving the group out"
    kappa = statistics["kappa"]
    if stands_in is None:
        return Verdict("cannot tell", (f"{repeat}, not clear of {STANDS_IN:g}",))
    if not stands_in:
        rescaled = f"rescaling what is kept costs {said['rescaled_to_dropped']} times what dropping alone does"
        reasons = (repeat, rescaled, f"κ {said['kappa']}")
        hurts = _above(statistics["rescaled_to_dropped"], HELPS)
        return Verdict("cooperates" if hurts or _below(kappa, INDEPENDENT) else "cannot tell", reasons)
    orders = {name: statistics[name] for name in ("reverse", "shuffle", "parallel")}
    costs = ", ".join(f"{name} {said[name]}" for name in orders)
    free = [_below(values, NO_DAMAGE) for values in orders.values()]
    if any(flag is False for flag in free):
        return Verdict("discretizes", (repeat, f"yet each acts on what the others did: {costs}"))
    if any(flag is None for flag in free):
        return Verdict("cannot tell", (repeat, f"whether order matters is open: {costs}"))
    reasons = (repeat, f"order makes no difference: {costs}", f"κ {said['kappa']} of at most {largest_kappa:.3g}")
    if _above(kappa, SHARED * largest_kappa) or _below(kappa, INDEPENDENT):
        if _above(kappa, SHARED * largest_kappa) and not floor_known:
            return Verdict("cannot tell", (*reasons, "the least possible loss is unknown: give a target or floor"))
        return Verdict("redundant, not independent", reasons)
    if not floor_known:
        return Verdict("cannot tell", (*reasons, "the least possible loss is unknown: give a target or floor"))
    if _above(kappa, INDEPENDENT) and _below(kappa, SHARED * largest_kappa):
        return Verdict("averages", reasons)
    return Verdict("cannot tell", (*reasons, "which is not clear of a threshold"))


def _below(values: tuple[float, float, float], threshold: float) -> bool | None:
    """Whether a statistic is below; None where its interval holds the threshold, or there is none."""
    _, low, high = values
    return True if high < threshold else False if low >= threshold else None


def _above(values: tuple[float, float, float], threshold: float) -> bool:
    return _below(values, threshold) is False and values[0] > threshold


def _said(value: float, low: float, high: float) -> str:
    if not np.isfinite(low):
        return f"{value:.2g}"
    return f"{value:.2g} ({low:.2g} to {high:.2g})"
