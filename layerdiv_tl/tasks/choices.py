"""Rows that bring their own options: a JSONL file with `prompt`, `options` and `label`, and lm-eval's tasks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._checks import shown, whole_number
from ..errors import InputError
from .lm_eval_tasks import PREFIX, lm_eval_rows
from .readers import Row, open_rows
from .specs import PAPER_ROWS


def has_choices(name: Any) -> bool:
    """Whether a task's name is that of rows with options of their own."""
    return isinstance(name, str | os.PathLike) and (str(name).startswith(PREFIX) or str(name).endswith(".jsonl"))


def choice_fields(name: str, data: Any, limit: int | None, template: Any, shots: int, train: Any) -> dict[str, Any]:
    """The fields of the `Task` of `lm_eval/…` or of a JSONL file.

    Options are scored as they are written, leading space included; a label is an option's number from 0, or its text.
    Rows with another number of options than most have are dropped. Raises InputError for rows that are missing or
    malformed, and for a template, shots or `train`.
    """
    if template is not None or shots or train is not None:
        raise InputError(f"{name} brings its prompts: leave template=, shots= and train= out.")
    of_lm_eval = name.startswith(PREFIX) and not name.endswith(".jsonl")
    limit = (PAPER_ROWS if of_lm_eval else None) if limit is None else whole_number("limit", limit, 1)
    if of_lm_eval:
        rows, source = lm_eval_rows(name, data, limit)
        given = [Row(row, f"row {number} of {name}") for number, row in enumerate(rows, start=1)]
    else:
        if data is not None and not (
            isinstance(data, str | os.PathLike) and os.path.isdir(data)
        ):  # a folder is that of other tasks of a study
            raise InputError(f"{shown(name)} holds its rows itself: leave data= out.")
        read = open_rows(name, ())
        given, source = list(read.rows[:limit]), read.source
    checked = [_checked(row) for row in given]
    count = Counter(len(options) for _, options, _ in checked).most_common(1)[0][0]
    prompts, options, labels = zip(*(row for row in checked if len(row[1]) == count), strict=True)
    return {
        "name": name if of_lm_eval else Path(name).stem,
        "prompts": prompts,
        "options": options[0] if len(set(options)) == 1 else options,
        "labels": np.array(labels, dtype=np.int64),
        "texts": prompts,
        "template": "lm-eval's own" if of_lm_eval else "prompts as they are",
        "source": source,
        "license": "unknown",
        "dropped": len(checked) - len(prompts),
    }


def _checked(row: Row) -> tuple[str, tuple[str, ...], int]:
    prompt, options, label = row["prompt"], row["options"], row["label"]
    if not isinstance(prompt, str) or not prompt:
        raise InputError(f"{row.where}: prompt={shown(prompt)} must be a text.")
    texts = (
        isinstance(options, Sequence)
        and not isinstance(options, str)
        and all(isinstance(o, str) and o for o in options)
    )
    if not texts or len(set(options)) < max(2, len(options)):
        raise InputError(f"{row.where}: options={shown(options)} must be a list of at least two texts that differ.")
    words = [option.strip() for option in options]
    if isinstance(label, str) and (label in options or words.count(label.strip()) == 1):
        label = list(options).index(label) if label in options else words.index(label.strip())
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(options):
        raise InputError(f"{row.where}: label={shown(label)} must be the number of an option from 0, or its text.")
    return prompt, tuple(options), label
