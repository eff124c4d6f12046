"""Maps of pairs of components."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...components import component_columns
from ...ensemble.decomposition import Decomposition
from .. import kit, layout, style
from .ensemble import rows_note

By = Literal["cosine", "distance", "disagreement"]
_TITLES = {
    "cosine": "Cosine similarity",
    "distance": "Squared distance",
    "disagreement": "Disagreement rate",
}
_NAMED = 40


def pairwise_map(decomposition: Decomposition, by: By = "cosine", max_components: int = 400) -> go.Figure:
    """Draw a matrix component × component of one number of `pairwise`, with similar components next to each other.

    At most `max_components` are shown, those with the largest diversity. The strip has the colors of their modules; the
    diagonal is empty. Raises InputError for a single component, and for more than 1000.
    """
    count, remark = len(decomposition.components), ""
    if count > max_components:
        kept = kit.top(decomposition.diversities.mean(0), max_components)
        components = tuple(decomposition.components[i] for i in kept)
        decomposition = replace(decomposition, values=decomposition.values[:, kept], components=components)
        remark = f"The {max_components:,} of {count:,} with the largest diversity. "
    frame = decomposition.pairwise(by)
    order = list[str](frame.attrs["order"])
    one, other = (pd.Index(order).get_indexer(pd.Index(frame[side])) for side in ("component", "other"))
    cells, ends = (np.full((len(order), len(order), *more), np.nan, dtype=np.float32) for more in ((), (2,)))
    cells[one, other] = cells[other, one] = frame[by]
    ends[one, other] = ends[other, one] = frame[[f"{by}_low", f"{by}_high"]]
    unit = frame.attrs["units"][by]
    template = "<b>%{y}</b> and <b>%{x}</b><br>%{z:.2g}" + f" {unit}" * (unit not in style.BARE)
    template += "<br>95 % (%{customdata[0]:.2g} to %{customdata[1]:.2g})" if np.isfinite(ends).any() else ""
    look: dict[str, Any] = {"x": order, "y": order, "customdata": ends, "hovertemplate": f"{template}<extra></extra>"}
    limit = kit.robust_limit(frame[by], 1.0) if by == "distance" else 1.0
    figure = go.Figure(kit.heat(cells, None, unit, limit, signed=by == "cosine", **look))
    members = pd.DataFrame(component_columns(decomposition.components))
    labels, strip = members["component"].to_numpy(), {"shape": "bars", "width": 1.0, "yaxis": "y2"}
    figure.add_traces(kit.by_module(members, labels, np.ones(len(labels)), labels, **strip))
    ticks = {"type": "category", "categoryorder": "array", "categoryarray": order, "showgrid": False}
    # All names where they fit, in small print.
    ticks |= {"dtick": 1, "tickfont": {"size": 10}} if len(order) <= _NAMED else {"nticks": 24}
    gauge = f", {decomposition.gauge}" * (by != "disagreement")
    return layout.finish(
        figure,
        f"{_TITLES[by]} of components{gauge}",
        f"{rows_note(decomposition)} {remark}Similar components are neighbors.",
        plot=520,
        below=40,
        barmode="overlay",
        bargap=0,
        xaxis=ticks | {"tickangle": -90, "anchor": "y", "range": [-0.5, len(order) - 0.5]},
        yaxis=ticks | {"domain": [0, 0.96], "range": [len(order) - 0.5, -0.5]},
        yaxis2={"visible": False, "fixedrange": True, "domain": [0.97, 1], "range": [0, 1]},
    )
