"""Names beside the marks of a scatter, placed where they can be read at a width of 400 pixels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from . import kit, style

# Of so few marks all are named; {place of a name: its lower left corner, in its own width and height}.
_FEW = 12
_PLACES: dict[str, tuple[float, float]] = {
    "top right": (0, 0),
    "top left": (-1, 0),
    "bottom right": (0, -1),
    "bottom left": (-1, -1),
}
_PLACES |= {"middle right": (0, -0.5), "middle left": (-1, -0.5)}
# A name of few marks is left out at this cost: on a line, or with one through another name.
_CROSSED = 0.3
# Where else a name may stand, with a line to its mark: pixels to the right and up.
_FAR = [(side * across, up) for across in (30, 60, 90) for up in (0, 20, -20, 40, -40) for side in (1, -1)]


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
    at_ends: bool = False,
) -> list[go.Scatter]:
    """Label the marks `always` named, then those with the largest `sizes`, at most `most`; all of a few marks.

    `ends` are the axes, with their ranges; without `sizes`, the marks farthest up, right and left come first. A name
    stands where, in a `panel` of so many pixels, it covers no other name, no mark, none of the lines `guides`, given by
    the x and y of their ends, and no whisker of a named mark, which goes from one of `spans` to the other; `at_ends`
    lets it stand at an end of its own whisker, first on the right. A name without such a place is left out, unless it
    is one of `always` or of few, to which a line leads. Returns the trace of names and that of these lines.
    """

    def share(values: Any, axis: Mapping[str, Any]) -> Any:
        low, high = axis["range"]
        with np.errstate(divide="ignore", invalid="ignore"):  # zeros lie off a logarithmic axis
            return ((np.log10(values) if axis.get("type") == "log" else values) - low) / (high - low)

    def value(share: float, axis: Mapping[str, Any]) -> float:
        low, high = axis["range"]
        on_axis = low + share * (high - low)
        return float(10**on_axis if axis.get("type") == "log" else on_axis)

    shares = np.stack([share(values, axis) for values, axis in zip((x, y), ends, strict=True)], 1)
    shares, labels, wide = np.nan_to_num(shares, nan=-1.0, neginf=-1.0), list(names), np.array(panel)
    at, along = shares * wide, np.linspace(0, 1, 200)[:, None]
    lines = [
        np.stack([share(np.array(side), axis) for side, axis in zip(line, ends, strict=True)], 1) for line in guides
    ]
    guided = np.concatenate([(one + along * (other - one)) * wide for one, other in lines] or [np.empty((0, 2))])
    spans = [np.where(np.isnan(end), x, end) for end in spans or (x, x)]  # few rows have no intervals
    whiskers = [np.stack([share(end, ends[0]) * wide[0], at[:, 1]], 1) for end in spans]
    orders = np.stack([np.argsort(-s, kind="stable") for s in sizes or (shares[:, 1], shares[:, 0], -shares[:, 0])], 1)
    asked = set(always)
    wanted = set(labels) if len(labels) <= _FEW else asked
    first = [i for i, label in enumerate(labels) if label in wanted]
    placed, moved, leads = dict[int, str](), dict[int, list[float]](), list[int]()
    boxes, drawn = list[np.ndarray](), np.empty((0, 2))
    for i in dict.fromkeys([*first, *orders[: 2 * most].ravel().tolist()]):
        if (shares[i] < 0).any() or (shares[i] > 1).any() or (len(placed) >= max(most, len(first)) and i not in first):
            continue
        size, options = np.array([6.5 * len(labels[i]) + 12, 14.0]), list[tuple[Any, ...]]()
        whisker = np.stack([side[i] for side in whiskers])
        others = np.delete(at, i, axis=0)
        crossed = [np.stack([side[j] for side in whiskers]) for j in {*placed, *([] if at_ends else first)} - {i}]
        # At an end of its whisker, which then leads to the mark, or at the mark.
        places: list[tuple[str, Any]] = [("middle right", whisker[1] - at[i]), ("middle left", whisker[0] - at[i])]
        places = places * at_ends + [(place, (0, 0)) for place in _PLACES]
        close = len(places)
        places += [("middle right" if by[0] > 0 else "middle left", by) for by in _FAR if labels[i] in wanted]
        for number, (place, by) in enumerate(places):
            across, up = _PLACES[place]
            corner = at[i] + by + np.array([across, up]) * size + [0, 8 * up + 4]
            box = np.stack([corner, corner + size])
            near = (at > box[0] - 4) & (at < box[1] + 4)
            near[i] = False
            # Two names over each other cannot be read at all.
            cost = 3 * sum(_meet(box, other) for other in boxes) + sum(_meet(whisker, other) for other in boxes)
            cost += sum(_meet(box, other) for other in (*crossed, whisker))
            cost += ((guided > box[0]) & (guided < box[1])).all(1).any() + 0.5 * near.all(1).sum()
            cost += 0.3 * ((drawn > box[0]) & (drawn < box[1])).all(1).any()  # a line to another mark
            cost += 4 * ((box < 0) | (box > wide)).sum()
            # A line is worse than none, but better than a name on another's mark. Of two close marks the upper one is
            # named above: there fewer marks are nearer to the name than its own.
            cost += (0.1 + 0.001 * np.abs(by).sum()) * (number >= close)
            if number >= close:  # its line must not seem to lead to another mark
                lead = at[i] + along[::10] * np.asarray(by)
                cost += by[1] == 0 and np.ptp(whisker[:, 0]) > 0  # nor to be a part of its whisker
                cost += 0.15 * (np.linalg.norm(others[:, None] - lead, axis=-1) < 7).any()
                cost += 0.3 * any(((lead > other[0]) & (lead < other[1])).all(1).any() for other in boxes)
            away = np.linalg.norm(at - box.mean(0), axis=1)
            nearer = int((away < away[i]).sum()) * (number >= 2 * at_ends)
            # It reads as the name of the nearest mark, where no line or whisker leads to its own.
            cost += 0.2 * bool(nearer and number < close and not at_ends)
            options.append((cost, nearer, number, box))
        cost, _, number, box = min(options, key=lambda option: option[:2])
        place, by = places[number]
        is_free = not any(_meet(box, other) for other in boxes)
        if cost == 0 or (i in first and is_free and cost < _CROSSED) or labels[i] in asked:
            placed[i] = place
            boxes.append(box)
            if any(by):
                leads += [i] * (number >= close)
                drawn = np.concatenate([drawn, at[i] + along * np.asarray(by)]) if number >= close else drawn
                moved[i] = [value(*side) for side in zip((at[i] + by) / wide, ends, strict=True)]
    # Invisible marks keep the names away from the visible ones.
    look: dict[str, Any] = {"mode": "markers+text", "marker": {"size": 9, "opacity": 0}, "textfont": {"size": 11}}
    look |= {"hoverinfo": "skip", "showlegend": False, "textposition": [*placed.values()]}
    texts = [f"\u2002{labels[i]}\u2002" for i in placed]
    points = np.array([moved.get(i, [x[i], y[i]]) for i in placed]).reshape(-1, 2)
    # The lines are drawn even where there are none, so that all views of a figure have the same traces.
    along_x, along_y = ([v for i in leads for v in (own[i], moved[i][k], None)] for k, own in enumerate((x, y)))
    lead = kit.line(along_x, along_y, line=kit.DOTTED | {"width": 1, "color": style.NEUTRAL})
    return [go.Scatter(x=points[:, 0], y=points[:, 1], text=texts, **look), lead]


def _meet(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two boxes, of which each row is a corner, meet."""
    return bool(((one[0] < other[1]) & (one[1] > other[0])).all())
