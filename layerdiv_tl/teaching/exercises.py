"""An exercise: a reference solution, what it is tried on, its hints, and the mistakes that are usually made."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from .comparing import KindError, as_array, changed, fault_of_form, fault_of_size, numbered, plain, same, wrong_parts

Function = Callable[..., Any]
Cases = Callable[..., Sequence[tuple[Any, ...]]]
HINTS = 3
UNLIKE = ("could not be broadcast", "must match the size of tensor")  # what numpy and torch say of shapes


class Shown(str):
    """A text that a notebook shows as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)


class _ChangedError(Exception):
    """An answer wrote into what it was given."""


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise. `check` compares an answer with the reference; `hint` and `solution` help.

    Attributes:
        solve: The reference solution. Its source is what `solution` shows.
        minutes: How long it should take.
        difficulty: From 1 to 5.
        importance: For what comes later, from 1 to 5.
        hints: Three, each says more than the one before.
        mistakes: {what to say: the wrong solution that it is said of}.
        cases: Gives the arguments that a function is tried on, from what `check` is given by name.
            None: the answer is no function but a value, which `solve` computes from what `check` is given.
        axes: What the result's axes or parts are, for messages: `"[component, option]"`.
        right: What a right answer has shown.
        rtol: How near a number must be.
    """

    solve: Function
    minutes: int
    difficulty: int
    importance: int
    hints: tuple[str, ...]
    mistakes: Mapping[str, Function]
    cases: Cases | None
    axes: str
    right: str
    rtol: float

    @property
    def name(self) -> str:
        """What the exercise and the function that solves it are called."""
        return self.solve.__name__

    @property
    def badge(self) -> str:
        """The line below an exercise's title."""
        difficulty, importance = ("●" * n + "○" * (5 - n) for n in (self.difficulty, self.importance))
        return f"{self.minutes} min · difficulty {difficulty} · importance {importance}"

    @property
    def source(self) -> str:
        """The reference solution's code, without the types, whose names a notebook may not have."""
        text = textwrap.dedent(inspect.getsource(self.solve))
        defined = ast.parse(text).body[0]
        assert isinstance(defined, ast.FunctionDef)
        bare = inspect.Signature(
            [p.replace(annotation=p.empty) for p in inspect.signature(self.solve).parameters.values()]
        )
        return "\n".join([f"def {self.name}{bare}:", *text.splitlines()[defined.body[0].lineno - 1 :]]) + "\n"

    def check(self, answer: Any, **data: Any) -> Shown:
        """Whether an answer is right; if not, what is wrong with it, in a sentence. Nothing is raised for an answer.

        Args:
            answer: The function that was asked for, or the value.
            **data: What the exercise is tried on, where it says so.
        """
        if answer is ...:
            return self._unanswered()
        needed = list(inspect.signature(self.cases or self.solve).parameters)
        if sorted(needed) != sorted(data):
            names = "".join(f", {name}={name}" for name in needed)
            return Shown(f"✗ this check is called as lesson.{self.name}.check({self.name}{names}).")
        if self.cases is None:
            arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), data)]
            answers: Function | None = None
        else:
            arguments = [(case, {}) for case in self.cases(**data)]
            answers = answer
            if not callable(answer):
                return Shown(f"✗ {self.name} should stay a function: run the cell that defines it again.")
        tried: list[tuple[tuple[Any, ...], Any]] = []
        for number, (args, keywords) in enumerate(arguments):
            wanted = plain(self.solve(*copy.deepcopy(args), **keywords))
            try:
                given = answer if answers is None else self._tried(answers, args)
                if given is ...:
                    return self._unanswered()
                if given is None:
                    return Shown("✗ nothing comes back: does the last line say return?")
                given = as_array(plain(given)) if isinstance(wanted, np.ndarray) else plain(given)
            except NotImplementedError:
                return self._unanswered()
            except KindError as error:
                return Shown(f"✗ {error}: numbers or names are expected{f' {self.axes}' if self.axes else ''}.")
            except _ChangedError:
                return Shown(
                    f"✗ {self.name} changed the array that it was given: work on a copy, or make a new array "
                    "(values - …, not values -= …)."
                )
            except Exception as error:
                return Shown(f"✗ {self._of_error(error, args, keywords)}")
            tried.append((args, given))
            if not same(given, wanted, self.rtol):
                before = f"right on {number} of {len(arguments)} tests, then: " if number else ""
                return Shown(f"✗ {before}{self._of_wrong(wanted, tried, keywords)}")
        return Shown(f"✓ {self.right}")

    def or_reference(self, answer: Function, **data: Any) -> Function:
        """The answer if it is right, or else the reference with a line that says so: later cells go on with it."""
        said = self.check(answer, **data)
        if said.startswith("✓"):
            return answer
        state = "answered" if said.startswith("…") else "right"
        print(f"{self.name} is not {state} yet, so the reference goes on in its place.")
        return self.solve

    def hint(self, level: int = 1) -> Shown:
        """A hint; 1 says least, 3 most. Raises InputError for another level."""
        if level not in range(1, HINTS + 1):
            raise InputError(f"hint({level!r}): there are hints 1, 2 and 3.")
        more = f" (hint({level + 1}) says more)" if level < HINTS else " (next: solution())"
        return Shown(f"Hint {level}: {self.hints[level - 1]}{more}")

    def solution(self) -> Shown:
        """The code of the reference solution."""
        return Shown(self.source)

    def _unanswered(self) -> Shown:
        return Shown(
            f"… {self.name} is not answered yet: replace the three dots, run its cell, then this one. "
            f"Stuck? lesson.{self.name}.hint(1)"
        )

    def _tried(self, answer: Function, args: tuple[Any, ...]) -> Any:
        mine = copy.deepcopy(args)
        given = answer(*mine)
        for before, after in zip(args, mine, strict=True):
            if hasattr(before, "__array__") and changed(before, after):
                raise _ChangedError
        return given

    def _of_error(self, error: Exception, args: tuple[Any, ...], keywords: dict[str, Any]) -> str:
        """A sentence on an answer that raised, known as a usual mistake or not."""
        for sentence, wrong in self.mistakes.items():
            try:
                wrong(*copy.deepcopy(args), **keywords)
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

    def _of_wrong(self, wanted: Any, tried: list[tuple[tuple[Any, ...], Any]], keywords: dict[str, Any]) -> str:
        """A sentence on an answer that is not the reference's, from what it gave on all tests so far.

        A mistake that fits all of it goes first; then one that fits whatever is wrong among several results.
        """
        given, in_part = tried[-1][1], None
        parts = wrong_parts(given, wanted, self.rtol)
        for sentence, wrong in self.mistakes.items():
            try:
                made = [plain(wrong(*copy.deepcopy(args), **keywords)) for args, _ in tried]
            except Exception:  # a mistake may raise on these, and then is not what was made here
                continue
            pairs = [(mine, one) for (_, mine), one in zip(tried, made, strict=True)]
            if same(made[-1], wanted, self.rtol):
                continue
            if all(same(mine, one, self.rtol) for mine, one in pairs):
                return sentence
            if not in_part and parts and len(made[-1]) == len(wanted):
                fits = all(same(mine[k], one[k], self.rtol) for mine, one in pairs for k in parts)
                in_part = f"{numbered(parts)}: {sentence}" if fits else None
        told = fault_of_form(given, wanted, self.axes) or in_part or fault_of_size(given, wanted, self.rtol)
        return told or f"not yet, though the form is right. lesson.{self.name}.hint(1) helps."


def exercise(
    *,
    minutes: int,
    difficulty: int,
    importance: int,
    hints: tuple[str, str, str],
    right: str,
    mistakes: Mapping[str, Function],
    cases: Cases | None = None,
    axes: str = "",
    rtol: float = 1e-5,
) -> Callable[[Function], Exercise]:
    """Make a reference solution an `Exercise`, which has the meaning of the arguments.

    >>> import numpy as np
    >>> @exercise(minutes=1, difficulty=1, importance=1, hints=("a", "b", "c"), right="yes.", axes="[row]",
    ...           mistakes={"that is the sum of the rows.": lambda x: x.sum(1)}, cases=lambda: [(np.ones((2, 3)),)])
    ... def means(x):
    ...     return x.mean(1)
    >>> means.check(lambda x: x.mean(1)), means.check(lambda x: x.sum(1)), means.check(lambda x: x.mean(0))
    (✓ yes., ✗ that is the sum of the rows., ✗ the shape (2,) [row] is expected; yours has the shape (3,).)
    """

    def made(solve: Function) -> Exercise:
        return Exercise(solve, minutes, difficulty, importance, hints, mistakes, cases, axes, right, rtol)

    return made
