"""A TransformerBridge, through TransformerLens' hook names, gives what the Hugging Face modules give."""

import copy
from importlib.metadata import version

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import gpt2, llama
from tests.oracles.families import FAMILIES
from tests.oracles.tokenizers import word_tokenizer

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6], [3], [17, 11, 60, 0]]


def boot(model, tokenizer=None):
    from transformer_lens.model_bridge import TransformerBridge

    # With None the bridge would look for one on the hub.
    tokenizer = tokenizer or word_tokenizer(eos_token="w2", pad_token="w2")
    return TransformerBridge.boot_transformers("a-label", hf_model=model, tokenizer=tokenizer, device="cpu")


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_from_a_cache(make, unit):
    """A cache of hook_names(unit) gives the numbers of a pass, whichever side is padded, and without a batch axis."""
    bridge = boot(make())
    model = ld.load_model(bridge)
    names = model.hook_names(unit)
    assert names == ld.load_model(make()).hook_names(unit)
    expected = ld.contributions(model, PROMPTS, [7, 30], unit=unit)
    longest = max(map(len, PROMPTS))
    for left in (False, True):
        if left and make is gpt2:
            continue  # a left-padded GPT-2 needs position ids, which a cache by hand does not show
        gaps = [[0] * (longest - len(p)) for p in PROMPTS]
        tokens = torch.tensor([g + p if left else p + g for p, g in zip(PROMPTS, gaps, strict=True)])
        real = [[1] * len(p) for p in PROMPTS]
        mask = torch.tensor([g + r if left else r + g for r, g in zip(real, gaps, strict=True)])
        _, cache = bridge.run_with_cache(tokens, attention_mask=mask, names_filter=list(names))
        c = ld.contributions(cache, tokens, [7, 30], unit=unit, attention_mask=mask)
        assert c.components == expected.components
        assert c.tokens == tuple(map(tuple, PROMPTS))
        assert c.identity_gap <= 1e-6
        np.testing.assert_allclose(c.values, expected.values, atol=1e-5)
        np.testing.assert_allclose(c.model_logits, expected.model_logits, atol=1e-5)
        first = ld.contributions(cache, tokens, [7, 30], unit=unit, position=0, attention_mask=mask)
        np.testing.assert_allclose(
            first.values, ld.contributions(model, PROMPTS, [7, 30], unit=unit, position=0).values, atol=1e-5
        )
    alone = torch.tensor(PROMPTS[0])
    _, cache = bridge.run_with_cache(alone[None])
    cache.remove_batch_dim()
    c = ld.contributions(cache, alone, [7, 30], unit=unit)
    np.testing.assert_allclose(c.values, expected.values[:1], atol=1e-5)


@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_a_cache_belongs_to_its_tokens(make):
    """Other tokens of the same shape are refused wherever they stand, and so is a cache moved along its rows."""
    bridge = boot(make())
    tokens = torch.tensor([PROMPTS[0][:3], PROMPTS[2][:3]])
    _, cache = bridge.run_with_cache(tokens)
    assert ld.contributions(cache, tokens, [7, 30]).identity_gap <= 1e-6
    for row, column in ((0, 0), (1, 2), (0, 1)):
        other = tokens.clone()
        other[row, column] = (other[row, column] + 1) % 60
        with pytest.raises(ld.InputError, match=f"other tokens: at row {row}, token {column}"):
            ld.contributions(cache, other, [7, 30])
    with pytest.raises(ld.InputError, match="other tokens"):
        ld.contributions(cache, tokens.flip(0), [7, 30])


@pytest.mark.parametrize("is_filtered", [False, True], ids=["all", "filtered"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_cache_of_a_run_with_a_hooked_read_out_is_the_run_or_refused(make, is_filtered):
    """What no component explains, a hook on the final norm or the unembedding, never gives other logits' numbers."""
    bridge = boot(make())
    ids = torch.tensor(PROMPTS[:1])
    needed = list(ld.load_model(bridge).hook_names("head")) if is_filtered else None
    names = [
        "ln_final.hook_in",
        "ln_final.hook_scale",
        "ln_final.hook_normalized",
        "ln_final.hook_out",
        "unembed.hook_in",
    ]
    for name in [*names, *([] if is_filtered else ["unembed.hook_out"])]:
        with bridge.hooks(fwd_hooks=[(name, lambda x, hook: 1.5 * x)]):
            logits, cache = bridge.run_with_cache(ids, names_filter=needed)
        if name == "ln_final.hook_in":  # the norm takes the factor out again
            c = ld.contributions(cache, options=[7, 30], unit="head")
            np.testing.assert_allclose(c.model_logits[0], logits[0, -1, [7, 30]].detach(), atol=1e-5)
            continue
        with pytest.raises(ld.InputError, match="hook changes its final norm or unembedding"):
            ld.contributions(cache, options=[7, 30], unit="head")


FOLDED = ["gpt_oss", "olmo"]


@pytest.mark.full
@pytest.mark.parametrize("name", [*FOLDED, "llama_biased", "qwen2"])
def test_a_processed_bridge_is_still_its_model(name):
    """Folded value biases make another model where there are attention sinks or clipped values."""
    net, ids = FAMILIES[name](), torch.tensor([[5, 1, 4, 1, 5, 9]])
    with torch.no_grad():
        want = net(ids).logits[0, -1]
    want = (want - want.mean())[[7, 30, 2]]
    bridge = boot(FAMILIES[name]())
    bridge.enable_compatibility_mode(fold_value_biases=name not in FOLDED)
    shift = ld.contributions(bridge, ids, [7, 30, 2]).model_logits[0] - want.numpy()
    np.testing.assert_allclose(shift, shift.mean(), atol=1e-5)


def test_what_a_cache_cannot_give():
    bridge = boot(llama())
    model = ld.load_model(bridge)
    tokens = torch.tensor(PROMPTS[:1])
    _, cache = bridge.run_with_cache(tokens, names_filter=list(model.hook_names()))
    for change, message in [
        ({"prompts": torch.tensor(PROMPTS[2:])}, "tokens"),
        ({"prompts": tokens.expand(4, -1)}, "tokens"),
        ({"prompts": tokens.double()}, "token ids"),
        ({"prompts": torch.zeros(1, 0, dtype=torch.long)}, "token ids"),
        ({"unit": "head"}, r"blocks\.0\.attn\.o\.hook_in"),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask"),
        ({"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1]])}, "attention_mask"),
        ({"attention_mask": torch.zeros(1, 8)}, "attention_mask"),
        ({"options": [[[7, 9], [30]]]}, "several tokens"),
    ]:
        with pytest.raises(ld.InputError, match=message):
            ld.contributions(cache, **{"prompts": tokens, "options": [7, 30], **change})
    with pytest.raises(ld.InputError, match="is not a model"):
        ld.profile(cache, PROMPTS[0])
    _, empty = bridge.run_with_cache(tokens, names_filter="hook_embed")
    with pytest.raises(ld.InputError, match="lacks"):
        ld.contributions(empty, options=[7, 30])


def test_a_bridge_in_train_mode_is_put_back():
    """Also the modules of the wrapped model that no bridge component stands for (GPT-2's dropout)."""
    bridge = boot(gpt2())
    bridge.train()
    before = [(name, module.training) for name, module in bridge.original_model.named_modules()]
    assert any(training for _, training in before)
    ld.contributions(bridge, PROMPTS, [7, 30])
    assert [(name, module.training) for name, module in bridge.original_model.named_modules()] == before


def test_compatibility_mode_is_taken_as_it_is():
    """center_unembed shifts all logits of a position; the parts follow, and centered they do not move."""
    plain = ld.contributions(llama(), PROMPTS, [7, 30], unit="head")
    bridge = boot(llama())
    bridge.enable_compatibility_mode()
    folded = ld.contributions(bridge, PROMPTS, [7, 30], unit="head")
    assert folded.identity_gap <= 1e-6
    centered = [c.values - c.values.mean(2, keepdims=True) for c in (plain, folded)]
    np.testing.assert_allclose(centered[1], centered[0], atol=1e-5)
    assert np.abs(folded.values - plain.values).max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt2", pytest.param("gemma2", marks=pytest.mark.full)])
def test_a_models_bridge_shares_its_weights_and_leaves_it_alone(name):
    """The same parameters, no second copy; the same logits and contributions; hooks on one are not on the other."""
    model = ld.load_model(FAMILIES[name](), tokenizer=word_tokenizer())
    special = dict(model.tokenizer.special_tokens_map)
    before, bridge = ld.contributions(model, PROMPTS, [7, 30]), model.bridge
    own = {x.untyped_storage().data_ptr() for x in model.hf_model.parameters()}
    if not version("transformer_lens").startswith("3."):  # which makes parameters of its own beside
        assert {x.untyped_storage().data_ptr() for x in bridge.parameters()} <= own
    assert model.bridge is bridge
    assert dict(model.tokenizer.special_tokens_map) == special
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        assert torch.allclose(bridge(ids), model.hf_model(ids).logits, atol=1e-5)
    np.testing.assert_array_equal(ld.contributions(model, PROMPTS, [7, 30]).values, before.values)
    np.testing.assert_allclose(ld.contributions(bridge, PROMPTS, [7, 30]).values, before.values, atol=1e-5)
    bridge.add_hook("blocks.0.hook_resid_pre", lambda x, hook: 2 * x)
    np.testing.assert_array_equal(ld.contributions(model, PROMPTS, [7, 30]).values, before.values)
    assert ld.load_model(bridge).bridge is bridge


def test_a_bridge_that_is_not_the_model_is_refused():
    """TransformerLens leaves Falcon's ALiBi out."""
    with pytest.raises(ld.InputError, match="other logits"):
        ld.load_model(FAMILIES["falcon_alibi"]()).bridge  # noqa: B018


SOME = ["llama", "gpt2", "neox_parallel", "gemma2"]
MORE = ["opt", "bloom", "phi", "qwen3", "granite", "olmo2", "mixtral", "cohere2"]


@pytest.mark.parametrize("name", [*SOME, *(pytest.param(name, marks=pytest.mark.full) for name in MORE)])
def test_a_cache_is_a_first_argument(name):
    """Its own model and tokens are taken: raw and folded, with and without a batch axis, a filter, and a slice."""
    ids = [[5, 1, 4, 1, 5, 9], [3, 7, 11, 40, 8, 6]]
    for folded in (False, True):
        bridge = boot(FAMILIES[name]())
        if folded:
            try:
                bridge.enable_compatibility_mode()
            except Exception as error:
                pytest.skip(f"TransformerLens cannot fold {name}: {error}")
        wanted = ld.contributions(bridge, ids, [7, 30], unit="head")
        _, cache = bridge.run_with_cache(torch.tensor(ids))
        c = ld.contributions(cache, options=[7, 30], unit="head")
        assert (c.components, c.tokens) == (wanted.components, wanted.tokens)
        assert c.identity_gap <= 1e-6
        size = np.abs(wanted.values).max()
        np.testing.assert_allclose(c.values, wanted.values, atol=1e-5 * size)
        first = ld.contributions(cache, options=[7, 30], unit="head", position=0)
        np.testing.assert_allclose(
            first.values, ld.contributions(bridge, ids, [7, 30], unit="head", position=0).values, atol=1e-5 * size
        )
        model = ld.load_model(bridge)
        _, few = bridge.run_with_cache(torch.tensor(ids), names_filter=list(model.hook_names("head")))
        without = ld.contributions(few, options=[7, 30], unit="head")
        assert without.tokens == wanted.tokens
        np.testing.assert_array_equal(without.values, c.values)
        _, last = bridge.run_with_cache(torch.tensor(ids), pos_slice=-1)
        np.testing.assert_allclose(
            ld.contributions(last, options=[7, 30], unit="head").values, c.values, atol=1e-6 * size
        )
        _, one = bridge.run_with_cache(torch.tensor(ids[:1]))
        one.remove_batch_dim()
        np.testing.assert_allclose(
            ld.contributions(one, options=[7, 30], unit="head").values, c.values[:1], atol=1e-5 * size
        )


def test_padding_of_a_cache_is_read_as_that_of_prompts():
    bridge = boot(llama())
    ids = [[5, 1, 4, 1, 5, 9], [3, 7, 11]]
    wanted = ld.contributions(bridge, ids, [7, 30])
    padded = torch.tensor([ids[0], [*ids[1], 2, 2, 2]])
    _, cache = bridge.run_with_cache(padded)
    for given in (None, padded):
        c = ld.contributions(cache, given, [7, 30], attention_mask=[[1] * 6, [1, 1, 1, 0, 0, 0]])
        assert c.tokens == wanted.tokens
        np.testing.assert_allclose(c.values, wanted.values, atol=1e-5)


@torch.inference_mode()
def test_labels_and_values_as_logit_attrs_has_them():
    """A folded bridge's own attributions, head by head, and the labels of its stacks."""
    bridge = boot(llama())
    bridge.enable_compatibility_mode()
    _, cache = bridge.run_with_cache(torch.tensor([[5, 1, 4, 1], [3, 7, 11, 40]]))
    c = ld.contributions(cache, options=[7, 30], unit="head")
    values, labels = c.to_transformer_lens()
    stack, theirs = cache.stack_head_results(pos_slice=-1, return_labels=True)
    wanted = cache.logit_attrs(stack, tokens=7, incorrect_tokens=30, pos_slice=-1)
    own = [labels.index(label) for label in theirs]
    np.testing.assert_allclose(values[own, :, 0] - values[own, :, 1], wanted, atol=1e-5)
    parts, names = cache.decompose_resid(pos_slice=-1, return_labels=True)
    whole, labels = ld.contributions(cache, options=[7, 30]).to_transformer_lens()
    assert labels == names
    np.testing.assert_allclose(whole[:, :, 0], cache.logit_attrs(parts, tokens=7, pos_slice=-1), atol=1e-5)


@pytest.mark.parametrize("unit", ["component", "head"])
def test_direct_logit_attribution_of_transformer_lens_is_the_same(unit):
    """After compatibility mode its tool gives these numbers; beside heads it has one remainder, all other rows."""
    analysis = pytest.importorskip("transformer_lens.tools.analysis", reason="TransformerLens 3.9 has none")
    bridge, ids = boot(llama()), torch.tensor([[5, 1, 4, 1]])
    bridge.enable_compatibility_mode()
    theirs = analysis.direct_logit_attribution(bridge, ids, torch.tensor([7]), torch.tensor([30]), unit=unit)
    _, cache = bridge.run_with_cache(ids)
    c = ld.contributions(cache, options=[7, 30], unit="head" if unit == "head" else "sublayer")
    values, labels = c.to_transformer_lens()
    own = dict(zip(labels, (values[:, 0, 0] - values[:, 0, 1]).tolist(), strict=True))
    wanted = dict(zip(theirs.labels, theirs.attribution.flatten().tolist(), strict=True))
    if unit == "head":
        own = {label: own[label] for label in wanted if label in own} | {
            "remainder": sum(value for label, value in own.items() if label not in wanted)
        }
    assert own == pytest.approx(wanted, abs=1e-5)


def test_nothing_is_remembered_of_other_weights():
    """A bridge runs a pass of its own only once, and what follows from weights is read each time."""
    bridge, ids = boot(llama()), torch.tensor([[5, 1, 4, 1]])
    ld.contributions(bridge.run_with_cache(ids)[1], options=[7, 30], unit="head")
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.data.mul_(1 + 0.1 * torch.rand_like(parameter))  # which no version counter sees
    c = ld.contributions(bridge.run_with_cache(ids)[1], options=[7, 30], unit="head")
    wanted = ld.contributions(copy.deepcopy(bridge), ids, [7, 30], unit="head")
    for name in ("values", "expectations", "vocabulary_means"):
        np.testing.assert_allclose(getattr(c, name), getattr(wanted, name), atol=1e-6)
