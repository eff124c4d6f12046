"""Cells of a grid: what identifies one, how a worker computes it, and how it is written whole."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._checks import shown
from .._files import sweep, write_text
from .._progress import quiet
from ..errors import InputError
from ..model.fingerprint import Identity, identify
from ..model.load import Model, load_model
from ..results import Result, load
from ..tasks.task import Task

FORMAT = "layerdiv_tl.cell/1"
# The last model of each thread of a worker.
_LAST = threading.local()


@dataclass(frozen=True)
class Cell:
    """A finished analysis of one model on some rows.

    Attributes:
        about: Its description: `model`, `rows`, `analysis`, `options` (with defaults), the `count` of rows, hashes of
            `weights`, `tokenizer`, `texts` and `code`, and its origin. `key` names what its numbers depend on.
        path: The file of its result.
    """

    about: dict[str, Any]
    path: Path

    @property
    def settings(self) -> dict[str, Any]:
        """The description, with options as entries of their own."""
        about = {name: value for name, value in self.about.items() if name != "options"}
        return self.about["options"] | about

    @property
    def result(self) -> Any:
        """The result, read from its file. Raises InputError if the file was changed or is damaged."""
        return load(self.path)


@dataclass(frozen=True)
class Job:
    """A cell to compute: all that a worker needs. Jobs with one `model_key` share a loaded model.

    The key differs from run to run, because files may change between runs.
    """

    folder: Path
    function: Callable[..., Result]
    options: dict[str, Any]
    settings: dict[str, Any]
    source: Any
    model_key: str
    rows: Any

    @property
    def title(self) -> str:
        """The model and the rows."""
        return f"{self.settings['model']} on {self.settings['rows']}"


def describe_function(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an analysis: its name, the hash of its source if it is not the package's, and all its options."""
    name = getattr(function, "__qualname__", "<no name>")
    if "<" in name:
        raise InputError(f"{shown(function)} has no name of its own: define the function at the top of a module.")
    code = "" if function.__module__.startswith("layerdiv_tl.") else digest_of(inspect.getsource(function))
    bound = inspect.signature(function).bind(None, None, **options)
    bound.apply_defaults()
    values = dict(list(bound.arguments.items())[2:])
    try:
        values = json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"an option is not JSON ({error}): make it in a function of your own.") from error
    about = {"analysis": function.__name__, "function": f"{function.__module__}.{name}", "code": code}
    return about | {"options": values, "version": version("layerdiv_tl"), "format": FORMAT}


def describe_rows(name: str, rows: Any) -> dict[str, Any]:
    """Name and count rows, and hash all that a function may read of a task, questions or texts."""
    if isinstance(rows, Task):
        read = [rows.prompts, rows.options, rows.option_ids, rows.labels.tolist(), rows.passages.tolist()]
        return {"rows": name, "count": len(rows.prompts), "texts": digest_of(read)}
    if hasattr(rows, "groups"):
        read = [rows.texts, rows.answers, rows.groups.tolist()]
        return {"rows": name, "count": len(rows.texts), "texts": digest_of(read)}
    return {"rows": name, "count": len(rows), "texts": digest_of(list(rows))}


def run_job(job: Job) -> tuple[Path | None, str]:
    """Compute a cell unless it is stored; return its description's path, or the reason why there is none."""
    try:
        model, identity = _load_once(job)
        key = {**job.settings, "weights": identity.weights, "tokenizer": identity.tokenizer}
        key |= {"dtype": model.provenance["dtype"]}
        # Names that are alike in a file system have other digests.
        places = [re.sub(r"[^\w.@-]+", "-", key[name]).strip("-.")[:80] or "unnamed" for name in ("model", "rows")]
        path = job.folder.joinpath(*places, f"{key['analysis']}-{digest_of(key)}.json")
        if not _is_stored(path):
            _compute(job, model, key, path)
        return path, ""
    except Exception as error:
        return None, f"{job.title}: {sentence(error)}"


def read_cell(path: Path) -> Cell | None:
    """Read a description; None where there is none, and where it or its result is not whole."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        result = path.with_suffix(".npz")
        is_whole = about["format"] == FORMAT and about["bytes"] == result.stat().st_size
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Cell(about, result) if is_whole else None


def sentence(error: BaseException) -> str:
    """Return an error's message on one line, with its type unless it is an InputError."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def forget_model() -> None:
    """Release the last model of this thread."""
    _LAST.__dict__.clear()


def digest_of(value: Any) -> str:
    """Return the first 16 digits of the SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _is_stored(path: Path) -> bool:
    """True for a cell whose result can be read; one that was damaged is computed again."""
    cell = read_cell(path)
    try:
        return cell is not None and cell.result is not None
    except InputError:
        return False


def _compute(job: Job, model: Model, key: Mapping[str, Any], path: Path) -> None:
    """Compute a cell and write its result, then its description, which says that the result is whole."""
    sweep(path.parent)
    rows = job.rows
    if isinstance(rows, Task):
        rows = rows.resolve(model, multi_token=bool(rows.option_ids))
        rows = rows if model.context is None else rows.fit(model, model.context)
    start = datetime.now(UTC)
    with quiet():
        result = job.function(model, rows, **job.options)
    file = result.save(path.with_suffix(".npz"))
    end = datetime.now(UTC)
    about = {**key, "key": list(key), "bytes": file.stat().st_size}
    about |= {name: getattr(rows, name) for name in ("source", "license", "scored") if hasattr(rows, name)}
    versions = {name: version(name) for name in ("torch", "transformers", "transformer_lens")}
    about |= {"provenance": model.provenance, "versions": versions}
    about |= {"finished": end.isoformat(), "seconds": (end - start).total_seconds()}
    write_text(path, json.dumps(about, indent=1, default=str) + "\n")


def _load_once(job: Job) -> tuple[Model, Identity]:
    """Load a job's model, or return the last one if it is the same; one that failed is not loaded again, either."""
    if getattr(_LAST, "key", None) != job.model_key:
        forget_model()  # before the next one takes memory
        _LAST.key = job.model_key
        try:
            source = job.source
            model = load_model(**source) if isinstance(source, Mapping) else load_model(source)
            model = replace(model, name=job.settings["model"])
            _LAST.loaded = model, identify(model)
        except Exception as error:
            _LAST.failure = sentence(error)
    if hasattr(_LAST, "failure"):
        raise InputError(_LAST.failure)
    return _LAST.loaded
