"""The engine of interventions: a new patch and a new reading are a few lines, and give what plain hooks give."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.depth.engine import Rows, as_it_is, read_logits, run_patches
from tests.oracles.families import FAMILIES

IDS = [(5, 1, 4, 1, 5, 9), (3, 14, 15), (17, 11, 60, 2, 7)]
AT = [range(2, 6), [1], [0, 4]]


def halve_mlps(clean, batch):
    """An intervention: each layer's MLP writes half of what it wrote."""
    for block in range(len(clean.layers)):
        halved = {(block, "mlp"): lambda output: output / 2}
        yield clean.component("mlp", block), clean.resume(block, clean.streams[block], halved)


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
    reader = read_logits(rows, entropy_change)
    names, (found,) = run_patches(model, rows, halve_mlps, reader, 3, batch_tokens)
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


def test_the_pass_as_it_is_changes_nothing():
    """Of no patch a change is 0; a mean, sum and maximum over rows are over each row's own positions."""
    rows = Rows(IDS, AT)
    names, (found,) = run_patches(
        ld.load_model(FAMILIES["llama"]()), rows, as_it_is, read_logits(rows, entropy_change), 1
    )
    assert names == ("clean",)
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
