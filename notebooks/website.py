"""Build the site: the reference, a front page with a search, the course, texts for contributors.

    python notebooks/website.py --out FOLDER [--no-outputs] [--jobs N]

Pages work offline, from a folder or a static host. It needs `pip install '.[docs]'`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import build
import pdoc

import layerdiv_tl
from layerdiv_tl.views.html import script_json

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("CONTRIBUTING", "CHANGELOG")
# Links of the README, which are paths of the repository, as addresses on the site.
PLACES = (
    (r"notebooks/(\w+)\.(?:ipynb|md)", r"course/\1.html"),
    (r"layerdiv_tl/reference\.md", "reference/layerdiv_tl.html"),
    (r"(CONTRIBUTING|CHANGELOG)\.md", r"\1.html"),
)
# Not found by a search: code, formulas, and what is no text.
UNREAD = {"script", "style", "pre", "math", "svg", "nav", "summary"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
SEARCH = """
<p><input type=search id=search placeholder="Search the reference and the course" aria-label="Search" size=48></p>
<ul id=found></ul>
"""
SCRIPT = """
document.getElementById("search").addEventListener("input", ({ target }) => {
  const words = target.value.toLowerCase().split(/\\s+/).filter(Boolean);
  const score = ([, title]) => words.filter((word) => title.toLowerCase().includes(word)).length;
  const hits = words.length
    ? SECTIONS.filter(([, title, text]) => words.every((word) => `${title} ${text}`.toLowerCase().includes(word)))
    : [];
  hits.sort((a, b) => score(b) - score(a) || a[1].length - b[1].length);
  const items = hits.slice(0, 20).map(([address, title, text]) => {
    const item = document.createElement("li");
    const link = item.appendChild(document.createElement("a"));
    link.href = address;
    link.textContent = title;
    const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 40);
    item.append(` ${at ? "…" : ""}${text.slice(at, at + 140)}`);
    return item;
  });
  document.getElementById("found").replaceChildren(...items);
});
"""


class Sections(HTMLParser):
    """The sections of a page: `[address, title, text]`, a new one at each heading or section that has an id."""

    def __init__(self, page: str, title: str) -> None:
        super().__init__()
        self.page, self.title, self.skipping = page, title, 0
        self.found: list[list[str]] = [[page, title, ""]]
        self.in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a section, or skip what is not read."""
        name = dict(attrs).get("id")
        if self.skipping or tag in UNREAD:
            self.skipping += tag not in VOID
        elif name and (tag == "section" or re.fullmatch("h[1-6]", tag)):
            self.in_heading = tag != "section"
            self.found.append([f"{self.page}#{name}", "" if self.in_heading else f"{self.title}: {name}", ""])

    def handle_endtag(self, tag: str) -> None:
        """End a heading, or what is skipped."""
        if self.skipping:
            self.skipping -= tag not in VOID
        elif re.fullmatch("h[1-6]", tag) and self.in_heading:
            self.in_heading = False
            self.found[-1][1] = f"{self.title}: {self.found[-1][1].strip(' ¶')}"

    def handle_data(self, data: str) -> None:
        """Add text to the title or the body."""
        if not self.skipping:
            self.found[-1][1 if self.in_heading else 2] += data


def sections(out: Path) -> list[list[str]]:
    """The sections of every page of the site, without those that have no text."""
    found = []
    for path in sorted(out.rglob("*.html")):
        source = path.read_text(encoding="utf-8")
        if 'http-equiv="refresh"' in source.replace("'", '"'):
            continue
        title = re.search(r"<title>(.*?)(?: API documentation)?</title>", source, re.DOTALL)
        reader = Sections(path.relative_to(out).as_posix(), title[1] if title else "")
        reader.feed(source)
        found += [[address, name, " ".join(text.split())] for address, name, text in reader.found]
    return [section for section in found if section[2]]


def with_navigation(path: Path, up: str) -> None:
    """Put links to the parts of the site in front of a page."""
    links = {"layerdiv_tl": "index.html", "course": "course/README.html", "cookbook": "course/00_cookbook.html"}
    links |= {"reference": "reference/layerdiv_tl.html"} | {name.lower(): f"{name}.html" for name in TEXTS}
    row = " · ".join(f'<a href="{up}{address}">{name}</a>' for name, address in links.items())
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace("<main>", f"<main><p class=small>{row}</p>", 1), encoding="utf-8")


def write_page(path: Path, out: Path, extra: str = "") -> None:
    """Write a Markdown file of the repository as a page, its links leading to pages."""
    page = build.text_page(path.stem, path.parent)
    if extra:
        page.blocks.insert(0, build.Block(extra))
    target = page.write(out)
    source = target.read_text(encoding="utf-8")
    for place, address in PLACES:
        source = re.sub(rf'(?<=href="){place}(?=[#"])', address, source)
    target.write_text(source, encoding="utf-8")


def own_members(cls: Any) -> list[Any]:
    """The members of a class that this package defines, also those that it inherits: pdoc only links to these."""
    return [member for member in cls.members.values() if member.taken_from[0].startswith("layerdiv_tl")]


def write_reference(out: Path) -> None:
    """Write every public name with its docstring."""
    pdoc.render.configure(docformat="google")
    pdoc.doc.Class.own_members = property(own_members)
    layerdiv_tl.__all__ = dir(layerdiv_tl)  # else pdoc lists no name
    with warnings.catch_warnings(action="ignore"):  # annotations imported only for type checkers
        pdoc.pdoc("layerdiv_tl", "!layerdiv_tl[.](depth|zoo)[.]", output_directory=out)
    for path in out.rglob("*.html"):
        source = path.read_text(encoding="utf-8")
        anchors = set(re.findall(r' id="([^"]+)"', source))
        # Links to names without a description, such as fields, become text.
        link = r'<a href="#([^"]+)">([^<]*)</a>'
        for target, text in set(re.findall(link, source)):
            if target not in anchors:
                source = source.replace(f'<a href="#{target}">{text}</a>', text)
        path.write_text(source, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Write the pages, and the sections that the search looks through."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="the folder of the site")
    parser.add_argument("--no-outputs", action="store_true", help="show the notebooks without running them")
    parser.add_argument("--jobs", default=1, type=int, help="notebooks at a time (default: %(default)s)")
    options = parser.parse_args(arguments)
    out = Path(options.out)
    course = out / "course"
    course.mkdir(parents=True, exist_ok=True)
    (out / "assets").mkdir(exist_ok=True)
    write_reference(out / "reference")
    pages = "".join((ROOT / f"{name}.md").read_text(encoding="utf-8") for name in ("README", *TEXTS))
    for name in set(re.findall(r"assets/([\w-]+\.(?:png|svg))", pages)):
        shutil.copyfile(ROOT / "assets" / name, out / "assets" / name)
    shutil.copyfile(ROOT / "CITATION.cff", out / "CITATION.cff")
    for name in TEXTS:
        write_page(ROOT / f"{name}.md", out / f"{name}.html")
    for name in build.TEXTS:
        build.text_page(name).write(course / f"{name}.html")
    with ProcessPoolExecutor(options.jobs) as pool:
        for said in pool.map(partial(build.build, out=course, run=not options.no_outputs), build.NAMES):
            print(said, flush=True)
    script = f"<script>addEventListener('DOMContentLoaded', () => {{ const SECTIONS = {script_json(sections(out))};"
    write_page(ROOT / "README.md", out / "index.html", f"{SEARCH}{script}{SCRIPT}}});</script>")
    for path in (*out.glob("*.html"), *course.glob("*.html")):
        if "-explorer-" not in path.name:
            with_navigation(path, "" if path.parent == out else "../")


if __name__ == "__main__":
    main()
