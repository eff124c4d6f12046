"""What *Do Language Models Use Their Depth Efficiently?* claims, read from depth analyses (MATHS 13, 9-12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from ..depth.maps import LayerMaps
from ..depth.norms import Sizes
from ..depth.score import DepthScore
from ..depth.skipping import Skip
from ..depth.summary import resampled
from ..ensemble.uncertainty import interval, resamples
from .verdicts import LEAST, MARGIN, Estimate, Reading, scaled, student

if TYPE_CHECKING:
    from .depth import DepthStudy

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
            because = "no depth analyses lie in this folder: run layerdiv depth with the same --out"
            yield Reading(number, claim, "", Estimate(over="nothing"), np.nan, -1, "", because)
        return
    for readings in (_contributes, _disturbs, _hops, _maps):
        yield from readings(depth)


def _contributes(depth: DepthStudy) -> Iterator[Reading]:
    readings: dict[str, Callable[..., np.ndarray]] = {"mean of layers": np.mean, "median of layers": np.median}
    for reading, middle in readings.items():
        found = {}
        for model, sizes in depth.newest("sizes").items():
            layers = [i for i, c in enumerate(sizes.components) if c.kind == "layer"]
            mean, drawn = resampled(sizes.relative[:, layers], sizes.text)
            found[model] = _ratio(mean, drawn, _late(len(layers)), _texts(sizes), middle)
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
        found[model] = _ratio(*resampled(skip.output[:, :-1], skip.text), late, _texts(skip))
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
    late, weights = _late(count), resamples(len(skip.later))
    texts = np.bincount(skip.text, minlength=len(skip.later))[:, None].astype(float)
    table = skip.later.reshape(len(texts), -1) * texts
    mean, drawn = (w @ np.nan_to_num(table) / (w @ texts) for w in (np.ones((1, len(texts))), weights))
    both = np.concatenate([mean, drawn]).reshape(-1, *skip.later.shape[1:])
    behind = np.isfinite(skip.later).all(0)
    distance = np.arange(count)[None] - np.arange(count)[:, None]
    halves = []
    for half in (late, ~late):
        use = behind & half[:, None]
        if equal:
            apart = range(1, int(late.sum()))
            levels = [both[:, use & (distance == d)].mean(1) for d in apart if (use & (distance == d)).any()]
            halves.append(np.mean(levels, 0) if levels else np.full(len(both), np.nan))
        else:
            halves.append(both[:, use].mean(1) if use.any() else np.full(len(both), np.nan))
    return _with_interval(halves[0] / halves[1], len(texts))


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
    for reading, name in (("all questions", "slope"), ("questions of equal length", "slope_at_length")):
        found = {}
        for model, score in scores:
            slope, last = getattr(score, name), len(score.components) - 1
            if last:  # of one layer there is one score
                found[model] = slope.value / last, slope.low / last, slope.high / last, len(score.rank)
        what = f"growth of the depth score with each hop, {reading}; up to {MARGIN} of the depth counts as none{asked}"
        yield _reading(11, reading, found, MARGIN, "share of depth", what, asked="questions")


def _maps(depth: DepthStudy) -> Iterator[Reading]:
    found, ranks = {}, []
    for _, maps in depth.of(LayerMaps):
        distance, drawn, chance = maps.distances()
        if chance > 0:  # models of one layer each have one place only
            found[f"{maps.source} to {maps.target}"] = _with_interval(
                np.append(distance, drawn) / chance, len(maps.counts)
            )
        ranks.append(float(maps.diagonal()["rank_correlation"].iloc[0]))
    what = "distance of the best target layer from the same relative depth, over what it is where any is as good"
    if ranks:
        what += f"; Spearman's correlation of places is {np.mean(ranks):.2f}"
    yield _reading(12, "best linear map", found, 1.0, "ratio", what, "pairs of models")


def _late(count: int) -> Bool[np.ndarray, " layer"]:
    return np.arange(count) >= count / 2


def _texts(found: Sizes | Skip) -> int:
    return len(np.unique(found.text))


def _ratio(
    mean: np.ndarray, drawn: np.ndarray, late: np.ndarray, texts: int, middle: Callable[..., np.ndarray] = np.mean
) -> Own:
    if late.all() or not late.any():
        return np.nan, np.nan, np.nan, texts
    values = np.concatenate([mean[None], drawn])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = middle(values[:, late], axis=1) / middle(values[:, ~late], axis=1)
    return _with_interval(ratio, texts)


def _with_interval(values: Float[np.ndarray, " _"], count: int) -> Own:
    """The first is the number itself, the others are those of resamples of so many."""
    low, high = interval(values[1:])
    return float(values[0]), float(low), float(high), count


def _reading(
    number: int,
    reading: str,
    found: Mapping[str, Own],
    null: float,
    unit: str,
    what: str,
    over: str = "models",
    asked: str = "texts",
) -> Reading:
    """Over models if there are enough, else over the texts of those there are."""
    claim = CLAIMS[number]
    known = {name: one for name, one in found.items() if np.isfinite(one[0])}
    if not known:
        because = f"{what}: there is no such analysis here, or too few layers"
        return Reading(number, claim, reading, Estimate(over="nothing"), null, -1, unit, because)
    estimates, lows, highs, counts = np.array(list(known.values())).T
    if len(known) >= LEAST:
        # Of ratios logarithms, as in claim 8: no interval reaches below 0. Where one is 0, it has none.
        logs = unit == "ratio" and (estimates > 0).all()
        e = scaled(student(np.log(estimates), over), np.exp) if logs else student(estimates, over)
        return Reading(number, claim, reading, e, null, -1, unit, f"{what}; the interval is over {len(known)} {over}")
    # Two models read the same texts and may err alike: as wide as that makes the interval of their mean.
    e = Estimate(float(estimates.mean()), float(lows.mean()), float(highs.mean()), asked, int(counts.min()))
    because = f"{what}; the interval is over {asked} and speaks of {' and '.join(known)} only"
    return Reading(number, claim, reading, e, null, -1, unit, because)
