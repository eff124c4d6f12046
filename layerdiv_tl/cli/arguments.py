"""Parse the options that several commands share: folders, files, texts, loading of models."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from ..model.load import Model


def made_folder(out: str, folder: Path | None = None) -> Path:
    """Create the folder of --out before the work begins. Raises InputError if that fails."""
    folder = Path(out) if folder is None else folder
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


def accepted(function: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """Collect the options that are keyword arguments of a function."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in vars(options).items() if name in names}


def load_source(source: str, options: argparse.Namespace) -> Model:
    """Load a model with the options given for it; 'default' is the default one."""
    from ..model.load import load_model

    return load_model(None if source == "default" else source, **options.load)


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
