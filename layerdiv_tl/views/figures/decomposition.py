"""A decomposition as a whole: prefix ensembles, Theorem 3, repeats of a block, pairs of components."""

from __future__ import annotations

import html
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._registry import figure_of
from ...components import Component
from ...ensemble.decomposition import Decomposition, NormAt, Part
from .. import plotting as kit
from .. import style
from .components import MAX_WHISKERS


@figure_of("pairwise", "Decomposition")
def pairwise_map(
    decomposition: Decomposition,
    by: Literal["cosine", "distance", "disagreement"] = "cosine",
    part: Part = "centered",
    max_components: int = 400,
) -> go.Figure:
    """A matrix component × component of one number of `pairwise`, with the clustering that orders it above.

    Args:
        by, part: The number, by which the components are clustered too, and whether it is raw or centered over the
            options; "disagreement" has no parts, and none has a shift.
        max_components: Of more components those with the largest (centered) diversity are shown, and the title says so.

    Under the tree stands each component's module; two branches meet at the mean distance of their members
    (1 − cosine for "cosine"). Raises InputError for one component, and for more than 1000 of them.
    """
    count, remark = len(decomposition.components), ""
    if count > max_components:
        half = decomposition.halves.get("centered", decomposition)
        kept = kit.largest(half.diversities.mean(0), max_components)
        components = tuple(decomposition.components[i] for i in kept)
        decomposition = replace(decomposition, values=decomposition.values[:, kept], components=components)
        remark = f"the {max_components:,} of {count:,} most diverse; "
    frame = decomposition.pairwise(by)
    name = kit.column(frame, by, part)
    order: list[str] = frame.attrs["order"]
    position = {label: i for i, label in enumerate(order)}
    one, other = (frame[side].map(position).to_numpy() for side in ("component", "other"))
    # The diagonal stays empty: a component makes no pair with itself.
    cells = np.full((len(order), len(order)), np.nan)
    ends = np.full((len(order), len(order), 2), np.nan, dtype=np.float32)
    cells[one, other] = cells[other, one] = frame[name]
    ends[one, other] = ends[other, one] = frame[[f"{name}_low", f"{name}_high"]]
    labels, unit = [html.escape(label) for label in order], frame.attrs["units"][name]
    hover = f"<b>%{{y}}</b> and <b>%{{x}}</b><br>{name.replace('_', ', ')} %{{z:.3g}}"
    hover += "" if unit == by else f" {unit}"
    hover += "<br>95 % [%{customdata[0]:.3g}, %{customdata[1]:.3g}]" if np.isfinite(ends).any() else ""
    options: dict[str, Any] = {"x": labels, "y": labels, "customdata": ends, "hovertemplate": f"{hover}<extra></extra>"}
    limit = kit.robust_limit(cells, 1.0) if by == "distance" else 1.0
    options |= {"signed": by == "cosine", "colorbar": {"len": 0.78, "y": 0.39}}
    figure = go.Figure(kit.heat_map(cells.astype(np.float32), None, unit, limit, **options))
    for strip in kit.module_strip(decomposition.components, 1.0, yaxis="y2"):
        figure.add_trace(strip.update(x=strip.hovertext))
    # An axis exists where a trace needs it; the tree is a shape, since no trace can stand between two categories.
    invisible = {"mode": "markers", "marker": {"opacity": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(x=labels[:1], y=[0], yaxis="y3", **invisible)
    path, top = _tree(np.array(frame.attrs["linkage"]))
    figure.add_shape(type="path", path=path, xref="x", yref="y3", line={"width": 1})
    centered = {"disagreement": ""}.get(by, "raw; " if name == by else "centered over the options; ")
    ticks = {"type": "category", "categoryorder": "array", "categoryarray": labels, "nticks": 44, "showgrid": False}
    ticks |= {"tickfont": {"size": 10}, "ticks": ""}
    edge, hidden = len(labels) - 0.5, {"visible": False, "fixedrange": True}
    return kit.arrange(
        figure,
        kit.suffixed(style.LABELS["title"]["pairwise"][by], decomposition),
        f"{remark}{centered}ordered by average linkage",
        height=900,
        below=120,
        barmode="overlay",
        bargap=0,
        xaxis=ticks | {"tickangle": -90, "anchor": "y", "range": [-0.5, edge]},
        yaxis=ticks | {"domain": [0, 0.78], "range": [edge, -0.5]},
        yaxis2=hidden | {"domain": [0.79, 0.81], "range": [0, 1]},
        yaxis3=hidden | {"domain": [0.82, 1], "range": [0, 1.03 * top]},
    )


def _tree(linkage: np.ndarray) -> tuple[str, float]:
    """The branches as one path, leaves at 0, 1, 2, …, and how high they go."""
    from scipy.cluster.hierarchy import dendrogram

    tree = dendrogram(linkage, no_plot=True)
    # scipy puts the leaves at 5, 15, 25, …
    links = [
        " L".join(f"{(x - 5) / 10:.4g},{y:.4g}" for x, y in zip(xs, ys, strict=True))
        for xs, ys in zip(tree["icoord"], tree["dcoord"], strict=True)
    ]
    return " ".join(f"M{link}" for link in links), float(np.max(tree["dcoord"])) or 1.0


@figure_of("depth", "Decomposition")
def depth_curves(
    decomposition: Decomposition, part: Part = "centered", norm: NormAt = "frozen", size_fair: bool = False
) -> go.Figure:
    """Accuracy (with labels), loss, bias and diversity of the prefix ensemble at every junction (Fig. 5 and 7).

    Args:
        part, size_fair: What is shown first; buttons switch between the parts there are, and to |L|² × diversity, which
            does not fall merely because later prefixes have more members.
        norm: "frozen" or "recomputed", as in `by_depth`.

    Bands are 95 % intervals over examples. Marks have the color of the module that closes the junction; open
    marks are partial sums, which the stream never holds. Raises InputError for an unknown part or norm.
    """
    frame = decomposition.by_depth(norm)
    parts, part = kit.parts_in(frame, part, "diversity")
    by_label = {c.label: c for c in decomposition.junctions or decomposition.components}
    components = [by_label[label] for label in frame["component"]]
    terms = [term for term in ("accuracy", "loss", "bias", "diversity") if term in frame]
    fair = [False, True] if "diversity_logit" in frame else [False]
    views = [(p, f) for f in fair for p in parts if not (f and p == "shift")]
    first = (part, size_fair and True in fair and part != "shift")
    partial = frame["partial"].to_numpy(dtype=bool)
    steps = np.arange(len(frame))

    def draw(part: Part, fair: bool) -> list[list[go.Scatter]]:
        """Of every term the band, the curve, and the marks of every module."""
        rows = []
        for term in terms:
            name = kit.column(frame, "diversity_logit" if fair and term == "diversity" else term, part)
            value = frame[name].to_numpy(dtype=float)
            hover = kit.hovers(frame, name) + np.where(partial, "<br>partial: the stream never holds this sum", "")
            traces = [
                kit.band(steps, frame[f"{name}_low"], frame[f"{name}_high"]),
                kit.line(steps, value, style.NEUTRAL, marks=0, hoverinfo="skip"),
            ]
            for module, positions in kit.by_module(components):
                for half, symbol, suffix in ((False, "circle", ""), (True, "circle-open", ", partial sum")):
                    at = positions[partial[positions] == half]
                    label = {"name": style.MODULE_NAME[module] + suffix, "hover": hover[at]}
                    if len(at):
                        traces.append(kit.dots(at, value[at], style.MODULE[module], size=7, symbol=symbol, **label))
            rows.append(traces)
        return rows

    titles, units = style.LABELS["title"]["depth"], frame.attrs["units"]
    exact = " = bias − diversity" if decomposition.gap is not None else ""
    headings = [titles[term] + exact * (term == "loss") for term in terms[:-1]]
    headings.append(titles["diversity_logit" if first[1] else "diversity"])
    x_title = "junction: the last component written"
    figure = kit.panels(draw(*first), headings, units=[units[term] for term in terms], x_title=x_title)
    guides = []
    if "accuracy" in terms:
        options = decomposition.values.shape[2]
        look: dict[str, Any] = {"width": 1.5, "marks": 0, "dash": "dot", "hoverinfo": "skip"}
        x, name = [-0.5, len(frame) - 0.5], f"accuracy of one option in {options}"
        guides.append(kit.line(x, [1 / options] * 2, style.NEUTRAL, name=name, **look))
        figure.add_trace(guides[0], row=1, col=1)
    choices = {}
    for p, f in views:
        meaning = style.LABELS["part"][p]
        label = (meaning.partition(":")[0] if len(fair) > 1 else meaning) + (", |L|² × diversity" if f else "")
        heading = {f"annotations[{len(terms) - 1}].text": titles["diversity_logit" if f else "diversity"]}
        choices[label] = (kit.changes(chain(*draw(p, f), guides), "y", "hovertext"), heading)
    return kit.arrange(
        figure,
        kit.suffixed("Prefix ensembles along depth", decomposition),
        f"all components before a junction, {style.LABELS['norm'][norm]}",
        x=kit.component_axis(components, edge=0.5, grid=True),
        height=250 + 170 * len(terms),
        menus=kit.buttons(choices, views.index(first)),
    )


@figure_of("tradeoff", "Decomposition")
def tradeoff_bars(decomposition: Decomposition, part: Part = "centered", paper: bool = False) -> go.Figure:
    """The summands of bias and of diversity side by side, and their sums (Theorem 3, `tradeoff`).

    Args:
        part: What is shown first; buttons switch between raw, centered and shift.
        paper: The form printed in Eq. 11 instead of the exact one.

    The shaded rows are Ω, which stands in both: moving them moves neither loss nor accuracy. Whiskers are 95 %
    intervals over examples. Raises InputError for an unknown part and for a loss other than the squared error.
    """
    frames: dict[Part, pd.DataFrame] = {"raw": decomposition.tradeoff(paper)}
    frames |= {p: half.tradeoff(paper) for p, half in decomposition.halves.items()}
    part = kit.part_shown(part, frames)

    def draw(part: Part) -> list[list[go.Bar]]:
        return [[_summands(frames[part], "bias", -0.19), _summands(frames[part], "diversity", 0.19)]]

    figure, frame = go.Figure(draw(part)[0]), frames[part]
    shared = np.flatnonzero(frame["term"].str.contains("Ω"))
    shade = {"fillcolor": style.faint(style.NEUTRAL), "line_width": 0, "layer": "below"}
    figure.add_hrect(y0=shared.min() - 0.5, y1=shared.max() + 0.5, **shade)
    figure.add_hline(y=len(frame) - 0.5, line={"width": 1})
    rows = zip(frame["term"], frame["formula"], strict=True)
    names = [f"{html.escape(term)}<br>{html.escape(formula)}" for term, formula in rows]
    ticks = {"tickmode": "array", "tickvals": np.arange(len(frame) + 1), "ticktext": [*names, "<b>sum</b>"]}
    return kit.arrange(
        figure,
        kit.suffixed("Terms of bias and diversity (Theorem 3)", decomposition),
        f"{'As printed in Eq. 11' if paper else 'Exact'}; shaded: Ω, which is in both",
        x={"title_text": frame.attrs["units"]["bias"]},
        y=ticks | {"range": [len(frame) + 0.5, -0.5], "showgrid": False},
        height=560,
        menus=kit.part_buttons(list(frames), part, draw, "x", "error_x", "hovertext"),
        barmode="overlay",
    )


def _summands(frame: pd.DataFrame, term: str, side: float) -> go.Bar:
    """The summands of one term with their whiskers, and last their sum."""
    values, unit = frame[term].to_numpy(), frame.attrs["units"][term]
    hover = kit.hover_lines(frame.rename(columns={"term": "component"}), {f"in the {term}": term}).tolist()
    hover.append(f"<b>{term}</b> {style.measured(values.sum(), unit=unit)}")
    error = kit.whiskers(frame, term)
    error |= {end: np.append(error[end], 0.0) for end in ("array", "arrayminus")}
    lengths, rows = np.append(values, values.sum()), np.arange(len(frame) + 1) + side
    return kit.bar(lengths, rows, style.TERM[term], across=True, width=0.36, name=term, hover=hover, error=error)


@figure_of("repeats", "Decomposition")
def repeat_bars(decomposition: Decomposition, part: Part = "centered", max_components: int = 1500) -> go.Figure:
    """Diversity, cosine and share of the whole diversity between the repeats of every block (`by_repeat`).

    Args:
        part: Which part of diversity is shown first; for the squared error a menu changes between raw, centered and
            shift. Cosines are centered always.
        max_components: Of more rows those with the largest diversity are shown, and the subtitle says so.

    Whiskers are 95 % intervals over examples. Raises InputError where no layer is used twice, and for losses without
    a nested cut.
    """
    whole = decomposition.by_repeat()
    # The cross-entropy has no diversity of the repeats alone: there it is that within the block's own distribution.
    term = "diversity" if "diversity" in whole else "within"
    parts, part = kit.parts_in(whole, part, term)
    kept = kit.largest(whole[kit.column(whole, term, part)].to_numpy(), max_components)
    frame = whole.iloc[kept]
    names = frame[["kind", "layer", "index"]].astype(object).replace({pd.NA: None})
    components = [Component(*name) for name in names.itertuples(index=False)]

    def draw(part: Part) -> list[list[go.Bar]]:
        counts = "<br>" + frame["repeats"].astype(str).to_numpy(dtype=object) + " repeats"
        rows = []
        for name in (kit.column(frame, term, part), "cosine_centered", kit.column(frame, "share", part)):
            error = kit.whiskers(frame, name, visible=True) if len(frame) <= MAX_WHISKERS else {"visible": False}
            rows.append(kit.module_traces(components, frame[name], kit.hovers(frame, name) + counts, error=error))
        return rows

    def subtitle(part: Part) -> str:
        suffix = "" if part == "raw" else f"_{part}"
        share, low, high = (100 * whole.attrs[f"share{suffix}{end}"] for end in ("", "_low", "_high"))
        return (
            f"Between the repeats of one block lie {style.number(share)} % {style.interval(low, high)} of the "
            f"{f'{part} ' if len(parts) > 1 else ''}diversity, the rest between blocks. {kit.whiskered(whole)}"
            + ("" if len(kept) == len(whole) else f" The {len(kept):,} of {len(whole):,} with the largest.")
        )

    units, x_title = [whole.attrs["units"][term], "cosine", "share"], "block, in the order of its first use"
    figure = kit.panels(draw(part), style.LABELS["title"]["repeats"], units=units, x_title=x_title)
    figure.update_yaxes(tickformat=".1%", rangemode="tozero", row=3, col=1)

    def layout(part: Part) -> dict[str, str]:
        return {"title.subtitle.text": kit.wrapped(subtitle(part))}

    menus = kit.part_buttons(parts, part, draw, "y", "hovertext", "error_y", layout=layout)
    figure.update_layout(barmode="overlay")
    title = kit.suffixed("Diversity between the repeats of each block", decomposition)
    axis = kit.component_axis(components, edge=1)
    return kit.arrange(figure, title, subtitle(part), x=axis, plot=570, menus=menus)
