"""Bias and diversity of an ensemble for every loss: `decompose` and its result.

The formulas are in `losses`, `theorems` and `grouping`; this module adds names, averages, intervals and units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from .._checks import choice, flag
from ..components import COLUMNS, Component
from ..errors import InputError
from ..results import Result
from . import grouping
from .grouping import By, PerExample, RowTerms, estimates
from .hits import hits, logit_differences
from .intervals import ENDS, estimates_frame, interval_note
from .losses import (
    LOSSES,
    Gauges,
    LacksQuantityError,
    Loss,
    Members,
    Terms,
    mean_of,
    measure,
    relative_gap,
    split_gauges,
)
from .theorems import theorem_2, theorem_3

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Part = Literal["raw", "centered", "shift"]
NormAt = Literal["frozen", "recomputed"]
Table = Literal["totals", "components", "modules", "depth", "depth_recomputed"]
Figure = Literal["bars", "cross_entropy", "heads", "modules", "pairwise", "depth", "tradeoff", "roles", "scatter"]
TERMS = ("bias", "diversity", "net")
# Columns of the short table of components.
_SHORT = (*COLUMNS, *TERMS, "net_linear", *(x + end for x in ("accuracy", "logit_difference") for end in ENDS))


@dataclass(frozen=True, eq=False, repr=False)
class Decomposition(Result):
    """`loss = bias − diversity` of one ensemble, per example, as means and as tables; made by `decompose`.

    Attributes:
        values, components: The members, `[example, member, option]` in logits, and their names.
        target, gold: `[example, option]`, and the gold option's index `[example]`, None for a dense target.
        loss_name, tau: One of `losses.LOSSES`, and the temperature on logits before a softmax, None for the default.
        junctions, junction_scale, partial_junctions, identity_gap, soft_cap, error_note: As in `Contributions`; None
            (error_note "") for a plain array, in which every member closes a junction.
        part: "raw", or the part of the squared error ("centered", "shift"); the shift part has one option for all.

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
    part: Part = "raw"
    error_note: str = ""

    @property
    def loss_function(self) -> Loss:
        """The loss object, which holds the formulas."""
        return LOSSES[self.loss_name]

    @property
    def factor(self) -> float:
        """The temperature τ in use."""
        return self.loss_function.default_tau(self.values.shape[1]) if self.tau is None else self.tau

    @cached_property
    def parts(self) -> Gauges:
        """Members and target by the suffix of their columns; a part has no parts of its own."""
        whole = (self.values, self.target)
        return split_gauges(self.loss_function, *whole) if self.part == "raw" else {"": whole}

    @cached_property
    def _measured(self) -> dict[str, Terms]:
        return measure(self.loss_function, self.parts, self.factor)

    @property
    def terms(self) -> Terms:
        """Loss, biases and diversities per example, and as `extras` the quantities that only this loss has."""
        return self._measured[""]

    @cached_property
    def halves(self) -> dict[Part, Decomposition]:
        """The centered and shift parts of the squared error (shift has no accuracy); empty for other losses."""
        gold: dict[Part, Any] = {"centered": self.gold, "shift": None}
        known = {part: self.parts[f"_{part}"] for part in gold if f"_{part}" in self.parts}
        return {part: replace(self, values=u, target=t, gold=gold[part], part=part) for part, (u, t) in known.items()}

    @property
    def centered(self) -> Decomposition:
        """The part that a softmax sees. Raises InputError for other losses, and in the parts themselves."""
        return self._half("centered")

    @property
    def shift(self) -> Decomposition:
        """The part that is common to all options. Raises InputError as `centered`."""
        return self._half("shift")

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
    def loss(self) -> float:
        """The ensemble's loss, mean over examples."""
        return float(self.losses.mean())

    @property
    def bias(self) -> float:
        """Mean loss of the members, each on its own."""
        return float(self.biases.mean())

    @property
    def diversity(self) -> float:
        """Mean distance of the members from the ensemble, also called *ambiguity*."""
        return float(self.diversities.mean())

    @property
    def zero_bias(self) -> float:
        """The bias of the zero baseline (u = 0), to compare all biases with; after a softmax it is uniform."""
        return float(self.terms.zero_biases.mean())

    @property
    def zero_net(self) -> float:
        """bias − diversity of the zero baseline, to compare nets with. For the cross-entropy it is H(p)."""
        return self.zero_bias - float(self.terms.zero_diversities.mean())

    @property
    def gap(self) -> float | None:
        """|loss − (bias − diversity)| relative to the largest of the three; None where units differ ("paper")."""
        return relative_gap(self.loss, self.bias, self.diversity) if self.loss_function.is_exact else None

    @property
    def diversity_logit(self) -> float:
        """|L|² × diversity in logits²: comparable between decompositions with different numbers of members."""
        return self._extra("diversity_logit")

    @property
    def coherence(self) -> float:
        """|Σu|² / Σ|u|², mean over examples with a nonzero member: 1 if orthogonal, |L| if members are identical."""
        return self._extra("coherence")

    @property
    def entropy(self) -> float:
        """H(p) in nats: the cross-entropy if p were the target's distribution."""
        return self._extra("entropy")

    @property
    def net_linear(self) -> Float[np.ndarray, "example member"]:
        """Each member's contribution to the cross-entropy beyond H(p), `[example, member]` in nats; linear in u_i."""
        self.loss_function.require("net_linear")
        return self.terms.extras["net_linear"]

    @property
    def model_loss(self) -> float:
        """The Brier loss of the model's own distribution over the options, softmax(Σu)."""
        return self._extra("model_loss")

    @property
    def combiner_gap(self) -> float:
        """model_loss − loss: the cost to the model of multiplying its members' distributions, not averaging them."""
        return self._extra("combiner_gap")

    @property
    def mismatch(self) -> float:
        """loss − (bias − diversity) of Eq. 14, in mixed units: the amount by which the equation fails."""
        return self._extra("mismatch")

    @cached_property
    def correct(self) -> Float[np.ndarray, "example member"] | None:
        """Whether each member alone prefers the gold option (1/n if tied), `[example, member]`; None without labels."""
        return None if self.gold is None else hits(self.values, self.gold[:, None])

    @cached_property
    def differences(self) -> Float[np.ndarray, "example member"] | None:
        """A member's logit of the gold option minus the others' mean, `[example, member]`; None without labels."""
        return None if self.gold is None else logit_differences(self.values, self.gold)

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
        "tradeoff": "ensemble.tradeoff_bars",
        "roles": "effects.role_scatter",
        "scatter": "ensemble.bias_diversity_scatter",
    }

    def plot(self, kind: Figure | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """The totals, with intervals; one row each for raw, centered and shift where the loss has these parts."""
        rows = []
        for d in (self, *self.halves.values()):
            terms = {name: x[:, 0] for name, x in d._totals({"": d.terms}).items()}
            terms["zero_bias"] = d.terms.zero_biases
            own = {} if d.gap is None else {"gap": d.gap}
            own |= {"tau": d.factor} if "tau" in d.loss_function.offers else {}
            rows.append({"part": d.part, "members": len(d.components)} | estimates(terms) | own)
        return self._finish(estimates_frame(rows))

    def by_component(self, full: bool = False) -> pd.DataFrame:
        """One row per member: bias, diversity, net and other terms of the loss, not divided by |L|.

        Args:
            full: Include the intervals of all terms (otherwise only `accuracy` and `logit_difference`), the parts
                (`_centered`, which a softmax sees, and `_shift`), and `_share`, the member's share of the total.
        """
        frame = grouping.with_shares(self.per_example("components"), self.parts)
        return self._finish(frame if flag("full", full) else frame[[x for x in _SHORT if x in frame]].copy())

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9-10): its additive part (n_g/|L|) · mean over its members.

        The columns add up to the ensemble's; `member_share` is n_g/|L|; `_mean` is undivided.
        """
        frame = grouping.with_shares(self.per_example("modules"), self.parts)
        for term, suffix, end in product(("bias", "diversity"), self.parts, ENDS):
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
        return self._finish(grouping.nested_frame(self.loss_function, self.tau, self.parts, self.components, groups))

    def by_repeat(self) -> pd.DataFrame:
        """One row per sublayer, head or neuron that runs several times in a pass: do its repeats differ?

        As `nested`, with blocks as groups and repeats as leaves. `share`: `within` relative to all `within` and
        `between` (in `attrs` over all blocks); `cosine_centered` is the mean cosine of two repeats; for the squared
        error, `diversity` is `within` / repeats². Raises InputError where no layer is repeated, and as `nested`.
        """
        return self._finish(grouping.repeats_frame(self.loss_function, self.tau, self.parts, self.components))

    def tradeoff(self, paper: bool = False) -> pd.DataFrame:
        """Theorem 3: one row per summand with its part of bias and diversity, in logits²; the columns add up.

        Rows marked Ω appear in both: changing them changes neither loss nor accuracy. For the centered part only v̄ is
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
        columns = grouping.columns_of(self.loss_function, self._measured, self.differences)
        if table == "modules":
            return grouping.module_table(self.components, columns, self.loss_function, self.parts)
        return grouping.component_table(self.components, columns, self.correct)

    def _totals(self, measured: Mapping[str, Terms]) -> RowTerms:
        columns = grouping.columns_of(self.loss_function, measured, self.differences)
        return grouping.total_terms(self.loss_function, columns, self.ensemble_correct)

    def _prefixes(self, recomputed: bool) -> PerExample:
        def totals(values: Members, components: tuple[Component, ...]) -> RowTerms:
            prefix = replace(self, values=values, components=components)
            return prefix._totals(prefix._measured)

        along = (self.junctions, self.partial_junctions, self.junction_scale, recomputed)
        return grouping.prefix_table(self.values, self.components, *along, totals)

    def _half(self, part: Part) -> Decomposition:
        self.loss_function.require(part)
        if self.part != "raw":
            raise LacksQuantityError(f"this is the {self.part} part: use the whole decomposition for its parts.")
        return self.halves[part]

    def _extra(self, name: str) -> float:
        self.loss_function.require(name)
        return float(mean_of(self.terms.extras[name].reshape(-1)))

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
        parts = [loss.equation(self.loss, self.bias, self.diversity, self.zero_bias, self.gap or 0.0)]
        parts += [f"{part} {d.loss:.4g} = {d.bias:.4g} − {d.diversity:.4g}" for part, d in self.halves.items()]
        parts += [f"{name} {self._extra(name):.4g}" for name, x in self.terms.extras.items() if x.ndim == 1]
        parts += [f"τ = {self.factor:g}"] if "tau" in loss.offers else []
        parts += [] if self.soft_cap is None else [f"before a soft-cap at {self.soft_cap:g}"]
        parts += [self.error_note] if self.error_note else []
        return f"Decomposition({n} examples × {count} members, {loss.name} in {loss.unit}: {'; '.join(parts)})"
