"""Displacement and jump rate of arXiv 2601.18302, from plain hidden states; their intervals hold what they say."""

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.depth.residual_norms import ResidualNorms
from tests.conftest import llama
from tests.oracles.families import FAMILIES
from tests.oracles.hooked_forward import trace

ROWS = [[(7 * i + 3 * j) % 61 for j in range(3 + i % 4)] for i in range(10)]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_they_are_the_papers_formulas_of_plain_hidden_states(name):
    model = FAMILIES[name]()
    psi = []
    for ids in ROWS:
        h = trace(model, ids).residuals.numpy()
        cosine = (h[1:] * h[:-1]).sum(-1) / np.linalg.norm(h[1:], axis=-1) / np.linalg.norm(h[:-1], axis=-1)
        psi.append(1 - 0.5 * (1 + cosine))
    mean = np.concatenate(psi, 1).mean(1)
    zeta = [100 * sum(max(0.0, mean[k] - mean[k - 1]) for k in range(max(i, 1), len(mean))) for i in range(len(mean))]
    found = ld.depth.residual_norms(model, ROWS).jump_rate()
    np.testing.assert_allclose(found["displacement"], mean, atol=1e-6)
    np.testing.assert_allclose(found["jump_rate"], zeta, atol=1e-4)
    assert (found["jump_rate_low"] <= found["jump_rate"]).all()
    assert found["component"].tolist() == [f"L{i}.layer" for i in range(len(mean))]


def planted(rng, texts, psi):
    """Streams whose displacement is `psi` plus noise of each text, as a result."""
    noisy = np.clip(psi + rng.normal(0, 0.03, (texts, len(psi))), 0, 1)
    # A write at right angles of relative size r turns the stream by the angle arctan r.
    relative = np.tan(np.arccos(1 - 2 * noisy)).astype(np.float32)
    layers = tuple(ld.Component("layer", i) for i in range(len(psi)))
    return ResidualNorms(
        components=layers,
        relative_norm=relative,
        cosine=np.zeros_like(relative),
        norm=relative,
        text=np.arange(texts),
        model="planted",
    )


def test_the_interval_holds_a_clear_jump_as_often_as_it_says():
    """300 draws of 40 texts with a jump of 15 points at the last of five layers: at least 91 % of intervals."""
    rng, psi = np.random.default_rng(0), np.array([0.10, 0.06, 0.05, 0.05, 0.20])
    held = []
    for _ in range(300):
        last = planted(rng, 40, psi).jump_rate().iloc[-1]
        held.append(last["jump_rate_low"] <= 15 <= last["jump_rate_high"])
    assert np.mean(held) >= 0.91


def test_one_layer_has_no_jump():
    with pytest.raises(ld.InputError, match="one"):
        ld.depth.residual_norms(llama(num_hidden_layers=1), ROWS).jump_rate()
