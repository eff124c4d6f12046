"""A broken stream is refused and named with its place."""

from typing import Any

import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import llama
from tests.oracles.families import BY_STRUCTURE
from tests.oracles.loops import ouro

PROMPTS, OPTIONS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]], [7, 30, 2]


def rewrite(model: torch.nn.Module, place: str, change: Any) -> torch.nn.Module:
    """Let the forward of a module return something else, in a way that no hook shows."""
    module = model.get_submodule(place)
    forward = module.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if hasattr(output, "logits"):
            output.logits = change(output.logits)
            return output
        return type(output)([change(output[0]), *output[1:]]) if isinstance(output, tuple | list) else change(output)

    module.forward = changed
    return model


def leaking() -> torch.nn.Module:
    """A model with a block that writes to the stream outside its sublayers."""
    return rewrite(llama(num_hidden_layers=3), "model.layers.1", lambda x: x + 0.1)


def half(make: Any = llama) -> torch.nn.Module:
    return make().to(torch.bfloat16)


NEXT = "between the input of block 1 and the input of block 2"
# What makes a model, which module returns something else and what; the place that is named. In half precision rounding
# hides none of them.
BROKEN = {
    "a block": (llama, "model.layers.1", lambda x: x + 1, NEXT),
    "the last block": (llama, "model.layers.2", lambda x: x + 1, "block 2 and the final norm"),
    "attention left out": (half, "model.layers.1.self_attn", lambda x: 0 * x, NEXT),
    "attention more": (half, "model.layers.1.self_attn", lambda x: x + 0.5, NEXT),
    "an MLP left out": (half, "model.layers.1.mlp", lambda x: 0 * x, NEXT),
    "an MLP more": (half, "model.layers.1.mlp", lambda x: x + 0.5, NEXT),
    "a loop": (ouro, "model.layers.1", lambda x: 2 * x, "block 1 and the final norm"),
    "norms on the stream": (BY_STRUCTURE["openai_gpt"], "transformer.h.1", lambda x: 2 * x, NEXT),
    "several streams": (BY_STRUCTURE["gemma3n"], "model.layers.1", lambda x: 1.5 * x, NEXT),
    "mixed streams": (BY_STRUCTURE["qwen4_exp"], "model.layers.1", lambda x: 1.5 * x, NEXT),
    "one of several streams": (BY_STRUCTURE["inkling2"], "model.layers.1", lambda x: 1.5 * x, NEXT),
    "after the unembedding": (llama, "", lambda x: 2 * x, "unembedding"),
    "the unembedding": (llama, "lm_head", lambda x: 2 * x, "logits"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_sum_is_refused_with_its_place(name: str) -> None:
    """A write that no component names and no hook explains breaks the sum, of a prompt's end and of every token."""
    make, place, change, says = BROKEN[name]
    model = rewrite(make(), place, change)
    with pytest.raises(ld.InputError, match=says):
        ld.contributions(model, PROMPTS, OPTIONS)
    with pytest.raises(ld.InputError, match="decomposed"):
        ld.profile(model, PROMPTS[0])


def test_the_sum_is_checked_at_every_token_that_is_read() -> None:
    """A leak at the third token alone is none of a prompt's second one, but one of a profile."""
    model = rewrite(llama(), "model.layers.1", lambda x: x.index_add(1, torch.tensor([2]), torch.ones_like(x[:, :1])))
    with pytest.raises(ld.InputError, match="decomposed"):
        ld.profile(model, PROMPTS[0])
    assert ld.contributions(model, PROMPTS[:1], OPTIONS, position=1).identity_gap < 1e-6


@pytest.mark.parametrize("make", [llama, half])
def test_heads_of_a_projection_that_does_more_than_its_weights_are_refused(make: Any) -> None:
    """Its sublayer stays exact; a hook that does the same is an intervention."""
    model, extra = make(), torch.randn(32, generator=torch.Generator().manual_seed(0))
    projection = model.model.layers[1].self_attn.o_proj
    add = lambda x: x + extra.to(x)  # noqa: E731
    with projection.register_forward_hook(lambda module, args, output: add(output)):
        assert ld.contributions(model, PROMPTS, OPTIONS, unit="head").identity_gap <= 2e-2
    rewrite(model, "model.layers.1.self_attn.o_proj", add)
    assert ld.contributions(model, PROMPTS, OPTIONS).identity_gap <= 2e-2
    with pytest.raises(ld.InputError, match="heads"):
        ld.contributions(model, PROMPTS, OPTIONS, unit="head")
