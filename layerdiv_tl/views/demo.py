"""The demo's main finding: the component with the largest logit attribution may be a counterweight."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._progress import progress
from ..attribution.contribution_results import Contributions
from ..attribution.contributions import contributions
from ..depth.effect_results import Effects
from ..depth.total_effects import effects
from ..ensemble.decompose import decompose
from ..ensemble.decomposition import Decomposition
from ..ensemble.intervals import ENDS
from ..model.load import Model
from ..tasks.task import Task
from . import layout, style
from .explorer import Explorer, explore
from .html import Block, chart, templates

# Components of the list among which the reader is chosen.
LISTED = 5


def reader_or_counterweight(model: Model, task: Task, address: str) -> tuple[Block, list[str], Explorer]:
    """Describe the component with the largest mean logit difference on the rows of a task: a reader or a counterweight.

    The first half of the rows ranks components, the second half measures the cost of ablation. Returns a block (the
    sentences, the figure of roles, a link to `address`), the sentences, and the explorer for that address: a row of the
    second half on which the component lowers the right answer's logit, with the component selected.
    """
    task = task.resolve(model)
    half = len(task.labels) // 2
    chosen, others = task.take(range(half)), task.take(range(half, 2 * half))
    c = contributions(model, chosen)
    d = decompose(c, chosen.labels).centered
    assert d is not None
    listed = d.by_component().nlargest(LISTED, "logit_difference").to_dict("records")
    first, reader = listed[0], max(listed[1:], key=lambda row: row["accuracy"])
    labels = [first["component"], reader["component"]]
    # Five passes over a row: one for the means, and for each ablation one without each component.
    with progress(f"mean and zero ablation of {' and '.join(labels)}", 5 * half, "pass"):
        ablated = [effects(model, others, components=labels, ablation=how) for how in ("mean", "zero")]
    mean, zero = map(_costs, ablated)
    is_reader = reader["accuracy_low"] > 1 / c.values.shape[2]
    reads = "a reader, clearly more often right than guessing: it is " if is_reader else ""
    but = f" but {labels[0]}" * bool(first["accuracy"] > reader["accuracy"])
    rows = first, reader
    alone = [
        f"{style.percent(r['accuracy'])} ({100 * r['accuracy_low']:.0f} to {100 * r['accuracy_high']:.0f})"
        for r in rows
    ]
    auc = [style.estimate(*(r[f"auc{end}"] for end in ("", "_low", "_high"))) for r in rows]
    size, *ends = (first[f"logit_difference{end}"] for end in ENDS)
    mean_size = style.estimate(size, *ends, unit="logits").replace("(", "(95 % interval ")
    whose = "the other's" if len(c.options) == 2 else "the others' mean"
    shown = layout.clipped(task.prompts[0].replace("\n", "⏎"), 110)
    costs = [e.frame().set_index("component").loc[labels[0]] for e in ablated]
    constant = f"The model needs the constant part of {labels[0]} more than what it reads: on "
    more = constant if costs[1]["cost_low"] > costs[0]["cost_high"] else "On "
    found = [
        f"On {half} rows of {task.name}, such as '{shown}', {labels[0]} is first by mean logit "
        f"difference, its contribution to the right answer's logit minus {whose}: {mean_size} on average. Alone it "
        f"is right on {alone[0]} of the rows.",
        _role(c, d, first, chosen.labels),
        f"{labels[1]}, number {1 + listed.index(reader)} by that mean, is {reads}right alone on {alone[1]} of "
        f"the rows; no other of the first {len(listed)}{but} is right more often. The AUC, which tells how well a "
        f"component ranks rows by label whatever its constant part, is {auc[0]} for {labels[0]} "
        f"and {auc[1]} for {labels[1]}; 0.5 would be guessing.",
        f"{more}{half} other rows, mean ablation, which keeps a component's constant part, raises the cross-entropy by "
        f"{mean[labels[0]]} for {labels[0]} and {mean[labels[1]]} for {labels[1]}. Zero ablation, which removes all "
        f"that it writes, raises it by {zero[labels[0]]} and {zero[labels[1]]}.",
    ]
    link = f"Open one of these rows in the explorer, with {labels[0]} selected."
    figure = chart(d.plot(kind="roles", effects=ablated), "").html
    found = [sentence for sentence in found if sentence]
    block = Block(templates().lead(found, address, link, figure))
    return block, found, _example(model, others, labels[0])


def _costs(e: Effects) -> dict[str, str]:
    """Write the increase of the loss by each ablation, with its interval."""
    rows = e.frame().set_index("component")[["cost", "cost_low", "cost_high"]]
    return {str(name): style.estimate(*row, unit="nats") for name, row in rows.iterrows()}


def _role(c: Contributions, d: Decomposition, row: dict[Any, Any], labels: np.ndarray) -> str:
    """Say whether a component is a reader, a counterweight (its constant part outweighs what it reads), or neither."""
    if row["accuracy_low"] > 1 / c.values.shape[2]:
        return f"{row['component']} is a reader: that is more often than guessing."
    written = c[row["component"]]
    option = int(written.mean(0).argmax())
    push = written[:, option] - np.delete(written, option, 1).mean(1)
    if push.std() > push.mean() or row["bias"] < d.zero_bias:
        return ""
    right, wrong = (push[(labels == option) == side].mean() for side in (True, False))
    answer, *others = (c.options[k].strip() for k in (option, *range(option), *range(option + 1, len(c.options))))
    above, pushes = (
        repr(others[0]) if len(others) == 1 else "the other answers",
        [style.number(right), style.number(wrong)],
    )
    is_balanced = len(set(np.bincount(labels, minlength=c.values.shape[2]).tolist())) == 1
    cancels = (
        " The constant part cancels from the mean logit difference, as all answers are right equally often."
        * is_balanced
    )
    return (
        f"{row['component']} is a counterweight: it raises {answer!r} above {above} by {pushes[0]} logits "
        f"where that is right and by {pushes[1]} where it is wrong, most of it a constant part that other components "
        f"write against.{cancels} Its centered bias is {style.number(row['bias'])}, where a component that writes "
        f"nothing has {style.number(d.zero_bias)}."
    )


def _example(model: Model, rows: Task, component: str) -> Explorer:
    """Explore a row that the model gets right although the component lowers the right answer's logit."""
    c = contributions(model, rows.prompts, rows.option_ids)
    every = np.arange(len(rows.labels))
    towards = c[component][every, rows.labels] - c[component].mean(1)
    row = int(np.where(c.model_logits.argmax(1) == rows.labels, towards, np.inf).argmin())
    right = rows.options[rows.labels[row]]
    wrong = next(option for option in rows.options if option != right)
    explorer = explore(model, rows.prompts[row], target=[right, wrong])
    explorer.selection = {"component": component}
    return explorer
