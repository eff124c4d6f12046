"""Figures of every result, by kind. Figures draw numbers; they compute none.

To add one, write its function in the file of its family, or in a new file here, and register it under a kind and the
names of the result classes that it draws; `views.plotting` has panels, traces, axes and buttons:

    @figure_of("dots", "Decomposition")
    def diversity_dots(decomposition: Decomposition, part: Part = "centered") -> go.Figure:
        frame = decomposition.by_component()
        ...
        return kit.arrange(figure, "Diversity of every component", plot=300)

`d.plot(kind="dots", part="raw")` draws it: kinds, options and what options take are read from the registry and the
function's signature. Nothing here imports torch: classes that need it are named as strings, or for type checkers only.
"""

from __future__ import annotations

import html
import importlib
import pkgutil
from typing import Any

import plotly.graph_objects as go

from ..._checks import choice, keywords, whole_number, with_article
from ..._registry import FIGURES
from ...errors import InputError
from ...results import Result
from .. import plotting as kit
from .. import style

for _family in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_family.name}")

# In pixels: plotly draws no less than its margins, and browsers no more.
HEIGHTS = (100, 20_000)


def figure(
    result: Result,
    *,
    kind: str | None = None,
    title: str | None = None,
    height: int | None = None,
    dark: bool | None = None,
    **options: Any,
) -> go.Figure:
    """A figure of a result: what `result.plot(kind=…, **options)` returns.

    `dark` True is for a dark page, False for a light one. None is read on both: nothing is painted behind it, so that
    it follows the theme of JupyterLab, VS Code or a page.

    `kind` None is the result's default figure, `title` and `height` (in pixels) None are the figure's own; other
    options are those of the kind's function, and are checked against its annotations here, for all figures. Raises
    InputError for a kind or option that this result does not have, for a value that an option does not take, and for a
    result that has no figure.
    """
    kinds = next((FIGURES[cls.__name__] for cls in type(result).__mro__ if cls.__name__ in FIGURES), None)
    if kinds is None:
        raise InputError(f"{with_article(type(result).__name__)} has no figure of its own: plot one of its parts.")
    draw = kinds[choice("kind", next(iter(kinds)) if kind is None else kind, kinds)]
    keywords(figure, {"title": title, "dark": dark})
    keywords(draw, options, ("title", "height", "dark"))
    if height is not None:
        whole_number("height", height, *HEIGHTS)
    for name, value in options.items():
        if name.startswith("max_"):
            whole_number(name, value, 1)
    drawn = draw(result, **options)
    if note := getattr(result, "error_note", ""):  # of what a cut leaves out
        kit.remark(drawn, f"{note[0].upper()}{note[1:]}.")
    if title:
        drawn.update_layout(title_text=html.escape(title))
    if height is not None:
        drawn.update_layout(height=height)
    return drawn if dark is None else drawn.update_layout(template=style.template(style.DARK if dark else style.LIGHT))
