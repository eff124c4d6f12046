"""Streams that pass norms, gates and mixings: what removing a write changes, where the sum breaks, what is refused."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model import streams
from layerdiv_tl.model.capture import output_tensor
from tests.oracles.families import BY_STRUCTURE, FAMILIES, OFFSET_NORMS

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5], [17, 11, 60, 4, 7]]
OPTIONS = [7, 8, 9]


def some(*names, full):
    """Parameters of which some belong to the whole suite only."""
    return [*names, *(pytest.param(name, marks=pytest.mark.full) for name in full)]


def gain_of(norm):
    """What a norm multiplies by."""
    return norm.weight + (type(norm).__name__ in OFFSET_NORMS)


def held_norm(norm, seen):
    """A norm at the statistic of what it once read."""
    if isinstance(norm, torch.nn.LayerNorm):
        sigma = (seen.var(-1, keepdim=True, correction=0) + norm.eps).sqrt()
        return lambda x: (x - x.mean(-1, keepdim=True)) / sigma * norm.weight + norm.bias
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    sigma = (seen.square().mean(-1, keepdim=True) + eps).sqrt()
    return lambda x: x / sigma * gain_of(norm)


def held_head(x, out):
    """The weights of a read-out of several streams, from what it read and returned; then a sum with these weights."""
    pre = torch.linalg.lstsq(x.double().transpose(-1, -2), out.double()[..., None]).solution
    return lambda streams: (pre * streams.double()).sum(-2).to(streams.dtype)


def held_mixing(module, stack, ids, model):
    """A hyper-connection that gives what it once gave for a sublayer's way into the streams, and for their mixing."""
    kept = []
    with torch.no_grad(), ExitStack() as recording:
        recording.callback(module.register_forward_hook(lambda m, a, out: kept.append((a[0], out))).remove)
        model(torch.tensor([ids]), use_cache=False)
    x, out = kept[0]
    if isinstance(out, tuple):
        stack.callback(module.register_forward_hook(lambda m, a, now: (*out[:-1], now[-1])).remove)
    else:
        held = held_head(x, out)
        stack.callback(module.register_forward_hook(lambda m, a, now: held(a[0])).remove)


def logits_with_all_held(architecture, ids, norms, removed=None):
    """The model's own forward with every sublayer's output and every statistic on the stream held, one write gone.

    `norms`: what the stream itself passes, the final norm too.
    """
    model, seen, read = architecture.root, {}, {}
    with torch.no_grad():
        with ExitStack() as stack:
            for sublayer in architecture.sublayers:
                module = sublayer.hook_point.module
                hook = module.register_forward_hook(lambda m, a, out: seen.update({m: output_tensor(out).clone()}))
                stack.callback(hook.remove)
            for norm in norms:
                hook = norm.register_forward_pre_hook(lambda m, a: read.update({m: a[0].clone()}))
                stack.callback(hook.remove)
            model(torch.tensor([ids]), use_cache=False)
        with ExitStack() as stack:
            for name, module in model.named_modules():
                if name.endswith(("attn_hc", "ffn_hc", "hc_head")):
                    held_mixing(module, stack, ids, model)
            for sublayer in architecture.sublayers:
                point = sublayer.hook_point.module
                instead = seen[point] * (sublayer is not architecture.sublayers[removed] if removed is not None else 1)

                def hold(module, args, out, instead=instead):
                    return type(out)([instead, *out[1:]]) if isinstance(out, tuple | list) else instead

                stack.callback(point.register_forward_hook(hold).remove)
            for norm in norms:
                held = held_norm(norm, read[norm])
                stack.callback(norm.register_forward_hook(lambda m, a, out, held=held: held(a[0])).remove)
            return model(torch.tensor([ids]), use_cache=False).logits[0, -1, OPTIONS].double().numpy()


NORMS = {
    "gemma4": lambda model: [model.model.norm],
    "doge": lambda model: [model.model.norm],
    "deepseek_v4": lambda model: [model.model.norm],
    "openai_gpt": lambda model: [norm for block in model.transformer.h for norm in (block.ln_1, block.ln_2)],
    "opt_350m": lambda model: [
        norm for block in model.model.decoder.layers for norm in (block.self_attn_layer_norm, block.final_layer_norm)
    ],
}


@pytest.mark.parametrize("name", some("gemma4", "openai_gpt", full=("doge", "opt_350m", "deepseek_v4")))
def test_members_one_by_one(name):
    """The logits move by a member's contribution when it alone is taken out and every coefficient stays."""
    model = BY_STRUCTURE[name]()
    c = ld.contributions(model, PROMPTS[:1], OPTIONS)
    architecture = ld.load_model(model).architecture
    whole = logits_with_all_held(architecture, PROMPTS[0], NORMS[name](model))
    np.testing.assert_allclose(whole, c.model_logits[0], atol=1e-5)
    size = np.abs(c.values).sum(1).max()
    for number, sublayer in enumerate(architecture.sublayers):
        without = logits_with_all_held(architecture, PROMPTS[0], NORMS[name](model), number)
        row = c.components.index(ld.Component(sublayer.kind, sublayer.layer))
        assert np.abs(whole - without - c.values[0, row]).max() <= 1e-6 * size


@pytest.mark.parametrize("name", some("openai_gpt", "deepseek_v4", full=("gemma4", "hrm_text")))
def test_heads_and_the_whole_vocabulary(name):
    """Heads sum to their sublayer, through every norm behind it; a profile says the same as single tokens."""
    model = ld.load_model(BY_STRUCTURE[name]())
    whole, heads = (ld.contributions(model, PROMPTS[:1], OPTIONS, unit=unit) for unit in ("sublayer", "head"))
    for row, component in enumerate(whole.components):
        parts = [i for i, x in enumerate(heads.components) if x.sublayer == component]
        np.testing.assert_allclose(heads.values[:, parts].sum(1), whole.values[:, row], atol=1e-6)
    text = [*PROMPTS[0], 7]
    profile = ld.profile(model, text, precision="float64")
    assert profile.components == whole.components
    np.testing.assert_allclose(profile.target_logit[:, -2], whole.values[0, :, 0], atol=1e-6)


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_a_new_family_is_one_entry(unit, monkeypatch):
    """A block that gates the stream and its writes, X ← r ⊙ X + g ⊙ write, is said in the form `streams` shows."""
    model = FAMILIES["llama"]()
    gates = torch.rand(len(model.model.layers), 4, 32, generator=torch.Generator().manual_seed(0)) + 0.5

    def gated(block, r1, g1, r2, g2):
        def forward(hidden_states, **kwargs):
            x = hidden_states * r1 + g1 * block.self_attn(block.input_layernorm(hidden_states), **kwargs)[0]
            return x * r2 + g2 * block.mlp(block.post_attention_layernorm(x))

        return forward

    for block, own in zip(model.model.layers, gates, strict=True):
        block.forward = gated(block, *own)

    def entry(parts, number, block, sublayers):
        for sublayer, (r, g) in zip(sublayers, gates[number].unflatten(0, (2, 2)), strict=True):
            yield streams.fixed(r)
            yield sublayer.scaled(g)

    with pytest.raises(ld.InputError, match="block 0|block 1"):
        ld.contributions(model, PROMPTS, OPTIONS)
    monkeypatch.setitem(streams.FAMILIES, "llama", streams.Family(entry))
    c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    assert c.identity_gap <= 1e-6


def test_prefixes_of_a_stream_that_passes_norms():
    """Frozen prefixes end at the logits; there is no statistic to recompute for them; scalars alone do no harm."""
    labels = [0, 1, 2]
    scalars, norms = (BY_STRUCTURE[name]() for name in ("gemma4", "openai_gpt"))
    d = ld.decompose(ld.contributions(norms, PROMPTS, OPTIONS), labels)
    assert d.by_depth()["members"].iloc[-1] == len(d.components)
    with pytest.raises(ld.InputError, match="norm='frozen'"):
        d.by_depth("recomputed")
    ld.decompose(ld.contributions(scalars, PROMPTS, OPTIONS), labels).by_depth("recomputed")
    lens = ld.depth.logit_lens(norms, PROMPTS, "frozen")
    assert lens.components[-1].kind == "stream_bias"
    np.testing.assert_allclose(lens.kl[:, -1], 0, atol=1e-12)
    with pytest.raises(ld.InputError, match="norm='frozen'"):
        ld.depth.logit_lens(norms, PROMPTS)
    # A scaled stream is normed to the same: the last junction before the last scale is the answer's own.
    kl = ld.depth.logit_lens(scalars, PROMPTS).kl
    np.testing.assert_allclose(kl[:, -1], 0, atol=1e-12)


@pytest.mark.parametrize("name", some("gemma3n", "qwen4_exp", full=("inkling2",)))
def test_several_streams(name):
    """Parts without a map in common are refused, and sizes of what is written."""
    model = BY_STRUCTURE[name]()
    with pytest.raises(ld.InputError, match="unit='sublayer'"):
        ld.contributions(model, PROMPTS, OPTIONS, unit="head")
    with pytest.raises(ld.InputError, match="several residual streams"):
        ld.depth.residual_norms(model, PROMPTS)


def test_what_resumes_a_pass_refuses_such_a_stream():
    """In a sentence that names the model."""
    model = BY_STRUCTURE["doge"]()
    for analysis in (ld.depth.skip, ld.depth.erase):
        with pytest.raises(ld.InputError, match="DogeForCausalLM"):
            analysis(model, PROMPTS)
    assert np.isfinite(ld.depth.residual_norms(model, PROMPTS).relative_norm).all()
