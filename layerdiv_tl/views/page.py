"""Figures and tables as one HTML file that works without a network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .._checks import file_path
from .._files import write_text
from . import style
from .html import Block, circuitsvis, page_head, read

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

# A column with a longer cell than this holds sentences, which wrap.
_SENTENCE = 64
CONFIG = {"displaylogo": False, "responsive": True}


@dataclass
class Page:
    """A page that grows block by block; all text is escaped. `contents`: links to the sections stand at the top.

    >>> page = Page("A <title>")
    >>> page.text("1 < 2")
    >>> "A &lt;title&gt;" in page.html() and "1 &lt; 2" in page.html()
    True
    """

    title: str
    contents: bool = False
    blocks: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    # Whether a block needs circuitsvis.
    circuits: bool = False

    def heading(self, text: str) -> None:
        """A section begins."""
        self.sections.append(text)
        self.blocks.append(f'<h2 id="section-{len(self.sections)}">{escape(text)}</h2>')

    def subheading(self, text: str) -> None:
        """A part of a section begins."""
        self.blocks.append(f"<h3>{escape(text)}</h3>")

    def text(self, text: str, kind: Literal["plain", "small", "note"] = "plain") -> None:
        """A paragraph, in small print, or as a note that must not be overlooked."""
        self.blocks.append(f"<p class={kind}>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """A command or a script, as it is."""
        self.blocks.append(f"<pre>{escape(text)}</pre>")

    def list(self, items: Sequence[str]) -> None:
        """Sentences one below the other."""
        self.blocks.append("<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>")

    def terms(self, terms: Mapping[str, str]) -> None:
        """Words and what they mean."""
        rows = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in terms.items())
        self.blocks.append(f"<dl class=terms>{rows}</dl>")

    def table(self, frame: pd.DataFrame, caption: str, marked: str | None = None, fold: str | None = None) -> None:
        """A small table; the first column names the rows, numbers are right-aligned, sentences wrap,
        and what follows a cell's first line stands below it in small print.

        The column `marked` has a mark for each of its words (a verdict, say); page.css has their colors.
        `fold` is the line below which it is folded away, until a reader opens it.
        """
        texts = {column: [str(cell) for cell in frame[column]] for column in frame}
        prose = {column for column, cells in texts.items() if max(map(len, cells), default=0) > _SENTENCE}
        head = "".join(f"<th{' class=prose' * (c in prose)}>{escape(str(c))}</th>" for c in texts)
        rows = "".join(
            "<tr>" + "".join(_cell(cells[i], c in prose, c == marked) for c, cells in texts.items()) + "</tr>"
            for i in range(len(frame))
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        self._figure(table, caption, fold, False, " class=table")

    def figure(self, figure: go.Figure, caption: str, fold: str | None = None, opened: bool = False) -> None:
        """An interactive figure; plotly.js and the colors of all figures are put into the page once."""
        import plotly.graph_objects as go

        # "</" inside a script would end it, whatever a token or a model's name holds.
        data = go.Figure(figure).update_layout(template=None).to_json().replace("<", "\\u003c")
        height = f' style="height:{figure.layout.height}px"' if figure.layout.height else ""
        chart = f"<div class=chart{height}></div><script type='application/json'>{data}</script>"
        self._figure(chart, caption, fold, opened)

    def block(self, block: Block, caption: str, fold: str | None = None, opened: bool = False) -> None:
        """Any other piece, such as colored tokens; circuitsvis is put into the page once.

        `fold` as in `table`; `opened` shows it at the start.
        """
        self.circuits |= block.circuits
        self._figure(block.html, caption, fold, opened)

    def _figure(self, inner: str, caption: str, fold: str | None, opened: bool, kind: str = "") -> None:
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        figure = f"<figure{kind}>{inner}{below}</figure>"
        if fold is not None:
            figure = f"<details{' open' * opened}><summary>{escape(fold)}</summary>{figure}</details>"
        self.blocks.append(figure)

    def html(self) -> str:
        """The whole page."""
        from plotly.offline import get_plotlyjs

        css = style.css_variables() + read("page.css") + read("blocks.css")
        themes = {"light": style.template(style.LIGHT), "dark": style.template(style.DARK)}
        settings = {name: theme.to_plotly_json() for name, theme in themes.items()} | {"config": CONFIG}
        script = f"const SETTINGS = {json.dumps(settings)};\n{read('page.js')}\n{read('blocks.js')}\nready(document);"
        bundle = f"<script>{circuitsvis()}</script>" if self.circuits else ""
        links = "".join(f'<a href="#section-{i}">{escape(text)}</a>' for i, text in enumerate(self.sections, start=1))
        nav = f"<nav>{links}</nav>\n" if self.contents else ""
        return (
            f"{page_head(self.title, css)}<script>{get_plotlyjs()}</script>{bundle}</head>\n"
            f"<body><main><h1>{escape(self.title)}</h1>\n{nav}"
            + "\n".join(self.blocks)
            + f"\n</main><script>{script}</script></body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; a reader sees the whole file or the old one. Raises OSError."""
        return write_text(file_path("path", path), self.html())


def _cell(text: str, prose: bool, marked: bool) -> str:
    """A cell of a table; what follows its first line stands below it in small print."""
    kind = " class=prose" if prose else ""
    mark = f' data-mark="{escape(text)}"' if marked else ""
    first, _, more = text.partition("\n")
    below = f"<small>{escape(more)}</small>" if more else ""
    return f"<td{kind}{mark}>{escape(first)}{below}</td>"
