"""Render rows as prompts: templates, options, and the gold option."""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._checks import shown, text
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
        """Parse a template. Raises InputError for anything but a format string with plain fields."""
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise InputError(f"template={shown(text)} is not a format string ({error}): a brace is {{{{.") from error
        pieces = []
        for literal, name, format_spec, conversion in parsed:
            if format_spec or conversion:
                raise InputError(f"the template {shown(text)} formats {{{name}}}: use the plain field {{{name}}}.")
            pieces.append((literal, name))
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
        load_rows: `load_rows(split, count)`: rows for a user who gives none, None where there are none; split is "test"
            or "train", count the number wanted (a generator needs it, a reader may return more).
        label_column: The column of the gold option; no template can read it.
        preprocess: Maps a row to one with the columns that the templates and the label need; None drops the row, which
            is counted.
        text_fields: The fields that make up a row's own text; by default those of the template in use.
        file_names: Names of the task's file in a folder of data.
        limit: Default number of rows; None for all.
        split, source: The name of a data set's held-out split; the place that rows are fetched from, empty for a task
            with its own.
    """

    name: str
    description: str
    templates: Mapping[str, str]
    options: tuple[str, ...] | str
    load_rows: Callable[[str, int | None], Rows | None]
    license: str
    label_column: str = "label"
    preprocess: Callable[[Row], Row | None] = lambda row: row
    text_fields: tuple[str, ...] = ()
    file_names: tuple[str, ...] = ()
    limit: int | None = None
    split: str = "test"
    source: str = ""

    def rows(self, split: str = "test", count: int | None = None) -> Rows:
        """Return the rows of a split. Raises InputError where there are none."""
        rows = self.load_rows(split, count)
        if rows is None:
            raise self.without_rows(split)
        return rows

    def without_rows(self, split: str) -> InputError:
        """Return the error of a task that lacks such rows."""
        training = "has no training rows to draw shots from: give a file of them as train="
        return InputError(f"{self.name} {training if split == 'train' else 'names no data: give the rows as data='}.")


def render(spec: TaskSpec, data: Rows, template: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """Render the first `limit` usable rows as prompts: the fields of a `Task`.

    Rows with their own options are dropped if the number of options differs from most. Raises InputError for a template
    that does not fit, a missing column or cell, a label that is none of the options, and where no row is usable.
    """
    if template is None:
        template = next(iter(spec.templates.values()))
    parsed = Template.parse(spec.templates.get(text("template", template), template))
    usable: list[Row] = []
    dropped = 0
    for raw in data.rows:
        if len(usable) == limit:
            break
        row = spec.preprocess(raw)
        if row is None:
            dropped += 1
        else:
            usable.append(row)
    if not usable:
        raise InputError(f"none of {dropped} rows of {data.source} fits {spec.name} ({spec.description}): give others.")
    _check_fields(parsed, spec, usable[0])
    options: Any = spec.options
    if isinstance(spec.options, str):
        each = [_own_options(row, spec.options) for row in usable]
        size = Counter(map(len, each)).most_common(1)[0][0]
        labels = [_own_label(row, spec.label_column, own) for row, own in zip(usable, each, strict=True)]
        kept = [i for i, own in enumerate(each) if len(own) == size]
        dropped += len(usable) - len(kept)
        usable, labels, each = [usable[i] for i in kept], [labels[i] for i in kept], [each[i] for i in kept]
        options = each[0] if len(set(each)) == 1 else tuple(each)
    else:
        labels = [_gold(row, spec.label_column, spec.options) for row in usable]
        if not any(option.startswith(" ") for option in options):
            options = tuple(parsed.option_prefix + option for option in options)
    cells = [{name: _cell(row, name) for name in (*parsed.fields, *spec.text_fields)} for row in usable]
    prompts, passages = zip(*map(parsed.fill, cells), strict=True)
    if isinstance(spec.options, str) and not all(prompts):
        raise InputError(f"{usable[prompts.index('')].where} has an empty prompt: fill it in, or leave the row out.")
    return {
        "prompts": prompts,
        "options": options,
        "labels": np.array(labels, dtype=np.int64),
        "texts": tuple("\n".join(row[name] for name in spec.text_fields or parsed.fields) for row in cells),
        "passages": np.array(passages, dtype=np.int64),
        "template": parsed.text,
        "dropped": dropped,
    }


def demonstrations(pool: dict[str, Any], shots: int, seed: int, excluded: Sequence[str]) -> str:
    """Render `shots` solved examples, drawn with a fixed seed, as a text to put before every prompt.

    Classes alternate, in an order drawn with the rest, so that they are as balanced as possible; prompts in `excluded`
    are not shown. Raises InputError where there are too few rows.
    """
    prompts, options, labels = pool["prompts"], pool["options"], pool["labels"]
    rng = np.random.default_rng(seed)
    by_class: list[list[int]] = [[] for _ in options]
    hidden = frozenset(excluded)
    for row in rng.permutation(len(prompts)):
        if prompts[row] not in hidden:
            by_class[labels[row]].append(int(row))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*(by_class[k] for k in rng.permutation(len(by_class)))))
    chosen = list(itertools.islice((row for row in turns if row is not None), shots))
    if len(chosen) < shots:
        raise InputError(f"shots={shots}, but only {len(chosen)} training rows are not asked: use fewer shots.")
    order = rng.permutation(np.array(chosen, dtype=int))
    return "".join(f"{prompts[row]}{options[labels[row]]}\n\n" for row in order)


def _check_fields(template: Template, spec: TaskSpec, row: Row) -> None:
    usable = [
        name for name, value in row.items() if name != spec.label_column and not isinstance(value, Mapping | list)
    ]
    # A column that the task's own template lacks is an error in the rows, and reported when they are read.
    known = template.text in spec.templates.values() or set(template.fields) <= set(usable)
    if template.fields and known and spec.label_column not in template.fields:
        return
    fields = ", ".join(f"{{{name}}}" for name in usable)
    wanted = f"the field {fields}" if len(usable) == 1 else f"some of the fields {fields}"
    raise InputError(
        f"the template {shown(template.text)} does not fit {spec.name}: it must hold {wanted} and no other, or be one "
        f"of {spec.name}'s own ({', '.join(map(repr, spec.templates))})."
    )


# For options that are columns, or lists.
OF_EACH_ROW = (
    "Options are words that all rows share. Where rows have their own, make a column of lists, "
    "table['options'] = table[['right', 'wrong']].to_numpy().tolist(), and give its name, options='options'."
)


def _cell(row: Row, name: str) -> str:
    value = row[name]
    # NaN, which pandas writes for a missing cell, is the one value that differs from itself.
    if value is None or value != value:
        raise InputError(f"{row.where} has nothing in column {name!r}: fill it in, or leave the row out.")
    return str(value)


def _own_options(row: Row, column: str) -> tuple[str, ...]:
    options = row[column].tolist() if hasattr(row[column], "tolist") else row[column]
    is_list = isinstance(options, list | tuple) and all(isinstance(option, str) and option for option in options)
    if not is_list or len(set(options)) < max(2, len(options)):
        raise InputError(f"{row.where}: {column}={shown(options)} must be a list of at least two texts that differ.")
    return tuple(options)


def _own_label(row: Row, column: str, options: tuple[str, ...]) -> int:
    """Accept an index from 0, whatever the options are, or the text of an option."""
    label, words = row[column], [option.strip() for option in options]
    if isinstance(label, str) and (label in options or words.count(label.strip()) == 1):
        return options.index(label) if label in options else words.index(label.strip())
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(options):
        raise InputError(f"{row.where}: {column}={shown(label)} must be the number of an option from 0, or its text.")
    return label


def _gold(row: Row, column: str, options: tuple[str, ...]) -> int:
    index = option_index(row[column], options)
    if index is None:
        words = [option.strip() for option in options]
        allowed = words if _are_numbers(words) else [f"{number} {word}" for number, word in enumerate(words)]
        raise InputError(
            f"{row.where}: the {column} {row[column]!r:.40} is none of the options ({', '.join(allowed)}): correct it, "
            f"or leave the row out.{f' {OF_EACH_ROW}' * any(word.strip('{}') in row for word in words)}"
        )
    return index


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
    if _are_numbers(words):
        return None
    if len(words) == 2 and label in ("False", "True", "false", "true"):
        return int(label.casefold() == "true")
    try:
        number = float(label)  # pandas writes 1.0 for 1 where another cell of the column is missing
    except ValueError:
        return None
    return int(number) if number.is_integer() and 0 <= number < len(words) else None


def _are_numbers(options: Sequence[str]) -> bool:
    return all(option.lstrip("-").isdecimal() for option in options)
