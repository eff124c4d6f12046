"""Whether the uses of one block do different things."""

from __future__ import annotations

import html

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...components import Component
from ...ensemble.decomposition import Decomposition, Part
from .. import style
from .axes import component_axis
from .gauge_controls import MEANING, checked, column, hover_lines, largest, parts_in, suffixed, whiskers
from .layout import arrange, between, buttons, whiskered, wrapped

_PANEL = 190
# Above this many bars the whiskers are a gray smear; the interval stays in the hover.
_WHISKERS = 150


def repeat_bars(
    decomposition: Decomposition, part: Part = "centered", most: int = 1500, title: str | None = None
) -> go.Figure:
    """Diversity, cosine and share of the whole diversity between the uses of every block (`by_repeat`).

    part
        Which part of diversity is shown first; for the squared error a menu changes between raw, centered and shift.
        Cosines are centered always.
    most
        Of more rows those with the largest diversity are shown, and the subtitle says so.

    Whiskers are 95 % intervals over examples. Raises InputError where no layer is used twice, for losses without a
    nested cut, and for an unknown part.
    """
    checked(part)
    frame = decomposition.by_repeat()
    # The cross-entropy has no diversity of the uses alone: there it is that beside the block's own distribution.
    term = "diversity" if "diversity" in frame else "within"
    parts = parts_in(frame, term)
    part = checked(part, parts)
    kept = largest(frame[column(frame, term, part)].to_numpy(), most)
    left = "" if len(kept) == len(frame) else f" The {len(kept):,} of {len(frame):,} with the largest."
    whole, attrs, frame = frame, frame.attrs, frame.iloc[kept]
    names = frame[["kind", "layer", "index"]].astype(object).replace({pd.NA: None})
    components = [Component(*name) for name in names.itertuples(index=False)]
    modules = np.array([c.module for c in components], dtype=object)
    panels = {
        term: "Diversity of the uses: how far apart they are",
        "cosine": "Mean cosine of two uses, centered over the options",
        "share": "Share of the whole diversity that lies between these uses",
    }
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.2 / len(panels),
        subplot_titles=[*panels.values()],
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")

    def bars(here: np.ndarray, term: str, part: Part) -> dict[str, object]:
        at = "cosine_centered" if term == "cosine" else column(frame, term, part)
        lines = hover_lines(frame[here], {at.replace("_", ", "): at})
        repeats = frame["repeats"][here]
        seen = whiskers(frame[here], at) | {"visible": True} if len(frame) <= _WHISKERS else {"visible": False}
        return {
            "y": frame[at].to_numpy()[here],
            "hovertext": [f"{line}<br>{n} uses" for line, n in zip(lines, repeats, strict=True)],
            "error_y": seen,
        }

    present = list(dict.fromkeys(modules))
    for row, name in enumerate(panels, start=1):
        for module in present:
            figure.add_bar(
                x=np.flatnonzero(modules == module),
                name=style.MODULE_NAME[module],
                legendgroup=module,
                showlegend=row == 1 and len(present) > 1,
                hoverinfo="text",
                width=0.8,
                marker={"color": style.MODULE[module], "line": {"width": 0}},
                row=row,
                col=1,
                **bars(modules == module, name, part),
            )
    unit = {term: attrs["units"][term], "cosine": "cosine", "share": "share"}
    for row, name in enumerate(panels, start=1):
        figure.update_yaxes(title_text=html.escape(unit[name]), row=row, col=1)
    figure.update_yaxes(tickformat=".1%", rangemode="tozero", row=len(panels), col=1)

    def said(part: Part) -> str:
        suffix = "" if part == "raw" else f"_{part}"
        share, low, high = (100 * attrs[f"share{suffix}{end}"] for end in ("", "_low", "_high"))
        of = f"the {part} diversity" if len(parts) > 1 else "the diversity"
        return (
            f"Between uses of one block lie {style.number(share)} % {between(low, high)} of {of}, the rest between "
            f"blocks. {whiskered(whole)}{left}"
        )

    entries = []
    for choice in parts:
        traces = [bars(modules == module, name, choice) for name in panels for module in present]
        update = {key: [trace[key] for trace in traces] for key in ("y", "hovertext", "error_y")}
        place = {"title.subtitle.text": wrapped(said(choice))}
        entries.append({"label": MEANING[choice], "method": "update", "args": [update, place]})
    arrange(
        figure,
        title or suffixed("Do the uses of one block do different things?", decomposition),
        said(part),
        plot=_PANEL * len(panels),
        below=96 if len(present) > 1 else 64,
        menus=[buttons(entries, parts.index(part))] if len(parts) > 1 else (),
        headings=True,
    )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(**component_axis(components), range=[-1, len(components)], showgrid=False, zeroline=False)
    return figure.update_xaxes(title_text="block, in the order of its first use", row=len(panels), col=1)
