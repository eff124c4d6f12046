"""Statistics of two curves along depth, such as accuracy and −MSE, over models.

A correlation r is averaged, left out and bounded as Fisher's z = atanh r. `Curves` holds the curves of one task and
metric and gives z, its jackknife over clusters of models, and the p of permuted models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata, t

from ..ensemble.intervals import LEAST, LEVEL
from ..ensemble.permutation import by_cluster, model_permutations, over_models, permutation_p, permuted_sums, strata_of

Coefficient = Literal["pearson", "spearman"]
Aggregation = Literal["pooled", "per_model", "final"]
# Two curves of one model, over junctions.
Pair = tuple[Float[np.ndarray, " junction"], Float[np.ndarray, " junction"]]


def z_scores(x: Float[np.ndarray, " junction"]) -> Float[np.ndarray, " junction"]:
    """A curve less its mean, over its standard deviation; NaN where it is not finite, and for one that never moves.

    >>> z_scores(np.array([0.0, 2.0])).tolist(), z_scores(np.full(3, 0.1)).tolist()
    ([-1.0, 1.0], [nan, nan, nan])
    """
    known = x[np.isfinite(x)]
    if not known.size or _constant(known):
        return np.full(len(x), np.nan)
    return np.where(np.isfinite(x), (x - known.mean()) / known.std(), np.nan)


def student_p(r: float, n: int) -> float:
    """Two-sided p of a correlation of n independent pairs, Student's t with n − 2; NaN for n < 3.

    >>> round(student_p(0.5, 20), 4)
    0.0248
    """
    if n < 3 or not np.isfinite(r):
        return np.nan
    if abs(r) >= 1:
        return 0.0
    return float(2 * t.sf(abs(r) * np.sqrt((n - 2) / (1 - r**2)), n - 2))


@dataclass(frozen=True, eq=False)
class CorrelationEstimate:
    """One row of the table, and what the average over tasks needs: Fisher's z, and z without each cluster of models."""

    r: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p_t: float = np.nan
    p_permutation: float = np.nan
    n: int = 0
    models: int = 0
    note: str = ""
    z: float = np.nan
    z_without: Mapping[int, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The table's columns."""
        return {name: value for name, value in vars(self).items() if name not in ("z", "z_without")}


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves {model number: (accuracy, sign × metric)} of one task and metric, and how they are correlated.

    Attributes:
        cluster: `[model]`, the number of each model's cluster.
    """

    pairs: Mapping[int, Pair]
    cluster: Int[np.ndarray, " model"]
    coefficient: Coefficient = "pearson"
    aggregation: Aggregation = "per_model"

    def standardized_pairs(self) -> dict[int, Pair]:
        """Curves whose mean product is r: over a model's junctions (`per_model`), else over all pairs."""
        if self.aggregation == "per_model":
            return {m: standardized(pair, self.coefficient) for m, pair in self.pairs.items()}
        pooled = self.aggregation == "pooled"
        pairs = [standardized(pair) if pooled else pair for pair in self.pairs.values()]
        a, b = standardized(
            (np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])), self.coefficient
        )
        ends = np.cumsum([len(a) for a, _ in pairs])[:-1]
        return dict(zip(self.pairs, zip(np.split(a, ends), np.split(b, ends), strict=True), strict=True))

    def fisher_z(self) -> float:
        """atanh r; of `per_model` the mean over models, those of a cluster averaged first. NaN where r has no value."""
        if self.fault():
            return np.nan
        curves = self.standardized_pairs()
        if self.aggregation != "per_model":
            a, b = concatenated(curves)
            return float(_fisher(a @ b / len(a)))
        z = _fisher(np.array([a @ b / len(a) for a, b in curves.values()]))
        number = self.cluster[list(curves)]
        return float(np.mean([z[number == c].mean() for c in dict.fromkeys(number.tolist())]))

    def z_without(self) -> dict[int, float]:
        """Fisher's z without each cluster of models in turn; one alone cannot be left out."""
        clusters = dict.fromkeys(int(self.cluster[m]) for m in self.pairs)
        if len(clusters) < 2:
            return dict.fromkeys(clusters, np.nan)
        rest = {c: {m: pair for m, pair in self.pairs.items() if self.cluster[m] != c} for c in clusters}
        return {c: replace(self, pairs=pairs).fisher_z() for c, pairs in rest.items()}

    def fault(self) -> str:
        """Why there is no r; empty if there is one."""
        if self.aggregation != "final":
            return "" if self.pairs else "no model has two curves that vary"
        if len(self.pairs) < 3:
            return "fewer than three models: no correlation over models"
        fault = fault_of(*concatenated(self.pairs))
        return f"{fault} over models" if fault else ""

    def estimate(self, n_resamples: int, seed: Any, confidence_level: float = LEVEL) -> CorrelationEstimate:
        """r with its interval over models, Student's p and the p of permuted models."""
        models = len(self.pairs)
        if fault := self.fault():
            return CorrelationEstimate(n=models, models=models, note=fault)
        z, z_without = self.fisher_z(), self.z_without()
        n, clusters, r = models, len(z_without), float(np.tanh(z))
        p_t, p, reason = student_p(r, clusters), np.nan, "over models there is no depth"
        if self.aggregation == "pooled":
            n = sum(len(a) for a, _ in self.pairs.values())
            p_t = student_p(r, n)
        elif self.aggregation == "per_model":  # Student's t of a mean z over clusters of models
            error = np.sqrt((clusters - 1) / clusters * np.sum((np.array(list(z_without.values())) - z) ** 2))
            with np.errstate(divide="ignore", invalid="ignore"):
                p_t = float(2 * t.sf(abs(z / error), clusters - 1)) if clusters >= LEAST else np.nan
        if self.aggregation != "final":
            curves, count = self.standardized_pairs(), max(self.pairs) + 1
            lengths = np.array([len(curves[m][0]) if m in curves else 0 for m in range(count)])
            products = products_between(curves, count)[:, :, None]
            p = permuted_p(products, lengths, self.cluster[:count], n_resamples, seed)
            reason = "" if np.isfinite(p) else "too few models of one depth to permute"
        few = "" if clusters >= LEAST else f"no interval: {clusters} of {LEAST} models that it needs"
        more = {"p_t": p_t, "p_permutation": p, "n": n, "models": models, "note": joined(few, reason)}
        return with_interval(z, z_without, confidence_level, **more)


def products_between(curves: Mapping[int, Pair], models: int) -> Float[np.ndarray, "model model"]:
    """mean_j a_j b_j of every model's first curve and every model's second, NaN where lengths differ."""
    products = np.full((models, models), np.nan)
    for count in {len(a) for a, _ in curves.values()}:
        same = [m for m, (a, _) in curves.items() if len(a) == count]
        a, b = (np.stack([curves[m][side] for m in same]) for side in (0, 1))
        products[np.ix_(same, same)] = a @ b.T / count
    return products


def permuted_p(
    products: Float[np.ndarray, "model model task"],
    lengths: Int[np.ndarray, " model"],
    cluster: Int[np.ndarray, " model"],
    n_resamples: int,
    seed: Any,
) -> float:
    """p of the mean over models of the products of a model's own two curves, tasks averaged first."""
    known = np.isfinite(products)
    count = known.sum(2)
    means = np.divide(np.where(known, products, 0.0).sum(2), count, out=np.full(count.shape, np.nan), where=count > 0)
    between = by_cluster(means, cluster)
    kept = np.flatnonzero(np.isfinite(np.diag(between)))
    between = between[np.ix_(kept, kept)]
    depths = depths_of(lengths, cluster)
    ways = model_permutations(strata_of([depths[c] for c in kept], between), n_resamples, seed)
    return permutation_p(permuted_sums(between, ways))


def depths_of(lengths: Int[np.ndarray, " model"], cluster: Int[np.ndarray, " model"]) -> list[tuple[int, ...]]:
    """The numbers of junctions that each cluster's models have: clusters swap where these are the same."""
    return [tuple(np.unique(lengths[cluster == c])) for c in np.unique(cluster)]


def with_interval(
    z: float, z_without: Mapping[int, float], confidence_level: float, **columns: Any
) -> CorrelationEstimate:
    """An estimate from Fisher's z, with the jackknife's interval over clusters of models."""
    low, high = over_models(z, np.array(list(z_without.values())), confidence_level)
    r, low, high = (float(np.tanh(x)) for x in (z, low, high))
    return CorrelationEstimate(r, low, high, z=z, z_without=z_without, **columns)


def fault_of(a: np.ndarray, b: np.ndarray) -> str:
    """Why two curves have no correlation; empty if they have one."""
    for name, x in (("accuracy", a), ("metric", b)):
        if not np.isfinite(x).all():
            return f"{name} is not finite"
        if _constant(x):
            return f"constant {name}"
    return ""


def _constant(x: np.ndarray) -> bool:
    # What rounding alone moves does not vary.
    return bool(x.std() <= 1e-12 * np.abs(x).max(initial=0.0))


def standardized(pair: Pair, coefficient: Coefficient = "pearson") -> Pair:
    """Both curves, or their ranks, less their mean and over their standard deviation."""
    a, b = (rankdata(x) if coefficient == "spearman" else x for x in pair)
    return (a - a.mean()) / a.std(), (b - b.mean()) / b.std()


def _fisher(r: Any) -> Any:
    """atanh r, finite at ±1, where it counts as ±18.7."""
    return np.arctanh(np.clip(r, -1 + 1e-16, 1 - 1e-16))


def concatenated(pairs: Mapping[int, Pair]) -> Pair:
    """Both curves of all models, one after the other."""
    return np.concatenate([a for a, _ in pairs.values()]), np.concatenate([b for _, b in pairs.values()])


def joined(*parts: str) -> str:
    """Parts of a note that are not empty."""
    return "; ".join(part for part in parts if part)
