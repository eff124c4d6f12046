"""What a task holds, and how members of a vote do."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ...ensemble.intervals import wilson
from ...tasks.noisy_votes import Votes
from ...tasks.task import Task
from .. import style
from .layout import arrange, beside


def label_bars(task: Task, title: str | None = None) -> go.Figure:
    """How many rows have each option as their gold answer; the dotted line is what an even share would be."""
    counts = np.bincount(task.labels, minlength=len(task.options))
    names = [option.strip() or repr(option) for option in task.options]
    figure = go.Figure(
        go.Bar(
            x=counts,
            y=np.arange(len(names)),
            orientation="h",
            width=0.7,
            marker={"color": style.SERIES[0], "line": {"width": 0}},
            hovertemplate="%{x} rows<extra></extra>",
        )
    )
    figure.add_vline(x=len(task) / len(names), line={"dash": "dot", "width": 1.5})
    best = counts.max() / len(task)
    subtitle = f"{len(task)} rows ({task.source}). One and the same answer would be right in {best:.0%}."
    arrange(figure, title or f"Gold answers of {task.name}", subtitle, plot=44 * len(names) + 20, below=56)
    figure.update_xaxes(title_text="rows")
    return figure.update_yaxes(**beside(names), autorange="reversed")


def vote_bars(votes: Votes, title: str | None = None) -> go.Figure:
    """How often each member votes rightly, with a 95 % interval; dotted: the law they were drawn from."""
    right = (votes.votes == votes.labels[:, None]).sum(0)
    rows = len(votes.labels)
    share = right / rows
    low, high = wilson(right, rows)
    figure = go.Figure(
        go.Scatter(
            x=np.arange(votes.members),
            y=share,
            mode="markers",
            error_y={"type": "data", "array": high - share, "arrayminus": share - low, "color": style.NEUTRAL},
            marker={"color": style.SERIES[0], "size": 8},
            hovertemplate="<b>M%{x}</b><br>right in %{y:.1%}<extra></extra>",
        )
    )
    figure.add_hline(y=votes.right, line={"dash": "dot", "width": 1.5})
    subtitle = f"{rows} rows, {votes.options} options; in {votes.shared:.0%} of the rows all members repeat one vote."
    arrange(figure, title or "How often each member votes rightly", subtitle, plot=300, below=60)
    figure.update_xaxes(title_text="member", showgrid=False)
    return figure.update_yaxes(title_text="share of right votes", tickformat=".0%")
