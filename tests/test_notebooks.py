"""The notebooks: short texts, outputs of a fresh run, empty exercises; solutions pass, prose knows its numbers."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
_spec = importlib.util.spec_from_file_location("notebook_build", NOTEBOOKS / "build.py")
assert _spec is not None
assert _spec.loader is not None
book = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = book
_spec.loader.exec_module(book)

BEGUN, RIGHT = "…", "✓"
LARGEST = 4e6  # bytes of all notebooks
MOST_WORDS = 120  # of one text cell
MOST_WORDS_OF_ALL = 15_000
LARGEST_IMAGE = 1e4  # bytes of one diagram
SMALLEST_TEXT = 12  # pixels, in a diagram
NUMBER = re.compile(
    r"(?<![\w.])[-−+]?(?:\d{1,3}(?:[ \u202f\u00a0,]\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])(?:[ \u202f]?%)?"
)
# What stands in prose without being a result: code, formulas, links, names of things that are numbered.
NAMED = re.compile(
    r"(?:notebooks?|sections?|§|Theorems?|Eqs?\.|Equations?|Tables?|Fig(?:ure|s)?\.?|arXiv|exercises?|claims?|parts?|steps?|"
    r"weeks?|options?|layers?|positions?|min|minutes)\s*\d[\d.]*(?:(?:,| and| to|–)\s*\d[\d.]*)*",
    re.IGNORECASE,
)
AUTHORS = re.compile(r"(?:\b(?:et al\.|and)?,? ?)\(?(?:19|20)\d\d\)?")
LINK = re.compile(r"\[[^\]]*\]\([^)]*\)|https?://\S+|<[^>]+>")


NAMES = book.NAMES
# The nightly ones: together they run as long as the rest of the suite.
LONG = ("00", "02", "03", "04", "05", "06", "07", "08", "09")


def said(cell: Any) -> str:
    """What a cell printed and showed, as text."""
    parts = []
    for output in cell.outputs:
        assert output.output_type != "error", "\n".join(output.traceback)
        if book.is_noise(output):
            continue
        parts.append(output.text if output.output_type == "stream" else output.data.get("text/plain", ""))
    return " ".join("\n".join(parts).split())


def value(text: str) -> float:
    """A number as it is written."""
    return float(re.sub(r"[ \u202f\u00a0,%]", "", text).replace("−", "-"))


def differences(before: str, now: str) -> list[str]:
    """Where two texts differ in more than the last digit or a hundredth of a number."""
    if NUMBER.sub("#", before) != NUMBER.sub("#", now):
        return [f"{before!r} is now {now!r}"]
    pairs = zip(NUMBER.findall(before), NUMBER.findall(now), strict=True)
    return [
        f"{a} is now {b}"
        for a, b in pairs
        if abs(value(a) - value(b)) > max(0.01 * max(abs(value(a)), abs(value(b))), 1.5 * last_digit(a))
    ]


def last_digit(text: str) -> float:
    """What one more in the last digit of a written number is worth."""
    mantissa, _, exponent = re.sub(r"[ \u202f%]", "", text).partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def prose(source: str) -> str:
    """Markdown without code, formulas, links and the names of numbered things."""
    text = book.MATH.sub(" ", book.IMAGE.sub(" ", book.CODE.sub(" ", source)))
    return AUTHORS.sub(
        " ", NAMED.sub(" ", LINK.sub(" ", re.sub(r"^(?:#+ .*|\d+\. |\*\d+ min · .*)", "", text, flags=re.MULTILINE)))
    )


def unprinted(text: str, printed: str) -> list[str]:
    """The numbers of a prose text that are none of the printed ones, rounded as the prose rounds them."""
    known = [(value(found), "%" in found) for found in NUMBER.findall(printed)]
    missing = []
    for found in NUMBER.findall(text):
        x, half = value(found), 0.5 * last_digit(found) * (1 + 1e-6) + 1e-12
        exact = not re.search(r"[.%e]", found) and abs(x) < 10  # a count is not a rounded number

        def near(y: float, x: float = x, half: float = half, exact: bool = exact, found: str = found) -> bool:
            y = y if found[0] in "-−+" else abs(y)
            return y == x if exact else abs(y - x) <= half

        if "%" in found:
            fits = any(near(y) if percent else near(100 * y) for y, percent in known)
        else:
            fits = any(near(y) for y, _ in known)
        if not fits:
            missing.append(found)
    return missing


def test_numbers_are_compared_and_words_too() -> None:
    """Another number, another word or another count of numbers is a difference; the last digit is not."""
    assert differences("r 0.63", "r 0.64") == []
    assert differences("0.63", "0.66") == ["0.63 is now 0.66"]
    assert differences("0.63", "−0.63") == ["0.63 is now −0.63"]
    assert differences("5e-07", "5e-06") == ["5e-07 is now 5e-06"]
    assert differences("L3.H5 wins", "L3.H6 wins")
    assert differences("1 2", "1 2 3")


def test_a_number_of_prose_that_was_not_printed_is_found() -> None:
    """Rounded as the prose rounds it; signs count where prose gives them; labels, formulas and code are no numbers."""
    printed = "a 8.664 b -2.0 c 0.613 of 49152"
    text = "8.66 and 8.7, of 49 152, 61 %, 2.0 and −2.00; `L3.mlp` 7 and $x_9$ in notebook 3"
    assert unprinted(prose(text), printed) == ["7"]
    assert unprinted("8.6", printed) == ["8.6"]
    assert unprinted("+2.0", printed) == ["+2.0"]
    assert unprinted("62 %", printed) == ["62 %"]
    assert unprinted(prose("as Wood (2023) and L23.H4 say"), "") == []


def words(cell: Any) -> int:
    """The words of a text cell, which have letters or digits; a formula is one, a diagram none."""
    text = book.MATH.sub("formula", book.IMAGE.sub("", cell.source))
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_texts_are_short() -> None:
    """In every cell, and all together."""
    texts = [(name, cell) for name in NAMES for cell in book.read(name).cells if cell.cell_type == "markdown"]
    long = [f"{name}: {words(cell)} words: {cell.source[:60]}" for name, cell in texts if words(cell) > MOST_WORDS]
    assert not long, "\n".join(long)
    assert sum(words(cell) for _, cell in texts) <= MOST_WORDS_OF_ALL


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_with_its_picture(name: str) -> None:
    """A title of one line, then the code that draws the picture, with what it needs to run."""
    title, first = book.read(name).cells[:2]
    assert re.fullmatch(r"# [^\n]+", title.source)
    assert "import layerdiv_tl" in first.source
    assert "pip install" in first.source
    assert "image/png" in first.outputs[-1].data


def test_outputs_are_stored_and_small() -> None:
    """As text, tables and pictures, without scripts and counts of executions."""
    assert sum((NOTEBOOKS / f"{name}.ipynb").stat().st_size for name in NAMES) < LARGEST
    for name in NAMES:
        for cell in book.read(name).cells:
            if cell.cell_type == "code":
                assert not cell.execution_count
                kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
                assert kinds <= {"text/plain", "text/html", "image/png"}, cell.source
                assert not re.search("<script|<style|<iframe", json.dumps(cell.outputs)), cell.source


@pytest.mark.parametrize("name", NAMES)
def test_the_student_edition_holds_no_solutions(name: str) -> None:
    """Every exercise has its badge, stands before its check, and is answered nowhere in the notebook."""
    notebook = book.read(name)
    whole = "\n".join(cell.source for cell in notebook.cells)
    assert not re.search(r"/(tmp|home|root|work|Users)/", whole)
    for asked in book.asked(notebook):
        one = asked.exercise
        assert one.badge in notebook.cells[asked.stub - 1].source, f"{one.name}: write {one.badge}"
        assert re.search(r"\.\.\.", notebook.cells[asked.stub].source), f"{one.name} is not empty"
        body = [line.strip() for line in one.source.splitlines()[2:] if "=" in line or "return" in line]
        assert not [line for line in body if len(line) > 24 and line in whole], f"{one.name} is answered in plain sight"


@pytest.mark.parametrize("name", NAMES)
def test_every_formula_is_seen_as_one(name: str) -> None:
    """A page leaves no dollar sign, as it would of a formula that a letter follows."""
    for cell in book.read(name).cells:
        if cell.cell_type == "markdown":
            assert "$" not in book.MATH.sub("", book.CODE.sub("", cell.source)), cell.source


def test_links_lead_somewhere() -> None:
    """Notebooks and the texts beside them link to files of their folder, and to headings that these have."""
    sources = {f"{name}.ipynb": "\n".join(cell.source for cell in book.read(name).cells) for name in book.NAMES}
    sources |= {f"{name}.md": (NOTEBOOKS / f"{name}.md").read_text(encoding="utf-8") for name in book.TEXTS}
    for name, source in sources.items():
        for file, anchor in re.findall(r"\]\((\w+\.(?:ipynb|md))?(?:#([^)]+))?\)", source):
            headings = re.findall(r"^#+ (.+)$", sources[file or name], re.MULTILINE)
            ids = [heading.replace(" ", "-") for heading in headings]
            ids = [each.lower() for each in ids] if file.endswith(".md") else ids
            assert not anchor or anchor in ids, f"{name} links to {file}#{anchor}"


def test_the_glossary_is_a_page_that_pages_link_to() -> None:
    """Its anchor is the one that notebooks use, and links to Markdown files lead to pages."""
    html = book.text_page("README").html()
    assert 'id="glossary"' in html
    assert 'href="LESSON_PLANS.html"' in html
    assert 'href="README.html#glossary"' in book.prose("[glossary](README.md#glossary)")


def test_diagrams_are_used_and_stand_alone() -> None:
    """Each is named by a notebook, with what it shows in words; none is large, runs scripts or fetches anything."""
    sources = {name: "\n".join(cell.source for cell in book.read(name).cells) for name in NAMES}
    used = {file: (name, alt) for name, source in sources.items() for alt, file in book.IMAGE.findall(source)}
    assert set(used) == {f"images/{path.name}" for path in (NOTEBOOKS / "images").iterdir()}
    for file, (name, alt) in used.items():
        content = (NOTEBOOKS / file).read_text(encoding="utf-8")
        assert len(content.encode()) < LARGEST_IMAGE, file
        drawn = ET.fromstring(content)
        kinds = {element.tag.rpartition("}")[2]: element.text or "" for element in drawn.iter()}
        assert min(len(kinds["title"]), len(kinds["desc"]), len(alt)) > 20, f"{file} is not told in words"
        assert drawn.attrib["viewBox"] == f"0 0 {drawn.get('width')} {drawn.get('height')}"
        assert not kinds.keys() & {"script", "image", "foreignObject", "use"}, file
        assert not re.search(r"@import|https?://(?!www\.w3\.org/2000/svg)|url\((?!#)|\bon\w+=", content), file
        sizes = [float(size) for size in re.findall(r"(?:font:|font-size[:=]\"?)([\d.]+)", content)]
        assert min(sizes) >= SMALLEST_TEXT, f"small text in {file}"
        assert sources[name].count(f"({file})") == 1, f"{name} shows {file} twice"


def test_a_page_holds_its_diagrams() -> None:
    """Inside, as data: whatever their text says is no markup of the page."""
    html = book.prose('![Boxes "in" a row & <b>](images/residual_stream.svg)\n\n`![no](images/none.svg)`')
    assert 'src="data:image/svg+xml;base64,' in html
    assert 'alt="Boxes &quot;in&quot; a row &amp; &lt;b&gt;"' in html
    assert "images/residual_stream" not in html
    assert "![no](images/none.svg)" in html


@pytest.mark.full
@pytest.mark.parametrize("width", [400, 1200])
def test_a_drawing_by_hand_is_seen_in_a_window_of_any_width(browser: Any, tmp_path: Path, width: int) -> None:
    """A notebook's own figure has no sizes but those of its template; a narrow page wraps its title all the same."""
    drawn = go.Figure(go.Scatter(y=[1, 2]), {"title": "A title of more words than a narrow window holds in one line"})
    output = book.nbformat.v4.new_output("display_data", {book.PLOTLY: json.loads(drawn.to_json())})
    page = book.Page("One figure")
    page.blocks.append(book.shown(output))
    with browser.open(page.write(tmp_path / "page.html"), width) as opened:
        assert not opened.complaints
        assert opened.page.locator(".scatterlayer .trace").count() == 1


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly if n.startswith(LONG) else pytest.mark.full) for n in NAMES]
)
def test_it_runs_unanswered_and_says_what_it_holds(name: str) -> None:
    """From a fresh kernel: its outputs are the stored ones, solutions pass, prose names numbers that were printed."""
    notebook = book.read(name)
    asked = {each.check: each for each in book.asked(notebook)}
    printed, changed = [], []
    with book.kernel(notebook) as client:

        def run(source: str) -> str:
            return said(book.ask(client, source))

        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            stored = said(cell)
            client.execute_cell(cell, index)
            text = said(cell)
            changed += differences(stored, text)
            printed += [text, cell.source]
            for output in (each for each in cell.outputs if not book.is_noise(each)):
                assert "Warning" not in output.get("text", ""), f"a warning: {cell.source}"
                assert not re.search(r"/(tmp|home|root|work|Users)/", json.dumps(output)), f"a path: {cell.source}"
            if index in asked:
                assert text.startswith(BEGUN), f"an empty answer is not told so: {cell.source}: {text}"
                run(asked[index].solved)
                answered = run(cell.source)
                assert answered.startswith(RIGHT), f"the solution fails: {answered}"
                printed.append(answered)
                run(notebook.cells[asked[index].stub].source)  # and on with an empty answer
    assert not changed, "\n".join(["write outputs anew with notebooks/build.py --outputs:", *changed])
    unknown = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            missing = unprinted(prose(cell.source), "\n".join(printed))
            unknown[cell.source] = [each for each in missing if each not in cell.metadata.get("cited", [])]
    assert not {source: missing for source, missing in unknown.items() if missing}
