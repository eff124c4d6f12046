"""Definitions of tasks: this package's own, and the paper's eight.

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
from collections.abc import Mapping
from importlib import resources
from typing import Any

from .._checks import shown
from ..errors import InputError
from .rows import Row, Rows, hub_rows, sample_rows
from .synthetic import GENERATORS, synthetic
from .templates import TaskSpec

ARC_LETTERS = ("A", "B", "C", "D")
PAPER_ROWS = 2000  # of each task, as in the paper


def _packaged_spec(name: str, entry: Mapping[str, Any]) -> TaskSpec:
    """Build a task from an entry of `specs.json`; without `hub`, its rows are part of this package."""
    is_paper = "hub" in entry

    def load_rows(count: int | None) -> Rows:
        return hub_rows(name, *entry["hub"]) if is_paper else sample_rows(name)

    def preprocess(row: Row) -> Row | None:
        columns = {field: row[column] for field, column in entry.get("columns", {}).items()}
        row = {**row, **columns, **entry.get("constants", {})}
        return _four_options(row) if name.startswith("arc") else row

    return TaskSpec(
        name=name,
        templates=entry["templates"],
        options=tuple(entry["options"]),
        license=entry["license"],
        load_rows=load_rows,
        label_column=entry.get("label_column", "label"),
        preprocess=preprocess,
        file_names=(name, *entry.get("other_file_names", ())) if is_paper else (),
        limit=PAPER_ROWS if is_paper else None,
    )


def _four_options(row: Row) -> Row | None:
    """Write out the options of a four-option row of ARC and letter its gold label; other rows are dropped."""
    choices = row["choices"]
    if isinstance(choices, str):  # a CSV file holds only text
        choices = json.loads(choices)
    texts, labels = list(map(str, choices["text"])), list(map(str, choices["label"]))
    if len(texts) != len(ARC_LETTERS):
        return None
    gold = str(row["answerKey"])
    if len(labels) != len(texts) or gold not in labels:
        raise InputError(f"the answerKey {gold!r} has no place in {texts} with labels {labels}: correct it.")
    lines = [f"{letter}: {text}" for letter, text in zip(ARC_LETTERS, texts, strict=True)]
    written = {"options": "\n".join(lines), "bullets": "\n".join(f"- {line}" for line in lines)}
    return {**row, **written, "text": row["question"], "answerKey": ARC_LETTERS[labels.index(gold)]}


_ENTRIES = json.loads(resources.files(__package__).joinpath("specs.json").read_text(encoding="utf-8"))
PACKAGED_TASKS: Mapping[str, TaskSpec] = {name: _packaged_spec(name, entry) for name, entry in _ENTRIES.items()}
SAMPLE_TASKS = tuple(name for name, entry in _ENTRIES.items() if "hub" not in entry)


def find_spec(name: str) -> TaskSpec:
    """Return the task of a name. Raises InputError for an unknown one."""
    if str(name).partition(":")[0] in GENERATORS:
        return synthetic(name)
    if str(name) not in PACKAGED_TASKS:
        known = ", ".join((*PACKAGED_TASKS, *GENERATORS))
        raise InputError(f"there is no task {shown(name)}: choose among {known}, or make one with ld.Task.from_frame.")
    return PACKAGED_TASKS[name]
