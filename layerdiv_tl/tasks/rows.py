"""Read the rows of a task from a file, a folder, a pandas frame, a `datasets.Dataset` or the Hugging Face hub."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
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
    """A row and its place for messages; a missing column raises InputError, which lists the row's columns."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise InputError(f"{where} is not a JSON object ({values!r:.40}): every row must name its columns.")
        super().__init__(values)
        self.where = where

    def __missing__(self, column: str) -> Any:
        columns = ", ".join(map(str, self)) or "none"
        as_label = ", or name the column of right answers, label='answer'" * (column == "label")
        raise InputError(
            f"{self.where} has no column {shown(column)} (its columns: {columns}): rename one, or add it{as_label}."
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in order, with a description of their source. Raises InputError if there are none."""

    rows: Sequence[Row]
    source: str

    def __post_init__(self) -> None:
        if not self.rows:
            raise InputError(f"{self.source} holds no rows: give at least one.")


def sample_rows(name: str) -> Rows:
    """Read the rows of a file that is part of this package."""
    content = resources.files(__package__).joinpath(f"{name}.jsonl").read_bytes()
    return Rows(list(_json_lines(content, name)), "written for layerdiv_tl")


def read_rows(data: Any, names: Sequence[str], split: str = "validation") -> Rows:
    """Read the rows of a user's `data=`.

    Args:
        data: A JSONL, JSON, CSV or Parquet file; a folder with a file of one of the `names`, tried in order; a data set
            written by `datasets.Dataset.save_to_disk`; a pandas frame; or a `datasets.Dataset`.
        split: The split to take from a saved `DatasetDict`.

    Raises InputError, with the line, for data that are missing, empty, unreadable, not UTF-8 or malformed.

    >>> import pandas as pd
    >>> read_rows(pd.DataFrame({"text": ["a", "b"]}), ["any"]).rows[1]["text"]
    'b'
    """
    if isinstance(data, str | os.PathLike):
        path = file_path("data", data)
        if not path.exists():
            raise InputError(f"there is no file or folder {str(path)!r}: check its path.")
        path = _find_in_folder(path, names) if path.is_dir() else path
        return _saved_rows(path, split) if path.is_dir() else _file_rows(path)
    if getattr(data, "ndim", 0) == 2 and hasattr(data, "iloc"):
        if twice := data.columns[data.columns.duplicated()].tolist():
            raise InputError(f"the frame has two columns {shown(twice[0])}: rename one, or leave it out.")
        return numbered(data.to_dict("records"), "the frame", "a pandas frame")
    if hasattr(data, "to_list") and hasattr(data, "column_names"):
        return numbered(data.to_list(), "the data set", "a data set in memory")
    if isinstance(data, list | tuple):
        raise InputError(f"data={shown(data)} is a {type(data).__name__}: give a pandas frame of it, pd.DataFrame(…).")
    raise InputError(f"data={shown(data)} has no rows: give a file, a folder, a pandas frame or a datasets.Dataset.")


def numbered(values: Iterable[Any], name: str, source: str) -> Rows:
    """Make rows that messages call "row 1 of …"."""
    return Rows([Row(value, f"row {number} of {name}") for number, value in enumerate(values, start=1)], source)


def _is_saved(path: Path) -> bool:
    return any((path / sign).is_file() for sign in ("state.json", "dataset_dict.json"))


def _find_in_folder(folder: Path, names: Sequence[str]) -> Path:
    """Find the file or saved data set of one of the names in a folder, or the folder if it is a data set."""
    found = [path for name in names for path in (*(folder / f"{name}{suffix}" for suffix in SUFFIXES), folder / name)]
    for path in (*found, folder):
        if path.is_file() or _is_saved(path):
            return path
    wanted = " or ".join(f"{name}{{{','.join(SUFFIXES)}}}" for name in names)
    raise InputError(f"the folder {str(folder)!r} holds no {wanted}: put the rows there, or give the file itself.")


def _file_rows(path: Path) -> Rows:
    """Read the rows of one file, by its suffix."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{str(path)!r} is none of {', '.join(SUFFIXES)}: write the rows as one of them.")
    try:
        content = read_bytes(path)
        is_list = path.suffix == ".json" and content.lstrip(b"\xef\xbb\xbf \n\r\t").startswith(b"[")
        if path.suffix in (".jsonl", ".json") and not is_list:
            return Rows(list(_json_lines(content, path.name)), str(path))
        if is_list:
            values = parse_json(content.decode("utf-8-sig"))
        elif path.suffix == ".csv":
            values = _csv_rows(content.decode("utf-8-sig"))
        else:
            import pyarrow.parquet

            values = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
    except (OSError, ValueError, NotImplementedError, csv.Error) as error:  # includes the errors of Arrow and Unicode
        raise InputError(
            f"{str(path)!r} cannot be read ({one_line(error)}): write its rows again, in UTF-8."
        ) from error
    return numbered(values, path.name, str(path))


def _json_lines(content: bytes, name: str) -> Iterator[Row]:
    # pandas.read_json keeps the last of two equal keys, and converts texts that look like numbers or dates;
    # str.splitlines would also split at U+2028, which JSON strings may contain.
    for number, line in enumerate(content.decode("utf-8-sig").split("\n"), start=1):
        where = f"line {number} of {name}"
        if line.strip():
            try:
                yield Row(parse_json(line), where)
            except ValueError as error:
                raise InputError(f"{where} is not JSON ({error}): write one object a line, as in {{...}}.") from error


def _csv_rows(text: str) -> list[dict[str, str]]:
    """Read every cell as text: one that looks like a number or a missing value may be an answer."""
    # pandas.read_csv fills short rows, renames the second of two equal columns and accepts text after a quote.
    before = csv.field_size_limit(max(len(text), csv.field_size_limit()))  # a cell may be a whole document
    try:
        columns, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row] or [[]]
    finally:
        csv.field_size_limit(before)
    if len(set(columns)) < len(columns):
        raise ValueError(f"its columns {', '.join(columns)} are not all different")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise ValueError(f"row {number} has {len(row)} cells for {len(columns)} columns")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def hub_rows(path: str, config: str | None, split: str, name: str) -> Rows:
    """Load rows of a data set on the Hugging Face hub with the optional library `datasets`.

    Raises InputError where the library is missing or the hub cannot be reached.
    """
    with asking_hub(f"{path} ({split})", f"give data=, a folder with {name}{{{','.join(SUFFIXES)}}}") as datasets:
        rows = datasets.load_dataset(path, config, split=split)
    return numbered(rows, path, " ".join(filter(None, ["Hugging Face", path, config, split])))


def _saved_rows(folder: Path, split: str) -> Rows:
    datasets = import_optional("datasets", "pip install datasets, or write the rows as JSONL")
    with refusing(f"{str(folder)!r} is not a saved data set", "save it again"):
        rows = datasets.load_from_disk(str(folder))
    if isinstance(rows, Mapping):
        if split not in rows:
            raise InputError(f"{str(folder)!r} has no split {split!r}, only {', '.join(rows)}: save that split.")
        rows = rows[split]
    return numbered(rows, folder.name, str(folder))


@contextlib.contextmanager
def asking_hub(what: str, instead: str) -> Iterator[Any]:
    """Yield the library `datasets` to load from the hub; if the hub does not answer, only its cache is used.

    By itself it tries an unreachable hub for half a minute. Every failure becomes an InputError.
    """
    from huggingface_hub import constants

    datasets = import_optional("datasets", f"pip install datasets, or {instead}")
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    try:
        if unreachable():
            datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
        with refusing(f"{what} could not be loaded from Hugging Face", f"go online or {instead}"):
            yield datasets
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def refusing(fault: str, advice: str) -> Iterator[None]:
    """Turn every error of another library, each of which raises its own kinds, into an InputError."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{fault} ({type(error).__name__}: {one_line(error)}): {advice}.") from error


def import_optional(name: str, install: str) -> Any:
    """Import a library that only some rows need. Raises InputError, with advice, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{name.split('.')[0]} is not installed ({error}): {install}.") from error


def one_line(error: Exception) -> str:
    """Return the beginning of an error's message."""
    return " ".join(str(error).split())[:120]
