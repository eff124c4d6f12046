"""What the frozen path cannot take apart is refused; what a sum that closes would hide is tested by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import layerdiv_tl as ld
from tests.conftest import llama
from tests.oracles.families import BY_STRUCTURE, FAMILIES

PROMPTS, OPTIONS = [[5, 1, 4, 1, 5, 9, 2, 6, 8, 30, 11], [3], [17, 11, 60, 0]], [7, 30, 2]


def rewrite(model: Any, place: str, change: Any) -> Any:
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


class Doubled(torch.autograd.Function):
    """2x forward and 3x backward, as a custom kernel with a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 3 * g


# What the mode does not hold: a function that it does not know, and a kernel whose gradient is another one's.
NONLINEAR = {
    "an error function": ("model.layers.1", torch.erf),
    "a wrong gradient": ("model.layers.1", Doubled.apply),
    "behind the unembedding": ("", lambda x: x + 0.1 * x**3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NONLINEAR)
def test_what_is_not_linear_is_refused(name: str, dtype: torch.dtype) -> None:
    """The sum misses the logits, in a pass and at every token of a profile."""
    model = rewrite(llama().to(dtype), *NONLINEAR[name])
    for measure in (lambda: ld.contributions(model, PROMPTS, OPTIONS), lambda: ld.profile(model, PROMPTS[0])):
        with pytest.raises(ld.InputError, match="decomposed"):
            measure()


CHANGES = {
    "the logits": lambda model: rewrite(model, "", lambda x: 2 * x),
    "the final norm": lambda model: rewrite(model, "model.norm", lambda x: x * (1 + 0.1 * x[..., :1])),
    "a hook on the unembedding": lambda model: model.lm_head.register_forward_hook(lambda m, a, out: 2 * out),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_loading_is_noticed(change: str) -> None:
    """A model that is rewritten after its path was found is checked by every pass, whoever reads it."""
    model = llama()
    loaded = ld.load_model(model)
    CHANGES[change](model)
    for measure in (
        lambda: ld.contributions(loaded, PROMPTS, OPTIONS),
        lambda: ld.profile(loaded, PROMPTS[0]),
        lambda: ld.depth.logit_lens(loaded, PROMPTS[:1], norm="frozen"),
        lambda: ld.explore(loaded, PROMPTS[0]),
    ):
        with pytest.raises(ld.InputError, match="decomposed"):
            measure()


class Waits(TorchDispatchMode):
    """Counts reads of single numbers, for which the CPU would wait for another device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_batches_are_read_out_without_waiting_in_between(unit: Any) -> None:
    """A batch more asks once whether its logits are finite, and that whatever the number of layers is."""

    def waits(rows: int, layers: int) -> int:
        model = ld.load_model(llama(num_hidden_layers=layers))
        with Waits() as counted:
            ld.contributions(model, PROMPTS[:1] * rows, OPTIONS, unit=unit, batch_tokens=len(PROMPTS[0]))
        return counted.count

    assert waits(3, 4) - waits(2, 4) == waits(3, 2) - waits(2, 2) <= 2


@pytest.mark.parametrize("change", [lambda x: x + 1, lambda x: 2 * x], ids=["added", "multiplied"])
def test_what_a_block_does_to_the_stream_is_on_the_path(change: Any) -> None:
    """An addition is constant, a factor is in every earlier component; the sums are the model's logits."""
    model = rewrite(llama(), "model.layers.1", change)
    with torch.no_grad():
        plain = model(torch.tensor(PROMPTS[:1])).logits[0, -1, OPTIONS].double().numpy()
    c = ld.contributions(model, PROMPTS[:1], OPTIONS)
    np.testing.assert_allclose(c.logits[0], plain, atol=1e-5)
    assert ("constant" in c) == (float(change(torch.ones(1))) == float(change(torch.zeros(1))) + 1)


@pytest.mark.parametrize("kind", ["mlp", "attn", "embed"])
def test_a_missed_writer_is_named(kind: str) -> None:
    """Its matrices are linear, too, once its gates are held, so that the sum would close: a gradient passes them."""
    from layerdiv_tl.model.names import NAMES
    from layerdiv_tl.model.probe import find_path
    from layerdiv_tl.model.writers import find_writers

    model = llama()
    writers = [w for w in find_writers(model, NAMES) if w.kind != kind]
    matrix = {"mlp": "mlp.down_proj", "attn": "self_attn.o_proj", "embed": "embed_tokens"}[kind]
    with pytest.raises(ld.InputError, match=rf"{matrix}.* names="):
        find_path(model, model.lm_head, writers)


class Block(torch.nn.Module):
    """A Llama block that calls its MLP by a name that nobody knows."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.self_attn, self.thinking = block.self_attn, block.mlp
        self.before, self.between = block.input_layernorm, block.post_attention_layernorm

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        hidden_states = hidden_states + self.self_attn(hidden_states=self.before(hidden_states), **kwargs)[0]
        return hidden_states + self.thinking(self.between(hidden_states))


def test_a_sublayer_of_an_unknown_name_is_named_and_given_by_one_keyword() -> None:
    """What `CONTRIBUTING.md` says about a model that nobody has seen."""
    model = llama()
    for layer, block in enumerate(model.model.layers):
        model.model.layers[layer] = Block(block)
    with pytest.raises(ld.InputError, match=r"thinking\.\w+_proj"):
        ld.contributions(model, PROMPTS, OPTIONS)
    known = ld.load_model(model, names={"mlp": "thinking"})
    expected = ld.contributions(llama(), PROMPTS, OPTIONS)
    np.testing.assert_allclose(ld.contributions(known, PROMPTS, OPTIONS).values, expected.values, atol=1e-6)


class Returned(torch.nn.Module):
    """A sublayer that adds what it writes to the stream itself, and returns the whole."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.inner = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def test_a_sublayer_that_returns_the_whole_stream_is_refused() -> None:
    """The last one would be everything, and the sum would close (CpmAnt's feed-forward blocks)."""

    class Whole(Block):
        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            hidden_states = hidden_states + self.self_attn(hidden_states=self.before(hidden_states), **kwargs)[0]
            return self.mlp(hidden_states)

    model = llama()
    for layer, block in enumerate(model.model.layers):
        whole = Whole(block)
        whole.mlp = Returned(whole.thinking)
        model.model.layers[layer] = whole
    with pytest.raises(ld.InputError, match="returns the whole stream"):
        ld.contributions(model, PROMPTS, OPTIONS)


# Errors that a closed sum hides: each was made once by a prototype.


def by_hooks(model: Any, places: dict[str, str], prompt: list[int]) -> dict[str, np.ndarray]:
    """What the modules at some places write at a prompt's last token, by label."""
    found: dict[str, np.ndarray] = {}

    def look(label: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            found[label] = (output[0] if isinstance(output, tuple) else output).detach()[0, -1].double().numpy()

        return hook

    handles = [model.get_submodule(place).register_forward_hook(look(label)) for label, place in places.items()]
    with torch.no_grad():
        model(torch.tensor([prompt]), use_cache=False)
    for handle in handles:
        handle.remove()
    return found


def test_a_sublayer_that_receives_the_stream_as_an_argument_keeps_it_on_the_path() -> None:
    """BLOOM's MLP adds the residual that it is given: earlier components must not become constants."""
    c = ld.contributions(FAMILIES["bloom"](), PROMPTS[:1], OPTIONS)
    biases = np.abs(c["constant"]).max()
    model = FAMILIES["bloom"]()
    with torch.no_grad():
        model.transformer.ln_f.bias.zero_()
    without = ld.contributions(model, PROMPTS[:1], OPTIONS)
    assert np.abs(without["constant"]).max() < 1e-9 if "constant" in without else True
    assert biases > 0


def test_a_norm_that_all_sublayers_share_ends_no_write() -> None:
    """NanoChat has one norm for everything: a write is what a sublayer gives, not what that norm makes of the next."""
    path = ld.load_model(FAMILIES["nanochat"]()).path
    assert all(writer.place is writer.owner or writer.place is writer.projection for writer in path.writers)


def test_a_norm_behind_a_sublayer_ends_its_write() -> None:
    """Gemma 2 adds the normed output to its stream: that is the write, and TransformerLens' hook_attn_out."""
    model = FAMILIES["gemma2"]()
    path = ld.load_model(model).path
    for layer, block in enumerate(model.model.layers):
        own = {w.kind: w.place for w in path.writers if w.component.layer == layer}
        assert own == {"attn": block.post_attention_layernorm, "mlp": block.post_feedforward_layernorm}


def test_a_model_without_gradients_adds_nothing() -> None:
    """HRM runs its first cycles under no_grad: their writes are components, not something added."""
    c = ld.contributions(BY_STRUCTURE["hrm_text"](), PROMPTS, OPTIONS)
    assert "added" not in c
    assert "L0@3.attn" in c


def test_what_is_added_in_place_later_is_not_in_a_write() -> None:
    """Falcon adds its attention to its MLP's output in place: what was recorded must not change."""
    model = FAMILIES["falcon"]()
    places = {f"L{n}.mlp": f"transformer.h.{n}.mlp" for n in range(len(model.transformer.h))}
    c = ld.contributions(model, PROMPTS[:1], {"a": np.eye(32)[0], "b": np.eye(32)[1]})
    gain = model.transformer.ln_f.weight.detach().double().numpy()
    streams: list[np.ndarray] = []
    handle = model.transformer.ln_f.register_forward_pre_hook(lambda m, a: streams.append(a[0][0, -1].double().numpy()))
    wrote = by_hooks(model, places, PROMPTS[0])
    handle.remove()
    sigma = np.sqrt(streams[-1].var() + model.transformer.ln_f.eps)
    for label, write in wrote.items():
        np.testing.assert_allclose(c[label][0], ((write - write.mean()) * gain / sigma)[:2], atol=1e-5)


def test_positions_that_are_computed_are_constant() -> None:
    """CTRL adds sinusoids that no module writes: they are a row, and not a part of the embedding's."""
    model = BY_STRUCTURE["ctrl"]()
    one, other = (ld.contributions(model, [prompt], OPTIONS)["constant"] for prompt in ([5, 6, 7], [5, 6, 7, 8, 9]))
    assert np.abs(one - other).max() > 1e-3


def test_a_role_that_does_not_exist_is_named():
    with pytest.raises(ld.InputError, match="role in names='mpl' is unknown: use .*'mlp'"):
        ld.load_model(llama(), names={"mpl": "thinking"})
