"""The grid of a study (models, tasks, units), its folder and loading options, validated before any work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import zoo
from .._checks import file_path, listed, shown
from ..errors import InputError
from ..model.fingerprint import Identity, identify
from ..model.load import Model, load_model
from ..tasks.specs import EIGHT_TASKS
from ..tasks.task import Task
from .folder import register_model
from .shards import safe_name

# Options of `load_model` that studies pass on.
_LOAD = ("tokenizer", "device", "dtype", "device_map", "copy", "adapters", "trust_remote_code")


def models_of(models: Any) -> dict[str, Any]:
    """Return {name: what to load}; models in a list provide their own names. Raises InputError."""
    if isinstance(models, Mapping):
        grid = {str(name): x for name, x in models.items()}
    else:
        grid = {}
        for x in _expanded("models", models, {"zoo": zoo.NAMES}):
            name = _model_name(x)
            if name in grid:
                raise InputError(f"two models are called {name!r}: give {{name: model}}.")
            grid[name] = x
    if not grid:
        raise InputError("there are no models: give one, or 'default'.")
    if broken := [name for name in grid if name != name.encode(errors="replace").decode()]:
        raise InputError(f"the name {broken[0]!r} is not Unicode (half of a surrogate pair): give {{name: model}}.")
    if len({safe_name(name) for name in grid}) < len(grid):
        raise InputError(f"the names {', '.join(grid)} are too alike for folders: give others.")
    return {name: None if isinstance(x, str) and x == "default" else x for name, x in grid.items()}


def tasks_of(tasks: Any) -> list[str | Task]:
    """Return task names and tasks, each name once, with "all" and "zoo" expanded. Raises InputError."""
    found: list[Any] = []
    for x in _expanded("tasks", tasks, {"all": EIGHT_TASKS, "zoo": zoo.TASKS}):
        if not isinstance(x, str | os.PathLike | Task):
            raise InputError(f"tasks has a {type(x).__name__}: give names, Tasks, or 'all'.")
        if not (isinstance(x, str) and x in found):
            found.append(x)
    if not found:
        raise InputError("there are no tasks: give names, Tasks, or 'all'.")
    return found


def output_folder(out: Any) -> Path:
    """Create the folder of results if needed; a temporary one for None. Raises InputError."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix="layerdiv-"))
    path = file_path("out", out)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out={shown(str(path))} cannot be made ({error.strerror}): give another.") from error
    return path


def load_options(load: Any) -> dict[str, Any]:
    """Validate options for `load_model`. Raises InputError for anything but {name of an option: value}."""
    load = {} if load is None else load
    if not isinstance(load, Mapping) or (unknown := [name for name in load if name not in _LOAD]):
        what = f"has {shown(unknown[0])}" if isinstance(load, Mapping) else f"is {shown(load)}"
        raise InputError(f"load {what}: give {{option: value}} of load_model's {', '.join(_LOAD)}.")
    return dict(load)


def load_registered(
    name: str, x: Any, out: Path, options: Mapping[str, Any], look_only: bool = False
) -> tuple[Model, Identity]:
    """Load a model and register its name in a folder, or `look_only`. Raises InputError for another model's name."""
    model = load_model(x, **({} if isinstance(x, Model) else options))
    # In a list, the default model goes by its own name.
    model = model if x is None and name == "default" else replace(model, name=name)
    identity = identify(model)
    register_model(out, model, identity, look_only)
    return model, identity


def _expanded(name: str, value: Any, words: Mapping[str, Sequence[str]]) -> list[Any]:
    """Return one or several values as a list, in order (sets are rejected), with `words` expanded to their names."""
    items = listed(name, value) if isinstance(value, list | tuple | set | frozenset) else [value]
    return [each for x in items for each in (words[x] if isinstance(x, str) and x in words else [x])]


def _model_name(x: Any) -> str:
    if isinstance(x, Model):
        return x.name
    if x is None:
        return "default"
    if isinstance(x, str | os.PathLike):
        path = file_path("models", x)
        return path.name if path.exists() else str(x)
    return load_model(x).name
