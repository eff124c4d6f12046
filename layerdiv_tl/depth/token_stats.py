"""From one value per token to means with intervals over texts, quantiles and maxima."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from ..ensemble.intervals import LEAST, cluster_means, interval_note, resamples

QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}


def resampled(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"], n_resamples: int = 1000, seed: int = 0
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "draw row"]]:
    """(mean over tokens, the same of every resample of whole texts), for what is not smooth in the mean.

    Tokens without a value (NaN) are left out. Too few texts for an interval: the resamples are NaN.
    """
    sums, counts = per_text(values, text)
    weights = (
        resamples(len(sums), n_resamples, seed) if len(sums) >= LEAST else np.full((n_resamples, len(sums)), np.nan)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums.sum(0) / counts.sum(0), (weights @ sums) / (weights @ counts)


def per_text(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> tuple[Float[np.ndarray, "text row"], Float[np.ndarray, "text row"]]:
    """(sums over each text's tokens, how many tokens have a value): tokens of one text are not independent."""
    known = np.isfinite(values)
    sums, counts = np.zeros((2, int(text.max()) + 1, values.shape[1]))
    np.add.at(sums, text, np.where(known, values, 0.0))
    np.add.at(counts, text, known)
    return sums, counts


def note(text: Int[np.ndarray, " token"]) -> str:
    """What the intervals of a frame are over, or why it has none, for its `attrs`."""
    return interval_note(int(text.max()) + 1, "texts")


def summarize(
    name: str, values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> dict[str, Float[np.ndarray, " row"]]:
    """Columns `name` (the mean over tokens), `_low`, `_high` (95 %, over texts), `_q10`, `_median`, `_q90`, `_max`.

    Fewer than 8 texts have no interval: `_low` and `_high` are NaN.

    >>> columns = summarize("x", np.arange(6.0)[:, None], np.array([0, 0, 1, 1, 2, 2]))
    >>> float(columns["x"][0]), float(columns["x_median"][0]), float(columns["x_max"][0])
    (2.5, 2.5, 5.0)
    """
    mean, low, high = cluster_means(*per_text(values, text))
    spread = np.nanquantile(values, list(QUANTILES.values()), axis=0)
    columns = {name: mean, f"{name}_low": low, f"{name}_high": high}
    columns |= {f"{name}_{q}": row for q, row in zip(QUANTILES, spread, strict=True)}
    return columns | {f"{name}_max": np.nanmax(values, axis=0)}
