"""Work on the models of a grid, one after the other or shared by processes: failures are named, the rest goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
# What a job is in a sentence, and the job: it gives the finished folder or file.
Job = tuple[str, Callable[[], Path]]


@dataclass(frozen=True)
class Work:
    """Jobs to do for every model of a grid; their results lie in the folder `out`."""

    load: dict[str, Any]
    out: Path

    def jobs(self, model: Model, identity: Identity, failures: list[str]) -> Iterator[Job]:
        """The jobs of a model; one that cannot be is a sentence in `failures`."""
        raise NotImplementedError

    def run(self, grid: Mapping[str, Any]) -> tuple[list[str], set[Path]]:
        """Do the work on these models: a sentence for everything that failed, and what is finished."""
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
        """Do the work, by so many processes, and read what it made. Raises InputError where nothing was measured."""
        workers = min(workers, len(grid))  # one process is this one
        parts = _in_processes(self.run, grid, workers) if workers > 1 else [self.run(grid)]
        failed = tuple(failure for some, _ in parts for failure in some)
        done = {path for _, paths in parts for path in paths}
        study: Any = kind.collect([self.out], done) if done else None
        if study is None:
            raise InputError(" ".join(failed))
        return replace(study, failures=failed + study.failures)


def _in_processes(work: Callable[[dict[str, Any]], T], grid: Mapping[str, Any], workers: int) -> list[T]:
    """Do `work` for each {name: model} of a grid in so many processes; results are in the grid's order.

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
    """Prepare a worker: take its part of the cores, and end when its parent is gone."""
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
