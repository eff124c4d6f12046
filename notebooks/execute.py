"""Run the notebooks from fresh kernels and keep their outputs, with pictures for readers on the web.

    python notebooks/execute.py [NAME …]

Needs `pip install 'layerdiv-tl[images,test]'` and a Chrome or Chromium. JupyterLab draws the figures as plotly;
where nothing draws them, on a page of GitHub, say, the picture beside each is shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("[0-9]*.ipynb")))
WIDGET = "application/vnd.jupyter.widget-view+json"
SECONDS = 600  # the most for one cell, on a machine that does other things too


def read(name: str) -> nbformat.NotebookNode:
    """A notebook as it is in the repository."""
    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


@contextmanager
def kernel(notebook: nbformat.NotebookNode, renderer: str) -> Iterator[NotebookClient]:
    """A fresh kernel to run cells in, which draws plotly's figures as `renderer` says."""
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(HERE)}},
    )
    with client.setup_kernel(env={**os.environ, "PLOTLY_RENDERER": renderer, "TQDM_DISABLE": "1"}):
        yield client


def is_noise(output: nbformat.NotebookNode) -> bool:
    """Whether the browser that draws the pictures complains, which is nothing that a cell said."""
    return output.output_type == "stream" and output.name == "stderr" and "choreographer" in output.text


def is_progress(output: nbformat.NotebookNode) -> bool:
    """Whether this is a bar of tqdm's, which takes no notice of TQDM_DISABLE in notebooks."""
    data = output.get("data", {})
    return WIDGET in data and "%|" in data.get("text/plain", "")


def execute(name: str) -> float:
    """Run one notebook and write it with its outputs; the seconds it took."""
    notebook, start = read(name), time.monotonic()
    with kernel(notebook, "plotly_mimetype+png") as client:
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
                client.execute_cell(cell, index)
                cell.outputs = [each for each in cell.outputs if not (is_progress(each) or is_noise(each))]
                for output in cell.outputs:  # a widget lives as long as its kernel: later it is an error on the page
                    output.get("data", {}).pop(WIDGET, None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    seconds = time.monotonic() - start
    nbformat.write(notebook, HERE / f"{name}.ipynb")
    return seconds


if __name__ == "__main__":
    for given in sys.argv[1:] or NAMES:
        chosen = [name for name in NAMES if name.startswith(Path(given).stem)]
        if not chosen:
            sys.exit(f"there is no notebook {given!r}: choose among {', '.join(NAMES)}.")
        for one in chosen:
            took = execute(one)
            print(f"{one}: {took:.0f} s, {(HERE / f'{one}.ipynb').stat().st_size / 1e6:.1f} MB", flush=True)
