"""Compare an answer with the expected one by value; if they differ, name a wrong shape, sign, factor or order."""

from __future__ import annotations

from typing import Any

import numpy as np

ZERO = 1e-12  # where the expected answer is 0, two right answers differ by their floating-point errors


def plain(value: Any) -> Any:
    """Turn numbers (torch, pandas) into numpy arrays, texts and components into text, tuples part by part.

    >>> plain(np.float32(2)), plain(["L0.H1", "L2.H0"]), plain((1, "a")), plain([1, [2, 3]])
    (array(2.), ('L0.H1', 'L2.H0'), (array(1.), 'a'), (array(1.), array([2., 3.])))

    Raises TypeError or ValueError for a value that holds neither numbers nor names.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, str) or hasattr(value, "label"):
        return str(value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("O", "T", "U"):  # text of numpy or pandas
        value = value.tolist()
    if isinstance(value, list):
        has_names = any(isinstance(part, str) or hasattr(part, "label") for part in value)
        if has_names or len({np.shape(part) for part in value}) > 1:
            value = tuple(value)
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return np.asarray(value, dtype=float)


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
    if isinstance(wanted, tuple) and isinstance(given, tuple):
        return len(given) == len(wanted) and all(same(a, b, rtol) for a, b in zip(given, wanted, strict=True))
    if isinstance(wanted, str) and isinstance(given, str):
        return given.strip() == wanted.strip()
    if not _are_arrays((given, wanted)) or given.shape != wanted.shape:
        return False
    size = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    return bool(np.allclose(given, wanted, rtol=rtol, atol=max(rtol * size * 1e-3, ZERO), equal_nan=True))


def difference(given: Any, wanted: Any, rtol: float, axes: str = "") -> str | None:
    """Name the form that is expected, or a simple change that corrects an answer: sign, factor, order. None if none."""
    named = f" {axes}" if axes else ""
    if isinstance(wanted, tuple):
        if not isinstance(given, tuple) or len(given) != len(wanted):
            return f"{len(wanted)} results are expected, in a tuple{named}."
        if all(any(same(a, b, rtol) for a in given) for b in wanted):
            return "the right results in another order."
        wrong = [k for k, (a, b) in enumerate(zip(given, wanted, strict=True), start=1) if not same(a, b, rtol)]
        fault = difference(given[wrong[0] - 1], wanted[wrong[0] - 1], rtol)
        return f"of the results{named}, number {', '.join(map(str, wrong))} differs{f': {fault}' if fault else '.'}"
    if isinstance(wanted, str):
        return None if isinstance(given, str) else f"a name is expected{named}, as text."
    if not _are_arrays((given,)):
        return f"numbers are expected{named}."
    if given.shape != wanted.shape:
        turned = " The axes are in another order." if given.ndim > 1 and given.T.shape == wanted.shape else ""
        return f"the shape {wanted.shape}{named} is expected; yours has the shape {given.shape}.{turned}"
    if same(-given, wanted, rtol):
        return "the sign is reversed."
    square = float((wanted * wanted).sum())
    factor = float((given * wanted).sum()) / square if square else 0.0
    if wanted.size > 1 and abs(factor) > 1e-9 and same(given / factor, wanted, rtol):
        return f"right but for one factor: {factor:.4g} times what it should be. A sum for a mean, or an extra mean?"
    return None


def _are_arrays(parts: tuple[Any, ...]) -> bool:
    return all(isinstance(part, np.ndarray | np.generic) for part in parts)
