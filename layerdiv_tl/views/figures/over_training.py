"""Checkpoints of a study along the training step."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice, some_of
from ..._registry import figure_of
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...studies.over_training import OverTraining

_SHOWN = ("accuracy", "loss", "bias_centered", "diversity_centered", "diversity_logit_centered")


@figure_of("curves", "OverTraining")
def training_curves(
    training: OverTraining, quantities: Sequence[str] | None = None, task: str | None = None
) -> go.Figure:
    """Quantities against the step: a panel for each, in each a line per run, and a menu of the tasks.

    Runs of one shape have one color; a vertical line is where accuracy has gone half of its way, the mean over seeds.
    `quantities` None shows accuracy, loss, and bias and diversity as softmax sees them; `task` is shown first, None is
    the first that has all of them. Raises InputError for a quantity or task that was not measured.
    """
    names = [name for name in _SHOWN if name in training.quantities]
    names = names if quantities is None else some_of("quantities", quantities, training.quantities)
    frame, order = training.frame(), training.order()
    tasks, shapes = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["shape"]))
    lacking = {t: [name for name in names if frame.loc[frame["task"] == t, name].isna().all()] for t in tasks}
    fullest = min(tasks, key=lambda t: len(lacking[t]))
    first = fullest if task is None else choice("task", task, tasks)
    color = {shape: style.SERIES[i % len(style.SERIES)] for i, shape in enumerate(shapes)}
    runs = frame[["run", "shape"]].drop_duplicates()

    def lines(task: str, name: str) -> list[go.Scatter]:
        drawn = []
        for run, shape in runs.itertuples(index=False):
            curve = frame[(frame["run"] == run) & (frame["task"] == task)]
            ends = [curve.get(name + end, curve[name] * np.nan) for end in ("", "_low", "_high")]
            hover = [
                f"<b>{html.escape(run)}</b><br>step {step}<br>{name} {kit.estimated(*numbers)}"
                for step, *numbers in zip(curve["step"], *ends, strict=True)
            ]
            named: dict[str, Any] = {"name": html.escape(shape), "marks": 3, "width": 1.4, "hover": hover}
            drawn.append(kit.line(curve["step"].to_numpy(), ends[0].to_numpy(), color[shape], **named))
        return drawn

    def half_lines(task: str) -> list[dict[str, object]]:
        found = order[(order["task"] == task) & (order["quantity"] == "accuracy")].dropna(subset="reached")
        span = {"type": "line", "y0": 0, "y1": 1, "yref": "paper"}
        return [
            span | {"x0": row.reached, "x1": row.reached, "line": kit.DOTTED | {"color": color[row.shape]}}
            for row in found.itertuples()
        ]

    units = {t: [training.units(t)[name] for name in names] for t in tasks}
    headings = [html.escape(name.replace("_", " ")) for name in names]
    figure = kit.panels([lines(first, name) for name in names], headings, units=units[first], x_title="training step")
    if "accuracy" in names:  # a curve that never moves would be drawn on an axis of any length
        figure.update_yaxes(range=[-0.04, 1.04], row=1 + names.index("accuracy"), col=1)
    views = {}
    for task in tasks:
        traces = [trace for name in names for trace in lines(task, name)]
        axes = {f"yaxis{row if row > 1 else ''}.title.text": unit for row, unit in enumerate(units[task], start=1)}
        views[kit.clipped(task)] = (kit.changes(traces, "x", "y", "hovertext"), {"shapes": half_lines(task)} | axes)
    menu = kit.buttons(views, tasks.index(first), type="dropdown", direction="down", x=1, xanchor="right")
    figure.update_layout(shapes=half_lines(first), showlegend=len(shapes) > 1)
    subtitle = f"Members at unit {training.unit}"
    subtitle += "; a line for every training seed." if len(runs) > len(shapes) else "."
    if any(map(half_lines, tasks)):
        subtitle += " Dotted: accuracy has gone half of its way."
    absent = [f"{', '.join(some).replace('_', ' ')} on {html.escape(t)}" for t, some in lacking.items() if some]
    if absent:
        subtitle += f" Not measured: {'; '.join(absent)}."
    return kit.arrange(
        figure,
        "Over training",
        subtitle,
        plot=150 * len(names),
        menus=menu,
    )
