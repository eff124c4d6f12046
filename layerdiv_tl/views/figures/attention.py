"""Attention patterns of heads, as maps query × key."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ..html import quoted
from ..plotting import arrange, heat_map, panels, token_axis

if TYPE_CHECKING:
    from ...model.attention import AttentionPatterns

_COLUMNS = 4


@figure_of("maps", "AttentionPatterns")
def attention_maps(patterns: AttentionPatterns, max_heads: int = 12, title: str | None = None) -> go.Figure:
    """A map of every head: rows are the tokens that look, columns those they look at, from 0 to 1.

    Of more than `max_heads` heads those are shown that look most unlike all tokens alike (lowest mean entropy).
    """
    p = patterns.patterns
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(-1).mean(-1)
    heads = np.sort(np.argsort(entropy, kind="stable")[:max_heads])
    labels = [html.escape(patterns.components[i].label) for i in heads]
    tokens = np.array([html.escape(quoted(token, 12)) for token in patterns.tokens], dtype=object)
    square = (len(tokens), len(tokens))
    names: dict[str, Any] = {
        "text": np.broadcast_to(tokens[:, None], square),
        "customdata": np.broadcast_to(tokens, square),
    }
    maps: list[list[go.Heatmap]] = []
    for label, head in zip(labels, heads, strict=True):
        hover = f"<b>{label}</b><br>%{{text}} looks at %{{customdata}}<br>%{{z:.3f}}<extra></extra>"
        past = np.where(np.tri(len(tokens), dtype=bool), p[head], np.nan)
        options: dict[str, Any] = {"showscale": not maps, "hovertemplate": hover, "x": None, "y": None}
        maps.append([heat_map(past, None, "attention", 1.0, **names, **options)])
    columns = min(_COLUMNS, len(heads))
    shared = {"shared_xaxes": True, "shared_yaxes": True}
    figure = panels(maps, labels, columns, gap=min(0.3, 0.1 * -(-len(heads) // columns)), across=0.025, **shared)
    some = f", the {len(heads)} most pointed of {len(p)} heads" if len(heads) < len(p) else ""
    total = "1" if np.allclose(p.sum(2), 1, atol=1e-2) else "at most 1: a sink takes the rest"
    arrange(
        figure,
        title or f"What heads look at{some}",
        f"Rows look at columns; each row sums to {total}.",
        plot=-(-len(heads) // columns) * (250 if columns > 1 else 460),
        below=84,
        headings=True,
    )
    ticks = token_axis(patterns.tokens, 24) | {"tickfont": {"size": 10}}
    figure.update_xaxes(**ticks)
    return figure.update_yaxes(**ticks | {"tickangle": None}, autorange="reversed")
