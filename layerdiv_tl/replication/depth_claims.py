"""Claims 9-12, of *Do Language Models Use Their Depth Efficiently?*, tested on depth analyses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from ..depth.depth_score import DepthScore
from ..depth.layer_maps import LayerMaps
from ..depth.skipping import Skip
from ..depth.tokens import sums_per_text
from ..ensemble.intervals import LEAST, interval, jackknife, leave_one_out
from .claim_tests import CLAIMS, ClaimTest, Estimate, hall_mean

if TYPE_CHECKING:
    from ..studies.depth_study import DepthStudy

# A model's own number, its 95 % interval over texts or questions, and how many these are.
ModelEstimate = tuple[float, float, float, int]
_RATIO = "of the later half of the layers over the earlier half"


def depth_claim_tests(depth: DepthStudy | None) -> Iterator[ClaimTest]:
    """The rows of the claims table; all "not tested" where there are no analyses."""
    if depth is None:
        rationale = "no depth analyses lie in this folder: run layerdiv depth with the same --out"
        for number in range(9, 13):
            yield ClaimTest(number, "", Estimate(), rationale, null=np.nan, measured_in="")
        return
    for test_claim in (_later_layers_contribute_less, _late_skips_disturb_less, _hops_need_no_depth, _layers_align):
        yield from test_claim(depth)


def _later_layers_contribute_less(depth: DepthStudy) -> Iterator[ClaimTest]:
    averages: dict[str, Callable[..., np.ndarray]] = {"mean of layers": np.mean, "median of layers": np.median}
    for variant, average in averages.items():
        ratios = {}
        for model, norms in depth.newest("residual_norms").items():
            layers = [i for i, c in enumerate(norms.components) if c.kind == "layer"]
            means = means_without_each(norms.relative_norm[:, layers], norms.text)
            ratios[model] = half_ratio(means, _later_half(len(layers)), average)
        what = f"‖write‖ / ‖stream‖, {variant}, {_RATIO}"
        if variant == "mean of layers":
            what += "; the first layer, which writes into a nearly empty stream, weighs most"
        yield _over_models_or_texts(9, variant, ratios, what)


def _late_skips_disturb_less(depth: DepthStudy) -> Iterator[ClaimTest]:
    skips = depth.newest("skip_future")
    where = "layers skipped at earlier tokens, measured at later ones"
    # After the last layer nothing reads earlier tokens: its effect is 0 in every model.
    ratios = {
        model: half_ratio(
            means_without_each(skip.output_change[:, :-1], skip.text), _later_half(len(skip.components))[:-1]
        )
        for model, skip in skips.items()
    }
    what = f"‖Δ softmax‖₂, {where}; the last layer, whose effect must be 0, is left out; {_RATIO}"
    yield _over_models_or_texts(10, "answers", ratios, what)
    ratios = {model: _downstream_ratio(skip, same_distance=False) for model, skip in skips.items()}
    what = f"change of all later layers' writes, {where}; {_RATIO}"
    yield _over_models_or_texts(10, "later layers", ratios, what)
    ratios = {model: _downstream_ratio(skip, same_distance=True) for model, skip in skips.items()}
    what = f"the same over layers that lie as far after the skipped one, for late layers have near ones only; {_RATIO}"
    yield _over_models_or_texts(10, "later layers, equally far", ratios, what)


def _downstream_ratio(skip: Skip, same_distance: bool) -> ModelEstimate:
    """Mean change of downstream layers, of late over early skips; over the distances that both halves have."""
    count = len(skip.layers)
    late = _later_half(count)
    # [all texts, then without each; skipped layer, downstream layer]
    texts = np.bincount(skip.text, minlength=len(skip.downstream_change))[:, None].astype(float)
    sums = np.nan_to_num(skip.downstream_change.reshape(len(texts), -1) * texts)
    means = np.concatenate([sums.sum(0)[None] / texts.sum(), leave_one_out(sums, texts)])
    means = means.reshape(-1, *skip.downstream_change.shape[1:])
    downstream = np.isfinite(skip.downstream_change).all(0)
    distance = np.arange(count)[None] - np.arange(count)[:, None]
    halves = []
    for half in (late, ~late):
        cells = downstream & half[:, None]
        groups = [cells & (distance == d) for d in range(1, int(late.sum()))] if same_distance else [cells]
        levels = [means[:, group].mean(1) for group in groups if group.any()]
        halves.append(np.mean(levels, 0) if levels else np.full(len(means), np.nan))
    return _with_interval(halves[0] / halves[1])


def _hops_need_no_depth(depth: DepthStudy) -> Iterator[ClaimTest]:
    every: dict[str, DepthScore] = depth.newest("depth_score")
    # How deep the layers lie that a wrong answer rests on says nothing about their use.
    scores = {model: score for model, score in every.items() if score.correct.sum() >= LEAST}
    note = ""
    if scores:
        right = np.mean([score.correct.mean() for score in scores.values()])
        note = f"; {right:.0%} of the answers are the model's first choice"
    elif every:
        note = f"; fewer than {LEAST} answers of a model are right"
    for variant, by_length in (("all questions", False), ("questions of equal length", True)):
        slopes = {}
        for model, score in scores.items():
            last = len(score.components) - 1
            if last:  # one layer has one score only
                slope = score.slope_at_length if by_length else score.slope
                slopes[model] = slope.value / last, slope.low / last, slope.high / last, slope.n
        yield _over_models_or_texts(11, variant, slopes, f"{CLAIMS[11].quantity}; {variant}{note}", cases="questions")


def _layers_align(depth: DepthStudy) -> Iterator[ClaimTest]:
    distances, ranks, pairs = {}, [], []
    for _, maps in depth.of(LayerMaps):
        distance, resampled, chance = maps.distances()
        if chance > 0:  # models of one layer each have one place only
            # Which target is best is not smooth in the texts, so that there is no jackknife over them.
            low, high = interval(resampled) if len(maps.counts) >= LEAST else (np.nan, np.nan)
            ends = float(low) / chance, float(high) / chance
            distances[f"{maps.source} to {maps.target}"] = (distance / chance, *ends, len(maps.counts))
            pairs.append({maps.source, maps.target})
        ranks.append(float(maps.depth_alignment()["rank_correlation"].iloc[0]))
    what = CLAIMS[12].quantity
    if ranks:
        what += f"; Spearman's correlation of places is {np.mean(ranks):.2f}"
    models = sorted(set().union(*pairs))
    # Pairs that share a model are not independent: models are left out, with all their pairs.
    kept = [np.array([name not in pair for pair in pairs]) for name in models]
    if len(models) >= LEAST and all(map(np.any, kept)):
        logs = np.log(np.maximum([estimate for estimate, *_ in distances.values()], 1e-6))
        low, high = jackknife(logs.mean(), np.array([logs[rest].mean() for rest in kept]))
        e = Estimate(float(logs.mean()), float(low), float(high), "models", len(models)).transformed(np.exp)
        rationale = f"{what}; the interval is over {len(models)} models, in {len(pairs)} pairs"
        yield ClaimTest(12, "best linear map", e, rationale)
    else:
        yield _over_models_or_texts(12, "best linear map", distances, what, over_models=False)


def _later_half(count: int) -> Bool[np.ndarray, " layer"]:
    return np.arange(count) >= count / 2


def means_without_each(
    values: Float[np.ndarray, "token row"], text: Int[np.ndarray, " token"]
) -> Float[np.ndarray, "_ row"]:
    """Means over tokens: of all texts, then without each of them."""
    sums, counts = sums_per_text(values, text)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.concatenate([(sums.sum(0) / counts.sum(0))[None], leave_one_out(sums, counts)])


def half_ratio(
    means: Float[np.ndarray, "_ row"], late: Bool[np.ndarray, " row"], average: Callable[..., np.ndarray] = np.mean
) -> ModelEstimate:
    """Average of the late rows over that of the others, from means of all texts and without each."""
    if late.all() or not late.any():
        return np.nan, np.nan, np.nan, len(means) - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        return _with_interval(average(means[:, late], axis=1) / average(means[:, ~late], axis=1))


def _with_interval(ratios: Float[np.ndarray, " _"]) -> ModelEstimate:
    """The first ratio is the estimate, the others are without each text; the interval is that of the logarithm."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(ratios)
    # A text that has no token where it counts is not one of the texts.
    low, high = jackknife(logs[0], np.where(np.isfinite(logs[1:]), logs[1:], np.nan))
    return float(ratios[0]), float(np.exp(low)), float(np.exp(high)), int(np.isfinite(ratios[1:]).sum())


def _over_models_or_texts(
    number: int,
    variant: str,
    estimates: Mapping[str, ModelEstimate],
    what: str,
    over_models: bool = True,
    cases: str = "texts",
) -> ClaimTest:
    """Over models if there are enough, else over the texts of those there are, if these are enough."""
    known = {name: estimate for name, estimate in estimates.items() if np.isfinite(estimate[0])}
    if not known:
        return ClaimTest(number, variant, Estimate(), f"{what}: there is no such analysis here, or too few layers")
    values, lows, highs, counts = np.array(list(known.values())).T
    if over_models and len(known) >= LEAST:
        # Ratios are averaged as logarithms, as in claim 8: no interval reaches below 0. Where one is 0, it has none.
        logs = CLAIMS[number].measured_in == "ratio" and (values > 0).all()
        e = hall_mean(np.log(values), "models").transformed(np.exp) if logs else hall_mean(values, "models")
        return ClaimTest(number, variant, e, f"{what}; the interval is over {len(known)} models")
    # Two models read the same texts and may err alike: as wide as that makes the interval of their mean.
    enough = np.isfinite([lows, highs]).all()
    over, n = cases if enough else "nothing", int(counts.min())
    e = Estimate(float(values.mean()), float(lows.mean()), float(highs.mean()), over, n, models=len(known))
    rationale = f"{what}; the interval is over {cases} and speaks of {' and '.join(known)} only"
    if not enough:
        rationale = f"{what}; an interval needs {LEAST} {cases} or {LEAST} models: {' and '.join(known)}"
    return ClaimTest(number, variant, e, rationale)
