"""Bias and diversity of an ensemble: `decompose` and its result, for every loss.

The formulas are in `losses`, `theorems` and `comparisons`; here they get names, averages, intervals and units.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from .._checks import choice, flag
from ..components import COLUMNS, Component
from ..errors import InputError
from ..results import Result
from .comparisons import By, groups_of, nested_frame, pairwise_frame, repeats_frame
from .intervals import interval_note
from .losses import LOSSES, Members, Target
from .tables import (
    ENDS,
    TABLES,
    NormAt,
    PerExample,
    Table,
    depth_table,
    ensemble_answer_terms,
    shares,
    total_terms,
    with_ends,
)
from .terms import EnsembleTerms
from .terms import Part as Part
from .theorems import theorem_2, theorem_3
from .validation import Ensemble, EnsembleLike, Labels, as_ensemble, dense_target, factor, gold_options

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

TERMS = ("bias", "diversity", "net")
# Columns of the short table of components.
_ANSWERS = tuple(name + end for name in ("accuracy", "logit_difference") for end in ENDS)
_SHORT = (*COLUMNS, *TERMS, "net_linear", *_ANSWERS)


class Decomposition(EnsembleTerms, Result):
    """`loss = bias − diversity` of one ensemble, as numbers and as tables; made by `decompose`.

    Its fields and numbers are those of `EnsembleTerms`.
    """

    def plot(
        self,
        kind: Literal[
            "bars",
            "cross_entropy",
            "heads",
            "modules",
            "pairwise",
            "depth",
            "tradeoff",
            "repeats",
            "roles",
            "scatter",
        ]
        | None = None,
        **options: Any,
    ) -> go.Figure:
        """Draw one `kind` of figure (by default the first); `options` are those of its function in `views.figures`."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """The totals, with intervals; one row each for raw, centered and shift where there are halves."""
        import pandas as pd

        rows = []
        for d in (self, *self.halves.values()):
            terms = total_terms(d) | {"zero_bias": d.terms.zero_biases[:, None]} | ensemble_answer_terms(d)
            row = PerExample({"part": [d.part], "members": [len(d.components)]}, terms).frame().iloc[0].to_dict()
            row |= {} if d.gap is None else {"gap": d.gap}
            rows.append(row | ({"tau": d.factor} if "tau" in d.loss_function.offers else {}))
        return self._finish(pd.DataFrame(rows))

    def by_component(self, full: bool = False) -> pd.DataFrame:
        """One row per member: bias, diversity, net and what else its loss has, not divided by |L|.

        Args:
            full: Everything there is, some sixty columns: 95 % intervals over examples (`_low`, `_high`, NaN for fewer
                than 8); the halves (`_centered`, `_shift`), of which a softmax sees the centered; `_share`, a member's
                part of the ensemble's sum. False: the names, the loss's own terms, the member's own `accuracy` and its
                part of the `logit_difference` (to the gold option minus the mean of the others), with intervals.
        """
        frame = self._finish(self._with_shares(self.per_example("components")))
        if flag("full", full):
            return frame
        attrs, frame = frame.attrs, frame[[name for name in _SHORT if name in frame]].copy()
        frame.attrs = attrs | {"units": {name: unit for name, unit in attrs["units"].items() if name in frame}}
        return frame

    def by_module(self) -> pd.DataFrame:
        """One row per module (Eq. 9-10): its additive part (n_g/|L|) · mean over its members.

        The columns add up to the ensemble's; `member_share` is n_g/|L|, what a module of members like all others would
        have; `_mean` is undivided.
        """
        frame = self._with_shares(self.per_example("modules"))
        for suffix, term, end in product(self.parts, ("bias", "diversity"), ENDS):
            frame[f"{term}_mean{suffix}{end}"] = frame[f"{term}{suffix}{end}"] / frame["member_share"]
        return self._finish(frame)

    def by_depth(self, norm: NormAt = "frozen") -> pd.DataFrame:
        """One row per junction: the prefix ensemble of all components up to there (Fig. 5 and 7).

        Args:
            norm: "frozen" (as the paper decodes): every prefix is read out with the whole stream's norm statistic;
                "recomputed": with its own, as if the model ended there.

        The constant belongs to every prefix, and what half precision lost (`rounding`) to the last one only. `partial`
        rows are sums that the stream never holds: half-way through a parallel block, and an embedding without its
        positions. Raises InputError for an unknown norm, for "recomputed" with a plain array, which has no norm, and
        for groups, which have no place along depth.
        """
        choice("norm", norm, get_args(NormAt))
        return self._finish(depth_table(self, norm).frame(), norm=norm)

    def pairwise(self, by: By = "cosine") -> pd.DataFrame:
        """One row per pair of members: how far their predictions are apart, to find duplicates.

        `distance` is the mean squared distance in logits² (diversity is half its mean over all |L|² pairs); `cosine`
        is pooled over examples and options; `_centered` is over options, which is what a softmax sees; `disagreement`
        is how often the preferred options differ. Pairs stand in the order of `attrs["order"]`, the members by
        hierarchical clustering of `by`, centered; `attrs["linkage"]` is the tree, as scipy's `linkage`. Raises
        InputError for an unknown `by`, one member, and too many members.
        """
        frame = pairwise_frame(self.values, self.components, choice("by", by, get_args(By)))
        frame.attrs |= {"identity_gap": self.identity_gap, "intervals": interval_note(len(self.values))}
        frame.attrs |= {"error_note": self.error_note} if self.error_note else {}
        return frame

    def nested(self, groups: Sequence[object] | None = None) -> pd.DataFrame:
        """One row per group: diversity within groups of members, and between them.

        Args:
            groups: A name for each member; None is the sublayer it is cut from: an attention is the **sum** of its
                heads, an MLP of its neurons.

        n_g u_h is what leaf h alone predicts for its group's a_g = Σ_h u_h. `bias` is the leaves' mean error, `within`
        their distance from a_g, `between` that of a_g from the mean over groups: the coarser ensemble's loss = mean
        over rows of (bias − within − between); `attrs` holds these totals and the gap. For `_unscaled` see
        `SquaredError.nested`. Raises InputError where no group has two members, for losses without a nested cut, and
        for a `tau`: it is that of the model's own distribution.

        >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]]]), labels=[0])
        >>> d.nested(groups=["a", "a", "b"])[["group", "members", "within", "between"]].values.tolist()
        [['a', 2, 2.0, 0.25], ['b', 1, 0.0, 0.25]]
        """
        members = self._members()
        names, group = groups_of(self.components, groups)
        return self._finish(nested_frame(self.loss_function, members, names, group)[0])

    def by_repeat(self) -> pd.DataFrame:
        """One row per sublayer, head or neuron that runs several times in a pass: do its repeats differ?

        As `nested`, with blocks for groups and their repeats for leaves. `share` is a block's `within` as a part of all
        `within` and `between`; `attrs["share"]`, with `_low` and `_high`, is that of all blocks together.
        `cosine_centered` is the mean cosine between two repeats, pooled over examples. For the squared error
        `diversity` is that of a block's repeats alone, `within` / repeats². Raises InputError where no layer is
        repeated, and as `nested`.

        >>> u = np.array([[[0.0, 0.0], [3.0, 1.0], [1.0, 3.0]]])
        >>> d = decompose(u, labels=[0], components=["embed", "L0@1.mlp", "L0@2.mlp"])
        >>> d.by_repeat()[["repeats", "diversity", "within", "share", "cosine_centered"]].round(6).values.tolist()
        [[2.0, 1.0, 4.0, 0.333333, -1.0]]
        """
        return self._finish(repeats_frame(self.loss_function, self._members(), self.components))

    def tradeoff(self, paper: bool = False) -> pd.DataFrame:
        """Theorem 3: the summands of bias and of diversity, and what the two share.

        One row per summand with its part of either, in logits²; the columns add up to bias and diversity. The rows
        marked Ω stand in both: moving them moves neither loss nor accuracy. For the centered half only v̄ is shared.
        `paper=True` gives Eq. 11 as printed, see `theorem_3`. Raises InputError for other losses.

        >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 1.0]]]), labels=[0])
        >>> table = d.tradeoff()
        >>> bool(table["bias"].sum() == d.bias), bool(table["diversity"].sum() == d.diversity)
        (True, True)
        """
        self.loss_function.require("tradeoff")
        frame = theorem_3(self.values, self.target, flag("paper", paper))
        return self._finish(frame, form="as printed in Eq. 11" if paper else "exact")

    def bounds(self) -> pd.DataFrame:
        """Theorem 2, exactly: where diversity can be, given bias and loss.

        One row for the ensemble and one per module, with undivided means; columns `lowest` and `highest` as in
        `theorem_2`. A module's diversity vanishes with its bias only if MSE vanishes too, unlike in the printed
        theorem: here the MLP is right, so its bias is 0, and its diversity is the loss that the embedding causes.
        Raises InputError for other losses than the squared error.

        >>> d = decompose(np.array([[[4.0, 4.0], [1.0, 0.0]]]), labels=[0], components=["embed", "L0.mlp"])
        >>> d.bounds()[["module", "bias", "diversity"]].values.tolist(), d.loss
        ([['all', 6.25, 3.125], ['embedding', 12.5, 3.125], ['mlp', 0.0, 3.125]], 3.125)
        """
        self.loss_function.require("bounds")
        return self._finish(theorem_2(self.terms, self.components), loss=self.loss)

    def per_example(self, table: Table) -> PerExample:
        """The numbers of a frame before they are averaged: every term, `[example, row]`.

        Args:
            table: Of `frame`, `by_component`, `by_module` or `by_depth`. Raises InputError for any other.
        """
        return TABLES[choice("table", table, TABLES)](self)

    def _with_shares(self, table: PerExample) -> pd.DataFrame:
        """The table averaged, with each row's share of bias and of diversity."""
        columns: dict[str, np.ndarray] = {}
        for suffix, term in product(self.parts, ("bias", "diversity")):
            values = table.terms[term + suffix]
            columns |= with_ends(f"{term}_share{suffix}", *shares(values, values.sum(1)))
        return table.frame().assign(**columns)

    def _members(self) -> dict[str, tuple[Members, Target]]:
        """Members and target by the suffix of their columns, for a nested cut."""
        self.loss_function.require("nested")
        if self.tau is not None:
            raise InputError("a nested cut is that of the model's own distribution: decompose without tau.")
        return {suffix: (d.values, d.target) for suffix, d in self.parts.items()}

    def _finish(self, frame: pd.DataFrame, **attrs: Any) -> pd.DataFrame:
        unit_of = self.loss_function.unit_of
        frame.attrs["units"] = {column: unit for column in frame.columns if (unit := unit_of(column))}
        attrs |= {"identity_gap": self.identity_gap, "soft_cap": self.soft_cap}
        attrs |= {"error_note": self.error_note} if self.error_note else {}
        frame.attrs.update(attrs, intervals=interval_note(len(self.values)))
        return frame

    def __repr__(self) -> str:
        n, count, _ = self.values.shape
        loss = self.loss_function
        parts = [loss.equation(self.loss, self.bias, self.diversity, self.zero_bias, self.gap or 0.0)]
        parts += [f"{part} {d.loss:.4g} = {d.bias:.4g} − {d.diversity:.4g}" for part, d in self.halves.items()]
        parts += [f"{name} {self._extra_mean(name):.4g}" for name, x in self.extras.items() if x.ndim == 1]
        parts += [f"τ = {self.factor:g}"] if "tau" in loss.offers else []
        parts += [] if self.soft_cap is None else [f"before a soft-cap at {self.soft_cap:g}"]
        parts += [self.error_note] if self.error_note else []
        return f"Decomposition({n} examples × {count} members, {loss.name} in {loss.unit}: {'; '.join(parts)})"


def decompose(
    ensemble: EnsembleLike,
    labels: Labels = None,
    target: Float[np.ndarray, "example option"] | Ensemble | None = None,
    loss: str = "squared",
    *,
    tau: float | None = None,
    components: Sequence[str | Component] | None = None,
) -> Decomposition:
    """Bias and diversity of an ensemble, for the loss you choose; exact for all but the paper's own.

    Args:
        ensemble: `Contributions`, whose array the result shares (of options of several tokens: their `scores()`, parts
            of log-likelihoods, in nats), or an array `[example, member, option]` of logits.
        labels: The gold option of each example, as its index or its text: the target is then one-hot.
        target: Any other target, `[example, option]`: another model's logits for the squared error, its probabilities
            over the options for the other losses; or that model's `Contributions` to the same options. Give exactly
            one of the two.
        loss: "squared": Theorem 1 in logits; "cross_entropy": in nats; "brier": between probabilities; "paper": Eq. 14,
            as the paper computed its numbers, which mixes units. The formulas are in `ensemble.losses`.
        tau: The factor on logits before a softmax, for "cross_entropy" (default |L|: the model's own distribution) and
            "brier" (default 1: the paper's scale).
        components: Names for the members of a plain array, as components or labels like "L0.mlp".

    Raises InputError for labels out of range or of the wrong number, a target of the wrong shape or not
    a distribution where one is needed, fewer than two options, no members, and numbers that are not finite.

    >>> d = decompose(np.array([[[2.0, 0.0], [0.0, 0.0]]]), labels=[0])
    >>> d.loss, d.bias, d.diversity
    (0.0, 0.5, 0.5)
    >>> d.centered.diversity, d.shift.diversity
    (0.25, 0.25)
    >>> ce = decompose(np.array([[[2.0, 0.0], [0.0, 0.0]]]), labels=[0], loss="cross_entropy")
    >>> round(ce.loss, 3), round(ce.bias - ce.diversity, 3), round(ce.entropy + float(ce.net_linear.sum()), 3)
    (0.127, 0.127, 0.127)
    """
    strategy = LOSSES[choice("loss", loss, LOSSES)]
    if tau is not None:
        strategy.require("tau")
    members = as_ensemble(ensemble, components)
    u = members.values
    if (labels is None) == (target is None):
        raise InputError("give exactly one of labels (a gold option for each example) and target (logits).")
    gold = None if labels is None else gold_options(labels, u.shape, members.options)
    t = dense_target(target, members, strategy.compares_probabilities) if gold is None else np.eye(u.shape[2])[gold]
    return Decomposition(
        values=u,
        components=members.components,
        target=t,
        gold=gold,
        loss_name=loss,
        tau=factor(tau),
        junctions=members.junctions,
        junction_scale=members.junction_scale,
        partial_junctions=members.partial_junctions,
        identity_gap=members.identity_gap,
        soft_cap=members.soft_cap,
        error_note=getattr(members, "error_note", ""),
    )
