"""Running a study, models × tasks × units: it can be stopped, shared between processes and resumed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from .._checks import flag, some_of, whole_number
from .._files import sweep, write_text, written
from .._progress import progress
from ..components import Unit
from ..ensemble.intervals import wilson
from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model, set_num_threads
from ..model.prompts import encode
from ..tasks.baselines import bag_of_words
from ..tasks.task import Task, task
from .folder import failing, made_by
from .grid import load_claimed, load_options, models_of, output_folder, tasks_of
from .ranks import first_shard
from .shards import FORMAT, META, METRICS, Cell, Shard, cell_of, file_digest, metrics_of, write_json
from .study import Study

T = TypeVar("T")
# Of tasks that many models read: counting words can outlast a small model.
_KNOWN_BASELINES: dict[str, dict[str, Any]] = {}


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
    grid, job = read_job(models, tasks, units, limit, data, **named)
    workers = whole_number("workers", workers, 1)
    in_memory = [name for name, x in grid.items() if not isinstance(x, str | os.PathLike | None)]
    if workers > 1 and in_memory:
        raise InputError(f"workers={workers} needs models by name, and {in_memory[0]!r} is in this process's memory.")
    job = replace(job, out=(folder := output_folder(out)))
    # One process is this one.
    workers = min(workers, len(grid))
    parts = in_processes(job.run, grid, workers) if workers > 1 else [job.run(grid)]
    failures = [failure for failed, _ in parts for failure in failed]
    try:
        study = Study.collect([folder], {cell for _, done in parts for cell in done})
    except InputError as error:
        raise InputError(" ".join(failures) or str(error)) from error
    return replace(study, failures=(*failures, *study.failures))


def read_job(
    models: Any,
    tasks: Any,
    units: Any,
    limit: Any,
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
) -> tuple[dict[str, Any], Job]:
    """{name: model} and the work on each, in no folder yet: the arguments of `run_study`, checked. InputError."""
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
    # What somebody else would have to ask for to get the same cell; rows from Python's memory cannot be asked for.
    asked = {name: value for name, value in read.items() if name != "train"}
    asked |= {"chat": chat, "multi_token": multi_token, "batch_tokens": batch_tokens}
    asked["trust_remote_code"] = bool(options.get("trust_remote_code"))
    asked |= {name: None if rows is None else str(rows) for name, rows in (("data", data), ("train", train))}
    on_disk = all(rows is None or isinstance(rows, str | os.PathLike) for rows in (data, train))
    by_name = {t.name for x, t in zip(names, ready, strict=True) if on_disk and not isinstance(x, Task)}
    return grid, Job(ready, cuts, keep_text, options, asked, by_name)


@dataclass(frozen=True)
class Job:
    """The work on every model of a study; the arguments of `run_study`, read."""

    tasks: list[Task]
    units: list[Unit]
    keep_text: bool
    load: dict[str, Any]
    asked: dict[str, Any]
    by_name: set[str]
    out: Path = Path()

    def run(self, grid: Mapping[str, Any]) -> tuple[list[str], set[Path]]:
        """Measure these models: a sentence for everything that failed, and the folders of finished cells."""
        failures: list[str] = []
        done: set[Path] = set()
        for name, x in grid.items():
            with failing(failures, name):
                model, identity = load_claimed(name, x, self.out, self.load)
                batch_tokens = model.checked_batch_tokens(self.asked["batch_tokens"])
                for where, cell in self.cells(model, identity, batch_tokens, failures):
                    with failing(failures, where):
                        done.add(self._computed(model, cell, batch_tokens))
                del model
        return failures, done

    def cells(
        self, model: Model, identity: Identity, batch_tokens: int, failures: list[str]
    ) -> Iterator[tuple[str, Cell]]:
        """Every cell of a model, after its name in a sentence; one that cannot be is a sentence in `failures`."""
        for t in self.tasks:
            prompts, where = None, f"{model.name} on {t.name}"
            with failing(failures, where):
                prompts = prepared(t, model, self.asked["chat"], self.asked["multi_token"])
                ids = encode(model, list(prompts.prompts))
            for unit in self.units if prompts is not None else ():
                yield f"{where} at unit {unit}", cell_of(model, identity, prompts, unit, self.out, ids, batch_tokens)

    def _computed(self, model: Model, cell: Cell, batch_tokens: int) -> Path:
        """Compute the missing shards of one cell, then its metrics; its folder."""
        prompts = cell.task
        try:
            cell.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{str(cell.folder)!r} cannot be made ({error.strerror}).") from error
        if self.keep_text:
            lines = "".join(json.dumps({"row": i, "prompt": p}) + "\n" for i, p in enumerate(prompts.prompts))
            write_text(cell.folder / "prompts.jsonl", lines)
        metrics = cell.folder / METRICS
        if cell.finished:
            return cell.folder
        sweep(cell.folder)
        start, computed = time.time(), 0
        total = len(prompts)
        stored = total - sum(len(cell.rows(number)) for number in cell.missing())
        title = f"{model.name} on {prompts.name} ({cell.unit})"
        with progress(title, total, "prompt", stored):
            for number in cell.missing(first_shard(cell.count)):
                cell.compute(model, number, batch_tokens)
                computed += len(cell.rows(number))
        seconds = time.time() - start
        frame = metrics_of(_whole_shards(cell, model, batch_tokens))
        with written(metrics) as partial:
            frame.to_parquet(partial, index=False)
        asked = self.asked if prompts.name in self.by_name else None
        write_json(cell.folder / META, _meta(model, cell, asked, seconds, computed))
        return cell.folder


def prepared(task: Task, model: Model, chat: bool = False, multi_token: bool = False) -> Task:
    """The task as this model can take it: in its chat's form if wanted, with option ids, cut to its context."""
    task = task.as_chat(model) if chat else task
    task = task.resolve(model, multi_token)
    return task if model.context is None else task.fit(model, model.context)


def _whole_shards(cell: Cell, model: Model, batch_tokens: int) -> Iterator[Shard]:
    """All shards in order; one that is not whole is computed again, once."""
    for number in range(cell.count):
        try:
            yield cell.read(number)
        except InputError:
            cell.compute(model, number, batch_tokens)
            yield cell.read(number)


def _meta(model: Model, cell: Cell, asked: dict[str, Any] | None, seconds: float, rows: int) -> dict[str, Any]:
    t = cell.task
    about = {name: getattr(t, name) for name in ("source", "license", "dropped", "truncated", "scored")}
    return about | {
        "format": FORMAT,
        "settings": cell.settings,
        "metrics": file_digest(cell.folder / METRICS),
        "asked": asked,
        "baselines": _baselines(t, f"{t.prompt_hash} {t.options} {cell.settings['labels']}"),
        "rows_here": rows,
        "seconds_here": round(seconds, 3),
        "rows_per_second": round(rows / seconds, 3) if rows else None,
        **made_by(model),
    }


def _baselines(t: Task, key: str) -> dict[str, Any]:
    """Accuracy of guessing and of word counts, as shares; word counts with a 95 % interval, None for few rows."""
    if key not in _KNOWN_BASELINES:
        words = None
        # A class with fewer rows than folds is refused; where every prompt has its own options there are no classes.
        with contextlib.suppress(InputError):
            correct = bag_of_words(t)
            words = [float(x) for x in (correct.mean(), *wilson(correct.sum(), len(correct)))]
        _KNOWN_BASELINES[key] = {"chance": 1 / t.option_count, "bag_of_words": words}
    return _KNOWN_BASELINES[key]


def in_processes(work: Callable[[dict[str, Any]], T], grid: Mapping[str, Any], workers: int) -> list[T]:
    """What `work` gives for each {name: model} of a grid, by so many processes, in the grid's order.

    Whatever ends this process, an interrupt or a kill, ends them too, at once. Raises InputError where one of them
    was ended.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    before = set(multiprocessing.active_children())
    # Processes that each take all cores only wait for one another.
    share = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (share,)) as pool:
        try:
            with _not_interrupted():
                futures = [pool.submit(work, {name: x}) for name, x in grid.items()]
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise InputError(
                "a process of workers= was ended: in a script, call it below `if __name__ == '__main__':`; elsewhere "
                "there may be too little memory for so many models at a time, so give fewer. What is finished is kept "
                "in out."
            ) from error
        except BaseException:  # an interrupt: leaving the pool would wait for what they are at
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise


def _begin(cores: int) -> None:
    """What a worker does first: take its part of the cores, and end when its parent is gone."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own would be a semaphore of the system, which an ended process leaves behind
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal all processes get it; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    set_num_threads(cores)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(128 + signal.SIGTERM)


@contextlib.contextmanager
def _not_interrupted() -> Iterator[None]:
    """Processes that are started here take no notice of an interrupt from their first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
