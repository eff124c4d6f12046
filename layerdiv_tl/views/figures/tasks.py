"""The gold answers of a task, and the accuracy of the members of a vote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.intervals import wilson
from .. import style
from ..plotting import DOTTED, arrange, bar, dots, error_bars, named_rows

if TYPE_CHECKING:
    from ...tasks.noisy_votes import Votes
    from ...tasks.task import Task


@figure_of("labels", "Task")
def label_bars(task: Task, title: str | None = None) -> go.Figure:
    """How many rows have each option as their gold answer; the dotted line is what an even share would be."""
    counts = np.bincount(task.labels, minlength=len(task.options))
    names = [option.strip() or repr(option) for option in task.options]
    hover = {"hovertemplate": "%{x} rows<extra></extra>"}
    figure = go.Figure(bar(counts, np.arange(len(names)), style.SERIES[0], across=True, width=0.7, **hover))
    figure.add_vline(x=len(task) / len(names), line=DOTTED)
    best = counts.max() / len(task)
    subtitle = f"{len(task)} rows ({task.source}). One and the same answer would be right in {best:.0%}."
    arrange(figure, title or f"Gold answers of {task.name}", subtitle, plot=44 * len(names) + 20, below=56)
    figure.update_xaxes(title_text="rows")
    return figure.update_yaxes(**named_rows(names), autorange="reversed")


@figure_of("members", "Votes")
def vote_bars(votes: Votes, title: str | None = None) -> go.Figure:
    """How often each member votes rightly, with a 95 % interval; dotted: the law they were drawn from."""
    right, rows = (votes.votes == votes.labels[:, None]).sum(0), len(votes.labels)
    error = error_bars(right / rows, *wilson(right, rows))
    hover: dict[str, Any] = {"hovertemplate": "<b>M%{x}</b><br>right in %{y:.1%}<extra></extra>"}
    figure = go.Figure(dots(np.arange(votes.members), right / rows, style.SERIES[0], error=error, **hover))
    figure.add_hline(y=votes.right, line=DOTTED)
    subtitle = f"{rows} rows, {votes.options} options; in {votes.shared:.0%} of the rows all members repeat one vote."
    arrange(figure, title or "How often each member votes rightly", subtitle, plot=300, below=60)
    figure.update_xaxes(title_text="member", showgrid=False)
    return figure.update_yaxes(title_text="share of right votes", tickformat=".0%")
