"""Bias, diversity and net of every component: along depth, against one another, and of heads; learned weights."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice
from ..._registry import figure_of
from ...attribution.profile_base import Profile
from ...ensemble.decomposition import TERMS, Decomposition, Part
from ...errors import InputError
from .. import plotting as kit
from .. import style

# Above this many bars the whiskers are a gray smear, and whiskers this many times the tallest bar, those of a handful
# of examples, would make the bars small: the intervals are in the hover only.
MAX_WHISKERS, _WIDEST = 150, 2
_SHARED = ("bias", "diversity")


@figure_of("bars", "Decomposition", "CorpusProfile", default=True)
def component_bars(measured: kit.Measured, part: Part = "centered", max_components: int = 1500) -> go.Figure:
    """Three rows of bars (bias, diversity, net), one bar per component, colored by module.

    Args:
        measured: A decomposition, a corpus or a profile (means over its tokens).
        part: What is shown first; for the squared error buttons switch between raw, centered and shift.
        max_components: Of more components those with the largest diversity in `part` are shown, and the title says so.

    Whiskers are 95 % intervals over examples (texts, for a corpus). Values are a component's own, undivided by |L|, in
    the loss's unit. The dotted line is the bias of a zero contribution.
    """
    frame, components, remark = kit.most_diverse(measured, part, max_components)
    parts, part = kit.parts_in(frame, part)
    terms = [term for term in TERMS if term in frame]

    def draw(part: Part) -> list[list[go.Bar]]:
        rows = []
        for name in (kit.column(frame, term, part) for term in terms):
            widest = (frame[f"{name}_high"] - frame[f"{name}_low"]).max()
            drawn = len(frame) <= MAX_WHISKERS and bool(widest <= _WIDEST * frame[name].abs().max())
            error = kit.whiskers(frame, name, visible=True) if drawn else {"visible": False}
            rows.append(kit.module_traces(components, frame[name], kit.hovers(frame, name), error=error))
        return rows

    def baseline(part: Part) -> dict[str, Any]:
        # The line's own text follows the headings of the rows.
        zero = kit.half_of(measured, part).zero_bias if isinstance(measured, Decomposition) else None
        moved = ("shapes[0].y0", "shapes[0].y1", f"annotations[{len(terms)}].y")
        return {} if zero is None else dict.fromkeys(moved, zero)

    headings = [style.LABELS["title"]["components"][term] for term in terms]
    units, x_title = [frame.attrs["units"][term] for term in terms], "component, in stream order"
    figure = kit.panels(draw(part), headings, units=units, x_title=x_title)
    title = kit.suffixed("Bias and diversity of every component", measured)
    menus = kit.part_buttons(parts, part, draw, "y", "hovertext", "error_y", layout=baseline)
    if isinstance(measured, Decomposition):
        text = {"annotation": {"text": measured.loss_function.baseline}, "annotation_position": "top left"}
        figure.add_hline(y=baseline(part)["shapes[0].y0"], row=1, col=1, line=kit.DOTTED, **text)
    figure.update_layout(barmode="overlay")
    axis = kit.component_axis(components, grid=True, edge=1)
    return kit.arrange(figure, title, remark, x=axis, height=720, menus=menus)


@figure_of("depth", "Profile")
def profile_depth(profile: Profile, part: Part = "centered", max_components: int = 1500) -> go.Figure:
    """Bias, diversity and net of every component, means over the tokens that have a next one: `component_bars`."""
    title = f"Bias and diversity, means over {int(profile.has_target.sum()):,} tokens"
    return component_bars(profile, part, max_components).update_layout(title_text=title)


@figure_of("heads", "Decomposition")
def head_grid(
    decomposition: Decomposition, term: str = "diversity", part: Part = "centered", within_layer: bool = False
) -> go.Figure:
    """A map layer × head of one column of `by_component`, the first layer at the bottom; MLPs as bars next to it.

    Args:
        term, part: A numeric column ("net", "accuracy", "diversity_share", …) and the part of it, where it has parts.
        within_layer: Colors show the value minus the mean of its layer's heads; hovers have the value itself.

    Colors end at the 99th percentile, so that one head does not hide the others. Embedding, constant and
    attention biases are left out. Raises InputError for a decomposition without heads, an unknown part, and a column
    that does not exist or holds no numbers.
    """
    components = decomposition.components
    heads = [i for i, c in enumerate(components) if c.kind == "head"]
    if not heads:
        raise InputError("there are no heads here: decompose contributions(model, …, unit='head').")
    frame = decomposition.by_component()
    name = kit.column(frame, term, part)
    numeric = [name for name in frame.columns if name in frame.attrs["units"] and f"{name}_low" in frame]
    if name not in numeric:
        choice("term", term, numeric)
    unit, texts = frame.attrs["units"][name], kit.hovers(frame, name)

    rows = {sublayer: row for row, sublayer in enumerate(dict.fromkeys(components[i].sublayer for i in heads))}
    width = 1 + max(components[i].index or 0 for i in heads)
    values, hover = np.full((len(rows), width), np.nan), np.full((len(rows), width), "", dtype=object)
    for i in heads:
        cell = rows[components[i].sublayer], components[i].index or 0
        values[cell], hover[cell] = frame[name].iloc[i], texts[i]
    shown = values - np.nanmean(values, 1, keepdims=True) if within_layer else values
    contents: list[list[go.Heatmap | go.Bar]] = [
        [kit.heat_map(shown, hover, unit, signed=bool((shown < 0).any()), xgap=1, ygap=1)]
    ]

    layers = {(sublayer.layer, sublayer.repeat): row for sublayer, row in rows.items()}
    mlps = [i for i, c in enumerate(components) if c.kind == "mlp" and (c.layer, c.repeat) in layers]
    if mlps:
        y = [layers[components[i].layer, components[i].repeat] for i in mlps]
        contents.append([kit.bar(frame[name].iloc[mlps], y, style.MODULE["mlp"], across=True, hover=texts[mlps])])
    widths = [0.78, 0.22] if mlps else None
    figure = kit.panels(contents, columns=len(contents), shared_xaxes=False, column_widths=widths)
    if mlps:
        figure.update_xaxes(title_text=f"MLP, {unit}", nticks=4, row=1, col=2)
    plain = {"showgrid": False, "zeroline": False}
    ticks = {"dtick": max(1, -(-width // 24)), "tick0": 0, "range": [-0.5, width - 0.5]}
    figure.update_xaxes(title_text="head", **ticks, **plain, row=1, col=1)
    every, left_out = max(1, -(-len(rows) // 16)), len(components) - len(heads) - len(mlps)
    names = [html.escape(sublayer.label.rpartition(".")[0]) for sublayer in rows][::every]
    y_ticks: dict[str, Any] = {"tickmode": "array", "tickvals": np.arange(0, len(rows), every), "ticktext": names}
    return kit.arrange(
        figure,
        kit.suffixed(_heading(name), decomposition),
        ("each less the mean of its layer's heads" if within_layer else "each head's own value")
        + ("; bars: the layer's MLP" if mlps else "")
        + "; colors end at the 99th percentile"
        + (f"; {left_out} other component{'s' * (left_out > 1)} left out" if left_out else ""),
        y=y_ticks | plain | {"range": [-0.5, len(rows) - 0.5]},
        height=max(320, min(900, 180 + 18 * len(rows))),
    )


def _heading(name: str) -> str:
    """`diversity_share_centered` in words."""
    term, _, part = name.rpartition("_")
    term, part = (term, f" ({part})") if part in style.LABELS["part"] else (name, "")
    return f"{term.replace('_', ' ').capitalize()} of every attention head{part}"


@figure_of("modules", "Decomposition")
def module_shares(decomposition: Decomposition) -> go.Figure:
    """Each module's share of bias and of diversity, raw and centered side by side (Fig. 4).

    The line across a bar is the module's share of components, n_g/|L|: what it would hold if its members
    were like all others. Whiskers are 95 % intervals over examples.
    """
    frame = decomposition.by_module()
    frame.insert(0, "component", [style.MODULE_NAME[module] for module in frame["module"]])
    titles = style.LABELS["title"]["modules"]
    parts = [part for part in titles if part == "raw" or f"bias_share_{part}" in frame]
    width = 0.8 / len(frame)
    contents: list[list[go.Bar]] = []
    lines: list[dict[str, Any]] = []
    for part in parts:
        names = [f"{term}_share" + ("" if part == "raw" else f"_{part}") for term in _SHARED]
        hover = np.array([kit.hover_lines(frame, {f"share of {t}": c}) for t, c in zip(_SHARED, names, strict=True)])
        values, low, high = (frame[[name + end for name in names]].to_numpy() for end in ("", "_low", "_high"))
        traces = []
        for number, row in enumerate(frame.to_dict("records")):
            x, share = np.arange(len(_SHARED)) + (number - (len(frame) - 1) / 2) * width, row["member_share"]
            label = {"name": f"{row['component']} ({int(row['members']):,})", "legendgroup": row["module"]}
            label["hover"] = hover[:, number] + f"<br>share of components {style.number(share)}"
            label["error"] = kit.error_bars(values[number], low[number], high[number])
            traces.append(kit.bar(x, values[number], style.MODULE[row["module"]], width=0.92 * width, **label))
            ends = [{"x0": middle - width / 2, "x1": middle + width / 2, "y0": share, "y1": share} for middle in x]
            lines += [end | kit.cell(len(contents), len(parts)) for end in ends]
        contents.append(traces)
    headings = [titles[part] for part in parts] if len(parts) > 1 else []
    units = ["share of the ensemble's"]
    figure = kit.panels(contents, headings, len(parts), units=units, across=0.06, shared_xaxes=False)
    for place in lines:
        figure.add_shape(type="line", line={"width": 2.5}, **place)
    title = kit.suffixed("Each module's share of bias and of diversity", decomposition)
    subtitle = "the line across a bar: the module's share of components, n_g/|L|"
    ticks = {"tickmode": "array", "tickvals": np.arange(len(_SHARED)), "ticktext": _SHARED, "showgrid": False}
    drawn: dict[str, Any] = {"height": 460, "barmode": "overlay"}
    return kit.arrange(figure, title, subtitle, x=ticks, y={"tickformat": ".0%", "rangemode": "tozero"}, **drawn)
