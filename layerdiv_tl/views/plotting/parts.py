"""Raw, centered, shift: the columns of a frame that hold them, the buttons that exchange them, and the rows that a
figure has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, get_args

import numpy as np
import pandas as pd
from plotly.basedatatypes import BaseTraceType

from ..._checks import choice
from ...components import Component
from ...ensemble.decomposition import Part
from .. import style
from .layout import buttons, changes
from .traces import hover_lines

PARTS: tuple[Part, ...] = get_args(Part)


class Measured(Protocol):
    """What figures of components draw: a decomposition, a profile or a corpus."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The rows' components."""

    def by_component(self) -> pd.DataFrame:
        """One row per component, with `bias`, `diversity`, mostly `net`, and their intervals."""


def column(frame: pd.DataFrame, term: str, part: Part) -> str:
    """The column that holds a part of a term; what has no parts is the same in all."""
    name = term if part == "raw" else f"{term}_{part}"
    return name if name in frame else term


def table_of(measured: Any) -> pd.DataFrame:
    """All columns of `by_component`."""
    return measured.by_component(full=True) if hasattr(measured, "halves") else measured.by_component()


def parts_in(frame: pd.DataFrame, part: Part, term: str = "bias") -> tuple[list[Part], Part]:
    """The parts in which a frame holds a term, and the one to show first."""
    parts = [p for p in PARTS if p == "raw" or f"{term}_{p}" in frame]
    return parts, part_shown(part, parts)


def part_shown(part: Part, parts: Iterable[Part] = PARTS) -> Part:
    """The part to show first: raw where the result lacks it. Raises InputError for an unknown one."""
    choice("part", part, PARTS)
    return next((p for p in parts if p == part), "raw")


def part_buttons(
    parts: Sequence[Part],
    shown: Part,
    draw: Callable[[Part], Sequence[Iterable[BaseTraceType]]],
    *attributes: str,
    layout: Callable[[Part], Mapping[str, Any]] = lambda part: {},
) -> list[dict[str, Any]]:
    """A button for each part, which puts attributes of the panels that `draw` makes, and a layout, into a figure."""
    views = {style.LABELS["part"][p]: (changes(chain(*draw(p)), *attributes), layout(p)) for p in parts}
    return buttons(views, list(parts).index(shown))


def half_of(result: Any, part: Part) -> Any:
    """The half of a decomposition or profile that a part is, or the whole for raw; None where there is none."""
    return result if part == "raw" else getattr(result, part, None)


def zeros(measured: Any, part: Part) -> dict[str, float]:
    """Bias and net of a component that writes nothing, where the result has them: what others are compared with."""
    half = half_of(measured, part) or measured
    levels = {"bias": getattr(half, "zero_bias", None), "net": getattr(half, "zero_net", None)}
    exact = getattr(getattr(half, "loss_function", None), "is_exact", False)
    return {term: level for term, level in levels.items() if level is not None and (exact or term == "bias")}


def head_tables(components: Sequence[Component], *columns: Any) -> tuple[dict[Component, int], list[np.ndarray]]:
    """The row of each attention, and columns of the heads among `components` as tables `[layer, head]`."""
    heads = [i for i, c in enumerate(components) if c.kind == "head"]
    rows = {sublayer: row for row, sublayer in enumerate(dict.fromkeys(components[i].sublayer for i in heads))}
    width = 1 + max(components[i].index or 0 for i in heads)
    tables = []
    for column in columns:
        text = np.asarray(column).dtype.kind == "O"
        table = np.full((len(rows), width), "", dtype=object) if text else np.full((len(rows), width), np.nan)
        for i in heads:
            table[rows[components[i].sublayer], components[i].index or 0] = column[i]
        tables.append(table)
    return rows, tables


def suffixed(text: str, result: Any) -> str:
    """A title, with the half where the result is one."""
    half = getattr(result, "part", "raw")
    return text if half == "raw" else f"{text} ({half} half)"


def hovers(frame: pd.DataFrame, name: str) -> np.ndarray:
    """`hover_lines` of one column, whose parts follow a comma."""
    return hover_lines(frame, {name.replace("_", ", "): name})


def most_diverse(measured: Measured, part: Part, count: int) -> tuple[pd.DataFrame, list[Component], str]:
    """The rows of `by_component` with the largest diversity, their components, and a remark if there are others."""
    frame = table_of(measured)
    _, part = parts_in(frame, part)  # settled first: what is named as largest is what is drawn
    kept = largest(frame[column(frame, "diversity", part)].to_numpy(), count)
    remark = "" if len(kept) == len(frame) else f"the {len(kept):,} of {len(frame):,} with the largest diversity"
    return frame.iloc[kept], [measured.components[i] for i in kept], remark


def largest(sizes: np.ndarray, count: int) -> np.ndarray:
    """The positions of the largest absolute values, in ascending order."""
    return np.sort(np.argsort(-np.nan_to_num(np.abs(sizes)), kind="stable")[:count])
