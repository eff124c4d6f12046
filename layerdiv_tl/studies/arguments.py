"""What several commands take, checked before anything is loaded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from .. import zoo
from .._checks import file_path, shown, some_of
from ..components import Unit
from ..errors import InputError
from ..model.load import Model, load_model
from ..tasks.paper import EIGHT_TASKS
from ..tasks.task import Task
from .shards import safe_name

ZOO = "zoo"

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


def models_of(given: Any) -> dict[str, Any]:
    """{name: what to load}; names of a list come from the models themselves."""
    if isinstance(given, Mapping):
        found = {str(name): x for name, x in given.items()}
    else:
        found = {}
        for x in _spelled(ordered("models", given), ZOO, lambda: zoo.NAMES):
            name = _model_name(x)
            if name in found:
                raise InputError(f"two models are called {name!r}: give {{name: model}}.")
            found[name] = x
    if not found:
        raise InputError("there are no models: give one, or 'default'.")
    folders = [safe_name(name) for name in found]
    if len(set(folders)) < len(folders):
        raise InputError(f"the names {', '.join(found)} are too alike for folders: give others.")
    return {name: None if isinstance(x, str) and x == "default" else x for name, x in found.items()}


def _spelled(several: Sequence[Any], word: str, names: Callable[[], Sequence[str]]) -> list[Any]:
    """A list in which a word that stands for several names is those names."""
    return [name for x in several for name in (names() if isinstance(x, str) and x == word else [x])]


def _model_name(x: Any) -> str:
    if isinstance(x, Model):
        return x.name
    if x is None:
        return "default"
    if isinstance(x, str | os.PathLike):
        place = file_path("models", x)
        return place.name if place.exists() else str(x)
    return load_model(x).name


def tasks_of(given: Any) -> list[str | Task]:
    """Names and tasks, each once; "all" and "zoo" spelled out."""
    several = ordered("tasks", given)
    if strange := [x for x in several if not isinstance(x, str | os.PathLike | Task)]:
        raise InputError(f"tasks has a {type(strange[0]).__name__}: give names, Tasks, or 'all'.")
    found: list[str | Task] = []
    for name in _spelled(_spelled(several, "all", lambda: EIGHT_TASKS), ZOO, lambda: zoo.TASKS):
        found += [] if isinstance(name, str) and name in found else [name]
    if not found:
        raise InputError("there are no tasks: give names, Tasks, or 'all'.")
    return found


def reason(error: Exception) -> str:
    """An error as part of a sentence."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
