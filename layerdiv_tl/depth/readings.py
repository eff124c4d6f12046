"""`Readings`: what an analysis read at places of texts, by component or by pair of components."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import whole_number
from .._progress import Advance
from ..components import Component, component_columns
from ..ensemble.intervals import LEAST, Kind, estimate, estimates_frame, interval_note
from ..model.load import Model
from ..model.prompts import Ids, token_texts
from ..results import Result
from .engine import gather_rows

SOFTMAX_CHANGE = "‖p − p′‖₂"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Readings(Result):
    """Numbers read at places of texts, one for each component that was patched or measured.

    Attributes:
        components: In the order in which they run.
        values: `[place, component]` of each quantity, by name; NaN where nothing was read.
        places: `text` and `position`, `[place]`; and `token`, its spelling.
        units: The unit of each quantity.
        settings: The arguments that the numbers depend on, and other facts about the whole; in the `attrs` of frames.
        columns: More columns of `frame()`, one value per component.
        prompt_ends: As in `Contributions`.
        targets: Of numbers of pairs of components, the second of each pair.
    """

    components: tuple[Component, ...]
    values: dict[str, Float[np.ndarray, "place component"]]
    places: dict[str, Any]
    units: dict[str, str]
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    prompt_ends: tuple[str, ...] = ()
    targets: tuple[Component, ...] | None = None

    # Whether all texts count alike in means, however many places they have.
    by_text: ClassVar[bool] = False
    # Quantities between 0 and 1, whose intervals are too.
    shares: ClassVar[Collection[str]] = ()

    def frame(self) -> pd.DataFrame:
        """One row per component, or pair: means over places with 95 % intervals over texts; medians and maxima.

        Of fewer than eight texts there are no intervals: `_low` and `_high` are NaN, and `attrs["intervals"]` says so.
        """
        text: Int[np.ndarray, " place"] = self.places["text"]
        weights = 1 / np.bincount(text)[text, None] if self.by_text else np.ones((len(text), 1))
        columns = self._names(np.arange(len(self.components)))
        for name, values in self.values.items():
            kind: Kind = "share" if name in self.shares else "mean"
            counts = np.isfinite(values) * weights
            columns[name] = estimate(values * weights, kind, counts=counts, clusters=text, over="texts")
            columns[f"{name}_median"] = reduce_known(np.median, values)
            columns[f"{name}_max"] = reduce_known(np.max, values)
        note = interval_note(int(text.max()) + 1, "texts")
        return estimates_frame(columns | self.columns, self.units, intervals=note, **self.settings)

    def by_place(self) -> pd.DataFrame:
        """One row per place and component."""
        count, places = len(self.components), len(self.places["text"])
        columns: dict[str, Any] = {}
        for name, of_places in self.places.items():
            columns[name] = np.repeat(np.asarray(of_places), count)
        columns |= self._names(np.tile(np.arange(count), places))
        for name, values in self.values.items():
            columns[name] = values.ravel()
        return estimates_frame(columns, {name: self.units[name] for name in self.values})

    def of_text(self, text: int = 0) -> pd.DataFrame:
        """The rows of `by_place()` of one text. Raises InputError for a text that there is not."""
        whole_number("text", text, 0, int(self.places["text"].max()))
        frame = self.by_place()
        some = frame[frame["text"] == text]
        some.attrs = frame.attrs | {"about": f"text {text}"}
        return some

    def _names(self, numbers: Int[np.ndarray, " row"]) -> dict[str, Any]:
        """The columns that name some components, or pairs."""
        columns = component_columns(self.components, numbers)
        if self.targets is not None:
            columns["target"] = [self.targets[number].label for number in numbers]
        return columns


def reduce_known(
    reduce: Callable[..., np.ndarray], values: Float[np.ndarray, "value row"]
) -> Float[np.ndarray, " row"]:
    """Reduce the finite values of each column; NaN for a column without any."""
    columns = (column[np.isfinite(column)] for column in values.T)
    return np.array([reduce(column) if len(column) else np.nan for column in columns])


def token_places(model: Model, rows: Sequence[Ids]) -> dict[str, Any]:
    """Return the `places` of all tokens of some rows."""
    text = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    position = np.concatenate([np.arange(len(row)) for row in rows])
    return {"text": text, "position": position, "token": token_texts(model, [token for row in rows for token in row])}


def read_tokens(
    model: Model,
    ids: Sequence[Ids],
    batch_tokens: int | None,
    measure: Callable[[list[Ids]], tuple[tuple[Component, ...], Iterable[np.ndarray]]],
) -> tuple[tuple[Component, ...], list[Float[np.ndarray, "token component"]]]:
    """Return (components, each quantity that `measure` reads at every token of every text, in their order).

    `measure` returns the components of some rows, and each quantity, `[token, component]`.
    """

    def measure_batch(rows: list[int], advance: Advance) -> tuple[tuple[Component, ...], Any, Iterable[np.ndarray]]:
        components, tables = measure([ids[row] for row in rows])
        advance(len(rows))
        return components, np.repeat(rows, [len(ids[row]) for row in rows]), tables

    return gather_rows(model, ids, batch_tokens, measure_batch)


@lru_cache(maxsize=4)
def bootstrap_weights(n: int) -> Float[np.ndarray, "draw example"]:
    """Draw weights of 1000 resamples: `weights @ values` is each resample's mean; NaN below `LEAST` examples."""
    if n < LEAST:
        return np.full((1000, n), np.nan)
    weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=1000) / n
    weights.flags.writeable = False  # the result is cached
    return weights


def resampled_ratio(
    sums: Float[np.ndarray, "text row"], counts: Float[np.ndarray, "text #row"]
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "draw row"]]:
    """Return (Σ sums / Σ counts, its resamples over texts: NaN for too few), for what is not smooth in the mean."""
    weights = bootstrap_weights(len(sums))
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums.sum(0) / counts.sum(0), (weights @ sums) / (weights @ counts)


def sums_per_text(
    values: Float[np.ndarray, "place row"], text: Int[np.ndarray, " place"]
) -> tuple[Float[np.ndarray, "text row"], Float[np.ndarray, "text row"]]:
    """Return (sums over each text's places, number of places with a value): places of one text are not independent."""
    known = np.isfinite(values)
    sums, counts = np.zeros((2, int(text.max()) + 1, values.shape[1]))
    np.add.at(sums, text, np.where(known, values, 0.0))
    np.add.at(counts, text, known)
    return sums, counts
