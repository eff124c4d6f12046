"""Several models along depth, and checkpoints along training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice, some_of, whole_number
from ...components import Unit
from ...ensemble.decomposition import NormAt
from ...ensemble.intervals import wilson
from ...errors import InputError
from ...replication.correlation import z_scores
from .. import axes, kit, layout, style
from .study import rows_counted

if TYPE_CHECKING:
    from ...studies.depth_study import DepthStudy
    from ...studies.over_training import OverTraining
    from ...studies.study import Study

# Terms of each part, and those without parts: the error of probabilities has no shift.
_GAUGES = {"raw": ("bias", "diversity"), "centered": ("bias_centered", "diversity_centered")}
_BOTH = ("accuracy", "mse")
# More models than this clutter a panel and are only shown one at a time.
TOGETHER = 5
# {(analysis, column): (heading, its name in a title)} of the panels of a depth study; those on a logarithmic axis.
_PANELS = {
    ("residual_norms", "relative_norm_median"): ("‖output‖ / ‖stream‖, median over tokens", "Relative output norm"),
    ("skip_future", "output_change"): ("Skipped before: change of later answers", "Change of later answers if skipped"),
    ("skip", "loss"): ("Skipped: growth of the loss, nats", "Growth of the loss if skipped"),
    ("logit_lens", "kl"): ("KL(answer after the layer ‖ last answer), nats", "KL of answers from the last one"),
}
_LOGARITHMIC = ("residual_norms", "logit_lens")
_SHOWN = ("accuracy", "loss", "bias_centered", "diversity_centered", "diversity_logit_centered")
_MENU: dict[str, Any] = {"type": "dropdown", "direction": "down", "x": 1, "xanchor": "right"}


def depth_panels(
    study: Study,
    unit: Unit = "sublayer",
    norm: NormAt = "frozen",
    models: int | Sequence[str] | None = None,
    part: Literal["raw", "centered"] = "raw",
    depth: Literal["relative", "junction"] = "relative",
) -> go.Figure:
    """Draw z-scored curves of the prefix ensembles against depth, a panel for every task (Fig. 5 and 7).

    `models` are names, or the number of models with the best accuracy at the last junction; a menu shows one at a time,
    and up to five together. `depth` places junctions by share of a model's depth or by number.
    """
    curves = study.curves(unit, norm)
    chosen, tasks = _chosen(curves, models), list(dict.fromkeys(curves["task"]))
    terms = [term for term in (*_BOTH, *_GAUGES["raw"], *_GAUGES["centered"]) if term in curves]
    groups = curves[curves["model"].isin(chosen)].groupby(["model", "task"], sort=False)
    lines: dict[Any, pd.DataFrame] = {key: _standardized(curve, terms, depth) for key, curve in groups}
    y = axes.linear_axis([height for line in lines.values() for height in np.ravel(line[terms])]) | {"zeroline": False}
    x: dict[str, Any] = {"range": [-0.03, 1.03], "tickvals": [0, 0.5, 1]} if depth == "relative" else {"nticks": 4}
    columns = min(2, len(tasks))
    known = [cell for cell in study.cells if cell["settings"]["unit"] == unit and "baselines" in cell]
    about = {(cell["settings"]["model"], cell["settings"]["task"]): cell for cell in known}
    subtitle = "Standardized: each curve minus its mean, over its standard deviation. Accuracy is the thick line. "
    subtitle += f"Prefix ensembles, without intervals. {rows_counted(study, unit)}"

    def draw(models: Sequence[str], part: str) -> go.Figure:
        contents = [[_trace(lines, models, task, term, part) for term in terms] for task in tasks]
        x_title = "share of depth" if depth == "relative" else "junction"
        figure = layout.panels(contents, map(layout.clipped, tasks), columns, x_title=x_title)
        figure.update_yaxes(title_text="standard deviations", col=1)
        runs = curves[curves["model"].isin(models)].groupby(["model", "task"], sort=False)["accuracy"]
        ends = pd.DataFrame({"first": runs.first(), "last": runs.last()}).groupby("task", sort=False).mean()
        peaks = [curves.loc[at] for at in runs.idxmax()] if len(models) == 1 else [None] * len(ends)
        whose = models[0] if len(models) == 1 else f"{len(models)} models, on average,"
        told = [
            f"{_goes(*map(style.percent, pair))}{_summit(peak, pair, about)} on {layout.clipped(str(task))}"
            + (
                f" (guessing: {style.percent(own['baselines']['chance'])})"
                if (own := about.get((*models, task)))
                else ""
            )
            for (task, *pair), peak in zip(ends.itertuples(), peaks, strict=True)
        ]
        told[1:] = [each.removeprefix("goes " * told[0].startswith("goes ")) for each in told[1:]]
        if len(ends) > 2:  # no room for each; a mean alone would hide that tasks disagree
            rises = int((ends["last"] > ends["first"]).sum())
            told = [f"rises on {rises} of {len(ends)} tasks"]
            if all((*models, task) in about for task in ends.index):  # a single model
                rows = [about[models[0], task]["settings"]["rows"] for task in ends.index]
                low, high = (wilson(ends[end] * rows, rows)[side] for end, side in (("last", 0), ("first", 1)))
                told = [f"clearly rises on {int((low > high).sum())} of {len(ends)} tasks"]
            told.append(f"{_goes(*map(style.percent, ends.mean()))} on average")
        title = f"Along depth, accuracy of {whose} {', and '.join(told)}"
        return layout.finish(figure, title, subtitle, x=x, y=y, plot=220 * -(-len(tasks) // columns))

    views = {model: [model] for model in chosen}
    if 1 < len(chosen) <= TOGETHER:
        views[f"all {len(chosen)} together"] = chosen
    shown = layout.choose({name: draw(some, part) for name, some in views.items()}, chosen[0], **_MENU)
    return layout.choose({gauge: shown if gauge == part else draw(chosen[:1], gauge) for gauge in _GAUGES}, part)


def _goes(first: str, last: str) -> str:
    return f"begins and ends at {last}" if first == last else f"goes from {first} to {last}"


def _summit(peak: Any, ends: Sequence[float], about: Mapping[Any, Any]) -> str:
    """Name the junction with the highest accuracy, if its interval lies above those of both ends of the curve."""
    cell = None if peak is None else about.get((peak["model"], peak["task"]))
    if cell is None:
        return ""
    rows = cell["settings"]["rows"]
    low, high = wilson(rows * np.array([peak["accuracy"], *ends]), rows)
    return f", with {style.percent(peak['accuracy'])} after {peak['component']}," if low[0] > max(high[1:]) else ""


def _chosen(curves: pd.DataFrame, models: int | Sequence[str] | None) -> list[str]:
    """Return the names of the requested models."""
    present = list(dict.fromkeys(curves["model"]))
    if not isinstance(models, Integral):
        return present if models is None else some_of("models", models, present)
    count = whole_number("models", models, 1)
    last = curves.loc[curves.groupby(["model", "task"], sort=False)["junction"].idxmax()]
    best = last.groupby("model", sort=False)["accuracy"].mean().sort_values(ascending=False, kind="stable")
    return best.index[:count].tolist()


def _standardized(curve: pd.DataFrame, terms: Sequence[str], depth: str) -> pd.DataFrame:
    """Prepare one model on one task: junctions as `x`, and each term's height and hover value."""
    x = curve["junction"].to_numpy(dtype=float)
    # Four decimals suffice for a pixel; a page with sixteen models holds 50 000 of these numbers.
    line = pd.DataFrame({"x": (x / max(1.0, x.max()) if depth == "relative" else x).round(4)})
    for term in terms:
        line[term] = z_scores(curve[term].to_numpy(dtype=float)).round(4)
        named = zip(curve["component"], curve[term], strict=True)
        line[f"{term} value"] = [f"after {label}\n{style.number(v)}" for label, v in named]
    return line


def _trace(lines: dict[Any, pd.DataFrame], models: Sequence[str], task: str, term: str, part: str) -> go.Scatter:
    """Draw the curves of several models as one trace, with gaps between them."""
    # A trace without points would be missing in the shared legend.
    gap = pd.DataFrame({"x": [np.nan], term: [np.nan], f"{term} value": [""], "model": [""]})
    blocks = [gap]
    for model in models:
        if (curve := lines.get((model, task))) is not None:
            blocks += [curve[["x", term, f"{term} value"]].assign(model=model), gap]
    rows = pd.concat(blocks[1:-1] or [gap], ignore_index=True)
    name, visible = style.term_name(term), term in (*_BOTH, *_GAUGES[part])
    # Centered and raw terms are never shown together and share a color.
    color = style.TERM[term.removesuffix("_centered")]
    look: dict[str, Any] = {"name": name, "visible": visible, "opacity": 0.5 if len(models) > 1 else 1.0}
    look |= {"hovertext": rows["model"] + "\n" + name + " " + rows[f"{term} value"], "hoverinfo": "text"}
    look |= {"mode": "lines+markers", "marker": {"size": 4}} if len(models) == 1 else {}
    over = {"line_width": 2.4, "zorder": 1} if term == "accuracy" else {"line_width": 1.6}
    return kit.line(rows["x"].to_numpy(), rows[term].to_numpy(), color, **look).update(over)


def study_lines(depth: DepthStudy, along: Literal["relative", "layer"] = "relative") -> go.Figure:
    """Draw residual norms, skips and the logit lens against depth, a line for every model.

    `along` places layers by share of a model's depth or by number. Raises InputError if none of these was run.
    """
    models, panels, found, sets = depth.models, {}, "", dict[str, None]()
    whose = models[0] if len(models) == 1 else f"{len(models)} models"
    for (analysis, column), (heading, name) in _PANELS.items():
        results, lines, ends = depth.newest(analysis), [], []
        for number, model in enumerate(models):
            if model not in results:
                continue
            frame = results[model].frame().dropna(subset="layer")
            frame = frame[frame["kind"] == "layer"] if analysis == "residual_norms" else frame
            # For the lens, the last junction of each layer.
            layers = frame["component"].str.replace(r"\..*", "", regex=True)
            frame = frame[(layers != layers.shift(-1)).to_numpy()]
            x = np.arange(len(frame)) / (max(len(frame) - 1, 1) if along == "relative" else 1)
            y = frame[column].to_numpy(dtype=float)
            ends.append((y[0], y[-1]))
            y = np.where(y > 1e-9, y, np.nan) if analysis in _LOGARITHMIC else y  # a lens ends at 0, or rounding
            texts, color = kit.hover(frame, [column], [model] * len(frame)), style.SERIES[number % len(style.SERIES)]
            lines.append(kit.trace(frame, x, y, color, texts, shape="line", name=layout.clipped(model)))
        if lines:
            panels[heading] = (lines, analysis in _LOGARITHMIC)
            first, last = (
                " to ".join(dict.fromkeys(map(style.number, (min(x), max(x))))) for x in zip(*ends, strict=True)
            )
            found = found or f"{name} of {whose}: {first} in the first layer, {last} in the last"
            sets |= dict.fromkeys(a.dataset for a in depth.analyses if a.result is results.get(a.model))
    if not panels:
        raise InputError("these analyses have no curves by layer: draw one by itself, study.analyses[0].result.plot().")
    x_title = "layer" + ", as a share of depth" * (along == "relative")
    figure = layout.panels([lines for lines, _ in panels.values()], panels, x_title=x_title)
    for row, (lines, is_log) in enumerate(panels.values(), start=1):
        if is_log:
            figure.update_yaxes(axes.log_axis(np.concatenate([line.y for line in lines])), row=row, col=1)
    subtitle = f"{', '.join(sets)}. Means over tokens unless said otherwise; logarithmic where the numbers span "
    subtitle += "decades. The hover has 95 % intervals of means over at least 8 texts."
    return layout.finish(figure, found, subtitle, showlegend=len(models) > 1, plot=150 * len(panels))


def training_curves(
    training: OverTraining, quantities: Sequence[str] | None = None, task: str | None = None
) -> go.Figure:
    """Draw quantities against the training step: a panel for each, in each a line per run, and a menu of the tasks.

    The dotted line is the step at half of the change in accuracy, averaged over seeds. `task` None is the first with
    all quantities. Raises InputError for a quantity or task that was not measured.
    """
    names = [name for name in _SHOWN if name in training.quantities]
    names = names if quantities is None else some_of("quantities", quantities, training.quantities)
    frame, order = training.frame(), training.order()
    tasks, shapes = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["shape"]))
    lacking = {t: [name for name in names if frame.loc[frame["task"] == t, name].isna().all()] for t in tasks}
    first = min(tasks, key=lambda t: len(lacking[t])) if task is None else choice("task", task, tasks)
    color = {shape: style.SERIES[i % len(style.SERIES)] for i, shape in enumerate(shapes)}
    runs = frame[["run", "shape"]].drop_duplicates()
    absent = [f"{', '.join(some).replace('_', ' ')} on {t}" for t, some in lacking.items() if some]
    subtitle = f"Members at unit {training.unit}." + " A line for every training seed." * (len(runs) > len(shapes))
    subtitle += " Dotted: accuracy has gone half of its way." * bool(order["reached"].notna().any())
    subtitle += f" Not measured: {'; '.join(absent)}." if absent else ""
    views = {}
    for t in tasks:
        units, contents = training.units(t), list[list[go.Scatter]]()
        for name in names:
            contents.append([])
            for (run, shape), curve in frame[frame["task"] == t].groupby(["run", "shape"], sort=False):
                curve = curve.assign(component=[f"{run}, step {step}" for step in curve["step"]])
                look: dict[str, Any] = {"shape": "line", "name": shape, "error_y": None}
                contents[-1].append(kit.trace(curve, "step", name, color[shape], **look))
        headings = list(map(style.term_name, names))
        figure = layout.panels(contents, headings, units=[units[name] for name in names], x_title="training step")
        if "accuracy" in names:  # a curve that never moves would be drawn on an axis of any length
            figure.update_yaxes(range=[-0.04, 1.04], row=1 + names.index("accuracy"), col=1)
        for row in order.query("task == @t and quantity == 'accuracy'").dropna(subset="reached").itertuples():
            ends, line = {"x0": row.reached, "x1": row.reached, "y0": 0, "y1": 1}, {"color": color[row.shape]}
            figure.add_shape(type="line", yref="paper", line=kit.DOTTED | line, **ends)
        whole = frame[frame["task"] == t].dropna(subset=names[0]).groupby("run", sort=False)[names[0]]
        sizes = [float(x.mean()) for x in (whole.first(), whole.last())]
        told = [style.percent(x) if names[0] == "accuracy" else style.estimate(x, unit=units[names[0]]) for x in sizes]
        mean = f", mean over {len(runs)} runs" * (len(runs) > 1)
        title = f"Over training, {headings[0]} on {t} {_goes(*told)}{mean}"
        look = {"showlegend": len(shapes) > 1, "plot": 150 * len(names)}
        views[t] = layout.finish(figure, title, subtitle, **look)
    return layout.choose(views, first, **_MENU)
