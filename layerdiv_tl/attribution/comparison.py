"""`Comparison`: the changes of all components' contributions from one model to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from .._checks import whole_number
from ..components import Component, component_columns
from ..ensemble.decomposition import Decomposition, decompose
from ..ensemble.intervals import interval_note, mean_interval, paired_interval
from ..ensemble.tables import with_ends
from ..errors import InputError
from ..results import Result
from .contribution_results import Contributions
from .two_models import ROUNDOFFS, common_rows, grouped, in_rows, one_shape, relative_depths

if TYPE_CHECKING:
    import pandas as pd

Values = Float[np.ndarray, "example component option"]
# What is compared of two decompositions, by table: {name: (loss, term)}.
_HALVES = ("", "_centered")
_NET = {"net_linear": ("cross_entropy", "net_linear")}
_TERMS = {
    "components": {t + half: ("squared", t + half) for t in ("bias", "diversity", "net") for half in _HALVES} | _NET,
    "totals": {"accuracy": ("squared", "accuracy"), "cross_entropy": ("cross_entropy", "loss")}
    | {"entropy": ("cross_entropy", "entropy")}
    | _NET
    | {t + half: ("squared", t + half) for half in _HALVES for t in ("loss", "bias", "diversity", "diversity_logit")},
}


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """What every component contributes differently in model b than in model a: Σ changes = the change of the logits.

    Rows are the components of both models; one that a model lacks (`rounding` in float32, an adapter's) is zero there.
    Numbers per component are those of its *score*: the contribution to the gold option less the mean of those to the
    others; where there are no labels, to the first option. It sums over components, and no shift that all options share
    is in it.

    Attributes:
        a, b: The contributions of the two models; of options of several tokens the parts of their log-likelihoods.
        parts: `{"own", "statistic", "gain", "unembedding"}`, of options of several tokens also `"expectation"`, each
            `[example, component, option]`: see `compare`; they sum to `change`. None for models of different shape or
            width.
        labels: The gold options' indices, or None.
        same_weights: Whether the two have the same configuration, weights and buffers, bit for bit.
        roundoff: The unit roundoff of the coarser of the two streams, 2⁻⁸ for bfloat16, 2⁻²⁴ for float32.
    """

    a: Contributions
    b: Contributions
    parts: dict[str, Values] | None
    labels: Int[np.ndarray, " example"] | None
    same_weights: bool
    roundoff: float

    @cached_property
    def _stacked(self) -> tuple[tuple[Component, ...], tuple[Values, Values]]:
        names = common_rows(self.a.components, self.b.components, (self.a.model, self.b.model))
        sides = [in_rows(names, side.components, side.values) for side in (self.a, self.b)]
        return names, (sides[0], sides[1])

    @property
    def one_shape(self) -> bool:
        """Whether the models have their components in common; others are compared by module and relative depth."""
        return one_shape(self.a.components, self.b.components)

    @property
    def components(self) -> tuple[Component, ...]:
        """Those of both, in stream order. Raises InputError for models of different shape."""
        return self._stacked[0]

    @cached_property
    def change(self) -> Values:
        """`[example, component, option]`, b less a. Raises InputError for models of different shape."""
        a, b = self._stacked[1]
        return b - a

    @property
    def own_change(self) -> Values:
        """What each component itself writes differently, as model a reads it out; the first part of `change`.

        Raises InputError where changes are not divided into parts.
        """
        if self.parts is None:
            raise InputError(
                "these changes have no parts: the first model cannot read what one of another shape or width writes; "
                "use by_module() or by_depth()."
            )
        return self.parts["own"]

    @property
    def model_change(self) -> Float[np.ndarray, "example option"]:
        """What the models themselves answer differently, b less a, after any soft-cap."""
        return self.b.model_logits - self.a.model_logits

    @property
    def identity_gap(self) -> float:
        """The larger of the two models': how far Σ u_i is from the logits, relative to max Σ|u_i|."""
        return max(self.a.identity_gap, self.b.identity_gap)

    @property
    def absolute_gap(self) -> float:
        """max |Σ changes − change of the logits|, in logits, before any soft-cap: at most the two models' gaps."""
        return self.a.absolute_gap + self.b.absolute_gap

    @property
    def rounding(self) -> Float[np.ndarray, " example"]:
        """What rounding alone may change in a component: 8 unit roundoffs × Σ_i|u_i|, the largest over options.

        A copy in half precision has rounded weights, and each of its sublayers reads a rounded stream, so it changes
        all components a little, not its row `rounding` alone. A yardstick, not a bound: bfloat16 copies of trained and
        of random models changed at most 4 unit roundoffs × Σ_i|u_i| in any component, row and option.
        """
        a, b = self.a.values, self.b.values
        return ROUNDOFFS * self.roundoff * np.maximum(np.abs(a).sum(1).max(1), np.abs(b).sum(1).max(1))

    @property
    def first_changed(self) -> Component | None:
        """The first component, in stream order, whose own change is more than rounding in any row; None without.

        What stands before it reads the same text in the same way; a component after it may have changed only because
        its input did.
        """
        own = np.abs(self.own_change).max(2)
        changed = (own > self.rounding[:, None]).any(0)
        return next((c for c, is_changed in zip(self.components, changed, strict=True) if is_changed), None)

    def frame(self) -> pd.DataFrame:
        """One row per component: means over rows of both scores, of their change and its parts, with 95 % intervals.

        `change`, `own_change`, the read-out's `statistic_change`, `gain_change`, `unembedding_change` and, of options
        of several tokens, `expectation_change` are paired over rows. `size` is the root mean square of the change over
        rows and options, less its mean over options, and `own_size` that of the own change: what changes in both
        directions is not lost in them. With labels also the
        changes of `bias`, `diversity` and `net` (Theorem 1 among the rows here, in squared logits, undivided;
        `_centered` as softmax sees it), and of `net_linear` (in nats), whose sum is the change of the cross-entropy
        less that of the entropy: see `totals`. Raises InputError for models of different shape.
        """
        import pandas as pd

        a, b = self._stacked[1]
        scores = {"a": self._score(a), "b": self._score(b), "change": self._score(self.change)}
        scores |= {f"{name}_change": self._score(part) for name, part in (self.parts or {}).items()}
        columns: dict[str, Any] = component_columns(self.components)
        for name, values in scores.items():
            ends = mean_interval(values) if name.endswith("change") else None
            columns |= {name: values.mean(0)} if ends is None else with_ends(name, values.mean(0), *ends)
        columns["size"] = _size(self.change)
        if self.parts is not None:
            columns["own_size"] = _size(self.parts["own"])
        for name, (before, after) in self._terms("components").items():
            half = "_centered" * name.endswith("_centered")
            name = f"{name.removesuffix(half)}_change{half}"
            columns |= with_ends(name, (after - before).mean(0), *mean_interval(after - before))
        frame = pd.DataFrame(columns)
        if self.parts is not None:
            first = self.first_changed
            frame.attrs["first_changed"] = None if first is None else first.label
        return self._finish(frame)

    def totals(self) -> pd.DataFrame:
        """One row per number of the two models together: in a, in b, the change and its interval over paired rows.

        The score, with labels the accuracy (Bonett and Price's interval), the cross-entropy and its two exact parts
        (`entropy` + `net_linear` = `cross_entropy`), and Theorem 1 (`bias` − `diversity` = `loss`, raw and centered),
        among the rows that both models have.
        """
        import pandas as pd

        pair = (self._score(self.a.values).sum(1), self._score(self.b.values).sum(1))
        rows: dict[str, tuple[Any, Any]] = {"score": (pair[0][:, None], pair[1][:, None]), **self._terms("totals")}
        columns: dict[str, list[Any]] = {name: [] for name in ("a", "b", "change", "change_low", "change_high")}
        for name, (before, after) in rows.items():
            difference = (after - before)[:, 0]
            low, high = (paired_interval if name == "accuracy" else mean_interval)(difference)
            numbers = (before.mean(), after.mean(), difference.mean(), low, high)
            for column, number in zip(columns.values(), numbers, strict=True):
                column.append(float(number))
        units = [self._unit_of(name) for name in rows]
        return self._finish(pd.DataFrame({"quantity": list(rows), "measured_in": units} | columns))

    def by_row(self) -> pd.DataFrame:
        """One row per example: both scores, their change, and the option that each model gives; for any shape.

        `answer_a` and `answer_b` are indices of options; with labels also `label`.
        """
        import pandas as pd

        scores = [self._score(side.values).sum(1) for side in (self.a, self.b)]
        columns: dict[str, Any] = {"example": np.arange(len(scores[0])), "a": scores[0], "b": scores[1]}
        columns["change"] = scores[1] - scores[0]
        columns |= {f"answer_{name}": side.logits.argmax(1) for name, side in (("a", self.a), ("b", self.b))}
        if self.labels is not None:
            columns["label"] = self.labels
        frame = self._finish(pd.DataFrame(columns))
        frame.attrs["units"] = {name: self._unit_of(name) for name in ("a", "b", "change")}
        return frame

    def by_module(self) -> pd.DataFrame:
        """One row per module: the sums of its components' scores, for models of any shape; they add up to `totals`.

        `share_a` and `share_b` are parts of a model's own total, NaN where the interval of that holds 0; of terms of
        both signs they may lie outside 0 to 1.
        """
        return self._grouped("module", [[c.module for c in side.components] for side in (self.a, self.b)])

    def by_depth(self, n_bins: int = 4) -> pd.DataFrame:
        """The same along relative depth, for models of any shape: blocks cut into `n_bins` equal parts.

        Block l of n (counted as they run, each repeat once) stands at (l + ½) / n; `depth` is the end of a part.
        Embeddings stand at 0, what the read-out and rounding add at the end, as `after`.
        """
        n_bins = whole_number("n_bins", n_bins, 1, 1000)
        return self._grouped("depth", [relative_depths(side.components, n_bins) for side in (self.a, self.b)])

    def _grouped(self, by: str, groups: Sequence[Sequence[object]]) -> pd.DataFrame:
        return self._finish(grouped(by, groups, (self._score(self.a.values), self._score(self.b.values))))

    def _score(self, values: Values) -> Float[np.ndarray, "example component"]:
        """The gold option, or the first, less the mean of the others."""
        n, _, k = values.shape
        gold = np.zeros(n, dtype=np.int64) if self.labels is None else self.labels
        own = values[np.arange(n), :, gold]
        return own if k == 1 else (own - values.mean(2)) * (k / (k - 1))

    @cached_property
    def _decompositions(self) -> dict[str, tuple[Decomposition, Decomposition]]:
        """Both models' by loss, among the same members; none without labels, and of a single option."""
        if self.labels is None or self.a.values.shape[2] < 2:
            return {}
        sides: Sequence[Any] = (self.a, self.b)
        if self.one_shape:
            sides = self._stacked[1]
        pairs = {loss: [decompose(u, self.labels, loss=loss) for u in sides] for loss in ("squared", "cross_entropy")}
        return {loss: (pair[0], pair[1]) for loss, pair in pairs.items()}

    def _terms(self, table: Any) -> Mapping[str, tuple[Any, Any]]:
        """Terms of both models' tables, `[example, row]`, in the names of frames here."""
        if not self._decompositions:
            return {}
        names = _TERMS[table]
        terms = {
            loss: [d.per_example(table).terms for d in self._decompositions[loss]] for loss in dict(names.values())
        }
        return {name: (terms[loss][0][term], terms[loss][1][term]) for name, (loss, term) in names.items()}

    def _unit_of(self, name: str) -> str:
        if name.startswith(("net_linear", "cross_entropy", "entropy")):
            return "nats"
        if name.startswith(("accuracy", "share")):
            return "share"
        unit = "nats" if self.a.score == "log_likelihood" else "logits"
        return f"{unit}²" if name.startswith(("loss", "bias", "diversity", "net")) else unit

    def _finish(self, frame: pd.DataFrame) -> pd.DataFrame:
        numbers = frame.drop(columns=["layer", "index", "repeat", "members_a", "members_b"], errors="ignore")
        names = [] if "quantity" in frame else list(numbers.select_dtypes("number"))
        frame.attrs["units"] = {name: self._unit_of(str(name)) for name in names}
        frame.attrs |= {"a": self.a.model, "b": self.b.model, "same_weights": self.same_weights}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.b.soft_cap, "roundoff": self.roundoff}
        frame.attrs["intervals"] = interval_note(len(self.a.values))
        return frame

    def __repr__(self) -> str:
        n, _, k = self.a.values.shape
        change = self._score(self.b.values).sum(1) - self._score(self.a.values).sum(1)
        parts = [f"{n} examples × {k} options", f"mean change of the score {change.mean():+.4g}"]
        if self.same_weights:
            parts.append("the same weights")
        if self.parts is not None:
            parts.append(f"first changed {self.first_changed or 'nothing'}")
        return f"Comparison({self.a.model} → {self.b.model}: {'; '.join(parts)}; identity gap {self.identity_gap:.1e})"


def _size(values: Values) -> Float[np.ndarray, " component"]:
    centered = values - values.mean(2, keepdims=True) if values.shape[2] > 1 else values
    return np.sqrt((centered**2).mean((0, 2)))
