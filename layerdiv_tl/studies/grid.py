"""The grid of a study, validated before any work, and the work on its models, in sequence or in parallel.

Failures are recorded, and the rest continues. Processes that Accelerate, torchrun or SLURM launched begin at different
shards.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from .. import zoo
from .._checks import file_path, listed, shown
from ..errors import InputError
from ..model.fingerprint import Identity, identify
from ..model.load import Model, load_model, set_num_threads
from ..tasks.specs import EIGHT_TASKS
from ..tasks.task import Task
from .depth_study import DepthStudy
from .folder import failing, register_model
from .shards import safe_name
from .study import Study

T = TypeVar("T")
AnyStudy = TypeVar("AnyStudy", Study, DepthStudy)
# The description of a job, and the job, which returns the finished folder or file.
Job = tuple[str, Callable[[], Path]]
# Options of `load_model` that studies pass on.
_LOAD = ("tokenizer", "device", "dtype", "device_map", "copy", "adapters", "trust_remote_code")


def models_of(models: Any) -> dict[str, Any]:
    """Return {name: what to load}; models in a list provide their own names. Raises InputError."""
    if isinstance(models, Mapping):
        grid = {str(name): x for name, x in models.items()}
    else:
        grid = {}
        for x in _expanded("models", models, {"zoo": zoo.NAMES}):
            name = _model_name(x)
            if name in grid:
                raise InputError(f"two models are called {name!r}: give {{name: model}}.")
            grid[name] = x
    if not grid:
        raise InputError("there are no models: give one, or 'default'.")
    if broken := [name for name in grid if name != name.encode(errors="replace").decode()]:
        raise InputError(f"the name {broken[0]!r} is not Unicode (half of a surrogate pair): give {{name: model}}.")
    if len({safe_name(name) for name in grid}) < len(grid):
        raise InputError(f"the names {', '.join(grid)} are too alike for folders: give others.")
    return {name: None if isinstance(x, str) and x == "default" else x for name, x in grid.items()}


def tasks_of(tasks: Any) -> list[str | Task]:
    """Return task names and tasks, each name once, with "all" and "zoo" expanded. Raises InputError."""
    found: list[Any] = []
    for x in _expanded("tasks", tasks, {"all": EIGHT_TASKS, "zoo": zoo.TASKS}):
        if not isinstance(x, str | os.PathLike | Task):
            raise InputError(f"tasks has a {type(x).__name__}: give names, Tasks, or 'all'.")
        if not (isinstance(x, str) and x in found):
            found.append(x)
    if not found:
        raise InputError("there are no tasks: give names, Tasks, or 'all'.")
    return found


def output_folder(out: Any) -> Path:
    """Create the folder of results if needed; a temporary one for None. Raises InputError."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix="layerdiv-"))
    path = file_path("out", out)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out={shown(str(path))} cannot be made ({error.strerror}): give another.") from error
    return path


def load_options(load: Any) -> dict[str, Any]:
    """Validate options for `load_model`. Raises InputError for anything but {name of an option: value}."""
    load = {} if load is None else load
    if not isinstance(load, Mapping) or (unknown := [name for name in load if name not in _LOAD]):
        what = f"has {shown(unknown[0])}" if isinstance(load, Mapping) else f"is {shown(load)}"
        raise InputError(f"load {what}: give {{option: value}} of load_model's {', '.join(_LOAD)}.")
    return dict(load)


def load_registered(
    name: str, x: Any, out: Path, options: Mapping[str, Any], look_only: bool = False
) -> tuple[Model, Identity]:
    """Load a model and register its name in a folder, or `look_only`. Raises InputError for another model's name."""
    model = load_model(x, **({} if isinstance(x, Model) else options))
    # In a list, the default model goes by its own name.
    model = model if x is None and name == "default" else replace(model, name=name)
    identity = identify(model)
    register_model(out, model, identity, look_only)
    return model, identity


def _expanded(name: str, value: Any, words: Mapping[str, Sequence[str]]) -> list[Any]:
    """Return one or several values as a list, in order (sets are rejected), with `words` expanded to their names."""
    items = listed(name, value) if isinstance(value, list | tuple | set | frozenset) else [value]
    return [each for x in items for each in (words[x] if isinstance(x, str) and x in words else [x])]


def _model_name(x: Any) -> str:
    if isinstance(x, Model):
        return x.name
    if x is None:
        return "default"
    if isinstance(x, str | os.PathLike):
        path = file_path("models", x)
        return path.name if path.exists() else str(x)
    return load_model(x).name


@dataclass(frozen=True)
class Work:
    """Jobs for every model of a grid, with results in the folder `out`."""

    load: dict[str, Any]
    out: Path

    def jobs(self, model: Model, identity: Identity, failures: list[str]) -> Iterator[Job]:
        """Yield the jobs of a model; an impossible one adds a sentence to `failures`."""
        raise NotImplementedError

    def run(self, grid: Mapping[str, Any]) -> tuple[list[str], set[Path]]:
        """Run the jobs of these models; return one sentence per failure, and the finished folders or files."""
        failures: list[str] = []
        done: set[Path] = set()
        for name, x in grid.items():
            with failing(failures, name):
                model, identity = load_registered(name, x, self.out, self.load)
                for what, job in self.jobs(model, identity, failures):
                    with failing(failures, what):
                        done.add(job())
                del model
        return failures, done

    def collected(self, kind: type[AnyStudy], grid: Mapping[str, Any], workers: int = 1) -> AnyStudy:
        """Run all jobs in `workers` processes and read the results. Raises InputError if nothing was measured."""
        workers = min(workers, len(grid))  # a single worker is this process
        failures, finished = zip(
            *(_in_processes(self.run, grid, workers) if workers > 1 else [self.run(grid)]), strict=True
        )
        failed, done = tuple(chain(*failures)), set(chain(*finished))
        study: Any = kind.collect([self.out], done) if done else None
        if study is None:
            raise InputError(" ".join(failed))
        return replace(study, failures=failed + study.failures)


def _in_processes(work: Callable[[dict[str, Any]], T], grid: Mapping[str, Any], workers: int) -> list[T]:
    """Run `work` on each {name: model} of a grid in several processes, which end with this one; keep the grid's order.

    Raises InputError if one of them was killed.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    before = set(multiprocessing.active_children())
    # Processes that each use all cores only wait for one another.
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
        except BaseException:  # an interrupt: leaving the pool would wait for running jobs
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise


def _begin(cores: int) -> None:
    """Prepare a worker: limit it to its share of the cores, and end it with its parent."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # tqdm's own is a system semaphore, which a killed process leaks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all processes of a terminal get it; the parent ends its workers
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
    """Make processes started in this block ignore interrupts from their start."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def first_shard(count: int) -> int:
    """Return the shard to begin with: the start of this rank's part, or a random one for unrelated processes.

    `accelerate launch`, `srun` and the tasks of a SLURM array, each of which may launch several processes, name their
    rank in the environment. Raises InputError if these variables are not valid numbers.
    """
    names = ("RANK", "WORLD_SIZE") if "WORLD_SIZE" in os.environ else ("SLURM_PROCID", "SLURM_NTASKS")
    rank, world = (_number(name, default) for default, name in enumerate(names))
    if not 0 <= rank < world:
        raise InputError(
            f"{names[0]}={rank} in the environment does not number one of {names[1]}={world} processes, from 0 on: "
            "unset both, or launch it again."
        )
    array = {"ID": 0, "MIN": 0, "STEP": 1, "COUNT": 1}
    task, least, step, tasks = (_number(f"SLURM_ARRAY_TASK_{name}", default) for name, default in array.items())
    # --array=3-9:2 has the tasks 3, 5, 7 and 9; two tasks of 1,5,6 may begin at the same shard, which is harmless.
    rank, world = (task - least) // max(1, step) % max(1, tasks) * world + rank, max(1, tasks) * world
    return rank * count // world if world > 1 else secrets.randbelow(max(1, count))


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError as error:
        raise InputError(f"{name}={text!r} in the environment is not a number: unset it, or give one.") from error
