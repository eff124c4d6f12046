"""Rows of a task from a file, a folder, a pandas frame, a `datasets.Dataset` or the Hugging Face hub."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from .._checks import file_path, shown
from .._files import parse_json, read_bytes
from ..errors import InputError
from ..model.hub import unreachable

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


class Row(dict[str, Any]):
    """One row and its place for messages; a missing column is an InputError that names the columns there are."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise InputError(f"{where} is not a JSON object ({values!r:.40}): every row must name its columns.")
        super().__init__(values)
        self.where = where

    def __missing__(self, column: str) -> Any:
        columns = ", ".join(map(str, self)) or "none"
        raise InputError(f"{self.where} has no column {shown(column)} (its columns: {columns}): rename one, or add it.")

    def with_columns(self, **columns: Any) -> Row:
        """The row with more columns, or others."""
        return Row({**self, **columns}, self.where)


@dataclass(frozen=True, eq=False)
class TaskData:
    """Rows in their order, and in words where they came from."""

    rows: Sequence[Row]
    source: str


def sample_rows(name: str) -> TaskData:
    """The rows of a file that is part of this package."""
    lines = resources.files(__package__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [Row(json.loads(line), f"line {number} of {name}") for number, line in enumerate(lines, start=1)]
    return TaskData(rows, "written for layerdiv_tl")


def open_rows(data: Any, names: Sequence[str], split: str = "validation") -> TaskData:
    """Rows of a user's `data=`.

    Args:
        data: A JSONL, JSON, CSV or Parquet file; a folder with a file of one of the `names`, the first that exists; a
            data set written by `datasets.Dataset.save_to_disk`; a pandas frame; or a `datasets.Dataset`.
        split: Which split to take of a saved `DatasetDict`.

    Raises InputError for what is missing, empty, unreadable, not UTF-8 or malformed, with its line.

    >>> import pandas as pd
    >>> open_rows(pd.DataFrame({"text": ["a", "b"]}), ["any"]).rows[1]["text"]
    'b'
    """
    if getattr(data, "ndim", 2) != 2:
        raise InputError(f"data={shown(data)} has {data.ndim} dimensions: give a file, a folder or a pandas frame.")
    if hasattr(data, "iloc"):
        return _numbered(data.to_dict("records"), "the frame", "a pandas frame")
    if hasattr(data, "to_list"):
        return _numbered(data.to_list(), "the data set", "a data set in memory")
    if not isinstance(data, str | os.PathLike):
        raise InputError(f"data is a {type(data).__name__}: give a file, a folder or a pandas frame.")
    path = file_path("data", data)
    if not path.exists():
        raise InputError(f"there is no file or folder {str(path)!r}: check its path.")
    if path.is_dir():
        path = _find_in_folder(path, names)
    return _load_saved(path, split) if path.is_dir() else _read_file(path)


def _find_in_folder(folder: Path, names: Sequence[str]) -> Path:
    """The file or saved data set of one of the names in a folder, or the folder if it is a data set itself."""

    def is_saved(path: Path) -> bool:
        return any((path / sign).is_file() for sign in ("state.json", "dataset_dict.json"))

    for name in names:
        for candidate in (*(folder / f"{name}{suffix}" for suffix in SUFFIXES), folder / name):
            if candidate.is_file() or is_saved(candidate):
                return candidate
    if is_saved(folder):
        return folder
    wanted = " or ".join(f"{name}{{{','.join(SUFFIXES)}}}" for name in names)
    raise InputError(f"the folder {str(folder)!r} holds no {wanted}: put the rows there, or give the file itself.")


def _read_file(path: Path) -> TaskData:
    """The rows of one file, by its suffix."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{str(path)!r} is none of {', '.join(SUFFIXES)}: write the rows as one of them.")
    try:
        content = read_bytes(path)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read ({error.strerror}): give a file of rows.") from error
    if path.suffix == ".parquet":
        return _numbered(_read_parquet(content, path), path.name, str(path))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"line {line} of {str(path)!r} is not UTF-8: save the file as UTF-8.") from error
    if path.suffix == ".csv":
        return _numbered(_read_csv(text, path), path.name, str(path))
    if path.suffix == ".json" and text.lstrip().startswith("["):
        return _numbered(_parse_json(text, str(path)), path.name, str(path))
    # Split at \n alone: str.splitlines would also cut at U+2028, which JSON strings may hold. pandas.read_json would
    # name no line in its errors, and read texts that look like numbers or dates as such.
    lines = ((f"line {i} of {path.name}", line) for i, line in enumerate(text.split("\n"), start=1) if line.strip())
    return _not_empty([Row(_parse_json(line, where), where) for where, line in lines], str(path))


def _parse_json(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"{where} is not JSON ({error}): write one object a line, as in {{...}}.") from error


def _read_csv(text: str, path: Path) -> list[dict[str, str]]:
    """Every cell as text: what looks like a number or a missing value may be an answer."""
    # pandas.read_csv takes what is refused here: it fills up short rows, and accepts text after a closing quote.
    rows: list[dict[str, str]] = []
    before = csv.field_size_limit(max(len(text), csv.field_size_limit()))  # a cell may be a whole document
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = list(reader.fieldnames or ())
        if len(set(columns)) < len(columns):
            twice = next(column for column in columns if columns.count(column) > 1)
            raise InputError(f"{str(path)!r} has two columns {shown(twice)}: rename one, or leave it out.")
        for values in reader:
            if None in values or None in values.values():
                where = f"row {len(rows) + 1} of {path.name}"
                raise InputError(f"{where} has not as many cells as the header: check its quotes.")
            rows.append(values)
    except csv.Error as error:
        raise InputError(f"{str(path)!r} is not CSV in row {len(rows) + 1} ({error}): correct its quotes.") from error
    finally:
        csv.field_size_limit(before)
    return rows


def _read_parquet(content: bytes, path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not content:
        raise InputError(f"{str(path)!r} is empty: give a file with at least one row.")
    try:
        return pq.read_table(io.BytesIO(content)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{str(path)!r} is not a Parquet file ({reason}): write it again.") from error


def load_from_hub(path: str, config: str | None, split: str, name: str) -> TaskData:
    """Rows of a data set on the Hugging Face hub, by the optional library `datasets`.

    Raises InputError where the library is missing or the hub cannot be reached.
    """
    instead = f"give data=, a folder with {name}{{{','.join(SUFFIXES)}}}"
    datasets = _import_datasets(instead)
    try:
        with cache_only(datasets) if unreachable() else contextlib.nullcontext():
            rows = datasets.load_dataset(path, config, split=split)
    except Exception as error:  # datasets, huggingface_hub, fsspec and requests each raise their own
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{path} ({split}) is not on Hugging Face ({reason}): go online or {instead}.") from error
    return _numbered(rows, path, " ".join(filter(None, ["Hugging Face", path, config, split])))


@contextlib.contextmanager
def cache_only(datasets: Any) -> Iterator[None]:
    """Let `datasets` look into its cache alone: left to itself it tries an unreachable hub for half a minute."""
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _load_saved(folder: Path, split: str) -> TaskData:
    datasets = _import_datasets("write the rows as JSONL")
    try:
        rows = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise InputError(f"{str(folder)!r} is not a saved data set ({one_line(error)}): save it again.") from error
    if hasattr(rows, "column_names") and isinstance(rows, Mapping):
        if split not in rows:
            raise InputError(f"{str(folder)!r} has no split {split!r}, only {', '.join(rows)}: save that split.")
        rows = rows[split]
    return _numbered(rows, folder.name, str(folder))


def _import_datasets(instead: str) -> Any:
    return import_optional("datasets", f"pip install 'layerdiv-tl[datasets]', or {instead}")


def import_optional(name: str, install: str) -> Any:
    """A library that only some rows need. Raises InputError, with what to do, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{name.split('.')[0]} is not installed ({error}): {install}.") from error


def one_line(error: Exception) -> str:
    """The beginning of an error's message."""
    return " ".join(str(error).split())[:120]


def _numbered(values: Iterable[Any], name: str, source: str) -> TaskData:
    return _not_empty([Row(value, f"row {number} of {name}") for number, value in enumerate(values, start=1)], source)


def _not_empty(rows: list[Row], source: str) -> TaskData:
    if not rows:
        raise InputError(f"{source} holds no rows: give at least one.")
    return TaskData(rows, source)
