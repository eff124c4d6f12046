"""Questions with a known number of reasoning steps and their answers: written, generated, or the user's own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .._checks import shown, whole_number
from ..errors import InputError
from .rows import Row, Rows, read_rows, sample_rows
from .synthetic import PREFIX
from .task import task

if TYPE_CHECKING:
    import pandas as pd

SAMPLE_QUESTIONS = "sample/hops"  # not a task: every question has a different answer
# The parameter of each generator that sets the number of steps, and its default values.
STEP_PARAMETER: Mapping[str, tuple[str, tuple[int, ...]]] = {
    PREFIX + "k_hop": ("hops", (1, 2, 3, 4)),
    PREFIX + "modular": ("terms", (2, 3, 4, 5)),
}
# Columns that may hold the number of steps; all rows are grouped by the one that the first row has.
MEASURES = ("hops", "steps", "level", "difficulty")
DEFAULT_GENERATED = 64  # for each number of steps, where the user gives no limit


@dataclass(frozen=True, eq=False)
class Questions:
    """Texts, their answers, and the number of steps of each.

    Attributes:
        texts, answers: The texts that a model reads, and their exact continuations, including any leading space.
        groups, by: `[question]`, the number of steps or the difficulty; and which one: "hops", "terms", "steps",
            "level".
        ids: Each question's name in its source.
        chains: The steps of each, as in ("Eiffel Tower → France", "France → Paris"); empty where unknown.
        name, source, license: As of a `Task`.
    """

    texts: tuple[str, ...]
    answers: tuple[str, ...]
    groups: Float[np.ndarray, " question"]
    by: str
    ids: tuple[str, ...]
    chains: tuple[tuple[str, ...], ...]
    name: str
    source: str
    license: str

    def frame(self) -> pd.DataFrame:
        """One row per question."""
        import pandas as pd

        columns = {"id": self.ids, "group": self.groups, "text": self.texts, "answer": self.answers}
        frame = pd.DataFrame(columns | {"chain": [" ; ".join(chain) for chain in self.chains]})
        frame.attrs |= {"by": self.by, "name": self.name, "source": self.source, "license": self.license}
        return frame

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        counts = ", ".join(f"{group:g}: {n}" for group, n in sorted(Counter(self.groups.tolist()).items()))
        return f"Questions({self.name}: {len(self)} questions, {self.by} {counts}; {self.source})"


def questions(
    source: Any = SAMPLE_QUESTIONS, *, levels: float | Iterable[float] | None = None, limit: int | None = None
) -> Questions:
    """Return questions that take different numbers of steps, for `ld.depth.depth_score`.

    Args:
        source: `sample/hops`: facts in natural language, of one to three hops, written for this package;
            `synthetic/k_hop` and `synthetic/modular`, generated, with parameters as in `synthetic/k_hop:entities=6`; or
            rows of your own: a JSONL, JSON, CSV or Parquet file, a pandas frame or a `datasets.Dataset`, with the
            columns text, answer, one of hops, steps, level, difficulty, and optionally id and chain, a list of texts.
            Other columns are ignored.
        levels: The numbers of steps, or difficulties, to include. None: all there are; for synthetic ones, 1 to 4 hops
            or 2 to 5 terms.
        limit: Largest number of questions per level; by default 64 for synthetic ones, no limit for others.

    Raises InputError for an empty text or answer, a number of steps that is no number, and where no question is left.

    >>> q = questions("synthetic/k_hop:entities=4", levels=[1, 2], limit=3)
    >>> q.groups.tolist(), q.answers[0], q.by
    ([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], ' A', 'hops')
    """
    limit = None if limit is None else whole_number("limit", limit, 1)
    wanted = None if levels is None else [float(level) for level in np.atleast_1d(np.asarray(levels, dtype=float))]
    name = source if isinstance(source, str) else "own questions"
    if name.startswith(PREFIX):
        return _generated(name, wanted, DEFAULT_GENERATED if limit is None else limit)
    if name == SAMPLE_QUESTIONS:
        return _from_rows(sample_rows(name), name, "MIT", wanted, limit)
    if isinstance(source, str | os.PathLike):
        name = Path(source).stem
    return _from_rows(read_rows(source, ("questions", "test"), "test"), name, "unknown", wanted, limit)


def _generated(name: str, levels: list[float] | None, limit: int) -> Questions:
    generator, _, settings = name.partition(":")
    if generator not in STEP_PARAMETER:
        raise InputError(f"{generator} has no number of steps: choose among {', '.join(STEP_PARAMETER)}.")
    by, usual = STEP_PARAMETER[generator]
    if any(setting.partition("=")[0] == by for setting in settings.split(",")):
        raise InputError(f"{name!r} names one number of {by}: give them as levels=, as in levels=[1, 2].")
    made = []
    for level in usual if levels is None else levels:
        step = f"{by}={level:g}"
        rows = task(f"{generator}:{','.join(filter(None, [settings, step]))}", limit=limit)
        for row, (text, answer) in enumerate(zip(rows.prompts, rows.answers, strict=True), start=1):
            made.append((text, answer, float(level), f"{step}, row {row}", ()))
    return _collect(made, by, name, rows.source, rows.license)


def _from_rows(data: Rows, name: str, license: str, levels: list[float] | None, limit: int | None) -> Questions:
    first = data.rows[0]
    by = next((measure for measure in MEASURES if measure in first), "")
    if not by or not {"text", "answer"} <= set(first):
        needed = f"text, answer, and one of {', '.join(MEASURES)}"
        raise InputError(f"the rows of {data.source} have the columns {', '.join(map(str, first))}: give {needed}.")
    made = []
    counts = Counter[float]()
    for number, row in enumerate(data.rows, start=1):
        text, answer = (_text(row, column, number) for column in ("text", "answer"))
        steps, chain = float(row[by]), row.get("chain")
        if not np.isfinite(steps):
            raise InputError(f"row {number} of {data.source} has {by}={shown(row[by])}: it must be a number.")
        if (levels is None or steps in levels) and (limit is None or counts[steps] < limit):
            counts[steps] += 1
            # A space between the two belongs to the answer: most tokenizers join it with the next word.
            text = text.rstrip(" ")
            answer = ("" if text[-1:].isspace() else " ") + answer.strip()
            links = tuple(chain) if isinstance(chain, list | np.ndarray) else ()
            made.append((text, answer, steps, str(row.get("id", f"row {number}")), links))
    if not made:
        raise InputError(f"none of the {len(data.rows)} rows of {data.source} has a level of {levels}: give others.")
    return _collect(made, by, name, data.source, license)


def _collect(made: list[tuple[Any, ...]], by: str, name: str, source: str, license: str) -> Questions:
    texts, answers, groups, ids, chains = zip(*made, strict=True)
    return Questions(texts, answers, np.array(groups, dtype=float), by, ids, chains, name, source, license)


def _text(row: Row, column: str, number: int) -> str:
    value = row[column]
    if value is None or value != value or not str(value).strip():
        raise InputError(f"row {number} has nothing in column {column!r}: fill it in, or leave the row out.")
    return str(value)
