"""`result.plot(kind)`: from a kind of figure, which is data beside its result, to a figure.

To add a kind, add a `Plot` to the `figures` of a result's class. `views.shapes` draws bars, marks, maps and lines of a
frame; what is more stands in `views.special` and `views.strip`. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go

from ..errors import InputError
from ..results import Plot, Result
from . import shapes, style


def figure(result: Result, plot: Plot, options: Mapping[str, Any], *, title: str) -> go.Figure:
    """Draw one kind of figure; `options` go to the frame's function or to that which draws it."""
    module, _, name = plot.draw.partition(".")
    draw: Callable[..., go.Figure] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    if plot.frame is None:
        drawn = draw(result, **plot.how, **options)
        notes: Mapping[Any, Any] = {}
    else:
        method: Callable[..., Any] = plot.frame if callable(plot.frame) else getattr(type(result), plot.frame)
        taken = set(inspect.signature(method).parameters)
        frame = method(result, **{name: value for name, value in options.items() if name in taken})
        if frame.empty:
            raise InputError("there is nothing to draw: these numbers have no rows for this kind of figure.")
        others = {name: value for name, value in options.items() if name not in taken}
        drawn, notes = draw(frame, **(dict(plot.how) | others)), frame.attrs
    texts = {"text": shapes.escape(title or plot.title), "subtitle": {"text": _about(result, notes)}}
    return drawn.update_layout(template=style.template(style.BOTH), title=texts)


def _about(result: Any, notes: Mapping[str, Any]) -> str:
    """Name the model, the rows or the end of a single prompt, and the answers whose difference is drawn."""
    model = str(getattr(result, "model", "") or " → ".join(map(str, getattr(result, "models", ()))))
    over = str(notes.get("intervals", "")).removeprefix("95 % intervals over ").partition(", ")[0]
    rows = str(notes.get("about", "") or over)
    ends: Any = getattr(result, "prompt_ends", ())
    if len(ends) == 1:
        rows = "…" + str(ends[0])[-40:]
    elif not rows and hasattr(result, "values"):
        rows = f"{len(result.values):,} row{'' if len(result.values) == 1 else 's'}"
    return " · ".join(shapes.escape(part) for part in (model, rows, notes.get("answers", "")) if part)
