"""`TextComparison`: the changes of all components at every token of texts, from one model to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import whole_number
from ..components import Component, component_columns, positions
from ..ensemble.intervals import RunningMean, interval_note
from ..ensemble.tables import with_ends
from ..errors import InputError
from ..results import Result
from .profile_base import MOST_ROWS, ComponentByPosition, PerComponent, PerPosition
from .profile_results import SquaredProfile
from .two_models import ROUNDOFFS, common_rows, grouped, in_rows, one_shape, relative_depths

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class TextComparison(Result):
    """What every component adds differently to the next token's logit and to its loss, at every token of texts.

    Arrays are `[component, position]`, b less a. Position t is the prediction of token t + 1; the end of a text has
    none and is NaN. Rows are the components of both models; one that a model lacks is zero there.

    Attributes:
        a, b: The profiles of the two models, with bias, diversity and net over the whole vocabulary.
        nets: Of both `[position, component]`: E_p[u_i] − u_i(t), what each component adds to the cross-entropy of the
            next token beyond the entropy of the prediction, in nats.
        entropies: Of both `[position]`, of the prediction, in nats, before any soft-cap.
        parts: `{"own", "statistic", "gain", "unembedding"}`, each `[position, component]`: see `compare`; they sum to
            the change of the centered logit. None for models of different shape or width.
        same_weights, roundoff: As in `Comparison`.
    """

    a: SquaredProfile
    b: SquaredProfile
    nets: tuple[PerComponent, PerComponent]
    entropies: tuple[PerPosition, PerPosition]
    parts: dict[str, PerComponent] | None
    same_weights: bool
    roundoff: float

    @property
    def one_shape(self) -> bool:
        """As in `Comparison`."""
        return one_shape(self.a.components, self.b.components)

    @property
    def components(self) -> tuple[Component, ...]:
        """Those of both, in stream order. Raises InputError for models of different shape."""
        return common_rows(self.a.components, self.b.components, (self.a.model, self.b.model))

    def _both(self, tables: Sequence[PerComponent]) -> tuple[PerComponent, PerComponent]:
        """A table of either model in the rows of both."""
        rows = self.components
        a, b = (in_rows(rows, side.components, x) for side, x in zip((self.a, self.b), tables, strict=True))
        return a, b

    @cached_property
    def _changes(self) -> dict[str, PerComponent]:
        sides = {
            "logit": [side.target_logit.T for side in (self.a, self.b)],
            "logit_centered": [side.centered_targets.astype(np.float64) for side in (self.a, self.b)],
            "loss": list(self.nets),
        }
        ends = ~self.a.has_target
        changes = {name: b - a for name, (a, b) in ((name, self._both(pair)) for name, pair in sides.items())}
        for values in changes.values():
            values[ends] = np.nan
        return changes

    @property
    def change(self) -> ComponentByPosition:
        """Of the next token's logit: sums over components to the change of that logit."""
        return self._changes["logit"].T

    @property
    def centered_change(self) -> ComponentByPosition:
        """The same less each component's mean over the vocabulary, which softmax cannot see."""
        return self._changes["logit_centered"].T

    @property
    def loss_change(self) -> ComponentByPosition:
        """Of what is added to the cross-entropy, in nats: their sum and the entropy's change are the loss's change."""
        return self._changes["loss"].T

    @property
    def own_change(self) -> ComponentByPosition:
        """What each component itself writes differently, as model a reads it out; a part of `centered_change`.

        Raises InputError where changes are not divided into parts.
        """
        if self.parts is None:
            raise InputError(
                "these changes have no parts: models of different shape have no component in common, and a model reads "
                "no stream of another width; use by_module() or by_depth()."
            )
        return self.parts["own"].T

    @property
    def cross_entropies(self) -> tuple[PerPosition, PerPosition]:
        """Of both models, `[position]`: the entropy and all nets; the loss where nothing caps the logits."""
        a, b = (entropy + net.sum(1) for entropy, net in zip(self.entropies, self.nets, strict=True))
        return a, b

    @property
    def identity_gap(self) -> float:
        """The larger of the two models': how far Σ u_i is from the logits, relative to max Σ|u_i|."""
        return max(self.a.identity_gap, self.b.identity_gap)

    @property
    def absolute_gap(self) -> float:
        """max |Σ changes − change of the logit|, in logits, before any soft-cap: at most the two models' gaps."""
        return self.a.absolute_gap + self.b.absolute_gap

    @property
    def rounding(self) -> PerPosition:
        """What rounding alone may change in a component, `[position]`: 8 unit roundoffs × Σ_i|u_i|."""
        sizes = [np.abs(side.target_logit).sum(0) for side in (self.a, self.b)]
        return ROUNDOFFS * self.roundoff * np.maximum(*sizes)

    @property
    def first_changed(self) -> Component | None:
        """The first component, in stream order, whose own change is more than rounding at any token; None without."""
        known = self.a.has_target
        changed = (np.abs(self.own_change[:, known]) > self.rounding[known]).any(1)
        return next((c for c, is_changed in zip(self.components, changed, strict=True) if is_changed), None)

    def frame(self, **conditions: Any) -> pd.DataFrame:
        """One row per token and component: the two centered logits, their change, and that of the loss in nats.

        `conditions` choose components, as in `Profile.frame`. Raises InputError where it would have more than five
        million rows, and for models of different shape.
        """
        import pandas as pd

        rows = self.components
        kept = positions(rows, **conditions) if conditions else list(range(len(rows)))
        count = len(self.a.token_ids)
        if count * len(kept) > MOST_ROWS:
            choose = "choose components, as in frame(kind='mlp'), or take by_component()"
            raise InputError(f"{count} tokens × {len(kept)} components are {count * len(kept):,} rows: {choose}.")
        columns: dict[str, Any] = {"position": np.arange(count), "document": self.a.documents}
        columns |= {name: np.array(getattr(self.a, f"{name}s"), dtype=object) for name in ("token", "next_token")}
        columns = {name: np.repeat(column, len(kept)) for name, column in columns.items()}
        columns |= component_columns([rows[i] for i in kept], np.tile(np.arange(len(kept)), count))
        a, b = self._both([side.centered_targets for side in (self.a, self.b)])
        tables = {"a": a, "b": b, "change": self.centered_change.T, "logit_change": self.change.T}
        tables |= {"loss_change": self.loss_change.T}
        tables |= {f"{name}_change": part for name, part in (self.parts or {}).items()}
        frame = pd.DataFrame(columns | {name: x[:, kept].astype(np.float64).ravel() for name, x in tables.items()})
        return self._finish(frame, list(tables))

    def by_token(self) -> pd.DataFrame:
        """One row per token: both losses and their change, the entropy's part of it, and the components' by module.

        `most` names the component whose part of the loss changed most. For models of any shape, but `most`.
        """
        import pandas as pd

        p, known = self.a, self.a.has_target
        columns: dict[str, Any] = {"position": np.arange(len(p.token_ids)), "document": p.documents}
        columns |= {"token": p.tokens, "next_token": p.next_tokens}
        columns |= {"loss_a": self.a.losses, "loss_b": self.b.losses, "loss_change": self.b.losses - self.a.losses}
        columns["entropy_change"] = np.where(known, self.entropies[1] - self.entropies[0], np.nan)
        columns["net_change"] = self.nets[1].sum(1) - self.nets[0].sum(1)
        if self.one_shape:
            labels = np.array([c.label for c in self.components], dtype=object)
            largest = np.abs(np.nan_to_num(self.loss_change)).argmax(0)
            columns["most"] = np.where(known, labels[largest], None)
        return self._finish(pd.DataFrame(columns), [n for n in columns if n.startswith(("loss", "entropy", "net_"))])

    def by_component(self) -> pd.DataFrame:
        """One row per component: means over tokens of the changes, with 95 % intervals over texts (8 or more).

        `size` is the root mean square of the change over tokens and `own_size` that of the own change: what changes in
        both directions is not lost in them. Raises InputError for models of different shape.
        """
        import pandas as pd

        known, documents = self.a.has_target, self.a.documents
        tables = {"change": self.centered_change, "logit_change": self.change, "loss_change": self.loss_change}
        tables |= {f"{name}_change": part.T for name, part in (self.parts or {}).items()}
        columns: dict[str, Any] = component_columns(self.components)
        for name, values in tables.items():
            mean = RunningMean()
            for document in np.unique(documents[known]):
                inside = known & (documents == document)
                mean.add(values[:, inside].sum(1), int(inside.sum()))
            columns |= with_ends(name, mean.mean, *mean.interval())
        columns["size"] = np.sqrt((self.centered_change[:, known] ** 2).mean(1))
        if self.parts is not None:
            columns["own_size"] = np.sqrt((self.own_change[:, known] ** 2).mean(1))
        frame = self._finish(pd.DataFrame(columns), [*columns][len(component_columns(())) :])
        if self.parts is not None:
            first = self.first_changed
            frame.attrs["first_changed"] = None if first is None else first.label
        return frame

    def totals(self) -> pd.DataFrame:
        """One row per number of the two models: in a, in b, the change, as means over tokens.

        `loss` is the models' own, `entropy` + `net_linear` the loss before any soft-cap.
        """
        import pandas as pd

        known = self.a.has_target
        rows = {"loss": (self.a.losses, self.b.losses), "entropy": self.entropies}
        rows["net_linear"] = (self.nets[0].sum(1), self.nets[1].sum(1))
        pairs = {name: [float(x[known].mean()) for x in pair] for name, pair in rows.items()}
        frame = pd.DataFrame({"quantity": list(pairs), "measured_in": "nats"})
        frame["a"], frame["b"] = zip(*pairs.values(), strict=True)
        frame["change"] = frame["b"] - frame["a"]
        return self._finish(frame, [])

    def by_module(self) -> pd.DataFrame:
        """One row per module: what it adds to the loss, in nats, as means over tokens; for models of any shape.

        Shares need eight texts; see `Comparison.by_module`.
        """
        return self._grouped("module", [[c.module for c in side.components] for side in (self.a, self.b)])

    def by_depth(self, n_bins: int = 4) -> pd.DataFrame:
        """The same along relative depth, for models of any shape; see `Comparison.by_depth`."""
        n_bins = whole_number("n_bins", n_bins, 1, 1000)
        return self._grouped("depth", [relative_depths(side.components, n_bins) for side in (self.a, self.b)])

    def _grouped(self, by: str, groups: Sequence[Sequence[object]]) -> pd.DataFrame:
        known = self.a.has_target
        frame = grouped(by, groups, (self.nets[0][known], self.nets[1][known]), self.a.documents[known])
        frame = self._finish(frame, ["a", "b", "change"], "nats")
        frame.attrs["units"] |= {"share_a": "share", "share_b": "share"}
        return frame

    def _finish(self, frame: pd.DataFrame, names: Sequence[str], unit: str = "logits") -> pd.DataFrame:
        nats = ("loss", "entropy", "net_")
        frame.attrs["units"] = {str(n): "nats" if str(n).startswith(nats) else unit for n in names}
        frame.attrs |= {"a": self.a.model, "b": self.b.model, "same_weights": self.same_weights}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.b.soft_cap, "roundoff": self.roundoff}
        texts = len(np.unique(self.a.documents))
        frame.attrs["intervals"] = interval_note(texts, "texts")
        return frame

    def __repr__(self) -> str:
        known = self.a.has_target
        change = (self.b.losses - self.a.losses)[known].mean()
        parts = [f"{len(self.a.token_ids)} tokens", f"mean change of the loss {change:+.4g} nats"]
        if self.same_weights:
            parts.append("the same weights")
        if self.parts is not None:
            parts.append(f"first changed {self.first_changed or 'nothing'}")
        names = f"{self.a.model} → {self.b.model}"
        return f"TextComparison({names}: {'; '.join(parts)}; identity gap {self.identity_gap:.1e})"
