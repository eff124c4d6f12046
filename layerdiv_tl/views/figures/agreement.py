"""Which direct measure ranks components as removing them does: ranks and their correlations."""

from __future__ import annotations

import html
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._registry import figure_of
from ...errors import InputError
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...depth.agreement import Agreement

# `depth.agreement.Effect`, without the torch that its module imports: options are checked against it.
Effect = Literal["loss", "accuracy"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
NAMES = style.LABELS["measure"]
# Quantities differ by color; effects are wider, too.
_COLORS = dict(zip(NAMES, [style.SERIES[i] for i in (2, 6, 3, 4, 5, 7, 1, 0)], strict=True))
_COLUMNS, _MAX_NAMES = 3, 5


@figure_of("scatter", "Agreement")
def agreement_scatter(
    agreement: Agreement, effect: Effect = "loss", scale: Literal["rank", "value"] = "rank"
) -> go.Figure:
    """Every component's rank by each direct measure (x) against the effect of its removal (y), colored by module.

    Args:
        scale: Of y at first: the effect's rank, which Spearman's ρ compares, or its value. Buttons change it.

    A rising cloud is agreement. The hover has values and ranks with 95 % intervals.
    """
    from ...depth.quantities import UNITS

    frame, names = agreement.frame(), measures(agreement)
    columns, count = {"rank": f"{effect}_rank", "value": effect}, len(frame)

    def draw(scale: str) -> list[list[go.Scatter]]:
        """The marks of each panel, of values with error bars, and the names of some."""
        y, error = frame[columns[scale]].to_numpy(), kit.whiskers(frame, columns[scale], visible=scale == "value")
        contents = []
        for measure in names:
            x, hover = frame[f"{measure}_rank"].to_numpy(), _rank_hovers(frame, effect, measure)
            look: dict[str, Any] = {"x": x, "draw": kit.dots, "error": error, "size": 7, "marker": {"opacity": 0.8}}
            marks = kit.module_traces(agreement.components, y, hover, **look)
            contents.append([*marks, _names(frame["component"].tolist(), x, y, scale == "value")])
        return contents

    rho = _pooled(agreement, effect)
    figure = kit.panels(draw(scale), [_capital(m) + rho.get(m, "") for m in names], _COLUMNS, shared_xaxes=False)
    for number in range(max(0, len(names) - _COLUMNS), len(names)):
        figure.update_xaxes(title_text="rank by the measure", **kit.cell(number, _COLUMNS))
    ranked: dict[str, Any] = {"range": [1.06 * count + 0.5, 0.5 - 0.06 * count], "autorange": False, "zeroline": False}
    ranked |= {"tickmode": "array", "tickvals": _rank_ticks(count)}
    # Ends are given: left to itself, an axis that a button turns over stays turned.
    reach = frame[[effect, f"{effect}_low", f"{effect}_high"]]
    low, high = float(np.nanmin(reach.to_numpy())), float(np.nanmax(reach.to_numpy()))
    room = 0.05 * (high - low) or 0.5
    valued = {"range": [low - room, high + room], "autorange": False, "zeroline": True, "tickmode": "auto"}
    rows = -(-len(names) // _COLUMNS)
    layouts = {
        "rank": _y_axes(rows, f"rank by {NAMES[effect]}", ranked),
        "value": _y_axes(rows, f"{NAMES[effect]}, {UNITS[effect]}", valued),
    }
    attributes = ("x", "y", "error_y", "text", "textposition")
    views = {f"{s}s": (kit.changes(chain(*draw(s)), *attributes), layouts[s]) for s in columns}
    part = _part_name(agreement)
    return kit.arrange(
        figure.update_layout(layouts[scale]),
        f"Do direct measures tell which {part}s {agreement.model} needs?",
        f"{agreement.rows}; a dot is a {part}, up: its removal costs more; right: the measure ranks it higher (1 is "
        f"needed most); a rising cloud is agreement. ρ: Spearman's over all {part}s.",
        x=ranked,
        plot=260 * rows,
        below=104,
        menus=kit.buttons(views, list(columns).index(scale)),
    )


def _names(names: list[str], x: np.ndarray, y: np.ndarray, up: bool) -> go.Scatter:
    """Names of a panel's marks: first by effect, by the measure, farthest from agreeing."""
    # How far from the right and from the top, as shares of the panel.
    across, down = ((v - v.min()) / (np.ptp(v) or 1.0) for v in (x, -y if up else y))
    # By values all but a few lie at the bottom, where names would hide them.
    orders = [np.argsort(v, kind="stable") for v in ((down,) if up else (down, across, -np.abs(across - down)))]
    room: dict[str, Any] = {"most": _MAX_NAMES, "apart": (0.35, 0.07), "size": 10, "left": across < 0.5}
    shares, first = np.stack([across, down], 1), np.stack(orders, 1)[:_MAX_NAMES]
    return kit.extreme_names(names, x, y, shares, first, **room).update(error_y_visible=False)


def _pooled(agreement: Agreement, effect: Effect) -> dict[str, str]:
    """The correlation over all components, for a panel's heading after each measure."""
    frame = agreement.correlations()
    if not len(frame):
        return {}
    rows = frame[(frame["kind"] == "all") & (frame["effect"] == effect) & np.isfinite(frame["correlation"])]
    rho = zip(rows["measure"], rows["correlation"], strict=True)
    return {str(measure): f": ρ = {value:.2f}".replace("-", "−") for measure, value in rho}


def _y_axes(rows: int, title: str, axis: dict[str, Any]) -> dict[str, Any]:
    """Updates of every y axis, with a title in the first column."""
    updates: dict[str, Any] = {}
    for number in range(rows * _COLUMNS):
        name = f"yaxis{number + 1 if number else ''}"
        updates |= {f"{name}.{key}": value for key, value in axis.items()}
        if number % _COLUMNS == 0:
            updates[f"{name}.title.text"] = title
    return updates


@figure_of("ranks", "Agreement")
def agreement_ranks(agreement: Agreement) -> go.Figure:
    """A map quantity × component of ranks, effects above, direct measures below; strong colors are needed most."""
    frame, quantities, components = agreement.frame(), [*EFFECTS, *measures(agreement)], agreement.components
    count, effects = len(frame), len(EFFECTS)
    # Edges of rows: a gap divides effects from measures.
    edges = np.r_[np.arange(effects + 1), np.arange(effects, len(quantities) + 1) + 0.3]
    z = [frame[f"{quantity}_rank"].to_numpy() for quantity in quantities]
    hover = [_rank_hovers(frame, quantity) for quantity in quantities]
    z.insert(effects, np.full(count, np.nan))
    hover.insert(effects, [""] * count)
    ranks = {"zmin": 1, "y": edges, "reversescale": True, "colorbar": {"tickvals": _rank_ticks(count)}}
    middles = [i + 0.5 + 0.3 * (i >= effects) for i in range(len(quantities))]
    rows = kit.named_rows([_capital(quantity) for quantity in quantities]) | {"tickvals": middles, "ticks": ""}
    part, strip = _part_name(agreement), kit.module_strip(components, 0.22, edges[-1] + 0.1)
    return kit.arrange(
        go.Figure([kit.heat_map(z, hover, "rank", count, **ranks), *strip]),
        f"How each measure ranks the {part}s of {agreement.model}",
        f"{agreement.rows}. Rank 1 is needed most. Above: by what removing the {part} does; below: by measures of the "
        "whole model.",
        x=kit.component_axis(components, "component, in stream order", edge=0.5),
        y=rows | {"range": [edges[-1] + 0.35, 0], "autorange": False},
        plot=34 * len(quantities) + 30,
        below=104,
        barmode="overlay",
    )


@figure_of("correlations", "Agreement")
def agreement_correlations(agreement: Agreement, effect: Effect = "loss") -> go.Figure:
    """Spearman's ρ of every measure's ranks and those by an effect, of all components and of each kind.

    The hover has its middle 95 % over resampled components. Raises InputError for an unknown effect, and for fewer than
    three components.
    """
    frame = agreement.correlations()
    if not len(frame):
        raise InputError("ranks of fewer than three components have no correlation worth a figure: plot kind='ranks'.")
    names, traces = measures(agreement), []
    for kind, rows in frame[frame["effect"] == effect].groupby("kind", sort=False):
        module = {"attn": "attention", "mlp": "mlp"}.get(str(kind), "layer")
        group = "all together" if module == "layer" else style.MODULE_NAME[module]
        rows = rows.set_index("measure").loc[names].reset_index()
        label: dict[str, Any] = {"name": f"{group} ({rows['components'].iloc[0]})", "width": None}
        label["hover"] = [_correlation_hover(row, group) for row in rows.itertuples()]
        traces.append(kit.bar(np.arange(len(rows)), rows["correlation"], style.MODULE[module], **label))
    axis = kit.named_columns([_capital(measure) for measure in names], range(len(names)))
    return kit.arrange(
        go.Figure(traces),
        f"Rank correlation of measures and removal: {agreement.model}, {NAMES[effect]}",
        f"{agreement.rows}. Spearman's ρ over components of a measure's ranks and those by the {NAMES[effect]}; above "
        "0 the measure tells what is needed. Few rows blur ranks, and pull ρ towards 0.",
        x=axis | {"tickangle": 0, "range": [-0.6, len(names) - 0.4]},
        y={"title_text": "Spearman's ρ", "range": [-1.05, 1.05], "zeroline": True},
        plot=380,
        barmode="group",
        bargap=0.25,
        bargroupgap=0.06,
    )


def measures(agreement: Agreement) -> list[str]:
    """The direct measures of an agreement, in their usual order."""
    from ...depth.quantities import Direct

    return [measure for measure in get_args(Direct) if measure in agreement.quantities]


def _capital(quantity: str) -> str:
    return str(NAMES[quantity][0].upper() + NAMES[quantity][1:])


def _part_name(agreement: Agreement) -> str:
    """What was measured, in a word."""
    return "layer" if agreement.components[0].kind == "layer" else "sublayer"


def _rank_hovers(frame: pd.DataFrame, *quantities: str) -> list[str]:
    """Component, then value and rank of each quantity with their intervals."""
    texts = list(kit.hover_lines(frame, {}))
    for quantity in quantities:
        values = kit.hover_lines(frame, {NAMES[quantity]: quantity})
        ranks = (frame[f"{quantity}_rank{end}"] for end in ("", "_low", "_high"))
        texts = [
            text + value[value.index("<br>") :] + f"<br>rank {kit.estimated(*rank)}"
            for text, value, *rank in zip(texts, values, *ranks, strict=True)
        ]
    return texts


def _rank_ticks(count: int) -> list[int]:
    """1 and round ranks, at most about ten."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, count) if count / s <= 8)
    return sorted({1, *range(step, count + 1, step)})


def _correlation_hover(row: Any, group: str) -> str:
    lines = [
        f"<b>{NAMES[row.measure]}</b>, {html.escape(group.lower())} ({row.components} components)",
        f"ρ {style.number(row.correlation)}",
        f"middle 95 % over resampled components {style.interval(row.low_components, row.high_components)}",
    ]
    return "<br>".join(lines)
