"""Results with values at tokens of texts: means with intervals over texts, quantiles and maxima, frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._progress import Advance
from ..components import Component, component_columns
from ..ensemble.intervals import LEAST, Estimate, estimate, estimates_frame, interval_note
from ..model.load import Model
from ..model.prompts import Ids, token_texts
from ..results import Result
from .engine import map_batches, same_components

QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}
SOFTMAX_CHANGE = "‖p − p′‖₂"


class TokenResult(Result):
    """Base of results with values at tokens: the text of each and, for `_by_token`, its position and spelling."""

    components: tuple[Component, ...]
    text: Int[np.ndarray, " token"]
    position: Int[np.ndarray, " token"]
    tokens: tuple[str, ...]

    def _summary(self, units: Mapping[str, str], **columns: Any) -> pd.DataFrame:
        """Summarize the fields named in `units`; `columns` are more, or replace some."""
        of_fields = (summarize(name, getattr(self, name), self.text) for name in units)
        return self._with_units({name: x for some in of_fields for name, x in some.items()} | columns, units)

    def _with_units(self, columns: Mapping[str, Any], units: Mapping[str, str], rows: Any = None) -> pd.DataFrame:
        """Return a frame of one row per component, or of those of `rows`, with intervals over texts."""
        columns = component_columns(self.components, rows) | dict(columns)
        return estimates_frame(columns, units, intervals=interval_note(int(self.text.max()) + 1, "texts"))

    def _by_token(self, units: Mapping[str, str]) -> pd.DataFrame:
        """Return a frame of one row per token and component; `units` are those of the columns, which are fields."""
        count = len(self.components)
        of_token = {"text": self.text, "position": self.position, "token": np.array(self.tokens, dtype=object)}
        columns: dict[str, Any] = {name: np.repeat(values, count) for name, values in of_token.items()}
        columns |= component_columns(self.components, np.tile(np.arange(count), len(self.text)))
        return estimates_frame(columns | {name: getattr(self, name).ravel() for name in units}, units)


def read_tokens(model: Model, rows: Sequence[Ids]) -> dict[str, Any]:
    """Return the fields `text`, `position` and `tokens` of a result with one entry per token."""
    text = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    position = np.concatenate([np.arange(len(row)) for row in rows])
    return {"text": text, "position": position, "tokens": token_texts(model, [token for row in rows for token in row])}


def measure_tokens(
    model: Model,
    ids: Sequence[Ids],
    batch_tokens: int | None,
    measure: Callable[[list[Ids]], tuple[tuple[Component, ...], np.ndarray]],
) -> tuple[tuple[Component, ...], Float[np.ndarray, "quantity token component"], Int[np.ndarray, " token"]]:
    """Return (components, `[quantity, token, component]` of every text in their order, text of each token)."""

    def measure_batch(rows: list[int], advance: Advance) -> tuple[tuple[Component, ...], np.ndarray, np.ndarray]:
        found = measure([ids[row] for row in rows])
        advance(len(rows))
        return *found, np.repeat(rows, [len(ids[row]) for row in rows])

    components, tables, texts = zip(*map_batches(model, ids, batch_tokens, measure_batch), strict=True)
    text = np.concatenate(texts)
    order = np.argsort(text, kind="stable")
    return same_components(model, components), np.concatenate(tables, 1)[:, order], text[order]


@lru_cache(maxsize=4)
def bootstrap_weights(n: int, seed: int = 0) -> Float[np.ndarray, "draw example"]:
    """Draw weights of 1000 resamples: `weights @ values` is each resample's mean; NaN for one example."""
    if n == 1:
        return np.full((1000, 1), np.nan)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=1000) / n
    weights.flags.writeable = False  # the result is cached
    return weights


def resampled_ratio(
    sums: Float[np.ndarray, "text row"], counts: Float[np.ndarray, "text #row"]
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "draw row"]]:
    """Return (Σ sums / Σ counts, its resamples over texts: NaN for too few), for what is not smooth in the mean."""
    weights = bootstrap_weights(len(sums)) if len(sums) >= LEAST else np.full((1000, len(sums)), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums.sum(0) / counts.sum(0), (weights @ sums) / (weights @ counts)


def sums_per_text(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> tuple[Float[np.ndarray, "text row"], Float[np.ndarray, "text row"]]:
    """Return (sums over each text's tokens, number of tokens with a value): tokens of one text are not independent."""
    known = np.isfinite(values)
    sums, counts = np.zeros((2, int(text.max()) + 1, values.shape[1]))
    np.add.at(sums, text, np.where(known, values, 0.0))
    np.add.at(counts, text, known)
    return sums, counts


def quantile_columns(name: str, values: Float[np.ndarray, "value row"]) -> dict[str, Float[np.ndarray, " row"]]:
    """Return columns `_q10`, `_median`, `_q90` of `name`."""
    quantiles = np.nanquantile(values, list(QUANTILES.values()), axis=0)
    return {f"{name}_{suffix}": row for suffix, row in zip(QUANTILES, quantiles, strict=True)}


def summarize(
    name: str, values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> dict[str, Estimate | Float[np.ndarray, " row"]]:
    """The mean over tokens with its interval over texts, and columns `_q10`, `_median`, `_q90`, `_max`, by name."""
    mean = estimate(values, clusters=text, over="texts")
    return {name: mean} | quantile_columns(name, values) | {f"{name}_max": np.nanmax(values, axis=0)}
