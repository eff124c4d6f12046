"""Learned weights of components."""

from __future__ import annotations

import html
from typing import Any, cast

import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.reweight import Reweighting
from .. import style
from ..plotting import arrange, bar, between, by_module, component_axis


@figure_of("weights", "Reweighting")
def reweighting_bars(reweighting: Reweighting, title: str | None = None) -> go.Figure:
    """The weight of every component as a bar from 1, which is the model itself, colored by module.

    A component that was left alone has no bar, one that is zero-ablated a bar down to 0. The subtitle has what the
    weights are worth on the rows that were not learned from.
    """
    components, weights = reweighting.components, reweighting.weights
    hover = [
        f"<b>{html.escape(c.label)}</b><br>weight {style.number(w)}" for c, w in zip(components, weights, strict=True)
    ]
    figure = go.Figure()
    for module, positions in by_module(components):
        named: dict[str, Any] = {"name": style.MODULE_NAME[module], "hover": [hover[i] for i in positions]}
        figure.add_trace(bar(positions, weights[positions] - 1, style.MODULE[module], base=1, **named))
    rows = reweighting.frame().set_index("predictor")
    before, after = (cast(Any, rows.loc[name]) for name in ("model", "reweighted"))
    arrange(
        figure,
        title or "Weights of components (1: the model itself, 0: zero-ablated)",
        f"{int(after.rows)} rows not learned from: accuracy {_with(before, 'accuracy')} → {_with(after, 'accuracy')}, "
        f"gain {_with(after, 'accuracy_gain')}; cross-entropy {_with(before, 'cross_entropy')} → "
        f"{_with(after, 'cross_entropy')} nats, saved {_with(after, 'cross_entropy_gain')}. "
        f"Learned from {int(reweighting.is_train.sum())} rows.",
        plot=300,
        below=88,
    )
    figure.update_layout(barmode="overlay")
    figure.add_hline(y=1, line={"width": 1})
    axis = {"title_text": "component, in stream order", "range": [-1, len(components)]}
    figure.update_xaxes(**component_axis(components), **axis)
    top = max(1.05, 1.05 * float(weights.max()))
    return figure.update_yaxes(title_text="weight", range=[-0.03 * top, top])


def _with(row: Any, name: str) -> str:
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{style.number(value)} {between(low, high)}"
