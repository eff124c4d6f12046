"""Pages of figures and tables, and blocks of HTML for pages and notebooks; all work without a network.

The HTML is in page.jinja, which escapes every text.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .._checks import file_path
from .._files import written
from . import style

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

CONFIG = {"displaylogo": False, "responsive": True}


@dataclass(frozen=True)
class Block:
    """A block of HTML; all text in it is escaped.

    Attributes:
        html: The HTML for a `Page`, which has the style sheet and scripts.
        circuits: True if circuitsvis draws a part of it.
    """

    html: str
    circuits: bool = False

    def __repr__(self) -> str:
        # Notebooks store it next to the HTML, for viewers without HTML.
        return f"Block({len(self.html):,} characters of HTML{', drawn by circuitsvis' if self.circuits else ''})"

    def _repr_html_(self) -> str:
        """Return the HTML with its styles and scripts for a notebook: 1.3 MB with circuitsvis, else a few kB."""
        # A function scope, because a notebook's outputs share one page.
        bundle = (
            f"window.CircuitsVis ??= (() => {{ {circuitsvis()}; return CircuitsVis; }})();" if self.circuits else ""
        )
        name = f"layerdiv-{uuid.uuid4().hex}"
        script = f'{bundle}\n(() => {{ {read("blocks.js")}\nready(document.getElementById("{name}")); }})();'
        return str(templates().in_notebook(name, self.html, read("blocks.css"), script))


def circuits(element: str, props: Mapping[str, Any]) -> Block:
    """Render an element of circuitsvis by name; `props` are JSON.

    circuitsvis mixes its colors with white, so the background is light, and blocks.css inverts it on a dark page.
    """
    ground = f"background: {style.LIGHT.paper}; color: {style.LIGHT.ink}; color-scheme: light"
    return Block(templates().circuits(ground, script_json({"element": element, "props": props})), circuits=True)


def inert(token: str) -> str:
    """Neutralize markup in a token for circuitsvis, which renders it as HTML in one place and as text in another.

    Line breaks and the empty token become visible. An invisible word joiner after `<` and `&` prevents tags and
    entities.

    >>> inert("<b>&lt;\\n").replace("\\u2060", "|"), inert("")
    ('<|b>&|lt;⏎\\n', '∅')
    """
    return (token.replace("\n", "⏎\n") or "∅").replace("<", "<\u2060").replace("&", "&\u2060")


def script_json(value: Any) -> str:
    """Encode JSON for a script element, so that no text in it can end the element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


@cache
def templates() -> Any:
    """The macros of page.jinja."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(read("page.jinja")).module


@cache
def circuitsvis() -> str:
    """Read the script of the installed circuitsvis without importing it, which would load torch."""
    from importlib.metadata import distribution

    bundle = distribution("circuitsvis").locate_file("circuitsvis/dist/cdn/iife.js")
    return Path(str(bundle)).read_text(encoding="utf-8").replace("</script", "<\\/script")


@cache
def read(name: str) -> str:
    """Read a script, style sheet or other text file of this folder."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def chart(figure: go.Figure) -> Block:
    """Make an interactive figure for a `Page`, which holds plotly.js and the colors once for all figures."""
    import plotly.graph_objects as go

    # "</" inside a script would end it, whatever a token or a model's name holds.
    data = go.Figure(figure).update_layout(template=None).to_json().replace("<", "\\u003c")
    return Block(templates().chart(data, figure.layout.height))


@dataclass
class Page:
    """A page built block by block; all text is escaped.

    >>> page = Page("A <title>")
    >>> page.text("1 < 2")
    >>> "A &lt;title&gt;" in page.html() and "1 &lt; 2" in page.html()
    True
    """

    title: str
    blocks: list[Block] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self.add("heading", text)

    def text(self, text: str, kind: Literal["plain", "small", "note"] = "plain") -> None:
        """Add a paragraph, optionally in small print or as a prominent note."""
        self.add("text", text, kind)

    def table(self, frame: pd.DataFrame, name: str = "") -> None:
        """Add a table with a name above it; numbers have four digits, and the first column names the rows."""
        cells = frame.astype(object).where(frame.notna(), "")
        cells = cells.map(lambda x: f"{x:.4g}" if isinstance(x, float) else str(x))
        self.add("frame_table", name, list(map(str, frame.columns)), cells.to_numpy().tolist())

    def figure(self, figure: go.Figure) -> None:
        """Add a `chart`."""
        self.block(chart(figure))

    def add(self, macro: str, *content: Any) -> None:
        """Add what a macro of page.jinja makes of some content: "code", "inner_page", …"""
        self.block(Block(getattr(templates(), macro)(*content)))

    def block(self, block: Block) -> None:
        """Add any other block, e.g. colored tokens; circuitsvis is included once."""
        self.blocks.append(block)

    def html(self) -> str:
        """Return the whole page."""
        from plotly.offline import get_plotlyjs

        css = style.css_variables() + read("page.css") + read("blocks.css")
        settings = {"light": style.template(style.LIGHT).to_plotly_json(), "config": CONFIG}
        settings["dark"] = style.template(style.DARK).to_plotly_json()
        sources = (read(name) for name in ("page.js", "blocks.js"))
        script = "\n".join((f"const SETTINGS = {json.dumps(settings)};", *sources, "ready(document);"))
        body = "\n".join(block.html for block in self.blocks)
        scripts = [get_plotlyjs()] if "class=chart" in body else []
        if any(block.circuits for block in self.blocks):
            scripts.append(circuitsvis())
        body = templates().main(self.title, body, script)
        return page_html(self.title, css, scripts, body)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page atomically. Raises InputError for a file that cannot be written."""
        path = file_path("path", path)
        with written(path) as partial:
            partial.write_text(self.html(), encoding="utf-8")
        return path


def page_html(title: str, css: str, scripts: Sequence[str], body: str, kind: str = "") -> str:
    """Return a whole page from its finished body."""
    return str(templates().page(title, css, scripts, body, kind)).lstrip()
