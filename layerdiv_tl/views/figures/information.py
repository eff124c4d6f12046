"""Information: terms beside what noise would give, bounds of the error, what each further member tells."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..._checks import choice, listed, one_of
from ...ensemble.information import Bounds, GainCurve, GaussianFit, Information, LowerBound
from .. import style
from .axes import component_axis
from .layout import arrange, beside, between

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
# The same color for a term in every figure of information.
_COLORS = dict(zip(_NAMES, style.SERIES, strict=False))


def term_bars(information: Information, title: str | None = None) -> go.Figure:
    """Every term of Eq. 13 in bits with its interval; the gray band is what its null gives, the cross its median.

    A term inside its band is not told apart from noise. H(Y), beyond which no joint information goes, is dotted. The
    diamond is a nonlinear lower bound of the joint information; where it or the test of fit contradicts the
    estimates, the subtitle says so.
    """
    frame = information.frame()
    frame = frame[np.isfinite(frame["bits"])].reset_index(drop=True)
    figure = go.Figure()
    figure.add_bar(
        x=frame["null_high"] - frame["null_low"],
        base=frame["null_low"],
        y=frame.index,
        orientation="h",
        width=0.66,
        name="what noise gives (95 %)",
        marker={"color": style.NEUTRAL, "opacity": 0.35, "line": {"width": 0}},
        hovertext=[f"{row.null_model}: {between(row.null_low, row.null_high)} bits" for row in frame.itertuples()],
        hoverinfo="text",
    )
    figure.add_scatter(
        x=frame["bits"],
        y=frame.index,
        mode="markers",
        name="estimate with 95 % interval",
        marker={"size": 10, "color": [_COLORS[term] for term in frame["term"]]},
        error_x={
            "type": "data",
            "array": frame["high"] - frame["bits"],
            "arrayminus": frame["bits"] - frame["low"],
            "thickness": 1.6,
            "color": style.NEUTRAL,
        },
        hovertext=[
            f"<b>{_NAMES[row.term]}</b><br>{style.number(row.bits)} {between(row.low, row.high)} bits ({row.bound})<br>"
            f"null, {row.null_model}: {between(row.null_low, row.null_high)}, p = {style.number(row.p)}"
            for row in frame.itertuples()
        ],
        hoverinfo="text",
    )
    if bound := information.lower_bound:
        figure.add_scatter(
            x=[bound.bits],
            y=frame.index[frame["term"] == "joint"],
            mode="markers",
            name="nonlinear lower bound",
            marker={"size": 10, "symbol": "diamond-open", "color": style.SERIES[1], "line": {"width": 2}},
            error_x={
                "type": "data",
                "array": [bound.high - bound.bits],
                "arrayminus": [bound.bits - bound.low],
                "thickness": 1.2,
                "color": style.SERIES[1],
            },
            hovertext=f"<b>I(U; Y) is at least</b><br>{style.number(bound.bits)} {between(bound.low, bound.high)} bits",
            hoverinfo="text",
        )
    doubts = "".join(f" {doubt}" for doubt in information.doubts)
    arrange(
        figure,
        title or f"What {len(information.components)} members tell about the label",
        f"{len(information.labels)} rows, {_method(information.method)}. Dotted: H(Y) = "
        f"{style.number(information.label_entropy)} bits.{doubts}",
        plot=56 * len(frame) + 30,
        below=104,
    )
    figure.add_vline(x=information.label_entropy, line={"dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text="bits")
    return figure.update_yaxes(**beside([_NAMES[term] for term in frame["term"]]), autorange="reversed")


def member_bars(information: Information, title: str | None = None) -> go.Figure:
    """Relevancy of every member with its interval over its null, and below it what it tells that no other does."""
    frame = information.by_component()
    at = np.arange(len(frame))
    colors = [style.MODULE[c.module] for c in information.components]
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.12,
        subplot_titles=["Relevancy I(u_i; Y); gray: labels shuffled", "Gain I(U; Y) − I(U without it; Y)"],
    )
    figure.update_annotations(font={"size": 13}, x=0, xanchor="left")
    figure.add_scatter(
        x=np.r_[at, at[::-1]],
        y=np.r_[frame["null_high"], frame["null_low"][::-1]],
        mode="lines",
        fill="toself",
        fillcolor=style.faint(style.NEUTRAL),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        row=1,
        col=1,
    )
    for row, term in ((1, "relevancy"), (2, "gain")):
        ends = between if row == 1 else None
        bars = {"y": frame[term], "marker": {"color": colors, "line": {"width": 0}}, "showlegend": False}
        if ends:
            spread = {"array": frame["high"] - frame[term], "arrayminus": frame[term] - frame["low"]}
            bars["error_y"] = {"type": "data", "thickness": 1, "width": 0, "color": style.NEUTRAL, **spread}
        figure.add_bar(
            x=at,
            hovertext=[
                f"<b>{html.escape(r['span'])}</b><br>{term} {style.number(r[term])} "
                f"{between(r['low'], r['high']) if ends else ''} bits"
                for r in frame.to_dict("records")
            ],
            hoverinfo="text",
            row=row,
            col=1,
            **bars,
        )
    arrange(figure, title or "What each member tells about the label", plot=430, below=64, headings=True)
    figure.update_yaxes(title_text="bits")
    if all(len(span.split(" ")) == 1 for span in information.spans):
        figure.update_xaxes(**component_axis(information.components))
    else:
        ticks = {"tickmode": "array", "tickvals": at, "ticktext": list(map(html.escape, information.spans))}
        figure.update_xaxes(**ticks, tickangle=-40)
        figure.update_layout(height=figure.layout.height + 70, margin={"b": 134})
    return figure.update_xaxes(showgrid=False)


def bound_bars(bounds: Bounds, title: str | None = None) -> go.Figure:
    """Bounds of the error from the information, and the errors observed, as shares of rows with intervals.

    Hollow marks are bounds that an information estimated from below does not keep valid.
    """
    frame = bounds.frame()
    is_bound = frame["kind"] == "bound"
    hollow = is_bound & ~frame["valid"].fillna(True).astype(bool)
    figure = go.Figure(
        go.Scatter(
            x=frame["error"],
            y=frame.index,
            mode="markers",
            showlegend=False,
            marker={
                "size": 12,
                "symbol": [
                    f"{'line-ns' if bound else 'circle'}{'-open' if h else ''}"
                    for bound, h in zip(is_bound, hollow, strict=True)
                ],
                "color": [style.SERIES[0] if bound else style.SERIES[1] for bound in is_bound],
                "line": {"width": 3, "color": [style.SERIES[0] if bound else style.SERIES[1] for bound in is_bound]},
                "opacity": [0.45 if h else 1.0 for h in hollow],
            },
            error_x={
                "type": "data",
                "array": (frame["high"] - frame["error"]).clip(lower=0),
                "arrayminus": (frame["error"] - frame["low"]).clip(lower=0),
                "thickness": 1.5,
                "color": style.NEUTRAL,
            },
            hovertext=[
                f"<b>{_BOUNDS[r['name']]}</b><br>{r['error']:.1%} [{r['low']:.1%}, {r['high']:.1%}]"
                + ("<br>not kept valid by an information estimated from below" if h else "")
                for r, h in zip(frame.to_dict("records"), hollow, strict=True)
            ],
            hoverinfo="text",
        )
    )
    arrange(
        figure,
        title or "Bounds of the error, and the errors observed (Eq. 12)",
        f"From I(U; Y) ≥ {style.number(bounds.information)} of {style.number(bounds.label_entropy)} bits, by a "
        "cross-validated classifier. Pale: a lower bound that needs I from above, so it may be passed.",
        plot=52 * len(frame) + 20,
        below=60,
    )
    figure.update_xaxes(title_text="share of rows", tickformat=".0%")
    return figure.update_yaxes(**beside([_BOUNDS[name] for name in frame["name"]]), autorange="reversed")


def gain_lines(curve: GainCurve, terms: tuple[str, ...] = ("joint",), title: str | None = None) -> go.Figure:
    """Terms of Eq. 13 as members are added, in bits; gray is the joint information with shuffled labels.

    `terms`: "joint", "relevancy", "redundancy", "conditional_redundancy", "diversity", one or several. Rings mark
    dips of the joint information, which are the estimate's: information itself never falls. H(Y) is dotted.
    Raises InputError for an unknown term.
    """
    given = listed("terms", terms, f"a list of some of {one_of(_NAMES, 'and')}")
    terms = tuple(choice("terms", term, _NAMES) for term in given)
    frame = curve.frame()
    x = frame["members"]
    figure = go.Figure()

    def band(low: Any, high: Any, color: str, name: str | None = None) -> None:
        figure.add_scatter(
            x=np.r_[x, x[::-1]],
            y=np.r_[high, low[::-1]],
            mode="lines",
            fill="toself",
            fillcolor=style.faint(color),
            line={"width": 0},
            hoverinfo="skip",
            name=name,
            showlegend=name is not None,
        )

    if "joint" in terms and np.isfinite(frame["joint_null_low"]).any():
        band(frame["joint_null_low"], frame["joint_null_high"], style.NEUTRAL, "labels shuffled (95 %)")
    who = frame["span"] if "span" in frame else [""] * len(frame)
    for term in terms:
        if not np.isfinite(frame[term]).any():
            continue
        band(frame[f"{term}_low"], frame[f"{term}_high"], _COLORS[term])
        figure.add_scatter(
            x=x,
            y=frame[term],
            mode="lines+markers",
            marker={"size": 4},
            line={"color": _COLORS[term], "width": 2},
            name=_NAMES[term],
            hovertext=[
                f"<b>{int(k)} members</b>{f', {html.escape(last)} last' if last else ''}<br>"
                f"{term.replace('_', ' ')} {style.number(v)} {between(a, b)} bits"
                for k, last, v, a, b in zip(
                    x, who, frame[term], frame[f"{term}_low"], frame[f"{term}_high"], strict=True
                )
            ],
            hoverinfo="text",
        )
    dips = frame[frame["dip"]]
    if "joint" in terms and len(dips):
        figure.add_scatter(
            x=dips["members"],
            y=dips["joint"],
            mode="markers",
            name="dips",
            marker={"symbol": "circle-open", "size": 9, "color": style.SERIES[1], "line": {"width": 1.5}},
            hoverinfo="skip",
        )
    doubts = "".join(f" {doubt}" for doubt in curve.doubts)
    order = {"depth": "in stream order", "greedy": "the one that adds most first", "random": "mean of random orders"}
    arrange(
        figure,
        title or f"Information as members are added, {order[curve.order]}",
        f"{curve.statement} Dotted: H(Y) = {style.number(curve.label_entropy)} bits.{doubts}",
        plot=360,
        below=108,
    )
    figure.add_hline(y=curve.label_entropy, line={"dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text="members")
    return figure.update_yaxes(title_text="bits")


def fit_marks(fit: GaussianFit, title: str | None = None) -> go.Figure:
    """p of the test of fit: of all moments, of those over all rows, and of those within classes."""
    names = {"p": "both together", "p_all_rows": "over all rows", "p_within_classes": "within classes"}
    values = [getattr(fit, name) for name in names]
    figure = go.Figure(
        go.Scatter(
            x=values,
            y=list(range(len(names))),
            mode="markers",
            marker={"size": 12, "color": style.SERIES[0]},
            hovertext=[
                f"<b>{name}</b><br>p = {style.number(p)}" for name, p in zip(names.values(), values, strict=True)
            ],
            hoverinfo="text",
        )
    )
    arrange(
        figure,
        title or "Are the members jointly Gaussian?",
        f"p of third and fourth moments of pairs against {fit.n_resamples} Gaussian data sets. Dotted: 0.05.",
        plot=170,
        below=60,
    )
    figure.add_vline(x=0.05, line={"dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text="p", range=[-0.03, 1.03])
    return figure.update_yaxes(**beside(list(names.values())), autorange="reversed")


def row_histogram(bound: LowerBound, title: str | None = None) -> go.Figure:
    """How much the classifier knows of each unseen row's label, in bits; the line is the mean, the lower bound."""
    figure = go.Figure(go.Histogram(x=bound.rows, marker={"color": style.SERIES[0]}, nbinsx=60))
    arrange(
        figure,
        title or "What a nonlinear classifier knows of unseen labels",
        f"log2 q(y|u)/p(y) of {len(bound.rows)} rows; mean {style.number(bound.bits)} {between(bound.low, bound.high)} "
        "bits, a lower bound of I(U; Y).",
        plot=300,
        below=60,
    )
    figure.add_vline(x=bound.bits, line={"dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text="bits")
    return figure.update_yaxes(title_text="rows")


def _method(name: str) -> str:
    return {
        "gaussian": "Gaussian copula",
        "table": "votes, joint table",
        "tree": "votes, tree (lower bounds)",
        "variational": "cross-validated classifier (lower bounds)",
    }[name]
