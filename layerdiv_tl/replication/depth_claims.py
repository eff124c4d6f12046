"""What *Do Language Models Use Their Depth Efficiently?* claims, read from depth analyses (MATHS 13, 9-12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from ..depth.depth_score import DepthScore
from ..depth.layer_maps import LayerMaps
from ..depth.skipping import Skip
from ..depth.token_stats import sums_per_text
from ..ensemble.intervals import LEAST, interval, jackknife, leave_one_out
from .claim_tests import MARGIN, Estimate, Reading, averaged, scaled

if TYPE_CHECKING:
    from ..studies.depth_study import DepthStudy

# A model's own number, its 95 % interval over texts or questions, and how many these are.
Own = tuple[float, float, float, int]
CLAIMS: Mapping[int, str] = {
    9: "The later half of the layers contributes less",
    10: "Skipping late layers disturbs later computation less",
    11: "Models do not use deeper layers for more hops",
    12: "Layers at the same relative depth map best",
}
_RATIO = "of the later half of the layers over the earlier half"


def depth_readings(depth: DepthStudy | None) -> Iterator[Reading]:
    """The rows of the claims table; all "not tested" where there are no analyses."""
    if depth is None:
        for number, claim in CLAIMS.items():
            rationale = "no depth analyses lie in this folder: run layerdiv depth with the same --out"
            yield Reading(number, claim, "", Estimate(interval_over="nothing"), np.nan, -1, "", rationale)
        return
    for readings in (_contributes, _disturbs, _hops, _maps):
        yield from readings(depth)


def _contributes(depth: DepthStudy) -> Iterator[Reading]:
    readings: dict[str, Callable[..., np.ndarray]] = {"mean of layers": np.mean, "median of layers": np.median}
    for reading, middle in readings.items():
        found = {}
        for model, sizes in depth.newest("residual_norms").items():
            layers = [i for i, c in enumerate(sizes.components) if c.kind == "layer"]
            means = _without_each(sizes.relative_norm[:, layers], sizes.text)
            found[model] = _ratio(means, _late(len(layers)), middle)
        what = f"‖write‖ / ‖stream‖, {reading}, {_RATIO}"
        if reading == "mean of layers":
            what += "; the first layer, which writes into a nearly empty stream, weighs most"
        yield _reading(9, reading, found, 1.0, "ratio", what)


def _disturbs(depth: DepthStudy) -> Iterator[Reading]:
    skips = depth.newest("skip_future").items()
    where = "layers skipped at earlier tokens, measured at later ones"
    found = {}
    for model, skip in skips:
        # Behind the last layer nothing reads earlier tokens: its effect is 0 in every model.
        late = _late(len(skip.components))[:-1]
        found[model] = _ratio(_without_each(skip.output_change[:, :-1], skip.text), late)
    what = f"‖Δ softmax‖₂, {where}; the last layer, whose effect must be 0, is left out; {_RATIO}"
    yield _reading(10, "answers", found, 1.0, "ratio", what)
    found = {model: _of_pairs(skip, equal=False) for model, skip in skips}
    what = f"change of all later layers' writes, {where}; {_RATIO}"
    yield _reading(10, "later layers", found, 1.0, "ratio", what)
    found = {model: _of_pairs(skip, equal=True) for model, skip in skips}
    what = f"the same over layers that lie as far behind the skipped one, for late layers have near ones only; {_RATIO}"
    yield _reading(10, "later layers, equally far", found, 1.0, "ratio", what)


def _of_pairs(skip: Skip, equal: bool) -> Own:
    count = len(skip.layers)
    late = _late(count)
    texts = np.bincount(skip.text, minlength=len(skip.downstream_change))[:, None].astype(float)
    sums = np.nan_to_num(skip.downstream_change.reshape(len(texts), -1) * texts)
    both = np.concatenate([sums.sum(0)[None] / texts.sum(), leave_one_out(sums, texts)])
    both = both.reshape(-1, *skip.downstream_change.shape[1:])
    behind = np.isfinite(skip.downstream_change).all(0)
    distance = np.arange(count)[None] - np.arange(count)[:, None]
    halves = []
    for half in (late, ~late):
        repeat = behind & half[:, None]
        if equal:
            apart = range(1, int(late.sum()))
            levels = [both[:, repeat & (distance == d)].mean(1) for d in apart if (repeat & (distance == d)).any()]
            halves.append(np.mean(levels, 0) if levels else np.full(len(both), np.nan))
        else:
            halves.append(both[:, repeat].mean(1) if repeat.any() else np.full(len(both), np.nan))
    return _with_interval(halves[0] / halves[1])


def _hops(depth: DepthStudy) -> Iterator[Reading]:
    # How deep the layers lie that a wrong answer rests on is no use of them.
    every: list[tuple[str, DepthScore]] = list(depth.newest("depth_score").items())
    scores = [(model, score) for model, score in every if (score.rank == 1).sum() >= LEAST]
    asked = ""
    if scores:
        right = np.mean([(score.rank == 1).mean() for _, score in scores])
        asked = f"; {right:.0%} of the answers are the model's first choice"
    elif every:
        asked = f"; fewer than {LEAST} answers of a model are right"
    for reading, by_length in (("all questions", False), ("questions of equal length", True)):
        found = {}
        for model, score in scores:
            last = len(score.components) - 1
            if last:  # of one layer there is one score
                slope = score.slope_at_length if by_length else score.slope
                found[model] = slope.value / last, slope.low / last, slope.high / last, slope.n
        what = f"growth of the depth score with each hop, {reading}; up to {MARGIN} of the depth counts as none{asked}"
        yield _reading(11, reading, found, MARGIN, "share of depth", what, asked="questions")


def _maps(depth: DepthStudy) -> Iterator[Reading]:
    found, ranks, pairs = {}, [], []
    for _, maps in depth.of(LayerMaps):
        distance, drawn, chance = maps.distances()
        if chance > 0:  # models of one layer each have one place only
            # Which target is best is not smooth in the texts, so that there is no jackknife over them.
            low, high = interval(drawn) if len(maps.counts) >= LEAST else (np.nan, np.nan)
            ends = float(low) / chance, float(high) / chance
            found[f"{maps.source} to {maps.target}"] = (distance / chance, *ends, len(maps.counts))
            pairs.append({maps.source, maps.target})
        ranks.append(float(maps.depth_alignment()["rank_correlation"].iloc[0]))
    what = "distance of the best target layer from the same relative depth, over what it is where any is as good"
    if ranks:
        what += f"; Spearman's correlation of places is {np.mean(ranks):.2f}"
    models = sorted({name for pair in pairs for name in pair})
    if len(models) >= LEAST:
        # Pairs that share a model are not independent: models are left out, with all their pairs.
        logs = np.log(np.maximum([one[0] for one in found.values()], 1e-6))
        rest = [[name not in pair for pair in pairs] for name in models]
        if all(map(any, rest)):
            lowest, highest = jackknife(logs.mean(), np.array([logs[kept].mean() for kept in rest]))
            e = Estimate(float(logs.mean()), float(lowest), float(highest), "models", len(models))
            e = scaled(e, np.exp)
            rationale = f"{what}; the interval is over {len(models)} models, in {len(pairs)} pairs"
            yield Reading(12, CLAIMS[12], "best linear map", e, 1.0, -1, "ratio", rationale)
            return
    yield _reading(12, "best linear map", found, 1.0, "ratio", what, interval_over="")


def _late(count: int) -> Bool[np.ndarray, " layer"]:
    return np.arange(count) >= count / 2


def _without_each(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> Float[np.ndarray, "_ row"]:
    """Means over tokens: of all texts, then without each of them."""
    sums, counts = sums_per_text(values, text)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.concatenate([(sums.sum(0) / counts.sum(0))[None], leave_one_out(sums, counts)])


def _ratio(
    means: Float[np.ndarray, "_ row"], late: Bool[np.ndarray, " row"], middle: Callable[..., np.ndarray] = np.mean
) -> Own:
    if late.all() or not late.any():
        return np.nan, np.nan, np.nan, len(means) - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        return _with_interval(middle(means[:, late], axis=1) / middle(means[:, ~late], axis=1))


def _with_interval(ratios: Float[np.ndarray, " _"]) -> Own:
    """The first is the number itself, the others are without each text; the interval is that of the logarithm."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(ratios)
    # A text that has no token where it counts is not one of the texts.
    low, high = jackknife(logs[0], np.where(np.isfinite(logs[1:]), logs[1:], np.nan))
    return float(ratios[0]), float(np.exp(low)), float(np.exp(high)), int(np.isfinite(ratios[1:]).sum())


def _reading(
    number: int,
    variant: str,
    found: Mapping[str, Own],
    null: float,
    unit: str,
    what: str,
    interval_over: str = "models",
    asked: str = "texts",
) -> Reading:
    """Over models if there are enough, else over the texts of those there are, if these are enough."""
    claim = CLAIMS[number]
    known = {name: one for name, one in found.items() if np.isfinite(one[0])}
    if not known:
        rationale = f"{what}: there is no such analysis here, or too few layers"
        return Reading(number, claim, variant, Estimate(interval_over="nothing"), null, -1, unit, rationale)
    estimates, lows, highs, counts = np.array(list(known.values())).T
    if interval_over and len(known) >= LEAST:
        # Of ratios logarithms, as in claim 8: no interval reaches below 0. Where one is 0, it has none.
        logs = unit == "ratio" and (estimates > 0).all()
        e = scaled(averaged(np.log(estimates), interval_over), np.exp) if logs else averaged(estimates, interval_over)
        return Reading(
            number,
            claim,
            variant,
            e,
            null,
            -1,
            unit,
            f"{what}; the interval is over {len(known)} {interval_over}",
        )
    # Two models read the same texts and may err alike: as wide as that makes the interval of their mean.
    enough = np.isfinite([lows, highs]).all()
    e = Estimate(
        float(estimates.mean()),
        float(lows.mean()),
        float(highs.mean()),
        asked if enough else "nothing",
        int(counts.min()),
    )
    rationale = f"{what}; the interval is over {asked} and speaks of {' and '.join(known)} only"
    if not enough:
        rationale = f"{what}; an interval needs {LEAST} {asked} or {LEAST} models: {' and '.join(known)}"
    return Reading(number, claim, variant, e, null, -1, unit, rationale)
