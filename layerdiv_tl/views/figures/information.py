"""Terms of Eq. 13 with their nulls, bounds of the error, and the information as members are added."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice, listed, one_of
from ..._registry import figure_of
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...ensemble.information import Bounds, GainCurve, Information, LowerBound

_LABELS = style.LABELS["information"]
_NAMES = _LABELS["term"]
# The same color for a term in every figure of information.
_COLORS = dict(zip(_NAMES, style.SERIES, strict=False))
_SHOWN = ("relevancy", "gain")  # of every member


@figure_of("terms", "Information", default=True)
def term_bars(information: Information) -> go.Figure:
    """Every term of Eq. 13 in bits with its interval; the gray band is what its null gives.

    A term inside its band cannot be distinguished from noise. H(Y), beyond which no joint information goes, is dotted.
    The diamond is a nonlinear lower bound of the joint information; where it contradicts the estimate, the
    subtitle says so.
    """
    frame = information.frame()
    frame = frame[np.isfinite(frame["bits"])].reset_index(drop=True)
    rows, entropy = frame.to_dict("records"), information.label_entropy
    nulls = [f"{row['null_model']}: {style.interval(row['null_low'], row['null_high'])}" for row in rows]
    hover = [
        f"<b>{_NAMES[row['term']]}</b><br>{kit.estimated(row['bits'], row['low'], row['high'])} bits "
        f"({row['bound']})<br>null, {null}, p = {style.number(row['p'])}"
        for row, null in zip(rows, nulls, strict=True)
    ]
    noise: dict[str, Any] = {"width": 0.66, "opacity": 0.35, "name": "what noise gives (95 %)", "across": True}
    noise |= {"base": frame["null_low"], "hover": [f"{text} bits" for text in nulls]}
    estimates: dict[str, Any] = {"size": 10, "name": "estimate with 95 % interval", "hover": hover, "across": True}
    estimates["error"] = kit.whiskers(frame, "bits", "low", "high", thickness=1.6)
    traces = [
        kit.bar(frame["null_high"] - frame["null_low"], frame.index, style.NEUTRAL, **noise),
        kit.dots(frame["bits"], frame.index, [_COLORS[term] for term in frame["term"]], **estimates),
    ]
    if bound := information.lower_bound:
        color, ends = _COLORS["joint"], (bound.bits, bound.low, bound.high)
        mark: dict[str, Any] = {"size": 10, "symbol": "diamond-open", "edge": 2, "name": "nonlinear lower bound"}
        mark["hover"] = [f"<b>I(U; Y) is at least</b><br>{kit.estimated(*ends)} bits"]
        mark["error"] = kit.error_bars(*([end] for end in ends), thickness=1.2, color=color)
        traces.append(kit.dots([bound.bits], frame.index[frame["term"] == "joint"], color, across=True, **mark))
    figure = go.Figure(traces).add_vline(x=entropy, line=kit.DOTTED)
    subtitle = f"{len(information.labels)} rows, {_LABELS['method'][information.method]}. Dotted: H(Y) = "
    subtitle = " ".join([f"{subtitle}{style.number(entropy)} bits.", *information.doubts])
    title = f"Information of {len(information.components)} members about the label"
    axes: dict[str, Any] = {"x": {"title_text": "bits"}, "y": kit.named_rows([_NAMES[term] for term in frame["term"]])}
    return kit.arrange(figure, title, subtitle, **axes, plot=56 * len(frame) + 30, below=104)


@figure_of("members", "Information")
def member_bars(information: Information) -> go.Figure:
    """Relevancy of every member with its interval over its null, and below it the information no other member has."""
    frame = information.by_component()
    x, single = np.arange(len(frame)), all(" " not in span for span in information.spans)
    colors: dict[str, Any] = {term: [style.MODULE[c.module] for c in information.components] for term in _SHOWN}
    if not single:  # groups of neighbors are of several modules
        colors = {"relevancy": _COLORS["relevancy"], "gain": _COLORS["joint"]}
    relevancy, gain = (
        [
            f"<b>{html.escape(row['span'])}</b><br>{term} {style.number(row[term])} "
            f"{style.interval(row['low'], row['high']) if term == 'relevancy' else ''} bits"
            for row in frame.to_dict("records")
        ]
        for term in _SHOWN
    )
    null = kit.band(x, frame["null_low"], frame["null_high"])
    error = kit.whiskers(frame, "relevancy", "low", "high")
    upper = kit.bar(x, frame["relevancy"], colors["relevancy"], width=None, error=error, hover=relevancy)
    lower = kit.bar(x, frame["gain"], colors["gain"], width=None, hover=gain)
    headings = ["Relevancy I(u_i; Y); gray: labels shuffled", "Gain I(U; Y) − I(U without it; Y)"]
    figure = kit.panels([[null, upper], [lower]], headings)
    spans = {"tickmode": "array", "tickvals": x, "ticktext": [html.escape(span) for span in information.spans]}
    axis = kit.component_axis(information.components) if single else spans | {"tickangle": -40, "showgrid": False}
    title, y = "Information of each member about the label", {"title_text": "bits"}
    return kit.arrange(figure, title, x=axis, y=y, plot=430, below=None if single else 134)


@figure_of("bounds", "Bounds")
def bound_bars(bounds: Bounds) -> go.Figure:
    """Bounds of the error from the information, and the errors observed, as shares of rows with intervals.

    Hollow marks are bounds that an information estimated from below does not keep valid.
    """
    frame, names = bounds.frame(), _LABELS["bound"]
    is_bound = frame["kind"] == "bound"
    hollow = is_bound & ~frame["valid"].fillna(True).astype(bool)
    colors = np.where(is_bound, style.SERIES[0], style.SERIES[1]).tolist()
    symbols = np.where(is_bound, "line-ns", "circle").astype(object) + np.where(hollow, "-open", "")
    hover = [
        f"<b>{names[row['name']]}</b><br>{row['error']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"
        + ("<br>not kept valid by an information estimated from below" if pale else "")
        for row, pale in zip(frame.to_dict("records"), hollow, strict=True)
    ]
    marker = {"line": {"width": 3, "color": colors}, "opacity": np.where(hollow, 0.45, 1.0).tolist()}
    marks: dict[str, Any] = {"size": 12, "symbol": symbols.tolist(), "marker": marker, "hover": hover, "across": True}
    marks["error"] = kit.whiskers(frame, "error", "low", "high", thickness=1.5)
    return kit.arrange(
        go.Figure(kit.dots(frame["error"], frame.index, colors, **marks)),
        "Bounds of the error, and the errors observed (Eq. 12)",
        f"From I(U; Y) ≥ {style.number(bounds.information)} of {style.number(bounds.label_entropy)} bits, by a "
        "cross-validated classifier. Pale: a lower bound that needs I from above, so it may be passed.",
        x={"title_text": "share of rows", "tickformat": ".0%"},
        y=kit.named_rows([names[name] for name in frame["name"]]),
        plot=52 * len(frame) + 20,
    )


@figure_of("curve", "GainCurve")
def gain_lines(curve: GainCurve, terms: tuple[str, ...] = ("joint",)) -> go.Figure:
    """Terms of Eq. 13 as members are added, in bits; gray is the joint information with shuffled labels.

    `terms`: "joint", "relevancy", "redundancy", "conditional_redundancy", "diversity", one or several. Rings mark
    dips of the joint information, which are the estimate's: information itself never falls. H(Y) is dotted.
    Raises InputError for an unknown term.
    """
    given = listed("terms", terms, f"a list of some of {one_of(_NAMES, 'and')}")
    terms = tuple(choice("terms", term, _NAMES) for term in given)
    frame = curve.frame()
    members, figure = frame["members"], go.Figure()
    if "joint" in terms and np.isfinite(frame["joint_null_low"]).any():
        null = kit.band(members, frame["joint_null_low"], frame["joint_null_high"], name="labels shuffled (95 %)")
        figure.add_trace(null)
    spans = frame["span"] if "span" in frame else [""] * len(frame)
    last = [f", {html.escape(span)} last" if span else "" for span in spans]
    for term in terms:
        if not np.isfinite(frame[term]).any():
            continue
        value, low, high = (frame[term + end] for end in ("", "_low", "_high"))
        hover = [
            f"<b>{int(k)} members</b>{span}<br>{term.replace('_', ' ')} {kit.estimated(*numbers)} bits"
            for k, span, *numbers in zip(members, last, value, low, high, strict=True)
        ]
        figure.add_trace(kit.band(members, low, high, _COLORS[term]))
        figure.add_trace(kit.line(members, value, _COLORS[term], width=2, marks=4, name=_NAMES[term], hover=hover))
    dips = frame[frame["dip"]]
    if "joint" in terms and len(dips):
        ring: dict[str, Any] = {"size": 9, "symbol": "circle-open", "edge": 1.5, "name": "dips"}
        figure.add_trace(kit.dots(dips["members"], dips["joint"], _COLORS["joint"], hoverinfo="skip", **ring))
    figure.add_hline(y=curve.label_entropy, line=kit.DOTTED)
    title = f"Information as members are added, {_LABELS['order'][curve.order]}"
    subtitle = f"{curve.statement} Dotted: H(Y) = {style.number(curve.label_entropy)} bits."
    axes: dict[str, Any] = {"x": {"title_text": "members"}, "y": {"title_text": "bits"}}
    return kit.arrange(figure, title, " ".join([subtitle, *curve.doubts]), **axes, plot=360, below=108)


@figure_of("rows", "LowerBound")
def row_histogram(bound: LowerBound) -> go.Figure:
    """The classifier's information on each unseen row's label, in bits; the line is the mean, the lower bound."""
    figure = go.Figure(go.Histogram(x=bound.rows, marker={"color": style.SERIES[0]}, nbinsx=60))
    figure.add_vline(x=bound.bits, line=kit.DOTTED)
    title = "Information found by a nonlinear classifier, row by row"
    mean = kit.estimated(bound.bits, bound.low, bound.high)
    subtitle = f"log2 q(y|u)/p(y) of {len(bound.rows)} rows; mean {mean} bits, a lower bound of I(U; Y)."
    axes: dict[str, Any] = {"x": {"title_text": "bits"}, "y": {"title_text": "rows"}}
    return kit.arrange(figure, title, subtitle, **axes, plot=300)
