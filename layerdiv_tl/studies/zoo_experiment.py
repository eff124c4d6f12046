"""The scaling experiment on the zoo, from stored weights, in one folder and one report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import zoo
from .._checks import some_of
from ..zoo.registry import SHIPPED
from .runner import run_depth, run_study
from .study import Study

# Information needs thousands of rows, so these tasks get more rows than the others.
MANY, SOME, FEW = 2048, 256, 128
INFORMED = ("synthetic/k_hop", "synthetic/k_hop:hops=3")
# Number of shuffles of each estimator: the second is the slowest, and its null is at 0 anyway.
ESTIMATORS = {"gaussian": 50, "variational": 8}
# Models from shallow to deep, whose neighbors' layers are mapped.
LADDER = ("zoo/d2", "zoo/d4", "zoo/d8", "zoo/d12")
QUESTIONS, PROMPTS = 48, 24


def run_zoo(
    out: str | os.PathLike[str],
    models: Sequence[str] | None = None,
    *,
    workers: int | None = None,
    say: Callable[[str], Any] | None = None,
) -> Study:
    """Measure the trained models of the zoo on its tasks, in a folder that can be resumed.

    Unit sublayer uses 256 rows of every task, and 2048 rows of two tasks (`INFORMED`) for estimates of information.
    Unit neuron uses 128 rows of these two, without the mixtures of experts, whose tokens use different neurons. The
    depth analyses cover `LADDER`, with maps between neighbors and the depth score of chains of one to four steps.
    The study's `.report(…)` shows all of it.

    Args:
        out, models: The folder; names as in `ld.zoo.models()`, None is all.
        workers, say: Number of processes, None is one per core; a function called with a sentence at each stage.

    Raises InputError for a model that is not in the zoo.
    """
    names = list(zoo.NAMES) if models is None else some_of("models", models, zoo.NAMES)
    tell = say or (lambda _: None)
    several = (os.cpu_count() or 1) if workers is None else workers
    place = Path(out).expanduser()
    others = [task for task in zoo.TASKS if task not in INFORMED]
    mixtures = {model.name for model in SHIPPED if model.experts}
    plain = [name for name in names if name not in mixtures]
    stages: Any = ((names, INFORMED, "sublayer", MANY), (names, others, "sublayer", SOME))
    stages += ((plain, INFORMED, "neuron", FEW),) if plain else ()
    failures: list[str] = []
    mine: set[Path] = set()  # otherwise, cells with other rows in the folder might be taken
    for models_of, tasks, unit, limit in stages:
        tell(f"Taking {len(models_of)} models apart on {len(tasks)} tasks, {limit} rows, unit {unit} …")
        part = run_study(models_of, list(tasks), unit, limit, place, workers=several)
        failures += part.failures
        mine |= {Path(cell["folder"]) for cell in part.cells}
    study = Study.collect([place], mine)
    tell(f"Estimating what their components tell, from {MANY} rows …")
    # A model that failed has been reported, and the others continue.
    there = set(study.metrics.loc[study.metrics["task"].isin(INFORMED), "model"])
    measured = [name for name in names if name in there]
    for estimator, null in ESTIMATORS.items():
        frame = study.information(estimator, models=measured, tasks=INFORMED, n_permutations=null)
        for reason in frame.attrs["left_out"]:
            tell(f"Left out: {reason}")  # identical components have no Gaussian estimate: no failure
    if ladder := [name for name in LADDER if name in names]:
        tell(f"How {', '.join(ladder)} use their depth …")
        options: dict[str, Any] = {"ask": "synthetic/k_hop", "questions": QUESTIONS, "limit": PROMPTS}
        failures += run_depth(ladder, INFORMED[0], out=place, **options).failures
    return replace(study, failures=(*dict.fromkeys([*failures, *study.failures]),))
