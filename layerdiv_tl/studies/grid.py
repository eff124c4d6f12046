"""A grid of models × rows × analyses in a folder: one file per cell, computed once, read as one frame."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import threading
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import file_path, shown
from .._files import check_writable, sweep, written
from .._progress import progress, quiet
from ..errors import InputError
from ..model.fingerprint import Identity, identify
from ..model.load import Model, load_model
from ..results import Result, load
from ..tasks.task import Task, task

if TYPE_CHECKING:
    import pandas as pd

# The description's name in a cell's file, beside the arrays of the result.
DESCRIPTION = "cell.json"
# Names that Windows keeps for devices.
_DEVICES = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d)(?=\.|$)", re.IGNORECASE)
# The last model of each thread of a worker.
_LAST = threading.local()


@dataclass(frozen=True)
class Cell:
    """A finished analysis of one model on some rows.

    Attributes:
        about: Its description: `model`, `rows`, `analysis`, `options` (with defaults), the `count` of rows, hashes of
            `weights`, `tokenizer`, `texts` and `code`, and its origin. `key` names what its numbers depend on.
        path: Its file, an npz that `ld.load` reads, too.
    """

    about: dict[str, Any]
    path: Path

    def __str__(self) -> str:
        return f"{self.about['analysis']} · {self.about['model']} · {self.about['rows']}"

    @property
    def settings(self) -> dict[str, Any]:
        """The description, with options as entries of their own."""
        about = {name: value for name, value in self.about.items() if name != "options"}
        return self.about["options"] | about

    @property
    def result(self) -> Any:
        """The result, read from the file. Raises InputError if the file was changed or is damaged."""
        return load(self.path)


class Grid:
    """A folder of results of `function(model, rows, **options)` for models × rows.

    Any function that returns a result of the package is an analysis, e.g. `ld.contributions`, `ld.effects` or
    `ld.depth.skip`. A cell belongs to its model's weights, configuration and tokenizer, its rows, its function and its
    options: cells in the folder are not computed again, and if any of these changes, a cell is computed anew beside
    the old one. Before `run`, a grid shows all cells of its folder; afterwards, those of its runs.

    A result holds token ids, from which a tokenizer restores the texts: mind their licenses before you share a folder.

    Attributes:
        folder: The folder, made when the first cell is written. Several runs may share it.
        failures: One sentence for each task or cell that failed in `run`.

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
        self._of_runs: list[Path] | None = None

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
                Cells are submitted model by model, and a worker keeps the last model it loaded. Give processes models
                by name: a loaded one would be copied for every cell.
            limit: The number of rows of tasks given by name.
            **options: Arguments of the function, of types that JSON has; make others in a function of your own.

        Raises InputError for two models or rows with one name, and for a function without one; AttributeError for a
        model or rows without one; TypeError for an option that JSON cannot hold.
        """
        about, failures, tables = describe_function(function, options), list[str](), dict[str, Any]()
        for name, given in by_name("rows", rows).items():
            try:
                table = task(given, limit=limit) if isinstance(given, str) else given
                tables[name] = table, about | describe_rows(name, table)
            except Exception as error:
                failures.append(f"{name}: {_sentence(error)}")
        jobs = {}
        for model, source in by_name("models", models).items():
            key = uuid.uuid4().hex  # new in every run, as files may change between runs
            for name, (table, of_rows) in tables.items():
                settings = {**of_rows, "model": model}
                jobs[model, name] = partial(run_cell, self.folder, function, options, settings, source, key, table)
        done = list(self._of_runs or [])
        futures = [] if executor is None else [executor.submit(job) for job in jobs.values()]
        # Not as_completed: the jobs of submitit, on SLURM, have the methods of a future, but cannot be waited for.
        outcomes: Any = [future.result for future in futures] or jobs.values()
        try:
            with progress(about["analysis"], len(jobs), "cell") as advance:
                for (model, name), outcome in zip(jobs, outcomes, strict=True):
                    try:
                        done.append(outcome())
                    except Exception as error:
                        failures.append(f"{model} on {name}: {_sentence(error)}")
                    advance(1)
        finally:
            for future in futures:
                future.cancel()
            _LAST.__dict__.clear()
        self._of_runs = list(dict.fromkeys(done))
        self.failures += failures
        if failures:
            more = f" (and {len(failures) - 1} more in grid.failures)" if len(failures) > 1 else ""
            warnings.warn(f"{failures[0]}{more}", stacklevel=2)
        return self

    def cells(self, **wanted: Any) -> Iterator[Cell]:
        """Yield the finished cells whose description or options have these values, e.g. analysis="skip", unit="head".

        Cells are in the order of the runs, or by name before any run. Unreadable ones are left out.
        """
        paths = sorted(self.folder.glob("*/*/*.npz")) if self._of_runs is None else self._of_runs
        for path in paths:
            cell = read_cell(path)
            if cell is not None and wanted.items() <= cell.settings.items():
                yield cell

    def frame(
        self, table: Callable[[Any, Cell], pd.DataFrame] = lambda result, cell: result.frame(), **wanted: Any
    ) -> pd.DataFrame:
        """Join a table of every cell, with columns `model` and `rows`, and one for each option that differs.

        Args:
            table: Called with the result and the cell; by default the result's own frame.
            **wanted: As in `cells`.

        Raises InputError if there is no such cell, and for two cells that differ only in what no column shows: weights,
        rows, or the version of a function.
        """
        import pandas as pd

        cells = list(self.cells(**wanted))
        if not cells:
            raise InputError(f"{str(self.folder)!r} has no such cells. {' '.join(self.failures)}".strip())
        columns = ["model", "rows", *differing_options(cells)]
        known, parts = dict[str, Cell](), []
        for cell in cells:
            first = known.setdefault(repr([cell.settings.get(name) for name in columns]), cell)
            for name in cell.about["key"]:
                if cell.about[name] != first.about.get(name):
                    raise InputError(f"two cells of {cell} differ: choose one by {name}={cell.about[name]!r}.")
            part = table(cell.result, cell).drop(columns=columns, errors="ignore")
            for place, name in enumerate(columns):
                part.insert(place, name, [cell.settings.get(name)] * len(part))
            parts.append(part)
        frame = pd.concat(parts, ignore_index=True)
        frame.attrs = {"units": parts[0].attrs.get("units", {})}
        return frame

    def __repr__(self) -> str:
        cells = list(self.cells())
        names = {key: dict.fromkeys(cell.about[key] for cell in cells) for key in ("analysis", "model", "rows")}
        what = f": {', '.join(names['analysis'])} of {len(names['model'])} models on {len(names['rows'])} sets of rows"
        failed = f"; {len(self.failures)} failed: {self.failures[0]}" if self.failures else ""
        return f"Grid({len(cells)} cells{what if cells else ''}{failed})"


def run_cell(
    folder: Path,
    function: Callable[..., Result],
    options: Mapping[str, Any],
    about: Mapping[str, Any],
    source: Any,
    model_key: str,
    rows: Any,
) -> Path:
    """Compute a cell unless its file can be read; return the path. All errors become InputErrors, which pickle."""
    try:
        model, identity = _load_once(model_key, source, about["model"])
        key = {**about, "weights": identity.weights, "tokenizer": identity.tokenizer}
        # Names that are alike in a file system have other digests.
        places = [re.sub(r"[^\w.@-]+", "-", key[name]).strip("-.")[:80] or "unnamed" for name in ("model", "rows")]
        places = [re.sub(_DEVICES, r"\1-", place) for place in places]
        path = folder.joinpath(*places, f"{key['analysis']}-{_digest(key)}.npz")
        with suppress(InputError):  # a damaged file is replaced
            if read_cell(path) is not None and load(path) is not None:
                return path
        check_writable(path)
        sweep(path.parent)
        rows = rows.resolve(model) if isinstance(rows, Task) else rows
        with quiet():
            result = function(model, rows, **options)
        described = {**key, "key": list(key), "provenance": model.provenance}
        described |= {name: getattr(rows, name) for name in ("source", "license", "scored") if hasattr(rows, name)}
        with written(path) as partial_file:
            result.save(partial_file)
            with zipfile.ZipFile(partial_file, "a") as file:
                file.writestr(DESCRIPTION, json.dumps(described, indent=1, default=str))
        return path
    except Exception as error:
        raise InputError(_sentence(error)) from error


def read_cell(path: Path) -> Cell | None:
    """Read the description in a file; None where there is none, and where it is damaged."""
    try:
        with zipfile.ZipFile(path) as file:
            return Cell(json.loads(file.read(DESCRIPTION)), path)
    except Exception:  # damage has many kinds of errors
        return None


def _load_once(key: str, source: Any, name: str) -> tuple[Model, Identity]:
    """Load a model, or return the last one if it has this key; one that failed is not loaded again, either."""
    if getattr(_LAST, "key", None) != key:
        _LAST.__dict__.clear()  # before the next one takes memory
        _LAST.key = key
        model = load_model(**source) if isinstance(source, Mapping) else load_model(source)
        model = replace(model, name=name)
        _LAST.loaded = model, identify(model)
    if not hasattr(_LAST, "loaded"):
        raise InputError("the model could not be loaded.")
    return _LAST.loaded


def describe_function(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an analysis: its name, the hash of its source if it is not the package's, and all its options."""
    name = getattr(function, "__qualname__", "<no name>")
    if "<" in name:
        raise InputError(f"{shown(function)} has no name of its own: define the function at the top of a module.")
    code = "" if function.__module__.startswith("layerdiv_tl.") else _digest(inspect.getsource(function))
    bound = inspect.signature(function).bind(None, None, **options)
    bound.apply_defaults()
    values = dict(list(bound.arguments.items())[2:])
    about = {"analysis": function.__name__, "function": f"{function.__module__}.{name}", "code": code}
    return about | {"options": json.loads(json.dumps(values)), "version": version("layerdiv_tl")}


def describe_rows(name: str, rows: Any) -> dict[str, Any]:
    """Name and count rows, and hash all that a function may read of a task, questions or texts."""
    read = vars(rows) | {"source": ""} if is_dataclass(rows) else list(rows)
    return {"rows": name, "count": len(rows), "texts": _digest(read)}


def by_name(argument: str, given: Any) -> dict[str, Any]:
    """Return {name: x} of one or several things that are names or have one. Raises InputError for two of one name."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        items = given if isinstance(given, list | tuple) else [given]
        pairs = [(x if isinstance(x, str) else x.name, x) for x in items]
    named = {str(name): x for name, x in pairs}
    if len(named) < len(pairs):
        raise InputError(f"{argument} has two things of one name: give {{name: …}}.")
    return named


def differing_options(cells: Sequence[Cell]) -> list[str]:
    """Name the options that do not have the same value in all cells, and the analysis if there are several."""
    names = dict.fromkeys(name for cell in cells for name in ("analysis", *cell.about["options"]))
    return [name for name in names if len({repr(cell.settings.get(name)) for cell in cells}) > 1]


def _digest(value: Any) -> str:
    """Return the first 16 digits of the SHA-256 of a value as JSON; arrays are lists."""
    text = json.dumps(value, sort_keys=True, default=lambda array: array.tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sentence(error: BaseException) -> str:
    """Return an error's message on one line, with its type unless it is an InputError."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
