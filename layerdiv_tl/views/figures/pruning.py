"""Figures of plans of what to drop: what the model is without it, and what chose it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ...components import Component
from ...depth.agreement import INVERTED, Effect
from ...depth.pruning import INFLUENCE, OWN, RANDOM, DropPlan
from .. import style
from .agreement import NAMES
from .axes import component_axis
from .layout import arrange, between, buttons, name, whiskered

_ONE = {"layer": "layer", "attn": "attention sublayer", "mlp": "MLP", "sublayer": "sublayer"}
_PLANS = {OWN: ("the plan", style.SERIES[0], "solid"), INFLUENCE: ("by block influence", style.SERIES[1], "dash")}
_UNITS = {"loss": "nats per answer", "accuracy": "of answers right"}
_AXES = {"loss": "loss, nats per answer", "accuracy": "accuracy, share of right answers"}
_STAYS = 0.45


def drop_curve(plan: DropPlan, quantity: Effect = "loss", title: str | None = None) -> go.Figure:
    """Loss or accuracy against the number of components dropped, by the plan and by block influence.

    Bands are 95 % intervals over rows; every ring is a random plan of as many components, the bar their mean; the
    model as it is is dotted. A button takes the random plans away. Raises InputError for an unknown quantity.
    """
    frame, others, figure = plan.frame(), plan.random_plans(), go.Figure()
    start, budget = frame[frame["plan"] == "none"], len(plan.dropped)
    for key, gone in ((OWN, plan.dropped), (INFLUENCE, plan.influence_dropped)):
        called, color, dash = _PLANS[key]
        rows = frame[frame["plan"].isin(["none", key])]
        low, high = (rows[f"{quantity}_{end}"].to_numpy() for end in ("low", "high"))
        figure.add_scatter(
            x=np.r_[rows["dropped"], rows["dropped"][::-1]],
            y=np.r_[high, low[::-1]],
            mode="lines",
            fill="toself",
            fillcolor=style.faint(color, 0.14),
            line={"width": 0},
            hoverinfo="skip",
            legendgroup=key,
            showlegend=False,
        )
        figure.add_scatter(
            x=rows["dropped"],
            y=rows[quantity],
            mode="lines+markers",
            name=called,
            legendgroup=key,
            line={"color": color, "width": 2, "dash": dash},
            marker={"size": 7},
            hovertext=[_curve_hover(row, called, quantity, gone) for row in rows.itertuples()],
            hoverinfo="text",
        )
    if len(others):
        mean = frame[frame["plan"] == RANDOM].iloc[0]
        figure.add_scatter(
            x=[budget] * len(others),
            y=others[quantity],
            mode="markers",
            name=f"{len(others)} random plans",
            legendgroup=RANDOM,
            marker={"symbol": "circle-open", "size": 8, "color": style.NEUTRAL, "line": {"width": 1.5}},
            hovertext=[
                f"<b>random plan {row.number}</b><br>{quantity} {style.number(getattr(row, quantity))}<br>without "
                f"{name(str(row.components), 60)}"
                for row in others.itertuples()
            ],
            hoverinfo="text",
        )
        figure.add_scatter(
            x=[budget],
            y=[mean[quantity]],
            mode="markers",
            name="their mean",
            legendgroup=RANDOM,
            marker={"symbol": "line-ew-open", "size": 22, "color": style.NEUTRAL, "line": {"width": 3}},
            hovertext=[
                f"<b>mean of random plans</b><br>{quantity} {style.number(mean[quantity])}, middle 95 % "
                f"{between(mean[f'{quantity}_low'], mean[f'{quantity}_high'])}"
            ],
            hoverinfo="text",
        )
    figure.add_hline(y=start[quantity].iloc[0], line={"dash": "dot", "width": 1.5})
    shown = [trace.legendgroup != RANDOM for trace in figure.data]
    choices = {"with random plans": True, "without": shown}
    entries = [{"label": k, "method": "restyle", "args": [{"visible": v}]} for k, v in choices.items()]
    rows = plan.provenance["rows"]
    what = _ONE[plan.part]
    arrange(
        figure,
        title or f"{plan.model} without {budget} of {len(plan.candidates)} {what}s, least {_score(plan)} first",
        f"Chosen on {rows['scored']} rows of {rows['where']}, measured on {rows['measured']} others; nothing is "
        f"retrained. {_compared(plan, quantity)} {whiskered(frame, 'Bands')} Dotted: the model as it is.",
        plot=400,
        below=96,
        menus=[buttons(entries)] if len(others) else [],
    )
    figure.update_xaxes(title_text=f"{what}s dropped", dtick=max(1, budget // 12), zeroline=False)
    return figure.update_yaxes(title_text=_AXES[quantity])


def drop_components(plan: DropPlan, title: str | None = None) -> go.Figure:
    """The score of every candidate in stream order, colored by module; what goes is solid and has its place."""
    frame, figure = plan.scores(), go.Figure()
    modules = np.array([c.module for c in plan.candidates], dtype=object)
    unit = f" {frame.attrs['units']['score']}".rstrip()
    for module in dict.fromkeys(modules):
        here = np.flatnonzero(modules == module)
        some, color = frame.iloc[here], style.MODULE[module]
        figure.add_bar(
            x=here,
            y=some["score"],
            width=0.8,
            name=style.MODULE_NAME[module],
            marker={
                "color": [color if goes else style.faint(color, _STAYS) for goes in some["drop"]],
                "line": {"width": 0},
            },
            text=[str(place) if place else "" for place in some["drop_order"]],
            textposition="outside",
            textangle=0,
            cliponaxis=False,
            hovertext=[
                f"<b>{html.escape(label)}</b><br>score {style.number(score)}{unit}<br>"
                + (f"dropped, number {place}" if place else "stays")
                for label, score, place in zip(some["component"], some["score"], some["drop_order"], strict=True)
            ],
            hoverinfo="text",
        )
    what, rows = _ONE[plan.part], plan.provenance["rows"]
    chose = "Scores were given" if plan.score == "given" else f"Scores from {rows['scored']} rows of {rows['where']}"
    arrange(
        figure,
        title or f"How much {plan.model} needs each {what}, by {_score(plan)}",
        f"{chose}. The {len(plan.dropped)} lowest of {len(frame)} go, numbered from the first to go; faint: stays.",
        plot=380,
        below=96,
    )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(**component_axis(plan.candidates), title_text="component, in stream order", showgrid=False)
    figure.update_xaxes(range=[-1, len(frame)], zeroline=False)
    return figure.update_yaxes(
        title_text=("−" if plan.score in INVERTED else "") + _score(plan) + (unit and f",{unit}")
    )


def _score(plan: DropPlan) -> str:
    return NAMES.get(plan.score, "scores of one's own")


def _curve_hover(row: Any, called: str, quantity: str, gone: Sequence[Component]) -> str:
    value, low, high = (getattr(row, quantity + end) for end in ("", "_low", "_high"))
    last = f"<br>without {html.escape(gone[row.dropped - 1].label)}" + " too" * (row.dropped > 1) if row.dropped else ""
    head = f"<b>{called}, {row.dropped} dropped</b>" if row.dropped else "<b>the model as it is</b>"
    return f"{head}{last}<br>{style.measured(value, low, high, unit=_UNITS[quantity])}"


def _compared(plan: DropPlan, quantity: str) -> str:
    """What the plan is beside others that drop as much, on the same rows."""
    frame = plan.compare()
    named = {INFLUENCE: "block influence's", RANDOM: "the random plans' mean"}
    ends = (frame[quantity + end] for end in ("", "_low", "_high"))
    said = [
        f"{style.number(value)} {between(low, high)} off {named[other]}"
        for other, value, low, high in zip(frame["other"], *ends, strict=True)
    ]
    text = f"With {len(plan.dropped)} gone the plan's {quantity} is {' and '.join(said)}"
    for beaten in frame.loc[frame["other"] == RANDOM, "win_rate"]:
        text += f"; {100 * beaten:.0f} % of random plans have a higher loss"
    return text + ", on the same rows."
