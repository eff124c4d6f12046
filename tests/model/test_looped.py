"""Layers that run several times in a pass: tied blocks, MobileLLM's sharing, loops with a norm in between."""

from __future__ import annotations

import copy
import zlib
from itertools import pairwise

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.attention import attention_patterns
from layerdiv_tl.views.explorer.pack import pack_text
from tests.conftest import pair_table, tied, unrolled
from tests.model.test_bridge import boot
from tests.oracles.loops import ouro, raven

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5], [17, 11, 60, 4, 7]]
OPTIONS = [7, 8, 9]


SHARED = {
    "pairs": lambda: tied(0, 0, 1, 1),
    "cycle": lambda: tied(0, 1, 0, 1),
    "some": lambda: tied(0, 1, 1, 2),
    "ouro": ouro,
}


@pytest.fixture(params=list(SHARED))
def shared(request):
    return SHARED[request.param]()


@torch.no_grad()
def rounds(model, ids, skipped=None):
    """An Ouro by hand, float64: (stream entering, stream leaving) of every block, writes in the last stream, logits.

    `skipped`: the number of a block, in order of use, that hands on what it is given.
    """
    model = copy.deepcopy(model).double()
    norm, read = model.model.norm, model.lm_head.weight
    entered, left, carried = [], [], []

    def block(number, layer):
        def forward(hidden, **kwargs):
            repeat = len(entered)
            entered.append(hidden[0])
            attended = layer.input_layernorm_2(layer.self_attn(layer.input_layernorm(hidden), **kwargs)[0])
            middle = hidden + attended
            computed = layer.post_attention_layernorm_2(layer.mlp(layer.post_attention_layernorm(middle)))
            if repeat == skipped:
                attended, computed = attended * 0, computed * 0
            carried.extend([attended[0], computed[0]])
            left.append((hidden + attended + computed)[0])
            if number == len(model.model.layers) - 1 and repeat + 1 < model.config.total_ut_steps * (number + 1):
                matrix = norm.weight / (left[-1].square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
                carried[:] = [x * matrix for x in carried]
            return (hidden + attended + computed).clone()

        return forward

    for number, layer in enumerate(model.model.layers):
        layer.forward = block(number, layer)
    carried.append(model.model.embed_tokens(torch.tensor(ids)))
    logits = model(torch.tensor([ids])).logits[0]
    last = norm.weight / (left[-1].square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    return entered, left, [(x * last) @ read.T for x in carried], logits


def test_a_loop_by_hand():
    """At their own statistics the norms between rounds are matrices: components are the writes times all of them."""
    c = ld.contributions(ouro(), PROMPTS, OPTIONS)
    assert c.identity_gap <= 1e-6
    repeats = [f"L{layer}@{repeat}.{kind}" for repeat in (1, 2, 3) for layer in (0, 1) for kind in ("attn", "mlp")]
    assert [x.label for x in c.components] == ["embed", *repeats]
    for row, ids in enumerate(PROMPTS):
        _, _, parts, logits = rounds(ouro(), ids)
        expected = torch.stack([part[-1, OPTIONS] for part in parts])
        np.testing.assert_allclose(c.values[row], expected, atol=1e-6)
        np.testing.assert_allclose(c.model_logits[row], logits[-1, OPTIONS], atol=1e-6)


@pytest.mark.parametrize("unit", ["head", "neuron"])
def test_the_parts_of_a_loop_add_up_to_its_sublayers(unit):
    """Heads and neurons pass the norms between rounds like the sublayer that they make up."""
    whole, c = (ld.contributions(ouro(), PROMPTS, OPTIONS, unit=u) for u in ("sublayer", unit))
    assert c.identity_gap <= 1e-6
    for number, component in enumerate(whole.components):
        parts = [i for i, x in enumerate(c.components) if x.sublayer == component]
        np.testing.assert_allclose(c.values[:, parts].sum(1), whole.values[:, number], atol=1e-6)
    profiles = [ld.profile(ouro(), PROMPTS[0], unit=u) for u in ("sublayer", unit)]
    assert max(p.identity_gap for p in profiles) <= 1e-6
    here = [i for i, x in enumerate(profiles[1].components) if x.label.startswith("L0@1.") and x.module == "attention"]
    np.testing.assert_allclose(profiles[1].target_logit[here].sum(0), profiles[0].target_logit[1], atol=1e-6)


def test_a_norm_that_is_only_asked_carries_nothing():
    """A model may read its stream out on the way and go on with it as it was."""
    model = tied(0, 0, 1)
    expected = ld.contributions(model, PROMPTS, OPTIONS)

    def ask(module, args):
        asked.append(model.model.norm(args[0]))

    asked = []
    model.model.layers[2].register_forward_pre_hook(ask)
    np.testing.assert_array_equal(ld.contributions(model, PROMPTS, OPTIONS).values, expected.values)
    assert asked


@pytest.mark.full
def test_a_loop_through_a_bridge():
    """TransformerLens' hooks fire once a round: the same numbers. Its cache has the last round only: refused."""
    bridge = ld.load_model(boot(ouro()))
    for unit in ("sublayer", "head"):
        plain, bridged = (ld.contributions(model, PROMPTS, OPTIONS, unit=unit) for model in (ouro(), bridge))
        assert bridged.components == plain.components == bridge.components(unit)
        np.testing.assert_allclose(bridged.values, plain.values, atol=1e-5)
        tokens = torch.tensor(PROMPTS[:1])
    _, cache = bridge.root.run_with_cache(tokens)
    with pytest.raises(ld.InputError, match="cache"):
        ld.contributions(cache, tokens, OPTIONS)


def test_what_cannot_be_decomposed_says_why():
    """A random state with norms on the stream itself; an answer from another round than the last is exact."""
    with pytest.raises(ld.InputError, match="decomposed"):
        ld.load_model(raven())
    model = ouro(early_exit_threshold=0.1)
    c = ld.contributions(model, PROMPTS, OPTIONS)
    with torch.no_grad():
        plain = torch.stack([model(torch.tensor([prompt])).logits[0, -1, OPTIONS] for prompt in PROMPTS])
    assert c.identity_gap < 1e-6
    np.testing.assert_allclose(c.logits, plain, atol=1e-5)


@pytest.mark.parametrize("place", ["norm", "input_layernorm_2"])
def test_norms_whose_biases_nobody_wrote(place):
    """The bias of a norm between rounds is constant; that of one after a sublayer goes the way of that sublayer."""
    model = ouro()
    for holder in [model.model] if place == "norm" else model.model.layers:
        setattr(holder, place, torch.nn.LayerNorm(32))
        torch.nn.init.normal_(getattr(holder, place).bias)
    for unit in ("sublayer", "head", "neuron"):
        c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
        assert c.identity_gap <= 1e-6
        assert ("constant" in c) == (place == "norm")


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_components_lists_every_use(shared, unit):
    """What a model says it has is what a pass gives."""
    model = ld.load_model(shared)
    c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    assert c.identity_gap <= 1e-6
    assert model.components(unit) == c.components == ld.profile(model, PROMPTS[0], unit=unit).components
    assert [x.layer for x in c.junctions[1::2]] == [x.layer for x in c.junctions[2::2]]


def test_only_a_reused_layer_counts_its_uses():
    """A layer that runs once keeps its plain name next to one that runs twice."""
    labels = [x.label for x in ld.contributions(tied(0, 1, 1, 2), PROMPTS, OPTIONS).components]
    assert labels == ["embed", *(f"{x}.{s}" for x in ("L0", "L1@1", "L1@2", "L2") for s in ("attn", "mlp"))]


@pytest.mark.full
@pytest.mark.parametrize("order", [(0, 0, 1, 1), (0, 1, 0, 1)])
def test_an_unrolled_copy_gives_the_same_numbers(order):
    """The same weights in separate blocks: other names, equal numbers everywhere."""
    prompts, layers = PROMPTS, (0, 1)
    one = tied(*order)
    other = unrolled(one)
    for unit in ("sublayer", "head"):
        a, b = (ld.contributions(model, prompts, OPTIONS, unit=unit) for model in (one, other))
        np.testing.assert_array_equal(a.values, b.values)
        p, q = (ld.profile(model, prompts[0], unit=unit) for model in (one, other))
        np.testing.assert_allclose(p.diversity, q.diversity, rtol=1e-12)
        np.testing.assert_allclose(p.bias, q.bias, rtol=1e-12)
    uses = [(layer, repeat) for repeat in (1, 2) for layer in layers]
    names = [f"L{layer}@{repeat}.layer" for layer, repeat in (uses if order == (0, 1, 0, 1) else sorted(uses))]
    for part in ("layer", "attn"):
        for mode in ("current", "future", "local"):
            s, t = (ld.depth.skip(model, prompts, part, mode) for model in (one, other))
            for name in ("output_change", "loss"):
                np.testing.assert_array_equal(s.values[name], t.values[name])
            np.testing.assert_array_equal(pair_table(s), pair_table(t))
            assert list(dict.fromkeys(c.label for c in s.pairs.targets)) == names[1:]
            assert list(dict.fromkeys(c.label for c in t.pairs.targets)) == [
                f"L{i}.layer" for i in range(1, len(names))
            ]
    for analysis in (ld.depth.residual_norms, ld.depth.logit_lens, ld.depth.erase):
        s, t = (analysis(model, prompts).frame() for model in (one, other))
        numbers = s.select_dtypes("float").columns.drop("layer", errors="ignore")
        np.testing.assert_array_equal(s[numbers], t[numbers])
        assert s["repeat"].notna().sum() >= 4
        assert t["repeat"].isna().all()


@pytest.mark.full
@pytest.mark.parametrize("bridged", [False, True])
def test_depth_of_a_loop_by_hand(bridged):
    """Sizes, skips and lens of a looped model are those of a pass by hand, norms between rounds included."""
    model, ids = ld.load_model(boot(ouro()) if bridged else ouro()), PROMPTS[0]
    entered, left, parts, logits = rounds(ouro(), ids)
    wrote = [after - before for before, after in zip(entered, left, strict=True)]
    sizes = ld.depth.residual_norms(model, [ids])
    layers = [i for i, c in enumerate(sizes.components) if c.kind == "layer"]
    relative = torch.stack([w.norm(dim=-1) / e.norm(dim=-1) for w, e in zip(wrote, entered, strict=True)], 1)
    np.testing.assert_allclose(sizes.values["relative_norm"][:, layers], relative, rtol=1e-5)

    skip = ld.depth.skip(model, [ids], first_token="changed")
    for number in range(6):
        before, after, _, answers = rounds(ouro(), ids, number)
        np.testing.assert_allclose(
            skip.values["output_change"][:, number], (answers.softmax(-1) - logits.softmax(-1)).norm(dim=-1), atol=1e-6
        )
        for later in range(number + 1, 6):
            off = (after[later] - before[later] - wrote[later]).norm(dim=-1) / wrote[later].norm(dim=-1)
            np.testing.assert_allclose(pair_table(skip)[:, number, later], off, rtol=1e-4)

    # So does a layer that is skipped at some tokens.
    kept = [ld.depth.skip(m, [ids]) for m in (model, ouro())]
    np.testing.assert_allclose(kept[0].values["output_change"], kept[1].values["output_change"], atol=1e-6)
    assert np.abs(kept[0].values["output_change"] - skip.values["output_change"]).max() > 0

    # Behind each round the lens says what the model would, were it to stop there.
    lens = ld.depth.logit_lens(model, [ids])
    for stop in (1, 2):
        with torch.no_grad():
            early = ouro(total_ut_steps=stop)(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        kl = (early.exp() * (early - logits.log_softmax(-1))).sum(-1)
        at = [c.label for c in lens.components].index(f"L1@{stop}.mlp")
        np.testing.assert_allclose(lens.values["kl"][:, at], kl, rtol=1e-4, atol=1e-6)
    frozen = ld.depth.logit_lens(model, [ids], "frozen")
    sums = torch.stack(parts).cumsum(0)
    for at, so_far in enumerate(sums):
        here = so_far.log_softmax(-1)
        kl = (here.exp() * (here - logits.log_softmax(-1))).sum(-1)
        np.testing.assert_allclose(frozen.values["kl"][:, at], kl, rtol=1e-4, atol=1e-5)


def test_what_a_use_writes_directly_passes_the_norms_behind_it():
    """A local skip takes out of the last stream what contributions say that the layer put there."""
    ids = PROMPTS[0]
    local = ld.depth.skip(ouro(), [ids], mode="local", first_token="changed")
    _, left, _, logits = rounds(ouro(), ids)
    model = ouro().double()
    c = ld.contributions(model, [ids] * len(ids), list(range(61)), position=list(range(len(ids))))
    weight, eps = model.model.norm.weight.detach(), model.model.norm.variance_epsilon
    sigma = (left[-1].square().mean(-1, keepdim=True) + eps).sqrt()
    read = model.lm_head.weight.detach() * weight
    for number, component in enumerate(local.components):
        mine = [i for i, x in enumerate(c.components) if (x.layer, x.repeat) == (component.layer, component.repeat)]
        said = torch.as_tensor(c.values[:, mine].sum(1)) * sigma
        stream = left[-1] - said @ torch.linalg.pinv(read.T)
        without = (stream / (stream.square().mean(-1, keepdim=True) + eps).sqrt()) @ read.T
        expected = (without.softmax(-1) - logits.softmax(-1)).norm(dim=-1)
        np.testing.assert_allclose(local.values["output_change"][:, number], expected, atol=1e-5)


@pytest.mark.full
def test_gradients_of_a_loop_are_complete():
    """They sum to the change of the answer."""
    found = ld.depth.integrated_gradients(ouro(), PROMPTS[:2], steps=128)
    assert found.frame()["gap"].max() <= 0.05
    assert found.components[-1].label == "L1@3.layer"


def test_layers_of_a_loop_are_foretold_by_those_of_its_unrolled_self():
    """A layer map between equal models: every use is best foretold by itself."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 61, 20).tolist() for _ in range(12)]
    error = ld.depth.map_layers(ouro(), ouro(), texts).values["error"].mean(0).reshape(6, 6)
    assert (error.argmin(1) == np.arange(6)).all()
    assert error.diagonal().max() < 0.01


def test_the_depth_of_a_loop_follows_its_rounds():
    """Junctions stand in the order of use: every prefix is the one before and what was written next."""
    c = ld.contributions(ouro(), PROMPTS, OPTIONS)
    frame = ld.decompose(c, [0, 1, 2]).by_depth()
    assert frame["component"].tolist() == [x.label for x in c.components]
    assert all(a < b for a, b in pairwise(frame["members"]))


def test_what_heads_of_reused_layers_look_at():
    """Every use has its own patterns: those of an unrolled copy, and of every round of a loop by hand."""
    shared, plain = (attention_patterns(make, PROMPTS[0]) for make in (tied(0, 1, 0), unrolled(tied(0, 1, 0))))
    assert [c.label for c in shared.components[::4]] == ["L0@1.H0", "L1.H0", "L0@2.H0"]
    np.testing.assert_array_equal(shared.patterns, plain.patterns)
    model, seen = ouro(), []
    model.set_attn_implementation("eager")
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda module, args, output: seen.append(output[1][0]))
    with torch.no_grad():
        model(torch.tensor(PROMPTS[:1]))
    looped = attention_patterns(boot(ouro()), PROMPTS[0])
    assert [c.label for c in looped.components[::4]] == [f"L{i}@{repeat}.H0" for repeat in (1, 2, 3) for i in (0, 1)]
    np.testing.assert_allclose(looped.patterns, torch.cat(seen), atol=1e-6)
    with pytest.raises(ld.InputError, match="heads"):
        attention_patterns(ouro(), PROMPTS[0])


def test_the_explorer_of_a_reused_layer():
    """Heads stand in the rows of their uses, and the choice says which use it is."""
    for model in (tied(0, 0, 1), ouro()):
        explorer = ld.explore(model, PROMPTS[0])
        explorer.selection = {"component": "L0@2.H1"}
        assert explorer.selection.component == "L0@2.H1"
        packed_header = zlib.decompress(pack_text(explorer.model, explorer.text)).replace(b" ", b"")
        for row in (b"L0@1", b"L0@2"):
            assert packed_header.count(b'"row":"%s"' % row) == 6  # attention, MLP and four heads
