"""Bias and diversity of an ensemble for every loss: `decompose` and its result.

The formulas are in `losses`, `theorems` and `grouping`; this module adds names, averages, intervals and units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ..components import COLUMNS, Component, component_columns
from ..errors import InputError
from ..results import Plot, Result
from . import grouping
from .auc import member_auc
from .figures import FIGURES
from .grouping import RowTerms, estimates, with_shares
from .intervals import ENDS, estimates_frame
from .losses import LOSSES, Gauge, Loss, Members, Target, Terms, group_numbers, hits, in_gauge, measure, relative_gap
from .theorems import theorem_2, theorem_3

# Columns of the short table of components.
_LABELED = tuple(x + end for x in ("accuracy", "auc", "logit_difference") for end in ENDS)
_SHORT = ("component", "bias", "diversity", "net", "net_linear", *_LABELED, "constant_share", *COLUMNS[1:])


def _number(term: str, doc: str) -> property:
    """The mean over examples of a term, which only some losses may have."""
    return property(lambda decomposition: decomposition._mean(term), doc=doc)


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(Result):
    """`loss = bias − diversity` of one ensemble, per example, as means and as tables; made by `decompose`.

    Attributes:
        values, components: The members, `[example, member, option]` in raw logits, and their names.
        target, gold: `[example, option]`, and the gold option's index `[example]`, None for a dense target.
        loss_name, gauge: One of `losses.LOSSES`, and the gauge of its terms and of pairs (for other losses than the
            squared error, of pairs alone).
        junctions, partial_junctions, identity_gap, soft_cap, model, task, prompt_ends, score: As in `Contributions`;
            None or empty for a plain array, in which every member closes a junction.
        options: The options' names, where they are those of all examples.

    Asking for a table that a loss does not have raises InputError, for a number AttributeError.

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
    junctions: tuple[Component, ...] | None
    partial_junctions: Bool[np.ndarray, " junction"] | None
    identity_gap: float | None
    soft_cap: float | None
    model: str = ""
    task: str = ""
    prompt_ends: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    score: str = "logits"

    loss = _number("loss", "The ensemble's loss, mean over examples.")
    bias = _number("bias", "Mean loss of the members, each on its own.")
    diversity = _number("diversity", "Mean distance of the members from the ensemble, also called *ambiguity*.")
    zero_bias = _number(
        "zero_bias",
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
    mismatch = _number("mismatch", "loss − (bias − diversity) of Eq. 14, in mixed units: what the equation fails by.")
    entropy = _number("entropy", "H(p) in nats: the cross-entropy if p were the target's distribution.")

    @property
    def names(self) -> tuple[str, ...]:
        """The options' names."""
        return self.options or tuple(f"option {k}" for k in range(self.values.shape[2]))

    @property
    def loss_function(self) -> Loss:
        """The loss object, which holds the formulas."""
        return LOSSES[self.loss_name]

    @cached_property
    def _in_gauge(self) -> tuple[Members, Target]:
        return in_gauge(self.values, self.target, self.gauge)

    @cached_property
    def terms(self) -> Terms:
        """Every term per example, by name: the ensemble's `[example]`, or each member's `[example, member]`.

        `loss`, `bias`, `diversity`, `zero_bias`, `net` of exact losses, what only this loss has, and with labels
        `logit_difference`, a member's logit of the gold option minus the others' mean.
        """
        return self._measure(self.values)

    @property
    def net_linear(self) -> Float[np.ndarray, "example member"]:
        """Each member's contribution to the cross-entropy beyond H(p), `[example, member]` in nats; linear in u_i."""
        return self._term("net_linear")

    @property
    def gap(self) -> float | None:
        """|loss − (bias − diversity)| relative to the largest of the three; None where units differ ("paper")."""
        return relative_gap(self.loss, self.bias, self.diversity) if self.loss_function.is_exact else None

    @property
    def accuracy(self) -> float:
        """The share of examples where the ensemble prefers the gold option. Raises InputError without labels."""
        if self.gold is None:
            raise InputError("this decomposition has no gold option for each example, so no accuracy: give labels.")
        return float(hits(self.values.sum(1), self.gold).mean())

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
        row: dict[str, Any] = {"gauge": self.gauge} if self.loss_function.has_gauges else {}
        row["members"] = len(self.components)
        row |= estimates({name: x[:, 0] for name, x in self._totals(self.values).items()})
        if self.chance is not None:
            row["chance"] = self.chance
        if self.gap is not None:
            row["gap"] = self.gap
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
        terms = grouping.of_members(self.terms)
        if self.gold is not None:
            terms["accuracy"] = hits(self.values, self.gold[:, None])
        frame = with_shares(component_columns(self.components), terms)
        if self.gold is not None and (self.gold != self.gold[0]).any():
            frame = frame.assign(**member_auc(self.values, self.gold).columns("auc"))
        if self.loss_function.has_gauges:
            frame["constant_share"] = grouping.constant_shares(self.values)
        return self._finish(frame if full else frame[[x for x in _SHORT if x in frame]].copy())

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9-10): its additive part (n_g/|L|) · mean over its members.

        The columns add up to the ensemble's; `member_share` is n_g/|L|.
        """
        modules, group = group_numbers([c.module for c in self.components])
        counts = np.bincount(group)
        names = {"module": modules, "members": counts, "member_share": counts / len(group)}
        frame = with_shares(names, grouping.sum_members(self.terms, np.eye(len(modules))[group]))
        return self._finish(frame)

    def by_depth(self) -> pd.DataFrame:
        """One row per junction: the prefix ensemble of all components up to it (Fig. 5 and 7).

        As the paper decodes, every prefix uses the whole stream's norm statistic. The constant belongs to every prefix,
        `rounding` only to the last. `partial` rows are sums that the stream never holds: half-way through a parallel
        block, and an embedding without its positions. Raises InputError for groups, which have no place along depth.
        """
        reached, counts, rows = [], [], []
        for last, kept in grouping.prefixes(self.components, self.junctions):
            reached.append(last)
            counts.append(len(kept))
            rows.append(self._totals(self.values[:, kept]))
        columns = component_columns([(self.junctions or self.components)[i] for i in reached])
        columns["partial"] = np.zeros(len(reached), dtype=bool)
        if self.partial_junctions is not None:
            columns["partial"] = self.partial_junctions[reached]
        columns["members"] = counts
        columns |= estimates({name: np.hstack([row[name] for row in rows]) for name in rows[0]})
        return self._finish(estimates_frame(columns))

    def pairwise(self) -> pd.DataFrame:
        """One row per pair of members: the distance between their predictions, to find duplicates.

        `distance` is the mean squared distance in logits² (diversity is half its mean over all |L|² pairs). `cosine`
        is pooled over examples and options. `attrs["order"]` is an order in which similar members are neighbors, from
        average-linkage clustering by cosine. Raises InputError for one member, and for too many.
        """
        return self._finish(grouping.pairwise_frame(self._in_gauge[0], self.components))

    def nested(self, groups: Sequence[object] | None = None) -> pd.DataFrame:
        """One row per group: diversity within groups of members, and between groups.

        Args:
            groups: A name for each member, by default its sublayer: an attention is then the **sum** of its heads.

        n_g u_h is what leaf h alone predicts for its group's a_g = Σ_h u_h. `bias` is the leaves' mean error, `within`
        their distance from a_g, and `between` the distance of a_g from the mean over groups. The coarser ensemble's
        loss is the mean over rows of (bias − within − between); `attrs` holds these totals and the gap. Raises
        InputError where no group has two members, and for losses without a nested decomposition.
        """
        self._require("nested")
        parts = (self.values, self.target, self.gauge, self.components, groups)
        return self._finish(grouping.nested_frame(self.loss_function, *parts))

    def tradeoff(self) -> pd.DataFrame:
        """Theorem 3: one row per summand with its part of bias and diversity, in logits²; the columns add up.

        Rows marked Ω appear in both: changing them changes neither loss nor accuracy. In the centered gauge only v̄ is
        shared. Raises InputError for other losses.
        """
        self._require("tradeoff")
        return self._finish(theorem_3(*self._in_gauge))

    def bounds(self) -> pd.DataFrame:
        """Theorem 2, exact: the range of diversity given bias and loss, for the ensemble and each module.

        Undivided means; `lowest` and `highest` as in `theorem_2`. A module's diversity vanishes with its bias only if
        MSE vanishes too, unlike in the printed theorem. Raises InputError for losses other than the squared error.
        """
        self._require("bounds")
        return self._finish(theorem_2(self.terms, self.components), loss=self.loss)

    def _measure(self, values: Members) -> Terms:
        """Compute the terms of these members and their ensemble, all or the first ones."""
        terms = measure(self.loss_function, values, self.target, self.gauge)
        if self.gold is None:
            return terms
        count = values.shape[2]
        weights = np.where(np.eye(count, dtype=bool)[self.gold], 1.0, -1.0 / (count - 1))
        return terms | {"logit_difference": np.einsum("emk,ek->em", values, weights)}

    def _totals(self, values: Members) -> RowTerms:
        """Return the terms of an ensemble of these members, `[example, 1]`; its net is its loss."""
        terms = {name: x for name, x in self._measure(values).items() if name != "net"}
        sums = grouping.sum_members(terms, np.ones((values.shape[1], 1)))
        totals = {name: sums[name] if name in sums else x[:, None] for name, x in terms.items()}
        if self.gold is not None:
            totals["accuracy"] = hits(values.sum(1), self.gold)[:, None]
        return totals

    def _term(self, name: str) -> np.ndarray:
        if name not in self.terms:
            raise AttributeError(f"loss={self.loss_name!r} has no {name!r}.")
        return self.terms[name]

    def _mean(self, name: str) -> float:
        values = self._term(name)
        known = values[np.isfinite(values)]
        return float(known.mean()) if known.size else np.nan

    def _require(self, table: str) -> None:
        """Raise InputError where this loss has no such table."""
        if table not in self.loss_function.tables:
            raise InputError(f"loss={self.loss_name!r} has no {table!r}: decompose with loss='squared'.")

    def _finish(self, frame: pd.DataFrame, **attrs: Any) -> pd.DataFrame:
        """Return the frame with its units, and further attributes for its reader."""
        unit_of = self.loss_function.unit_of
        units = {column: self._in_nats(unit) for column in frame.columns if (unit := unit_of(column))}
        frame.attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap, "units": units}
        frame.attrs.update(attrs)
        return frame

    def _in_nats(self, unit: str) -> str:
        """The unit of numbers that are parts of log-likelihoods, where options have several tokens."""
        return unit.replace("logits", "nats") if self.score == "log_likelihood" else unit

    def __repr__(self) -> str:
        n, count, _ = self.values.shape
        loss = self.loss_function
        of_ensemble = [name for name, x in self.terms.items() if x.ndim == 1]
        numbers = [f"{name} {self._mean(name):.4g}" for name in ("bias", "diversity", *of_ensemble)]
        unit = loss.unit if loss.is_exact else f"{loss.unit}, diversity in {loss.unit_of('diversity')}"
        unit = self._in_nats(unit)
        name = f"{self.gauge} {loss.name}" if loss.has_gauges else loss.name
        capped = "" if self.soft_cap is None else f"; before a soft-cap at {self.soft_cap:g}"
        return f"Decomposition({n} examples × {count} members, {name} in {unit}: {', '.join(numbers)}{capped})"
