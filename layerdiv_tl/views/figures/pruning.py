"""Plans of what to drop: loss and accuracy by number of components, and every candidate's score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from .. import axes, kit, layout, style

if TYPE_CHECKING:
    from ...depth.pruning_results import DropPlan

_UNITS = {"loss": "nats per answer", "accuracy": "of answers right"}
_NAMES = ("the plan", "by block influence", "each measured alone")
# Above this many, the order of dropping is in the hover alone.
_NUMBERED = 30


def drop_curve(plan: DropPlan, quantity: Literal["loss", "accuracy"] = "loss") -> go.Figure:
    """Draw loss or accuracy against the number of components dropped, by the plan and by block influence.

    Bands are 95 % intervals over rows; rings are random plans of as many components, those far from the curves at the
    edge, with their values in the hover.
    """
    frame, traces = plan.by_size(), list[Any]()
    frame.attrs["units"] = {quantity: _UNITS[quantity]}
    looks = zip(plan.ordered.items(), _NAMES, style.SERIES, ("solid", "dash", "dot"), strict=False)
    for (key, dropped), name, color, dash in looks:
        rows = frame[frame["plan"].isin(["none", key])].assign(component=name)
        last = [f"{n} dropped, {dropped[n - 1]} last" if n else "nothing dropped" for n in rows["dropped"]]
        look: dict[str, Any] = {"shape": "line", "name": name, "dash": dash, "error_x": None, "error_y": None}
        traces.append(kit.band(rows["dropped"], rows[f"{quantity}_low"], rows[f"{quantity}_high"], color))
        traces.append(kit.trace(rows, "dropped", quantity, color, kit.hover(rows, [quantity], last), **look))
    traces += _random_plans(plan, quantity)
    title = f"{quantity.capitalize()} by number of components dropped"
    subtitle = f"{plan.model} · {int(plan.provenance['rows']['measured'])} rows of {plan.provenance['rows']['where']}"
    x = {"title_text": f"{plan.part}s dropped", "dtick": max(1, len(plan.dropped) // 12), "zeroline": False}
    figure = layout.finish(traces, title, subtitle, x=x, y=f"{quantity}, {_UNITS[quantity]}", plot=360)
    unpruned = frame.loc[frame["plan"] == "none", quantity].iloc[0]
    return figure.add_hline(y=unpruned, line=kit.DOTTED)


def _random_plans(plan: DropPlan, quantity: str) -> list[go.Scatter]:
    """Draw a ring for every random plan, no farther from the curves than these are high."""
    others, frame = plan.random_plans(), plan.by_size()
    if others.empty:
        return []
    columns = [quantity, f"{quantity}_low", f"{quantity}_high"]
    curves = frame.loc[frame["plan"] != "random", columns].to_numpy(dtype=float)
    height = np.ptp(curves[np.isfinite(curves)]) or np.inf
    others = others.assign(component=[f"without {layout.clipped(str(names), 60)}" for names in others["components"]])
    heights = np.clip(others[quantity].to_numpy(), np.nanmin(curves) - height, np.nanmax(curves) + height)
    look: dict[str, Any] = {"marker": {"symbol": "circle-open"}, "name": f"{len(others)} random plans"}
    at = [len(plan.dropped)] * len(others)
    return [kit.trace(others, at, heights, texts=kit.hover(others, [quantity]), **look)]


def score_bars(plan: DropPlan) -> go.Figure:
    """Draw the score of every candidate in stream order, colored by module; dropped ones are solid and numbered."""
    frame = plan.frame()
    dropped, order = frame["order"].notna().to_numpy(), frame["order"].astype("string").fillna("").to_numpy()
    shown = order if len(plan.dropped) <= _NUMBERED else np.full(len(order), "", dtype=object)
    texts = kit.hover(frame, ["score"], [f"dropped, number {number}" if number else "stays" for number in order])
    look: dict[str, Any] = {"text": shown, "textposition": "outside", "textangle": 0, "cliponaxis": False}
    traces = kit.bars(frame, "score", texts, marker={"opacity": np.where(dropped, 1.0, 0.4)}, **look)
    subtitle = f"{plan.model} · {int(plan.provenance['rows']['scored'])} rows of {plan.provenance['rows']['where']}"
    unit = frame.attrs["units"]["score"]
    y = f"{plan.score.replace('_', ' ')}, {unit}".removesuffix(", ")
    x = axes.component_axis(frame, kit.STREAM)
    return layout.finish(traces, "Score of every candidate", subtitle, x=x, y=y, barmode="overlay")
