"""The depth score: how deep the layers lie that answers of each number of hops rest on."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...depth.depth_score import DepthScore
from ...ensemble.regression import Slope
from .. import style
from .axes import component_axis
from .gauge_controls import hover_lines, whiskers
from .layout import arrange, beneath, between

_PANEL = 210
_EFFECT = {
    "published": "one {part} at a time writes nothing at the tokens before the answer, its maximum from there on (the "
    "rule of the paper's code)",
    "skip": "one {part} at a time writes nothing",
    "skip_before": "one {part} at a time writes nothing at the tokens before the one that predicts the answer",
    "erase": "the tokens before the one that predicts the answer become the mean token as they enter a layer",
}
_FIRST = {"kept": "left alone", "changed": "changed too"}
_PART = {"layer": "layer", "attn": "attention", "mlp": "MLP"}


def score_bars(score: DepthScore, title: str | None = None) -> go.Figure:
    """The score of every group with its interval, and beneath it each layer's share of the groups' effects.

    A group's score is the mean place of its line. The subtitle says by how many layers the score is deeper for each
    further hop, among all questions and among questions of equal length. Where there are more groups than colors,
    the lines are those of the groups with the most questions.
    """
    frame, layers = score.frame(), score.by_layer()
    names = [f"{group:g}" for group in frame["group"]]
    colors = {group: style.SERIES[i % len(style.SERIES)] for i, group in enumerate(frame["group"])}
    figure = make_subplots(
        rows=2,
        cols=1,
        vertical_spacing=0.2,
        subplot_titles=["Depth score", "Each layer's share of the effects"],
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    labeled = frame.assign(component=[f"{score.by} {name}" for name in names])
    extra = zip(
        hover_lines(labeled, {"score": "score", "relative": "relative"}),
        frame["n"],
        frame["accuracy"],
        frame["length"],
        strict=True,
    )
    figure.add_bar(
        x=np.arange(len(frame)),
        y=frame["score"],
        error_y=whiskers(frame, "score"),
        width=0.6,
        marker={"color": list(colors.values()), "line": {"width": 0}},
        hovertext=[
            f"{line}<br>{n} questions of {style.number(length)} tokens<br>{accuracy:.0%} answered rightly"
            for line, n, accuracy, length in extra
        ],
        hoverinfo="text",
        showlegend=False,
        row=1,
        col=1,
    )
    drawn = frame.sort_values("n", ascending=False, kind="stable")["group"].head(len(style.SERIES)).sort_values()
    for group in drawn:
        mine = layers[layers["group"] == group]
        figure.add_scatter(
            x=np.arange(len(mine)),
            y=mine["share"].to_numpy(),
            error_y=whiskers(mine, "share"),
            mode="lines+markers",
            name=html.escape(f"{score.by} {group:g}"),
            line={"color": colors[group], "width": 1.8},
            marker={"color": colors[group], "size": 5},
            hovertext=hover_lines(mine, {"share": "share", "effect": "effect"}),
            hoverinfo="text",
            row=2,
            col=1,
        )
    said = f"Σ l·e / Σ e, e the change of the answer's probabilities when {_EFFECT[score.effect]}; "
    said = said.format(part=_PART[score.part]) + f"the first token is {_FIRST[score.first_token]}; "
    said += "e is the mean over a group's questions, with 95 % intervals over them where there are 8 or more. "
    said += f"All questions: {_slope(score.slope, score.by)}. "
    said += f"Of equal length: {_slope(score.slope_at_length, score.by)}."
    title = title or f"How deep the answers of {score.model} rest, by {score.by}"
    arrange(figure, title, said, plot=2 * _PANEL + 40, below=96, headings=True)
    figure.update_xaxes(**beneath(names, range(len(names))), row=1, col=1)
    figure.update_xaxes(title_text=html.escape(score.by), row=1, col=1)
    figure.update_yaxes(title_text="layers", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(**component_axis(score.components), showgrid=False, zeroline=False, row=2, col=1)
    figure.update_yaxes(title_text="share", rangemode="tozero", row=2, col=1)
    return figure.update_xaxes(title_text=_PART[score.part], row=2, col=1)


def _slope(slope: Slope, by: str) -> str:
    """A slope in words."""
    if slope.reason:
        return f"no slope ({slope.reason})"
    size = f"{slope.value:+.2g} layers {between(slope.low, slope.high)} per {by.removesuffix('s')}"
    return f"{size}, p = {style.number(slope.p)}"
