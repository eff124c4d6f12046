"""Gain curves: the terms of Eq. 13 as members are added one by one (Theorems 5-8; Fig. 2 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float, Int

from ..._checks import choice, whole_number
from ...components import Component, component_columns
from ...errors import InputError
from ...results import Result
from ..intervals import Estimate, estimate, estimates_frame, percentile_interval
from ..losses import ratio
from .estimator import TERMS, Estimator, entropy_of_labels, normal_quantile
from .gaussian import Gaussian
from .sample import MAX_DRAWS, Sample

Order = Literal["depth", "greedy", "random"]
MAX_NULL_SHARES = 20  # a share needs four estimates for every pair
MAX_SEARCHED = 40  # every step of a greedy search tries every remaining member


@dataclass(frozen=True, eq=False, repr=False)
class GainCurve(Result):
    """Every term of Eq. 13 for k = 1 … |L| members, in bits. Made by `Information.gain_curve`.

    Information never falls when a member is added (chain rule), so a dip is an error of the estimate; `statement` names
    the dips beyond the null. Theorems 7 and 8 assume members that are independent given the label; where they are not,
    gains may grow, which refutes nothing. Other fields are those of `Information`.

    Attributes:
        order, orders: "depth", "greedy" or "random"; the members in that order, `[repeat, step]`, with several repeats
            only for "random".
        terms, errors: {term: `[step]`}, means over the orders; their standard errors by subsampling rows.
        gains, gain_errors: `[step]`: each step's gain in joint information, and its standard error.
        null: `[draw, step]`: the joint information with shuffled labels, under the same greedy search.
        shares, null_shares: `[order]`, `[draw]`: the share of sampled S ⊂ T and i outside for which i adds no less to S
            than to T.
        model, task, rows: As in `Information`, and the number of examples.
    """

    order: str
    orders: Int[np.ndarray, "repeat step"]
    components: tuple[Component, ...]
    spans: tuple[str, ...]
    method: str
    terms: dict[str, Float[np.ndarray, " step"]]
    errors: dict[str, Float[np.ndarray, " step"]]
    gains: Float[np.ndarray, " step"]
    gain_errors: Float[np.ndarray, " step"]
    null: Float[np.ndarray, "draw step"]
    shares: Float[np.ndarray, " order"]
    null_shares: Float[np.ndarray, " draw"]
    label_entropy: float
    confidence_level: float
    warnings: tuple[str, ...]
    model: str = ""
    task: str = ""
    rows: int = 0

    figures: ClassVar = {"curve": "information.gain_lines"}

    def plot(self, kind: Literal["curve"] | None = None, **options: Any) -> go.Figure:
        """Draw one `kind` of figure, by default the first."""
        return super().plot(kind=kind, **options)

    def frame(self) -> pd.DataFrame:
        """One row per step: `members` k, the one added (depth, greedy), every term with its interval, `gain`.

        `joint_null_low`, `joint_null_high`, `gain_null_low`, `gain_null_high`: with shuffled labels, step by step.
        `dip`: the gain is negative; `inside_null`: it is a dip that, relative to the null's spread at its step, is no
        deeper than the deepest dip at any step of shuffled labels (Westfall and Young 1993).
        """

        steps, z = self.orders.shape[1], normal_quantile(self.confidence_level)
        columns: dict[str, object] = {"members": np.arange(1, steps + 1)}
        if len(self.orders) == 1:
            columns |= component_columns([self.components[m] for m in self.orders[0]])
            columns["span"] = [self.spans[m] for m in self.orders[0]]
        errors = self.errors | {"gain": self.gain_errors}
        for name, values in (self.terms | {"gain": self.gains}).items():
            columns[name] = Estimate(values, values - z * errors[name], values + z * errors[name], len(self.null))
        null_gains = np.diff(self.null, axis=1, prepend=0.0)
        for name, drawn in (("joint", self.null), ("gain", null_gains)):
            ends = percentile_interval(drawn, self.confidence_level)
            columns |= dict(zip((f"{name}_null_low", f"{name}_null_high"), ends, strict=True))
        frame = estimates_frame(columns)
        frame["dip"] = frame["gain"] < 0
        # Gains in units of the null's spread at each step; 0 where there is no spread.
        spread = null_gains.std(0, ddof=1) if len(null_gains) > 1 else np.full(steps, np.nan)
        depths = np.nan_to_num(ratio(np.vstack([self.gains, null_gains]), spread))
        deepest = float(percentile_interval(depths[1:].min(1), self.confidence_level)[0])
        frame["inside_null"] = frame["dip"] & (depths[0] >= deepest)
        frame.attrs["units"] = dict.fromkeys(frame.select_dtypes("float").columns, "bits")
        frame.attrs |= {"order": self.order, "method": self.method, "label_entropy": self.label_entropy}
        frame.attrs["warnings"] = list(self.warnings)
        return frame

    def diminishing(self) -> pd.DataFrame:
        """One row: the share of sampled (S ⊂ T, i) whose gain is no larger for T (submodularity, Theorem 7).

        `low` and `high` bound the share over the random orders that the pairs are taken from (none for fewer than 8),
        for these rows. `null_low` and `null_high` show the share under noise, with shuffled labels, where nothing
        diminishes. 1 is submodular; a share inside the null is not evidence.
        """
        each = np.ones(len(self.shares))
        found = estimate(self.shares, "share", counts=each, confidence_level=self.confidence_level)
        null_low, null_high = map(float, percentile_interval(self.null_shares, self.confidence_level))
        row: dict[str, Any] = dict(zip(("share", "low", "high"), map(float, found[:3]), strict=True))
        row |= {"null_low": null_low, "null_high": null_high}
        row |= {"inside_null": bool(null_low <= row["share"] <= null_high), "orders": len(self.shares)}
        return pd.DataFrame([row])

    @property
    def statement(self) -> str:
        """Describe which dips lie inside the null."""
        frame = self.frame()
        dips, outside = frame[frame["dip"]], frame[frame["dip"] & ~frame["inside_null"]]
        if dips.empty:
            return f"The joint information rises at each of {len(frame)} steps."
        counts = f"The joint information dips at {len(dips)} of {len(frame)} steps"
        if not len(self.null):
            return f"{counts}; there is no null to judge them by."
        if outside.empty:
            return f"{counts}, none deeper than what shuffled labels give: information itself never falls."
        where = ", ".join(str(k) for k in outside["members"][:10]) + (", …" if len(outside) > 10 else "")
        return (
            f"{counts}; {len(outside)} of these (k = {where}) lie deeper than "
            "the deepest that shuffled labels give: there the estimate, not the information, falls."
        )

    def __repr__(self) -> str:
        last = self.terms["joint"][-1]
        return f"GainCurve({self.order}, {self.orders.shape[1]} members, {last:.3g} bits: {self.statement})"


def gain_curve_of(
    i: Sample, confidence_level: float, order: str, n_permutations: int, n_resamples: int, orders: int
) -> GainCurve:
    """Compute `Information.gain_curve`."""
    choice("order", order, get_args(Order))
    n_permutations = whole_number("n_permutations", n_permutations, 0, MAX_DRAWS)
    n_resamples = whole_number("n_resamples", n_resamples, 0, MAX_DRAWS)
    orders, members, whole = whole_number("orders", orders, 1, MAX_DRAWS), i.members, i.estimate()
    if order == "depth" and (groups := [c.label for c in i.components if c.kind == "group"]):
        raise InputError(f"{groups[0]} has no place along depth: use order='random' or 'greedy'.")
    is_quick = isinstance(whole, Gaussian) and not whole.separate
    if order == "greedy" and not is_quick and members > MAX_SEARCHED:
        unequal = " where classes have unequal covariances" if i.method == "gaussian" else ""
        instead = "" if i.method == "gaussian" else "estimator='gaussian', or "
        raise InputError(
            f"a greedy search through {members} members takes too long by {i.method}{unequal}: use {instead}n_groups= "
            f"of at most {MAX_SEARCHED}."
        )
    rng = np.random.default_rng([i.seed, 6])
    random_orders = np.stack([rng.permutation(members) for _ in range(orders)])
    # (k, k', place) with k < k' ≤ place: the first k and k' members of an order, and one outside both.
    count = 0 if members < 2 else 20 if i.method == "gaussian" else 3
    drawn = [np.sort(rng.choice(members + 1, 3, replace=False)) for _ in range(orders * count)]
    triples = np.reshape(drawn, (orders, count, 3)).astype(np.int64) - [0, 0, 1]

    def shares_of(estimate: Estimator) -> Float[np.ndarray, " order"]:
        """How often a gain is no larger later, for each order; differences within rounding count as none."""
        gaps = [estimate.submodularity_gaps(order, t) for order, t in zip(random_orders, triples, strict=True)]
        return (np.array(gaps) >= -1e-9).mean(1) if members > 1 else np.zeros(0)

    def orders_of(estimate: Estimator) -> Int[np.ndarray, "repeat step"]:
        if order == "greedy":
            return estimate.greedy_order()[None]
        return random_orders if order == "random" else np.arange(members)[None]

    def curves(estimate: Estimator, orders: Int[np.ndarray, "repeat step"]) -> Float[np.ndarray, "term step"]:
        """Every term, and the gains of the joint information, means over the orders."""
        terms = np.mean([list(estimate.chain(order).values()) for order in orders], 0)
        return np.vstack([terms, np.diff(terms[TERMS.index("joint")], prepend=0.0)])

    null_shares: list[float] = []

    def shuffled_joint(estimate: Estimator) -> Float[np.ndarray, " step"]:
        joint = curves(estimate, orders_of(estimate))[TERMS.index("joint")]
        if members > 1 and len(null_shares) < MAX_NULL_SHARES:
            null_shares.append(shares_of(estimate).mean())
        return joint

    chosen = orders_of(whole)
    found = curves(whole, chosen)
    errors = i.standard_errors(lambda e: curves(e, chosen), found, n_resamples)
    return GainCurve(
        order=order,
        orders=chosen,
        components=i.components,
        spans=i.spans,
        method=i.method,
        terms=dict(zip(TERMS, found, strict=False)),
        errors=dict(zip(TERMS, errors, strict=False)),
        gains=found[-1],
        gain_errors=errors[-1],
        null=np.reshape(i.with_shuffled_labels(shuffled_joint, n_permutations), (-1, members)),
        shares=shares_of(whole),
        null_shares=np.array(null_shares),
        label_entropy=entropy_of_labels(i.labels),
        confidence_level=confidence_level,
        warnings=i.warnings,
        model=getattr(i, "model", ""),
        task=getattr(i, "task", ""),
        rows=len(i.labels),
    )
