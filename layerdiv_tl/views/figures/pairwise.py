"""Which components say the same: a matrix of all pairs, in the order of a clustering."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ...ensemble.decomposition import Decomposition, Part
from .. import style
from .gauge_controls import checked, column, largest, suffixed

_TITLE = {
    "cosine": "How alike the components' contributions are: cosine",
    "distance": "How far the components' contributions are apart: squared distance",
    "disagreement": "How often the components prefer different options",
}


def pairwise_map(
    decomposition: Decomposition,
    by: Literal["cosine", "distance", "disagreement"] = "cosine",
    part: Part = "centered",
    most: int = 400,
    title: str | None = None,
    height: int = 900,
) -> go.Figure:
    """A matrix component × component of one number of `pairwise`, with the clustering that orders it above.

    by, part
        The number, by which the components are clustered too, and whether it is raw or centered over the options;
        "disagreement" has no parts, and none has a shift.
    most
        Of more components those with the largest (centered) diversity are shown, and the title says so.

    Under the tree stands each component's module; two branches meet at the mean distance of their members
    (1 − cosine for "cosine"). Raises InputError for an unknown `by` or part, for one component, and for
    more than 1000 of them.
    """
    checked(part)
    everything = decomposition
    if len(decomposition.components) > most:
        half = decomposition.halves.get("centered", decomposition)
        kept = largest(half.diversities.mean(0), most)
        decomposition = replace(
            decomposition,
            values=decomposition.values[:, kept],
            components=tuple(decomposition.components[i] for i in kept),
        )
    frame = decomposition.pairwise(by)
    at = column(frame, by, part)
    order = frame.attrs["order"]
    place = {label: number for number, label in enumerate(order)}
    one, other = (frame[name].map(place).to_numpy() for name in ("component", "other"))
    cells = np.full((len(order), len(order)), 1.0 if by == "cosine" else 0.0)
    bounds = np.full((len(order), len(order), 2), np.nan, dtype=np.float32)
    cells[one, other] = cells[other, one] = frame[at]
    for end, name in enumerate(("low", "high")):
        bounds[one, other, end] = bounds[other, one, end] = frame[f"{at}_{name}"]
    np.fill_diagonal(cells, np.nan)  # itself: no pair
    labels = [html.escape(label) for label in order]
    unit = frame.attrs["units"][at]
    known = np.abs(cells[np.isfinite(cells)])
    furthest = 1.0 if by != "distance" else (float(known.max()) if known.size else 0.0) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=cells.astype(np.float32),
            x=labels,
            y=labels,
            customdata=bounds,
            autocolorscale=True,
            zmin=-furthest if by == "cosine" else 0.0,
            zmax=furthest,
            hoverongaps=False,
            hovertemplate=(
                f"<b>%{{y}}</b> and <b>%{{x}}</b><br>{at.replace('_', ', ')} %{{z:.3g}}"
                + ("" if unit == by else f" {unit}")
                + ("<br>95 % [%{customdata[0]:.3g}, %{customdata[1]:.3g}]" if np.isfinite(bounds).any() else "")
                + "<extra></extra>"
            ),
            colorbar={
                "title": {"text": unit, "side": "top"},
                "thickness": 12,
                "outlinewidth": 0,
                "len": 0.78,
                "y": 0.39,
            },
        )
    )
    module = {c.label: c.module for c in decomposition.components}
    for name in dict.fromkeys(module.values()):
        here = [label for label in order if module[label] == name]
        figure.add_bar(
            x=[html.escape(label) for label in here],
            y=[1.0] * len(here),
            width=1,
            marker={"color": style.MODULE[name], "line": {"width": 0}},
            name=style.MODULE_NAME[name],
            hovertext=[html.escape(label) for label in here],
            hoverinfo="text",
            yaxis="y2",
        )
    # An axis exists where a trace needs it; the tree is a shape, since no trace can stand between two categories.
    figure.add_scatter(x=labels[:1], y=[0], mode="markers", marker={"opacity": 0}, hoverinfo="skip", yaxis="y3")
    figure.data[-1].showlegend = False
    path, top = _tree(np.array(frame.attrs["linkage"]))
    figure.add_shape(type="path", path=path, xref="x", yref="y3", line={"width": 1})
    of = "" if decomposition is everything else f"the {most:,} of {len(everything.components):,} most diverse; "
    seen = {"disagreement": ""}.get(by, "raw; " if at == by else "centered over the options; ")
    figure.update_layout(
        template=style.template(),
        title={
            "text": title or suffixed(_TITLE[by], decomposition),
            "subtitle": {"text": f"{of}{seen}ordered by average linkage"},
        },
        height=height,
        margin={"t": 76, "b": 120},
        legend=style.LEGEND_BELOW,
        barmode="overlay",
        bargap=0,
        yaxis2={"domain": [0.79, 0.81], "visible": False, "fixedrange": True, "range": [0, 1]},
        yaxis3={"domain": [0.82, 1], "visible": False, "fixedrange": True, "range": [0, 1.03 * top]},
    )
    ticks = {"type": "category", "categoryorder": "array", "categoryarray": labels, "nticks": 44, "showgrid": False}
    ticks |= {"tickfont": {"size": 10}, "ticks": ""}
    edge = len(labels) - 0.5
    figure.update_layout(xaxis=ticks | {"tickangle": -90, "anchor": "y", "range": [-0.5, edge]})
    figure.update_layout(yaxis=ticks | {"domain": [0, 0.78], "range": [edge, -0.5]})
    return figure


def _tree(linkage: np.ndarray) -> tuple[str, float]:
    """The branches as one path, leaves at 0, 1, 2, …, and how high they go."""
    from scipy.cluster.hierarchy import dendrogram

    tree = dendrogram(linkage, no_plot=True)
    # scipy puts the leaves at 5, 15, 25, …
    links = [
        " L".join(f"{(x - 5) / 10:.4g},{y:.4g}" for x, y in zip(xs, ys, strict=True))
        for xs, ys in zip(tree["icoord"], tree["dcoord"], strict=True)
    ]
    return " ".join(f"M{link}" for link in links), float(np.max(tree["dcoord"])) or 1.0
