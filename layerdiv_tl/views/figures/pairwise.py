"""Maps of pairs of components, ordered by the clustering drawn above them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...components import component_columns
from ...ensemble.decomposition import Decomposition, Part
from .. import axes, kit, layout, style
from .ensemble import column_of

if TYPE_CHECKING:
    from ...attribution.redundancy import Redundancy

By = Literal["cosine", "distance", "disagreement"]
_TITLES = {
    "cosine": "Cosine similarity of contributions",
    "distance": "Squared distance of contributions",
    "disagreement": "Disagreement rate",
}


def pairwise_map(
    decomposition: Decomposition, by: By = "cosine", part: Part = "centered", max_components: int = 400
) -> go.Figure:
    """Draw a matrix component × component of one number of `pairwise`, with the clustering that orders it above.

    `by` and `part` choose the number, which also defines the clustering; "disagreement" has no parts, and none has a
    shift. At most `max_components` are shown, those with the largest centered diversity. The row under the tree shows
    each component's module; branches meet at the mean distance of their members (1 − cosine for "cosine"). Raises
    InputError for a single component, and for more than 1000.
    """
    count, remark = len(decomposition.components), ""
    if count > max_components:
        half = decomposition.halves.get("centered", decomposition)
        kept = kit.top(half.diversities.mean(0), max_components)
        components = tuple(decomposition.components[i] for i in kept)
        decomposition = replace(decomposition, values=decomposition.values[:, kept], components=components)
        remark = f"the {max_components:,} of {count:,} most diverse; "
    frame = decomposition.pairwise(by)
    name = column_of(frame, by, part)
    order: list[str] = frame.attrs["order"]
    place = {label: i for i, label in enumerate(order)}
    one, other = (frame[side].map(place).to_numpy() for side in ("component", "other"))
    # The diagonal is empty: a component is not paired with itself.
    cells = np.full((len(order), len(order)), np.nan)
    ends = np.full((len(order), len(order), 2), np.nan, dtype=np.float32)
    cells[one, other] = cells[other, one] = frame[name]
    ends[one, other] = ends[other, one] = frame[[f"{name}_low", f"{name}_high"]]
    unit = frame.attrs["units"][name]
    template = f"<b>%{{y}}</b> and <b>%{{x}}</b><br>%{{z:.3g}} {unit}"
    template += "<br>95 % [%{customdata[0]:.3g}, %{customdata[1]:.3g}]" if np.isfinite(ends).any() else ""
    look: dict[str, Any] = {"x": order, "y": order, "customdata": ends, "hovertemplate": f"{template}<extra></extra>"}
    limit = kit.robust_limit(cells, 1.0) if by == "distance" else 1.0
    bar = {"len": 0.78, "y": 0.39}
    figure = go.Figure(
        kit.heat(cells.astype(np.float32), None, unit, limit, signed=by == "cosine", colorbar=bar, **look)
    )
    members = pd.DataFrame(component_columns(decomposition.components))
    labels = members["component"].to_numpy()
    strip: dict[str, Any] = {"shape": "bars", "width": 1.0, "yaxis": "y2"}
    figure.add_traces(kit.by_module(members, labels, np.ones(len(labels)), labels, **strip))
    # An axis exists only if a trace uses it; the tree is a shape, since traces cannot be placed between categories.
    hidden: dict[str, Any] = {"marker": {"opacity": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=order[:1], y=[0], yaxis="y3", mode="markers", **hidden)
    path, top = _tree(np.array(frame.attrs["linkage"]))
    figure.add_shape(type="path", path=path, xref="x", yref="y3", line={"width": 1})
    first = kit.most(frame, name, 1 if by == "cosine" else -1)
    centered = {"disagreement": ""}.get(by, "raw; " if name == by else "centered over the options; ")
    ticks = {"type": "category", "categoryorder": "array", "categoryarray": order, "nticks": 24, "showgrid": False}
    bare = {"visible": False, "fixedrange": True}
    return layout.finish(
        figure,
        f"{_TITLES[by]}: most alike are {first['component']} and {first['other']} ({style.number(first[name])})",
        f"{remark}{centered}ordered by average linkage",
        plot=560,
        below=40,
        barmode="overlay",
        bargap=0,
        xaxis=ticks | {"tickangle": -90, "anchor": "y", "range": [-0.5, len(order) - 0.5]},
        yaxis=ticks | {"domain": [0, 0.78], "range": [len(order) - 0.5, -0.5]},
        yaxis2=bare | {"domain": [0.79, 0.81], "range": [0, 1]},
        yaxis3=bare | {"domain": [0.82, 1], "range": [0, 1.03 * top]},
    )


def _tree(linkage: np.ndarray) -> tuple[str, float]:
    """Return the branches as one path with leaves at 0, 1, 2, …, and their maximal height."""
    from scipy.cluster.hierarchy import dendrogram

    tree = dendrogram(linkage, no_plot=True)
    # scipy places leaves at 5, 15, 25, …
    links = [
        " L".join(f"{(x - 5) / 10:.4g},{y:.4g}" for x, y in zip(xs, ys, strict=True))
        for xs, ys in zip(tree["icoord"], tree["dcoord"], strict=True)
    ]
    return " ".join(f"M{link}" for link in links), float(np.max(tree["dcoord"])) or 1.0


def redundancy_scatter(redundancy: Redundancy) -> go.Figure:
    """Draw how well the others predict every component, held-out R², against its cosine with the nearest one.

    Larger marks vary more over rows. A component high on the left is predicted by several others together and similar
    to none; one low on the right has the direction of another, but varies on its own. Marks below −0.5 are drawn there.
    """
    frame = _varying(redundancy)
    size = 5 + 17 * np.sqrt(frame["spread"].to_numpy() / frame["spread"].max())
    x, y = frame["cosine"].to_numpy(), np.maximum(frame["r2"].to_numpy(), _LOWEST)
    names = ["r2", "r2_permuted", "cosine", "spread", *["affinity"] * (redundancy.affinity is not None)]
    texts = kit.hover(frame, names, "nearest: " + frame["nearest"])
    ends = axes.linear_axis([*x, 1.0]), axes.linear_axis([*y, 0.0, 1.0])
    far = [frame["spread"].to_numpy()]
    labels = kit.extreme_names(frame["component"], x, y, ends, far, most=6, apart=(0.45, 0.08))
    figure = go.Figure([*kit.by_module(frame, x, y, texts, marker={"size": size, "opacity": 0.75}), labels])
    figure.add_hline(y=0, line=kit.DOTTED)
    x_axis, y_axis = ends[0] | {"title_text": "cosine with the nearest component"}, ends[1] | {"title_text": _R2}
    title, about = _headings(redundancy, frame)
    about += " Larger marks vary more over rows."
    if below := int((frame["r2"] < _LOWEST).sum()):
        about += f" {below} below {_LOWEST} are drawn there.".replace("-", "−")
    return layout.finish(figure, title, about, x=x_axis, y=y_axis, plot=440, hovermode="closest")


def redundancy_by_depth(redundancy: Redundancy) -> go.Figure:
    """Draw held-out R² of every component along depth, and below it R² with the others' rows permuted."""
    frame = _varying(redundancy)
    columns = {"r2": _R2, "r2_permuted": f"rows permuted {frame.attrs['permuted']}"}
    return kit.component_bars(frame, columns, *_headings(redundancy, frame))


_R2, _LOWEST = "held-out R² of the prediction from all others", -0.5


def _varying(redundancy: Redundancy) -> pd.DataFrame:
    """Return the rows of the components that vary over rows."""
    frame = redundancy.frame()
    kept = frame[frame["r2"].notna()].reset_index(drop=True)
    kept.attrs = frame.attrs
    return kept


def _headings(redundancy: Redundancy, frame: pd.DataFrame) -> tuple[str, str]:
    """Return a figure's title and subtitle."""
    most = kit.most(frame, "spread")
    title = f"The others predict {most['r2']:.0%} of the variance of {most['component']}, which varies most"
    how = f"permuted {frame.attrs['permuted']}, {most['r2_permuted']:.0%}"
    about = f"{redundancy.model}: {len(redundancy.error)} rows; ridge on held-out rows. With the others' rows {how}."
    return title, about
