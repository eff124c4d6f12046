"""An exercise: a reference solution, the arguments it is tested on, its hints, and common mistakes."""

from __future__ import annotations

import copy
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import InputError
from .compare import KindError, aligned, changed, fault_of_form, fault_of_size, numbered, plain, same, wrong_parts

Function = Callable[..., Any]
Args = tuple[Any, ...]
Tried = tuple[Args, Any]  # the arguments of a test, and the answer's result
Cases = Callable[..., Sequence[Args]]
HINTS = 3
LESSONS = Path(__file__).with_name("lessons")
# numpy's and torch's words for shapes that do not match.
UNLIKE = ("could not be broadcast", "must match the size of tensor")


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
        tried: list[Tried] = []
        for args in cases:
            wanted = plain(self.solve(*copy.deepcopy(args)))
            try:
                mine = copy.deepcopy(args)
                given = answer(*mine) if self.cases else answer
                if any(hasattr(old, "__array__") and changed(old, new) for old, new in zip(args, mine, strict=True)):
                    return Shown(
                        f"✗ {self.name} changed the array that it was given: work on a copy, or make a new array "
                        "(values - …, not values -= …)."
                    )
                if given is ...:
                    return self._unanswered()
                if given is None:
                    return Shown("✗ nothing comes back: does the last line say return?")
                given = aligned(plain(given), wanted)
            except NotImplementedError:
                return self._unanswered()
            except KindError as error:
                return Shown(f"✗ {error}: numbers or names are expected{f' {self.axes}' if self.axes else ''}.")
            except Exception as error:
                return Shown(f"✗ {self._explain_error(error, args)}")
            tried.append((args, given))
            if not same(given, wanted, self.rtol):
                before = f"right on {len(tried) - 1} of {len(cases)} tests, then: " if tried[1:] else ""
                return Shown(
                    f"✗ {before}{self._explain(wanted, tried, self._run(answer, cases[len(tried) :], wanted))}"
                )
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

    def _explain_error(self, error: Exception, args: Args) -> str:
        """Explain an answer that raised an error: a common mistake that raises the same, or the error itself."""
        for sentence, wrong in self.mistakes.items():
            try:
                wrong(*copy.deepcopy(args))
            except Exception as known:
                if (type(known), str(known)) == (type(error), str(error)):
                    return sentence
        said = str(error).split("\n")[0][:160]
        shapes = ", ".join(str(arg.shape) for arg in args if hasattr(arg, "shape"))
        tried = f", given arrays of shape {shapes}" if shapes else ""
        help_ = ""
        if any(words in said for words in UNLIKE):
            help_ = " Axes are matched from the last: x[:, None] inserts one, keepdims=True keeps one."
        return f"{self.name} stopped with {type(error).__name__}{tried}: {said.strip().rstrip('.')}.{help_}"

    def _run(self, answer: Any, cases: Sequence[Args], wanted: Any) -> list[Tried]:
        """Return an answer's results on further tests; those where it raises an error are left out."""
        found: list[Tried] = []
        for args in cases if self.cases else ():
            with suppress(Exception):
                found.append((args, aligned(plain(answer(*copy.deepcopy(args))), wanted)))
        return found

    def _explain(self, wanted: Any, tried: list[Tried], later: list[Tried]) -> str:
        """Explain a wrong answer by its results on the tests up to the first wrong one, and on later ones.

        A mistake with the same results everywhere comes first, then one with the same wrong results among several. One
        number may be the same by chance; on all tests it hardly is.
        """
        given, in_part = tried[-1][1], None
        parts = wrong_parts(given, wanted, self.rtol)
        for sentence, wrong in self.mistakes.items():
            try:
                made = [aligned(plain(wrong(*copy.deepcopy(args))), wanted) for args, _ in (*tried, *later)]
            except Exception:  # this mistake raises here, so the student did not make it
                continue
            pairs = [(mine, one) for (_, mine), one in zip((*tried, *later), made, strict=True)]
            first = made[len(tried) - 1]
            if same(first, wanted, self.rtol):
                continue
            if all(same(mine, one, self.rtol) for mine, one in pairs):
                return sentence
            if not in_part and parts and len(first) == len(wanted):
                fits = all(same(mine[k], one[k], Exercise.rtol) for mine, one in pairs for k in parts)
                in_part = f"{numbered(parts)}: {sentence}" if fits else None
        told = fault_of_form(given, wanted, self.axes) or in_part or fault_of_size(given, wanted, self.rtol)
        return told or f"not yet, though the form is right. lesson.{self.name}.hint(1) helps."


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
