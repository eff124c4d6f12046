"""Plans of what to drop: the model without it, and the scores that chose it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from .. import style
from ..plotting import (
    DOTTED,
    arrange,
    band,
    bar,
    between,
    buttons,
    by_module,
    clipped,
    component_axis,
    dots,
    line,
    whiskered,
)
from .agreement import NAMES, Effect

if TYPE_CHECKING:
    from ...depth.pruning import DropPlan

_PART = {"layer": "layer", "attn": "attention sublayer", "mlp": "MLP", "sublayer": "sublayer"}
_UNITS = {"loss": "nats per answer", "accuracy": "of answers right"}
_AXES = {"loss": "loss, nats per answer", "accuracy": "accuracy, share of right answers"}


@figure_of("curve", "DropPlan", default=True)
def drop_curve(plan: DropPlan, quantity: Effect = "loss", title: str | None = None) -> go.Figure:
    """Loss or accuracy against the number of components dropped, by the plan and by block influence.

    Bands are 95 % intervals over rows; every ring is a random plan of as many components, the bar their mean; the
    whole model is dotted. A button hides the random plans. Raises InputError for an unknown quantity.
    """
    from ...depth.pruning import INFLUENCE, OWN, RANDOM

    frame, budget, figure = plan.frame(), len(plan.dropped), go.Figure()
    plans = {
        OWN: (plan.dropped, "the plan", style.SERIES[0], "solid"),
        INFLUENCE: (plan.influence_dropped, "by block influence", style.SERIES[1], "dash"),
    }
    for key, (dropped, name, color, dash) in plans.items():
        rows = frame[frame["plan"].isin(["none", key])]
        ends = rows[f"{quantity}_low"], rows[f"{quantity}_high"]
        figure.add_trace(band(rows["dropped"], *ends, color, 0.14, legendgroup=key))
        hover = [_curve_hover(row, name, quantity, dropped) for row in rows.itertuples()]
        look: dict[str, Any] = {"width": 2, "marks": 7, "dash": dash}
        figure.add_trace(line(rows["dropped"], rows[quantity], color, name=name, legendgroup=key, hover=hover, **look))
    others = plan.random_plans()
    if len(others):
        mean = frame[frame["plan"] == RANDOM].iloc[0]
        hover = [
            f"<b>random plan {row.number}</b><br>{quantity} {style.number(getattr(row, quantity))}<br>without "
            f"{clipped(str(row.components), 60)}"
            for row in others.itertuples()
        ]
        text = (
            f"<b>mean of random plans</b><br>{quantity} {style.number(mean[quantity])}, middle 95 % "
            f"{between(mean[f'{quantity}_low'], mean[f'{quantity}_high'])}"
        )
        ring: dict[str, Any] = {"symbol": "circle-open", "edge": 1.5, "name": f"{len(others)} random plans"}
        figure.add_trace(
            dots([budget] * len(others), others[quantity], style.NEUTRAL, hover=hover, legendgroup=RANDOM, **ring)
        )
        mark: dict[str, Any] = {"symbol": "line-ew-open", "size": 22, "edge": 3, "name": "their mean"}
        figure.add_trace(dots([budget], [mean[quantity]], style.NEUTRAL, hover=[text], legendgroup=RANDOM, **mark))
    figure.add_hline(y=frame.loc[frame["plan"] == "none", quantity].iloc[0], line=DOTTED)
    without = [trace.legendgroup != RANDOM for trace in figure.data]
    views = {name: [{"visible": seen}] for name, seen in (("with random plans", True), ("without", without))}
    rows, part = plan.provenance["rows"], _PART[plan.part]
    arrange(
        figure,
        title or f"{plan.model} without {budget} of {len(plan.candidates)} {part}s, least {_score(plan)} first",
        f"Chosen on {rows['scored']} rows of {rows['where']}, measured on {rows['measured']} others; nothing is "
        f"retrained. {_compared(plan, quantity)} {whiskered(frame, 'Bands')} Dotted: the model as it is.",
        plot=400,
        below=96,
        menus=buttons(views, method="restyle") if len(others) else (),
    )
    figure.update_xaxes(title_text=f"{part}s dropped", dtick=max(1, budget // 12), zeroline=False)
    return figure.update_yaxes(title_text=_AXES[quantity])


@figure_of("components", "DropPlan")
def drop_components(plan: DropPlan, title: str | None = None) -> go.Figure:
    """The score of every candidate in stream order, colored by module; what goes is solid and numbered."""
    from ...depth.quantities import INVERTED

    frame, figure = plan.scores(), go.Figure()
    unit = f" {frame.attrs['units']['score']}".rstrip()
    for module, positions in by_module(plan.candidates):
        rows, color = frame.iloc[positions], style.MODULE[module]
        colors = [color if goes else style.faint(color, 0.45) for goes in rows["drop"]]
        hover = [
            f"<b>{html.escape(label)}</b><br>score {style.number(score)}{unit}<br>"
            + (f"dropped, number {number}" if number else "stays")
            for label, score, number in zip(rows["component"], rows["score"], rows["drop_order"], strict=True)
        ]
        numbers: dict[str, Any] = {"text": [str(number) if number else "" for number in rows["drop_order"]]}
        numbers |= {"textposition": "outside", "textangle": 0, "cliponaxis": False}
        named: dict[str, Any] = {"name": style.MODULE_NAME[module], "hover": hover}
        figure.add_trace(bar(positions, rows["score"], colors, **named, **numbers))
    rows, given = plan.provenance["rows"], plan.score == "given"
    source = "Scores were given" if given else f"Scores from {rows['scored']} rows of {rows['where']}"
    arrange(
        figure,
        title or f"How much {plan.model} needs each {_PART[plan.part]}, by {_score(plan)}",
        f"{source}. The {len(plan.dropped)} lowest of {len(frame)} go, numbered from the first to go; faint: stays.",
        plot=380,
        below=96,
    )
    figure.update_layout(barmode="overlay")
    axis = {"title_text": "component, in stream order", "range": [-1, len(frame)]}
    figure.update_xaxes(**component_axis(plan.candidates), **axis)
    return figure.update_yaxes(
        title_text=("−" if plan.score in INVERTED else "") + _score(plan) + (unit and f",{unit}")
    )


def _score(plan: DropPlan) -> str:
    return NAMES.get(plan.score, "scores of one's own")


def _curve_hover(row: Any, plan: str, quantity: str, dropped: Sequence[Component]) -> str:
    numbers = (getattr(row, quantity + end) for end in ("", "_low", "_high"))
    text = "<b>the model as it is</b>"
    if row.dropped:
        last = html.escape(dropped[row.dropped - 1].label)
        text = f"<b>{plan}, {row.dropped} dropped</b><br>without {last}{' too' * (row.dropped > 1)}"
    return f"{text}<br>{style.measured(*numbers, unit=_UNITS[quantity])}"


def _compared(plan: DropPlan, quantity: str) -> str:
    """The plan next to others that drop as much, on the same rows."""
    from ...depth.pruning import INFLUENCE, RANDOM

    frame = plan.compare()
    others = {INFLUENCE: "block influence's", RANDOM: "the random plans' mean"}
    numbers = (frame[quantity + end] for end in ("", "_low", "_high"))
    differences = [
        f"{style.number(value)} {between(low, high)} off {others[other]}"
        for other, value, low, high in zip(frame["other"], *numbers, strict=True)
    ]
    text = f"With {len(plan.dropped)} gone the plan's {quantity} is {' and '.join(differences)}"
    for rate in frame.loc[frame["other"] == RANDOM, "win_rate"]:
        text += f"; {100 * rate:.0f} % of random plans have a higher loss"
    return text + ", on the same rows."
