"""Bias and diversity of components, along depth, against each other, by head and by module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice
from ...ensemble.decomposition import Decomposition, NormAt
from ...errors import InputError
from .. import axes, kit, layout, style
from ..names import extreme_names

_HEADINGS = {"bias": "Bias", "diversity": "Diversity", "net": "Net = bias − diversity"}
_LOSSES = {"squared": "Squared error", "paper": "Eq. 14's loss", "cross_entropy": "Cross-entropy"}


def gauge_note(measured: Any) -> str:
    """Return the gauge of a result's terms for the end of a title: ", centered"; nothing for losses without gauges."""
    if isinstance(measured, Decomposition) and not measured.loss_function.has_gauges:
        return ""
    return f", {measured.gauge}"


def rows_note(measured: Any) -> str:
    """Return what the means of a decomposition or profile are over, as a sentence."""
    if isinstance(measured, Decomposition):
        return f"{style.count(len(measured.values), 'row')}."
    return f"{style.count(int(measured.has_target.sum()), 'predicted token')}."


def _zero(measured: Any) -> dict[str, float]:
    """Return the zero baseline of bias and net, if the result has it."""
    levels = {"bias": getattr(measured, "zero_bias", None)}
    if isinstance(measured, Decomposition) and measured.loss_function.is_exact:
        levels["net"] = measured.zero_net
    return {term: level for term, level in levels.items() if level is not None}


def _totals(d: Decomposition) -> str:
    """Write the terms of the loss as an equation, with three digits, since they must add up."""
    units = d.frame().attrs["units"]
    loss, bias, diversity = (style.number(x, 3) for x in (d.loss, d.bias, d.diversity))
    name = _LOSSES[d.loss_name]
    if d.loss_function.is_exact:
        return f"{name} {loss} = mean bias {bias} − mean diversity {diversity} {units['bias']}. "
    return f"{name} {loss}, mean bias {bias} {units['bias']}, mean diversity {diversity} {units['diversity']}. "


def loss_bars(decomposition: Decomposition, max_components: int = 1500) -> go.Figure:
    """Draw bias, diversity and net of every component, whose means are the terms of the decomposition's loss.

    Bars of bias and net begin at the zero baseline, a component that writes nothing. `max_components` are those with
    the largest diversity.
    """
    return _term_bars(decomposition, decomposition.by_component(full=True), max_components, _totals(decomposition))


def profile_bars(profile: Any, max_components: int = 1500) -> go.Figure:
    """Draw bias, diversity and net of every component, means over the tokens of a text.

    `max_components` are those with the largest diversity.
    """
    return _term_bars(profile, profile.by_component(), max_components)


def _term_bars(measured: Any, frame: pd.DataFrame, count: int, about: str = "") -> go.Figure:
    frame, remark = kit.largest(frame, "diversity", count)
    columns = {term: heading for term, heading in _HEADINGS.items() if term in frame}
    title = f"Bias, diversity and net by component{gauge_note(measured)}"
    return kit.component_bars(frame, columns, title, f"{about}{rows_note(measured)} {remark}", zero=_zero(measured))


def cross_entropy_bars(decomposition: Decomposition, max_components: int = 1500) -> go.Figure:
    """Draw each component's part of the cross-entropy of the labels, in nats (`net_linear`): below 0 it helps.

    Heads are a map layer × head. Raises InputError for a dense target, which has no labels.
    """
    if decomposition.gold is None:
        raise InputError("kind='cross_entropy' needs labels: decompose with labels=.")
    if decomposition.loss_name != "cross_entropy":
        decomposition = replace(decomposition, loss_name="cross_entropy", temperature=None)
    if any(c.kind == "head" for c in decomposition.components):
        return head_map(decomposition, "net_linear")
    frame, remark = kit.largest(decomposition.by_component(full=True), "net_linear", max_components)
    loss, entropy = style.number(decomposition.loss, 3), style.number(decomposition.entropy, 3)
    about = f"Loss {loss} nats = entropy {entropy} + the sum of the bars. {rows_note(decomposition)} {remark}"
    return kit.component_bars(frame, {"net_linear": ""}, "Part of the cross-entropy by component", about, plot=320)


def bias_diversity_scatter(measured: Any, log: bool | None = None, max_components: int = 5000) -> go.Figure:
    """Draw bias (x) against diversity (y), a mark per component of a decomposition or profile.

    `max_components` are those with the largest diversity. `log` None draws logarithmic axes if every number is
    positive. On the dashed diagonal net = bias − diversity is 0; the dotted line is the bias of a component that
    writes nothing.
    """
    is_decomposition = isinstance(measured, Decomposition)
    frame = measured.by_component(full=True) if is_decomposition else measured.by_component()
    frame, remark = kit.largest(frame, "diversity", max_components)
    x, y, units = frame["bias"].to_numpy(), frame["diversity"].to_numpy(), frame.attrs["units"]
    if log is None:
        log = bool((x > 0).all() and (y > 0).all())
    scale = axes.log_axis if log else axes.linear_axis
    zero = _zero(measured).get("bias", np.nan)
    sides = scale([*x, zero]), scale(y)
    (left, right), (bottom, top) = (np.power(10.0, axis["range"]) if log else axis["range"] for axis in sides)
    lines = dict[str, tuple[list[float], list[float]]]()
    if np.isfinite(zero):
        lines[kit.ZERO] = [zero, zero], [bottom, top]
    if "net" in frame:
        lines["net = 0"] = ([min(left, bottom), max(right, top)],) * 2
    outer = [frame["component"].iloc[int(at)] for at in (np.argmax(y), np.argmin(x))]
    look: dict[str, Any] = {"panel": (290, 460), "always": outer, "guides": lines.values()}
    names = extreme_names(frame["component"], x, y, sides, [y, x, -x, y - x], **look)
    texts = kit.hover(frame, [name for name in ("bias", "diversity", "net") if name in frame])
    traces = [*kit.by_module(frame, x, y, texts, opacity=0.75), *names]
    dashes = {kit.ZERO: "dot", "net = 0": "dash"}
    traces += [kit.line(*ends, dash=dashes[name], name=name) for name, ends in lines.items()]
    how = " (logarithmic)" if log else ""
    x_axis = sides[0] | {"title_text": f"bias, {units['bias']}{how}"}
    y_axis = sides[1] | {"title_text": f"diversity, {units['diversity']}{how}"}
    title, about = f"Bias and diversity by component{gauge_note(measured)}", f"{rows_note(measured)} {remark}"
    return layout.finish(traces, title, about, x=x_axis, y=y_axis, plot=460, hovermode="closest")


def depth_curves(decomposition: Decomposition, norm: NormAt = "frozen", size_fair: bool = False) -> go.Figure:
    """Draw accuracy (with labels), loss, bias and diversity of the prefix ensemble at every junction (Fig. 5 and 7).

    `size_fair` draws |L|² × diversity, which does not fall merely because later prefixes have more members. Bands are
    95 % intervals; open marks are partial sums, which the stream never holds. The dotted line is guessing.
    """
    frame = decomposition.by_depth(norm)
    steps, partial, units = np.arange(len(frame)), frame["partial"].to_numpy(dtype=bool), frame.attrs["units"]
    notes = np.where(partial, "partial: the stream never holds this sum", "")
    marker = {"size": 7, "symbol": np.where(partial, "circle-open", "circle")}
    headings = {term: term.capitalize() for term in ("accuracy", "loss", "bias", "diversity") if term in frame}
    if decomposition.loss_function.is_exact:
        headings["loss"] = "Loss = bias − diversity"
    if size_fair and "diversity_logit" in frame:
        headings["diversity_logit"] = f"|L|² × {headings.pop('diversity').lower()}"
    contents = []
    for name in headings:
        band = kit.band(steps, frame[f"{name}_low"], frame[f"{name}_high"])
        marks = kit.by_module(frame, steps, frame[name].to_numpy(), kit.hover(frame, [name], notes), marker=marker)
        contents.append([band, kit.line(steps, frame[name]), *marks])
    if "accuracy" in headings:
        chance = [decomposition.chance] * 2
        contents[0].append(kit.line([-0.5, len(frame) - 0.5], chance, dash="dot", name="guessing"))
    x = axes.component_axis(frame) | {"showgrid": True}
    x_title = "junction: the last component written"
    figure = layout.panels(contents, headings.values(), units=[units[term] for term in headings], x_title=x_title)
    title = f"Prefix ensembles along depth{gauge_note(decomposition)}"
    about = f"{rows_note(decomposition)} {'Norm recomputed at each junction. ' * (norm == 'recomputed')}"
    return layout.finish(figure, title, about + kit.intervals(frame, "Bands"), x=x, plot=170 * len(headings))


def head_map(decomposition: Decomposition, term: str = "diversity", within_layer: bool = False) -> go.Figure:
    """Draw a map layer × head of a numeric column of `by_component`, named by `term`, with MLPs as bars.

    Bias and net are relative to the zero baseline; `within_layer` subtracts the mean of the layer's heads. Raises
    InputError without heads, and for an unknown column.
    """
    frame = decomposition.by_component(full=True)
    if not (frame["kind"] == "head").any():
        raise InputError("there are no heads here: decompose contributions(model, …, unit='head').")
    units = frame.attrs["units"]
    columns = [str(name) for name in frame if name in units]
    choice("term", term, [name for name in columns if not name.endswith(("_low", "_high"))])
    zero = 0.0 if within_layer else _zero(decomposition).get(term, 0.0)
    texts = kit.hover(frame, [term])
    values = frame[term].to_numpy() - zero
    layers, z, text, of_layer = kit.head_table(frame, values, texts)
    if within_layer:
        z = z - np.nanmean(z, 1, keepdims=True)
    limit = kit.robust_limit(z)
    contents: list[list[Any]] = [[kit.heat(z, text, units[term], limit, xgap=1, ygap=1)]]
    mlps = np.flatnonzero((frame["kind"] == "mlp") & (of_layer >= 0))
    if len(mlps):
        look = {"shape": "across", "showlegend": False}
        contents.append(kit.by_module(frame.iloc[mlps], values[mlps], of_layer[mlps], texts[mlps], **look))
    widths = [0.75, 0.25][: len(contents)]
    figure = layout.panels(contents, columns=len(contents), shared_xaxes=False, column_widths=widths)
    figure.update_xaxes(axes.count_axis("head", z.shape[1]), col=1)
    figure.update_xaxes(title_text=f"MLP, {units[term]}", nticks=3, col=2)
    name = style.term_name(term)
    gauge = gauge_note(decomposition) if term not in ("accuracy", "auc", "logit_difference", "constant_share") else ""
    about = f"Minus the zero baseline, {style.number(zero)}. " if zero else ""
    about += "Minus the mean of the layer's heads. " * within_layer
    y, plot = axes.layer_axis(layers), max(200, min(640, 18 * len(layers)))
    title, about = f"{name[:1].upper()}{name[1:]} by head{gauge}", f"{about}{rows_note(decomposition)} "
    return layout.finish(figure, title, about + kit.ends_at(limit), y=y, plot=plot)


def module_shares(decomposition: Decomposition) -> go.Figure:
    """Draw each module's share of bias and of diversity with 95 % intervals (Fig. 4); the dash is its share of |L|."""
    frame = decomposition.by_module()
    frame["component"] = frame["module"].map(style.MODULE_NAME)
    width, notes = 0.8 / len(frame), [f"share of components {style.percent(share)}" for share in frame["member_share"]]
    offsets = (np.arange(len(frame)) - (len(frame) - 1) / 2) * width
    traces: list[Any] = []
    for places, name in ((offsets, "bias_share"), (1 + offsets, "diversity_share")):
        traces += kit.bars(frame, name, kit.hover(frame, [name], notes), places=places, width=0.92 * width)
        traces.append(kit.trace(frame, places, "member_share", texts=notes, marker=kit.DASH))
    figure = layout.panels([traces])
    title = f"Shares of bias and diversity by module{gauge_note(decomposition)}"
    about = f"{rows_note(decomposition)} Dash: share of components. {kit.intervals(frame)}"
    most_share = float(np.nanmax(frame.filter(regex="^(bias|diversity|member)_share"), initial=0.01))
    x, y = axes.ticks([0, 1], ["bias", "diversity"]), axes.share_axis(most_share) | {"title_text": "share"}
    return layout.finish(figure, title, about, x=x, y=y, barmode="overlay")
