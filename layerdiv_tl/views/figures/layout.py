"""What stands around a figure: title, subtitle, switches and legend, placed in pixels so that none meets another."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from .. import style

if TYPE_CHECKING:
    import pandas as pd

# Characters of a subtitle's line that fit a notebook's figure (700 pixels), of a name beside a row or on a button,
# and of one beneath a column or above a panel; above so many, plotly tilts the names beneath columns.
_LINE = 110
_NAME = 36
_COLUMN = 18
_LEVEL = 10


def arrange(
    figure: go.Figure,
    title: str,
    subtitle: str = "",
    *,
    plot: int,
    below: int = 64,
    menus: Sequence[dict[str, Any]] = (),
    headings: bool = False,
) -> go.Figure:
    """Give a figure its title and its room; `plot` and `below` are pixels of the panels and of what is beneath.

    `menus` stand in a row above the panels, `headings` are the panels' own titles.
    """
    text = wrapped(subtitle)
    lines = text.count("<br>") + 1 if text else 0
    top = 52 + 18 * lines + (42 if menus else 0) + (26 if headings else 10)
    row = {"y": 1, "yanchor": "bottom", "pad": {"b": 30 if headings else 12, "t": 0, "l": 0, "r": 0}}
    return figure.update_layout(
        template=style.template(),
        title={
            "text": html.escape(title),
            "subtitle": {"text": text},
            "yref": "container",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 14, "l": 16},
        },
        height=top + plot + below,
        margin={"t": top, "b": below},
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        updatemenus=[row | menu for menu in menus],
    )


def wrapped(text: str, width: int = _LINE) -> str:
    """Text, harmless, in lines that fit."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, width, break_on_hyphens=False))


def name(text: str, most: int = _NAME) -> str:
    """A name of a model or task, harmless, and cut where it would push the figure aside."""
    return html.escape(text if len(text) <= most else text[: most - 1] + "…")


def short(text: str) -> str:
    """A name above a panel or beneath a column; of a long one what is behind its last slash, which tells it apart."""
    return name(text if len(text) <= _COLUMN else text.rsplit("/", 1)[-1] or text, _COLUMN)


def tilted(names: Sequence[str]) -> int:
    """Pixels that names beneath columns need more than level ones."""
    longest = max(len(html.unescape(short(text))) for text in names)
    return 4 * longest if longest > _LEVEL else 0


def beside(names: Sequence[str]) -> dict[str, Any]:
    """An axis on which names stand at 0, 1, 2, …"""
    return _places([name(text) for text in names], range(len(names)))


def beneath(names: Sequence[str], at: Sequence[float]) -> dict[str, Any]:
    """An axis on which names stand at `at`, beneath."""
    return _places([short(text) for text in names], at)


def _places(texts: Sequence[str], at: Sequence[float]) -> dict[str, Any]:
    return {
        "tickmode": "array",
        "tickvals": list(at),
        "ticktext": list(texts),
        "showgrid": False,
        "zeroline": False,
    }


def buttons(entries: Sequence[dict[str, Any]], active: int = 0, **options: Any) -> dict[str, Any]:
    """A row of buttons from the left; `type="dropdown"` makes a menu of them."""
    return {
        "type": "buttons",
        "direction": "right",
        "showactive": True,
        "x": 0,
        "xanchor": "left",
        "buttons": list(entries),
        "active": active,
        **options,
    }


def whiskered(frame: pd.DataFrame, what: str = "Whiskers") -> str:
    """What the whiskers of a figure are, or why it has none, as the frame tells it."""
    note = str(frame.attrs["intervals"])
    return f"{what}: {note}." if note[0].isdigit() else f"{note[0].upper()}{note[1:]}."


def between(low: float, high: float) -> str:
    """An interval in brackets, where there is one."""
    return f"[{style.number(low)}, {style.number(high)}]" if low == low and high == high else "(no interval)"
