"""Figures that are more than columns of a frame: heads, accuracies, depth, and horizontal bars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.special import ndtri

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
    known["row"] = known["index"].astype("float").fillna(np.inf)
    known["head"] = ("H" + known["index"].astype("string")).fillna("MLP")
    layers = list(dict.fromkeys(known["layer_name"]))
    known = known.sort_values("row", kind="stable")
    rows = list(dict.fromkeys(known["head"]))
    cell = 22 if len(rows) <= 16 else 14
    figure = shapes.heat(known, "row", "layer_name", value, row_name="head", most=len(rows), cell=cell)
    tall, near = max(170, cell * len(rows)) / len(rows), 0.7 * len(layers)
    taken: list[tuple[int, int]] = []  # names are lifted until none covers another
    for place in known[value].abs().nlargest(names).index:
        x, y = layers.index(known["layer_name"][place]), rows.index(known["head"][place])
        lift = next(k for k in range(1, 99) if all(abs(x - a) > near or y - k != b for a, b in taken))
        taken.append((x, y - lift))
        figure.add_shape(type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line={"width": 1.5})
        left = x > len(layers) / 2
        arrow = {"showarrow": True, "arrowhead": 0, "arrowwidth": 1.5, "ay": -10 - (lift - 1) * tall}
        anchor = {"x": x, "y": y - 0.5, "xanchor": "right" if left else "left", "ax": -4 if left else 4}
        figure.add_annotation(text=f"<b>{shapes.label(known['component'][place])}</b>", **anchor, **arrow)
    step = -(-len(layers) // 12)
    return figure.update_xaxes(tickvals=np.arange(len(layers))[::step], ticktext=layers[::step], title_text="")


def accuracies(decomposition: Any) -> go.Figure:
    """Draw each component's diversity on a logarithmic axis and, below, its accuracy alone as a bar from guessing.

    The gray band holds 95 % of guesses (normal approximation); the line is the accuracy of all components together.
    Without labels these are bias, diversity and net.
    """
    frame, chance, rows = decomposition.by_component(full=True), decomposition.chance, len(decomposition.values)
    if chance is None:
        return shapes.bars(frame, ("bias", "diversity", "net"))
    columns = ("diversity", "accuracy")
    figure = shapes.bars(frame, columns, log=("diversity",), base={"accuracy": chance}, names=3)
    coin = float(ndtri(0.975)) * (chance * (1 - chance) / rows) ** 0.5
    shade = {"fillcolor": style.NEUTRAL, "opacity": 0.15, "line_width": 0}
    figure.add_hrect(y0=chance - coin, y1=chance + coin, **shade, row=2, col=1)
    for y, text in ((chance, "guessing"), (decomposition.accuracy, f"all {len(frame)}")):
        figure.add_hline(y=y, line={"color": style.NEUTRAL, "width": 1}, row=2, col=1)
        _end(figure, text, y, 2)
    figure.update_yaxes(tickformat=".0%", zeroline=False, nticks=5, row=2, col=1)
    return figure.update_layout(margin_r=68)


def _end(figure: go.Figure, text: str, y: float, row: int, color: str = style.NEUTRAL) -> None:
    """Name a line at its right end."""
    place = {"x": 1, "xref": "x domain", "y": y, "xanchor": "left", "xshift": 4}
    figure.add_annotation(text=text, font={"color": color}, **place, row=row, col=1)


def depth(decomposition: Any) -> go.Figure:
    """Draw bias and loss of the components so far, with the diversity as the band between them, and the accuracy."""
    frame = decomposition.by_depth()
    columns = ["loss", "accuracy"] if "accuracy" in frame else ["loss"]
    figure = shapes.lines(frame.drop(columns=["loss_low", "loss_high"]), columns, colors=[style.TERM["loss"]])
    texts = {"hovertext": shapes.hover(frame, ["bias", "diversity"]), "hoverinfo": "text", "name": "bias"}
    filled = {"fill": "tonexty", "fillcolor": style.faint(style.TERM["diversity"], 0.25)}
    line = {"color": style.TERM["bias"], "width": 2}
    figure.add_scatter(x=frame.index, y=frame["bias"], mode="lines", line=line, **filled, **texts, row=1, col=1)
    end = frame.iloc[-1]
    for text, y in (("bias", end["bias"]), ("diversity", (end["bias"] + end["loss"]) / 2), ("loss", end["loss"])):
        _end(figure, text, float(y), 1, style.TERM[text])
    if "accuracy" in frame:
        figure.add_hline(y=decomposition.chance, line={"color": style.NEUTRAL, "width": 1}, row=2, col=1)
        _end(figure, "guessing", decomposition.chance, 2)
        _end(figure, f"{end['accuracy']:.0%}", float(end["accuracy"]), 2, style.TERM["accuracy"])
        figure.update_yaxes(tickformat=".0%", row=2, col=1)
    return figure.update_yaxes(nticks=5, zeroline=False).update_layout(margin_r=72)


def across(frame: pd.DataFrame, column: str, most: int = 24, rule: int = 0) -> go.Figure:
    """Draw a horizontal bar per row with its interval, each row named; a line after the first `rule` rows."""
    frame, figure = frame.head(most).reset_index(drop=True), go.Figure()
    for module, some in shapes.by_module(frame):
        look = shapes.look_of(module) | {"hovertext": shapes.hover(some, [column]), "hoverinfo": "text", "width": 0.8}
        look |= {"error_x": shapes.whiskers(some, column), "marker_color": style.MODULE.get(module, style.NEUTRAL)}
        figure.add_bar(x=some[column], y=some.index, orientation="h", **look)
    names = [shapes.label(name) for name in frame["component"]]
    figure.update_yaxes(tickvals=frame.index, ticktext=names, range=[len(frame) - 0.4, -0.6], zeroline=False)
    figure.update_xaxes(title_text=shapes.heading(frame, column), zeroline=True)
    if rule:
        figure.add_hline(y=rule - 0.5, line={"color": style.NEUTRAL, "width": 1})
    return shapes.legend_above(figure, 22 * len(frame)).update_layout(barmode="overlay", legend_y=1)
