"""The strip: what each component writes on each row, so that bias and diversity are seen before they are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..ensemble.intervals import estimate
from ..ensemble.losses import hits
from ..errors import InputError
from . import shapes, style

# Above so many rows a lane is half a violin; above so many labels there is one lane without a color of its own.
MOST_MARKS = 300
MOST_LABELS = len(style.LABELS)


@dataclass(frozen=True)
class Line:
    """A line of the strip: the sum of some components, `[row]`, and how often it is right alone, if that is known."""

    name: str
    values: Float[np.ndarray, " row"]
    accuracy: float | None


@dataclass(frozen=True)
class Lane:
    """The rows of one label: where they lie around each line (`base` to `base + height`), and their look."""

    name: str
    rows: np.ndarray
    base: float
    height: float
    color: str
    shape: str


def strip(result: Any, n: int = 8, effects: Any = None) -> go.Figure:
    """Draw a mark per row and component at its contribution to the first option minus the second.

    Of more options it is the contribution to the right one minus the mean of the others. By turns the components with
    the largest mean and with the largest difference between labels are shown, sorted by their mean; then the sum of the
    others, and of all. A tick is a label's mean with its 95 % interval, the number at the right the share of rows on
    which a line alone prefers the right option.

    Args:
        result: A `Decomposition` with labels, or `Contributions` to two options or with labels.
        n: The number of components that are shown.
        effects: Results of `ld.effects` of the same model, one or a list: their costs stand in place of the accuracies.
    """
    options, labels, values = _rows_of(result)
    options = tuple(option.strip() or option for option in options)  # a token's leading blank is no part of a label
    x = _toward(values, labels)
    lanes = _lanes(options, labels, len(x))
    shown = _leading(x, lanes, n)
    others = [i for i in range(x.shape[1]) if i not in set(shown)]
    members = {f"<b>all {x.shape[1]}</b>": [*others, *shown]}
    if others and shown:
        members[f"{len(others)} other{'' if len(others) == 1 else 's'}"] = others
    sums = len(members)
    members |= {shapes.label(result.components[i].label): [i] for i in shown}
    lines = [
        Line(name, x[:, which].sum(1), None if labels is None else float(hits(values[:, which].sum(1), labels).mean()))
        for name, which in members.items()
    ]
    several = [] if effects is None else effects if isinstance(effects, list | tuple) else [effects]
    figure = make_subplots(1, 1)
    if several:
        figure = make_subplots(1, 2, shared_yaxes=True, column_widths=[0.7, 0.3], horizontal_spacing=0.04)
    tall = max(42, 14 * len(lanes))
    for lane in lanes:
        if len(x) <= MOST_MARKS:
            _add_marks(figure, lines, lane, tall, result.prompt_ends)
        else:
            _add_violins(figure, lines, lane)
        _add_means(figure, lines, lane, tall)
    unit = "nats" if result.score == "log_likelihood" else "logits"
    top = _add_words(figure, options, lanes, values.shape[2])
    if several:
        _add_costs(figure, result.model, lines, sums, several)
    elif labels is not None:
        _add_accuracies(figure, lines)
    figure.add_hline(y=sums - 0.5, line={"color": style.NEUTRAL, "width": 1})
    names = [line.name for line in lines]
    rows = {"tickvals": list(range(len(lines))), "ticktext": names, "range": [-0.5, len(lines) - 0.5]}
    figure.update_yaxes(**rows, zeroline=False)
    figure.update_xaxes(title_text=unit, zeroline=True, row=1, col=1)
    right = 56 if labels is not None and not several else 16
    return figure.update_layout(height=top + 60 + tall * len(lines), margin={"t": top, "r": right}, showlegend=False)


def _rows_of(result: Any) -> tuple[tuple[str, ...], np.ndarray | None, Float[np.ndarray, "row component option"]]:
    """The options' names, the labels if they are known, and the values of a decomposition or of contributions."""
    if hasattr(result, "comparable"):
        return result.names, result.labels, result.comparable.values
    return result.names, result.gold, result.values


def _toward(
    values: Float[np.ndarray, "row component option"], labels: np.ndarray | None
) -> Float[np.ndarray, "row component"]:
    """Contributions to the first option minus the second; of more options, to the right one minus the others' mean."""
    count = values.shape[2]
    if count == 1:
        return values[..., 0]
    if count == 2:
        return values[..., 0] - values[..., 1]
    if labels is None:
        raise InputError(f"a strip of {count} options needs labels: draw that of ld.decompose(c, labels).")
    right = np.take_along_axis(values, labels[:, None, None], 2)[..., 0]
    return right - (values.sum(2) - right) / (count - 1)


def _lanes(options: Sequence[str], labels: np.ndarray | None, count: int) -> list[Lane]:
    """One lane per label, the first above a line and the second below it; one for all rows of many labels or none."""
    present = [] if labels is None else np.unique(labels).tolist()
    if labels is None or len(options) > MOST_LABELS:
        return [Lane("rows", np.arange(count), -0.4, 0.8, style.PAIR[0], "circle")]
    height = 0.84 / len(present)
    lanes = []
    for number, label in enumerate(present):
        base, tall = 0.42 - (number + 1) * height, height
        if len(options) == 2:
            base, tall = 0.0, 0.4 if label == 0 else -0.4
        rows = np.flatnonzero(labels == label)
        lanes.append(Lane(shapes.label(options[label]), rows, base, tall, style.LABELS[label], style.SHAPES[label]))
    return lanes


def _leading(x: Float[np.ndarray, "row component"], lanes: Sequence[Lane], n: int) -> list[int]:
    """The components with the largest mean and the largest difference between labels by turns, sorted by mean."""
    means = np.stack([x[lane.rows].mean(0) for lane in lanes])
    spread = np.ptp(means, axis=0) if len(lanes) > 1 else x.std(0)
    by_turns = np.stack([np.argsort(-np.abs(means.mean(0)), kind="stable"), np.argsort(-spread, kind="stable")], 1)
    chosen = list(dict.fromkeys(by_turns.ravel().tolist()))[:n]
    return sorted(chosen, key=lambda i: float(means[:, i].mean()))


def _add_marks(figure: go.Figure, lines: Sequence[Line], lane: Lane, tall: int, texts: Sequence[str]) -> None:
    """Add a mark per row: a swarm, in which marks that would touch stand above one another."""
    touch = max(float(np.ptp(np.stack([line.values for line in lines]))) / 85, 1e-12)
    x, y, hovers = [], [], list[str]()
    for number, line in enumerate(lines):
        values = line.values[lane.rows]
        level = _swarm(values, touch)
        step = min(8 / tall / abs(lane.height), 0.7 / max(level.max(initial=0), 1))
        x.append(values)
        y.append(number + lane.base + lane.height * (0.25 + level * step))
        for row, value in zip(lane.rows, values, strict=True):
            text = f"<br>…{shapes.label(texts[row][-60:], 60)}" if len(texts) > row else ""
            hovers.append(f"{line.name} {style.signed(value)}<br>row {row}: {lane.name}{text}")
    marker = {"color": lane.color, "symbol": lane.shape, "size": 7, "opacity": 0.65}
    points = {"x": np.concatenate(x), "y": np.concatenate(y), "hovertext": hovers, "hoverinfo": "text"}
    figure.add_scatter(mode="markers", marker=marker, name=lane.name, **points, row=1, col=1)


def _swarm(x: Float[np.ndarray, " row"], width: float) -> np.ndarray:
    """The lowest level of each mark at which it touches no earlier one."""
    level = np.zeros(len(x), dtype=int)
    for i in range(len(x)):
        taken = set(level[:i][np.abs(x[:i] - x[i]) < width].tolist())
        level[i] = next(height for height in range(len(x)) if height not in taken)
    return level


def _add_violins(figure: go.Figure, lines: Sequence[Line], lane: Lane) -> None:
    for number, line in enumerate(lines):
        values = line.values[lane.rows]
        place = {"y": np.full(len(values), number + lane.base), "width": 2 * abs(lane.height)}
        side = "positive" if lane.height > 0 else "negative"
        look = {"orientation": "h", "side": side, "points": False, "spanmode": "hard", "hoverinfo": "skip"}
        look |= {"line": {"color": lane.color, "width": 1}, "name": lane.name}
        figure.add_violin(x=values, **place, **look, row=1, col=1)


def _add_means(figure: go.Figure, lines: Sequence[Line], lane: Lane, tall: int) -> None:
    mean = estimate(np.stack([line.values[lane.rows] for line in lines], 1))
    texts = [
        f"{line.name} mean {style.estimate(*ends)}<br>{lane.name}"
        for line, *ends in zip(lines, mean.value, mean.low, mean.high, strict=True)
    ]
    spread = {"array": mean.high - mean.value, "arrayminus": mean.value - mean.low}
    error = spread | {"type": "data", "color": lane.color, "thickness": 2, "width": 0}
    marker = {"symbol": "line-ns", "size": tall * abs(lane.height), "line": {"width": 3, "color": lane.color}}
    points = {"x": mean.value, "y": np.arange(len(lines)) + lane.base + lane.height / 2, "error_x": error}
    hovers = {"hovertext": texts, "hoverinfo": "text", "name": f"mean of {lane.name}"}
    figure.add_scatter(mode="markers", marker=marker, **points, **hovers, row=1, col=1)


def _add_words(figure: go.Figure, options: Sequence[str], lanes: Sequence[Lane], count: int) -> int:
    """Name both directions, and the labels of more than two options, in their colors; return the margin above."""
    if count == 1:
        return shapes.TOP
    ends = [("right →", style.NEUTRAL), ("← wrong", style.NEUTRAL)]
    if count == 2:
        first, second = map(shapes.label, options)
        ends = [(f"{first} {style.GLYPHS[0]} →", style.PAIR[0]), (f"← {style.GLYPHS[1]} {second}", style.PAIR[1])]
    for x, (text, color) in zip((1, 0), ends, strict=True):
        place = {"x": x, "y": 1, "xref": "x domain", "yref": "paper", "xanchor": ("left", "right")[x]}
        figure.add_annotation(text=f"<b>{text}</b>", **place, yanchor="bottom", font={"color": color, "size": 13})
    if count == 2 or len(lanes) < 2:
        return shapes.TOP
    glyphs = dict(zip(style.SHAPES, style.GLYPHS, strict=True))
    key = [f'<span style="color:{lane.color}">{glyphs[lane.shape]} {lane.name}</span>' for lane in lanes]
    place = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 22}
    figure.add_annotation(text=f"<b>{'   '.join(key)}</b>", align="left", **place)
    return shapes.TOP + 22


def _add_accuracies(figure: go.Figure, lines: Sequence[Line]) -> None:
    place = {"xref": "paper", "yref": "y", "x": 1, "xanchor": "left", "xshift": 8, "font": {"color": style.NEUTRAL}}
    for number, line in enumerate(lines):
        figure.add_annotation(text=f"{line.accuracy:.0%}", y=number, **place)
    below = {"y": 0, "yref": "paper", "yanchor": "top", "yshift": -8, "xanchor": "right", "xshift": 52}
    figure.add_annotation(text="accuracy", **(place | below))


def _add_costs(figure: go.Figure, model: str, lines: Sequence[Line], sums: int, several: Sequence[Any]) -> None:
    """Add how much the loss grows when a component is ablated, a symbol per kind of ablation."""
    names = [line.name for line in lines[sums:]]
    symbols = ("circle", "circle-open", "diamond-open")
    glyphs = []
    for number, (effects, symbol) in enumerate(zip(several, symbols, strict=False)):
        if model.removeprefix("zoo/") != effects.model.removeprefix("zoo/"):
            raise InputError(f"effects= are of {effects.model}, but the strip is of {model}.")
        frame = effects.frame()
        frame = frame.assign(component=frame["component"].map(shapes.label)).set_index("component").reindex(names)
        y = np.arange(sums, len(lines)) + 0.12 - 0.24 * number / max(1, len(several) - 1)
        ends = zip(names, *(frame[f"cost{end}"] for end in ("", "_low", "_high")), strict=True)
        texts = [f"<b>{n}</b> {effects.ablation} ablation {style.estimate(*v, unit='nats')}" for n, *v in ends]
        look: dict[str, Any] = {"mode": "markers", "marker": {"color": style.NEUTRAL, "size": 8, "symbol": symbol}}
        look |= {"hovertext": texts, "hoverinfo": "text", "error_x": shapes.whiskers(frame, "cost")}
        figure.add_scatter(x=frame["cost"], y=y, name=f"{effects.ablation} ablation", **look, row=1, col=2)
        glyphs.append(f"{'●○◇'[number]} {effects.ablation}")
    figure.update_xaxes(title_text="cost, nats", nticks=4, row=1, col=2)
    place = {"x": 1, "y": 1, "xref": "x2 domain", "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(text=" ".join(glyphs), font={"color": style.NEUTRAL}, **place)
