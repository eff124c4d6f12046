"""Progress of long calls: a bar for a reader, plain lines for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

# Seconds before anything is shown, and between two lines of a log.
_DELAY, _APART = 2.0, 10.0
T = TypeVar("T")
Advance = Callable[[int], object]
_OUTER: ContextVar[tuple[str, Advance] | None] = ContextVar("the progress that another is part of", default=None)


@contextmanager
def progress(title: str, total: int | None, unit: str, done: int = 0) -> Iterator[Advance]:
    """Report the progress of a call that takes over two seconds: call the yielded function with the steps done.

    Shows a bar on a terminal and in a notebook, occasional plain lines elsewhere, and nothing where the `total` is not
    known. A nested call shows nothing of its own: if both count the same `unit`, its steps advance the outer one.

    >>> with progress("rows", 3, "row") as advance:
    ...     _ = [advance(1) for _ in range(3)]
    """
    outer = _OUTER.get()
    if outer is not None or total is None:
        yield outer[1] if outer is not None and outer[0] == unit else lambda steps: None
        return
    if shows_bars():
        from tqdm.auto import tqdm

        with tqdm(total=total, initial=done, desc=title, unit=unit, delay=_DELAY, leave=False) as bar:
            yield from _inside(unit, bar.update)
    else:
        yield from _inside(unit, _lines(title, total, unit, done))


@contextmanager
def quiet() -> Iterator[None]:
    """Show no progress of the calls inside, e.g. in a worker whose caller shows its own."""
    outer = _OUTER.set(("", lambda steps: None))
    try:
        yield
    finally:
        _OUTER.reset(outer)


def counted(items: Iterable[T], title: str, total: int, unit: str) -> Iterator[T]:
    """Yield items one by one, each as a step of a `progress`."""
    with progress(title, total, unit) as advance:
        for item in items:
            yield item
            advance(1)


def shows_bars() -> bool:
    """True if a bar can be drawn: on a terminal and in a notebook's kernel; a log would get control characters."""
    ipython = sys.modules.get("IPython")  # an import alone does not mean that this is a notebook
    return sys.stderr.isatty() or (ipython is not None and hasattr(ipython.get_ipython(), "kernel"))


def _inside(unit: str, advance: Advance) -> Iterator[Advance]:
    _OUTER.set((unit, advance))
    try:
        yield advance
    finally:
        _OUTER.set(None)


def _lines(title: str, total: int, unit: str, done: int) -> Advance:
    """Log lines for calls that have taken a while and go on."""
    start, before = time.monotonic(), done
    said = start - _APART + _DELAY

    def advance(steps: int) -> None:
        nonlocal said, done
        done += steps
        if time.monotonic() - said >= _APART and done != total:
            said = time.monotonic()
            left = (said - start) * (total - done) / max(1, done - before)
            print(f"{title}: {unit} {done} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True)

    return advance
