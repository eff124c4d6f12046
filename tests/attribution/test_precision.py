"""Half precisions: what rounding loses has a name."""

from importlib.metadata import version

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import gpt2, llama
from tests.model.test_bridge import boot
from tests.oracles.families import BY_STRUCTURE, FAMILIES
from tests.oracles.loops import ouro

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]


# Loops and norms on the stream round once more on the way; TransformerLens 3.9 knows none of these.
LONG_WAYS = {"ouro": ouro, "nanochat": FAMILIES["nanochat"], "openai_gpt": BY_STRUCTURE["openai_gpt"]}
LONG_WAYS = LONG_WAYS if version("transformer_lens") >= "4" else {}
MAKERS = {"llama": llama, "gpt2": gpt2, "gemma2": FAMILIES["gemma2"], "granite": FAMILIES["granite"], **LONG_WAYS}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*MAKERS, "a bridge"])
def test_half_precision_names_its_rounding(name, dtype):
    """Gap ≤ 2e-2, and a `rounding` row that is not zero and of that order; in double precision none is left."""
    model = (gpt2 if name == "a bridge" else MAKERS[name])().to(dtype)
    loaded = ld.load_model(boot(model) if name == "a bridge" else model)
    with torch.no_grad():
        plain = model(torch.tensor(PROMPTS[:1])).logits[0, -1, OPTIONS].double().numpy()
    # In float64 Transformers gives NaN where Gemma 2 reads padding beyond its window.
    prompts = PROMPTS[:1] if name == "gemma2" and dtype == torch.float64 else PROMPTS
    for unit in ("sublayer",) if name in LONG_WAYS else ("sublayer", "head", "neuron"):
        c = ld.contributions(loaded, prompts, OPTIONS, unit=unit)
        if dtype == torch.float64:
            assert c.identity_gap <= 1e-6
            assert "rounding" not in {x.kind for x in c.components}
            continue
        most = 5e-2 if name in LONG_WAYS else 2e-2
        assert c.identity_gap <= most
        assert c.components[-1].label == "rounding"
        assert c.components == loaded.components(unit)
        assert np.abs(c["rounding"]).max() > 0 or name == "openai_gpt"  # whose stream passes no final norm
        assert np.abs(c["rounding"]).max() <= most * np.abs(c.values).sum(1).max()
        np.testing.assert_allclose(c.model_logits[0], plain, rtol=2e-2 * (name == "a bridge"))


@pytest.mark.parametrize("make", [llama, gpt2, FAMILIES["gemma2"]], ids=["llama", "gpt2", "gemma2"])
def test_half_precision_is_near_full(make):
    """bfloat16 weights run in float32 or in bfloat16 give nearly the same parts."""
    rounded = make().to(torch.bfloat16)
    full = ld.contributions(ld.load_model(rounded, dtype="float32"), PROMPTS, OPTIONS)
    half = ld.contributions(rounded, PROMPTS, OPTIONS)
    size = np.abs(full.values).sum(1).max()
    for component in full.components:
        near = half.select(label=component.label).values - full.select(label=component.label).values
        assert np.abs(near).max() <= 3e-2 * size


def test_the_precision_is_that_of_the_stream():
    """An embedding of another precision than the rest decides nothing by itself."""
    model = llama()
    model.model.embed_tokens.to(torch.bfloat16)
    cast = model.model.embed_tokens.register_forward_hook(lambda module, args, output: output.float())
    c = ld.contributions(model, PROMPTS, OPTIONS)
    assert "rounding" not in {x.kind for x in c.components}
    assert c.identity_gap <= 1e-6
    mlp = model.model.layers[1].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x) * 0.85
    assert ld.contributions(model, PROMPTS, OPTIONS).identity_gap <= 1e-6  # what it writes, whatever it is
    cast.remove()


def test_quantized_projections_are_whole():
    """A projection without a plain weight matrix has no heads or neurons to show, but is one component."""

    class Packed(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.inner = [linear]

        def forward(self, x):
            return self.inner[0](x)

    model = llama()
    plain = ld.contributions(model, PROMPTS, OPTIONS).values
    for layer in model.model.layers:
        layer.self_attn.o_proj, layer.mlp.down_proj = Packed(layer.self_attn.o_proj), Packed(layer.mlp.down_proj)
    np.testing.assert_allclose(ld.contributions(model, PROMPTS, OPTIONS).values, plain, atol=1e-6)
    for unit in ("head", "neuron"):
        with pytest.raises(ld.InputError, match="no (heads|neurons)"):
            ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    model.lm_head = Packed(model.lm_head)  # its matrix is what it does
    np.testing.assert_allclose(ld.contributions(model, PROMPTS, OPTIONS).values, plain, atol=1e-6)


ANALYSES = {
    "contributions": lambda m: ld.contributions(m, [[5, 4, 3]], [7, 9]),
    "directions": lambda m: ld.contributions(m, [[5, 4, 3]], {"ones": torch.ones(32)}),
    "source_tokens": lambda m: ld.source_tokens(m, [[5, 4, 3]], [7, 9]),
    "profile": lambda m: ld.profile(m, [5, 4, 3]),
    "top_tokens": lambda m: ld.top_tokens(m, [5, 4, 3]),
    "continuation": lambda m: ld.continuation(m, [5, 4, 3], max_new_tokens=1),
    "explore": lambda m: ld.explore(m, [5, 4, 3]),
    "logit_lens": lambda m: ld.depth.logit_lens(m, [[5, 4, 3]]),
    "frozen lens": lambda m: ld.depth.logit_lens(m, [[5, 4, 3]], norm="frozen"),
    "residual_norms": lambda m: ld.depth.residual_norms(m, [[5, 4, 3]]),
    "skip": lambda m: ld.depth.skip(m, [[5, 4, 3]]),
    "gradients": lambda m: ld.depth.integrated_gradients(m, [[5, 4, 3]], answers=[7]),
    "effects": lambda m: ld.effects(m, [[5, 4, 3]], [7, 9], labels=[0], ablation="zero"),
}


def overflow(module, args, output):
    return output * 1e5


def broken(module, args, output):
    return output.masked_fill(output == output.amax(), torch.nan)


@pytest.mark.parametrize("change", [overflow, broken])
@pytest.mark.parametrize("name", ANALYSES)
def test_numbers_that_are_not_finite_have_one_sentence_everywhere(name, change):
    """Float16 overflows above 65504; one NaN is enough. Module and precision are named before any other check."""
    model = ld.load_model(llama().half())
    model.root.model.layers[1].mlp.register_forward_hook(change)
    with pytest.raises(ld.InputError, match=r"not finite, first in model.layers.1.mlp \(torch.float16\)"):
        ANALYSES[name](model)


def test_one_token_that_is_not_finite_is_named_where_all_are_read():
    model = ld.load_model(llama())
    last = model.root.model.layers[2].mlp
    last.register_forward_hook(lambda m, a, out: torch.cat([out[:, :1] * torch.inf, out[:, 1:]], 1))
    assert np.isfinite(ANALYSES["contributions"](model).values).all()  # of the other tokens
    with pytest.raises(ld.InputError, match="not finite, first in L2"):
        ANALYSES["residual_norms"](model)
    with pytest.raises(ld.InputError, match=r"not finite, first in model.layers.2.mlp \(torch.float32\)"):
        ANALYSES["profile"](model)
