"""Trade-off of bias and diversity along depth, by the direction of accuracy (section 5.4)."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import number, resampling
from ..ensemble.intervals import LEVEL, percentile_interval, wilson
from ..ensemble.permutation import cluster_numbers, jackknife_t_interval, permutation_p, permuted_sums
from ..ensemble.validation import checked
from ..errors import InputError
from ..results import Figure, Result

ACCURACY = ("rises", "still", "falls")
STILL = 1


@dataclass(frozen=True, eq=False)
class TradeOff(Result):
    """Counts of steps along depth, by the direction of accuracy and the joint movement of bias and diversity.

    Attributes:
        counts: Numbers of steps. Accuracy rises, stands still or falls. Bias and diversity move together (a trade-off:
            the loss is their difference, so a lower bias costs diversity), apart, or at least one does not move.
        difference, low, high: Share of trade-offs where accuracy stands still minus that where it moves, with Student's
            interval of the jackknife over models (NaN for fewer than 8). The paper claims that it is above 0.
        null_low, null_high, p: The middle 95 % of the difference when every model gets bias and diversity of another
            model with as many junctions, and the two-sided p; NaN if too few models have the same depth.
        models: Number of models; those of one cluster count as one.
    """

    counts: Int[np.ndarray, "accuracy movement"]
    difference: float
    low: float
    high: float
    null_low: float
    null_high: float
    p: float
    models: int
    confidence_level: float

    figures: ClassVar = {"steps": "tradeoff.tradeoff_steps"}

    def plot(self, kind: Literal["steps"] | None = None, **options: Any) -> Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """Return one row per direction of accuracy; `low`, `high` are Wilson's, which treat steps as independent.

        `share` is the share of trade-offs among the steps in which both move.
        """
        rows = []
        for accuracy, (together, apart, neither) in zip(ACCURACY, self.counts.tolist(), strict=True):
            moved = together + apart
            low, high = wilson(together, moved, self.confidence_level) if moved else (np.nan, np.nan)
            row = {"accuracy": accuracy, "steps": moved + neither, "same_sign": together, "opposite_sign": apart}
            share = together / moved if moved else np.nan
            rows.append(row | {"unchanged": neither, "share": share, "low": low, "high": high})
        frame = pd.DataFrame(rows)
        names = ("difference", "low", "high", "null_low", "null_high", "p", "models", "confidence_level")
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
    clusters: Mapping[str, Hashable] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
    confidence_level: float = LEVEL,
) -> TradeOff:
    """Count signs of Δbias · Δdiversity by the sign of Δaccuracy, from junction to junction (section 5.4).

    Args:
        frame, clusters: As in `correlations`: columns `model`, `task`, `junction`, `accuracy`, and those named by
            `bias` and `diversity`, which should have the same unit (e.g. `bias_centered`, `diversity_centered`).
        still: Largest change of accuracy, as a share, that counts as standing still. With n examples, a step of 1/n
            may be chance.

    Steps with a value that is not finite are not counted. Raises InputError for missing columns, duplicate junctions,
    a negative `still`, `clusters` that is not a mapping, and curves without a step.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"model": "m", "task": "t", "junction": range(4), "accuracy": [0.5, 0.5, 0.7, 0.7],
    ...                       "bias": [3.0, 2.0, 1.0, 2.0], "diversity": [2.0, 1.0, 2.0, 3.0]})
    >>> result = tradeoff_signs(frame)
    >>> result.frame()[["accuracy", "same_sign", "opposite_sign"]].values.tolist()
    [['rises', 0, 1], ['still', 2, 0], ['falls', 0, 0]]
    >>> result.difference
    1.0
    """
    resampling(n_resamples, seed, confidence_level)
    still = number("still", still, least=0, most=1)
    frame = checked(frame, ("model", "task", "junction"), ("accuracy", bias, diversity))
    models = list(dict.fromkeys(frame["model"]))
    frame = frame.sort_values("junction")
    # [model, model, accuracy, movement]: steps of one model's accuracy with another's bias and diversity.
    counts = np.full((len(models), len(models), 3, 3), np.nan)
    for _, of_task in frame.groupby("task", sort=False):
        steps = {
            models.index(model): _steps(*curve[["accuracy", bias, diversity]].to_numpy().T, still=still)
            for model, curve in of_task.groupby("model", sort=False)
        }
        for (m, (accuracy, _)), (n, (_, movement)) in itertools.product(steps.items(), repeat=2):
            if len(accuracy) == len(movement) > 0:
                counts[m, n] = np.nan_to_num(counts[m, n]) + accuracy.T @ movement
    own = counts.diagonal().transpose(2, 0, 1)
    if np.isnan(own).all():
        raise InputError("no curve has two junctions, so there is no step to look at.")
    kept = np.flatnonzero(np.isfinite(own[:, 0, 0]))
    own, counts, names = own[kept], counts[np.ix_(kept, kept)], [models[m] for m in kept]
    cluster = cluster_numbers(names, clusters)
    difference = float(_difference(own.sum(0)))
    left_out = [float(_difference(own[cluster != c].sum(0))) for c in np.unique(cluster)]
    low, high = jackknife_t_interval(difference, np.array(left_out), confidence_level)
    # The null: every cluster of models gets bias and diversity of another cluster of the same depth.
    lengths = frame.groupby("model", sort=False)["junction"].nunique()[names].to_numpy()
    permuted = _difference(permuted_sums(counts, lengths, cluster, n_resamples, seed))
    null_low, null_high = map(float, percentile_interval(permuted[1:], confidence_level))
    return TradeOff(
        counts=own.sum(0).astype(np.int64),
        difference=difference,
        low=low,
        high=high,
        null_low=null_low,
        null_high=null_high,
        p=permutation_p(permuted),
        models=len(left_out),
        confidence_level=confidence_level,
    )


def _steps(
    accuracy: np.ndarray, bias: np.ndarray, diversity: np.ndarray, *, still: float
) -> tuple[Float[np.ndarray, "step accuracy"], Float[np.ndarray, "step movement"]]:
    """Return indicators of the direction of accuracy and the joint movement in every step; zeros if unknown."""
    step = np.diff(accuracy)
    # Rounding errors in the difference of two equal shares are not steps.
    change = np.where(np.abs(step) <= still + 1e-12, STILL, np.where(step > 0, 0, 2))
    sign = np.sign(np.diff(bias)) * np.sign(np.diff(diversity))
    movement = np.where(sign > 0, 0, np.where(sign < 0, 1, 2))
    known = (np.isfinite(step) & np.isfinite(sign))[:, None]
    return np.eye(3)[change] * known, np.eye(3)[movement] * known


def _difference(counts: Float[np.ndarray, "*draw accuracy movement"]) -> np.ndarray:
    """Return the share of trade-offs where accuracy stands still minus that where it moves; NaN if one has no step."""
    moving = counts.sum(-2) - counts[..., STILL, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        still, moves = (x[..., 0] / (x[..., 0] + x[..., 1]) for x in (counts[..., STILL, :], moving))
    return still - moves
