"""Every component by direct measures against what removing it does."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...depth.agreement import UNITS, Agreement, Effect
from .. import style
from .agreement import NAMES, capital, hovers, measures, part, rank_ticks
from .gauge_controls import whiskers
from .layout import arrange, buttons

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = 3
_MARKED = 5


def agreement_scatter(
    agreement: Agreement,
    effect: Effect = "loss",
    scale: Literal["rank", "value"] = "rank",
    title: str | None = None,
) -> go.Figure:
    """Every component's rank by each direct measure (x) against what its removal does (y), colored by module.

    scale
        Of y at first: the effect's rank, which Spearman's ρ compares, or its value. Buttons change it.

    A rising cloud is agreement. The hover has values and ranks with 95 % intervals. Raises InputError for an
    unknown effect or scale.
    """
    frame, named = agreement.frame(), measures(agreement)
    modules = np.array([c.module for c in agreement.components], dtype=object)
    rows, rho = -(-len(named) // _COLUMNS), _pooled(agreement, effect)
    figure = make_subplots(
        rows=rows,
        cols=_COLUMNS,
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=0.2 / rows,
        subplot_titles=[capital(measure) + rho.get(measure, "") for measure in named],
    )
    figure.update_annotations(font={"size": 13})
    ys = {"rank": f"{effect}_rank", "value": effect}
    drawn: dict[str, list[dict[str, Any]]] = {one: [] for one in ys}
    for number, measure in enumerate(named):
        place = {"row": number // _COLUMNS + 1, "col": number % _COLUMNS + 1}
        for module in dict.fromkeys(modules):
            some = frame[modules == module]
            for one, at in ys.items():
                spread = whiskers(some, at) | {"visible": one == "value"}
                x, y = some[f"{measure}_rank"].to_numpy(), some[at].to_numpy()
                drawn[one].append({"x": x, "y": y, "error_y": spread, "text": None, "textposition": None})
            figure.add_scatter(
                mode="markers",
                name=style.MODULE_NAME[module],
                legendgroup=module,
                showlegend=number == 0,
                marker={"color": style.MODULE[module], "size": 7, "opacity": 0.8},
                hovertext=hovers(some, (effect, measure)),
                hoverinfo="text",
                **place,
            )
        for one, at in ys.items():
            drawn[one].append(_names(frame, f"{measure}_rank", at, up=one == "value"))
        figure.add_scatter(mode="text", textfont={"size": 10}, hoverinfo="skip", showlegend=False, **place)
    for trace, said in zip(figure.data, drawn[scale], strict=True):
        trace.update(said)
    ends, ticks = [1.06 * len(frame) + 0.5, 0.5 - 0.06 * len(frame)], rank_ticks(len(frame))
    ranked = {"range": ends, "autorange": False, "zeroline": False, "tickmode": "array", "tickvals": ticks}
    # Ends are given: left to itself, an axis that a button turns over stays turned.
    reach = [frame[effect + end] for end in ("", "_low", "_high")]
    low, high = min(r.min() for r in reach), max(r.max() for r in reach)
    room = 0.05 * (high - low) or 0.5
    valued = {"range": [low - room, high + room], "autorange": False, "zeroline": True, "tickmode": "auto"}
    layouts = {
        "rank": _y_axes(rows, f"rank by {NAMES[effect]}", ranked),
        "value": _y_axes(rows, f"{NAMES[effect]}, {UNITS[effect]}", valued),
    }
    updates = {one: {key: [said[key] for said in some] for key in some[0]} for one, some in drawn.items()}
    labels = {"rank": "ranks", "value": "values"}
    entries = [{"label": labels[one], "method": "update", "args": [updates[one], layouts[one]]} for one in ys]
    what = part(agreement.components)
    arrange(
        figure,
        title or f"Do direct measures tell which {what}s {agreement.model} needs?",
        f"{agreement.rows}; a dot is a {what}, up: its removal costs more; right: the measure ranks it higher (1 is "
        f"needed most); a rising cloud is agreement. ρ: Spearman's over all {what}s (and without the "
        "noise of few rows).",
        plot=260 * rows,
        below=104,
        menus=[buttons(entries, list(ys).index(scale))],
        headings=True,
    )
    figure.update_xaxes(**ranked)
    for number in range(max(0, len(named) - _COLUMNS), len(named)):
        where = {"row": number // _COLUMNS + 1, "col": number % _COLUMNS + 1}
        figure.update_xaxes(title_text="rank by the measure", **where)
    return figure.update_layout(layouts[scale])


def _pooled(agreement: Agreement, effect: Effect) -> dict[str, str]:
    """What a panel's heading says behind each measure."""
    frame = agreement.correlations()
    if not len(frame):
        return {}
    rows = frame[(frame["kind"] == "all") & (frame["effect"] == effect) & np.isfinite(frame["correlation"])]
    numbers = rows[["correlation", "corrected"]].to_numpy(dtype=float)
    return {
        str(measure): f": ρ = {_two(r)}" + (f" ({_two(corrected)})" if np.isfinite(corrected) else "")
        for measure, (r, corrected) in zip(rows["measure"], numbers, strict=True)
    }


def _two(rho: float) -> str:
    return f"{rho:.2f}".replace("-", "−")


def _names(frame: pd.DataFrame, x: str, y: str, *, up: bool) -> dict[str, Any]:
    """Names of a panel's marks: first by effect, by the measure, farthest from agreeing; none on another."""
    values = frame[y].to_numpy() * (-1 if up else 1)
    # How far from the right and from the top, as shares of the panel.
    across, down = ((v - v.min()) / (np.ptp(v) or 1.0) for v in (frame[x].to_numpy(), values))
    # By values all but a few lie at the bottom, where names would hide them.
    wanted = (down,) if up else (down, across, -np.abs(across - down))
    orders = [np.argsort(order, kind="stable") for order in wanted]
    named: list[int] = []
    for i in np.stack(orders, 1)[:_MARKED].ravel().tolist():
        free = all(abs(down[i] - down[j]) > 0.07 or abs(across[i] - across[j]) > 0.35 for j in named)
        if free and np.isfinite(across[i] + down[i]) and len(named) < _MARKED:
            named.append(i)
    return {
        "x": frame[x].to_numpy()[named],
        "y": frame[y].to_numpy()[named],
        "error_y": {"visible": False},
        "text": [f"\u2002{html.escape(label)}\u2002" for label in frame["component"].iloc[named]],
        "textposition": [f"middle {'left' if across[i] < 0.5 else 'right'}" for i in named],
    }


def _y_axes(rows: int, title: str, axis: dict[str, Any]) -> dict[str, Any]:
    """Updates of every y axis, with a title in the first column."""
    said: dict[str, Any] = {}
    for number in range(rows * _COLUMNS):
        at = f"yaxis{number + 1 if number else ''}"
        said |= {f"{at}.{key}": value for key, value in axis.items()}
        if number % _COLUMNS == 0:
            said[f"{at}.title.text"] = title
    return said
