"""Jobs of a depth study for one model: the standard analyses, each stored in its own file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .. import depth
from ..depth.quantities import AblatedPart, ablatable_components
from ..depth.total_effects import effects
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from ..model.options import ids_after_text
from ..model.prompts import encode, knows
from ..results import Result
from ..tasks.questions import Questions
from ..tasks.task import Task
from .depth_study import FORMAT, STANDARD, Analysis, analysis_file, is_whole
from .folder import made_by
from .grid import Job, Work
from .shards import digest_of

# A shorter text cannot hold a skipped token, a measured token and a cut between them.
LEAST_TOKENS = 4
# Analyses that use no texts if a task is given.
_WITHOUT_TEXTS = frozenset(("depth_score", "effects"))


@dataclass(frozen=True)
class DepthWork(Work):
    """The analyses to run on every model and their inputs: the parsed arguments of `run_depth`."""

    analyses: tuple[str, ...]
    texts: list[str]
    tasks: list[Task]
    drop: int | None
    part: AblatedPart
    score: str
    questions: list[Questions]  # a model gets the first set that its tokenizer knows
    multi_token: bool
    seed: int
    batch_tokens: int | None
    # The previous model, whose layers are mapped to this one's.
    before: list[tuple[Model, Identity]] = field(default_factory=list)

    def jobs(self, model: Model, identity: Identity, failures: list[str]) -> Iterator[Job]:
        """Yield the requested analyses of a model."""
        every = list(analyses_of(model, self.before[0] if self.before else None, self))  # raises before any runs
        for one in every:
            if one.analysis in self.analyses:
                what = f"{one.analysis} of {model.name} ({one.dataset})"
                yield what, partial(_run, self.out, model, identity, one)
        self.before[:] = [(model, identity)]


@dataclass(frozen=True)
class _Wanted:
    """One analysis to run: the settings that determine its numbers, except the model, and the call that computes it."""

    analysis: str
    dataset: str
    settings: dict[str, Any]
    make: Callable[[], Result]


def analyses_of(model: Model, before: tuple[Model, Identity] | None, inputs: DepthWork) -> Iterator[_Wanted]:
    """Yield all analyses of a model; layers are mapped from the model `before` it, if there is one."""
    size: dict[str, Any] = {"batch_tokens": model.checked_batch_tokens(inputs.batch_tokens)}
    seeded = {"seed": inputs.seed, **size}
    rows = [ids for ids in encode(model, inputs.texts, any_length=True) if len(ids) >= LEAST_TOKENS]
    if not rows and not _WITHOUT_TEXTS.issuperset(inputs.analyses):
        raise InputError(f"no text has {LEAST_TOKENS} tokens: give longer ones.")
    texts = [list(ids if model.context is None else ids[: model.context]) for ids in rows]
    on_texts = f"{len(texts)} texts"
    read = {"texts": digest_of(texts), **size}
    of_texts: dict[str, Callable[..., Result]] = {
        "residual_norms": depth.residual_norms,
        "skip": depth.skip,
        "skip_future": partial(depth.skip, mode="future"),
        "logit_lens": depth.logit_lens,
    }
    for name, analysis in of_texts.items():
        yield _Wanted(name, on_texts, read, partial(analysis, model, texts, **size))
    known = [asked for asked in inputs.questions if _knows(model, asked.answers)]
    # If the tokenizer knows the answers of no set, requested questions fail with a message.
    is_wanted = len(inputs.questions) == 1 or inputs.analyses != STANDARD
    for asked in (known or (inputs.questions if is_wanted else []))[:1]:
        settings = {"questions": [asked.texts, asked.answers], "effect": "published", **seeded}
        score = partial(depth.depth_score, model, asked, effect="published", **seeded)
        yield _Wanted("depth_score", f"{len(asked.texts)} questions", settings, score)
    count = len(ablatable_components(model, rows[0], inputs.part)) if "drop_plan" in inputs.analyses else 0
    budget = max(1, int(count / 5 + 0.5)) if inputs.drop is None else inputs.drop
    if inputs.drop is not None and 0 < count <= budget:
        raise InputError(f"drop={budget} must be below {count}, the {inputs.part}s of {model.name} that could go.")
    plan = {"drop": inputs.drop, "part": inputs.part, "score": inputs.score}

    # A task that does not fit the model fails only its own jobs.
    def on_rows(analysis: Callable[..., Result], t: Task | None, *more: Any, **options: Any) -> Callable[[], Result]:
        return lambda: analysis(model, texts if t is None else t.resolve(model, inputs.multi_token), *more, **options)

    for t in inputs.tasks or (None,):
        dataset, settings = on_texts, read | seeded
        if t is not None:
            labels = hashlib.sha256(t.labels.tobytes()).hexdigest()
            settings = {"prompts": t.prompt_hash, "options": list(t.options), "labels": labels, **seeded}
            dataset, settings["multi_token"] = t.name, inputs.multi_token
        yield _Wanted("agreement", dataset, settings, on_rows(depth.agreement, t, **seeded))
        # A single layer cannot be dropped; this fails only if a plan was requested.
        if inputs.drop is not None or count > 1 or inputs.analyses != STANDARD:
            drop = on_rows(depth.drop_plan, t, budget, inputs.score, inputs.part, **seeded)
            yield _Wanted("drop_plan", dataset, settings | plan, drop)
        if t is not None:
            about = {"unit": "sublayer", "ablation": "mean"}
            yield _Wanted("effects", dataset, settings | about, on_rows(effects, t, **about, **seeded))
    if before is not None:
        shallow, identity = before
        settings = {"texts": digest_of(inputs.texts), "from": asdict(identity), **seeded}

        def maps() -> Result:
            return depth.map_layers(shallow, model, _comparable_texts(shallow, model, inputs.texts), **seeded)

        yield _Wanted("map_layers", f"from {shallow.name}", settings, maps)


def _knows(model: Model, texts: Iterable[str]) -> bool:
    tokenizer = model.tokenizer
    return tokenizer is None or all(knows(tokenizer, ids_after_text(tokenizer, text), text) for text in texts)


def _comparable_texts(before: Model, model: Model, texts: Sequence[Any]) -> list[Any]:
    """Select the texts that both models read whole; if their tokens agree, the part of each text that both read."""
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


def _run(folder: Path, model: Model, identity: Identity, job: _Wanted) -> Path:
    """Load the analysis from the folder, or compute and store it; return the file that describes it."""
    # Hash names too: two names that map to one file name are two analyses.
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
