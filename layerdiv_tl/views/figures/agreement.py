"""Figures of an agreement: which direct measure tells what removing a component does."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import plotly.graph_objects as go

from ...components import Component
from ...depth.agreement import STABLE_CORRELATION, Agreement, Effect
from ...depth.direct_measures import Direct
from ...errors import InputError
from .. import style
from .axes import component_axis
from .gauge_controls import hover_lines, whiskers
from .layout import arrange, beneath, beside, between

if TYPE_CHECKING:
    import pandas as pd

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
# Seven quantities are told apart by color; effects are wider, too.
_COLORS = dict(zip(NAMES, [style.SERIES[i] for i in (2, 6, 3, 4, 5, 7, 1, 0)], strict=True))
_GROUPS = {
    "all": ("all together", style.MODULE["layer"]),
    "attn": (style.MODULE_NAME["attention"], style.MODULE["attention"]),
    "mlp": (style.MODULE_NAME["mlp"], style.MODULE["mlp"]),
}
EFFECTS = get_args(Effect)
_COLUMNS = 3
_MARKED = 5


def agreement_ranks(agreement: Agreement, title: str | None = None) -> go.Figure:
    """A map quantity × component of ranks, effects above, direct measures below; strong colors are needed most."""
    frame, quantities = agreement.frame(), [*EFFECTS, *measures(agreement)]
    count, effects = len(frame), len(EFFECTS)
    # Edges of rows: a gap divides effects from measures.
    edges = np.r_[np.arange(effects + 1), np.arange(effects, len(quantities) + 1) + 0.3]
    z = [frame[f"{q}_rank"].to_numpy() for q in quantities]
    hover = [hovers(frame, (q,)) for q in quantities]
    z.insert(effects, np.full(count, np.nan))
    hover.insert(effects, [""] * count)
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=np.arange(count),
            y=edges,
            autocolorscale=True,
            reversescale=True,
            zmin=1,
            zmax=count,
            hovertext=hover,
            hoverinfo="text",
            hoverongaps=False,
            colorbar={
                "title": {"text": "rank", "side": "top"},
                "thickness": 12,
                "outlinewidth": 0,
                "tickvals": rank_ticks(count),
            },
        )
    )
    modules = np.array([c.module for c in agreement.components], dtype=object)
    for module in dict.fromkeys(modules):
        here = np.flatnonzero(modules == module)
        figure.add_bar(
            x=here,
            y=[0.22] * len(here),
            base=edges[-1] + 0.1,
            width=1,
            name=style.MODULE_NAME[module],
            marker={"color": style.MODULE[module], "line": {"width": 0}},
            hovertext=[html.escape(label) for label in frame["component"].iloc[here]],
            hoverinfo="text",
        )
    what = part(agreement.components)
    arrange(
        figure,
        title or f"How each measure ranks the {what}s of {agreement.model}",
        f"{agreement.rows}. Rank 1 is needed most. Above: by what removing the {what} does; below: by measures of the "
        "whole model.",
        plot=34 * len(quantities) + 30,
        below=104,
    )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(**component_axis(agreement.components), title_text="component, in stream order", showgrid=False)
    middles = [i + 0.5 + 0.3 * (i >= effects) for i in range(len(quantities))]
    axis = beside([capital(q) for q in quantities]) | {"tickvals": middles, "ticks": ""}
    figure.update_xaxes(zeroline=False, range=[-0.5, count - 0.5])
    return figure.update_yaxes(**axis, range=[edges[-1] + 0.35, 0])


def agreement_correlations(agreement: Agreement, effect: Effect = "loss", title: str | None = None) -> go.Figure:
    """Spearman's ρ of every measure's ranks and those by an effect, of all components and of each kind.

    Whiskers are the middle 95 % over resampled rows, which is not an interval (see `Agreement.correlations`); the
    hover has it over components, ρ corrected for few rows, and how much better than block influence a measure is.
    Raises InputError for an unknown effect, and for fewer than three components.
    """
    frame = agreement.correlations()
    if not len(frame):
        raise InputError("ranks of fewer than three components have no correlation worth a figure: plot kind='ranks'.")
    frame = frame[frame["effect"] == effect]
    named = measures(agreement)
    figure = go.Figure()
    for kind, rows in frame.groupby("kind", sort=False):
        called, color = _GROUPS.get(str(kind), _GROUPS["all"])
        rows = rows.set_index("measure").loc[named].reset_index()
        ends = rows.rename(columns={"spread_low": "correlation_low", "spread_high": "correlation_high"})
        spread = whiskers(ends, "correlation")
        # The spread may lie below its estimate; the hover has it as it is.
        spread |= {side: np.fmax(spread[side], 0) for side in ("array", "arrayminus")}
        figure.add_bar(
            x=np.arange(len(rows)),
            y=rows["correlation"],
            name=f"{called} ({rows['components'].iloc[0]})",
            marker={"color": color, "line": {"width": 0}},
            error_y=spread,
            hovertext=[_correlation_hover(row, called) for row in rows.itertuples()],
            hoverinfo="text",
        )
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
    figure.update_xaxes(**beneath([capital(m) for m in named], range(len(named))), tickangle=0)
    figure.update_xaxes(range=[-0.6, len(named) - 0.4])
    return figure.update_yaxes(title_text="Spearman's ρ", range=[-1.05, 1.05], zeroline=True)


def agreement_stability(agreement: Agreement, title: str | None = None) -> go.Figure:
    """How alike the ranks of two samples of rows are, against their size, for every quantity; 0.9 is dashed.

    The legend has how many rows would bring a quantity there. Raises InputError for fewer than four rows.
    """
    frame = agreement.stability()
    figure = go.Figure()
    for quantity in [*EFFECTS, *measures(agreement)]:
        rows = frame[frame["quantity"] == quantity]
        effect = quantity in EFFECTS
        needed = float(rows["rows_needed"].iloc[0])
        said = f"{needed:,.0f} row{'s' * (needed != 1)}" if np.isfinite(needed) else "no number of rows"
        figure.add_scatter(
            x=rows["rows"],
            y=rows["correlation"],
            mode="lines+markers",
            name=f"{NAMES[quantity]}: {said}",
            line={"color": _COLORS[quantity], "width": 4 if effect else 2},
            marker={"size": 8, "symbol": "square" if effect else "circle"},
            hovertext=[
                f"<b>{NAMES[quantity]}</b>, {row.rows} rows a sample<br>ρ {style.number(row.correlation)}, middle "
                f"95 % {between(row.low, row.high)}<br>{STABLE_CORRELATION} needs {said}"
                for row in rows.itertuples()
            ],
            hoverinfo="text",
        )
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
    figure.update_xaxes(type="log", tickmode="array", tickvals=sizes, ticktext=[str(s) for s in sizes])
    figure.update_xaxes(title_text="rows in each sample (logarithmic)", showgrid=False)
    return figure.update_yaxes(title_text="Spearman's ρ of two samples")


def measures(agreement: Agreement) -> list[str]:
    """The direct measures that it holds, in their usual order."""
    return [measure for measure in get_args(Direct) if measure in agreement.quantities]


def capital(quantity: str) -> str:
    """A quantity's name, where a line begins."""
    return NAMES[quantity][0].upper() + NAMES[quantity][1:]


def part(components: Sequence[Component]) -> str:
    """What was measured, in a word."""
    return "layer" if components[0].kind == "layer" else "sublayer"


def hovers(frame: pd.DataFrame, quantities: Sequence[str]) -> list[str]:
    """Component, then value and rank of each quantity with their intervals."""
    lines = hover_lines(frame, {})
    for quantity in quantities:
        values = hover_lines(frame, {NAMES[quantity]: quantity})
        ranks = (frame[f"{quantity}_rank{end}"] for end in ("", "_low", "_high"))
        lines = [
            line + value[value.index("<br>") :] + f"<br>rank {style.number(rank)} {between(low, high)}"
            for line, value, rank, low, high in zip(lines, values, *ranks, strict=True)
        ]
    return lines


def rank_ticks(count: int) -> list[int]:
    """1 and round ranks, at most about ten."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, count) if count / s <= 8)
    return sorted({1, *range(step, count + 1, step)})


def _correlation_hover(row: Any, called: str) -> str:
    lines = [
        f"<b>{NAMES[row.measure]}</b>, {called.lower()} ({row.components} components)",
        f"ρ {style.number(row.correlation)}, corrected for few rows {style.number(row.corrected)}",
        f"middle 95 % over resampled rows {between(row.spread_low, row.spread_high)}",
        f"middle 95 % over resampled components {between(row.low_components, row.high_components)}",
    ]
    if np.isfinite(row.better_low):
        lines.append(f"above block influence by {style.number(row.better)} {between(row.better_low, row.better_high)}")
    return "<br>".join(lines)
