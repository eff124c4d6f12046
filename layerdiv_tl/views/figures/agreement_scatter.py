"""Every component by direct measures against the effect of removing it."""

from __future__ import annotations

import html
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from .. import style
from ..plotting import arrange, buttons, by_module, cell, changes, dots, panels, whiskers
from .agreement import NAMES, Effect, capital, measures, part_name, rank_hovers, rank_ticks

if TYPE_CHECKING:
    import pandas as pd

    from ...depth.agreement import Agreement

_COLUMNS = 3
_MAX_NAMES = 5


@figure_of("scatter", "Agreement", default=True)
def agreement_scatter(
    agreement: Agreement,
    effect: Effect = "loss",
    scale: Literal["rank", "value"] = "rank",
    title: str | None = None,
) -> go.Figure:
    """Every component's rank by each direct measure (x) against the effect of its removal (y), colored by module.

    scale
        Of y at first: the effect's rank, which Spearman's ρ compares, or its value. Buttons change it.

    A rising cloud is agreement. The hover has values and ranks with 95 % intervals. Raises InputError for an
    unknown effect or scale.
    """
    from ...depth.quantities import UNITS

    frame, names, components = agreement.frame(), measures(agreement), agreement.components
    columns = {"rank": f"{effect}_rank", "value": effect}

    def draw(scale: str) -> list[list[go.Scatter]]:
        return [
            [*_marks(frame, components, measure, effect, columns[scale]), _names(frame, measure, columns[scale])]
            for measure in names
        ]

    rho = _pooled(agreement, effect)
    headings = [capital(measure) + rho.get(measure, "") for measure in names]
    figure = panels(draw(scale), headings, _COLUMNS, shared_xaxes=False)
    rows = -(-len(names) // _COLUMNS)
    ends, ticks = [1.06 * len(frame) + 0.5, 0.5 - 0.06 * len(frame)], rank_ticks(len(frame))
    ranked = {"range": ends, "autorange": False, "zeroline": False, "tickmode": "array", "tickvals": ticks}
    # Ends are given: left to itself, an axis that a button turns over stays turned.
    reach = frame[[effect, f"{effect}_low", f"{effect}_high"]]
    low, high = float(np.nanmin(reach.to_numpy())), float(np.nanmax(reach.to_numpy()))
    room = 0.05 * (high - low) or 0.5
    valued = {"range": [low - room, high + room], "autorange": False, "zeroline": True, "tickmode": "auto"}
    layouts = {
        "rank": _y_axes(rows, f"rank by {NAMES[effect]}", ranked),
        "value": _y_axes(rows, f"{NAMES[effect]}, {UNITS[effect]}", valued),
    }
    attributes = ("x", "y", "error_y", "text", "textposition")
    views = {f"{s}s": (changes(chain(*draw(s)), *attributes), layouts[s]) for s in columns}
    part = part_name(components)
    arrange(
        figure,
        title or f"Do direct measures tell which {part}s {agreement.model} needs?",
        f"{agreement.rows}; a dot is a {part}, up: its removal costs more; right: the measure ranks it higher (1 is "
        f"needed most); a rising cloud is agreement. ρ: Spearman's over all {part}s (and without the "
        "noise of few rows).",
        plot=260 * rows,
        below=104,
        menus=buttons(views, list(columns).index(scale)),
        headings=True,
    )
    figure.update_xaxes(**ranked)
    for number in range(max(0, len(names) - _COLUMNS), len(names)):
        figure.update_xaxes(title_text="rank by the measure", **cell(number, _COLUMNS))
    return figure.update_layout(layouts[scale])


def _marks(frame: pd.DataFrame, components: Any, measure: str, effect: str, column: str) -> list[go.Scatter]:
    """A panel's marks, a trace for each module; only values have error bars."""
    traces = []
    for module, positions in by_module(components):
        rows = frame.iloc[positions]
        labels: dict[str, Any] = {"name": style.MODULE_NAME[module], "legendgroup": module}
        labels |= {"hover": rank_hovers(rows, effect, measure), "error": whiskers(rows, column)}
        x, y = rows[f"{measure}_rank"].to_numpy(), rows[column].to_numpy()
        trace = dots(x, y, style.MODULE[module], size=7, marker={"opacity": 0.8}, **labels)
        traces.append(trace.update(error_y_visible=column == effect))
    return traces


def _names(frame: pd.DataFrame, measure: str, column: str) -> go.Scatter:
    """Names of a panel's marks: first by effect, by the measure, farthest from agreeing; none on another."""
    x, y = frame[f"{measure}_rank"].to_numpy(), frame[column].to_numpy()
    up = not column.endswith("_rank")
    # How far from the right and from the top, as shares of the panel.
    across, down = ((v - v.min()) / (np.ptp(v) or 1.0) for v in (x, -y if up else y))
    # By values all but a few lie at the bottom, where names would hide them.
    wanted = (down,) if up else (down, across, -np.abs(across - down))
    orders = [np.argsort(order, kind="stable") for order in wanted]
    named: list[int] = []
    for i in np.stack(orders, 1)[:_MAX_NAMES].ravel().tolist():
        free = all(abs(down[i] - down[j]) > 0.07 or abs(across[i] - across[j]) > 0.35 for j in named)
        if free and np.isfinite(across[i] + down[i]) and len(named) < _MAX_NAMES:
            named.append(i)
    return go.Scatter(
        x=x[named],
        y=y[named],
        mode="text",
        error_y={"visible": False},
        text=[f"\u2002{html.escape(label)}\u2002" for label in frame["component"].iloc[named]],
        textposition=[f"middle {'left' if across[i] < 0.5 else 'right'}" for i in named],
        textfont={"size": 10},
        hoverinfo="skip",
        showlegend=False,
    )


def _pooled(agreement: Agreement, effect: Effect) -> dict[str, str]:
    """The correlation over all components, for a panel's heading after each measure."""
    frame = agreement.correlations()
    if not len(frame):
        return {}
    rows = frame[(frame["kind"] == "all") & (frame["effect"] == effect) & np.isfinite(frame["correlation"])]
    texts = {}
    for measure, rho, corrected in zip(rows["measure"], rows["correlation"], rows["corrected"], strict=True):
        text = f": ρ = {rho:.2f}" + (f" ({corrected:.2f})" if np.isfinite(corrected) else "")
        texts[str(measure)] = text.replace("-", "−")
    return texts


def _y_axes(rows: int, title: str, axis: dict[str, Any]) -> dict[str, Any]:
    """Updates of every y axis, with a title in the first column."""
    updates: dict[str, Any] = {}
    for number in range(rows * _COLUMNS):
        name = f"yaxis{number + 1 if number else ''}"
        updates |= {f"{name}.{key}": value for key, value in axis.items()}
        if number % _COLUMNS == 0:
            updates[f"{name}.title.text"] = title
    return updates
