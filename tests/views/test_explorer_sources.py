"""What the explorer's widget takes from a page and answers; heads' source tokens are those of ld.source_tokens."""

import base64
import json
from dataclasses import asdict

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.attribution import source_tokens as attribution
from layerdiv_tl.attribution.source_tokens import TextSources
from layerdiv_tl.views.explorer import pack
from layerdiv_tl.views.explorer.pack import pack_attention, pack_promotions, pack_sources, pack_text, page_pairs
from layerdiv_tl.views.explorer.widget import FAILED
from tests.conftest import llama
from tests.oracles.browser import save_hostile_model
from tests.oracles.families import BY_STRUCTURE, FAMILIES
from tests.views.test_explorer import IDS, ROUGH, unpacked


@pytest.fixture
def explorer():
    return ld.explore(llama(), IDS)


@pytest.fixture
def sent(explorer, monkeypatch):
    """All that the widget sends to the page."""
    messages = []
    monkeypatch.setattr(explorer.widget, "send", lambda content, buffers=None: messages.append((content, buffers)))
    return messages


def tell(widget, method="custom", **data):
    """A message of the front end, and everything it leads to."""
    widget._handle_msg({"content": {"data": {"method": method, "buffer_paths": [], **data}}, "buffers": []})
    widget._worker.submit(lambda: None).result()  # requests are answered in order


def asks(widget, **content):
    tell(widget, content=content)


def truth(model, label, position):
    """A head's parts `[source, id]`, minus the mean over the vocabulary, by `ld.source_tokens`."""
    found = ld.source_tokens(model, [IDS[: position + 1]], list(range(model.path.outputs)), label)
    return found.values[0, 0] - found.values[0, 0].mean(1, keepdims=True)


def sources_of(model, text, pairs):
    return unpacked(pack_sources(TextSources(model, text.token_ids.tolist(), text.candidates), text, pairs))


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "llama_biased"])
def test_what_travels_are_the_source_tokens_of_the_head(name, monkeypatch):
    """Listed sources and the others' sum are the parts of `ld.source_tokens`; together the head."""
    monkeypatch.setattr(pack, "LISTED", 4)
    model = ld.load_model(FAMILIES[name]())
    text = ld.explore(model, IDS, target=3).text
    pairs = [(p, i) for p in (0, 6, 11) for i in text.heads[::2]]
    header, arrays = sources_of(model, text, pairs)
    assert not header["why"]
    assert arrays["place"].tolist() == [list(pair) for pair in pairs]
    for (position, component), source, logit in zip(pairs, arrays["source"], arrays["logit"], strict=True):
        parts = truth(model, text.labels[component], position)[:, text.candidates[:, position]]
        near, kept = 1e-5 * max(1.0, np.abs(parts).sum(0).max()), source[source >= 0]
        assert len(kept) == min(4, position + 1)
        np.testing.assert_allclose(logit[: len(kept)], parts[kept], rtol=ROUGH, atol=near)
        others = np.setdiff1d(np.arange(position + 1), kept)
        np.testing.assert_allclose(logit[4], parts[others].sum(0), rtol=ROUGH, atol=near)
        np.testing.assert_allclose(parts.sum(0), text.contributions[:, component, position], atol=10 * near)
        assert np.abs(parts[others]).max(initial=0) <= np.abs(parts[kept]).max(1).min() + near


def test_what_has_no_source_tokens_says_why():
    """Heads that are no weights × values; a model without heads has no such view."""
    model = ld.load_model((FAMILIES | BY_STRUCTURE)["diffllama"]())
    text = ld.explore(model, IDS).text
    header, arrays = sources_of(model, text, page_pairs(text, 3, text.heads, 99))
    assert header["why"]
    assert not arrays
    mamba = ld.explore((FAMILIES | BY_STRUCTURE)["mamba"](), IDS)
    assert "sources" not in pack.page_blobs(mamba.model, mamba.text, mamba.selection)


@pytest.mark.full
def test_a_page_shows_whose_values_were_written(browser, tmp_path):
    """The drawn numbers are the parts; a click on a token goes there; what the page lacks is said."""
    explorer = ld.explore(llama(), IDS, target=[3, 7])
    explorer.selection = {"component": "L2.H1", "position": 9}
    with browser.open(explorer.save(tmp_path / "x.html")) as opened:
        page, view = opened.page, opened.page.locator(".view.sources")
        page.wait_for_selector(".view.sources [data-source]")
        script = "a => a.map(m => [+m.dataset.source, +m.dataset.value])"
        drawn = dict(view.locator("[data-source]").evaluate_all(script))
        values = truth(explorer.model, "L2.H1", 9)
        values = values[:, 3] - values[:, 7]
        assert drawn == pytest.approx({source: values[source] for source in drawn}, rel=1e-3, abs=2e-3)
        assert float(view.locator("[data-sum]").get_attribute("data-sum")) == pytest.approx(values.sum(), abs=5e-3)
        view.locator("[data-source='4']").click()
        assert page.locator(".tokens .chosen").get_attribute("data-position") == "4"
        page.locator(".depth [data-component='L0.mlp']").click()
        assert view.locator(".entry").count() == 0
        assert (opened.complaints, opened.requests) == ([], [])


# The widget.


def test_the_widget_is_the_explorer(explorer):
    """What is chosen in the browser is chosen in Python and the other way round; nonsense is put back."""
    w = explorer.widget
    assert w is explorer.widget
    tell(w, "update", state={"chosen": w.chosen | {"position": 2, "component": "L0.attn"}})
    assert (explorer.selection.position, explorer.selection.component) == (2, "L0.attn")
    explorer.selection = {"component": "L1.H3"}
    assert w.chosen["component"] == "L1.H3"
    before = explorer.selection
    for wrong in (
        {"component": "L77.H3"},
        {"position": "x"},
        {"component": {}},
        {"target": [1]},
        {"text": 1},
        {"minus": 60},
    ):
        tell(w, "update", state={"chosen": w.chosen | wrong})
        assert (w.chosen, explorer.selection) == (asdict(before), before)
        assert w.progress
    state = w.get_state()
    assert state["_esm"] == pack.SCRIPT
    assert state["_css"].endswith(pack.CSS)


def test_a_page_changes_nothing_else(explorer):
    w = explorer.widget
    before = w.get_state()
    fake = {"text": {}, "model": "x", "progress": "x", "live": False, "_esm": "alert(1)", "layout": None}
    tell(w, "update", state=fake)
    w.set_state(fake)
    assert w.get_state() == before


def test_a_malformed_message_gets_one_sentence(explorer, sent):
    """Missing keys, wrong types, what does not exist: nothing is raised, sent or changed."""
    typed = {"ask": "text", "text": "a", "target": "", "minus": ""}
    token = {"ask": "token", "field": "minus", "token": "a"}
    look = {"ask": "effects", "version": 0, "position": 3, "component": "L1.H2", "answers": [1, 4]}
    contents = [None, 7, [], "text", {}, {"ask": "nothing"}, {"ask": ["text"]}, {"ask": "text"}]
    contents += [typed | {"text": 5}, typed | {"generate": 1}, token | {"field": "position"}, token | {"field": []}]
    contents += [look | {"position": at} for at in (-1, 12, "3", None, True)] + [look | {"component": "<b>"}]
    contents += [look | {"answers": x} for x in (None, [1], [1, [4]], [1, 60])] + [look | {"version": {}}]
    messages = [{"content": {"data": {"method": "custom", "content": x}}} for x in contents]
    messages += [{}, None, {"content": {"data": {}}}, {"content": {"data": {"method": "update", "state": 3}}}]
    before = explorer.text, explorer.selection
    for message in messages:
        explorer.widget.progress = ""
        explorer.widget._handle_msg(message)
        explorer.widget._worker.submit(lambda: None).result()
        assert (explorer.widget.progress, sent) == (FAILED, []), message
    assert (explorer.text, explorer.selection) == before


def test_a_text_or_a_token_typed_in_the_widget_is_measured(tmp_path):
    """It opens at its end; a sentence of the package is shown as it is and changes nothing."""
    e = ld.explore(ld.load_model(save_hostile_model(tmp_path)), "w5 w1 w4 w1 w2")
    e.selection = {"component": "L2.H1", "position": 3}
    asks(e.widget, ask="text", text="w9 w9 w8 w7 w6 w5", target=" w3", minus="")
    assert unpacked(e.widget.text["core"])[0]["tokens"] == [" w9", " w9", " w8", " w7", " w6", " w5"]
    assert (e.text.targets, e.selection.position, e.selection.target) == ((3,), 5, 3)
    asks(e.widget, ask="token", field="minus", token=" w40")
    assert (e.selection.minus, e.widget.chosen["minus"], e.widget.text["version"]) == (40, 40, 2)
    assert (e.text.candidates == 40).all(1).any()
    before = e.selection
    for content in (
        {"ask": "text", "text": "", "target": "", "minus": ""},
        {"ask": "text", "text": "w1 " * 5_000_000, "target": "", "minus": ""},
        {"ask": "text", "text": "w1 w2", "target": " w1 w2", "minus": ""},
        {"ask": "token", "field": "target", "token": " w1 w2"},
        {"ask": "token", "field": "target", "token": "w" * 10_000_000},
    ):
        asks(e.widget, **content)
        assert 10 < len(e.widget.progress) < 300
        assert e.widget.progress != FAILED
        assert (e.selection, e.text.length) == (before, 6)


def test_the_widget_looks_up_what_is_asked(explorer, sent, monkeypatch):
    """Promoted tokens, effects and source tokens of one component; nothing for a text that was replaced."""
    runs, real = [], attribution.gather
    monkeypatch.setattr(attribution, "gather", lambda *a, **k: (runs.append(1), real(*a, **k))[1])
    a, b = pack.answers_at(explorer.text, 4, None, None)
    for ask, more in (("promoted", {}), ("effects", {"answers": [a, b]}), ("sources", {})):
        for component in ("L1.H2", "L0.H0"):
            asks(explorer.widget, ask=ask, version=0, position=4, component=component, **more)
            content, (blob,) = sent.pop()
            assert content == {"kind": ask, "version": 0}
            header, arrays = unpacked(blob)
            place = [4, explorer.text.labels.index(component)]
            assert header["rows"][0]["label"] == component if ask == "effects" else arrays["place"].tolist() == [place]
    assert len(runs) == 1  # a second head needs no second pass
    explorer.selection = {"minus": 60}
    asks(explorer.widget, ask="promoted", version=0, position=4, component="L1.H2")
    assert (sent, explorer.widget.progress) == ([], "")
    asks(explorer.widget, ask="page")
    ((content, (page,)),) = sent
    assert (content, page.decode()) == ({"kind": "page"}, explorer.html())


@pytest.mark.full
def test_the_front_end_asks_and_hears(browser, explorer, tmp_path):
    """The same module with a stand-in for anywidget's model: it types, asks, hears, follows Python, and is put away."""
    texts = (explorer.text, ld.explore(explorer.model, [3, 3, 8, 20, 21, 40]).text)
    packed = [(pack_text(explorer.model, text), pack_attention(text)) for text in texts]
    blobs = [[base64.b64encode(blob).decode() for blob in pair] for pair in packed]
    explorer.selection = {"position": 4, "component": "L1.H2"}
    place = (4, explorer.text.labels.index("L1.H2"))
    answer = base64.b64encode(pack_promotions(explorer.model, explorer.text, [place])).decode()
    data = {"texts": blobs, "answer": answer, "chosen": asdict(explorer.selection)}
    script = """
    const bytes = (t) => new DataView(Uint8Array.from(atob(t), (c) => c.charCodeAt(0)).buffer);
    const text = (n, version = n) => ({ version, core: bytes(DATA.texts[n][0]), attention: bytes(DATA.texts[n][1]) });
    const heard = {}, sent = [];
    const held = { model: "m", live: true, chosen: DATA.chosen, text: text(0), progress: "" };
    const model = { get: (n) => held[n], set: (n, v) => (held[n] = v), save_changes() {}, send: (m) => sent.push(m),
      on: (n, f) => (heard[n] ??= []).push(f), off: (n, f) => (heard[n] = heard[n].filter((g) => g !== f)) };
    const set = (n, v) => { held[n] = v; return Promise.all((heard["change:" + n] ?? []).map((f) => f())); };
    const away = await render({ model, el: document.body });
    Object.assign(window, { held, sent, set, text, heard, away,
      answer: (version) => heard["msg:custom"][0]({ kind: "promoted", version }, [bytes(DATA.answer)]) });
    """
    path = tmp_path / "widget.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><style>{pack.CSS}</style><body>"
        f"<script type=module>{pack.SCRIPT}\nconst DATA = {json.dumps(data)};\n{script}</script>",
        encoding="utf-8",
    )
    with browser.open(path) as opened:
        page = opened.page
        page.wait_for_function("sent.length >= 3")
        asked = {"version": 0, "position": 4, "component": "L1.H2"}
        effects, promoted, sources = sorted(page.evaluate("sent.splice(0)"), key=lambda m: m["ask"])
        assert (promoted, sources) == ({"ask": "promoted", **asked}, {"ask": "sources", **asked})
        assert effects == {"ask": "effects", **asked, "answers": list(pack.answers_at(explorer.text, 4, None, None))}
        page.evaluate("answer(1)")  # for another text: dropped
        assert page.locator(".promotes .entry").count() == 0
        page.evaluate("answer(0)")
        page.wait_for_selector(".promotes .entry")
        words = page.locator(".promotes .entry").evaluate_all("a => a.map(m => m.dataset.word)")
        assert words == ld.profile(explorer.model, IDS, "head").top_tokens("L1.H2", 4, 5).token.tolist()
        page.get_by_label("other token").fill("␣Rome")
        page.get_by_label("other token").press("Enter")
        assert page.evaluate("sent.at(-1)") == {"ask": "token", "field": "minus", "token": " Rome"}
        page.get_by_label("another text").fill("so it goes")
        page.get_by_role("textbox", name="target", exact=True).fill(" on")
        page.get_by_label("another text").press("Enter")
        wanted = {"ask": "text", "text": "so it goes", "target": " on", "minus": ""}
        assert page.evaluate("sent.at(-1)") == wanted
        page.get_by_role("button", name="save as one file").click()
        assert page.evaluate("sent.at(-1)") == {"ask": "page"}
        with page.expect_download() as download:
            page.evaluate("heard['msg:custom'][0]({ kind: 'page' }, [new TextEncoder().encode('<p>')])")
        assert (download.value.suggested_filename, download.value.path().read_text()) == ("explorer.html", "<p>")
        page.evaluate("set('progress', '<b>measuring')")
        assert page.locator(".progress-text").inner_text() == "<b>measuring"
        page.locator(".grid [data-component='L0.H1']").click()  # nothing waits for the kernel
        assert page.evaluate("held.chosen.component") == "L0.H1"
        page.evaluate("set('chosen', { ...held.chosen, component: 'L2.H3', position: 6 })")
        assert page.locator(".tokens .chosen").get_attribute("data-position") == "6"
        # Texts that replace one another at once, each with its selection: the last one is drawn.
        replaced = "set('text', text({0}, {1})); set('chosen', {{ ...held.chosen, position: {2} }});"
        page.evaluate(replaced.format(1, 1, 5) + replaced.format(0, 2, 11) + replaced.format(1, 3, 3))
        page.wait_for_timeout(300)
        assert page.locator(".tokens [data-position]").count() == 6
        assert page.locator(".tokens .chosen").get_attribute("data-position") == "3"
        page.evaluate("away()")
        assert page.evaluate("heard['change:chosen'].length + heard['msg:custom'].length") == 0
        assert (opened.complaints, opened.requests) == ([], [])
