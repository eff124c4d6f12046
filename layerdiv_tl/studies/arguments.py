"""What several commands take, checked before anything is loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from .._checks import file_path, shown, some_of
from ..components import Unit
from ..errors import InputError

# Options of `load_model` that a command can pass on.
_LOAD = ("tokenizer", "device", "dtype", "device_map", "copy", "trust_remote_code")


def made_folder(out: Any) -> Path:
    """The folder of results, made where it is not there; a temporary one for None. Raises InputError."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix="layerdiv-"))
    place = file_path("out", out)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out={shown(str(place))} cannot be made ({error.strerror}): give another.") from error
    return place


def units_of(given: Any) -> list[Unit]:
    """One or several units, each once, in the order given. Raises InputError."""
    return [cast(Unit, unit) for unit in dict.fromkeys(some_of("units", given, get_args(Unit)))]


def load_options(given: Any) -> dict[str, Any]:
    """Options for `load_model`. Raises InputError for what is not {name of an option: value}."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or (unknown := [name for name in given if name not in _LOAD]):
        what = f"has {shown(unknown[0])}" if isinstance(given, Mapping) else f"is {shown(given)}"
        raise InputError(f"load {what}: give {{option: value}} of load_model's {', '.join(_LOAD)}.")
    return dict(given)


def ordered(what: str, given: Any) -> list[Any]:
    """One or several things in the order given. Raises InputError for a set, whose order changes from run to run."""
    if isinstance(given, set | frozenset):
        raise InputError(f"{what} is a set, which has no order: give a list.")
    return list(given) if isinstance(given, list | tuple) else [given]
