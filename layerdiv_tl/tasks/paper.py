"""The paper's eight tasks: templates and options of its Table 3, splits of its Section 5, licenses of Table 2.

`paper_tasks.json` has them. The template `table3` is the one the paper prints, the spaces around its line breaks
included; the others are for prompt sensitivity, after promptsource (Bach et al., 2022), and keep the options. What the
paper leaves open is decided here:

- `arc` is ARC-Easy, and only its rows with exactly four options, since the options are A B C D; labels 1-4
  are renamed A-D by position. `Task.dropped` counts the others. ARC-Challenge is a task of its own.
- ARC's `{options}` are lines `A: …` (`table3`), or promptsource's bulleted list (`promptsource`).
- MNLI's `{options}` is `Always, Sometimes, or Never true?`; its split is validation_matched.
- BoolQ's passage has no title in front of it; `{title}` is a field for who wants it.
- Texts go in as they are, the trailing spaces of SST-2 and MNLI included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from ..errors import InputError
from .readers import Row, TaskData, load_from_hub
from .templates import TaskSpec

LETTERS = ("A", "B", "C", "D")
DEFAULT_ROWS = 2000  # of each task, as in the paper


def _arc(row: Row) -> Row | None:
    """A four-option row with its options written out, its gold label a letter; other rows are dropped."""
    choices: Any = row["choices"]
    try:
        if isinstance(choices, str):  # a CSV file has only text
            choices = json.loads(choices)
        texts, labels = list(map(str, choices["text"])), list(map(str, choices["label"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{row.where}: choices must be an object with the lists text and label, not {row['choices']!r:.60}: "
            "in a CSV file write it as JSON."
        ) from error
    if len(texts) != len(labels):
        raise InputError(f"{row.where} has {len(texts)} choices and {len(labels)} labels: correct the row.")
    if len(texts) != len(LETTERS):
        return None
    gold = str(row["answerKey"])
    if gold not in labels:
        raise InputError(f"{row.where}: the answerKey {gold!r} is none of its labels {labels}: correct the row.")
    lines = [f"{letter}: {text}" for letter, text in zip(LETTERS, texts, strict=True)]
    return row.with_columns(
        text=row["question"],
        options="\n".join(lines),
        bullets="\n".join(f"- {line}" for line in lines),
        answerKey=LETTERS[labels.index(gold)],
    )


def _mnli(row: Row) -> Row:
    return row.with_columns(text1=row["premise"], text2=row["hypothesis"], options="Always, Sometimes, or Never true?")


# From the columns of the Hugging Face data sets to the fields of Table 3, where they differ.
PREPROCESS: Mapping[str, Callable[[Row], Row | None]] = {
    "arc": _arc,
    "arc_challenge": _arc,
    "mnli": _mnli,
    "rte": lambda row: row.with_columns(text1=row["sentence1"], text2=row["sentence2"]),
    "sst2": lambda row: row.with_columns(text=row["sentence"]),
}


def _spec(name: str, entry: Mapping[str, Any]) -> TaskSpec:
    path, config, held_out = entry["hub"]

    def load_rows(split: str, count: int | None) -> TaskData:
        return load_from_hub(path, config, "train" if split == "train" else held_out, name)

    return TaskSpec(
        name=name,
        description=entry["description"],
        templates=entry["templates"],
        options=tuple(entry["options"]),
        load_rows=load_rows,
        license=entry["license"],
        label_column=entry.get("label_column", "label"),
        preprocess=PREPROCESS.get(name, lambda row: row),
        text_fields=tuple(entry["text_fields"]),
        file_names=(name, *entry.get("other_file_names", ())),
        limit=DEFAULT_ROWS,
        split=held_out,
        source=" ".join(filter(None, ["Hugging Face", path, config, held_out])),
    )


_ENTRIES = json.loads(resources.files(__package__).joinpath("paper_tasks.json").read_text(encoding="utf-8"))
PAPER_TASKS: Mapping[str, TaskSpec] = {name: _spec(name, entry) for name, entry in _ENTRIES.items()}
EIGHT_TASKS = tuple(name for name in PAPER_TASKS if name != "arc_challenge")
