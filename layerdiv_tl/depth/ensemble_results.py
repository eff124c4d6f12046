"""What `ensemble_test` found: statistics with intervals and nulls, beside planted networks, and a verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..components import Component, component_columns
from ..ensemble.averaging import (
    LEVEL,
    ErrorTerms,
    Moments,
    common_share,
    correlations,
    count_groups,
    eigenvalues,
    error_terms,
    far_correlation,
)
from ..ensemble.intervals import LEAST, interval_note, jackknife, leave_one_out
from ..results import Result
from .reruns import CLEAN, WITHOUT
from .token_stats import labeled_frame, with_ends
from .verdicts import Verdict, judge

UNITS = {
    "loss": "nats",
    "loss_without_writes": "nats",
    "damage": "nats",
    "kappa": "1: independent errors",
    "kappa_squared": "1: independent errors",
    "icc": "correlation",
    "far_correlation": "correlation",
    "groups": "groups",
    "gain": "share of what could be gained",
    "direct_share": "share of the effect of a skip",
    "skip_to_direct": "ratio",
    "rescaled_to_dropped": "ratio",
    "contiguous_to_spaced": "ratio",
    "slope": "log-log slope",
    **dict.fromkeys(
        ("skip_one", "keep_half", "keep_half_spaced", "reverse", "shuffle", "swap_neighbors", "repeat", "parallel"),
        "share of the damage without the group",
    ),
    "neighbor_cosine": "cosine",
    "corrections": "share of neighbors",
}
# What each statistic would be for members that average independent errors of one function.
AVERAGED = {
    "kappa": 1.0,
    "kappa_squared": 1.0,
    "direct_share": 1.0,
    "skip_to_direct": 1.0,
    "contiguous_to_spaced": 1.0,
    "slope": 1.0,
}
AVERAGED |= dict.fromkeys(("reverse", "shuffle", "swap_neighbors", "repeat", "parallel"), 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleTest(Result):
    """Whether the layers of a group average, repeat one another, step along a flow, or cooperate.

    Attributes:
        components: The members, in order.
        count: `[row]`: how many predictions each row has.
        losses: `[row, 2 member + 2]`: sums over predictions of the cross-entropy in nats: with n times a member's
            contribution in place of all, of every member; without the contribution of each; of the model; without those
            of the group. From one clean pass.
        entropy: `[row]`: sums of the least cross-entropy there can be: of the target, or as given.
        floor_known: Whether that least is known, because the target is a distribution or it was given.
        products, sums: `[row, term, term]`, `[row, term, y]`: moments of members, the rest and the target over
            predictions (`ensemble.averaging.Moments`); `scale` multiplies the target.
        cosines: `[row, 4, pair]`: sums over predictions of the cosine of neighbors' writes, the same with the second at
            another prediction, and how often each is below −0.1.
        null: `[draw, member, member]`: correlations of rotated writes.
        parts, groups: Which part of the group each member is in, and how many groups of output directions were found.
        runs: The name of every rerun, in order; none where `draws` was 0.
        run_loss: `[row, run]`: sums over predictions, in nats.
        effects: `[row, skipped member, 2]`: sums of ⟨δ, c⟩ and |δ|².
        skipped: Which members were skipped.
    """

    components: tuple[Component, ...]
    count: Float[np.ndarray, " row"]
    losses: Float[np.ndarray, "row column"]
    entropy: Float[np.ndarray, " row"]
    floor_known: bool
    products: Float[np.ndarray, "row term term"]
    sums: Float[np.ndarray, "row term y"]
    scale: float
    cosines: Float[np.ndarray, "row 4 pair"]
    null: Float[np.ndarray, "draw member member"]
    parts: Int[np.ndarray, " member"]
    runs: tuple[str, ...]
    run_loss: Float[np.ndarray, "row run"]
    effects: Float[np.ndarray, "row skip 2"]
    skipped: tuple[int, ...]
    target: str
    model: str
    rows: str
    draws: int
    seed: int

    @property
    def groups(self) -> int:
        """How many groups of output directions the members share; 0: no more than rotated writes do."""
        found = eigenvalues(self.correlations()[None])[0]
        return count_groups(found, eigenvalues(self.null))

    @property
    def passes(self) -> int:
        """How many passes a row took, counting reruns of a part as whole."""
        return 1 + len(self.runs)

    @cached_property
    def statistics(self) -> dict[str, tuple[float, float, float]]:
        """Estimate, low and high of every statistic; NaN where there is none."""
        found: dict[str, tuple[float, float, float]] = {}
        for name, value in self._estimates(self._totals).items():
            found[name] = (float(value[0]), *self._interval(name, float(value[0])))
        return found

    def frame(self) -> pd.DataFrame:
        """One row per statistic: `value` with its 95 % interval over rows, and what it is held beside.

        `null`, `null_low`, `null_high`: under the rotation of writes (correlations), with the second of two neighbors
        at another prediction (cosines). `averaged`: what members that average independent errors of one function have.
        """
        null = self._null()
        records = []
        for name, (value, low, high) in self.statistics.items():
            record: dict[str, Any] = {"statistic": name} | with_ends("value", value, low, high)
            record |= with_ends("null", *null.get(name, (np.nan,) * 3))
            record |= {"averaged": AVERAGED.get(name, np.nan), "measured_in": UNITS[name]}
            records.append(record)
        return labeled_frame(records, {"value": "see measured_in"}, interval_note(len(self.count)))

    def beside_planted(self) -> pd.DataFrame:
        """One row per statistic and planted regime: this `value`, and the middle 90 % of planted networks'."""
        records = []
        for regime, about in planted_regimes()["regimes"].items():
            for name, (value, *_) in self.statistics.items():
                if name not in about["statistics"]:
                    continue
                low, median, high = about["statistics"][name]
                record = {"statistic": name, "regime": regime, "verdict": about["verdict"], "value": value}
                records.append(record | {"planted": median, "planted_low": low, "planted_high": high})
        return pd.DataFrame(records)

    @property
    def verdict(self) -> Verdict:
        """What the members do, with reasons and limits."""
        return judge(self.statistics, self.floor_known, self.largest_kappa)

    @property
    def largest_kappa(self) -> float:
        """What κ would be for exact copies: the members of a part, mean over members."""
        sizes = np.bincount(self.parts)
        several = sizes[sizes > 1]
        return float(np.average(several, weights=several))

    def error_terms(self) -> pd.DataFrame:
        """Bias², variance and covariance of the members' errors, in logits² per prediction: `error_terms`.

        `share`: what each adds to the loss, bias² + variance / n + (1 − 1/n) · covariance.
        """
        n = len(self.components)
        point = error_terms(self._moments.all(), self.scale)
        left = error_terms(self._moments.left_out(), self.scale)
        factors = {
            "loss": 1.0,
            "bias": 1.0,
            "variance": 1 / n,
            "covariance": 1 - 1 / n,
            "single": np.nan,
            "kappa": np.nan,
        }
        records = []
        for name, factor in factors.items():
            value, out = getattr(point, name)[0], getattr(left, name)
            ends = jackknife(value, out)
            record: dict[str, Any] = {"term": name} | with_ends("value", float(value), *map(float, ends))
            records.append(record | {"share": factor * float(value)})
        return labeled_frame(records, {"value": "logits²", "share": "logits²"}, interval_note(len(self.count)))

    def members(self) -> pd.DataFrame:
        """One row per member: its loss in place of all, without it, its part of the group, its effect when skipped."""
        n, total = len(self.components), self.count.sum()
        loss = self.losses.sum(0) / total
        columns: dict[str, Any] = component_columns(self.components) | {"part": self.parts}
        columns |= {"loss_alone": loss[:n], "loss_without_write": loss[n : 2 * n] - loss[2 * n]}
        growth = np.full(n, np.nan)
        if self.skipped:
            growth[list(self.skipped)] = (self._run_means("skip") - self._run_means(CLEAN)).sum(0) / total
        columns["loss_without_layer"] = growth
        return labeled_frame(columns, dict.fromkeys(("loss_alone", "loss_without_write", "loss_without_layer"), "nats"))

    def correlations(self) -> Float[np.ndarray, "member member"]:
        """Of the members' contributions to the answer, over options and predictions."""
        n = len(self.components)
        found: np.ndarray = correlations(self._moments.all().means()[1][:, :n, :n])[0]
        return found

    def __repr__(self) -> str:
        return f"EnsembleTest({self.model}: {len(self.components)} layers on {self.rows}; {self.verdict})"

    @property
    def _moments(self) -> Moments:
        return Moments(self.products, self.sums, self.count)

    @property
    def _totals(self) -> dict[str, Any]:
        """Everything summed over rows, as one draw."""
        return {name: getattr(self, name).sum(0)[None] for name in _SUMMED} | {"moments": self._moments.all()}

    def _interval(self, name: str, value: float) -> tuple[float, float]:
        if name == "groups" or not np.isfinite(value) or len(self.count) < LEAST:
            return np.nan, np.nan
        low, high = jackknife(value, self._left_out[name])
        return float(low), float(high)

    @cached_property
    def _left_out(self) -> dict[str, np.ndarray]:
        rest = {name: getattr(self, name).sum(0)[None] - getattr(self, name) for name in _SUMMED}
        return self._estimates(rest | {"moments": self._moments.left_out()})

    def _run_means(self, name: str, sums: np.ndarray | None = None) -> np.ndarray:
        """`[draw, run]` of one kind."""
        sums = self.run_loss if sums is None else sums
        return sums[:, [i for i, run in enumerate(self.runs) if run == name]]

    def _estimates(self, s: dict[str, Any]) -> dict[str, Float[np.ndarray, " draw"]]:
        """Every statistic, from sums over some rows."""
        n, losses = len(self.components), s["losses"]
        count = s["count"][..., None]
        own, without, loss, rest = losses[:, :n], losses[:, n : 2 * n], losses[:, 2 * n], losses[:, 2 * n + 1]
        floor = s["entropy"]
        terms: ErrorTerms = error_terms(s["moments"], self.scale)
        covariances = s["moments"].means()[1][:, :n, :n]
        common = common_share(covariances)
        found = {
            "loss": loss / s["count"],
            "loss_without_writes": rest / s["count"],
            "kappa": self._kappa(own, loss, floor),
            "kappa_squared": terms.kappa,
            "icc": common,
            "far_correlation": np.where(np.isnan(common), np.nan, far_correlation(correlations(covariances))),
            "groups": np.full(len(loss), float(self.groups)) if len(loss) == 1 else np.full(len(loss), np.nan),
            "gain": (rest - loss) / (rest - floor),
        }
        if self.runs:
            found |= self._of_runs(s, without, loss)
        cosines = s["cosines"].mean(2) / count
        found |= {"neighbor_cosine": cosines[:, 0], "corrections": cosines[:, 2]}
        return found

    def _kappa(self, own: np.ndarray, loss: np.ndarray, floor: np.ndarray) -> np.ndarray:
        """n_p · (loss − floor) / (a member's loss − floor), mean over the parts that have several members."""
        parts, sizes = np.unique(self.parts, return_counts=True)
        several = [(part, size) for part, size in zip(parts, sizes, strict=True) if size > 1]
        if not several:
            return np.full(len(loss), np.nan)
        found = [s * (loss - floor) / (own[:, self.parts == p].mean(1) - floor) for p, s in several]
        return np.average(found, axis=0, weights=[s for _, s in several])

    def _of_runs(self, s: dict[str, Any], without: np.ndarray, direct: np.ndarray) -> dict[str, np.ndarray]:
        loss, skipped = s["run_loss"], list(self.skipped)

        def growth(name: str) -> np.ndarray:
            return self._run_means(name, loss) - self._run_means(CLEAN, loss)

        all_of_it = growth(WITHOUT)[:, 0]

        def damage(name: str) -> np.ndarray:
            return np.asarray(growth(name).mean(1) / all_of_it)

        share = s["effects"][..., 0] / s["effects"][..., 1].clip(1e-300)
        n = len(self.components)
        by_share = {0.25: "keep quarter, rescaled", 0.5: "keep half, rescaled", 0.75: "keep three quarters, rescaled"}
        x = np.log([1 / (f * n) - 1 / n for f in by_share])
        with np.errstate(invalid="ignore", divide="ignore"):
            d = np.log(np.stack([damage(name) for name in by_share.values()], 1))
        x = x - x.mean()
        return {
            "damage": all_of_it / s["count"],
            "direct_share": share.mean(1),
            "skip_to_direct": growth("skip").sum(1) / (without[:, skipped] - direct[:, None]).sum(1),
            "skip_one": damage("skip"),
            "keep_half": damage("keep half, rescaled"),
            "keep_half_spaced": damage("keep spaced half, rescaled"),
            "rescaled_to_dropped": damage("keep half, rescaled") / damage("keep half"),
            "contiguous_to_spaced": damage("keep contiguous half, rescaled") / damage("keep spaced half, rescaled"),
            "slope": (d * x).sum(1) / (x**2).sum(),
            **{name.replace(" ", "_"): damage(name) for name in ("reverse", "shuffle", "swap neighbors")},
            "repeat": np.median(growth("repeat"), 1) / all_of_it,
            "parallel": damage("parallel"),
        }

    def _null(self) -> dict[str, tuple[float, float, float]]:
        found: dict[str, tuple[float, float, float]] = {}
        for name, draws in (("icc", _mean_correlation(self.null)), ("far_correlation", far_correlation(self.null))):
            low, high = np.quantile(draws, [1 - LEVEL, LEVEL])
            found[name] = (float(draws.mean()), float(low), float(high))
        means = self.cosines.mean(2)
        for name, column in (("neighbor_cosine", 1), ("corrections", 3)):
            estimate = means[:, column].sum() / self.count.sum()
            ends = jackknife(estimate, leave_one_out(means[:, column], self.count))
            found[name] = (float(estimate), float(ends[0]), float(ends[1]))
        return found


_SUMMED = ("count", "losses", "entropy", "run_loss", "effects", "cosines")


def _mean_correlation(found: Float[np.ndarray, "draw n n"]) -> Float[np.ndarray, " draw"]:
    n = found.shape[1]
    return (found.sum((1, 2)) - n) / (n * (n - 1))


def planted_regimes() -> dict[str, Any]:
    """Statistics of planted networks, and the error rates of verdicts on held-out seeds."""
    return dict(json.loads(files(__package__).joinpath("planted_regimes.json").read_text()))
