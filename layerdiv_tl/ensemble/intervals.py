"""Estimates with intervals over examples, or over clusters of tokens; and frames of estimates.

A mean has the interval of Student's t after Hall's transformation for skewness (1992, *On the Removal of Skewness by
Transformation*, J. R. Statist. Soc. B 54), each side between one and two of Student's own. Of 95 % intervals over 8,
12, 16, 32, 64 and 200 rows, 92, 93, 94, 94, 94 and 95 % hold the truth of log-normal rows (Student's: 83, 85, 86, 89,
90 and 93 %), and 92 to 98 % that of normal rows and of rows of which one in twenty is an outlier
(`tests/calibration`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import ndtri, stdtrit

from ..components import COLUMNS
from ..errors import InputError

# One value for each example or cluster; (low, high), `[*rest]`: arrays, or numbers where `rest` is empty.
Values = Float[np.ndarray, "example *rest"]
Ends = tuple[Any, Any]

LEVEL = 0.95
# Fewer independent examples (rows, texts, tasks, models) have no interval.
LEAST = 8
# A side of a mean's interval is at most this many times as long as Student's. Where few rows are very skewed, Hall's
# own has no limit: one outlier among twelve rows made it five times as long.
LONGEST = 2.0
# The columns of an estimate: its name, and the name with these.
ENDS = ("", "_low", "_high")
Kind = Literal["mean", "share", "difference"]


def interval_note(count: Any, over: str = "rows") -> str:
    """Describe a table's `_low` and `_high`, or why they are empty, for its `attrs`.

    `count` is the number of independent examples, or an array with one for each value.

    >>> interval_note(np.array([7, 10]))
    '95 % intervals over 7 to 10 rows, none below 8'
    """
    least, most = int(np.min(count)), int(np.max(count))
    over = over.removesuffix("s") if most == 1 else over
    number = f"{most} {over}" if least == most else f"{least} to {most} {over}"
    if most < LEAST:
        return f"no intervals: {number}, below {LEAST}"
    return f"{100 * LEVEL:g} % intervals over {number}" + (f", none below {LEAST}" if least < LEAST else "")


class Estimate(NamedTuple):
    """A number, or an array of them, with an interval: NaN for fewer than `LEAST` independent examples (`over`).

    `n` counts the examples that have a value: one number, or an array where columns differ.
    """

    value: Any
    low: Any
    high: Any
    n: Any
    over: str = "rows"

    @property
    def excludes_zero(self) -> Any:
        """Whether the interval excludes 0. A total whose interval includes 0 has no shares."""
        return (self.low > 0) | (self.high < 0)

    def columns(self, name: str) -> dict[str, Any]:
        """The columns `name`, `name_low` and `name_high` of a table."""
        return {name + end: np.asarray(x)[()] for end, x in zip(ENDS, self[:3], strict=True)}


def estimate(
    values: Values,
    kind: Kind = "mean",
    *,
    counts: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
    over: str = "rows",
) -> Estimate:
    """Estimate a mean over examples, a share, or a paired difference of two shares, with its interval.

    Args:
        values: `[example, *rest]`. NaN marks an example without a value, which is left out ("mean" and "share").
        kind: "mean": as the module describes, and not below 0 where no value is. "share": how often
            something holds, between 0 and 1, with Wilson's interval. "difference": of two shares on the same examples,
            e.g. a gain in accuracy, between −1 and 1, with Bonett and Price's interval.
        counts: The number of tokens behind each example, broadcast against `values`, which are then sums over these
            tokens. The estimate is Σ values / Σ counts, and examples (texts) are the independent units.
        clusters: The cluster of each example, where those of one cluster are not independent.
        over: The kind of independent unit, for the note of a table.

    >>> estimate(np.arange(100.0)).value.item(), estimate(np.ones(8), "share").high.item()
    (49.5, 1.0)
    >>> texts = estimate(np.array([1.0, 2, 4, 6]), clusters=np.array(["a", "a", "b", "b"]), over="texts")
    >>> texts.value.item(), texts.n, texts.over
    (3.25, 2, 'texts')
    """
    if len(values) == 0:
        raise InputError("there are no examples to average: give at least one.")
    known = np.isfinite(values)
    tokens = np.broadcast_to(known if counts is None else counts, values.shape).astype(np.float64)
    sums = np.where(known, values, 0.0)
    if clusters is not None:
        names, number = np.unique(clusters, return_inverse=True)
        of_tokens, shape = (sums, tokens), (len(names), *values.shape[1:])
        sums, tokens = np.zeros(shape), np.zeros(shape)
        np.add.at(sums, number, of_tokens[0])
        np.add.at(tokens, number, of_tokens[1])
    of_sums = {"mean": _mean_of_sums, "share": _share_of_sums, "difference": _difference_of_sums}[kind]
    ends = of_sums(sums, tokens)
    if kind == "share" and counts is None and clusters is None:  # any number of rows
        ends = ends[0], *wilson(sums.sum(0), tokens.sum(0))
    n = (tokens > 0).sum(0)
    different = np.unique(n)
    return Estimate(*ends, int(different[0]) if len(different) == 1 else n, over)


def estimate_function(
    function: Callable[..., Any],
    *values: Float[np.ndarray, "example ..."],
    within: tuple[float, float] = (-np.inf, np.inf),
) -> Estimate:
    """Estimate a smooth function of means over examples (a ratio, a share, a cosine), with the jackknife's interval.

    Args:
        function: Takes one array of means `[row, *rest]` for each of `values`, and returns its value for each row.
        values: `[example, *rest]` each.
        within: The range of the quantity by definition, e.g. (0, 1) for a share; it limits the ends.

    >>> x, y = np.random.default_rng(0).normal([5, 10], 1, (50, 2)).T
    >>> slope = estimate_function(np.divide, y, x)
    >>> bool(slope.low < 2 < slope.high)
    True
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.asarray(function(*(x.mean(0, keepdims=True) for x in values)))[0]
        left_out = np.asarray(function(*(leave_one_out(x) for x in values)))
    return Estimate(value, *jackknife(value, left_out, within), len(values[0]))


def concatenate(estimates: Sequence[Estimate]) -> Estimate:
    """Join arrays of estimates over the same examples."""
    value, low, high = (np.concatenate([one[end] for one in estimates]) for end in range(3))
    return estimates[0]._replace(value=value, low=low, high=high)


def estimates_frame(
    columns: Mapping[str, Any] | Sequence[Mapping[str, Any]], units: Mapping[str, str] | None = None, **attrs: Any
) -> pd.DataFrame:
    """Make a frame of columns, or of records; each `Estimate` becomes three columns: value, `_low` and `_high`.

    `attrs` holds `units` by column, the caller's `attrs`, and in `intervals` what the estimates are over. The
    columns that tell more about a `component` come last, so that what a terminal shows of a wide frame has numbers.

    >>> frame = estimates_frame({"layer": [0, 1], "norm": estimate(np.ones((8, 2)))}, {"norm": "logits"})
    >>> list(frame), frame.attrs["units"]["norm_low"], frame.attrs["intervals"]
    (['layer', 'norm', 'norm_low', 'norm_high'], 'logits', '95 % intervals over 8 rows')
    """
    records = [columns] if isinstance(columns, Mapping) else columns
    estimates = {name: x for record in records for name, x in record.items() if isinstance(x, Estimate)}
    expanded: list[dict[str, Any]] = []
    for record in records:
        pairs = ((x.columns(name) if isinstance(x, Estimate) else {name: x}) for name, x in record.items())
        expanded.append({name: x for pair in pairs for name, x in pair.items()})
    frame = pd.DataFrame(expanded[0] if isinstance(columns, Mapping) else expanded)
    if "component" in frame:
        last = [name for name in COLUMNS[1:] if name in frame]
        frame = frame[[name for name in frame if name not in last] + last]
    of_all = (
        (name + end, unit) for name, unit in (units or {}).items() for end in ENDS if not end or name in estimates
    )
    frame.attrs["units"] = dict(of_all)
    if estimates:
        counts = np.concatenate([np.ravel(x.n) for x in estimates.values()])
        known = counts[counts > 0]
        frame.attrs["intervals"] = interval_note(known if len(known) else 0, next(iter(estimates.values())).over)
    frame.attrs |= attrs
    return frame


def leave_one_out(sums: Values, counts: np.ndarray | None = None) -> Values:
    """Average all examples but one, for each example in turn, as input to `jackknife`.

    `counts` (broadcast against `sums`) makes it a ratio of sums; NaN marks an example that has no count.
    """
    if counts is None:
        return (sums.sum(0) - sums) / max(1, len(sums) - 1)
    rest = counts.sum(0) - counts
    return np.divide(sums.sum(0) - sums, rest, out=np.full(sums.shape, np.nan), where=(counts > 0) & (rest > 0))


def jackknife(estimate: Any, left_out: Values, within: tuple[float, float] = (-np.inf, np.inf)) -> Ends:
    """Return (low, high) of a smooth function of means; NaN below `LEAST` examples.

    `estimate` is its value for the means over all examples, `[*rest]`, and `left_out` those for the leave-one-out
    means, `[example, *rest]`; NaN marks an example that does not count.
    """
    known = np.isfinite(left_out)
    count = known.sum(0).astype(np.float64)
    estimate = np.asarray(estimate, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        center = np.where(known, left_out, 0.0).sum(0) / count
        influence = np.where(known, center - left_out, 0.0)
        square = influence * influence
        second, third = square.sum(0) / count, (square * influence).sum(0) / count
        low, high = _ends(estimate, count, (count - 1) ** 2 * second, (count - 1) ** 3 * third)
    return np.clip(low, *within), np.clip(high, *within)


def _mean_of_sums(sums: Values, counts: Values) -> tuple[Any, Any, Any]:
    """Return (Σ sums / Σ counts, low, high), NaN without tokens. If no sum is negative, neither is the interval."""
    total = counts.sum(0)
    mean = np.divide(sums.sum(0), total, out=np.full(sums.shape[1:], np.nan), where=total > 0)
    low, high = jackknife(mean, leave_one_out(sums, counts))
    return mean, np.where((sums >= 0).all(0), np.maximum(low, 0.0), low), high


def _share_of_sums(sums: Values, counts: Values) -> tuple[Any, Any, Any]:
    """Return the same for the share of tokens for which something holds, between 0 and 1.

    Where the tokens of every cluster all agree, clusters are trials of one event: the interval is Wilson's, and not
    empty where all clusters agree. Clusters of different sizes count as (Σ counts)² / Σ counts² trials.
    """
    mean, low, high = _mean_of_sums(sums, counts)
    agree = ((sums == 0) | (sums == counts)).all(0) & ((counts > 0).sum(0) >= LEAST)
    trials = np.where(agree, counts.sum(0) ** 2 / np.maximum((counts**2).sum(0), 1.0), 1.0)
    ends = wilson(np.where(agree, mean, 0.0) * trials, trials)
    return mean, np.where(agree, ends[0], low), np.where(agree, ends[1], np.minimum(high, 1.0))


def _difference_of_sums(sums: Values, counts: Values) -> tuple[Any, Any, Any]:
    """Return (difference of two shares of the same tokens, low, high), by Bonett and Price (2012).

    It acts as if there were one more example won and one more lost: where two predictors differ in few rows or none, a
    mean's interval is far too narrow or empty.
    """
    size, n = counts.mean(0), len(counts)
    total = (n + 2) * size
    mean = sums.sum(0) / total
    power = ((sums - mean * counts) ** 2).sum(0) + ((1 - mean) ** 2 + (1 + mean) ** 2) * size**2
    half = stdtrit(n + 1, 0.5 + LEVEL / 2) * np.sqrt(power) / total
    return sums.sum(0) / counts.sum(0), np.clip(mean - half, -1.0, 1.0), np.clip(mean + half, -1.0, 1.0)


def _ends(estimate: Any, count: Any, second: Any, third: Any) -> Ends:
    """Compute the interval from the moments of each example's influence on the estimate, about their mean."""
    with np.errstate(invalid="ignore", divide="ignore"):
        quantile = np.where(count >= LEAST, stdtrit(count - 1, 0.5 + LEVEL / 2), np.nan)
        error = np.sqrt(second / (count - 1))
        # Few examples of a skewed quantity rarely include its tail, so their own skewness is too small: n / (n − 4).
        skew = np.where(second > 0, third / second**1.5, 0.0) * count / (count - 4) / np.sqrt(count)
        above, below = (_untransformed(end, skew) for end in (quantile, -quantile))
        above, below = np.clip(above, quantile, LONGEST * quantile), np.clip(below, -LONGEST * quantile, -quantile)
        return estimate - error * above, estimate - error * below


def _untransformed(y: Any, skew: Any) -> Any:
    """Return the t at which Hall's t + At²/3 + A²t³/27 + A/6 equals y."""
    small = np.abs(skew) < 1e-5
    safe = np.where(small, 1.0, skew)
    return np.where(small, y - skew * (1 / 6 + y**2 / 3), 3 / safe * (np.cbrt(1 + safe * (y - safe / 6)) - 1))


def percentile_interval(drawn: Float[np.ndarray, "draw *rest"]) -> Ends:
    """Return (low, high) percentiles over draws with a value, interpolated linearly; NaN where none has one."""
    tails = np.array([1 - LEVEL, 1 + LEVEL]) / 2
    ends, known = np.full((2, *drawn.shape[1:]), np.nan), np.isfinite(drawn).any(0)
    # numpy warns of columns without a value.
    ends[:, known] = np.nanquantile(np.where(np.isfinite(drawn), drawn, np.nan)[:, known], tails, axis=0)
    return ends[0], ends[1]


def wilson(hits: Any, trials: Any) -> tuple[Any, Any]:
    """Wilson's score interval of a proportion, which stays inside [0, 1] and is not empty at 0 or 1.

    It takes arrays, and fractions of a hit (ties for first place).
    """
    hits, trials = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    z = ndtri(0.5 + LEVEL / 2)
    p = hits / trials
    center = (p + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * np.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    # Rounding must not move an end beyond the share itself.
    return np.clip(center - half, 0.0, p), np.clip(center + half, p, 1.0)
