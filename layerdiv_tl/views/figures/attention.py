"""What heads look at, as maps query × key."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...model.attention import AttentionPatterns
from ..html import quoted
from .layout import arrange

# Maps side by side, and tokens that can be written beside a map.
_COLUMNS = 4
_TICKS = 24


def attention_maps(patterns: AttentionPatterns, most: int = 12, title: str | None = None) -> go.Figure:
    """A map of every head: rows are the tokens that look, columns those they look at, from 0 to 1.

    Of more than `most` heads those are shown that look most unlike all tokens alike (lowest mean entropy).
    """
    p = patterns.patterns
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(-1).mean(-1)
    shown = np.sort(np.argsort(entropy, kind="stable")[:most])
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    labels = [patterns.components[i].label for i in shown]
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=labels,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.025,
        vertical_spacing=min(0.1, 0.3 / rows),
    )
    figure.update_annotations(font={"size": 13})
    tokens = [html.escape(quoted(token, 12)) for token in patterns.tokens]
    for at, head in enumerate(shown):
        values = np.where(np.tri(len(tokens), dtype=bool), p[head], np.nan)
        figure.add_heatmap(
            z=values,
            zmin=0,
            zmax=1,
            autocolorscale=True,
            showscale=at == 0,
            customdata=np.broadcast_to(np.array(tokens, dtype=object), values.shape),
            text=np.broadcast_to(np.array(tokens, dtype=object)[:, None], values.shape),
            hovertemplate=f"<b>{labels[at]}</b><br>%{{text}} looks at %{{customdata}}<br>%{{z:.3f}}<extra></extra>",
            colorbar={"title": {"text": "attention", "side": "top"}, "thickness": 12, "outlinewidth": 0},
            row=at // columns + 1,
            col=at % columns + 1,
        )
    some = f", the {len(shown)} most pointed of {len(p)} heads" if len(shown) < len(p) else ""
    whole = np.allclose(p.sum(2), 1, atol=1e-2)
    height = rows * (250 if columns > 1 else 460)
    arrange(
        figure,
        title or f"What heads look at{some}",
        f"Rows look at columns; each row sums to {'1' if whole else 'at most 1: a sink takes the rest'}.",
        plot=height,
        below=84,
        headings=True,
    )
    places = list(range(0, len(tokens), max(1, -(-len(tokens) // _TICKS))))
    ticks = {
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [tokens[i] for i in places],
        "showgrid": False,
        "zeroline": False,
    }
    small = {"tickfont": {"size": 10}}
    figure.update_xaxes(**ticks, **small, tickangle=-60)
    return figure.update_yaxes(**ticks, **small, autorange="reversed")
