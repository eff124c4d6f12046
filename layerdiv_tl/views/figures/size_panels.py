"""Models against their size: every quantity of a study, and the information of components, a panel each."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..._checks import choice
from ..._registry import figure_of
from ...components import Unit
from ...errors import InputError
from .. import plotting as kit
from .. import style

if TYPE_CHECKING:
    from ...studies.study import Study

_COLUMNS = 3
SHUFFLED = "shuffled rows"


@figure_of("size", "Study")
def size_panels(study: Study, unit: Unit = "sublayer", against: str = "members") -> go.Figure:
    """Accuracy, MSE, bias, diversities and cross-entropy of every model, mean over tasks, against its size.

    Models that reuse their blocks are diamonds. Whiskers are 95 % over rows, in all tasks together; the dashed line
    is the uniform prediction's. Buttons exchange numbers of components and of parameters. Models that lack a
    task are left out. Raises InputError for a unit that the study does not have.
    """
    names = style.LABELS["title"]["size"]
    means = _means(study, unit, list(names)).assign(series="mean over tasks")
    uniform = study.table(unit)["uniform"]["Avg."].dropna()
    levels = {name: [float(uniform.iloc[0])] for name in ("MSE", "bias")} if len(uniform) else {}
    lowest = means.groupby("panel")["value"].min()
    logarithmic = [name for name in names if name.startswith("diversity") and lowest.get(name, 0.0) > 0]
    subtitle = (
        "Every point is a model, its mean over tasks with a 95 % interval over rows. Dashed: the uniform prediction. "
        "Diversity is a mean over components and falls with their number; |L|² × diversity does not by itself."
    )
    texts = (f"Models of other sizes, unit {unit}", subtitle)
    return _panels(means, names, levels, "uniform prediction", logarithmic, against, texts)


def information_panels(frame: pd.DataFrame, models: pd.DataFrame, against: str = "members") -> go.Figure:
    """Information of the components of every model about the label, in bits, against its size; a color per task.

    Args:
        frame: What `Study.information` gives, of one estimator.
        models: What `Study.models` gives.

    Gray is what the estimate makes of shuffled rows. Joint information cannot exceed its task's H(Y), a dashed
    line for each that differs: where it does, the estimator's assumption does not hold. Raises InputError for a frame
    of several estimators, and one without an estimate of these models.
    """
    if frame["estimator"].nunique() != 1:
        raise InputError(f"the frame has the estimators {', '.join(frame['estimator'].unique())}: give those of one.")
    rows = frame.rename(columns={"bits": "value", "term": "panel", "task": "series"}).drop(columns="members")
    shuffled = rows.assign(series=SHUFFLED, value=rows["null"], low=rows["null_low"], high=rows["null_high"])
    rows = pd.concat([rows, shuffled]).merge(models[["model", "members", "parameters", "reuses"]], on="model")
    rows = rows.dropna(subset="value")
    if rows.empty:
        raise InputError("the frame has no estimate of these models: give the frames of one study and unit.")
    levels = {"joint": np.unique(frame["label_entropy"].round(2)).tolist()}
    cells = frame.drop_duplicates(["model", "task"])
    doubted = int((cells["doubts"] != "").sum())
    subtitle = (
        f"In bits, from at least {frame['rows'].min()} rows, with 95 % intervals over rows; gray what shuffled rows "
        "give. Dashed: H(Y) of each task, which no information exceeds; an estimate above its own rests on an "
        "assumption that does not hold."
        + (f" The checks contradict {doubted} of {len(cells)} estimates." if doubted else "")
    )
    title = f"Information of components about the label ({frame['estimator'].iloc[0]} estimate)"
    return _panels(rows, style.LABELS["title"]["information"], levels, "H(Y)", (), against, (title, subtitle))


def _means(study: Study, unit: Unit, names: Sequence[str]) -> pd.DataFrame:
    """One row per model and quantity: the mean over tasks, and the interval of a mean of independent tasks."""
    from ...studies.tables import QUANTITIES

    totals = study.totals()
    totals = totals[totals["unit"] == unit]
    tasks = totals["task"].nunique()
    blocks = []
    for name in names:
        loss, term, factor = QUANTITIES[name]
        rows = totals[(totals["loss"] == loss) & (totals["term"] == term)]
        whole = rows.groupby("model", sort=False).filter(lambda part: len(part) == tasks)
        # Each side by itself (Zou & Donner 2008): Wilson's intervals of accuracies are not symmetric, and end at 100 %.
        sides = pd.DataFrame({"low": whole["mean"] - whole["low"], "high": whole["high"] - whole["mean"]}) ** 2
        value = factor * whole.groupby("model", sort=False)["mean"].mean()
        wide = factor * sides.groupby(whole["model"], sort=False).sum(min_count=tasks) ** 0.5 / tasks
        frame = pd.DataFrame({"panel": name, "value": value, "low": value - wide["low"], "high": value + wide["high"]})
        blocks.append(frame.reset_index())
    models = study.models(unit)[["model", "members", "parameters", "reuses"]]
    return pd.concat(blocks, ignore_index=True).merge(models, on="model")


def _panels(
    rows: pd.DataFrame,
    names: Mapping[str, tuple[str, str]],
    levels: Mapping[str, list[float]],
    level_name: str,
    logarithmic: Sequence[str],
    against: str,
    texts: tuple[str, str],
) -> go.Figure:
    """Panels of models against their size, with dashed lines at `levels`, and buttons for the two sizes."""
    sizes = style.LABELS["against"]
    choice("against", against, sizes)
    if rows.empty:
        raise InputError("no model here has every task: run the others too.")
    present = {name: names[name] for name in names if (rows["panel"] == name).any()}
    contents: dict[str, list[list[go.Scatter]]] = {size: [] for size in sizes}
    for size, content in contents.items():
        for panel, (heading, unit) in present.items():
            traces = list(_models(rows, panel, heading, unit, size))
            if panel in levels:
                ends = [float(rows[size].min()), float(rows[size].max())]
                x = [x for _ in levels[panel] for x in (*ends, None)]
                y = [y for level in levels[panel] for y in (level, level, None)]
                look: dict[str, Any] = {"dash": "dash", "width": 1, "marks": 0, "name": level_name}
                look["hovertemplate"] = f"{level_name} %{{y:.3~g}} {unit}<extra></extra>"
                traces.append(kit.line(x, y, style.NEUTRAL, **look))
            content.append(traces)
    headings = [f"{heading} ({unit})" for heading, unit in present.values()]
    shared: dict[str, Any] = {"shared_xaxes": False, "shared_yaxes": False}
    figure = kit.panels(contents[against], headings, _COLUMNS, gap=0.3, across=0.07, **shared)
    views = {}
    for size, label in sizes.items():
        layout: dict[str, Any] = {}
        for number in range(len(present)):
            axis = f"xaxis{number + 1 if number else ''}"
            layout |= {f"{axis}.{key}": value for key, value in _size_axis(rows, size).items()}
            # Panels that have none below them.
            if number + _COLUMNS >= len(present):
                layout[f"{axis}.title.text"] = label
        views[label] = [kit.changes(chain(*contents[size]), "x"), layout]
    for number, panel in enumerate(present):
        if panel in logarithmic:
            shown = rows.loc[rows["panel"] == panel, ["value", "low", "high"]]
            figure.update_yaxes(**kit.log_axis(shown), **kit.cell(number, _COLUMNS))
    figure.update_layout(views[sizes[against]][1])
    menus, plot = kit.buttons(views, list(sizes).index(against)), 250 * -(-len(present) // _COLUMNS)
    return kit.arrange(figure, *texts, plot=plot, below=110, menus=menus)


def _models(rows: pd.DataFrame, panel: str, heading: str, unit: str, size: str) -> Iterator[go.Scatter]:
    """A panel's models: a trace for each series, and for those that reuse their blocks."""
    series = list(dict.fromkeys(rows["series"]))
    several = len([name for name in series if name != SHUFFLED]) > 1
    for number, name in enumerate(series):
        for reuses in (False, True):
            members = rows[(rows["series"] == name) & (rows["reuses"] == reuses)]
            if members.empty:
                continue
            part, gray = members[members["panel"] == panel], name == SHUFFLED
            label = (name if several or gray else "models") + (", blocks reused" if reuses else "")
            color = style.SERIES[(number if several else reuses) % len(style.SERIES)]
            hover = [
                f"<b>{html.escape(row['model'])}</b><br>{html.escape(row['series'])}<br>{heading} "
                f"{style.number(row['value'])} {unit}, 95 % {style.interval(row['low'], row['high'])}<br>"
                f"{row['members']} components, {row['parameters']:,} parameters"
                for row in part.to_dict("records")
            ]
            look: dict[str, Any] = {"size": 5 if gray else 8, "name": html.escape(label), "hover": hover}
            look["symbol"] = ("diamond" if reuses else "circle") + "-open" * gray
            look["error"] = kit.whiskers(part, "value", "low", "high", thickness=1.2, color=None)
            yield kit.dots(part[size].tolist(), part["value"], style.NEUTRAL if gray else color, **look)


def _size_axis(rows: pd.DataFrame, size: str) -> dict[str, Any]:
    """A logarithmic axis of sizes, with ticks at as many models as do not touch, the first and the last with them."""
    sizes = np.unique(rows[size].to_numpy(dtype=float))
    low, high = np.log10(sizes[[0, -1]])
    room, apart = 0.06 * max(high - low, 0.3), (high - low) / 7
    ticks = [float(sizes[-1])]
    for x in sizes[-2:0:-1]:
        if np.log10(ticks[-1] / x) >= apart and np.log10(x) - low >= apart:
            ticks.append(float(x))
    ticks = [float(sizes[0]), *reversed(ticks)] if len(sizes) > 1 else ticks
    axis: dict[str, Any] = {"type": "log", "range": [low - room, high + room], "showgrid": False}
    return axis | {"tickmode": "array", "tickvals": ticks, "ticktext": [_short(x) for x in ticks]}


def _short(x: float) -> str:
    """A count as on an axis: 9, 94k, 135M, 1.24B."""
    if x < 10_000:
        return f"{x:.0f}"
    if x < 1e6:
        return f"{x / 1e3:.0f}k"
    return f"{x / 1e6:.4g}M" if x < 1e9 else f"{x / 1e9:.4g}B"
