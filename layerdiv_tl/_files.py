"""Files that are there whole or not at all, whoever else writes into the same folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# How long a file may be written before it counts as abandoned, in seconds.
AGE = 3600
PARTIAL = ".*.partial"
# The largest file of rows that is read.
MOST_BYTES = 2**31


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Write to the path that this yields: it takes the name `path` when all went well, and is removed otherwise.

    The bytes are on the disk before the name is. Raises OSError where nothing can be written.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with written(file) as partial:
    ...     _ = partial.write_text("1 2 3")
    ...     print(file.exists(), partial.match(PARTIAL))
    False True
    >>> file.read_text(), list(file.parent.glob(PARTIAL))
    ('1 2 3', [])
    """
    if path.is_dir():  # "." has no name to write beside
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        with partial.open("xb") as file:
            mode = os.fstat(file.fileno()).st_mode
        yield partial
        partial.chmod(mode)  # some writers make files that nobody else may read
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def parse_json(text: str) -> Any:
    """What JSON says. Raises ValueError also for a key that stands twice and for objects nested too deeply."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        known = dict(pairs)
        if len(known) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} stands twice")
        return known

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """A file's content. Raises OSError also for what is no regular file, and for one of more than `most` bytes."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if about.st_size > most:
        raise OSError(errno.EFBIG, f"it has more than {most / 2**20:,.0f} MiB", str(path))
    return path.read_bytes()


def write_text(path: Path, text: str) -> Path:
    """Write a text file in UTF-8, whole or not at all. Raises OSError."""
    with written(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def write_first(path: Path, text: str) -> bool:
    """Write a text file unless there is one; of several processes at once one does, and gets True. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        partial.write_text(text, encoding="utf-8")
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            os.replace(partial, path)
        return True
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def sweep(folder: Path, age: float = AGE) -> None:
    """Remove what killed processes left half written at least `age` seconds ago."""
    for file in folder.glob(PARTIAL):
        with contextlib.suppress(OSError):  # another process may remove it now
            if time.time() - file.stat().st_mtime > age:
                file.unlink()


def _partial(path: Path) -> Path:
    """A name no other writer takes: hosts that share a folder, containers above all, may have equal process ids."""
    return path.with_name(f".{path.name[:40]}.{writer()}.{secrets.token_hex(6)}.partial")


def writer() -> str:
    """A name for this host and process."""
    return f"{re.sub('[^A-Za-z0-9-]+', '-', socket.gethostname())[:40]}-{os.getpid()}"
