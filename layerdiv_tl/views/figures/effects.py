"""Direct against total effects, what lies between the two for one component, and which components react to which."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ..._registry import figure_of
from ...ensemble.intervals import LEAST
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...depth.effect_results import Effects

# What an effect is on, as the columns of the frame end.
ENDS = {"logit difference": "", "loss": "_loss", "accuracy": "_accuracy"}
_MAX_NAMES = 10


@figure_of("scatter", "Effects")
def effect_scatter(
    effects: Effects, on: Literal["logit difference", "loss", "accuracy"] = "logit difference"
) -> go.Figure:
    """Direct (x) against total effect (y) of every component and group, with 95 % intervals, or the range of few rows.

    On the dashed diagonal nothing compensates for what is ablated, and nothing adds to it; on the horizontal line
    through 0 the answer does not need what the component writes. Options of several tokens have total effects alone:
    these are drawn as bars (`kind="totals"`).
    """
    if "direct" not in effects.effects:
        return total_bars(effects, on)
    frame, end = effects.frame(), ENDS[on]
    unit = frame.attrs["units"][f"total{end}"]
    x, y = (frame[f"{name}{end}"].to_numpy() for name in ("direct", "total"))
    columns = {name: f"{name}{end}" for name in ("direct", "total", "indirect")}
    hover, count = kit.hover_lines(frame, columns), len(effects.components)
    said = kit.whiskered(frame)
    if len(effects.labels) < LEAST:  # no intervals
        for name in ("direct", "total"):
            by_row = effects.effect(name, end)
            frame[f"{name}{end}_low"], frame[f"{name}{end}_high"] = by_row.min(0), by_row.max(0)
        said += " Whiskers: from the lowest row to the highest."
    whiskers = [kit.whiskers(frame, f"{name}{end}", visible=True) for name in ("direct", "total")]
    traces = kit.module_traces(
        effects.components, y[:count], hover[:count], x=x[:count], draw=kit.dots, size=7, marker={"opacity": 0.85}
    )
    places = [at for _, at in kit.by_module(effects.components)]
    if effects.groups:
        look: dict[str, Any] = {"size": 10, "symbol": "diamond", "name": "Group", "hover": hover[count:]}
        traces.append(kit.dots(x[count:], y[count:], style.SERIES[7], **look))
        places.append(np.arange(count, len(frame)))
    for trace, at in zip(traces, places, strict=True):
        own = [{k: v[at] if isinstance(v, np.ndarray) else v for k, v in some.items()} for some in whiskers]
        trace.update(error_x=own[0], error_y=own[1])
    ends = []
    for name, v in (("direct", x), ("total", y)):
        whisker_ends = (frame[f"{name}{end}_{which}"].dropna() for which in ("low", "high"))
        seen = np.hstack([0.0, v, *whisker_ends])
        room = 0.05 * float(np.ptp(seen)) or 0.5
        ends.append([float(seen.min()) - room, float(seen.max()) + room])
    low, high = np.min(ends), np.max(ends)
    dashes: dict[str, Any] = {"width": 1.5, "marks": 0, "dash": "dash", "hoverinfo": "skip"}
    traces.append(kit.line([low, high], [low, high], style.NEUTRAL, name="total = direct", **dashes))
    shares = np.stack([(v - v_low) / (v_high - v_low) for v, (v_low, v_high) in zip((x, y), ends, strict=True)], 1)
    orders = np.stack([np.argsort(-np.abs(v), kind="stable") for v in (y - x, y, x)], 1)[:_MAX_NAMES]
    where: dict[str, Any] = {"most": _MAX_NAMES, "apart": (0.18, 0.045), "size": 11, "left": shares[:, 0] > 0.75}
    names = kit.extreme_names(frame["component"].tolist(), x, y, shares, orders, **where)
    # Above its mark, or the mark's own whisker would run through a name.
    traces.append(names.update(textposition=[place.replace("middle", "top") for place in names.textposition]))
    return kit.arrange(
        go.Figure(traces),
        f"Direct and total effects on the {on}, {effects.model}",
        f"{_about(effects)}. With the component minus without it; off the diagonal others compensate for what is "
        f"ablated, or rest on it. {said}",
        x={"title_text": f"direct effect, {unit}", "range": ends[0], "zeroline": True},
        y={"title_text": f"total effect, {unit}", "range": ends[1], "zeroline": True},
        height=640,
        hovermode="closest",
    )


@figure_of("totals", "Effects")
def total_bars(effects: Effects, on: Literal["logit difference", "loss", "accuracy"] = "logit difference") -> go.Figure:
    """Draw the total effect of every component along depth, with 95 % intervals, and of groups after them."""
    frame, name, count = effects.frame(), f"total{ENDS[on]}", len(effects.components)
    hover = kit.hover_lines(frame, {"total": name})
    error = kit.whiskers(frame[:count], name)
    traces = kit.module_traces(effects.components, frame[name][:count], hover[:count], error=error)
    for number in range(count, len(frame)):
        own = frame[number : number + 1]
        look: dict[str, Any] = {"hover": hover[number : number + 1], "name": kit.clipped(effects.names[number])}
        traces.append(kit.bar([number], own[name], style.SERIES[7], error=kit.whiskers(own, name), **look))
    what = f"{_about(effects)}. With the component minus without it. {kit.whiskered(frame)}"
    unit = frame.attrs["units"][name]
    title = f"Total effects on the {on}, {effects.model}"
    x = kit.component_axis(effects.components)
    return kit.arrange(go.Figure(traces), title, what, x=x, y={"title_text": unit}, plot=320)


@figure_of("compensation", "Effects")
def compensation_bars(effects: Effects, component: str | None = None, max_components: int = 16) -> go.Figure:
    """From the direct effect of one ablated component to its total effect: what each later one changes.

    `component` None is the component or group with the largest indirect effect. The later ones that change most are
    shown in stream order, the others together. Raises InputError for a component that was not ablated.
    """
    name = component or effects.names[int(np.abs(effects.effect("indirect").mean(0)).argmax())]
    frame = effects.compensation(name)
    number, size = effects.names.index(name), frame["compensation"].abs().to_numpy()
    later = np.arange(len(frame) - 1)
    shown = np.sort(later[np.argsort(-size[later], kind="stable")][:max_components])
    rest = np.setdiff1d(later, shown)
    table = effects.frame().iloc[number]
    whole = {key: [table[f"{key}{end}"] for end in ("", "_low", "_high")] for key in ("direct", "total")}
    ends = [f"compensation{end}" for end in ("", "_low", "_high")]
    values = [
        *frame.iloc[shown][ends].to_numpy().tolist(),
        *([[float(frame["compensation"].iloc[rest].sum()), np.nan, np.nan]] if len(rest) else []),
        frame.iloc[-1][ends].tolist(),
    ]
    colors = [style.MODULE[c.module] for i in shown for c in effects.members if c.label == frame["component"].iloc[i]]
    colors += [style.NEUTRAL] * (len(values) - len(shown))
    names = [*frame["component"].iloc[shown], *([f"{len(rest)} others"] if len(rest) else []), "final norm"]
    rows = [("direct", whole["direct"], style.SERIES[7]), *zip(names, values, colors, strict=True)]
    rows.append(("total", whole["total"], style.SERIES[7]))
    value, low, high = np.array([row[1] for row in rows], dtype=float).T
    hover = [
        f"<b>{html.escape(n)}</b><br>{style.measured(*map(float, v), unit=effects.measured_in)}" for n, v, _ in rows
    ]
    # The others together have no interval.
    error = kit.error_bars(value, np.where(np.isnan(low), value, low), np.where(np.isnan(high), value, high))
    bars = kit.bar(value, np.arange(len(rows)), [row[2] for row in rows], across=True, hover=hover, error=error)
    return kit.arrange(
        go.Figure(bars),
        f"From the direct to the total effect of {kit.clipped(name)}, {effects.model}",
        f"{_about(effects)}. The direct effect on the logit difference, what its presence changes in each later "
        f"component's contribution, and their sum, the total effect. {kit.whiskered(frame)}",
        x={"title_text": effects.measured_in, "zeroline": True},
        y=kit.named_rows([row[0] for row in rows]),
        plot=22 * len(rows) + 20,
    )


@figure_of("map", "Effects")
def backup_map(effects: Effects, max_components: int = 60) -> go.Figure:
    """A map ablated component × later component: by how much the first's presence changes the other's contribution.

    Of both the `max_components` with the largest changes are shown, in stream order.
    """
    frame = effects.backups()
    labels = [c.label for c in effects.members]
    place = {label: number for number, label in enumerate(labels)}
    z = np.full((len(labels), len(labels)), np.nan)
    rows, columns = (frame[name].map(place).to_numpy(int) for name in ("ablated", "component"))
    z[rows, columns] = frame["compensation"]
    hover = np.full(z.shape, "", dtype=object)
    hover[rows, columns] = [
        f"{text}<br>without {html.escape(ablated)}"
        for text, ablated in zip(
            kit.hover_lines(frame, {"compensation": "compensation"}), frame["ablated"], strict=True
        )
    ]
    size = np.nan_to_num(np.abs(z))
    kept = [np.sort(np.argsort(-size.max(axis), kind="stable")[:max_components]) for axis in (1, 0)]
    kept = [at[size[at].any(1) if axis else size[:, at].any(0)] for axis, at in zip((1, 0), kept, strict=True)]
    y, x = ([effects.members[i] for i in at] for at in kept)
    cells = np.ix_(*kept)
    return kit.arrange(
        go.Figure(kit.heat_map(z[cells], hover[cells], effects.measured_in, signed=True)),
        f"Which later components react to which, {effects.model}",
        f"{_about(effects)}. By how much a component's presence changes each later one's contribution to the logit "
        "difference, mean over rows; where the sign is that of the direct effect the later one rests on it, else it "
        "compensates for it.",
        x=kit.component_axis(x, "later component"),
        y=kit.component_axis(y, "ablated component") | {"autorange": "reversed"},
        plot=560,
    )


def _about(effects: Effects) -> str:
    rows = f"{len(effects.labels)} rows" + (f" of {effects.source}" if effects.source != "prompts" else "")
    where = "all tokens" if effects.positions == "all" else "the last token"
    return f"{rows}, {effects.ablation} ablation at {where}"
