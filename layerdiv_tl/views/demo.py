"""The page of `layerdiv demo`: the strip of a task, the explorer of one of its rows, tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ..attribution.contributions import contributions
from ..depth.total_effects import effects
from ..ensemble.decompose import decompose
from ..model.load import Model
from ..tasks.specs import SAMPLE_TASKS
from ..tasks.task import task
from .explorer import explore
from .html import Page
from .leading import leading

# The first task has the figures; so many rows of each task. Ablations are measured on as many other rows of the first.
FIRST_TASK, ROWS = "sample/sentiment", 44
# Components whose ablation is measured: those with the largest contributions, and those that are most often right.
ABLATED = 3
_COLUMNS = ("component", "bias", "diversity", "accuracy", "auc", "logit_difference", "constant_share")
_COSTS = ["component", "cost", "cost_low", "cost_high"]
_TOTALS = ("accuracy", "accuracy_low", "accuracy_high", "chance", "bias", "diversity", "loss")


def write_demo(model: Model, folder: Path, say: Callable[[str], None]) -> tuple[Path, str]:
    """Write index.html and explorer.html; return the page and a line."""
    found = {}
    for name in SAMPLE_TASKS:
        say(f"Decomposing {model.name} on {name} …")
        found[name] = decompose(contributions(model, task(name, limit=ROWS).resolve(model)))
    d, others = found[FIRST_TASK], task(FIRST_TASK).resolve(model).select(range(ROWS, 2 * ROWS))
    components = d.by_component()
    size = components["logit_difference"].abs()
    largest = components.loc[size.nlargest(ABLATED).index, "component"]
    readers = components.nlargest(ABLATED, "accuracy")["component"]
    labels = list(dict.fromkeys([*largest, *readers]))
    say(f"Ablating {', '.join(labels)} …")
    costs = effects(model, others, components=labels).frame()
    say("Writing the explorer …")
    explorer = explore(model, others.prompts[0], target=others.options[:2])
    explorer.save(folder / "explorer.html")
    line = leading(components, "logit_difference")
    page = Page(f"{model.name} on {FIRST_TASK}")
    page.figure(d.plot())
    page.add("inner_page", "explorer.html", "The explorer of one of these rows")
    page.heading("Every component")
    page.figure(d.plot("bars"))
    page.figure(d.plot("depth"))
    page.table(costs[_COSTS], "Costs of mean ablation in nats, on other rows")
    page.table(components.loc[size.nlargest(len(size)).index, [name for name in _COLUMNS if name in components]])
    page.heading("Tasks")
    page.table(pd.concat([d.frame().assign(task=name) for name, d in found.items()])[["task", *_TOTALS]])
    return page.write(folder / "index.html"), line
