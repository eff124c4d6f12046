"""What a study will cost."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from ..._registry import figure_of
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...studies.plan import StudyPlan


@figure_of("bars", "StudyPlan", default=True)
def plan_bars(plan: StudyPlan, max_cells: int = 40) -> go.Figure:
    """The time that is left for every cell, the longest first; its tokens, operations and bytes in the hover."""
    order = sorted(range(len(plan.cells)), key=lambda i: -plan.cells[i]["seconds"])[:max_cells]
    lines, several = plan.lines(), len({cell["unit"] for cell in plan.cells}) > 1
    shown, texts = [plan.cells[i] for i in order], [lines[i] for i in order]
    names = [" · ".join([line["model"], line["task"], *[line["unit"]] * several]) for line in texts]
    hovers = ["<br>".join(f"{name} {html.escape(text)}" for name, text in line.items()) for line in texts]
    minutes = max((cell["seconds"] for cell in shown), default=0.0) > 300
    values = [cell["seconds"] / (60 if minutes else 1) for cell in shown]
    bars = kit.bar(values, list(range(len(shown))), style.SERIES[0], across=True, hover=hovers)
    left_out = f" The {len(shown)} longest of {len(plan.cells)} cells." if len(shown) < len(plan.cells) else ""
    return kit.arrange(
        go.Figure(bars),
        "What is left of the study, in time",
        f"{plan.sentence}{left_out}",
        x={"title_text": f"{'minutes' if minutes else 'seconds'}, one process", "rangemode": "tozero"},
        y=kit.named_rows(names),
        plot=max(120, 26 * len(shown)),
    )
