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


@dataclass(frozen=True, eq=False)
class Template:
    """A parsed format string of a prompt.

    `{answer}`, where a model answers, may only stand at the end; the prompt stops before it. A single space before it
    in the template belongs to the options (tokenizers join a space to the next word); after anything else, e.g. a line
    break or `=`, the options have no space. A template without `{answer}` is read as if ` {answer}` followed, or
    `{answer}` if it ends in a space or a line break. All other text is used unchanged, so a prompt and its option
    together are the template with its fields and the option filled in.

    >>> template = Template.parse("Review: {text}\\nSentiment: {answer}")
    >>> template.fill({"text": "Fine."}), template.option_prefix, template.fields
    (('Review: Fine.\\nSentiment:', (8, 13)), ' ', ('text',))
    """

    text: str
    pieces: tuple[tuple[str, str | None], ...]
    option_prefix: str

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a template. Raises InputError for fields with a format, and for an answer that is not at the end."""
        parsed = list(string.Formatter().parse(text))
        if any(format_spec or conversion for _, _, format_spec, conversion in parsed):
            raise InputError(f"the template {shown(text)} formats a field: use plain fields, as in {{text}}.")
        pieces = [(literal, name) for literal, name, _, _ in parsed]
        answers = [name for _, name in pieces].count("answer")
        if answers > 1 or (answers and pieces[-1][1] != "answer"):
            raise InputError(f"the template {shown(text)} must have {{answer}} once, as its end.")
        literal = pieces.pop()[0] if answers or (pieces and pieces[-1][1] is None) else ""
        if not answers and not literal.endswith((" ", "\n")):
            literal += " "
        prefix = " " if literal.endswith(" ") else ""
        return cls(text, (*pieces, (literal.removesuffix(" "), None)), prefix)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields in order, without the answer."""
        return tuple(dict.fromkeys(name for _, name in self.pieces if name is not None))

    def fill(self, values: Mapping[str, str]) -> tuple[str, tuple[int, int]]:
        """Return the prompt of one row, and the span (start, end) of its longest field."""
        filled, passage = "", (0, 0)
        for literal, name in self.pieces:
            filled += literal
            start = len(filled)
            filled += "" if name is None else values[name]
            passage = max(passage, (start, len(filled)), key=lambda span: span[1] - span[0])
        return filled, passage


@dataclass(frozen=True, eq=False)
class TaskSpec:
    """The definition of a task, before it has rows.

    Attributes:
        name, description, license: Its name, one line on what it asks, and the license of its rows.
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
        split: The name of a data set's held-out split.
    """

    name: str
    description: str
    templates: Mapping[str, str]
    options: tuple[str, ...] | str
    license: str
    load_rows: Callable[[int | None], Rows] = lambda count: Rows([], "the task")
    label_column: str = "label"
    hidden: tuple[str, ...] = ()
    preprocess: Callable[[Row], Row | None] = lambda row: row
    file_names: tuple[str, ...] = ()
    limit: int | None = None
    split: str = "test"


def render(spec: TaskSpec, data: Rows, template: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """Render the first `limit` usable rows as prompts: the fields of a `Task`.

    Rows with their own options are dropped if the number of options differs from most. Raises InputError for a template
    that does not fit, a missing column or cell, a label that is none of the options, and where no row is usable.
    """
    if template is None:
        template = next(iter(spec.templates.values()))
    parsed = Template.parse(spec.templates.get(template, template))
    usable: dict[int, Row] = {}  # by their number in the data, from 1
    dropped = 0
    for number, raw in enumerate(data.rows, start=1):
        if len(usable) == limit:
            break
        row = spec.preprocess(raw)
        if row is None:
            dropped += 1
        else:
            usable[number] = row
    if not usable:
        raise InputError(f"none of {dropped} rows of {data.source} fits {spec.name} ({spec.description}): give others.")
    _check_columns(parsed, spec, data.source, next(iter(usable.values())))
    labels: dict[int, int | None]
    if isinstance(spec.options, str):
        each = {number: _own_options(number, row[spec.options]) for number, row in usable.items()}
        size = Counter(map(len, each.values())).most_common(1)[0][0]
        dropped += sum(len(own) != size for own in each.values())
        each = {number: own for number, own in each.items() if len(own) == size}
        usable = {number: usable[number] for number in each}
        labels = {number: _own_label(row[spec.label_column], each[number]) for number, row in usable.items()}
        distinct = tuple(dict.fromkeys(each.values()))
        options: Any = distinct[0] if len(distinct) == 1 else tuple(each.values())
    else:
        labels = {number: option_index(row[spec.label_column], spec.options) for number, row in usable.items()}
        has_space = any(option.startswith(" ") for option in spec.options)
        options = spec.options if has_space else tuple(parsed.option_prefix + option for option in spec.options)
    for number, label in labels.items():
        if label is None:
            given, among = usable[number][spec.label_column], spec.options
            among = each[number] if isinstance(among, str) else among
            raise InputError(
                f"row {number} of {data.source}: the {spec.label_column} {given!r:.40} is none of the options {among}: "
                "correct it, or leave the row out."
            )
    filled = [parsed.fill(_cells(number, row, parsed.fields)) for number, row in usable.items()]
    prompts, passages = zip(*filled, strict=True)
    if not all(prompts):
        raise InputError(f"a row of {data.source} has an empty prompt: fill it in, or leave the row out.")
    return {
        "prompts": prompts,
        "options": options,
        "labels": np.array(list(labels.values()), dtype=np.int64),
        "passages": np.array(passages, dtype=np.int64),
        "template": parsed.text,
        "dropped": dropped,
    }


def _check_columns(template: Template, spec: TaskSpec, source: str, row: Row) -> None:
    """Raise InputError for a template that reads no column, a missing one, or the answer; and for missing labels."""
    columns = ", ".join(map(str, row))
    if not template.fields or set(template.fields) - set(row):
        named = f"names {', '.join(template.fields)}" if template.fields else "names no column"
        raise InputError(
            f"the template {shown(template.text)} {named}, but the rows of {source} have {columns}: give a format "
            f"string over them, or the name of one of {spec.name}'s own templates ({', '.join(spec.templates)})."
        )
    if leaks := {spec.label_column, spec.options, *spec.hidden} & set(template.fields):
        raise InputError(f"the template {shown(template.text)} shows the answer, {{{leaks.pop()}}}: leave it out.")
    for column in filter(lambda name: isinstance(name, str), (spec.label_column, spec.options)):
        if column not in row:
            raise InputError(f"the rows of {source} have no column {shown(column)}, but {columns}: name that column.")


def _cells(number: int, row: Row, fields: Sequence[str]) -> dict[str, str]:
    """Return the texts of a row's fields. Raises InputError for a missing cell."""
    for name in fields:
        # NaN, which pandas writes for a missing cell, is the one value that differs from itself.
        if row[name] is None or row[name] != row[name]:
            raise InputError(f"row {number} has nothing in column {name!r}: fill it in, or leave the row out.")
    return {name: str(row[name]) for name in fields}


def _own_options(number: int, options: Any) -> tuple[str, ...]:
    options = options.tolist() if hasattr(options, "tolist") else options
    is_list = isinstance(options, list | tuple) and all(isinstance(option, str) and option for option in options)
    if not is_list or len(set(options)) < max(2, len(options)):
        raise InputError(f"row {number} has the options {shown(options)}: give at least two texts that differ.")
    return tuple(options)


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
    """Find the option that a label means: its text (in any case, where that is unique), or its index from 0.

    Where the options are numbers themselves, only their text matches: 1 is the option "1".

    >>> option_index("yes", ["No", "Yes"]), option_index(1, ["No", "Yes"]), option_index(True, ["No", "Yes"])
    (1, 1, 1)
    >>> option_index(1, ["1", "2"]), option_index(2, ["No", "Yes"])
    (0, None)
    """
    words, label = [option.strip() for option in options], str(label).strip()
    if label in words:
        return words.index(label)
    folded = [word.casefold() for word in words]
    if folded.count(label.casefold()) == 1:
        return folded.index(label.casefold())
    if all(word.lstrip("-").isdecimal() for word in words):
        return None
    if len(words) == 2 and label in ("False", "True", "false", "true"):
        return int(label.casefold() == "true")
    try:
        number = float(label)  # pandas writes 1.0 for 1 where another cell of the column is missing
    except ValueError:
        return None
    return int(number) if number.is_integer() and 0 <= number < len(words) else None
