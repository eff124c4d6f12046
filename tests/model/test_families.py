"""Does it work on my model? Every family, every unit, against the Hugging Face logits."""

import logging
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.patching import tensor
from tests.conftest import randomized
from tests.model.test_bridge import boot
from tests.oracles.families import BY_STRUCTURE, FAMILIES, REFUSED, each

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]
# What cannot be cut: experts have no fixed neurons; JetMoE's attention is a mixture of experts itself.
NO_NEURONS = {
    *("mixtral", "granite_moe", "glm4_moe", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "llama4", "jetmoe"),
    *("deepseek_v2", "deepseek_v3"),
}
NO_HEADS = {"jetmoe"}
# TransformerLens itself cannot boot it (two key-value heads), or answers differently from Hugging Face (ALiBi).
NO_BRIDGE = {"falcon_new_decoder", "falcon_alibi"}
if version("transformer_lens") < "4":  # the same, in 3.9 only
    NO_BRIDGE |= {"cohere", "cohere2", "deepseek_v2", "deepseek_v3", "hunyuan"}
NATIVE = {
    "native_ln": {"normalization_type": "LN"},
    "native_rms": {"normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu"},
    "native_attention_only": {"normalization_type": "LN", "attn_only": True},
    "native_no_norm": {"normalization_type": None},
}


def check_parts(model, unit, refused):
    """The parts of every layer make up their sublayer, or the unit is refused."""
    if refused:
        with pytest.raises(ld.InputError, match="unit"):
            ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
        return
    c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    assert c.identity_gap <= 1e-6
    whole = ld.contributions(model, PROMPTS, OPTIONS)
    modules = {"head": ("attention", "mixer"), "neuron": ("mlp",), "expert": ("mlp",)}[unit]
    for module, layer in {(x.module, x.layer) for x in whole.components if x.module in modules}:
        parts, sublayer = (x.select(module=module, layer=layer) for x in (c, whole))
        size = np.abs(sublayer.values).max()
        assert np.abs(parts.logits - sublayer.logits).max() <= 1e-5 * max(1, size)


def uncut(model, kind):
    """Whether a model must refuse to be cut: TransformerLens' families by name, the others by what they are made of."""
    kinds = {"attn": ("attn",), "mlp": ("mlp", "moe")}[kind]
    unit = {"attn": "head", "mlp": "neuron"}[kind]
    return any(w.kind in kinds and not w.is_cut(unit) for w in model.path.writers)


# What is found by structure does not ask TransformerLens: one of its versions is enough.
STRUCTURES = each(BY_STRUCTURE) if version("transformer_lens") >= "4" else []


@pytest.mark.parametrize("name", [*each(FAMILIES), *STRUCTURES])
def test_a_family(name):
    """Gap ≤ 1e-6 at every unit, heads and neurons within 1e-5 of their sublayer, logits those of Hugging Face."""
    model = ld.load_model((FAMILIES | BY_STRUCTURE)[name]())
    c = ld.contributions(model, PROMPTS, OPTIONS)
    for row, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            logits = model.root(torch.tensor([prompt]), use_cache=False).logits
        plain = logits[0, -1, OPTIONS].double().numpy()
        np.testing.assert_allclose(c.model_logits[row], plain, atol=2e-5)
        if c.soft_cap is None:
            np.testing.assert_allclose(c.logits[row], plain, atol=2e-5)
        else:  # the parts sum to the logits before the cap
            capped = c.soft_cap * np.tanh(c.logits[row] / c.soft_cap)
            np.testing.assert_allclose(capped, plain, atol=2e-5)
    assert c.identity_gap <= 1e-6
    check_parts(model, "head", uncut(model, "attn"))
    check_parts(model, "neuron", uncut(model, "mlp"))
    check_parts(model, "expert", not any(w.is_cut("expert") for w in model.path.writers))
    if name in FAMILIES:
        assert (uncut(model, "attn"), uncut(model, "mlp")) == (name in NO_HEADS, name in NO_NEURONS)
    assert model.components("sublayer") == c.components
    if name in ("gpt2", "llama"):
        assert model.path.adds
    if model.path.adds:  # the sum of its writes is what its modules give
        model.path.adds = False
        np.testing.assert_allclose(ld.contributions(model, PROMPTS, OPTIONS).values, c.values, atol=1e-9)


def native(name):
    """A random toy of TransformerLens."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    torch.manual_seed(0)
    shape = {"n_layers": 3, "d_model": 32, "n_ctx": 64, "d_head": 8, "n_heads": 4, "d_mlp": 56, "d_vocab": 61}
    config = TransformerBridgeConfig(**{**shape, "act_fn": "gelu", "seed": 0, **NATIVE[name]})
    return randomized(TransformerBridge.boot_native(config))


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_toy(name):
    """TransformerLens' own toys, without a Hugging Face model, are exact at every unit."""
    bridge = native(name)
    c = ld.contributions(bridge, PROMPTS, OPTIONS)
    with torch.no_grad():
        plain = bridge(torch.tensor(PROMPTS[:1]))[0, -1, OPTIONS].double().numpy()
    np.testing.assert_allclose(c.logits[0], plain, atol=1e-5 * np.abs(c.values).sum(1).max())
    assert c.identity_gap <= 1e-6
    check_parts(bridge, "head", False)
    check_parts(bridge, "neuron", False)


@pytest.mark.parametrize("name", each(name for name in FAMILIES if name not in NO_BRIDGE))
def test_a_family_through_a_bridge(name):
    """TransformerLens' hook points give what the modules give."""
    units = ["sublayer"] + ["head"] * (name not in NO_HEADS) + ["neuron"] * (name not in NO_NEURONS)
    model, bridge = ld.load_model(FAMILIES[name]()), ld.load_model(boot(FAMILIES[name]()))
    for unit in units:
        plain, bridged = (ld.contributions(m, PROMPTS, OPTIONS, unit=unit) for m in (model, bridge))
        assert bridged.identity_gap <= 1e-6
        assert bridged.components == plain.components
        np.testing.assert_allclose(bridged.values, plain.values, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2", "llama_biased", "gemma2", "qwen3", "stablelm_parallel", "granite"])
def test_a_family_in_compatibility_mode(name):
    """Folded weights are taken as they are: exact at every unit."""
    logging.disable(logging.WARNING)
    bridge = boot(FAMILIES[name]())
    bridge.enable_compatibility_mode()
    logging.disable(logging.NOTSET)
    model = ld.load_model(bridge)
    assert ld.contributions(model, PROMPTS, OPTIONS).identity_gap <= 1e-6
    check_parts(model, "head", False)
    check_parts(model, "neuron", False)


@pytest.mark.parametrize("name", each(FAMILIES))
def test_a_stream_half_way_through_a_parallel_block_is_said_to_be_partial(name):
    """Asked of the model: does a block's MLP see what its attention wrote?"""
    model = ld.load_model(FAMILIES[name]())
    attention, mlp = (w for w in model.path.writers if w.component.layer == 0)

    def wrote():
        found = []
        # A copy, because Falcon adds to its MLP's output in place.
        hook = mlp.place.register_forward_hook(lambda m, args, output: found.append(tensor(output).clone()))
        with torch.no_grad(), hook:
            model.root(torch.tensor(PROMPTS[:1]), use_cache=False)
        return found[0]

    def nudge(module, args, output):
        first = output[0] if isinstance(output, tuple) else output
        changed = first + torch.linspace(-1, 1, first.shape[-1])
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    before = wrote()
    with attention.place.register_forward_hook(nudge):
        blind = bool((wrote() - before).abs().max() < 1e-7)
    assert (attention.kind, mlp.kind) == ("attn", "mlp")
    c = ld.contributions(model, PROMPTS, OPTIONS)
    said = dict(zip([j.label for j in c.junctions], c.partial_junctions.tolist(), strict=True))
    assert said["L0.attn"] == blind
    assert not said["L0.mlp"]
    assert said["embed"] == ("pos_embed" in said)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sum_is_refused_with_the_reason(name):
    """Post-norm stacks, extra read-outs, encoders and recurrent mixers get a sentence, never a number."""
    with pytest.raises(ld.InputError, match="decomposed"):
        ld.contributions(REFUSED[name](), PROMPTS, OPTIONS)


@pytest.mark.skipif(version("transformer_lens") < "4", reason="the table is of what 4.3 lists")
def test_every_architecture_that_transformer_lens_lists_is_in_one_of_two_tables():
    """What the first table lacks is in the second, with the reason; `tests.oracles.architectures` writes it."""
    from tests.oracles.architectures import HEADER, REFERENCE, exact, listed

    rows = REFERENCE.read_text(encoding="utf-8").partition(HEADER)[2].partition("\n\n")[0].splitlines()
    second = {name.casefold() for row in rows for name in row.split("|")[1].strip().split(", ")}
    assert not {name for name in listed() if name.casefold() not in exact() | second}
    assert not second & exact()


def test_the_reference_lists_exactly_these_families():
    """The reference's list is the families tested here."""
    reference = Path(__file__).parents[2].joinpath("layerdiv_tl/reference.md").read_text(encoding="utf-8")
    section = reference[reference.index("## Models") :].split("\n## ")[0]
    assert re.findall(r"\| (\w+) \| [\d–]", section) == [*FAMILIES, *BY_STRUCTURE, *NATIVE]
