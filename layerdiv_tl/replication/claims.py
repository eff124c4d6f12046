"""Claims 1-8 of *Diversity of Transformer Layers*, tested on a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..components import Unit
from ..ensemble.fits import log_fit
from ..ensemble.intervals import LEAST
from ..errors import InputError
from ..zoo import registry
from .claim_tests import CLAIMS, SCALES, ClaimTest, Estimate, mean_by_shape, mean_over_models
from .correlation import SIGNS, curve_correlations
from .layer_sharing import checked_pairs, same_parameters
from .tradeoff import tradeoff_signs

if TYPE_CHECKING:
    from ..studies.study import Study

BILLION = 1e9
# Different numbers of components that a curvature needs.
LEAST_SIZES = 4
NO_CURVES = "this study has no depth tables"
NO_PERMUTATION = (
    "too few models of one depth swap their curves, and nothing else tells a relation from what happens at the same "
    "depth of all models"
)


@dataclass(frozen=True)
class ClaimSource:
    """A study at one unit, in the forms the claims need."""

    study: Study
    unit: Unit
    pairs: Mapping[str, str] | None
    n_resamples: int
    seed: int

    @cached_property
    def shapes(self) -> dict[str, str]:
        """{model: shape}: training seeds of one shape are not independent of one another."""
        return self.study.shapes(self.unit)

    @property
    def clustered(self) -> bool:
        """Whether any two models have one shape."""
        return len(set(self.shapes.values())) < len(self.shapes)

    @cached_property
    def curves(self) -> pd.DataFrame | None:
        """Along depth; None where the study has no depth tables."""
        try:
            return self.study.curves(self.unit)
        except InputError:
            return None

    def rows(self, table: str, loss: str, term: str) -> pd.DataFrame:
        """The study's metrics at this unit, of one term."""
        wanted = {"unit": self.unit, "table": table, "loss": loss, "term": term}
        m = self.study.metrics
        return m[np.logical_and.reduce([m[name] == value for name, value in wanted.items()])]

    def totals(self, loss: str, term: str) -> pd.Series:
        """One number for every (model, task)."""
        return self.rows("totals", loss, term).set_index(["model", "task"])["mean"]

    def shares(self, loss: str, term: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Each module's share of `term` and of the members, for every (model, task) where the term is above 0."""
        rows, keys = self.rows("modules", loss, term), ["model", "task"]
        wide = [rows.pivot(index=keys, columns="module", values=x).fillna(0.0) for x in ("mean", "members")]
        shares, counts = (x.div(x.sum(axis=1), axis=0)[wide[0].sum(axis=1) > 0] for x in wide)
        return shares, counts

    def mean_test(
        self, number: int, variant: str, values: pd.Series, note: str = "", p: float = np.nan, tasks: bool = True
    ) -> ClaimTest:
        """The test of a mean over models, or, with `tasks`, over the tasks of few; `note` is about this variant."""
        claim = CLAIMS[number]
        there, back = SCALES[claim.scale]
        with np.errstate(divide="ignore", invalid="ignore"):
            e = mean_over_models(there(values), self.shapes, p, tasks).transformed(back)
        return ClaimTest(number, variant, e, e.explained(claim.quantity + note, self.clustered, tasks))


def _mse_tracks_accuracy(source: ClaimSource) -> Iterator[ClaimTest]:
    if source.curves is None:
        for number in (1, 2):
            yield ClaimTest(number, "per model", Estimate(interval_over=""), NO_CURVES)
        return
    r, p = curve_correlations(
        source.curves, "mse", SIGNS["mse"], clusters=source.shapes, n_resamples=source.n_resamples, seed=source.seed
    )
    r = r.set_index(["model", "task"])
    constant = r["pearson"].isna().sum()
    more = f" ({constant} more do not vary)" if constant else ""
    permuted = "p gives models the MSE of others of their depth" if np.isfinite(p) else NO_PERMUTATION
    note = f", mean of {len(r) - constant} curves{more}; {permuted}"
    yield source.mean_test(1, "per model", r["pearson"], note, p, tasks=False)
    note = f"; Spearman's is {r['spearman'].mean():.2f} on average; {CLAIMS[2].undecided}"
    yield source.mean_test(2, "per model", r["spearman"] - r["pearson"], note, tasks=False)


def _bias_follows_counts(source: ClaimSource) -> Iterator[ClaimTest]:
    uniform = "; where softmax of one component is nearly uniform, every member has nearly the same bias"
    variants = (("Eq. 14", "paper", "bias", uniform), ("raw", "squared", "bias", ""))
    for variant, loss, term, note in (*variants, ("centered", "squared", "bias_centered", "")):
        shares, counts = source.shares(loss, term)
        # The total variation distance of both distributions over modules.
        yield source.mean_test(3, variant, (shares - counts).abs().sum(axis=1) / 2, note)


def _mlps_dominate(source: ClaimSource) -> Iterator[ClaimTest]:
    for variant, term in (("raw", "diversity"), ("centered", "diversity_centered")):
        shares, counts = source.shares("squared", term)
        values = shares["mlp"] if "mlp" in shares else shares.sum(axis=1)[:0]
        count = counts["mlp"].mean() if "mlp" in shares else 0.0
        yield source.mean_test(4, variant, values, f"; they are {count:.0%} of the members")


def _bias_and_diversity_trade_off(source: ClaimSource) -> Iterator[ClaimTest]:
    variants = {"centered": ("bias_centered", "diversity_centered"), "Eq. 14": ("bias", "diversity")}
    for variant, (bias, diversity) in variants.items():
        if source.curves is None:
            yield ClaimTest(5, variant, Estimate(), NO_CURVES)
            continue
        options: dict[str, Any] = {"clusters": source.shapes, "n_resamples": source.n_resamples, "seed": source.seed}
        signs = tradeoff_signs(source.curves, bias=bias, diversity=diversity, **options)
        over = "models" if np.isfinite(signs.low) else "nothing"
        e = Estimate(signs.difference, signs.low, signs.high, over, signs.models, signs.p)
        rises, still, falls = signs.counts.sum(1).tolist()
        quantity = f"{CLAIMS[5].quantity} ({still} and {rises + falls} steps)"
        rationale = e.explained(quantity, source.clustered, tasks=False)
        if not np.isfinite(signs.difference):
            rationale += " and steps of both kinds"
        elif np.isfinite(signs.p):
            rationale += "; p gives models bias and diversity of others of their depth"
        else:
            rationale += f"; {NO_PERMUTATION}"
        yield ClaimTest(5, variant, e, rationale)


def _bias_stays_away(source: ClaimSource) -> Iterator[ClaimTest]:
    ratio = source.totals("paper", "bias") / source.totals("paper", "zero_bias")
    note = f"; it is at least {ratio.min():.2f}, and near 1 says that single components predict next to nothing"
    yield source.mean_test(6, "Eq. 14", ratio, note)


def _returns_diminish(source: ClaimSource) -> Iterator[ClaimTest]:
    """Curvatures of accuracy and −MSE against the number of components; training seeds of one shape are one point."""
    some = False
    for which, least in (("all models", 0.0), ("≥ 1B parameters", BILLION)):
        for quantity, sign, measured_in in (("accuracy", 1, "points"), ("MSE", -1, "hundredths")):
            points = mean_by_shape(source.study, quantity, source.unit, least)
            if points["members"].nunique() < LEAST_SIZES:
                continue
            some = True
            x, y = points["members"].to_numpy(), sign * points["mean"].to_numpy()
            fit = log_fit(x, y)
            terms = fit.frame().set_index("term")[["estimate", "robust_low", "robust_high"]].T
            curvature, rises, n = terms["curvature"], terms["slope"]["robust_low"] > 0, len(fit.x)
            low, high = curvature[["robust_low", "robust_high"]] if rises and n >= LEAST else (np.nan, np.nan)
            rationale = curvature_rationale(quantity, sign * fit.slope, rises)
            if n < LEAST:
                rationale += f"; an interval needs {LEAST} models"
            elif source.clustered:
                rationale += f"; the interval is over {n} models; training seeds of one shape count as one model"
            e = Estimate(curvature["estimate"], low, high, "models" if n >= LEAST else "nothing", n)
            variant = f"{quantity}, {which}"
            yield ClaimTest(7, variant, e, rationale, measured_in=measured_in, slope=fit.slope)
    if not some:
        complete = source.study.table(source.unit)["accuracy"]["Avg."].dropna()
        rationale = (
            f"{len(complete)} model{'s' * (len(complete) != 1)} with every task; a curvature needs {LEAST_SIZES} "
            "different numbers of components"
        )
        yield ClaimTest(7, "all models", Estimate(n=len(complete)), rationale)


def curvature_rationale(quantity: str, slope: float, rises: bool) -> str:
    """What is estimated for claim 7 (`slope` is the quantity's own), and whether there are returns to diminish."""
    return (
        f"curvature of {'−' * (quantity == 'MSE')}{quantity}, averaged over tasks, against the number of components in "
        f"standard deviations; each doubling brings {slope * np.log(2):+.3g}"
        + ("" if rises else ", not clearly for the better: no returns that could diminish")
    )


def _sharing_lowers_diversity(source: ClaimSource) -> Iterator[ClaimTest]:
    models = source.study.models(source.unit)
    seeds = {name: seed for name, (_, seed) in registry.seeds(models["model"]).items()}
    pairs = same_parameters(models, seeds) if source.pairs is None else checked_pairs(models, source.pairs)
    if not pairs:
        rationale = "no model here reuses its layers next to one of the same size that does not"
        yield ClaimTest(8, "raw", Estimate(), rationale)
        return
    note = ": " + ", ".join(f"{reuses} over {baseline}" for reuses, baseline in pairs.items())
    for correction, term in (("before the size correction", "diversity"), ("after it", "diversity_logit")):
        for gauge, end in (("raw", ""), ("centered", "_centered")):
            values = source.totals("squared", f"{term}{end}")
            ratios = {reuses: values[reuses] / values[baseline] for reuses, baseline in pairs.items()}
            yield source.mean_test(8, f"{correction}, {gauge}", pd.concat(ratios, names=["model"]), note)


def claim_tests(source: ClaimSource) -> Iterator[ClaimTest]:
    """The rows of claims 1-8."""
    yield from _mse_tracks_accuracy(source)
    yield from _bias_follows_counts(source)
    yield from _mlps_dominate(source)
    yield from _bias_and_diversity_trade_off(source)
    yield from _bias_stays_away(source)
    yield from _returns_diminish(source)
    yield from _sharing_lowers_diversity(source)
