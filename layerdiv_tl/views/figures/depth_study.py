"""The depth analyses of several models side by side."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from .. import style
from ..plotting import arrange, clipped, line, panels

if TYPE_CHECKING:
    from ...studies.depth_study import DepthStudy

Along = Literal["relative", "layer"]
# Analysis, column of its frame -> heading.
_PANELS = {
    ("residual_norms", "relative_norm_median"): "‖write‖ / ‖stream‖ of every layer, median over tokens",
    ("skip_future", "output_change"): "Change of later answers without the layer at earlier tokens, ‖Δ softmax‖₂",
    ("skip", "loss"): "Growth of the loss without the layer, nats",
    ("logit_lens", "kl"): "KL(answer after the layer ‖ last answer), nats",
}
_LOGARITHMIC = ("relative_norm_median", "kl")


@figure_of("depth", "DepthStudy")
def depth_use_lines(depth: DepthStudy, along: Along = "relative", title: str | None = None) -> go.Figure:
    """Residual norms, skips and the logit lens against depth, a line for every model.

    along
        "relative": layers as shares of a model's depth, which models of different depth have in common; "layer": by
        number. Raises InputError for another.
    """
    models, contents = depth.models, []
    for analysis, column in _PANELS:
        results, lines = depth.newest(analysis), []
        for number, model in enumerate(models):
            if model not in results:
                continue
            frame = results[model].frame()
            # Of the lens the junction after a whole layer, its last one.
            frame = frame[frame["kind"] == "layer"] if analysis == "residual_norms" else frame
            frame = frame[frame["layer"].notna()]
            layers = frame["component"].str.replace(r"\..*", "", regex=True)
            frame = frame[(layers != layers.shift(-1)).to_numpy()]
            x = np.arange(len(frame)) / (max(len(frame) - 1, 1) if along == "relative" else 1)
            hover = f"<b>{html.escape(model)}</b>, %{{text}}<br>%{{y:.3g}}<extra></extra>"
            labels: dict[str, Any] = {"name": clipped(model), "legendgroup": model, "hovertemplate": hover}
            labels["text"] = [html.escape(label) for label in frame["component"]]
            lines.append(line(x, frame[column], style.SERIES[number % len(style.SERIES)], **labels))
        contents.append(lines)
    figure = panels(contents, [html.escape(heading) for heading in _PANELS.values()])
    alone = len(models) == 1
    arrange(
        figure,
        title or f"How {f'{models[0]} uses' if alone else f'{len(models)} models use'} depth",
        "Means over tokens unless said otherwise; logarithmic where the numbers span decades.",
        plot=150 * len(_PANELS),
        below=64 if alone else 96,
        headings=True,
    )
    for row, (_, column) in enumerate(_PANELS, start=1):
        figure.update_yaxes(**({"type": "log", "dtick": 1} if column in _LOGARITHMIC else {}), row=row, col=1)
    figure.update_layout(showlegend=not alone)
    x_title = "layer, as a share of depth" if along == "relative" else "number of the layer"
    return figure.update_xaxes(title_text=x_title, row=len(_PANELS), col=1)
