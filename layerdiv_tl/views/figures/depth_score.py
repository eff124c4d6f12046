"""The depth score: the mean depth of the layers that answers with each number of hops rest on."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.regression import Slope
from .. import style
from ..plotting import arrange, bar, between, component_axis, hover_lines, line, named_columns, panels, whiskers
from .depth_bars import PART

if TYPE_CHECKING:
    from ...depth.depth_score import DepthScore

_EFFECT = {
    "published": "one {part} at a time writes nothing at the tokens before the answer, its maximum from there on (the "
    "rule of the paper's code)",
    "skip": "one {part} at a time writes nothing",
    "skip_before": "one {part} at a time writes nothing at the tokens before the one that predicts the answer",
    "erase": "the tokens before the one that predicts the answer become the mean token as they enter a layer",
}
_FIRST = {"kept": "left alone", "changed": "changed too"}


@figure_of("bars", "DepthScore")
def score_bars(score: DepthScore, title: str | None = None) -> go.Figure:
    """The score of every group with its interval, and beneath it each layer's share of the groups' effects.

    A group's score is the mean layer of its line. The subtitle has by how many layers the score is deeper for each
    further hop, among all questions and among questions of equal length. Where there are more groups than colors,
    the lines are those of the groups with the most questions.
    """
    frame, layers = score.frame(), score.by_layer()
    names = [f"{group:g}" for group in frame["group"]]
    colors = {group: style.SERIES[i % len(style.SERIES)] for i, group in enumerate(frame["group"])}
    labeled = frame.assign(component=[f"{score.by} {name}" for name in names])
    labeled.attrs = frame.attrs
    texts = hover_lines(labeled, {"score": "score", "relative": "relative"})
    rows = zip(texts, frame["n"], frame["accuracy"], frame["length"], strict=True)
    hover = [
        f"{text}<br>{n} questions of {style.number(length)} tokens<br>{accuracy:.0%} answered rightly"
        for text, n, accuracy, length in rows
    ]
    error = whiskers(frame, "score")
    x = np.arange(len(frame))
    bars = bar(x, frame["score"], list(colors.values()), width=0.6, error=error, hover=hover)
    lines = []
    drawn = frame.sort_values("n", ascending=False, kind="stable")["group"].head(len(style.SERIES)).sort_values()
    for group in drawn:
        shares = layers[layers["group"] == group]
        named: dict[str, Any] = {"name": html.escape(f"{score.by} {group:g}"), "error": whiskers(shares, "share")}
        named["hover"] = hover_lines(shares, {"share": "share", "effect": "effect"})
        lines.append(line(np.arange(len(shares)), shares["share"].to_numpy(), colors[group], **named))
    figure = panels([[bars], lines], ["Depth score", "Each layer's share of the effects"], gap=0.4, shared_xaxes=False)
    arrange(
        figure,
        title or f"How deep the answers of {score.model} rest, by {score.by}",
        f"Σ l·e / Σ e, e the change of the answer's probabilities when {_EFFECT[score.effect]}; ".format(
            part=PART[score.part]
        )
        + f"the first token is {_FIRST[score.first_token]}; e is the mean over a group's questions, with 95 % "
        "intervals over them where there are 8 or more. "
        f"All questions: {_slope(score.slope, score.by)}. "
        f"Of equal length: {_slope(score.slope_at_length, score.by)}.",
        plot=460,
        below=96,
        headings=True,
    )
    figure.update_xaxes(**named_columns(names, range(len(names))), title_text=html.escape(score.by), row=1, col=1)
    figure.update_yaxes(title_text="layers", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="share", rangemode="tozero", row=2, col=1)
    return figure.update_xaxes(**component_axis(score.components), title_text=PART[score.part], row=2, col=1)


def _slope(slope: Slope, by: str) -> str:
    """A slope in words."""
    if slope.reason:
        return f"no slope ({slope.reason})"
    size = f"{slope.value:+.2g} layers {between(slope.low, slope.high)} per {by.removesuffix('s')}"
    return f"{size}, p = {style.number(slope.p)}"
