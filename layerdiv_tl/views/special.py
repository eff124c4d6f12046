"""Figures that are more than columns of a frame: heads, accuracies, depth, named bars, and what can be dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.special import ndtri

from .._checks import choice
from ..errors import InputError
from . import shapes, style


def heads(frame: pd.DataFrame, value: str, names: int = 3) -> go.Figure:
    """Draw a map head × layer of a column, the MLPs as a last row; the `names` largest cells are outlined and named.

    Color is a root of the value, whose ends are the largest cell: none is clipped.
    """
    known = frame[frame["kind"].isin(("head", "mixer_head", "mlp"))].copy()
    if (known["kind"] == "mlp").all():
        raise InputError("there are no heads here: take contributions(model, …, unit='head').")
    known["layer_name"] = [shapes.layer_name(row) for _, row in known.iterrows()]
    last = known["index"].max() + 1
    known["line"] = known["index"].astype("float").fillna(float(last)).astype(int)
    columns, lines = list(dict.fromkeys(known["layer_name"])), sorted(set(known["line"]))
    table = known.pivot_table(index="line", columns="layer_name", values=value, sort=False)
    z = table.reindex(index=lines, columns=columns).to_numpy(dtype=float)
    texts = np.full(z.shape, "", dtype=object)
    for (_, row), text in zip(known.iterrows(), shapes.hover(known, [value]), strict=True):
        texts[lines.index(row["line"]), columns.index(row["layer_name"])] = text
    to_color, scale = shapes.root_scale(z, shapes.unit_of(frame, value), shapes.heading(frame, value))
    drawn = {"z": to_color(z), "customdata": z, "hovertext": texts, "hoverinfo": "text", "coloraxis": "coloraxis"}
    figure = go.Figure(go.Heatmap(**drawn, xgap=1, ygap=1))
    tall = max(170, (22 if len(lines) <= 16 else 14) * len(lines))
    cell, near = tall / len(lines), 0.56 * len(columns)
    taken: list[tuple[int, int]] = []  # names are lifted until none covers another
    for place in known[value].abs().nlargest(names).index:
        row = known.loc[place]
        x, y = columns.index(row["layer_name"]), lines.index(row["line"])
        lift = next(k for k in range(1, 99) if all(abs(x - a) > near or y - k != b for a, b in taken))
        taken.append((x, y - lift))
        figure.add_shape(type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line={"width": 1.5})
        left = x > len(columns) / 2
        arrow = {
            "showarrow": True,
            "arrowhead": 0,
            "arrowwidth": 1.5,
            "ax": -4 if left else 4,
            "ay": -10 - (lift - 1) * cell,
        }
        anchor = {"x": x, "y": y - 0.5, "xanchor": "right" if left else "left"}
        figure.add_annotation(text=f"<b>{shapes.label(row['component'])}</b>", **anchor, **arrow)
    step = -(-len(columns) // 12)
    figure.update_xaxes(tickvals=np.arange(len(columns))[::step], ticktext=columns[::step], showgrid=False)
    step = -(-len(lines) // 24)
    ticks = {i: f"H{line}" for i, line in enumerate(lines) if i % step == 0}
    if (known["kind"] == "mlp").any():
        ticks[lines.index(last)] = "MLP"
    sides = {"range": [len(lines) - 0.5, -0.5], "showgrid": False, "zeroline": False}
    figure.update_yaxes(tickvals=list(ticks), ticktext=list(ticks.values()), **sides)
    figure.update_xaxes(zeroline=False)
    return shapes.color_bar(figure, scale, tall)


def accuracy_bars(frame: pd.DataFrame, chance: float, total: float, rows: int, names: int = 3) -> go.Figure:
    """Draw each component's diversity on a logarithmic axis and, below, its accuracy alone as a bar from guessing.

    The gray band holds 95 % of guesses (normal approximation); the line is the accuracy of all components together.
    """
    frame = frame.reset_index(drop=True)
    figure = shapes.panels([shapes.heading(frame, "diversity"), "accuracy alone"])
    for module, some in shapes.by_module(frame):
        look: dict[str, Any] = {"name": style.MODULE_NAME[module], "legendgroup": module, "x": some.index}
        marker = {"color": style.MODULE[module], "symbol": style.MODULE_SHAPE[module], "size": 7}
        error = shapes.whiskers(some, "diversity") if len(frame) <= shapes.MOST_WHISKERS else None
        texts = {"hovertext": shapes.hover(some, ["diversity"]), "hoverinfo": "text"}
        known = some["diversity"].where(some["diversity"] > 0)
        figure.add_scatter(y=known, mode="markers", marker=marker, error_y=error, **look, **texts, row=1, col=1)
        texts["hovertext"] = shapes.hover(some, ["accuracy"])
        bar = {"y": some["accuracy"] - chance, "base": chance, "width": 0.9, "marker_color": style.MODULE[module]}
        figure.add_bar(**bar, **look, **texts, showlegend=False, row=2, col=1)
    for row, column in enumerate(("diversity", "accuracy"), start=1):
        for i in _apart(frame[column].nlargest(names).index, len(frame) / 5):
            y = np.log10(frame["diversity"][i]) if row == 1 else frame["accuracy"][i]
            at = {"x": i, "y": float(y), "xanchor": "right" if i > 0.9 * len(frame) else "center", "yanchor": "bottom"}
            figure.add_annotation(text=shapes.label(frame["component"][i]), **at, yshift=6, row=row, col=1)
    coin = float(ndtri(0.975)) * (chance * (1 - chance) / rows) ** 0.5
    shade = {"fillcolor": style.NEUTRAL, "opacity": 0.15, "line_width": 0}
    figure.add_hrect(y0=chance - coin, y1=chance + coin, **shade, row=2, col=1)
    for y, text in ((chance, "guessing"), (total, f"all {len(frame)}")):
        figure.add_hline(y=y, line={"color": style.NEUTRAL, "width": 1}, row=2, col=1)
        _end(figure, text, y, 2)
    figure.update_yaxes(shapes.log_axis(frame["diversity"]), row=1, col=1)
    figure.update_yaxes(tickformat=".0%", zeroline=False, nticks=5, row=2, col=1)
    figure.update_xaxes(shapes.row_axis(frame))
    shapes.legend_above(figure, 350)
    top = shapes.TOP + shapes.WORDS + 16  # for a legend of two lines
    return figure.update_layout(barmode="overlay", height=top + 400, margin={"t": top, "r": 68})


def _apart(places: Any, gap: float) -> list[int]:
    """The first places that lie at least a gap from those before them, whose names would cover each other."""
    kept: list[int] = []
    for place in places:
        if all(abs(place - other) >= gap for other in kept):
            kept.append(int(place))
    return kept


def _end(figure: go.Figure, text: str, y: float, row: int, color: str = style.NEUTRAL) -> None:
    """Name a line at its right end."""
    axis = "" if row == 1 else str(row)
    place = {"x": 1, "y": y, "xref": "paper", "yref": f"y{axis}", "xanchor": "left", "xshift": 4}
    figure.add_annotation(text=text, font={"color": color}, **place)


def depth(frame: pd.DataFrame, chance: float | None) -> go.Figure:
    """Draw bias and loss of the components so far, with the diversity as the band between them, and the accuracy.

    Open marks are partial sums, which the stream never holds.
    """
    frame, x = frame.reset_index(drop=True), np.arange(len(frame))
    is_labeled = "accuracy" in frame
    loss = f"loss = bias − diversity, {shapes.unit_of(frame, 'bias')}"
    figure = shapes.panels([loss, "accuracy"] if is_labeled else [loss])
    texts = shapes.hover(frame, ["bias", "diversity", "loss", *(["accuracy"] if is_labeled else [])])
    symbols = np.where(frame["partial"], "circle-open", "circle")
    look: dict[str, Any] = {"hovertext": texts, "hoverinfo": "text", "mode": "lines+markers"}
    line = {"color": style.TERM["bias"], "width": 2}
    figure.add_scatter(x=x, y=frame["bias"], line=line, hoverinfo="skip", mode="lines", name="bias", row=1, col=1)
    filled = {"fill": "tonexty", "fillcolor": style.faint(style.TERM["diversity"], 0.25), "name": "loss"}
    marker = {"size": 5, "symbol": symbols}
    line = {"color": style.TERM["loss"], "width": 2.5}
    figure.add_scatter(x=x, y=frame["loss"], line=line, marker=marker, **filled, **look, row=1, col=1)
    end = frame.iloc[-1]
    middle = (end["bias"] + end["loss"]) / 2
    for text, y in (("bias", end["bias"]), ("diversity", middle), ("loss", end["loss"])):
        _end(figure, text, float(y), 1, style.TERM[text])
    if is_labeled:
        shapes.band(figure, x, frame, "accuracy", style.TERM["accuracy"], row=2)
        line = {"color": style.TERM["accuracy"], "width": 2.5}
        figure.add_scatter(x=x, y=frame["accuracy"], line=line, marker=marker, name="accuracy", **look, row=2, col=1)
        figure.add_hline(y=chance, line={"color": style.NEUTRAL, "width": 1}, row=2, col=1)
        _end(figure, "guessing", float(chance or 0), 2)
        _end(figure, f"{end['accuracy']:.0%}", float(end["accuracy"]), 2, style.TERM["accuracy"])
        figure.update_yaxes(tickformat=".0%", row=2, col=1)
    figure.update_yaxes(nticks=5, zeroline=False)
    figure.update_xaxes(shapes.row_axis(frame))
    return figure.update_layout(height=420 if is_labeled else 300, showlegend=False, margin={"t": 100, "r": 72})


def across(frame: pd.DataFrame, column: str, most: int = 24, rule: int = 0) -> go.Figure:
    """Draw a horizontal bar per row with its interval, each row named; a line after the first `rule` rows.

    Gray is the range from `null_low` to `null_high`, where a frame has these.
    """
    frame = frame.head(most).reset_index(drop=True)
    figure = go.Figure()
    for module, some in shapes.by_module(frame):
        look: dict[str, Any] = {"hovertext": shapes.hover(some, [column]), "hoverinfo": "text", "orientation": "h"}
        look |= shapes.look_of(module) | {"width": 0.8}
        color = style.MODULE.get(module, style.NEUTRAL)
        figure.add_bar(x=some[column], y=some.index, error_x=shapes.whiskers(some, column), marker_color=color, **look)
    for row, low, high in zip(frame.index, *(frame.get(f"null_{end}", []) for end in ("low", "high")), strict=False):
        shade = {"fillcolor": style.faint(style.NEUTRAL, 0.45), "line": {"width": 0}, "layer": "above"}
        figure.add_shape(type="rect", x0=low, x1=high, y0=row - 0.4, y1=row + 0.4, **shade)
    names = [shapes.label(name) for name in frame["component"]]
    figure.update_yaxes(tickvals=frame.index, ticktext=names, autorange="reversed", zeroline=False)
    figure.update_xaxes(title_text=shapes.heading(frame, column), zeroline=True)
    if rule:
        figure.add_hline(y=rule - 0.5, line={"color": style.NEUTRAL, "width": 1})
    return shapes.legend_above(figure, 22 * len(frame)).update_layout(barmode="overlay", legend_y=1)


def drop_curve(frame: pd.DataFrame, random: pd.DataFrame, quantity: str = "loss", part: str = "layer") -> go.Figure:
    """Draw loss or accuracy against the number of components dropped, a line per plan; random plans are rings."""
    figure = shapes.panels([shapes.heading(frame, quantity)])
    start = frame[frame["plan"] == "none"]
    for number, plan in enumerate(name for name in dict.fromkeys(frame["plan"]) if name not in ("none", "random")):
        some = pd.concat([start, frame[frame["plan"] == plan]])
        some.attrs, color = frame.attrs, style.SERIES[number]
        shapes.band(figure, some["dropped"], some, quantity, color)
        texts = shapes.hover(some, [quantity], by=[f"{plan}: {count} dropped" for count in some["dropped"]])
        look: dict[str, Any] = {"line": {"color": color, "width": 2}, "mode": "lines+markers", "name": plan}
        figure.add_scatter(x=some["dropped"], y=some[quantity], hovertext=texts, hoverinfo="text", **look, row=1, col=1)
    if len(random):
        at = np.full(len(random), frame["dropped"].max())
        marker = {"symbol": "circle-open", "color": style.NEUTRAL, "size": 8}
        texts = shapes.hover(random, [quantity], by="without " + random["components"].str.slice(0, 60))
        look = {"mode": "markers", "marker": marker, "name": "random", "hovertext": texts, "hoverinfo": "text"}
        figure.add_scatter(x=at, y=random[quantity], **look, row=1, col=1)
    figure.add_hline(y=float(start[quantity].iloc[0]), line={"color": style.NEUTRAL, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text=f"{part}s dropped", tickformat="d", zeroline=False)
    return shapes.legend_above(figure, 340)


def decomposition_bars(decomposition: Any) -> go.Figure:
    """Draw `accuracy_bars` of a decomposition with labels, and bias, diversity and net of one without."""
    frame = decomposition.by_component(full=True)
    if decomposition.gold is None:
        return shapes.bars(frame, ("bias", "diversity", "net"))
    return accuracy_bars(frame, decomposition.chance, decomposition.accuracy, len(decomposition.values))


def decomposition_depth(decomposition: Any, norm: str = "frozen") -> go.Figure:
    """Draw `depth` of a decomposition."""
    return depth(decomposition.by_depth(norm), decomposition.chance)


def plan_curve(plan: Any, quantity: str = "loss") -> go.Figure:
    """Draw the `drop_curve` of a plan."""
    return drop_curve(
        plan.by_size(), plan.random_plans(), choice("quantity", quantity, ("loss", "accuracy")), plan.part
    )
