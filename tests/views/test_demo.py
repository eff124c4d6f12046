"""The demo's finding against plain arrays."""

import re

import markupsafe
import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import style
from layerdiv_tl.views.demo import reader_or_counterweight


@pytest.mark.full
def test_the_demos_finding_holds_the_frames_numbers():
    """The first of the list and what it writes, by plain arrays; the explorer shows a row that it writes against."""
    model, task = ld.load_model("zoo/d4"), ld.task("synthetic/recall", limit=64)
    block, sentences, explorer = reader_or_counterweight(model, task, "explorer.html")
    rows, said = task.resolve(model), " ".join(sentences)
    c = ld.contributions(model, rows.prompts[:32], rows.option_ids)
    u = c.values - c.values.mean(2, keepdims=True)
    gold = np.eye(4)[rows.labels[:32]]
    difference = (u * gold[:, None]).sum(2).mean(0) * 4 / 3
    first = int(difference.argmax())
    alone = (u[:, first].argmax(1) == rows.labels[:32]).mean()
    assert re.match(rf"On 32 rows of {task.name}, such as '.*', {c.components[first].label} is first", said)
    found = re.search(r"others' mean: ([\d.]+) logits \(95 % interval (.*) to (.*?)\) on average", said)
    assert float(found[1]) == round(difference[first], 1)
    assert f"Alone it is right on {style.percent(alone)} (" in said
    for how in ("mean", "zero"):
        e = ld.effects(model, rows.select(range(32, 64)), components=[c.components[first]], ablation=how)
        cost = re.search(rf"{how} ablation,.*? by (.*?\))", said, re.IGNORECASE)[1]
        ends = -e.frame()[["total_loss", "total_loss_high", "total_loss_low"]].iloc[0]
        assert cost == style.estimate(*ends, unit="nats")
    assert all(str(markupsafe.escape(sentence)) in block.html for sentence in sentences)
    now, text = explorer.selection, explorer.text
    assert now.component == c.components[first].label
    ids = [model.tokenizer(prompt)["input_ids"] for prompt in rows.prompts[32:]]
    assert text.sublayers.token_ids.tolist() in ids
