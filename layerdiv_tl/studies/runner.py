"""Running a study, models × tasks × units, or depth analyses: in a folder that can be resumed and shared."""

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

# Prompts of each task that residual norms, skips and the lens read where no texts are given.
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
        models: One or several of what `load_model` takes, or {name: x}. "default" is the default model, "zoo" all
            trained models that come with the package (`ld.zoo.models()`).
        tasks: Names or `Task`s, of one name each; "all" is the paper's eight, "zoo" what the zoo was trained on.
        units: "sublayer", "head", "neuron", "expert", one or several.
        limit, data, template, shots, seed, train: As in `task`, for tasks that are given by name.
        out: The folder; None is a temporary one. Finished cells are not computed again; a changed setting or prompt
            goes into a cell of its own, and a name stands for one model.
        multi_token, chat, keep_text: Score options of several tokens by their first distinguishing one, and not as
            sequences, by the sum of their log-probabilities; put prompts
            through the tokenizer's chat template; also write the prompts, which the rows' licenses may not allow to be
            passed on.
        batch_tokens: The most padded tokens in one pass; None is what is fast on each device. A setting: batches change
            last bits.
        load: Options for `load_model` (dtype, device, device_map, trust_remote_code).
        workers: Processes that share the models, each of which holds one model at a time and its part of the cores: for
            many small models, given by name. A script that asks for several needs an `if __name__ == "__main__":`.

    A model or cell that fails is named in `failures` and the others go on: a name that stands for another model in
    this folder, say, or a model with hooks in it. Raises InputError for an empty grid, and where nothing was measured.

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

    Residual norms, skips (at all tokens; at earlier ones for later ones), the logit lens, the depth score; for each
    task, or for the texts where no task is named, the agreement of direct measures with ablation and a plan of what
    to drop; and linear maps from each model to the next.

    Args:
        models, data, limit, multi_token, load: As in `run_study`; the first 64 rows of each task, by default.
        tasks: As in `run_study`; None is the authored sample tasks, or none where there are texts.
        texts: What residual norms, skips and the lens read, of which some must have 4 tokens; None is the first 16
            prompts of each task.
        analyses: Which to run, by name; None is the standard set. "effects" is not in it: of a task, what each sublayer
            does to the answer directly and in all (`effects`, by mean ablation), which `Study.over_training` reads.
        out: The folder; None is a temporary one. Finished analyses are not computed again. A study may lie in it too,
            and its report then shows both.
        drop, part, score: How many layers the plan drops (None: a fifth), of which part and by which score: see
            `drop_plan`.
        ask, questions: The depth score's questions, as the source of `ld.depth.questions`, and how many of each number
            of steps; 0 leaves it out. None asks `sample/hops`, or `synthetic/k_hop` of a model whose tokenizer does not
            know the words (the zoo's), or none of one that knows neither.
        seed, batch_tokens: As in the analyses.

    A model or analysis that fails is named in `failures` and the others go on. Raises InputError for input that
    names nothing, for analyses that lack what they need (a task, a second model, questions), and where nothing at all
    could be measured.
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
    # Before models are loaded.
    sources = ((SAMPLE_QUESTIONS, SYNTHETIC_QUESTIONS) if ask is None else (ask,)) if questions else ()
    asked = [read_questions(x, limit=questions) for x in sources if "depth_score" in wanted]
    read = (to_python(texts), ready, drop, part, score, asked, multi_token, seed, batch_tokens)
    return DepthWork(options, output_folder(out), wanted, *read).collected(DepthStudy, grid)
