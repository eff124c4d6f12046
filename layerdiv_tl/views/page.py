"""Figures and tables as one HTML file that works without a network."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import style
from .blocks import Block, circuitsvis, read, switch

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

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
    circuits: bool = False

    def heading(self, text: str) -> None:
        """A section begins."""
        self.blocks.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self.blocks.append(f"<p>{html.escape(text)}</p>")

    def small(self, text: str) -> None:
        """A remark in small print."""
        self.blocks.append(f"<p class=small>{html.escape(text)}</p>")

    def facts(self, facts: dict[str, tuple[str, str]]) -> None:
        """Headline numbers side by side: name -> (value, what stands beside it)."""
        cells = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(beside)}</small></dd></div>"
            for name, (value, beside) in facts.items()
        )
        self.blocks.append(f"<dl>{cells}</dl>")

    def table(self, frame: pd.DataFrame, caption: str) -> None:
        """A small table; the first column names the rows, numbers are right-aligned."""
        head = "".join(f"<th>{html.escape(str(column))}</th>" for column in frame.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
            for row in frame.itertuples(index=False)
        )
        self.blocks.append(
            f"<figure class=table><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )

    def figure(self, figure: go.Figure, caption: str) -> None:
        """An interactive figure; plotly.js and the colours of all figures are put into the page once."""
        self.block(_chart(figure), caption)

    def figures(self, figures: Mapping[str, go.Figure], caption: str) -> None:
        """Figures of which the reader sees one at a time, chosen by buttons with these labels."""
        self.block(switch({label: _chart(figure) for label, figure in figures.items()}), caption)

    def block(self, block: Block, caption: str) -> None:
        """Any other piece, such as coloured tokens; circuitsvis is put into the page once."""
        self.circuits |= block.circuits
        self.blocks.append(f"<figure>{block.html}<figcaption>{html.escape(caption)}</figcaption></figure>")

    def html(self) -> str:
        """The whole page."""
        from plotly.offline import get_plotlyjs

        css = style.css_variables() + read("page.css") + read("blocks.css")
        themes = {"light": style.template(style.LIGHT), "dark": style.template(style.DARK)}
        settings = {name: theme.to_plotly_json() for name, theme in themes.items()} | {"config": CONFIG}
        script = f"const SETTINGS = {json.dumps(settings)};\n{read('page.js')}\n{read('blocks.js')}\nready(document);"
        bundle = f"<script>{circuitsvis()}</script>" if self.circuits else ""
        title = html.escape(self.title)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{css}</style>"
            f"<script>{get_plotlyjs()}</script>{bundle}</head>\n<body><main><h1>{title}</h1>\n"
            + "\n".join(self.blocks)
            + f"\n</main><script>{script}</script></body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; a reader sees the whole file or the old one."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            partial.write_text(self.html(), encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return path


def _chart(figure: go.Figure) -> Block:
    import plotly.graph_objects as go

    bare = go.Figure(figure).update_layout(template=None)
    # "</" inside a script would end it, whatever a token or a model's name says.
    data = bare.to_json().replace("<", "\\u003c")
    height = f' style="height:{figure.layout.height}px"' if figure.layout.height else ""
    return Block(f"<div class=chart{height}></div><script type='application/json'>{data}</script>")
