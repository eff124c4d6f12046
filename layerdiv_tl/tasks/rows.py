"""Read the rows of a task: files by pandas, data sets by `datasets`, or a frame."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import file_path, shown
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in order, with a description of their source. Raises InputError if there are none."""

    rows: Sequence[Any]
    source: str

    def __post_init__(self) -> None:
        if not self.rows:
            raise InputError(f"{self.source} holds no rows: give at least one.")


def sample_rows(name: str) -> Rows:
    """Read the rows of a file that is part of this package."""
    with resources.as_file(resources.files(__package__).joinpath(f"{name}.jsonl")) as path:
        return Rows(_read_file(path).to_dict("records"), "written for layerdiv_tl")


def read_rows(data: Any, names: Sequence[str] = ()) -> Rows:
    """Read the rows of a user's `data=`.

    Args:
        data: A JSONL, JSON, CSV or Parquet file in UTF-8; a folder with a file of one of the `names`, tried in order; a
            pandas frame; or a `datasets.Dataset`.

    Raises InputError for data that are missing, empty or unreadable.

    >>> import pandas as pd
    >>> read_rows(pd.DataFrame({"text": ["a", "b"]})).rows[1]["text"]
    'b'
    """
    if isinstance(data, str | os.PathLike):
        path = _find(file_path("data", data), names)
        with refusing(f"{str(path)!r} cannot be read", "write its rows again, in UTF-8"):
            return Rows(_read_file(path).to_dict("records"), str(path))
    if hasattr(data, "column_names"):
        return Rows(data.to_list(), "a data set in memory")
    if repeated := data.columns[data.columns.duplicated()].tolist():
        raise InputError(f"the frame has two columns {shown(repeated[0])}: rename one, or leave it out.")
    return Rows(data.to_dict("records"), "a pandas frame")


def _find(path: Path, names: Sequence[str]) -> Path:
    """Return a file, or the one in a folder that has one of the names."""
    inner = [path / (name + suffix) for name in names for suffix in SUFFIXES]
    for place in inner if path.is_dir() else [path]:
        if place.is_file() and place.suffix in SUFFIXES:
            return place
    wanted = f"{' or '.join(names)}{{{','.join(SUFFIXES)}}}"
    raise InputError(f"{str(path)!r} is no such file, and no folder with {wanted}: check the path.")


def _read_file(path: Path) -> pd.DataFrame:
    """Read a file without converting a text that looks like a number, a date or a missing value."""
    import pandas as pd

    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".csv":
        # Lines with more cells than the header has would lose or shift some.
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
            return pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False, encoding="utf-8-sig")
    settings: Any = {"dtype": False, "convert_dates": False, "convert_axes": False, "encoding": "utf-8-sig"}
    return pd.read_json(path, lines=path.suffix == ".jsonl", **settings)


def hub_rows(name: str, path: str, config: str | None, split: str) -> Rows:
    """Load rows of a data set on the Hugging Face hub with the optional library `datasets`.

    Raises InputError where the library is missing or the hub cannot be reached.
    """
    instead = f"give data=, a folder with {name}{{{','.join(SUFFIXES)}}}"
    datasets = import_optional("datasets", f"pip install datasets, or {instead}")
    with refusing(f"{path} ({split}) could not be loaded from Hugging Face", f"go online or {instead}"):
        rows = list(datasets.load_dataset(path, config, split=split))
    return Rows(rows, " ".join(filter(None, ["Hugging Face", path, config, split])))


@contextlib.contextmanager
def refusing(fault: str, advice: str) -> Iterator[None]:
    """Turn every error of another library, each of which raises its own kinds, into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{fault} ({type(error).__name__}: {reason}): {advice}.") from error


def import_optional(name: str, install: str) -> Any:
    """Import a library that only some rows need. Raises InputError, with advice, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{name.split('.')[0]} is not installed ({error}): {install}.") from error
