"""Hover texts and intervals in words; whatever a model, a task or a text is called is escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .. import style

if TYPE_CHECKING:
    import pandas as pd


def hover_lines(frame: pd.DataFrame, columns: Mapping[str, str]) -> np.ndarray:
    """One text for each row: its component, then name, value, unit and 95 % interval of every column {name: column}."""
    texts = [f"<b>{html.escape(label)}</b>" for label in frame["component"]]
    for name, column in columns.items():
        unit = frame.attrs.get("units", {}).get(column, "")
        numbers = (frame[column + end].to_numpy(dtype=float) for end in ("", "_low", "_high"))
        texts = [
            f"{text}<br>{name} {style.measured(value, low, high, unit=unit)}"
            for text, value, low, high in zip(texts, *numbers, strict=True)
        ]
    return np.array(texts, dtype=object)


def between(low: float, high: float) -> str:
    """An interval in brackets, where there is one."""
    return f"[{style.number(low)}, {style.number(high)}]" if low == low and high == high else "(no interval)"


def whiskered(frame: pd.DataFrame, what: str = "Whiskers") -> str:
    """What the whiskers of a figure are, or why it has none, from `attrs["intervals"]` of its frame."""
    note = str(frame.attrs["intervals"])
    return f"{what}: {note}." if note[0].isdigit() else f"{note[0].upper()}{note[1:]}."
