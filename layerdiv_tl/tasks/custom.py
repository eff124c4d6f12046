"""Tasks a user describes: options, template and gold column, in Python or in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._checks import whole_number
from ..errors import InputError
from ..model.tokenization import LABELS, refuse_tables, refuse_unordered
from .readers import Rows, open_rows
from .templates import Recipe

KEYS = ("name", "template", "templates", "options", "label", "data", "train", "license", "limit")


def own_recipe(
    name: str,
    templates: Mapping[str, str],
    options: Sequence[str],
    label: str,
    license: str,
    data: Any = None,
    limit: int | None = None,
) -> Recipe:
    """A recipe of what a user gives. Raises InputError for options that are too few, empty or alike."""
    refuse_tables(options, "options")
    refuse_unordered(options, "options", LABELS)
    listed = isinstance(options, Iterable) and not isinstance(options, str | bytes | Mapping)
    words = list(options) if listed else []
    if len(words) < 2 or not all(isinstance(word, str) and word.strip() for word in words):
        raise InputError(f"options={options!r:.60} must be a list of at least two words, as in ['no', 'yes'].")
    if len({word.strip() for word in words}) < len(words):
        raise InputError(f"options={options!r:.60} holds a word twice: options must differ.")

    def rows(split: str, count: int | None) -> Rows:
        if split == "train":
            raise InputError(f"{name} has no training rows to draw shots from: give a file of them as train=.")
        if data is None:
            raise InputError(f"{name} names no data: give the rows as data=.")
        return open_rows(data, (name,))

    return Recipe(
        name=name,
        about=f"one of {', '.join(word.strip() for word in words)}",
        templates=templates,
        options=tuple(words),
        rows=rows,
        license=license,
        label=label,
        files=(name,) if data is None else (),
        limit=limit,
    )


def recipe_file(path: Path) -> tuple[Recipe, Path | None]:
    """The recipe a JSON file describes, and its training rows if it names some.

    Raises InputError for a file that cannot be read, is no such JSON, or lacks template or options.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the task {str(path)!r} cannot be read ({error.strerror}): give a JSON file.") from error
    except ValueError as error:  # malformed, or not UTF-8
        raise InputError(f"the task {str(path)!r} is not JSON in UTF-8 ({error}): correct the file.") from error
    if not isinstance(said, dict):
        raise InputError(f"the task {str(path)!r} is no JSON object: describe it with {', '.join(KEYS)}.")
    unknown = [key for key in said if key not in KEYS]
    if unknown:
        raise InputError(f"the task {str(path)!r} has the unknown key {unknown[0]!r}: the keys are {', '.join(KEYS)}.")
    templates = said.get("templates", {"default": said.get("template")})
    if not (isinstance(templates, dict) and templates and all(isinstance(t, str) for t in templates.values())):
        raise InputError(f"the task {str(path)!r} has no template: give one as text under 'template'.")
    for key in ("name", "label", "license", "data", "train"):
        if not isinstance(said.get(key, ""), str):
            raise InputError(f"the task {str(path)!r} has {key}={said[key]!r:.40}: it must be text.")
    limit = said.get("limit")
    if limit is not None:
        whole_number(f"the task {str(path)!r}: limit", limit, 1)
    data, train = (path.parent / said[key] if key in said else None for key in ("data", "train"))
    recipe = own_recipe(
        said.get("name", path.stem),
        templates,
        said.get("options", []),
        said.get("label", "label"),
        said.get("license", "unknown"),
        data,
        limit,
    )
    return recipe, train
