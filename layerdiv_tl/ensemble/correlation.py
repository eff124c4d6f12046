"""Does a metric follow accuracy? Correlations along depth, with nulls for smooth curves (Fig. 3, MATHS 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.fft import dct
from scipy.stats import rankdata, t

from .._checks import instance, resampling, shown, whole_number
from ..errors import InputError
from .inputs import checked, framed
from .uncertainty import LEVEL, interval, resamples

if TYPE_CHECKING:
    import pandas as pd

Coefficient = Literal["pearson", "spearman"]
Reading = Literal["pooled", "per_model", "final"]
READINGS: tuple[Reading, ...] = ("pooled", "per_model", "final")
COEFFICIENTS: tuple[Coefficient, ...] = ("pearson", "spearman")
AVERAGE = "average"

# Whether a metric is expected to rise (1) or to fall (−1) where accuracy rises.
SIGNS: dict[str, int] = {
    "mse": -1,
    "bias": -1,
    "diversity": 1,
    "bias_centred": -1,
    "diversity_centred": 1,
    "diversity_logit": 1,
    "diversity_logit_centred": 1,
    "coherence": 1,
    "cross_entropy": -1,
    "cross_entropy_bias": -1,
    "cross_entropy_diversity": 1,
    "entropy": -1,
    "net": -1,
    "brier": -1,
}


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Two numbers for every junction of every model: a is accuracy, b is sign × metric."""

    a: Float[np.ndarray, " pair"]
    b: Float[np.ndarray, " pair"]
    model: Int[np.ndarray, " pair"]

    def curves(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self.a[self.model == m], self.b[self.model == m]) for m in np.unique(self.model)]


@dataclass(frozen=True, eq=False)
class _Estimate:
    """One cell of the table, and what the average over tasks needs of it."""

    r: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p_student: float = np.nan
    p_shift: float = np.nan
    p_cosine: float = np.nan
    n: int = 0
    models: int = 0
    note: str = ""
    # r of every resample of models (pooled, final), or atanh r of every model (per_model).
    drawn: np.ndarray | None = None

    def row(self) -> dict[str, Any]:
        names = ("r", "low", "high", "p_student", "p_shift", "p_cosine", "n", "models", "note")
        return {name: getattr(self, name) for name in names}


def correlations(
    frame: pd.DataFrame,
    signs: Mapping[str, int] | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = LEVEL,
) -> pd.DataFrame:
    """Correlation of sign × metric with accuracy along depth, per task and averaged (Fig. 3, MATHS 12).

    frame
        One row per model, task and junction (columns `model`, `task`, `junction`: numbers in the stream's
        order), with `accuracy` and the metrics. Partial junctions are the caller's to leave out.
    signs
        {metric: 1 or −1}: the metrics to correlate, and whether each should rise (1) or fall (−1) where
        accuracy rises; None is all columns that `SIGNS` knows. r is that of sign × metric, so that
        "as expected" is always positive, as in the paper's −MSE and −bias.

    One row per reading, task, metric and coefficient (`pearson`, `spearman`). Readings:

    - `pooled` (the paper's): both z-scored over each model's junctions, all (model, junction) pairs together;
      `low`, `high` resample models.
    - `per_model`: r of each model's curve, then tanh of the mean atanh r; the interval and `p_student` are
      Student's t over models, who are independent where junctions are not.
    - `final`: the last junction only, raw values, over models; the interval resamples models.

    `p_student` with n − 2 degrees of freedom is the paper's test, and wrong along depth: it takes
    junctions for independent, and calls independent random walks significant 60 % of the time at 5 %.
    Two nulls assume less. Both keep every model's curves as they are and break only how the two lie to each
    other, independently for each model; p = (1 + #{|r*| ≥ |r|}) / (1 + draws).

    - `p_shift` turns the metric's curve around in a circle. Exact where a curve's end could as well be
      followed by its start; curves that wander off (random walks) jump there, and 5 % becomes 10-20 %.
    - `p_cosine` flips the signs of the curve's cosine coefficients (DCT-II), which leaves its spectrum and
      has no seam. Exact for Gaussian random walks, whose cosine coefficients are independent, and for
      white noise; near it for what lies between. **The one to read.**

    Neither knows that everything may happen in the same part of all curves. Independent curves that are
    flat but for one late jump up or down come out significant 25-35 % of the time by `p_cosine`, 35-55 %
    by `p_shift`, and so do twice-summed walks of one model (28 and 68 %). What needs nothing of the
    curves, only several independent models, is `p_student` of the reading `per_model`: read it too.

    The rows of the task "average" hold tanh(mean atanh r) over tasks, untested as in the paper, with an
    interval over models. A model whose curve is constant (or not finite) has no correlation and is left
    out; `note` says which, and why an r or an interval is NaN. Intervals that resample two or three models
    are too narrow. Raises InputError for missing columns, unknown signs, and junctions that occur twice.

    >>> import pandas as pd
    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> table = correlations(frame).query("task == 't' and reading == 'pooled'")
    >>> table.set_index("coefficient")["r"].round(3).to_dict()
    {'pearson': 0.908, 'spearman': 1.0}
    """
    import pandas as pd

    resampling(draws, seed, level)
    signs = _signs(frame, signs)
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", *signs))
    tasks, models = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["model"]))
    picks = resamples(len(models), draws, seed) * len(models)
    rows: list[dict[str, Any]] = []
    found: dict[tuple[Reading, str, Coefficient], list[_Estimate]] = {}
    for at, task in enumerate(tasks):
        of_task = frame[frame["task"] == task]
        curves = {
            m: of_task[of_task["model"] == name].sort_values("junction")
            for m, name in enumerate(models)
            if (of_task["model"] == name).any()
        }
        nulls = _Nulls({m: len(curve) for m, curve in curves.items()}, draws, seed, at)
        for metric, sign in signs.items():
            paired = {m: (c["accuracy"].to_numpy(float), sign * c[metric].to_numpy(float)) for m, c in curves.items()}
            for coefficient in COEFFICIENTS:
                for reading, estimate in _readings(paired, coefficient, models, nulls, picks, level).items():
                    found.setdefault((reading, metric, coefficient), []).append(estimate)
                    rows.append(_key(reading, task, metric, sign, coefficient) | estimate.row())
    for (name, metric, kind), estimates in found.items():
        rows.append(_key(name, AVERAGE, metric, signs[metric], kind) | _average(name, estimates, level).row())
    table = pd.DataFrame(rows)
    for column, order in (("reading", READINGS), ("task", (*tasks, AVERAGE)), ("metric", tuple(signs))):
        table[column] = pd.Categorical(table[column], order, ordered=True)
    table = table.sort_values(["reading", "task", "metric"], kind="stable", ignore_index=True)
    table = table.astype({"reading": object, "task": object, "metric": object})
    table.attrs |= {"draws": draws, "seed": seed, "level": level}
    return table


def curve_correlations(
    frame: pd.DataFrame, metric: str, sign: int = 1, *, draws: int = 1000, seed: int = 0
) -> tuple[pd.DataFrame, float]:
    """Correlation of sign × metric with accuracy over the junctions of every model and task, and a test of their mean.

    frame
        As `correlations` takes it.

    One row per model and task: `pearson`, `spearman`, NaN where a curve is constant or not finite; and the
    two-sided p of the mean Fisher z of Pearson's r. Its null flips the signs of the cosine coefficients of
    the metric's curves, the same for all tasks of a model, whose streams are one (see `correlations`).

    >>> import pandas as pd
    >>> depth = np.arange(4.0)
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": depth, "accuracy": depth, "mse": -(depth**3)})
    >>> curve_correlations(frame, "mse", -1)[0].round(3).values.tolist()
    [['m', 't', 0.908, 1.0]]
    """
    import pandas as pd

    resampling(draws, seed)
    sign = _signs(frame, {metric: sign} if isinstance(metric, str) else {})[metric]
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", metric))
    rng = np.random.default_rng(seed)
    rows, observed, drawn = [], [], []
    for model, of_model in frame.groupby("model", sort=False):
        longest = int(of_model.groupby("task").size().max())
        flips = 1.0 - 2.0 * rng.integers(0, 2, (draws, longest - 1))
        for task, curve in of_model.sort_values("junction").groupby("task", sort=False):
            accuracy, other = curve["accuracy"].to_numpy(float), sign * curve[metric].to_numpy(float)
            row = {"model": model, "task": task, "pearson": np.nan, "spearman": np.nan}
            if not _fault(accuracy, other):
                count = len(curve)
                for coefficient, rank in (("pearson", np.asarray), ("spearman", rankdata)):
                    row[coefficient] = _bounded(_standard(rank(accuracy)) @ _standard(rank(other)) / count)
                waves = dct(_standard(accuracy), norm="ortho") * dct(_standard(other), norm="ortho")
                observed.append(float(_fisher(np.array(row["pearson"]))))
                drawn.append(_fisher((waves[0] + flips[:, : count - 1] @ waves[1:]) / count))
            rows.append(row)
    p = significance(float(np.mean(observed)), np.mean(drawn, 0)) if observed else np.nan
    return pd.DataFrame(rows), p


def z_scores(x: Float[np.ndarray, " junction"]) -> Float[np.ndarray, " junction"]:
    """A curve less its mean, over its standard deviation; NaN where it is not finite, and for one that never moves.

    >>> z_scores(np.array([0.0, 2.0])).tolist(), z_scores(np.full(3, 0.1)).tolist()
    ([-1.0, 1.0], [nan, nan, nan])
    """
    known = x[np.isfinite(x)]
    if not known.size or _constant(known):
        return np.full(len(x), np.nan)
    return np.where(np.isfinite(x), (x - known.mean()) / known.std(), np.nan)


def circular_shifts(
    a: Float[np.ndarray, " junction"], b: Float[np.ndarray, " junction"]
) -> Float[np.ndarray, " shift"]:
    """Σ_j a_j b_{j+s} for s = 0 … J−1, indices in a circle; the first is the curves as they are.

    >>> circular_shifts(np.array([1.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 3.0]
    """
    count = len(a)
    return b[(np.arange(count)[:, None] + np.arange(count)) % count] @ a


def significance(observed: float, drawn: Float[np.ndarray, " draw"]) -> float:
    """Two-sided p of a statistic among draws of it under a null: (1 + #{|drawn| ≥ |observed|}) / (1 + draws).

    >>> significance(2.0, np.array([-3.0, 1.0, 0.5]))
    0.5
    """
    # A draw that repeats what was observed may differ from it in the last bits.
    reached = np.abs(drawn) >= abs(observed) - 1e-9 * max(1.0, abs(observed))
    return (1 + int(reached.sum())) / (1 + len(drawn)) if np.isfinite(observed) else np.nan


def student_p(r: float, n: int) -> float:
    """Two-sided p of a correlation of n independent pairs, Student's t with n − 2; NaN for n < 3.

    >>> round(student_p(0.5, 20), 4)
    0.0248
    """
    if n < 3 or not np.isfinite(r):
        return np.nan
    if abs(r) >= 1:
        return 0.0
    return float(2 * t.sf(abs(r) * np.sqrt((n - 2) / (1 - r**2)), n - 2))


class _Nulls:
    """Draws that break how two curves of one model lie to each other; the same for every metric of a task."""

    def __init__(self, lengths: Mapping[int, int], draws: int, seed: int, task: int) -> None:
        rng = np.random.default_rng([seed, task])
        self.shift = {m: rng.integers(0, count, draws) for m, count in lengths.items()}
        self.flip = {m: 1.0 - 2.0 * rng.integers(0, 2, (draws, count - 1)) for m, count in lengths.items()}

    def products(self, pairs: _Pairs) -> dict[str, Float[np.ndarray, "draw model"]]:
        """Σ_j a_j b*_j of every model, b* being the curve b under either null."""
        shifted, flipped = [], []
        for m, (a, b) in zip(np.unique(pairs.model), pairs.curves(), strict=True):
            shifted.append(circular_shifts(a, b)[self.shift[m]])
            waves = dct(a, norm="ortho") * dct(b, norm="ortho")  # the first is the mean's, which stays
            flipped.append(waves[0] + self.flip[m] @ waves[1:])
        return {"p_shift": np.stack(shifted, 1), "p_cosine": np.stack(flipped, 1)}


def _readings(
    paired: Mapping[int, tuple[np.ndarray, np.ndarray]],
    coefficient: Coefficient,
    models: Sequence[str],
    nulls: _Nulls,
    picks: Float[np.ndarray, "draw model"],
    level: float,
) -> dict[Reading, _Estimate]:
    """One task, metric and coefficient: all three readings."""
    flat = {m: fault for m, curves in paired.items() if (fault := _fault(*curves))}
    note = "left out: " + ", ".join(f"{models[m]} ({fault})" for m, fault in flat.items()) if flat else ""
    kept = {m: curves for m, curves in paired.items() if m not in flat}
    last = {m: (a[-1:], b[-1:]) for m, (a, b) in paired.items()}
    finite = {m: (a, b) for m, (a, b) in last.items() if np.isfinite([a, b]).all()}
    return {
        "pooled": _pooled(kept, coefficient, nulls, picks, level, note),
        "per_model": _per_model(kept, coefficient, nulls, level, note),
        "final": _final(finite, coefficient, picks, level),
    }


def _pooled(
    kept: Mapping[int, tuple[np.ndarray, np.ndarray]],
    coefficient: Coefficient,
    nulls: _Nulls,
    picks: Float[np.ndarray, "draw model"],
    level: float,
    note: str,
) -> _Estimate:
    if not kept:
        return _Estimate(note=_sentence("no model has two curves that vary", note))
    pairs = _together({m: (_standard(a), _standard(b)) for m, (a, b) in kept.items()})
    n = len(pairs.a)
    seen = _ranked(pairs) if coefficient == "spearman" else pairs
    scale = n * seen.a.std() * seen.b.std()
    offset = n * seen.a.mean() * seen.b.mean()
    r = _bounded((seen.a @ seen.b - offset) / scale)
    p = {name: significance(r, (x.sum(1) - offset) / scale) for name, x in nulls.products(seen).items()}
    drawn = _resampled(pairs, coefficient, picks)
    low, high = map(float, interval(drawn, level))
    note = note if len(kept) > 1 else _sentence("one model: no interval", note)
    return _Estimate(r, low, high, student_p(r, n), **p, n=n, models=len(kept), note=note, drawn=drawn)


def _per_model(
    kept: Mapping[int, tuple[np.ndarray, np.ndarray]], coefficient: Coefficient, nulls: _Nulls, level: float, note: str
) -> _Estimate:
    if not kept:
        return _Estimate(note=_sentence("no model has two curves that vary", note))
    rank = rankdata if coefficient == "spearman" else np.asarray
    pairs = _together({m: (_standard(rank(a)), _standard(rank(b))) for m, (a, b) in kept.items()})
    lengths = np.array([len(a) for a, _ in pairs.curves()])
    z = _fisher(np.array([a @ b for a, b in pairs.curves()]) / lengths)
    p = {name: significance(z.mean(), _fisher(x / lengths).mean(1)) for name, x in nulls.products(pairs).items()}
    low, high = _student_interval(z.mean(), z, level)
    p_student = np.nan
    if len(z) > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            p_student = float(2 * t.sf(abs(z.mean()) / (z.std(ddof=1) / np.sqrt(len(z))), len(z) - 1))
    note = note if len(kept) > 1 else _sentence("one model: no interval and no test over models", note)
    drawn = np.full(max(kept) + 1, np.nan)
    drawn[list(kept)] = z
    return _Estimate(
        float(np.tanh(z.mean())), low, high, p_student, **p, n=len(kept), models=len(kept), note=note, drawn=drawn
    )


def _final(
    last: Mapping[int, tuple[np.ndarray, np.ndarray]],
    coefficient: Coefficient,
    picks: Float[np.ndarray, "draw model"],
    level: float,
) -> _Estimate:
    n = len(last)
    pairs = _together(last)
    if n < 3:
        return _Estimate(n=n, models=n, note="fewer than three models: no correlation over models")
    if fault := _fault(pairs.a, pairs.b):
        return _Estimate(n=n, models=n, note=f"{fault} over models")
    seen = _ranked(pairs) if coefficient == "spearman" else pairs
    r = _bounded(_standard(seen.a) @ _standard(seen.b) / n)
    drawn = _resampled(pairs, coefficient, picks)
    low, high = map(float, interval(drawn, level))
    note = "over models there is no depth to shift along"
    return _Estimate(r, low, high, student_p(r, n), n=n, models=n, note=note, drawn=drawn)


def _average(reading: str, estimates: Sequence[_Estimate], level: float) -> _Estimate:
    """tanh(mean atanh r) over the tasks that have an r, with an interval over models."""
    there = [e for e in estimates if np.isfinite(e.r)]
    n, models = sum(e.n for e in there), max((e.models for e in there), default=0)
    note = f"mean of {len(there)} of {len(estimates)} tasks, untested"
    if not there:
        return _Estimate(note=note)
    z = float(_fisher(np.array([e.r for e in there])).mean())
    drawn = [e.drawn for e in there if e.drawn is not None]
    if reading == "per_model":
        of_model = np.full((len(drawn), max(map(len, drawn))), np.nan)
        for row, values in zip(of_model, drawn, strict=True):
            row[: len(values)] = values
        seen = of_model[:, np.isfinite(of_model).any(0)]
        low, high = _student_interval(z, np.nanmean(seen, 0), level)
    else:
        low, high = map(float, interval(np.tanh(_fisher(np.stack(drawn)).mean(0)), level))
    return _Estimate(float(np.tanh(z)), low, high, n=n, models=models, note=note)


def _resampled(
    pairs: _Pairs, coefficient: Coefficient, picks: Float[np.ndarray, "draw model"]
) -> Float[np.ndarray, " draw"]:
    """r of every resample of models; a model drawn twice counts twice. NaN where one model or none is left."""
    present = np.unique(pairs.model)
    if len(present) < 2:
        return np.full(len(picks), np.nan)
    weight = picks[:, pairs.model]
    a, b = pairs.a, pairs.b
    if coefficient == "spearman":
        a, b = (_weighted_ranks(x, pairs.model, picks) for x in (a, b))
    total = weight.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = (x - (weight * x).sum(1, keepdims=True) / total for x in (a, b))
        weighted = weight * a
        power = (weighted * a).sum(1) * (weight * b * b).sum(1)
        return np.where(power > 1e-18, (weighted * b).sum(1) / np.sqrt(power), np.nan)


def _weighted_ranks(
    x: Float[np.ndarray, " pair"], model: Int[np.ndarray, " pair"], picks: Float[np.ndarray, "draw model"]
) -> Float[np.ndarray, "draw pair"]:
    """Mid-ranks of x in every resample, as if each pair stood there as often as its model was drawn."""
    values, which = np.unique(x, return_inverse=True)
    times = np.zeros((picks.shape[1], len(values)))
    np.add.at(times, (model, which), 1.0)
    counts = picks @ times
    return (np.cumsum(counts, 1) - (counts - 1) / 2)[:, which]


def _signs(frame: pd.DataFrame, signs: Mapping[str, int] | None) -> dict[str, int]:
    if signs is None:
        signs = {name: sign for name, sign in SIGNS.items() if name in framed(frame)}
    instance("signs", signs, Mapping, "give {'a metric': 1 (it rises with accuracy) or -1 (it falls)}")
    if not signs:
        raise InputError(f"the frame has no metric that SIGNS knows: name some in signs=, such as {list(SIGNS)[:3]}.")
    for name, sign in signs.items():
        if not isinstance(name, str) or whole_number(f"signs[{shown(name)}]", sign, -1, 1) == 0:
            raise InputError(f"signs={shown(signs)} must be 1 (rises with accuracy) or -1 (falls).")
    return dict(signs)


def _key(reading: str, task: str, metric: str, sign: int, coefficient: str) -> dict[str, Any]:
    return {"reading": reading, "task": task, "metric": metric, "sign": sign, "coefficient": coefficient}


def _together(curves: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> _Pairs:
    if not curves:
        return _Pairs(np.empty(0), np.empty(0), np.empty(0, int))
    a, b = (np.concatenate([pair[side] for pair in curves.values()]) for side in (0, 1))
    return _Pairs(a, b, np.repeat(list(curves), [len(pair[0]) for pair in curves.values()]))


def _ranked(pairs: _Pairs) -> _Pairs:
    return _Pairs(rankdata(pairs.a), rankdata(pairs.b), pairs.model)


def _fault(a: np.ndarray, b: np.ndarray) -> str:
    """Why two curves have no correlation; empty if they have one."""
    for name, x in (("accuracy", a), ("metric", b)):
        if not np.isfinite(x).all():
            return f"{name} is not finite"
        if _constant(x):
            return f"constant {name}"
    return ""


def _constant(x: np.ndarray) -> bool:
    # What rounding alone moves does not vary.
    return bool(x.std() <= 1e-12 * np.abs(x).max(initial=0.0))


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


def _bounded(r: float) -> float:
    return float(np.clip(r, -1, 1))


def _fisher(r: np.ndarray) -> np.ndarray:
    """atanh r, finite at ±1, where it counts as ±18.7."""
    return np.arctanh(np.clip(r, -1 + 1e-16, 1 - 1e-16))


def _student_interval(z: float, of_model: np.ndarray, level: float) -> tuple[float, float]:
    """tanh of z ± Student's t × the standard error over models."""
    count = len(of_model)
    if count < 2:
        return np.nan, np.nan
    half = t.ppf(0.5 + level / 2, count - 1) * of_model.std(ddof=1) / np.sqrt(count)
    return float(np.tanh(z - half)), float(np.tanh(z + half))


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
