"""Direct against total effects, compensation by later components, and components by size and logit difference."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...ensemble.decomposition import Decomposition
from ...ensemble.intervals import ENDS, LEAST
from ...errors import InputError
from .. import axes, kit, layout, style
from ..names import extreme_names
from .ensemble import rows_note

if TYPE_CHECKING:
    from ...depth.effect_results import Effects

On = Literal["logit difference", "loss", "accuracy"]
# Targets of effects: the suffixes of the frame's columns.
_ENDS = {"logit difference": "", "loss": "_loss", "accuracy": "_accuracy"}
# So many components have a name in the figure of roles: those farthest from 0.
_NAMED = 5


def effect_scatter(effects: Effects, on: On = "logit difference") -> go.Figure:
    """Draw direct (x) against total effect (y) of every component and group, with 95 % intervals, or the range of rows.

    Options of several tokens have only total effects, drawn as `total_bars`.
    """
    if "direct" not in effects.effects:
        return total_bars(effects, on)
    frame, end = _frame(effects), _ENDS[on]
    direct, total = names = (f"direct{end}", f"total{end}")
    texts = kit.hover(frame, [*names, f"indirect{end}"])
    most = kit.most(frame, total)
    title = _first(effects, on).replace("{}", most["component"]) + kit.ahead(frame, most, total)
    if len(effects.labels) < LEAST:  # no intervals
        for name in names:
            by_row = effects.effect(name.split("_")[0], end)
            frame[f"{name}_low"], frame[f"{name}_high"] = by_row.min(0), by_row.max(0)
    sides = [axes.linear_axis([0, *np.ravel(frame[[name, f"{name}_low", f"{name}_high"]])]) for name in names]
    for axis, name in zip(sides, names, strict=True):
        axis |= {"title_text": f"{name.split('_')[0]} effect, {frame.attrs['units'][name]}", "zeroline": True}
    x, y = frame[direct].to_numpy(), frame[total].to_numpy()
    ends = [min(axis["range"][0] for axis in sides), max(axis["range"][1] for axis in sides)]
    diagonal = kit.line(ends, ends, dash="dash", name="total = direct")
    far, always = [np.abs(v) for v in (y - x, y, x)], kit.named_in(title, frame)
    spans = frame[f"{direct}_low"].to_numpy(), frame[f"{direct}_high"].to_numpy()
    zeros = ([0, 0], sides[1]["range"]), (sides[0]["range"], [0, 0])
    look: dict[str, Any] = {"panel": (290, 440), "always": always, "guides": [(ends, ends), *zeros], "spans": spans}
    labels = extreme_names(frame["component"], x, y, sides, far, **look)
    # The whiskers of all marks would hide those near 0.
    is_named = frame["component"].isin([text.strip() for text in labels[0].text])
    whiskers = kit.trace(frame[is_named], direct, total, marker={"size": 0.1})
    whiskers.update(error_x_thickness=2, error_y_thickness=2)  # to be seen on the axes
    which = "Whiskers" if is_named.all() else "Whiskers of named marks"
    said = kit.intervals(frame, which)
    said += f" {which}: from the lowest row to the highest." * (len(effects.labels) < LEAST)
    subtitle = f"{_about(effects, on)} Where total and direct effect differ, later components "
    subtitle += "(which compensate for the component or depend on it) or the final norm react to the ablation. "
    subtitle += "Names: those of the title, and others where there is room. " * (not is_named.all()) + said
    traces = [whiskers, *kit.by_module(frame, x, y, texts), diagonal, *labels]
    return layout.finish(traces, title, subtitle, x=sides[0], y=sides[1], plot=440, hovermode="closest")


def total_bars(effects: Effects, on: On = "logit difference") -> go.Figure:
    """Draw the total effect of every component, with 95 % intervals, and of groups after them, as ablated."""
    column, frame = f"total{_ENDS[on]}", _frame(effects)
    order = f"component{', then group' * (len(effects.names) > len(effects.components))}, in the order given"
    look: dict[str, Any] = {"y": f"total effect, {frame.attrs['units'][column]}", "plot": 320, "x_title": order}
    figure = kit.component_bars(frame, {column: ""}, _first(effects, on), _about(effects, on), **look)
    if len(frame) <= axes.NAMED:
        names = [html.escape(name, quote=False) for name in frame["component"]]
        figure.update_xaxes(axes.named_columns(names, range(len(frame))))
    return figure


def compensation_bars(effects: Effects, component: str | None = None, max_components: int = 16) -> go.Figure:
    """Draw the changes of later components that lead from an ablated component's direct effect to its total effect.

    `component` None is the one with the largest indirect effect; the changes beyond `max_components` are summed. Raises
    InputError for a component that was not ablated.
    """
    name = component or effects.names[int(np.abs(effects.effect("indirect").mean(0)).argmax())]
    change, unit = effects.compensation(name), effects.measured_in
    modules = {c.label: c.module for c in effects.members}
    change["module"] = [modules.get(label, "constant") for label in change["component"]]
    later, whole = change.iloc[:-1], effects.frame().iloc[effects.names.index(name)]
    sides = ("direct", "total")
    ends = {
        side: {f"compensation{end}": whole[side + end] for end in ("", "_low", "_high")}
        | {"component": side, "module": "group"}
        for side in sides
    }
    kept = kit.top(later["compensation"], max_components)
    others = later.drop(index=later.index[kept])
    rest = {
        "component": f"{len(others)} other{'s' * (len(others) > 1)}",
        "module": "constant",
        "compensation": others["compensation"].sum(),
    }
    rows = [ends["direct"], *later.iloc[kept].to_dict("records"), *[rest] * (len(others) > 0)]
    norm = change.iloc[-1].to_dict() | {"component": "final norm"}
    frame = pd.DataFrame([*rows, norm, ends["total"]])
    frame.attrs = {"units": {"compensation": unit}, "intervals": change.attrs.get("intervals", "")}
    total, direct = style.estimate(*(whole["total" + end] for end in ENDS), unit=unit), whole["direct"]
    indirect = whole["total"] - direct
    did = f"later components and the norm add {style.number(indirect)}"
    if indirect * direct < 0 and abs(indirect) <= abs(direct):
        did = f"later components and the norm make up for {style.number(abs(indirect))}"
    title = f"{name}'s total effect is {total}{kit.doubt(whole, 'total')}; its direct effect is "
    title += f"{style.number(direct)}, and {did}"
    subtitle = (
        f"{effects.model}: {_about(effects)} Between direct and total effect: by how much its presence changes each "
        "later component's contribution to the logit difference, and what it changes through the final norm, which "
        f"divides by the size of the whole stream. {kit.intervals(frame)}"
    )
    look: dict[str, Any] = {"x": {"title_text": unit, "zeroline": True}, "y": axes.named_rows(frame["component"])}
    texts = kit.hover(frame, {"": "compensation"})
    bars = kit.bars(frame, "compensation", texts, shape="across")
    for drawn in bars:  # the others' names are on the axis
        drawn.showlegend = drawn.legendgroup not in ("group", "constant")
    return layout.finish(bars, title, subtitle, plot=22 * len(frame) + 20, barmode="overlay", **look)


def backup_map(effects: Effects, max_components: int = 60) -> go.Figure:
    """Draw a map ablated × later component of the change of the later one's contribution through the other.

    Raises InputError if no component follows the ablated ones.
    """
    frame, members = effects.backups(), effects.members
    if frame.empty:
        raise InputError("no component reads what the ablated ones write: ablate one that is not the last.")
    place = {c.label: number for number, c in enumerate(members)}
    at = tuple(frame[name].map(place).to_numpy(int) for name in ("ablated", "component"))
    texts = kit.hover(frame, ["compensation"], "without " + frame["ablated"])
    z, texts = kit.grid((len(members),) * 2, at, frame["compensation"], texts)
    sizes = [np.nan_to_num(np.abs(z)).max(axis) for axis in (1, 0)]
    kept = [np.intersect1d(kit.top(size, max_components), np.flatnonzero(size)) for size in sizes]
    clear = frame[frame["compensation_low"] * frame["compensation_high"] > 0] if "compensation_low" in frame else frame
    most, cells = kit.most(clear if len(clear) else frame, "compensation"), np.ix_(*kept)
    size = kit.ahead(frame, most, "compensation", other="{component}'s reaction to {ablated}").replace(",", "", 1)
    is_most = abs(most["compensation"]) == frame["compensation"].abs().max()
    reacts = "reacts most"
    if not is_most:  # it is one of those that are clear, and no more
        reacts = f"has the only clear reaction, of {len(frame):,}"
        if len(clear) > 1:
            reacts = f"has the largest of {len(clear)} clear reactions, of {len(frame):,}"
        ends = (most[f"compensation{end}"] for end in ENDS)
        size = f" {style.estimate(*ends, unit=effects.measured_in)}"
    title = f"{most['component']} {reacts}: the presence of {most['ablated']} adds to it{size}"
    subtitle = (
        f"{effects.model}: {_about(effects)} A cell shows by how much the presence of the row's component changes what "
        "the column's contributes to the logit difference. A cell of the opposite sign to the row's own contribution "
        "compensates for it, one of the same sign depends on it."
    )
    subtitle += " Groups have no row." * (len(effects.names) > len(effects.components))
    rows, columns = ([members[i] for i in some] for some in kept)
    y = axes.ticks(range(len(rows)), [c.label for c in rows]) | {"title_text": "ablated component"}
    look: dict[str, Any] = {"x": axes.member_axis(columns, "later component"), "y": y | {"autorange": "reversed"}}
    look |= {"signed": True, "plot": max(460, 14 * len(rows)), "below": 30}
    look["named"] = [
        np.searchsorted(kept[side], place[most[name]]) for side, name in ((1, "component"), (0, "ablated"))
    ]
    return kit.heat_figure(z[cells], texts[cells], effects.measured_in, title, subtitle, **look)


def _frame(effects: Effects) -> pd.DataFrame:
    """Return the frame of effects, whose last rows are groups."""
    frame = effects.frame()
    frame.loc[frame.index[len(effects.components) :], "module"] = "group"
    return frame


def _first(effects: Effects, on: On) -> str:
    """Write a title for the component or group, {}, with the largest total effect among those that were ablated."""
    if len(effects.names) == 1:
        return f"Without {{}}: the total effect on the {on}"
    return f"Of {len(effects.names)} ablated, {{}} has the largest mean total effect on the {on}"


def _about(effects: Effects, on: On = "logit difference") -> str:
    of = f" of {effects.source}" * (effects.source != "prompts")
    where = "all tokens" if effects.positions == "all" else "the last token"
    mean = "mean over these rows' tokens, separately for first, last and other ones"
    instead = {"mean": mean, "resample": "value in another row"}
    by = f" (each output becomes its {instead[effects.ablation]})" if effects.ablation in instead else ""
    rows = f"{style.count(len(effects.labels), 'row')}{of}, {effects.ablation} ablation at {where}{by}."
    other = "the mean of the others" if effects.logits.shape[1] > 2 else "the other's"
    what = "logit" if effects.measured_in == "logits" else "log-likelihood"
    means = f" The logit difference is the right option's {what} minus {other}." * (on == "logit difference")
    return f"{rows} An effect is the {on} with the component minus without it.{means}"


def role_scatter(decomposition: Decomposition, effects: Any = None) -> go.Figure:
    """Draw every component's size, √diversity, against its mean logit difference, colored by its accuracy alone, and
    below it the costs of `effects`, results of `ld.effects`.

    A reader is to the right of 0 and often right alone; a counterweight is large but alone right no more often than
    guessing, the share of the most frequent label (gray), since it writes mostly a constant (`constant_share` in the
    hover is near 1). `effects` are one or several `Effects` of some components on other rows, whose costs in nats are
    drawn below. Raises InputError for a decomposition without labels or of one member, and for effects of another type
    or model.
    """
    chance = decomposition.chance
    if chance is None:
        raise InputError("roles need a gold option for each example: decompose with labels.")
    several = () if effects is None else effects if isinstance(effects, list | tuple) else (effects,)
    if not all(type(e).__name__ == "Effects" for e in several):
        raise InputError("effects= of this figure must be results of ld.effects, one or a list of them.")
    name = decomposition.model.removeprefix("zoo/")  # which older results lack
    if other := {e.model for e in several if name and e.model.removeprefix("zoo/") != name}:
        raise InputError(f"effects= are of {min(other)}, but the decomposition is of {decomposition.model}.")
    ablated = _most_costly(several)
    frame = decomposition.by_component(full=True)
    if not (frame["diversity"] > 0).any():
        raise InputError("all members are alike, so that none has a size: decompose several components.")
    frame = frame[frame["diversity"] > 0].reset_index(drop=True).assign(size=lambda rows: np.sqrt(rows["diversity"]))
    x, y = frame["logit_difference"].to_numpy(), frame["size"].to_numpy()
    ends = axes.linear_axis(frame.filter(regex="^logit_difference"), 0.03), axes.log_axis(y)
    always = [*frame.iloc[kit.top(x, _NAMED)]["component"], frame["component"][int(y.argmax())], *ablated]
    spans = frame["logit_difference_low"].to_numpy(), frame["logit_difference_high"].to_numpy()
    look: dict[str, Any] = {"panel": (290, 300 if several else 400), "always": always, "spans": spans, "at_ends": True}
    labels = extreme_names(frame["component"], x, y, ends, [np.abs(x)], most=_NAMED, **look)
    is_named = frame["component"].isin([text.strip() for text in labels[0].text])
    columns = ["logit_difference", "accuracy", "auc", "constant_share", "bias"]
    texts = kit.hover(frame, [column for column in columns if column in frame])
    marker = _accuracy_colors(frame["accuracy"].to_numpy(), chance, 0.5 if several else 1.0)
    marks = []
    for at, width in ((np.flatnonzero(~is_named), 1), (np.flatnonzero(is_named), 2)):
        ring = {"line": {"width": width, "color": style.NEUTRAL}, "showscale": width == 2}
        colors = frame["accuracy"].to_numpy()[at] - chance
        marks.append(kit.trace(frame.iloc[at], x[at], y[at], colors, texts[at], marker=marker | ring))
    whiskers = kit.trace(frame[is_named], "logit_difference", "size", marker={"size": 0.1})
    traces = [marks[0], whiskers, marks[1], *labels]  # marks with a name cover others
    contents = [traces, _costs(several, ablated)] if several else [traces]
    figure = layout.panels(contents, ["", "Cost of ablation"] if several else [], gap=0.5, shared_xaxes=False)
    x_title = "mean logit difference, right minus others, logits"
    figure.update_xaxes(ends[0] | {"title_text": x_title, "zeroline": True}, row=1, col=1)
    y_title = "size of what it writes: √diversity,\nlogits per option (logarithmic)"
    figure.update_yaxes(ends[1] | {"title_text": y_title}, row=1, col=1)
    about = f"{rows_note(decomposition)} Guessing: {style.percent(chance)}. {kit.intervals(frame)}"
    if several:
        about += f" Costs over {style.count(len(several[0].labels), 'row')}."
        x_title = "increase of the cross-entropy over the options\nwhen ablated, nats"
        figure.update_xaxes(title_text=x_title, zeroline=True, row=2, col=1)
        figure.update_yaxes(axes.named_rows(ablated), row=2, col=1)
        figure.update_layout(yaxis_domain=[0.43, 1], yaxis2_domain=[0, 0.27])
        figure.update_annotations(y=0.28, align="left", xshift=-50)  # fits 400 pixels
    plot = 400 + (260 + 16 * len(ablated)) * bool(several)
    title = "Size and mean logit difference by component"
    return layout.finish(figure, title, about, plot=plot, below=18 * bool(several))


def _accuracy_colors(accuracy: np.ndarray, chance: float, length: float) -> dict[str, Any]:
    """Return marks whose color is accuracy − chance, gray at 0, with a color bar in shares of rows."""
    most = max(float(np.abs(accuracy - chance).max()), 0.01)
    ticks = [max(-most, -chance), 0.0, min(most, 1 - chance)]
    bar = {
        "title": {"text": "right alone, share of rows", "side": "right", "font": {"size": 12}},
        "thickness": 12,
        "outlinewidth": 0,
        "tickvals": ticks,
        "ticktext": [style.percent(chance + tick) for tick in ticks],
        "y": 1,
        "yanchor": "top",
        "len": length,
    }
    return {"cmin": -most, "cmax": most, "autocolorscale": True, "colorbar": bar, "size": 10}


def _costs(effects: Any, names: list[str]) -> list[go.Scatter]:
    """Draw the cost of ablation in nats, a trace per kind of ablation."""
    traces = []
    for number, (e, color) in enumerate(zip(effects, style.SERIES, strict=False)):
        frame = e.frame()
        attrs, frame = frame.attrs, frame[frame["component"].isin(names)]
        frame.attrs = attrs
        y = np.array([names.index(name) for name in frame["component"]]) + 0.16 * (number - (len(effects) - 1) / 2)
        traces.append(kit.trace(frame, "cost", y, color, name=f"{e.ablation} ablation"))
    return traces


def _most_costly(effects: Any, count: int = 12) -> list[str]:
    """Return the ablated components and groups, at most `count`, by their largest cost."""
    names = list(dict.fromkeys(name for e in effects for name in e.names))
    if len(names) <= count:
        return names
    costs = pd.concat([e.frame().set_index("component")["cost"].abs() for e in effects]).groupby(level=0).max()
    kept = set(costs.nlargest(count).index)
    return [name for name in names if name in kept]
