"""Heads by source token: exact, equal to plain code, in every family that multiplies weights and values."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.attribution.source_tokens import TextSources
from layerdiv_tl.model.attention import eager
from tests.conftest import STORIES
from tests.model.test_bridge import boot
from tests.oracles.brute_force import frozen_readout, sigma_of
from tests.oracles.families import BY_STRUCTURE, FAMILIES, each
from tests.oracles.hooked_forward import layout_of, trace

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3, 7], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]
# No heads that are softmax attention, or none that the path can tell apart.
NO_HEADS = {"jetmoe", "mamba", "falcon_mamba", "mamba2", "recurrent_gemma", "xlstm", "zamba", "zamba2", "rwkv"}
NO_HEADS |= {"deepseek_v4"}
NO_PRODUCT = {"diffllama"}  # a difference of two patterns behind a norm
OTHERWISE = {"falcon_alibi"}  # it answers differently when its attention is computed step by step
NO_BRIDGE = {"falcon_new_decoder", "falcon_alibi", "jetmoe"}


def plain_parts(model, ids, options):
    """Parts `[layer, head, source, option]`, by hand, of GPT-2 or Llama; a value has its bias."""
    layout, seen, count = layout_of(model), trace(model, ids), model.config.num_attention_heads
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        patterns = model(torch.tensor([ids]), output_attentions=True).attentions
    sigma, parts = sigma_of(model, seen.out[-1, -1].numpy()), []
    for block, read, pattern, project in zip(
        layout.layers, seen.inputs.float(), patterns, layout.projections, strict=True
    ):
        if hasattr(block, "attn"):  # GPT-2
            (_, _, weight), (_, _, bias) = (x.chunk(3, -1) for x in (block.attn.c_attn.weight, block.attn.c_attn.bias))
            values, out = block.ln_1(read) @ weight, project.weight
        else:
            own = block.self_attn.v_proj
            values, out = block.input_layernorm(read) @ own.weight.T, project.weight.T
            bias = torch.zeros(values.shape[1]) if own.bias is None else own.bias
        values = values + bias
        for head, rows in enumerate(torch.arange(out.shape[0]).chunk(count)):
            group = head // (out.shape[0] // values.shape[1])
            own = values[:, group * len(rows) : (group + 1) * len(rows)]
            written = (pattern[0, head, -1, :, None] * own).double() @ out[rows].double()
            parts.append([frozen_readout(model, write, sigma, options) for write in written.detach().numpy()])
    return np.reshape(parts, (len(layout.layers), count, len(ids), len(options)))


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_biased"])
def test_parts_are_those_of_plain_code(name):
    """Weight × value × output map × norm × unembedding, slice by slice, without this package."""
    found = ld.source_tokens(FAMILIES[name](), PROMPTS[0], OPTIONS)
    parts = plain_parts(FAMILIES[name](), PROMPTS[0], OPTIONS)
    np.testing.assert_allclose(found.values[0], parts.reshape(found.values[0].shape), atol=1e-6)


@pytest.mark.parametrize("name", each([*FAMILIES, *BY_STRUCTURE]))
def test_parts_sum_to_the_heads_of_a_family(name):
    """To 1e-6 of Σ|parts|, in its own and in another pass; weights are the attention patterns; the rest is refused."""
    model = ld.load_model((FAMILIES | BY_STRUCTURE)[name]())
    if name in NO_HEADS | NO_PRODUCT | OTHERWISE:
        with pytest.raises(ld.InputError, match="eager" if name in OTHERWISE else "head"):
            ld.source_tokens(model, PROMPTS, OPTIONS)
        return
    found = ld.source_tokens(model, PROMPTS, OPTIONS)
    assert max(found.identity_gap, found.logit_gap) <= 1e-6
    with eager(model.root):  # fused attention rounds otherwise
        heads = ld.contributions(model, PROMPTS, OPTIONS, unit="head")
    own = heads[[c.label for c in found.heads]]
    np.testing.assert_allclose(found.contributions, own, rtol=0, atol=1e-6 * np.abs(found.values).sum(2).max())
    assert found.heads == tuple(c for c in heads.components if c.kind == "head")
    for row, prompt in enumerate(PROMPTS):
        assert not found.values[row, :, len(prompt) :].any()
        assert not found.weights[row, :, len(prompt) :].any()
    assert (found.weights.sum(2) <= 1 + 1e-5).all()
    try:
        patterns = ld.attention_patterns(model, PROMPTS[0])
    except ld.InputError:  # it does not return them; products are there all the same
        return
    known = [list(patterns.components).index(head) for head in found.heads]
    np.testing.assert_allclose(found.weights[0], patterns.patterns[known, -1], atol=2e-6)


@pytest.mark.parametrize("name", [*each(name for name in FAMILIES if name not in NO_BRIDGE)])
def test_a_bridge_gives_what_the_model_gives(name):
    """A TransformerBridge's own modules are seen, too."""
    plain, bridged = (ld.source_tokens(m, PROMPTS, OPTIONS) for m in (FAMILIES[name](), boot(FAMILIES[name]())))
    assert bridged.identity_gap <= 1e-6
    assert bridged.heads == plain.heads
    np.testing.assert_allclose(bridged.values, plain.values, atol=1e-5)


def test_sinks_leave_less_than_one():
    """GPT-OSS: what a sink takes has no value."""
    found = ld.source_tokens(FAMILIES["gpt_oss"](), PROMPTS[0], OPTIONS)
    assert (found.weights[0].sum(1) < 0.999).any()


def test_a_character_of_several_tokens_has_a_part_for_each():
    """The parts of an emoji's bytes are their own, and stand where their tokens do."""
    model, texts, options = ld.load_model(STORIES), ["The 🙂 dog", "The dog"], [7, 30]
    found = ld.source_tokens(model, texts, options)
    first, last = (i for i, text in enumerate(found.tokens[0]) if text in (" The", " do"))
    assert last - first > 4  # a space and four bytes
    assert [len(row) for row in found.tokens] == found.lengths.tolist()
    assert (found.values[0, :, first + 1 : last].any((0, 2))).all()
    heads = ld.contributions(model, texts, options, unit="head").select(kind="head")
    np.testing.assert_allclose(found.contributions, heads.values, atol=1e-5)
    frame = found.frame()
    own = frame[(frame["example"] == 0) & (frame["component"] == "L0.H0") & (frame["option_index"] == 0)]
    assert own["source"].tolist() == list(range(found.lengths[0]))
    assert own["source_token"].tolist() == list(found.tokens[0])


@pytest.fixture(scope="module")
def tiny():
    return ld.load_model(FAMILIES["llama_biased"]())


def test_prompts_positions_and_heads_are_independent(tiny):
    """A prompt alone, a prompt cut at the position, one head alone: the same numbers."""
    both = ld.source_tokens(tiny, PROMPTS, OPTIONS, position=[4, 1, -1])
    for row, (prompt, at) in enumerate(zip(PROMPTS, (4, 1, 3), strict=True)):
        alone = ld.source_tokens(tiny, prompt[: at + 1], OPTIONS)
        np.testing.assert_allclose(both.values[row, :, : at + 1], alone.values[0], atol=1e-6)
        assert not both.values[row, :, at + 1 :].any()
    some = ld.source_tokens(tiny, PROMPTS, OPTIONS, heads=["L2.H1", "L0.H3"])
    assert [c.label for c in some.heads] == ["L0.H3", "L2.H1"]
    every = ld.source_tokens(tiny, PROMPTS, OPTIONS)
    rows = [[c.label for c in every.heads].index(c.label) for c in some.heads]
    np.testing.assert_allclose(some.values, every.values[:, rows], atol=1e-9)


def test_options_of_each_prompt_and_of_tasks(tiny):
    """Each prompt's own options; a task brings its own."""
    own = ld.source_tokens(tiny, PROMPTS[:2], [[7, 9], [9, 7]])
    swapped = ld.source_tokens(tiny, PROMPTS[:2], options=[(9, 7), (7, 9)])
    np.testing.assert_allclose(own.values[..., ::-1], swapped.values, atol=1e-9)
    task = ld.task("synthetic/recall", limit=4)
    found = ld.source_tokens("zoo/d2", task)
    assert found.values.shape[0::3] == (4, len(task.options))
    assert found.identity_gap <= 1e-6


def test_the_frame_holds_every_part_once(tiny):
    """A head's parts sum to its contribution."""
    found = ld.source_tokens(tiny, PROMPTS, OPTIONS)
    frame = found.frame()
    sums = frame.groupby(["example", "component", "option_index"])["contribution"].sum()
    for row, head in enumerate(found.heads):
        np.testing.assert_allclose(sums.xs(head.label, level=1).to_numpy().reshape(3, 3), found.contributions[:, row])
    own = frame[(frame["example"] == 1) & (frame["component"] == "L0.H0")]
    assert own["source"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(own["weight"].to_numpy()[::3], found.weights[1, 0, :2])
    assert frame.attrs["identity_gap"] == found.identity_gap
    centered = frame.groupby(["example", "component", "source"])["contribution_centered"].sum()
    np.testing.assert_allclose(centered, 0.0, atol=1e-9)


def test_saved_and_loaded(tiny, tmp_path):
    found = ld.source_tokens(tiny, PROMPTS, OPTIONS)
    again = ld.load(found.save(tmp_path / "sources.safetensors"))
    np.testing.assert_array_equal(again.values, found.values)
    assert (again.heads, again.tokens, again.options) == (found.heads, found.tokens, found.options)


def test_drawn(tiny):
    found = ld.source_tokens(tiny, PROMPTS, OPTIONS)
    drawn = found.plot(example=1, option=2, most=5)
    assert np.shape(drawn.data[0].z) == (5, 2)
    score = found.contributions[1, :, 2] - found.contributions[1, :, :2].mean(1)
    kept = [list(map(str, found.heads)).index(name) for name in drawn.layout.yaxis.ticktext]
    np.testing.assert_allclose(drawn.data[0].customdata.sum(1), score[kept])
    bars = found.plot(kind="tokens", example=1, option=2)
    np.testing.assert_allclose(sum(bars.data[0].y), score.sum())
    for wrong in ({"example": 3}, {"option": 3}, {"option": -1}):
        with pytest.raises(ld.InputError, match=next(iter(wrong))):
            found.plot(**wrong)


def test_directions_are_split_too(tiny):
    """Vectors in the unembedding's input, in place of options."""
    probe = {"probe": torch.randn(tiny.path.read_width, generator=torch.Generator().manual_seed(0))}
    found = ld.source_tokens(tiny, PROMPTS, probe)
    heads = ld.contributions(tiny, PROMPTS, probe, unit="head")
    np.testing.assert_allclose(found.contributions, heads[[c.label for c in found.heads]], atol=1e-5)


def test_a_text_read_everywhere_has_the_parts_of_its_beginnings(tiny):
    """`TextSources`, which explorers ask: the parts of each position, minus their mean over the vocabulary."""
    asked = np.array([[7, 9, 11, 2], [1, 2, 3, 4]])
    text = TextSources(tiny, PROMPTS[2], asked)
    heads = {head.label: head for head in tiny.components("head")}
    places = {heads["L1.H2"]: [3, 1], heads["L0.H0"]: [2]}
    found = dict(text.split(places))
    for head, at in places.items():
        for values, position in zip(found[head], at, strict=True):
            every = ld.source_tokens(tiny, PROMPTS[2][: position + 1], list(range(tiny.vocabulary)), head).values[0, 0]
            centered = (every - every.mean(1, keepdims=True))[:, asked[:, position]]
            np.testing.assert_allclose(values[: position + 1], centered, atol=1e-6)
            assert not values[position + 1 :].any()
        own = found[head].sum(1)
        assert (text.gap(head, found[head], own) < 1e-12).all()
        with pytest.raises(ld.InputError, match="eager"):
            text.gap(head, found[head], own + 1)


def test_a_head_with_two_patterns_has_not_one():
    """DiffLlama returns twice as many patterns as it has heads."""
    with pytest.raises(ld.InputError, match="patterns"):
        ld.attention_patterns(BY_STRUCTURE["diffllama"](), PROMPTS[0])


def test_half_precision_carries_its_gap():
    found = ld.source_tokens(FAMILIES["llama"]().bfloat16(), PROMPTS, OPTIONS)
    assert 1e-6 < found.identity_gap < 2e-2


def test_a_hook_on_what_heads_write_is_said():
    """A projection that reads something else than the product is refused, not split."""
    model = FAMILIES["llama"]()
    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda m, a: (a[0] + 0.1,))
    with pytest.raises(ld.InputError, match="source"):
        ld.source_tokens(model, PROMPTS, OPTIONS)


def test_wrong_input_is_answered_in_a_sentence(tiny):
    for given, match in (
        ({"heads": "L9.H0"}, "L9.H0"),
        ({"heads": []}, "heads"),
        ({"heads": "L0.mlp"}, "L0.mlp"),
        ({"options": None}, "options"),
        ({"options": [[[7, 8]], [9]]}, "option"),
        ({"position": 40}, "position"),
        ({"prompts": None}, "prompts"),
    ):
        arguments = {"prompts": PROMPTS[0], "options": OPTIONS} | given
        with pytest.raises(ld.InputError, match=match):
            ld.source_tokens(tiny, **arguments)


@pytest.mark.parametrize(
    "call", [lambda ids: ld.source_tokens("zoo/d4", [ids], [7, 9]), lambda ids: ld.attention_patterns("zoo/d4", ids)]
)
def test_patterns_that_do_not_fit_are_refused_before_the_pass(call, monkeypatch):
    """Attention step by step holds heads × tokens² numbers of a layer, beside the result."""
    import psutil

    ids = [1, 2, 3] * 10
    free = 4 * 4 * 2 * len(ids) ** 2  # one layer's, and nothing left for the result
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": free})())
        with pytest.raises(ld.InputError, match="GiB"):
            call(ids)
    call(ids)
