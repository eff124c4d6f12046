"""Figures of effects: what is drawn is what the tables say, and bars lead from the direct to the total effect."""

from dataclasses import replace

import numpy as np
import pytest

import layerdiv_tl as ld
from tests.conftest import llama

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def effects():
    ids = [[i % 61, (3 * i) % 61, 5, i // 2, 7] for i in range(9)]
    groups = {HOSTILE: ["L0.H0", "L1.mlp"]}
    return ld.effects(llama(), ids, [7, 9, 12], np.arange(9) % 3, unit="head", groups=groups)


@pytest.mark.parametrize("on", ["logit difference", "loss", "accuracy"])
def test_every_component_and_group_stands_at_its_direct_and_total_effect(effects, on):
    frame, end = effects.frame(), {"loss": "_loss", "accuracy": "_accuracy"}.get(on, "")
    figure = effects.plot(on=on)
    marks = [trace for trace in figure.data if trace.mode == "markers"]
    seen = sorted((x, y) for trace in marks for x, y in zip(trace.x, trace.y, strict=True))
    assert seen == sorted(zip(frame[f"direct{end}"], frame[f"total{end}"], strict=True))
    assert sum(len(trace.error_x.array) for trace in marks) == len(frame)
    low, high = figure.layout.yaxis.range
    assert frame[f"total{end}_low"].min() > low
    assert frame[f"total{end}_high"].max() < high
    assert HOSTILE not in figure.to_json().replace("\\u003c", "<")


def test_the_bars_lead_from_the_direct_to_the_total_effect(effects):
    for name in ("L0.mlp", HOSTILE):
        (bars,) = effects.plot(kind="compensation", component=name, max_components=4).data
        change = effects.compensation(name)
        assert bars.x[0] == pytest.approx(change.attrs["direct"])
        assert bars.x[-1] == pytest.approx(change.attrs["total"])
        assert sum(bars.x[:-1]) == pytest.approx(bars.x[-1])
        assert len(bars.x) == 1 + 4 + 2 + 1  # direct, four components, all others, the norm, total
    with pytest.raises(ld.InputError, match="L9.mlp"):
        effects.plot(kind="compensation", component="L9.mlp")


def test_the_map_has_the_changes_of_every_pair(effects):
    frame, (heat,) = effects.backups(), effects.plot(kind="map").data
    drawn = np.asarray(heat.z)
    assert np.isfinite(drawn).sum() == len(frame)
    np.testing.assert_allclose(np.sort(drawn[np.isfinite(drawn)]), np.sort(frame.compensation))


def test_a_long_name_makes_a_title_of_two_lines(effects):
    """Nothing of it is cut at the figure's edge, and what stands beneath makes room."""
    long = replace(effects, model="EleutherAI/pythia-160m-deduped-v0@step143000").plot()
    lines = long.layout.title.text.split("<br>")
    assert (len(lines), lines[-1]) == (2, "EleutherAI/pythia-160m-deduped-v0@step143000")
    assert long.layout.margin.t > effects.plot().layout.margin.t


def test_options_of_several_tokens_are_drawn_by_their_total_effects():
    """Bars of the frame's totals, components and groups; what needs direct effects says why it is not there."""
    prompts = ld.task("synthetic/recall", limit=16).prompts
    effects = ld.effects(
        "zoo/d4", prompts, [" red", " blue black"], [0, 1] * 8, groups={HOSTILE: ["L0.attn", "L1.mlp"]}
    )
    figure, frame = effects.plot(on="loss"), effects.frame()
    drawn = sorted((x, y) for trace in figure.data for x, y in zip(trace.x, trace.y, strict=True))
    np.testing.assert_allclose([y for _, y in drawn], frame["total_loss"])
    assert HOSTILE not in figure.to_json().replace("\\u003c", "<")
    for kind in ("compensation", "map"):
        with pytest.raises(ld.InputError, match="several tokens"):
            effects.plot(kind=kind)
