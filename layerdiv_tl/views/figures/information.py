"""Terms of Eq. 13 with their nulls, and the information as members are added."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice
from .. import axes, kit, layout, style

if TYPE_CHECKING:
    from ...ensemble.information import Information

TERMS = {
    "relevancy": "relevancy Σ I(u_i; Y)",
    "redundancy": "redundancy TC(U)",
    "conditional_redundancy": "conditional redundancy TC(U|Y)",
    "joint": "joint information I(U;\u00a0Y)",
    "diversity": "diversity TC(U|Y)\u00a0−\u00a0TC(U)",
}
# The most members that are all named below their bars.
_MOST_NAMES = 16
# The same color for a term in every figure of information.
_COLORS = dict(zip(TERMS, style.SERIES, strict=False))


def term_bars(information: Information) -> go.Figure:
    """Draw every term of Eq. 13 in bits with its interval over its null; the dotted line is H(Y).

    The diamond is a lower bound: what a linear or a nonlinear classifier of the members, whichever finds more, finds on
    rows it has not seen. Gray is 95 % of what shuffled rows give.
    """
    frame = information.frame()
    frame = _named(frame.assign(component=frame["term"].map(TERMS)), "bits", bits="bits")
    rows: list[Any] = list(frame.itertuples())
    nulls = [f"{row.null_model}: {style.interval(row.null_low, row.null_high)}" for row in rows]
    tests = [f"null, {null}, {style.p_value(row.p)}" for row, null in zip(rows, nulls, strict=True)]
    wide, colors = frame["null_high"] - frame["null_low"], [_COLORS[term] for term in frame["term"]]
    band: dict[str, Any] = {"shape": "across", "base": frame["null_low"], "opacity": 0.35, "name": "shuffled rows"}
    marks: dict[str, Any] = {"name": "estimate with 95 % interval", "marker": {"size": 10}}
    traces = [
        kit.trace(frame, wide, frame.index, texts=nulls, **band),
        kit.trace(frame, "bits", frame.index, colors, kit.hover(frame, ["bits"], tests), **marks),
    ]
    if bound := information.lower_bound:
        ends = {"component": "I(U; Y) is at least", "bits": bound.value, "low": bound.low, "high": bound.high}
        row, at = _named(pd.DataFrame([ends]), "bits", bits="bits"), frame.index[frame["term"] == "joint"]
        marker = {"size": 10, "symbol": "diamond-open", "line": {"width": 2}}
        name = "lower bound by classifiers"
        traces.append(kit.trace(row, "bits", at + 0.25, _COLORS["joint"], marker=marker, name=name))
    title, y = "Information of the members about the label", axes.named_rows(frame["component"])
    figure = layout.finish(traces, title, _about(information), x="bits", y=y, plot=310)
    return figure.add_vline(x=information.label_entropy, line=kit.DOTTED)


def member_bars(information: Information) -> go.Figure:
    """Draw the relevancy of every member with its interval over its null, and the information no other member has."""
    frame = information.by_component().assign(component=information.spans)
    frame = _named(frame, "relevancy", relevancy="bits", gain="bits")
    if any(" " in span for span in information.spans):  # groups of neighbors are of several modules
        frame["module"] = "group"
    columns = {"relevancy": "Relevancy I(u_i; Y); gray: labels shuffled", "gain": "Gain I(U; Y) − I(U without it; Y)"}
    title, x_title = "Information about the label by member", "member, in stream order"
    figure = kit.component_bars(frame, columns, title, _about(information), x_title=x_title)
    if len(frame) <= _MOST_NAMES:
        # Both ends of a span are to be read.
        names = [html.escape(name.replace(" … ", "–"), quote=False) for name in frame["component"]]
        figure.update_xaxes(axes.named_columns(names, range(len(frame))), row=2, col=1)
    return figure.add_trace(kit.band(np.arange(len(frame)), frame["null_low"], frame["null_high"]), row=1, col=1)


def along_lines(information: Information, terms: tuple[str, ...] = ("joint",)) -> go.Figure:
    """Draw terms of Eq. 13 as members are added in stream order, in bits, with bands of 95 % intervals (Fig. 2).

    `terms`: some of "joint", "relevancy", "redundancy", "conditional_redundancy", "diversity". The dotted line is H(Y).
    """
    frame, traces = information.along(), list[Any]()
    last = [f"{span} last" for span in frame["span"]]
    frame["component"] = [f"{count} members" for count in frame["members"]]
    members = frame["members"]
    for term in terms:
        choice("terms", term, TERMS)
        look: dict[str, Any] = {"shape": "line", "name": TERMS[term], "error_y": None}
        traces.append(kit.band(members, frame[f"{term}_low"], frame[f"{term}_high"], _COLORS[term]))
        traces.append(kit.trace(frame, members, term, _COLORS[term], kit.hover(frame, [term], last), **look))
    title = "Information as members are added"
    figure = layout.finish(traces, title, _about(information), x="members", y="bits", plot=360)
    figure.update_xaxes(tickformat="d", dtick=max(1, len(frame) // 10))
    return figure.add_hline(y=information.label_entropy, line=kit.DOTTED)


def _about(information: Information) -> str:
    """Count members and rows, and repeat the first warning."""
    counts = f"{style.count(len(information.components), 'member')}, {style.count(len(information.labels), 'row')}. "
    return counts + " ".join(information.warnings[:1])


def _named(frame: pd.DataFrame, column: str, **units: str) -> pd.DataFrame:
    """Return a frame whose `low` and `high` are those of a column, with units."""
    frame = frame.rename(columns={"low": f"{column}_low", "high": f"{column}_high"})
    frame.attrs = {"units": units}
    return frame
