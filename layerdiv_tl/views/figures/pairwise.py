"""Which components contribute the same: a matrix of all pairs, in the order of a clustering."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.decomposition import Decomposition, Part
from ..plotting import arrange, heat_map, module_strip, robust_limit
from .gauge import column, largest, part_shown, suffixed

_TITLE = {
    "cosine": "How alike the components' contributions are: cosine",
    "distance": "How far the components' contributions are apart: squared distance",
    "disagreement": "How often the components prefer different options",
}


@figure_of("pairwise", "Decomposition")
def pairwise_map(
    decomposition: Decomposition,
    by: Literal["cosine", "distance", "disagreement"] = "cosine",
    part: Part = "centered",
    max_components: int = 400,
    title: str | None = None,
    height: int = 900,
) -> go.Figure:
    """A matrix component × component of one number of `pairwise`, with the clustering that orders it above.

    by, part
        The number, by which the components are clustered too, and whether it is raw or centered over the options;
        "disagreement" has no parts, and none has a shift.
    max_components
        Of more components those with the largest (centered) diversity are shown, and the title says so.

    Under the tree stands each component's module; two branches meet at the mean distance of their members
    (1 − cosine for "cosine"). Raises InputError for an unknown `by` or part, for one component, and for
    more than 1000 of them.
    """
    part_shown(part)
    count, remark = len(decomposition.components), ""
    if count > max_components:
        half = decomposition.halves.get("centered", decomposition)
        kept = largest(half.diversities.mean(0), max_components)
        components = tuple(decomposition.components[i] for i in kept)
        decomposition = replace(decomposition, values=decomposition.values[:, kept], components=components)
        remark = f"the {max_components:,} of {count:,} most diverse; "
    frame = decomposition.pairwise(by)
    name = column(frame, by, part)
    order: list[str] = frame.attrs["order"]
    position = {label: i for i, label in enumerate(order)}
    one, other = (frame[side].map(position).to_numpy() for side in ("component", "other"))
    # The diagonal stays empty: a component makes no pair with itself.
    cells = np.full((len(order), len(order)), np.nan)
    ends = np.full((len(order), len(order), 2), np.nan, dtype=np.float32)
    cells[one, other] = cells[other, one] = frame[name]
    ends[one, other] = ends[other, one] = frame[[f"{name}_low", f"{name}_high"]]
    labels, unit = [html.escape(label) for label in order], frame.attrs["units"][name]
    hover = f"<b>%{{y}}</b> and <b>%{{x}}</b><br>{name.replace('_', ', ')} %{{z:.3g}}"
    hover += "" if unit == by else f" {unit}"
    hover += "<br>95 % [%{customdata[0]:.3g}, %{customdata[1]:.3g}]" if np.isfinite(ends).any() else ""
    figure = go.Figure(
        heat_map(
            cells.astype(np.float32),
            None,
            unit,
            robust_limit(cells, 1.0) if by == "distance" else 1.0,
            signed=by == "cosine",
            x=labels,
            y=labels,
            customdata=ends,
            hovertemplate=f"{hover}<extra></extra>",
            colorbar={"len": 0.78, "y": 0.39},
        )
    )
    for strip in module_strip(decomposition.components, 1.0, yaxis="y2"):
        figure.add_trace(strip.update(x=strip.hovertext))
    # An axis exists where a trace needs it; the tree is a shape, since no trace can stand between two categories.
    invisible = {"mode": "markers", "marker": {"opacity": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=labels[:1], y=[0], yaxis="y3", **invisible)
    path, top = _tree(np.array(frame.attrs["linkage"]))
    figure.add_shape(type="path", path=path, xref="x", yref="y3", line={"width": 1})
    gauge = {"disagreement": ""}.get(by, "raw; " if name == by else "centered over the options; ")
    arrange(
        figure,
        title or suffixed(_TITLE[by], decomposition),
        f"{remark}{gauge}ordered by average linkage",
        height=height,
        below=120,
    )
    ticks = {"type": "category", "categoryorder": "array", "categoryarray": labels, "nticks": 44, "showgrid": False}
    ticks |= {"tickfont": {"size": 10}, "ticks": ""}
    edge, hidden = len(labels) - 0.5, {"visible": False, "fixedrange": True}
    return figure.update_layout(
        barmode="overlay",
        bargap=0,
        xaxis=ticks | {"tickangle": -90, "anchor": "y", "range": [-0.5, edge]},
        yaxis=ticks | {"domain": [0, 0.78], "range": [edge, -0.5]},
        yaxis2=hidden | {"domain": [0.79, 0.81], "range": [0, 1]},
        yaxis3=hidden | {"domain": [0.82, 1], "range": [0, 1.03 * top]},
    )


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
