"""Axes that carry names: of components, of tokens, of models and tasks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from ...components import Component
from ..html import quoted
from .layout import clipped, short

# Names beneath columns that are longer than this are tilted by plotly.
_LEVEL = 10


def component_axis(components: Sequence[Component], max_ticks: int = 16, grid: bool = False) -> dict[str, Any]:
    """An axis along which components stand in stream order: a tick where a layer begins, about `max_ticks` at most."""
    starts: dict[str, int] = {}
    for position, component in enumerate(components):
        layer = f"L{component.layer}" + (f"@{component.repeat}" if component.repeat else "")
        starts.setdefault(component.label if component.layer is None else layer, position)
    layers = [name for name in starts if name.startswith("L")]
    regular = layers[:: max(1, -(-len(layers) // max_ticks))]
    # A label needs a fraction of the axis; whatever would touch the one before is left out.
    apart = len(components) / (1.5 * max_ticks)
    kept: list[str] = []
    for name in starts:
        if (name not in layers or name in regular) and (not kept or starts[name] - starts[kept[-1]] >= apart):
            kept.append(name)
    ticks = _ticks([starts[name] for name in kept], [html.escape(name) for name in kept]) | {"tickangle": 0}
    return ticks | {"showgrid": grid}


def token_axis(tokens: Sequence[str], max_ticks: int = 40) -> dict[str, Any]:
    """An axis of a text's tokens at 0, 1, 2, …, of which about `max_ticks` are written."""
    written = range(0, len(tokens), max(1, -(-len(tokens) // max_ticks)))
    return _ticks(written, [html.escape(quoted(tokens[i], 12)) for i in written]) | {"tickangle": -60}


def named_rows(names: Sequence[str]) -> dict[str, Any]:
    """An axis on which names stand at 0, 1, 2, …"""
    return _ticks(range(len(names)), [clipped(name) for name in names])


def named_columns(names: Sequence[str], positions: Sequence[float]) -> dict[str, Any]:
    """An axis on which short names stand beneath `positions`."""
    return _ticks(positions, [short(name) for name in names])


def tilted(names: Sequence[str]) -> int:
    """Pixels that names beneath columns need more than level ones."""
    longest = max(len(html.unescape(short(name))) for name in names)
    return 4 * longest if longest > _LEVEL else 0


def _ticks(positions: Sequence[float], texts: Sequence[str]) -> dict[str, Any]:
    ticks = {"tickmode": "array", "tickvals": list(positions), "ticktext": list(texts)}
    return ticks | {"showgrid": False, "zeroline": False}
