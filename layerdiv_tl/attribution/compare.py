"""Compare the contributions of two models, or of one model in two states, on the same prompts and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..components import Component, component_columns
from ..ensemble.intervals import estimate, estimates_frame
from ..errors import InputError
from ..results import Plot, Result
from .results import Contributions

# Rows that one model may lack: they are zero there.
_OPTIONAL = ("constant", "rounding", "added", "attn_bias", "mlp_bias", "mixer_bias")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """The change of every component's contribution from a to b; Σ changes = the change of the logits.

    A component's *score* in a row is its contribution to the right option (with `labels`; else to the first) minus the
    mean of the others: scores sum over components, and hold no shift that all options share.

    Attributes:
        a, b: float64 `[example, component, option]`: the contributions in both, in logits; log-likelihood parts in nats
            for options of several tokens. A component that one model lacks (`rounding`, a bias) is zero there.
        options, labels: The options' texts, and the right option of each example or None.
        identity_gap: The larger of the two results' gaps.
        measured_in, models, task: "logits" or "nats", and the names of both models and of the task.
    """

    a: Float[np.ndarray, "example component option"]
    b: Float[np.ndarray, "example component option"]
    components: tuple[Component, ...]
    options: tuple[Any, ...]
    labels: Int[np.ndarray, " example"] | None
    identity_gap: float
    measured_in: str
    models: tuple[str, str]
    task: str = ""

    @property
    def change(self) -> Float[np.ndarray, "example component option"]:
        """b − a."""
        return self.b - self.a

    def scores(self, values: Float[np.ndarray, "example component option"]) -> Float[np.ndarray, "example component"]:
        """Compute contributions to the right option minus the mean of the others."""
        count = values.shape[2]
        right = np.zeros(len(values), dtype=int) if self.labels is None else self.labels
        weights = np.where(np.eye(count, dtype=bool)[right], 1.0, -1.0 / max(count - 1, 1))
        return np.einsum("emo,eo->em", values, weights)

    def frame(self) -> pd.DataFrame:
        """One row per component: means over rows of the score in a and b, and of its paired change with its interval.

        `size` is the root mean square over rows and options of the change minus its mean over the options. `attrs` has
        the same of the sum over components: `a`, `b`, `change`, `change_low`, `change_high`.
        """
        before, after = self.scores(self.a), self.scores(self.b)
        centered = self.change - self.change.mean(2, keepdims=True)
        columns = {"a": before.mean(0), "b": after.mean(0), "change": estimate(after - before)}
        columns["size"] = np.sqrt((centered**2).mean((0, 2)))
        units = dict.fromkeys(columns, self.measured_in)
        frame = estimates_frame(component_columns(self.components) | columns, units, identity_gap=self.identity_gap)
        totals = {"a": before.sum(1).mean(), "b": after.sum(1).mean()}
        totals |= estimate((after - before).sum(1)).columns("change")
        frame.attrs |= {name: float(value) for name, value in totals.items()}
        return frame

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9): the sums of `frame` over its components, the change with its interval."""
        modules = list(dict.fromkeys(c.module for c in self.components))
        is_in = np.array([[c.module == module for module in modules] for c in self.components], dtype=float)
        before, after = self.scores(self.a) @ is_in, self.scores(self.b) @ is_in
        columns = {"a": before.mean(0), "b": after.mean(0), "change": estimate(after - before)}
        return estimates_frame({"module": modules} | columns, dict.fromkeys(columns, self.measured_in))

    lead: ClassVar = "change"
    figures: ClassVar = {
        "bars": Plot(
            "Change of every component",
            "The mean change of each component's score, b − a.",
            "shapes.bars",
            "frame",
            {"columns": ("change",)},
        )
    }


def compare(a: Contributions, b: Contributions) -> Comparison:
    """Subtract two `Contributions` to the same options of the same rows, component by component.

    They may come from a base and a tuned model, two checkpoints or seeds, or one model with and without hooks. The rows
    of components are matched by their labels.

    Raises InputError for results of different rows, options or units, and for models of different shape.

    >>> import layerdiv_tl as ld
    >>> rows = ld.task("synthetic/recall", limit=8)
    >>> c = ld.compare(ld.contributions("zoo/d4", rows), ld.contributions("zoo/d4-seed1", rows))
    >>> c.frame()[["component", "change"]].shape, c.change.shape
    ((9, 2), (8, 9, 4))
    """
    if a.unit != b.unit:
        raise InputError(f"a has the unit {a.unit!r} and b {b.unit!r}: decompose both at one unit.")
    a, b = a.comparable, b.comparable
    if a.score != b.score:
        raise InputError("one of a and b is in logits and the other in log-likelihoods: give both alike.")
    if not (a.complete and b.complete) and set(a.components) != set(b.components):
        raise InputError("a or b holds some of its components only: give both complete, or the same ones of both.")
    if len(a.values) != len(b.values) or a.options != b.options:
        raise InputError("a and b are contributions to other options or of other numbers of rows: give both the same.")
    if any(min(ids) < 0 for ids in (*a.tokens, *b.tokens)):
        raise InputError("token ids of a cache are unknown: give them as its prompts, ld.contributions(cache, ids).")
    if a.tokens != b.tokens or not np.array_equal(a.positions, b.positions):
        raise InputError("a and b read other tokens or positions: give both models the same prompts, as token ids.")
    if a.labels is not None and b.labels is not None and not np.array_equal(a.labels, b.labels):
        raise InputError("a and b have other labels: take both of the same task.")
    components = _merged(a.components, b.components)
    for result, other in ((a, b), (b, a)):
        _refuse_missing(set(components) - set(result.components), result.model, other.model)
    return Comparison(
        a=_in_rows(components, a.components, a.values),
        b=_in_rows(components, b.components, b.values),
        components=components,
        options=a.options,
        labels=a.labels,
        identity_gap=max(a.identity_gap, b.identity_gap),
        measured_in="logits" if a.score == "logits" else "nats",
        models=(a.model, b.model),
        task=a.task,
    )


def _refuse_missing(missing: Sequence[Component] | set[Component], model: str, other: str) -> None:
    """Raise InputError where one model has a component that the other lacks, except those that may be zero."""
    shape = sorted(c.label for c in missing if c.kind not in _OPTIONAL)
    if shape:
        raise InputError(
            f"{model} has no {shape[0]}, which {other} has: models of different shape are compared by their modules' "
            "sums, ld.decompose(…).by_module() of each."
        )


def _merged(names: Sequence[Component], others: Sequence[Component]) -> tuple[Component, ...]:
    """Merge two lists of components, in stream order."""
    merged, known = list(names), set(names)
    for place, name in enumerate(others):
        if name not in known:
            merged.insert(merged.index(others[place - 1]) + 1 if place else 0, name)
    return tuple(merged)


def _in_rows(rows: Sequence[Component], components: Sequence[Component], values: np.ndarray) -> np.ndarray:
    """Spread values `[example, component, …]` over the rows of a longer list of components; other rows are zero."""
    if rows == components:
        return values
    place_of = {name: place for place, name in enumerate(rows)}
    out = np.zeros((len(values), len(rows), *values.shape[2:]))
    out[:, [place_of[c] for c in components]] = values
    return out
