"""Names beside the marks of a scatter, placed where they can be read at a width of 400 pixels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

# Of so few marks all are named; {place of a name: its lower left corner, in its own width and height}.
_FEW = 12
_PLACES: dict[str, tuple[float, float]] = {
    "top right": (0, 0),
    "top left": (-1, 0),
    "bottom right": (0, -1),
    "bottom left": (-1, -1),
}
_PLACES |= {"middle right": (0, -0.5), "middle left": (-1, -0.5)}


def extreme_names(
    names: Iterable[str],
    x: np.ndarray,
    y: np.ndarray,
    ends: Sequence[Mapping[str, Any]],
    sizes: Sequence[np.ndarray] = (),
    *,
    most: int = 8,
    panel: tuple[int, int] = (290, 400),
    always: Iterable[str] = (),
    guides: Iterable[tuple[Any, Any]] = (),
    spans: Any = None,
) -> go.Scatter:
    """Label the marks `always` named, then those with the largest `sizes`, at most `most`; all of a few marks.

    `ends` are the axes, with their ranges; without `sizes`, the marks farthest up, right and left come first. A name
    stands where, in a `panel` of so many pixels, it covers no other name, no mark, none of the lines `guides`, given by
    the x and y of their ends, and no whisker of a named mark, which goes from one of `spans` to the other. A name
    without such a place is left out, unless it is one of `always`.
    """

    def share(values: Any, axis: Mapping[str, Any]) -> Any:
        low, high = axis["range"]
        with np.errstate(divide="ignore", invalid="ignore"):  # zeros lie off a logarithmic axis
            return ((np.log10(values) if axis.get("type") == "log" else values) - low) / (high - low)

    shares = np.stack([share(values, axis) for values, axis in zip((x, y), ends, strict=True)], 1)
    shares, labels, wide = np.nan_to_num(shares, nan=-1.0, neginf=-1.0), list(names), np.array(panel)
    at, along = shares * wide, np.linspace(0, 1, 200)[:, None]
    lines = [
        np.stack([share(np.array(side), axis) for side, axis in zip(line, ends, strict=True)], 1) for line in guides
    ]
    guided = np.concatenate([(one + along * (other - one)) * wide for one, other in lines] or [np.empty((0, 2))])
    whiskers = [np.stack([share(end, ends[0]) * wide[0], at[:, 1]], 1) for end in spans or (x, x)]
    orders = np.stack([np.argsort(-s, kind="stable") for s in sizes or (shares[:, 1], shares[:, 0], -shares[:, 0])], 1)
    asked = set(always)
    wanted = set(labels) if len(labels) <= _FEW else asked
    first = [i for i, label in enumerate(labels) if label in wanted]
    placed, boxes, taken = dict[int, str](), list[np.ndarray](), list[np.ndarray]()
    for i in dict.fromkeys([*first, *orders[: 2 * most].ravel().tolist()]):
        if (shares[i] < 0).any() or (shares[i] > 1).any() or (len(placed) >= max(most, len(first)) and i not in first):
            continue
        size, costs = np.array([6.5 * len(labels[i]) + 12, 14.0]), {}
        whisker = np.stack([side[i] for side in whiskers])
        for place, (across, up) in _PLACES.items():
            corner = at[i] + np.array([across, up]) * size + [0, 8 * up + 4]
            box = np.stack([corner, corner + size])
            near = (at > box[0] - 4) & (at < box[1] + 4)
            near[i] = False
            # Two names over each other cannot be read at all.
            cost = 3 * sum(_meet(box, other) for other in boxes) + sum(_meet(whisker, other) for other in boxes)
            cost += sum(_meet(box, other) for other in (*taken, whisker))
            cost += ((guided > box[0]) & (guided < box[1])).all(1).any() + 0.2 * near.all(1).sum()
            cost += 4 * ((box < 0) | (box > wide)).sum()
            costs[place] = (cost, box)
        place = min(costs, key=lambda name: costs[name][0])
        is_free = not any(_meet(costs[place][1], other) for other in boxes)
        if costs[place][0] == 0 or (i in first and is_free) or labels[i] in asked:
            placed[i] = place
            boxes, taken = [*boxes, costs[place][1]], [*taken, whisker]
    # Invisible marks keep the names away from the visible ones.
    look: dict[str, Any] = {"mode": "markers+text", "marker": {"size": 9, "opacity": 0}, "textfont": {"size": 11}}
    look |= {"hoverinfo": "skip", "showlegend": False, "textposition": [*placed.values()]}
    texts, named = [f"\u2002{labels[i]}\u2002" for i in placed], list(placed)
    return go.Scatter(x=x[named], y=y[named], text=texts, **look)


def _meet(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two boxes, of which each row is a corner, meet."""
    return bool(((one[0] < other[1]) & (one[1] > other[0])).all())
