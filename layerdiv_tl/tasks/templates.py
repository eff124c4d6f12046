"""Render rows as prompts: templates, options, and the gold option."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._checks import shown
from ..errors import InputError
from .rows import Row, Rows


def split_answer(template: str) -> tuple[str, str]:
    """Return a template up to the answer, and the space that its options begin with.

    `{answer}`, where a model answers, may only stand at the end; the prompt stops before it. A single space before it
    belongs to the options (tokenizers join a space to the next word); after anything else, e.g. a line break or `=`,
    the options have no space. A template without `{answer}` is read as if ` {answer}` followed, or `{answer}` if it
    ends in a space or a line break. So a prompt and its option together are the template with its fields and the option
    filled in. Raises InputError for an answer that is not at the end.

    >>> split_answer("Review: {text} Sentiment: {answer}"), split_answer("{sum}={answer}")
    (('Review: {text} Sentiment:', ' '), ('{sum}=', ''))
    """
    text, found, rest = template.partition("{answer}")
    if rest:
        raise InputError(f"the template {shown(template)} must have {{answer}} once, as its end.")
    if not found and not text.endswith((" ", "\n")):
        text += " "
    return text.removesuffix(" "), " " if text.endswith(" ") else ""


def fields_of(text: str) -> list[str]:
    """Return the names of a format string's fields in order; str.format reads `a.b` as an attribute of `a`."""
    names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    return [name.partition(".")[0].partition("[")[0] for name in names]


@dataclass(frozen=True, eq=False)
class TaskSpec:
    """The definition of a task, before it has rows.

    Attributes:
        name, license: Its name, and the license of its rows.
        templates: Format strings by name; the first is the default. `{answer}` is where the model answers.
        options: The K answers in the order of the labels, without leading space; or the name of the column that holds a
            list of each row's own, which are used unchanged.
        load_rows: `load_rows(count)`: rows for a user who gives none; count is the number wanted (a generator needs it,
            a reader may return more).
        label_column: The column of the gold option; no template can read it, nor the `hidden` columns.
        preprocess: Maps a row to one with the columns that the templates and the label need; None drops the row, which
            is counted.
        file_names: Names of the task's file in a folder of data.
        limit: Default number of rows; None for all.
    """

    name: str
    templates: Mapping[str, str]
    options: tuple[str, ...] | str
    license: str = "unknown"
    load_rows: Callable[[int | None], Rows] = lambda count: Rows([], "the task")
    label_column: str = "label"
    hidden: tuple[str, ...] = ()
    preprocess: Callable[[Row], Row | None] = lambda row: row
    file_names: tuple[str, ...] = ()
    limit: int | None = None


def render(spec: TaskSpec, data: Rows, template: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """Render the first `limit` usable rows as prompts: the fields of a `Task`.

    Rows with their own options are dropped if the number of options differs from most. Raises InputError for a template
    that does not fit, a missing cell, a label that is none of the options, and where no row is usable.
    """
    if template is None:
        template = next(iter(spec.templates.values()))
    template = spec.templates.get(template, template)
    text, space = split_answer(template)
    usable, dropped = list[tuple[int, Row, tuple[str, ...]]](), 0
    for number, raw in enumerate(data.rows, start=1):
        if limit is not None and len(usable) >= limit:
            break
        row = spec.preprocess(raw)
        if row is None:
            dropped += 1
        else:
            usable.append((number, row, _options_of(number, row, spec.options, space)))
    if not usable:
        raise InputError(f"none of {dropped} rows of {data.source} fits {spec.name}: give others.")
    fields = fields_of(text)
    _check_fields(fields, template, spec, data.source, usable[0][1])
    size = Counter(len(options) for _, _, options in usable).most_common(1)[0][0]
    kept = [row for row in usable if len(row[2]) == size]
    labels, prompts = [], []
    for number, row, options in kept:
        gold = row[spec.label_column]
        label = _own_label(gold, options) if isinstance(spec.options, str) else option_index(gold, options)
        if label is None:
            raise InputError(
                f"row {number} of {data.source}: the {spec.label_column} {gold!r:.40} is none of {options}: "
                "correct it, or leave the row out."
            )
        prompt = text.format(**_cells(number, row, fields))
        if not prompt:
            raise InputError(f"row {number} of {data.source} has an empty prompt: fill it in, or leave the row out.")
        labels.append(label)
        prompts.append(prompt)
    of_rows = tuple(options for _, _, options in kept)
    return {
        "prompts": tuple(prompts),
        "options": of_rows[0] if len(set(of_rows)) == 1 else of_rows,
        "labels": np.array(labels, dtype=np.int64),
        "template": template,
        "dropped": dropped + len(usable) - len(kept),
    }


def _check_fields(fields: Sequence[str], template: str, spec: TaskSpec, source: str, row: Row) -> None:
    """Raise InputError for a template that reads no column, a missing one, or the answer."""
    if not fields or set(fields) - set(row):
        columns, own = ", ".join(map(str, row)), ", ".join(spec.templates)
        raise InputError(
            f"the template {shown(template)} has the fields {fields}, but the rows of {source} have the columns "
            f"{columns}: give a format string over them, or one of {spec.name}'s own templates ({own})."
        )
    if leaks := {spec.label_column, spec.options, *spec.hidden} & set(fields):
        raise InputError(f"the template {shown(template)} shows the answer, {{{leaks.pop()}}}: leave it out.")


def _cells(number: int, row: Row, fields: Sequence[str]) -> dict[str, str]:
    """Return the texts of a row's fields. Raises InputError for a missing cell."""
    for name in fields:
        # NaN, which pandas writes for a missing cell, is the one value that differs from itself.
        if row[name] is None or row[name] != row[name]:
            raise InputError(f"row {number} has nothing in column {name!r}: fill it in, or leave the row out.")
    return {name: str(row[name]) for name in fields}


def _options_of(number: int, row: Row, options: tuple[str, ...] | str, space: str) -> tuple[str, ...]:
    """Return the options that all rows share, with the template's space, or a row's own from its column."""
    if not isinstance(options, str):
        has_space = any(option.startswith(" ") for option in options)
        return options if has_space else tuple(space + option for option in options)
    own = row[options]
    own = own.tolist() if hasattr(own, "tolist") else own
    is_list = isinstance(own, list | tuple) and all(isinstance(option, str) and option for option in own)
    if not is_list or len(set(own)) < max(2, len(own)):
        raise InputError(f"row {number} has the options {shown(own)}: give at least two texts that differ.")
    return tuple(own)


def _own_label(label: Any, options: tuple[str, ...]) -> int | None:
    """Accept an index from 0, whatever the options are, or the text of an option."""
    words = [option.strip() for option in options]
    if isinstance(label, str) and label in options:
        return options.index(label)
    if isinstance(label, str) and words.count(label.strip()) == 1:
        return words.index(label.strip())
    is_index = isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(options)
    return label if is_index else None


def option_index(label: Any, options: Sequence[str]) -> int | None:
    """Find the option that a label means: its text, or its index from 0.

    Where the options are numbers themselves, only their text matches: 1 is the option "1".

    >>> option_index("Yes", ["No", "Yes"]), option_index(1, ["No", "Yes"]), option_index(2, ["No", "Yes"])
    (1, 1, None)
    >>> option_index(1, ["1", "2"])
    0
    """
    words, label = [option.strip() for option in options], str(label).strip()
    if label in words:
        return words.index(label)
    if all(word.lstrip("-").isdecimal() for word in words):
        return None
    try:
        number = float(label)  # pandas writes 1.0 for 1 where another cell of the column is missing
    except ValueError:
        return None
    return int(number) if number.is_integer() and 0 <= number < len(words) else None
