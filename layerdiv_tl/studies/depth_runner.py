"""Running the standard depth analyses of one or several models, in a folder that can be resumed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from .. import depth
from .._checks import choice, flag, listed, some_of, whole_number
from ..depth.effects import effects
from ..depth.quantities import UNITS, AblatedPart, ablatable_components
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from ..model.options import ids_after_text, knows
from ..model.prompts import encode, to_python
from ..results import Result
from ..tasks.questions import SAMPLE_QUESTIONS, Questions
from ..tasks.questions import questions as read_questions
from ..tasks.specs import SAMPLE_TASKS
from ..tasks.task import Task, task
from .depth_study import ANALYSES, FORMAT, STANDARD, Analysis, DepthStudy, analysis_file, is_whole
from .folder import failing, made_by
from .grid import load_claimed, load_options, models_of, output_folder, tasks_of
from .shards import digest_of

# Shorter texts have no token that is skipped, one that is measured, and a cut between them.
LEAST_TOKENS = 4
# Prompts of each task that residual norms, skips and the lens read where no texts are given.
PROMPTS_PER_TASK = 16
SYNTHETIC_QUESTIONS = "synthetic/k_hop"
# Analyses that read no texts where a task is named.
_WITHOUT_TEXTS = frozenset(("depth_score", "effects"))


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
    inputs = _Inputs(wanted, to_python(texts), ready, drop, part, score, asked, multi_token, seed, batch_tokens)
    folder = output_folder(out)
    failures: list[str] = []
    done: set[Path] = set()
    before: tuple[Model, Identity] | None = None
    for name, x in grid.items():
        with failing(failures, name):
            model, identity = load_claimed(name, x, folder, options)
            for job in [job for job in jobs_of(model, before, inputs) if job.analysis in wanted]:
                with failing(failures, f"{job.analysis} of {model.name} ({job.dataset})"):
                    done.add(_run(folder, model, identity, job))
            before = model, identity
    study = DepthStudy.collect([folder], done) if done else None
    if study is None:
        raise InputError(" ".join(failures))
    return replace(study, failures=(*failures, *study.failures))


@dataclass(frozen=True)
class _Inputs:
    """What the analyses of a model read, and how; the arguments of `run_depth`, read."""

    analyses: tuple[str, ...]
    texts: list[str]
    tasks: list[Task]
    drop: int | None
    part: AblatedPart
    score: str
    questions: list[Questions]  # of which a model is asked the first that its tokenizer knows
    multi_token: bool
    seed: int
    batch_tokens: int | None


@dataclass(frozen=True)
class _Job:
    """One analysis to run: everything its numbers follow from, besides the model, and the call that makes it."""

    analysis: str
    dataset: str
    settings: dict[str, Any]
    make: Callable[[], Result]


def jobs_of(model: Model, before: tuple[Model, Identity] | None, inputs: _Inputs) -> Iterator[_Job]:
    """All analyses of a model; the maps are from the model `before` it, if there is one."""
    size: dict[str, Any] = {"batch_tokens": model.checked_batch_tokens(inputs.batch_tokens)}
    seeded = {"seed": inputs.seed, **size}
    rows = [ids for ids in encode(model, inputs.texts, any_length=True) if len(ids) >= LEAST_TOKENS]
    if not rows and not _WITHOUT_TEXTS.issuperset(inputs.analyses):
        raise InputError(f"no text has {LEAST_TOKENS} tokens: give longer ones.")
    texts = [list(ids if model.context is None else ids[: model.context]) for ids in rows]
    on_texts = f"{len(texts)} texts"
    read = {"texts": digest_of(texts), **size}
    yield _Job("residual_norms", on_texts, read, lambda: depth.residual_norms(model, texts, **size))
    yield _Job("skip", on_texts, read, lambda: depth.skip(model, texts, **size))
    yield _Job("skip_future", on_texts, read, lambda: depth.skip(model, texts, mode="future", **size))
    yield _Job("logit_lens", on_texts, read, lambda: depth.logit_lens(model, texts, **size))
    known = [asked for asked in inputs.questions if _knows(model, asked.answers)]
    # Where the tokenizer knows the answers of none, those that were asked for fail, and say so.
    is_wanted = len(inputs.questions) == 1 or inputs.analyses != STANDARD
    for asked in (known or (inputs.questions if is_wanted else []))[:1]:
        settings = {"questions": [asked.texts, asked.answers], "effect": "published", **seeded}
        score = partial(depth.depth_score, model, asked, effect="published", **seeded)
        yield _Job("depth_score", f"{len(asked.texts)} questions", settings, score)
    count = len(ablatable_components(model, rows[0], inputs.part)) if "drop_plan" in inputs.analyses else 0
    budget = max(1, int(count / 5 + 0.5)) if inputs.drop is None else inputs.drop
    if inputs.drop is not None and 0 < count <= budget:
        raise InputError(f"drop={budget} must be below {count}, the {inputs.part}s of {model.name} that could go.")
    plan = {"drop": inputs.drop, "part": inputs.part, "score": inputs.score}
    tasks: list[Task | None] = [*inputs.tasks] or [None]
    for t in tasks:
        dataset, settings = on_texts, read | seeded
        if t is not None:
            labels = hashlib.sha256(t.labels.tobytes()).hexdigest()
            settings = {"prompts": t.prompt_hash, "options": list(t.options), "labels": labels, **seeded}
            dataset, settings["multi_token"] = t.name, inputs.multi_token

        def agreement(t: Task | None = t) -> Result:
            return depth.agreement(model, _resolved(t, model, inputs.multi_token, texts), **seeded)

        def drop_plan(t: Task | None = t) -> Result:
            rows = _resolved(t, model, inputs.multi_token, texts)
            return depth.drop_plan(model, rows, budget, inputs.score, inputs.part, **seeded)

        yield _Job("agreement", dataset, settings, agreement)
        # Of one, none can go, which is said where a plan was asked for.
        if inputs.drop is not None or count > 1 or inputs.analyses != STANDARD:
            yield _Job("drop_plan", dataset, settings | plan, drop_plan)
        if t is not None:

            def ablate(t: Task = t) -> Result:
                return effects(model, t.resolve(model, inputs.multi_token), unit="sublayer", ablation="mean", **seeded)

            yield _Job("effects", dataset, settings | {"unit": "sublayer", "ablation": "mean"}, ablate)
    if before is not None:
        shallow, identity = before
        settings = {"texts": digest_of(inputs.texts), "from": asdict(identity), **seeded}

        def maps() -> Result:
            return depth.map_layers(shallow, model, _comparable_texts(shallow, model, inputs.texts), **seeded)

        yield _Job("map_layers", f"from {shallow.name}", settings, maps)


def _knows(model: Model, texts: Iterable[str]) -> bool:
    tokenizer = model.tokenizer
    return tokenizer is None or all(knows(tokenizer, ids_after_text(tokenizer, text), text) for text in texts)


def _resolved(t: Task | None, model: Model, multi_token: bool, texts: list[list[int]]) -> Any:
    """The task with this model's option ids, or the texts; a task that the model cannot take fails its own jobs."""
    return texts if t is None else t.resolve(model, multi_token)


def _comparable_texts(before: Model, model: Model, texts: Sequence[Any]) -> list[Any]:
    """The texts that both models read whole; where their tokens are the same, what both read of each."""
    models = before, model
    rows = [encode(each, texts, any_length=True) for each in models]
    limits = [len(max(rows[0] + rows[1], key=len)) if each.context is None else each.context for each in models]
    if rows[0] == rows[1] and before.vocabulary == model.vocabulary:
        return [row[: min(limits)] for row in rows[0] if len(row) >= LEAST_TOKENS]
    return [
        text
        for text, *both in zip(texts, *rows, strict=True)
        if all(LEAST_TOKENS <= len(row) <= limit for row, limit in zip(both, limits, strict=True))
    ]


def _run(folder: Path, model: Model, identity: Identity, job: _Job) -> Path:
    """The analysis from the folder, or computed and written there; the file that describes it."""
    # Names too: two that make one name of a file are two analyses.
    settings = job.settings | {"model": model.name, "dataset": job.dataset, "dtype": model.provenance["dtype"]}
    settings |= {"weights": identity.weights, "tokenizer": identity.tokenizer, **identity.settings, "format": FORMAT}
    about: dict[str, Any] = {"format": FORMAT, "model": model.name, "analysis": job.analysis, "dataset": job.dataset}
    about |= {"settings": settings, "digest": digest_of(settings, 12)}
    file = analysis_file(folder, about)
    if not is_whole(file):
        start = time.time()
        result = job.make()
        about |= {"seconds": round(time.time() - start, 3), **made_by(model)}
        Analysis(model.name, job.analysis, job.dataset, result, about).write(folder)
    return file
