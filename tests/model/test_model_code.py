"""Code in a model, and what it holds: told apart or refused where results are kept; running a model changes nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import layerdiv_tl as ld
from layerdiv_tl.model.fingerprint import identify
from tests.conftest import llama


class Times:
    """Somebody's object that is called, and one that holds a number."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Steered(nn.Module):
    """Somebody's module in an MLP's place, which keeps a number wherever Python lets one be kept."""

    def __init__(self, inner, **kept):
        super().__init__()
        self.inner = inner
        vars(self).update(kept)

    def forward(self, x):
        factor = 1.0
        for name, value in vars(self).items():
            if name in KEPT:
                factor = factor * float(read(value))
        return self.inner(x) * factor


def read(value):
    """The number in a list, a mapping, an object, a partial."""
    if isinstance(value, dict | list):
        return read(value["a"] if isinstance(value, dict) else value[0])
    if isinstance(value, functools.partial):
        return read(value.keywords["other"])
    return value.factor if isinstance(value, Times) else value


KEPT = {
    "_private": float,
    "tensors": lambda x: [torch.tensor(x)],
    "mapping": lambda x: {"a": torch.tensor(x)},
    "array": lambda x: np.array(x),
    "thing": Times,
    "partial": lambda x: functools.partial(torch.mul, other=x),
}


def activation(net, function):
    """Another function in the place of all activations."""
    for layer in net.model.layers:
        del layer.mlp.act_fn
        layer.mlp.act_fn = function


@pytest.mark.parametrize("name", KEPT)
def test_what_a_module_of_ones_own_holds_counts(name):
    """A number that changes the answer is another model, wherever it lies; the same number is the same model."""
    found = []
    for number in (0.5, 2.0, 2.0):
        net = llama()
        net.model.layers[1].mlp = Steered(net.model.layers[1].mlp, **{name: KEPT[name](number)})
        model = ld.load_model(net)
        found.append((identify(model).weights, ld.contributions(model, [[1, 2, 3]], [1, 2]).model_logits))
    assert found[0][0] != found[1][0] == found[2][0]
    assert np.abs(found[0][1] - found[1][1]).max() > 0.01


def test_what_a_partial_fills_in_counts():
    """Two slopes of one library's function are two models."""
    found = set()
    for slope in (0.1, 0.5, 0.5):
        net = llama()
        activation(net, functools.partial(nn.functional.leaky_relu, negative_slope=slope))
        found.add(identify(ld.load_model(net)).weights)
    assert len(found) == 2


def disguised(original):
    """A function that takes another's name and place of origin."""
    return functools.wraps(original)(lambda *given, **named: original(*given, **named) * 0)


def set_forward(net, function):
    net.model.layers[1].mlp.forward = function


CODE = {
    "object": lambda net: activation(net, Times(3.0)),
    "object as forward": lambda net: set_forward(net, Times(3.0)),
    "another's method": lambda net: set_forward(net, net.model.layers[0].mlp.forward),
    "wrapped forward": lambda net: set_forward(net, disguised(net.model.layers[1].mlp.forward)),
    "wrapped hook": lambda net: net.model.layers[1].mlp.down_proj.register_forward_hook(
        functools.wraps(torch.nn.functional.relu)(lambda module, args, output: output * 0)
    ),
}


@pytest.mark.parametrize("how", CODE)
def test_code_that_cannot_be_told_is_refused(how):
    net = llama()
    CODE[how](net)
    with pytest.raises(ld.InputError, match=r"model\.layers\."):
        identify(ld.load_model(net))


def test_a_way_to_attend_of_ones_own_is_refused():
    """It stands in the configuration as a word; Transformers' own are part of the model."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def half(*given, **named):
        output, weights = sdpa_attention_forward(*given, **named)
        return output / 2, weights

    net = llama()
    for name in ("eager", "sdpa"):
        net.config._attn_implementation = name
        identify(ld.load_model(net))
    AttentionInterface.register("half", half)
    net.config._attn_implementation = "half"
    with pytest.raises(ld.InputError, match="half"):
        identify(ld.load_model(net))


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
