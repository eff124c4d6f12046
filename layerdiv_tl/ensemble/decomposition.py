"""Bias and diversity of an ensemble for every loss: `decompose` and its result.

The formulas are in `losses`, `theorems` and `grouping`; this module adds names, averages, intervals and units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from .._checks import choice, flag
from ..components import COLUMNS, Component
from ..errors import InputError
from ..results import NumberProperty, Plot, Result
from . import grouping
from .auc import member_auc
from .figures import FIGURES
from .grouping import By, PerExample, RowTerms, estimates, with_shares
from .intervals import ENDS, estimates_frame
from .losses import LOSSES, Gauge, Loss, Members, Target, Terms, hits, in_gauge, measure, relative_gap
from .theorems import theorem_2, theorem_3

NormAt = Literal["frozen", "recomputed"]
Table = Literal["totals", "components", "modules", "depth", "depth_recomputed"]
# Columns of the short table of components.
_LABELED = tuple(x + end for x in ("accuracy", "auc", "logit_difference") for end in ENDS)
_SHORT = ("component", "bias", "diversity", "net", "net_linear", *_LABELED, "constant_share", *COLUMNS[1:])


def _number(term: str, doc: str) -> NumberProperty:
    """The mean over examples of a term, or of a quantity that only some losses have."""
    return NumberProperty(lambda decomposition: decomposition._mean(term), doc=doc)


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(Result):
    """`loss = bias − diversity` of one ensemble, per example, as means and as tables; made by `decompose`.

    Attributes:
        values, components: The members, `[example, member, option]` in raw logits, and their names.
        target, gold: `[example, option]`, and the gold option's index `[example]`, None for a dense target.
        loss_name, gauge: One of `losses.LOSSES`, and the gauge of its terms and of pairs (for other losses than the
            squared error, of pairs alone).
        temperature: The factor on logits before a softmax; None is the loss's default.
        junctions, junction_scale, partial_junctions, identity_gap, soft_cap, model, task, prompt_ends, score:
            As in `Contributions`; None or empty for a plain array, in which every member closes a junction.
        options: The options' names, where they are those of all examples.

    Asking for a number or a table that a loss does not have raises InputError.

    >>> import layerdiv_tl as ld
    >>> u = np.array([[[0.0, 0.0], [3.0, 1.0], [1.0, 3.0]]])
    >>> d = ld.decompose(u, labels=[0], components=["embed", "L0.mlp", "L1.mlp"], gauge="raw")
    >>> d.nested(groups=["a", "b", "b"])[["group", "members", "within", "between"]].values.tolist()
    [['a', 1, 0.0, 4.0], ['b', 2, 4.0, 4.0]]
    >>> d.bounds()[["module", "bias", "diversity"]].round(6).values.tolist()[1:], round(d.loss, 6)
    ([['embedding', 0.5, 1.777778], ['mlp', 3.5, 1.444444]], 0.944444)
    """

    values: Float[np.ndarray, "example member option"]
    components: tuple[Component, ...]
    target: Float[np.ndarray, "example option"]
    gold: Int[np.ndarray, " example"] | None
    loss_name: str
    gauge: Gauge
    temperature: float | None
    junctions: tuple[Component, ...] | None
    junction_scale: Float[np.ndarray, "example junction"] | None
    partial_junctions: Bool[np.ndarray, " junction"] | None
    identity_gap: float | None
    soft_cap: float | None
    model: str = ""
    task: str = ""
    prompt_ends: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    score: str = "logits"

    loss = _number("losses", "The ensemble's loss, mean over examples.")
    bias = _number("biases", "Mean loss of the members, each on its own.")
    diversity = _number("diversities", "Mean distance of the members from the ensemble, also called *ambiguity*.")
    zero_bias = _number(
        "zero_biases",
        "The bias of the zero baseline (u = 0), to compare all biases with; after a softmax it is uniform.",
    )
    diversity_logit = _number(
        "diversity_logit",
        "|L|² × diversity in logits²: comparable between decompositions with different numbers of members.",
    )
    coherence = _number(
        "coherence",
        "|Σu|² / Σ|u|², mean over examples with a nonzero member: 1 if orthogonal, |L| if members are identical.",
    )
    entropy = _number("entropy", "H(p) in nats: the cross-entropy if p were the target's distribution.")
    mismatch = _number("mismatch", "loss − (bias − diversity) of Eq. 14, in mixed units: what the equation fails by.")

    @property
    def names(self) -> tuple[str, ...]:
        """The options' names."""
        return self.options or tuple(f"option {k}" for k in range(self.values.shape[2]))

    @property
    def loss_function(self) -> Loss:
        """The loss object, which holds the formulas."""
        return LOSSES[self.loss_name]

    @property
    def used_temperature(self) -> float:
        """The temperature in use, also where it is the default."""
        default = self.loss_function.default_temperature(self.values.shape[1])
        return default if self.temperature is None else self.temperature

    @cached_property
    def _in_gauge(self) -> tuple[Members, Target]:
        return in_gauge(self.values, self.target, self.gauge)

    @cached_property
    def terms(self) -> Terms:
        """Loss, biases and diversities per example, and as `extras` the quantities that only this loss has."""
        return measure(self.loss_function, self.values, self.target, self.gauge, self.used_temperature)

    @property
    def losses(self) -> Float[np.ndarray, " example"]:
        """The ensemble's loss, `[example]`."""
        return self.terms.losses

    @property
    def biases(self) -> Float[np.ndarray, "example member"]:
        """The members' own losses, `[example, member]`, undivided by |L|."""
        return self.terms.biases

    @property
    def diversities(self) -> Float[np.ndarray, "example member"]:
        """The members' distances from the ensemble, `[example, member]`, undivided by |L|."""
        return self.terms.diversities

    @property
    def net_linear(self) -> Float[np.ndarray, "example member"]:
        """Each member's contribution to the cross-entropy beyond H(p), `[example, member]` in nats; linear in u_i."""
        self.loss_function.require("net_linear")
        return self.terms.extras["net_linear"]

    @property
    def zero_net(self) -> float:
        """bias − diversity of the zero baseline, to compare nets with. For the cross-entropy it is H(p)."""
        return self.zero_bias - self._mean("zero_diversities")

    @property
    def gap(self) -> float | None:
        """|loss − (bias − diversity)| relative to the largest of the three; None where units differ ("paper")."""
        return relative_gap(self.loss, self.bias, self.diversity) if self.loss_function.is_exact else None

    @cached_property
    def correct(self) -> Float[np.ndarray, "example member"] | None:
        """Whether each member alone prefers the gold option (1/n if tied), `[example, member]`; None without labels."""
        return None if self.gold is None else hits(self.values, self.gold[:, None])

    @cached_property
    def differences(self) -> Float[np.ndarray, "example member"] | None:
        """A member's logit of the gold option minus the others' mean, `[example, member]`; None without labels."""
        if self.gold is None:
            return None
        count = self.values.shape[2]
        weights = np.where(np.eye(count, dtype=bool)[self.gold], 1.0, -1.0 / (count - 1))
        return np.einsum("emk,ek->em", self.values, weights)

    @cached_property
    def ensemble_correct(self) -> Float[np.ndarray, " example"] | None:
        """Whether the ensemble prefers the gold option (see `hits`), `[example]`; None without labels."""
        return None if self.gold is None else hits(self.values.sum(1), self.gold)

    @property
    def accuracy(self) -> float:
        """The share of examples where the ensemble prefers the gold option. Raises InputError without labels."""
        if self.ensemble_correct is None:
            raise InputError("this decomposition has no gold option for each example, so no accuracy: give labels.")
        return float(self.ensemble_correct.mean())

    @property
    def chance(self) -> float | None:
        """The accuracy of guessing: the share of the most frequent gold option; None without labels.

        Where the gold option is the same in every example, its place tells nothing to guess by, and it is 1/K.
        """
        if self.gold is None:
            return None
        counts = np.bincount(self.gold, minlength=self.values.shape[2])
        return float(counts.max() / counts.sum()) if np.count_nonzero(counts) > 1 else 1 / len(counts)

    figures: ClassVar = FIGURES

    def _plots(self) -> Mapping[str, Plot]:
        without = {"strip"} if self.gold is None else set()
        return {kind: plot for kind, plot in self.figures.items() if kind not in without}

    def frame(self) -> pd.DataFrame:
        """One row: the totals in this gauge, with intervals; with labels `accuracy` and `chance`, that of guessing."""
        terms = {name: x[:, 0] for name, x in self._totals().items()} | {"zero_bias": self.terms.zero_biases}
        row: dict[str, Any] = {"gauge": self.gauge} if self.loss_function.has_gauges else {}
        row |= {"members": len(self.components), **estimates(terms)}
        if self.chance is not None:
            row["chance"] = self.chance
        if self.gap is not None:
            row["gap"] = self.gap
        if "temperature" in self.loss_function.offers:
            row["temperature"] = self.used_temperature
        return self._finish(estimates_frame([row]))

    def by_component(self, full: bool = False) -> pd.DataFrame:
        """One row per member: bias, diversity, net and other terms of the loss, not divided by |L|.

        Args:
            full: Include the intervals of all terms (otherwise only those below), and `_share`, the member's share of
                the total.

        With labels: `accuracy` is how often the member alone prefers the gold option, its constant part included;
        `auc`, without it, how well it tells examples with different labels apart (0.5: not at all; see `member_auc`;
        there is none where all labels are the same); `logit_difference` is its logit of the gold option minus the mean
        of the others. These three do not depend on the gauge.

        For the squared error, `constant_share` is the part of the member's centered diversity that its mean over
        examples explains. With x = ū − u_i, centered over the options, `[example, option]`:
        constant_share = mean_k (mean_e x)² / mean_ek x², in [0, 1]. 1: its distance from the ensemble is the same in
        every example; 0: it has no constant part. Of n examples, a member without a constant part has about 1/n. NaN
        for a member without diversity.
        """
        frame = with_shares(self.per_example("components"))
        if self.gold is not None and (self.gold != self.gold[0]).any():
            frame = frame.assign(**member_auc(self.values, self.gold).columns("auc"))
        if self.loss_function.has_gauges:
            frame["constant_share"] = grouping.constant_shares(self.values)
        return self._finish(frame if flag("full", full) else frame[[x for x in _SHORT if x in frame]].copy())

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9-10): its additive part (n_g/|L|) · mean over its members.

        The columns add up to the ensemble's; `member_share` is n_g/|L|; `_mean` is undivided.
        """
        frame = with_shares(self.per_example("modules"))
        for term in ("bias", "diversity"):
            for end in ENDS:
                frame[f"{term}_mean{end}"] = frame[term + end] / frame["member_share"]
        return self._finish(frame)

    def by_depth(self, norm: NormAt = "frozen") -> pd.DataFrame:
        """One row per junction: the prefix ensemble of all components up to it (Fig. 5 and 7).

        Args:
            norm: "frozen" (as the paper decodes): every prefix uses the whole stream's norm statistic; "recomputed":
                its own, as if the model ended there.

        The constant belongs to every prefix, `rounding` only to the last. `partial` rows are sums that the stream never
        holds: half-way through a parallel block, and an embedding without its positions. Raises InputError for groups,
        which have no place along depth, and for "recomputed" with a plain array.
        """
        table = self._prefixes(choice("norm", norm, get_args(NormAt)) == "recomputed")
        return self._finish(table.frame(), norm=norm)

    def pairwise(self, by: By = "cosine") -> pd.DataFrame:
        """One row per pair of members: the distance between their predictions, to find duplicates.

        `distance` is the mean squared distance in logits² (diversity is half its mean over all |L|² pairs). `cosine`
        is pooled over examples and options. `disagreement` is how often the preferred options differ.
        `attrs["order"]` is an order in which similar members are neighbors, from average-linkage clustering by `by`.
        Raises InputError for one member, and for too many.
        """
        choice("by", by, get_args(By))
        frame = grouping.pairwise_frame(self._in_gauge[0], self.values.argmax(2), self.components, by)
        return self._finish(frame, units=frame.attrs["units"])

    def nested(self, groups: Sequence[object] | None = None) -> pd.DataFrame:
        """One row per group: diversity within groups of members, and between groups.

        Args:
            groups: A name for each member, by default its sublayer: an attention is then the **sum** of its heads.

        n_g u_h is what leaf h alone predicts for its group's a_g = Σ_h u_h. `bias` is the leaves' mean error, `within`
        their distance from a_g, and `between` the distance of a_g from the mean over groups. The coarser ensemble's
        loss is the mean over rows of (bias − within − between); `attrs` holds these totals and the gap. Raises
        InputError where no group has two members, for losses without a nested decomposition, and for a `temperature`.
        """
        loss = self.loss_function
        loss.require("nested")
        if self.temperature is not None:
            raise InputError("a nested decomposition is of the model's own distribution: give no temperature.")
        return self._finish(grouping.nested_frame(loss, self.values, self.target, self.gauge, self.components, groups))

    def tradeoff(self) -> pd.DataFrame:
        """Theorem 3: one row per summand with its part of bias and diversity, in logits²; the columns add up.

        Rows marked Ω appear in both: changing them changes neither loss nor accuracy. In the centered gauge only v̄ is
        shared. Raises InputError for other losses.
        """
        self.loss_function.require("tradeoff")
        return self._finish(theorem_3(*self._in_gauge))

    def bounds(self) -> pd.DataFrame:
        """Theorem 2, exact: the range of diversity given bias and loss, for the ensemble and each module.

        Undivided means; `lowest` and `highest` as in `theorem_2`. A module's diversity vanishes with its bias only if
        MSE vanishes too, unlike in the printed theorem. Raises InputError for losses other than the squared error.
        """
        self.loss_function.require("bounds")
        return self._finish(theorem_2(self.terms, self.components), loss=self.loss)

    def per_example(self, table: Table) -> PerExample:
        """Return the numbers of a frame before averaging: every term, `[example, row]`."""
        if choice("table", table, get_args(Table)).startswith("depth"):
            return self._prefixes(table == "depth_recomputed")
        if table == "totals":
            return PerExample({"members": [len(self.components)]}, self._totals())
        if table == "components":
            return grouping.component_table(self.components, self._columns, self.correct)
        return grouping.module_table(self.loss_function, self.components, self._columns, self._in_gauge[0])

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        """Return every term by its column, `[example]` or `[example, member]`, with members' logit differences."""
        terms = self.terms
        columns = {"loss": terms.losses, "bias": terms.biases, "diversity": terms.diversities}
        if self.loss_function.is_exact:
            columns["net"] = terms.biases - terms.diversities
        columns |= terms.extras
        return columns if self.differences is None else columns | {"logit_difference": self.differences}

    def _totals(self) -> RowTerms:
        """Return the ensemble's terms, `[example, 1]`; its net is its loss."""
        columns = {name: x for name, x in self._columns.items() if name != "net"}
        sums = grouping.sum_members(self.loss_function, columns, np.ones((len(self.components), 1)))
        terms = {name: sums[name] if name in sums else x[:, None] for name, x in columns.items()}
        return terms if self.ensemble_correct is None else terms | {"accuracy": self.ensemble_correct[:, None]}

    def _prefixes(self, recomputed: bool) -> PerExample:
        def totals(values: Members, components: tuple[Component, ...]) -> RowTerms:
            return replace(self, values=values, components=components)._totals()

        along = (self.junctions, self.partial_junctions, self.junction_scale, recomputed)
        return grouping.prefix_table(self.values, self.components, *along, totals)

    def _mean(self, name: str) -> float:
        values = getattr(self.terms, name, None)
        if values is None:
            self.loss_function.require(name)
            values = self.terms.extras[name]
        known = values[np.isfinite(values)]
        return float(known.mean()) if known.size else np.nan

    def _finish(self, frame: pd.DataFrame, **attrs: Any) -> pd.DataFrame:
        """Return the frame with its units, and further attributes for its reader."""
        unit_of = self.loss_function.unit_of
        units = {column: unit for column in frame.columns if (unit := unit_of(column))}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap, "units": units}
        frame.attrs.update(attrs)
        return frame

    def __repr__(self) -> str:
        n, count, _ = self.values.shape
        loss = self.loss_function
        shown = [loss.equation(self.loss, self.bias, self.diversity, self.zero_bias, self.gap or 0.0)]
        shown += [f"{name} {self._mean(name):.4g}" for name, x in self.terms.extras.items() if x.ndim == 1]
        shown += [f"temperature {self.used_temperature:g}"] if "temperature" in loss.offers else []
        shown += [] if self.soft_cap is None else [f"before a soft-cap at {self.soft_cap:g}"]
        name = f"{self.gauge} {loss.name}" if loss.has_gauges else loss.name
        return f"Decomposition({n} examples × {count} members, {name} in {loss.unit}: {'; '.join(shown)})"
