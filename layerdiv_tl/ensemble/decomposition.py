"""Bias and diversity of an ensemble for every loss: `decompose` and its result.

The formulas are in `losses`, `theorems` and `grouping`; this module adds names, averages, intervals and units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Bool, Float, Int

from .._checks import choice, flag
from ..components import COLUMNS, Component
from ..errors import InputError
from ..results import NumberProperty, Result
from . import grouping
from .auc import member_auc
from .grouping import By, PerExample, RowTerms, estimates, with_shares
from .intervals import ENDS, estimates_frame, interval_note
from .losses import LOSSES, Gauges, LacksQuantityError, Loss, Members, Terms, hits, measure, relative_gap, split_gauges
from .theorems import theorem_2, theorem_3

Gauge = Literal["raw", "centered", "shift"]
NormAt = Literal["frozen", "recomputed"]
Table = Literal["totals", "components", "modules", "depth", "depth_recomputed"]
Figure = Literal["bars", "cross_entropy", "heads", "modules", "pairwise", "depth", "tradeoff", "roles", "scatter"]
# Columns of the short table of components.
_LABELED = tuple(x + end for x in ("accuracy", "auc", "logit_difference") for end in ENDS)
_SHORT = ("component", "bias", "diversity", "net", "net_linear", *_LABELED, *COLUMNS[1:])


def _number(term: str, doc: str) -> NumberProperty:
    """The mean over examples of a term, or of a quantity that only some losses have."""
    return NumberProperty(lambda decomposition: decomposition._mean(term), doc=doc)


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(Result):
    """`loss = bias − diversity` of one ensemble, per example, as means and as tables; made by `decompose`.

    Attributes:
        values, components: The members, `[example, member, option]` in logits, and their names.
        target, gold: `[example, option]`, and the gold option's index `[example]`, None for a dense target.
        loss_name, tau: One of `losses.LOSSES`, and the temperature on logits before a softmax, None for the default.
        junctions, junction_scale, partial_junctions, identity_gap, soft_cap, error_note, model, task, prompt_ends:
            As in `Contributions`; None or empty for a plain array, in which every member closes a junction.
        part: The gauge: "raw", or a summand of the squared error ("centered"; "shift", which has one option for all).

    Asking for a number or a table that a loss does not have raises InputError.

    >>> import layerdiv_tl as ld
    >>> u = np.array([[[0.0, 0.0], [3.0, 1.0], [1.0, 3.0]]])
    >>> d = ld.decompose(u, labels=[0], components=["embed", "L0@1.mlp", "L0@2.mlp"])
    >>> d.by_repeat()[["repeats", "diversity", "within", "share", "cosine_centered"]].round(6).values.tolist()
    [[2.0, 1.0, 4.0, 0.333333, -1.0]]
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
    tau: float | None
    junctions: tuple[Component, ...] | None
    junction_scale: Float[np.ndarray, "example junction"] | None
    partial_junctions: Bool[np.ndarray, " junction"] | None
    identity_gap: float | None
    soft_cap: float | None
    part: Gauge = "raw"
    error_note: str = ""
    model: str = ""
    task: str = ""
    prompt_ends: tuple[str, ...] = ()

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
    model_loss = _number("model_loss", "The Brier loss of the model's own distribution over the options, softmax(Σu).")
    combiner_gap = _number(
        "combiner_gap",
        "model_loss − loss: the cost to the model of multiplying its members' distributions, not averaging them.",
    )
    mismatch = _number("mismatch", "loss − (bias − diversity) of Eq. 14, in mixed units: what the equation fails by.")

    @property
    def loss_function(self) -> Loss:
        """The loss object, which holds the formulas."""
        return LOSSES[self.loss_name]

    @property
    def factor(self) -> float:
        """The temperature τ in use."""
        return self.loss_function.default_tau(self.values.shape[1]) if self.tau is None else self.tau

    @cached_property
    def gauge_arrays(self) -> Gauges:
        """Members and target by the suffix of their columns; centered and shift are not split again."""
        whole = (self.values, self.target)
        return split_gauges(self.loss_function, *whole) if self.part == "raw" else {"": whole}

    @cached_property
    def _measured(self) -> dict[str, Terms]:
        return measure(self.loss_function, self.gauge_arrays, self.factor)

    @property
    def terms(self) -> Terms:
        """Loss, biases and diversities per example, and as `extras` the quantities that only this loss has."""
        return self._measured[""]

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

    @cached_property
    def gauges(self) -> dict[Gauge, Decomposition]:
        """The centered and shift gauges of the squared error (shift has no accuracy); empty for other losses."""
        gold: dict[Gauge, Any] = {"centered": self.gold, "shift": None}
        known = {gauge: self.gauge_arrays[f"_{gauge}"] for gauge in gold if f"_{gauge}" in self.gauge_arrays}
        return {g: replace(self, values=u, target=t, gold=gold[g], part=g) for g, (u, t) in known.items()}

    @property
    def centered(self) -> Decomposition:
        """The summand that a softmax sees. Raises InputError for other losses, and in the gauges themselves."""
        return self._gauge("centered")

    @property
    def shift(self) -> Decomposition:
        """The summand that is common to all options. Raises InputError as `centered`."""
        return self._gauge("shift")

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

    figures: ClassVar = {
        "bars": "ensemble.loss_bars",
        "cross_entropy": "ensemble.cross_entropy_bars",
        "heads": "ensemble.head_map",
        "modules": "ensemble.module_shares",
        "pairwise": "pairwise.pairwise_map",
        "depth": "ensemble.depth_curves",
        "tradeoff": "tradeoff.tradeoff_bars",
        "roles": "effects.role_scatter",
        "scatter": "ensemble.bias_diversity_scatter",
    }

    def plot(self, kind: Figure | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """The totals, with intervals; one row each for raw, centered and shift where the loss has these gauges."""
        rows = []
        for d in (self, *self.gauges.values()):
            terms = {name: x[:, 0] for name, x in d._totals({"": d.terms}).items()} | {"zero_bias": d.terms.zero_biases}
            own = {} if d.gap is None else {"gap": d.gap}
            own |= {"tau": d.factor} if "tau" in d.loss_function.offers else {}
            rows.append({"part": d.part, "members": len(d.components)} | estimates(terms) | own)
        return self._finish(estimates_frame(rows))

    def by_component(self, full: bool = False) -> pd.DataFrame:
        """One row per member: bias, diversity, net and other terms of the loss, not divided by |L|.

        Args:
            full: Include the intervals of all terms (otherwise only those below), the gauges
                (`_centered`, which a softmax sees, and `_shift`), and `_share`, the member's share of the total.

        With labels: `accuracy` is how often the member alone prefers the gold option, its constant part included;
        `auc`, without it, how well it tells examples with different labels apart (0.5: not at all; see `member_auc`);
        `logit_difference` is its logit of the gold option minus the mean of the others.
        """
        frame = with_shares(self.per_example("components"), self.gauge_arrays)
        if self.gold is not None:
            frame = frame.assign(**member_auc(self.values, self.gold).columns("auc"))
        return self._finish(frame if flag("full", full) else frame[[x for x in _SHORT if x in frame]].copy())

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9-10): its additive part (n_g/|L|) · mean over its members.

        The columns add up to the ensemble's; `member_share` is n_g/|L|; `_mean` is undivided.
        """
        frame = with_shares(self.per_example("modules"), self.gauge_arrays)
        for term, suffix, end in product(("bias", "diversity"), self.gauge_arrays, ENDS):
            frame[f"{term}_mean{suffix}{end}"] = frame[term + suffix + end] / frame["member_share"]
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
        is pooled over examples and options; `_centered` is over options, as a softmax sees them. `disagreement` is how
        often the preferred options differ. Pairs are in the order `attrs["order"]`, from hierarchical clustering by
        `by`, centered (`attrs["linkage"]`). Raises InputError for one member, and for too many.
        """
        frame = grouping.pairwise_frame(self.values, self.components, choice("by", by, get_args(By)))
        return self._finish(frame, units=frame.attrs["units"])

    def nested(self, groups: Sequence[object] | None = None) -> pd.DataFrame:
        """One row per group: diversity within groups of members, and between groups.

        Args:
            groups: A name for each member, by default its sublayer: an attention is then the **sum** of its heads.

        n_g u_h is what leaf h alone predicts for its group's a_g = Σ_h u_h. `bias` is the leaves' mean error, `within`
        their distance from a_g, and `between` the distance of a_g from the mean over groups. The coarser ensemble's
        loss is the mean over rows of (bias − within − between); `attrs` holds these totals and the gap. Raises
        InputError where no group has two members, for losses without a nested decomposition, and for a `tau`.
        """
        return self._finish(grouping.nested_frame(self._nestable(), self.gauge_arrays, self.components, groups))

    def by_repeat(self) -> pd.DataFrame:
        """One row per sublayer, head or neuron that runs several times in a pass: do its repeats differ?

        As `nested`, with blocks as groups and repeats as leaves. `share`: `within` relative to all `within` and
        `between` (in `attrs` over all blocks); `cosine_centered` is the mean cosine of two repeats; for the squared
        error, `diversity` is `within` / repeats². Raises InputError where no layer is repeated, and as `nested`.
        """
        return self._finish(grouping.repeats_frame(self._nestable(), self.gauge_arrays, self.components))

    def tradeoff(self, paper: bool = False) -> pd.DataFrame:
        """Theorem 3: one row per summand with its part of bias and diversity, in logits²; the columns add up.

        Rows marked Ω appear in both: changing them changes neither loss nor accuracy. In the centered gauge only v̄ is
        shared. `paper=True` gives Eq. 11 as printed, see `theorem_3`. Raises InputError for other losses.
        """
        self.loss_function.require("tradeoff")
        frame = theorem_3(self.values, self.target, flag("paper", paper))
        return self._finish(frame, form="as printed in Eq. 11" if paper else "exact")

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
            return PerExample({"members": [len(self.components)]}, self._totals(self._measured))
        columns = self._columns(self._measured)
        if table == "components":
            return grouping.component_table(self.components, columns, self.correct)
        return grouping.module_table(self.loss_function, self.components, columns, self.gauge_arrays)

    def _columns(self, measured: Mapping[str, Terms]) -> dict[str, np.ndarray]:
        """Return every term by its column, `[example]` or `[example, member]`, with members' logit differences."""
        columns: dict[str, np.ndarray] = {}
        for suffix, terms in measured.items():
            found = {"loss": terms.losses, "bias": terms.biases, "diversity": terms.diversities}
            found |= {"net": terms.biases - terms.diversities} if self.loss_function.is_exact else {}
            columns |= {name + suffix: x for name, x in (found | terms.extras).items()}
        return columns if self.differences is None else columns | {"logit_difference": self.differences}

    def _totals(self, measured: Mapping[str, Terms]) -> RowTerms:
        """Return the ensemble's terms, `[example, 1]`; its net is its loss."""
        nets = ("net", "net_centered", "net_shift")
        own = {name: x for name, x in self._columns(measured).items() if name not in nets}
        sums = grouping.sum_members(self.loss_function, own, np.ones((len(self.components), 1)))
        terms = {name: sums[name] if name in sums else x[:, None] for name, x in own.items()}
        return terms if self.ensemble_correct is None else terms | {"accuracy": self.ensemble_correct[:, None]}

    def _prefixes(self, recomputed: bool) -> PerExample:
        def totals(values: Members, components: tuple[Component, ...]) -> RowTerms:
            prefix = replace(self, values=values, components=components)
            return prefix._totals(prefix._measured)

        along = (self.junctions, self.partial_junctions, self.junction_scale, recomputed)
        return grouping.prefix_table(self.values, self.components, *along, totals)

    def _nestable(self) -> Loss:
        self.loss_function.require("nested")
        if self.tau is not None:
            raise InputError("a nested decomposition is of the model's own distribution: decompose without tau.")
        return self.loss_function

    def _gauge(self, gauge: Gauge) -> Decomposition:
        self.loss_function.require(gauge)
        if self.part != "raw":
            raise LacksQuantityError(f"this is the {self.part} part: use the whole decomposition for its parts.")
        return self.gauges[gauge]

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
        attrs |= {"error_note": self.error_note} if self.error_note else {}
        frame.attrs.update(attrs, intervals=interval_note(len(self.values)))
        return frame

    def __repr__(self) -> str:
        n, count, _ = self.values.shape
        loss = self.loss_function
        found = [loss.equation(self.loss, self.bias, self.diversity, self.zero_bias, self.gap or 0.0)]
        found += [f"{gauge} {d.loss:.4g} = {d.bias:.4g} − {d.diversity:.4g}" for gauge, d in self.gauges.items()]
        found += [f"{name} {self._mean(name):.4g}" for name, x in self.terms.extras.items() if x.ndim == 1]
        found += [f"τ = {self.factor:g}"] if "tau" in loss.offers else []
        found += [] if self.soft_cap is None else [f"before a soft-cap at {self.soft_cap:g}"]
        found += [self.error_note] if self.error_note else []
        return f"Decomposition({n} examples × {count} members, {loss.name} in {loss.unit}: {'; '.join(found)})"
