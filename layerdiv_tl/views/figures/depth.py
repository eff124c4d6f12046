"""Analyses of depth along the layers: bars, maps of layers and tokens, the depth score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import whole_number
from ...ensemble.intervals import ENDS
from .. import axes, kit, layout, style
from ..html import quoted

if TYPE_CHECKING:
    from ...depth.depth_score import DepthScore
    from ...depth.erasure import Erasure
    from ...depth.integrated_gradients import IntegratedGradients
    from ...depth.layer_maps import LayerMaps
    from ...depth.logit_lens import LogitLens
    from ...depth.residual_norms import ResidualNorms
    from ...depth.skipping import Skip
    from ...ensemble.fits import Slope

_PARTS = {"layer": "layer", "attn": "attention sublayer", "mlp": "MLP"}
_MODES = {
    "current": "skipped at every token{first}, measured at every token",
    "future": "skipped at the tokens before a cut{first}, measured at the tokens after it",
    "local": "its output removed from the input of each later layer{first} by itself: the direct effect",
    "future_local": "its output before a cut removed from the input of each later layer{first} by itself",
}
_EFFECTS = {
    "published": "one {part} at a time writes nothing before the answer (the maximum after it, as in the paper's code)",
    "skip": "one {part} at a time writes nothing",
    "skip_before": "one {part} at a time writes nothing before the token that predicts the answer",
    "erase": "the tokens before the one that predicts the answer become the mean token where they enter a layer",
}
_RUNS = 4  # of equal predictions


def _change(change: Any, layer: str) -> str:
    ends, p = style.interval(change.low, change.high, ".0f", none=""), f"Pettitt's test {style.p_value(change.p)}"
    if change.p < style.SIGNIFICANT:
        return f"Layers write less from layer {' '.join(filter(None, [layer, ends]))} on, {p}"
    what = change.quantity.replace("_", " ").capitalize().removesuffix(" of layer")
    return f"{what} of whole layers: no significant fall along depth (likeliest change point: layer {layer}, {p})"


def norm_bars(norms: ResidualNorms) -> go.Figure:
    """Draw the relative norm and cosine of the output of every attention, MLP and layer.

    The line is the change point of the layers' relative norms, with its 95 % interval, if it is significant.
    """
    layers = [c for c in norms.components if c.kind == "layer"]
    change, title = norms.change_point() if len(layers) >= 3 else None, f"Output norms of {norms.model}'s layers"
    if change is not None:
        layer = layers[change.layer]
        title = _change(change, f"{change.layer} in order of use ({layer})" if layer.repeat else str(change.layer))
    columns = {
        "relative_norm": "‖output‖ / ‖stream before it‖, logarithmic",
        "cosine": "Cosine of the output and that stream",
    }
    about = f"{norms.model}; means over tokens, dashes: medians."
    figure = kit.component_bars(norms.frame(), columns, title, about, logarithmic=["relative_norm"])
    if change is not None and change.p < style.SIGNIFICANT:
        # A layer has several components; the line is before the first.
        ids = [(c.layer, c.repeat) for c in norms.components]
        starts = [i - 0.5 for i in range(len(ids)) if i == 0 or ids[i - 1] != ids[i]] + [len(ids) - 0.5]
        figure.add_vline(x=starts[change.layer], line={"dash": "dash", "width": 1.5}, row=1, col=1)
        if np.isfinite(change.low):
            low, high = (starts[round(end)] for end in (change.low, change.high))
            figure.add_vrect(low, high, row=1, col=1, fillcolor=style.faint(style.NEUTRAL), line={"width": 0})
    return figure


def skip_bars(skip: Skip) -> go.Figure:
    """Draw the effect of skipping each layer on the answer, on the loss, and on the layers after it."""
    columns = {
        "output_change": "Change of the answer",
        "loss": "Growth of the loss",
        "downstream_change": "Mean relative change of later layers' outputs",
    }
    title = f"Of {len(skip.components)} {_PARTS[skip.part]}s skipped, {{}} changes {skip.model}'s answer most"
    about = f"Each in turn {_mode(skip)}. {_DISTANCE} {_DASHES}"
    return kit.component_bars(skip.frame(), columns, title, about)


def lens_bars(lens: LogitLens) -> go.Figure:
    """Draw the KL divergence and top-k overlap of every junction's prediction and the last one.

    A junction is a place between two components, named by the last one before it.
    """
    columns = {"kl": "KL(junction ‖ last)", "topk_overlap": f"Overlap of the {lens.k} likeliest tokens"}
    frame = lens.frame()
    norm = "each junction's own norm" if lens.norm == "recomputed" else "the last stream's norm"
    half = frame["component"].iloc[at := int(np.argmax(frame["topk_overlap"] >= 0.5))]
    is_last = at == len(frame) - 1 > 0  # where they are there by definition
    there = style.estimate(*frame.loc[at - is_last, [f"topk_overlap{end}" for end in ENDS]])
    tokens = f"the final {lens.k} likeliest tokens of {lens.model}"
    title = f"Half of {tokens} are there after {half}, a share of {there}"
    if is_last:
        title = f"Before {half}, the last component, a share of {there} of {tokens} is there"
    more = ""
    if "top_token" in frame:
        answers = frame["top_token"]
        first = frame["component"].iloc[np.flatnonzero(np.append(True, answers != answers.iloc[-1]))[-1]]
        title = f"From {first} on, {quoted(answers.iloc[-1])} is the likeliest next token of {lens.model}"
        if first == frame["component"].iloc[-1] and len(frame) > 1:
            title = (
                f"Only after {first}, the last component, is {quoted(answers.iloc[-1])} the likeliest next token of "
            )
            title += lens.model
        changes = frame[answers != answers.shift()]
        left_out, changes = "…, " * (len(changes) > _RUNS), changes.tail(_RUNS)
        runs = (
            f"'{quoted(token)}' from {name}"
            for name, token in zip(changes["component"], changes["top_token"], strict=True)
        )
        more = f"The likeliest next tokens at the text's end: {left_out}{', '.join(runs)}. "
        more += "Bars are means over all tokens. "
    about = f"{more}A junction is named by the last component before it; the last one is the final prediction. "
    about += f"Read out with {norm}; means over texts of means over tokens. {_DASHES}"
    return kit.component_bars(frame, columns, title, about)


def erasure_bars(erasure: Erasure) -> go.Figure:
    """Draw the effect of erasing a token on the answer, by the layer before which it is erased."""
    where = "the answer, where it is predicted" if erasure.measured == "answer" else "predictions at later tokens"
    title = f"Erasing a token before {{}} changes {erasure.model}'s predictions most"
    columns = {"effect": f"Change of {where}"}
    return kit.component_bars(erasure.frame(), columns, title, f"{_erased(erasure)} {_DISTANCE} {_DASHES}")


def gradient_bars(gradients: IntegratedGradients) -> go.Figure:
    """Draw the integrated gradients of every component, summed over the tokens of a text."""
    columns = {"attribution": "Attribution to the answer's probability", "size": "Sum of its absolute values"}
    title = f"Integrated gradients of {gradients.model} are largest at {{}}"
    about = f"Sums over a text's tokens, means over texts. {_DASHES}"
    return kit.component_bars(gradients.frame(), columns, title, about)


_DASHES = "Dashes: medians over tokens."
_DISTANCE = "‖p − p′‖₂: the distance between the next token's probabilities before and after."


def _mode(skip: Skip) -> str:
    """Describe the skip mode, including whether the first token is exempt."""
    return _MODES[skip.mode].format(first=", except a text's first token" * (skip.first_token == "kept"))


def _erased(erasure: Erasure) -> str:
    """Describe what an erasure replaces, including whether the first token is exempt."""
    span = "One token" if erasure.span == "position" else "A token and all before it but the first"
    return f"{span} replaced by the mean stream where it enters the layer."


def skip_map(skip: Skip) -> go.Figure:
    """Draw a map skipped layer × later layer of the mean relative change of the later one's output."""
    part, pairs = _PARTS[skip.part], skip.by_pair()
    most = kit.most(pairs, "effect")
    size = style.estimate(*(most[f"effect{end}"] for end in ENDS))
    title = f"Skipping {most['component']} changes {most['downstream_layer']}'s output most, by {size} times its norm"
    title += kit.rival(pairs, most, "effect", "{downstream_layer}'s without {component}")
    subtitle = f"{len(skip.components)} {part}s of {skip.model}, each in turn {_mode(skip)}. "
    subtitle += "Color: mean relative change of the later output. "
    subtitle += kit.intervals(pairs, "Hover")
    sides = {"component": (f"skipped {part}", skip.components), "downstream_layer": ("later layer", skip.layers)}
    return _pairs(pairs, "effect", sides, "‖z − z′‖ / ‖z‖", title, subtitle, most)


def layer_map(maps: LayerMaps) -> go.Figure:
    """Draw a map source layer × target layer of the error of the linear map between them on held-out tokens."""
    best = maps.depth_alignment().iloc[0]
    distance = style.estimate(best.distance, best.distance_low, best.distance_high)
    title = f"{maps.target} predicted from {maps.source}: the best layer is {distance} of the depth away"
    subtitle = f"‖y − ŷ‖ / ‖y‖ on held-out texts. By chance the best is {style.number(best.chance)} away."
    sides = {
        "component": (f"layer of {maps.source}", maps.components),
        "target": (f"layer of {maps.target}", maps.targets),
    }
    return _pairs(maps.frame(), "error", sides, "error", title, subtitle)


def _pairs(
    pairs: pd.DataFrame, column: str, sides: dict[str, Any], unit: str, title: str, subtitle: str, named: Any = None
) -> go.Figure:
    """Draw a map of pairs of layers, `named` framed; `sides` are {column of a side: (its axis, its layers)}."""
    labels = [[c.label for c in components] for _, components in sides.values()]
    at = tuple(pd.Index(names).get_indexer(pairs[side]) for side, names in zip(sides, labels, strict=True))
    other = list(sides)[1]
    texts = kit.hover(pairs, [column, f"{column}_max"], f"{other.replace('_', ' ')} " + pairs[other])
    z, texts = kit.grid([len(names) for names in labels], at, pairs[column], texts)
    y, x = (axes.component_axis(components, layout.clipped(name, 36)) for name, components in sides.values())
    cell = None if named is None else [names.index(named[s]) for s, names in zip(sides, labels, strict=True)][::-1]
    return kit.heat_figure(z, texts, unit, title, subtitle, x=x, y=y, plot=400, named=cell)


def erasure_map(erasure: Erasure, text: int = 0) -> go.Figure:
    """Draw a map layer × token of the effect of erasing the token before the layer on the answer of one text."""
    where = "the answer's positions" if erasure.measured == "answer" else "later positions"
    title = f"Erasing the token {{token}} before {{layer}} changes {erasure.model}'s predictions most"
    return _token_map(erasure, erasure.effect, text, "‖p − p′‖₂", title, f"{_erased(erasure)} Mean over {where}.")


def gradient_map(gradients: IntegratedGradients, text: int = 0) -> go.Figure:
    """Draw a map layer × token of integrated gradients of the answer's probability, of one text."""
    title = f"Integrated gradients of {gradients.model} are largest at {{token}} in {{layer}}"
    subtitle = (
        f"Over the output of each {_PARTS[gradients.part]}: {gradients.steps} steps from the mean over tokens; "
        f"sums are off by {style.number(100 * gradients.gap)} % of the change."
    )
    return _token_map(gradients, gradients.attribution, text, "attribution", title, subtitle)


def _token_map(result: Any, values: np.ndarray, text: int, unit: str, title: str, subtitle: str) -> go.Figure:
    """Draw a map layer × token of the values of one text."""
    columns = np.flatnonzero(result.text == whole_number("text", text, 0, int(result.text.max())))
    z, tokens = values[columns].T, [result.tokens[i] for i in columns]
    labels, names = [c.label for c in result.components], [quoted(token) for token in tokens]
    layer, token = np.unravel_index(np.nan_to_num(np.abs(z)).argmax(), z.shape)
    named = title.replace("{token}", names[token]).replace("{layer}", labels[layer])
    named += f": {unit} {style.number(float(z[layer, token]))}"
    x, y = axes.token_axis(tokens, named=int(token)), axes.component_axis(result.components, "layer")
    look: dict[str, Any] = {"x": x, "y": y, "plot": 400, "below": 50, "named": (token, layer)}
    return kit.heat_figure(z, (labels, names), unit, named, subtitle, **look)


def score_bars(score: DepthScore) -> go.Figure:
    """Draw the score of every group (the mean layer of its line), and each layer's share of the groups' effects.

    Lines are those of the groups with the most questions, as many as there are colors.
    """
    frame, layers, part = score.frame(), score.by_layer(), _PARTS[score.part]
    colors = {group: style.SERIES[i % len(style.SERIES)] for i, group in enumerate(frame["group"])}
    named = frame.assign(component=[f"{score.by} {group:g}" for group in frame["group"]])
    rows = zip(frame["n"], frame["length"], frame["accuracy"], strict=True)
    about = [
        f"{n} questions of {style.number(length)} tokens\n{style.percent(right)} answered rightly"
        for n, length, right in rows
    ]
    x, texts = np.arange(len(frame)), kit.hover(named, ["score", "relative"], about)
    contents = [[kit.trace(frame, x, "score", list(colors.values()), texts, shape="bars")], []]
    for group in frame.nlargest(len(style.SERIES), "n")["group"].sort_values():
        own, name = layers[layers["group"] == group], f"{score.by} {group:g}"
        told, place = kit.hover(own, ["share", "effect"]), np.arange(len(own))
        contents[1].append(kit.trace(own, place, "share", colors[group], told, shape="line", name=name))
    headings = ["Depth score", "Each layer's share of the effects"]
    figure = layout.panels(contents, headings, units=["layers", "share"], gap=0.4, shared_xaxes=False)
    groups = axes.ticks(x, [f"{group:g}" for group in frame["group"]]) | {"title_text": score.by}
    figure.update_xaxes(groups, row=1, col=1)
    figure.update_xaxes(axes.component_axis(score.components, part), row=2, col=1)
    title = f"Depth score of {score.model}: {_slope(score.slope, score.by)}"
    subtitle = (
        f"Σ l·e / Σ e, e the change of the answer's probabilities when {_EFFECTS[score.effect].format(part=part)}; the "
        f"first token is left alone. Among questions of equal length: {_slope(score.slope_at_length, score.by)}."
    )
    return layout.finish(figure, title, subtitle, y={"rangemode": "tozero"}, plot=440)


def _slope(slope: Slope, by: str) -> str:
    """Describe a slope."""
    if slope.reason:
        return f"no slope ({slope.reason})"
    size = style.estimate(slope.value, slope.low, slope.high, unit="layers")
    size = f"{'no clear slope, ' * bool(slope.low <= 0 <= slope.high)}{size} per {by.removesuffix('s')}"
    mixed = f"; interval and p disagree: {slope.n} questions are too few to tell" * slope.is_mixed
    return f"{size}, {style.p_value(slope.p)}{mixed}"
