"""Rows of a task from wherever they lie: a file, a folder, a frame, Hugging Face."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._checks import file_path, shown
from ..errors import InputError
from ..model.hub import unreachable

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


class Row(dict[str, Any]):
    """One row; a column it lacks is an InputError that names the ones it has."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where

    def __missing__(self, column: str) -> Any:
        have = ", ".join(map(str, self)) or "none"
        raise InputError(f"{self.where} has no column {shown(column)} (its columns: {have}): rename one, or add it.")

    def plus(self, **columns: Any) -> Row:
        """The row with more columns, or others."""
        return Row({**self, **columns}, self.where)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in their order, and in words where they came from."""

    rows: Sequence[Row]
    source: str


def open_rows(data: Any, names: Sequence[str], split: str = "validation") -> Rows:
    """Rows from what a user calls data.

    data
        A JSONL, JSON, CSV or Parquet file; a folder that holds one called like one of `names`, the first
        that exists; a data set written by `datasets.Dataset.save_to_disk`; a pandas frame; or a
        `datasets.Dataset`.
    split
        Which split to take of a saved `DatasetDict`.

    Raises InputError for what is missing, empty, unreadable, not UTF-8 or malformed, with its line.

    >>> import pandas as pd
    >>> open_rows(pd.DataFrame({"text": ["a", "b"]}), ["any"]).rows[1]["text"]
    'b'
    """
    if getattr(data, "ndim", 2) != 2:
        raise InputError(f"data={shown(data)} has {data.ndim} dimensions: give a file, a folder or a pandas frame.")
    if hasattr(data, "iloc"):
        return _counted(data.to_dict("records"), "row {} of the frame", "a pandas frame")
    if hasattr(data, "to_list"):
        return _counted(data.to_list(), "row {} of the data set", "a data set in memory")
    if not isinstance(data, str | os.PathLike):
        raise InputError(f"data is a {type(data).__name__}: give a file, a folder or a pandas frame.")
    path = file_path("data", data)
    if not path.exists():
        raise InputError(f"there is no file or folder {str(path)!r}: check data=, or leave it out.")
    if path.is_dir():
        path = _inside(path, names)
    if path.is_dir():
        return _saved(path, split)
    return Rows(read(path), str(path))


def _inside(folder: Path, names: Sequence[str]) -> Path:
    """The file or saved data set in a folder that bears one of the names, or the folder if it is one itself."""
    for name in names:
        for candidate in (*(folder / f"{name}{suffix}" for suffix in SUFFIXES), folder / name):
            if candidate.is_file() or _is_saved(candidate):
                return candidate
    if _is_saved(folder):
        return folder
    wanted = " or ".join(f"{name}{{{','.join(SUFFIXES)}}}" for name in names)
    raise InputError(f"the folder {str(folder)!r} holds no {wanted}: put the rows there, or give the file itself.")


def _is_saved(folder: Path) -> bool:
    return any((folder / sign).is_file() for sign in ("state.json", "dataset_dict.json"))


def read(path: Path) -> list[Row]:
    """The rows of one file, by its suffix. Raises InputError as `open_rows` does."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{str(path)!r} is none of {', '.join(SUFFIXES)}: write the rows as one of them.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read ({error.strerror}): give a file you may read.") from error
    if path.suffix == ".parquet":
        rows = _parquet(content, path)
    elif path.suffix == ".csv":
        rows = _csv(content, path)
    elif path.suffix == ".json" and content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        rows = _json_list(content, path)
    else:
        rows = _json_lines(content, path)
    if not rows:
        raise InputError(f"{str(path)!r} holds no rows: give a file with at least one.")
    return rows


def _json_lines(content: bytes, path: Path) -> list[Row]:
    rows = []
    # Split at \n alone: str.splitlines would also cut at U+2028, which JSON strings may hold.
    for number, line in enumerate(_text(content, path).split("\n"), start=1):
        if line.strip():
            where = f"line {number} of {path.name}"
            rows.append(_mapping(_json(line, where), where))
    return rows


def _json_list(content: bytes, path: Path) -> list[Row]:
    values = _json(_text(content, path), str(path))
    return [_mapping(value, f"row {number} of {path.name}") for number, value in enumerate(values, start=1)]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}): write one object a line, as in {{...}}.") from error


def _mapping(value: Any, where: str) -> Row:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is no JSON object ({value!r:.40}): every row must name its columns.")
    return Row(value, where)


def _csv(content: bytes, path: Path) -> list[Row]:
    """Every cell as text: what looks like a number or a missing value may be an answer."""
    reader = csv.DictReader(io.StringIO(_text(content, path), newline=""), strict=True)
    rows = []
    try:
        for number, values in enumerate(reader, start=1):
            where = f"row {number} of {path.name}"
            if None in values or None in values.values():
                raise InputError(f"{where} has not as many cells as the header: check its quotes and commas.")
            rows.append(Row(values, where))
    except csv.Error as error:
        raise InputError(f"{str(path)!r} is not CSV in row {len(rows) + 1} ({error}): correct its quotes.") from error
    return rows


def _parquet(content: bytes, path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not content:
        raise InputError(f"{str(path)!r} is empty: give a file with at least one row.")
    try:
        values = pq.read_table(io.BytesIO(content)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{str(path)!r} is not a Parquet file ({reason}): write it again.") from error
    return [Row(value, f"row {number} of {path.name}") for number, value in enumerate(values, start=1)]


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"line {line} of {str(path)!r} is not UTF-8: save the file as UTF-8.") from error


def hub_rows(path: str, config: str | None, split: str, name: str) -> Rows:
    """Rows of a data set on the Hugging Face hub, by the optional library `datasets`.

    Raises InputError where the library is missing or the hub cannot be reached.
    """
    instead = f"give data=, a folder with {name}{{{','.join(SUFFIXES)}}}"
    try:
        datasets = _datasets(instead)
        with _only_cached(datasets) if unreachable() else contextlib.nullcontext():
            rows = datasets.load_dataset(path, config, split=split)
    except InputError:
        raise
    except Exception as error:  # datasets, huggingface_hub, fsspec and requests each raise their own
        reason = " ".join(str(error).split())[:120]
        where = f"{path} ({split})"
        message = f"{where} cannot be had from Hugging Face ({type(error).__name__}: {reason}): go online or {instead}."
        raise InputError(message) from error
    source = " ".join(filter(None, ["Hugging Face", path, config, split]))
    return _counted(rows, f"row {{}} of {path}", source)


@contextlib.contextmanager
def _only_cached(datasets: Any) -> Iterator[None]:
    """Let `datasets` look into its cache alone: left to itself it asks a hub that is not there for half a minute."""
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _saved(folder: Path, split: str) -> Rows:
    load = _datasets("write the rows as JSONL").load_from_disk
    try:
        rows = load(str(folder))
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{str(folder)!r} is no data set that can be read ({reason}): save it again.") from error
    if hasattr(rows, "column_names") and isinstance(rows, Mapping):
        if split not in rows:
            raise InputError(f"{str(folder)!r} has no split {split!r}, only {', '.join(rows)}: save that split.")
        rows = rows[split]
    return _counted(rows, f"row {{}} of {folder.name}", str(folder))


def _datasets(instead: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"the library datasets is not installed: pip install 'layerdiv-tl[datasets]', or {instead}."
        ) from error


def _counted(values: Iterable[Mapping[str, Any]], where: str, source: str) -> Rows:
    rows = [_mapping(value, where.format(number)) for number, value in enumerate(values, start=1)]
    if not rows:
        raise InputError(f"{source} holds no rows: give at least one.")
    return Rows(rows, source)
