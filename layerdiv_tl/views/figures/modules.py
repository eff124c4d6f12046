"""How much of bias and of diversity each module holds, next to its number of components."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.decomposition import Decomposition, Part
from .. import style
from ..plotting import arrange, bar, cell, error_bars, hover_lines, panels
from .gauge import suffixed

_TERMS = ("bias", "diversity")
_PANELS: dict[Part, str] = {"raw": "Raw: as in the paper", "centered": "Centered: what softmax sees"}


@figure_of("modules", "Decomposition")
def module_shares(decomposition: Decomposition, title: str | None = None, height: int = 460) -> go.Figure:
    """Each module's share of bias and of diversity, raw and centered side by side (Fig. 4).

    The line across a bar is the module's share of components, n_g/|L|: what it would hold if its members
    were like all others. Whiskers are 95 % intervals over examples.
    """
    frame = decomposition.by_module()
    frame.insert(0, "component", [style.MODULE_NAME[module] for module in frame["module"]])
    parts = [part for part in _PANELS if part == "raw" or f"bias_share_{part}" in frame]
    width = 0.8 / len(frame)
    contents: list[list[go.Bar]] = []
    expected = []
    for part in parts:
        columns = [f"{term}_share" + ("" if part == "raw" else f"_{part}") for term in _TERMS]
        hover = np.array([hover_lines(frame, {f"share of {t}": c}) for t, c in zip(_TERMS, columns, strict=True)])
        values, low, high = (frame[[name + end for name in columns]].to_numpy() for end in ("", "_low", "_high"))
        traces = []
        for number, row in enumerate(frame.to_dict("records")):
            x = np.arange(len(_TERMS)) + (number - (len(frame) - 1) / 2) * width
            remark = f"<br>share of components {style.number(row['member_share'])}"
            traces.append(
                bar(
                    x,
                    values[number],
                    style.MODULE[row["module"]],
                    width=0.92 * width,
                    error=error_bars(values[number], low[number], high[number]),
                    name=f"{row['component']} ({int(row['members']):,})",
                    legendgroup=row["module"],
                    hover=hover[:, number] + remark,
                )
            )
            expected += [(len(contents), middle, row["member_share"]) for middle in x]
        contents.append(traces)
    headings = [_PANELS[part] for part in parts] if len(parts) > 1 else []
    figure = panels(contents, headings, columns=len(parts), across=0.06, shared_xaxes=False)
    for panel, middle, share in expected:
        ends = {"x0": middle - width / 2, "x1": middle + width / 2, "y0": share, "y1": share}
        figure.add_shape(type="line", line={"width": 2.5}, **ends, **cell(panel, len(parts)))
    arrange(
        figure,
        title or suffixed("Each module's share of bias and of diversity", decomposition),
        "the line across a bar: the module's share of components, n_g/|L|",
        height=height,
        below=84,
        headings=bool(headings),
    )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(tickmode="array", tickvals=np.arange(len(_TERMS)), ticktext=_TERMS, showgrid=False)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure.update_yaxes(title_text="share of the ensemble's", col=1)
