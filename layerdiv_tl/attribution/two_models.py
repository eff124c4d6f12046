"""Two models' results side by side: components by name for models of one shape, otherwise in groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from .._checks import whole_number
from ..components import Component, component_columns
from ..ensemble.intervals import estimate, estimates_frame, interval_note
from ..ensemble.losses import group_numbers, sum_by_group
from ..errors import InputError
from ..model.architecture import ADAPTER_ROWS
from ..results import Result
from .blocks import in_rows, merge

Names = tuple[Component, ...]
PerComponent = Float[np.ndarray, "example component"]
PerExample = Float[np.ndarray, " example"]
# Unit roundoffs that count as rounding, twice the measured ones.
ROUNDOFFS = 8
# Rows that one of two models of the same shape may lack; they are zero there.
_LACKING = ("constant", "rounding", "intervention", *ADAPTER_ROWS.values())
# Columns of frames that have no unit.
_LABELS = ["layer", "index", "repeat", "members_a", "members_b", "position", "document", "example", "label"]
_LABELS += ["answer_a", "answer_b"]


class Compared(NamedTuple):
    """The data to compare of two models: pairs of tables, and the clusters of examples, e.g. tokens of a text.

    Attributes:
        logits: Contributions to logits, `[example, component, …]`.
        scores: The components' contributions to the score that groups are compared by, `[example, component]`.
        clusters: `[example]`, the cluster of each example of `scores`; clusters are independent.
    """

    logits: tuple[np.ndarray, np.ndarray]
    scores: tuple[PerComponent, PerComponent]
    clusters: Int[np.ndarray, " example"]


@dataclass(frozen=True, eq=False)
class TwoModels(Result):
    """The results of two models side by side: the base of `Comparison` and `TextComparison`.

    Attributes:
        a, b: The results of the two models.
        parts: `{"own", "statistic", "gain", "unembedding"}`, `[example, component, …]`: the parts of every change.
        same_weights: True if both have the same configuration, weights and buffers, bit for bit.
        roundoff: The unit roundoff of the coarser of the two streams, 2⁻⁸ for bfloat16, 2⁻²⁴ for float32.
    """

    a: Any
    b: Any
    parts: dict[str, np.ndarray] | None
    same_weights: bool
    roundoff: float

    @property
    def one_shape(self) -> bool:
        """True if the models have the same components; others are compared by module and relative depth."""
        return not any(c.kind not in _LACKING for c in set(self.a.components) ^ set(self.b.components))

    @cached_property
    def components(self) -> Names:
        """The components of both, in stream order. Raises InputError for models of different shape."""
        names = (self.a.components, self.b.components)
        if not self.one_shape:
            raise InputError(
                f"{self.a.model} and {self.b.model} differ in shape ({len(names[0])} and {len(names[1])} components), "
                "so no component is in both: compare them by_module(), or by relative depth, by_depth()."
            )
        return names[0] if names[0] == names[1] else merge(names)

    def _in_common(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Spread a table of either model over the rows of both."""
        rows = self.components
        return in_rows(rows, self.a.components, a), in_rows(rows, self.b.components, b)

    def _change(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        before, after = self._in_common(a, b)
        return after - before

    def _own(self) -> np.ndarray:
        if self.parts is None:
            raise InputError(
                "these changes have no parts: models of different shape have no component in common, and a model reads "
                "no stream of another width; use by_module() or by_depth()."
            )
        return self.parts["own"]

    @property
    def identity_gap(self) -> float:
        """The larger of the two models' identity gaps: max |Σ u_i − logits| / max Σ|u_i|."""
        return max(self.a.identity_gap, self.b.identity_gap)

    @property
    def absolute_gap(self) -> float:
        """max |Σ changes − change of the logits|, in logits, before any soft-cap: at most the sum of both gaps."""
        return self.a.absolute_gap + self.b.absolute_gap

    @property
    def rounding(self) -> PerExample:
        """The change of a component that rounding may explain: 8 unit roundoffs × Σ_i|u_i|, the largest over options.

        A copy in half precision has rounded weights, and each of its sublayers reads a rounded stream, so all
        components change a little, not only `rounding`. This is a yardstick, not a bound: in bfloat16 copies of trained
        and random models, no component changed by more than 4 unit roundoffs × Σ_i|u_i| in any row and option.
        """
        sizes = [np.abs(u).reshape(*u.shape[:2], -1).sum(1).max(1) for u in self._compared.logits]
        return ROUNDOFFS * self.roundoff * np.maximum(*sizes)

    @property
    def first_changed(self) -> Component | None:
        """The first component in stream order whose own change exceeds rounding in any example; None without one.

        Components before it are unchanged. A component after it may have changed only because its input did.
        """
        own = np.abs(self._own())
        largest = own.reshape(*own.shape[:2], -1).max(2)
        changed = (largest > self.rounding[:, None]).any(0)  # NaN, where a text ends, does not count
        return next((c for c, is_changed in zip(self.components, changed, strict=True) if is_changed), None)

    def by_module(self) -> pd.DataFrame:
        """One row per module: the sums of its components' scores, for models of any shape; they add up to `totals`.

        On texts the score is the contribution to the loss, in nats, averaged over tokens. `share_a` and `share_b` are
        shares of a model's own total, NaN where the interval of the total contains 0; for terms of both signs they may
        lie outside 0 to 1.
        """
        return self._by_group("module", [[c.module for c in side.components] for side in (self.a, self.b)])

    def by_depth(self, n_bins: int = 4) -> pd.DataFrame:
        """The same along relative depth, for models of any shape: blocks are divided into `n_bins` equal bins.

        Block l of n (in execution order, counting each repeat) stands at (l + ½) / n; `depth` is the end of a bin.
        Embeddings stand at 0, the read-out's constants and rounding at the end, as `after`.
        """
        n_bins = whole_number("n_bins", n_bins, 1, 1000)
        return self._by_group("depth", [_relative_depths(side.components, n_bins) for side in (self.a, self.b)])

    def _by_group(self, by: str, groups: Sequence[Sequence[object]]) -> pd.DataFrame:
        """Make one row per group of either model's components: the sums of their scores, their shares of the total, and
        the change of the sums, with intervals where examples are independent.
        """

        compared, (names, number) = self._compared, group_numbers([*groups[0], *groups[1]])
        counts, sums, shares = dict[str, Any](), dict[str, np.ndarray](), dict[str, Any]()
        for side, score, group in zip("ab", compared.scores, np.split(number, [len(groups[0])]), strict=True):
            # A group of zeros at the end stands for groups that one side lacks.
            padded = np.pad(score, ((0, 0), (0, len(names))))
            sums[side] = sum_by_group(padded, np.append(group, np.arange(len(names))))
            counts[f"members_{side}"] = np.bincount(group, minlength=len(names))
            is_clear = estimate(np.bincount(compared.clusters, score.sum(1))).excludes_zero
            whole = sums[side].mean(0)
            shares[f"share_{side}"] = whole / (whole.sum() if is_clear else np.nan)
        change = sums["b"] - sums["a"]
        means = {name: x.mean(0) for name, x in (sums | {"change": change}).items()}
        columns = {by: names} | counts | {name: means[name] for name in "ab"} | shares | {"change": means["change"]}
        columns |= {"change": estimate(change)} if self._is_independent else {}
        frame = estimates_frame(columns)
        if by == "depth":
            place = {"embedding": 0.0, "after": 2.0}
            frame = frame.iloc[np.argsort([place.get(x, x) for x in names])].reset_index(drop=True)
        return self._finish(frame, self._unit_of("score"))

    def _by_component(
        self, plain: Mapping[str, PerComponent], changes: Mapping[str, PerComponent], sizes: Mapping[str, np.ndarray]
    ) -> pd.DataFrame:
        """Average some tables over examples, with 95 % intervals for changes, and measure the sizes of changes."""

        clusters = self._compared.clusters
        columns: dict[str, Any] = component_columns(self.components) | {n: x.mean(0) for n, x in plain.items()}
        for name, values in changes.items():
            columns[name] = estimate(values, clusters=None if self._is_independent else clusters)
        # The root mean square keeps changes in both directions.
        columns |= {name: np.sqrt((x**2).mean(0)) for name, x in sizes.items()}
        frame = self._finish(estimates_frame(columns))
        if self.parts is not None:
            first = self.first_changed
            frame.attrs["first_changed"] = None if first is None else first.label
        return frame

    @property
    @abstractmethod
    def _compared(self) -> Compared:
        """The tables that are compared."""

    @cached_property
    def _is_independent(self) -> bool:
        return len(np.unique(self._compared.clusters)) == len(self._compared.clusters)

    @abstractmethod
    def _unit_of(self, name: str) -> str:
        """The unit of a column."""

    def _finish(self, frame: pd.DataFrame, unit: str | None = None) -> pd.DataFrame:
        """Add units and the description of the numbers to a frame; `unit` is that of all numbers except shares."""
        numbers = frame.drop(columns=_LABELS, errors="ignore").select_dtypes("number")
        names = [] if "quantity" in frame else [str(name) for name in numbers]
        units = {name: "share" if name.startswith("share") else unit or self._unit_of(name) for name in names}
        frame.attrs |= {"units": units, "a": self.a.model, "b": self.b.model, "same_weights": self.same_weights}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.b.soft_cap, "roundoff": self.roundoff}
        count = len(np.unique(self._compared.clusters))
        frame.attrs["intervals"] = interval_note(count, "rows" if self._is_independent else "texts")
        return frame

    def _summary(self, *findings: str) -> str:
        parts = [*findings, *["the same weights"] * self.same_weights]
        if self.parts is not None:
            parts.append(f"first changed {self.first_changed or 'nothing'}")
        names = f"{self.a.model} → {self.b.model}"
        return f"{type(self).__name__}({names}: {'; '.join(parts)}; identity gap {self.identity_gap:.1e})"


def _relative_depths(components: Sequence[Component], n_bins: int) -> list[object]:
    """The end of each component's depth bin; embeddings and rows after all blocks have names instead."""
    blocks = list(dict.fromkeys((c.layer, c.repeat) for c in components if c.layer is not None))
    place = {block: (number + 0.5) / len(blocks) for number, block in enumerate(blocks)}
    return [
        (int(place[c.layer, c.repeat] * n_bins) + 1) / n_bins
        if c.layer is not None
        else "embedding"
        if c.module == "embedding" or c.kind == "intervention"
        else "after"
        for c in components
    ]
