"""The command line: its parser, made from commands.toml, and what becomes of an error; commands.py does the rest."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from .. import __version__
from .._signals import Terminated, terminable
from ..errors import InputError
from . import commands

COMMANDS: dict[str, Any] = tomllib.loads((resources.files(__package__) / "commands.toml").read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `layerdiv`; returns the exit code: 0 done, 1 failed, 2 bad usage, 130 or 143 stopped by a signal."""
    options = make_parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that cannot show Σ gets a question mark
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        out = getattr(options, "out", None)
        # argparse makes a list of --out=--, and Path("") is the current folder.
        if out is not None and (not isinstance(out, str) or not out.strip()):
            raise InputError(f"--out {out!r} names no file or folder: give one.")
        with terminable():
            return options.run(options)
    except BrokenPipeError:  # the reader (head, say) closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InputError as error:
        print(f"layerdiv: {_in_flags(str(error), options)}", file=sys.stderr)
    except KeyboardInterrupt as stop:
        print("layerdiv: stopped.", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except Exception as error:
        if os.environ.get("LAYERDIV_DEBUG"):
            raise
        reason = " ".join(str(error).split())
        print(f"layerdiv: {type(error).__name__}: {reason} (set LAYERDIV_DEBUG=1 to see where).", file=sys.stderr)
    return 1


def _in_flags(sentence: str, options: argparse.Namespace) -> str:
    """A sentence that names arguments of Python as the options that were given."""
    for name, value in vars(options).items():
        given, flag = rf"\b{name}={re.escape(repr(value))}(?!\w)", f"--{name.replace('_', '-')} {value}"
        sentence = flag.join(re.split(given, sentence))
    return sentence


def make_parser() -> argparse.ArgumentParser:
    """The parser; each command's function is its option `run`."""
    parser = argparse.ArgumentParser(
        prog="layerdiv",
        description="Decompose a language model's logits; measure the bias and diversity of its components.",
    )
    parser.add_argument("--version", action="version", version=f"layerdiv {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        if name == "shared":
            continue
        command = subparsers.add_parser(name, help=about["help"], description=about.get("description"))
        command.set_defaults(run=getattr(commands, f"run_{name}"), hint=about.get("hint"))
        if "one_of" in about:
            _add_options(command.add_mutually_exclusive_group(required=True), about["one_of"])
        for options in (about["options"], *(COMMANDS["shared"][group] for group in about.get("shared", ()))):
            _add_options(command, options)
    return parser


def _add_options(command: argparse._ActionsContainer, options: dict[str, Any]) -> None:
    for name, given in options.items():
        settings: dict[str, Any] = dict(given)
        names = [settings.pop("short"), name] if "short" in settings else [name]
        if settings.get("type") == "int":
            settings["type"] = int
        if name.startswith("-") and settings.get("nargs") == "+":
            settings["action"] = "extend"
        command.add_argument(*names, **settings)
