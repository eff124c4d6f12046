"""Tasks a user defines by options, template and gold column, in Python or in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._checks import whole_number
from ..errors import InputError
from ..model.tokenization import LABELS, refuse_tables, refuse_unordered
from .readers import TaskData, open_rows
from .templates import TaskSpec

JSON_KEYS = ("name", "template", "templates", "options", "label", "data", "train", "license", "limit")


def custom_spec(
    name: str,
    templates: Mapping[str, str],
    options: Sequence[str],
    label_column: str,
    license: str,
    data: Any = None,
    limit: int | None = None,
) -> TaskSpec:
    """A task of a user's own. Raises InputError for options that are too few, empty or alike."""
    refuse_tables(options, "options")
    refuse_unordered(options, "options", LABELS)
    is_list = isinstance(options, Iterable) and not isinstance(options, str | bytes | Mapping)
    words = list(options) if is_list else []
    if len(words) < 2 or not all(isinstance(word, str) and word.strip() for word in words):
        raise InputError(f"options={options!r:.60} must be a list of at least two words, as in ['no', 'yes'].")
    if len({word.strip() for word in words}) < len(words):
        raise InputError(f"options={options!r:.60} holds a word twice: options must differ.")

    def load_rows(split: str, count: int | None) -> TaskData:
        if split == "train":
            raise InputError(f"{name} has no training rows to draw shots from: give a file of them as train=.")
        if data is None:
            raise InputError(f"{name} names no data: give the rows as data=.")
        return open_rows(data, (name,))

    return TaskSpec(
        name=name,
        description=f"one of {', '.join(word.strip() for word in words)}",
        templates=templates,
        options=tuple(words),
        load_rows=load_rows,
        license=license,
        label_column=label_column,
        file_names=(name,) if data is None else (),
        limit=limit,
    )


def read_spec_file(path: Path) -> tuple[TaskSpec, Path | None]:
    """The task that a JSON file defines, and the path of its training rows if it names some.

    Raises InputError for a file that cannot be read, is not such JSON, or lacks template or options.
    """
    task = f"the task {str(path)!r}"
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{task} cannot be read ({error.strerror}): give a JSON file.") from error
    except ValueError as error:  # malformed, or not UTF-8
        raise InputError(f"{task} is not JSON in UTF-8 ({error}): correct the file.") from error
    if not isinstance(entry, dict):
        raise InputError(f"{task} is not a JSON object: describe it with {', '.join(JSON_KEYS)}.")
    if unknown := [key for key in entry if key not in JSON_KEYS]:
        raise InputError(f"{task} has the unknown key {unknown[0]!r}: the keys are {', '.join(JSON_KEYS)}.")
    templates = entry.get("templates", {"default": entry.get("template")})
    if not (isinstance(templates, dict) and templates and all(isinstance(t, str) for t in templates.values())):
        raise InputError(f"{task} has no template: give one as text under 'template'.")
    for key in ("name", "label", "license", "data", "train"):
        if not isinstance(entry.get(key, ""), str):
            raise InputError(f"{task} has {key}={entry[key]!r:.40}: it must be text.")
    if (limit := entry.get("limit")) is not None:
        whole_number(f"{task}: limit", limit, 1)
    data, train = (path.parent / entry[key] if key in entry else None for key in ("data", "train"))
    spec = custom_spec(
        entry.get("name", path.stem),
        templates,
        entry.get("options", []),
        entry.get("label", "label"),
        entry.get("license", "unknown"),
        data,
        limit,
    )
    return spec, train
