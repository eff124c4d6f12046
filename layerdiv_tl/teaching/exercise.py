"""An exercise: a reference solution, the arguments it is tested on, its hints, and common mistakes."""

from __future__ import annotations

import copy
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import InputError
from .compare import aligned, changed, difference, plain, same

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
        mistakes: {sentence: the wrong solution that it describes}.
        properties: {sentence: a condition on the answer; if it fails, the sentence is shown}.
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
    mistakes: Mapping[str, Function]
    properties: Mapping[str, Function] = field(default_factory=dict)
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
        """Report whether an answer is right, and if not, what is wrong with it. No answer raises an error.

        Args:
            answer: The requested function or value.
            **data: The data that the exercise is tested on, where its text says so.
        """
        if answer is ...:
            return self._unanswered()
        needed = list(inspect.signature(self.cases or self.solve).parameters)
        if sorted(needed) != sorted(data):
            names = "".join(f", {name}={name}" for name in needed)
            return Shown(f"✗ this check is called as lesson.{self.name}.check({self.name}{names}).")
        if self.cases is not None and not callable(answer):
            return Shown(f"✗ {self.name} should stay a function: run the cell that defines it again.")
        cases = self.cases(**data) if self.cases else [tuple(data[name] for name in needed)]
        for args in cases:
            wanted = plain(self.solve(*copy.deepcopy(args)))
            mine = copy.deepcopy(args)
            try:
                given = answer(*mine) if self.cases else answer
                if given is ...:
                    return self._unanswered()
                result = aligned(plain(given), wanted)
            except NotImplementedError:
                return self._unanswered()
            except Exception as error:
                reason = str(error).partition("\n")[0][:160].strip().rstrip(".")
                stopped = f"{self.name} stopped with {type(error).__name__}: {reason}."
                return Shown(f"✗ {self._mistake(answer, cases, wanted) or stopped}")
            if given is None:
                return Shown("✗ nothing comes back: does the last line say return?")
            if any(hasattr(old, "__array__") and changed(old, new) for old, new in zip(args, mine, strict=True)):
                return Shown(
                    f"✗ {self.name} changed the array that it was given: work on a copy, or make a new array "
                    "(values - …, not values -= …)."
                )
            if not same(result, wanted, self.rtol):
                fault = self._mistake(answer, cases, wanted) or difference(result, wanted, self.rtol, self.axes)
                return Shown(f"✗ {fault or f'not yet, though the form is right. lesson.{self.name}.hint(1) helps.'}")
        broken = next((sentence for sentence, holds in self.properties.items() if not holds(answer)), None)
        return Shown(f"✗ {broken}" if broken else f"✓ {self.right}")

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

    def _mistake(self, answer: Any, cases: Sequence[Args], wanted: Any) -> str | None:
        """Return the sentence of the mistake that has the answer's results on all tests. One may agree by chance."""
        given = self._results(answer if self.cases else lambda *args: answer, cases, wanted)
        for sentence, wrong in self.mistakes.items():
            made = self._results(wrong, cases, wanted)
            if all(same(a, b, self.rtol) for a, b in zip(given, made, strict=True)):
                return sentence
        return None

    def _results(self, function: Function, cases: Sequence[Args], wanted: Any) -> list[Any]:
        """Run a function on all tests; where it raises, the result is the error's type and message."""
        results: list[Any] = []
        for args in cases:
            try:
                results.append(aligned(plain(function(*copy.deepcopy(args))), wanted))
            except Exception as error:
                results.append((type(error).__name__, str(error)))
        return results


def read_lesson(path: str | Path) -> SimpleNamespace:
    """Read the exercises of a lesson from a TOML file; each becomes an attribute of the result.

    `code` at the top defines what cases and mistakes use. Each table is an exercise: `solution` is the code of a
    function of the table's name, `mistakes` are pairs of a sentence and a wrong answer, an expression in the
    function's arguments; `properties` pairs of a sentence and an expression in the function itself; `cases` names a
    function of `code`; the rest are fields of `Exercise`. The file's code is executed: read your own files, or those
    you trust. Raises InputError for a file that is not a lesson.

    >>> lesson = read_lesson(LESSONS / "first_look.toml")
    >>> lesson.center.check(lambda values: values.sum())
    ✗ the shape (5, 3) [component, option] is expected; yours has the shape ().
    """
    path = Path(path)
    names: dict[str, Any] = {"np": np}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        exec(compile(tables.pop("code", ""), path.name, "exec"), names)
        return SimpleNamespace(**{name: _exercise(name, dict(table), names) for name, table in tables.items()})
    except (OSError, ValueError, TypeError, KeyError, NameError, SyntaxError) as error:
        raise InputError(
            f"{path.name} is not a lesson ({type(error).__name__}: {error}): see {read_lesson.__name__}."
        ) from error


def _exercise(name: str, table: dict[str, Any], names: dict[str, Any]) -> Exercise:
    """Compile one table; its code sees `names`, which gains the solution."""
    source = table.pop("solution")
    exec(compile(source, name, "exec"), names)
    arguments = ", ".join(inspect.signature(names[name]).parameters)
    table["mistakes"] = {said: eval(f"lambda {arguments}: {wrong}", names) for said, wrong in table["mistakes"]}
    table["properties"] = {said: eval(f"lambda {name}: {law}", names) for said, law in table.get("properties", [])}
    table["cases"] = eval(table["cases"], names) if "cases" in table else None
    return Exercise(names[name], source, **table)
