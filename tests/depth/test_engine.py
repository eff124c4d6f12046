"""The engine of interventions: a new patch and a new reading are a few lines, and give what plain hooks give."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.depth.engine import Rows, ablate, run_patches
from layerdiv_tl.depth.patched_forward import PatchedForward
from layerdiv_tl.depth.residual_norms import _head_writes
from tests.oracles.families import BY_STRUCTURE, FAMILIES

IDS = [(5, 1, 4, 1, 5, 9), (3, 14, 15), (17, 11, 60, 2, 7)]
AT = [range(2, 6), [1], [0, 4]]


def halve_mlps(clean, batch):
    """An intervention: each layer's MLP writes half of what it wrote."""
    for block in range(len(clean.layers)):
        halved = {(block, "mlp"): lambda output: output / 2}
        yield clean.component("mlp", block), clean.resume(block, [clean.streams[block]], halved)


def entropy_change(clean, targets):
    """A reading: by how many nats the next token's entropy grows."""

    def entropy(logits):
        return torch.special.entr(logits.double().softmax(-1)).sum(-1)

    return lambda logits: (entropy(logits) - entropy(clean))[None]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("batch_tokens", [None, 6])
def test_a_new_intervention_and_a_new_reading_are_what_plain_hooks_give(name, batch_tokens):
    """Rows of different lengths, read at different positions, in the order of the rows whatever the batches."""
    model, rows = ld.load_model(FAMILIES[name]()), Rows(IDS, AT)
    names, (found,) = run_patches(model, rows, halve_mlps, entropy_change, 3, batch_tokens)
    assert [c.label for c in names] == ["L0.mlp", "L1.mlp", "L2.mlp"]
    assert (rows.row.tolist(), rows.position.tolist()) == ([0, 0, 0, 0, 1, 2, 2], [2, 3, 4, 5, 1, 0, 4])
    root = model.hf_model
    blocks = root.model.layers if name == "llama" else root.transformer.h

    def entropies(ids):
        with torch.no_grad():
            logits = root(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return torch.special.entr(logits.double().softmax(-1)).sum(-1).numpy()

    for layer, block in enumerate(blocks):
        clean = [entropies(ids) for ids in IDS]
        handle = block.mlp.register_forward_hook(lambda module, args, output: output / 2)
        wanted = [(entropies(ids) - own)[list(at)] for ids, own, at in zip(IDS, clean, AT, strict=True)]
        handle.remove()
        np.testing.assert_allclose(found[:, layer], np.concatenate(wanted), atol=1e-5)


def test_the_pass_unpatched_changes_nothing():
    """Of no patch a change is 0; a mean, sum and maximum over rows are over each row's own positions."""
    rows = Rows(IDS, AT)
    names, (found,) = run_patches(
        ld.load_model(FAMILIES["llama"]()),
        rows,
        lambda clean, batch: ablate(clean, [()]),
        entropy_change,
        1,
    )
    assert names == ((),)
    assert not found.any()
    values = np.arange(7.0)[:, None]
    np.testing.assert_array_equal(rows.mean(values)[:, 0], [1.5, 4, 5.5])
    np.testing.assert_array_equal(rows.reduce(np.maximum, values)[:, 0], [3, 4, 6])
    some = rows.take([2, 0])
    assert (some.ids, some.row.tolist(), some.position.tolist()) == (
        [IDS[2], IDS[0]],
        [0, 0, 1, 1, 1, 1],
        [0, 4, 2, 3, 4, 5],
    )
    np.testing.assert_array_equal(some.targets, [11, -1, 1, 5, 9, -1])


@pytest.mark.parametrize(("name", "factor"), [("llama", 1.0), ("granite", 0.5)])
def test_factors_between_writes_and_the_stream_are_those_of_the_config(name, factor):
    model = ld.load_model(FAMILIES[name]())
    with model.path.session(), torch.no_grad():
        assert set(PatchedForward(model, IDS).scales.values()) == {factor}


def test_a_stream_that_passes_norms_between_its_sublayers_has_only_a_frozen_lens():
    root = BY_STRUCTURE["opt_post_ln"]()
    with pytest.raises(ld.InputError, match="between its sublayers"):
        ld.depth.skip(root, IDS)
    kl = ld.depth.logit_lens(root, IDS, "frozen").values["kl"]
    assert np.isfinite(kl).all()
    assert kl[:, 0].min() > 1e-3
    assert kl[:, -1].max() < 1e-12


@pytest.mark.parametrize("name", ["llama", "olmo3", "granite"])
def test_heads_write_what_their_attention_writes(name):
    """Without a bias the heads' writes sum to the attention's, also through a norm behind it."""
    model = ld.load_model(FAMILIES[name]())
    bias = next((w.projection.bias for w in model.path.writers if w.kind == "attn"), None)
    with model.path.session(), torch.no_grad():
        clean = PatchedForward(model, IDS, keep_heads=True)
        for block in range(len(clean.layers)):
            whole = clean.outputs[block, "attn"][clean.tokens]
            writes = _head_writes(clean, block)
            if bias is None:
                torch.testing.assert_close(sum(writes).float(), whole, rtol=1e-4, atol=1e-5)
            else:  # what is left is the same at every token
                left = whole - sum(writes).float()
                torch.testing.assert_close(left, left[:1].expand_as(left), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "cohere", "opt"])
def test_gradients_pass_the_models_own_read_out(name):
    """Its values are those without a gradient, and its slope is that of a small step."""
    model = ld.load_model(FAMILIES[name]().double())
    stream = torch.randn(3, model.path.width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with model.path.session(), torch.enable_grad():
        logits = model.path.read_out(stream.requires_grad_())[1]
        torch.testing.assert_close(logits.detach(), model.path.read_out(stream.detach())[1].clone())
        (slope,) = torch.autograd.grad(logits[:, 7].sum(), stream)
        step = 1e-3 * torch.randn(stream.shape, generator=torch.Generator().manual_seed(1))
        there, here = (model.path.read_out((stream + sign * step).detach())[1][:, 7].sum() for sign in (1, -1))
    assert float((there - here) / 2) == pytest.approx(float((slope * step).sum()), rel=1e-3)
