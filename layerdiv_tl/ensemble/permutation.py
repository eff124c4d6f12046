"""Permutation tests over models: is a model's curve related to its own other curve, or equally to any model's?

Trends that all models share (a late rise, a jump at the last layer, drift) correlate any two curves, so a test within
one model cannot distinguish them from a relation. Here models are permuted among those of equal depth: without a
relation every permutation is as likely as the data, however the curves are shaped and a model's tasks correlate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

from .._checks import shown
from ..errors import InputError
from .intervals import LEAST
from .losses import group_numbers, ratio

# For every permutation, the model whose other curve each model is paired with.
Permutations = Int[np.ndarray, "permutation model"]
# [m, n] pairs m's one curve with n's other.
Products = Float[np.ndarray, "model model *rest"]
# The smallest number of permutations with which a two-sided p reaches 0.05.
LEAST_PERMUTATIONS = 40


def cluster_numbers(models: Sequence[str], clusters: Mapping[str, Hashable] | None) -> Int[np.ndarray, " model"]:
    """Number each model's cluster from 0. A model that `clusters` does not name is a cluster of its own.

    >>> cluster_numbers(["a", "b", "c"], {"a": "shape", "c": "shape"}).tolist()
    [0, 1, 0]
    """
    if clusters is not None and not isinstance(clusters, Mapping):
        raise InputError(f"clusters={shown(clusters)} must be {{model: cluster}}, as in {{'small-seed1': 'small'}}.")
    named = clusters or {}
    return group_numbers([("cluster", named[m]) if m in named else ("model", m) for m in models])[1]


def model_permutations(strata: Sequence[Hashable], n_resamples: int = 1000, seed: Any = 0) -> Permutations:
    """Permute models within strata; the first permutation is the identity. Empty where no p could reach 0.05.

    Returns all permutations if there are at most `n_resamples`, else that many random ones.

    >>> model_permutations([24] * 3).shape, model_permutations([24] * 5).shape
    ((0, 3), (120, 5))
    """
    names, number = group_numbers(strata)
    within = [np.flatnonzero(number == stratum) for stratum in range(len(names))]
    total = math.prod(math.factorial(len(models)) for models in within)
    if total < LEAST_PERMUTATIONS:
        return np.empty((0, len(strata)), dtype=np.int64)
    if total <= n_resamples:
        permutations = np.empty((total, len(strata)), dtype=np.int64)
        every = itertools.product(*(itertools.permutations(models) for models in within))
        permutations[:, np.concatenate(within)] = [np.concatenate(orders) for orders in every]
        return permutations
    random = np.random.default_rng(seed)
    permutations = np.tile(np.arange(len(strata)), (n_resamples + 1, 1))
    for models in within:
        permutations[1:, models] = models[np.argsort(random.random((n_resamples, len(models))), axis=1)]
    return permutations


def permuted_sums(
    products: Products,
    lengths: Int[np.ndarray, " model"],
    cluster: Int[np.ndarray, " model"],
    n_resamples: int,
    seed: Any,
) -> Float[np.ndarray, "permutation *rest"]:
    """Compute Σ_m products[m, permutation[m]] for every permutation of clusters of models with equal numbers of
    junctions (`lengths`), the identity first; models of one cluster are averaged, those without own curves left out.
    """
    between = by_cluster(products, cluster)
    known = np.isfinite(between).reshape(*between.shape[:2], -1).all(2)
    kept = np.flatnonzero(known.diagonal())
    between, known = between[np.ix_(kept, kept)], known[np.ix_(kept, kept)]
    depths = [tuple(np.unique(lengths[cluster == c])) for c in np.unique(cluster)]
    strata: list[Hashable] = [depths[c] for c in kept]
    same = np.array([[a == b for b in strata] for a in strata], dtype=bool).reshape(known.shape)
    while (missing := same & ~known).any():  # a cluster that lacks a product is swapped with none
        worst = int((missing.sum(0) + missing.sum(1)).argmax())
        strata[worst] = ("alone", worst)
        same[worst] = same[:, worst] = False
    return between[np.arange(len(between)), model_permutations(strata, n_resamples, seed)].sum(1)


def permutation_p(drawn: Float[np.ndarray, " permutation"]) -> float:
    """Two-sided p of a statistic that is about 0 where there is no relation; the first value is the observed one.

    It is twice the share of permutations at least as extreme on the observed side of 0. NaN without permutations.

    >>> permutation_p(np.array([2.0, 1.0, -3.0, 0.5]))
    0.5
    """
    if not len(drawn) or not np.isfinite(drawn[0]):
        return np.nan
    side = -1.0 if drawn[0] < 0 else 1.0
    # A permutation that repeats the observed order may differ from it in the last bits; one without a value counts.
    reached = ~(side * drawn < side * drawn[0] - 1e-9 * max(1.0, abs(float(drawn[0]))))
    return min(1.0, 2 * float(reached.sum()) / len(drawn))


def by_cluster(products: Products, number: Int[np.ndarray, " model"]) -> Products:
    """Average over the pairs of models of two clusters that have a value; NaN where none has."""
    known = np.isfinite(products)
    member = (number == np.unique(number)[:, None]).astype(float)
    pooled = "cm,mn...,dn->cd..."
    total = np.einsum(pooled, member, np.where(known, products, 0.0), member)
    return ratio(total, np.einsum(pooled, member, known.astype(float), member))


def jackknife_t_interval(value: float, left_out: Float[np.ndarray, " cluster"], level: float) -> tuple[float, float]:
    """Return (low, high) from estimates without each model (or cluster), with Student's t; NaN below `LEAST` models.

    >>> round(jackknife_t_interval(4.5, (36 - np.arange(1.0, 9.0)) / 7, 0.95)[0], 3)  # for a mean, Student's own
    2.452
    """
    count = len(left_out)
    if count < LEAST or not np.isfinite(left_out).all():
        return np.nan, np.nan
    half = stdtrit(count - 1, 0.5 + level / 2) * np.sqrt((count - 1) * left_out.var())
    return float(value - half), float(value + half)
