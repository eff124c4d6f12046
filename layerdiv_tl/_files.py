"""Files written completely or not at all, even if other processes write to the same folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import InputError

# Seconds after which an unfinished file counts as abandoned.
AGE = 3600
PARTIAL = ".*.partial"


class NothingWritten(Exception):
    """Leaves `written` without a file."""


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a partial path to write to. On success it is renamed to `path`; otherwise it is removed.

    The bytes are on disk before the name is. A symbolic link is followed. Raises InputError where nothing can be
    written, and where something other than a file is: a folder, a device, a pipe, a read-only file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with written(file) as partial:
    ...     _ = partial.write_text("1 2 3")
    ...     print(file.exists(), partial.match(PARTIAL))
    False True
    >>> file.read_text(), list(file.parent.glob(PARTIAL))
    ('1 2 3', [])
    """
    target = Path(os.path.realpath(path))
    partial = _partial(target)
    try:
        with contextlib.suppress(FileNotFoundError):
            _check_replaceable(path.stat().st_mode)
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            mode = os.fstat(file.fileno()).st_mode
        yield partial
        partial.chmod(mode)  # some writers make files readable only by their owner
        _flush(partial)
        os.replace(partial, target)
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be written ({error.strerror or error}): give the path of a file of yours."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Put a file's bytes on disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _check_replaceable(mode: int) -> None:
    """Raise OSError for anything but a file that may be written, also where a superuser could."""
    if not stat.S_ISREG(mode):
        raise OSError("it is a directory" if stat.S_ISDIR(mode) else "it is a device, a pipe or a socket")
    if not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise OSError("it is read-only")


def check_writable(path: Path) -> None:
    """Raise InputError, before anything is computed, where `written` could not write."""
    with contextlib.suppress(NothingWritten), written(path):
        raise NothingWritten


@contextlib.contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write to. On success it becomes `path`, a new or empty folder; otherwise it is removed.

    Raises InputError for the current folder, and OSError if nothing can be written.
    """
    if path.resolve() == Path.cwd():
        raise InputError(f"{str(path)!r} is the current folder, which cannot be replaced: give a new one.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                _flush(file)
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sweep(folder: Path, age: float = AGE) -> None:
    """Remove partial files that killed processes left at least `age` seconds ago."""
    for file in folder.glob(PARTIAL):
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if time.time() - file.stat().st_mtime > age:
                file.unlink()


def _partial(path: Path) -> Path:
    """Make a name that no other writer uses; hosts sharing a folder, above all containers, may share process ids."""
    return path.parent / f".{path.name[:40]}.{writer()}.{secrets.token_hex(6)}.partial"


def writer() -> str:
    """Make a name for this host and process."""
    return f"{re.sub('[^A-Za-z0-9-]+', '-', socket.gethostname())[:40]}-{os.getpid()}"
