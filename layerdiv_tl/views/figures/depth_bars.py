"""Analyses of `depth` as bars along the layers, one panel for each number; the depth score by number of hops."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from ...ensemble.fits import Slope
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...depth.depth_score import DepthScore
    from ...depth.erasure import Erasure
    from ...depth.integrated_gradients import IntegratedGradients
    from ...depth.logit_lens import LogitLens
    from ...depth.residual_norms import ChangePoint, ResidualNorms
    from ...depth.skipping import Skip

LABELS = style.LABELS["depth"]
PART = LABELS["part"]
_HEADINGS = style.LABELS["title"]
_BARS = "Bars: means over tokens; dashes: medians."


class _Analysis(Protocol):
    """What bars draw: one row per component, each number with its interval, median and maximum."""

    @property
    def components(self) -> tuple[Component, ...]: ...

    def frame(self) -> pd.DataFrame: ...


@figure_of("bars", "ChangePoint")
def change_bars(change: ChangePoint) -> go.Figure:
    """The medians of the layers before and after a change point; `ResidualNorms.plot()` shows the layers themselves."""
    hover = {"hovertemplate": "median %{x:.3g}<extra></extra>"}
    bars = kit.bar([change.before, change.after], [0, 1], style.MODULE["layer"], across=True, width=0.6, **hover)
    where = f"{change.layer}, 95 % {style.interval(change.low, change.high)} over texts"
    title = "Layers before and after the change point"
    found = "It begins" if change.p < style.SIGNIFICANT else "No change beyond noise; the best begins"
    subtitle = f"{found} at layer {where}, p = {change.p:.2g}."
    x, y = {"title_text": f"{change.quantity}, median of the layers"}, kit.named_rows(["before", "after"])
    return kit.arrange(go.Figure(bars), title, subtitle, x=x, y=y, plot=110)


@figure_of("bars", "ResidualNorms")
def norm_bars(norms: ResidualNorms) -> go.Figure:
    """Relative norm and cosine of the output of every attention, MLP and layer, and where the norms fall.

    The line stands where the layers' relative norms fall to a lower level (`ResidualNorms.change_point`), with the
    95 % interval of that position. Norms are on a logarithmic axis: the first layer's are ten times the others'.
    """
    components = norms.components
    layers = [component for component in components if component.kind == "layer"]
    change = norms.change_point() if len(layers) >= 3 else None
    subtitle = _BARS.replace("Bars", "Bars and dots")
    if change is not None:
        where = f"layer {change.layer} {style.interval(change.low, change.high)}"
        if any(component.repeat for component in layers):
            where += f" in order of use ({layers[change.layer].label.rpartition('.')[0]})"
        if change.p < style.SIGNIFICANT:
            subtitle += f" Vertical: where layers begin to write less, {where}, p = {style.number(change.p)}."
        else:
            subtitle += f" No change point: of the best, {where}, p = {style.number(change.p)}."
    title = f"Norm of what each layer of {norms.model} writes"
    figure = _bars(norms, _HEADINGS["residual_norms"], title, subtitle, "relative_norm")
    if change is not None and change.p < style.SIGNIFICANT:
        # A layer stands for several components: the line is before the first of them.
        layer = [(component.layer, component.repeat) for component in components]
        starts = [i - 0.5 for i in range(len(layer)) if i == 0 or layer[i - 1] != layer[i]] + [len(layer) - 0.5]
        dashed = {"dash": "dash", "width": 1.5, "color": style.NEUTRAL}
        figure.add_vline(x=starts[change.layer], line=dashed, row=1, col=1)
        if change.low == change.low:
            low, high = (starts[round(end)] for end in (change.low, change.high))
            shade = {"fillcolor": style.faint(style.NEUTRAL), "line": {"width": 0}}
            figure.add_vrect(x0=low, x1=high, row=1, col=1, **shade)
    return figure


@figure_of("bars", "Skip")
def skip_bars(skip: Skip) -> go.Figure:
    """Effect of skipping each layer on the answer, on the loss, and on the layers after it."""
    title = f"Effect of skipping each {PART[skip.part]} of {skip.model}"
    return _bars(skip, _HEADINGS["skip"], title, f"Each {PART[skip.part]} in turn: {skip_mode(skip)}. {_BARS}")


@figure_of("bars", "LogitLens")
def lens_bars(lens: LogitLens) -> go.Figure:
    """KL divergence and top-k overlap of every junction's prediction and the last one."""
    headings = {"kl": "KL(junction ‖ last)", "topk_overlap": f"Overlap of the {lens.k} likeliest tokens"}
    norm = "each junction's own norm" if lens.norm == "recomputed" else "the last stream's norm"
    means = _BARS.replace("means over tokens", "means over texts of their means over tokens")
    title = f"Logit lens of {lens.model} at every junction"
    return _bars(lens, headings, title, f"Read out with {norm}, compared with what the model says. {means}")


@figure_of("bars", "Erasure")
def erasure_bars(erasure: Erasure) -> go.Figure:
    """Effect of erasing a token on the answer, by the layer before which it is erased."""
    span = "One token" if erasure.span == "position" else erased_prefix(erasure)
    title = f"Effect of erasing a token from {erasure.model}, by layer"
    subtitle = f"{span} replaced by the mean stream where it enters a layer; mean over the tokens. {_BARS}"
    where = "the answer, where it is predicted" if erasure.measured == "answer" else "what is said at later tokens"
    return _bars(erasure, {"effect": f"Change of {where}"}, title, subtitle)


@figure_of("bars", "IntegratedGradients")
def gradient_bars(gradients: IntegratedGradients) -> go.Figure:
    """Integrated gradients of every component, summed over the tokens of a text."""
    title = f"Integrated gradients of {gradients.model}'s answers, by {PART[gradients.part]}"
    subtitle = "Sums over a text's tokens; bars: means over texts; dashes: medians."
    return _bars(gradients, _HEADINGS["integrated_gradients"], title, subtitle)


def _bars(
    measured: _Analysis, headings: Mapping[str, str], title: str, subtitle: str, logarithmic: str | None = None
) -> go.Figure:
    """A panel of bars for each column of a frame, colored by module; of dots for the one whose axis is logarithmic."""
    frame, components = measured.frame(), measured.components
    contents = []
    for column in headings:
        medians = frame.get(f"{column}_median", frame[column])
        rows = zip(kit.hover_lines(frame, {column: column}), medians, frame[f"{column}_max"], strict=True)
        hover = [f"{text}<br>median {style.number(m)}, maximum {style.number(top)}" for text, m, top in rows]
        draw, error = kit.dots if column == logarithmic else kit.bar, kit.whiskers(frame, column, visible=True)
        traces = kit.module_traces(components, frame[column], hover, draw=draw, error=error)
        if f"{column}_median" in frame:
            dash: dict[str, Any] = {"symbol": "line-ew-open", "edge": 2, "showlegend": False, "color": style.NEUTRAL}
            traces += kit.module_traces(components, medians, hover, draw=kit.dots, name=None, **dash)
        contents.append(traces)
    units = [frame.attrs["units"].get(column, "") for column in headings]
    names, x_title = [html.escape(heading) for heading in headings.values()], "component, in stream order"
    figure = kit.panels(contents, names, units=units, x_title=x_title)
    for row, column in enumerate(headings, start=1):
        if column == logarithmic:
            figure.update_yaxes(kit.log_axis(frame[[column, f"{column}_median"]]), row=row, col=1)
    several = len(list(kit.by_module(components))) > 1
    figure.update_layout(barmode="overlay", showlegend=several)
    axis, plot = kit.component_axis(components, edge=1), 190 * len(headings)
    subtitle = f"{subtitle} {kit.whiskered(frame)}"
    return kit.arrange(figure, title, subtitle, x=axis, plot=plot)


def skip_mode(skip: Skip) -> str:
    """What is skipped where, the first token with it or not."""
    first = " but a text's first" if skip.first_token == "kept" else ""
    return str(LABELS["mode"][skip.mode]).format(first=first)


def erased_prefix(erasure: Erasure) -> str:
    """What an erasure with `span="prefix"` replaces."""
    return f"A token and all before it{' but the first' if erasure.first_token == 'kept' else ''}"


@figure_of("bars", "DepthScore")
def score_bars(score: DepthScore) -> go.Figure:
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
    texts = kit.hover_lines(labeled, {"score": "score", "relative": "relative"})
    hover = [
        f"{text}<br>{n} questions of {style.number(length)} tokens<br>{accuracy:.0%} answered rightly"
        for text, n, length, accuracy in zip(texts, frame["n"], frame["length"], frame["accuracy"], strict=True)
    ]
    x, error = np.arange(len(frame)), kit.whiskers(frame, "score")
    bars = kit.bar(x, frame["score"], list(colors.values()), width=0.6, error=error, hover=hover)
    lines = []
    drawn = frame.sort_values("n", ascending=False, kind="stable")["group"].head(len(style.SERIES)).sort_values()
    for group in drawn:
        shares = layers[layers["group"] == group]
        named: dict[str, Any] = {"name": html.escape(f"{score.by} {group:g}"), "error": kit.whiskers(shares, "share")}
        named["hover"] = kit.hover_lines(shares, {"share": "share", "effect": "effect"})
        lines.append(kit.line(np.arange(len(shares)), shares["share"].to_numpy(), colors[group], **named))
    headings, part = ["Depth score", "Each layer's share of the effects"], PART[score.part]
    figure = kit.panels([[bars], lines], headings, units=["layers", "share"], gap=0.4, shared_xaxes=False)
    figure.update_xaxes(**kit.named_columns(names, range(len(names))), title_text=html.escape(score.by), row=1, col=1)
    figure.update_xaxes(**kit.component_axis(score.components, part), row=2, col=1)
    effect = LABELS["effect"][score.effect].format(part=part)
    return kit.arrange(
        figure,
        f"Depth score of {score.model}'s answers, by {score.by}",
        f"Σ l·e / Σ e, e the change of the answer's probabilities when {effect}; the first token is "
        f"{LABELS['first_token'][score.first_token]}; e is the mean over a group's questions, with 95 % intervals over "
        f"them where there are 8 or more. All questions: {_slope(score.slope, score.by)}. Of equal length: "
        f"{_slope(score.slope_at_length, score.by)}.",
        y={"rangemode": "tozero"},
        plot=460,
    )


def _slope(slope: Slope, by: str) -> str:
    """A slope in words."""
    if slope.reason:
        return f"no slope ({slope.reason})"
    size = f"{slope.value:+.2g} layers {style.interval(slope.low, slope.high)} per {by.removesuffix('s')}"
    mixed = f" (interval and p disagree: {slope.n} questions are too few to tell)" if slope.is_mixed else ""
    return f"{size}, p = {style.number(slope.p)}{mixed}"
