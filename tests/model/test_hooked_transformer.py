"""HookedTransformer (TransformerLens 3.9), folded or not: exact, and equal to TransformerLens' own route."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.oracles.tokenizers import word_tokenizer

try:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
except ImportError:
    pytest.skip("TransformerLens 4 has no HookedTransformer; CI runs this file under 3.9 too", allow_module_level=True)

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6], [3], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]
GATED = {
    "gated_mlp": True,
    "act_fn": "silu",
    "positional_embedding_type": "rotary",
    "rotary_dim": 8,
    "n_key_value_heads": 2,
}
KINDS = {
    "LN": {"normalization_type": "LN"},
    "LN, attention only": {"normalization_type": "LN", "attn_only": True},
    "LN, parallel": {"normalization_type": "LN", "parallel_attn_mlp": True},
    "LN, soft-cap": {"normalization_type": "LN", "output_logits_soft_cap": 2.0},
    "RMS, gated": {"normalization_type": "RMS", **GATED},
    "RMS, sandwich": {"normalization_type": "RMS", "use_normalization_before_and_after": True, **GATED},
    "no norm": {"normalization_type": None},
}


def hooked(kind, folded=False):
    torch.manual_seed(0)
    shape = {"n_layers": 3, "d_model": 32, "n_ctx": 64, "d_head": 8, "n_heads": 4, "d_mlp": 56, "d_vocab": 61}
    model = HookedTransformer(
        HookedTransformerConfig(**{**shape, "act_fn": "gelu", "seed": 0, "device": "cpu", **KINDS[kind]})
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".w"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            elif name.endswith(".b") or "b_" in name.rsplit(".", 1)[-1]:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    if folded:
        model.process_weights_()
    return model.eval()


# TransformerLens folds neither a model without norms nor one with norms on both sides.
FOLDED = [kind for kind in KINDS if kind not in ("no norm", "RMS, sandwich")]


@pytest.mark.parametrize(("kind", "folded"), [(k, False) for k in KINDS] + [(k, True) for k in FOLDED])
def test_parts_sum_to_the_logits_at_every_unit(kind, folded):
    """Identity gap ≤ 1e-6; heads and neurons within 1e-5 of their sublayer."""
    model = hooked(kind, folded)
    whole = ld.contributions(model, PROMPTS, OPTIONS)
    with torch.no_grad():
        plain = model(torch.tensor(PROMPTS[:1]))[0, -1, OPTIONS].double().numpy()
    np.testing.assert_allclose(whole.model_logits[0], plain, rtol=1e-5, atol=1e-5)
    for unit, module in (("sublayer", "attention"), ("head", "attention"), ("neuron", "mlp")):
        if unit == "neuron" and "attention only" in kind:
            continue
        c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
        assert c.identity_gap <= 1e-6
        for layer in range(3):
            parts, sublayer = (x.select(module=module, layer=layer).logits for x in (c, whole))
            np.testing.assert_allclose(parts, sublayer, atol=1e-5 * np.abs(whole.values).sum(1).max())


@pytest.mark.parametrize("kind", ["LN", "RMS, gated"])
def test_equals_transformer_lens_own_route_on_a_folded_model(kind):
    """decompose_resid + apply_ln_to_stack + W_U, which is right where gain and bias are folded away."""
    model = hooked(kind, folded=True)
    tokens = torch.tensor([PROMPTS[0], PROMPTS[0][::-1]])
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
        stack, labels = cache.decompose_resid(layer=-1, return_labels=True, pos_slice=-1)
        stack = cache.apply_ln_to_stack(stack, layer=-1, pos_slice=-1)
        theirs = (stack @ model.W_U[:, OPTIONS]).permute(1, 0, 2).double().numpy()
    ours = ld.contributions(model, tokens, OPTIONS)
    names = {"embed": "embed", "pos_embed": "pos_embed"}
    for label, values in zip(labels, theirs.transpose(1, 0, 2), strict=True):
        name = names.get(label) or "L{}.{}".format(*label.split("_")[:2])
        np.testing.assert_allclose(ours.select(label=name).values[:, 0], values, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["LN", "RMS, gated"])
def test_half_precision(kind, dtype):
    """The rounding row, at every unit."""
    model = hooked(kind).to(dtype)
    model.cfg.dtype = dtype
    for unit in ("sublayer", "head", "neuron"):
        c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
        assert c.components[-1].label == "rounding"
        assert c.identity_gap <= 2e-2


def test_from_a_cache():
    """A cache of hook_names(unit) gives the numbers of a pass."""
    for kind in ("LN", "RMS, sandwich"):
        hooked_model = hooked(kind)
        model = ld.load_model(hooked_model)
        for unit in ("sublayer", "head", "neuron"):
            names = list(model.hook_names(unit))
            _, cache = hooked_model.run_with_cache(torch.tensor(PROMPTS[:1]), names_filter=names)
            c = ld.contributions(cache, torch.tensor(PROMPTS[:1]), OPTIONS, unit=unit)
            expected = ld.contributions(model, PROMPTS[:1], OPTIONS, unit=unit)
            np.testing.assert_allclose(c.values, expected.values, atol=1e-5)
            np.testing.assert_allclose(c.model_logits, expected.model_logits, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gptj", "neox_parallel", "opt", "bloom", "llama", "mistral", "qwen2"])
def test_converted_from_hugging_face(name, tmp_path):
    """A raw HookedTransformer made of Hugging Face weights gives what the Hugging Face model gives."""
    from transformer_lens import loading_from_pretrained as loading

    from tests.oracles import families

    hf = families.FAMILIES[name]()
    hf.config.n_ctx = 64
    folder = tmp_path / "model"
    hf.config.save_pretrained(folder)
    # TransformerLens reads sizes out of names: no path here may hold "llama".
    plain = ld.contributions(hf, PROMPTS, OPTIONS, unit="head")
    cfg = loading.get_pretrained_model_config(str(folder), hf_cfg=hf.config.to_dict(), fold_ln=False, device="cpu")
    weights = loading.get_pretrained_state_dict(str(folder), cfg, hf)
    model = HookedTransformer(cfg, word_tokenizer(eos_token="w2", pad_token="w2"), move_to_device=False)
    model.load_and_process_state_dict(
        weights, fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False
    )
    c = ld.contributions(model, PROMPTS, OPTIONS, unit="head")
    assert c.identity_gap <= 1e-6
    for label in {x.label for x in plain.components} & {x.label for x in c.components}:
        ours, theirs = (x.select(label=label).values for x in (c, plain))
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    np.testing.assert_allclose(c.logits, plain.logits, atol=2e-5)


@pytest.mark.parametrize("output", ["hook_attn_out", "hook_mlp_out"])
def test_hooks_on_a_sublayer_and_on_its_block(output):
    """The changed output is the component; what the other hook adds to the stream is a row."""
    model = hooked("LN")
    hooks = [(f"blocks.1.{name}", lambda x, hook: x * 0.5) for name in (output, "hook_resid_post")]
    with model.hooks(fwd_hooks=hooks):
        c = ld.contributions(model, PROMPTS, OPTIONS)
        logits = [model(torch.tensor([prompt]))[0, -1, OPTIONS].detach().numpy() for prompt in PROMPTS]
    np.testing.assert_allclose(c.logits, logits, atol=1e-5)
    assert c.identity_gap <= 1e-6
    assert "added" in c


def test_source_tokens_are_those_of_the_heads():
    """Split by token they are the heads of `contributions`."""
    for kind in ("LN", "RMS, sandwich"):
        model = ld.load_model(hooked(kind))
        s = ld.source_tokens(model, PROMPTS, OPTIONS)
        heads = ld.contributions(model, PROMPTS, OPTIONS, unit="head").select(kind="head")
        np.testing.assert_allclose(s.contributions, heads.values, atol=1e-5)
