"""Attention heads as a grid, layer × head."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..._checks import choice
from ...ensemble.decomposition import Decomposition, Part
from ...errors import InputError
from .. import style
from .gauge_controls import PARTS, checked, column, hover_lines, suffixed


def head_grid(
    decomposition: Decomposition,
    term: str = "diversity",
    part: Part = "centered",
    within_layer: bool = False,
    title: str | None = None,
    height: int | None = None,
) -> go.Figure:
    """A map layer × head of one column of `by_component`, the first layer at the bottom; MLPs as bars beside it.

    term, part
        A numeric column ("net", "accuracy", "diversity_share", …) and the part of it, where it has parts.
    within_layer
        Colors show the value minus the mean of its layer's heads; hovers have the value itself.

    Colors end at the 99th percentile, so that one head does not hide the others. Embedding, constant and
    attention biases are no heads and are left out. Raises InputError for a decomposition without heads, an
    unknown part, and a column that does not exist or holds no numbers.
    """
    checked(part)
    components = decomposition.components
    heads = [i for i, c in enumerate(components) if c.kind == "head"]
    if not heads:
        raise InputError("there are no heads here: decompose contributions(model, …, unit='head').")
    frame = decomposition.by_component()
    at = column(frame, term, part)
    measured = [name for name in frame.columns if name in frame.attrs["units"] and f"{name}_low" in frame]
    if at not in measured:
        choice("term", term, measured)
    rows = list(dict.fromkeys(components[i].sublayer for i in heads))
    row = {sublayer: number for number, sublayer in enumerate(rows)}
    width = 1 + max(c.index or 0 for c in components if c.kind == "head")
    values, hover = np.full((len(rows), width), np.nan), np.full((len(rows), width), "", dtype=object)
    texts = hover_lines(frame, {at.replace("_", ", "): at})
    for i in heads:
        place = row[components[i].sublayer], components[i].index or 0
        values[place], hover[place] = frame[at].iloc[i], texts[i]
    shown = values - np.nanmean(values, 1, keepdims=True) if within_layer else values
    most = float(np.nanquantile(np.abs(shown), 0.99)) or 1.0
    signed = bool((shown < 0).any())
    beside = [i for i, c in enumerate(components) if c.kind == "mlp"]
    by_layer = {(c.layer, c.repeat): number for c, number in row.items()}
    beside = [i for i in beside if (components[i].layer, components[i].repeat) in by_layer]
    unit = frame.attrs["units"][at]
    figure = make_subplots(
        rows=1,
        cols=2 if beside else 1,
        shared_yaxes=True,
        column_widths=[0.78, 0.22] if beside else None,
        horizontal_spacing=0.03,
    )
    figure.add_heatmap(
        z=shown,
        x=np.arange(width),
        y=np.arange(len(rows)),
        autocolorscale=True,
        zmin=-most if signed else 0.0,
        zmax=most,
        hovertext=hover,
        hoverinfo="text",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": unit, "side": "top"}, "thickness": 12, "outlinewidth": 0},
        row=1,
        col=1,
    )
    if beside:
        figure.add_bar(
            x=frame[at].iloc[beside],
            y=[by_layer[components[i].layer, components[i].repeat] for i in beside],
            orientation="h",
            width=0.8,
            marker={"color": style.MODULE["mlp"], "line": {"width": 0}},
            hovertext=[texts[i] for i in beside],
            hoverinfo="text",
            showlegend=False,
            row=1,
            col=2,
        )
        figure.update_xaxes(title_text=f"MLP, {unit}", row=1, col=2, nticks=4)
    left = len(components) - len(heads) - len(beside)
    said = "each less the mean of its layer's heads" if within_layer else "each head's own value"
    figure.update_layout(
        template=style.template(),
        title={
            "text": title or suffixed(_heading(at), decomposition),
            "subtitle": {
                "text": said
                + ("; bars: the layer's MLP" if beside else "")
                + "; colors end at the 99th percentile"
                + (f"; {left} other component{'s' * (left > 1)} left out" if left else "")
            },
        },
        height=height or max(320, min(900, 180 + 18 * len(rows))),
        margin={"t": 84, "r": 16},
    )
    every = max(1, -(-len(rows) // 16))
    figure.update_yaxes(
        tickmode="array",
        tickvals=np.arange(0, len(rows), every),
        ticktext=[html.escape(c.label.rpartition(".")[0]) for c in rows[::every]],
        showgrid=False,
        zeroline=False,
        range=[-0.5, len(rows) - 0.5],
    )
    figure.update_xaxes(
        title_text="head",
        dtick=max(1, -(-width // 24)),
        tick0=0,
        showgrid=False,
        zeroline=False,
        range=[-0.5, width - 0.5],
        col=1,
    )
    return figure


def _heading(at: str) -> str:
    """`diversity_share_centered` in words."""
    term, _, part = at.rpartition("_")
    term, part = (term, f" ({part})") if part in PARTS else (at, "")
    return f"{term.replace('_', ' ').capitalize()} of every attention head{part}"
