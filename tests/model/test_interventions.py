"""Contributions while the user's own hooks ablate or steer the model, against plain hooks that measure those."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import gpt2, llama
from tests.model.test_bridge import boot
from tests.oracles.loops import ouro

PROMPTS, OPTIONS = [[1, 2, 3, 4, 5], [7, 8, 9], [3, 4]], [7, 9, 11]
UNITS = ("sublayer", "head", "neuron")


def steering(width=32):
    return torch.randn(width, generator=torch.Generator().manual_seed(3))


def add(module, args, output):
    """Steer an output, or the first of several."""
    whole = isinstance(output, tuple)
    moved = (output[0] if whole else output) + steering()
    return (moved, *output[1:]) if whole else moved


def take_away(module, args, output):
    return (output[0] * 0, *output[1:]) if isinstance(output, tuple) else output * 0


def silence(module, args):
    return (args[0] * 0, *args[1:])


def add_before(module, args):
    return (args[0] + steering(), *args[1:])


def add_in_place(module, args):
    args[0].add_(steering())


def add_late(module, args, output):
    """Steer the fifth token only."""
    moved = output.clone()
    moved[:, 4:] += steering()
    return moved


def replace_all(module, args):
    return (steering().expand_as(args[0]),)


# A hook, and the layers of the interventions that it makes at units sublayer, head and neuron.
HOOKS = {
    "block": ("L1 L1 L1", lambda layers, base: layers[1].register_forward_hook(add)),
    "block, first": ("L1 L1 L1", lambda layers, base: layers[1].register_forward_hook(add, prepend=True)),
    "next block": ("L1 L1 L1", lambda layers, base: layers[2].register_forward_pre_hook(add_before)),
    "one token": ("L1 L1 L1", lambda layers, base: layers[1].register_forward_hook(add_late)),
    "embedding": ("embed embed embed", lambda layers, base: base.embed_tokens.register_forward_hook(add)),
    "first block": ("embed embed embed", lambda layers, base: layers[0].register_forward_pre_hook(add_before)),
    "final norm": ("L2 L2 L2", lambda layers, base: base.norm.register_forward_pre_hook(replace_all)),
    "attention": ("- L1 -", lambda layers, base: layers[1].self_attn.register_forward_hook(take_away)),
    "attention's output": ("- L1 -", lambda layers, base: layers[1].self_attn.o_proj.register_forward_hook(add)),
    "heads": ("- - -", lambda layers, base: layers[1].self_attn.o_proj.register_forward_pre_hook(silence)),
    "MLP": ("- - L1", lambda layers, base: layers[1].mlp.register_forward_hook(take_away)),
    "a norm's input": (
        "- - -",
        lambda layers, base: layers[1].input_layernorm.register_forward_pre_hook(add_before),
    ),
    "nothing": ("- - -", lambda layers, base: [m.register_forward_hook(lambda *seen: None) for m in base.modules()]),
}


def hooked(place):
    model = llama()
    HOOKS[place][1](model.model.layers, model.model)
    return model


def logits_and_writes(model):
    """By plain hooks, in the order of the pass: the options' logits, and z · W_U/σ of all that the blocks add."""
    expected = []
    for prompt in PROMPTS:
        held = []
        handles = [
            module.register_forward_pre_hook(lambda module, args, held=held: held.append(args[0][0, -1].double()))
            for module in (*model.model.layers, model.model.norm)
        ]
        with torch.no_grad():
            logits = model(torch.tensor([prompt]), use_cache=False).logits[0, -1, OPTIONS]
        for handle in handles:
            handle.remove()
        stream = torch.stack(held)
        sigma = (stream[-1].square().mean() + model.model.norm.variance_epsilon).sqrt()
        read = model.lm_head.weight.detach().double()[OPTIONS] * model.model.norm.weight.detach().double()
        moves = torch.cat([stream[:1], stream.diff(dim=0)]) @ read.T / sigma
        expected.append((logits, moves))
    return [torch.stack(x).double().numpy() for x in zip(*expected, strict=True)]


@pytest.mark.full
@pytest.mark.parametrize("place", HOOKS)
def test_what_a_hook_adds(place):
    """All sum to the hooked model's logits, and every layer's to what it adds to the stream, hooks included."""
    model = hooked(place)
    logits, moves = logits_and_writes(model)
    plain = ld.contributions(llama(), PROMPTS, OPTIONS)
    for unit, expected in zip(UNITS, HOOKS[place][0].split(), strict=True):
        for batch_tokens in (None, 5):
            c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit, batch_tokens=batch_tokens)
            label = {"-": [], "embed": ["intervention"]}.get(expected, [f"{expected}.intervention"])
            assert [x.label for x in c.components if x.kind == "intervention"] == label
            assert c.identity_gap <= 1e-6
            np.testing.assert_allclose(c.logits, logits, atol=1e-5)
            layers = [None, 0, 1, 2]
            sums = [c.values[:, [x.layer == layer for x in c.components]].sum(1) for layer in layers]
            np.testing.assert_allclose(np.stack(sums, 1), moves, atol=1e-5)
            if place == "embedding":  # the embedding itself is that of the model without hooks
                ratio = c.values[:, 0] / plain.values[:, 0]
                np.testing.assert_allclose(ratio, ratio[:, :1].repeat(3, 1), rtol=1e-4)
            if unit == "sublayer" and place in ("attention", "MLP"):  # the changed write is the component
                assert not c[f"L1.{'attn' if place == 'attention' else 'mlp'}"].any()
            if place == "one token":
                assert not c.select(kind="intervention").values[1:].any()
            if expected == "L1":  # before it, the layer's sums may be no stream of the hooked model
                partial = [j.label for j, p in zip(c.junctions, c.partial_junctions, strict=True) if p]
                assert partial == ["L1.attn", "L1.mlp"]
    if place == "nothing":
        np.testing.assert_array_equal(ld.contributions(model, PROMPTS, OPTIONS).values, plain.values)


def test_several_hooks_and_what_they_restore():
    """Two ablations, steering and an embedding at once; and an ablation that a later hook undoes is still one."""
    model = hooked("attention")
    layers = model.model.layers
    layers[2].mlp.register_forward_hook(lambda module, args, output: steering().expand_as(output))
    layers[2].register_forward_hook(add)
    model.model.embed_tokens.register_forward_hook(add)
    c = ld.contributions(model, PROMPTS, OPTIONS)
    np.testing.assert_allclose(c.logits, logits_and_writes(model)[0], atol=1e-5)
    assert [x.label for x in c.components if x.kind == "intervention"] == ["intervention", "L2.intervention"]
    assert not c["L1.attn"].any()
    assert "intervention" in ld.decompose(c, [0, 1, 2]).by_module()["module"].tolist()
    profile = ld.profile(model, PROMPTS[0], unit="head")
    assert profile.identity_gap <= 1e-6
    assert ld.Component.parse("L2.intervention") in profile.components
    model, held = llama(), {}

    def keep(module, args, output):
        held.update(taken=output[0])
        return take_away(module, args, output)

    model.model.layers[1].self_attn.register_forward_hook(keep)
    model.model.layers[1].register_forward_hook(lambda module, args, output: output + held["taken"])
    c = ld.contributions(model, PROMPTS, OPTIONS)
    assert not c["L1.attn"].any()
    assert c["L1.intervention"].any()


def test_what_no_hook_explains_is_refused():
    """A wrapped module beside hooks that change something else in its layer; a hook within a block; both by name."""
    model = llama()
    layer = model.model.layers[1]
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: forward(*args, **kwargs) + steering() ** 2
    for module in (layer.mlp, layer.self_attn.q_proj, model.model.layers[2]):
        module.register_forward_hook(add)
    inside = llama()  # changes the stream within a block, where no component stands
    inside.model.layers[1].post_attention_layernorm.register_forward_pre_hook(add_in_place)
    for refused in (model, inside):
        for unit in UNITS:
            with pytest.raises(ld.InputError, match="block 1 .* block 2.*model.layers.1"):
                ld.contributions(refused, PROMPTS, OPTIONS, unit=unit)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blocks.2.hook_resid_pre", "L1.intervention"),
        ("blocks.2.hook_resid_post", "L2.intervention"),
        ("blocks.2.hook_mlp_out", None),
        ("hook_embed", "intervention"),
    ],
)
def test_hooks_of_a_bridge(name, expected):
    """`bridge.hooks(...)` as TransformerLens runs them."""
    bridge = boot(llama())
    model = ld.load_model(bridge)
    before = ld.contributions(model, PROMPTS, OPTIONS)
    with bridge.hooks(fwd_hooks=[(name, lambda x, hook: x * 0.5)]):
        c = ld.contributions(model, PROMPTS, OPTIONS)
        with torch.no_grad():
            logits = [bridge(torch.tensor([p]), return_type="logits")[0, -1, OPTIONS] for p in PROMPTS]
    np.testing.assert_allclose(c.logits, torch.stack(logits).numpy(), atol=1e-5)
    assert [x.label for x in c.components if x.kind == "intervention"] == ([expected] if expected else [])
    np.testing.assert_array_equal(ld.contributions(model, PROMPTS, OPTIONS).values, before.values)


def test_positions_and_loops():
    """GPT-2's positions belong to the embedding; of a looped layer every round has the row, or none."""
    model = gpt2()
    model.transformer.wpe.register_forward_hook(lambda module, args, output: output * 2)
    c = ld.contributions(model, PROMPTS, OPTIONS, unit="head")
    assert [x.label for x in c.components[:3]] == ["embed", "pos_embed", "intervention"]
    np.testing.assert_allclose(c["intervention"], c["pos_embed"], rtol=1e-4, atol=1e-6)
    model, rounds = ouro(), []

    def second_round(module, args, output):
        rounds.append(1)
        return output + steering() if len(rounds) % 3 == 2 else None

    model.model.layers[0].register_forward_hook(second_round)
    c = ld.contributions(model, PROMPTS, OPTIONS)
    assert c.identity_gap <= 1e-6
    assert [bool(c[f"L0@{repeat}.intervention"].any()) for repeat in (1, 2, 3)] == [False, True, False]
    model = ouro()
    model.model.layers[0].register_forward_pre_hook(add_before)
    with pytest.raises(ld.InputError, match="block 0"):
        ld.contributions(model, PROMPTS, OPTIONS)
