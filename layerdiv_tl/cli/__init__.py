"""The command line: `main` parses, runs a command of commands.py, and reports a failure in one line."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..errors import InputError
from . import commands

LOADING: dict[str, dict[str, Any]] = {
    "--device": {"metavar": "D", "help": "where the model runs, e.g. cpu or cuda:1 (default: a GPU if any)"},
    "--dtype": {"metavar": "DTYPE", "help": "precision of the weights, e.g. bfloat16 (default: the checkpoint's)"},
    "--trust-remote-code": {"action": "store_true", "help": "run code that comes with a checkpoint"},
}
MODEL = {"metavar": "M", "default": "default", "help": "a Hugging Face id, a folder, a .gguf file, or 'default'"}
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "demo": {"--out": {"metavar": "DIR", "default": "layerdiv-demo", "help": "where to write"}},
    "explore": {
        "text": {"metavar": "TEXT", "help": "the text, or - to read it from the standard input, in UTF-8"},
        "--model": MODEL,
        "--out": {"metavar": "FILE", "default": "explorer.html", "help": "the page"},
        **LOADING,
    },
    "check": {"model": MODEL | {"metavar": "MODEL"}, **LOADING},
    "run": {
        "--model": MODEL | {"nargs": "+", "action": "extend", "required": True, "default": None},
        "--task": {"metavar": "T", "nargs": "+", "action": "extend", "required": True, "help": "names, or JSON files"},
        "--out": {"metavar": "DIR", "required": True, "help": "where to write, and to resume from"},
        "--data": {"metavar": "DIR", "help": "folder with the tasks' rows, <name>.jsonl, .csv or .parquet"},
        "--limit": {"metavar": "N", "type": int, "help": "use the first N rows (default: 2000 of the paper's)"},
        "--unit": {
            "choices": ("sublayer", "head", "neuron", "expert"),
            "default": "sublayer",
            "help": "components to decompose into",
        },
        "--workers": {"metavar": "N", "type": int, "default": 1, "help": "processes that share the cells"},
        **LOADING,
    },
    "report": {
        "folder": {"metavar": "FOLDER", "help": "what `layerdiv run` or `ld.Grid` wrote"},
        "--out": {"metavar": "FILE", "default": "report.html", "help": "the page"},
    },
}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser. A command's help is the docstring of its function, which is stored as `run`."""
    parser = argparse.ArgumentParser(
        prog="layerdiv",
        description="Decompose a language model's logits; measure the bias and diversity of its components.",
    )
    parser.add_argument("--version", action="version", version=f"layerdiv {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, options in OPTIONS.items():
        run = getattr(commands, name)
        about = inspect.cleandoc(run.__doc__)
        command = subparsers.add_parser(name, help=about.partition("\n\n")[0].rstrip("."), description=about)
        command.set_defaults(run=run)
        for flag, settings in options.items():
            is_option = flag.startswith("--")
            if not is_option:
                settings = {key: value for key, value in settings.items() if key != "default"}
            elif settings.get("default") is not None:
                settings = settings | {"help": settings["help"] + " (default: %(default)s)"}
            command.add_argument(flag, **settings)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `layerdiv`; returns the exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):  # an encoding without Σ prints a question mark
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except BrokenPipeError:  # the reader (head, say) closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InputError as error:
        print(f"layerdiv: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("layerdiv: stopped.", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("LAYERDIV_DEBUG"):
            raise
        reason = " ".join(str(error).split())
        print(f"layerdiv: {type(error).__name__}: {reason} (set LAYERDIV_DEBUG=1 to see where).", file=sys.stderr)
    return 1
