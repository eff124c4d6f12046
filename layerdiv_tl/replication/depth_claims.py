"""Claims 9-12 of *Do Language Models Use Their Depth Efficiently?*, tested on the results of depth analyses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from ..depth.depth_score import DepthScore
from ..depth.layer_maps import LayerMaps
from ..depth.residual_norms import ResidualNorms
from ..depth.skipping import Skip
from ..depth.tokens import sums_per_text
from ..ensemble.intervals import LEAST, Estimate, estimate_function, jackknife, percentile_interval
from .claim import CLAIMS, ClaimTest
from .populations import NOTHING, mean_over, on_scale

_RATIO = "of the later half of the layers over the earlier half"


@dataclass(frozen=True)
class DepthResults:
    """The results for claims 9-12: {model: result} of three analyses, and maps between models."""

    norms: Mapping[str, ResidualNorms]
    skips: Mapping[str, Skip]
    scores: Mapping[str, DepthScore]
    maps: Sequence[LayerMaps]


def depth_claim_tests(results: DepthResults | None) -> Iterator[ClaimTest]:
    """Yield the tests of claims 9-12; all "not tested" if there are no analyses."""
    if results is None:
        rationale = "no depth analyses lie in this folder: run layerdiv depth with the same --out"
        for number in range(9, 13):
            yield ClaimTest(number, "", NOTHING, rationale, null=np.nan, measured_in="")
        return
    yield from _later_layers_contribute_less(results.norms)
    yield from _late_skips_disturb_less(results.skips)
    yield from _hops_need_no_depth(results.scores)
    yield _layers_align(results.maps)


def _later_layers_contribute_less(norms: Mapping[str, ResidualNorms]) -> Iterator[ClaimTest]:
    averages: dict[str, Callable[..., np.ndarray]] = {"mean of layers": np.mean, "median of layers": np.median}
    for variant, average in averages.items():
        ratios = {}
        for model, of_model in norms.items():
            layers = [i for i, c in enumerate(of_model.components) if c.kind == "layer"]
            sums = sums_per_text(of_model.relative_norm[:, layers], of_model.text)
            ratios[model] = half_ratio(*sums, _later_half(len(layers)), average)
        what = f"‖write‖ / ‖stream‖, {variant}, {_RATIO}"
        if variant == "mean of layers":
            what += "; the first layer, which writes into a nearly empty stream, weighs most"
        yield _over_models_or_texts(9, variant, ratios, what)


def _late_skips_disturb_less(skips: Mapping[str, Skip]) -> Iterator[ClaimTest]:
    where = "layers skipped at earlier tokens, measured at later ones"
    # Nothing attends to earlier tokens after the last layer, so its effect is 0 in every model.
    ratios = {
        model: half_ratio(*sums_per_text(skip.output_change[:, :-1], skip.text), _later_half(len(skip.components))[:-1])
        for model, skip in skips.items()
    }
    what = f"‖Δ softmax‖₂, {where}; the last layer, whose effect must be 0, is left out; {_RATIO}"
    yield _over_models_or_texts(10, "answers", ratios, what)
    far = "the same over layers that lie as far after the skipped one, for late layers have near ones only"
    for variant, same_distance, what in (
        ("later layers", False, f"change of all later layers' writes, {where}"),
        ("later layers, equally far", True, far),
    ):
        ratios = {model: _downstream_ratio(skip, same_distance) for model, skip in skips.items()}
        yield _over_models_or_texts(10, variant, ratios, f"{what}; {_RATIO}")


def _downstream_ratio(skip: Skip, same_distance: bool) -> Estimate:
    """Compute the ratio of late over early skips of the mean change of downstream layers, at common distances."""
    count = len(skip.layers)
    late = _later_half(count)
    texts = np.bincount(skip.text, minlength=len(skip.downstream_change))[:, None].astype(float)
    downstream = np.isfinite(skip.downstream_change).all(0)
    distance = np.arange(count)[None] - np.arange(count)[:, None]

    def ratio(means: np.ndarray) -> np.ndarray:
        means = means.reshape(-1, *skip.downstream_change.shape[1:])  # [row, skipped layer, downstream layer]
        halves = []
        for half in (late, ~late):
            cells = downstream & half[:, None]
            groups = [cells & (distance == d) for d in range(1, int(late.sum()))] if same_distance else [cells]
            levels = [means[:, group].mean(1) for group in groups if group.any()]
            halves.append(np.mean(levels, 0) if levels else np.full(len(means), np.nan))
        return halves[0] / halves[1]

    return _ratio_over_texts(ratio, np.nan_to_num(skip.downstream_change.reshape(len(texts), -1) * texts), texts)


def _hops_need_no_depth(every: Mapping[str, DepthScore]) -> Iterator[ClaimTest]:
    # The depth of the layers behind a wrong answer is not evidence about their use.
    scores = {model: score for model, score in every.items() if score.correct.sum() >= LEAST}
    note = ""
    if scores:
        right = np.mean([score.correct.mean() for score in scores.values()])
        note = f"; {100 * right:.0f} % of the answers are the model's first choice"
    elif every:
        note = f"; fewer than {LEAST} answers of a model are right"
    for variant, by_length in (("all questions", False), ("questions of equal length", True)):
        slopes = {}
        for model, score in scores.items():
            last = len(score.components) - 1
            if last:  # a single layer has only one possible score
                slope = score.slope_at_length if by_length else score.slope
                slopes[model] = Estimate(slope.value / last, slope.low / last, slope.high / last, slope.n)
        yield _over_models_or_texts(11, variant, slopes, f"{CLAIMS[11].quantity}; {variant}{note}", cases="questions")


def _layers_align(every: Sequence[LayerMaps]) -> ClaimTest:
    distances, ranks, pairs = {}, [], []
    for maps in every:
        distance, resampled, chance = maps.distances()
        if chance > 0:  # single layers can only map to each other
            # The best target is not a smooth function of the texts, so there is no jackknife over texts.
            low, high = percentile_interval(resampled) if len(maps.counts) >= LEAST else (np.nan, np.nan)
            e = Estimate(distance / chance, float(low) / chance, float(high) / chance, len(maps.counts))
            distances[f"{maps.source} to {maps.target}"] = e
            pairs.append({maps.source, maps.target})
        ranks.append(float(maps.depth_alignment()["rank_correlation"].iloc[0]))
    what = CLAIMS[12].quantity
    if ranks:
        what += f"; Spearman's correlation of places is {np.mean(ranks):.2f}"
    models = sorted(set().union(*pairs))
    # Pairs that share a model are not independent: the jackknife omits a model with all its pairs.
    kept = [np.array([name not in pair for pair in pairs]) for name in models]
    if len(models) < LEAST or not all(map(np.any, kept)):
        return _over_models_or_texts(12, "best linear map", distances, what, over_models=False)
    logs = np.log(np.maximum([e.value for e in distances.values()], 1e-6))
    ends = jackknife(logs.mean(), np.array([logs[rest].mean() for rest in kept]))
    e = on_scale(Estimate(logs.mean(), *ends, len(models), "models"), np.exp)
    note = f"the interval is over {len(models)} models, in {len(pairs)} pairs"
    return ClaimTest(12, "best linear map", e, what, note)


def _later_half(count: int) -> Bool[np.ndarray, " layer"]:
    return np.arange(count) >= count / 2


def half_ratio(
    sums: Float[np.ndarray, "text row"],
    counts: Float[np.ndarray, "text row"],
    late: Bool[np.ndarray, " row"],
    average: Callable[..., np.ndarray] = np.mean,
) -> Estimate:
    """Divide the late rows' average by the others'; rows are means over tokens, given as sums and counts per text."""
    if late.all() or not late.any():
        return NOTHING._replace(n=len(sums))
    return _ratio_over_texts(lambda m: average(m[:, late], axis=1) / average(m[:, ~late], axis=1), sums, counts)


def _ratio_over_texts(
    ratio: Callable[[np.ndarray], np.ndarray], sums: Float[np.ndarray, "text row"], counts: np.ndarray
) -> Estimate:
    """Estimate a ratio of means over texts, with the interval of its logarithm."""
    logs = estimate_function(lambda means: np.log(ratio(means)), sums, counts=counts, over="texts")
    # Texts without a counted token are left out.
    return on_scale(logs._replace(n=int((counts > 0).all(1).sum())), np.exp)


def _over_models_or_texts(
    number: int,
    variant: str,
    estimates: Mapping[str, Estimate],
    what: str,
    over_models: bool = True,
    cases: str = "texts",
) -> ClaimTest:
    """Test over models if there are enough, otherwise over their texts if these are enough."""
    known = {name: e for name, e in estimates.items() if np.isfinite(e.value)}
    if not known:
        return ClaimTest(number, variant, NOTHING, f"{what}: there is no such analysis here, or too few layers")
    values, lows, highs, counts = np.array([e[:4] for e in known.values()], dtype=float).T
    if over_models and len(known) >= LEAST:
        # Ratios are averaged as logarithms, as in claim 8, so intervals stay above 0. A ratio of 0 has no interval.
        logs = CLAIMS[number].measured_in == "ratio" and (values > 0).all()
        e = on_scale(mean_over(np.log(values), "models"), np.exp) if logs else mean_over(values, "models")
        return ClaimTest(number, variant, e, what, f"the interval is over {len(known)} models")
    # Models read the same texts, so errors may be fully correlated: the interval is as wide as in that case.
    enough, names = np.isfinite([lows, highs]).all(), " and ".join(known)
    ends = float(values.mean()), float(lows.mean()), float(highs.mean())
    e = Estimate(*ends, int(counts.min()), cases if enough else "nothing")
    note = f"the interval is over {cases} and speaks of {names} only"
    note = note if enough else f"an interval needs {LEAST} {cases} or {LEAST} models: {names}"
    return ClaimTest(number, variant, e, what, note, models=len(known))
