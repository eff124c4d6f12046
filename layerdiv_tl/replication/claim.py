"""Claims of the two papers as data (claims.json), and claims 1-8 tested on the frames of a study.

A claim states on which side of a null a number lies. Its interval is over a population (models, the tasks of few
models, training seeds of the same shapes, or the texts of one model), and its verdict holds only for that population.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..ensemble.fits import log_fit
from ..ensemble.intervals import LEAST, LEVEL, Estimate
from ..zoo import registry
from .correlation import SIGNS, curve_correlations
from .layer_sharing import checked_pairs, same_parameters
from .populations import LEAST_SEEDS, NOTHING, mean_by_shape, mean_over_models, on_scale
from .tradeoff import tradeoff_signs

Verdict = Literal["confirmed", "refuted", "within noise", "not tested"]
BILLION = 1e9
# Minimal count of different numbers of components for a curvature.
LEAST_SIZES = 4
NO_CURVES = "this study has no depth tables"
NO_PERMUTATION = "the test swaps curves between models of equal depth, and there are too few of them"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, as a number above (1) or below (−1) a null, averaged on a `scale`; read from claims.json.

    A claim with `needs_p` is decided only together with the p of its own permutation test, one with `undecided` not
    over seeds (claim 2: never), and one with a `condition` only if that one's interval lies above 0, else `unless`.
    """

    number: int
    text: str
    side: int
    measured_in: str
    null: float = np.nan
    needs_p: bool = False
    quantity: str = ""
    scale: Literal["as it is", "fisher", "log"] = "as it is"
    undecided: str = ""
    condition: str = ""
    unless: str = ""


_STORED = json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))
CLAIMS: Mapping[int, Claim] = {entry["number"]: Claim(**entry) for entry in _STORED}
# Scales on which numbers are averaged: (transform, inverse).
SCALES: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "as it is": (np.positive, float),
    "fisher": (lambda r: np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)), np.tanh),
    "log": (np.log, np.exp),
}


@dataclass(frozen=True)
class ClaimTest:
    """One variant of a claim, tested.

    Attributes:
        estimate: The estimate, its interval, and the population of the interval ("nothing" if there is none).
        quantity, note: The estimated quantity and further remarks: the rationale.
        p: The p of the claim's own permutation test.
        models: Number of models behind an interval over tasks or texts; 0 for an interval over models or seeds.
        null, measured_in: None takes those of the claim.
        condition: The estimate of the claim's condition, if it has one.
    """

    number: int
    variant: str
    estimate: Estimate
    quantity: str
    note: str = ""
    p: float = np.nan
    models: int = 0
    null: float | None = None
    measured_in: str | None = None
    condition: Estimate | None = None

    @property
    def interval(self) -> Estimate:
        """The estimate; without its interval if the condition's interval does not lie above 0."""
        e = self.estimate
        is_about = self.condition is None or self.condition.low > 0
        return e if is_about else e._replace(low=np.nan, high=np.nan, over="nothing")

    @property
    def verdict(self) -> Verdict:
        """The verdict, from the side of the null on which the interval lies and the claim's own test, if any."""
        claim, e, null = CLAIMS[self.number], self.interval, self._null
        if not np.isfinite([e.low, e.high, null]).all() or (claim.needs_p and not np.isfinite(self.p)):
            return "not tested"
        if (np.isfinite(self.p) and self.p >= 1 - LEVEL) or e.low <= null <= e.high:
            return "within noise"
        return "confirmed" if (e.low > null) == (claim.side > 0) else "refuted"

    @property
    def population(self) -> str:
        """The population for which the verdict holds: "8 models", or "8 tasks of one model"; "" without an interval."""
        e = self.interval
        whose = {0: "", 1: " of one model"}.get(self.models, f" of these {self.models} models")
        return "" if e.over == "nothing" else f"{e.n} {e.over}{whose}"

    @property
    def rationale(self) -> str:
        """The quantity and the note, with the condition."""
        claim, c = CLAIMS[self.number], self.condition
        words = [self.quantity, *([claim.condition.format(c.value)] if c else []), self.note]
        if c is not None and not c.low > 0 and c.n >= LEAST_SEEDS:
            words.insert(2, claim.unless)
        return "; ".join(filter(None, words))

    def row(self) -> dict[str, Any]:
        """Return the test as a row of the claims table."""
        claim, e = CLAIMS[self.number], self.interval
        row = {"number": self.number, "claim": claim.text, "variant": self.variant}
        row |= {"estimate": e.value, "low": e.low, "high": e.high, "null": self._null}
        row["measured_in"] = claim.measured_in if self.measured_in is None else self.measured_in
        row |= {"p": self.p, "interval_over": e.over, "n": e.n}
        return row | {"verdict": self.verdict, "population": self.population, "rationale": self.rationale}

    @property
    def _null(self) -> float:
        return CLAIMS[self.number].null if self.null is None else self.null


def claims_frame(tests: Iterable[ClaimTest], **attrs: Any) -> pd.DataFrame:
    """Make the claims table: one row per test."""
    frame = pd.DataFrame([test.row() for test in tests])
    frame.attrs |= {"confidence_level": LEVEL} | attrs
    return frame


@dataclass(frozen=True)
class Evidence:
    """The frames of a study at one unit, on which claims 1-8 are tested: `Study.frame`, `models`, and `curves` if any.

    `shapes` are {model: shape}, since training seeds of one shape are not independent; `pairs` are {model that reuses
    layers: model that does not}, and None finds them.
    """

    metrics: pd.DataFrame
    models: pd.DataFrame
    curves: pd.DataFrame | None
    shapes: Mapping[str, str]
    pairs: Mapping[str, str] | None = None
    n_resamples: int = 1000
    seed: int = 0

    @property
    def permuted(self) -> dict[str, Any]:
        """Options of the permutation tests over models."""
        return {"clusters": self.shapes, "n_resamples": self.n_resamples, "seed": self.seed}

    def rows(self, table: str, loss: str, term: str) -> pd.DataFrame:
        """Select the metrics of one term."""
        m = self.metrics
        return m[(m["table"] == table) & (m["loss"] == loss) & (m["term"] == term)]

    def totals(self, loss: str, term: str) -> pd.Series:
        """Return one total for every (model, task)."""
        return self.rows("totals", loss, term).set_index(["model", "task"])["mean"]

    def shares(self, loss: str, term: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return each module's share of `term` and of the members, for every (model, task) with a positive term."""
        rows, keys = self.rows("modules", loss, term), ["model", "task"]
        wide = [rows.pivot(index=keys, columns="module", values=x).fillna(0.0) for x in ("mean", "members")]
        shares, counts = (x.div(x.sum(axis=1), axis=0)[wide[0].sum(axis=1) > 0] for x in wide)
        return shares, counts

    def interval_words(self, e: Estimate, tasks: bool = True) -> str:
        """Describe the population of an interval, or the condition for having one."""
        clustered = len(set(self.shapes.values())) < len(self.shapes)
        seeds = "; training seeds of one shape count as one model" if clustered else ""
        if e.over == "models":
            return f"the interval is over {e.n} models{seeds}"
        if e.over == "tasks":
            return f"the interval is over {e.n} tasks and speaks of these models only"
        return f"an interval needs {LEAST} models" + (f" or {LEAST} tasks" if tasks else "") + seeds

    def mean_test(
        self, number: int, variant: str, values: pd.Series, note: str = "", p: float = np.nan, tasks: bool = True
    ) -> ClaimTest:
        """Test a mean over models or, with `tasks`, over the tasks of few models; `note` is about this variant."""
        claim = CLAIMS[number]
        transform, inverse = SCALES[claim.scale]
        with np.errstate(divide="ignore", invalid="ignore"):
            e, models = mean_over_models(transform(values), self.shapes, tasks)
            e = on_scale(e, inverse)
        note = "; ".join(filter(None, (note, self.interval_words(e, tasks))))
        return ClaimTest(number, variant, e, claim.quantity, note, p, models)


def _mse_tracks_accuracy(evidence: Evidence) -> Iterator[ClaimTest]:
    if evidence.curves is None:
        yield from (ClaimTest(number, "per model", NOTHING, NO_CURVES) for number in (1, 2))
        return
    r, p = curve_correlations(evidence.curves, "mse", SIGNS["mse"], **evidence.permuted)
    r = r.set_index(["model", "task"])
    constant = r["pearson"].isna().sum()
    more = f" ({constant} more do not vary)" if constant else ""
    permuted = "p gives models the MSE of others of their depth" if np.isfinite(p) else NO_PERMUTATION
    note = f"mean of {len(r) - constant} curves{more}; {permuted}"
    yield evidence.mean_test(1, "per model", r["pearson"], note, p, tasks=False)
    note = f"Spearman's is {r['spearman'].mean():.2f} on average; {CLAIMS[2].undecided}"
    yield evidence.mean_test(2, "per model", r["spearman"] - r["pearson"], note, tasks=False)


def _bias_follows_counts(evidence: Evidence) -> Iterator[ClaimTest]:
    uniform = "where softmax of one component is nearly uniform, every member has nearly the same bias"
    variants = (("Eq. 14", "paper", "bias", uniform), ("raw", "squared", "bias", ""))
    for variant, loss, term, note in (*variants, ("centered", "squared", "bias_centered", "")):
        shares, counts = evidence.shares(loss, term)
        # The total variation distance between the two distributions over modules.
        yield evidence.mean_test(3, variant, (shares - counts).abs().sum(axis=1) / 2, note)


def _mlps_dominate(evidence: Evidence) -> Iterator[ClaimTest]:
    for variant, term in (("raw", "diversity"), ("centered", "diversity_centered")):
        shares, counts = evidence.shares("squared", term)
        values = shares["mlp"] if "mlp" in shares else shares.sum(axis=1)[:0]
        count = counts["mlp"].mean() if "mlp" in shares else 0.0
        yield evidence.mean_test(4, variant, values, f"they are {100 * count:.0f} % of the members")


def _bias_and_diversity_trade_off(evidence: Evidence) -> Iterator[ClaimTest]:
    variants = {"centered": ("bias_centered", "diversity_centered"), "Eq. 14": ("bias", "diversity")}
    for variant, (bias, diversity) in variants.items():
        if evidence.curves is None:
            yield ClaimTest(5, variant, NOTHING, NO_CURVES)
            continue
        signs = tradeoff_signs(evidence.curves, bias=bias, diversity=diversity, **evidence.permuted)
        over = "models" if np.isfinite(signs.low) else "nothing"
        e = Estimate(signs.difference, signs.low, signs.high, signs.models, over)
        rises, still, falls = signs.counts.sum(1).tolist()
        note = evidence.interval_words(e, tasks=False)
        if not np.isfinite(signs.difference):
            note += " and steps of both kinds"
        else:
            permuted = "p gives models bias and diversity of others of their depth"
            note += f"; {permuted if np.isfinite(signs.p) else NO_PERMUTATION}"
        note = f"{still} and {rises + falls} steps; {note}"
        yield ClaimTest(5, variant, e, CLAIMS[5].quantity, note, signs.p)


def _bias_stays_away(evidence: Evidence) -> Iterator[ClaimTest]:
    ratio = evidence.totals("paper", "bias") / evidence.totals("paper", "zero_bias")
    note = f"it is at least {ratio.min():.2f}, and near 1 says that single components predict next to nothing"
    yield evidence.mean_test(6, "Eq. 14", ratio, note)


def _returns_diminish(evidence: Evidence) -> Iterator[ClaimTest]:
    """Test curvatures of accuracy and −MSE against the number of components; seeds of one shape are one point."""
    some, complete = False, 0
    for which, least in (("all models", 0.0), ("≥ 1B parameters", BILLION)):
        for name, sign, pair, unit in (
            ("accuracy", 1, ("squared", "accuracy"), "points"),
            ("MSE", -1, ("paper", "loss"), "hundredths"),
        ):
            means = 100 * evidence.totals(*pair).unstack().mean(axis=1, skipna=False)
            complete = int(means.notna().sum())
            points = mean_by_shape(evidence.models, means, evidence.shapes, least)
            if points["members"].nunique() < LEAST_SIZES:
                continue
            some = True
            x, y = points["members"].to_numpy(), sign * points["mean"].to_numpy()
            fit = log_fit(x, y)
            terms = fit.frame().set_index("term")[["estimate", "robust_low", "robust_high"]].T
            over = "models" if len(x) >= LEAST else "nothing"
            slope, low, high = map(float, np.log(2) * terms["slope"])
            doubling = Estimate(slope, low, high, len(x))
            bend, low, high = map(float, terms["curvature"])
            curvature = Estimate(bend, low, high, len(x), over)
            if over == "nothing":
                curvature = curvature._replace(low=np.nan, high=np.nan)
            quantity = CLAIMS[7].quantity.format("−" * (sign < 0) + name)
            note = evidence.interval_words(curvature, tasks=False)
            more: dict[str, Any] = {"measured_in": unit, "condition": doubling}
            yield ClaimTest(7, f"{name}, {which}", curvature, quantity, note, **more)
    if not some:
        needs = f"a curvature needs {LEAST_SIZES} different numbers of components"
        quantity = f"{complete} model{'s' * (complete != 1)} with every task; {needs}"
        yield ClaimTest(7, "all models", NOTHING._replace(n=complete), quantity)


def _sharing_lowers_diversity(evidence: Evidence) -> Iterator[ClaimTest]:
    if evidence.pairs is None:
        seeds = {name: seed for name, (_, seed) in registry.seeds(evidence.models["model"]).items()}
        pairs = same_parameters(evidence.models, seeds)
    else:
        pairs = checked_pairs(evidence.models, evidence.pairs)
    if not pairs:
        yield ClaimTest(8, "raw", NOTHING, "no model here reuses its layers next to one of the same size that does not")
        return
    quantity = f"{CLAIMS[8].quantity}: {', '.join(f'{reuses} over {baseline}' for reuses, baseline in pairs.items())}"
    for correction, term in (("before the size correction", "diversity"), ("after it", "diversity_logit")):
        for gauge, end in (("raw", ""), ("centered", "_centered")):
            values = evidence.totals("squared", f"{term}{end}")
            ratios = {reuses: values[reuses] / values[baseline] for reuses, baseline in pairs.items()}
            test = evidence.mean_test(8, f"{correction}, {gauge}", pd.concat(ratios, names=["model"]))
            yield replace(test, quantity=quantity)


def claim_tests(evidence: Evidence) -> Iterator[ClaimTest]:
    """Yield the tests of claims 1-8."""
    yield from _mse_tracks_accuracy(evidence)
    yield from _bias_follows_counts(evidence)
    yield from _mlps_dominate(evidence)
    yield from _bias_and_diversity_trade_off(evidence)
    yield from _bias_stays_away(evidence)
    yield from _returns_diminish(evidence)
    yield from _sharing_lowers_diversity(evidence)
