"""Pieces of HTML that work on a page and in a notebook, without a network."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from . import style


@dataclass(frozen=True)
class Block:
    """A piece of HTML; all text in it is escaped.

    html
        What a `Page` takes in, under its own style sheet and scripts.
    circuits
        Whether circuitsvis draws a part of it.
    """

    html: str
    circuits: bool = False

    def __repr__(self) -> str:
        # A notebook keeps it next to the drawing, for readers without HTML.
        return f"Block({len(self.html):,} characters of HTML{', drawn by circuitsvis' if self.circuits else ''})"

    def _repr_html_(self) -> str:
        """The same with all that it needs, for a notebook: 1.3 MB where circuitsvis draws, else next to nothing."""
        name = f"layerdiv-{uuid.uuid4().hex}"
        # A function's own scope: a notebook's outputs share one page.
        bundle = (
            f"window.CircuitsVis ??= (() => {{ {circuitsvis()}; return CircuitsVis; }})();" if self.circuits else ""
        )
        script = f'{bundle}\n(() => {{ {read("blocks.js")}\nready(document.getElementById("{name}")); }})();'
        return f'<style>{read("blocks.css")}</style><div id="{name}">{self.html}</div><script>{script}</script>'


def switch(blocks: Mapping[str, Block]) -> Block:
    """Blocks of which the reader sees one at a time, the first at the start, chosen by buttons with these labels."""
    buttons = "".join(
        f"<button type=button aria-pressed={'false' if number else 'true'}>{escape(label)}</button>"
        for number, label in enumerate(blocks)
    )
    panels = "".join(
        f"<div class=ld-panel{' hidden' if number else ''}>{block.html}</div>"
        for number, block in enumerate(blocks.values())
    )
    shown = f"<div class=ld-switch><div class=ld-buttons>{buttons}</div>{panels}</div>" if len(blocks) > 1 else panels
    return Block(shown, any(block.circuits for block in blocks.values()))


def circuits(element: str, props: Mapping[str, Any]) -> Block:
    """An element of circuitsvis, by its name; `props` are JSON.

    On a light ground also on a dark page: circuitsvis mixes its colors with white and writes in black.
    """
    ground = f"background: {style.LIGHT.paper}; color: {style.LIGHT.ink}; color-scheme: light"
    return Block(
        f'<div class=ld-circuits style="{ground}"></div>'
        f"<script type='application/json'>{script_json({'element': element, 'props': props})}</script>",
        circuits=True,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str | Block]]) -> Block:
    """A table of texts and blocks; the first column names the rows."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{c.html if isinstance(c, Block) else escape(c)}</td>" for c in row) + "</tr>"
        for row in rows
    )
    return Block(f"<table class=ld-table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>")


def marks(pairs: Sequence[tuple[str, float]]) -> Block:
    """Names and signed numbers in a row that wraps, each name in a frame, so that tokens can be distinguished."""
    return Block(
        " ".join(
            f"<span class=ld-mark><b>{escape(name)}</b> {'−' if value < 0 else '+'}{style.number(abs(value))}</span>"
            for name, value in pairs
        )
    )


def inert(token: str) -> str:
    """A token for circuitsvis, which writes it as HTML in one place and as text in another: the same in both.

    An invisible word joiner after `<` and `&` keeps them from beginning anything.

    >>> inert("<b>&lt;").replace("\\u2060", "|")
    '<|b>&|lt;'
    """
    return visible(token).replace("<", "<\u2060").replace("&", "&\u2060")


def visible(token: str) -> str:
    """A token with its line breaks visible, and the empty one too.

    >>> visible(" a\\n"), visible("")
    (' a⏎\\n', '∅')
    """
    return token.replace("\n", "⏎\n") or "∅"


def quoted(token: str, most: int = 24) -> str:
    """A token inside a line of text: its spaces and line breaks visible, cut to a length.

    >>> quoted(" a\\n"), quoted("=" * 80, most=4)
    ('␣a⏎', '===…')
    """
    shown = token.replace("\n", "⏎").replace(" ", "␣") or "∅"
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def script_json(value: Any) -> str:
    """JSON inside a script element, which no text in it can end."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def page_head(title: str, css: str) -> str:
    """The beginning of a page: its head is still open."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style>"
    )


@cache
def circuitsvis() -> str:
    """The script of circuitsvis that comes with the package. Nothing of it is imported: that would load torch."""
    from importlib.metadata import distribution

    bundle = distribution("circuitsvis").locate_file("circuitsvis/dist/cdn/iife.js")
    with open(str(bundle), encoding="utf-8") as file:
        return file.read().replace("</script", "<\\/script")


@cache
def read(name: str) -> str:
    """A script, style sheet or other text of this folder."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
