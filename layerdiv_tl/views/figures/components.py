"""Bias, diversity and net of every component: along depth, against one another, and of heads; learned weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..._checks import choice
from ..._registry import figure_of
from ...attribution.profile_results import Profile
from ...ensemble.decomposition import TERMS, Decomposition, Part
from ...errors import InputError
from .. import plotting as kit
from .. import style

# Above this many bars the whiskers are a gray smear, and whiskers this many times the tallest bar, those of a handful
# of examples, would make the bars small: the intervals are in the hover only.
MAX_WHISKERS, _WIDEST = 150, 2
_SHARED = ("bias", "diversity")
_NOTHING = "a component that writes nothing"


@figure_of("cross_entropy", "Decomposition")
def cross_entropy_bars(decomposition: Decomposition, max_components: int = 1500) -> go.Figure:
    """What each component adds to the cross-entropy of the labels, in nats (`net_linear`): below 0 it helps.

    Of whichever loss, for labels. Heads are a map layer × head. Of more than `max_components` the largest are shown.
    Raises InputError for a dense target and for a half of a decomposition, which have no labels.
    """
    if decomposition.gold is None or decomposition.part != "raw":
        raise InputError("kind='cross_entropy' needs labels: decompose with labels=, and plot the whole, not a half.")
    if decomposition.loss_name != "cross_entropy":
        decomposition = replace(decomposition, loss_name="cross_entropy", tau=None)
    frame, components = decomposition.by_component(full=True), decomposition.components
    kept = kit.largest(frame["net_linear"].to_numpy(), max_components)
    remark = "" if len(kept) == len(frame) else f" The {len(kept):,} of {len(frame):,} that add most either way."
    title = "What every component adds to the cross-entropy"
    subtitle = (
        f"Below 0: it lowers the loss. The sum and the entropy H(p), {style.number(decomposition.entropy)} nats, "
    )
    subtitle += f"make the loss, {style.number(decomposition.loss)} nats."
    if any(c.kind == "head" for c in components):
        return head_grid(decomposition, "net_linear").update_layout(title={"text": title})
    kept_frame = frame.iloc[kept]
    error = kit.whiskers(kept_frame, "net_linear") if len(kept) <= MAX_WHISKERS else {"visible": False}
    hover, shown = kit.hover_lines(kept_frame, {"adds": "net_linear"}), [components[i] for i in kept]
    figure = go.Figure(kit.module_traces(shown, kept_frame["net_linear"], hover, error=error))
    x = kit.component_axis(shown, "component, in stream order", grid=True, edge=1)
    return kit.arrange(figure, title, subtitle + remark, x=x, y={"title_text": "nats"}, plot=320, barmode="overlay")


@figure_of("bars", "Decomposition", default=True)
def loss_bars(decomposition: Decomposition, part: Part = "raw", max_components: int = 1500) -> go.Figure:
    """The loss's own `component_bars`, of the numbers that `loss`, `bias` and `diversity` are means of."""
    return component_bars(decomposition, part, max_components)


@figure_of("bars", "CorpusProfile")
def component_bars(measured: kit.Measured, part: Part = "centered", max_components: int = 1500) -> go.Figure:
    """Three rows of bars (bias, diversity, net), one bar per component, colored by module.

    Args:
        measured: A decomposition, a corpus or a profile (means over its tokens).
        part: What is shown first; for the squared error buttons switch between raw, centered and shift.
        max_components: Of more components those with the largest diversity in `part` are shown, and the title says so.

    Whiskers are 95 % intervals over examples (texts, for a corpus). Values are a component's own, undivided by |L|, in
    the loss's unit. Bars of bias and net begin at those of a component that writes nothing (dotted).
    """
    frame, components, remark = kit.most_diverse(measured, part, max_components)
    parts, part = kit.parts_in(frame, part)
    terms = [term for term in TERMS if term in frame]

    def draw(part: Part) -> list[list[go.Bar]]:
        rows, zeros = [], kit.zeros(measured, part)
        for term in terms:
            name, base = kit.column(frame, term, part), zeros.get(term, 0.0)
            height = frame[name] - base
            widest = (frame[f"{name}_high"] - frame[f"{name}_low"]).max()
            drawn = len(frame) <= MAX_WHISKERS and bool(widest <= _WIDEST * height.abs().max())
            error = kit.whiskers(frame, name, visible=True) if drawn else {"visible": False}
            rows.append(kit.module_traces(components, height, kit.hovers(frame, name), error=error, base=base))
        return rows

    def subtitle(part: Part) -> str:
        half = kit.half_of(measured, part)
        if not isinstance(half, Decomposition):
            return remark
        loss, bias, diversity = (f"{style.number(getattr(half, name))}" for name in ("loss", "bias", "diversity"))
        unit, other = units[0], units[1]
        sums = f"loss {loss} = bias {bias} − diversity {diversity} {unit}, each bar a member's own part of these means"
        if not half.loss_function.is_exact:
            sums = f"loss {loss} and bias {bias} {unit}, diversity {diversity} {other}"
        return "; ".join(filter(None, [sums, remark]))

    def baseline(part: Part) -> dict[str, Any]:
        levels = enumerate(kit.zeros(measured, part).values())
        moved = {f"shapes[{number}].{end}": level for number, level in levels for end in ("y0", "y1")}
        return moved | {"title.subtitle.text": kit.wrapped(subtitle(part))}

    headings = [style.LABELS["title"]["components"][term] for term in terms]
    units, x_title = [frame.attrs["units"][term] for term in terms], "component, in stream order"
    figure = kit.panels(draw(part), headings, units=units, x_title=x_title)
    title = kit.suffixed("Bias and diversity of every component", measured)
    menus = kit.part_buttons(parts, part, draw, "y", "base", "hovertext", "error_y", layout=baseline)
    for number, (term, level) in enumerate(kit.zeros(measured, part).items()):
        named = {"name": _NOTHING, "showlegend": number == 0}
        figure.add_hline(y=level, row=terms.index(term) + 1, col=1, line=kit.DOTTED, **named)
    figure.update_layout(barmode="overlay")
    axis = kit.component_axis(components, grid=True, edge=1)
    return kit.arrange(figure, title, subtitle(part), x=axis, height=720, menus=menus)


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

    Colors of bias and net center on a component that writes nothing. They end at the 99th percentile, so that one head
    does not hide the others. Embedding, constant and
    attention biases are left out. Raises InputError for a decomposition without heads, an unknown part, and a column
    that does not exist or holds no numbers.
    """
    components = decomposition.components
    heads = [i for i, c in enumerate(components) if c.kind == "head"]
    if not heads:
        raise InputError("there are no heads here: decompose contributions(model, …, unit='head').")
    frame = decomposition.by_component(full=True)
    name = kit.column(frame, term, part)
    numeric = [name for name in frame.columns if name in frame.attrs["units"] and f"{name}_low" in frame]
    if name not in numeric:
        choice("term", term, numeric)
    unit, texts = frame.attrs["units"][name], kit.hovers(frame, name)

    zero = 0.0 if within_layer else kit.zeros(decomposition, part).get(term, 0.0)
    rows, (values, hover) = kit.head_tables(components, frame[name].to_numpy() - zero, texts)
    width = values.shape[1]
    shown = values - np.nanmean(values, 1, keepdims=True) if within_layer else values
    signed = bool((shown < 0).any())
    contents: list[list[go.Heatmap | go.Bar]] = [[kit.heat_map(shown, hover, unit, signed=signed, xgap=1, ygap=1)]]

    layers = {(sublayer.layer, sublayer.repeat): row for sublayer, row in rows.items()}
    mlps = [i for i, c in enumerate(components) if c.kind == "mlp" and (c.layer, c.repeat) in layers]
    if mlps:
        y = [layers[components[i].layer, components[i].repeat] for i in mlps]
        contents.append(
            [kit.bar(frame[name].iloc[mlps] - zero, y, style.MODULE["mlp"], across=True, hover=texts[mlps])]
        )
    widths = [0.78, 0.22] if mlps else None
    figure = kit.panels(contents, columns=len(contents), shared_xaxes=False, column_widths=widths)
    if mlps:
        figure.update_xaxes(title_text=f"MLP, {unit}", nticks=4, row=1, col=2)
    plain = {"showgrid": False, "zeroline": False}
    ticks = {"dtick": max(1, -(-width // 24)), "tick0": 0, "range": [-0.5, width - 0.5]}
    figure.update_xaxes(title_text="head", **ticks, **plain, row=1, col=1)
    left_out = len(components) - len(heads) - len(mlps)
    own = "its own value" + (f" less that of {_NOTHING}, {style.number(zero)}" if zero else "")
    return kit.arrange(
        figure,
        kit.suffixed(_heading(name), decomposition),
        ("each less the mean of its layer's heads" if within_layer else f"of each head {own}")
        + ("; bars: the layer's MLP" if mlps else "")
        + "; colors end at the 99th percentile"
        + (f"; {left_out} other component{'s' * (left_out > 1)} left out" if left_out else ""),
        y=kit.layer_axis(list(rows)),
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
