"""The page of `layerdiv demo`: the components that answer most on a task, what ablating them costs, an explorer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from ..attribution.contributions import contributions
from ..depth.effect_results import Effects
from ..depth.total_effects import effects
from ..ensemble.decompose import decompose
from ..model.load import Model
from ..tasks.specs import SAMPLE_TASKS
from ..tasks.task import Task, task
from . import style
from .explorer import Explorer, explore
from .html import Page

# The first task has the figure; so many rows of each task, half of the first one's to rank components, half to ablate.
FIRST_TASK, ROWS = "sample/sentiment", 44
LISTED = 5  # components in the page's table; among them the reader is chosen


def write_demo(model: Model, folder: Path, say: Callable[[str], None]) -> tuple[Path, str]:
    """Write index.html, explorer.html, components.csv, modules.csv and summary.csv; return the page and a sentence.

    The first 44 rows rank components by their mean logit difference; ablating the first one, and the one of the next
    four that is most often right alone, is measured on 44 other rows.
    """
    first = task(FIRST_TASK).resolve(model)
    chosen, others = first.select(range(ROWS)), first.select(range(ROWS, 2 * ROWS))
    say(f"Decomposing {model.name} on {FIRST_TASK} …")
    d = decompose(contributions(model, chosen), chosen.labels)
    listed = d.by_component().nlargest(LISTED, "logit_difference")
    largest = listed.iloc[0]
    reader = listed.iloc[1:].nlargest(1, "accuracy").iloc[0]
    labels = [largest["component"], reader["component"]]
    say(f"Ablating {' and '.join(labels)} …")
    ablated = [effects(model, others, components=labels, ablation=how) for how in ("mean", "zero")]
    sentence = (
        f"{largest['component']} has the largest mean logit difference on {ROWS} rows of {FIRST_TASK}, "
        f"{_with_interval(largest, 'logit_difference', 'logits')}. Alone it is right on {_share(largest)} of the rows, "
        f"{reader['component']} on {_share(reader)}."
    )
    page = Page(f"layerdiv demo: {model.name}")
    page.text(sentence)
    page.figure(d.plot(kind="roles", effects=ablated), "")
    page.add("link", "explorer.html", f"Open one of these rows in the explorer, with {labels[0]} selected.")
    page.heading("Components and the cost of their ablation")
    page.table(_component_table(listed, ablated), "By mean logit difference; costs in nats, on other rows.")
    say("Writing the explorer …")
    _example(model, others, labels[0]).save(folder / "explorer.html", home="index.html")
    page.heading("Tasks")
    page.table(_write_frames(model, folder, say), "Shares of rows; guessing is the share of the most frequent answer.")
    page.add("written_by")
    return page.write(folder / "index.html"), sentence


def _with_interval(row: pd.Series, name: str, unit: str = "") -> str:
    return style.estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], unit=unit)


def _share(row: pd.Series) -> str:
    return f"{style.percent(row['accuracy'])} ({100 * row['accuracy_low']:.0f} to {100 * row['accuracy_high']:.0f})"


def _component_table(listed: pd.DataFrame, ablated: list[Effects]) -> pd.DataFrame:
    costs = [e.frame().set_index("component") for e in ablated]
    rows = []
    for _, row in listed.iterrows():
        name = row["component"]
        cells = {"component": name, "logit difference": _with_interval(row, "logit_difference")}
        cells |= {"right alone": _share(row), "AUC": _with_interval(row, "auc")}
        for how, frame in zip(("mean", "zero"), costs, strict=True):
            cells[f"{how} ablation"] = _with_interval(frame.loc[name], "cost") if name in frame.index else ""
        rows.append(cells)
    return pd.DataFrame(rows)


def _write_frames(model: Model, folder: Path, say: Callable[[str], None]) -> pd.DataFrame:
    """Write the frames of all sample tasks as CSV files; return the totals as a table."""
    frames: dict[str, list[pd.DataFrame]] = {"components": [], "modules": [], "summary": []}
    for name in SAMPLE_TASKS:
        say(f"Decomposing {model.name} on {name} …")
        rows = task(name, limit=ROWS).resolve(model)
        c = contributions(model, rows)
        d = decompose(c, rows.labels)
        right = c.model_logits.argmax(1) == rows.labels
        guessing = np.bincount(rows.labels).max() / len(rows)
        totals = pd.DataFrame([{"rows": len(rows), "accuracy": right.mean(), "guessing": guessing}])
        totals = totals.assign(bias=d.bias, diversity=d.diversity, loss=d.loss, identity_gap=c.identity_gap)
        for kind, frame in (("components", d.by_component()), ("modules", d.by_module()), ("summary", totals)):
            frames[kind].append(frame.assign(model=model.name, task=name))
    for kind, parts in frames.items():
        pd.concat(parts, ignore_index=True).to_csv(folder / f"{kind}.csv", index=False)
    summary = pd.concat(frames["summary"], ignore_index=True)
    shown = summary[["task", "rows"]].copy()
    for name in ("accuracy", "guessing"):
        shown[name] = summary[name].map(style.percent)
    for name in ("bias", "diversity", "loss"):
        shown[f"{name}, logits²"] = summary[name].map(style.number)
    return shown


def _example(model: Model, rows: Task, component: str) -> Explorer:
    """Explore a row that the model gets right although the component lowers the right answer's logit."""
    c = contributions(model, rows)
    towards = c[component][np.arange(len(rows)), rows.labels] - c[component].mean(1)
    row = int(np.where(c.model_logits.argmax(1) == rows.labels, towards, np.inf).argmin())
    right = rows.options[rows.labels[row]]
    wrong = next(option for option in rows.options if option != right)
    explorer = explore(model, rows.prompts[row], target=[right, wrong])
    explorer.selection = {"component": component}
    return explorer
