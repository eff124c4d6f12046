"""Work on the models of a grid, in sequence or in parallel: failures are recorded, and the rest continues.

Processes that Accelerate, torchrun or SLURM launched begin at different shards.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError
from ..model.fingerprint import Identity
from ..model.load import Model, set_num_threads
from .depth_study import DepthStudy
from .folder import failing
from .grid import load_registered
from .study import Study

T = TypeVar("T")
AnyStudy = TypeVar("AnyStudy", Study, DepthStudy)
# The description of a job, and the job, which returns the finished folder or file.
Job = tuple[str, Callable[[], Path]]


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
