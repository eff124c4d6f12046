"""Maps of pairs of components, ordered by the clustering drawn above them, and their redundancy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...components import component_columns
from ...ensemble.decomposition import Decomposition, Gauge
from ...ensemble.intervals import ENDS
from .. import axes, kit, layout, style
from ..names import extreme_names
from .ensemble import column_of

if TYPE_CHECKING:
    from ...attribution.redundancy import Redundancy

By = Literal["cosine", "distance", "disagreement"]
_TITLES = {
    "cosine": "Cosine similarity",
    "distance": "Squared distance",
    "disagreement": "Disagreement rate",
}
_NAMED = 40
_R2, _LOWEST = "held-out R² of the prediction from all others", -0.5


def pairwise_map(
    decomposition: Decomposition, by: By = "cosine", part: Gauge = "centered", max_components: int = 400
) -> go.Figure:
    """Draw a matrix component × component of one number of `pairwise`, with the clustering that orders it above.

    `by` and `part` choose the number; "disagreement" has no parts. At most `max_components` are shown, those with the
    largest centered diversity. Branches meet at the mean distance of their members (1 − cosine for "cosine"). Raises
    InputError for a single component, and for more than 1000.
    """
    count, remark, among = len(decomposition.components), "", ""
    if count > max_components:
        gauge = decomposition.gauges.get("centered", decomposition)
        kept = kit.top(gauge.diversities.mean(0), max_components)
        components = tuple(decomposition.components[i] for i in kept)
        decomposition = replace(decomposition, values=decomposition.values[:, kept], components=components)
        remark, among = (
            f"The {max_components:,} of {count:,} most diverse members. ",
            f"of the {max_components:,} most diverse, ",
        )
    frame = decomposition.pairwise(by)
    name, order = column_of(frame, by, part), list[str](frame.attrs["order"])
    one, other = (pd.Index(order).get_indexer(pd.Index(frame[side])) for side in ("component", "other"))
    # The diagonal is empty: a component is not paired with itself.
    cells, ends = (np.full((len(order), len(order), *more), np.nan, dtype=np.float32) for more in ((), (2,)))
    cells[one, other] = cells[other, one] = frame[name]
    ends[one, other] = ends[other, one] = frame[[f"{name}_low", f"{name}_high"]]
    unit = frame.attrs["units"][name]
    template = "<b>%{y}</b> and <b>%{x}</b><br>%{z:.2g}" + f" {unit}" * (unit not in style.BARE)
    template += "<br>95 % (%{customdata[0]:.2g} to %{customdata[1]:.2g})" if np.isfinite(ends).any() else ""
    look: dict[str, Any] = {"x": order, "y": order, "customdata": ends, "hovertemplate": f"{template}<extra></extra>"}
    limit, bar = kit.robust_limit(frame[name], 1.0) if by == "distance" else 1.0, {"len": 0.78, "y": 0.39}
    figure = go.Figure(kit.heat(cells, None, unit, limit, signed=by == "cosine", colorbar=bar, **look))
    members = pd.DataFrame(component_columns(decomposition.components))
    labels, strip = members["component"].to_numpy(), {"shape": "bars", "width": 1.0, "yaxis": "y2"}
    figure.add_traces(kit.by_module(members, labels, np.ones(len(labels)), labels, **strip))
    # An axis exists only if a trace uses it; the tree is a shape, since traces cannot be placed between categories.
    hidden: dict[str, Any] = {"marker": {"opacity": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=order[:1], y=[0], yaxis="y3", mode="markers", **hidden)
    path, top = _tree(np.array(frame.attrs["linkage"]))
    figure.add_shape(type="path", path=path, xref="x", yref="y3", line={"width": 1})
    sign = 1 if by == "cosine" else -1  # of distances the smallest
    first = kit.most(frame, name, sign)
    size = style.estimate(*(first.get(f"{name}{end}", np.nan) for end in ENDS), gap=", ").replace("(", "").strip(")")
    title = f"{_TITLES[by]}: {among}most alike are {first['component']} and {first['other']} ({size})"
    near = kit.rival(frame, first, name, "{component} and {other}", sign=sign, alike="alike")
    title += near.replace(" others may", " other pairs may")
    centered = {"disagreement": "Predictions"}.get(by, f"{'Raw' if name == by else 'Centered'} contributions")
    ticks = {"type": "category", "categoryorder": "array", "categoryarray": order, "showgrid": False}
    # All names where they fit, in small print.
    ticks |= {"dtick": 1, "tickfont": {"size": 10}} if len(order) <= _NAMED else {"nticks": 24}
    bare = {"visible": False, "fixedrange": True}
    return layout.finish(
        figure,
        title,
        f"{remark}{centered}, {style.count(len(decomposition.values), 'row')}, ordered by the clustering above "
        "(average linkage). Strip: the color of each component's module. The diagonal is empty.",
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
    branches = np.stack([(np.array(tree["icoord"]) - 5) / 10, tree["dcoord"]], -1)
    path = " ".join("M" + " L".join(f"{x:.4g},{y:.4g}" for x, y in branch) for branch in branches)
    return path, float(branches[..., 1].max()) or 1.0


def redundancy_scatter(redundancy: Redundancy) -> go.Figure:
    """Draw how well the others predict every component, held-out R², against its cosine with the nearest one.

    A component high on the left is predicted by several others together and similar to none; one low on the right has
    the direction of another, but varies on its own.
    """
    frame, title, about = _varying(redundancy)
    spread, x, y = frame["spread"].to_numpy(), frame["cosine"].to_numpy(), np.maximum(frame["r2"].to_numpy(), _LOWEST)
    columns = [name for name in ("r2", "r2_permuted", "cosine", "spread", "affinity") if name in frame]
    ends = axes.linear_axis([*x, 1.0]), axes.linear_axis([*y, 0.0, 1.0])
    labels = extreme_names(frame["component"], x, y, ends, [spread], most=6, always=kit.named_in(title, frame))
    marker = {"size": 5 + 17 * np.sqrt(spread / spread.max()), "opacity": 0.75}
    marks = kit.by_module(frame, x, y, kit.hover(frame, columns, "nearest: " + frame["nearest"]), marker=marker)
    x_axis, y_axis = ends[0] | {"title_text": "cosine with the nearest component"}, ends[1] | {"title_text": _R2}
    about += " Larger marks vary more over rows. Names: those of the title, and of large marks."
    if below := int((frame["r2"] < _LOWEST).sum()):
        about += f" {below} below −0.5 are drawn there."
    figure = layout.finish([*marks, *labels], title, about, x=x_axis, y=y_axis, plot=440, hovermode="closest")
    return figure.add_hline(y=0, line=kit.DOTTED)


def redundancy_by_depth(redundancy: Redundancy) -> go.Figure:
    """Draw held-out R² of every component along depth, and below it R² with the others' rows permuted."""
    frame, title, about = _varying(redundancy)
    columns = {"r2": _R2, "r2_permuted": f"rows permuted {frame.attrs['permuted']}"}
    return kit.component_bars(frame, columns, title, about)


def _varying(redundancy: Redundancy) -> tuple[pd.DataFrame, str, str]:
    """Return the rows of the components that vary over rows, and a figure's title and subtitle."""
    frame = redundancy.frame()
    attrs, frame = frame.attrs, frame[frame["r2"].notna()].reset_index(drop=True)
    frame.attrs, most = attrs, kit.most(frame, "spread")
    low, high = (100 * most.get(f"r2_{end}", np.nan) for end in ("low", "high"))
    ends = style.interval(low, high, ".0f", none="")
    title = f"The others predict {style.percent(most['r2'])} {ends}".rstrip()
    title += f" of the variance of {most['component']}, which varies most"
    if most.get("r2_low", np.nan) <= 0:
        title = f"The others do not clearly predict {most['component']}, which varies most: R² "
        title += style.estimate(most["r2"], most["r2_low"], most["r2_high"])
    elif most.get("r2_gain_low", np.nan) <= 0:
        title += f"; {'the label' if attrs['permuted'] == 'within labels' else 'chance'} alone may predict as much"
    clear = frame[frame["r2_low"] > 0] if "r2_low" in frame else frame[:0]
    if len(clear) and (best := kit.most(clear, "r2"))["component"] != most["component"]:
        r2 = style.estimate(best["r2"], best["r2_low"], best["r2_high"])
        title += f"; best predicted is {best['component']}, R² {r2}"
        title += kit.rival(frame, best, "r2", "{component}", sign=1, alike="well predicted")
    about = f"{redundancy.model}: {style.count(len(redundancy.error), 'row')}; ridge on held-out rows. "
    about += "If the others' rows are permuted "
    return (
        frame,
        title,
        f"{about}{attrs['permuted']}, the R² of {most['component']} is {style.number(most['r2_permuted'])}.",
    )
