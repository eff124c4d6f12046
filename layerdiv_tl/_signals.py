"""SIGTERM as an exception, so that a process cleans up first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where the program is: like an interrupt, `except Exception` lets it pass."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` at a SIGTERM, so that half-written files and workers go too; a second one ends at once.

    Outside the main thread, where Python handles no signals, this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _raise(number: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated
