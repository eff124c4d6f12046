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
            name = f"L{component.layer}" + (f"@{component.use}" if component.use else "")
        starts.setdefault(name, place)
    inside = [name for name in starts if name.startswith("L")]
    step = max(1, -(-len(inside) // most))
    kept = set(inside[::step])
    # Members of a plain array have no layers; then every few of them carry their own label.
    outside = [name for name in starts if name not in inside]
    kept |= set(outside if len(outside) <= most else outside[:: -(-len(outside) // most)])
    names = [name for name in starts if name in kept]
    return {"tickmode": "array", "tickvals": [starts[n] for n in names], "ticktext": [html.escape(n) for n in names]}
