"""Terms of Eq. 13 with their nulls, bounds of the error, and the information as members are added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice, listed, one_of
from .. import axes, kit, layout, style

if TYPE_CHECKING:
    from ...ensemble.information import Bounds, GainCurve, Information

TERMS = {
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
_METHODS = {
    "gaussian": "Gaussian copula",
    "table": "votes, joint table",
    "tree": "votes, tree (lower bounds)",
    "variational": "cross-validated classifier (lower bounds)",
}
_ORDERS = {"depth": "in stream order", "greedy": "by largest gain", "random": "in random orders (mean)"}
# The same color for a term in every figure of information.
_COLORS = dict(zip(TERMS, style.SERIES, strict=False))


def term_bars(information: Information) -> go.Figure:
    """Draw every term of Eq. 13 in bits with its interval; the gray band is its null, H(Y) is dotted.

    A term inside its band cannot be distinguished from noise. The diamond is a variational lower bound of the joint
    information.
    """
    frame = information.frame().dropna(subset="bits").reset_index(drop=True)
    frame = _named(frame.assign(component=frame["term"].map(TERMS)), "bits", bits="bits")
    rows: list[Any] = list(frame.itertuples())
    nulls = [f"{row.null_model}: {style.interval(row.null_low, row.null_high)}" for row in rows]
    tests = [
        f"{bound}\nnull, {null}, p = {p:.3g}" for bound, null, p in zip(frame["bound"], nulls, frame["p"], strict=True)
    ]
    wide, texts = frame["null_high"] - frame["null_low"], kit.hover(frame, ["bits"], tests)
    colors = [_COLORS[term] for term in frame["term"]]
    traces = [
        kit.trace(
            frame, wide, frame.index, texts=nulls, shape="across", base=frame["null_low"], opacity=0.35, name="null"
        ),
        kit.trace(frame, "bits", frame.index, colors, texts, name="estimate with 95 % interval", marker={"size": 10}),
    ]
    if bound := information.lower_bound:
        ends = {"component": "I(U; Y) is at least", "bits": bound.value, "low": bound.low, "high": bound.high}
        own, at = _named(pd.DataFrame([ends]), "bits", bits="bits"), frame.index[frame["term"] == "joint"]
        marker = {"size": 10, "symbol": "diamond-open", "line": {"width": 2}}
        traces.append(kit.trace(own, "bits", at, _COLORS["joint"], marker=marker, name="variational lower bound"))
    joint = frame.loc[frame["term"] == "joint", "bits"].iloc[0]
    members = f"{len(information.components)} members"
    title = f"{members} hold {joint:.3g} of {information.label_entropy:.3g} bits about the label"
    if information.exceeds_entropy:
        title = f"No estimate: the joint information of {members} exceeds H(Y)"
    subtitle = f"{len(information.labels)} rows, {_METHODS[information.method]}. Dotted: H(Y)."
    subtitle = " ".join([subtitle, *information.warnings[:1]])
    figure = go.Figure(traces).add_vline(x=information.label_entropy, line=kit.DOTTED)
    return layout.finish(figure, title, subtitle, x="bits", y=axes.named_rows(list(frame["component"])), plot=310)


def member_bars(information: Information) -> go.Figure:
    """Draw the relevancy of every member with its interval over its null, and the information no other member has."""
    frame = information.by_component().assign(component=information.spans)
    frame = _named(frame, "relevancy", relevancy="bits", gain="bits")
    if any(" " in span for span in information.spans):  # groups of neighbors are of several modules
        frame["module"] = "group"
    most = kit.most(frame, "relevancy")
    columns = {"relevancy": "Relevancy I(u_i; Y); gray: labels shuffled", "gain": "Gain I(U; Y) − I(U without it; Y)"}
    title = f"{most['component']} tells most about the label: {most['relevancy']:.3g} bits"
    figure = kit.component_bars(frame, columns, title)
    return figure.add_trace(kit.band(np.arange(len(frame)), frame["null_low"], frame["null_high"]), row=1, col=1)


def bound_marks(bounds: Bounds) -> go.Figure:
    """Draw bounds of the error from the information, and the errors observed, as shares of rows with intervals.

    Pale marks are bounds that an information estimated from below does not keep valid.
    """
    frame = bounds.frame()
    frame = _named(frame.assign(component=frame["name"].map(_BOUNDS)), "error", error="of rows")
    is_bound = (frame["kind"] == "bound").to_numpy()
    pale = is_bound & ~frame["valid"].fillna(True).astype(bool).to_numpy()
    colors = np.where(is_bound, *style.SERIES[:2]).tolist()
    marker = {"size": 12, "symbol": np.where(is_bound, "line-ns", "circle"), "opacity": np.where(pale, 0.45, 1.0)}
    texts = kit.hover(frame, ["error"], np.where(pale, "not kept valid by an information estimated from below", ""))
    marks = kit.trace(
        frame, "error", frame.index, colors, texts, marker=marker | {"line": {"width": 3, "color": colors}}
    )
    errors = frame.set_index("component")["error"]
    seen = errors[~is_bound]
    title = f"Errors of {seen.min():.1%} ({seen.idxmin()}); Fano's bound is {errors[_BOUNDS['fano']]:.1%} (Eq. 12)"
    subtitle = (
        f"From I(U; Y) ≥ {style.number(bounds.information)} of {style.number(bounds.label_entropy)} bits, by a "
        "cross-validated classifier. Pale: a lower bound that needs I from above, so it may be passed."
    )
    x, y = {"title_text": "share of rows", "tickformat": ".0%"}, axes.named_rows(frame["component"].tolist())
    return layout.finish(go.Figure(marks), title, subtitle, x=x, y=y, plot=280)


def gain_lines(curve: GainCurve, terms: tuple[str, ...] = ("joint",)) -> go.Figure:
    """Draw terms of Eq. 13 as members are added, in bits; gray is the joint information with shuffled labels.

    `terms`: one or several of "joint", "relevancy", "redundancy", "conditional_redundancy", "diversity". Rings mark
    dips of the joint information, which are the estimate's: information itself never falls. H(Y) is dotted.
    """
    given = listed("terms", terms, f"a list of some of {one_of(TERMS, 'and')}")
    chosen, frame = [choice("terms", term, TERMS) for term in given], curve.frame()
    frame["component"] = [f"{count} members" for count in frame["members"]]
    frame.attrs["units"] = dict.fromkeys(TERMS, "bits")
    last = [f"{span} last" if span else "" for span in frame.get("span", [""] * len(frame))]
    members, figure = frame["members"], go.Figure()
    if "joint" in chosen and frame["joint_null_low"].notna().any():
        figure.add_trace(kit.band(members, frame["joint_null_low"], frame["joint_null_high"], name="labels shuffled"))
    for term in (term for term in chosen if frame[term].notna().any()):
        texts = kit.hover(frame, [term], last)
        figure.add_trace(kit.band(members, frame[f"{term}_low"], frame[f"{term}_high"], _COLORS[term]))
        figure.add_trace(
            kit.trace(frame, members, term, _COLORS[term], texts, shape="line", name=TERMS[term], error_y=None)
        )
    dips = frame[frame["dip"]]
    if "joint" in chosen and len(dips):
        ring = {"size": 9, "symbol": "circle-open", "line": {"width": 1.5}}
        figure.add_trace(kit.trace(dips, "members", "joint", _COLORS["joint"], marker=ring, name="dips", error_y=None))
    figure.add_hline(y=curve.label_entropy, line=kit.DOTTED)
    joint = frame["joint"].iloc[-1]
    title = f"{style.number(joint)} bits with all members, added {_ORDERS[curve.order]}"
    if joint > curve.label_entropy * (1 + 1e-3):
        title = f"No estimate: the joint information of all members, added {_ORDERS[curve.order]}, exceeds H(Y)"
    subtitle = (
        f"{curve.statement} Dotted: H(Y) = {style.number(curve.label_entropy)} bits. {' '.join(curve.warnings[:1])}"
    )
    return layout.finish(figure, title, subtitle, x="members", y="bits", plot=360)


def _named(frame: pd.DataFrame, column: str, **units: str) -> pd.DataFrame:
    """A frame whose `low` and `high` are those of a column, with units."""
    frame = frame.rename(columns={"low": f"{column}_low", "high": f"{column}_high"})
    frame.attrs = {"units": units}
    return frame
