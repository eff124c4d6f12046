"""What several commands take, checked before anything is loaded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ..components import Unit
from ..errors import InputError

# Options of `load_model` that a command can pass on.
_LOAD = ("tokenizer", "device", "dtype", "device_map", "copy", "trust_remote_code")


def folder_of(what: str, given: Any) -> Path:
    """A folder as the user named it, whether or not it is there. Raises InputError for what is not a path."""
    if not isinstance(given, str | os.PathLike) or not str(given).strip() or "\0" in str(given):
        raise InputError(f"{what} is {given!r:.60}, which is not a path: give the name of a folder.")
    return Path(os.fsdecode(given)).expanduser()


def made_folder(out: Any) -> Path:
    """The folder of results, made where it is not there; a temporary one for None. Raises InputError."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix="layerdiv-"))
    place = folder_of("out", out)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out={str(out)!r} cannot be made ({error.strerror}): give a folder of yours.") from error
    return place


def units_of(given: Any) -> list[Unit]:
    """One or several units, each once, in the order given. Raises InputError."""
    units: list[Any] = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    if not units or not all(isinstance(unit, str) and unit in get_args(Unit) for unit in units):
        raise InputError(f"units={given!r:.60}: use 'sublayer', 'head', 'neuron', one or several in a list.")
    return list(dict.fromkeys(units))


def load_options(given: Any) -> dict[str, Any]:
    """Options for `load_model`. Raises InputError for what is not {name of an option: value}."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or (unknown := [name for name in given if name not in _LOAD]):
        what = f"has {unknown[0]!r:.40}" if isinstance(given, Mapping) else f"is {given!r:.60}"
        raise InputError(f"load {what}: give {{option: value}} of load_model's {', '.join(_LOAD)}.")
    return dict(given)


def ordered(what: str, given: Any) -> list[Any]:
    """One or several things in the order given. Raises InputError for a set, whose order changes from run to run."""
    if isinstance(given, set | frozenset):
        raise InputError(f"{what} is a set, which has no order: give a list.")
    return list(given) if isinstance(given, list | tuple) else [given]


def check_flags(**flags: Any) -> None:
    """Raise InputError for an option that must be True or False and is neither: "no" would count as yes."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"{name}={value!r:.40} must be True or False.")


def check_choice(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise InputError for a word that is not one of those known."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name}={value!r:.40} is unknown: use {', '.join(map(repr, known))}.")
