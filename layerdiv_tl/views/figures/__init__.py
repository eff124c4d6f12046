"""Figures of every result, by kind. Figures draw numbers; they compute none.

To add one, write its function in the file of its subject and name it in the result class twice: in `figures`, which
`plot` reads (`"shares": "ensemble.module_shares"`), and in the `Literal` of its `plot`, which editors read. Its options
are checked against the function's annotations. `views.kit` has bars, marks, lines and heat maps of a frame. Nothing
here imports torch at run time.
"""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from ..._checks import choice, keywords, whole_number, with_article
from ...errors import InputError
from ...results import Result
from .. import layout, style

# Height in pixels: plotly needs at least its margins, and browsers limit the maximum.
HEIGHTS = (100, 20_000)


def function_of(cls: type[Result], kind: str) -> Callable[..., go.Figure]:
    """Return the function that draws a kind of figure of a result class."""
    module, _, name = cls.figures[kind].partition(".")
    function: Callable[..., go.Figure] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return function


def figure(
    result: Result,
    kind: str | None = None,
    *,
    title: str | None = None,
    height: int | None = None,
    dark: bool | None = None,
    **options: Any,
) -> go.Figure:
    """Draw a result; `result.plot(kind=…, **options)` calls this.

    `dark` True is for a dark page, False for a light one. None suits both: the background is transparent, so that the
    figure follows the theme of JupyterLab, VS Code or a page. `kind` None is the result's first kind; `title` and
    `height` (in pixels) None are the figure's own. Other options are those of the kind's function.

    Raises InputError for a kind or option that this result does not have, for an invalid value of an option, and for a
    result without figures.
    """
    kinds = type(result).figures
    if not kinds:
        raise InputError(f"{with_article(type(result).__name__)} has no figure of its own: plot one of its parts.")
    draw = function_of(type(result), choice("kind", next(iter(kinds)) if kind is None else kind, kinds))
    keywords(figure, {"title": title, "dark": dark})
    keywords(draw, options, ("title", "height", "dark"))
    if height is not None:
        whole_number("height", height, *HEIGHTS)
    for name, value in options.items():
        if name.startswith("max_"):
            whole_number(name, value, 1)
    drawn = draw(result, **options)
    told = f"{title or drawn.layout.title.text} {drawn.layout.title.subtitle.text}".replace("<br>", "")
    names = [(field.capitalize(), getattr(result, field, "")) for field in ("model", "task")]
    remarks: list[str] = []
    ends, named = re.compile(r"\(−?[\d.,]+ to −?[\d.,]+\)"), re.compile(r"95\s?%|% interval|lowest row")
    has_ends = ends.search(told) and not named.search(told)
    level = 100 * getattr(result, "confidence_level", 0.95)
    remarks += [f"In parentheses: {level:g} % intervals."] * bool(has_ends)
    remarks += ['"May be as large": the intervals meet.'] * ("may be as large" in told)
    is_clear = re.search(r"clear (one|reaction)", told)
    remarks += ['"Clear": the interval excludes 0, as that of 1 in 20 without an effect would.'] * bool(is_clear)
    prompts = getattr(result, "prompt_ends", ())
    if len(prompts) == 1 or (prompts and options.get("example") is not None):
        prompt = prompts[0 if len(prompts) == 1 else options["example"]]
        names.append(("Prompt", "'" + prompt.replace("\n", "⏎") + "'"))
    remarks += [f"{field}: {name}." for field, name in names if name and html.escape(name, quote=False) not in told]
    drawn = layout.retitle(drawn, title, " ".join(remarks))
    if height is not None:
        drawn.update_layout(height=height)
    return drawn if dark is None else drawn.update_layout(template=style.template(style.DARK if dark else style.LIGHT))
