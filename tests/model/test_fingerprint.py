"""Laws of fingerprints: another model has another one, and the same model has the same one, whatever it has read."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import fingerprint, identify
from tests.conftest import close, llama, tied
from tests.oracles.families import BY_STRUCTURE
from tests.oracles.tokenizers import word_tokenizer


def one_number(net):
    net.model.layers[1].mlp.up_proj.weight.data[3, 5] += 1e-3


def another_norm(net):
    norm = net.model.layers[0].input_layernorm
    net.model.layers[0].input_layernorm = torch.nn.RMSNorm(32, eps=norm.variance_epsilon)
    net.model.layers[0].input_layernorm.weight = norm.weight


CHANGES = {
    "a weight": one_number,
    "rotary frequencies": lambda net: net.model.rotary_emb.original_inv_freq.mul_(2),
    "the dtype": lambda net: net.double(),
    "the configuration": lambda net: net.config.update({"rms_norm_eps": 1e-3}),
    "a module's class": another_norm,
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_model_has_another_identity(what):
    net = llama()
    CHANGES[what](net)
    first, other = (identify(ld.load_model(model)) for model in (llama(), net))
    assert first.weights != other.weights
    assert first.tokenizer == other.tokenizer


def test_blocks_in_another_order_are_another_model():
    """The same weights, each used as often in three places."""
    orders = [(0, 1, 0), (0, 1, 1), (0, 0, 1)]
    assert len({identify(ld.load_model(tied(*order))).weights for order in orders}) == 3


def test_a_tied_unembedding_is_hashed_as_an_equal_one():
    """Two names of one tensor and two equal tensors compute the same."""
    net = llama(tie_word_embeddings=True)
    before = identify(ld.load_model(net))
    net.lm_head.weight = torch.nn.Parameter(net.model.embed_tokens.weight.detach().clone())
    assert identify(ld.load_model(net)) == before


def test_another_tokenizer_has_another_identity():
    """Other words, special tokens or another template; padding and truncation are no part of it."""
    made = [word_tokenizer(61), word_tokenizer([f"v{i}" for i in range(61)]), word_tokenizer(61, bos_token="w2")]
    made.append(word_tokenizer(61))
    made[-1].chat_template = "{{ messages[0]['content'] }}"
    found = [identify(ld.load_model(llama(), tokenizer=each)) for each in made]
    assert len({each.tokenizer for each in found}) == 4
    assert len({each.weights for each in found}) == 1
    again = made[0]
    again.pad_token = "w1"
    again(["w1 w2 w3", "w1"], padding=True, truncation=True, max_length=2)
    assert identify(ld.load_model(llama(), tokenizer=again)) == found[0]
    assert identify(ld.load_model(llama())).tokenizer is None


def test_the_same_model_is_known_again(tmp_path):
    """From memory, from a folder, in training mode, and after contributions were computed."""
    net = llama()
    net.save_pretrained(tmp_path)
    before = identify(ld.load_model(net))
    ld.contributions(net, [[1, 2, 3]], [4, 5], unit="head")
    assert identify(ld.load_model(net)) == before
    assert identify(ld.load_model(net.train())) == before
    assert identify(ld.load_model(tmp_path, device="cpu")) == before


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 4.0}
ROTARY = [LONG | {"original_max_position_embeddings": 16}, {"rope_type": "dynamic", "factor": 2.0}]


@pytest.mark.parametrize("rotary", ROTARY, ids=["longrope", "dynamic"])
def test_a_long_text_makes_it_no_other_model(rotary):
    """Rotary frequencies that grow with a text are the configuration's, not another model's."""
    net = llama(rope_parameters=rotary | {"rope_theta": 10000.0})
    before = identify(ld.load_model(net))
    for length in (3, 100, 40, 3):
        net(input_ids=torch.ones(1, length, dtype=torch.long))
        assert identify(ld.load_model(net)) == before


def zeros(module, args, output=None, factor=0):
    return None if output is None else output * factor


HOOKS = {
    "on an output": lambda net: net.model.layers[1].mlp.register_forward_hook(zeros),
    "on an input": lambda net: net.model.layers[1].mlp.register_forward_pre_hook(zeros),
    "a partial": lambda net: net.model.layers[1].mlp.register_forward_hook(functools.partial(zeros, factor=2)),
}


@pytest.mark.parametrize("how", HOOKS)
def test_a_users_hook_is_refused_and_a_librarys_is_not(how):
    """Results stored under this name would be another model's."""
    from accelerate.hooks import ModelHook, add_hook_to_module

    net = llama()
    before = identify(ld.load_model(net))
    add_hook_to_module(net.model.layers[0], ModelHook())
    assert identify(ld.load_model(net)) == before
    handle = HOOKS[how](net)
    with pytest.raises(ld.InputError, match=r"forward hook on model\.layers\.1\.mlp"):
        identify(ld.load_model(net))
    handle.remove()
    assert identify(ld.load_model(net)) == before


def test_a_bridge_has_the_identity_of_its_weights_and_no_hooks():
    bridges = [ld.load_model(llama(seed), tokenizer=word_tokenizer(61)).bridge for seed in (0, 0, 1)]
    found = [identify(ld.load_model(bridge)) for bridge in bridges]
    assert found[0] == found[1] != found[2]
    bridges[0].blocks[1].hook_mlp_out.add_hook(lambda value, hook: value * 0)
    with pytest.raises(ld.InputError, match="hook on"):
        identify(ld.load_model(bridges[0]))


def test_offloaded_weights_are_refused():
    from accelerate import cpu_offload

    with pytest.raises(NotImplementedError, match="meta"):
        identify(ld.load_model(cpu_offload(llama(), execution_device="cpu")))


def test_a_buffer_that_training_sets_is_hashed():
    """A router's correction biases decide which experts answer."""
    from tests.oracles.families import FAMILIES

    model = FAMILIES["deepseek_v3"]()
    before = fingerprint(ld.load_model(model))
    buffers = dict(model.named_buffers())
    buffers[next(name for name in buffers if name.endswith("e_score_correction_bias"))].add_(0.5)
    assert fingerprint(ld.load_model(model)) != before


def test_what_a_pass_leaves_behind_makes_it_no_other_model():
    """RecurrentGemma keeps the state of its last text as a tensor of its modules."""
    model = ld.load_model(BY_STRUCTURE["recurrent_gemma"]())
    before = fingerprint(model)
    for ids in ([5, 4, 3], [1, 2]):
        ld.top_tokens(model, ids)
        assert fingerprint(model) == before


def test_a_model_loaded_before_training_has_the_weights_of_now():
    """Nothing that an analysis reads of a model is a copy, not even of its final norm or unembedding."""
    net = llama()
    analyses = {
        "contributions": lambda m: ld.contributions(m, [[5, 4, 3]], [7, 9], unit="head").values,
        "lens": lambda m: ld.depth.logit_lens(m, [[5, 4, 3]]).values["kl"],
        "frozen lens": lambda m: ld.depth.logit_lens(m, [[5, 4, 3]], norm="frozen").values["kl"],
        "profile": lambda m: ld.profile(m, [5, 4, 3]).losses[:-1],
        "bridge": lambda m: m.bridge(torch.tensor([[5, 4, 3]])).detach(),
    }
    model = ld.load_model(net)
    for analysis in analyses.values():
        analysis(model)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1 + torch.rand_like(parameter))
    fresh = ld.load_model(copy.deepcopy(net))
    for analysis in analyses.values():
        close(analysis(model), analysis(fresh))
