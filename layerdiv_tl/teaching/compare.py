"""Compare an answer with the expected one: whether they are equal, and if not, what is wrong in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

NEAR = 0.01  # so small a difference looks like rounding
ZERO = 1e-12  # where the expected answer is 0, two right answers differ by their floating-point errors


class KindError(TypeError):
    """Raised for a value that holds neither numbers nor names."""


def plain(value: Any) -> Any:
    """Turn numbers (torch, pandas) into numpy arrays, texts and components into text, tuples part by part.

    >>> plain(np.float32(2)), plain(["L0.H1", "L2.H0"]), plain((1, "a")), plain([1, [2, 3]])
    (array(2.), ('L0.H1', 'L2.H0'), (array(1.), 'a'), (array(1.), array([2., 3.])))
    >>> plain(np.array(["L0.H1", "L2.H0"]))
    ('L0.H1', 'L2.H0')

    Raises KindError for anything else.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, str) or hasattr(value, "label"):
        return str(value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("O", "T", "U"):  # text of numpy or pandas
        value = value.tolist()
    if isinstance(value, (tuple, list, set)) and (
        isinstance(value, (tuple, set)) or any(isinstance(x, str) or hasattr(x, "label") for x in value)
    ):
        return tuple(plain(part) for part in (sorted(value) if isinstance(value, set) else value))
    if isinstance(value, list) and len({np.shape(part) for part in value}) > 1:
        return tuple(plain(part) for part in value)
    try:
        return np.asarray(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise KindError(f"this is a {type(value).__name__}") from error


def aligned(given: Any, wanted: Any) -> Any:
    """Bring a plain answer into the form of the expected one: an array as several results, or several as an array."""
    if isinstance(wanted, tuple) and isinstance(given, np.ndarray) and given.ndim:
        return tuple(map(np.asarray, given))
    if isinstance(wanted, np.ndarray) and isinstance(given, tuple) and given and _are_arrays(given):
        return np.stack(given) if len({part.shape for part in given}) == 1 else given
    return given


def same(given: Any, wanted: Any, rtol: float) -> bool:
    """Check whether two aligned values are equal to a tolerance, with equal shapes; texts exactly.

    >>> same(np.float64(5.6e-17), np.float64(-3.7e-17), 1e-5)  # two right answers to what is 0
    True
    """
    if isinstance(wanted, tuple):
        return isinstance(given, tuple) and len(given) == len(wanted) and all(_right(given, wanted, rtol))
    if isinstance(wanted, str) or isinstance(given, (str, tuple)):
        return bool(isinstance(given, str) and isinstance(wanted, str) and given.strip() == wanted.strip())
    if given.shape != wanted.shape:
        return False
    size = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    return bool(np.allclose(given, wanted, rtol=rtol, atol=max(rtol * size * 1e-3, ZERO), equal_nan=True))


def _right(given: tuple[Any, ...], wanted: tuple[Any, ...], rtol: float) -> list[bool]:
    return [same(a, b, rtol) for a, b in zip(given, wanted, strict=True)]


def _are_arrays(parts: tuple[Any, ...]) -> bool:
    return all(isinstance(part, np.ndarray) for part in parts)


def wrong_parts(given: Any, wanted: Any, rtol: float) -> tuple[int, ...]:
    """Return the indices of wrong results among several numbers; empty if all are wrong."""
    if not (isinstance(given, tuple) and isinstance(wanted, tuple) and len(given) == len(wanted)):
        return ()
    right = _right(given, wanted, rtol)
    return tuple(k for k, fine in enumerate(right) if not fine) if any(right) and _are_arrays((*given, *wanted)) else ()


def numbered(parts: tuple[int, ...]) -> str:
    """Number results from 1 in words."""
    return " and ".join(f"result {k + 1}" for k in parts)


def changed(before: Any, after: Any) -> bool:
    """Check whether an array of numbers or names, numpy's or torch's, differs from before."""
    old, new = (np.asarray(x.detach().cpu() if hasattr(x, "detach") else x) for x in (before, after))
    return not np.array_equal(old, new, equal_nan=old.dtype.kind == "f")


def fault_of_form(given: Any, wanted: Any, axes: str = "") -> str | None:
    """Describe why an answer cannot be compared: its kind, number of parts or shape; None if it can."""
    if isinstance(wanted, tuple):
        if not isinstance(given, tuple) or len(given) != len(wanted):
            there = f"are {len(given)}" if isinstance(given, tuple) and len(given) != 1 else "is 1"
            return f"{len(wanted)} results are expected, in a tuple{_named(axes)}; there {there}."
        if any(isinstance(b, str) and not isinstance(a, str) for a, b in zip(given, wanted, strict=True)):
            return f"names are expected, as text{_named(axes)}."
        for number, (part, other) in enumerate(zip(given, wanted, strict=True), start=1):
            if fault := fault_of_form(part, other):
                return f"result {number}{_named(axes)}: {fault}"
        return None
    if isinstance(wanted, str):
        if not isinstance(given, str):
            return f"a name is expected, as text, e.g. {wanted[:1]}…"
        alike = _letters(given) == _letters(wanted) and given.strip() != wanted.strip()
        return f"right but for the spelling: {wanted!r}, not {given!r}." if alike else None
    if isinstance(given, (str, tuple)):
        return f"numbers are expected{_named(axes)}, and this is {'text' if isinstance(given, str) else 'a tuple'}."
    if given.shape != wanted.shape:
        meant = f"one number{_named(axes)}" if not wanted.ndim else f"the shape {wanted.shape}{_named(axes)}"
        turned = " The axes are in another order." if given.ndim > 1 and given.T.shape == wanted.shape else ""
        return f"{meant} is expected; yours has the shape {given.shape}.{turned}"
    if np.isfinite(wanted).all() and not np.isfinite(given).all():
        return "some numbers are not finite (nan or inf): is something divided by 0, or an exponential too large?"
    return None


def fault_of_size(given: Any, wanted: Any, rtol: float) -> str | None:
    """Describe a simple change that corrects a wrong array: sign, factor, order of results, or which results are wrong.

    None if there is no such change.
    """
    if isinstance(given, tuple) and isinstance(wanted, tuple) and 1 < len(wanted) == len(given):
        right = _right(given, wanted, rtol)
        if all(any(same(a, b, rtol) for a in given) for b in wanted):
            return "the right results in another order."
        if not any(right):  # one change may correct all of them
            if not _are_arrays((*given, *wanted)):
                return None
            mine, theirs = (np.concatenate([part.ravel() for part in parts]) for parts in (given, wanted))
            fault = fault_of_size(mine, theirs, rtol)
            return fault and f"in all results {fault}"
        faults = {fault_of_size(a, b, rtol) for a, b in zip(given, wanted, strict=True)}
        told = f": {next(iter(faults - {None}))}" if len(faults - {None}) == 1 and right.count(False) == 1 else "."
        which = numbered(tuple(k for k, fine in enumerate(right) if not fine))
        verb, rest = "is" if right.count(False) == 1 else "are", "other is" if right.count(True) == 1 else "others are"
        return f"{which} {verb} not right yet, the {rest}{told}"
    if not (isinstance(given, np.ndarray) and isinstance(wanted, np.ndarray)) or same(given, wanted, rtol):
        return None
    if same(-given, wanted, rtol):
        return "the sign is reversed."
    across = float((wanted * wanted).sum())
    factor = float((given * wanted).sum()) / across if across else 0.0
    if wanted.size > 1 and abs(factor) > 1e-9 and same(given / factor, wanted, rtol):
        return f"right but for one factor: {factor:.4g} times what it should be. A sum for a mean, or an extra mean?"
    if same(given, wanted, NEAR):
        return "close, but not the same: is something rounded, or divided by n − 1 instead of n?"
    return None


def _named(axes: str) -> str:
    return f" {axes}" if axes else ""


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()
