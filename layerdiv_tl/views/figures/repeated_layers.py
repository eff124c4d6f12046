"""Whether the repeats of one block do different things."""

from __future__ import annotations

import html
from itertools import chain

import pandas as pd
import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from ...ensemble.decomposition import Decomposition, Part
from .. import style
from ..plotting import arrange, between, buttons, changes, component_axis, module_bars, panels, whiskered, wrapped
from .bars import MAX_WHISKERS
from .gauge import MEANING, column, hovers, largest, part_shown, parts_in, suffixed


@figure_of("repeats", "Decomposition")
def repeat_bars(
    decomposition: Decomposition, part: Part = "centered", max_components: int = 1500, title: str | None = None
) -> go.Figure:
    """Diversity, cosine and share of the whole diversity between the repeats of every block (`by_repeat`).

    part
        Which part of diversity is shown first; for the squared error a menu changes between raw, centered and shift.
        Cosines are centered always.
    max_components
        Of more rows those with the largest diversity are shown, and the subtitle says so.

    Whiskers are 95 % intervals over examples. Raises InputError where no layer is used twice, for losses without a
    nested cut, and for an unknown part.
    """
    part_shown(part)
    whole = decomposition.by_repeat()
    # The cross-entropy has no diversity of the repeats alone: there it is that within the block's own distribution.
    term = "diversity" if "diversity" in whole else "within"
    parts = parts_in(whole, term)
    part = part_shown(part, parts)
    kept = largest(whole[column(whole, term, part)].to_numpy(), max_components)
    frame = whole.iloc[kept]
    names = frame[["kind", "layer", "index"]].astype(object).replace({pd.NA: None})
    components = [Component(*name) for name in names.itertuples(index=False)]
    headings = {
        term: "Diversity of the uses: how far apart they are",
        "cosine": "Mean cosine of two uses, centered over the options",
        "share": "Share of the whole diversity that lies between these uses",
    }

    def draw(part: Part) -> list[list[go.Bar]]:
        columns = [column(frame, term, part), "cosine_centered", column(frame, "share", part)]
        counts = "<br>" + frame["repeats"].astype(str).to_numpy(dtype=object) + " uses"
        whisker = len(frame) <= MAX_WHISKERS
        return [module_bars(components, frame, c, hovers(frame, c) + counts, whisker=whisker) for c in columns]

    def subtitle(part: Part) -> str:
        suffix = "" if part == "raw" else f"_{part}"
        share, low, high = (100 * whole.attrs[f"share{suffix}{end}"] for end in ("", "_low", "_high"))
        return (
            f"Between uses of one block lie {style.number(share)} % {between(low, high)} of the "
            f"{f'{part} ' if len(parts) > 1 else ''}diversity, the rest between blocks. {whiskered(whole)}"
            + ("" if len(kept) == len(whole) else f" The {len(kept):,} of {len(whole):,} with the largest.")
        )

    figure = panels(draw(part), list(headings.values()))
    views = {
        MEANING[p]: (
            changes(chain(*draw(p)), "y", "hovertext", "error_y"),
            {"title.subtitle.text": wrapped(subtitle(p))},
        )
        for p in parts
    }
    arrange(
        figure,
        title or suffixed("Do the uses of one block do different things?", decomposition),
        subtitle(part),
        plot=190 * len(headings),
        below=96,
        menus=buttons(views, parts.index(part)),
        headings=True,
    )
    for row, unit in enumerate((whole.attrs["units"][term], "cosine", "share"), start=1):
        figure.update_yaxes(title_text=html.escape(unit), row=row, col=1)
    figure.update_yaxes(tickformat=".1%", rangemode="tozero", row=3, col=1)
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(**component_axis(components), range=[-1, len(components)])
    return figure.update_xaxes(title_text="block, in the order of its first use", row=3, col=1)
