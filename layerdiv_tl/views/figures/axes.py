"""Axes that carry components: a tick where a layer begins, the full label in the hover."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from ...components import Component


def component_axis(components: Sequence[Component], most: int = 16) -> dict[str, Any]:
    """Ticks of an axis along which components stand in stream order, at most about `most` of them."""
    starts: dict[str, int] = {}
    for place, component in enumerate(components):
        if component.layer is None:
            name = component.label
        else:
            name = f"L{component.layer}" + (f"@{component.repeat}" if component.repeat else "")
        starts.setdefault(name, place)
    # A label needs a fraction of the axis; whatever would touch the one before is left out.
    apart = len(components) / (1.5 * most)
    layers = [name for name in starts if name.startswith("L")]
    regular = layers[:: max(1, -(-len(layers) // most))]
    wanted = [name for name in starts if name not in layers or name in regular]
    kept: list[str] = []
    for name in wanted:
        if not kept or starts[name] - starts[kept[-1]] >= apart:
            kept.append(name)
    ticks = {"tickvals": [starts[n] for n in kept], "ticktext": [html.escape(n) for n in kept]}
    return {"tickmode": "array", "tickangle": 0, **ticks}
