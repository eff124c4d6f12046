"""Task: prompts with one gold option each, and where its rows came from."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from ..results import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Task(Result):
    """Prompts, the answer tokens they share, and the gold one of each.

    prompts
        The rendered texts, ready for a model.
    options
        The K answers exactly as a model must write them, leading space included.
    labels
        `[example]`, the index of the gold option.
    texts
        The rows' own text without the template, for baselines and tables.
    name, template, source, licence
        What the task is called, how rows become prompts, where rows came from and under what licence.
    """

    name: str
    prompts: tuple[str, ...]
    options: tuple[str, ...]
    labels: Int[np.ndarray, " example"]
    texts: tuple[str, ...]
    template: str
    source: str
    licence: str

    def frame(self) -> pd.DataFrame:
        """One row per example: text, prompt, gold label and option."""
        import pandas as pd

        frame = pd.DataFrame({"text": self.texts, "prompt": self.prompts, "label": self.labels})
        frame["option"] = np.array(self.options)[self.labels]
        frame.attrs |= {"task": self.name, "source": self.source, "licence": self.licence}
        return frame

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        counts = np.bincount(self.labels, minlength=len(self.options))
        gold = ", ".join(f"{o!r} {c}" for o, c in zip(self.options, counts, strict=True))
        return f"Task({self.name}: {len(self)} rows, {gold}; {self.source})"


@dataclass(frozen=True)
class Authored:
    """A sample task whose rows are part of this package."""

    file: str
    template: str
    options: tuple[str, ...]


SAMPLES: Mapping[str, Authored] = {
    "sample/sentiment": Authored(
        "sentiment.jsonl",
        "Review: {text}\nSentiment:",
        (" negative", " positive"),
    ),
    "sample/topic": Authored(
        "topic.jsonl",
        "Text: {text}\nTopic:",
        (" Sports", " Science", " Food", " Music"),
    ),
}


def task(name: str, *, limit: int | None = None, template: str | None = None) -> Task:
    """A task by name, rendered into prompts.

    name
        `sample/…`: small balanced tasks written for this package, which need no download.
    limit
        Use the first `limit` rows. Rows of the sample tasks alternate between the classes, so that a
        first part is balanced too.
    template
        Render rows with this instead of the task's own; it must hold `{text}` and no other field.

    Raises InputError for an unknown name, a limit below 1, or a template without `{text}`.

    >>> import layerdiv_tl as ld
    >>> t = ld.task("sample/sentiment", limit=4)
    >>> t.options, t.labels.tolist()
    ((' negative', ' positive'), [0, 1, 0, 1])
    """
    if name not in SAMPLES:
        raise InputError(f"there is no task {name!r}: choose among {', '.join(SAMPLES)}.")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise InputError(f"limit={limit!r} must be a whole number of at least 1.")
    authored = SAMPLES[name]
    template = authored.template if template is None else template
    _check_template(template)
    file = resources.files("layerdiv_tl.tasks") / "sample" / authored.file
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][:limit]
    return Task(
        name=name,
        prompts=tuple(template.format(text=row["text"]) for row in rows),
        options=authored.options,
        labels=np.array([row["label"] for row in rows], dtype=np.int64),
        texts=tuple(row["text"] for row in rows),
        template=template,
        source="written for layerdiv_tl",
        licence="MIT",
    )


def _check_template(template: str) -> None:
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise InputError(f"the template {template!r} is not a format string ({error}).") from error
    if fields != {"text"}:
        raise InputError(f"the template {template!r} must hold the field {{text}} and no other.")
