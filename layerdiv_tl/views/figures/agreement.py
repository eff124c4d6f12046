"""Which direct measure ranks components as removing them does: ranks, their correlations, their stability."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from ...errors import InputError
from .. import style
from ..plotting import (
    arrange,
    bar,
    between,
    component_axis,
    error_bars,
    heat_map,
    hover_lines,
    line,
    module_strip,
    named_columns,
    named_rows,
)

if TYPE_CHECKING:
    import pandas as pd

    from ...depth.agreement import Agreement

# `depth.agreement.Effect`, without the torch that its module imports: options are checked against it.
Effect = Literal["loss", "accuracy"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
NAMES = {
    "diversity": "diversity, raw",
    "diversity_centered": "diversity, centered",
    "net": "net",
    "relevancy": "relevancy",
    "relative_norm": "relative norm",
    "block_influence": "block influence",
    "loss": "growth of the loss",
    "accuracy": "right answers lost",
}
# Quantities differ by color; effects are wider, too.
_COLORS = dict(zip(NAMES, [style.SERIES[i] for i in (2, 6, 3, 4, 5, 7, 1, 0)], strict=True))
_GROUPS = {
    "all": ("all together", style.MODULE["layer"]),
    "attn": (style.MODULE_NAME["attention"], style.MODULE["attention"]),
    "mlp": (style.MODULE_NAME["mlp"], style.MODULE["mlp"]),
}


@figure_of("ranks", "Agreement")
def agreement_ranks(agreement: Agreement, title: str | None = None) -> go.Figure:
    """A map quantity × component of ranks, effects above, direct measures below; strong colors are needed most."""
    frame, quantities, components = agreement.frame(), [*EFFECTS, *measures(agreement)], agreement.components
    count, effects = len(frame), len(EFFECTS)
    # Edges of rows: a gap divides effects from measures.
    edges = np.r_[np.arange(effects + 1), np.arange(effects, len(quantities) + 1) + 0.3]
    z = [frame[f"{quantity}_rank"].to_numpy() for quantity in quantities]
    hover = [rank_hovers(frame, quantity) for quantity in quantities]
    z.insert(effects, np.full(count, np.nan))
    hover.insert(effects, [""] * count)
    ranks = {"zmin": 1, "y": edges, "reversescale": True, "colorbar": {"tickvals": rank_ticks(count)}}
    figure = go.Figure([heat_map(z, hover, "rank", count, **ranks), *module_strip(components, 0.22, edges[-1] + 0.1)])
    part = part_name(components)
    arrange(
        figure,
        title or f"How each measure ranks the {part}s of {agreement.model}",
        f"{agreement.rows}. Rank 1 is needed most. Above: by what removing the {part} does; below: by measures of the "
        "whole model.",
        plot=34 * len(quantities) + 30,
        below=104,
    )
    figure.update_layout(barmode="overlay")
    axis = {"title_text": "component, in stream order", "range": [-0.5, count - 0.5]}
    figure.update_xaxes(**component_axis(components), **axis)
    middles = [i + 0.5 + 0.3 * (i >= effects) for i in range(len(quantities))]
    rows = named_rows([capital(quantity) for quantity in quantities]) | {"tickvals": middles, "ticks": ""}
    return figure.update_yaxes(**rows, range=[edges[-1] + 0.35, 0])


@figure_of("correlations", "Agreement")
def agreement_correlations(agreement: Agreement, effect: Effect = "loss", title: str | None = None) -> go.Figure:
    """Spearman's ρ of every measure's ranks and those by an effect, of all components and of each kind.

    Whiskers are the middle 95 % over resampled rows, which is not an interval (see `Agreement.correlations`); the
    hover has it over components, ρ corrected for few rows, and how much better than block influence a measure is.
    Raises InputError for an unknown effect, and for fewer than three components.
    """
    frame = agreement.correlations()
    if not len(frame):
        raise InputError("ranks of fewer than three components have no correlation worth a figure: plot kind='ranks'.")
    names, figure = measures(agreement), go.Figure()
    for kind, rows in frame[frame["effect"] == effect].groupby("kind", sort=False):
        group, color = _GROUPS.get(str(kind), _GROUPS["all"])
        rows = rows.set_index("measure").loc[names].reset_index()
        error = error_bars(*(rows[column] for column in ("correlation", "spread_low", "spread_high")))
        # The spread may lie below its estimate; the hover has it as it is.
        error |= {side: np.fmax(error[side], 0) for side in ("array", "arrayminus")}
        hover = [_correlation_hover(row, group) for row in rows.itertuples()]
        label = f"{group} ({rows['components'].iloc[0]})"
        x = np.arange(len(rows))
        figure.add_trace(bar(x, rows["correlation"], color, width=None, error=error, name=label, hover=hover))
    arrange(
        figure,
        title or f"Which measures rank as removal does? {agreement.model}, {NAMES[effect]}",
        f"{agreement.rows}. Spearman's ρ over components of a measure's ranks and those by the {NAMES[effect]}; above "
        "0 the measure tells what is needed. Whiskers: middle 95 % over resampled rows, a spread and not an interval: "
        "it lies too low, for few rows blur ranks and resampling blurs them again.",
        plot=380,
        below=88,
    )
    figure.update_layout(barmode="group", bargap=0.25, bargroupgap=0.06)
    axis = named_columns([capital(measure) for measure in names], range(len(names)))
    figure.update_xaxes(**axis, tickangle=0, range=[-0.6, len(names) - 0.4])
    return figure.update_yaxes(title_text="Spearman's ρ", range=[-1.05, 1.05], zeroline=True)


@figure_of("stability", "Agreement")
def agreement_stability(agreement: Agreement, title: str | None = None) -> go.Figure:
    """Spearman's ρ between the ranks of two samples of rows against their size, for every quantity; 0.9 is dashed.

    The legend has how many rows would bring a quantity there. Raises InputError for fewer than four rows.
    """
    from ...depth.agreement import STABLE_CORRELATION

    frame, figure = agreement.stability(), go.Figure()
    for quantity in [*EFFECTS, *measures(agreement)]:
        rows = frame[frame["quantity"] == quantity]
        needed = float(rows["rows_needed"].iloc[0])
        count = f"{needed:,.0f} row{'s' * (needed != 1)}" if np.isfinite(needed) else "no number of rows"
        name = f"{NAMES[quantity]}: {count}"
        hover = [
            f"<b>{NAMES[quantity]}</b>, {row.rows} rows a sample<br>ρ {style.number(row.correlation)}, middle "
            f"95 % {between(row.low, row.high)}<br>{STABLE_CORRELATION} needs {count}"
            for row in cast(Any, rows.itertuples())
        ]
        look = (
            {"width": 4, "marker": {"size": 8, "symbol": "square"}} if quantity in EFFECTS else {"width": 2, "marks": 8}
        )
        figure.add_trace(line(rows["rows"], rows["correlation"], _COLORS[quantity], name=name, hover=hover, **look))
    arrange(
        figure,
        title or f"How many rows until a rank holds? {agreement.model}",
        f"{agreement.rows}. Spearman's ρ between ranks from two disjoint samples of so many rows, mean of drawn pairs. "
        f"Legend: rows until ρ = {STABLE_CORRELATION} (dashed), by the Spearman-Brown formula. Wide: removal.",
        plot=380,
        below=132,
    )
    figure.add_hline(y=STABLE_CORRELATION, line={"dash": "dash", "width": 1.5})
    sizes = sorted(set(frame["rows"]))
    ticks = {"tickmode": "array", "tickvals": sizes, "ticktext": [str(size) for size in sizes]}
    figure.update_xaxes(type="log", **ticks, title_text="rows in each sample (logarithmic)", showgrid=False)
    return figure.update_yaxes(title_text="Spearman's ρ of two samples")


def measures(agreement: Agreement) -> list[str]:
    """The direct measures of an agreement, in their usual order."""
    from ...depth.quantities import Direct

    return [measure for measure in get_args(Direct) if measure in agreement.quantities]


def capital(quantity: str) -> str:
    """A quantity's name, where a line begins."""
    return NAMES[quantity][0].upper() + NAMES[quantity][1:]


def part_name(components: Sequence[Component]) -> str:
    """What was measured, in a word."""
    return "layer" if components[0].kind == "layer" else "sublayer"


def rank_hovers(frame: pd.DataFrame, *quantities: str) -> list[str]:
    """Component, then value and rank of each quantity with their intervals."""
    texts = list(hover_lines(frame, {}))
    for quantity in quantities:
        values = hover_lines(frame, {NAMES[quantity]: quantity})
        ranks = (frame[f"{quantity}_rank{end}"] for end in ("", "_low", "_high"))
        texts = [
            text + value[value.index("<br>") :] + f"<br>rank {style.number(rank)} {between(low, high)}"
            for text, value, rank, low, high in zip(texts, values, *ranks, strict=True)
        ]
    return texts


def rank_ticks(count: int) -> list[int]:
    """1 and round ranks, at most about ten."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, count) if count / s <= 8)
    return sorted({1, *range(step, count + 1, step)})


def _correlation_hover(row: Any, group: str) -> str:
    lines = [
        f"<b>{NAMES[row.measure]}</b>, {html.escape(group.lower())} ({row.components} components)",
        f"ρ {style.number(row.correlation)}, corrected for few rows {style.number(row.corrected)}",
        f"middle 95 % over resampled rows {between(row.spread_low, row.spread_high)}",
        f"middle 95 % over resampled components {between(row.low_components, row.high_components)}",
    ]
    if np.isfinite(row.better_low):
        lines.append(f"above block influence by {style.number(row.better)} {between(row.better_low, row.better_high)}")
    return "<br>".join(lines)
