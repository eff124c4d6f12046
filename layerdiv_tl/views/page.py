"""Figures and tables as one HTML file that works without a network."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .._checks import file_path
from .._files import write_text
from . import style
from .html import Block, circuitsvis, read, switch

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

# A column with a longer cell than this holds sentences, which wrap.
_SENTENCE = 64
CONFIG = {"displaylogo": False, "responsive": True}


@dataclass
class Page:
    """A page that grows block by block; all text is escaped.

    >>> page = Page("A <title>")
    >>> page.text("1 < 2")
    >>> "A &lt;title&gt;" in page.html() and "1 &lt; 2" in page.html()
    True
    """

    title: str
    blocks: list[str] = field(default_factory=list)
    # Whether links to the sections stand at the top.
    contents: bool = False
    sections: list[str] = field(default_factory=list)
    # Whether a block needs circuitsvis.
    circuits: bool = False

    def heading(self, text: str) -> None:
        """A section begins."""
        self.sections.append(text)
        self.blocks.append(f'<h2 id="section-{len(self.sections)}">{html.escape(text)}</h2>')

    def subheading(self, text: str) -> None:
        """A part of a section begins."""
        self.blocks.append(f"<h3>{html.escape(text)}</h3>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self.blocks.append(f"<p>{html.escape(text)}</p>")

    def small(self, text: str) -> None:
        """A remark in small print."""
        self.blocks.append(f"<p class=small>{html.escape(text)}</p>")

    def note(self, text: str) -> None:
        """A remark that must not be overlooked."""
        self.blocks.append(f"<p class=note>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        """A command or a script, as it is."""
        self.blocks.append(f"<pre>{html.escape(text)}</pre>")

    def list(self, items: Sequence[str]) -> None:
        """Sentences one below the other."""
        self.blocks.append("<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>")

    def terms(self, terms: Mapping[str, str]) -> None:
        """Words and what they mean."""
        rows = "".join(f"<dt>{html.escape(word)}</dt><dd>{html.escape(text)}</dd>" for word, text in terms.items())
        self.blocks.append(f"<dl class=terms>{rows}</dl>")

    def facts(self, facts: dict[str, tuple[str, str]]) -> None:
        """Headline numbers side by side: name -> (value, what stands beside it)."""
        cells = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(beside)}</small></dd></div>"
            for name, (value, beside) in facts.items()
        )
        self.blocks.append(f"<dl>{cells}</dl>")

    def table(self, frame: pd.DataFrame, caption: str, marked: str | None = None, fold: str | None = None) -> None:
        """A small table; the first column names the rows, numbers are right-aligned, sentences wrap,
        and what follows a cell's first line stands below it in small print.

        The column `marked` has a mark for each of its words (a verdict, say); page.css knows their colors.
        `fold` is the line below which it is folded away, until a reader opens it.
        """
        texts = {column: [str(cell) for cell in frame[column]] for column in frame}
        prose = {column for column, cells in texts.items() if max(map(len, cells), default=0) > _SENTENCE}
        head = "".join(
            f"<th{' class=prose' * (column in prose)}>{html.escape(str(column))}</th>" for column in frame.columns
        )
        rows = "".join(
            "<tr>" + "".join(_cell(texts[c][at], c in prose, c == marked) for c in frame) + "</tr>"
            for at in range(len(frame))
        )
        below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        block = (
            f"<figure class=table><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}</figure>"
        )
        self.blocks.append(_folded(block, fold))

    def figure(self, figure: go.Figure, caption: str, fold: str | None = None, opened: bool = False) -> None:
        """An interactive figure; plotly.js and the colors of all figures are put into the page once."""
        self.block(_chart(figure), caption, fold, opened)

    def figures(self, figures: Mapping[str, go.Figure], caption: str) -> None:
        """Figures of which the reader sees one at a time, chosen by buttons with these labels."""
        self.block(switch({label: _chart(figure) for label, figure in figures.items()}), caption)

    def block(self, block: Block, caption: str, fold: str | None = None, opened: bool = False) -> None:
        """Any other piece, such as colored tokens; circuitsvis is put into the page once.

        `fold` as in `table`; `opened` shows it at the start.
        """
        self.circuits |= block.circuits
        figure = f"<figure>{block.html}<figcaption>{html.escape(caption)}</figcaption></figure>"
        self.blocks.append(_folded(figure, fold, opened))

    def html(self) -> str:
        """The whole page."""
        from plotly.offline import get_plotlyjs

        css = style.css_variables() + read("page.css") + read("blocks.css")
        themes = {"light": style.template(style.LIGHT), "dark": style.template(style.DARK)}
        settings = {name: theme.to_plotly_json() for name, theme in themes.items()} | {"config": CONFIG}
        script = f"const SETTINGS = {json.dumps(settings)};\n{read('page.js')}\n{read('blocks.js')}\nready(document);"
        bundle = f"<script>{circuitsvis()}</script>" if self.circuits else ""
        title = html.escape(self.title)
        links = [f'<a href="#section-{at}">{html.escape(text)}</a>' for at, text in enumerate(self.sections, start=1)]
        nav = f"<nav>{''.join(links)}</nav>\n" if self.contents else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{css}</style>"
            f"<script>{get_plotlyjs()}</script>{bundle}</head>\n<body><main><h1>{title}</h1>\n"
            + nav
            + "\n".join(self.blocks)
            + f"\n</main><script>{script}</script></body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; a reader sees the whole file or the old one."""
        return write_text(file_path("path", path), self.html())


def _cell(text: str, prose: bool, marked: bool) -> str:
    """A cell of a table; what follows its first line stands below it in small print."""
    kind = " class=prose" if prose else ""
    mark = f' data-mark="{html.escape(text)}"' if marked else ""
    first, _, more = text.partition("\n")
    below = f"<small>{html.escape(more)}</small>" if more else ""
    return f"<td{kind}{mark}>{html.escape(first)}{below}</td>"


def _folded(block: str, line: str | None, opened: bool = False) -> str:
    """A block behind a line that a reader opens; as it is without one."""
    if line is None:
        return block
    return f"<details{' open' * opened}><summary>{html.escape(line)}</summary>{block}</details>"


def _chart(figure: go.Figure) -> Block:
    import plotly.graph_objects as go

    bare = go.Figure(figure).update_layout(template=None)
    # "</" inside a script would end it, whatever a token or a model's name says.
    data = bare.to_json().replace("<", "\\u003c")
    height = f' style="height:{figure.layout.height}px"' if figure.layout.height else ""
    return Block(f"<div class=chart{height}></div><script type='application/json'>{data}</script>")
