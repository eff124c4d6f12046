"""Attention patterns, colored and promoted tokens: numbers under their tokens, hostile text harmless, no network."""

import dataclasses
import html
import re

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.components import Component
from layerdiv_tl.model.attention import attention_patterns
from layerdiv_tl.views import style
from layerdiv_tl.views.html import Page, script_json
from layerdiv_tl.views.tokens import colored_tokens, promoted_tokens
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
    """The tokens of a block: [(text, value, opacity of its color)], in order."""
    spans = re.findall(r"<span(?: style=\"background: ([^\"]*)\" title=\"([^\"]*)\")?>(.*?)</span>", block.html, re.S)
    return [(html.unescape(text), value, color) for color, value, text in spans]


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
    """Values are the frame's, one token later, blue above 0 and orange below; texts do not touch."""
    p = ld.profile(llama(), [IDS, [3, 4, 5]], gauge=gauge)
    frame = p.frame()
    metrics = ("loss", "net", "bias", "diversity", "target_logit")
    means = frame.groupby("position").mean(numeric_only=True)
    sums = frame.groupby("position")["target_logit"].sum()
    columns = [means["loss"], *(means[t] for t in ("net", "bias", "diversity")), sums]
    one = frame[frame.component == "L1.mlp"]["net"]
    drawn = [*(colored_tokens(p, metric) for metric in metrics), colored_tokens(p, "net", "L1.mlp")]
    for block, column in zip(drawn, [*columns, one], strict=True):
        found, values = elements(block), column.to_numpy()
        assert [text for text, *_ in found] == list(p.tokens)
        wanted = ["", *map(style.number, values[:11]), "", *map(style.number, values[12:14])]
        assert [value for _, value, _ in found] == wanted
        for (_, _, color), value in zip(found[1:12], values[:11], strict=True):
            assert color.startswith(style.faint(style.PAIR[0 if value > 0 else 1], 0)[:-3])


def test_unknown_words_are_refused():
    p = ld.profile(llama(), IDS)
    for arguments, sentence in (
        ({"metric": "color"}, "metric='color'"),
        ({"metric": "net", "component": "L9.mlp"}, "label 'L9.mlp'"),
    ):
        with pytest.raises(ld.InputError, match=sentence):
            colored_tokens(p, **arguments)


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


def test_hostile_tokens_stay_text_before_any_browser():
    """No token ends a script or begins an element."""
    p = hostile_profile()
    for text in (colored_tokens(p).html, promoted_tokens(p, ["embed", "L0.mlp"], 3).to_html()):
        assert not re.search("<img|<svg|<script|</script", text)
    assert [text for text, *_ in elements(colored_tokens(p))][:3] == list(p.tokens[:3])
    assert "<" not in script_json({"</script>": "<!--"})


@pytest.mark.full
def test_hostile_tokens_stay_text_in_a_browser(browser, tmp_path):
    """Seen and hovered, tokens that are HTML ask for nothing, run nothing and add no element."""
    p, page = hostile_profile(), Page("hostile")
    page.block(colored_tokens(p))
    page.figure(p.plot(title=HOSTILE[0]))
    with browser.open(page.write(tmp_path / "page.html")) as opened:
        opened.scroll()
        spans = opened.page.locator("main div > span[title]")
        assert "<img src=x onerror=alert(1)>" in spans.all_inner_texts()
        spans.first.hover()
        assert opened.page.locator("img, main svg:not(.main-svg):not(.modebar svg)").count() == 0
        assert opened.page.locator("[onerror], [onload]").count() == 0
        assert opened.complaints == []
        assert opened.requests == []


def test_a_block_is_not_read_as_text():
    """The words a notebook keeps next to a drawing are one short line, however much is drawn."""
    block = colored_tokens(ld.profile(llama(), IDS))
    assert len(repr(block)) < 80
    assert block._repr_html_() == block.html
