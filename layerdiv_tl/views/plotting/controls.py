"""Buttons and menus that change what a figure shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plotly.basedatatypes import BasePlotlyType, BaseTraceType


def buttons(
    views: Mapping[str, Sequence[Any]], active: int = 0, method: str = "update", **options: Any
) -> list[dict[str, Any]]:
    """A row of buttons from the left, or, with `type="dropdown"`, a menu; an empty list where there is no choice.

    `views` has the arguments of plotly's `method` for each label: changes of the traces, changes of the layout.
    """
    if len(views) < 2:
        return []
    entries = [{"label": label, "method": method, "args": list(arguments)} for label, arguments in views.items()]
    row = {"type": "buttons", "direction": "right", "showactive": True, "x": 0, "xanchor": "left"}
    return [row | {"buttons": entries, "active": active} | options]


def changes(traces: Iterable[BaseTraceType], *attributes: str) -> dict[str, list[Any]]:
    """What a button puts in place of all traces: the values of some attributes of these."""
    traces = list(traces)
    return {name: [_plain(trace[name]) for trace in traces] for name in attributes}


def _plain(value: Any) -> Any:
    return value.to_plotly_json() if isinstance(value, BasePlotlyType) else value
