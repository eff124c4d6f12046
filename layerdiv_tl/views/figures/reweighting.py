"""Learned weights of components."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from ...ensemble.reweight import Reweighting
from .. import style
from .axes import component_axis
from .layout import arrange, between


def reweighting_bars(reweighting: Reweighting, title: str | None = None) -> go.Figure:
    """The weight of every component as a bar from 1, which is the model itself, colored by module.

    A component that was left alone has no bar, one that is silenced a bar down to 0. The subtitle has what
    it is worth on the rows that were not learned from.
    """
    components = reweighting.components
    modules = np.array([c.module for c in components])
    figure = go.Figure()
    for module in dict.fromkeys(modules.tolist()):
        here = np.flatnonzero(modules == module)
        weights = reweighting.weights[here]
        figure.add_bar(
            x=here,
            y=weights - 1,
            base=1,
            width=0.8,
            name=style.MODULE_NAME[module],
            marker={"color": style.MODULE[module], "line": {"width": 0}},
            hovertext=[
                f"<b>{components[i].label}</b><br>weight {style.number(w)}" for i, w in zip(here, weights, strict=True)
            ],
            hoverinfo="text",
        )
    rows = reweighting.frame().set_index("predictor")
    before, after = (cast(Any, rows.loc[name]) for name in ("model", "reweighted"))
    subtitle = (
        f"{int(after.rows)} rows not learned from: accuracy {_with(before, 'accuracy')} → {_with(after, 'accuracy')}, "
        f"gain {_with(after, 'accuracy_gain')}; cross-entropy {_with(before, 'cross_entropy')} → "
        f"{_with(after, 'cross_entropy')} nats, saved {_with(after, 'cross_entropy_gain')}. "
        f"Learned from {int(reweighting.is_train.sum())} rows."
    )
    arrange(figure, title or "Weights of components (1: the model itself, 0: silenced)", subtitle, plot=300, below=88)
    figure.update_layout(barmode="overlay")
    figure.add_hline(y=1, line={"width": 1})
    figure.update_xaxes(
        **component_axis(components),
        title_text="component, in stream order",
        range=[-1, len(components)],
        showgrid=False,
    )
    top = max(1.05, 1.05 * float(reweighting.weights.max()))
    return figure.update_yaxes(title_text="weight", range=[-0.03 * top, top])


def _with(row: Any, name: str) -> str:
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{style.number(value)} {between(low, high)}"
