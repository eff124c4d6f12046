"""The demo's main finding: the component with the largest logit attribution may be a counterweight."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attribution.contribution_results import Contributions
from ..attribution.contributions import contributions
from ..depth.effects import effects
from ..ensemble.decompose import decompose
from ..ensemble.decomposition import Decomposition
from ..model.load import Model
from ..tasks.task import Task
from .explorer import Explorer, explore
from .html import Block, chart, templates

# Components of the list among which the reader is chosen.
LISTED = 5


def reader_or_counterweight(model: Model, task: Task, address: str) -> tuple[Block, str, Explorer]:
    """Describe the component with the largest mean logit difference on the rows of a task: a reader or a counterweight.

    The first half of the rows ranks components, the second half measures the cost of ablation. Returns a block (the
    sentence, the figure of roles, a link to `address`), the sentence, and the explorer for that address: a row of the
    second half on which the component lowers the right answer's logit, with the component selected.
    """
    task = task.resolve(model)
    half = len(task.labels) // 2
    chosen, others = task.take(range(half)), task.take(range(half, 2 * half))
    c = contributions(model, chosen.prompts, chosen.option_ids)
    d = decompose(c, chosen.labels).centered
    assert d is not None
    listed = d.by_component().nlargest(LISTED, "logit_difference").to_dict("records")
    first, reader = listed[0], max(listed[1:], key=lambda row: row["accuracy"])
    labels = [first["component"], reader["component"]]
    ablated = [effects(model, others, components=labels, ablation=how) for how in ("mean", "zero")]
    mean, zero = (-e.frame().set_index("component")["total_loss"] for e in ablated)
    reads = ": it is a reader" * bool(reader["accuracy_low"] > 1 / c.values.shape[2])
    found = (
        f"On {half} rows of {task.name}, {_describe(c, d, first, chosen.labels)} {labels[1]}, "
        f"number {1 + listed.index(reader)} of the list, is right alone on {reader['accuracy']:.0%}{reads}. "
        f"On {half} other rows, mean ablation of {labels[0]} costs {mean[labels[0]]:.2f} nats and that of {labels[1]} "
        f"{mean[labels[1]]:.2f}; zero ablation, which removes all that a component writes, costs "
        f"{zero[labels[0]]:.2f} and {zero[labels[1]]:.2f}."
    )
    link = f"Open one of these rows in the explorer, with {labels[0]} selected."
    figure = chart(d.plot(kind="roles", effects=ablated), "").html
    block = Block(templates().lead(found, address, link, figure))
    return block, found, _example(model, others, labels[0])


def _describe(c: Contributions, d: Decomposition, row: dict[Any, Any], labels: np.ndarray) -> str:
    """Describe the top component: a reader, a counterweight (its constant part outweighs what it reads), or neither."""
    text = f"{row['component']} has the largest mean contribution to the right answer "
    text += f"({row['logit_difference']:+.2f} logits)"
    if row["accuracy_low"] > 1 / c.values.shape[2]:
        return f"{text} and is right alone on {row['accuracy']:.0%}: it is a reader."
    written = c[row["component"]]
    option = int(written.mean(0).argmax())
    push = written[:, option] - np.delete(written, option, 1).mean(1)
    if push.std() > push.mean() or row["bias"] < d.zero_bias:
        return f"{text} and is right alone on {row['accuracy']:.0%}."
    right, wrong = (push[(labels == option) == side].mean() for side in (True, False))
    return (
        f"{text}, but alone it is right on {row['accuracy']:.0%}, like a guess, and its bias is {row['bias']:.2f} "
        f"where the zero baseline has {d.zero_bias:.2f}: it writes {right:.1f} logits for "
        f"{c.options[option].strip()!r} where that is right and {wrong:.1f} where it is wrong, a constant part that "
        "other components write against. It is a counterweight."
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
