"""The demo's page against plain arrays."""

import re

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld
from layerdiv_tl.views import demo, style

ROWS = demo.ROWS


@pytest.mark.full
def test_the_demo_names_the_component_with_the_largest_logit_difference(tmp_path, monkeypatch):
    """The sentence's component, its mean and accuracy are those of plain arrays; the explorer opens on it."""
    name, model = "synthetic/recall", ld.load_model("zoo/d4")  # which knows no words of the sample tasks
    monkeypatch.setattr(demo, "FIRST_TASK", name)
    monkeypatch.setattr(demo, "SAMPLE_TASKS", [name])
    page, sentence = demo.write_demo(model, tmp_path, lambda _: None)
    rows = ld.task(name).resolve(model).select(range(ROWS))
    c = ld.contributions(model, rows)
    u = c.values - c.values.mean(2, keepdims=True)
    others = u.shape[2] - 1
    difference = u[np.arange(ROWS), :, rows.labels].mean(0) * (others + 1) / others
    first = int(difference.argmax())
    alone = (u[:, first].argmax(1) == rows.labels).mean()
    assert sentence.startswith(f"{c.components[first].label} has the largest mean logit difference")
    assert float(re.search(r"recall, (−?[\d.]+)", sentence)[1]) == pytest.approx(difference[first], rel=0.05)
    assert f"Alone it is right on {style.percent(alone)} (" in sentence
    assert style.number(difference[first]) in page.read_text(encoding="utf-8")
    assert f'"component": "{c.components[first].label}"' in (tmp_path / "explorer.html").read_text(encoding="utf-8")
    written = pd.read_csv(tmp_path / "components.csv")
    np.testing.assert_allclose(written["logit_difference"], difference, atol=1e-6)
