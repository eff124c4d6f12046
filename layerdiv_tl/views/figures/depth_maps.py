"""Analyses of `depth` as heat maps: layer × layer and layer × token."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import whole_number
from ..._registry import figure_of
from .. import plotting as kit
from .. import style
from .depth_bars import PART, erased_prefix, skip_mode

if TYPE_CHECKING:
    from ...depth.erasure import Erasure
    from ...depth.integrated_gradients import IntegratedGradients
    from ...depth.layer_maps import LayerMaps
    from ...depth.skipping import Skip


@figure_of("map", "Skip", default=True)
def skip_map(skip: Skip) -> go.Figure:
    """A map skipped layer × later layer of the mean relative change of the later one's output.

    Colors end at the 99th percentile; the hover has the value, its interval and the maximum.
    """
    pairs = skip.by_pair()
    rows, columns = ({c.label: i for i, c in enumerate(names)} for names in (skip.components, skip.layers))
    cells = pairs["component"].map(rows).to_numpy(int), pairs["downstream_layer"].map(columns).to_numpy(int)
    z, hover = np.full((len(rows), len(columns)), np.nan), np.full((len(rows), len(columns)), "", dtype=object)
    z[cells], hover[cells] = pairs["effect"], _pair_hovers(pairs, "effect", "in", "downstream_layer")
    part = PART[skip.part]
    title = f"Effect of skipping each {part} of {skip.model} on later layers"
    subtitle = f"Mean over tokens; each {part} in turn {skip_mode(skip)}."
    figure = go.Figure(kit.heat_map(z, hover, "‖Δ − Δ′‖ / ‖Δ‖"))
    x, y = kit.component_axis(skip.layers, "later layer"), kit.component_axis(skip.components, f"skipped {part}")
    return kit.arrange(figure, title, subtitle, x=x, y=y, plot=520)


@figure_of("map", "LayerMaps")
def layer_map(maps: LayerMaps) -> go.Figure:
    """A map source layer × target layer of the error of the linear map between them on held-out tokens.

    Colors end at the 99th percentile; the hover has the value, its interval and the maximum.
    """
    frame, shape = maps.frame(), (len(maps.components), len(maps.targets))
    hover = _pair_hovers(frame, "error", "of", "target").reshape(shape)
    best = maps.depth_alignment().iloc[0]
    return kit.arrange(
        go.Figure(kit.heat_map(frame["error"].to_numpy().reshape(shape), hover, "error")),
        f"{maps.target} predicted from {maps.source}, layer by layer",
        "‖y − ŷ‖ / ‖y‖ on texts that the maps were not made from. The best target is "
        f"{kit.estimated(best.distance, best.distance_low, best.distance_high)} of the depth away; by chance "
        f"{style.number(best.chance)}.",
        x=kit.component_axis(maps.targets, f"layer of {kit.clipped(maps.target)}"),
        y=kit.component_axis(maps.components, f"layer of {kit.clipped(maps.source)}"),
        plot=520,
    )


@figure_of("map", "Erasure", default=True)
def erasure_map(erasure: Erasure, text: int = 0) -> go.Figure:
    """A map layer × token of the effect of erasing the token before the layer on the answer of one text.

    Raises InputError for a text that does not exist.
    """
    title = f"Effect of erasing each token from {erasure.model}, by layer"
    span = "The token" if erasure.span == "position" else erased_prefix(erasure).replace("A", "The", 1)
    where = "the answer's positions" if erasure.measured == "answer" else "later positions"
    subtitle = f"{span} replaced by the mean stream where it enters the layer; mean over {where}."
    return _token_map(erasure, erasure.effect, text, "‖Δ softmax‖₂", title, subtitle, signed=False)


@figure_of("map", "IntegratedGradients", default=True)
def gradient_map(gradients: IntegratedGradients, text: int = 0) -> go.Figure:
    """A map layer × token of integrated gradients of the answer's probability, of one text.

    Raises InputError for a text that does not exist.
    """
    part = PART[gradients.part]
    title = f"Integrated gradients of {gradients.model}'s answer, by token and {part}"
    subtitle = (
        f"Integrated gradients over what each {part} hands on, {gradients.steps} {gradients.path} steps, baseline "
        f"{gradients.baseline.replace('_', ' ')}; sums are off by {style.number(100 * gradients.gap)} % of the change."
    )
    return _token_map(gradients, gradients.attribution, text, "probability", title, subtitle, signed=True)


def _token_map(
    measured: Any, values: np.ndarray, text: int, unit: str, title: str, subtitle: str, *, signed: bool
) -> go.Figure:
    """A map layer × token of the values of one text."""
    columns = np.flatnonzero(measured.text == whole_number("text", text, 0, int(measured.text.max())))
    z, tokens = values[columns].T, [measured.tokens[i] for i in columns]
    names = [html.escape(repr(token)) for token in tokens]
    hover = [
        [
            f"<b>{html.escape(component.label)}</b> at {name}<br>{style.number(value)} {unit}"
            for name, value in zip(names, row, strict=True)
        ]
        for component, row in zip(measured.components, z, strict=True)
    ]
    x, y = kit.token_axis(tokens) | {"title_text": "token"}, kit.component_axis(measured.components, "layer")
    figure = go.Figure(kit.heat_map(z, hover, unit, signed=signed))
    return kit.arrange(figure, title, subtitle, x=x, y=y, plot=460, below=90)


def _pair_hovers(frame: pd.DataFrame, column: str, word: str, other: str) -> np.ndarray:
    """`hover_lines` of pairs of layers: the value, its maximum, and the other layer."""
    rows = zip(kit.hover_lines(frame, {column: column}), frame[f"{column}_max"], frame[other], strict=True)
    texts = [f"{text}<br>maximum {style.number(top)}<br>{word} {html.escape(layer)}" for text, top, layer in rows]
    return np.array(texts, dtype=object)
