"""Claims whose intervals are over training seeds: the same shapes, trained again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..components import Unit
from ..errors import InputError
from .claim_tests import CLAIMS, LEAST_SEEDS, SCALES, ClaimTest, Estimate, claims_frame, student_mean
from .claims import ClaimSource, claim_tests, curvature_rationale
from .depth_claims import depth_claim_tests
from .layer_sharing import Seeds, checked_pairs, checked_seeds, same_parameters

if TYPE_CHECKING:
    from ..studies.study import Study


def _split_by_seed(study: Study, unit: Unit, seeds: Seeds) -> tuple[dict[Hashable, Study], list[str], list[str]]:
    """A study cut into one for every seed, of the shapes and tasks that all seeds have; models go by their shapes.

    Also the shapes in order of depth, and what was left out: models that are in none, and tasks of a shape that not
    every seed has.
    """
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
    return studies, shapes, left_out


def claims_over_seeds(study: Study, unit: Unit, pairs: Mapping[str, str] | None, seeds: Seeds) -> pd.DataFrame:
    """The table that `Study.claims` gives with the models' seeds: every estimate is the mean over seeds."""
    studies, shapes, left_out = _split_by_seed(study, unit, seeds)
    if pairs is None:
        shape_pairs = same_parameters(next(iter(studies.values())).models(unit), {})
    else:
        shape_pairs = {}
        for pair in checked_pairs(study.models(unit), pairs).items():
            if without := [name for name in pair if name not in seeds or seeds[name][0] not in shapes]:
                raise InputError(
                    f"pairs names {without[0]!r}, which has no shape that all seeds have: leave it out of pairs."
                )
            shape_pairs[seeds[pair[0]][0]] = seeds[pair[1]][0]
    # Of each seed's tests only the estimate is used, which does not depend on resampling.
    sources = [ClaimSource(each, unit, shape_pairs, n_resamples=1, seed=0) for each in studies.values()]
    by_seed = [{(test.number, test.variant): test for test in claim_tests(source)} for source in sources]
    few = f"; an interval needs {LEAST_SEEDS} seeds" if len(studies) < LEAST_SEEDS else ""
    description = f"over seeds {', '.join(map(str, studies))} of {', '.join(shapes)}{few}"
    description += f"; left out: {', '.join(left_out)}" if left_out else ""
    rows = []
    for key in dict.fromkeys(key for tests in by_seed for key in tests):
        e, rationale = _mean_over_seeds([tests.get(key) for tests in by_seed], shape_pairs)
        test = next(tests[key] for tests in reversed(by_seed) if key in tests)
        rows.append(replace(test, estimate=e, rationale=f"{rationale}; {description}"))
    frame = claims_frame([*rows, *depth_claim_tests(study.depth)])
    frame.attrs |= {"component unit": unit, "seeds": list(studies), "shapes": shapes}
    frame.attrs |= {"left out": left_out, "interval_over": description}
    return frame


def _mean_over_seeds(tests: Sequence[ClaimTest | None], pairs: Mapping[str, str]) -> tuple[Estimate, str]:
    """The mean of one variant's estimates, None where a seed lacks it, and what it is."""
    known = [test for test in tests if test is not None]
    claim, values = CLAIMS[known[0].number], np.array([test.estimate.estimate for test in known])
    if not np.isfinite(values).any():
        return Estimate(), known[-1].rationale
    there, back = SCALES[claim.scale]
    with np.errstate(divide="ignore", invalid="ignore"):
        e = student_mean(there(values)).transformed(back)
    quantity, note = claim.quantity, f"; {claim.undecided}" if claim.undecided else ""
    if claim.number == 7:  # the curvature counts only where the slope, over seeds, is clearly for the better
        name = known[0].variant.split(",")[0]
        slope = student_mean(np.array([test.slope for test in known]))
        doublings = slope.estimate if name == "accuracy" else -slope.estimate
        quantity = curvature_rationale(name, doublings, slope.low > 0 or e.n < LEAST_SEEDS)
        e = e if slope.low > 0 else Estimate(e.estimate, n=e.n)
    elif claim.number == 8:
        quantity += ": " + ", ".join(f"{reuses} over {baseline}" for reuses, baseline in pairs.items())
    missing = f", which {e.n} of the seeds have" if e.n < len(tests) else ""
    return e, f"{quantity}{missing}{note}"


def _ordered(values: set[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)
