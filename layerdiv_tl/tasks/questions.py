"""Questions with a known number of reasoning steps and their answers: written, or generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .._checks import shown, whole_number
from ..errors import InputError
from .rows import sample_rows
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
DEFAULT_GENERATED = 64  # for each number of steps, where the user gives no limit


@dataclass(frozen=True, eq=False)
class Questions:
    """Texts, their answers, and the number of steps of each.

    Attributes:
        texts, answers: The texts that a model reads, and their exact continuations, including any leading space.
        groups, by: `[question]`, the number of steps; and what is counted: "hops", "terms".
        ids: Each question's name in its source.
        name: Their source, as `questions` takes it.
    """

    texts: tuple[str, ...]
    answers: tuple[str, ...]
    groups: Float[np.ndarray, " question"]
    by: str
    ids: tuple[str, ...]
    name: str

    def frame(self) -> pd.DataFrame:
        """One row per question."""
        import pandas as pd

        frame = pd.DataFrame({"id": self.ids, "group": self.groups, "text": self.texts, "answer": self.answers})
        frame.attrs["by"] = self.by
        return frame

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        counts = ", ".join(f"{group:g}: {n}" for group, n in sorted(Counter(self.groups.tolist()).items()))
        return f"Questions({self.name}: {len(self)} questions, {self.by} {counts})"


def questions(
    source: str = SAMPLE_QUESTIONS, *, levels: float | Iterable[float] | None = None, limit: int | None = None
) -> Questions:
    """Return questions that take different numbers of steps, for `ld.depth.depth_score`.

    `depth_score` takes questions of your own as a list of (text, answer, number of steps).

    Args:
        source: `sample/hops`: facts in natural language, of one to three hops, written for this package; or
            `synthetic/k_hop` and `synthetic/modular`, generated, with parameters as in `synthetic/k_hop:entities=6`.
        levels: The numbers of steps to include. None: all there are; for synthetic ones, 1 to 4 hops or 2 to 5 terms.
        limit: Largest number of questions per level; by default 64 for synthetic ones, no limit for others.

    Raises InputError for another source, and where no question is left.

    >>> q = questions("synthetic/k_hop:entities=4", levels=[1, 2], limit=3)
    >>> q.groups.tolist(), q.answers[0], q.by
    ([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], ' A', 'hops')
    """
    limit = None if limit is None else whole_number("limit", limit, 1)
    wanted = None if levels is None else np.atleast_1d(np.asarray(levels, dtype=float)).tolist()
    rows: list[tuple[str, str, float, str]] = []
    if source == SAMPLE_QUESTIONS:
        by, counts = "hops", Counter[float]()
        for row in sample_rows(source).rows:
            hops = float(row["hops"])
            counts[hops] += 1
            if (wanted is None or hops in wanted) and (limit is None or counts[hops] <= limit):
                rows.append((row["text"], " " + row["answer"], hops, row["id"]))
    else:
        generator, _, settings = str(source).partition(":")
        if generator not in STEP_PARAMETER:
            known = ", ".join((SAMPLE_QUESTIONS, *STEP_PARAMETER))
            raise InputError(f"there are no questions {shown(source)}: choose among {known}.")
        by, usual = STEP_PARAMETER[generator]
        for level in wanted or usual:
            step = f"{by}={level:g}"
            made = task(f"{generator}:{settings},{step}", limit=limit or DEFAULT_GENERATED)
            for number, (text, answer) in enumerate(zip(made.prompts, made.answers, strict=True), start=1):
                rows.append((text, answer, float(level), f"{step}, row {number}"))
    if not rows:
        raise InputError(f"{source} has no level of {levels}: give others.")
    texts, answers, groups, ids = zip(*rows, strict=True)
    return Questions(texts, answers, np.array(groups, dtype=float), by, ids, source)
