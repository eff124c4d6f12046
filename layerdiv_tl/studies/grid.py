"""A grid of models × rows × analyses in a folder: one result per cell, computed once, read as one frame."""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import file_path
from .._progress import progress
from ..errors import InputError
from ..results import Result
from ..tasks.task import task
from .cells import Cell, Job, describe_function, describe_rows, forget_model, read_cell, run_job, sentence

if TYPE_CHECKING:
    import pandas as pd


class Grid:
    """A folder of results of `function(model, rows, **options)` for models × rows.

    Any function that returns a result of the package is an analysis, e.g. `ld.contributions`, `ld.effects` or
    `ld.depth.skip`. A cell belongs to its model's weights, configuration and tokenizer, its rows, its function and its
    options: cells in the folder are not computed again, and if any of these changes, a cell is computed anew beside
    the old one. Before `run`, a grid shows all cells of its folder; afterwards, those of its runs.

    A result holds token ids, from which a tokenizer restores the texts: mind their licenses before you share a folder.

    Attributes:
        folder: The folder, made when the first cell is written. Several runs may share it.
        failures: One sentence for every model or cell that failed in `run`.

    >>> import tempfile
    >>> import layerdiv_tl as ld
    >>> grid = Grid(tempfile.mkdtemp()).run(ld.contributions, ["zoo/d1", "zoo/d2"], "synthetic/recall", limit=8)
    >>> grid
    Grid(2 cells: contributions of 2 models on 1 sets of rows)
    >>> grid.frame(model="zoo/d2").columns[:3].tolist()
    ['model', 'rows', 'example']
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = file_path("folder", folder)
        self.failures: list[str] = []
        self._of_runs: dict[Path, None] | None = None

    def run(
        self,
        function: Callable[..., Result],
        models: Any,
        rows: Any,
        *,
        executor: Executor | None = None,
        limit: int | None = None,
        **options: Any,
    ) -> Grid:
        """Compute the cells that are not in the folder yet. A failure is reported, and the others continue.

        Args:
            function: The analysis, defined at the top of a module, so that its name identifies it.
            models: One or several names for `load_model`, or loaded models; or {name: model}, where a model may also
                be a dict of `load_model`'s arguments.
            rows: One or several names of tasks, or `Task`s; or {name: task, `Questions` or list of texts}.
            executor: Where cells are computed. None is this process; otherwise any `concurrent.futures.Executor`, e.g.
                `ProcessPoolExecutor(4)`, or on a cluster `dask.distributed.Client(…).get_executor()` or submitit's.
                Cells are submitted model by model, and a worker keeps the last model it loaded. Processes need models
                by name.
            limit: The number of rows of tasks given by name.
            **options: Arguments of the function, of types that JSON has.

        Raises InputError for two models or rows with one name, for a function without a name of its own, for an option
        that JSON cannot hold, and for loaded models where processes need names.
        """
        settings = describe_function(function, options)
        sources = by_name("models", models)
        if executor is not None and not isinstance(executor, ThreadPoolExecutor):
            _refuse_loaded(sources)
        failures: list[str] = []
        tables = list(_read_rows(by_name("rows", rows), limit, failures))
        jobs = []
        for model, source in sources.items():
            key = f"{model} {uuid.uuid4().hex}"
            for name, table in tables:
                about = settings | {"model": model} | describe_rows(name, table)
                jobs.append(Job(self.folder, function, options, about, source, key, table))
        done: dict[int, Path] = {}
        with progress(settings["analysis"], len(jobs), "cell") as advance:
            for number, path, failure in _outcomes(jobs, executor):
                if path is not None:
                    done[number] = path
                else:
                    failures.append(failure)
                advance(1)
        forget_model()
        self._of_runs = (self._of_runs or {}) | {done[number]: None for number in sorted(done)}
        failures = list(dict.fromkeys(failures))
        self.failures += failures
        if failures:
            more = f" (and {len(failures) - 1} more in grid.failures)" if len(failures) > 1 else ""
            warnings.warn(f"{failures[0]}{more}", stacklevel=2)
        return self

    def cells(self, **wanted: Any) -> Iterator[Cell]:
        """Yield the finished cells whose description or options have these values, e.g. analysis="skip", unit="head".

        Cells are in the order of the runs, or by name before any run. Unfinished or unreadable ones are left out.
        """
        paths: Iterable[Path] = sorted(self.folder.glob("*/*/*.json"), key=_natural)
        if self._of_runs is not None:
            paths = self._of_runs
        for path in paths:
            cell = read_cell(path)
            if cell is not None and wanted.items() <= cell.settings.items():
                yield cell

    def frame(
        self,
        table: Callable[[Any, Cell], pd.DataFrame] = lambda result, cell: result.frame(),
        **wanted: Any,
    ) -> pd.DataFrame:
        """Join a table of every cell, with columns `model` and `rows`, and one for each option that differs.

        Args:
            table: Called with the result and the cell; by default the result's own frame.
            **wanted: As in `cells`.

        Raises InputError if there is no such cell, for cells of several analyses, and for two cells that differ only
        in what no column shows: weights, texts, or the version of a function.
        """
        import pandas as pd

        cells = list(self.cells(**wanted))
        if not cells:
            raise InputError(f"{str(self.folder)!r} has no such cells. {' '.join(self.failures)}".strip())
        shown = ["model", "rows", *differing_options(cells)]
        _refuse_mixtures(cells, shown)
        parts = []
        for cell in cells:
            part = table(cell.result, cell).drop(columns=shown, errors="ignore")
            for place, name in enumerate(shown):
                part.insert(place, name, [cell.settings.get(name)] * len(part))
            parts.append(part)
        frame = pd.concat(parts, ignore_index=True)
        frame.attrs = {"units": {name: unit for part in parts for name, unit in part.attrs.get("units", {}).items()}}
        return frame

    def __repr__(self) -> str:
        cells = list(self.cells())
        names = {key: dict.fromkeys(cell.about[key] for cell in cells) for key in ("analysis", "model", "rows")}
        what = f": {', '.join(names['analysis'])} of {len(names['model'])} models on {len(names['rows'])} sets of rows"
        failed = f"; {len(self.failures)} failed: {self.failures[0]}" if self.failures else ""
        return f"Grid({len(cells)} cells{what if cells else ''}{failed})"


def by_name(argument: str, given: Any) -> dict[str, Any]:
    """Return {name: x} of one or several things. Raises InputError for two of one name."""
    if isinstance(given, Mapping):
        named = {str(name): x for name, x in given.items()}
        if len(named) < len(given):
            raise InputError(f"{argument} has two names with one text: give them different ones.")
        return named
    items = list(given) if isinstance(given, list | tuple) else [given]
    named = {}
    for x in items:
        name = "default" if x is None else getattr(x, "name", x)
        if not isinstance(name, str):
            raise InputError(f"{argument} has a {type(x).__name__}, which has no name: give {{name: …}}.")
        named[name] = x
    if len(named) < len(items):
        raise InputError(f"{argument} has two things of one name: give {{name: …}}.")
    return named


def _refuse_loaded(sources: Mapping[str, Any]) -> None:
    for name, source in sources.items():
        if not isinstance(source, str | os.PathLike | Mapping | None):
            raise InputError(f"{name} is in this process's memory: give its name or folder, which each worker loads.")


def _read_rows(rows: Mapping[str, Any], limit: int | None, failures: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield (name, rows), with tasks read by their names."""
    for name, given in rows.items():
        try:
            yield name, task(given, limit=limit) if isinstance(given, str) else given
        except Exception as error:
            failures.append(f"{name}: {sentence(error)}")


def _outcomes(jobs: Sequence[Job], executor: Executor | None) -> Iterator[tuple[int, Path | None, str]]:
    """Run the jobs; yield each one's number, and its description's path or the failure."""
    if executor is None:
        for number, job in enumerate(jobs):
            yield number, *run_job(job)
        return
    futures: dict[Any, int] = {executor.submit(run_job, job): number for number, job in enumerate(jobs)}
    try:
        # The jobs of submitit, on SLURM, have the methods of a future, but are none to wait for.
        are_futures = all(isinstance(future, Future) for future in futures)
        for future in as_completed(futures) if are_futures else futures:
            number = futures[future]
            try:
                path, failure = future.result()
            except Exception as error:  # the worker itself failed
                path, failure = None, f"{jobs[number].title}: {sentence(error)}"
            yield number, path, failure
    finally:
        for future in futures:
            future.cancel()


def differing_options(cells: Sequence[Cell]) -> list[str]:
    """Name the options that do not have the same value in all cells."""
    names = dict.fromkeys(name for cell in cells for name in cell.about["options"])
    return [name for name in names if len({repr(cell.about["options"].get(name)) for cell in cells}) > 1]


def _refuse_mixtures(cells: Sequence[Cell], shown: Sequence[str]) -> None:
    analyses = dict.fromkeys(cell.about["analysis"] for cell in cells)
    if len(analyses) > 1:
        raise InputError(f"these are cells of {', '.join(analyses)}: choose one by analysis=…")
    known: dict[str, dict[str, Any]] = {}
    for cell in cells:
        about = cell.about
        first = known.setdefault(repr([cell.settings.get(name) for name in shown]), about)
        different = [name for name in about["key"] if first.get(name) != about[name]]
        if different:
            values = " or ".join(f"{name}={about[name]!r}" for name in different)
            raise InputError(f"two cells of {about['model']} on {about['rows']} differ: choose one by {values}.")


def _natural(path: Path) -> list[Any]:
    """Sort d2 before d10."""
    return [(part.zfill(12) if part.isdigit() else part) for part in re.split(r"(\d+)", path.as_posix())]
