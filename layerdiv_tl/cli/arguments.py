"""Parse the options that several commands share: folders, files, texts, loading of models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import InputError


def made_folder(out: str, folder: Path) -> Path:
    """Create the folder for --out before the work begins. Raises InputError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made ({error.strerror}): give one of yours.") from error
    return folder


def output_file(out: str) -> Path:
    """Return the file of --out after creating its folder. Raises InputError for a folder, and if that fails."""
    if (path := Path(out)).is_dir():
        raise InputError(f"--out {out!r} names no file: give one, or leave the option out.")
    made_folder(out, path.parent)
    return path


def load_options(options: argparse.Namespace) -> dict[str, Any]:
    """Collect the given options of `load_model`."""
    names = ("device", "dtype", "device_map", "trust_remote_code")
    return {name: value for name in names if (value := getattr(options, name, None)) not in (None, False)}


def given_text(options: argparse.Namespace) -> str:
    """Return the text to profile: as given, from a file, or from standard input. Raises InputError if empty."""
    try:
        if options.file is not None:
            text = read_file("--file", options.file)
        else:
            text = sys.stdin.buffer.read().decode("utf-8") if options.text == "-" else options.text
        text.encode("utf-8")
    except UnicodeError as error:
        raise InputError("the text is not UTF-8: convert it first, for example with iconv.") from error
    if not text.strip():
        raise InputError("the text is empty: give at least two tokens of text.")
    # The final line break of a file or of echo is not part of the text.
    return text if options.text not in (None, "-") else text.removesuffix("\n").removesuffix("\r")


def read_file(option: str, name: str) -> str:
    """Read the text file that an option names. Raises InputError if it cannot be read as UTF-8."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{option} {name} cannot be read ({error.strerror}): check the path.") from error
    except UnicodeError as error:
        raise InputError(f"{option} {name} is not UTF-8: convert it first, for example with iconv.") from error
