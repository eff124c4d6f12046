"""Bias and diversity of components, along depth, against each other, by head and by module; Theorem 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice
from ...ensemble.decomposition import Decomposition, Gauge, NormAt
from ...ensemble.intervals import ENDS
from ...errors import InputError
from .. import axes, kit, layout, style
from ..names import extreme_names

_HEADINGS = {"bias": "Bias", "diversity": "Diversity", "net": "Net = bias − diversity"}
_GAUGES = get_args(Gauge)
_TOLD = 5  # the largest components are looked at for what first tokens add
_LOSSES = dict(squared="Squared error", paper="Eq. 14's loss", cross_entropy="Cross-entropy", brier="Brier loss")


# What a view of one part shows.
_MEANING = {
    "raw": "",
    "centered": "Centered: minus each component's mean logit. ",
    "shift": "Shift: each component's mean logit alone, which softmax cannot see. ",
}


def column_of(frame: pd.DataFrame, term: str, part: Gauge) -> str:
    """Return the column of a part of a term; a term without parts has one column."""
    name = term if part == "raw" else f"{term}_{part}"
    return name if name in frame else term


def gauge_of(measured: Any, part: Gauge) -> Any:
    """Return the centered or shift part of a decomposition or profile; itself for raw, or if it has no parts."""
    return measured if part == "raw" else getattr(measured, part, None) or measured


def _gauges(frame: pd.DataFrame, part: Gauge, term: str = "bias") -> tuple[list[Gauge], Gauge]:
    """Return the parts of a term in a frame, and the one to show first: raw if the requested one is missing."""
    choice("part", part, _GAUGES)
    parts: list[Gauge] = [p for p in _GAUGES if p == "raw" or f"{term}_{p}" in frame]
    return parts, part if part in parts else "raw"


def _largest(measured: Any, part: Gauge, count: int) -> tuple[list[Gauge], Gauge, pd.DataFrame, str]:
    """Return the parts of a result and the one to show, the rows with its largest diversity, and a remark."""
    whole = measured.by_component(**({"full": True} if hasattr(measured, "gauges") else {}))
    parts, part = _gauges(whole, part)
    return parts, part, *kit.largest(whole, column_of(whole, "diversity", part), count)


def _rows(measured: Any) -> str:
    """Return what the means of a decomposition or profile are over."""
    if isinstance(measured, Decomposition):
        return style.count(len(measured.values), "row")
    count = measured.positions if hasattr(measured, "positions") else int(measured.has_target.sum())
    return style.count(count, "predicted token")


def _zero(gauge: Any, part: Gauge) -> dict[str, float]:
    """Return the zero baseline of bias and net by column, if the result has it."""
    levels = {"bias": getattr(gauge, "zero_bias", None)}
    if getattr(getattr(gauge, "loss_function", None), "is_exact", False):
        levels["net"] = gauge.zero_net
    return {term + f"_{part}" * (part != "raw"): level for term, level in levels.items() if level is not None}


def loss_bars(decomposition: Decomposition, part: Gauge = "raw", max_components: int = 1500) -> go.Figure:
    """Draw bias, diversity and net of every component, whose means are the terms of the decomposition's loss.

    `part` is shown first, buttons show the others; bars of bias and net begin at the zero baseline. `max_components`
    are those with the largest diversity.
    """
    units = decomposition.frame().attrs["units"]

    def means(gauge: Decomposition) -> str:
        # Three digits, as the terms must add up.
        loss, bias, diversity = (style.number(x, 3) for x in (gauge.loss, gauge.bias, gauge.diversity))
        name = _target(gauge) + _LOSSES[gauge.loss_name]
        if decomposition.loss_function.is_exact:
            return f"{name} {loss} = mean bias {bias} − mean diversity {diversity} {units['bias']}. "
        return f"{name} {loss}, mean bias {bias} {units['bias']}, mean diversity {diversity} {units['diversity']}. "

    return _gauge_bars(decomposition, part, max_components, "", means)


def profile_bars(profile: Any, part: Gauge = "centered", max_components: int = 1500) -> go.Figure:
    """Draw bias, diversity and net of every component, means over the tokens of a text or corpus.

    `part` is shown first, buttons show the others. `max_components` are those with the largest diversity.
    """
    return _gauge_bars(profile, part, max_components, f"Over {_rows(profile)}, ", lambda gauge: "")


def _target(gauge: Any) -> str:
    """Say what the bias of a decomposition with labels is measured from."""
    if getattr(gauge, "gold", None) is None or gauge.loss_name != "squared":
        return ""
    return f"Target: 1 for the right option, 0 for others{', minus their mean' * (gauge.part == 'centered')}. "


def _starts(gauge: Any) -> str:
    """Name components of a profile whose diversity is mostly that of first tokens, which have no context."""
    if hasattr(gauge, "positions"):  # a corpus keeps no numbers of single tokens
        return ". A text's first token, which has no context, can outweigh all others"
    if not hasattr(gauge, "documents") or not gauge.has_target.any():
        return ""
    shares = _start_shares(gauge)
    mean = np.asarray(gauge.diversity)[:, gauge.has_target].mean(1)
    names = [gauge.components[i].label for i in np.argsort(-mean)[:_TOLD] if shares[i] > 0.5]
    return f". Mostly at a text's first token, which has no context: {', '.join(names)}" * bool(names)


def _start_shares(gauge: Any) -> np.ndarray:
    """Return the share of each component's diversity at first tokens; 0 where there are no others."""
    starts = (np.diff(gauge.documents, prepend=-1) != 0)[gauge.has_target]
    sizes = np.asarray(gauge.diversity)[:, gauge.has_target]
    return np.zeros(len(sizes)) if starts.all() else sizes[:, starts].sum(1) / np.maximum(sizes.sum(1), 1e-300)


def _most_diverse(gauge: Any, frame: pd.DataFrame, part: Gauge) -> str:
    """Write a title for the component with the largest diversity, and how much of it a profile's first tokens have."""
    column = column_of(frame, "diversity", part)
    first = kit.most(frame, column)
    kind = f"{part} " * (part != "raw" or f"{column}_centered" in frame)
    title = f"{first['component']} has the largest {kind}diversity{kit.ahead(frame, first, column)}"
    if not hasattr(gauge, "documents") or not gauge.has_target.any():
        return title
    row = [c.label for c in gauge.components].index(first["component"])
    share = _start_shares(gauge)[row]
    return title + f", {style.percent(share)} of it at a text's first token" * bool(share > 0.5)


def _gauge_bars(measured: Any, part: Gauge, count: int, over: str, means: Callable[[Any], str]) -> go.Figure:
    parts, part, frame, remark = _largest(measured, part, count)
    views = dict[str, go.Figure]()
    for name in parts:
        gauge = gauge_of(measured, name)
        columns = {column_of(frame, term, name): text for term, text in _HEADINGS.items() if term in frame}
        zero = _zero(gauge, name)
        based = " and ".join(term for term in ("bias", "net") if column_of(frame, term, name) in zero)
        base = f"Bars of {based} start at the zero baseline, a component that writes nothing"
        base = base if zero else "Bars start at 0"
        about = f"{means(gauge)}{base}{_starts(gauge)}. {_MEANING[name] * (len(parts) > 1)}{remark}"
        title = over + _most_diverse(gauge, frame, name if len(parts) > 1 else getattr(measured, "part", "raw"))
        views[name] = kit.component_bars(frame, columns, title, about, zero=zero)
    return layout.choose(views, part)


def cross_entropy_bars(decomposition: Decomposition, max_components: int = 1500) -> go.Figure:
    """Draw each component's part of the cross-entropy of the labels, in nats (`net_linear`): below 0 it helps.

    Heads are a map layer × head. Raises InputError for a dense target and for one part, which have no labels.
    """
    if decomposition.gold is None or decomposition.part != "raw":
        raise InputError("kind='cross_entropy' needs labels: decompose with labels=, and plot the whole, not a part.")
    if decomposition.loss_name != "cross_entropy":
        decomposition = replace(decomposition, loss_name="cross_entropy", tau=None)
    loss, entropy = style.number(decomposition.loss, 3), style.number(decomposition.entropy, 3)
    about = f"With the entropy {entropy} the parts sum to the loss, {loss} nats."
    if any(c.kind == "head" for c in decomposition.components):
        parts = f"{about} Below 0 (purple), more of the head lowers it."
        return layout.retitle(head_map(decomposition, "net_linear"), remark=parts)
    frame, remark = kit.largest(decomposition.by_component(full=True), "net_linear", max_components)
    about += " Below 0: scaling the component up slightly would lower the loss, a derivative and not the effect of an "
    about += f"ablation. {remark}"
    title = "{} has the part of the cross-entropy farthest from 0"
    return kit.component_bars(frame, {"net_linear": ""}, title, about, plot=320)


def bias_diversity_scatter(
    measured: Any, part: Gauge = "centered", log: bool | None = None, max_components: int = 5000
) -> go.Figure:
    """Draw bias (x) against diversity (y), a mark per component.

    `part` is shown first, buttons show the others. `max_components` are those with the largest diversity. `log` None
    draws logarithmic axes if every number is positive. On the dashed diagonal net = bias − diversity is 0.
    """
    parts, part, frame, remark = _largest(measured, part, max_components)
    pairs = {p: [column_of(frame, term, p) for term in ("bias", "diversity")] for p in parts}
    if log is None:
        log = bool((frame[[name for pair in pairs.values() for name in pair]].to_numpy() > 0).all())
    scale, units = axes.log_axis if log else axes.linear_axis, frame.attrs["units"]
    views: dict[str, go.Figure] = {}
    for p, (bias, diversity) in pairs.items():
        gauge, x, y = gauge_of(measured, p), frame[bias].to_numpy(), frame[diversity].to_numpy()
        zero = getattr(gauge, "zero_bias", np.nan)
        sides = scale([*x, zero]), scale(y)
        (left, right), (bottom, top) = (np.power(10.0, axis["range"]) if log else axis["range"] for axis in sides)
        texts = kit.hover(frame, [name for name in (bias, diversity, column_of(frame, "net", p)) if name in frame])
        largest, least = frame["component"].iloc[int(np.argmax(y))], frame["component"].iloc[int(np.argmin(x))]
        corners, lines = [min(left, bottom), max(right, top)], dict[str, tuple[list[float], list[float]]]()
        if np.isfinite(zero):
            lines[kit.ZERO] = [zero, zero], [bottom, top]
        if "net" in frame:
            lines["net = 0"] = corners, corners
        title = _most_diverse(gauge, frame, p if len(parts) > 1 else getattr(measured, "part", "raw"))
        always = [largest, least, *kit.named_in(title, frame)]
        look: dict[str, Any] = {"panel": (290, 460), "always": always, "guides": lines.values()}
        names = extreme_names(frame["component"], x, y, sides, [y, x, -x, y - x], **look)
        traces = [*kit.by_module(frame, x, y, texts, opacity=0.75), *names]
        dashes = {kit.ZERO: "dot", "net = 0": "dash"}
        traces += [kit.line(*ends, dash=dashes[name], name=name) for name, ends in lines.items()]
        how = " (logarithmic)" if log else ""
        x_axis, y_axis = sides[0] | {"title_text": f"bias, {units[bias]}{how}"}, sides[1]
        y_axis |= {"title_text": f"diversity, {units[diversity]}{how}"}
        has_ends = f"{bias}_low" in frame and bool(np.isfinite(frame[f"{bias}_low"]).any())
        about = f"{_target(gauge)}A mark is a component, a mean over {_rows(measured)}"
        about += "; intervals are in the hover" * has_ends
        if "net" in frame:
            about += ". Above the dashed diagonal its diversity exceeds its bias: its net, its term of the loss, is "
            about += "below 0. That is not the effect of removing it"
        which = "some outer marks" if len(names[0].x) < len(frame) else "all"
        about += f"{_starts(gauge)}. Names: {which}. {_MEANING[p] * (len(parts) > 1)}{remark}"
        if np.isfinite(zero):
            about += " Dotted: the bias of a component that writes nothing."
        views[p] = layout.finish(traces, title, about, x=x_axis, y=y_axis, plot=460, hovermode="closest")
    return layout.choose(views, part)


def depth_curves(
    decomposition: Decomposition, part: Gauge = "centered", norm: NormAt = "frozen", size_fair: bool = False
) -> go.Figure:
    """Draw accuracy (with labels), loss, bias and diversity of the prefix ensemble at every junction (Fig. 5 and 7).

    `part` and `size_fair` are shown first; buttons show the other parts, and |L|² × diversity, which does not fall
    merely because later prefixes have more members. Bands are 95 % intervals over examples.
    """
    frame = decomposition.by_depth(norm)
    parts, part = _gauges(frame, part, "diversity")
    steps, partial, units = np.arange(len(frame)), frame["partial"].to_numpy(dtype=bool), frame.attrs["units"]
    notes = np.where(partial, "partial: the stream never holds this sum", "")
    marker = {"size": 7, "symbol": np.where(partial, "circle-open", "circle")}
    terms = [term for term in ("accuracy", "loss", "bias", "diversity") if term in frame]
    x, x_title = axes.component_axis(frame) | {"showgrid": True}, "junction: the last component written"
    read = "the whole stream's norm" if norm == "frozen" else "each junction's own norm"
    subtitle = (
        f"{_rows(decomposition)}. At each junction, all components so far, read out with {read}, are an "
        f"ensemble that predicts with its mean. {kit.intervals(frame, 'Bands')}"
    )
    subtitle += " Open marks: partial sums, which the stream never holds." * bool(partial.any())
    exact = " = bias − diversity" * (decomposition.gap is not None)
    fair, views = ["", "|L|² × "] if "diversity_logit" in frame else [""], {}
    named = dict(zip(parts, parts, strict=True)) | {"raw": decomposition.part}  # a part's own rows have no suffix
    for p, factor in [(p, factor) for factor in fair for p in parts if not (factor and p == "shift")]:
        contents = []
        for term in terms:
            name = column_of(frame, "diversity_logit" if factor and term == "diversity" else term, p)
            band = kit.band(steps, frame[f"{name}_low"], frame[f"{name}_high"])
            marks = kit.by_module(frame, steps, frame[name].to_numpy(), kit.hover(frame, [name], notes), marker=marker)
            contents.append([band, kit.line(steps, frame[name]), *marks])
        if "accuracy" in terms:
            chance = [1 / decomposition.values.shape[2]] * 2
            contents[0].append(kit.line([-0.5, len(frame) - 0.5], chance, dash="dot", name="guessing"))
        headings = [*(term.capitalize() + exact * (term == "loss") for term in terms[:-1]), f"{factor}Diversity"]
        figure = layout.panels(contents, headings, units=[units[term] for term in terms], x_title=x_title)
        losses = frame[column_of(frame, "loss", p)]
        last = style.estimate(*(float(frame[f"{losses.name}{end}"].iloc[-1]) for end in ENDS), unit=units["loss"])
        digits = len(last.split()[0].partition(".")[2])
        precise = "(" in last and "." in last and "·" not in last  # then all have the digits that the interval gives
        first, most = (
            f"{x:,.{digits}f}" if precise else style.number(x) for x in map(float, (losses.iloc[0], losses.max()))
        )
        title, about = f"Loss of the prefix ensembles along depth: {first}, at most {most}, then {last}", subtitle
        jumps = False
        if "accuracy" in terms:
            right, low, high = (100 * frame["accuracy" + end] for end in ENDS)
            ended = style.percent(right.iloc[-1] / 100)
            ended += f" {style.interval(low.iloc[-1], high.iloc[-1], '.0f', none='')}" * ("(" in last)
            before, end = frame["accuracy"].iloc[-2:].iloc[0], len(frame) - 1
            jumps = end > 0 and (
                kit.above(frame, "accuracy", end, end - 1) or kit.above(frame, "accuracy", end - 1, end)
            )
            peak = int(frame["accuracy"].iloc[:-1].argmax()) if len(frame) > 1 else 0
            summit = f"{style.percent(frame['accuracy'].iloc[peak])} after {frame['component'].iloc[peak]}, back to "
            falls = 0 < peak < end - 1 and kit.above(frame, "accuracy", peak, end - 1)
            summit, jumps = summit * falls, jumps or falls
            dip = f"{summit}{style.percent(before)} before {frame['component'].iloc[-1]}, and to "
            loss = f"loss from {first} to {last}"
            title = f"Along depth accuracy goes from {style.percent(right.iloc[0] / 100)} to {dip * jumps}"
            title += ended.rstrip() + " at the end" * jumps
            title += f", the {loss}" * (not jumps)
            about += f" The {named[p]} {loss.replace('from', 'goes from')}." * jumps
        title += f" ({named[p]})" * (not jumps)  # accuracy is the same in all
        about += f" {_target(gauge_of(decomposition, p))}".rstrip()
        views[factor + named[p]] = layout.finish(figure, title, about, x=x, plot=170 * len(terms))
    return layout.choose(views, (fair[-1] if size_fair and part != "shift" else "") + named[part])


def head_map(
    decomposition: Decomposition, term: str = "diversity", part: Gauge = "centered", within_layer: bool = False
) -> go.Figure:
    """Draw a map layer × head of a numeric column of `by_component`, named by `term` and `part`, with MLPs as bars.

    Bias and net are relative to the zero baseline; `within_layer` subtracts the mean of the layer's heads, and has no
    intervals. Raises InputError without heads, and for an unknown part or column.
    """
    frame = decomposition.by_component(full=True)
    if not (frame["kind"] == "head").any():
        raise InputError("there are no heads here: decompose contributions(model, …, unit='head').")
    name, units = column_of(frame, term, part), frame.attrs["units"]
    numeric = [str(column) for column in frame if column in units and f"{column}_low" in frame]
    if name not in numeric:
        choice("term", term, numeric)
    zero = 0.0 if within_layer else _zero(gauge_of(decomposition, part), part).get(name, 0.0)
    texts, ends, heads = kit.hover(frame, [name]), [name, f"{name}_low", f"{name}_high"], frame["kind"] == "head"
    frame[ends] -= zero
    layers, z, text, of_layer = kit.head_table(frame, frame[name], texts)
    if within_layer:  # the title is about what the colors show
        z = z - np.nanmean(z, 1, keepdims=True)
        frame.loc[heads, ends] = np.nan
        frame.loc[heads, name] = z[of_layer[heads], frame.loc[heads, "index"].astype(int)]
    values = frame[name].to_numpy()
    limit = kit.robust_limit(z)
    contents: list[list[Any]] = [[kit.heat(z, text, units[name], limit, xgap=1, ygap=1)]]
    mlps = np.flatnonzero((frame["kind"] == "mlp") & (of_layer >= 0))
    if len(mlps):
        look = {"shape": "across", "showlegend": False}
        contents.append(kit.by_module(frame.iloc[mlps], values[mlps], of_layer[mlps], texts[mlps], **look))
    widths = [0.75, 0.25][: len(contents)]
    figure = layout.panels(contents, columns=len(contents), shared_xaxes=False, column_widths=widths)
    figure.update_xaxes(axes.count_axis("head", z.shape[1]), col=1)
    figure.update_xaxes(title_text=f"MLP, {units[name]}", nticks=3, col=2)
    words = f"{part} {term.replace('_', ' ')}" if name == f"{term}_{part}" else style.term_name(name)
    words += " (right minus others)" * (name == "logit_difference")
    best = kit.most(frame[heads], name)
    kit.frame_cell(figure, int(best["index"]), int(of_layer[best.name]), row=1, col=1)
    unit = f", {units[name]}" * (units[name] not in style.BARE)
    subtitle = f"A cell is one head's {words}{unit}, mean over {_rows(decomposition)}"
    subtitle += f", minus the zero baseline, {style.number(zero)}" if zero else ""
    subtitle += ", minus the mean of the layer's heads" * within_layer + "; the head of the title is framed. "
    subtitle += "Bars: the layer's MLP. " * bool(len(mlps))
    level = "its layer's mean" if within_layer else "the zero baseline" if zero else ""
    far = f"the {words} farthest from {level}" if level else f"the largest {words}"
    far += f" ({decomposition.part})" * (decomposition.part != "raw")
    title = f"Of the heads, {best['component']} has {far}"
    title += kit.ahead(frame[heads], best, name)
    y, plot = axes.layer_axis(layers), max(200, min(640, 18 * len(layers)))
    return layout.finish(figure, title, subtitle + kit.ends_at(limit), y=y, plot=plot)


def module_shares(decomposition: Decomposition) -> go.Figure:
    """Draw each module's share of bias and of diversity, raw and centered, with 95 % intervals (Fig. 4)."""
    frame = decomposition.by_module()
    frame["component"] = frame["module"].map(style.MODULE_NAME)
    parts = [part for part in _GAUGES[:2] if part == "raw" or f"bias_share_{part}" in frame]
    width, told = 0.8 / len(frame), [f"share of components {style.percent(share)}" for share in frame["member_share"]]
    offsets = (np.arange(len(frame)) - (len(frame) - 1) / 2) * width
    contents: list[list[Any]] = [[] for _ in parts]
    for panel, part in zip(contents, parts, strict=True):
        for places, term in zip((offsets, 1 + offsets), ("bias", "diversity"), strict=True):
            name = column_of(frame, f"{term}_share", part)
            panel += kit.bars(frame, name, kit.hover(frame, [name], told), places=places, width=0.92 * width)
            panel.append(kit.trace(frame, places, "member_share", texts=told, marker=kit.DASH))
    several = len(parts) > 1
    figure = layout.panels(contents, parts if several else [], len(parts), across=0.06, shared_xaxes=False)
    column = column_of(frame, "diversity_share", parts[-1])
    most = kit.most(frame, column)
    whole = f"{parts[-1] if several else decomposition.part} diversity"
    share, members = style.percent(most[column]), style.percent(most["member_share"])
    low, high = most[f"{column}_low"], most[f"{column}_high"]
    share += f" {style.interval(100 * low, 100 * high, '.0f', none='')}".rstrip()
    title = f"{most['component']}, {members} of components, holds {share} of the {whole}"
    title += ", not clearly more" * bool(low <= most["member_share"])
    if np.isnan(most[column]):
        title = f"The {whole} is 0, so no module has a share of it"
    subtitle = "The gray dash is the module's share of components, n_g/|L|. "
    subtitle += "".join(_MEANING[name] for name in parts) * several + kit.intervals(frame)
    most_share = float(np.nanmax(frame.filter(regex="^(bias|diversity|member)_share"), initial=0.01))
    x, y = axes.ticks([0, 1], ["bias", "diversity"]), axes.share_axis(most_share)
    figure.update_yaxes(title_text="share", col=1)
    return layout.finish(figure, title, subtitle, x=x, y=y, barmode="overlay")
