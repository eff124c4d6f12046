"""Do bias and diversity trade off only where accuracy stands still? (Section 5.4, MATHS 13.5)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from .._checks import number, resampling
from ..errors import InputError
from ..results import Result
from .correlation import significance
from .inputs import checked
from .uncertainty import LEVEL, interval, resamples, wilson

if TYPE_CHECKING:
    import pandas as pd

ACCURACY = ("rises", "still", "falls")
STILL = 1


@dataclass(frozen=True, eq=False)
class TradeOff(Result):
    """Steps along depth, by what accuracy does and by whether bias and diversity move together.

    counts
        `[accuracy, movement]`, numbers of steps: accuracy rises, stands still, falls; bias and diversity
        move together (a trade-off: the loss is their difference, so a lower bias is paid for with a lower
        diversity), apart, or at least one of them does not move.
    difference, low, high
        Share of trade-offs where accuracy stands still minus that where it moves, with an interval that
        resamples models (NaN for one). The claim of the paper says: clearly above 0.
    null_low, null_high, p
        What the difference is when accuracy's steps are turned around in a circle against the others'
        (one shift for all tasks of a model), and the two-sided p of that null.
    """

    counts: Int[np.ndarray, "accuracy movement"]
    difference: float
    low: float
    high: float
    null_low: float
    null_high: float
    p: float
    models: int
    level: float

    def frame(self) -> pd.DataFrame:
        """One row for each thing accuracy does; `low`, `high` are Wilson's, which take steps for independent.

        `share` is that of trade-offs among the steps in which both move.
        """
        import pandas as pd

        rows = []
        for accuracy, (together, apart, neither) in zip(ACCURACY, self.counts.tolist(), strict=True):
            moved = together + apart
            low, high = wilson(together, moved, self.level) if moved else (np.nan, np.nan)
            row = {"accuracy": accuracy, "steps": moved + neither, "together": together, "apart": apart}
            share = together / moved if moved else np.nan
            rows.append(row | {"neither": neither, "share": share, "low": low, "high": high})
        frame = pd.DataFrame(rows)
        names = ("difference", "low", "high", "null_low", "null_high", "p", "models", "level")
        frame.attrs |= {name: getattr(self, name) for name in names}
        return frame

    def __repr__(self) -> str:
        return (
            f"TradeOff({self.counts.sum()} steps of {self.models} models: share of trade-offs still − moving "
            f"{self.difference:.3f} [{self.low:.3f}, {self.high:.3f}], p = {self.p:.3f})"
        )


def tradeoff_signs(
    frame: pd.DataFrame,
    *,
    bias: str = "bias",
    diversity: str = "diversity",
    still: float = 0.0,
    draws: int = 1000,
    seed: int = 0,
    level: float = LEVEL,
) -> TradeOff:
    """Sign of Δbias · Δdiversity by sign of Δaccuracy, from junction to junction (MATHS 13.5).

    frame
        As `correlations` takes it: `model`, `task`, `junction`, `accuracy`, and the columns named by
        `bias` and `diversity`, which should have one unit (such as `bias_centred`, `diversity_centred`).
    still
        Accuracy stands still where it moves by at most this much, a share. With n examples a step of
        1/n may be chance.

    Steps with a value that is not finite are not counted. Raises InputError for missing columns,
    junctions that occur twice, a negative `still`, and curves without a step.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": range(4), "accuracy": [0.5, 0.5, 0.7, 0.7],
    ...                       "bias": [3.0, 2.0, 1.0, 2.0], "diversity": [2.0, 1.0, 2.0, 3.0]})
    >>> result = tradeoff_signs(frame)
    >>> result.frame()[["accuracy", "together", "apart"]].values.tolist()
    [['rises', 0, 1], ['still', 2, 0], ['falls', 0, 0]]
    >>> result.difference
    1.0
    """
    resampling(draws, seed, level)
    still = number("still", still, least=0, most=1)
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", bias, diversity))
    # A shift is a share of the circle, so that one draw serves a model's curves of any length.
    rng = np.random.default_rng(seed)
    observed, drawn = [], []
    for _, of_model in frame.groupby("model", sort=False):
        share = rng.random(draws)
        tables = [
            _turned(*curve[["accuracy", bias, diversity]].to_numpy().T, still=still)
            for _, curve in of_model.sort_values("junction").groupby("task", sort=False)
        ]
        tables = [table for table in tables if len(table)]
        observed.append(np.sum([table[0] for table in tables], 0) if tables else np.zeros((3, 3)))
        if tables:
            drawn.append(np.sum([table[(share * len(table)).astype(int)] for table in tables], 0))
    if not drawn:
        raise InputError("no curve has two junctions, so there is no step to look at.")
    counts = np.stack(observed)
    difference = float(_difference(counts.sum(0)))
    null = _difference(np.sum(drawn, 0))
    picked = _difference(np.einsum("dm,mab->dab", resamples(len(counts), draws, seed), counts))
    low, high = map(float, interval(picked, level))
    null_low, null_high = map(float, interval(null, level))
    p = significance(difference, null)
    total = counts.sum(0).astype(np.int64)
    return TradeOff(total, difference, low, high, null_low, null_high, p, len(counts), level)


def _turned(
    accuracy: np.ndarray, bias: np.ndarray, diversity: np.ndarray, *, still: float
) -> Float[np.ndarray, "shift accuracy movement"]:
    """Counts of steps for every shift of accuracy's steps; shift 0 is what is."""
    step = np.diff(accuracy)
    # What a difference of two equal shares leaves in the last bits is no step.
    does = np.where(np.abs(step) <= still + 1e-12, STILL, np.where(step > 0, 0, 2))
    moves = np.sign(np.diff(bias)) * np.sign(np.diff(diversity))
    kind = np.where(moves > 0, 0, np.where(moves < 0, 1, 2))
    accuracy_at = np.eye(3)[does] * np.isfinite(step)[:, None]
    movement_at = np.eye(3)[kind] * np.isfinite(moves)[:, None]
    at = np.arange(len(step))
    return np.einsum("sja,jb->sab", accuracy_at[(at[:, None] + at) % max(1, len(at))], movement_at)


def _difference(counts: Float[np.ndarray, "*draw accuracy movement"]) -> np.ndarray:
    """Share of trade-offs where accuracy stands still minus that where it moves; NaN where one has no step."""
    moving = counts.sum(-2) - counts[..., STILL, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        still, moves = (x[..., 0] / (x[..., 0] + x[..., 1]) for x in (counts[..., STILL, :], moving))
    return still - moves
