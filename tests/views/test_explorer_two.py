"""The explorer of two models: its numbers are those of `compare`, both are there, and nothing leaves the page."""

import copy

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.attribution.test_compare import planted
from tests.conftest import llama
from tests.oracles.browser import save_hostile_model
from tests.views.test_explorer import asks, unpacked

IDS = [5, 1, 4, 1, 5, 9, 2, 6, 7, 8, 12, 13]


@pytest.fixture(scope="module")
def pair():
    return ld.load_model(llama()), ld.load_model(planted(llama(), "model.layers.1.mlp.down_proj", 0, 0.5))


@pytest.fixture(scope="module")
def explorer(pair):
    return ld.explore(pair[0], IDS, other=pair[1])


@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_both_texts_hold_the_numbers_of_compare(pair, explorer, unit):
    """Towards the right token at every position, in logits and in nats; both to the same tokens."""
    (text,) = explorer.texts
    np.testing.assert_array_equal(text.candidates, text.other.candidates)
    c = ld.compare(*pair, IDS, unit=unit)
    kept = [component in c.components for component in text.shown]
    rows = [c.components.index(component) for component in text.shown if component in c.components]
    known = slice(0, len(IDS) - 1)
    change = (text.other.target_logits - text.target_logits)[0][kept]
    np.testing.assert_allclose(change[:, known], c.centered_change[rows][:, known], atol=1e-6)
    nets = [
        side.of_shown([t.expectations for t in side.logits])[kept] - side.target_logits[0][kept]
        for side in (text, text.other)
    ]
    np.testing.assert_allclose((nets[1] - nets[0])[:, known], c.loss_change[rows][:, known], atol=1e-6)
    np.testing.assert_allclose(text.other.sublayers.losses, c.b.losses, atol=1e-6)


def test_it_begins_where_the_loss_changed_most(explorer):
    """On the sublayer whose contribution to the right token changed most there; of one model nothing is of two."""
    (text,), s = explorer.texts, explorer.selection
    changed = np.nan_to_num(text.other.sublayers.losses - text.sublayers.losses)
    assert (s.position, s.color, s.side) == (np.abs(changed).argmax(), "change", "a")
    count = len(text.sublayers.components)
    logits = (text.other.target_logits - text.target_logits)[0, :count, s.position]
    assert s.component == text.shown[np.abs(logits).argmax()].label
    alone = ld.explore(llama(), IDS)
    for of_two in ({"side": "b"}, {"color": "change"}):
        with pytest.raises(ld.InputError, match="two models"):
            alone.selection = of_two


def test_rows_are_those_that_changed_most(pair):
    """Of a task: by the change of the score, with their own options as targets; each a text at its end."""
    models = [ld.load_model(f"zoo/{name}") for name in ("d2", "d2-seed1")]
    task = ld.task("synthetic/recall", limit=24)
    frame = ld.compare(*models, task).by_row()
    e = ld.explore(models[0], task, other=models[1])
    order = frame["change"].abs().sort_values(ascending=False, kind="stable").index[:6]
    assert [text.name for text in e.texts] == [
        f"row {row}: {frame['change'][row]:+.2f}".replace("-", "−") for row in order
    ]
    resolved = task.resolve(models[0])
    for row, text in zip(order, e.texts, strict=True):
        assert text.targets[0] == resolved.option_ids[resolved.labels[row]]
        assert text.length == len(models[0].tokenizer(resolved.prompts[row])["input_ids"])
    assert e.selection.position == e.texts[0].length - 1
    for wrong in ({}, {"other": models[1], "target": " red"}):
        with pytest.raises(ld.InputError, match="rows"):
            ld.explore(models[0], task, **wrong)


def test_rows_of_comparison(pair):
    """One row per example: both scores, their change, and both answers."""
    prompts, options, labels = [IDS[:n] for n in range(2, 12)], [7, 30, 2], [0, 1] * 5
    c = ld.compare(*pair, prompts, options, labels=labels)
    frame = c.by_row()
    np.testing.assert_allclose(frame["change"], frame["b"] - frame["a"])
    np.testing.assert_allclose(frame["change"].mean(), c.totals()["change"][0])
    np.testing.assert_array_equal(frame["answer_b"], c.b.logits.argmax(1))
    assert frame["label"].tolist() == labels


def test_models_that_do_not_fit_are_refused(pair, tmp_path):
    """Other shapes, other vocabularies, other tokens."""
    for other, about in (
        (llama(num_hidden_layers=2), "shape"),
        (llama(vocab_size=64), "vocabularies"),
    ):
        with pytest.raises(ld.InputError, match=about):
            ld.explore(pair[0], IDS, other=other)
    with pytest.raises(ld.InputError):
        ld.explore(pair[0], [], other=pair[1])


def test_a_copy_in_half_precision_and_the_same_weights():
    """Rows that one model lacks are no obstacle; a copy is said to be one, and nothing changes."""
    model = llama()
    half = ld.explore(model, IDS, other=copy.deepcopy(model).to(torch.bfloat16))
    assert half.texts[0].other.sublayers.components[-1].kind == "rounding"
    assert "Explorer" in half.html(promoted=False, effects=False)
    same = ld.explore(model, IDS, other=copy.deepcopy(model))
    assert "the same weights" in repr(same)
    np.testing.assert_array_equal(same.texts[0].target_logits, same.texts[0].other.target_logits)


def test_the_widget_asks_of_either_model(pair, explorer, monkeypatch):
    """What is looked up of model b is b's; another text is measured by both."""
    sent = []
    monkeypatch.setattr(type(explorer.widget), "send", lambda self, content, buffers: sent.append((content, buffers)))
    assert set(explorer.widget.texts[0]["other"]) == {"core", "attention", "promoted"}
    for side in "ab":
        asks(explorer.widget, ask="promoted", text=0, position=3, side=side)
    (of_a, (first,)), (of_b, (second,)) = sent
    assert (of_a["side"], of_b["side"]) == ("a", "b")
    (_, mine), (_, theirs) = unpacked(first), unpacked(second)
    assert not np.array_equal(mine["logit"], theirs["logit"])
    explorer.show(IDS[:5])
    assert explorer.texts[-1].other.length == 5
    explorer.selection = {"text": 0}


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_both_models(pair, browser, tmp_path, scheme):
    """Maps, rows and tokens are compare's numbers; what one model shows is the chosen one's; all is within the page."""
    e = ld.explore(pair[0], IDS, other=pair[1])
    saved = e.save(tmp_path / "two.html")
    c, at = ld.compare(*pair, IDS), e.selection.position
    labels = [component.label for component in c.components]
    for width in (400, 700, 1200):
        with browser.open(saved, width, scheme) as opened:
            page = opened.page
            page.locator(".ld-explorer[data-whole]").wait_for()
            maps = page.locator(".both .host").evaluate("h => h.numbers.maps.map((m) => [...m])")
            change = np.array(maps[2]).reshape(len(labels), len(IDS))
            np.testing.assert_allclose(change[:, :-1], c.centered_change[:, :-1], atol=1e-5)
            rows = page.locator(".changed .of-both").evaluate_all(
                "r => r.map((x) => [x.dataset.component, +x.dataset.value])"
            )
            for label, value in rows:
                if label in labels:
                    assert value == pytest.approx(c.centered_change[labels.index(label), at], abs=1e-5)
            tokens = page.locator(".tokens [data-position]").evaluate_all("t => t.map((x) => +x.dataset.value)")
            np.testing.assert_allclose(tokens[:-1], (c.b.losses - c.a.losses)[:-1], atol=1e-5)
            page.locator("[data-field=side][data-option=b]").click()
            page.locator(".ld-explorer[data-whole]").wait_for()
            stems = page.locator(".depth [data-component]").evaluate_all("s => s.map((x) => +x.dataset.value)")
            np.testing.assert_allclose(stems, c.b.centered_targets[at], atol=1e-5)
            page.locator(".both .canvas svg").first.click(position={"x": 50, "y": 20})
            page.locator(".ld-explorer[data-whole]").wait_for()
            assert "position 0" in page.locator(".now").inner_text()
            assert opened.wider_than_window() <= 0
            assert (opened.complaints, opened.requests) == ([], [])


@pytest.mark.full
def test_hostile_tokens_are_inert_beside_another_model(browser, tmp_path):
    """Tokens that look like HTML are text in the views of two models, too; nothing against accessibility."""
    model = ld.load_model(save_hostile_model(tmp_path))
    other = planted(model.hf_model, "model.layers.0.mlp.down_proj", 1, 0.5)
    saved = ld.explore(model, "w5 w1 </script> w5 <img w9 onerror=alert(1)> w2", other=other).save(
        tmp_path / "page.html"
    )
    with browser.open(saved, 1200) as opened:
        for what in (".tokens [data-position]", "[data-field]:visible", ".changed .of-both"):
            opened.page.locator(what).evaluate_all("marks => marks.forEach((m) => m.click())")
        opened.page.locator(".ld-explorer[data-whole]").wait_for()
        assert opened.page.locator("main img").count() == 0
        assert (opened.complaints, opened.requests) == ([], [])
        assert opened.violations() == []
