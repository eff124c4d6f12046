"""Files written completely or not at all, even if other processes write to the same folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Seconds after which an unfinished file counts as abandoned.
AGE = 3600
PARTIAL = ".*.partial"


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a partial path to write to. On success it is renamed to `path`; otherwise it is removed.

    The bytes are on disk before the name is. Raises OSError if nothing can be written.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with written(file) as partial:
    ...     _ = partial.write_text("1 2 3")
    ...     print(file.exists(), partial.match(PARTIAL))
    False True
    >>> file.read_text(), list(file.parent.glob(PARTIAL))
    ('1 2 3', [])
    """
    if path.is_dir():  # "." has no name to derive a partial path from
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        with partial.open("xb") as file:
            mode = os.fstat(file.fileno()).st_mode
        yield partial
        partial.chmod(mode)  # some writers make files readable only by their owner
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write to. On success it becomes `path`, a new or empty folder; otherwise it is removed.

    Raises OSError if nothing can be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError also for duplicate keys and for objects nested too deeply."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        known = dict(pairs)
        if len(known) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} occurs twice")
        return known

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_text(path: Path, text: str) -> Path:
    """Write a text file in UTF-8, completely or not at all. Raises OSError."""
    with written(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def sweep(folder: Path, age: float = AGE) -> None:
    """Remove partial files that killed processes left at least `age` seconds ago."""
    for file in folder.glob(PARTIAL):
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if time.time() - file.stat().st_mtime > age:
                file.unlink()


def _partial(path: Path) -> Path:
    """Make a name that no other writer uses; hosts sharing a folder, above all containers, may share process ids."""
    return path.with_name(f".{path.name[:40]}.{writer()}.{secrets.token_hex(6)}.partial")


def writer() -> str:
    """Make a name for this host and process."""
    return f"{re.sub('[^A-Za-z0-9-]+', '-', socket.gethostname())[:40]}-{os.getpid()}"
