"""Where rotary positions depend on how long a text is, every number is that of a pass of that length alone."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import llama

SWITCH = 8
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 4.0, 9.0, 16.0], "rope_theta": 1e4}
ROPES = {
    "longrope": LONG | {"factor": 4.0, "original_max_position_embeddings": SWITCH},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
}


def network(kind: str) -> torch.nn.Module:
    longest = SWITCH if kind == "dynamic" else 64
    return llama(rope_parameters=dict(ROPES[kind]), max_position_embeddings=longest)


def log_p(kind: str, prompt: list[int], option: list[int]) -> float:
    """From a pass of a new model over the prompt and the option but its last token."""
    with torch.no_grad():
        logits = network(kind)(input_ids=torch.tensor([prompt + option[:-1]])).logits[0].double().log_softmax(-1)
    return float(sum(logits[len(prompt) - 1 + i, token] for i, token in enumerate(option)))


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("length", [5, 6, 7, 8, 9, 12])
def test_each_option_is_read_at_its_own_length(kind, length):
    """Options of one, three and five tokens, of which two share a beginning, before, at and behind the switch."""
    prompt = [(7 * i + 3) % 60 for i in range(length)]
    options = [[7], [9, 4, 11], [9, 4, 1, 2, 3]]
    c = ld.contributions(network(kind), [prompt, prompt[:3]], [options, options])
    want = [[log_p(kind, p, option) for option in options] for p in (prompt, prompt[:3])]
    np.testing.assert_allclose(c.log_likelihood, want, atol=1e-5)
    sums = c.log_likelihood_parts.sum(1) + c.normalizer
    np.testing.assert_allclose(sums, c.log_likelihood, atol=1e-5)
    assert c.identity_gap < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("kind", ROPES)
def test_no_text_changes_the_numbers_of_another(kind):
    """Rows of many lengths together, in any order, and after a longer text: those of a new model's own pass."""
    rows = [[(5 * i + n) % 60 for i in range(n)] for n in (3, 8, 9, 20, 11, 9, 2)]
    net = network(kind)
    found = [ld.contributions(net, rows, [7, 9]).model_logits for _ in range(2)]
    lens = ld.depth.residual_norms(net, rows[3])
    for logits in found:
        for row, own in zip(rows, logits, strict=True):
            with torch.no_grad():
                want = network(kind)(input_ids=torch.tensor([row])).logits[0, -1, [7, 9]]
            np.testing.assert_allclose(own, want, atol=1e-5)
    assert lens.model


def test_a_dynamic_model_reads_beyond_its_own_length():
    """That is what it is for; LongRoPE ends where its configuration does."""
    assert ld.load_model(network("dynamic")).context is None
    with pytest.raises(ld.InputError, match="reads at most 64"):
        ld.contributions(network("longrope"), [[1] * 65], [7, 9])
