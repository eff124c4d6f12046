"""Terms of Eq. 13 with their nulls, bounds of the error, and the information as members are added."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice, listed, one_of
from ...ensemble.intervals import ENDS
from .. import axes, kit, layout, style

if TYPE_CHECKING:
    from ...ensemble.information import Bounds, GainCurve, Information

TERMS = {
    "relevancy": "relevancy Σ I(u_i; Y)",
    "redundancy": "redundancy TC(U)",
    "conditional_redundancy": "conditional redundancy TC(U|Y)",
    "joint": "joint information I(U;\u00a0Y)",
    "diversity": "diversity TC(U|Y)\u00a0−\u00a0TC(U)",
}
_BOUNDS = {
    "fano_printed": "Fano, as printed (lower)",
    "fano": "Fano, sharp (lower)",
    "hellman_raviv": "Hellman-Raviv (upper)",
    "ensemble": "the sum of all members",
    "classifier": "a linear classifier of the members",
}
_METHODS = {
    "gaussian": "Gaussian copula",
    "table": "votes, joint table",
    "tree": "votes, tree (lower bounds)",
    "variational": "cross-validated linear classifier (lower bounds)",
}
_ORDERS = {"depth": "in stream order", "greedy": "by largest gain", "random": "in random orders (mean)"}
# The most members that are all named below their bars.
_MOST_NAMES = 16
# The same color for a term in every figure of information.
_COLORS = dict(zip(TERMS, style.SERIES, strict=False))


def term_bars(information: Information) -> go.Figure:
    """Draw every term of Eq. 13 in bits with its interval over its null; the diamond is a lower bound.

    It is what a linear or a nonlinear classifier of the members, whichever tells more, tells on rows it has not seen.
    """
    frame = information.frame().dropna(subset="bits").reset_index(drop=True)
    frame = _named(frame.assign(component=frame["term"].map(TERMS)), "bits", bits="bits")
    rows: list[Any] = list(frame.itertuples())
    nulls = [f"{row.null_model}: {style.interval(row.null_low, row.null_high)}" for row in rows]
    tests = [f"{row.bound}\nnull, {null}, {style.p_value(row.p)}" for row, null in zip(rows, nulls, strict=True)]
    wide, colors = frame["null_high"] - frame["null_low"], [_COLORS[term] for term in frame["term"]]
    band: dict[str, Any] = {"shape": "across", "base": frame["null_low"], "opacity": 0.35, "name": "shuffled rows"}
    marks: dict[str, Any] = {"name": "estimate with 95 % interval", "marker": {"size": 10}}
    traces = [
        kit.trace(frame, wide, frame.index, texts=nulls, **band),
        kit.trace(frame, "bits", frame.index, colors, kit.hover(frame, ["bits"], tests), **marks),
    ]
    if bound := information.lower_bound:
        ends = {"component": "I(U; Y) is at least", "bits": bound.value, "low": bound.low, "high": bound.high}
        own, at = _named(pd.DataFrame([ends]), "bits", bits="bits"), frame.index[frame["term"] == "joint"]
        marker = {"size": 10, "symbol": "diamond-open", "line": {"width": 2}}
        traces.append(
            kit.trace(own, "bits", at + 0.25, _COLORS["joint"], marker=marker, name="lower bound by classifiers")
        )
    joint = frame.loc[frame["term"] == "joint", "bits"].iloc[0]
    count = len(information.components)
    members, hold = ("1 member", "holds") if count == 1 else (f"{count} members", "hold")
    bits = style.estimate(joint, *information.intervals["joint"], unit="bits")
    bits += f" of the label's {style.estimate(information.label_entropy, unit='bits')}"
    title = f"{members} {hold} {bits}" + ", or far less" * _is_doubted(information)
    whole = frame[frame["term"] == "joint"].iloc[0]
    if whole["inside_null"]:
        title += ", no more than with shuffled labels"
    elif information.intervals["joint"][0] <= whole["null_high"]:
        title += ", not clearly more than with shuffled labels"
        if bound and bound.low > 0:
            shown = style.estimate(bound.value, bound.low, bound.high, unit="bits")
            title += f"; yet classifiers tell {shown} on unseen rows"
    if information.exceeds_entropy:
        title = f"No estimate: the joint information of {members} exceeds H(Y)"
    subtitle = f"{len(information.labels)} rows, {_METHODS[information.method]}. {_members(information)} "
    subtitle += "Gray: 95 % of what shuffled rows give; a mark in it is no evidence, "
    subtitle += "one whose whiskers reach it no clear evidence. "
    subtitle += "Diamond: what the better of two classifiers, linear and nonlinear, tells on unseen rows. Dotted: H(Y)."
    subtitle = " ".join([subtitle, *information.warnings[:1]])
    figure = layout.finish(traces, title, subtitle, x="bits", y=axes.named_rows(frame["component"]), plot=310)
    return figure.add_vline(x=information.label_entropy, line=kit.DOTTED)


def member_bars(information: Information) -> go.Figure:
    """Draw the relevancy of every member with its interval over its null, and the information no other member has."""
    frame = information.by_component().assign(component=information.spans)
    frame = _named(frame, "relevancy", relevancy="bits", gain="bits")
    if any(" " in span for span in information.spans):  # groups of neighbors are of several modules
        frame["module"] = "group"
    columns = {"relevancy": "Relevancy I(u_i; Y); gray: labels shuffled", "gain": "Gain I(U; Y) − I(U without it; Y)"}
    most = kit.most(frame, "relevancy", 1)
    title = f"{most['component']} tells most about the label{kit.ahead(frame, most, 'relevancy', np.inf)}"
    title += ", or far less" * _is_doubted(information)
    if (frame["relevancy_low"] <= frame["null_high"]).all():
        title = "No member clearly tells more about the label than with shuffled labels; the highest is "
        title += f"{most['component']}, {style.estimate(*(most[f'relevancy{end}'] for end in ENDS), unit='bits')}"
    title = title.replace(" … ", "–")  # the ends of a span
    about = f"{len(information.labels)} rows. {_members(information)} The gain is what a member tells and all others "
    about += "together do not. In "
    joint = information.frame().set_index("term")["bits"]["joint"]
    about += "truth it is at least 0, and a relevancy at most the joint information, "
    about += f"{style.estimate(joint, unit='bits')}: anything else is the estimator's error. "
    about = " ".join([about, "Whiskers of the relevancy: 95 % intervals.", *information.warnings[:1]])
    figure = kit.component_bars(frame, columns, title, about, x_title="member, in stream order")
    if len(frame) <= _MOST_NAMES:
        names = [
            html.escape(name.replace(" … ", "–"), quote=False) for name in frame["component"]
        ]  # the ends of a span, both to be read
        figure.update_xaxes(axes.named_columns(names, range(len(frame))), row=2, col=1)
    return figure.add_trace(kit.band(np.arange(len(frame)), frame["null_low"], frame["null_high"]), row=1, col=1)


def bound_marks(bounds: Bounds) -> go.Figure:
    """Draw bounds of the error from the information, and the errors observed, as shares of rows with intervals."""
    frame = bounds.frame()
    frame = _named(frame.assign(component=frame["name"].map(_BOUNDS)), "error", error="of rows")
    is_bound = (frame["kind"] == "bound").to_numpy()
    pale = is_bound & ~frame["valid"].fillna(True).astype(bool).to_numpy()
    colors = np.where(is_bound, *style.SERIES[:2]).tolist()
    symbols = np.where(is_bound, np.where(frame["error"] < 0, "triangle-left", "line-ns"), "circle")
    marker = {"size": 12, "symbol": symbols, "opacity": np.where(pale, 0.45, 1.0)}
    marker |= {"line": {"width": 3, "color": colors}}
    texts = kit.hover(frame, ["error"], np.where(pale, "not kept valid by an information estimated from below", ""))
    drawn = frame.assign(error=frame["error"].clip(lower=0.0))
    marks = kit.trace(drawn, "error", frame.index, colors, texts, marker=marker)
    errors = frame.set_index("name")["error"].map(style.percent)
    most = np.ceil(100 * frame.set_index("name")["error_high"]["hellman_raviv"]) / 100  # a bound is rounded up
    guessing = 1 - 1 / bounds.options
    title = f"The best rule errs in at most {style.percent(most)} of rows (Hellman and Raviv's bound), "
    title += f"the sum of members in {errors['ensemble']}, " if "ensemble" in errors else ""
    title += f"guessing in {style.percent(guessing)}"
    if most >= guessing:
        title = "Hellman and Raviv's bound is not below guessing"
        title += f"; the sum of members errs in {errors['ensemble']}" if "ensemble" in errors else ""
    low = style.number(np.floor(100 * max(bounds.low, 0.0)) / 100)  # and a lower one down
    entropy = style.estimate(bounds.label_entropy, unit="bits")
    subtitle = f"{bounds.rows} rows. " * bool(bounds.rows)
    subtitle += (
        f"Bounds from what a linear classifier finds on unseen rows: at least {low} of the label's {entropy}. Pale: "
        "not proven by this, since the true information may be larger. Dots: observed errors. Whiskers: 95 % "
        "intervals; the title has the "
        "upper end of the bound's, rounded up. Dotted: guessing evenly."
    )
    ends = [0.0, guessing, *frame["error"], *frame["error_high"].fillna(0.0)]
    if (frame["error_low"] < 0).any():
        subtitle += " Whiskers are cut below 0, and whole in the hover."
    below = frame["error"] < 0  # no error is, but a bound may be
    left = zip(frame["component"][below], frame["error"][below].map(style.percent), strict=True)
    subtitle += "".join(f" {name}: {error}, left of the axis." for name, error in left)
    x = axes.share_axis(max(ends)) | {"title_text": "share of rows"}  # which is not below 0
    figure = layout.finish(marks, title, subtitle, x=x, y=axes.named_rows(frame["component"]), plot=280)
    return figure.add_vline(x=guessing, line=kit.DOTTED)


def gain_lines(curve: GainCurve, terms: tuple[str, ...] = ("joint",)) -> go.Figure:
    """Draw terms of Eq. 13 as members are added, in bits; gray is the joint information with shuffled labels.

    `terms`: some of "joint", "relevancy", "redundancy", "conditional_redundancy", "diversity". Rings mark dips of the
    joint information, which are the estimate's: information itself never falls.
    """
    given = listed("terms", terms, f"a list of some of {one_of(TERMS, 'and')}")
    chosen, frame, traces = [choice("terms", term, TERMS) for term in given], curve.frame(), list[Any]()
    frame["component"] = [f"{count} members" for count in frame["members"]]
    frame.attrs["units"] = dict.fromkeys(TERMS, "bits")
    last = [f"{span} last" if span else "" for span in frame.get("span", [""] * len(frame))]
    members, entropy = frame["members"], style.estimate(curve.label_entropy, unit="bits")
    if "joint" in chosen and frame["joint_null_low"].notna().any():
        traces.append(kit.band(members, frame["joint_null_low"], frame["joint_null_high"], name="labels shuffled"))
    for term in (term for term in chosen if frame[term].notna().any()):
        look: dict[str, Any] = {"shape": "line", "name": TERMS[term], "error_y": None}
        traces.append(kit.band(members, frame[f"{term}_low"], frame[f"{term}_high"], _COLORS[term]))
        traces.append(kit.trace(frame, members, term, _COLORS[term], kit.hover(frame, [term], last), **look))
    dips = frame[frame["dip"]]
    if "joint" in chosen and len(dips):
        ring = {"size": 9, "symbol": "circle-open", "line": {"width": 1.5}}
        traces.append(kit.trace(dips, "members", "joint", _COLORS["joint"], marker=ring, name="dips", error_y=None))
    joint, order = frame["joint"].iloc[-1], f"added {_ORDERS[curve.order]}"
    title = f"All {len(frame)} members hold {style.estimate(joint, unit='bits')} about the label, {order}"
    if joint > curve.label_entropy * (1 + 1e-3):
        title = f"No estimate: the joint information of all members, {order}, exceeds H(Y)"
    subtitle = (
        f"{curve.rows} rows, " * bool(curve.rows)
        + f"{curve.method} estimate. {_members(curve)} {curve.statement} Bands: 95 % "
    )
    subtitle += f"intervals; gray: labels shuffled. Dotted: H(Y) = {entropy}. "
    subtitle += " ".join(curve.warnings[:1])
    figure = layout.finish(traces, title, subtitle, x="members", y="bits", plot=360)
    figure.update_xaxes(tickformat="d", dtick=max(1, len(frame) // 10))
    return figure.add_hline(y=curve.label_entropy, line=kit.DOTTED)


def _members(information: Information | GainCurve) -> str:
    """Say what the members are."""
    grouped = any(" " in span for span in information.spans)
    return f"Members are {'sums of neighboring' if grouped else 'single'} components."


def _is_doubted(information: Information) -> bool:
    """Return whether classifiers find clearly less than the joint estimate: how much of it is true is not known."""
    bound = information.lower_bound
    return bound is not None and bool(bound.high < information.intervals["joint"][0])


def _named(frame: pd.DataFrame, column: str, **units: str) -> pd.DataFrame:
    """Return a frame whose `low` and `high` are those of a column, with units."""
    frame = frame.rename(columns={"low": f"{column}_low", "high": f"{column}_high"})
    frame.attrs = {"units": units}
    return frame
