"""Claims whose intervals are over training seeds: the same shapes, trained again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import shown
from ..components import Unit
from ..errors import InputError
from .claim_tests import LEAST_SEEDS, MARGIN, Estimate, Reading, scaled, student, table_of
from .claims import HALF, UNRANKED, Held, bent, readings, returns
from .depth_claims import depth_readings
from .layer_pairs import given, same_parameters

if TYPE_CHECKING:
    import pandas as pd

    from ..studies.study import Study

# {model: (shape, seed)}: models of one shape differ in their training seed only.
Seeds = Mapping[str, tuple[str, Hashable]]
_Scale = tuple[Callable[[Any], Any], Callable[[Any], Any]]

_AS_IT_IS: _Scale = (np.asarray, float)
_FISHER: _Scale = (lambda r: np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)), np.tanh)
_LOG: _Scale = (np.log, np.exp)
# Number of a claim -> what is estimated in every seed, and the scale on which seeds are averaged.
_ESTIMATED: Mapping[int, tuple[str, _Scale]] = {
    1: ("Pearson's r of −MSE (Eq. 14) and accuracy over junctions, mean of a seed's curves", _FISHER),
    2: ("Spearman's less Pearson's r of −MSE, mean of a seed's curves", _AS_IT_IS),
    3: (f"share of bias that lies elsewhere than members do; up to {MARGIN} counts as in proportion", _AS_IT_IS),
    4: ("share of diversity that MLPs hold, more than half of it", _AS_IT_IS),
    5: (
        "share of steps along depth in which bias and diversity move together, where accuracy stands still less where "
        "it moves",
        _AS_IT_IS,
    ),
    6: (f"Eq. 14's bias over that of a uniform prediction; above {HALF} is away from 0", _AS_IT_IS),
    8: ("diversity over that of its pair", _LOG),
}
_OTHER = "; untested: one shape has much the same curves in every seed, so read this claim over models"
_UNTESTED: Mapping[int, str] = {1: _OTHER, 2: f"; {UNRANKED}", 5: _OTHER}


@dataclass(frozen=True)
class BySeed:
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
    def words(self) -> str:
        """Over which seeds, of which shapes, and what was left out."""
        seeds = [str(seed) for seed in self.studies]
        few = f"; an interval needs {LEAST_SEEDS} seeds" if len(seeds) < LEAST_SEEDS else ""
        left = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"over seeds {', '.join(seeds)} of {', '.join(self.shapes)}{few}{left}"


def checked_seeds(seeds: Seeds, models: Iterable[str]) -> dict[str, tuple[str, Hashable]]:
    """The seeds as given. Raises InputError for what is not {model: (shape, seed)} of models of the study."""
    names = list(models)
    example = '{"small-a": ("small", 0), "small-b": ("small", 1)}'
    if not isinstance(seeds, Mapping):
        raise InputError(f"seeds={shown(seeds)} must be {{model: (shape, seed)}}, such as {example}.")
    found: dict[tuple[str, Hashable], str] = {}
    for name, pair in seeds.items():
        if name not in names:
            raise InputError(f"seeds names {shown(name)}, but the study has {', '.join(names)}.")
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and _hashable(pair[1])):
            raise InputError(f"seeds has {shown(pair)} for {name!r}: give (shape, seed), such as {example}.")
        if pair in found:
            raise InputError(
                f"{found[pair]!r} and {name!r} are both seed {pair[1]!r} of shape {pair[0]!r}: give one of them."
            )
        found[pair] = name
    return dict(seeds)


def by_seed(study: Study, unit: Unit, seeds: Seeds) -> BySeed:
    """Cut a study into one for every seed, of the shapes and tasks that all seeds have.

    Raises InputError for fewer than two seeds, a name that the study lacks, two models of one shape and seed, and
    where no shape has all seeds.
    """
    import pandas as pd

    models = study.models(unit).set_index("model")
    seeds = checked_seeds(seeds, models.index)
    names: dict[Hashable, dict[str, str]] = {seed: {} for seed in _in_order({seed for _, seed in seeds.values()})}
    for name, (shape, seed) in seeds.items():
        names[seed][shape] = name
    if len(names) < 2:
        raise InputError(
            f"seeds holds {len(names)} training seed{'s' * (len(names) != 1)}: give models of two at least, "
            f"{LEAST_SEEDS} for intervals."
        )
    of_unit = study.metrics[study.metrics["unit"] == unit]
    cells = of_unit.groupby("model", sort=False)["task"].unique().map(set)
    every = set.intersection(*map(set, names.values()))
    tasks = {shape: set.intersection(*(cells[of[shape]] for of in names.values())) for shape in every}
    shapes = [shape for shape in every if tasks[shape]]
    if not shapes:
        raise InputError(
            f"no shape has all the seeds {', '.join(map(str, names))} on a task: leave out the models of a seed that "
            "has few shapes."
        )
    first = next(iter(names.values()))
    shapes.sort(key=lambda shape: (models["members"][first[shape]], shape))
    studies = {}
    for seed, of in names.items():
        parts, kept = [], []
        for shape in shapes:
            rows = of_unit[(of_unit["model"] == of[shape]) & of_unit["task"].isin(tasks[shape])]
            parts.append(rows.assign(model=shape).sort_values("task", kind="stable"))
            for cell in sorted(study.cells, key=lambda cell: cell["settings"]["task"]):
                settings = cell["settings"]
                if (settings["model"], settings["unit"]) == (of[shape], unit) and settings["task"] in tasks[shape]:
                    kept.append(cell | {"settings": settings | {"model": shape}})
        studies[seed] = replace(study, metrics=pd.concat(parts, ignore_index=True), cells=tuple(kept))
    used = {of[shape] for of in names.values() for shape in shapes}
    left = [str(name) for name in sorted(models.index) if name not in used]
    for shape in shapes:
        more = set.union(*(cells[of[shape]] for of in names.values())) - tasks[shape]
        left += [f"{shape} on {task}" for task in sorted(more)]
    return BySeed(studies, tuple(shapes), tuple(left))


def claims_over_seeds(study: Study, unit: Unit, pairs: Mapping[str, str] | None, seeds: Seeds) -> pd.DataFrame:
    """The table that `Study.claims` gives where it is told the models' seeds."""
    cut = by_seed(study, unit, seeds)
    first = next(iter(cut.studies.values())).models(unit)
    if pairs is None:
        of_shapes = same_parameters(first, {})
    else:
        of_shapes = {}
        for both in given(study.models(unit), pairs).items():
            for name in both:
                if name not in seeds or seeds[name][0] not in cut.shapes:
                    raise InputError(
                        f"pairs names {name!r}, which has no shape that all seeds have: leave it out of pairs."
                    )
            of_shapes[seeds[both[0]][0]] = seeds[both[1]][0]
    # Of what a seed says the estimate alone is used, which no draw changes.
    held = [Held(one, unit, of_shapes, n_resamples=1, seed=0) for one in cut.studies.values()]
    found = [{(r.number, r.variant): r for r in readings(one)} for one in held]
    slopes = [{f"{quantity}, {which}": fit.slope for quantity, which, _, fit in returns(one)} for one in held]
    rows = []
    for key, reading in {key: reading for one in found for key, reading in one.items()}.items():
        values = np.array([one[key].found.estimate if key in one else np.nan for one in found])
        if not np.isfinite(values).any():
            rationale = f"{reading.rationale}; {cut.words}"
            rows.append(replace(reading, found=Estimate(interval_over="nothing"), rationale=rationale))
        elif reading.number == 7:
            rises = np.array([one.get(reading.variant, np.nan) for one in slopes])
            rows.append(_diminishes(reading, values, rises, cut.words))
        else:
            what, (there, back) = _ESTIMATED[reading.number]
            if reading.number == 8:
                what += ": " + ", ".join(f"{reused} over {plain}" for reused, plain in of_shapes.items())
            with np.errstate(divide="ignore", invalid="ignore"):
                e = scaled(student(there(values), "seeds"), back)
            rationale = f"{what}{_some(e, values)}{_UNTESTED.get(reading.number, '')}; {cut.words}"
            # What is tested by permuting models has no p over seeds: the same shapes have the same curves in all.
            rows.append(replace(reading, found=e, rationale=rationale))
    frame = table_of([*rows, *depth_readings(study.depth)])
    frame.attrs |= {"component unit": unit, "seeds": list(cut.studies), "shapes": list(cut.shapes)}
    frame.attrs |= {"left out": list(cut.left_out), "interval_over": cut.words}
    return frame


def _diminishes(reading: Reading, values: np.ndarray, slopes: np.ndarray, words: str) -> Reading:
    """Claim 7: the curvature counts only where the slope, over seeds, is clearly for the better."""
    quantity = reading.variant.split(",")[0]
    e, slope = student(values, "seeds"), student(slopes, "seeds")
    rises = slope.low > 0
    what = bent(quantity, -1 if quantity == "MSE" else 1, slope.estimate, rises or e.n < LEAST_SEEDS)
    e = e if rises else replace(e, low=np.nan, high=np.nan, interval_over="nothing")
    return replace(reading, found=e, rationale=f"{what}{_some(e, values)}; {words}")


def _some(e: Estimate, values: np.ndarray) -> str:
    return f", which {e.n} of the seeds have" if e.n < len(values) else ""


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _in_order(values: set[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)
