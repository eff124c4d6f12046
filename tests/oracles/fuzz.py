"""Every public callable, each of its arguments in turn replaced by odd values: what happens.

`sentence`: an InputError. `answer`: a result, of a value that fits the annotation. Anything else is a finding:
`misread`, a result of a value that does not fit (True for a number, a text for a list); the name of an exception that
is not an InputError; `slow`, no end within five seconds; `long`, a message that quotes pages.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import layerdiv_tl as ld
from layerdiv_tl.errors import InputError
from layerdiv_tl.results import Result

SECONDS = 5
LONGEST = 1500


class _Unspeakable:
    """Its repr fails, as does asking whether it is true or equal."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth value")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = object.__hash__


class _Slow(BaseException):
    """What stops a call: no `except Exception` holds it."""


def _endless() -> Iterator[int]:
    while True:
        yield 0


# name: (how to make one, what annotations it fits)
ODD: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "None": (lambda: None, {"None"}),
    "True": (lambda: True, {"bool"}),
    "False": (lambda: False, {"bool"}),
    "np.True_": (lambda: np.bool_(True), {"bool"}),
    "-1": (lambda: -1, {"int", "float"}),
    "0": (lambda: 0, {"int", "float"}),
    "1": (lambda: 1, {"int", "float"}),
    "np.int64(1)": (lambda: np.int64(1), {"int", "float"}),
    "10**9": (lambda: 10**9, {"int", "float"}),
    "10**5000": (lambda: 10**5000, {"int", "float"}),
    "0.5": (lambda: 0.5, {"float"}),
    "np.float64(0.5)": (lambda: np.float64(0.5), {"float"}),
    "Fraction": (lambda: Fraction(1, 2), {"float"}),
    "1e308": (lambda: 1e308, {"float"}),
    "nan": (lambda: float("nan"), {"float"}),
    "inf": (lambda: float("inf"), {"float"}),
    "1j": (lambda: 1j, set()),
    "''": (lambda: "", {"str"}),
    "nonsense": (lambda: "nonsense", {"str"}),
    "nul": (lambda: "a\0b", {"str"}),
    "surrogate": (lambda: "\ud800", {"str"}),
    "long text": (lambda: "x" * 100_000, {"str"}),
    "np.str_": (lambda: np.str_("sublayer"), {"str"}),
    "b'x'": (lambda: b"x", set()),
    "[]": (lambda: [], {"list", "array"}),
    "[[]]": (lambda: [[]], {"list", "array"}),
    "[None]": (lambda: [None], {"list"}),
    "[nan]": (lambda: [float("nan")], {"list", "array"}),
    "[True, False]": (lambda: [True, False], {"list", "array"}),
    "['sublayer']": (lambda: ["sublayer"], {"list"}),
    "[_]": (lambda: [object()], {"list"}),
    "nested": (lambda: [[["a"]], [1, [2]]], {"list"}),
    "('a', 'b')": (lambda: ("a", "b"), {"list"}),
    "range": (lambda: range(3), {"list", "array"}),
    "{}": (lambda: {}, {"dict"}),
    "{'a': 1}": (lambda: {"a": 1}, {"dict"}),
    "set()": (lambda: set(), set()),
    "{'a'}": (lambda: {"a"}, set()),
    "np.array(0.5)": (lambda: np.array(0.5), {"array"}),
    "np.array([1, 2])": (lambda: np.array([1, 2]), {"list", "array"}),
    "np.array([nan])": (lambda: np.array([np.nan]), {"list", "array"}),
    "np.array(['sublayer'])": (lambda: np.array(["sublayer"]), {"list"}),
    "np.eye(2)": (lambda: np.eye(2), {"array"}),
    "np.empty(0)": (lambda: np.empty(0), {"list", "array"}),
    "torch.tensor(1)": (lambda: torch.tensor(1), {"array"}),
    "torch.ones(2)": (lambda: torch.ones(2), {"list", "array"}),
    "DataFrame": (lambda: pd.DataFrame({"a": [1, 2], "label": [0, 1]}), {"frame"}),
    "Series": (lambda: pd.Series([0.0, 1.0]), {"list", "array"}),
    "NaT": (lambda: pd.NaT, set()),
    "NA": (lambda: pd.NA, set()),
    "object()": (object, set()),
    "unspeakable": (_Unspeakable, set()),
    "type": (lambda: int, set()),
    "lambda": (lambda: lambda *_: 1, {"callable"}),
    "Path": (lambda: Path("there/is/none"), {"path"}),
    "generator": (lambda: (i for i in range(3)), {"list"}),
    "endless": (_endless, set()),
    "Component": (lambda: ld.Component("mlp", 0), {"component"}),
}

# None is right for these, the default model, and takes minutes.
_DEFAULT_MODEL = ("model", "models", "source", "target")

# What a name in an annotation lets in; names that are not here (Unit, Part, Loss …) are choices, which no odd value is.
_FITS = {
    r"\bbool\b": {"bool"},
    r"\bint\b": {"int"},
    r"\bfloat\b": {"float", "int"},
    r"\bstr\b": {"str"},
    r"\bPathLike\b|\bPath\b": {"path", "str"},
    r"\bNone\b": {"None"},
    r"\b(Sequence|Iterable|list|tuple)\b": {"list"},
    r"\b(ndarray|Given|Labels)\b": {"array", "list"},
    r"\bLabels\b": {"None"},
    r"\b(Mapping|dict)\b": {"dict"},
    r"\bDataFrame\b": {"frame"},
    r"\bCallable\b": {"callable"},
    r"\bComponent\b": {"component"},
}


def fits(annotation: str, odd: str) -> bool:
    """Whether an odd value is of a kind that the annotation names; Any lets everything in."""
    # What stands inside Sequence[…] says nothing of the argument itself.
    outer = re.sub(r"(\w+)\[.*?\]+", r"\1", annotation)
    outer = outer + (" ndarray" if "ndarray" in annotation else "")
    if annotation in ("Any", ""):
        return True
    if odd == "np.str_" and not any(re.search(name, outer) for name in _FITS):
        return True  # a word that several of the choices have
    return any(re.search(name, outer) and ODD[odd][1] & kinds for name, kinds in _FITS.items())


@dataclass(frozen=True)
class Case:
    """A call that works, and the annotations of those of its arguments that are to be replaced."""

    name: str
    call: Callable[..., Any]
    given: dict[str, Any]
    arguments: dict[str, str]


@dataclass
class Tally:
    """What happened, by outcome; findings in words."""

    counts: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def add(self, where: str, outcome: str, said: str = "") -> None:
        """One outcome."""
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if outcome not in ("answer", "sentence"):
            self.findings.append(f"{where}: {outcome} {said:.300}".encode("utf-8", "backslashreplace").decode())


def case(name: str, call: Callable[..., Any], leave: tuple[str, ...] = (), /, **given: Any) -> Case:
    """A case of all arguments of a callable, those it has by default included."""
    parameters = inspect.signature(call).parameters
    plain = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "self"]
    return Case(name, call, given, {p.name: str(p.annotation) for p in plain if p.name not in leave})


def methods(name: str, result: Any, leave: tuple[str, ...] = (), **given: dict[str, Any]) -> Iterator[Case]:
    """A case for every public method of a result, and for `plot` with every kind of figure."""
    for method, found in inspect.getmembers(result, inspect.isroutine):
        if method.startswith("_") or method in ("plot", *leave):
            continue
        if inspect.signature(found).parameters:
            yield case(f"{name}.{method}", found, **given.get(method, {}))
    if isinstance(result, Result):
        yield from figures(name, result, **given.get("plot", {}))


def figures(name: str, result: Result, **given: Any) -> Iterator[Case]:
    """A case for every kind of figure of a result, and its options."""
    from layerdiv_tl.views.figures import function_of

    for number, kind in enumerate(type(result).figures):
        function = function_of(type(result), kind)
        options = {p.name: str(p.annotation) for p in list(inspect.signature(function).parameters.values())[1:]}
        if not number:
            options |= {"kind": "Kind | None", "dark": "bool | None"}
        yield Case(f"{name}.plot[{kind}]", result.plot, {"kind": kind, **given.get(kind, {})}, options)


def sweep(cases: list[Case], tally: Tally, odd: Callable[[int, str], bool] = lambda number, name: True) -> Tally:
    """All cases with all odd values, or those that `odd(number of the argument, name of the value)` chooses."""

    def stop(*_: Any) -> None:
        raise _Slow

    before = signal.signal(signal.SIGALRM, stop)
    number = 0
    try:
        for one in cases:
            for argument, annotation in one.arguments.items():
                number += 1
                for name, (make, _) in ODD.items():
                    if odd(number, name) and not (name == "None" and argument in _DEFAULT_MODEL):
                        _try(one, argument, annotation, name, make(), tally)
    finally:
        signal.signal(signal.SIGALRM, before)
    return tally


def _try(one: Case, argument: str, annotation: str, name: str, value: Any, tally: Tally) -> None:
    where = f"{one.name}({argument}={name})"
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        one.call(**{**one.given, argument: value})
    except InputError as error:
        tally.add(where, "sentence" if len(str(error)) <= LONGEST else "long", str(error))
    except _Slow:
        tally.add(where, "slow")
    except Exception as error:
        tally.add(where, type(error).__name__, f"{error} at {_place(error)}")
    else:
        tally.add(where, "answer" if fits(annotation, name) else "misread")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _place(error: BaseException) -> str:
    """The last line of the package that an exception went through."""
    trace, place = error.__traceback__, "?"
    while trace:
        path = trace.tb_frame.f_code.co_filename
        if "layerdiv_tl" in path:
            place = f"{path.rpartition('layerdiv_tl' + os.sep)[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
