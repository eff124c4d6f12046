"""Claims whose intervals are over training seeds: the same shapes, trained again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..components import Unit
from ..errors import InputError
from .claim_tests import HALF, LEAST_SEEDS, MARGIN, ClaimTest, Estimate, claims_frame, student_mean
from .claims import NO_NULL, ClaimSource, claim_tests, curvature_rationale, scaling_fits
from .depth_claims import depth_claim_tests
from .layer_pairs import Seeds, checked_pairs, checked_seeds, same_parameters

if TYPE_CHECKING:
    import pandas as pd

    from ..studies.study import Study

# A scale on which seeds are averaged: there and back.
_Scale = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_IDENTITY: _Scale = (np.asarray, float)
_FISHER: _Scale = (lambda r: np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)), np.tanh)
_LOG: _Scale = (np.log, np.exp)
# Claims 1 and 5 are tested by permuting models, which says nothing over seeds.
_UNTESTED = "; untested: one shape has much the same curves in every seed, so read this claim over models"
# Number of a claim: the scale, what is estimated in every seed, and why it is not tested.
_ESTIMATED: Mapping[int, tuple[_Scale, str, str]] = {
    1: (_FISHER, "Pearson's r of −MSE (Eq. 14) and accuracy over junctions, mean of a seed's curves", _UNTESTED),
    2: (_IDENTITY, "Spearman's less Pearson's r of −MSE, mean of a seed's curves", f"; {NO_NULL}"),
    3: (_IDENTITY, f"share of bias that lies elsewhere than members do; up to {MARGIN} counts as in proportion", ""),
    4: (_IDENTITY, "share of diversity that MLPs hold, more than half of it", ""),
    5: (
        _IDENTITY,
        "share of steps along depth in which bias and diversity move together, where accuracy stands still less where "
        "it moves",
        _UNTESTED,
    ),
    6: (_IDENTITY, f"Eq. 14's bias over that of a uniform prediction; above {HALF} is away from 0", ""),
    8: (_LOG, "diversity over that of its pair", ""),
}


@dataclass(frozen=True)
class StudiesBySeed:
    """A study cut into one for every seed, in which models go by their shapes.

    studies
        {seed: study}; all hold the same shapes and tasks, in the same order.
    shapes
        Those that all seeds have, in order of depth.
    left_out
        Models of the study that are in none, and tasks of a shape that not every seed has.
    """

    studies: Mapping[Hashable, Study]
    shapes: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def description(self) -> str:
        """Over which seeds, of which shapes, and what was left out."""
        seeds = [str(seed) for seed in self.studies]
        few = f"; an interval needs {LEAST_SEEDS} seeds" if len(seeds) < LEAST_SEEDS else ""
        left_out = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"over seeds {', '.join(seeds)} of {', '.join(self.shapes)}{few}{left_out}"


def split_by_seed(study: Study, unit: Unit, seeds: Seeds) -> StudiesBySeed:
    """Cut a study into one for every seed, of the shapes and tasks that all seeds have.

    Raises InputError for fewer than two seeds, a name that the study lacks, two models of one shape and seed, and
    where no shape has all seeds.
    """
    import pandas as pd

    models = study.models(unit).set_index("model")
    seeds = checked_seeds(seeds, models.index)
    names: dict[Hashable, dict[str, str]] = {seed: {} for seed in _ordered({seed for _, seed in seeds.values()})}
    for name, (shape, seed) in seeds.items():
        names[seed][shape] = name
    if len(names) < 2:
        raise InputError(
            f"seeds holds {len(names)} training seed{'s' * (len(names) != 1)}: give models of two at least, "
            f"{LEAST_SEEDS} for intervals."
        )
    metrics = study.metrics[study.metrics["unit"] == unit]
    tasks_of = metrics.groupby("model", sort=False)["task"].unique().map(set)
    in_all_seeds = set.intersection(*map(set, names.values()))
    tasks = {shape: set.intersection(*(tasks_of[of[shape]] for of in names.values())) for shape in in_all_seeds}
    first = next(iter(names.values()))
    shapes = sorted(filter(tasks.get, tasks), key=lambda shape: (models["members"][first[shape]], shape))
    if not shapes:
        raise InputError(
            f"no shape has all the seeds {', '.join(map(str, names))} on a task: leave out the models of a seed that "
            "has few shapes."
        )
    cells = sorted(study.cells, key=lambda cell: cell["settings"]["task"])
    studies = {}
    for seed, of in names.items():
        frames, kept = [], []
        for shape in shapes:
            rows = metrics[(metrics["model"] == of[shape]) & metrics["task"].isin(tasks[shape])]
            frames.append(rows.assign(model=shape).sort_values("task", kind="stable"))
            for cell in cells:
                settings = cell["settings"]
                if (settings["model"], settings["unit"]) == (of[shape], unit) and settings["task"] in tasks[shape]:
                    kept.append(cell | {"settings": settings | {"model": shape}})
        studies[seed] = replace(study, metrics=pd.concat(frames, ignore_index=True), cells=tuple(kept))
    used = {of[shape] for of in names.values() for shape in shapes}
    left_out = [str(name) for name in sorted(models.index) if name not in used]
    for shape in shapes:
        more = set.union(*(tasks_of[of[shape]] for of in names.values())) - tasks[shape]
        left_out += [f"{shape} on {task}" for task in sorted(more)]
    return StudiesBySeed(studies, tuple(shapes), tuple(left_out))


def claims_over_seeds(study: Study, unit: Unit, pairs: Mapping[str, str] | None, seeds: Seeds) -> pd.DataFrame:
    """The table that `Study.claims` gives with the models' seeds: every estimate is the mean over seeds."""
    split = split_by_seed(study, unit, seeds)
    if pairs is None:
        shape_pairs = same_parameters(next(iter(split.studies.values())).models(unit), {})
    else:
        shape_pairs = {}
        for pair in checked_pairs(study.models(unit), pairs).items():
            if without := [name for name in pair if name not in seeds or seeds[name][0] not in split.shapes]:
                raise InputError(
                    f"pairs names {without[0]!r}, which has no shape that all seeds have: leave it out of pairs."
                )
            shape_pairs[seeds[pair[0]][0]] = seeds[pair[1]][0]
    # Of each seed's tests only the estimate is used, which does not depend on resampling.
    sources = [ClaimSource(each, unit, shape_pairs, n_resamples=1, seed=0) for each in split.studies.values()]
    by_seed = [{(test.number, test.variant): test for test in claim_tests(source)} for source in sources]
    slopes = [{f"{quantity}, {which}": fit.slope for quantity, which, _, fit in scaling_fits(s)} for s in sources]
    rows = []
    for key, test in {key: test for tests in by_seed for key, test in tests.items()}.items():
        values = np.array([tests[key].estimate.estimate if key in tests else np.nan for tests in by_seed])
        if not np.isfinite(values).any():
            e, rationale = Estimate(), test.rationale
        elif test.number == 7:
            e, rationale = _curvature(test, values, np.array([s.get(test.variant, np.nan) for s in slopes]))
        else:
            (forward, back), what, untested = _ESTIMATED[test.number]
            if test.number == 8:
                what += ": " + ", ".join(f"{reuses} over {baseline}" for reuses, baseline in shape_pairs.items())
            with np.errstate(divide="ignore", invalid="ignore"):
                e = student_mean(forward(values)).transformed(back)
            rationale = f"{what}{_missing(e, values)}{untested}"
        rows.append(replace(test, estimate=e, rationale=f"{rationale}; {split.description}"))
    frame = claims_frame([*rows, *depth_claim_tests(study.depth)])
    frame.attrs |= {"component unit": unit, "seeds": list(split.studies), "shapes": list(split.shapes)}
    frame.attrs |= {"left out": list(split.left_out), "interval_over": split.description}
    return frame


def _curvature(test: ClaimTest, values: np.ndarray, slopes: np.ndarray) -> tuple[Estimate, str]:
    """Claim 7: the curvature counts only where the slope, over seeds, is clearly for the better."""
    quantity = test.variant.split(",")[0]
    e, slope = student_mean(values), student_mean(slopes)
    rises = slope.low > 0
    sign = -1 if quantity == "MSE" else 1
    rationale = curvature_rationale(quantity, sign, slope.estimate, rises or e.n < LEAST_SEEDS) + _missing(e, values)
    return e if rises else Estimate(e.estimate, n=e.n), rationale


def _missing(e: Estimate, values: np.ndarray) -> str:
    return f", which {e.n} of the seeds have" if e.n < len(values) else ""


def _ordered(values: set[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)
