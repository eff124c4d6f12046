"""Attention patterns, colored and promoted tokens: numbers under their tokens, hostile text harmless, no network."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.components import Component
from layerdiv_tl.model.attention import attention_patterns
from layerdiv_tl.views import style
from layerdiv_tl.views.html import Block, Page, circuitsvis, inert, script_json
from layerdiv_tl.views.tokens import attention_heads, colored_tokens, promoted_tokens
from tests.conftest import gpt2, llama
from tests.model.test_bridge import boot
from tests.oracles.families import FAMILIES

IDS = [5, 1, 4, 1, 5, 9, 2, 6, 7, 8, 12, 13]
HOSTILE = (
    "</script>",
    "<img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "<!--<script>",
    "'\"><svg onload=alert(2)>",
    "\n",
    "",
)


def configurations(model):
    """Everything about how attention is computed, and the hooks and modes of every module."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    ways = [c.__dict__.get("_attn_implementation_internal") for c in configs.values()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return ways, hooks, [m.training for m in model.modules()]


def elements(block):
    """The circuitsvis elements of a block: [{element, props}], in order."""
    return [
        json.loads(text) for text in re.findall(r"<script type='application/json'>(.*?)</script>", block.html, re.S)
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "mpt", "gemma2", "falcon", "deepseek_v3", "llama4"])
def test_two_ways_see_the_same_patterns(name):
    """Hugging Face's own attentions are TransformerLens' hook_pattern; rows sum to 1 and look back only."""
    found = attention_patterns(FAMILIES[name](), IDS)
    np.testing.assert_allclose(found.patterns, attention_patterns(boot(FAMILIES[name]()), IDS).patterns, atol=5e-6)
    np.testing.assert_allclose(found.patterns.sum(2), 1, atol=1e-5)
    assert not np.triu(found.patterns, 1).any()
    assert found.patterns.std() > 0.05
    every = [c for c in ld.load_model(FAMILIES[name]()).components("head") if c.kind == "head"]
    assert list(found.components) == every


def test_a_sink_takes_the_rest():
    """GPT-OSS' rows sum to less than 1."""
    assert (attention_patterns(FAMILIES["gpt_oss"](), IDS).patterns.sum(2) < 0.99).all()


def test_chosen_heads_are_those_of_all():
    model = ld.load_model(llama())
    every = attention_patterns(model, IDS)
    some = attention_patterns(model, IDS, ["L2.H1", Component("head", 0, 3)])
    assert [c.label for c in some.components] == ["L2.H1", "L0.H3"]
    labels = [c.label for c in every.components]
    for head, pattern in zip(some.components, some.patterns, strict=True):
        np.testing.assert_array_equal(pattern, every.patterns[labels.index(head.label)])
    np.testing.assert_array_equal(attention_patterns(model, IDS, "L2.H1").patterns, some.patterns[:1])


@pytest.mark.parametrize(
    "make", [llama, gpt2, lambda: llama(attn_implementation="eager")], ids=["llama", "gpt2", "eager"]
)
def test_the_model_is_left_as_it_was(make, monkeypatch):
    """The way attention is computed, hooks and modes are put back, also when the pass fails."""
    model = make().train()
    before = configurations(model)
    answer = model.eval()(torch.tensor([IDS])).logits
    model.train()
    attention_patterns(model, IDS)
    assert configurations(model) == before
    assert torch.equal(model.eval()(torch.tensor([IDS])).logits, answer)
    model.train()
    loaded, calls = ld.load_model(model), []
    forward = model.forward

    def failing(*args, **kwargs):
        calls.append(model.config._attn_implementation)
        if kwargs.get("output_attentions"):
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        attention_patterns(loaded, IDS)
    assert calls[-1] == "eager"
    assert configurations(model) == before


def test_what_cannot_be_looked_at_is_refused_in_a_sentence(monkeypatch):
    with pytest.raises(ld.InputError, match="label 'L9.H0'"):
        attention_patterns(llama(), IDS, ["L9.H0"])
    with pytest.raises(ld.InputError, match="heads=3"):
        attention_patterns(llama(), IDS, 3)
    with pytest.raises(ld.InputError, match="heads="):
        attention_patterns(llama(), IDS, [])
    with pytest.raises(ld.InputError, match="one text"):
        attention_patterns(llama(), [IDS, IDS])
    with pytest.raises(ld.InputError, match="64"):
        attention_patterns(llama(), [1] * 65)
    with pytest.raises(ld.InputError, match="no heads"):
        attention_patterns(FAMILIES["jetmoe"](), IDS)
    with pytest.raises(ld.InputError, match="attn_implementation"):
        attention_patterns(FAMILIES["falcon_alibi"](), IDS)
    model = llama()
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *a, output_attentions=False, **k: forward(*a, **k))
    with pytest.raises(ld.InputError, match="heads"):
        attention_patterns(model, IDS)


def test_patterns_are_a_frame_and_a_file(tmp_path):
    found = attention_patterns(llama(), IDS, ["L0.H1", "L2.H3"])
    frame = found.frame()
    assert len(frame) == 2 * 12 * 13 / 2
    assert frame.groupby(["component", "query"]).weight.sum().to_numpy() == pytest.approx(1, abs=1e-5)
    row = frame[(frame.component == "L2.H3") & (frame["query"] == 7) & (frame.key == 2)].iloc[0]
    assert (row.weight, row.query_token, row.key_token) == (found.patterns[1, 7, 2], "token 6", "token 4")
    loaded = ld.load(found.save(tmp_path / "a"))
    assert loaded.components == found.components
    np.testing.assert_array_equal(loaded.patterns, found.patterns)


@pytest.mark.parametrize("gauge", ["raw", "centered"])
def test_every_token_wears_the_number_of_its_own_prediction(gauge):
    """Values are the frame's, one token later; texts do not touch; bounds are symmetric, so that zero is white."""
    p = ld.profile(llama(), [IDS, [3, 4, 5]], gauge=gauge)
    frame = p.frame()
    metrics = ("loss", "net", "bias", "diversity", "target_logit")
    drawn = [found for metric in metrics for found in elements(colored_tokens(p, metric))]
    means = frame.groupby("position").mean(numeric_only=True)
    sums = frame.groupby("position")["target_logit"].sum()
    columns = [means["loss"], *(means[t] for t in ("net", "bias", "diversity")), sums]
    for found, column in zip(drawn, columns, strict=True):
        values = found["props"]["values"]
        assert values[0] is None
        assert values[12] is None
        assert values[1:12] == pytest.approx(column.to_numpy()[:11], rel=1e-3)
        assert values[13:] == pytest.approx(column.to_numpy()[12:14], rel=1e-3)
        assert found["props"]["minValue"] == -found["props"]["maxValue"] < 0
    named = colored_tokens(p, "net", "L1.mlp")
    one = frame[frame.component == "L1.mlp"]["net"].to_numpy()
    assert elements(named)[0]["props"]["values"][1:12] == pytest.approx(one[:11], rel=1e-3)


def test_unknown_words_are_refused():
    p = ld.profile(llama(), IDS)
    for arguments, sentence in (
        ({"metric": "color"}, "metric='color'"),
        ({"metric": "net", "component": "L9.mlp"}, "label 'L9.mlp'"),
    ):
        with pytest.raises(ld.InputError, match=sentence):
            colored_tokens(p, **arguments)
    with pytest.raises(ld.InputError, match="13 heads"):
        attention_heads(
            attention_patterns(
                llama(num_attention_heads=16, num_key_value_heads=16), [1, 2], [f"L0.H{i}" for i in range(13)]
            )
        )
    with pytest.raises(ld.InputError, match="65 tokens"):
        attention_heads(attention_patterns(llama(max_position_embeddings=128), [1] * 65, "L0.H0"))


def test_attention_is_drawn_as_it_is():
    patterns = attention_patterns(llama(), IDS, ["L0.H1", "L2.H3"])
    (found,) = elements(attention_heads(patterns))
    assert found["props"]["attentionHeadNames"] == ["L0.H1", "L2.H3"]
    np.testing.assert_allclose(found["props"]["attention"], patterns.patterns, atol=5e-4)


def test_promoted_tokens_are_the_profile_s():
    """Each row has a component's largest or smallest centered logits to two digits, in the order of top_tokens."""
    p = ld.profile(llama(), IDS)
    table, frame = promoted_tokens(p, ["L1.mlp", "embed"], 4, k=3), p.top_tokens(["L1.mlp", "embed"], 4, 3)
    effects = [(label, effect) for label in ("L1.mlp", "embed") for effect in ("promotes", "suppresses")]
    assert table.index.tolist() == effects
    assert table.columns.tolist() == [1, 2, 3]
    for label, effect in effects:
        lines = frame[(frame.component == label) & (frame.effect == effect)]
        cells = [cell.rsplit(" ", 1) for cell in table.loc[(label, effect)]]
        assert [cell[0] for cell in cells] == [style.visible(token) for token in lines.token]
        shown = [float(cell[1].replace("−", "-")) for cell in cells]
        assert shown == pytest.approx(lines.contribution_centered.tolist(), rel=0.06)


def hostile_profile():
    """A profile whose tokens are HTML, and whose model promotes HTML."""
    p = ld.profile(llama(), IDS)
    look = p.token_lookup

    def evil(*arguments):
        frame = look(*arguments)
        return frame.assign(token=[HOSTILE[i % len(HOSTILE)] for i in range(len(frame))])

    return dataclasses.replace(p, tokens=tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(IDS))), token_lookup=evil)


def every_block():
    p = hostile_profile()
    patterns = dataclasses.replace(attention_patterns(llama(), IDS, ["L0.H1", "L2.H3"]), tokens=p.tokens)
    return p, [colored_tokens(p), attention_heads(patterns)]


def test_hostile_tokens_stay_text_before_any_browser():
    """No token ends a script or begins an element, also where circuitsvis will write it as HTML."""
    p, blocks = every_block()
    for block in blocks:
        assert "<img" not in block.html
        assert "<svg" not in block.html
        assert block.html.count("</script") == block.html.count("<script")
        for found in elements(block):
            assert not any(re.search(r"<[a-z/!]|&[a-z#]", token, re.I) for token in found["props"]["tokens"])
    assert "<img" not in promoted_tokens(p, ["embed", "L0.mlp"], 3).to_html()
    assert inert("a < b & c").replace("\u2060", "") == "a < b & c"
    assert "<" not in script_json({"</script>": "<!--"})


@pytest.mark.full
def test_hostile_tokens_stay_text_in_a_browser(browser, tmp_path):
    """Seen, hovered and clicked, tokens that are HTML ask for nothing, run nothing and add no element."""
    p, blocks = every_block()
    page = Page("hostile")
    for block in blocks:
        page.block(block)
    page.figure(p.plot(title=HOSTILE[0]))
    path = page.write(tmp_path / "page.html")
    with browser.open(path) as opened:
        opened.scroll()
        opened.page.wait_for_selector(".colored-tokens")
        opened.page.wait_for_selector(".ld-narrow canvas")
        spans = opened.page.locator(".colored-tokens:visible > span")
        for number in range(spans.count()):
            spans.nth(number).hover()
            opened.page.wait_for_timeout(20)
        opened.page.locator(".ld-narrow canvas").last.hover()
        opened.page.wait_for_timeout(200)
        texts = opened.page.locator(".colored-tokens > span > span").all_inner_texts()
        assert "<img src=x onerror=alert(1)>" in [t.replace("\u2060", "").replace("\xa0", " ") for t in texts]
        assert opened.page.locator("img, main svg:not(.main-svg):not(.modebar svg)").count() == 0
        assert opened.page.locator("[onerror], [onload]").count() == 0
        assert opened.complaints == []
        assert opened.requests == []


@pytest.mark.full
def test_a_notebook_s_output_needs_nothing(browser, tmp_path):
    """Two outputs in one document, without a page of ours, are drawn offline."""
    p = ld.profile(llama(), IDS)
    outputs = [colored_tokens(p, metric)._repr_html_() for metric in ("loss", "bias")]
    path = tmp_path / "notebook.html"
    path.write_text("<!doctype html><meta charset=utf-8>" + "".join(outputs), encoding="utf-8")
    with browser.open(path) as opened:
        opened.page.wait_for_selector(".colored-tokens")
        opened.page.wait_for_timeout(300)
        assert opened.page.locator(".colored-tokens:visible").count() == 2
        assert (opened.complaints, opened.requests) == ([], [])


def test_a_block_is_not_read_as_text():
    """The words a notebook keeps next to a drawing are one short line, however much is drawn."""
    p = ld.profile(llama(), IDS)
    assert len(repr(colored_tokens(p))) < 80


def test_what_circuitsvis_does_not_draw_comes_without_it():
    """The bundle is there once on a page that needs it, and nowhere else."""
    p = ld.profile(llama(), IDS)
    page = Page("tokens")
    page.text("nothing")
    assert circuitsvis() not in page.html()
    page.block(colored_tokens(p))
    page.block(colored_tokens(p))
    assert page.html().count(circuitsvis()) == 1
    assert isinstance(colored_tokens(p), Block)
    assert "</script" not in circuitsvis()
