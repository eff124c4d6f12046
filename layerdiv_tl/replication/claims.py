"""What the papers claim, and what a study says about it: estimate, interval, null, verdict (MATHS 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..components import Unit
from ..ensemble.intervals import LEAST
from ..ensemble.permutation import cluster_numbers
from ..ensemble.scaling import LogFit, log_fit
from ..errors import InputError
from ..zoo import registry as trained
from .claim_tests import MARGIN, Estimate, Reading, mean_of, scaled, spoken, table_of
from .correlation import SIGNS, curve_correlations
from .depth_claims import depth_readings
from .layer_pairs import given, same_parameters
from .tradeoff import tradeoff_signs

if TYPE_CHECKING:
    import pandas as pd

    from ..studies.study import Study

# Bias that has come no further than this part of the way from a uniform prediction to 0 is away from 0.
HALF = 0.5
BILLION = 1e9
# Different numbers of components that a curvature needs.
CURVED = 4
UNPERMUTED = (
    "too few models of one depth swap their curves, and nothing else tells a relation from what happens at the same "
    "depth of all models"
)
UNRANKED = (
    "no null: accuracy counted over rows, and one jump of both curves, lower Spearman's more than Pearson's whether or "
    "not the curves themselves do"
)


def claims_of(study: Study, unit: Unit, pairs: Mapping[str, str] | None, n_resamples: int, seed: int) -> pd.DataFrame:
    """The table that `Study.claims` gives."""
    held = Held(study, unit, pairs, n_resamples, seed)
    frame = table_of([*readings(held), *depth_readings(study.depth)])
    frame.attrs |= {"n_resamples": n_resamples, "seed": seed, "component unit": unit}
    return frame


def readings(held: Held) -> Iterator[Reading]:
    """The rows of claims 1-8."""
    for claim in _CLAIMS:
        yield from claim(held)


class Held:
    """What a study holds at one unit, in the forms the claims need."""

    def __init__(self, study: Study, unit: Unit, pairs: Mapping[str, str] | None, n_resamples: int, seed: int) -> None:
        self.study, self.unit, self.pairs, self.n_resamples, self.seed = study, unit, pairs, n_resamples, seed
        self.metrics = study.metrics[study.metrics["unit"] == unit]
        # {model: shape}: training seeds of one shape are not independent of one another.
        self.shapes = study._shapes(unit)
        self.clustered = len(set(self.shapes.values())) < len(self.shapes)

    def curves(self) -> pd.DataFrame | None:
        """Along depth; None where the study has no depth tables."""
        try:
            return self.study.curves(self.unit)
        except InputError:
            return None

    def totals(self, loss: str, term: str) -> pd.Series:
        """One number for every (model, task)."""
        m = self.metrics
        rows = m[(m["table"] == "totals") & (m["loss"] == loss) & (m["term"] == term)]
        return rows.set_index(["model", "task"])["mean"]

    def mean(self, values: pd.Series) -> Estimate:
        """Over models or the tasks of few."""
        return mean_of(values, self.shapes)

    def spoken(self, e: Estimate, what: str) -> str:
        """With what the interval is over."""
        return spoken(e, what, self.clustered)

    def shares(self, loss: str, term: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Of every (model, task): the share of `term` that each module holds, and its share of the members."""
        m = self.metrics
        rows = m[(m["table"] == "modules") & (m["loss"] == loss) & (m["term"] == term)]
        parts = rows.pivot(index=["model", "task"], columns="module", values="mean").fillna(0.0)
        counts = rows.pivot(index=["model", "task"], columns="module", values="members").fillna(0.0)
        whole = parts.sum(axis=1)
        parts, counts = parts[whole > 0], counts[whole > 0]
        return parts.div(whole[whole > 0], axis=0), counts.div(counts.sum(axis=1), axis=0)


def _tracks(held: Held) -> Iterator[Reading]:
    claim, below = "MSE tracks accuracy along depth", "Spearman's correlation is below Pearson's"
    curves = held.curves()
    if curves is None:
        for number, text in ((1, claim), (2, below)):
            yield Reading(
                number, text, "per model", Estimate(), 0.0, 1, "correlation", "this study has no depth tables"
            )
        return
    found, p = curve_correlations(
        curves, "mse", SIGNS["mse"], clusters=held.shapes, n_resamples=held.n_resamples, seed=held.seed
    )
    found = found.set_index(["model", "task"])
    fisher = np.arctanh(found["pearson"].clip(-1 + 1e-12, 1 - 1e-12))
    e = scaled(mean_of(fisher, held.shapes, p, tasks=False), np.tanh)
    flat = found["pearson"].isna().sum()
    left = f" ({flat} more do not vary)" if flat else ""
    what = f"Pearson's r of −MSE (Eq. 14) and accuracy over junctions, mean of {len(found) - flat} curves{left}"
    permuted = "p gives models the MSE of others of their depth" if np.isfinite(p) else UNPERMUTED
    rationale = spoken(e, what, held.clustered, tasks=False) + f"; {permuted}"
    yield Reading(1, claim, "per model", e, 0.0, 1, "correlation", rationale, tested=True)
    e = mean_of(found["spearman"] - found["pearson"], held.shapes, tasks=False)
    what = f"Spearman's less Pearson's r of −MSE; Spearman's is {found['spearman'].mean():.2f} on average"
    rationale = f"{spoken(e, what, held.clustered, tasks=False)}; {UNRANKED}"
    yield Reading(2, below, "per model", e, np.nan, -1, "correlation", rationale)


def _follows_counts(held: Held) -> Iterator[Reading]:
    claim = "Modules share bias in proportion to their number of members"
    forms = (("Eq. 14", "paper", "bias"), ("raw", "squared", "bias"), ("centered", "squared", "bias_centered"))
    for reading, loss, term in forms:
        shares, counts = held.shares(loss, term)
        e = held.mean((shares - counts).abs().sum(axis=1) / 2)
        what = f"share of bias that lies elsewhere than members do; up to {MARGIN} counts as in proportion"
        if reading == "Eq. 14":
            what += "; where softmax of one component is nearly uniform, every member has nearly the same bias"
        yield Reading(3, claim, reading, e, MARGIN, -1, "share", held.spoken(e, what))


def _dominates(held: Held) -> Iterator[Reading]:
    for reading, term in (("raw", "diversity"), ("centered", "diversity_centered")):
        shares, counts = held.shares("squared", term)
        e, count = Estimate(interval_over="nothing"), 0.0
        if "mlp" in shares:
            e, count = held.mean(shares["mlp"]), counts["mlp"].mean()
        what = f"share of diversity that MLPs hold, more than half of it; they are {count:.0%} of the members"
        yield Reading(4, "MLPs dominate diversity", reading, e, 0.5, 1, "share", held.spoken(e, what))


def _trades(held: Held) -> Iterator[Reading]:
    claim = "Bias and diversity trade off only where accuracy stands still"
    curves = held.curves()
    for reading, bias, diversity in (
        ("centered", "bias_centered", "diversity_centered"),
        ("Eq. 14", "bias", "diversity"),
    ):
        e, rationale = Estimate(interval_over="nothing"), "this study has no depth tables"
        if curves is not None:
            options: dict[str, Any] = {"clusters": held.shapes, "n_resamples": held.n_resamples, "seed": held.seed}
            r = tradeoff_signs(curves, bias=bias, diversity=diversity, **options)
            over = "models" if np.isfinite(r.low) else "nothing"
            e = Estimate(r.difference, r.low, r.high, over, r.models, r.p)
            steps = dict(zip(("rises", "still", "falls"), r.counts.sum(1).tolist(), strict=True))
            rationale = (
                "share of steps along depth in which both move together, where accuracy stands still less where it "
                f"moves ({steps['still']} and {steps['rises'] + steps['falls']} steps)"
            )
            rationale = spoken(e, rationale, held.clustered, tasks=False)
            if not np.isfinite(r.difference):
                rationale += " and steps of both kinds"
            elif np.isfinite(r.p):
                rationale += "; p gives models bias and diversity of others of their depth"
            else:
                rationale += f"; {UNPERMUTED}"
        yield Reading(5, claim, reading, e, 0.0, 1, "share", rationale, tested=True)


def _stays_away(held: Held) -> Iterator[Reading]:
    ratio = held.totals("paper", "bias") / held.totals("paper", "zero_bias")
    e = held.mean(ratio)
    what = (
        f"Eq. 14's bias over that of a uniform prediction, at least {ratio.min():.2f}; above {HALF} is away from 0, "
        "and near 1 says that single components predict next to nothing"
    )
    yield Reading(6, "Bias stays away from 0", "Eq. 14", e, HALF, 1, "ratio", held.spoken(e, what))


def returns(held: Held) -> Iterator[tuple[str, str, int, LogFit]]:
    """What claim 7 is read from: quantity, which models, 1 where it is to rise or −1 to fall, the fit of it.

    Training seeds of one shape are one point.
    """
    models = held.study.models(held.unit).set_index("model")
    table = held.study.table(held.unit)
    whole = table["accuracy"]["Avg."].dropna().index
    for which, least in (("all models", 0.0), ("≥ 1B parameters", BILLION)):
        names = whole[models["parameters"][whole] >= least]
        shapes = cluster_numbers(names.tolist(), held.shapes)
        members = models["members"][names].astype(float).groupby(shapes).first().to_numpy()
        if len(np.unique(members)) < CURVED:
            continue
        for quantity, rising in (("accuracy", 1), ("MSE", -1)):
            means = table[quantity]["Avg."][names].groupby(shapes).mean().to_numpy(dtype=float)
            yield (
                quantity,
                which,
                rising,
                log_fit(members, rising * means, n_resamples=held.n_resamples, seed=held.seed),
            )


def _diminishes(held: Held) -> Iterator[Reading]:
    claim = "Returns diminish with the number of components"
    tested = False
    for quantity, which, rising, fit in returns(held):
        tested = True
        terms = fit.frame().set_index("term")[["estimate", "robust_low", "robust_high"]].T
        bend, rises = terms["curvature"], terms["slope"]["robust_low"] > 0
        enough = len(fit.x) >= LEAST
        low, high = (bend["robust_low"], bend["robust_high"]) if rises and enough else (np.nan, np.nan)
        e = Estimate(bend["estimate"], low, high, "models" if enough else "nothing", len(fit.x))
        rationale = bent(quantity, rising, fit.slope, rises)
        if not enough:
            rationale += f"; an interval needs {LEAST} models"
        elif held.clustered:
            rationale += f"; the interval is over {len(fit.x)} models; training seeds of one shape count as one model"
        unit = "points" if quantity == "accuracy" else "hundredths"
        yield Reading(7, claim, f"{quantity}, {which}", e, 0.0, -1, unit, rationale)
    if not tested:
        whole = len(held.study.table(held.unit)["accuracy"]["Avg."].dropna())
        several = f"{whole} model{'s' * (whole != 1)}"
        rationale = f"{several} with every task; a curvature needs {CURVED} different numbers of components"
        yield Reading(7, claim, "all models", Estimate(interval_over="nothing", n=whole), 0.0, -1, "points", rationale)


def bent(quantity: str, rising: int, slope: float, rises: bool) -> str:
    """What was estimated for claim 7, and whether there are returns that could diminish."""
    return (
        f"curvature of {'' if rising > 0 else '−'}{quantity}, averaged over tasks, against the number of "
        f"components in standard deviations; each doubling brings {rising * slope * np.log(2):+.3g}"
        + ("" if rises else ", not clearly for the better: no returns that could diminish")
    )


def _reuse(held: Held) -> Iterator[Reading]:
    claim = "Reusing layers lowers diversity"
    models = held.study.models(held.unit)
    seeds = {name: seed for name, (_, seed) in trained.seeds(models["model"]).items()}
    pairs = same_parameters(models, seeds) if held.pairs is None else given(models, held.pairs)
    if not pairs:
        rationale = "no model here reuses its layers beside one of the same size that does not"
        yield Reading(8, claim, "raw", Estimate(interval_over="nothing"), 1.0, -1, "ratio", rationale)
        return
    what = "diversity over that of its pair: " + ", ".join(f"{a} over {b}" for a, b in pairs.items())
    readings = {
        "before the size correction, raw": "diversity",
        "before the size correction, centered": "diversity_centered",
        "after it, raw": "diversity_logit",
        "after it, centered": "diversity_logit_centered",
    }
    for reading, term in readings.items():
        values = held.totals("squared", term)
        logs = {
            (reused, task): np.log(values[reused, task] / values[plain, task])
            for reused, plain in pairs.items()
            for task in values[reused].index.intersection(values[plain].index)
        }
        e = scaled(held.mean(_series(logs)), np.exp)
        yield Reading(8, claim, reading, e, 1.0, -1, "ratio", held.spoken(e, what))


def _series(values: dict[tuple[str, str], float]) -> pd.Series:
    import pandas as pd

    index = pd.MultiIndex.from_tuples(list(values), names=["model", "task"])
    return pd.Series(list(values.values()), index=index, dtype=float)


_CLAIMS: tuple[Callable[[Held], Iterator[Reading]], ...] = (
    _tracks,
    _follows_counts,
    _dominates,
    _trades,
    _stays_away,
    _diminishes,
    _reuse,
)
