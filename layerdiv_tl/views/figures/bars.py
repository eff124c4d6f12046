"""Bias, diversity and net of every component, along depth."""

from __future__ import annotations

from itertools import chain
from typing import Any

import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.decomposition import TERMS, Decomposition, Part
from ..plotting import DOTTED, arrange, buttons, changes, component_axis, module_bars, panels
from .gauge import MEANING, Measured, column, half_of, hovers, most_diverse, part_shown, parts_in, suffixed

_TITLE = {"bias": "Bias", "diversity": "Diversity", "net": "Net = bias − diversity"}
# Above this many bars the whiskers are a gray smear, and whiskers this many times the tallest bar, those of a handful
# of examples, would make the bars small: the intervals are in the hover only.
MAX_WHISKERS, _WIDEST = 150, 2


@figure_of("bars", "Decomposition", "CorpusProfile", default=True)
def component_bars(
    measured: Measured,
    part: Part = "centered",
    max_components: int = 1500,
    title: str | None = None,
    height: int = 720,
) -> go.Figure:
    """Three rows of bars (bias, diversity, net), one bar per component, colored by module.

    measured
        A decomposition, a corpus or a profile (means over its tokens).
    part
        What is shown first; for the squared error buttons switch between raw, centered and shift.
    max_components
        Of more components those with the largest diversity in `part` are shown, and the title says so.

    Whiskers are 95 % intervals over examples (texts, for a corpus). Values are a component's own, undivided by |L|, in
    the loss's unit. The dotted line is the bias of a zero contribution. Raises InputError for an unknown part.
    """
    frame, components, remark = most_diverse(measured, part_shown(part), max_components)
    parts = parts_in(frame)
    part = part_shown(part, parts)
    terms = [term for term in TERMS if term in frame]

    def draw(part: Part) -> list[list[go.Bar]]:
        rows = []
        for name in (column(frame, term, part) for term in terms):
            widest = (frame[f"{name}_high"] - frame[f"{name}_low"]).max()
            whisker = len(frame) <= MAX_WHISKERS and bool(widest <= _WIDEST * frame[name].abs().max())
            rows.append(module_bars(components, frame, name, hovers(frame, name), whisker=whisker))
        return rows

    def baseline(part: Part) -> dict[str, Any]:
        # The line's own text follows the headings of the rows.
        zero = half_of(measured, part).zero_bias if isinstance(measured, Decomposition) else None
        moved = ("shapes[0].y0", "shapes[0].y1", f"annotations[{len(terms)}].y")
        return {} if zero is None else dict.fromkeys(moved, zero)

    figure = panels(draw(part), [_TITLE[term] for term in terms])
    views = {MEANING[p]: (changes(chain(*draw(p)), "y", "hovertext", "error_y"), baseline(p)) for p in parts}
    arrange(
        figure,
        title or suffixed("Bias and diversity of every component", measured),
        remark,
        height=height,
        below=96,
        menus=buttons(views, parts.index(part)),
        headings=True,
    )
    for row, term in enumerate(terms, start=1):
        figure.update_yaxes(title_text=frame.attrs["units"][term], row=row, col=1)
    if isinstance(measured, Decomposition):
        text = {"annotation": {"text": measured.loss_function.baseline}, "annotation_position": "top left"}
        figure.add_hline(y=baseline(part)["shapes[0].y0"], row=1, col=1, line=DOTTED, **text)
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(**component_axis(components, grid=True), range=[-1, len(components)])
    return figure.update_xaxes(title_text="component, in stream order", row=len(terms), col=1)
