"""Analyses of `depth` as bars along the layers, one panel for each number."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from .. import style
from ..plotting import (
    arrange,
    bar,
    between,
    by_module,
    component_axis,
    dots,
    hover_lines,
    module_bars,
    named_rows,
    panels,
    whiskered,
)

if TYPE_CHECKING:
    import pandas as pd

    from ...depth.erasure import Erasure
    from ...depth.integrated_gradients import IntegratedGradients
    from ...depth.logit_lens import LogitLens
    from ...depth.residual_norms import ChangePoint, ResidualNorms
    from ...depth.skipping import Skip

PART = {"layer": "layer", "attn": "attention", "mlp": "MLP"}
_MODE = {
    "current": "skipped at every token{first}, measured at every token",
    "future": "skipped at the tokens before a cut{first}, measured from the cut on",
    "local": "its write taken out of what each later layer sees{first}, nothing handed on: the direct effect",
    "future_local": "its write before a cut taken out of what each later layer sees{first}, nothing handed on, "
    "measured from the cut on",
}
_BARS = "Bars: means over tokens; dashes: medians."


class Measured(Protocol):
    """What bars draw: one row per component, each number with its interval, median and maximum."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The rows' components."""

    def frame(self) -> pd.DataFrame:
        """The numbers."""


@figure_of("bars", "ChangePoint")
def change_bars(change: ChangePoint, title: str | None = None) -> go.Figure:
    """The medians of the layers before and after a change point; `ResidualNorms.plot()` shows the layers themselves."""
    hover = {"hovertemplate": "median %{x:.3g}<extra></extra>"}
    medians = [change.before, change.after]
    figure = go.Figure(bar(medians, [0, 1], style.MODULE["layer"], across=True, width=0.6, **hover))
    subtitle = (
        f"Begins at layer {change.layer}, 95 % {between(change.low, change.high)} over texts, p = {change.p:.2g}."
    )
    arrange(figure, title or "Layers before and after the change point", subtitle, plot=110, below=60)
    figure.update_xaxes(title_text=f"{change.quantity}, median of the layers")
    return figure.update_yaxes(**named_rows(["before", "after"]), autorange="reversed")


@figure_of("bars", "ResidualNorms")
def norm_bars(norms: ResidualNorms, title: str | None = None) -> go.Figure:
    """Relative norm and cosine of the output of every attention, MLP and layer, and where the norms fall.

    The line stands where the layers' relative norms fall to a lower level (`ResidualNorms.change_point`), with the
    95 % interval of that position. Norms are on a logarithmic axis: the first layer's are ten times the others'.
    """
    components = norms.components
    layers = [component for component in components if component.kind == "layer"]
    change = norms.change_point() if len(layers) >= 3 else None
    subtitle = _BARS.replace("Bars", "Bars and dots")
    if change is not None:
        where = f"layer {change.layer} {between(change.low, change.high)}"
        if any(component.repeat for component in layers):
            where += f" in order of use ({layers[change.layer].label.rpartition('.')[0]})"
        subtitle += f" Vertical: where layers begin to write less, {where}, p = {style.number(change.p)}."
    headings = {"relative_norm": "‖write‖ / ‖stream it is added to‖", "cosine": "Cosine of the write and that stream"}
    figure = _bars(norms, headings, title or f"How much each layer of {norms.model} writes", subtitle, "relative_norm")
    if change is not None:
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
def skip_bars(skip: Skip, title: str | None = None) -> go.Figure:
    """Effect of skipping each layer on the answer, on the loss, and on the layers after it."""
    headings = {
        "output_change": "Change of the answer",
        "loss": "Growth of the loss",
        "downstream_change": "Change of the later layers' writes, their mean",
    }
    title = title or f"What {skip.model} does without each {PART[skip.part]}"
    return _bars(skip, headings, title, f"Each {PART[skip.part]} in turn: {skip_mode(skip)}. {_BARS}")


@figure_of("bars", "LogitLens")
def lens_bars(lens: LogitLens, title: str | None = None) -> go.Figure:
    """KL divergence and top-k overlap of every junction's prediction and the last one."""
    headings = {"kl": "KL(junction ‖ last)", "topk_overlap": f"Overlap of the {lens.k} likeliest tokens"}
    norm = "each junction's own norm" if lens.norm == "recomputed" else "the last stream's norm"
    means = _BARS.replace("means over tokens", "means over texts of their means over tokens")
    title = title or f"What {lens.model} would answer at every junction"
    return _bars(lens, headings, title, f"Read out with {norm}, compared with what the model says. {means}")


@figure_of("bars", "Erasure")
def erasure_bars(erasure: Erasure, title: str | None = None) -> go.Figure:
    """Effect of erasing a token on the answer, by the layer before which it is erased."""
    span = "One token" if erasure.span == "position" else erased_prefix(erasure)
    title = title or f"Until which layer {erasure.model} needs earlier tokens"
    subtitle = f"{span} replaced by the mean stream where it enters a layer; mean over the tokens. {_BARS}"
    where = "the answer, where it is predicted" if erasure.measured == "answer" else "what is said at later tokens"
    return _bars(erasure, {"effect": f"Change of {where}"}, title, subtitle)


@figure_of("bars", "IntegratedGradients")
def gradient_bars(gradients: IntegratedGradients, title: str | None = None) -> go.Figure:
    """Integrated gradients of every component, summed over the tokens of a text."""
    title = title or f"What the answers of {gradients.model} owe to each {PART[gradients.part]}"
    subtitle = "Sums over a text's tokens; bars: means over texts; dashes: medians."
    headings = {"attribution": "Attribution to the answer's probability", "size": "Sum of its absolute values"}
    return _bars(gradients, headings, title, subtitle)


def _bars(
    measured: Measured, headings: dict[str, str], title: str, subtitle: str, logarithmic: str | None = None
) -> go.Figure:
    """A panel of bars for each column of a frame, colored by module; of dots for the one whose axis is logarithmic."""
    frame, components = measured.frame(), measured.components
    contents: list[Sequence[go.Bar | go.Scatter]] = []
    for column in headings:
        medians = frame.get(f"{column}_median", frame[column])
        rows = zip(hover_lines(frame, {column: column}), medians, frame[f"{column}_max"], strict=True)
        texts = [f"{text}<br>median {style.number(m)}, maximum {style.number(top)}" for text, m, top in rows]
        hover = np.array(texts, dtype=object)
        traces = module_bars(components, frame, column, hover, dots if column == logarithmic else bar)
        if f"{column}_median" in frame:
            dash: dict[str, Any] = {"symbol": "line-ew-open", "edge": 2, "showlegend": False}
            traces += [
                dots(at, medians.iloc[at], style.NEUTRAL, hover=hover[at], legendgroup=module, **dash)
                for module, at in by_module(components)
            ]
        contents.append(traces)
    figure = panels(contents, [html.escape(heading) for heading in headings.values()])
    several = len(list(by_module(components))) > 1
    subtitle = f"{subtitle} {whiskered(frame)}"
    arrange(figure, title, subtitle, plot=190 * len(headings), below=96 if several else 64, headings=True)
    for row, column in enumerate(headings, start=1):
        scale = {"type": "log", "dtick": 1} if column == logarithmic else {}
        figure.update_yaxes(title_text=html.escape(frame.attrs["units"].get(column, "")), **scale, row=row, col=1)
    figure.update_layout(barmode="overlay", showlegend=several)
    figure.update_xaxes(**component_axis(components), range=[-1, len(components)])
    return figure.update_xaxes(title_text="component, in stream order", row=len(headings), col=1)


def skip_mode(skip: Skip) -> str:
    """What is skipped where, the first token with it or not."""
    return _MODE[skip.mode].format(first=" but a text's first" if skip.first_token == "kept" else "")


def erased_prefix(erasure: Erasure) -> str:
    """What an erasure with `span="prefix"` replaces."""
    return f"A token and all before it{' but the first' if erasure.first_token == 'kept' else ''}"
