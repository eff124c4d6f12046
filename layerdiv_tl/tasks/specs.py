"""Definitions of tasks: this package's own, the paper's eight, and a user's in Python or JSON.

`specs.json` holds the first two: for the paper, templates and options of Table 3, splits of Section 5 and licenses of
Table 2. The template `table3` is the paper's as printed, including the spaces around its line breaks; the others are
for prompt sensitivity, after promptsource (Bach et al., 2022), with the same options. The paper leaves these points
open; they are decided here:

- `arc` is ARC-Easy, only its rows with exactly four options, since the options are A B C D; labels 1-4 are renamed A-D
  by position. `Task.dropped` counts the others. ARC-Challenge is a separate task.
- ARC's `{options}` are lines `A: …` (`table3`), or promptsource's bulleted list (`promptsource`).
- MNLI's `{options}` is `Always, Sometimes, or Never true?`; its split is validation_matched.
- BoolQ's passage has no title before it; the field `{title}` is available.
- Texts are used unchanged, including the trailing spaces of SST-2 and MNLI.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from .._checks import file_path, shown, whole_number
from .._files import parse_json, read_bytes
from ..errors import InputError
from ..model.prompts import refuse_unordered
from .rows import Row, Rows, hub_rows, read_rows, sample_rows
from .synthetic import GENERATORS, PREFIX, synthetic
from .templates import OF_EACH_ROW, TaskSpec

ARC_LETTERS = ("A", "B", "C", "D")
PAPER_ROWS = 2000  # of each task, as in the paper
JSON_KEYS = ("name", "template", "templates", "options", "label", "data", "train", "license", "limit")
_KEYS = ", ".join(JSON_KEYS)


def _packaged_spec(name: str, entry: Mapping[str, Any]) -> TaskSpec:
    """Build a task from an entry of `specs.json`; without `hub`, its rows are part of this package."""
    path, config, held_out = entry.get("hub", ("", None, "test"))

    def load_rows(split: str, count: int | None) -> Rows | None:
        if path:
            return hub_rows(path, config, "train" if split == "train" else held_out, name)
        return None if split == "train" else sample_rows(name)

    def preprocess(row: Row) -> Row | None:
        columns = {field: row[column] for field, column in entry.get("columns", {}).items()}
        row = Row({**row, **columns, **entry.get("constants", {})}, row.where)
        return _four_options(row) if name.startswith("arc") else row

    return TaskSpec(
        name=name,
        description=entry["description"],
        templates=entry["templates"],
        options=tuple(entry["options"]),
        load_rows=load_rows,
        license=entry["license"],
        label_column=entry.get("label_column", "label"),
        preprocess=preprocess,
        text_fields=tuple(entry["text_fields"]),
        file_names=(name, *entry.get("other_file_names", ())) if path else (),
        limit=PAPER_ROWS if path else None,
        split=held_out,
        source=" ".join(filter(None, ["Hugging Face", path, config, held_out])) if path else "",
    )


def _four_options(row: Row) -> Row | None:
    """Write out the options of a four-option row of ARC and letter its gold label; other rows are dropped."""
    choices = row["choices"]
    try:
        if isinstance(choices, str):  # a CSV file holds only text
            choices = parse_json(choices)
        texts, labels = list(map(str, choices["text"])), list(map(str, choices["label"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{row.where}: choices={choices!r:.60} must hold the lists text and label: in CSV, as JSON."
        ) from error
    gold = str(row["answerKey"])
    if len(texts) != len(labels) or (len(texts) == len(ARC_LETTERS) and gold not in labels):
        raise InputError(
            f"{row.where}: the answerKey {gold!r} has no place in {texts} with labels {labels}: correct it."
        )
    if len(texts) != len(ARC_LETTERS):
        return None
    lines = [f"{letter}: {text}" for letter, text in zip(ARC_LETTERS, texts, strict=True)]
    written = {"options": "\n".join(lines), "bullets": "\n".join(f"- {line}" for line in lines)}
    gold = ARC_LETTERS[labels.index(gold)]
    return Row({**row, **written, "text": row["question"], "answerKey": gold}, row.where)


_ENTRIES = json.loads(resources.files(__package__).joinpath("specs.json").read_text(encoding="utf-8"))
PACKAGED_TASKS: Mapping[str, TaskSpec] = {name: _packaged_spec(name, entry) for name, entry in _ENTRIES.items()}
SAMPLE_TASKS = tuple(name for name, entry in _ENTRIES.items() if "hub" not in entry)
EIGHT_TASKS = tuple(name for name in PACKAGED_TASKS if name not in (*SAMPLE_TASKS, "arc_challenge"))


def custom_spec(
    name: str,
    templates: Mapping[str, str],
    options: Sequence[str] | str,
    label_column: str,
    license: str,
    data: Any = None,
    limit: int | None = None,
) -> TaskSpec:
    """Build a user's own task. Raises InputError for options that are too few, empty or equal."""
    if not isinstance(options, str):
        refuse_unordered("options", options)
        options = tuple(options) if isinstance(options, Iterable) and not isinstance(options, bytes | Mapping) else ()
        words = [word.strip() if isinstance(word, str) else "" for word in options]
        if len(words) < 2 or not all(words) or len(set(words)) < len(words):
            what = f"options={options!r:.60} must be a list of at least two different words: ['no', 'yes']."
            raise InputError(what + f" {OF_EACH_ROW}" * any(isinstance(option, list | tuple) for option in options))

    def load_rows(split: str, count: int | None) -> Rows | None:
        return None if data is None or split == "train" else read_rows(data, (name,))

    described = f"a choice among its {options}" if isinstance(options, str) else f"one of {', '.join(words)}"
    files = (name,) if data is None else ()
    return TaskSpec(
        name, described, templates, options, load_rows, license, label_column, file_names=files, limit=limit
    )


def task_specs() -> dict[str, TaskSpec]:
    """Return all tasks by name, with templates, options and license; synthetic ones with their defaults.

    >>> task_specs()["rte"].options, list(task_specs()["arc"].templates)
    (('Yes', 'No'), ['table3', 'promptsource'])
    """
    return {**PACKAGED_TASKS, **{name: synthetic(name) for name in GENERATORS}}


def find_spec(name: str | os.PathLike[str]) -> tuple[TaskSpec, Path | None]:
    """Return the task of a name or a JSON file, and the path of its training rows if a file gives one."""
    if isinstance(name, os.PathLike) or (isinstance(name, str) and name.endswith(".json")):
        return read_spec_file(file_path("name", name))
    if isinstance(name, str) and name.startswith(PREFIX):
        return synthetic(name), None
    known = task_specs()
    if not isinstance(name, str) or name not in known:
        other = "give a JSON file, or make one of your own rows with ld.Task.from_frame"
        raise InputError(f"there is no task {shown(name)}: choose among {', '.join(known)}, {other}.")
    return known[name], None


def read_spec_file(path: Path) -> tuple[TaskSpec, Path | None]:
    """Read the task that a JSON file defines, and the path of its training rows if given.

    Raises InputError for a file that cannot be read, is not such JSON, or lacks template or options.
    """
    task = f"the task {str(path)!r}"
    try:
        entry = parse_json(read_bytes(path).decode())
        if not isinstance(entry, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError as error:
        raise InputError(f"there is no file {str(path)!r}: check the path of the task's JSON.") from error
    except (OSError, ValueError) as error:  # malformed, or not UTF-8
        raise InputError(f"{task} cannot be read as JSON in UTF-8 ({error}): describe it with {_KEYS}.") from error
    if unknown := [key for key in entry if key not in JSON_KEYS]:
        raise InputError(f"{task} has the unknown key {unknown[0]!r}: the keys are {_KEYS}.")
    templates = entry.get("templates", {"default": entry.get("template")})
    if not (isinstance(templates, dict) and templates and all(isinstance(t, str) for t in templates.values())):
        raise InputError(f"{task} has no template: give one as text under 'template'.")
    for key in ("name", "label", "license", "data", "train"):
        if not isinstance(entry.get(key, ""), str):
            raise InputError(f"{task} has {key}={entry[key]!r:.40}: it must be text.")
    if (limit := entry.get("limit")) is not None:
        whole_number(f"{task}: limit", limit, 1)
    data, train = (path.parent / entry[key] if key in entry else None for key in ("data", "train"))
    name, label, license = entry.get("name", path.stem), entry.get("label", "label"), entry.get("license", "unknown")
    return custom_spec(name, templates, entry.get("options", []), label, license, data, limit), train
