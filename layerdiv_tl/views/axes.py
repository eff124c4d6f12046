"""Axes of components, layers, tokens, names and logarithms, whose ticks do not overlap at a width of 400 pixels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..components import Component, component_columns
from . import style
from .html import quoted

# Maximal number of token ticks, and above how many their print is small; of characters in the name of a row and of a
# column.
_TOKENS, _SMALL, _ROW, _COLUMN = 30, 20, 22, 18
# Maximal number of components whose names fit below a map.
NAMED = 24


def component_axis(rows: pd.DataFrame | Sequence[Component], title: str | None = None) -> dict[str, Any]:
    """Make an axis of components, or of a frame's, in their order, with a tick at the start of each layer."""
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(component_columns(rows))
    starts: dict[str, int] = {}
    columns = zip(*(frame[name] for name in ("component", "kind", "layer", "repeat")), strict=True)
    for position, (label, kind, layer, repeat) in enumerate(columns):
        alone = "groups" if kind == "group" else label
        name = alone if pd.isna(layer) else f"L{layer}" + ("" if pd.isna(repeat) or not repeat else f"@{repeat}")
        starts.setdefault(name, position)
    return ticks(*_apart(starts, len(frame))) | ({} if title is None else {"title_text": title})


def member_axis(rows: Sequence[Component], title: str) -> dict[str, Any]:
    """Make a horizontal axis with all names of components, or a `component_axis` if there are too many."""
    if len(rows) > NAMED:
        return component_axis(rows, title)
    return named_columns([c.label for c in rows], range(len(rows))) | {"title_text": title}


def _apart(starts: dict[str, int], count: int) -> tuple[list[int], list[str]]:
    """Select ticks that do not overlap: every n-th layer, and all components outside layers."""
    layers, kept = [name for name in starts if name.startswith("L")], list[str]()
    for every in range(1, len(starts) + 1):
        wanted, kept = [name for name in starts if name not in layers or name in layers[::every]], []
        for name in wanted:
            # A letter takes 7 pixels; the panel of a 400-pixel figure has about 290.
            room = (3.5 * (len(name) + len(kept[-1])) + 10) / 290 if kept else 0.0
            if not kept or (starts[name] - starts[kept[-1]]) / count >= room:
                kept.append(name)
        if {*wanted} - {*layers[:1]} <= {*kept}:  # the first layer may be dropped for the embedding
            break
    return [starts[name] for name in kept], kept


def layer_axis(names: Sequence[str]) -> dict[str, Any]:
    """Make a vertical axis of layers at 0, 1, 2, …, the first at the bottom."""
    every = max(1, -(-len(names) // 16))
    axis = ticks(range(0, len(names), every), [name.rpartition(".")[0] or name for name in names[::every]])
    return axis | {"range": [-0.5, len(names) - 0.5]}


def token_axis(tokens: Sequence[str], title: str = "token", named: int | None = None) -> dict[str, Any]:
    """Make an axis of a text's tokens at 0, 1, 2, …, labeling as many as fit and the one `named` in a title."""
    every = max(1, -(-len(tokens) // _TOKENS))
    written = [i for i in range(0, len(tokens), every) if named is None or abs(i - named) >= every or i == named]
    written += [named] if named is not None and named not in written else []
    title += f" (one of {every} is named)" * (every > 1)
    look = {"tickfont": {"size": 9}} if len(written) > _SMALL else {}
    return ticks(written, [quoted(tokens[i], 12) for i in written]) | {"tickangle": -90, "title_text": title} | look


def count_axis(title: str, count: int) -> dict[str, Any]:
    """Make an axis of heads or experts at 0, 1, 2, …, labeling at most twelve."""
    axis = {"title_text": title, "tickformat": "d", "dtick": max(1, -(-count // 12)), "tick0": 0}
    return axis | {"showgrid": False, "zeroline": False}


def log_axis(values: Any, room: float = 0.06) -> dict[str, Any]:
    """Make a logarithmic axis for the positive `values`, with at least two ticks at 1, 2, 5, 10, 20, …, or closer.

    `room` is the padding at both ends, as a share of the range.
    """
    sizes = np.asarray(values, dtype=float).ravel()
    sizes = np.log10(sizes[np.isfinite(sizes) & (sizes > 0)])
    low, high = (float(sizes.min()), float(sizes.max())) if len(sizes) else (0.0, 1.0)
    low, high = (end + sign * room * max(high - low, 0.3) for end, sign in ((low, -1), (high, 1)))
    if high - low < 0.4:  # room for at least one tick if all values are equal
        low, high = (low + high) / 2 - 0.2, (low + high) / 2 + 0.2
    powers = range(math.floor(low), math.ceil(high) + 1)
    at: list[float] = []
    for steps in ((1, 2, 5) if high - low < 2.2 else (1,), range(1, 10), [1 + i / 10 for i in range(90)]):
        if len(at) < 2:  # one tick gives no scale
            at = [step * 10.0**power for power in powers for step in steps if low <= math.log10(step) + power <= high]
    at = at[:: -(-len(at) // 7)]  # every n-th decade if there are too many for a panel
    texts = [f"{x:g}" if 1e-4 <= x < 1e5 else "10" + style.superscript(round(math.log10(x))) for x in at]
    return {"type": "log", "range": [low, high], "tickmode": "array", "tickvals": at, "ticktext": texts}


def share_axis(most: float, least: float = 0.0) -> dict[str, Any]:
    """Make an axis of shares from `least` to a little above `most`, labeled in percent."""
    step = next((s for s in (0.01, 0.02, 0.05, 0.1, 0.2) if (most - least) / s <= 6), 0.25)
    at = [step * number for number in range(math.ceil(least / step), math.floor(most / step + 1e-9) + 1)]
    room = 0.03 * (most - least)
    return ticks(at, map(style.percent, at)) | {"range": [least - room * bool(least), most + room], "showgrid": True}


def linear_axis(values: Any, room: float = 0.06) -> dict[str, Any]:
    """Make a linear axis for the finite `values`, padded by `room` at both ends as a share of the range."""
    finite = np.asarray(values, dtype=float).ravel()
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    room = room * (high - low) or 0.5
    return {"type": "linear", "range": [low - room, high + room], "tickmode": "auto"}


def named_rows(names: Iterable[str]) -> dict[str, Any]:
    """Make an axis with names at 0, 1, 2, … from the top, on at most two lines each."""
    lines = [textwrap.wrap(name, _ROW, max_lines=2, placeholder="…", break_on_hyphens=False) for name in names]
    return ticks(range(len(lines)), ["\n".join(line) for line in lines]) | {"range": [len(lines) - 0.5, -0.5]}


def named_columns(names: Sequence[str], positions: Iterable[float]) -> dict[str, Any]:
    """Make an axis with vertical names below `positions`; long names are cut to the part after the last slash."""
    short = [name if len(name) <= _COLUMN else name.rsplit("/", 1)[-1] or name for name in names]
    short = [name if len(name) <= _COLUMN else name[: _COLUMN - 1] + "…" for name in short]
    level = max(map(len, short)) * len(short) < 40
    return ticks(positions, short) | {"tickangle": 0 if level else -90}


def ticks(positions: Iterable[float], texts: Iterable[str]) -> dict[str, Any]:
    """Make an axis with texts at some positions and no grid."""
    axis = {"tickmode": "array", "tickvals": list(positions), "ticktext": list(texts), "tickangle": 0}
    return axis | {"showgrid": False, "zeroline": False}
