"""Validators, one for each kind of argument: they return the checked value or raise InputError.

An error names the argument, the given value and the allowed ones. Numpy scalars are treated like Python's own. Nothing
is reinterpreted: True is not 1, a text is not a list of its letters, and a frame is not its columns.
"""

from __future__ import annotations

import inspect
import math
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence, Set
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

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


def with_article(name: str) -> str:
    """Put the article in front of a class's name: a Shard, an Agreement."""
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


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


def number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """Check a finite number in a range; `least` and `most` are inclusive, `above` and `below` exclusive.

    >>> number("confidence_level", 95, above=0, below=1)
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: confidence_level=95 must be a number above 0 and below 1.
    """
    try:
        x = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except (OverflowError, ValueError):
        x = math.nan
    is_inside = (least is None or x >= least) and (above is None or x > above)
    is_inside = is_inside and (most is None or x <= most) and (below is None or x < below)
    if not math.isfinite(x) or not is_inside:
        limits = {"of at least": least, "above": above, "of at most": most, "below": below}
        allowed = " and ".join(f"{words} {float(limit):g}" for words, limit in limits.items() if limit is not None)
        raise InputError(f"{name}={shown(value)} must be a number {allowed or 'that is finite'}.")
    return x


def flag(name: str, value: Any) -> bool:
    """Check a bool; truthy values are not accepted."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name}={shown(value)} must be True or False.")
    return bool(value)


def text(name: str, value: Any, *, empty: bool = False) -> str:
    """Check a text; `empty` allows the empty one."""
    if not isinstance(value, str) or not (value or empty):
        raise InputError(f"{name}={shown(value)} must be a text{'' if empty else ' that is not empty'}.")
    return str(value)


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
    # A list of one column would be options of all prompts.
    if name in ("options", "contrast") and len(columns) > 1 and hasattr(given, "to_numpy"):
        way = f"give every prompt its own, table[{shown(columns)}].to_numpy(), or all prompts one list"
    raise InputError(f"{name} is a table with the columns {names}: {way}.")


def ordered(name: str, value: Any, what: str = "a list") -> Iterable[Any]:
    """Check the type that `listed` accepts without reading the items, for input that may be longer than memory."""
    refuse_tables(name, value)
    flat = isinstance(value, Iterable) and getattr(value, "ndim", 1) == 1
    unordered = isinstance(value, Set) and not isinstance(value, KeysView)
    if not flat or unordered or isinstance(value, str | bytes | bytearray | Mapping):
        raise InputError(f"{name}={shown(value)} must be {what}.")
    return value


def listed(name: str, value: Any, what: str = "a list") -> list[Any]:
    """Return the items of a list, tuple, range, one-dimensional array or series, or generator, in order.

    Not accepted: a text or a mapping, whose items are letters or keys; a set, which has no order; a frame or a matrix.

    >>> listed("labels", np.array([0, 1]))
    [0, 1]
    >>> listed("labels", {"a": 1}, "a list with one label per example")
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: labels={'a': 1} must be a list with one label per example.
    """
    ordered(name, value, what)
    try:
        items = value.tolist() if hasattr(value, "tolist") else list(islice(value, MOST_ITEMS + 1))
    except Exception as error:
        raise InputError(f"{name}={shown(value)} must be {what}, but cannot be read ({error}).") from error
    if len(items) > MOST_ITEMS:
        raise InputError(f"{name} has more than {MOST_ITEMS} items, and may have no end: it must be {what}.")
    return items


def some_of(name: str, value: Any, allowed: Sequence[str]) -> list[str]:
    """Check one name or a list of names among those allowed, in the order given.

    >>> some_of("models", ["gpt2", "opt"], ["gpt2", "pythia"])
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: models=['gpt2', 'opt'] holds 'opt': use 'gpt2' or 'pythia'.
    """
    names = [value] if isinstance(value, str) else listed(name, value, f"a list of names of {one_of(allowed)}")
    unknown = [item for item in names if not isinstance(item, str) or item not in allowed]
    if unknown or not names:
        fault = "is empty" if not names else "is unknown" if isinstance(value, str) else f"holds {shown(unknown[0])}"
        raise InputError(f"{name}={shown(value)} {fault}: use {one_of(allowed)}.")
    return [str(item) for item in names]


def instance(name: str, value: Any, kind: type[T] | tuple[type[T], ...], how: str) -> T:
    """Check the class of an object; `how` says how to make one, as in "make one with profile(model, text)"."""
    if not isinstance(value, kind):
        first = kind[0] if isinstance(kind, tuple) else kind
        raise InputError(f"{name}={shown(value)} is not {with_article(first.__name__)}: {how}.")
    return value


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


def resampling(n_resamples: Any, seed: Any, confidence_level: Any = 0.5) -> None:
    """Check the number of resamples, their seed, and the confidence level of their interval."""
    whole_number("n_resamples", n_resamples, 1, MOST_REPEATS)
    whole_number("seed", seed, 0)
    number("confidence_level", confidence_level, above=0, below=1)


def keywords(function: Callable[..., Any], given: Mapping[str, Any], also: Iterable[str] = ()) -> None:
    """Check keyword arguments against a function's annotations: Literals, bools, whole numbers, numbers, texts, None.

    The function itself checks arguments with other annotations. `also` names arguments that other functions take.

    >>> def draw(result: object, part: Literal["raw", "shift"] = "raw", most: int = 3, title: str | None = None): ...
    >>> keywords(draw, {"most": True})
    Traceback (most recent call last):
    ...
    layerdiv_tl.errors.InputError: most=True must be a whole number.
    """
    plain = inspect.unwrap(function)
    known = {p.name: p.kind for p in list(inspect.signature(function).parameters.values())[1:]}
    unknown = [name for name in given if name not in known]
    if unknown and inspect.Parameter.VAR_KEYWORD not in known.values():
        raise InputError(f"there is no option {unknown[0]}= here: use {', '.join([*known, *also]) or 'none'}.")
    # Only for the given arguments: others may have annotations that are imported for type checkers alone.
    annotations = {name: hint for name, hint in plain.__annotations__.items() if name in given}
    hints = get_type_hints(SimpleNamespace(__annotations__=annotations), plain.__globals__)
    for name, value in given.items():
        if name in unknown:
            continue
        hint = hints[name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is None and NoneType in kinds:
            continue
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        if words:
            choice(name, value, words)
        elif bool in kinds:
            flag(name, value)
        elif float in kinds:
            number(name, value)
        elif int in kinds and len({*kinds} - {NoneType}) == 1:
            whole_number(name, value)
        elif str in kinds:
            text(name, value, empty=True)


def check_memory(needed: int, what: str, instead: str) -> None:
    """Raise InputError for data that need more bytes than are free; `instead` suggests an alternative."""
    try:
        import psutil  # TransformerLens brings it, by way of accelerate
    except ImportError:
        return
    if needed > psutil.virtual_memory().available:
        raise InputError(f"{what} need {needed / 2**30:.1f} GiB, more than is free here: {instead}.")
