"""Contributions along a continuation: those of each prefix alone, from one pass; what is written is the model's own."""

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from tests.conftest import llama
from tests.oracles.families import FAMILIES

PROMPTS = [[5, 1, 4], [3, 14, 15, 9, 2]]
ENDLESS = {"bos_token_id": None, "eos_token_id": None}
OPTIONAL = ("expectations", "normalizer", "log_likelihood", "vocabulary_means")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "neox_parallel", "falcon_alibi"])
@pytest.mark.parametrize("unit", ["sublayer", "head"])
def test_one_pass_reads_what_each_prefix_alone_gives(name, unit):
    """Values, likelihoods and gaps are those of prompts that end before each token, with the same two options."""
    model = ld.load_model(FAMILIES[name]())
    model.root.generation_config.eos_token_id = model.root.config.eos_token_id = None
    c = ld.continuation(model, PROMPTS, max_new_tokens=4, unit=unit)
    prefixes = [ids[:end] for ids, start in zip(c.continued, (3, 5), strict=True) for end in range(start, len(ids))]
    each = ld.contributions(
        model, [list(p) for p in prefixes], [[int(i) for i in row] for row in c.option_ids], unit=unit
    )
    assert c.tokens == tuple(prefixes)
    assert c.identity_gap <= 1e-6
    np.testing.assert_allclose(c.values, each.values, atol=2e-5)
    np.testing.assert_allclose(c.model_logits, each.model_logits, atol=2e-5)
    for field in OPTIONAL:
        np.testing.assert_allclose(getattr(c, field), getattr(each, field), atol=2e-5)


def test_greedy_tokens_are_those_that_transformers_writes():
    model = llama()
    for prompt in PROMPTS:
        c = ld.continuation(model, prompt, max_new_tokens=6)
        settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        plain = model.generate(torch.tensor([prompt]), max_new_tokens=6, **settings)[0].tolist()
        assert list(c.continued[0]) == plain
        assert c.sampling["method"] == "greedy"


@pytest.mark.parametrize("place", ["generation_config", "config"])
def test_a_text_ends_at_every_token_that_the_settings_name(place):
    """Turns end at other tokens than texts, and a model without a tokenizer has ends, too."""
    model = llama(**ENDLESS)
    every = list(ld.continuation(model, PROMPTS[0], max_new_tokens=8).continued[0][3:])
    last = next(n for n, token in enumerate(every) if n and token not in every[:n])
    getattr(model, place).eos_token_id = [60, every[last]]
    assert list(ld.continuation(model, PROMPTS[0], max_new_tokens=8).continued[0][3:]) == every[:last]


def test_the_rival_is_the_likeliest_other_token_and_likelihoods_sum(stories):
    """Against plain Transformers: log p of the whole, and the second of the sorted logits at every place."""
    c = ld.continuation(stories, "Once upon a time", " there was a big dog")
    assert c.text[0].strip() == "there was a big dog"
    ids = torch.tensor([c.continued[0]])
    with torch.no_grad():
        logits = stories.hf_model(ids).logits[0].double()
    start = ids.shape[1] - len(c.written)
    logp = logits.log_softmax(-1)[range(start - 1, ids.shape[1] - 1), ids[0, start:]]
    np.testing.assert_allclose(c.log_likelihood[:, 0], logp.numpy(), atol=1e-5)
    for (own, rival), row in zip(c.option_ids, logits[start - 1 : -1], strict=True):
        first, second = row.topk(2).indices.tolist()
        assert rival == (second if own == first else first)
    frame = c.frame()
    sums = frame.groupby("position")["log_likelihood"].sum().to_numpy() + c.normalizer[:, 0]
    np.testing.assert_allclose(sums, logp.numpy(), atol=1e-5)
    margin = frame.groupby("position")["difference"].sum().to_numpy()
    np.testing.assert_allclose(margin, c.model_logits[:, 0] - c.model_logits[:, 1], atol=1e-4)
    assert frame["position"].unique().tolist() == list(range(start, ids.shape[1]))


def test_sampling_follows_the_softmax_at_its_temperature_and_its_seed():
    """First tokens of 300 seeds against the softmax: a χ² test at the 99.9 % point; one seed gives one text."""
    from scipy import stats

    model = ld.load_model(llama(vocab_size=6, **ENDLESS))
    how = {"max_new_tokens": 1, "temperature": 0.7}
    drawn = [ld.continuation(model, [1, 2, 3], seed=seed, **how).continued[0][3] for seed in range(300)]
    with torch.no_grad():
        p = torch.softmax(model.hf_model(torch.tensor([[1, 2, 3]])).logits[0, -1].double() / 0.7, -1).numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=6), 300 * p).pvalue > 1e-3
    one, two = (ld.continuation(model, [1, 2, 3], max_new_tokens=8, temperature=1.0, seed=5) for _ in range(2))
    assert one.continued == two.continued
    assert one.sampling == {"method": "sampled", "temperature": 1.0, "seed": 5, "asked": 8}


def test_a_conversation_is_continued(stories, tmp_path):
    stories.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    turns = [{"role": "user", "content": "Tom had a cat."}]
    c = ld.continuation(stories, stories.tokenizer.apply_chat_template(turns, return_dict=True), max_new_tokens=5)
    again = ld.load(c.save(tmp_path / "c.safetensors"))
    assert again.continued == c.continued
    assert again.frame().equals(c.frame())


@pytest.mark.parametrize(
    ("given", "about"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 900}, "64"),
        ({"text": [[7, 61]]}, "61"),
        ({"text": []}, "option"),
        ({"text": {7, 8}}, "option"),
    ],
)
def test_what_cannot_be_continued_is_refused(given, about):
    with pytest.raises(ld.InputError, match=about):
        ld.continuation(llama(), [1, 2, 3], **given)
    with pytest.raises(ld.InputError, match="text"):
        ld.continuation(llama(), PROMPTS, [[7]])
