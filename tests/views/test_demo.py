"""The demo's page against plain arrays."""

import html
import re

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import demo

ROWS = demo.ROWS


@pytest.mark.full
def test_the_demo_opens_on_the_components_that_write_most(tmp_path, monkeypatch):
    """Its line's components and means are those of plain arrays; the explorer opens on a head."""
    name, model = "synthetic/recall", ld.load_model("zoo/d4")  # which knows no words of the sample tasks
    monkeypatch.setattr(demo, "FIRST_TASK", name)
    monkeypatch.setattr(demo, "SAMPLE_TASKS", [name])
    page, line = demo.write_demo(model, tmp_path, lambda _: None)
    rows = ld.task(name).resolve(model).select(range(ROWS))
    c = ld.contributions(model, rows)
    u = c.values - c.values.mean(2, keepdims=True)
    difference = u[np.arange(ROWS), :, rows.labels].mean(0) * u.shape[2] / (u.shape[2] - 1)
    largest = np.argsort(-np.abs(difference))[:2]
    named = re.findall(r"(L\d+\.\w+|embed) (−?[\d.]+)", line)
    assert [label for label, _ in named] == [c.components[i].label for i in largest]
    values = [float(value.replace("−", "-")) for _, value in named]
    np.testing.assert_allclose(values, difference[largest], rtol=0.05)
    assert f"of {len(difference)} (" in line
    explorer = (tmp_path / "explorer.html").read_text(encoding="utf-8")
    assert re.search(r'"component": "L\d\.H\d"', explorer)
    shown = page.read_text(encoding="utf-8")
    before = re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", shown.partition("class=chart")[0], flags=re.S)
    assert len(html.unescape(before).split()) < 60
    assert shown.index("class=chart") < shown.index("explorer.html") < shown.index("<table")
