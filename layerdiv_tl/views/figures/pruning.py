"""Components dropped and weighted: plans of what to drop, the scores that chose it, and learned weights."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from ...ensemble.intervals import ENDS
from ...ensemble.reweight import Reweighting
from .. import plotting as kit
from .. import style
from .agreement import NAMES, Effect

if TYPE_CHECKING:
    from ...depth.pruning import DropPlan

_STREAM = "component, in stream order"


@figure_of("curve", "DropPlan", default=True)
def drop_curve(plan: DropPlan, quantity: Effect = "loss") -> go.Figure:
    """Loss or accuracy against the number of components dropped, by the plan and by block influence.

    A greedy plan is next to that of its components measured alone.

    Bands are 95 % intervals over rows; every ring is a random plan of as many components, the bar their mean; the
    whole model is dotted. A button hides the random plans. Raises InputError for an unknown quantity.
    """
    from ...depth.pruning import RANDOM

    frame, budget, figure = plan.frame(), len(plan.dropped), go.Figure()
    low, high = f"{quantity}_low", f"{quantity}_high"
    names = ("the plan", "by block influence", "each measured alone")
    looks = zip(names, style.SERIES, ("solid", "dash", "dot"), strict=False)
    for (key, dropped), (name, color, dash) in zip(plan.ordered.items(), looks, strict=False):
        rows = frame[frame["plan"].isin(["none", key])]
        figure.add_trace(kit.band(rows["dropped"], rows[low], rows[high], color, 0.14, legendgroup=key))
        hover = [_curve_hover(row, name, quantity, dropped) for row in rows.to_dict("records")]
        look: dict[str, Any] = {"width": 2, "marks": 7, "dash": dash, "name": name, "legendgroup": key, "hover": hover}
        figure.add_trace(kit.line(rows["dropped"], rows[quantity], color, **look))
    others = plan.random_plans()
    if len(others):
        mean = frame[frame["plan"] == RANDOM].iloc[0]
        hover = [
            f"<b>random plan {row['number']}</b><br>{quantity} {style.number(row[quantity])}<br>without "
            f"{kit.clipped(str(row['components']), 60)}"
            for row in others.to_dict("records")
        ]
        text = f"<b>mean of random plans</b><br>{quantity} {style.number(mean[quantity])}, middle 95 % "
        text += style.interval(mean[low], mean[high])
        ring: dict[str, Any] = {"symbol": "circle-open", "edge": 1.5, "name": f"{len(others)} random plans"}
        mark: dict[str, Any] = {"symbol": "line-ew-open", "size": 22, "edge": 3, "name": "their mean"}
        for values, texts, look in ((others[quantity], hover, ring), ([mean[quantity]], [text], mark)):
            x = [budget] * len(texts)
            figure.add_trace(kit.dots(x, values, style.NEUTRAL, hover=texts, legendgroup=RANDOM, **look))
    figure.add_hline(y=frame.loc[frame["plan"] == "none", quantity].iloc[0], line=kit.DOTTED)
    without = [trace.legendgroup != RANDOM for trace in figure.data]
    views = {name: [{"visible": seen}] for name, seen in (("with random plans", True), ("without", without))}
    rows, part = plan.provenance["rows"], style.LABELS["depth"]["dropped"][plan.part]
    chosen = "Scores were given; block influence chose" if plan.score == "given" else "Chosen"
    return kit.arrange(
        figure,
        f"{plan.model} without {budget} of {len(plan.candidates)} {part}s, least {_score(plan)} first"
        + ", one after another" * bool(plan.alone_dropped),
        f"{chosen} on {rows['scored']} rows of {rows['where']}, measured on {rows['measured']} others; nothing is "
        f"retrained. {_compared(plan, quantity)} {kit.whiskered(frame, 'Bands')} Dotted: the model as it is.",
        x={"title_text": f"{part}s dropped", "dtick": max(1, budget // 12), "zeroline": False},
        y={"title_text": style.LABELS["depth"]["axis"][quantity]},
        plot=400,
        menus=kit.buttons(views, method="restyle") if len(others) else (),
    )


@figure_of("components", "DropPlan")
def drop_components(plan: DropPlan) -> go.Figure:
    """The score of every candidate in stream order, colored by module; what goes is solid and numbered."""
    from ...depth.quantities import LOWER_IS_BETTER

    frame = plan.scores()
    unit = f" {frame.attrs['units']['score']}".rstrip()
    hover = [
        f"<b>{html.escape(label)}</b><br>score {style.number(score)}{unit}<br>"
        + (f"dropped, number {number}" if number else "stays")
        for label, score, number in zip(frame["component"], frame["score"], frame["drop_order"], strict=True)
    ]
    own = [style.MODULE[component.module] for component in plan.candidates]
    colors = [c if goes else style.faint(c, 0.45) for c, goes in zip(own, frame["drop"], strict=True)]
    numbers = np.array([str(number) if number else "" for number in frame["drop_order"]], dtype=object)
    look: dict[str, Any] = {"text": numbers, "textposition": "outside", "textangle": 0, "cliponaxis": False}
    traces = kit.module_traces(plan.candidates, frame["score"], hover, color=np.array(colors, dtype=object), **look)
    rows = plan.provenance["rows"]
    given = f"Scores from {rows['scored']} rows of {rows['where']}"
    source = "Scores were given" if plan.score == "given" else given
    part = style.LABELS["depth"]["dropped"][plan.part]
    goes = f"The {len(plan.dropped)} lowest of {len(frame)} go"
    if plan.alone_dropped:
        goes = f"{len(plan.dropped)} of {len(frame)} go one after another, each the lowest with those before it gone"
    y_title = ("−" if plan.score in LOWER_IS_BETTER else "") + _score(plan) + (unit and f",{unit}")
    return kit.arrange(
        go.Figure(traces),
        f"How much {plan.model} needs each {part}, by {_score(plan)}",
        f"{source}. {goes}, numbered from the first to go; faint: stays.",
        x=kit.component_axis(plan.candidates, _STREAM, edge=1),
        y={"title_text": y_title},
        plot=380,
        barmode="overlay",
    )


def _score(plan: DropPlan) -> str:
    return str(NAMES.get(plan.score, "scores of one's own"))


def _curve_hover(row: dict[Any, Any], plan: str, quantity: str, dropped: Sequence[Component]) -> str:
    text = "<b>the model as it is</b>"
    if count := row["dropped"]:
        last = html.escape(dropped[count - 1].label)
        text = f"<b>{plan}, {count} dropped</b><br>without {last}{' too' * (count > 1)}"
    numbers = (row[quantity + end] for end in ("", "_low", "_high"))
    return f"{text}<br>{style.measured(*numbers, unit=style.LABELS['depth']['unit'][quantity])}"


def _compared(plan: DropPlan, quantity: str) -> str:
    """The plan next to others that drop as much, on the same rows."""
    from ...depth.pruning import ALONE, INFLUENCE, RANDOM

    frame = plan.compare()
    others = {INFLUENCE: "block influence's", ALONE: "that of each measured alone", RANDOM: "the random plans' mean"}
    unit = f" {frame.attrs['units']['loss']}" if quantity == "loss" else ""
    differences = []
    for row in frame.to_dict("records"):
        value, low, high = (row[quantity + end] for end in ENDS)
        side, ends = ("below", (-high, -low)) if value < 0 else ("above", (low, high))
        differences.append(f"{style.number(abs(value))}{unit} {side} {others[row['other']]} {style.interval(*ends)}")
    text = f"With {len(plan.dropped)} gone the plan's {quantity} is {' and '.join(differences)}"
    for rate in frame.loc[frame["other"] == RANDOM, "win_rate"]:
        text += f"; {100 * rate:.0f} % of random plans have a higher loss"
    return text + ", on the same rows."


@figure_of("weights", "Reweighting")
def reweighting_bars(reweighting: Reweighting) -> go.Figure:
    """The weight of every component as a mark, and a bar to it from 1, which is the model itself, colored by module.

    A component that was left alone is a mark at 1, one that is zero-ablated a bar down to 0. The subtitle has what the
    weights are worth on the rows that were not learned from.
    """
    components, weights = reweighting.components, reweighting.weights
    rows = zip(components, weights, strict=True)
    hover = [f"<b>{html.escape(c.label)}</b><br>weight {style.number(w)}" for c, w in rows]
    predictors = reweighting.frame().set_index("predictor")
    before, after = (cast(Any, predictors.loc[name]) for name in ("model", "reweighted"))

    def shown(row: Any, name: str) -> str:
        return kit.estimated(*(row[name + end] for end in ("", "_low", "_high")))

    bars = kit.module_traces(components, weights - 1, hover, base=1, showlegend=False, width=0.35)
    marks = kit.module_traces(components, weights, hover, draw=kit.dots, size=8)
    figure = go.Figure([*bars, *marks]).add_hline(y=1, line={"width": 1})
    top = max(1.05, 1.05 * float(weights.max()))
    return kit.arrange(
        figure,
        "Weights of components (1: the model itself, 0: zero-ablated)",
        f"{int(after['rows'])} rows not learned from: accuracy {shown(before, 'accuracy')} → "
        f"{shown(after, 'accuracy')}, gain {shown(after, 'accuracy_gain')}; cross-entropy "
        f"{shown(before, 'cross_entropy')} → {shown(after, 'cross_entropy')} nats, saved "
        f"{shown(after, 'cross_entropy_gain')}. Learned from {int(reweighting.is_train.sum())} rows.",
        x=kit.component_axis(components, _STREAM, edge=1),
        y={"title_text": "weight", "range": [-0.03 * top, top]},
        plot=300,
        barmode="overlay",
    )
