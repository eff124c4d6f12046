"""Pettitt's change point of a series along depth: where it falls to a lower level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..ensemble.intervals import interval
from ..errors import InputError
from ..results import Result


@dataclass(frozen=True, eq=False, repr=False)
class ChangePoint(Result):
    """The layer from which on a quantity is smaller than before, by Pettitt's rank statistic (1979).

    layer, low, high
        The first layer of the later part, counted from 0 in order of use, and its 95 % interval over texts.
    before, after
        The medians of the layers' means on either side, in the quantity's unit.
    p
        Pettitt's approximate p-value; layers are not independent, so it only tells clear falls from unclear ones.
    quantity
        The quantity and the kind of component.
    """

    quantity: str
    layer: int
    low: float
    high: float
    before: float
    after: float
    p: float

    def frame(self) -> pd.DataFrame:
        """One row."""
        return pd.DataFrame([vars(self)])


def change_point(
    quantity: str, mean: Float[np.ndarray, " layer"], drawn: Float[np.ndarray, "draw layer"]
) -> ChangePoint:
    """The change point of `mean`, with its interval over resamples.

    Ranks are compared, so that a first or last layer of another order of magnitude does not decide.
    Raises InputError for fewer than three layers.

    >>> series = np.array([5.0, 1.2, 1.1, 1.3, 0.2, 0.3, 0.1])
    >>> change_point("x", series, np.tile(series, (4, 1))).layer
    4
    """
    count = len(mean)
    if count < 3:
        raise InputError(f"a change along depth needs at least three layers, and this model has {count}.")
    (layer,), (statistic,) = _pettitt(mean[None])
    layers = _pettitt(drawn)[0].astype(float) if np.isfinite(drawn).all() else np.full(len(drawn), np.nan)
    low, high = interval(layers)
    return ChangePoint(
        quantity=quantity,
        layer=int(layer),
        low=float(low),
        high=float(high),
        before=float(np.median(mean[:layer])),
        after=float(np.median(mean[layer:])),
        p=float(min(1.0, np.exp(-6 * statistic**2 / (count**3 + count**2)))),
    )


def _pettitt(series: Float[np.ndarray, "draw layer"]) -> tuple[np.ndarray, np.ndarray]:
    """The k with the largest U = Σ_{i<k≤j} sign(x_i − x_j), and that U."""
    ranks = series.argsort(1).argsort(1) + 1.0
    count = series.shape[1]
    u = (2 * ranks.cumsum(1) - np.arange(1, count + 1) * (count + 1))[:, :-1]
    return u.argmax(1) + 1, u.max(1)
