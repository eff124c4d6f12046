"""Claims 1-8 over training seeds: every estimate is the mean of the seeds' estimates."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..errors import InputError
from .claim import CLAIMS, SCALES, ClaimTest, Evidence, claim_tests
from .layer_sharing import Seeds, checked_pairs, checked_seeds, same_parameters
from .populations import LEAST_SEEDS, mean_over_seeds, on_scale


def claim_tests_over_seeds(evidence: Evidence, seeds: Seeds) -> tuple[list[ClaimTest], dict[str, Any]]:
    """Test claims 1-8 on means over training seeds; return the tests and the `attrs` of their table."""
    by_seed, left_out = _split_by_seed(evidence, seeds)
    shapes = next(iter(by_seed.values())).models["model"].tolist()
    pairs = same_parameters(next(iter(by_seed.values())).models, {})
    if evidence.pairs is not None:
        given, pairs = checked_pairs(evidence.models, evidence.pairs), {}
        for pair in given.items():
            if without := [name for name in pair if name not in seeds or seeds[name][0] not in shapes]:
                lacks = f"pairs names {without[0]!r}, which has no shape that all seeds have"
                raise InputError(f"{lacks}: leave it out of pairs.")
            pairs[seeds[pair[0]][0]] = seeds[pair[1]][0]
    # Only the estimate of each seed's test is used, which does not depend on resampling.
    each = [list(claim_tests(replace(own, pairs=pairs, n_resamples=1))) for own in by_seed.values()]
    few = f"; an interval needs {LEAST_SEEDS} seeds" if len(by_seed) < LEAST_SEEDS else ""
    description = f"over seeds {', '.join(map(str, by_seed))} of {', '.join(shapes)}{few}"
    description += f"; left out: {', '.join(left_out)}" if left_out else ""
    variants: dict[tuple[int, str], list[ClaimTest]] = {}
    for test in (test for tests in each for test in tests):
        variants.setdefault((test.number, test.variant), []).append(test)
    rows = [_over_seeds(tests, len(by_seed), description) for tests in variants.values()]
    attrs = {"seeds": list(by_seed), "shapes": shapes, "left out": left_out, "interval_over": description}
    return rows, attrs


def _over_seeds(tests: Sequence[ClaimTest], count: int, description: str) -> ClaimTest:
    """Average one variant's estimates over the seeds that have it, out of `count`."""
    last, claim = tests[-1], CLAIMS[tests[0].number]
    transform, inverse = SCALES[claim.scale]
    with np.errstate(divide="ignore", invalid="ignore"):
        e = on_scale(mean_over_seeds(transform(np.array([test.estimate.value for test in tests]))), inverse)
    condition = None
    if last.condition is not None:
        condition = mean_over_seeds(np.array([test.condition.value for test in tests if test.condition]))
    missing = f"which {e.n} of the seeds have" if e.n < count else ""
    note = "; ".join(filter(None, [missing, claim.undecided, description]))
    return replace(last, estimate=e, note=note, p=np.nan, models=0, condition=condition)


def _split_by_seed(evidence: Evidence, seeds: Seeds) -> tuple[dict[Hashable, Evidence], list[str]]:
    """Split the frames by seed, with the shapes and tasks that all seeds have, named by shape and ordered by depth.

    Also returns the models of no seed, and the tasks of a shape that some seed lacks: they are left out.
    """

    def order(seed: Any) -> tuple[Any, ...]:  # numbers, then everything else by its repr
        return (0, seed) if isinstance(seed, int | float) else (1, repr(seed))

    models = evidence.models.set_index("model")
    seeds = checked_seeds(seeds, models.index)
    names: dict[Hashable, dict[str, str]] = {seed: {} for seed in sorted({s for _, s in seeds.values()}, key=order)}
    for name, (shape, seed) in seeds.items():
        names[seed][shape] = name
    if len(names) < 2:
        count = f"{len(names)} training seed{'s' * (len(names) != 1)}"
        raise InputError(f"seeds holds {count}: give models of two at least, {LEAST_SEEDS} for intervals.")
    has = evidence.metrics.groupby("model", sort=False)["task"].unique().map(set)
    in_all = set.intersection(*map(set, names.values()))
    tasks = {shape: set.intersection(*(has[of[shape]] for of in names.values())) for shape in in_all}
    first = next(iter(names.values()))
    shapes = sorted(filter(tasks.get, tasks), key=lambda shape: (models["members"][first[shape]], shape))
    if not shapes:
        raise InputError(
            f"no shape has all the seeds {', '.join(map(str, names))} on a task: leave out the models of a seed that "
            "has few shapes."
        )

    def cut(frame: pd.DataFrame, of: Mapping[str, str]) -> pd.DataFrame:
        parts = [frame[(frame["model"] == of[s]) & frame["task"].isin(tasks[s])].assign(model=s) for s in shapes]
        return pd.concat([part.sort_values("task", kind="stable") for part in parts], ignore_index=True)

    found = {}
    for seed, of in names.items():
        own = models.loc[[of[shape] for shape in shapes]].reset_index(drop=True)
        own.insert(0, "model", shapes)
        curves = None if evidence.curves is None else cut(evidence.curves, of)
        curves = None if curves is None or curves.empty else curves
        found[seed] = replace(evidence, metrics=cut(evidence.metrics, of), models=own, curves=curves, shapes={})
    used = {of[shape] for of in names.values() for shape in shapes}
    left_out = [str(name) for name in sorted(models.index) if name not in used]
    for shape in shapes:
        more = set.union(*(has[of[shape]] for of in names.values())) - tasks[shape]
        left_out += [f"{shape} on {task}" for task in sorted(more)]
    return found, left_out
