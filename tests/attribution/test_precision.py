"""Half precisions and offloaded weights: what rounding loses has a name, and nothing needs to be in memory."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import TEXTS, gpt2, llama
from tests.oracles.families import FAMILIES

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]]
OPTIONS = [7, 30, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "make", [llama, gpt2, FAMILIES["gemma2"], FAMILIES["granite"]], ids=["llama", "gpt2", "gemma2", "granite"]
)
@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_half_precision_names_its_rounding(make, dtype, unit):
    """Gap ≤ 2e-2, and a `rounding` row that is not zero and of that order."""
    model = make().to(dtype)
    c = ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    assert c.components[-1].label == "rounding"
    assert c.components == ld.load_model(model).components(unit)
    assert c.identity_gap <= 2e-2
    size = np.abs(c.values).sum(1).max()
    assert 0 < np.abs(c.select(kind="rounding").values).max() <= 2e-2 * size
    with torch.no_grad():
        plain = model(torch.tensor(PROMPTS[:1])).logits[0, -1, OPTIONS].double().numpy()
    np.testing.assert_array_equal(c.model_logits[0], plain)


@pytest.mark.parametrize("make", [llama, gpt2, FAMILIES["gemma2"]], ids=["llama", "gpt2", "gemma2"])
def test_half_precision_is_near_full(make):
    """bfloat16 weights run in float32 or in bfloat16 give nearly the same parts."""
    rounded = make().to(torch.bfloat16)
    full = ld.contributions(ld.load_model(rounded, copy=True, dtype="float32"), PROMPTS, OPTIONS)
    half = ld.contributions(rounded, PROMPTS, OPTIONS)
    size = np.abs(full.values).sum(1).max()
    for component in full.components:
        near = half.select(label=component.label).values - full.select(label=component.label).values
        assert np.abs(near).max() <= 3e-2 * size


def test_full_precision_has_no_rounding_row(stories):
    assert "rounding" not in {component.kind for component in stories.components("head")}


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_weights_on_disk(stories_folder, stories, tmp_path, unit):
    """With accelerate's disk offload the unembedding and the norm lie nowhere in memory; the numbers are the same."""
    from accelerate import disk_offload
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(stories_folder)
    disk_offload(model, str(tmp_path / "weights"), execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    loaded = ld.load_model(model, tokenizer=AutoTokenizer.from_pretrained(stories_folder))
    c = ld.contributions(loaded, TEXTS, [300, 301], unit=unit)
    expected = ld.contributions(stories, TEXTS, [300, 301], unit=unit)
    assert c.components == expected.components
    np.testing.assert_allclose(c.values, expected.values, atol=1e-6)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_device_map(stories_folder, stories):
    """device_map goes through to from_pretrained."""
    places = {
        "model.embed_tokens": "cpu",
        "model.layers": "cpu",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    loaded = ld.load_model(stories_folder, device_map=places)
    c = ld.contributions(loaded, TEXTS, [300, 301])
    np.testing.assert_allclose(c.values, ld.contributions(stories, TEXTS, [300, 301]).values, atol=1e-6)


@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_a_copy_is_another_model(make):
    """copy=True works on weights of its own: changing them leaves the user's model alone."""
    model = make()
    copied = ld.load_model(model, copy=True)
    assert copied.architecture.root is not model
    before = ld.contributions(model, PROMPTS, OPTIONS).values
    with torch.no_grad():
        for parameter in copied.architecture.root.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(ld.contributions(model, PROMPTS, OPTIONS).values, before)


def test_rounding_hides_no_write():
    """In half precision too: what is written besides the components, or not written at all, is refused."""
    for change in (lambda output: output * 0.0, lambda output: output + 0.5):
        for sublayer in ("self_attn.o_proj", "mlp.down_proj"):
            model = llama().to(torch.bfloat16)
            module = model.model.layers[1].get_submodule(sublayer)
            # The block's own residual addition sees the changed value, the tap saw the module's.
            loaded = ld.load_model(model)
            ld.contributions(loaded, PROMPTS, OPTIONS)
            parent = model.model.layers[1].get_submodule(sublayer.split(".")[0])
            run, first = parent.forward, sublayer.startswith("self_attn")

            def changed(*args, run=run, c=change, f=first, **kwargs):
                output = run(*args, **kwargs)
                return (c(output[0]), *output[1:]) if f else c(output)

            parent.forward = changed
            assert module is not parent
            with pytest.raises(ld.InputError, match="block 1 .* block 2"):
                ld.contributions(loaded, PROMPTS, OPTIONS)


def test_a_wrapped_projection_in_half_precision():
    """Heads of an output projection that does more than its weights say are refused; sublayers stay exact; a hook that
    does the same is an intervention.
    """
    model = llama().to(torch.bfloat16)
    projection = model.model.layers[1].self_attn.o_proj
    extra = torch.randn(32, 32).to(torch.bfloat16) * 0.3
    handle = projection.register_forward_hook(lambda module, args, output: output + args[0] @ extra)
    assert ld.contributions(model, PROMPTS, OPTIONS, unit="head").identity_gap <= 2e-2
    handle.remove()
    forward = projection.forward
    projection.forward = lambda x: forward(x) + x @ extra
    assert ld.contributions(model, PROMPTS, OPTIONS).identity_gap <= 2e-2
    with pytest.raises(ld.InputError, match="heads"):
        ld.contributions(model, PROMPTS, OPTIONS, unit="head")


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
    with pytest.raises(ld.InputError, match="decomposed"):
        ld.contributions(model, PROMPTS, OPTIONS)
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
        with pytest.raises(ld.InputError, match="output projection"):
            ld.contributions(model, PROMPTS, OPTIONS, unit=unit)
    model.lm_head = Packed(model.lm_head)
    with pytest.raises(ld.InputError, match="unembedding is a Packed"):
        ld.load_model(model)


def test_prompts_of_other_rotary_scaling_share_no_batch():
    """LongRoPE computes positions for the longest prompt of a batch: a prompt's numbers are still its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0]}
    config = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3}
    model = LlamaForCausalLM(LlamaConfig(**config, rope_parameters=rope)).eval()
    prompts = [list(range(3, 33)), [5, 6, 7, 8, 9], list(range(3, 12)), [1, 2, 3]]
    c = ld.contributions(model, prompts, OPTIONS)
    for row, prompt in enumerate(prompts):
        np.testing.assert_allclose(c.values[row], ld.contributions(model, [prompt], OPTIONS).values[0], atol=1e-5)
