"""How rows become prompts: templates, options, and which option is the gold one."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from .._checks import shown, text
from ..errors import InputError
from .readers import Row, Rows


@dataclass(frozen=True, eq=False)
class Template:
    """A format string taken to pieces.

    `{answer}`, where a model answers, may only stand at the end; the prompt stops before it. The one space that
    the template has in front of it belongs to the options (tokenizers join a space to the word after it); after
    anything else, a line break or `=`, the options have no space. Without `{answer}` a template is read as if
    ` {answer}` followed, or `{answer}` where it ends in a space or a line break. Everything else goes in as it is, so
    a prompt and its option together are the template with its fields and the option filled in.

    >>> form = Template.parse("Review: {text}\\nSentiment: {answer}")
    >>> form.fill({"text": "Fine."}), form.lead, form.fields
    (('Review: Fine.\\nSentiment:', (8, 13)), ' ', ('text',))
    """

    text: str
    pieces: tuple[tuple[str, str | None], ...]
    lead: str

    @classmethod
    def parse(cls, text: str) -> Template:
        """Raises InputError for what is no format string, or has more than plain fields."""
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise InputError(
                f"the template {shown(text)} is not a format string ({error}): a brace is {{{{."
            ) from error
        pieces = []
        for literal, name, form, conversion in parsed:
            if form or conversion:
                raise InputError(f"the template {shown(text)} formats {{{name}}}: use the plain field {{{name}}}.")
            pieces.append((literal, name))
        answers = [name for _, name in pieces].count("answer")
        if answers > 1 or (answers and pieces[-1][1] != "answer"):
            raise InputError(f"the template {shown(text)} must have {{answer}} once, as its end.")
        if answers:
            pieces[-1] = (pieces[-1][0], None)
        tail = pieces[-1][0] if pieces and pieces[-1][1] is None else ""
        lead = " " if tail.endswith(" ") or not (answers or tail.endswith("\n")) else ""
        return cls(text, tuple(pieces), lead)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names it holds, without the answer, in their order."""
        return tuple(dict.fromkeys(name for _, name in self.pieces if name is not None))

    def fill(self, values: Mapping[str, str]) -> tuple[str, tuple[int, int]]:
        """The prompt of one row, and where in it the longest field stands (its start and end)."""
        filled, passage = "", (0, 0)
        for literal, name in self.pieces:
            filled += literal
            start = len(filled)
            if name is not None:
                filled += values[name]
            passage = max(passage, (start, len(filled)), key=lambda span: span[1] - span[0])
        # Only the template's own space is the options': the last of a text is the text's.
        last, name = self.pieces[-1] if self.pieces else ("", None)
        if self.lead and name is None and last.endswith(" "):
            filled = filled[:-1]
        return filled, passage


def as_it_is(row: Row) -> Row:
    """Every column is a field."""
    return row


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a task is before it has rows.

    name, about, license
        What it is called, one line on what it asks, and the license of its rows.
    templates
        Format strings by name; the first is the default. `{answer}` is where the model answers.
    options
        The K answers in the order of the labels, without leading space.
    rows
        `rows(split, count)`: where rows come from when the user gives none; split is "test" or "train",
        count how many are wanted (a generator needs it, a reader may give more).
    label
        The column that tells the gold option; no template can read it.
    reads
        A row with the columns that the templates and the label want; None drops the row, which is counted.
    text
        The fields that make up a row's own text; by default those of the template in use.
    files
        How the task's file is called in a folder of data.
    limit
        How many rows are used unless the user says otherwise; None for all.
    split
        What a data set's held-out split is called.
    source
        Where its rows are fetched from; empty for a task that brings them.
    """

    name: str
    about: str
    templates: Mapping[str, str]
    options: tuple[str, ...]
    rows: Callable[[str, int | None], Rows]
    license: str
    label: str = "label"
    reads: Callable[[Row], Row | None] = as_it_is
    text: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    limit: int | None = None
    split: str = "test"
    source: str = ""


@dataclass(frozen=True, eq=False)
class Rendered:
    """Rows that have become prompts; the fields are those of `Task`."""

    prompts: tuple[str, ...]
    options: tuple[str, ...]
    labels: Int[np.ndarray, " example"]
    texts: tuple[str, ...]
    passages: Int[np.ndarray, "example 2"]
    template: str
    dropped: int


def render(recipe: Recipe, rows: Rows, template: str | None = None, limit: int | None = None) -> Rendered:
    """The first `limit` usable rows as prompts.

    Raises InputError for a template that does not fit, a missing column or cell, a label that is none of
    the options, and where no row is usable.
    """
    form = Template.parse(_chosen(recipe, template))
    prompts: list[str] = []
    labels: list[int] = []
    texts: list[str] = []
    passages: list[tuple[int, int]] = []
    dropped = 0
    for raw in rows.rows:
        if len(prompts) == limit:
            break
        row = recipe.reads(raw)
        if row is None:
            dropped += 1
            continue
        if not prompts:
            _check_fields(form, recipe, row)
        cells = {name: _cell(row, name) for name in (*form.fields, *recipe.text)}
        prompt, passage = form.fill(cells)
        prompts.append(prompt)
        passages.append(passage)
        texts.append("\n".join(cells[name] for name in recipe.text or form.fields))
        labels.append(_gold(row, recipe))
    if not prompts:
        raise InputError(
            f"none of the {dropped} rows of {rows.source} fits {recipe.name} ({recipe.about}): give others."
        )
    as_written = any(option.startswith(" ") for option in recipe.options)
    options = recipe.options if as_written else tuple(form.lead + option for option in recipe.options)
    return Rendered(
        tuple(prompts),
        options,
        np.array(labels, dtype=np.int64),
        tuple(texts),
        np.array(passages, dtype=np.int64),
        form.text,
        dropped,
    )


def demonstrations(pool: Rendered, shots: int, seed: int, taken: Sequence[str]) -> str:
    """`shots` solved examples in front of every prompt, drawn from other rows with a fixed seed.

    Classes take turns, in an order drawn with the rest, so that they are as equal in number as can be;
    no prompt in `taken` is shown. Raises InputError where there are too few rows.
    """
    rng = np.random.default_rng(seed)
    asked = set(taken)
    by_class: list[list[int]] = [[] for _ in pool.options]
    for row in rng.permutation(len(pool.prompts)):
        if pool.prompts[row] not in asked:
            by_class[pool.labels[row]].append(int(row))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*(by_class[k] for k in rng.permutation(len(by_class)))))
    chosen = list(itertools.islice((row for row in turns if row is not None), shots))
    if len(chosen) < shots:
        raise InputError(
            f"shots={shots}, but the training rows hold only {len(chosen)} that are not asked: use fewer shots."
        )
    return "".join(
        f"{pool.prompts[row]}{pool.options[pool.labels[row]]}\n\n"
        for row in rng.permutation(np.array(chosen, dtype=int))
    )


def _chosen(recipe: Recipe, template: str | None) -> str:
    """The format string a user means: the default, one by name, or the string itself."""
    if template is None:
        return next(iter(recipe.templates.values()))
    text("template", template)
    return recipe.templates.get(template, template)


def _check_fields(form: Template, recipe: Recipe, row: Row) -> None:
    have = [name for name, value in row.items() if name != recipe.label and not isinstance(value, Mapping | list)]
    # A column that the task's own template lacks is a fault of the rows, and said where it is read.
    known = form.text in recipe.templates.values() or set(form.fields) <= set(have)
    if form.fields and known and recipe.label not in form.fields:
        return
    fields = ", ".join(f"{{{name}}}" for name in have)
    wanted = f"the field {fields}" if len(have) == 1 else f"some of the fields {fields}"
    names = ", ".join(map(repr, recipe.templates))
    raise InputError(
        f"the template {shown(form.text)} does not fit {recipe.name}: it must hold {wanted} and no other, or be one of "
        f"{recipe.name}'s own ({names})."
    )


def _cell(row: Row, name: str) -> str:
    value = row[name]
    # NaN, which pandas writes for a missing cell, is the one value that differs from itself.
    if value is None or value != value:
        raise InputError(f"{row.where} has nothing in column {name!r}: fill it in, or leave the row out.")
    return str(value)


def _gold(row: Row, recipe: Recipe) -> int:
    index = option_index(row[recipe.label], recipe.options)
    if index is None:
        plain = [option.strip() for option in recipe.options]
        numbered = plain if _are_numbers(plain) else [f"{number} {option}" for number, option in enumerate(plain)]
        raise InputError(
            f"{row.where}: the {recipe.label} {row[recipe.label]!r:.40} is none of the options "
            f"({', '.join(numbered)}): correct it, or leave the row out."
        )
    return index


def option_index(label: Any, options: Sequence[str]) -> int | None:
    """Which option a label means: its text (in any case, where that is unique), or its number from 0.

    Where the options are numbers themselves, only their text counts: 1 is the option "1".

    >>> option_index("yes", ["No", "Yes"]), option_index(1, ["No", "Yes"]), option_index(True, ["No", "Yes"])
    (1, 1, 1)
    >>> option_index(1, ["1", "2"]), option_index(2, ["No", "Yes"])
    (0, None)
    """
    plain = [option.strip() for option in options]
    said = str(label).strip()
    if said in plain:
        return plain.index(said)
    folded = [option.casefold() for option in plain]
    if folded.count(said.casefold()) == 1:
        return folded.index(said.casefold())
    if _are_numbers(plain):
        return None
    if len(plain) == 2 and said in ("False", "True", "false", "true"):
        return int(said.casefold() == "true")
    try:
        number = float(said)  # pandas writes 1.0 for 1 where another cell of the column is missing
    except ValueError:
        return None
    return int(number) if number.is_integer() and 0 <= number < len(plain) else None


def _are_numbers(options: Sequence[str]) -> bool:
    return all(option.lstrip("-").isdecimal() for option in options)
