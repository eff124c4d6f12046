"""Units that users bring: rows sum to the logits whatever the parts are, and a part is what it says it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import layerdiv_tl as ld
from tests.oracles.families import family

PROMPTS, OPTIONS = [[1, 2, 3, 4], [5, 6]], [7, 9, 11]


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attention_bias=True)
    model = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.model.layers[1].self_attn.o_proj.bias)
    return ld.load_model(model)


def _weights(d, latents, seed=0):
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=rng) / d**0.5  # noqa: E731
    return draw(d, latents), draw(latents), draw(latents, d), draw(d)


UNITS = {
    "dictionary of writes": lambda: ld.dictionary(_weights(16, 40), "L1.mlp"),
    "dictionary of inputs": lambda: ld.dictionary(
        {"L0.mlp": _weights(16, 24), "L1.attn": _weights(16, 8)}, reads="input"
    ),
    "groups": lambda: ld.groups({"a": ["L0.H1", "L1.H0", "L1.attn_bias"], "b": ["embed", "L1.mlp"], "c": ["L0.N3"]}),
}


@pytest.mark.parametrize("unit", UNITS)
def test_rows_sum_to_the_logits_and_within_a_sublayer_to_its_row(tiny, unit):
    c, whole = ld.contributions(tiny, PROMPTS, OPTIONS, unit=UNITS[unit]()), ld.contributions(tiny, PROMPTS, OPTIONS)
    size = np.abs(whole.values).max()
    assert c.identity_gap < 1e-6
    assert np.abs(c.values.sum(1) - c.model_logits).max() < 1e-5 * size
    if unit != "groups":
        for component in whole.components:
            rows = [i for i, part in enumerate(c.components) if part.sublayer == component]
            assert np.allclose(c.values[:, rows].sum(1), whole.select(component).values[:, 0], atol=1e-6 * size)


@pytest.mark.parametrize("unit", UNITS)
def test_units_without_vectors_have_no_profile(tiny, unit):
    with pytest.raises(ld.InputError, match="no vectors in the stream"):
        ld.profile(tiny, PROMPTS[0], UNITS[unit]())


def test_a_planted_dictionary_is_recovered(tiny):
    """An MLP whose write is a sparse code: a dictionary of its own directions leaves nothing, and finds the code."""
    mlp = tiny.hf_model.model.layers[0].mlp
    x = {}
    hook = mlp.register_forward_hook(lambda m, args, out: x.update(code=(args[0][0, -1] @ code).relu()) or out)
    rng = torch.Generator().manual_seed(3)
    code, directions = torch.randn(16, 12, generator=rng), torch.randn(12, 16, generator=rng)
    sparse = mlp.register_forward_hook(lambda m, args, out: (args[0] @ code).relu() @ directions)
    try:
        sae = code, torch.zeros(12), directions, torch.zeros(16)
        c = ld.contributions(tiny, PROMPTS[:1], OPTIONS, unit=ld.dictionary(sae, "L0.mlp", reads="input"))
        latents, error = c.select(kind="mlp_latent").values[0], c.select(kind="mlp.error").values
        assert np.abs(error).max() < 1e-5 * np.abs(latents).max()
        silent = (x["code"] == 0).numpy()
        assert silent.any()
        assert (latents[silent] == 0).all()
        assert (latents[~silent] != 0).all()
    finally:
        hook.remove(), sparse.remove()


def test_the_error_is_what_a_plain_computation_leaves(tiny):
    w_enc, b_enc, w_dec, b_dec = _weights(16, 40)
    c = ld.contributions(tiny, PROMPTS[:1], OPTIONS, unit=ld.dictionary((w_enc, b_enc, w_dec, b_dec), "L1.mlp"))
    model, shown = tiny.hf_model, {}
    hooks = [
        model.model.layers[1].mlp.register_forward_hook(lambda m, a, out: shown.update(write=out[0, -1].double())),
        model.model.norm.register_forward_hook(lambda m, a, out: shown.update(stream=a[0][0, -1].double())),
    ]
    model(torch.tensor(PROMPTS[:1]))
    [hook.remove() for hook in hooks]
    write = shown["write"]
    latents = (write.float() @ w_enc + b_enc).relu().double()
    sigma = (shown["stream"].square().mean() + model.config.rms_norm_eps).sqrt()
    read = model.lm_head.weight.detach().double()[OPTIONS] * model.model.norm.weight.detach().double() / sigma
    parts = latents[:, None] * (w_dec.double() @ read.T)
    assert np.allclose(c.select(kind="mlp_latent").values[0], parts.detach().numpy(), atol=1e-6)
    error = write - latents @ w_dec.double() - b_dec.double()
    assert np.allclose(c.select("L1.mlp.error").values[0, 0], (read @ error).detach().numpy(), atol=1e-6)


def test_a_group_is_the_sum_of_its_members(tiny):
    members = {"a": ["L0.H1", "L1.H0", "L1.attn_bias"], "b": ["embed", "L1.mlp"]}
    c = ld.contributions(tiny, PROMPTS, OPTIONS, unit=ld.groups(members))
    heads = ld.contributions(tiny, PROMPTS, OPTIONS, unit="head")
    for name, labels in members.items():
        assert np.allclose(c.select(f"group:{name}").values[:, 0], heads.select(labels).values.sum(1), atol=1e-6)
    rest = heads.select(["L1.H1", "L1.H2", "L1.H3"]).values.sum(1)
    assert np.allclose(c.select("L1.attn.rest").values[:, 0], rest, atol=1e-6)
    assert [x.label for x in c.components] == ["L0.attn.rest", "L0.mlp", "L1.attn.rest", "group:a", "group:b"]
    # A group joins what different layers write: no prefix of the stream holds it.
    d = ld.decompose(c, [0] * len(PROMPTS))
    assert d.plot().data
    for ask in (d.by_depth, lambda: d.plot(kind="depth")):
        with pytest.raises(ld.InputError, match="depth"):
            ask()


def test_groups_have_no_order_of_depth_along_which_information_grows():
    task = ld.task("synthetic/recall", limit=64)
    c = ld.contributions("zoo/d2", task, unit=ld.groups({"a": ["L0.H0", "L1.H0"], "b": ["L0.H1", "L1.H1"]}))
    i = ld.information(c, task.labels)
    with pytest.raises(ld.InputError, match="group:a .*depth"):
        i.along()


def test_key_value_groups_and_classes_of_heads_name_all_they_should(tiny):
    groups = ld.key_value_groups(tiny)
    assert groups == {
        "L0.KV0": ["L0.H0", "L0.H1"],
        "L0.KV1": ["L0.H2", "L0.H3"],
        "L1.KV0": ["L1.H0", "L1.H1"],
        "L1.KV1": ["L1.H2", "L1.H3"],
    }
    c = ld.contributions(tiny, PROMPTS, OPTIONS, unit=ld.groups(groups))
    assert [x.label for x in c.components if x.kind != "group"] == ["embed", "L0.mlp", "L1.attn.rest", "L1.mlp"]
    scores = ld.head_scores(tiny, length=8)
    found = ld.attention_patterns(tiny, [1, 2, 3])
    assert scores.component.tolist() == [x.label for x in found.components]
    assert (scores[["induction", "duplicate token", "previous token", "first token"]].sum(axis=1) < 1 + 1e-6).all()


@pytest.mark.parametrize("unit", UNITS)
def test_results_are_saved_and_loaded(tiny, unit, tmp_path):
    c = ld.contributions(tiny, PROMPTS, OPTIONS, unit=UNITS[unit]())
    back = ld.load(c.save(tmp_path / "c"))
    assert back.components == c.components
    d = ld.decompose(back, [0, 1])
    assert d.by_component().component.tolist() == [x.label for x in c.components]


def test_key_value_groups_where_a_configuration_calls_them_otherwise():
    groups = ld.key_value_groups(family("falcon"))  # one pair of keys and values for all heads
    assert groups["L0.KV0"] == ["L0.H0", "L0.H1", "L0.H2", "L0.H3"]


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "granite", "opt", "gemma4", "falcon_h1"])
def test_other_families_close_at_these_units(name):
    model = ld.load_model(family(name))
    layer = f"L{max(c.layer for c in model.components() if c.kind == 'mlp')}"
    width = model.path.width
    units = [ld.dictionary(_weights(width, 12), f"{layer}.mlp")]
    units += [ld.groups({"some": [f"{layer}.mlp", "embed"]})]
    for unit in units:
        assert ld.contributions(model, PROMPTS, OPTIONS, unit=unit).identity_gap < 1e-6


WRONG = {
    "a head": lambda: ld.dictionary(_weights(16, 4), "L1.H0"),
    "no members": lambda: ld.groups({"a": []}),
    "twice": lambda: ld.groups({"a": ["L0.H1"], "b": ["L0.H1"]}),
    "both": lambda: ld.groups({"a": ["L0.H1", "L0.attn"]}),
    "no component": lambda: ld.groups({"a": ["induction"]}),
    "constant": lambda: ld.groups({"a": ["constant"]}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_units_are_refused_in_a_sentence(wrong):
    with pytest.raises(ld.InputError):
        WRONG[wrong]()


class _Odd:
    """A dictionary whose weights are right and which says or does something odd."""

    def __init__(self, **odd):
        self.W_enc, self.b_enc, self.W_dec, self.b_dec = _weights(16, 4)
        self.__dict__ |= odd

    def encode(self, x):
        return (x @ self.W_enc + self.b_enc).relu()

    def decode(self, latents):
        return (latents @ self.W_dec + self.b_dec) * getattr(self, "factor", 1.0)


class _Cfg:
    def __init__(self, **values):
        self.__dict__ |= values


@pytest.mark.parametrize(
    "odd",
    [
        {"W_skip": torch.zeros(16, 16)},
        {"cfg": _Cfg(normalize_activations="expected_average_only_in")},
        {"cfg": _Cfg(normalize_activations="covariance_whitening")},
        {"cfg": _Cfg(hook_name="blocks.0.hook_mlp_out")},
        {"cfg": _Cfg(hook_name="blocks.1.hook_attn_out")},
        {"cfg": _Cfg(hook_name="blocks.1.mlp.hook_post")},
        {"cfg": _Cfg(hook_name="blocks.1.ln2.hook_normalized")},
        {"cfg": _Cfg(metadata=_Cfg(hook_name="blocks.1.hook_resid_post"))},
    ],
)
def test_dictionaries_that_do_not_fit_are_refused(odd):
    with pytest.raises(ld.InputError, match=r"L1\.mlp|hook"):
        ld.dictionary(_Odd(**odd), "L1.mlp")


@pytest.mark.parametrize(
    ("unit", "about"),
    [
        (lambda: ld.dictionary(_Odd(factor=2.0), "L1.mlp"), "W_dec"),
        (lambda: ld.dictionary(_weights(16, 4), "L7.mlp"), "L7.mlp"),
        (lambda: ld.groups({"a": ["L0.H9"]}), "L0.H9"),
        (lambda: ld.groups({"a": ["L0@2.attn"]}), "L0@2.attn"),
        (lambda: "dictionary", "unit"),
        (lambda: ["L0.H1"], "unit"),
    ],
)
def test_units_that_do_not_fit_a_model_are_refused(tiny, unit, about):
    with pytest.raises(ld.InputError, match=about):
        ld.contributions(tiny, PROMPTS, OPTIONS, unit=unit())
