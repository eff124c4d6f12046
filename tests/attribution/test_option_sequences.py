"""Options of several tokens: log-likelihoods and their parts against the definition."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import TEXTS, gpt2, llama, tied, unrolled
from tests.oracles.families import family
from tests.oracles.log_likelihood import score

PROMPTS = [[5, 1, 4, 1, 5, 9, 2, 6], [3], [17, 11, 60, 0]]
# Of different lengths, with common beginnings, and one that begins another.
OPTIONS = [[7, 30, 2], [7, 30, 4], [7], [9, 9, 9, 9]]
MODELS = {
    "llama": llama,
    "gpt2": gpt2,
    "gemma2, capped": lambda: family("gemma2"),
    "mixtral": lambda: family("mixtral"),
    "looped": lambda: tied(0, 1, 1, 2),
}


def check(model, c, prompts, options):
    """Every number of every option is the oracle's; the parts sum to the log-likelihood."""
    for row, prompt in enumerate(prompts):
        for k, option in enumerate(options):
            want = score(model, list(prompt), list(option))
            count = c.values.shape[1]
            size = np.abs(want.values).sum()
            np.testing.assert_allclose(c.values[row, :, k], want.values[:count], atol=1e-5 * size)
            np.testing.assert_allclose(c.log_likelihood_parts[row, :, k], want.parts[:count], atol=1e-5 * size)
            np.testing.assert_allclose(c.log_likelihood[row, k], want.log_likelihood, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(c.normalizer[row, k], want.normalizer, atol=1e-5 * size)
            if c.soft_cap is None:
                np.testing.assert_allclose(c.normalizer[row, k], want.minus_entropy, atol=1e-5 * size)
    np.testing.assert_allclose(c.log_likelihood_parts.sum(1) + c.normalizer, c.log_likelihood, rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_definition(name):
    """Options are scored as by one plain pass each."""
    model = MODELS[name]()
    c = ld.contributions(model, PROMPTS, [OPTIONS])
    check(unrolled(model) if name == "looped" else model, c, PROMPTS, OPTIONS)
    assert c.identity_gap <= 1e-6


@pytest.mark.full
@pytest.mark.parametrize("unit", ["sublayer", "head", "neuron"])
def test_equals_the_definition_on_the_default_model(smol, unit):
    """As on tiny models; heads and neurons sum to their sublayers."""
    prompts, options = (
        ["The capital of France is", "In 1969 people walked on the"],
        [" Paris", " Antananarivo", " a city"],
    )
    c = ld.contributions(smol, prompts, options, unit=unit)
    ids = [[int(i) for i in row if i >= 0] for row in c.option_ids[0]]
    if unit == "sublayer":
        check(smol.root, c, c.tokens, ids)
    whole = ld.contributions(smol, prompts, options)
    for layer in (0, 29):
        for module in ("attention", "mlp"):
            own, other = (x.select(module=module, layer=layer).log_likelihood_parts.sum(1) for x in (c, whole))
            np.testing.assert_allclose(own, other, atol=1e-4)


def test_batches_change_nothing(stories):
    """Texts as the tokenizer continues the prompt, one prompt a pass or all together."""
    options = [" the dog", " a little girl named Lily", " cat"]
    expected = ld.contributions(stories, TEXTS, options)
    for batch_tokens in (1, 40):
        c = ld.contributions(stories, TEXTS, options, batch_tokens=batch_tokens)
        np.testing.assert_allclose(c.values, expected.values, atol=1e-4)
        np.testing.assert_allclose(c.log_likelihood, expected.log_likelihood, atol=1e-4)


def test_scores_are_what_decompositions_take(stories, tmp_path):
    """Log-likelihoods as sums of members; saved and loaded they are the same."""
    options = [" the", " a little girl"]
    c = ld.contributions(stories, TEXTS, options)
    np.testing.assert_allclose(c.scores().logits, c.log_likelihood, rtol=1e-9)
    np.testing.assert_array_equal(c.scores().model_logits, c.log_likelihood)
    d = ld.decompose(c, [0, 1, 0], loss="cross_entropy")
    p = np.exp(c.log_likelihood) / np.exp(c.log_likelihood).sum(1, keepdims=True)
    np.testing.assert_allclose(d.loss, -np.log(p[[0, 1, 2], [0, 1, 0]]).mean(), rtol=1e-6)
    same = ld.decompose(c, target=p, loss="cross_entropy")
    np.testing.assert_allclose(same.loss, same.entropy, rtol=1e-6)
    again = ld.load(c.save(tmp_path / "c.safetensors"))
    np.testing.assert_array_equal(again.log_likelihood_parts, c.log_likelihood_parts)
    assert c.frame()["option_index"].tolist() == [0, 1] * (len(TEXTS) * len(c.components))


def test_a_logit_difference_is_additive_and_signed(stories, tmp_path):
    """Its sum is the model's own difference; both signs apart add up to it; pairs of options are the same."""
    right, wrong = [" the", " and", " a"], " was"
    d = ld.logit_difference(stories, TEXTS, right, wrong)
    c = ld.contributions(stories, TEXTS, options=[(x, wrong) for x in right], unit="head")
    np.testing.assert_array_equal(d.values, c.values[:, :, 0] - c.values[:, :, 1])
    np.testing.assert_array_equal(c.difference(1, 0).values, -d.values)
    np.testing.assert_allclose(d.total, d.model_difference, atol=1e-4)
    np.testing.assert_allclose(d.positive + d.negative, d.total, rtol=1e-9)
    frame = d.frame()
    np.testing.assert_allclose(frame["positive"] + frame["negative"], frame["difference"], atol=1e-12)
    np.testing.assert_allclose(frame.attrs["positive"], frame["positive"].sum(), rtol=1e-9)
    assert ld.load(d.save(tmp_path / "d.safetensors")).pairs == d.pairs
    assert len(d.plot(kind="bars", most=5).data[0].y) <= 5
    long = ld.logit_difference(stories, TEXTS, " the little", " and then")
    np.testing.assert_allclose(long.total, long.model_difference, rtol=1e-9)
    for pair in ((0, 0), (0, " of"), (0, 2)):
        with pytest.raises(ld.InputError, match=r"itself|none of its options|option's index"):
            c.difference(*pair)
    with pytest.raises(ld.InputError, match="two options"):
        ld.contributions(stories, TEXTS, [" the"]).difference()


def test_a_model_without_position_ids_scores_options_as_plain_passes():
    """ALiBi counts distances itself: MPT takes no positions."""
    hf = family("mpt").to(torch.bfloat16)
    model = ld.load_model(hf)
    c = ld.contributions(model, [[5, 1, 4, 1]], [[[3, 4, 6], [7, 8, 9]]])
    for column, option in enumerate(([3, 4, 6], [7, 8, 9])):
        with torch.no_grad():
            answer = hf(torch.tensor([[5, 1, 4, 1, *option]])).logits[0].float().log_softmax(-1)
        alone = sum(float(answer[3 + place, token]) for place, token in enumerate(option))
        assert abs(c.log_likelihood[0, column] - alone) < 0.02


def test_ids_without_a_tokenizer_have_names_that_can_be_read():
    c = ld.contributions(llama(), [[1, 2], [3]], [[[7, 9], [4]]])
    assert c.options == ("token 7 token 9", "token 4")
