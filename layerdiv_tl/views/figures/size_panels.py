"""Models against their size: every quantity of a study, and what components tell, by components or parameters."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..._checks import choice
from ...components import Unit
from ...errors import InputError
from ...studies.study import QUANTITIES, Study
from .. import style
from .layout import arrange, between, buttons

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = 3
_ROW = 250  # pixels of one row of panels
# Panel of the sizes: (heading, unit). Diversities and their corrections span decades.
_SIZES = {
    "accuracy": ("accuracy", "%"),
    "MSE": ("MSE, Eq. 14", "hundredths"),
    "bias": ("bias, Eq. 14", "hundredths"),
    "cross-entropy": ("cross-entropy", "nats"),
    "diversity": ("diversity, raw", "logits²"),
    "diversity centered": ("diversity, centered", "logits²"),
    "diversity_logit": ("|L|² × diversity, raw", "logits²"),
    "diversity_logit centered": ("|L|² × diversity, centered", "logits²"),
}
_TELLS = {
    "relevancy": "relevancy, Σ I(u; Y)",
    "redundancy": "redundancy, TC(U)",
    "conditional_redundancy": "conditional redundancy, TC(U|Y)",
    "diversity": "diversity, TC(U|Y) − TC(U)",
    "joint": "joint information, I(U; Y)",
}
SHUFFLED = "shuffled rows"
_AGAINST = {"members": "components |L|", "parameters": "parameters"}


def size_panels(study: Study, unit: Unit = "sublayer", against: str = "members", title: str | None = None) -> go.Figure:
    """Accuracy, MSE, bias, diversities and cross-entropy of every model, mean over tasks, against its size.

    Models that reuse their blocks are diamonds. Whiskers are 95 % over rows, in all tasks together; the dashed line
    is the uniform prediction's. Buttons exchange numbers of components and of parameters. Models that lack a
    task are left out. Raises InputError for a unit that the study does not have.
    """
    means = _means(study, unit)
    panels = [name for name in _SIZES if (means["panel"] == name).any()]
    uniform = study.table(unit)["uniform"]["Avg."].dropna()
    lines = {"MSE": [float(uniform.iloc[0])], "bias": [float(uniform.iloc[0])]} if len(uniform) else {}
    headings = {name: _SIZES[name] for name in panels}
    logs = [
        name for name in panels if name.startswith("diversity") and (means["value"][means["panel"] == name] > 0).all()
    ]
    return _panels(
        means.assign(series="mean over tasks"),
        headings,
        lines,
        "uniform prediction",
        logs,
        against,
        title or f"Models of other sizes, unit {unit}",
        "Every point is a model, its mean over tasks with a 95 % interval over rows. Dashed: the uniform prediction. "
        "Diversity is a mean over components and falls with their number; |L|² × diversity does not by itself.",
    )


def information_panels(
    frame: pd.DataFrame, models: pd.DataFrame, against: str = "members", title: str | None = None
) -> go.Figure:
    """What the components of every model tell about the label, in bits, against its size; a color per task.

    frame
        What `Study.information` gives, of one estimator.
    models
        What `Study.models` gives.

    Gray is what the estimate makes of shuffled rows. Joint information cannot exceed its task's H(Y), a dashed
    line for each that differs: where it does, the estimator's assumption does not hold. Raises InputError for a frame
    of several estimators, and one without an estimate of these models.
    """
    import pandas as pd

    if frame["estimator"].nunique() != 1:
        raise InputError(f"the frame has the estimators {', '.join(frame['estimator'].unique())}: give those of one.")
    rows = frame.rename(columns={"bits": "value", "term": "panel", "task": "series"}).drop(columns="members")
    shuffled = rows.assign(series=SHUFFLED, value=rows["null"], low=rows["null_low"], high=rows["null_high"])
    rows = pd.concat([rows, shuffled]).merge(models[["model", "members", "parameters", "reuses"]], on="model")
    rows = rows.dropna(subset="value")
    if rows.empty:
        raise InputError("the frame has no estimate of these models: give the frames of one study and unit.")
    panels = {name: (heading, "bits") for name, heading in _TELLS.items() if (rows["panel"] == name).any()}
    lines = {"joint": np.unique(frame["label_entropy"].round(2)).tolist()} if "joint" in panels else {}
    count, estimator = int(frame["rows"].min()), frame["estimator"].iloc[0]
    cells = frame.drop_duplicates(["model", "task"])
    doubted = int((cells["doubts"] != "").sum())
    return _panels(
        rows,
        panels,
        lines,
        "H(Y)",
        (),
        against,
        title or f"What components tell about the label ({estimator} estimate)",
        f"In bits, from at least {count} rows, with 95 % intervals over rows; gray what shuffled rows give. Dashed: "
        "H(Y) of each task, which no information exceeds; an estimate above its own rests on an assumption that does "
        "not hold."
        + (f" A test of fit or a lower bound contradicts {doubted} of {len(cells)} estimates." if doubted else ""),
    )


def _means(study: Study, unit: Unit) -> pd.DataFrame:
    """One row per model and quantity: the mean over tasks, and the interval of a mean of independent tasks."""
    import pandas as pd

    totals = study.totals()
    totals = totals[totals["unit"] == unit]
    models = study.models(unit)
    tasks = totals["task"].nunique()
    blocks = []
    for name in _SIZES:
        loss, term, factor = QUANTITIES[name]
        rows = totals[(totals["loss"] == loss) & (totals["term"] == term)]
        whole = rows.groupby("model", sort=False).filter(lambda part: len(part) == tasks)
        # Each side by itself (Zou & Donner 2008): Wilson's intervals of accuracies are not symmetric, and end at 100 %.
        sides = pd.DataFrame({"low": whole["mean"] - whole["low"], "high": whole["high"] - whole["mean"]}) ** 2
        value = factor * whole.groupby("model", sort=False)["mean"].mean()
        wide = factor * sides.groupby(whole["model"], sort=False).sum(min_count=tasks) ** 0.5 / tasks
        frame = pd.DataFrame({"panel": name, "value": value, "low": value - wide["low"], "high": value + wide["high"]})
        blocks.append(frame.reset_index())
    found = pd.concat(blocks, ignore_index=True)
    return found.merge(models[["model", "members", "parameters", "reuses"]], on="model")


def _panels(
    rows: pd.DataFrame,
    panels: dict[str, tuple[str, str]],
    lines: dict[str, list[float]],
    line: str,
    logs: Any,
    against: str,
    title: str,
    subtitle: str,
) -> go.Figure:
    choice("against", against, _AGAINST)
    if rows.empty:
        raise InputError("no model here has every task: run the others too.")
    high = -(-len(panels) // _COLUMNS)
    figure = make_subplots(
        rows=high,
        cols=_COLUMNS,
        horizontal_spacing=0.07,
        vertical_spacing=0.16 / max(1, high - 1) if high > 1 else 0,
        subplot_titles=[f"{heading} ({unit})" for heading, unit in panels.values()],
    )
    figure.update_annotations(font={"size": 13})
    xs: dict[str, list[list[float | None]]] = {name: [] for name in _AGAINST}
    series = list(dict.fromkeys(rows["series"]))
    several = len([name for name in series if name != SHUFFLED]) > 1
    for number, (panel, (_, unit)) in enumerate(panels.items()):
        at = {"row": number // _COLUMNS + 1, "col": number % _COLUMNS + 1}
        for place, name in enumerate(series):
            for reuses in (False, True):
                part = rows[(rows["panel"] == panel) & (rows["series"] == name) & (rows["reuses"] == reuses)]
                if not rows[(rows["series"] == name) & (rows["reuses"] == reuses)].size:
                    continue
                for key in _AGAINST:
                    xs[key].append(part[key].tolist())
                gray = name == SHUFFLED
                told = (name if several or gray else "models") + (", blocks reused" if reuses else "")
                color = style.SERIES[(place if several else reuses) % len(style.SERIES)]
                figure.add_scatter(
                    x=part[against],
                    y=part["value"],
                    mode="markers",
                    marker={
                        "color": style.NEUTRAL if gray else color,
                        "symbol": ("diamond" if reuses else "circle") + "-open" * gray,
                        "size": 5 if gray else 8,
                    },
                    error_y={
                        "type": "data",
                        "array": (part["high"] - part["value"]).fillna(0.0),
                        "arrayminus": (part["value"] - part["low"]).fillna(0.0),
                        "thickness": 1.2,
                        "width": 0,
                    },
                    name=html.escape(told),
                    legendgroup=told,
                    showlegend=number == 0,
                    hovertext=[_hover(row, panel, panels[panel][0], unit) for row in part.itertuples()],
                    hoverinfo="text",
                    **at,
                )
        if panel in lines:
            for key in _AGAINST:
                ends = [float(rows[key].min()), float(rows[key].max())]
                xs[key].append([x for _ in lines[panel] for x in (*ends, None)])
            figure.add_scatter(
                x=xs[against][-1],
                y=[y for level in lines[panel] for y in (level, level, None)],
                mode="lines",
                line={"dash": "dash", "width": 1, "color": style.NEUTRAL},
                name=line,
                legendgroup=line,
                showlegend=panel == next(iter(lines)),
                hovertemplate=f"{line} %{{y:.3~g}} {unit}<extra></extra>",
                **at,
            )
        if panel in logs:
            figure.update_yaxes(**_decades(rows[rows["panel"] == panel]), **at)
        last = number + _COLUMNS >= len(panels)
        figure.update_xaxes(**_axis(rows, against), title_text=_AGAINST[against] if last else None, **at)
    entries = []
    for key, label in _AGAINST.items():
        new: dict[str, Any] = {}
        for number in range(len(panels)):
            axis = f"xaxis{number + 1 if number else ''}"
            new |= {f"{axis}.{name}": value for name, value in _axis(rows, key).items()}
            if number + _COLUMNS >= len(panels):
                new[f"{axis}.title.text"] = label
        entries.append({"label": label, "method": "update", "args": [{"x": xs[key]}, new]})
    arrange(
        figure,
        title,
        subtitle,
        plot=_ROW * high,
        below=110,
        headings=True,
        menus=[buttons(entries, list(_AGAINST).index(against))],
    )
    return figure


def _axis(rows: pd.DataFrame, against: str) -> dict[str, Any]:
    """An axis of sizes, by doublings; a tick at every number of components where they are few."""
    values = np.unique(rows[against].to_numpy(dtype=float))
    ends = np.log10([values[0], values[-1]])
    room = 0.06 * max(ends[1] - ends[0], 0.3)
    ticks = _apart(values, (ends[1] - ends[0]) / 7)
    texts = [_short(x) for x in ticks]
    both = {"type": "log", "range": [ends[0] - room, ends[1] + room], "showgrid": False}
    return both | {"tickmode": "array", "tickvals": ticks, "ticktext": texts}


def _short(x: float) -> str:
    """A count as on an axis: 9, 94k, 135M, 1.24B."""
    if x < 10_000:
        return f"{x:.0f}"
    if x < 1e6:
        return f"{x / 1e3:.0f}k"
    return f"{x / 1e6:.4g}M" if x < 1e9 else f"{x / 1e9:.4g}B"


def _decades(rows: pd.DataFrame) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5 times the powers of ten."""
    low, high = (np.log10(rows[end].where(rows[end] > 0, rows["value"])) for end in ("low", "high"))
    ends = low.min(), high.max()
    room = 0.06 * max(ends[1] - ends[0], 0.3)
    first, last = ends[0] - room, ends[1] + room
    if last - first < 0.4:  # room for one tick at least: of equal values there is no step between them
        first, last = (first + last) / 2 - 0.2, (first + last) / 2 + 0.2
    powers = range(int(np.floor(first)), int(np.ceil(last)) + 1)
    steps = (1, 2, 5) if last - first < 2.5 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps if first <= np.log10(step) + power <= last]
    texts = [style.number(x) for x in ticks]
    return {"type": "log", "range": [first, last], "tickmode": "array", "tickvals": ticks, "ticktext": texts}


def _apart(values: Any, least: float) -> list[float]:
    """As many of the values as do not touch on a logarithmic axis, the first and the last among them."""
    kept = [float(values[-1])]
    for x in values[-2:0:-1]:
        if np.log10(kept[-1] / x) >= least and np.log10(x / values[0]) >= least:
            kept.append(float(x))
    return [float(values[0]), *reversed(kept)] if len(values) > 1 else kept


def _hover(row: Any, panel: str, heading: str, unit: str) -> str:
    return (
        f"<b>{html.escape(row.model)}</b><br>{html.escape(row.series)}<br>{heading} {style.number(row.value)} {unit}, "
        f"95 % {between(row.low, row.high)}<br>{row.members} components, {row.parameters:,} parameters"
    )
