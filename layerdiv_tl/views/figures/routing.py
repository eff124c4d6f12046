"""What routers do with tokens: loads of experts, and how sure and how even they are."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from .. import plotting as kit
from .. import style
from ..html import quoted

if TYPE_CHECKING:
    from ...depth.routing import RouterStatistics

_TOKENS = 5
_BARE = {"showgrid": False, "zeroline": False}


@figure_of("map", "RouterStatistics", default=True)
def load_map(routing: RouterStatistics) -> go.Figure:
    """A map layer × expert of the share of tokens that go to each expert, over an even load (1: as many as any other).

    The hover has the load and the gate with their intervals, and the tokens that the expert takes more of than chance
    explains.
    """
    frame, tokens = routing.frame(), routing.by_token()
    tokens = tokens[tokens["lift_low"] > 1]
    columns = np.concatenate([np.arange(n) for n in np.bincount(routing.layer_of)])
    shape = len(routing.layers), int(columns.max()) + 1
    z, hover = np.full(shape, np.nan), np.full(shape, "", dtype=object)
    of_component = dict(list(tokens.groupby("component")))
    rows: list[Any] = frame.to_dict("records")
    for layer, column, row in zip(routing.layer_of, columns, rows, strict=True):
        z[layer, column] = row["load"] / row["even_load"]
        load, gate = (kit.estimated(*(row[name + end] for end in ("", "_low", "_high"))) for name in ("load", "gate"))
        lines = [f"<b>{html.escape(row['component'])}</b>", f"load {load}; even {style.number(row['even_load'])}"]
        lines.append(f"gate {gate}")
        most = of_component.get(row["component"])
        names = (
            [] if most is None else [f"{quoted(t)} ×{x:.1f}" for t, x in zip(most["token"], most["lift"], strict=True)]
        )
        lines += [f"takes more of {html.escape(', '.join(names[:_TOKENS]))}"] if names else []
        hover[layer, column] = "<br>".join(lines)
    largest = max(rows, key=lambda row: row["load"] / row["even_load"])
    figure = go.Figure(kit.heat_map(z, hover, "load / even load", xgap=1, ygap=1))
    return kit.arrange(
        figure,
        f"Where the routers of {kit.clipped(routing.model)} send tokens",
        f"{int(routing.lengths.sum()):,} tokens of {len(routing.lengths)} texts. The largest load for its layer: "
        f"{largest['component']}, {largest['load']:.0%} of tokens ({np.nanmax(z):.1f} × even).",
        x={"title_text": "expert", "tickformat": "d", "dtick": max(1, shape[1] // 16)} | _BARE,
        y=kit.layer_axis(routing.layers),
        plot=max(200, min(560, 26 * len(routing.layers))),
    )


@figure_of("entropy", "RouterStatistics")
def entropies(routing: RouterStatistics) -> go.Figure:
    """How sure the router of each layer is of a token, and how evenly it uses its experts, as shares of ln(experts)."""
    frame = routing.by_layer()
    x = np.arange(len(frame))
    traces = []
    for number, (column, name) in enumerate((("load_entropy", "of the loads"), ("entropy", "of a token's scores"))):
        share, low, high = (frame[column + end] / frame["highest_entropy"] for end in ("", "_low", "_high"))
        if share.isna().all():
            continue
        hover = [
            f"<b>{label}</b><br>{kit.estimated(v, a, b)} of ln({n})"
            for label, v, a, b, n in zip(frame["component"], share, low, high, frame["experts"], strict=True)
        ]
        error = kit.error_bars(share, low, high)
        traces.append(kit.line(x, share, style.SERIES[number], name=f"entropy {name}", hover=hover, error=error))
    return kit.arrange(
        go.Figure(traces),
        f"How sure and how even the routers of {kit.clipped(routing.model)} are",
        "Shares of ln(experts): at 1 the loads are even, or a router is as undecided about a token as can be.",
        x=kit.component_axis(routing.layers, "layer"),
        y={"title_text": "share of ln(experts)", "rangemode": "tozero"},
        plot=300,
    )
