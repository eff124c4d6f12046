"""From one value per token to means with intervals over texts, quantiles and maxima."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from ..ensemble.uncertainty import interval, resamples

QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}


def resampled(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"], draws: int = 1000, seed: int = 0
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "draw row"]]:
    """(mean over tokens, the same of every resample of whole texts: tokens of one text are not independent).

    Tokens without a value (NaN) are left out.
    """
    count = int(text.max()) + 1
    known = np.isfinite(values)
    sums, counts = np.zeros((2, count, values.shape[1]))
    np.add.at(sums, text, np.where(known, values, 0.0))
    np.add.at(counts, text, known)
    weights = resamples(count, draws, seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums.sum(0) / counts.sum(0), (weights @ sums) / (weights @ counts)


def summarise(
    name: str, values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"], draws: int = 1000, seed: int = 0
) -> dict[str, Float[np.ndarray, " row"]]:
    """Columns `name` (the mean over tokens), `_low`, `_high` (95 %, over texts), `_q10`, `_median`, `_q90`, `_max`.

    >>> columns = summarise("x", np.arange(6.0)[:, None], np.array([0, 0, 1, 1, 2, 2]))
    >>> float(columns["x"][0]), float(columns["x_median"][0]), float(columns["x_max"][0])
    (2.5, 2.5, 5.0)
    """
    mean, drawn = resampled(values, text, draws, seed)
    low, high = interval(drawn)
    spread = np.nanquantile(values, list(QUANTILES.values()), axis=0)
    columns = {name: mean, f"{name}_low": low, f"{name}_high": high}
    columns |= {f"{name}_{q}": row for q, row in zip(QUANTILES, spread, strict=True)}
    return columns | {f"{name}_max": np.nanmax(values, axis=0)}
