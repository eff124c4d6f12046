"""`Comparison` and `TextComparison`: the change of every component's contribution from one model to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Int

from ..components import positions
from ..ensemble.decompose import decompose
from ..ensemble.decomposition import Decomposition
from ..ensemble.intervals import estimate
from .contribution_results import Contributions
from .profile_results import ComponentByPosition, PerPosition, SquaredProfile, row_columns, token_columns
from .two_models import Compared, PerComponent, TwoModels

Values = Float[np.ndarray, "example component option"]
# The compared terms, by table: first those of the cross-entropy, then those of the squared error.
_TERMS = {
    "components": "bias bias_centered diversity diversity_centered net net_centered net_linear",
    "totals": "accuracy cross_entropy entropy net_linear loss bias diversity diversity_logit "
    "loss_centered bias_centered diversity_centered diversity_logit_centered",
}
_NATS = ("cross_entropy", "entropy", "net_linear")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(TwoModels):
    """Change of every component's contribution from model a to model b: Σ changes = the change of the logits.

    Rows are the components of both models; a component that one model lacks (`rounding` in float32, an adapter) is zero
    there. Numbers per component are those of its *score*: the contribution to the gold option minus the mean over the
    others, or without labels to the first option. Scores sum over components and contain no shift that all options
    share.

    Attributes:
        a, b: The contributions of the two models; for options of several tokens the terms of their log-likelihoods.
        parts: `{"own", "statistic", "gain", "unembedding"}`, for options of several tokens also `"expectation"`, each
            `[example, component, option]`; they sum to `change` (see `compare`). None for models of different shape or
            width.
        same_weights, roundoff: True if the weights are equal bit for bit; the unit roundoff of the coarser stream.
        labels: The gold options' indices, or None.
    """

    a: Contributions
    b: Contributions
    labels: Int[np.ndarray, " example"] | None = None

    @property
    def task(self) -> str:
        """The task whose rows both models got, if they came from one."""
        return self.a.task

    @cached_property
    def change(self) -> Values:
        """`[example, component, option]`, b minus a. Raises InputError for models of different shape."""
        return self._change(*self._compared.logits)

    @property
    def own_change(self) -> Values:
        """The change of each component's own output, read out by model a; the first part of `change`.

        Raises InputError where changes are not divided into parts.
        """
        return self._own()

    @property
    def model_change(self) -> Float[np.ndarray, "example option"]:
        """The change of the models' own logits or scores, b minus a, after any soft-cap."""
        return self.b.model_logits - self.a.model_logits

    figures: ClassVar = {"bars": "comparison.change_bars", "depth": "comparison.sums_by_depth"}

    def plot(self, kind: Literal["bars", "depth"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per component: means over rows of both scores, their change and its parts, with 95 % intervals.

        `change`, `own_change`, the read-out's `statistic_change`, `gain_change`, `unembedding_change` and, for options
        of several tokens, `expectation_change` are paired over rows. `size` is the root mean square over rows and
        options of the change minus its mean over options, and `own_size` that of the own change. With labels there are
        also the changes of `bias`, `diversity` and `net` (Theorem 1 among these rows, in squared logits, undivided;
        `_centered` as softmax sees it) and of `net_linear` (in nats), which sum to the change of the cross-entropy
        minus that of the entropy: see `totals`. Raises InputError for models of different shape.
        """
        a, b = self._in_common(*self._compared.logits)
        changes = {"change": self.change} | {f"{name}_change": part for name, part in (self.parts or {}).items()}
        sizes = {"size": self.change} | ({} if self.parts is None else {"own_size": self.parts["own"]})
        frame = self._by_component(
            {"a": self._score(a), "b": self._score(b)},
            {name: self._score(values) for name, values in changes.items()},
            {name: _centered(values) for name, values in sizes.items()},
        )
        for name, (before, after) in self._terms("components").items():
            gauge = "_centered" * name.endswith("_centered")
            name = f"{name.removesuffix(gauge)}_change{gauge}"
            columns = estimate(after - before).columns(name)
            frame[list(columns)] = np.stack(list(columns.values()), 1)
        return self._finish(frame)

    def totals(self) -> pd.DataFrame:
        """One row per total of the two models: its value in a and in b, its change, and the interval over paired rows.

        The totals are the score and, with labels, the accuracy (Bonett and Price's interval), the cross-entropy and its
        two exact parts (`entropy` + `net_linear` = `cross_entropy`), and Theorem 1 (`bias` − `diversity` = `loss`, raw
        and centered) among the rows that both models have.
        """
        scores: Any = [score.sum(1, keepdims=True) for score in self._compared.scores]
        records = []
        for name, (before, after) in {"score": scores, **self._terms("totals")}.items():
            change = estimate((after - before)[:, 0], "difference" if name == "accuracy" else "mean")
            numbers = {"a": before.mean(), "b": after.mean()} | change.columns("change")
            numbers = {column: float(number) for column, number in numbers.items()}
            records.append({"quantity": name, "measured_in": self._unit_of(name)} | numbers)
        return self._finish(pd.DataFrame(records))

    def by_row(self) -> pd.DataFrame:
        """One row per example: both scores, their change, and each model's answer; for models of any shape.

        `answer_a` and `answer_b` are indices of options; with labels also `label`.
        """
        a, b = (score.sum(1) for score in self._compared.scores)
        columns: dict[str, Any] = {"example": np.arange(len(a)), "a": a, "b": b, "change": b - a}
        columns |= {f"answer_{name}": side.logits.argmax(1) for name, side in (("a", self.a), ("b", self.b))}
        return self._finish(pd.DataFrame(columns | ({} if self.labels is None else {"label": self.labels})))

    def _score(self, values: Values) -> PerComponent:
        """Subtract the mean of the other options from the gold option, or from the first."""
        n, _, k = values.shape
        gold = np.zeros(n, dtype=np.int64) if self.labels is None else self.labels
        own = values[np.arange(n), :, gold]
        return own if k == 1 else (own - values.mean(2)) * (k / (k - 1))

    @cached_property
    def _decompositions(self) -> dict[str, tuple[Decomposition, Decomposition]]:
        """Decompose both models' losses among the same members; empty without labels or with a single option."""
        if self.labels is None or self.a.values.shape[2] < 2:
            return {}
        sides: Sequence[Any] = self._in_common(*self._compared.logits) if self.one_shape else (self.a, self.b)
        pairs = {loss: [decompose(u, self.labels, loss=loss) for u in sides] for loss in ("squared", "cross_entropy")}
        return {loss: (pair[0], pair[1]) for loss, pair in pairs.items()}

    def _terms(self, table: Any) -> Mapping[str, tuple[Any, Any]]:
        """The terms of both models' tables, `[example, row]`, by their column names here."""
        if not self._decompositions:
            return {}
        tables = {loss: [d.per_example(table).terms for d in pair] for loss, pair in self._decompositions.items()}
        found = {}
        for name in _TERMS[table].split():
            a, b = tables["cross_entropy" if name in _NATS else "squared"]
            term = "loss" if name == "cross_entropy" else name
            found[name] = (a[term], b[term])
        return found

    @cached_property
    def _compared(self) -> Compared:
        scores = (self._score(self.a.values), self._score(self.b.values))
        return Compared((self.a.values, self.b.values), scores, np.arange(len(self.a.values)))

    def _unit_of(self, name: str) -> str:
        if name.startswith(_NATS):
            return "nats"
        if name == "accuracy":
            return "share"
        unit = "nats" if self.a.score == "log_likelihood" else "logits"
        return f"{unit}²" if name.startswith(("loss", "bias", "diversity", "net")) else unit

    def __repr__(self) -> str:
        n, _, k = self.a.values.shape
        a, b = (score.sum(1) for score in self._compared.scores)
        return self._summary(f"{n} examples × {k} options", f"mean change of the score {(b - a).mean():+.4g}")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TextComparison(TwoModels):
    """Change of every component's contribution to the next token's logit and to its loss, at every token of texts.

    Arrays are `[component, position]`, b minus a. Position t is the prediction of token t + 1; the end of a text has
    none and is NaN. Rows are the components of both models; a component that one model lacks is zero there.

    Attributes:
        a, b: The profiles of the two models, with bias, diversity and net over the whole vocabulary.
        parts: `{"own", "statistic", "gain", "unembedding"}`, each `[position, component]`; they sum to the change of
            the centered logit (see `compare`). None for models of different shape or width.
        same_weights, roundoff: As in `Comparison`.
        nets: For each model `[position, component]`: E_p[u_i] − u_i(t), the component's contribution to the
            cross-entropy of the next token beyond the entropy of the prediction, in nats.
        entropies: For each model `[position]`: the entropy of the prediction, in nats, before any soft-cap.
    """

    a: SquaredProfile
    b: SquaredProfile
    nets: tuple[PerComponent, PerComponent]
    entropies: tuple[PerPosition, PerPosition]

    @property
    def change(self) -> ComponentByPosition:
        """Change of the contribution to the next token's logit; sums over components to that logit's change."""
        return self._change(*self._compared.logits).T

    @property
    def centered_change(self) -> ComponentByPosition:
        """The same minus each component's mean over the vocabulary, which softmax cannot see."""
        return self._change(self.a.centered_targets, self.b.centered_targets).T

    @property
    def loss_change(self) -> ComponentByPosition:
        """Change of the contribution to the cross-entropy, in nats; these plus the entropy's sum to the loss's."""
        return self._change(*self.nets).T

    @property
    def own_change(self) -> ComponentByPosition:
        """The change of each component's own output, read out by model a; a part of `centered_change`.

        Raises InputError where changes are not divided into parts.
        """
        return self._own().T

    @property
    def cross_entropies(self) -> tuple[PerPosition, PerPosition]:
        """Each model's `[position]` entropy plus all nets, which is its loss where no soft-cap applies."""
        a, b = (entropy + net.sum(1) for entropy, net in zip(self.entropies, self.nets, strict=True))
        return a, b

    figures: ClassVar = {
        "map": "comparison.change_map",
        "bars": "comparison.text_change_bars",
        "depth": "comparison.sums_by_depth",
    }

    def plot(self, kind: Literal["map", "bars", "depth"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self, **conditions: Any) -> pd.DataFrame:
        """One row per token and component: both centered logits, their change, and the change of the loss in nats.

        `conditions` select components, as in `Profile.frame`. Raises InputError for more than five million rows, and
        for models of different shape.
        """
        rows = self.components
        kept = positions(rows, **conditions) if conditions else list(range(len(rows)))
        columns = row_columns(self.a, [rows[i] for i in kept])
        a, b = self._in_common(self.a.centered_targets, self.b.centered_targets)
        tables = {"a": a, "b": b, "change": self.centered_change.T, "logit_change": self.change.T}
        tables |= {"loss_change": self.loss_change.T}
        tables |= {f"{name}_change": part for name, part in (self.parts or {}).items()}
        columns |= {name: x[:, kept].astype(np.float64).ravel() for name, x in tables.items()}
        return self._finish(pd.DataFrame(columns))

    def by_token(self) -> pd.DataFrame:
        """One row per token: both losses and their change, split into the entropy's part and the components' by module.

        `most` names the component whose part of the loss changed most. Works for models of any shape, except `most`.
        """
        known, columns = self.a.has_target, token_columns(self.a)
        columns |= {"loss_a": self.a.losses, "loss_b": self.b.losses, "loss_change": self.b.losses - self.a.losses}
        columns["entropy_change"] = np.where(known, self.entropies[1] - self.entropies[0], np.nan)
        columns["net_change"] = self.nets[1].sum(1) - self.nets[0].sum(1)
        if self.one_shape:
            labels = np.array([c.label for c in self.components], dtype=object)
            columns["most"] = np.where(known, labels[np.abs(np.nan_to_num(self.loss_change)).argmax(0)], None)
        return self._finish(pd.DataFrame(columns))

    def by_component(self) -> pd.DataFrame:
        """One row per component: mean changes over tokens, with 95 % intervals over texts (8 or more).

        `size` is the root mean square of the change over tokens, `own_size` that of the own change. Raises InputError
        for models of different shape.
        """
        known = self.a.has_target
        tables = {"change": self.centered_change, "logit_change": self.change, "loss_change": self.loss_change}
        changes = {name: table.T[known] for name, table in tables.items()}
        changes |= {f"{name}_change": part[known] for name, part in (self.parts or {}).items()}
        sizes = {"change": "size", "own_change": "own_size"}
        return self._by_component({}, changes, {to: changes[name] for name, to in sizes.items() if name in changes})

    def totals(self) -> pd.DataFrame:
        """One row per total of the two models: its value in a and in b, and its change, as means over tokens.

        `loss` is the models' own, `entropy` + `net_linear` the loss before any soft-cap.
        """
        known, nets = self.a.has_target, [net.sum(1) for net in self.nets]
        rows = {"loss": (self.a.losses, self.b.losses), "entropy": self.entropies, "net_linear": nets}
        frame = pd.DataFrame({"quantity": list(rows), "measured_in": "nats"})
        for side, name in enumerate("ab"):
            frame[name] = [float(pair[side][known].mean()) for pair in rows.values()]
        frame["change"] = frame["b"] - frame["a"]
        return self._finish(frame)

    @cached_property
    def _compared(self) -> Compared:
        known, logits = self.a.has_target, (self.a.target_logit.T, self.b.target_logit.T)
        return Compared(logits, (self.nets[0][known], self.nets[1][known]), self.a.documents[known])

    def _unit_of(self, name: str) -> str:
        return "nats" if name.startswith(("loss", "entropy", "net_", "score")) else "logits"

    def __repr__(self) -> str:
        change = (self.b.losses - self.a.losses)[self.a.has_target].mean()
        return self._summary(f"{len(self.a.token_ids)} tokens", f"mean change of the loss {change:+.4g} nats")


def _centered(values: Values) -> PerComponent:
    """Subtract the mean over options; options are stacked as further examples."""
    centered = values - values.mean(2, keepdims=True) if values.shape[2] > 1 else values
    return centered.transpose(0, 2, 1).reshape(-1, values.shape[1])
