"""The explorer's source tokens: those of ld.source_tokens, live and on a page; refused in a sentence."""

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.attribution import source_tokens as attribution
from layerdiv_tl.views.explorer import data as room
from layerdiv_tl.views.explorer.data import HEADS, pack_sources, page_pairs, text_sources
from tests.conftest import llama
from tests.oracles.families import BY_STRUCTURE, FAMILIES
from tests.views.test_explorer import asks, unpacked

IDS = [5, 1, 4, 1, 5, 9, 2, 6, 7, 8, 12, 13]


def truth(model, label, position):
    """A head's parts `[source, id]`, less the mean over the vocabulary, by `ld.source_tokens`."""
    found = ld.source_tokens(model, [IDS[: position + 1]], list(range(model.path.outputs)), label)
    values = found.values[0, 0]
    return values - values.mean(1, keepdims=True)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "llama_biased"])
def test_what_travels_are_the_source_tokens_of_the_head(name, monkeypatch):
    """Listed sources and the others' sum are the parts of `ld.source_tokens`; together the head."""
    monkeypatch.setattr(room, "LISTED", 4)
    model = ld.load_model(FAMILIES[name]())
    text = ld.explore(model, IDS, target=3).text
    pairs = [(p, text.shown.index(c)) for p in (0, 6, 11) for c in text.shown if c.kind == "head"][::2]
    header, arrays = unpacked(pack_sources(text_sources(model, text), text, pairs))
    assert not header["why"]
    assert arrays["place"].tolist() == [list(pair) for pair in pairs]
    assert arrays["gap"].max() < 1e-5
    for (position, component), source, logit in zip(pairs, arrays["source"], arrays["logit"], strict=True):
        values = truth(model, text.shown[component].label, position)
        ids = np.where(text.candidates[:, position] < 0, text.candidates[1, position], text.candidates[:, position])
        parts, near = values[:, ids], 1e-5 * max(1.0, np.abs(values).sum(0).max())
        kept = source[source >= 0]
        assert kept.tolist() == source[: len(kept)].tolist()
        np.testing.assert_allclose(logit[: len(kept)], parts[kept], atol=near)
        others = np.setdiff1d(np.arange(position + 1), kept)
        np.testing.assert_allclose(logit[4], parts[others].sum(0), atol=near)
        np.testing.assert_allclose(logit.sum(0), text.target_logits[:, component, position], atol=near)
        if len(kept) == 4 and len(others):  # those that wrote most to some candidate are listed
            share = (np.abs(parts) / np.abs(parts).sum(0)).max(1)
            assert share[others].max() <= share[kept].min() + 1e-4
    rough = unpacked(pack_sources(text_sources(model, text), text, pairs, exact=False))[1]["logit"]
    np.testing.assert_allclose(rough, arrays["logit"], rtol=2e-5)


def test_a_page_has_all_heads_where_it_opens_and_the_strongest_elsewhere():
    """Of every other token those that add most to the right or the likeliest."""
    model = ld.load_model(llama())
    text = ld.explore(model, IDS).text
    heads = [i for i, c in enumerate(text.shown) if c.kind == "head"]
    assert len(heads) > HEADS
    pairs = page_pairs(text, 7)
    assert [i for p, i in pairs if p == 7] == heads
    for position in (0, 11):
        own = [i for p, i in pairs if p == position]
        size = np.abs(text.target_logits[:2, :, position]).max(0)
        assert sorted(own) == sorted(sorted(heads, key=lambda i: -size[i])[:HEADS])


def test_what_has_no_source_tokens_says_why():
    """Heads that are no weights × values; and a model without heads, whose page has no such view."""
    model = ld.load_model((FAMILIES | BY_STRUCTURE)["diffllama"]())
    text = ld.explore(model, IDS).text
    header, arrays = unpacked(pack_sources(text_sources(model, text), text, page_pairs(text, 3)))
    assert "cannot be split by source token" in header["why"]
    assert not arrays
    assert (
        "sources"
        not in ld.explore((FAMILIES | BY_STRUCTURE)["mamba"](), IDS).html().split('id="data">')[1].split("</script>")[0]
    )


def test_the_widget_answers_for_one_head_and_keeps_the_pass(monkeypatch):
    """A second head of the same text needs no second pass; what does not exist is a message."""
    explorer = ld.explore(llama(), IDS)
    sent, runs = [], []
    real = attribution.gather
    monkeypatch.setattr(attribution, "gather", lambda *a, **k: (runs.append(1), real(*a, **k))[1])
    monkeypatch.setattr(explorer.widget, "send", lambda content, buffers=None: sent.append((content, buffers)))
    for component in ("L1.H2", "L0.H0"):
        asks(explorer.widget, ask="sources", version=0, position=4, component=component)
        content, (blob,) = sent.pop()
        assert content == {"kind": "sources", "version": 0}
        _, arrays = unpacked(blob)
        number = [c.label for c in explorer.text.shown].index(component)
        assert arrays["place"].tolist() == [[4, number]]
        own = explorer.text.target_logits[:, number, 4]
        np.testing.assert_allclose(arrays["logit"][0].sum(0), own, atol=1e-5)
    assert len(runs) == 1
    for wrong in ({"component": "<b>", "position": 4}, {"component": "L1.H2", "position": 99}):
        asks(explorer.widget, ask="sources", version=0, **wrong)
        assert not sent
        assert explorer.widget.progress["message"]


@pytest.mark.nightly
def test_a_page_shows_whose_values_were_written(browser, tmp_path):
    """The drawn numbers are the parts; a click on a token goes there; what the page lacks is said."""
    model = ld.load_model(llama())
    explorer = ld.explore(model, IDS, target=[3, 7])
    explorer.selection = {"component": "L2.H1", "position": 9, "target": 3, "minus": 7}
    with browser.open(explorer.save(tmp_path / "x.html")) as opened:
        page, view = opened.page, opened.page.locator(".view.sources")
        page.wait_for_selector(".view.sources [data-source]")
        drawn = dict(
            view.locator("[data-source]").evaluate_all("a => a.map(m => [+m.dataset.source, +m.dataset.value])")
        )
        values = truth(model, "L2.H1", 9)
        for source, value in drawn.items():
            assert value == pytest.approx(values[source, 3] - values[source, 7], abs=1e-4)
        assert float(view.locator("[data-sum]").get_attribute("data-sum")) == pytest.approx(
            values[:, 3].sum() - values[:, 7].sum(), abs=1e-4
        )
        view.locator("[data-source='4']").click()
        page.wait_for_function("document.querySelector('.now').textContent.startsWith('position 4')")
        has = [explorer.text.shown[i].label for p, i in page_pairs(explorer.text, 9) if p == 4]
        lacks = next(c.label for c in explorer.text.shown if c.kind == "head" and c.label not in has)
        for component, says in ((lacks, "Not on this page"), ("L0.mlp", "Select a head"), (has[0], "together")):
            page.get_by_label("find a component or a token").fill(component)
            page.get_by_label("find a component or a token").press("Enter")
            page.wait_for_function(f"document.querySelector('.view.sources').innerText.includes('{says}')")
        assert (opened.complaints, opened.requests, opened.violations()) == ([], [], [])
