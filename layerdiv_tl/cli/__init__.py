"""The command line: `main` reports results, errors and signals; parser.py has the options, commands.py the work."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence

from .._signals import Terminated, terminable
from ..errors import InputError
from .parser import LOADING, OPTIONS, make_parser
from .printing import print_failures, print_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `layerdiv`; returns the exit code: 0 done, 1 failed, 2 bad usage, 130 or 143 stopped by a signal."""
    parser = make_parser()
    options, more = parser.parse_known_args(arguments)
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}; {_instead(more[0], options.command)}")
    out = getattr(options, "out", None)
    options.load = {name: value for name in LOADING if (value := getattr(options, name, None)) not in (None, False)}
    for stream in (sys.stdout, sys.stderr):  # an encoding without Σ prints a question mark
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        # argparse turns --out=-- into a list, and Path("") is the current folder.
        if out is not None and (not isinstance(out, str) or not out.strip()):
            raise InputError(f"--out {out!r} names no file or folder: give one.")
        quiet = contextlib.redirect_stdout(io.StringIO()) if options.json else contextlib.nullcontext()
        with terminable(), quiet:
            record, failures = options.run(options)
        if options.json and record is not None:
            print_json(record)
        return print_failures(failures)
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


def _instead(given: str, command: str) -> str:
    """Say how a command takes the models and tasks that it did not understand."""
    taken = OPTIONS[command]
    named = [f"--{name} {given}" for name in ("model", "task") if f"--{name}" in taken]
    if given[:1] != "-" and named:
        return f"give it as {' or '.join(named)}"
    if given.partition("=")[0] == "--model" and (names := [name for name in ("a", "b", "model") if name in taken]):
        return f"models are given without --model: layerdiv {command} {' '.join(names).upper()}"
    return f"`layerdiv {command} --help` lists what it takes"


def _in_flags(sentence: str, options: argparse.Namespace) -> str:
    """Rename Python arguments in a sentence to the command-line options."""
    for name, value in vars(options).items():
        given, flag = rf"\b{name}={re.escape(repr(value))}(?!\w)", f"--{name.replace('_', '-')} {value}"
        sentence = flag.join(re.split(given, sentence))
    return sentence
