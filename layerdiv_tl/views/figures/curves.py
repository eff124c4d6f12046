"""Several models along depth, and checkpoints along training."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice, some_of, whole_number
from ...components import Unit
from ...ensemble.decomposition import NormAt
from ...errors import InputError
from ...replication.correlation import z_scores
from .. import axes, kit, layout, style

if TYPE_CHECKING:
    from ...studies.depth_study import DepthStudy
    from ...studies.over_training import OverTraining
    from ...studies.study import Study

# Terms of each part, and those without parts: the error of probabilities has no shift.
_HALVES = {"raw": ("bias", "diversity"), "centered": ("bias_centered", "diversity_centered")}
_BOTH = ("accuracy", "mse")
# More models than this clutter a panel and are only shown one at a time.
TOGETHER = 5
# {(analysis, column): heading} of the panels of a depth study, and those on a logarithmic axis.
_PANELS = {
    ("residual_norms", "relative_norm_median"): "‖output‖ / ‖stream‖, median over tokens",
    ("skip_future", "output_change"): "Skipped before: change of later answers",
    ("skip", "loss"): "Skipped: growth of the loss, nats",
    ("logit_lens", "kl"): "KL(answer after the layer ‖ last answer), nats",
}
_LOGARITHMIC = ("residual_norms", "logit_lens")
_SHOWN = ("accuracy", "loss", "bias_centered", "diversity_centered", "diversity_logit_centered")


def depth_panels(
    study: Study,
    unit: Unit = "sublayer",
    norm: NormAt = "frozen",
    models: int | Sequence[str] | None = None,
    part: Literal["raw", "centered"] = "raw",
    depth: Literal["relative", "junction"] = "relative",
) -> go.Figure:
    """Draw curves of the prefix ensembles against depth, a panel for every task, colored by term (Fig. 5 and 7).

    Curves are z-scored (constant ones are not drawn); the hover has the value itself. `models` are names, or the number
    of models with the best accuracy at the last junction (the paper shows five). One is shown at a time; a menu has
    the others, and up to five together. `part` is shown first. `depth` places junctions by share of a model's depth or
    by number.
    """
    curves = study.curves(unit, norm)
    chosen, tasks = _chosen(curves, models), list(dict.fromkeys(curves["task"]))
    terms = [term for term in (*_BOTH, *_HALVES["raw"], *_HALVES["centered"]) if term in curves]
    groups = curves[curves["model"].isin(chosen)].groupby(["model", "task"], sort=False)
    lines: dict[Any, pd.DataFrame] = {key: _standardized(curve, terms, depth) for key, curve in groups}

    def draw(models: Sequence[str], part: str) -> go.Figure:
        contents = [[_trace(lines, models, task, term, part) for term in terms] for task in tasks]
        columns = min(2, len(tasks))
        title = "share of depth" if depth == "relative" else "junction"
        figure = layout.panels(contents, [layout.clipped(task) for task in tasks], columns, x_title=title)
        figure.update_yaxes(title_text="standard deviations", col=1)
        x = {"range": [-0.03, 1.03], "tickvals": [0, 0.5, 1]} if depth == "relative" else {"nticks": 4}
        heights = [height for line in lines.values() for height in np.ravel(line[terms])]
        y = axes.linear_axis(heights) | {"zeroline": False}
        subtitle = "Standardized: each curve minus its mean, over its standard deviation. Accuracy is the thick line."
        heading = "MSE, bias, diversity and accuracy along depth"
        return layout.finish(figure, heading, subtitle, x=x, y=y, plot=220 * -(-len(tasks) // columns))

    views = {model: [model] for model in chosen}
    if 1 < len(chosen) <= TOGETHER:
        views[f"all {len(chosen)} together"] = chosen
    drawn = {name: draw(some, part) for name, some in views.items()}
    shown = layout.choose(drawn, chosen[0], type="dropdown", direction="down", x=1, xanchor="right")
    return layout.choose({half: shown if half == part else draw(chosen[:1], half) for half in _HALVES}, part)


def _chosen(curves: pd.DataFrame, models: int | Sequence[str] | None) -> list[str]:
    """Return the names of the requested models."""
    present = list(dict.fromkeys(curves["model"]))
    if models is None:
        return present
    if isinstance(models, Integral):
        count = whole_number("models", models, 1)
        last = curves.loc[curves.groupby(["model", "task"], sort=False)["junction"].idxmax()]
        best = last.groupby("model", sort=False)["accuracy"].mean().sort_values(ascending=False, kind="stable")
        return best.index[:count].tolist()
    return some_of("models", models, present)


def _standardized(curve: pd.DataFrame, terms: Sequence[str], depth: str) -> pd.DataFrame:
    """Prepare one model on one task: junctions as `x`, and each term's height and hover value."""
    x = curve["junction"].to_numpy(dtype=float)
    # Four decimals suffice for a pixel; a page with sixteen models holds 50 000 of these numbers.
    line = pd.DataFrame({"x": (x / max(1.0, x.max()) if depth == "relative" else x).round(4)})
    for term in terms:
        line[term] = z_scores(curve[term].to_numpy(dtype=float)).round(4)
        line[f"{term} value"] = [
            f"after {label}\n{style.number(v)}" for v, label in zip(curve[term], curve["component"], strict=True)
        ]
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
    name, visible = term.replace("_", ", ").replace("mse", "MSE"), term in (*_BOTH, *_HALVES[part])
    # Centered and raw terms are never shown together and share a color.
    color = style.TERM[term.removesuffix("_centered")]
    look: dict[str, Any] = {"name": name, "visible": visible, "opacity": 0.5 if len(models) > 1 else 1.0}
    look |= {"hovertext": rows["model"] + "\n" + name + " " + rows[f"{term} value"], "hoverinfo": "text"}
    width = 2.4 if term == "accuracy" else 1.6
    return kit.line(rows["x"].to_numpy(), rows[term].to_numpy(), color, **look).update(line_width=width)


def study_lines(depth: DepthStudy, along: Literal["relative", "layer"] = "relative") -> go.Figure:
    """Draw residual norms, skips and the logit lens against depth, a line for every model.

    `along` places layers by share of a model's depth ("relative") or by number ("layer"). Raises InputError if none of
    these analyses was run.
    """
    models, contents, headings, logarithmic = depth.models, [], [], []
    for (analysis, column), heading in _PANELS.items():
        results, lines = depth.newest(analysis), []
        for number, model in enumerate(models):
            if model not in results:
                continue
            frame = results[model].frame()
            # For the lens, the last junction of each layer.
            frame = frame[(frame["kind"] == "layer" if analysis == "residual_norms" else True) & frame["layer"].notna()]
            layers = frame["component"].str.replace(r"\..*", "", regex=True)
            frame = frame[(layers != layers.shift(-1)).to_numpy()]
            x = np.arange(len(frame)) / (max(len(frame) - 1, 1) if along == "relative" else 1)
            y = frame[column].to_numpy(dtype=float)
            y = np.where(y > 0, y, np.nan) if analysis in _LOGARITHMIC else y  # a lens ends at 0
            texts, color = kit.hover(frame, [column], [model] * len(frame)), style.SERIES[number % len(style.SERIES)]
            lines.append(kit.trace(frame, x, y, color, texts, shape="line", name=layout.clipped(model)))
        if lines:
            contents.append(lines)
            headings.append(heading)
            logarithmic.append(analysis in _LOGARITHMIC)
    if not contents:
        raise InputError("these analyses have no curves by layer: draw one by itself, study.analyses[0].result.plot().")
    title = "layer" + (", as a share of depth" if along == "relative" else "")
    figure = layout.panels(contents, headings, x_title=title)
    for row, (lines, is_log) in enumerate(zip(contents, logarithmic, strict=True), start=1):
        if is_log:
            figure.update_yaxes(axes.log_axis(np.concatenate([line.y for line in lines])), row=row, col=1)
    alone = len(models) == 1
    title = f"{models[0] if alone else f'{len(models)} models'} along depth"
    subtitle = "Means over tokens unless said otherwise; logarithmic where the numbers span decades."
    return layout.finish(figure, title, subtitle, showlegend=not alone, plot=150 * len(contents))


def training_curves(
    training: OverTraining, quantities: Sequence[str] | None = None, task: str | None = None
) -> go.Figure:
    """Draw quantities against the training step: a panel for each, in each a line per run, and a menu of the tasks.

    Runs of one shape have one color; the vertical line is the step at half of the change in accuracy, averaged over
    seeds. `quantities` None shows accuracy, loss, centered bias and diversity; `task` is shown first, None is the first
    task with all of them. Raises InputError for a quantity or task that was not measured.
    """
    names = [name for name in _SHOWN if name in training.quantities]
    names = names if quantities is None else some_of("quantities", quantities, training.quantities)
    frame, order = training.frame(), training.order()
    tasks, shapes = list(dict.fromkeys(frame["task"])), list(dict.fromkeys(frame["shape"]))
    lacking = {t: [name for name in names if frame.loc[frame["task"] == t, name].isna().all()] for t in tasks}
    fullest = min(tasks, key=lambda t: len(lacking[t]))
    first = fullest if task is None else choice("task", task, tasks)
    color = {shape: style.SERIES[i % len(style.SERIES)] for i, shape in enumerate(shapes)}
    runs = frame[["run", "shape"]].drop_duplicates()
    absent = [f"{', '.join(some).replace('_', ' ')} on {t}" for t, some in lacking.items() if some]
    subtitle = f"Members at unit {training.unit}."
    subtitle += " A line for every training seed." if len(runs) > len(shapes) else ""
    subtitle += " Dotted: accuracy has gone half of its way." if order["reached"].notna().any() else ""
    subtitle += f" Not measured: {'; '.join(absent)}." if absent else ""
    views = {}
    for t in tasks:
        units, contents = training.units(t), list[list[go.Scatter]]()
        for name in names:
            contents.append([])
            for run, shape in runs.itertuples(index=False):
                curve = frame[(frame["run"] == run) & (frame["task"] == t)]
                curve = curve.assign(component=[f"{run}, step {step}" for step in curve["step"]])
                line = kit.trace(curve, "step", name, color[shape], shape="line", name=shape, error_y=None)
                contents[-1].append(line)
        headings = [name.replace("_", " ") for name in names]
        figure = layout.panels(contents, headings, units=[units[name] for name in names], x_title="training step")
        if "accuracy" in names:  # a curve that never moves would be drawn on an axis of any length
            figure.update_yaxes(range=[-0.04, 1.04], row=1 + names.index("accuracy"), col=1)
        reached = order[(order["task"] == t) & (order["quantity"] == "accuracy")].dropna(subset="reached")
        span = {"type": "line", "y0": 0, "y1": 1, "yref": "paper"}
        shapes_of = [
            span | {"x0": row.reached, "x1": row.reached, "line": kit.DOTTED | {"color": color[row.shape]}}
            for row in reached.itertuples()
        ]
        look: dict[str, Any] = {"shapes": shapes_of, "showlegend": len(shapes) > 1, "plot": 150 * len(names)}
        views[t] = layout.finish(figure, f"{len(runs)} runs over training", subtitle, **look)
    return layout.choose(views, first, type="dropdown", direction="down", x=1, xanchor="right")
