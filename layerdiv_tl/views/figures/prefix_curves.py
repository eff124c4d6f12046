"""Prefix ensembles: bias and diversity of all components before a junction."""

from __future__ import annotations

from itertools import chain

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.decomposition import Decomposition, NormAt, Part
from .. import style
from ..plotting import DOTTED, arrange, band, buttons, by_module, changes, component_axis, dots, line, panels
from .gauge import MEANING, column, hovers, part_shown, parts_in, suffixed

_TITLE = {
    "accuracy": "Accuracy",
    "loss": "Loss",
    "bias": "Bias",
    "diversity": "Diversity",
    "diversity_logit": "|L|² × diversity: as if every prefix had the same number of members",
}
_NORM = {
    "frozen": "read out with the whole stream's norm",
    "recomputed": "read out with each junction's own norm",
}


@figure_of("depth", "Decomposition")
def depth_curves(
    decomposition: Decomposition,
    part: Part = "centered",
    norm: NormAt = "frozen",
    size_fair: bool = False,
    title: str | None = None,
    height: int | None = None,
) -> go.Figure:
    """Accuracy (with labels), loss, bias and diversity of the prefix ensemble at every junction (Fig. 5 and 7).

    part, size_fair
        What is shown first; buttons switch between the parts there are, and to |L|² × diversity, which does not
        fall merely because later prefixes have more members (MATHS 1).
    norm
        "frozen" or "recomputed", as in `by_depth`.

    Bands are 95 % intervals over examples. Marks have the color of the module that closes the junction; open
    marks are partial sums, which the stream never holds. Raises InputError for an unknown part or norm.
    """
    part_shown(part)
    frame = decomposition.by_depth(norm)
    parts = parts_in(frame, "diversity")
    part = part_shown(part, parts)
    by_label = {c.label: c for c in decomposition.junctions or decomposition.components}
    components = [by_label[label] for label in frame["component"]]
    terms = [term for term in ("accuracy", "loss", "bias", "diversity") if term in frame]
    fair = [False, True] if "diversity_logit" in frame else [False]
    views = [(p, f) for f in fair for p in parts if not (f and p == "shift")]
    first = (part, size_fair and True in fair and part != "shift")
    partial = frame["partial"].to_numpy(dtype=bool)
    steps = np.arange(len(frame))

    def draw(part: Part, fair: bool) -> list[list[go.Scatter]]:
        """Of every term the band, the curve, and the marks of every module."""
        rows = []
        for term in terms:
            name = column(frame, "diversity_logit" if fair and term == "diversity" else term, part)
            value = frame[name].to_numpy(dtype=float)
            hover = hovers(frame, name) + np.where(partial, "<br>partial: the stream never holds this sum", "")
            traces = [
                band(steps, frame[f"{name}_low"], frame[f"{name}_high"]),
                line(steps, value, style.NEUTRAL, marks=0, hoverinfo="skip"),
            ]
            for module, positions in by_module(components):
                for half, symbol, suffix in ((False, "circle", ""), (True, "circle-open", ", partial sum")):
                    at = positions[partial[positions] == half]
                    label = {"name": style.MODULE_NAME[module] + suffix, "hover": hover[at]}
                    if len(at):
                        traces.append(dots(at, value[at], style.MODULE[module], size=7, symbol=symbol, **label))
            rows.append(traces)
        return rows

    exact = " = bias − diversity" if decomposition.gap is not None else ""
    headings = [_TITLE[term] + exact * (term == "loss") for term in terms]
    figure = panels(draw(*first), headings)
    choices = {}
    for p, f in views:
        label = (MEANING[p].partition(":")[0] if len(fair) > 1 else MEANING[p]) + (", |L|² × diversity" if f else "")
        heading = {f"annotations[{len(terms) - 1}].text": _TITLE["diversity_logit" if f else "diversity"]}
        choices[label] = (changes(chain(*draw(p, f)), "y", "hovertext"), heading)
    figure.layout.annotations[len(terms) - 1].text = _TITLE["diversity_logit" if first[1] else "diversity"]
    arrange(
        figure,
        title or suffixed("Prefix ensembles along depth", decomposition),
        f"all components before a junction, {_NORM[norm]}",
        height=height or 250 + 170 * len(terms),
        below=96,
        menus=buttons(choices, views.index(first)),
        headings=True,
    )
    for row, term in enumerate(terms, start=1):
        figure.update_yaxes(title_text=frame.attrs["units"][term], row=row, col=1)
    if "accuracy" in terms:
        options = decomposition.values.shape[2]
        text = {"annotation": {"text": f"one option in {options}"}, "annotation_position": "bottom left"}
        figure.add_hline(y=1 / options, row=1, col=1, line=DOTTED, **text)
    figure.update_xaxes(**component_axis(components, grid=True), range=[-0.5, len(frame) - 0.5])
    return figure.update_xaxes(title_text="junction: the last component written", row=len(terms), col=1)
