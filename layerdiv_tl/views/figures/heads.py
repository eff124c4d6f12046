"""Attention heads as a grid, layer × head."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice
from ..._registry import figure_of
from ...ensemble.decomposition import Decomposition, Part
from ...errors import InputError
from .. import style
from ..plotting import arrange, bar, heat_map, panels
from .gauge import PARTS, column, hovers, part_shown, suffixed


@figure_of("heads", "Decomposition")
def head_grid(
    decomposition: Decomposition,
    term: str = "diversity",
    part: Part = "centered",
    within_layer: bool = False,
    title: str | None = None,
    height: int | None = None,
) -> go.Figure:
    """A map layer × head of one column of `by_component`, the first layer at the bottom; MLPs as bars next to it.

    term, part
        A numeric column ("net", "accuracy", "diversity_share", …) and the part of it, where it has parts.
    within_layer
        Colors show the value minus the mean of its layer's heads; hovers have the value itself.

    Colors end at the 99th percentile, so that one head does not hide the others. Embedding, constant and
    attention biases are left out. Raises InputError for a decomposition without heads, an unknown part, and a column
    that does not exist or holds no numbers.
    """
    part_shown(part)
    components = decomposition.components
    heads = [i for i, c in enumerate(components) if c.kind == "head"]
    if not heads:
        raise InputError("there are no heads here: decompose contributions(model, …, unit='head').")
    frame = decomposition.by_component()
    name = column(frame, term, part)
    numeric = [name for name in frame.columns if name in frame.attrs["units"] and f"{name}_low" in frame]
    if name not in numeric:
        choice("term", term, numeric)
    unit, texts = frame.attrs["units"][name], hovers(frame, name)

    rows = {sublayer: row for row, sublayer in enumerate(dict.fromkeys(components[i].sublayer for i in heads))}
    width = 1 + max(components[i].index or 0 for i in heads)
    values, hover = np.full((len(rows), width), np.nan), np.full((len(rows), width), "", dtype=object)
    for i in heads:
        cell = rows[components[i].sublayer], components[i].index or 0
        values[cell], hover[cell] = frame[name].iloc[i], texts[i]
    shown = values - np.nanmean(values, 1, keepdims=True) if within_layer else values
    contents: list[list[go.Heatmap | go.Bar]] = [
        [heat_map(shown, hover, unit, signed=bool((shown < 0).any()), xgap=1, ygap=1)]
    ]

    layers = {(sublayer.layer, sublayer.repeat): row for sublayer, row in rows.items()}
    mlps = [i for i, c in enumerate(components) if c.kind == "mlp" and (c.layer, c.repeat) in layers]
    if mlps:
        y = [layers[components[i].layer, components[i].repeat] for i in mlps]
        contents.append([bar(frame[name].iloc[mlps], y, style.MODULE["mlp"], across=True, hover=texts[mlps])])
    figure = panels(contents, columns=len(contents), shared_xaxes=False, column_widths=[0.78, 0.22] if mlps else None)
    left_out = len(components) - len(heads) - len(mlps)
    arrange(
        figure,
        title or suffixed(_heading(name), decomposition),
        ("each less the mean of its layer's heads" if within_layer else "each head's own value")
        + ("; bars: the layer's MLP" if mlps else "")
        + "; colors end at the 99th percentile"
        + (f"; {left_out} other component{'s' * (left_out > 1)} left out" if left_out else ""),
        height=height or max(320, min(900, 180 + 18 * len(rows))),
    )
    every = max(1, -(-len(rows) // 16))
    names = [html.escape(sublayer.label.rpartition(".")[0]) for sublayer in rows][::every]
    ticks: dict[str, Any] = {"tickmode": "array", "tickvals": np.arange(0, len(rows), every), "ticktext": names}
    plain = {"showgrid": False, "zeroline": False}
    figure.update_yaxes(**ticks, **plain, range=[-0.5, len(rows) - 0.5])
    if mlps:
        figure.update_xaxes(title_text=f"MLP, {unit}", nticks=4, row=1, col=2)
    ticks = {"dtick": max(1, -(-width // 24)), "tick0": 0, "range": [-0.5, width - 0.5]}
    return figure.update_xaxes(title_text="head", **ticks, **plain, row=1, col=1)


def _heading(name: str) -> str:
    """`diversity_share_centered` in words."""
    term, _, part = name.rpartition("_")
    term, part = (term, f" ({part})") if part in PARTS else (name, "")
    return f"{term.replace('_', ' ').capitalize()} of every attention head{part}"
