"""Does the similarity of direct contributions foretell which components make up for one another?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import rankdata

from ..components import Component
from ..ensemble.intervals import LEAST, interval, interval_note, resamples
from .token_stats import labeled_frame

# By name, what is similar about two members: weights of rows -> [member, member].
Similarity = Callable[[Float[np.ndarray, " row"]], Float[np.ndarray, "member member"]]


def cosines(values: Float[np.ndarray, "row member option"]) -> Similarity:
    """Cosines of the members' contributions, centered over the options; NaN for a member that writes nothing."""
    centered = values - values.mean(2, keepdims=True)

    def measure(weights: Float[np.ndarray, " row"]) -> Float[np.ndarray, "member member"]:
        flat = (np.sqrt(weights)[:, None, None] * centered).transpose(1, 0, 2).reshape(values.shape[1], -1)
        return _cosines(flat @ flat.T)

    return measure


def conditional_redundancies(
    differences: Float[np.ndarray, "row member"], labels: Int[np.ndarray, " row"]
) -> Similarity:
    """I(u_i; u_j | Y) in bits of the contributions to the logit difference, as if they were Gaussian (Eq. 13)."""
    classes = (labels[:, None] == np.unique(labels)).astype(float)

    def measure(weights: Float[np.ndarray, " row"]) -> Float[np.ndarray, "member member"]:
        share = weights @ classes
        means = (classes * weights[:, None]).T @ differences / np.where(share > 0, share, 1)[:, None]
        rest = np.sqrt(weights)[:, None] * (differences - classes @ means)
        r = _cosines(rest.T @ rest)
        return -0.5 * np.log2(np.maximum(1 - r**2, 1e-12))

    return measure


def made_up(
    direct: Float[np.ndarray, "row pair"], repair: Float[np.ndarray, "row pair"], weights: Any = 1.0
) -> Float[np.ndarray, " pair"]:
    """The share of what one writes directly that another makes up for: −Σ repair · direct / Σ direct², over rows."""
    weights = np.broadcast_to(weights, len(direct))[:, None]
    power = (weights * direct**2).sum(0)
    return np.divide(-(weights * repair * direct).sum(0), power, out=np.full(len(power), np.nan), where=power > 0)


def foretell(
    measures: dict[str, Similarity],
    direct: Float[np.ndarray, "row pair"],
    repair: Float[np.ndarray, "row pair"],
    pairs: tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]],
    members: Sequence[Component],
    n_permutations: int,
    n_resamples: int,
    seed: int,
) -> pd.DataFrame:
    """Spearman's correlation of each similarity with the share made up for, over pairs; see `Effects.foretold`."""
    count, random = len(direct), np.random.default_rng(seed)
    ones = np.full(count, 1 / count)
    share = made_up(direct, repair)
    draws = resamples(count, n_resamples, seed) if count >= LEAST else np.empty((0, count))
    resampled = [made_up(direct, repair, weights) for weights in draws]
    blocks = pd.factorize(pd.Series([f"{c.kind} {c.layer} {c.repeat}" for c in members]))[0]
    free = np.bincount(blocks[np.unique(np.concatenate(pairs))]).max() > 1
    orders = [np.lexsort((random.random(len(members)), blocks)) for _ in range(n_permutations if free else 0)]
    place = np.argsort(blocks, kind="stable")
    records = []
    for name, measure in measures.items():
        similarity = measure(ones)
        estimate = _spearman(similarity[pairs], share)
        spread = [_spearman(measure(w)[pairs], other) for w, other in zip(draws, resampled, strict=True)]
        null = np.empty(len(orders))
        for number, order in enumerate(orders):
            names = np.empty(len(members), dtype=int)
            names[place] = order  # members trade places within their layer and kind
            null[number] = _spearman(similarity[names[pairs[0]], names[pairs[1]]], share)
        known = null[np.isfinite(null)]
        far = np.abs(known - known.mean()) >= abs(estimate - known.mean()) - 1e-12 if len(known) else known
        low, high = interval(np.array(spread)) if spread else (np.nan, np.nan)
        null_low, null_high = interval(known) if len(known) else (np.nan, np.nan)
        records.append(
            {
                "measure": name,
                "correlation": estimate,
                "correlation_low": float(low),
                "correlation_high": float(high),
                "null": float(known.mean()) if len(known) else np.nan,
                "null_low": float(null_low),
                "null_high": float(null_high),
                "p_value": (1 + far.sum()) / (1 + len(known)) if len(known) else np.nan,
                "pairs": len(share),
            }
        )
    frame = labeled_frame(records, {"correlation": "Spearman's ρ", "null": "Spearman's ρ"}, interval_note(count))
    frame.attrs["null"] = (
        f"{n_permutations} permutations within layers" if free else "no null: no layer has two components of a kind"
    )
    return frame


def _cosines(gram: Float[np.ndarray, "member member"]) -> Float[np.ndarray, "member member"]:
    size = np.sqrt(np.diagonal(gram))
    product = np.outer(size, size)
    return np.divide(gram, product, out=np.full(gram.shape, np.nan), where=product > 1e-12 * size.max(initial=1e-150))


def _spearman(x: Float[np.ndarray, " pair"], y: Float[np.ndarray, " pair"]) -> float:
    """Over the pairs that have both; NaN for fewer than three, and where one does not vary."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = np.round(x, 9), np.round(y, 9)  # rounding errors have no order
    if known.sum() < 3 or np.ptp(x[known]) == 0 or np.ptp(y[known]) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(x[known]), rankdata(y[known]))[0, 1])
