"""Terms of Eq. 13 with their nulls, bounds of the error, and the information as members are added."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice, listed, one_of
from ..._registry import figure_of
from .. import style
from ..plotting import DOTTED, arrange, band, bar, between, component_axis, dots, error_bars, line, named_rows, panels

if TYPE_CHECKING:
    from ...ensemble.information import Bounds, GainCurve, GaussianFit, Information, LowerBound

_NAMES = {
    "relevancy": "relevancy Σ I(u_i; Y)",
    "redundancy": "redundancy TC(U)",
    "conditional_redundancy": "conditional redundancy TC(U|Y)",
    "joint": "joint information I(U; Y)",
    "diversity": "diversity TC(U|Y) − TC(U)",
}
_BOUNDS = {
    "fano_printed": "Fano, as printed (lower)",
    "fano": "Fano, sharp (lower)",
    "hellman_raviv": "Hellman-Raviv (upper)",
    "ensemble": "all members together",
    "classifier": "a classifier of the members",
}
_METHOD = {
    "gaussian": "Gaussian copula",
    "table": "votes, joint table",
    "tree": "votes, tree (lower bounds)",
    "variational": "cross-validated classifier (lower bounds)",
}
_ORDER = {"depth": "in stream order", "greedy": "the one that adds most first", "random": "mean of random orders"}
# The same color for a term in every figure of information.
_COLORS = dict(zip(_NAMES, style.SERIES, strict=False))


@figure_of("terms", "Information", default=True)
def term_bars(information: Information, title: str | None = None) -> go.Figure:
    """Every term of Eq. 13 in bits with its interval; the gray band is what its null gives.

    A term inside its band cannot be distinguished from noise. H(Y), beyond which no joint information goes, is dotted.
    The diamond is a nonlinear lower bound of the joint information; where it or the test of fit contradicts the
    estimates, the subtitle says so.
    """
    frame = information.frame()
    frame = frame[np.isfinite(frame["bits"])].reset_index(drop=True)
    rows, entropy = frame.to_dict("records"), information.label_entropy
    noise = [f"{row['null_model']}: {between(row['null_low'], row['null_high'])} bits" for row in rows]
    hover = [
        f"<b>{_NAMES[row['term']]}</b><br>{style.number(row['bits'])} {between(row['low'], row['high'])} bits "
        f"({row['bound']})<br>null, {row['null_model']}: {between(row['null_low'], row['null_high'])}, "
        f"p = {style.number(row['p'])}"
        for row in rows
    ]
    null = {"base": frame["null_low"], "width": 0.66, "opacity": 0.35, "name": "what noise gives (95 %)"}
    error = error_bars(frame["bits"], frame["low"], frame["high"], thickness=1.6)
    estimates: dict[str, Any] = {"size": 10, "error": error, "name": "estimate with 95 % interval", "hover": hover}
    traces = [
        bar(frame["null_high"] - frame["null_low"], frame.index, style.NEUTRAL, across=True, hover=noise, **null),
        dots(frame["bits"], frame.index, [_COLORS[term] for term in frame["term"]], across=True, **estimates),
    ]
    if bound := information.lower_bound:
        color = style.SERIES[1]
        text = f"<b>I(U; Y) is at least</b><br>{style.number(bound.bits)} {between(bound.low, bound.high)} bits"
        error = error_bars([bound.bits], [bound.low], [bound.high], thickness=1.2, color=color)
        label, joint = {"name": "nonlinear lower bound", "hover": [text]}, frame.index[frame["term"] == "joint"]
        mark = dots(
            [bound.bits], joint, color, size=10, symbol="diamond-open", edge=2, across=True, error=error, **label
        )
        traces.append(mark)
    figure = go.Figure(traces)
    arrange(
        figure,
        title or f"What {len(information.components)} members tell about the label",
        f"{len(information.labels)} rows, {_METHOD[information.method]}. Dotted: H(Y) = {style.number(entropy)} bits."
        + "".join(f" {doubt}" for doubt in information.doubts),
        plot=56 * len(frame) + 30,
        below=104,
    )
    figure.add_vline(x=entropy, line=DOTTED)
    figure.update_xaxes(title_text="bits")
    return figure.update_yaxes(**named_rows([_NAMES[term] for term in frame["term"]]), autorange="reversed")


@figure_of("members", "Information")
def member_bars(information: Information, title: str | None = None) -> go.Figure:
    """Relevancy of every member with its interval over its null, and below it the information no other member has."""
    frame = information.by_component()
    x, colors = np.arange(len(frame)), [style.MODULE[c.module] for c in information.components]
    error = error_bars(frame["relevancy"], frame["low"], frame["high"])
    relevancy, gain = (
        [
            f"<b>{html.escape(row['span'])}</b><br>{term} {style.number(row[term])} "
            f"{between(row['low'], row['high']) if term == 'relevancy' else ''} bits"
            for row in frame.to_dict("records")
        ]
        for term in ("relevancy", "gain")
    )
    null = band(x, frame["null_low"], frame["null_high"])
    upper = bar(x, frame["relevancy"], colors, width=None, error=error, hover=relevancy)
    lower = bar(x, frame["gain"], colors, width=None, hover=gain)
    headings = ["Relevancy I(u_i; Y); gray: labels shuffled", "Gain I(U; Y) − I(U without it; Y)"]
    figure = panels([[null, upper], [lower]], headings)
    single = all(" " not in span for span in information.spans)
    title = title or "What each member tells about the label"
    arrange(figure, title, plot=430, below=64 if single else 134, headings=True)
    figure.update_yaxes(title_text="bits")
    if single:
        return figure.update_xaxes(**component_axis(information.components))
    spans = {"tickvals": x, "ticktext": [html.escape(span) for span in information.spans]}
    return figure.update_xaxes(tickmode="array", **spans, tickangle=-40, showgrid=False)


@figure_of("bounds", "Bounds")
def bound_bars(bounds: Bounds, title: str | None = None) -> go.Figure:
    """Bounds of the error from the information, and the errors observed, as shares of rows with intervals.

    Hollow marks are bounds that an information estimated from below does not keep valid.
    """
    frame = bounds.frame()
    is_bound = frame["kind"] == "bound"
    hollow = is_bound & ~frame["valid"].fillna(True).astype(bool)
    colors = np.where(is_bound, style.SERIES[0], style.SERIES[1]).tolist()
    symbols = np.where(is_bound, "line-ns", "circle").astype(object) + np.where(hollow, "-open", "")
    error = error_bars(frame["error"], frame["low"], frame["high"], thickness=1.5)
    error |= {end: np.fmax(error[end], 0) for end in ("array", "arrayminus")}
    hover = [
        f"<b>{_BOUNDS[row['name']]}</b><br>{row['error']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"
        + ("<br>not kept valid by an information estimated from below" if pale else "")
        for row, pale in zip(frame.to_dict("records"), hollow, strict=True)
    ]
    marker = {"line": {"width": 3, "color": colors}, "opacity": np.where(hollow, 0.45, 1.0).tolist()}
    marks = {"size": 12, "symbol": symbols.tolist(), "marker": marker, "error": error, "hover": hover}
    figure = go.Figure(dots(frame["error"], frame.index, colors, across=True, **marks))
    arrange(
        figure,
        title or "Bounds of the error, and the errors observed (Eq. 12)",
        f"From I(U; Y) ≥ {style.number(bounds.information)} of {style.number(bounds.label_entropy)} bits, by a "
        "cross-validated classifier. Pale: a lower bound that needs I from above, so it may be passed.",
        plot=52 * len(frame) + 20,
        below=60,
    )
    figure.update_xaxes(title_text="share of rows", tickformat=".0%")
    return figure.update_yaxes(**named_rows([_BOUNDS[name] for name in frame["name"]]), autorange="reversed")


@figure_of("curve", "GainCurve")
def gain_lines(curve: GainCurve, terms: tuple[str, ...] = ("joint",), title: str | None = None) -> go.Figure:
    """Terms of Eq. 13 as members are added, in bits; gray is the joint information with shuffled labels.

    `terms`: "joint", "relevancy", "redundancy", "conditional_redundancy", "diversity", one or several. Rings mark
    dips of the joint information, which are the estimate's: information itself never falls. H(Y) is dotted.
    Raises InputError for an unknown term.
    """
    terms = tuple(
        choice("terms", term, _NAMES) for term in listed("terms", terms, f"a list of some of {one_of(_NAMES, 'and')}")
    )
    frame = curve.frame()
    members, figure = frame["members"], go.Figure()
    if "joint" in terms and np.isfinite(frame["joint_null_low"]).any():
        null = band(members, frame["joint_null_low"], frame["joint_null_high"], name="labels shuffled (95 %)")
        figure.add_trace(null)
    spans = frame["span"] if "span" in frame else [""] * len(frame)
    last = [f", {html.escape(span)} last" if span else "" for span in spans]
    for term in terms:
        if not np.isfinite(frame[term]).any():
            continue
        value, low, high = (frame[term + end] for end in ("", "_low", "_high"))
        hover = [
            f"<b>{int(k)} members</b>{span}<br>{term.replace('_', ' ')} {style.number(v)} {between(a, b)} bits"
            for k, span, v, a, b in zip(members, last, value, low, high, strict=True)
        ]
        figure.add_trace(band(members, low, high, _COLORS[term]))
        figure.add_trace(line(members, value, _COLORS[term], width=2, marks=4, name=_NAMES[term], hover=hover))
    dips = frame[frame["dip"]]
    if "joint" in terms and len(dips):
        ring: dict[str, Any] = {"size": 9, "symbol": "circle-open", "edge": 1.5, "name": "dips"}
        figure.add_trace(dots(dips["members"], dips["joint"], style.SERIES[1], hoverinfo="skip", **ring))
    arrange(
        figure,
        title or f"Information as members are added, {_ORDER[curve.order]}",
        f"{curve.statement} Dotted: H(Y) = {style.number(curve.label_entropy)} bits."
        + "".join(f" {doubt}" for doubt in curve.doubts),
        plot=360,
        below=108,
    )
    figure.add_hline(y=curve.label_entropy, line=DOTTED)
    figure.update_xaxes(title_text="members")
    return figure.update_yaxes(title_text="bits")


@figure_of("tests", "GaussianFit")
def fit_marks(fit: GaussianFit, title: str | None = None) -> go.Figure:
    """p of the test of fit: of all moments, of those over all rows, and of those within classes."""
    values = {"both together": fit.p, "over all rows": fit.p_all_rows, "within classes": fit.p_within_classes}
    hover = [f"<b>{name}</b><br>p = {style.number(p)}" for name, p in values.items()]
    rows = list(range(len(values)))
    figure = go.Figure(dots(list(values.values()), rows, style.SERIES[0], size=12, hover=hover))
    arrange(
        figure,
        title or "Are the members jointly Gaussian?",
        f"p of third and fourth moments of pairs against {fit.n_resamples} Gaussian data sets. Dotted: 0.05.",
        plot=170,
        below=60,
    )
    figure.add_vline(x=0.05, line=DOTTED)
    figure.update_xaxes(title_text="p", range=[-0.03, 1.03])
    return figure.update_yaxes(**named_rows(list(values)), autorange="reversed")


@figure_of("rows", "LowerBound")
def row_histogram(bound: LowerBound, title: str | None = None) -> go.Figure:
    """The classifier's information on each unseen row's label, in bits; the line is the mean, the lower bound."""
    figure = go.Figure(go.Histogram(x=bound.rows, marker={"color": style.SERIES[0]}, nbinsx=60))
    arrange(
        figure,
        title or "What a nonlinear classifier knows of unseen labels",
        f"log2 q(y|u)/p(y) of {len(bound.rows)} rows; mean {style.number(bound.bits)} {between(bound.low, bound.high)} "
        "bits, a lower bound of I(U; Y).",
        plot=300,
        below=60,
    )
    figure.add_vline(x=bound.bits, line=DOTTED)
    figure.update_xaxes(title_text="bits")
    return figure.update_yaxes(title_text="rows")
