"""Lenses with translators: the numbers of the libraries that made them, and of plain formulas."""

import json

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.model.prompts import token_texts
from tests.conftest import llama
from tests.oracles.families import FAMILIES
from tests.oracles.hooked_forward import layout_of, trace

IDS = [5, 1, 4, 1, 5, 9, 2]


def saved_tuned_lens(folder, layers, width, bias=True, seed=0):
    """A tuned lens of random translators, in the library's files."""
    torch.manual_seed(seed)
    state = {f"{i}.weight": torch.randn(width, width) / width for i in range(layers)}
    if bias:
        state |= {f"{i}.bias": torch.randn(width) / 10 for i in range(layers)}
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "params.pt")
    config = {"base_model_name_or_path": "x", "d_model": width, "num_hidden_layers": layers, "bias": bias}
    (folder / "config.json").write_text(json.dumps(config | {"lens_type": "linear_tuned_lens"}))
    return state


def divergences(model, logits_of_layers):
    """KL(lens ‖ final) and overlap of the five likeliest tokens, `[token, layer]`."""
    with torch.no_grad():
        final = model(torch.tensor([IDS]), use_cache=False).logits[0].double().log_softmax(-1)
    kl, overlap = [], []
    for logits in logits_of_layers:
        own = logits.double().log_softmax(-1)
        kl.append((own.exp() * (own - final)).sum(-1))
        pairs = zip(own.topk(5).indices.tolist(), final.topk(5).indices.tolist(), strict=True)
        overlap.append(torch.tensor([len({*a} & {*b}) / 5 for a, b in pairs]))
    return torch.stack(kl, 1).numpy(), torch.stack(overlap, 1).numpy()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_tuned_lens_is_its_formula(name, bias, tmp_path):
    """x + W x + b for each stream before the final one, then the model's own norm and unembedding."""
    model = FAMILIES[name]()
    found = trace(model, IDS).inputs.float()
    state = saved_tuned_lens(tmp_path / "lens", len(found), found[0].shape[1], bias)
    moved = [x + x @ state[f"{i}.weight"].T + state.get(f"{i}.bias", torch.zeros(1)) for i, x in enumerate(found)]
    with torch.no_grad():
        kl, overlap = divergences(model, [model.lm_head(layout_of(model).final_norm(x)) for x in moved])
    lens = ld.depth.logit_lens(model, [IDS], lens=tmp_path / "lens")
    assert lens.settings["lens"] == "tuned lens lens"
    np.testing.assert_allclose(lens.values["kl"][:, :-1], kl, atol=1e-5)
    np.testing.assert_allclose(lens.values["topk_overlap"][:, :-1], overlap, atol=1e-9)
    np.testing.assert_allclose(lens.values["kl"][:, -1], 0, atol=1e-9)
    plain = ld.depth.logit_lens(model, [IDS], lens=lambda stream, done: stream)
    assert lens.components == plain.components
    assert np.abs(lens.values["kl"] - plain.values["kl"]).max() > 1e-3


def test_a_tuned_lens_is_what_the_tuned_lens_library_reads(tmp_path, monkeypatch):
    import transformer_lens

    # The library's last release names a class that TransformerLens 4 no longer has, and needs none of it.
    monkeypatch.setitem(vars(transformer_lens), "HookedTransformer", type("HookedTransformer", (), {}))
    tuned = pytest.importorskip("tuned_lens", reason="tuned-lens is not installed")
    model = FAMILIES["gpt2"]()
    found = trace(model, IDS).inputs.float()
    saved_tuned_lens(tmp_path, len(found), found[0].shape[1])
    library = tuned.TunedLens.from_model_and_pretrained(model, str(tmp_path), map_location="cpu")
    with torch.no_grad():
        kl, _ = divergences(model, [library(x, i) for i, x in enumerate(found)])
    np.testing.assert_allclose(ld.depth.logit_lens(model, [IDS], lens=tmp_path).values["kl"][:, :-1], kl, atol=1e-5)


def test_a_jacobian_lens_is_what_transformer_lens_reads(tmp_path):
    """Its matrices act on the outputs of blocks; a layer without one is left out."""
    lenses = pytest.importorskip("transformer_lens.tools.analysis.jacobian_lens", reason="TransformerLens 3.9 has none")
    model = ld.load_model(llama(num_hidden_layers=4))
    width = model.path.width
    torch.manual_seed(0)
    matrices = {layer: torch.eye(width) + torch.randn(width, width) / width for layer in (0, 2)}
    lens = lenses.JacobianLens(matrices, n_prompts=1, d_model=width)
    read = lens.readout(model.bridge, torch.tensor([IDS]), return_full_logits=True)
    kl, overlap = divergences(model.hf_model, [read.lens_logits[layer] for layer in (0, 2)])
    lens.save(str(tmp_path / "lens.pt"), dtype=torch.float32)
    for given in (lens, tmp_path / "lens.pt"):
        found = ld.depth.logit_lens(model, [IDS], lens=given)
        assert [c.label for c in found.components] == ["L0.mlp", "L2.mlp", "L3.mlp"]
        np.testing.assert_allclose(found.values["kl"][:, :2], kl, atol=1e-4)
        np.testing.assert_allclose(found.values["topk_overlap"][:, :2], overlap, atol=1e-9)


def test_a_function_translates_and_the_identity_is_the_logit_lens():
    plain = ld.depth.logit_lens(llama(), [IDS])
    ends = [i for i, c in enumerate(plain.components) if c.kind != "attn"]
    same = ld.depth.logit_lens(llama(), [IDS], lens=lambda stream, done: stream)
    np.testing.assert_array_equal(same.values["kl"], plain.values["kl"][:, ends])
    later = ld.depth.logit_lens(llama(), [IDS], lens=lambda stream, done: stream if done > 1 else None)
    np.testing.assert_array_equal(later.values["kl"], same.values["kl"][:, 2:])


@pytest.mark.parametrize(
    ("lens", "about"),
    [(lambda stream, done: stream[:, :3], "shape"), (lambda stream, done: stream * np.inf, "finite")],
)
def test_streams_of_another_shape_or_that_are_not_finite_are_refused(lens, about):
    with pytest.raises(ld.InputError, match=about):
        ld.depth.logit_lens(llama(), [IDS], lens=lens)


def test_a_lens_of_another_model_or_for_the_frozen_norm_is_refused(tmp_path):
    saved_tuned_lens(tmp_path / "other", 5, 32)
    with pytest.raises(ld.InputError, match="5 layers"):
        ld.depth.logit_lens(llama(), [IDS], lens=tmp_path / "other")
    with pytest.raises(ld.InputError, match="recomputed"):
        ld.depth.logit_lens(llama(), [IDS], "frozen", lens=lambda stream, done: stream)


def test_one_text_has_its_likeliest_tokens(stories):
    """After every junction, at its end: what a pass by hand reads out, and `top_tokens` at the last one."""
    model, texts = stories, ["Once upon a time", "The cat sat on the"]
    for text in texts:
        found = ld.depth.logit_lens(model, text)
        tops = found.frame()["top_token"].tolist()
        hf, ids = model.hf_model, torch.tensor([model.tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            states = hf(ids, output_hidden_states=True).hidden_states
            by_hand = [int(hf.lm_head(hf.model.norm(x[0, -1])).argmax()) for x in states[:-1]]
        layers = [top for c, top in zip(found.components, tops, strict=True) if c.kind != "attn"]
        assert tuple(layers[:-1]) == token_texts(model, by_hand)
        assert tops[-1] == ld.top_tokens(model, text, k=1)["prediction"].iloc[-1]
    assert "top_token" not in ld.depth.logit_lens(model, texts).frame()
