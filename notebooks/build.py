"""Run the notebooks from fresh kernels, and write what they show.

    python notebooks/build.py [NAME …] [--out FOLDER] [--jobs N]    # the read edition: pages, exercises solved
    python notebooks/build.py [NAME …] --outputs                    # outputs into the notebooks, figures as pictures

Needs `pip install -e '.[test]'`, and for pictures Chromium. The notebooks themselves, the student edition, hold no
solutions; these come from `layerdiv_tl.teaching`. A page needs no network: plotly.js is in it, formulas are MathML.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

import nbformat
import plotly.graph_objects as go
from latex2mathml.converter import convert
from nbclient import NotebookClient
from nbconvert.filters import highlight, markdown2html
from pygments.formatters import HtmlFormatter

from layerdiv_tl import teaching
from layerdiv_tl.teaching import Exercise
from layerdiv_tl.views import style
from layerdiv_tl.views.html import Block, Page, chart

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("[0-9]*.ipynb")))
TEXTS = ("README", "LESSON_PLANS")  # what notebooks and their readers go on to
WIDGET = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"
WIDTH = 760  # pixels of a stored figure
EXPLORER = {"width": 1100, "height": 700}  # the window whose content is stored
SECONDS = 600  # the most for one cell, on a machine that does other things too
LESSON = re.compile(r"^from layerdiv_tl\.teaching import (\w+) as lesson\b", re.MULTILINE)
CHECK = re.compile(r"^lesson\.(\w+)\.check\((.*)\)", re.MULTILINE)
STUB = re.compile(r"^(\w+) = \.\.\.", re.MULTILINE)
MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$\n]+?)(?<!\s)\$(?![\w$])", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
IMAGE = re.compile(r"!\[([^\]]*)\]\((images/[\w.-]+)\)")  # a diagram: what it shows, in words, and its file
CSS = """
.cell table { margin: .6rem 0 1rem } .cell th, .cell td { text-align: left; white-space: normal; vertical-align: top }
main { max-width: 60rem } .cell { margin: 1rem 0; overflow-x: auto }
.out { margin: .4rem 0 .4rem .2rem; overflow-x: auto }
.cell pre, .out pre { white-space: pre-wrap; overflow-wrap: anywhere }
.cell img, .out img { max-width: 100%; height: auto }
.out table { border: 0; border-collapse: collapse; font-variant-numeric: tabular-nums }
.out th, .out td { padding: .15rem .55rem; text-align: right; border: 0; border-bottom: 1px solid var(--line, #8884) }
math { font-family: STIX Two Math, Cambria Math, Latin Modern Math, DejaVu Math TeX Gyre, Noto Sans Math, math }
math[display=block] { margin: .8rem 0; overflow-x: auto }
iframe { width: 100%; height: 46rem; border: 1px solid var(--line, #ccc) }
.in { border-left: 3px solid #8888; padding-left: .8rem } details.help { margin: .3rem 0 }
"""
PICTURE_CSS = "main { max-width: none; padding: 0 } h1 { display: none } figure { margin: 0; padding: 0; border: 0 }"


@dataclass(frozen=True)
class Asked:
    """An exercise as it stands in a notebook: the stub's cell, and the check's, which follows it."""

    stub: int
    check: int
    exercise: Exercise
    solved: str


def read(name: str) -> nbformat.NotebookNode:
    """A notebook as it is in the repository."""
    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


def tags(cell: nbformat.NotebookNode) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def asked(notebook: nbformat.NotebookNode) -> list[Asked]:
    """The exercises of a notebook, in order: each cell tagged `exercise`, with the check in the next code cell."""
    found = []
    cells = notebook.cells
    source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for index, cell in enumerate(cells):
        if "exercise" not in tags(cell):
            continue
        check = next(i for i in range(index + 1, len(cells)) if cells[i].cell_type == "code")
        call, named = CHECK.search(cells[check].source), LESSON.search(source)
        assert call, f"cell {index} is an exercise, and cell {check} does not check it"
        assert named, "no `from layerdiv_tl.teaching import … as lesson`"
        exercise = getattr(getattr(teaching, named[1]), call[1])
        solved, value = exercise.source, STUB.search(cell.source)
        if value:  # the answer is no function: it is what the reference gives for what the check is given
            given = call[2].partition(",")[2].strip()
            solved += f"\n\n{value[1]} = {exercise.name}({given})\n"
        found.append(Asked(index, check, exercise, solved))
    return found


@contextmanager
def kernel(notebook: nbformat.NotebookNode, folder: Path = HERE) -> Iterator[NotebookClient]:
    """A fresh kernel to run cells in; figures come as plotly's JSON."""
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with client.setup_kernel(env={**os.environ, "PLOTLY_RENDERER": "plotly_mimetype", "TQDM_DISABLE": "1"}):
        yield client


def is_noise(output: nbformat.NotebookNode) -> bool:
    """Whether this is nothing that a cell said: a bar of tqdm's, or what torch says of its own libraries."""
    data = output.get("data", {})
    progress = WIDGET in data and "%|" in data.get("text/plain", "")
    return progress or (output.get("name") == "stderr" and bool(re.search(r"torchao|_pytree|%\|", output.text)))


def ask(client: NotebookClient, source: str) -> nbformat.NotebookNode:
    """Run code that is no cell of the notebook; the cell that it would be."""
    cell = nbformat.v4.new_code_cell(source)
    client.nb.cells.append(cell)
    try:
        client.execute_cell(cell, len(client.nb.cells) - 1)
    finally:
        client.nb.cells.pop()
    return cell


def execute(notebook: nbformat.NotebookNode, folder: Path, name: str) -> None:
    """Run every cell in a fresh kernel; explorers are saved as pages in a folder, and their outputs name these."""
    with kernel(notebook) as client:
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            client.execute_cell(cell, index)
            cell.outputs = [output for output in cell.outputs if not is_noise(output)]
            for output in cell.outputs:
                data = output.get("data", {})
                if data.pop(WIDGET, None) is not None and data.get("text/plain", "").startswith("Explorer("):
                    page = f"{name}-explorer-{index}.html"
                    ask(client, f"{cell.source.splitlines()[-1]}.save({str((folder / page).resolve())!r})")
                    data["text/html"] = f'<iframe src="{page}" title="The explorer" loading=lazy></iframe>'


def solved(name: str, out: Path) -> nbformat.NotebookNode:
    """A notebook that was run from a fresh kernel with its exercises solved; explorers are saved beside the page."""
    notebook = read(name)
    for each in asked(notebook):
        notebook.cells[each.stub].source = each.solved
    execute(notebook, out, name)
    return notebook


def store(name: str) -> str:
    """Run a notebook as it is, exercises empty, and write it with its outputs; returns a line about it."""
    start = time.monotonic()
    notebook = read(name)
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder), name)
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        photograph([output for output in outputs if is_drawn(output)], Path(folder))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.metadata.pop("execution", None)
    for output in outputs:
        output.pop("execution_count", None)
        if output.output_type == "execute_result":
            output.execution_count = None
        if "text/html" in output.get("data", {}):
            output.data["text/html"] = plain_table(output.data["text/html"])
    nbformat.write(notebook, HERE / f"{name}.ipynb")
    size = (HERE / f"{name}.ipynb").stat().st_size
    return f"{name}: {time.monotonic() - start:.0f} s, {size / 1e3:.0f} kB"


def is_drawn(output: nbformat.NotebookNode) -> bool:
    """Whether an output needs a browser: a figure, an explorer, a view with scripts."""
    data = output.get("data", {})
    return PLOTLY in data or bool(re.search("<script|<iframe", data.get("text/html", "")))


def photograph(outputs: list[nbformat.NotebookNode], folder: Path) -> None:
    """Replace outputs by pictures of them."""
    if not outputs:
        return
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for output in outputs:
            block = shown(output)
            explorer = re.match('<iframe src="([^"]+)"', block.html)
            path = folder / (explorer[1] if explorer else "picture.html")
            if not explorer:
                page = Page("")
                page.block(
                    Block(f"<style>{CSS}{PICTURE_CSS}</style><div id=picture>{block.html}</div>", block.circuits)
                )
                page.write(path)
            opened = browser.new_page(viewport=EXPLORER if explorer else {"width": WIDTH, "height": 400})
            opened.goto(path.resolve().as_uri())
            opened.wait_for_timeout(1000)
            png = opened.screenshot() if explorer else opened.locator("#picture").screenshot()
            opened.close()
            output.data = {key: text for key, text in output.data.items() if key == "text/plain"}
            output.data["image/png"] = base64.b64encode(png).decode()
        browser.close()


def plain_table(html: str) -> str:
    """A table of pandas without its style sheet and classes."""
    html = re.sub(r"<style.*?</style>\s*", "", html, flags=re.DOTALL)
    return re.sub(r' (?:class|style|border)="[^"]*"', "", html)


def prose(source: str) -> str:
    """Markdown as HTML: formulas as MathML, diagrams inside, links to notebooks as links to pages."""
    kept: list[str] = []

    def keep(html: str) -> str:
        kept.append(html)
        return f"KEPT{len(kept) - 1}KEPT"

    def formula(match: re.Match[str]) -> str:
        return keep(convert(match[1] or match[2], display="block" if match[1] else "inline"))

    def image(match: re.Match[str]) -> str:
        data = base64.b64encode((HERE / match[2]).read_bytes()).decode()
        return keep(f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(match[1])}">')

    codes = CODE.findall(source)
    text = MATH.sub(formula, IMAGE.sub(image, CODE.sub("CODECODE", source)))
    for code in codes:
        text = text.replace("CODECODE", code, 1)
    html = markdown2html(re.sub(r"(\]\(\w+)\.(?:ipynb|md)\b", r"\1.html", text))
    html = re.sub(r'<a class="anchor-link".*?</a>', "", html)  # which a static page does not show
    return re.sub(r"KEPT(\d+)KEPT", lambda match: kept[int(match[1])], html)


def text_page(name: str, folder: Path = HERE) -> Page:
    """A Markdown file as a page, its anchors as GitHub writes them."""
    title, _, body = (folder / f"{name}.md").read_text(encoding="utf-8").partition("\n")
    made = Page(title.removeprefix("# "))
    made.block(Block(f"<style>{CSS}</style>"))
    html = re.sub(r'(?<=<h2 id=")[^"]+', lambda match: match[0].lower(), prose(body))
    made.block(Block(f"<div class=cell>{html}</div>"))
    return made


def shown(output: nbformat.NotebookNode) -> Block:
    """One output of a cell."""
    if output.output_type == "stream":
        return Block(f"<pre>{escape(output.text)}</pre>")
    if output.output_type == "error":
        raise RuntimeError("\n".join(output.traceback))
    data = output.data
    if PLOTLY in data:
        figure = go.Figure({key: data[PLOTLY][key] for key in ("data", "layout")})
        own, usual = figure.layout, style.template().layout
        # A page fits titles to a narrow window, and starts from sizes that drawings by hand leave to their template.
        own.update(title_pad_t=own.title.pad.t or usual.title.pad.t, margin_t=own.margin.t or usual.margin.t)
        return chart(figure.update_layout(height=own.height or 450))
    if "image/png" in data:
        return Block(f'<img src="data:image/png;base64,{data["image/png"]}" alt="">')
    return Block(data["text/html"] if "text/html" in data else f"<pre>{escape(data['text/plain'])}</pre>")


def folded(line: str, html: str) -> str:
    """What a reader opens."""
    return f"<details class=help><summary>{escape(line)}</summary>{html}</details>"


def code_colors() -> str:
    """The colors of code, on the page's own ground, light or dark."""
    light, dark = (
        HtmlFormatter(style=name, nobackground=True).get_style_defs(".highlight") for name in ("default", "github-dark")
    )
    return f"{light} @media (prefers-color-scheme: dark) {{ {dark} }}"


def page(name: str, notebook: nbformat.NotebookNode) -> Page:
    """The read edition of one notebook that was run: hints and solutions folded, outputs below their cells."""
    title = re.search(r"^# (.+)$", notebook.cells[0].source, re.MULTILINE)
    made = Page(unescape(title[1] if title else name))
    made.block(Block(f"<style>{CSS}{code_colors()}</style>"))
    stubs, checks = ({getattr(a, which): a for a in asked(read(name))} for which in ("stub", "check"))
    stub_sources = {index: read(name).cells[index].source for index in stubs}
    colored = highlight.Highlight2HTML()
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            source = re.sub(r"^# .+\n", "", cell.source, count=1) if index == 0 else cell.source
            made.block(Block(f"<div class=cell>{prose(source)}</div>"))
            continue
        made.block(Block(f"<div class='cell in'>{colored(stub_sources.get(index, cell.source))}</div>"))
        for output in cell.outputs if index not in stubs else []:
            block = shown(output)
            made.block(Block(f"<div class=out>{block.html}</div>", block.circuits))
        if index in checks:
            one = checks[index]
            for level, hint in enumerate(one.exercise.hints, start=1):
                made.block(Block(folded(f"Hint {level}", prose(hint))))
            made.block(Block(folded("Solution", colored(one.solved))))
    return made


def build(name: str, out: Path, run: bool = True) -> str:
    """Write one notebook's page, with outputs unless it is not `run`, and say how long its cells took."""
    start = time.monotonic()
    notebook = solved(name, out) if run else read(name)
    took = time.monotonic() - start
    path = page(name, notebook).write(out / f"{name}.html")
    return f"{path}: {took:.0f} s, {path.stat().st_size / 1e6:.1f} MB"


def main() -> None:
    """Build the pages that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks, or the beginnings of their names")
    parser.add_argument("--out", default="notebook-pages", help="the folder of the pages")
    parser.add_argument("--outputs", action="store_true", help="write outputs into the notebooks instead of pages")
    parser.add_argument("--jobs", default=1, type=int, help="how many are built at a time (default: %(default)s)")
    options = parser.parse_args()
    names: list[str] = []
    for given in options.names or NAMES:
        chosen = [name for name in NAMES if name.startswith(Path(given).stem)]
        if not chosen:
            parser.error(f"there is no notebook {given!r}: choose among {', '.join(NAMES)}.")
        names += chosen
    if options.outputs:
        for name in names:
            print(store(name), flush=True)
        return
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in TEXTS:
        text_page(name).write(out / f"{name}.html")
    with ProcessPoolExecutor(options.jobs) as pool:
        for said in pool.map(build, names, [out] * len(names)):
            print(said, flush=True)


if __name__ == "__main__":
    main()
