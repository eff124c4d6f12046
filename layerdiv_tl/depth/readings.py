"""`Readings`: what an analysis read at places of texts, by component. `Pairs`: what it read of pairs of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import whole_number
from .._progress import Advance
from ..components import Component, component_columns
from ..ensemble.intervals import LEAST, Estimate, Kind, estimate, estimates_frame, interval_note
from ..model.load import Model
from ..model.prompts import Ids, token_texts
from ..results import Result
from .engine import map_batches, same_components

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
    """

    components: tuple[Component, ...]
    values: dict[str, Float[np.ndarray, "place component"]]
    places: dict[str, Any]
    units: dict[str, str]
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    prompt_ends: tuple[str, ...] = ()

    # What `frame()` averages: places, or the mean or the sum over each text's places.
    over: ClassVar[Literal["places", "means", "sums"]] = "places"
    # Quantities between 0 and 1, whose intervals are too.
    shares: ClassVar[Collection[str]] = ()

    def frame(self) -> pd.DataFrame:
        """One row per component: means over places, or over texts, with 95 % intervals over texts; medians and maxima.

        These are over places, and of sums over texts. Of fewer than eight texts there are no intervals: `_low` and
        `_high` are NaN, and `attrs["intervals"]` says so.
        """
        text: Int[np.ndarray, " place"] = self.places["text"]
        columns = component_columns(self.components)
        for name, values in self.values.items():
            if self.over == "places":
                columns[name] = estimate(values, clusters=text, over="texts")
            else:
                sums, counts = sums_per_text(values, text)
                of_texts = sums if self.over == "sums" else sums / counts
                kind: Kind = "share" if name in self.shares else "mean"
                columns[name] = estimate(of_texts, kind, counts=np.ones_like(counts), over="texts")
                values = sums if self.over == "sums" else values
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
        columns |= component_columns(self.components, np.tile(np.arange(count), places))
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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Pairs(Result):
    """A quantity of pairs of layers: what one does to another, or how well it predicts it.

    Attributes:
        components, targets: The first and second of each pair.
        mean, largest: The mean and maximum over the measured tokens of each text; NaN where there is no such pair.
        counts: Number of measured tokens in each text.
        quantity, unit: The name of what was measured, which is a column of `frame()`, and its unit.
    """

    components: tuple[Component, ...]
    targets: tuple[Component, ...]
    mean: Float[np.ndarray, "text component target"]
    largest: Float[np.ndarray, "text component target"]
    counts: Int[np.ndarray, " text"]
    quantity: str
    unit: str

    def frame(self) -> pd.DataFrame:
        """One row per pair.

        The mean over tokens with its 95 % interval over texts; `_median`, over texts' means; `_max`, over tokens.
        """
        component, target = np.argwhere(np.isfinite(self.mean).all(0)).T
        values, name = self.mean[:, component, target], self.quantity
        columns: dict[str, Any] = component_columns(self.components, component)
        columns["target"] = [self.targets[number].label for number in target]
        columns[name] = self.over_texts(values)
        columns[f"{name}_median"] = reduce_known(np.median, values)
        columns[f"{name}_max"] = reduce_known(np.max, self.largest[:, component, target])
        return estimates_frame(columns, {name: self.unit}, intervals=interval_note(len(self.counts), "texts"))

    def over_texts(self, means: Float[np.ndarray, "text row"]) -> Estimate:
        """Average texts' means, weighted by their measured tokens, with intervals."""
        counts = self.counts[:, None].astype(float)
        return estimate(means * counts, counts=counts, over="texts")


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
    measure: Callable[[list[Ids]], tuple[tuple[Component, ...], np.ndarray]],
) -> tuple[tuple[Component, ...], Float[np.ndarray, "quantity token component"]]:
    """Return (components, what `measure` reads at every token of every text, in their order).

    `measure` returns the components of some rows, and `[quantity, token, component]`.
    """

    def measure_batch(rows: list[int], advance: Advance) -> tuple[tuple[Component, ...], np.ndarray, np.ndarray]:
        found = measure([ids[row] for row in rows])
        advance(len(rows))
        return *found, np.repeat(rows, [len(ids[row]) for row in rows])

    components, tables, texts = zip(*map_batches(model, ids, batch_tokens, measure_batch), strict=True)
    order = np.argsort(np.concatenate(texts), kind="stable")
    return same_components(model, components), np.concatenate(tables, 1)[:, order]


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
