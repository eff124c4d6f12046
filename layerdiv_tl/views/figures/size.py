"""Panels of models against their size: every quantity of a study, and the information of components."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice
from ...components import Unit
from ...errors import InputError
from .. import axes, kit, layout, style
from .information import TERMS
from .study import QUANTITIES, counted, said

if TYPE_CHECKING:
    from ...studies.study import Study

_SIZES = {"members": "components |L|", "parameters": "parameters"}
SHUFFLED = "shuffled rows"


def size_panels(study: Study, unit: Unit = "sublayer", against: str = "members") -> go.Figure:
    """Draw every quantity of every model, mean over tasks with 95 % intervals over rows, against its size.

    Models that reuse their blocks are diamonds; models that lack a task are left out. Buttons switch between numbers of
    components and of parameters.
    """
    quantities = [name for name in QUANTITIES if name not in ("logit difference", "uniform", "entropy")]
    names = {name: f"{said(name)}, {QUANTITIES[name][0]}" for name in quantities}
    means = _means(study, unit, quantities).assign(series="mean over tasks")
    uniform = study.table(unit)["uniform"]["Avg."].dropna()
    levels = {name: [float(uniform.iloc[0])] for name in ("MSE", "bias")} if len(uniform) else {}
    positive = means.groupby("panel")["value"].min() > 0
    logarithmic = {name for name in positive.index[positive] if name.startswith("diversity")}
    subtitle = (
        f"A mark is a model's mean over {', '.join(dict.fromkeys(study.metrics['task']))}, with a 95 % interval over "
        "rows. MSE and bias: Eq. 14 of the paper; dashed: the uniform prediction. Diversity (logarithmic) is a mean "
        "over components and falls with their number; |L|² × diversity does not by itself. "
    ) + counted(study, unit)
    count, left_out = means["model"].nunique(), len(study.models(unit)) - means["model"].nunique()
    right: list[Any] = list(means[means["panel"] == "accuracy"].sort_values("members", kind="stable").itertuples())
    title = f"{count} models against their size, unit {unit}: accuracy "
    if count == 1:
        title = f"{right[0].model}, {right[0].members} components at unit {unit}: accuracy "
        title += style.estimate(*(getattr(right[0], end) for end in ("value", "low", "high")), unit="%")
    elif means["members"].nunique() > 1:
        ends = [[model for model in right if model.members == end.members] for end in (right[0], right[-1])]
        title += f"{' and '.join(map(_accuracy, ends))}, with the fewest and the most components"
    elif count:
        title += _accuracy(right)
    subtitle += f" Left out, since they lack a task: {left_out}." * bool(left_out)
    return _panels(means, names, levels, "uniform prediction", logarithmic, against, title, subtitle)


def _accuracy(models: Sequence[Any]) -> str:
    """Write the accuracy of a model, or the range of several."""
    whose = models[0].model if len(models) == 1 else f"{len(models)} models"
    ends = dict.fromkeys(f"{end(model.value for model in models):.0f} %" for end in (min, max))
    return f"{' to '.join(ends)} in {whose}"


def information_of(study: Study, estimator: str = "gaussian", unit: Unit = "sublayer", **options: Any) -> go.Figure:
    """Draw the information of every model's components about the label, in bits, against size; a color per task.

    Options are those of `Study.information`, and `against` ("members", "parameters").
    """
    against = options.pop("against", "members")
    for name in options:
        choice("option", name, inspect.signature(study.information).parameters)
    return information_panels(study.information(estimator, unit, **options), study.models(unit), against)


def information_panels(frame: pd.DataFrame, models: pd.DataFrame, against: str = "members") -> go.Figure:
    """Draw the information of every model's components about the label, in bits, against size; a color per task.

    Args:
        frame: The frame of `Study.information` for one estimator.
        models: The frame of `Study.models`.

    Raises InputError for a frame of several estimators, and for one without an estimate for these models.
    """
    if frame["estimator"].nunique() != 1:
        raise InputError(f"the frame has the estimators {', '.join(frame['estimator'].unique())}: give those of one.")
    rows = frame.rename(columns={"bits": "value", "term": "panel", "task": "series"}).drop(columns="members")
    shuffled = rows.assign(series=SHUFFLED, value=rows["null"], low=rows["null_low"], high=rows["null_high"])
    rows = pd.concat([rows, shuffled]).merge(models[["model", "members", "parameters", "reuses"]], on="model")
    known = frame.dropna(subset="bits")
    lacking = sorted(
        {*zip(frame["model"], frame["task"], strict=True)} - {*zip(known["model"], known["task"], strict=True)}
    )
    rows = rows.dropna(subset="value")
    if rows.empty:
        raise InputError("the frame has no estimate of these models: give the frames of one study and unit.")
    levels = {"joint": np.unique(frame["label_entropy"].round(2)).tolist()}
    cells = frame[frame["term"] == "joint"]
    above = int((cells["lower_bound_low"] > cells["high"]).sum())
    subtitle = (
        f"From {'at least ' * (frame['rows'].nunique() > 1)}{frame['rows'].min()} rows, with 95 % intervals over rows. "
        "Dashed: H(Y) of each task; an estimate above its task's is too high, as its assumption does not hold there."
    )
    subtitle += f" A lower bound, linear or nonlinear, lies above {above} of {len(cells)} estimates." if above else ""
    if left_out := frame.attrs.get("left_out", []):
        several = f"{len(left_out)} pairs of model and task, such as " * (len(left_out) > 1)
        subtitle += f" Left out: {several}{layout.clipped(left_out[0].partition('. ')[0].rstrip('.'), 160)}."
    if lacking:
        some = ", ".join(f"{model} on {task}" for model, task in lacking[:3]) + ", …" * (len(lacking) > 3)
        subtitle += f" {len(lacking)} without an estimate: {some}."
    title, how = "Information of components about the label", f"({frame['estimator'].iloc[0].capitalize()} estimate)"
    joint = known[(known["term"] == "joint") & known["model"].isin(models["model"])]
    if len(joint) and (joint["bits"] <= joint["label_entropy"] * (1 + 1e-3)).all():  # else no estimate holds
        told = " to ".join(dict.fromkeys(map(style.number, (joint["bits"].min(), joint["bits"].max())))) + " bits"
        if len(joint) == 1:
            told = style.estimate(*joint.iloc[0][["bits", "low", "high"]], unit="bits")
        held = [*dict.fromkeys(joint["model"])]
        whose = f"{held[0]}'s components" if len(held) == 1 else f"Components of {len(held)} models"
        asked = [*dict.fromkeys(joint["task"])]
        told += f" about the label of {layout.clipped(asked[0])}" if len(asked) == 1 else " about the label"
        if len(joint) == 1 and joint["low"].iloc[0] <= joint["null_high"].iloc[0]:
            told += ", not clearly more than with shuffled labels"
        title = f"{whose} hold {told}"
    title = f"{title} {how}"
    names = {term: f"{'TC(U|Y)' if term.startswith('cond') else term}, bits" for term in TERMS}
    return _panels(rows, names, levels, "H(Y)", (), against, title, subtitle)


def _means(study: Study, unit: Unit, names: Sequence[str]) -> pd.DataFrame:
    """Average over tasks, with the interval for independent tasks: one row per model and quantity."""
    from ...studies.tables import QUANTITIES

    totals = study.totals().query("unit == @unit")
    tasks, blocks = totals["task"].nunique(), []
    for name in names:
        loss, term, factor = QUANTITIES[name]
        rows = totals[(totals["loss"] == loss) & (totals["term"] == term)]
        models = rows.groupby("model", sort=False).filter(lambda part: len(part) == tasks)
        # Each side separately (Zou & Donner 2008): Wilson's intervals of accuracies are asymmetric, and end at 100 %.
        sides = models.assign(low=(models["mean"] - models["low"]) ** 2, high=(models["high"] - models["mean"]) ** 2)
        of_model = sides.groupby("model", sort=False)
        value, wide = factor * of_model["mean"].mean(), of_model[["low", "high"]].sum(min_count=tasks) ** 0.5
        wide *= factor / tasks
        frame = pd.DataFrame({"panel": name, "value": value, "low": value - wide["low"], "high": value + wide["high"]})
        blocks.append(frame.reset_index())
    sizes = study.models(unit)[["model", "members", "parameters", "reuses"]]
    return pd.concat(blocks, ignore_index=True).merge(sizes, on="model")


def _panels(
    rows: pd.DataFrame,
    names: Mapping[str, str],
    levels: Mapping[str, list[float]],
    level_name: str,
    logarithmic: Collection[str],
    against: str,
    title: str,
    subtitle: str,
) -> go.Figure:
    """Draw panels of models against their size, with dashed lines at `levels`, and buttons for the two sizes."""
    choice("against", against, _SIZES)
    if rows.empty:
        raise InputError("no model here has every task: run the others too.")
    rows = rows.rename(columns={"low": "value_low", "high": "value_high"})
    panels = {name: part for name in names if len(part := rows[rows["panel"] == name])}
    apart: dict[str, Any] = {"gap": 0.3, "across": 0.12, "shared_xaxes": False, "shared_yaxes": False}
    views = {}
    for size, label in _SIZES.items():
        contents = [_models(rows, panel, size) for panel in panels]
        room = 1.03 if rows[size].nunique() == 1 else 1.0  # a line needs a length
        ends = [float(rows[size].min()) / room, float(rows[size].max()) * room, None]
        for panel, traces in zip(panels, contents, strict=True):
            heights = [height for level in levels.get(panel, ()) for height in (level, level, None)]
            if heights:
                traces.append(kit.line(ends * (len(heights) // 3), heights, dash="dash", name=level_name))
        x_title = f"{label} (log)"
        figure = layout.panels(contents, [names[panel] for panel in panels], 2, x_title=x_title, **apart)
        for number, (panel, part) in enumerate(panels.items()):
            if panel in logarithmic:
                figure.update_yaxes(axes.log_axis(part.filter(like="value")), **layout.cell(number, 2))
        look: dict[str, Any] = {"x": _size_axis(rows, size), "plot": 220 * -(-len(panels) // 2)}
        views[label] = layout.finish(figure, title, subtitle, **look)
    return layout.choose(views, _SIZES[against])


def _models(rows: pd.DataFrame, panel: str, size: str) -> list[go.Scatter]:
    """Draw a panel's models: a trace per series, and one for models that reuse their blocks."""
    traces, several = [], rows.loc[rows["series"] != SHUFFLED, "series"].nunique() > 1
    for number, name in enumerate(dict.fromkeys(rows["series"])):
        for reuses in (False, True):
            members, gray = rows[(rows["series"] == name) & (rows["reuses"] == reuses)], name == SHUFFLED
            if members.empty:
                continue
            part = members[members["panel"] == panel].assign(component=members["model"])
            color = style.NEUTRAL if gray else style.SERIES[(number if several else reuses) % len(style.SERIES)]
            sizes = [f"{row.members} components, {row.parameters:,} parameters" for row in part.itertuples()]
            texts = kit.hover(part, {panel: "value"}, part["series"], sizes)
            label = (name if several or gray else "models") + ", blocks reused" * reuses
            marker = {"size": 5 if gray else 8, "symbol": ("diamond" if reuses else "circle") + "-open" * gray}
            traces.append(kit.trace(part, size, "value", color, texts, name=label, marker=marker))
    return traces


def _size_axis(rows: pd.DataFrame, size: str) -> dict[str, Any]:
    """Make a logarithmic axis of sizes, with non-overlapping ticks at models, including the first and the last."""
    sizes = np.unique(rows[size].to_numpy(dtype=float))
    low, high = np.log10(sizes[[0, -1]])
    apart, at = (high - low) / 4, sizes[-1:].tolist()
    for x in sizes[-2:0:-1].tolist():
        if np.log10(at[0] / x) >= apart and np.log10(x) - low >= apart:
            at.insert(0, x)
    at = [float(sizes[0]), *at] if len(sizes) > 1 else at
    room = 0.06 * max(high - low, 0.3)
    return axes.ticks(at, map(_short, at)) | {"type": "log", "range": [low - room, high + room]}


def _short(x: float) -> str:
    """Format a count for an axis: 9, 94k, 135M, 1.24B."""
    if x < 1e6:
        return f"{x / 1e3:.0f}k" if x >= 1e4 else f"{x:.0f}"
    return f"{x / 1e9:.4g}B" if x >= 1e9 else f"{x / 1e6:.4g}M"
