"""From one value per token to columns of a frame: means with intervals over texts, quantiles and maxima."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..ensemble.intervals import LEAST, cluster_means, interval_note, resamples

QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}


def labeled_frame(columns: Any, units: dict[str, str], intervals: str = "") -> pd.DataFrame:
    """A frame with the units of its columns, and what its intervals are over, in `attrs`."""
    frame = pd.DataFrame(columns)
    frame.attrs["units"] = units
    if intervals:
        frame.attrs["intervals"] = intervals
    return frame


def interval_note_of(text: Int[np.ndarray, " token"]) -> str:
    """What the intervals of a frame are over, or why it has none."""
    return interval_note(int(text.max()) + 1, "texts")


def resampled_means(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "draw row"]]:
    """(mean over tokens, the same of 1000 resamples of whole texts), for what is not smooth in the mean.

    Tokens without a value (NaN) are left out. Too few texts for an interval: the resamples are NaN.
    """
    sums, counts = sums_per_text(values, text)
    weights = resamples(len(sums)) if len(sums) >= LEAST else np.full((1000, len(sums)), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums.sum(0) / counts.sum(0), (weights @ sums) / (weights @ counts)


def sums_per_text(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> tuple[Float[np.ndarray, "text row"], Float[np.ndarray, "text row"]]:
    """(sums over each text's tokens, how many tokens have a value): tokens of one text are not independent."""
    known = np.isfinite(values)
    sums, counts = np.zeros((2, int(text.max()) + 1, values.shape[1]))
    np.add.at(sums, text, np.where(known, values, 0.0))
    np.add.at(counts, text, known)
    return sums, counts


def mean_columns(
    name: str, sums: Float[np.ndarray, "text row"], counts: Float[np.ndarray, "text #row"]
) -> dict[str, Float[np.ndarray, " row"]]:
    """Columns `name` (Σ sums / Σ counts), `_low`, `_high` (95 %, over texts; NaN for fewer than 8)."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), cluster_means(sums, counts), strict=True))


def quantile_columns(name: str, values: Float[np.ndarray, "value row"]) -> dict[str, Float[np.ndarray, " row"]]:
    """Columns `_q10`, `_median`, `_q90` of `name`."""
    quantiles = np.nanquantile(values, list(QUANTILES.values()), axis=0)
    return {f"{name}_{suffix}": row for suffix, row in zip(QUANTILES, quantiles, strict=True)}


def summarize(
    name: str, values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> dict[str, Float[np.ndarray, " row"]]:
    """Columns `name` (mean over tokens), `_low`, `_high` (95 %, over texts), `_q10`, `_median`, `_q90`, `_max`.

    >>> columns = summarize("x", np.arange(6.0)[:, None], np.array([0, 0, 1, 1, 2, 2]))
    >>> float(columns["x"][0]), float(columns["x_median"][0]), float(columns["x_max"][0])
    (2.5, 2.5, 5.0)
    """
    columns = mean_columns(name, *sums_per_text(values, text)) | quantile_columns(name, values)
    return columns | {f"{name}_max": np.nanmax(values, axis=0)}
