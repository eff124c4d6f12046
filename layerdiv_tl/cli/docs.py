"""`layerdiv docs`: the reference, and in a clone the course, as a static site."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import warnings
import webbrowser
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import printing
from .arguments import made_folder


def run_docs(options: argparse.Namespace) -> tuple[dict[str, str], tuple[str, ...]]:
    """The reference as an offline site; in a clone also the course and the cookbook.

    Build every public name, the papers' equations and the architectures from the docstrings, with a search; in a clone
    of the repository also a front page, the cookbook and the read edition of the course, whose notebooks are run (some
    minutes). Any static host can serve the folder. It needs pdoc and nbconvert: pip install 'pdoc>=15' (in a clone:
    pip install '.[docs]').
    """
    try:
        import pdoc
    except ImportError as error:
        raise InputError("the reference is built by pdoc: pip install 'pdoc>=15'.") from error
    out = made_folder(options.out)
    pdoc.render.configure(docformat="google")
    # What a class inherits within the package is documented with it: pdoc shows inherited members by a link only.
    pdoc.doc.Class.own_members = property(_own_members)  # type: ignore[method-assign,assignment]
    with warnings.catch_warnings(action="ignore"):  # annotations imported only for type checkers
        pdoc.pdoc("layerdiv_tl", "!layerdiv_tl[.](depth|zoo)[.]", output_directory=out / "reference")
    for path in (out / "reference").rglob("*.html"):
        _unlink_missing(path)
    page, script = out / "reference" / "layerdiv_tl.html", Path(__file__).parents[2] / "notebooks" / "website.py"
    if script.is_file():
        page = out / "index.html"
        command = [sys.executable, str(script), "--out", str(out), "--jobs", str(min(4, os.cpu_count() or 1))]
        command += ["--no-outputs"] * options.no_outputs
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as building:
            for line in building.stdout or ():
                printing.print_progress(line.rstrip())
        if building.returncode:
            raise InputError(f"the course could not be built (see above): the reference alone is in {out}/reference.")
    if not (sys.stdout.isatty() and webbrowser.open(page.resolve().as_uri())):
        print(f"Open {page} in a browser.")
    return {"page": str(page)}, ()


def _own_members(cls: Any) -> list[Any]:
    """The members of a class that this package defines."""
    return [member for member in cls.members.values() if member.taken_from[0].startswith("layerdiv_tl")]


def _unlink_missing(path: Path) -> None:
    """Turn links to names without a description, such as fields, into text."""
    source = path.read_text(encoding="utf-8")
    there = set(re.findall(r' id="([^"]+)"', source))
    kept = re.sub(r'<a href="#([^"]+)">([^<]*)</a>', lambda link: link[0] if link[1] in there else link[2], source)
    path.write_text(kept, encoding="utf-8")
