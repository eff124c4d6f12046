"""Contributions while the user's own hooks ablate or steer the model, against plain hooks that measure those."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import gpt2, llama
from tests.model.test_bridge import boot
from tests.oracles.families import BY_STRUCTURE, FAMILIES
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


# A hook, and whether it adds to the stream outside of what components write.
HOOKS = {
    "block": (True, lambda layers, base: layers[1].register_forward_hook(add)),
    "block, first": (True, lambda layers, base: layers[1].register_forward_hook(add, prepend=True)),
    "next block": (True, lambda layers, base: layers[2].register_forward_pre_hook(add_before)),
    "one token": (True, lambda layers, base: layers[1].register_forward_hook(add_late)),
    "first block": (True, lambda layers, base: layers[0].register_forward_pre_hook(add_before)),
    "final norm": (True, lambda layers, base: base.norm.register_forward_pre_hook(replace_all)),
    "twice as much": (True, lambda layers, base: layers[1].register_forward_hook(double)),
    "embedding": (False, lambda layers, base: base.embed_tokens.register_forward_hook(add)),
    "attention": (False, lambda layers, base: layers[1].self_attn.register_forward_hook(take_away)),
    "attention's output": (False, lambda layers, base: layers[1].self_attn.o_proj.register_forward_hook(add)),
    "heads": (False, lambda layers, base: layers[1].self_attn.o_proj.register_forward_pre_hook(silence)),
    "MLP": (False, lambda layers, base: layers[1].mlp.register_forward_hook(take_away)),
    "a norm's input": (False, lambda layers, base: layers[1].input_layernorm.register_forward_pre_hook(add_before)),
    "nothing": (
        False,
        lambda layers, base: [m.register_forward_hook(lambda *seen: None) for m in base.modules()],
    ),
}
# Units at which a changed write is more than its parts, and what is left of it is added.
SPLIT = {"attention": "head", "attention's output": "head", "MLP": "neuron"}


def double(module, args, output):
    return output * 2


def add_scaled(module, args, output):
    """Steer, whatever the width and the number of streams."""
    several = isinstance(output, tuple | list)
    first = output[0] if several else output
    moved = first + 0.1 * torch.linspace(-1, 1, first.shape[-1])
    return type(output)([moved, *output[1:]]) if several else moved


STEERED = {"gpt2", "gemma4", "deepseek_v4", "gemma3n", "openai_gpt", "bloom", "minimax", "hrm_text"}


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


@pytest.mark.parametrize(
    "place", [p if p in ("block", "MLP") else pytest.param(p, marks=pytest.mark.full) for p in HOOKS]
)
def test_what_a_hook_adds(place):
    """All sum to the hooked model's logits; outside of writes it is one row, a changed write is its component's."""
    model, calls = hooked(place), []
    model.model.embed_tokens.register_forward_hook(lambda *seen: calls.append(1))
    logits, moves = logits_and_writes(model)
    plain = ld.contributions(llama(), PROMPTS, OPTIONS)
    for unit in UNITS:
        for batch_tokens in (None, 5):
            calls.clear()
            c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit, batch_tokens=batch_tokens)
            assert len(calls) == (1 if batch_tokens is None else 3)  # the replay is silent
            assert ("added" in c) == (HOOKS[place][0] or SPLIT.get(place) == unit)
            assert c.identity_gap <= 1e-6
            np.testing.assert_allclose(c.logits, logits, atol=1e-5)
            if not HOOKS[place][0] and SPLIT.get(place) != unit:
                sums = [c.values[:, [x.layer == layer for x in c.components]].sum(1) for layer in (None, 0, 1, 2)]
                np.testing.assert_allclose(np.stack(sums, 1), moves, atol=1e-5)
            if unit == "sublayer" and place in ("attention", "MLP"):
                assert not c[f"L1.{'attn' if place == 'attention' else 'mlp'}"].any()
            if place == "one token":
                assert not c["added"][1:].any()
    if place == "nothing":
        np.testing.assert_array_equal(ld.contributions(model, PROMPTS, OPTIONS).values, plain.values)


@pytest.mark.parametrize("place", ["block", "twice as much", "final norm"])
def test_what_is_added_is_the_difference_that_the_hook_makes(place):
    """By plain hooks: the steering vector at the final norm's statistic, for a hook that adds, doubles or replaces."""
    model, streams, finals, handles = hooked(place), [], [], []
    before = {"twice as much": 1, "final norm": 2}.get(place)
    if before is not None:
        layer = model.model.layers[before]
        handles.append(layer.register_forward_hook(lambda m, a, out: streams.append(out[0, -1]), prepend=True))
    handles.append(model.model.norm.register_forward_hook(lambda m, a, out: finals.append(a[0][0, -1].double())))
    with torch.no_grad():
        model(torch.tensor(PROMPTS[:1]))
    for handle in handles:
        handle.remove()
    moved = {"block": steering, "twice as much": lambda: streams[0], "final norm": lambda: steering() - streams[0]}
    sigma = (finals[0].square().mean() + model.model.norm.variance_epsilon).sqrt()
    read = (model.lm_head.weight * model.model.norm.weight).detach().double()[OPTIONS] / sigma
    c = ld.contributions(model, PROMPTS[:1], OPTIONS)
    np.testing.assert_allclose(c["added"][0], read @ moved[place]().double(), atol=1e-5)


def test_several_hooks_and_what_they_restore():
    """Two ablations, steering and an embedding at once; and an ablation that a later hook undoes is still one."""
    model = hooked("attention")
    layers = model.model.layers
    layers[2].mlp.register_forward_hook(lambda module, args, output: steering().expand_as(output))
    layers[2].register_forward_hook(add)
    model.model.embed_tokens.register_forward_hook(add)
    c = ld.contributions(model, PROMPTS, OPTIONS)
    np.testing.assert_allclose(c.logits, logits_and_writes(model)[0], atol=1e-5)
    assert not c["L1.attn"].any()
    assert "added" in ld.decompose(c, [0, 1, 2]).by_module()["module"].tolist()
    profile = ld.profile(model, PROMPTS[0], unit="head")
    assert profile.identity_gap <= 1e-6
    assert ld.Component.parse("added") in profile.components
    model, held = llama(), {}

    def keep(module, args, output):
        held.update(taken=output[0])
        return take_away(module, args, output)

    model.model.layers[1].self_attn.register_forward_hook(keep)
    model.model.layers[1].register_forward_hook(lambda module, args, output: output + held["taken"])
    c = ld.contributions(model, PROMPTS, OPTIONS)
    assert not c["L1.attn"].any()
    assert c["added"].any()


def test_what_no_hook_explains_is_refused():
    """A hook that changes the stream in place, within a block; and one on what the unembedding gives."""
    model = llama()
    model.model.layers[1].post_attention_layernorm.register_forward_pre_hook(add_in_place)
    behind = llama()
    behind.lm_head.register_forward_hook(lambda module, args, output: output * 2)
    for refused in (model, behind):
        for unit in UNITS:
            with pytest.raises(ld.InputError, match="decomposed"):
                ld.contributions(refused, PROMPTS, OPTIONS, unit=unit)


@pytest.mark.parametrize("name", sorted(STEERED))
def test_steering_on_every_kind_of_path(name):
    """Norms, gates and several streams behind a block's hook: what it adds goes the model's own way."""
    model = (FAMILIES | BY_STRUCTURE)[name]()
    block = next(w.block for w in ld.load_model(model).path.writers if w.component.layer == 1)
    block.register_forward_hook(add_scaled)
    with torch.no_grad():
        logits = np.stack([model(torch.tensor([p]), use_cache=False).logits[0, -1, OPTIONS].numpy() for p in PROMPTS])
    c = ld.contributions(model, PROMPTS, OPTIONS)
    assert c.identity_gap <= 1e-6
    assert "added" in c
    if c.soft_cap is None:
        np.testing.assert_allclose(c.logits, logits, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "adds"),
    [
        ("blocks.2.hook_resid_pre", True),
        ("blocks.2.hook_resid_post", True),
        ("blocks.2.hook_mlp_out", False),
        ("hook_embed", False),
    ],
)
def test_hooks_of_a_bridge(name, adds):
    """`bridge.hooks(...)` as TransformerLens runs them."""
    bridge = boot(llama())
    model = ld.load_model(bridge)
    before = ld.contributions(model, PROMPTS, OPTIONS)
    with bridge.hooks(fwd_hooks=[(name, lambda x, hook: x * 0.5)]):
        c = ld.contributions(model, PROMPTS, OPTIONS)
        with torch.no_grad():
            logits = [bridge(torch.tensor([p]), return_type="logits")[0, -1, OPTIONS] for p in PROMPTS]
    np.testing.assert_allclose(c.logits, torch.stack(logits).numpy(), atol=1e-5)
    assert ("added" in c) == adds
    np.testing.assert_array_equal(ld.contributions(model, PROMPTS, OPTIONS).values, before.values)


def test_loops():
    """Of a looped layer a hook may act in one round only."""
    model, rounds = ouro(), []

    def second_round(module, args, output):
        rounds.append(1)
        return output + steering() if len(rounds) % 3 == 2 else None

    model.model.layers[0].register_forward_hook(second_round)
    c = ld.contributions(model, PROMPTS, OPTIONS)
    assert c.identity_gap <= 1e-6
    assert "added" in c


def test_a_hook_on_the_unembedding_sees_all_tokens():
    """One that tells tokens apart changes what the model answers, which no component wrote: refused."""
    model = llama()
    model.lm_head.register_forward_hook(lambda m, a, out: out * (1 + torch.arange(out.shape[1]).view(1, -1, 1) * 0.1))
    with pytest.raises(ld.InputError, match="decomposed"):
        ld.contributions(model, PROMPTS, OPTIONS)
    seen = llama()
    shapes = []
    seen.lm_head.register_forward_hook(lambda m, a, out: shapes.append(tuple(out.shape[:2])))
    state = torch.random.get_rng_state()
    assert ld.contributions(seen, PROMPTS, OPTIONS).identity_gap <= 1e-6
    assert shapes == [(3, 5)]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_bias_that_was_zero_is_a_row_when_it_is_none():
    """Rows of a path are those of today's weights."""
    model = gpt2()
    with torch.no_grad():
        model.transformer.ln_f.bias.zero_()
    assert "constant" not in [c.label for c in ld.load_model(model).components()]
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(0.5)
    loaded = ld.load_model(model)
    assert "constant" in [c.label for c in loaded.components()]
    assert ld.profile(loaded, PROMPTS[0]).identity_gap <= 1e-6
