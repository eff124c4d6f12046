"""Runs of studies (models × tasks × units) and of depth analyses, in a folder that can be resumed and shared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from .._checks import choice, flag, listed, some_of, whole_number
from ..components import Unit
from ..depth.quantities import UNITS, AblatedPart
from ..errors import InputError
from ..model.prompts import to_python
from ..tasks.questions import SAMPLE_QUESTIONS
from ..tasks.questions import questions as read_questions
from ..tasks.specs import SAMPLE_TASKS
from ..tasks.task import Task, task
from .depth_jobs import DepthWork
from .depth_study import ANALYSES, STANDARD, DepthStudy
from .grid import load_options, models_of, output_folder, tasks_of
from .study import Study
from .study_jobs import read_work

# Prompts of each task used for residual norms, skips and the lens if no texts are given.
PROMPTS_PER_TASK = 16
SYNTHETIC_QUESTIONS = "synthetic/k_hop"


def run_study(
    models: Any,
    tasks: Any,
    units: Unit | Sequence[Unit] = ("sublayer",),
    limit: int | None = None,
    out: str | os.PathLike[str] | None = None,
    data: Any = None,
    *,
    template: str | None = None,
    shots: int = 0,
    seed: int = 0,
    train: Any = None,
    multi_token: bool = False,
    chat: bool = False,
    keep_text: bool = False,
    batch_tokens: int | None = None,
    load: Mapping[str, Any] | None = None,
    workers: int = 1,
) -> Study:
    """Decompose the logits of models on tasks, in a folder that any number of processes may share and resume.

    Args:
        models: One or several inputs of `load_model`, or {name: input}. "default" is the default model, "zoo" all
            trained models that come with the package (`ld.zoo.models()`).
        tasks: Names or `Task`s with distinct names; "all" is the paper's eight, "zoo" the training tasks of the zoo.
        units: One or several of "sublayer", "head", "neuron", "expert".
        limit, data, template, shots, seed, train: As in `task`, for tasks given by name.
        out: The folder; None is a temporary one. Finished cells are not computed again. A changed setting or prompt
            makes a new cell. A name identifies one model.
        multi_token: Score options of several tokens by their first distinguishing token instead of as sequences, by
            the sum of their log-probabilities.
        chat: Put prompts through the tokenizer's chat template.
        keep_text: Also write the prompts, whose licenses may not allow redistribution.
        batch_tokens: Maximal number of padded tokens per pass; None chooses a fast value for each device. It is part
            of a cell's settings, because batching changes the last bits.
        load: Options for `load_model` (dtype, device, device_map, trust_remote_code).
        workers: Number of processes for many small models given by name. Each holds one model at a time and has its
            share of the cores. A script that asks for several needs an `if __name__ == "__main__":`.

    A model or cell that fails, e.g. a model with hooks or a name that identifies another model in this folder, is
    named in `failures`; the others continue. Raises InputError for an empty grid, and if nothing was measured.

    >>> study = run_study("zoo/d1", "synthetic/recall", limit=8)
    >>> study
    Study(1 models × 1 tasks × 1 units, 1 cells)
    >>> study.table()["uniform", "synthetic/recall"].round(2).to_dict()
    {'zoo/d1': 18.75}
    """
    named = dict(template=template, shots=shots, seed=seed, train=train, multi_token=multi_token, chat=chat)
    named |= dict(keep_text=keep_text, batch_tokens=batch_tokens, load=load)
    workers = whole_number("workers", workers, 1)
    grid, work = read_work(models, tasks, units, limit, Path(), data, **named)
    in_memory = [name for name, x in grid.items() if not isinstance(x, str | os.PathLike | None)]
    if workers > 1 and in_memory:
        raise InputError(f"workers={workers} needs models by name, and {in_memory[0]!r} is in this process's memory.")
    return replace(work, out=output_folder(out)).collected(Study, grid, workers)


def run_depth(
    models: Any = "default",
    tasks: Any = None,
    texts: Sequence[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    analyses: Sequence[str] | str | None = None,
    data: Any = None,
    limit: int | None = 64,
    drop: int | None = None,
    part: AblatedPart = "layer",
    score: str = "loss",
    ask: Any = None,
    questions: int = 32,
    multi_token: bool = False,
    seed: int = 0,
    batch_tokens: int | None = None,
    load: Mapping[str, Any] | None = None,
) -> DepthStudy:
    """Run the standard depth analyses of one or several models, in a folder that can be resumed.

    The standard set has residual norms, skips (at all tokens, or at earlier tokens with the effect on later ones), the
    logit lens, the depth score, the linear maps of each model's layers to the next model's and, for each task, or for
    the texts if no task is named, the agreement of direct measures with ablation and a plan of layers to drop.

    Args:
        models, data, limit, multi_token, load: As in `run_study`; by default the first 64 rows of each task.
        tasks: As in `run_study`; None is the authored sample tasks, or no task if texts are given.
        texts: Texts for residual norms, skips and the lens, some with at least 4 tokens; None is the first 16 prompts
            of each task.
        analyses: Names of the analyses to run; None is the standard set. "effects" is not in it: the effects of each
            sublayer on a task's answers by mean ablation, used by `Study.over_training`.
        out: The folder; None is a temporary one. Finished analyses are not computed again. It may also hold a study,
            whose report then shows both.
        drop, part, score: Number of layers that the plan drops (None: a fifth), their part and the score: see
            `drop_plan`.
        ask, questions: The source of the depth score's questions (see `ld.depth.questions`) and their number for each
            number of hops; 0 omits the depth score. None asks `sample/hops` if the tokenizer knows its words, otherwise
            `synthetic/k_hop` (the zoo's models), or nothing if it knows neither.
        seed, batch_tokens: As in the analyses.

    A model or analysis that fails is named in `failures`; the others continue. Raises InputError for empty input, for
    analyses that lack an input (a task, a second model, questions), and if nothing was measured.
    """
    grid, options = models_of(models), load_options(load)
    tasks = ([] if texts is not None else list(SAMPLE_TASKS)) if tasks is None else tasks
    names = tasks_of(tasks) if not isinstance(tasks, list | tuple) or tasks else []
    wanted = STANDARD if analyses is None else tuple(some_of("analyses", analyses, list(ANALYSES)))
    ready = [t if isinstance(t, Task) else task(t, data, limit=limit, seed=seed) for t in names]
    questions, seed = whole_number("questions", questions, 0), whole_number("seed", seed, 0)
    flag("multi_token", multi_token)
    choice("part", part, get_args(AblatedPart))
    choice("score", score, UNITS)
    drop = None if drop is None else whole_number("drop", drop, 1)
    if texts is None:
        texts = [prompt for t in ready for prompt in t.prompts[:PROMPTS_PER_TASK]]
    texts = listed("texts", texts, "a list of texts")
    if not texts:
        raise InputError("texts is empty: give a list of texts.")
    for name, lacks, reason in (
        ("effects", not ready, "effects are of a task's answers: name a task."),
        ("map_layers", len(grid) < 2, "map_layers is from one model to the next: give several."),
        ("depth_score", not questions, "depth_score needs questions above 0."),
    ):
        if lacks and name in wanted and analyses is not None:
            raise InputError(reason)
    # Check this before models are loaded.
    sources = ((SAMPLE_QUESTIONS, SYNTHETIC_QUESTIONS) if ask is None else (ask,)) if questions else ()
    asked = [read_questions(x, limit=questions) for x in sources if "depth_score" in wanted]
    read = (to_python(texts), ready, drop, part, score, asked, multi_token, seed, batch_tokens)
    return DepthWork(options, output_folder(out), wanted, *read).collected(DepthStudy, grid)
