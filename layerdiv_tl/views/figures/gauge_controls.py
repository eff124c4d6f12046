"""Raw, centered, shift: the columns of a frame that hold them, and the buttons that change between them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np

from ..._checks import choice
from ...components import Component
from ...ensemble.decomposition import Part
from .. import style

if TYPE_CHECKING:
    import pandas as pd

PARTS: tuple[Part, ...] = get_args(Part)
MEANING = {
    "raw": "raw: as in the paper",
    "centered": "centered: what softmax sees",
    "shift": "shift: what softmax cannot see",
}


class Measured(Protocol):
    """What figures of components read: a decomposition, a profile or a corpus."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The rows' names."""

    def by_component(self) -> pd.DataFrame:
        """One row per component, with `bias`, `diversity`, mostly `net`, and their intervals."""


def column(frame: pd.DataFrame, term: str, part: Part) -> str:
    """The column that holds a part of a term; what has no parts is the same in all."""
    name = term if part == "raw" else f"{term}_{part}"
    return name if name in frame else term


def parts_in(frame: pd.DataFrame, term: str = "bias") -> tuple[Part, ...]:
    """The parts in which a frame holds a term."""
    return tuple(part for part in PARTS if part == "raw" or f"{term}_{part}" in frame)


def checked(part: str, parts: Sequence[Part] = PARTS) -> Part:
    """The part to show first: raw where there is no such half. Raises InputError for an unknown one."""
    choice("part", part, PARTS)
    return next((p for p in parts if p == part), "raw")


def suffixed(text: str, result: Any) -> str:
    """A title, with the half where the result is one."""
    half = getattr(result, "part", "raw")
    return text if half == "raw" else f"{text} ({half} half)"


def hover_lines(frame: pd.DataFrame, columns: dict[str, str]) -> list[str]:
    """One text for each row of a frame: its component, then name, value and interval of every column; escaped."""
    lines = [f"<b>{html.escape(label)}</b>" for label in frame["component"]]
    for name, at in columns.items():
        unit = frame.attrs.get("units", {}).get(at, "")
        value, low, high = (frame[at + end].to_numpy(dtype=float) for end in ("", "_low", "_high"))
        lines = [
            f"{line}<br>{name} {style.measured(v, a, b, unit=unit)}"
            for line, v, a, b in zip(lines, value, low, high, strict=True)
        ]
    return lines


def whiskers(frame: pd.DataFrame, at: str) -> dict[str, Any]:
    """Error bars of a column, in the asymmetric form that plotly takes."""
    value, low, high = (frame[at + end].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    spread = {"type": "data", "array": high - value, "arrayminus": value - low}
    return spread | {"thickness": 1, "width": 0, "color": style.NEUTRAL}


def buttons(choices: dict[str, list[dict[str, Any]]], active: int, above: int = 28) -> list[dict[str, Any]]:
    """A row of buttons above the plot, each with its update of data and layout; none where there is no choice.

    `above`: how many pixels over the plot, to leave room for what stands there.
    """
    if len(choices) < 2:
        return []
    made = [{"label": label, "method": "update", "args": args} for label, args in choices.items()]
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": above, "l": 0, "t": 0, "r": 0}}
    return [{"type": "buttons", "direction": "right", "buttons": made, "active": active, **place}]


def most_diverse(measured: Measured, part: Part, most: int) -> tuple[pd.DataFrame, list[Component], str]:
    """The rows of `by_component` with the largest diversity, their components, and a remark if there are others."""
    frame = measured.by_component()
    kept = largest(frame[column(frame, "diversity", part)].to_numpy(), most)
    left = "" if len(kept) == len(frame) else f"the {len(kept):,} of {len(frame):,} with the largest diversity"
    return frame.iloc[kept], [measured.components[i] for i in kept], left


def largest(sizes: np.ndarray, most: int) -> np.ndarray:
    """Where the largest of some numbers stand, in their order."""
    return np.sort(np.argsort(-np.nan_to_num(np.abs(sizes)), kind="stable")[:most])
