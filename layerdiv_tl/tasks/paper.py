"""The paper's eight tasks: templates and options of its Table 3, splits of its Section 5, licenses of Table 2.

`table3` is each task's template as the paper prints it, the spaces around its line breaks included; the
others are for prompt sensitivity, after promptsource (Bach et al., 2022), and keep the options. What the
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import InputError
from .readers import Row, Rows, hub_rows
from .templates import Recipe, as_it_is

LETTERS = ("A", "B", "C", "D")
FIRST = 2000  # rows of each task, as in the paper


def _text(row: Row) -> Row:
    return row.plus(text=row["sentence"])


def _inference(row: Row) -> Row:
    return row.plus(text1=row["sentence1"], text2=row["sentence2"])


def _mnli(row: Row) -> Row:
    return row.plus(text1=row["premise"], text2=row["hypothesis"], options="Always, Sometimes, or Never true?")


def _arc(row: Row) -> Row | None:
    """A four-option row with its options written out, its gold label a letter; other rows are dropped."""
    texts, labels = _choices(row)
    if len(texts) != len(LETTERS):
        return None
    gold = str(row["answerKey"])
    if gold not in labels:
        raise InputError(f"{row.where}: the answerKey {gold!r} is none of its labels {labels}: correct the row.")
    lines = [f"{letter}: {text}" for letter, text in zip(LETTERS, texts, strict=True)]
    return row.plus(
        text=row["question"],
        options="\n".join(lines),
        bullets="\n".join(f"- {line}" for line in lines),
        answerKey=LETTERS[labels.index(gold)],
    )


def _choices(row: Row) -> tuple[list[str], list[str]]:
    """Texts and labels of a row's choices: a struct, or JSON where the file (CSV) has only text."""
    value: Any = row["choices"]
    try:
        if isinstance(value, str):
            value = json.loads(value)
        texts, labels = list(map(str, value["text"])), list(map(str, value["label"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{row.where}: choices must be an object with the lists text and label, not {row['choices']!r:.60}: "
            "in a CSV file write it as JSON."
        ) from error
    if len(texts) != len(labels):
        raise InputError(f"{row.where} has {len(texts)} choices and {len(labels)} labels: correct the row.")
    return texts, labels


def _recipe(
    name: str,
    about: str,
    hub: tuple[str, str | None, str],
    license: str,
    options: Sequence[str],
    templates: Mapping[str, str],
    text: tuple[str, ...],
    reads: Callable[[Row], Row | None] = as_it_is,
    label: str = "label",
    files: tuple[str, ...] = (),
) -> Recipe:
    path, config, held_out = hub

    def rows(split: str, count: int | None) -> Rows:
        return hub_rows(path, config, "train" if split == "train" else held_out, name)

    return Recipe(
        name=name,
        about=about,
        templates=templates,
        options=tuple(options),
        rows=rows,
        license=license,
        label=label,
        reads=reads,
        text=text,
        files=(name, *files),
        limit=FIRST,
        split=held_out,
        source=" ".join(filter(None, ["Hugging Face", path, config, held_out])),
    )


_ARC_TEMPLATES = {
    "table3": "Pick the most correct option to answer the following question.\n\n{text} \n\n{options} {answer}",
    "promptsource": "Pick the most correct option to answer the following question.\n\n{text}\n\nOptions:\n{bullets} "
    "{answer}",
}

_ALL = [
    _recipe(
        "ag_news",
        "the topic of a news article",
        ("fancyzhx/ag_news", None, "test"),
        "CC BY 4.0",
        ["World", "Sports", "Business", "Science"],
        {
            "table3": "What label best describes this news article?\n{text} {answer}",
            "classify": "{text}\nWhat label best describes this news article? {answer}",
        },
        text=("text",),
    ),
    _recipe(
        "arc",
        "grade-school science, four options (ARC-Easy)",
        ("allenai/ai2_arc", "ARC-Easy", "validation"),
        "CC BY-SA 4.0",
        LETTERS,
        _ARC_TEMPLATES,
        text=("text", "options"),
        reads=_arc,
        label="answerKey",
        files=("arc_easy",),
    ),
    _recipe(
        "arc_challenge",
        "grade-school science, four options, the hard part (ARC-Challenge)",
        ("allenai/ai2_arc", "ARC-Challenge", "validation"),
        "CC BY-SA 4.0",
        LETTERS,
        _ARC_TEMPLATES,
        text=("text", "options"),
        reads=_arc,
        label="answerKey",
    ),
    _recipe(
        "boolq",
        "a yes/no question about a passage",
        ("google/boolq", None, "validation"),
        "CC BY-SA 3.0",
        ["False", "True"],
        {
            "table3": "{passage}\n\nAfter reading this passage, I have a question: {question} True or False? {answer}",
            "exam": "{passage}\nBased on the previous passage, {question}? True or False? {answer}",
        },
        text=("passage", "question"),
        label="answer",
    ),
    _recipe(
        "mnli",
        "does a sentence follow from another: always, sometimes, never",
        ("nyu-mll/glue", "mnli", "validation_matched"),
        "CC BY 4.0",
        ["Always", "Sometimes", "Never"],
        {
            "table3": 'Suppose it\'s true that {text1} Then, is "{text2}" {options} {answer}',
            "question": '{text1}\nQuestion: is "{text2}" {options} Answer: {answer}',
        },
        text=("text1", "text2"),
        reads=_mnli,
    ),
    _recipe(
        "qqp",
        "do two questions ask the same",
        ("nyu-mll/glue", "qqp", "validation"),
        "Apache 2.0",
        ["no", "yes"],
        {
            "table3": 'I\'m an administrator on the website Quora. There are two posts, one that asks "{question1}" '
            'and another that asks "{question2}" I can merge questions if they are asking the same thing. Can I merge '
            "these two questions? {answer}",
            "same_thing": 'Are the questions "{question1}" and "{question2}" asking the same thing? {answer}',
        },
        text=("question1", "question2"),
    ),
    _recipe(
        "rte",
        "does a sentence follow from a text",
        ("nyu-mll/glue", "rte", "validation"),
        "unknown",
        ["Yes", "No"],
        {
            "table3": "{text1} Using only the above description and what you know about the world, is {text2} "
            "definitely correct? Yes or No? {answer}",
            "follow": 'Given that {text1} Does it follow that "{text2}"? Yes or No? {answer}',
        },
        text=("text1", "text2"),
        reads=_inference,
    ),
    _recipe(
        "sst2",
        "the sentiment of a film review's sentence",
        ("nyu-mll/glue", "sst2", "validation"),
        "unknown",
        ["negative", "positive"],
        {
            "table3": "{text}\nQuestion: Was that sentence positive or negative? Answer: {answer}",
            "review": 'I\'m reading a review that says "{text}" Do you think the review is positive or negative? '
            "{answer}",
        },
        text=("text",),
        reads=_text,
    ),
    _recipe(
        "wic",
        "does a word mean the same in two sentences",
        ("aps/super_glue", "wic", "validation"),
        "CC BY-NC-SA 3.0",
        ["No", "Yes"],
        {
            "table3": 'Does the word "{word}" have the same meaning in these two sentences? Yes, No?\n {sentence1}\n '
            "{sentence2} {answer}",
            "promptsource": 'Does the word "{word}" have the same meaning in these two sentences? Yes, No?\n'
            "{sentence1}\n{sentence2} {answer}",
        },
        text=("word", "sentence1", "sentence2"),
    ),
]

PAPER: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
EIGHT = tuple(name for name in PAPER if name != "arc_challenge")
