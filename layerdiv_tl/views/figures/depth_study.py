"""The depth analyses of several models side by side."""

from __future__ import annotations

import html
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...studies.depth_study import DepthStudy
from .. import style
from .layout import arrange, name

Along = Literal["relative", "layer"]
# Analysis, column of its frame -> heading.
_PANELS = {
    ("residual_norms", "relative_median"): "‖write‖ / ‖stream‖ of every layer, median over tokens",
    ("skip_future", "output_change"): "Change of later answers without the layer at earlier tokens, ‖Δ softmax‖₂",
    ("skip", "loss"): "Growth of the loss without the layer, nats",
    ("logit_lens", "kl"): "KL(answer behind the layer ‖ last answer), nats",
}
_LOGARITHMIC = ("relative_median", "kl")


def depth_use_lines(depth: DepthStudy, along: Along = "relative", title: str | None = None) -> go.Figure:
    """Sizes, skips and the lens against depth, a line for every model.

    along
        "relative": layers as shares of a model's depth, which models of different depth have in common; "layer": by
        number. Raises InputError for another.
    """
    figure = make_subplots(
        rows=len(_PANELS),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.2 / len(_PANELS),
        subplot_titles=[html.escape(heading) for heading in _PANELS.values()],
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    models = depth.models
    for row, (analysis, column) in enumerate(_PANELS, start=1):
        for number, model in enumerate(models):
            found = depth.newest(analysis).get(model)
            if found is None:
                continue
            frame = found.frame()
            # Of the lens what lies behind a whole layer: the last junction of each.
            frame = frame[frame["kind"] == "layer"] if analysis == "residual_norms" else frame
            frame = frame[frame["layer"].notna()]
            labels = frame["component"].str.replace(r"\..*", "", regex=True)
            frame = frame[(labels != labels.shift(-1)).to_numpy()]
            x = np.arange(len(frame)) / max(len(frame) - 1, 1) if along == "relative" else np.arange(len(frame))
            figure.add_scatter(
                x=x,
                y=frame[column],
                mode="lines+markers",
                name=name(model),
                legendgroup=model,
                showlegend=row == 1 and len(models) > 1,
                line={"color": style.SERIES[number % len(style.SERIES)], "width": 1.8},
                marker={"size": 5},
                text=[html.escape(label) for label in frame["component"]],
                hovertemplate=f"<b>{html.escape(model)}</b>, %{{text}}<br>%{{y:.3g}}<extra></extra>",
                row=row,
                col=1,
            )
        if column in _LOGARITHMIC:
            figure.update_yaxes(type="log", dtick=1, row=row, col=1)
    who = name(models[0]) if len(models) == 1 else f"{len(models)} models"
    arrange(
        figure,
        title or f"How {who} use{'s' * (len(models) == 1)} depth",
        "Means over tokens unless said otherwise; logarithmic where the numbers span decades.",
        plot=150 * len(_PANELS),
        below=96 if len(models) > 1 else 64,
        headings=True,
    )
    what = "layer, as a share of depth" if along == "relative" else "number of the layer"
    figure.update_xaxes(title_text=what, row=len(_PANELS), col=1)
    return figure.update_layout(legend=style.LEGEND_BELOW)
