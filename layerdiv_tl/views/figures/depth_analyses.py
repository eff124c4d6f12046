"""Figures of `depth`: bars along the layers, maps of what a skipped layer disturbs, maps over tokens."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..._checks import whole_number
from ...components import Component
from ...depth.change_point import ChangePoint
from ...depth.erasure import Erasure
from ...depth.integrated_gradients import IntegratedGradients
from ...depth.layer_maps import LayerMaps
from ...depth.logit_lens import LogitLens
from ...depth.residual_norms import ResidualNorms
from ...depth.skipping import Skip
from .. import style
from ..html import quoted
from .axes import component_axis
from .gauge_controls import hover_lines, whiskers
from .layout import arrange, beside, between, name, whiskered

if TYPE_CHECKING:
    import pandas as pd

_PANEL = 190
_MODE = {
    "current": "skipped at every token{first}, measured at every token",
    "future": "skipped at the tokens before a cut{first}, measured from the cut on",
    "local": "its write taken out of what each later layer sees{first}, nothing handed on: the direct effect",
    "future_local": "its write before a cut taken out of what each later layer sees{first}, nothing handed on, "
    "measured from the cut on",
}
_PART = {"layer": "layer", "attn": "attention", "mlp": "MLP"}
_BARS = "Bars: means over tokens; dashes: medians."
_TICKS = 40


def change_bars(change: ChangePoint, title: str | None = None) -> go.Figure:
    """The medians of the layers before and behind a change point; `Sizes.plot()` shows the layers themselves."""
    figure = go.Figure(
        go.Bar(
            x=[change.before, change.after],
            y=[0, 1],
            orientation="h",
            width=0.6,
            marker={"color": style.MODULE["layer"], "line": {"width": 0}},
            hovertemplate="median %{x:.3g}<extra></extra>",
        )
    )
    said = f"Begins at layer {change.layer}, 95 % {between(change.low, change.high)} over texts, p = {change.p:.2g}."
    arrange(figure, title or "Layers before and behind the change point", said, plot=110, below=60)
    figure.update_xaxes(title_text=f"{change.quantity}, median of the layers")
    return figure.update_yaxes(**beside(["before", "behind"]), autorange="reversed")


class Measured(Protocol):
    """What bars read: one row per component, each number with its interval, median and maximum."""

    @property
    def components(self) -> tuple[Component, ...]:
        """The rows' names."""

    def frame(self) -> pd.DataFrame:
        """The numbers."""


def size_bars(sizes: ResidualNorms, title: str | None = None) -> go.Figure:
    """Relative norm and cosine of what every attention, MLP and layer writes, and where the norms fall.

    The line stands where the layers' relative norms fall to a lower level (`Sizes.change_point`), with the 95 %
    interval of that place. Norms are on a logarithmic axis: the first layer's are ten times the others'.
    """
    layers = [component for component in sizes.components if component.kind == "layer"]
    change = sizes.change_point() if len(layers) >= 3 else None
    said = ""
    if change is not None:
        where = f"layer {change.layer} {between(change.low, change.high)}"
        if any(component.repeat for component in layers):
            where += f" in order of use ({layers[change.layer].label.rpartition('.')[0]})"
        said = f" Vertical: where layers begin to write less, {where}, p = {style.number(change.p)}."
    panels = {"relative_norm": "‖write‖ / ‖stream it is added to‖", "cosine": "Cosine of the write and that stream"}
    figure = _bars(
        sizes,
        panels,
        title or f"How much each layer of {sizes.model} writes",
        _BARS.replace("Bars", "Bars and dots") + said,
        ["relative_norm"],
    )
    if change is not None:
        starts = [i for i, c in enumerate(sizes.components) if i == 0 or _place(sizes.components[i - 1]) != _place(c)]
        starts.append(len(sizes.components))
        figure.add_vline(
            x=starts[change.layer] - 0.5, line={"dash": "dash", "width": 1.5, "color": style.NEUTRAL}, row=1, col=1
        )
        if change.low == change.low:
            low, high = (starts[round(edge)] - 0.5 for edge in (change.low, change.high))
            figure.add_vrect(x0=low, x1=high, fillcolor=style.faint(style.NEUTRAL), line={"width": 0}, row=1, col=1)
    return figure


def skip_bars(skip: Skip, title: str | None = None) -> go.Figure:
    """What skipping each layer does to the answer, to the loss, and to the layers behind it."""
    panels = {
        "output_change": "Change of the answer",
        "loss": "Growth of the loss",
        "downstream_change": "Change of the later layers' writes, their mean",
    }
    title = title or f"What {skip.model} does without each {_PART[skip.part]}"
    return _bars(skip, panels, title, f"Each {_PART[skip.part]} in turn: {_mode(skip)}. {_BARS}")


def lens_bars(lens: LogitLens, title: str | None = None) -> go.Figure:
    """KL divergence and top-k overlap of every junction's answer and the last one."""
    panels = {"kl": "KL(junction ‖ last)", "topk_overlap": f"Overlap of the {lens.k} likeliest tokens"}
    norm = "each junction's own norm" if lens.norm == "recomputed" else "the last stream's norm"
    bars = _BARS.replace("means over tokens", "means over texts of their means over tokens")
    title = title or f"What {lens.model} would answer at every junction"
    return _bars(lens, panels, title, f"Read out with {norm}, compared with what the model says. {bars}")


def erasure_bars(erasure: Erasure, title: str | None = None) -> go.Figure:
    """What erasing a token does to the answer, by the layer before which it is erased."""
    what = "One token" if erasure.span == "position" else _prefix(erasure)
    title = title or f"Until which layer {erasure.model} needs earlier tokens"
    said = f"{what} replaced by the mean stream where it enters a layer; mean over the tokens. {_BARS}"
    where = "the answer, where it is predicted" if erasure.measured == "answer" else "what is said at later tokens"
    return _bars(erasure, {"effect": f"Change of {where}"}, title, said)


def gradient_bars(gradients: IntegratedGradients, title: str | None = None) -> go.Figure:
    """Integrated gradients of every component, summed over the tokens of a text."""
    title = title or f"What the answers of {gradients.model} owe to each {_PART[gradients.part]}"
    said = "Sums over a text's tokens; bars: means over texts; dashes: medians."
    panels = {"attribution": "Attribution to the answer's probability", "size": "Sum of its absolute values"}
    return _bars(gradients, panels, title, said)


def skip_map(skip: Skip, title: str | None = None) -> go.Figure:
    """A map skipped layer × later layer of the mean relative change of what the later one writes.

    Colors end at the 99th percentile; the hover has the value, its interval and the maximum.
    """
    pairs = skip.by_pair()
    rows, columns = ({c.label: i for i, c in enumerate(names)} for names in (skip.components, skip.layers))
    at = pairs["component"].map(rows).to_numpy(dtype=int), pairs["downstream_layer"].map(columns).to_numpy(dtype=int)
    z = np.full((len(rows), len(columns)), np.nan)
    z[at] = pairs["effect"]
    hover = np.full(z.shape, "", dtype=object)
    hover[at] = [
        f"{line}<br>maximum {style.number(most)}<br>in {html.escape(later)}"
        for line, later, most in zip(
            hover_lines(pairs, {"effect": "effect"}), pairs["downstream_layer"], pairs["effect_max"], strict=True
        )
    ]
    title = title or f"What later layers of {skip.model} do differently without each {_PART[skip.part]}"
    unit = "‖Δ − Δ′‖ / ‖Δ‖"
    figure = _map(z, hover, skip.components, unit, signed=False)
    arrange(figure, title, f"Mean over tokens; each {_PART[skip.part]} in turn {_mode(skip)}.", plot=520, below=60)
    figure.update_xaxes(**component_axis(skip.layers), title_text="later layer", showgrid=False, zeroline=False)
    return figure.update_yaxes(title_text=f"skipped {_PART[skip.part]}")


def erasure_map(erasure: Erasure, text: int = 0, title: str | None = None) -> go.Figure:
    """A map layer × token of what erasing the token before the layer does to the answer of one text.

    Raises InputError for a text that does not exist.
    """
    title = title or f"Until which layer {erasure.model} needs each token"
    what = "The token" if erasure.span == "position" else _prefix(erasure).replace("A", "The", 1)
    where = "the answer's positions" if erasure.measured == "answer" else "later positions"
    said = f"{what} replaced by the mean stream where it enters the layer; mean over {where}."
    return _token_map(erasure, erasure.effect, text, "‖Δ softmax‖₂", title, said, signed=False)


def gradient_map(gradients: IntegratedGradients, text: int = 0, title: str | None = None) -> go.Figure:
    """A map layer × token of integrated gradients of the answer's probability, of one text.

    Raises InputError for a text that does not exist.
    """
    part = _PART[gradients.part]
    title = title or f"What the answer of {gradients.model} owes to each token at each {part}"
    said = (
        f"Integrated gradients over what each {part} hands on, {gradients.steps} {gradients.path} steps, "
        f"baseline {gradients.baseline.replace('_', ' ')}; "
    )
    said += f"sums are off by {style.number(100 * gradients.gap)} % of the change."
    return _token_map(gradients, gradients.attribution, text, "probability", title, said, signed=True)


def layer_map(maps: LayerMaps, title: str | None = None) -> go.Figure:
    """A map source layer × target layer of the error of the linear map between them on held-out tokens.

    Colors end at the 99th percentile; the hover has the value, its interval and the maximum.
    """
    frame, shape = maps.frame(), (len(maps.components), len(maps.targets))
    hover = [
        f"{line}<br>maximum {style.number(most)}<br>of {html.escape(target)}"
        for line, target, most in zip(
            hover_lines(frame, {"error": "error"}), frame["target"], frame["error_max"], strict=True
        )
    ]
    figure = _map(
        frame["error"].to_numpy().reshape(shape), np.reshape(hover, shape), maps.components, "error", signed=False
    )
    row = maps.depth_alignment().iloc[0]
    said = "‖y − ŷ‖ / ‖y‖ on texts that the maps were not made from. The best target is "
    said += f"{style.number(row.distance)} {between(row.distance_low, row.distance_high)} of the depth away; "
    said += f"by chance {style.number(row.chance)}."
    arrange(figure, title or f"{maps.target} told from {maps.source}, layer by layer", said, plot=520, below=60)
    figure.update_xaxes(**component_axis(maps.targets), showgrid=False, zeroline=False)
    figure.update_xaxes(title_text=f"layer of {name(maps.target)}")
    return figure.update_yaxes(title_text=f"layer of {name(maps.source)}")


def _bars(
    measured: Measured, panels: dict[str, str], title: str, subtitle: str, logarithmic: Sequence[str] = ()
) -> go.Figure:
    """A panel of bars for each column of a frame, colored by module; dots where the axis is logarithmic."""
    frame, modules = measured.frame(), np.array([c.module for c in measured.components], dtype=object)
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.2 / len(panels),
        subplot_titles=[html.escape(heading) for heading in panels.values()],
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    for row, at in enumerate(panels, start=1):
        unit = frame.attrs["units"].get(at, "")
        for module in dict.fromkeys(modules):
            here = modules == module
            lines = [
                f"{line}<br>median {style.number(median)}, maximum {style.number(most)}"
                for line, median, most in zip(
                    hover_lines(frame[here], {at: at}),
                    frame.get(f"{at}_median", frame[at])[here],
                    frame[f"{at}_max"][here],
                    strict=True,
                )
            ]
            shared = {"x": np.flatnonzero(here), "hovertext": lines, "hoverinfo": "text", "legendgroup": module}
            shared |= {"name": style.MODULE_NAME[module], "row": row, "col": 1}
            color, mean = style.MODULE[module], {"y": frame[at].to_numpy()[here], "error_y": whiskers(frame[here], at)}
            first = row == 1 and len(set(modules)) > 1
            if at in logarithmic:
                figure.add_scatter(mode="markers", marker={"color": color}, showlegend=first, **mean, **shared)
            else:
                bar = {"color": color, "line": {"width": 0}}
                figure.add_bar(width=0.8, marker=bar, showlegend=first, **mean, **shared)
            if f"{at}_median" in frame:
                figure.add_scatter(
                    y=frame[f"{at}_median"].to_numpy()[here],
                    mode="markers",
                    marker={"symbol": "line-ew-open", "size": 8, "color": style.NEUTRAL, "line": {"width": 2}},
                    showlegend=False,
                    **shared,
                )
        figure.update_yaxes(title_text=html.escape(unit), row=row, col=1)
        if at in logarithmic:
            figure.update_yaxes(type="log", dtick=1, row=row, col=1)
    below = 96 if len(set(modules)) > 1 else 64
    said = f"{subtitle} {whiskered(frame)}"
    arrange(figure, title, said, plot=_PANEL * len(panels), below=below, headings=True)
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(**component_axis(measured.components), range=[-1, len(modules)], showgrid=False, zeroline=False)
    return figure.update_xaxes(title_text="component, in stream order", row=len(panels), col=1)


def _token_map(
    measured: Any, values: np.ndarray, text: int, unit: str, title: str, subtitle: str, *, signed: bool
) -> go.Figure:
    here = np.flatnonzero(measured.text == whole_number("text", text, 0, int(measured.text.max())))
    z, tokens = values[here].T, [measured.tokens[i] for i in here]
    hover = [
        [
            f"<b>{html.escape(c.label)}</b> at {html.escape(repr(token))}<br>{style.number(v)} {unit}"
            for token, v in zip(tokens, row, strict=True)
        ]
        for c, row in zip(measured.components, z, strict=True)
    ]
    figure = _map(z, hover, measured.components, unit, signed=signed)
    arrange(figure, title, subtitle, plot=460, below=90)
    places = np.arange(0, len(tokens), max(1, -(-len(tokens) // _TICKS)))
    labels = [html.escape(quoted(tokens[i], 12)) for i in places]
    figure.update_xaxes(tickmode="array", tickvals=places, ticktext=labels, tickangle=-60, title_text="token")
    figure.update_xaxes(showgrid=False, zeroline=False)
    return figure.update_yaxes(title_text="layer")


def _map(z: np.ndarray, hover: Any, rows: Sequence[Component], unit: str, *, signed: bool) -> go.Figure:
    """A heat map, the first layer at the bottom; colors end at the 99th percentile."""
    known = np.abs(z[np.isfinite(z)])
    most = (float(np.quantile(known, 0.99)) if known.size else 0.0) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=np.arange(z.shape[1]),
            y=np.arange(z.shape[0]),
            autocolorscale=True,
            zmin=-most if signed else 0.0,
            zmax=most,
            hovertext=hover,
            hoverinfo="text",
            hoverongaps=False,
            colorbar={"title": {"text": unit, "side": "top"}, "thickness": 12, "outlinewidth": 0},
        )
    )
    return figure.update_yaxes(**component_axis(rows), showgrid=False, zeroline=False)


def _mode(skip: Skip) -> str:
    """What is skipped where, the first token with it or not."""
    return _MODE[skip.mode].format(first=" but a text's first" if skip.first_token == "kept" else "")


def _prefix(erasure: Erasure) -> str:
    return f"A token and all before it{' but the first' if erasure.first_token == 'kept' else ''}"


def _place(component: Component) -> tuple[int | None, int | None]:
    return component.layer, component.repeat
