"""Agreement of cheap measures with ablations, plans of what to drop, and learned weights of components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...ensemble.intervals import ENDS
from ...ensemble.reweight import Reweighting
from ...errors import InputError
from .. import axes, kit, layout, style
from ..names import extreme_names

if TYPE_CHECKING:
    from ...depth.agreement import Agreement
    from ...depth.pruning_results import DropPlan

# `depth.quantities.Effect`, without the torch that its module imports: options are checked against it.
Effect = Literal["loss", "accuracy"]
_EFFECTS = {"loss": "ablation loss", "accuracy": "accuracy lost"}
# Direct measures, for captions.
_MEASURES = {
    "diversity": "share of the members' sum",
    "net": "part of the cross-entropy",
    "relevancy": "bits about the label",
    "relative_norm": "‖output‖ / ‖stream‖",
    "block_influence": "1 − cosine of the stream before and after",
}
_DROPPED = {"layer": "layer", "attn": "attention sublayer", "mlp": "MLP", "sublayer": "sublayer", "head": "head"}
# Above this many, the order of dropping is in the hover alone.
_NUMBERED = 30


def agreement_scatter(
    agreement: Agreement, effect: Effect = "loss", scale: Literal["rank", "value"] = "rank"
) -> go.Figure:
    """Draw every component's rank by each direct measure (x) against the effect of its removal (y).

    `scale` is the initial scale of y: the effect's rank, as in Spearman's ρ, or its value; buttons switch.
    """
    frame, measures, rho, part = agreement.frame(), _measures(agreement), _pooled(agreement, effect), _part(agreement)
    headings = [f"{_name(m)}: ρ = {style.number(rho[m])}" if m in rho else _name(m) for m in measures]
    count = len(frame)
    step = next(s for s in (1, 5, 10, 20, 50, 100, 200, 500, count) if count / s <= 4)
    at = sorted({1, *range(step, count + 1, step)})
    ranked = axes.ticks(at, map(str, at)) | {"range": [1.06 * count + 0.5, 0.5 - 0.06 * count], "type": "linear"}
    valued = axes.linear_axis(frame[[effect, f"{effect}_low", f"{effect}_high"]]) | {"tickvals": None, "ticktext": None}
    title = _best(agreement, effect)
    subtitle = (
        f"{agreement.rows}. A dot is a {part}; rank 1 is needed most. ρ is Spearman's over all {len(frame)} {part}s."
    )
    subtitle += f" {_explained(measures)} {kit.intervals(frame, 'Whiskers of values')}"
    sides = {
        "rank": (f"{effect}_rank", f"rank by {_name(effect)}", ranked),
        "value": (effect, f"{_name(effect)}, {frame.attrs['units'][effect]}", valued),
    }
    views = {}
    for name, (column, y_title, axis) in sides.items():
        y, far = frame[column].to_numpy(), [frame[effect].to_numpy()] if name == "value" else []
        contents, some = list[list[Any]](), False
        error = kit.whiskers(frame, column, visible=name == "value")
        for measure in measures:
            x = frame[f"{measure}_rank"].to_numpy()
            marks = kit.by_module(frame, x, y, _rank_texts(frame, effect, measure), error_y=error)
            names = extreme_names(frame["component"], x, y, (ranked, axis), far, most=4, panel=(140, 200))
            contents.append([*marks, *names])
            some |= len(names[0].x) < count
        figure = layout.panels(contents, headings, 2, shared_xaxes=False, x_title="rank by the measure")
        figure.update_yaxes(title_text=y_title, col=1)
        told = subtitle + " Names: where there is room." * some
        views[name] = layout.finish(figure, title, told, x=ranked, y=axis, plot=240 * -(-len(measures) // 2))
    return layout.choose(views, scale)


def agreement_ranks(agreement: Agreement) -> go.Figure:
    """Draw a map quantity × component of ranks, effects first, then direct measures; strong colors rank highest."""
    frame, quantities, part = agreement.frame(), [*_EFFECTS, *_measures(agreement)], _part(agreement)
    z = np.array([frame[f"{quantity}_rank"] for quantity in quantities])
    texts = [_rank_texts(frame, quantity) for quantity in quantities]
    most = kit.most(frame, "loss_rank", -1)
    title = f"Of its {part}s, {agreement.model} needs {most['component']} most"
    title += kit.doubt(most, "loss") or kit.rival(frame, most, "loss", "{component}", sign=1, alike="important")
    subtitle = f"{agreement.rows}. Rank 1 is needed most. Above the line: ranks by the damage of removing the {part}; "
    subtitle += f"below: by a measure of the clean pass. Ties share their mean rank. {_explained(quantities)}"
    few = len(frame) <= axes.NAMED
    x = axes.named_columns(frame["component"].tolist(), range(len(frame))) if few else axes.component_axis(frame)
    x, y = x | {"title_text": kit.STREAM}, axes.named_rows(_name(quantity) for quantity in quantities)
    look: dict[str, Any] = {"x": x, "y": y, "plot": 34 * len(quantities), "reversescale": True, "limit": len(frame)}
    figure = kit.heat_figure(z, np.array(texts), "rank", title, subtitle, **look).update_traces(zmin=1)
    if len(frame) <= axes.NAMED:
        written = [[style.number(rank) if np.isfinite(rank) else "" for rank in row] for row in z]
        figure.update_traces(text=written, texttemplate="%{text}")
    return figure.add_hline(y=1.5, line={"width": 2})


def agreement_correlations(agreement: Agreement, effect: Effect = "loss") -> go.Figure:
    """Draw Spearman's ρ between every measure and an effect, over all components and over each kind.

    Raises InputError for fewer than three components.
    """
    frame = agreement.correlations()
    if not len(frame):
        raise InputError("ranks of fewer than three components have no correlation worth a figure: plot kind='ranks'.")
    measures, traces = _measures(agreement), []
    frame = frame[frame["effect"] == effect].assign(component=frame["measure"].map(style.term_name))
    for kind, rows in frame.groupby("kind", sort=False):
        rows = rows.set_index("measure").loc[measures]
        module = {"attn": "attention", "mlp": "mlp"}.get(str(kind), "layer")
        name = f"{'all together' if module == 'layer' else style.MODULE_NAME[module]} ({rows['components'].iloc[0]})"
        ends = zip(rows["low_components"], rows["high_components"], strict=True)
        over = [f"middle 95 % over resampled components {style.interval(*two)}" for two in ends]
        look: dict[str, Any] = {"shape": "bars", "name": name, "width": None}
        texts = kit.hover(rows, {"ρ": "correlation"}, over)
        traces.append(kit.trace(rows, np.arange(len(rows)), "correlation", style.MODULE[module], texts, **look))
    title = _best(agreement, effect)
    subtitle = f"{agreement.rows}. Spearman's ρ over components; intervals, in the title and in the hover, are over "
    subtitle += "resampled components. Few rows blur ranks and pull ρ towards 0; few components make it ±1 by chance. "
    subtitle += _explained(measures)
    names = [_name(measure).replace(", ", ",\n") for measure in measures]
    x = axes.ticks(range(len(names)), names) | {"tickangle": -90}
    y = {"title_text": "Spearman's ρ", "range": [-1.05, 1.05], "zeroline": True}
    return layout.finish(traces, title, subtitle, x=x, y=y, below=70, barmode="group")


def _best(agreement: Agreement, effect: Effect) -> str:
    """Write a title for the measure with the largest correlation over all components."""
    what, frame = f"{agreement.model}'s {_name(effect)}", agreement.correlations()
    if not _pooled(agreement, effect):
        return f"No measure has a correlation with {what}"
    rows = frame[(frame["kind"] == "all") & (frame["effect"] == effect)].dropna(subset="correlation")
    rows = rows.rename(columns={f"{end}_components": f"correlation_{end}" for end in ("low", "high")})
    rows = rows.assign(component=rows["measure"].map(_name))
    row = kit.most(rows, "correlation", 1)
    size = style.estimate(*(float(row[f"correlation{end}"]) for end in ENDS))
    if row["correlation_low"] <= 0:
        return f"No measure clearly predicts {what}: the highest ρ, of {row['component']}, is {size}"
    near = kit.rival(rows, row, "correlation", sign=1)
    return f"{row['component'].capitalize()} predicts {what} best: ρ = {size}{near}"


def _explained(quantities: Sequence[str]) -> str:
    """Say how components are removed, and what the direct measures are."""
    told = "; ".join(f"{_name(name)}: {what}" for name, what in _MEASURES.items() if name in quantities)
    return "Removed: zero-ablated. " + f"{told[:1].upper()}{told[1:]}." * bool(told)


def _name(quantity: str) -> str:
    return _EFFECTS.get(quantity) or style.term_name(quantity)


def _measures(agreement: Agreement) -> list[str]:
    """The direct measures of an agreement."""
    return [name for name in agreement.quantities if name not in _EFFECTS]


def _part(agreement: Agreement) -> str:
    return "layer" if agreement.components[0].kind == "layer" else "sublayer"


def _pooled(agreement: Agreement, effect: Effect) -> dict[str, float]:
    """The correlation of each measure over all components, where it has one."""
    frame = agreement.correlations()
    if not len(frame):
        return {}
    rows = frame[(frame["kind"] == "all") & (frame["effect"] == effect)].dropna(subset="correlation")
    return dict(zip(rows["measure"], rows["correlation"], strict=True))


def _rank_texts(frame: pd.DataFrame, *quantities: str) -> np.ndarray:
    """Component, then value and rank of each quantity with their intervals."""
    columns: dict[str, str] = {}
    for quantity in quantities:
        columns |= {_name(quantity): quantity, f"rank by {_name(quantity)}": f"{quantity}_rank"}
    return kit.hover(frame, columns)


def drop_curve(plan: DropPlan, quantity: Effect = "loss") -> go.Figure:
    """Draw loss or accuracy against the number of components dropped, by the plan and by block influence.

    Bands are 95 % intervals over rows; rings are random plans of as many components, which a button hides; those far
    from the curves are drawn at the edge.
    """
    from ...depth.pruning_results import RANDOM

    frame, budget, traces = plan.frame(), len(plan.dropped), list[Any]()
    unit = {"loss": "nats per answer", "accuracy": "of answers right"}[quantity]
    frame.attrs["units"] = {quantity: unit}
    names = ("the plan", "by block influence", "each measured alone")
    looks = zip(plan.ordered.items(), names, style.SERIES, ("solid", "dash", "dot"), strict=False)
    for (key, dropped), name, color, dash in looks:
        rows = frame[frame["plan"].isin(["none", key])].assign(component=name)
        last = [f"{n} dropped, {dropped[n - 1]} last" if n else "the whole model" for n in rows["dropped"]]
        look: dict[str, Any] = {"shape": "line", "name": name, "dash": dash, "error_x": None, "error_y": None}
        traces.append(kit.band(rows["dropped"], rows[f"{quantity}_low"], rows[f"{quantity}_high"], color))
        traces.append(kit.trace(rows, "dropped", quantity, color, kit.hover(rows, [quantity], last), **look))
    others, mean = plan.random_plans(), frame[frame["plan"] == RANDOM].assign(component="mean of random plans")
    curves = frame.loc[frame["plan"] != RANDOM, [quantity, f"{quantity}_low", f"{quantity}_high"]].to_numpy()
    room, beyond = np.ptp(curves[np.isfinite(curves)]) or np.inf, ""
    edges = np.nanmin(curves) - room, np.nanmax(curves) + room  # the curves have at least a third of the height
    if len(others):
        without = [f"without {layout.clipped(str(names), 60)}" for names in others["components"]]
        different = others["components"].map(str).nunique()
        alike = f" ({different} different one{'s' * (different > 1)})" * (different < len(others))
        others, bar = others.assign(component=without), {"size": 22, "line": {"width": 3}}
        rings = [
            (others, {"symbol": "circle-open"}, f"{len(others)} random plans{alike}"),
            (mean, kit.DASH | bar, "their mean"),
        ]
        for rows, marker, name in rings:
            look, heights = {"marker": marker, "name": name}, rows[quantity].to_numpy()
            far, texts = np.clip(heights, *edges), kit.hover(rows, [quantity])
            traces.append(kit.trace(rows, [budget] * len(rows), far, texts=texts, **look))
            if (count := int((far != heights).sum())) and rows is others:
                sizes = heights[far != heights]
                ends = " to ".join(dict.fromkeys(map(style.number, (sizes.min(), sizes.max()))))
                beyond = f"Drawn at the edge: {style.count(count, 'random plan')}, {ends} {unit}"
            elif count:
                beyond += f", and their mean, {style.number(heights[0])}"
        beyond += "." * bool(beyond)
    whole = frame.loc[frame["plan"] == "none", quantity].iloc[0]
    end = frame.loc[(frame["plan"] == "plan") & (frame["dropped"] == budget), quantity].iloc[0]
    rows, part = plan.provenance["rows"], _DROPPED[plan.part]
    shown = style.percent if quantity == "accuracy" else style.number
    chosen = "Scores were given; block influence chose" if plan.score == "given" else "Chosen"
    gone = layout.clipped(", ".join(c.label for c in plan.dropped), 40)
    gone += f" ({budget} of {len(plan.candidates)} candidate {part}s)"
    title = f"{plan.model} without {gone}: {quantity} {shown(whole)} → {shown(end)}"
    # Accuracies are in percent, so that their change is in points.
    column, sign, points = ("loss_growth", 1, unit) if quantity == "loss" else ("accuracy_lost", -100, "points")
    growth = frame.loc[(frame["plan"] == "plan") & (frame["dropped"] == budget)].iloc[0]
    changed = sorted(sign * growth[[f"{column}_low", f"{column}_high"]].to_numpy(dtype=float))
    title += f", a change of {style.estimate(sign * growth[column] + 0.0, *changed, unit=points)}"
    subtitle = (
        f"Lowest {_score(plan)} first{', one after another' * bool(plan.alone_dropped)}"
        f", {'replaced by their means' if plan.ablation == 'mean' else 'each writing nothing'}. {chosen} on "
        f"{rows['scored']} rows of {rows['where']}, measured on {rows['measured']} others; nothing is retrained. "
        f"{compared(plan, quantity)} {kit.intervals(frame, 'Bands')} Dotted: the whole model."
    )
    x = {"title_text": f"{part}s dropped", "dtick": max(1, budget // 12), "zeroline": False}
    look = {"x": x, "y": f"{quantity}, {unit}", "plot": 360}
    drawn, hidden = (layout.finish(traces, title, f"{subtitle} {more}".rstrip(), **look) for more in (beyond, ""))
    for figure in (drawn, hidden):
        figure.add_hline(y=whole, line=kit.DOTTED)
    for trace in hidden.data[-2:] if len(others) else ():
        trace.visible = False
    return layout.choose(
        {"with random plans": drawn} | ({"without": hidden} if len(others) else {}), "with random plans"
    )


def score_bars(plan: DropPlan) -> go.Figure:
    """Draw the score of every candidate in stream order, colored by module; dropped ones are solid and numbered."""
    from ...depth.quantities import LOWER_IS_BETTER

    frame, rows, part = plan.scores(), plan.provenance["rows"], _DROPPED[plan.part]
    orders, shown = frame["drop_order"], len(plan.dropped) <= _NUMBERED
    numbers = np.array([str(number) if number and shown else "" for number in orders], dtype=object)
    told = kit.hover(frame, ["score"], [f"dropped, number {number}" if number else "stays" for number in orders])
    look: dict[str, Any] = {"text": numbers, "textposition": "outside", "textangle": 0, "cliponaxis": False}
    traces = kit.bars(frame, "score", told, marker={"opacity": np.where(frame["drop"], 1.0, 0.4)}, **look)
    source = "Scores were given." if plan.score == "given" else f"Scores from {rows['scored']} rows of {rows['where']}."
    goes = f"Dropped: the {len(plan.dropped)} lowest of {len(frame)}"
    if plan.alone_dropped:
        goes = f"{len(plan.dropped)} of {len(frame)} are dropped in turn, each the lowest once those before it are gone"
    title = f"By {_score(plan)}, {plan.model} needs {kit.most(frame, 'score', -1)['component']} least of "
    title += f"{len(frame)} candidate {part}s"
    score = f"increase of the loss by {plan.ablation} ablation" if plan.score == "loss" else _score(plan)
    y = "−" * (plan.score in LOWER_IS_BETTER) + score + f", {frame.attrs['units']['score']}".removesuffix(", ")
    x, subtitle = (
        axes.component_axis(frame, kit.STREAM),
        f"{source} {goes}{', numbered from the first to go' * shown}. ",
    )
    subtitle += "Pale: kept. Scores have no intervals."
    return layout.finish(traces, title, subtitle, x=x, y=y, barmode="overlay")


def _score(plan: DropPlan) -> str:
    return "given score" if plan.score == "given" else _name(plan.score)


def compared(plan: DropPlan, quantity: str) -> str:
    """Compare the plan, in a sentence, with others of the same size on the same rows."""
    from ...depth.pruning_results import ALONE, INFLUENCE, RANDOM

    frame = plan.compare()
    others = {INFLUENCE: "block influence's", ALONE: "that of each measured alone", RANDOM: "the random plans' mean"}
    unit = frame.attrs["units"]["loss"] if quantity == "loss" else ""
    differences = []
    same = plan.score != INFLUENCE and set(plan.ordered.get(INFLUENCE, ())) == set(plan.dropped)
    if plan.score == INFLUENCE or same:
        frame = frame[frame["other"] != INFLUENCE]
    if frame.empty:
        return "Block influence drops the same ones." * same
    for row in frame.to_dict("records"):
        value, low, high = (row[quantity + end] for end in ("", "_low", "_high"))
        side, ends = ("below", (-high, -low)) if value < 0 else ("above", (low, high))
        doubt = ", not clearly different," * (low <= 0 <= high)
        differences.append(f"{style.estimate(abs(value), *ends, unit=unit)} {side} {others[row['other']]}{doubt}")
    count = f"{len(plan.dropped)} removal{'s' * (len(plan.dropped) > 1)}"
    text = f"After {count} the plan's {quantity} is {' and '.join(differences)}".removesuffix(",")
    for rate in frame.loc[frame["other"] == RANDOM, "win_rate"]:
        text += f"; {style.percent(rate)} of random plans have a higher loss"
        own = sum(set(other) == set(plan.dropped) for other in plan.random_dropped)
        text += f" ({own} {'is' if own == 1 else 'are'} the plan itself)" * bool(own)
    return text + ", on the same rows." + " Block influence drops the same ones." * same


def weight_bars(reweighting: Reweighting) -> go.Figure:
    """Draw the weight of every component as a bar from 1 (the unchanged model)."""
    frame, rows = reweighting.by_component(), reweighting.frame().set_index("predictor")
    before, after = (rows.loc[[name]].iloc[0] for name in ("model", "reweighted"))

    def shown(row: Any, name: str) -> str:
        return style.estimate(*(row[name + end] for end in ("", "_low", "_high")))

    changes = "; ".join(
        f"{name.replace('_', '-')} {shown(before, name)} → {shown(after, name)}, gain {shown(after, name + '_gain')}"
        for name in ("accuracy", "cross_entropy")
    )
    title, gain = "Weights change held-out accuracy", [float(after[f"accuracy_gain{end}"]) for end in ("_low", "_high")]
    if gain[0] <= 0 <= gain[1]:
        title = "Weights do not clearly change held-out accuracy"
    title += f": {style.percent(before['accuracy'])} → {style.percent(after['accuracy'])}"
    subtitle = f"1: the model itself, 0: zero-ablated. On {int(after['rows'])} held-out rows {changes}. "
    subtitle += f"Learned from {int(reweighting.is_train.sum())} rows."
    marks = kit.by_module(frame, np.arange(len(frame)), "weight", showlegend=False)
    bars, x = kit.bars(frame, "weight", base=1.0, width=0.35), axes.component_axis(frame, kit.STREAM)
    figure = layout.finish([*bars, *marks], title, subtitle, x=x, y="weight", barmode="overlay")
    return figure.add_hline(y=1, line={"width": 1})
