"""Reader or counterweight: how large each component's contributions are, next to what they do for the right answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...errors import InputError
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...depth.effect_results import Effects
    from ...ensemble.decomposition import Decomposition

_MAX_NAMES = 9
_TICKS = [n * 10.0**e for e in range(-6, 6) for n in (1, 2, 5)]


@figure_of("roles", "Decomposition")
def role_scatter(decomposition: Decomposition, effects: Any = None) -> go.Figure:
    """Draw every component's size, √(centered diversity), against its mean logit difference, colored by its accuracy.

    A reader stands to the right of 0 and is often right alone. A counterweight is large and right alone as often as
    guessing: it raises one option whatever the example, against components that raise another.

    Args:
        effects: `Effects` of some components on other rows, or several (by mean and by zero ablation): next to the
            scatter stands what each ablation costs in nats of cross-entropy, with 95 % intervals over rows.

    Raises InputError for a decomposition without labels, and for effects of another type.
    """
    half = decomposition.halves.get("centered", decomposition)
    if half.gold is None:
        raise InputError("roles need a gold option for each example: decompose with labels.")
    several = () if effects is None else effects if isinstance(effects, list | tuple) else (effects,)
    if not all(type(e).__name__ == "Effects" for e in several):
        raise InputError("effects= of this figure must be results of ld.effects, one or a list of them.")
    frame, chance = half.by_component(full=True), 1 / half.values.shape[2]
    frame = frame[frame["diversity"] > 0].reset_index(drop=True)
    x, y = frame["logit_difference"].to_numpy(), np.sqrt(frame["diversity"].to_numpy())
    hover = kit.hover_lines(frame, {"logit difference": "logit_difference", "alone right": "accuracy", "bias": "bias"})
    beyond = frame["accuracy"].to_numpy() - chance
    most = float(np.abs(beyond).max()) or chance
    scale = {"tickvals": [-most, 0, most], "ticktext": [f"{chance + x:.0%}" for x in (-most, 0, most)]}
    bar = {"title": {"text": "right alone", "side": "top"}, "thickness": 12, "outlinewidth": 0, "x": 1.0}
    bar |= {"orientation": "h", "y": -0.32, "xanchor": "right", "len": 0.4} | scale
    marker: dict[str, Any] = {"cmin": -most, "cmax": most, "autocolorscale": True, "colorbar": bar}
    marker |= {"line": {"width": 1, "color": style.NEUTRAL}}
    traces = [kit.dots(x, y, beyond, size=10, marker=marker, hover=hover, across=True)]
    log = np.log10(y)
    shares = np.stack([(v - v.min()) / (np.ptp(v) or 1.0) for v in (x, log)], 1)
    orders = np.stack([np.argsort(-v, kind="stable") for v in (x, log, np.abs(x))], 1)[:_MAX_NAMES]
    where: dict[str, Any] = {"most": _MAX_NAMES, "apart": (0.2, 0.06), "size": 11, "left": shares[:, 0] > 0.7}
    names = kit.extreme_names(frame["component"].tolist(), x, y, shares, orders, **where)
    # Above its mark, or the mark's own whisker would run through a name.
    traces.append(names.update(textposition=[place.replace("middle", "top") for place in names.textposition]))
    named = frame[np.isin(x, names.x)]
    error = kit.whiskers(named, "logit_difference", visible=True)
    traces.insert(
        0,
        kit.dots(
            named["logit_difference"], np.sqrt(named["diversity"]), style.NEUTRAL, size=0.1, error=error, across=True
        ),
    )
    first = int(np.argmax(x))
    title = (
        f"{frame['component'][first]} is first by logit difference, and right alone in {frame['accuracy'][first]:.0%}"
    )
    about = f"{len(half.values)} rows, contributions centered over the options. Color: how often a component alone is "
    about += f"right, pale where it is as often as guessing ({chance:.0%}). {kit.whiskered(frame)}"
    x_title, y_title = "mean logit difference, logits", "size: √ centered diversity, logits"
    if not several:
        figure = go.Figure(traces)
    else:
        figure = kit.panels([traces, _costs(several)], columns=2, across=0.12, shared_yaxes=False, shared_xaxes=False)
        names = list(dict.fromkeys(name for e in several for name in e.names))
        rows = f"{len(several[0].labels)} other rows"
        figure.update_xaxes(title_text=f"loss without it, nats more ({rows})", zeroline=True, row=1, col=2)
        figure.update_yaxes(kit.named_rows(names), row=1, col=2)
    kit.arrange(figure, title, about, plot=430, below=150)
    figure.update_xaxes(title_text=x_title, zeroline=True, row=1 if several else None, col=1 if several else None)
    figure.update_yaxes(
        title_text=y_title, type="log", tickvals=_TICKS, row=1 if several else None, col=1 if several else None
    )
    return figure


def _costs(effects: Sequence[Effects]) -> list[go.Scatter]:
    """What ablating costs in nats, a trace for each ablation."""
    names = list(dict.fromkeys(name for e in effects for name in e.names))
    traces = []
    for number, (e, color) in enumerate(zip(effects, style.SERIES, strict=False)):
        frame = e.frame()
        cost = frame.assign(
            cost=-frame["total_loss"], cost_low=-frame["total_loss_high"], cost_high=-frame["total_loss_low"]
        )
        cost.attrs = {"units": {"cost": "nats"}}
        y = np.array([names.index(name) for name in e.names]) + 0.16 * (number - (len(effects) - 1) / 2)
        look: dict[str, Any] = {
            "name": f"{e.ablation} ablation",
            "hover": kit.hover_lines(cost, {"loss without it": "cost"}),
        }
        traces.append(kit.dots(cost["cost"], y, color, error=kit.whiskers(cost, "cost"), across=True, **look))
    return traces
