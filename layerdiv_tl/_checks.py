"""Validators, one for each kind of argument: they return the checked value or raise InputError.

An error names the argument, the given value and the allowed ones. Numpy scalars are treated like Python's own. Nothing
is reinterpreted: True is not 1, a text is not a list of its letters, and a frame is not its columns.
"""

from __future__ import annotations

import math
import os
import reprlib
import sys
from collections.abc import Iterable, KeysView, Mapping, Set
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from .errors import InputError

# The most repeats (resamples, permutations, steps) that are practical.
MOST_REPEATS = 1_000_000
# An endless generator must raise an error before it takes all memory.
MOST_ITEMS = 10_000_000
# The limits of file systems: names in bytes, paths in characters.
_MOST_NAME, _MOST_PATH = 255, 4096

# What stands for signs that a console's encoding lacks.
_ASCII = str.maketrans(
    {"−": "-", "′": "'", "₂": "_2", "²": "^2", "→": "->", "×": "x", "…": "...", "‖": "||", "–": "-", "≤": "<="}
)

T = TypeVar("T")

_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother, _repr.maxlong = 2, 60, 60, 40


def shown(value: Any) -> str:
    """Quote a value for an error message: one short line, whatever the value's own repr does.

    >>> shown("x" * 1000), shown({"a": [1, 2]})
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'", "{'a': [1, 2]}")
    """
    try:
        text = " ".join(_repr.repr(value).split())
    except Exception:  # the repr of a user's object may raise anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}…"


def for_console(text: str) -> str:
    """Return a text as the console can print it, with ASCII in place of signs that its encoding lacks.

    >>> for_console("1 − 2 → logits²").isprintable()
    True
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.translate(_ASCII)
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        pass
    return text


def console_text(x: Any) -> str:
    """Return the repr of an object as the console can print it: the `__str__` of results, models, tasks."""
    return for_console(repr(x))


def one_of(values: Iterable[Any], last: str = "or") -> str:
    """Join values for a sentence: 'a', 'b' or 'c'."""
    *first, end = (repr(value) for value in values)
    return f"{', '.join(first)} {last} {end}" if first else end


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Check one of several words.

    >>> choice("unit", "layer", ("sublayer", "head"))
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: unit='layer' is unknown: use 'sublayer' or 'head'.
    """
    allowed = list(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name}={shown(value)} is unknown: use {one_of(allowed)}.")
    return str(value)


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Check an int in a range, ends included; bools and floats are not accepted.

    >>> whole_number("n_resamples", 10**9, 1, MOST_REPEATS)
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: n_resamples=1000000000 must be a whole number from 1 to 1000000.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least) or (most is not None and value > most):
        allowed = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        raise InputError(f"{name}={shown(value)} must be a whole number{allowed}.")
    return int(value)


def number(name: str, value: Any, least: float) -> float:
    """Check a finite number of at least `least`; bools are not accepted.

    >>> number("temperature", -1, 0)
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: temperature=-1 must be a number of at least 0.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        raise InputError(f"{name}={shown(value)} must be a number of at least {least:g}.")
    return float(value)


def refuse_tables(name: str, given: Any) -> None:
    """Raise InputError for a data frame, data set or table of any library, whose elements are column names."""
    found = (getattr(given, name, None) for name in ("column_names", "columns"))
    columns = next((list(each) for each in found if isinstance(each, Iterable)), None)
    if columns is None:
        return
    names = ", ".join(map(str, columns))[:120] or "none"
    wanted = {"label", "answer", "gold", "right"} if name == "labels" else {"text", "prompt", "sentence", "question"}
    texts = [column for column in columns if str(column) in wanted]
    way = f"give one as a list, list(table[{(texts or columns or ['text'])[0]!r}])"
    raise InputError(f"{name} is a table with the columns {names}: {way}.")


def listed(name: str, value: Any, what: str = "a list") -> list[Any]:
    """Return the items of a list, tuple, range, one-dimensional array or series, or generator, in order.

    Not accepted: a text or a mapping, whose items are letters or keys; a set, which has no order; a frame or a matrix.

    >>> listed("labels", range(2))
    [0, 1]
    >>> listed("labels", {"a": 1}, "a list with one label per example")
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: labels={'a': 1} must be a list with one label per example.
    """
    refuse_tables(name, value)
    flat = isinstance(value, Iterable) and getattr(value, "ndim", 1) == 1
    unordered = isinstance(value, Set) and not isinstance(value, KeysView)
    if not flat or unordered or isinstance(value, str | bytes | bytearray | Mapping):
        raise InputError(f"{name}={shown(value)} must be {what}.")
    try:
        items = value.tolist() if hasattr(value, "tolist") else list(islice(value, MOST_ITEMS + 1))
    except Exception as error:
        raise InputError(f"{name}={shown(value)} must be {what}, but cannot be read ({error}).") from error
    if len(items) > MOST_ITEMS:
        raise InputError(f"{name} has more than {MOST_ITEMS} items, and may have no end: it must be {what}.")
    return items


def file_path(name: str, value: Any) -> Path:
    """Check a path that can name a file or folder, `~` expanded, whether or not it exists."""
    try:
        given = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
        if given.strip() and "\0" not in given and len(given) <= _MOST_PATH:
            path = Path(given).expanduser()
            if all(len(os.fsencode(part)) <= _MOST_NAME for part in path.parts):
                return path
    except Exception:  # an unknown home, characters no file system allows, bytes, a custom PathLike
        pass
    raise InputError(f"{name}={shown(value)} is not a path: give the name of a file or folder.")


def check_memory(needed: int, what: str, instead: str) -> None:
    """Raise InputError for data that need more bytes than are free; `instead` suggests an alternative."""
    try:
        import psutil  # TransformerLens brings it, by way of accelerate
    except ImportError:
        return
    if needed > psutil.virtual_memory().available:
        raise InputError(f"{what} need {needed / 2**30:.1f} GiB, more than is free here: {instead}.")
