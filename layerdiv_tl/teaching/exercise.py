"""An exercise: a reference solution, the arguments it is tested on, and hints."""

from __future__ import annotations

import copy
import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import InputError
from .compare import aligned, difference, plain, same

Function = Callable[..., Any]
Args = tuple[Any, ...]
Cases = Callable[..., Sequence[Args]]
HINTS = 3
LESSONS = Path(__file__).with_name("lessons")


class Shown(str):
    """A text that a notebook shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise: `check` compares an answer with the reference; `hint` and `solution` help.

    Attributes:
        solve: The reference solution.
        source: Its code, as `solution` shows it.
        right: The sentence shown for a right answer.
        hints: Three, each more explicit than the one before.
        minutes, difficulty, importance: Expected time; difficulty and importance from 1 to 5.
        cases: Returns the arguments that a function is tested on, computed from the keyword arguments of `check`. None:
            the answer is a value, which `solve` computes from those keyword arguments.
        axes: The axes or parts of the result, for messages: `"[component, option]"`.
        rtol: Relative tolerance of the comparison.
    """

    solve: Function
    source: str
    right: str
    hints: Sequence[str]
    minutes: int = 5
    difficulty: int = 1
    importance: int = 1
    cases: Cases | None = None
    axes: str = ""
    rtol: float = 1e-5

    @property
    def name(self) -> str:
        """Name of the exercise and of the function that solves it."""
        return self.solve.__name__

    @property
    def badge(self) -> str:
        """The line below an exercise's title."""
        difficulty, importance = ("●" * n + "○" * (5 - n) for n in (self.difficulty, self.importance))
        return f"{self.minutes} min · difficulty {difficulty} · importance {importance}"

    def check(self, answer: Any, **data: Any) -> Shown:
        """Report whether an answer is right, and if not, how its value differs. An answer that raises is not right.

        Args:
            answer: The requested function or value.
            **data: The data that the exercise is tested on, where its text says so.
        """
        cases = (
            self.cases(**data)
            if self.cases
            else [tuple(data[name] for name in inspect.signature(self.solve).parameters)]
        )
        for args in cases:
            wanted = plain(self.solve(*copy.deepcopy(args)))
            try:
                given = answer
                if self.cases and answer is not ...:
                    given = answer(*copy.deepcopy(args))
                if given is ...:
                    return self._unanswered()
                result = aligned(plain(given), wanted)
            except Exception as error:
                reason = str(error).partition("\n")[0][:160].strip().rstrip(".")
                return Shown(f"✗ {self.name} stopped with {type(error).__name__}: {reason}.")
            if not same(result, wanted, self.rtol):
                fault = difference(result, wanted, self.rtol, self.axes)
                return Shown(f"✗ {fault or f'not yet, though the form is right. lesson.{self.name}.hint(1) helps.'}")
        return Shown(f"✓ {self.right}")

    def or_reference(self, answer: Function, **data: Any) -> Function:
        """Return a right answer, or else the reference, and print which one: later cells work with either."""
        said = self.check(answer, **data)
        if said.startswith("✓"):
            return answer
        state = "answered" if said.startswith("…") else "right"
        print(f"{self.name} is not {state} yet; the cells below use the reference solution.")
        return self.solve

    def hint(self, level: int = 1) -> Shown:
        """Show a hint, from 1 (vaguest) to 3 (most explicit). Raises InputError for another level."""
        if level not in range(1, HINTS + 1):
            raise InputError(f"hint({level!r}): there are hints 1, 2 and 3.")
        more = f" (hint({level + 1}) says more)" if level < HINTS else " (next: solution())"
        return Shown(f"Hint {level}: {self.hints[level - 1]}{more}")

    def solution(self) -> Shown:
        """Show the code of the reference solution."""
        return Shown(self.source)

    def _unanswered(self) -> Shown:
        return Shown(
            f"… {self.name} is not answered yet: replace the three dots, run its cell, then this one. "
            f"Stuck? lesson.{self.name}.hint(1)"
        )


def read_lesson(path: str | Path) -> SimpleNamespace:
    """Read the exercises of a lesson from a TOML file; each becomes an attribute of the result.

    `code` at the top defines what cases use. Each table is an exercise: `solution` is the code of a function of the
    table's name, `cases` names a function of `code`; the rest are fields of `Exercise`. The file's code is executed:
    read your own files, or those you trust.

    >>> lesson = read_lesson(LESSONS / "first_look.toml")
    >>> lesson.center.check(lambda values: values.sum())
    ✗ the shape (5, 3) [component, option] is expected; yours has the shape ().
    """
    path = Path(path)
    names: dict[str, Any] = {"np": np}
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    exec(compile(tables.pop("code", ""), path.name, "exec"), names)
    exercises = {}
    for name, table in tables.items():
        source = table.pop("solution")
        exec(compile(source, name, "exec"), names)
        if "cases" in table:
            table["cases"] = eval(table["cases"], names)
        exercises[name] = Exercise(names[name], source, **table)
    return SimpleNamespace(**exercises)
