"""Jobs of a study for one model: its cells, computed shard by shard and then summarized; and an estimate of them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd

from .._checks import file_path, flag, some_of, whole_number
from .._files import sweep, write_text, written
from .._progress import progress
from ..components import Unit
from ..ensemble.intervals import wilson
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model
from ..model.prompts import encode
from ..tasks.baselines import bag_of_words
from ..tasks.task import Task, task
from .folder import failing, made_by
from .grid import Job, Work, first_shard, load_options, load_registered, models_of, tasks_of
from .shards import FORMAT, META, METRICS, Cell, Shard, cell_of, file_digest, metrics_of, write_json

# Baselines of tasks shared by many models: counting words can take longer than a small model.
_KNOWN_BASELINES: dict[str, dict[str, Any]] = {}


def read_work(
    models: Any,
    tasks: Any,
    units: Any,
    limit: Any,
    out: Path,
    data: Any,
    *,
    template: Any = None,
    shots: Any = 0,
    seed: Any = 0,
    train: Any = None,
    multi_token: Any = False,
    chat: Any = False,
    keep_text: Any = False,
    batch_tokens: Any = None,
    load: Any = None,
) -> tuple[dict[str, Any], StudyWork]:
    """Check the arguments of `run_study`; return {name: model} and the work. Raises InputError."""
    grid, options = models_of(models), load_options(load)
    names = tasks_of(tasks)
    seed = whole_number("seed", seed, 0)
    for name, value in {"multi_token": multi_token, "chat": chat, "keep_text": keep_text}.items():
        flag(name, value)
    cuts = [cast(Unit, unit) for unit in dict.fromkeys(some_of("units", units, get_args(Unit)))]
    read: dict[str, Any] = {"limit": limit, "template": template, "shots": shots, "seed": seed, "train": train}
    ready = [t if isinstance(t, Task) else task(t, data, **read) for t in names]
    called = [t.name for t in ready]
    if twice := [name for name in called if called.count(name) > 1]:
        raise InputError(f"two tasks are called {twice[0]!r}: give each once, under a name of its own.")
    # The arguments that reproduce this cell elsewhere; tasks from Python's memory have none.
    asked = {name: value for name, value in read.items() if name != "train"}
    asked |= {"chat": chat, "multi_token": multi_token, "batch_tokens": batch_tokens}
    asked["trust_remote_code"] = bool(options.get("trust_remote_code"))
    asked |= {name: None if rows is None else str(rows) for name, rows in (("data", data), ("train", train))}
    on_disk = all(rows is None or isinstance(rows, str | os.PathLike) for rows in (data, train))
    by_name = {t.name for x, t in zip(names, ready, strict=True) if on_disk and not isinstance(x, Task)}
    return grid, StudyWork(options, out, ready, cuts, keep_text, asked, by_name)


@dataclass(frozen=True)
class StudyWork(Work):
    """The work on every model of a study: the parsed arguments of `run_study`."""

    tasks: list[Task]
    units: list[Unit]
    keep_text: bool
    asked: dict[str, Any]
    by_name: set[str]

    def jobs(self, model: Model, identity: Identity, failures: list[str]) -> Iterator[Job]:
        """Yield a job for each cell of a model."""
        batch_tokens = model.checked_batch_tokens(self.asked["batch_tokens"])
        for what, cell in self.cells(model, identity, batch_tokens, failures):
            yield what, partial(self._computed, model, cell, batch_tokens)

    def cells(
        self, model: Model, identity: Identity, batch_tokens: int, failures: list[str]
    ) -> Iterator[tuple[str, Cell]]:
        """Yield (description, cell) for every cell of a model; an impossible one adds a sentence to `failures`."""
        for t in self.tasks:
            prompts, where = None, f"{model.name} on {t.name}"
            with failing(failures, where):
                prompts = prepared(t, model, self.asked["chat"], self.asked["multi_token"])
                ids = encode(model, list(prompts.prompts))
            for unit in self.units if prompts is not None else ():
                yield f"{where} at unit {unit}", cell_of(model, identity, prompts, unit, self.out, ids, batch_tokens)

    def _computed(self, model: Model, cell: Cell, batch_tokens: int) -> Path:
        """Compute the missing shards of one cell, then its metrics; return its folder."""
        prompts, metrics = cell.task, cell.folder / METRICS
        try:
            cell.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{str(cell.folder)!r} cannot be made ({error.strerror}).") from error
        if self.keep_text:
            lines = "".join(json.dumps({"row": i, "prompt": p}) + "\n" for i, p in enumerate(prompts.prompts))
            write_text(cell.folder / "prompts.jsonl", lines)
        if cell.finished:
            return cell.folder
        sweep(cell.folder)
        start, computed, total = time.time(), 0, len(prompts)
        stored = total - sum(len(cell.rows(number)) for number in cell.missing())
        with progress(f"{model.name} on {prompts.name} ({cell.unit})", total, "prompt", stored):
            for number in cell.missing(first_shard(cell.count)):
                cell.compute(model, number, batch_tokens)
                computed += len(cell.rows(number))
        seconds = time.time() - start
        frame = metrics_of(_whole_shards(cell, model, batch_tokens))
        with written(metrics) as partial:
            frame.to_parquet(partial, index=False)
        about = {name: getattr(prompts, name) for name in ("source", "license", "dropped", "truncated", "scored")}
        about |= {"format": FORMAT, "settings": cell.settings, "metrics": file_digest(metrics)}
        about |= {"asked": self.asked if prompts.name in self.by_name else None, "rows_here": computed}
        about |= {
            "baselines": _baselines(prompts, f"{prompts.prompt_hash} {prompts.options} {cell.settings['labels']}")
        }
        about |= {"seconds_here": round(seconds, 3)}
        about |= {"rows_per_second": round(computed / seconds, 3) if computed else None}
        write_json(cell.folder / META, about | made_by(model))
        return cell.folder


def prepared(task: Task, model: Model, chat: bool = False, multi_token: bool = False) -> Task:
    """Prepare a task for a model: apply the chat template if requested, find option ids, cut to its context."""
    task = task.as_chat(model) if chat else task
    task = task.resolve(model, multi_token)
    return task if model.context is None else task.fit(model, model.context)


def _whole_shards(cell: Cell, model: Model, batch_tokens: int) -> Iterator[Shard]:
    """Yield all shards in order; a damaged one is computed again, once."""
    for number in range(cell.count):
        try:
            yield cell.read(number)
        except InputError:
            cell.compute(model, number, batch_tokens)
            yield cell.read(number)


def _baselines(t: Task, key: str) -> dict[str, Any]:
    """Return the accuracy of guessing and of word counts, the latter with a 95 % interval (None for few rows)."""
    if key not in _KNOWN_BASELINES:
        words = None
        # A class with fewer rows than folds raises InputError; prompts with their own options have no classes.
        with contextlib.suppress(InputError):
            correct = bag_of_words(t)
            words = [float(x) for x in (correct.mean(), *wilson(correct.sum(), len(correct)))]
        _KNOWN_BASELINES[key] = {"chance": 1 / t.option_count, "bag_of_words": words}
    return _KNOWN_BASELINES[key]


def dry_run(
    models: Any, tasks: Any, units: Any, limit: Any, out: Any, data: Any, **settings: Any
) -> tuple[pd.DataFrame, list[str]]:
    """Estimate the work that `run_study` with the same arguments has left, from one timed batch; write nothing.

    Returns one row per model, task and unit, and a sentence for every model or cell that cannot be estimated. `rows`
    counts all rows; `rows_left`, `tokens` (without padding) and `seconds` (of one process) what is not in `out` yet.
    Raises InputError for arguments that `run_study` rejects, and if nothing can be estimated.

    >>> frame, _ = dry_run("zoo/d1", "synthetic/recall", "sublayer", 8, None, None)
    >>> frame[["model", "rows", "rows_left", "tokens"]].values.tolist()
    [['zoo/d1', 8, 8, 208]]
    """
    folder = Path(os.devnull) if out is None else file_path("out", out)  # nothing is found below a null device
    grid, work = read_work(models, tasks, units, limit, folder, data, **settings)
    records: list[dict[str, Any]] = []
    failures: list[str] = []
    for name, x in grid.items():
        with failing(failures, name):
            model, identity = load_registered(name, x, work.out, work.load, look_only=True)
            batch_tokens = model.checked_batch_tokens(work.asked["batch_tokens"])
            per_token: dict[str, float] = {}
            for where, cell in work.cells(model, identity, batch_tokens, failures):
                with failing(failures, where):
                    missing = () if cell.finished else cell.missing()
                    left = np.concatenate([np.empty(0, dtype=int), *map(cell.rows, missing)])
                    if len(left) and cell.unit not in per_token:
                        per_token[cell.unit] = _seconds_per_token(model, cell, left, batch_tokens)
                    tokens = int(cell.lengths[left].sum())
                    about = {"model": name, "task": cell.task.name, "unit": cell.unit, "rows": len(cell.order)}
                    about |= {"rows_left": len(left), "tokens": tokens}
                    records.append(about | {"seconds": tokens * per_token.get(cell.unit, 0.0)})
    if not records:
        raise InputError(" ".join(failures))
    return pd.DataFrame(records), failures


def _seconds_per_token(model: Model, cell: Cell, rows: np.ndarray, batch_tokens: int) -> float:
    """Time the middle batch of these rows and divide by its tokens."""
    cell.shard(model, rows[-1:], batch_tokens)  # the first pass is slower than all others
    middle = rows[len(rows) // 2 :]
    batch = middle[: max(1, batch_tokens // int(cell.lengths[middle[0]]))]
    start = time.perf_counter()
    cell.shard(model, batch, batch_tokens)
    return (time.perf_counter() - start) / int(cell.lengths[batch].sum())
