"""Every depth analysis against the released rules of arXiv 2505.13898, restated by plain hooks.

Both sides run the same float32 model and sum in float64: a batch of several texts may round otherwise than one text
alone, so numbers may differ by 2e-5 of the largest of their kind. They may by 1e-4 where there is more to round:
gradients, and what a layer adds to a first token's stream, which is a thousand times as long.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.attribution import vocabulary
from layerdiv_tl.attribution.vocabulary import NextTokenDistribution, Vocabulary
from layerdiv_tl.depth import engine
from layerdiv_tl.model.batches import inference_mode_for
from layerdiv_tl.model.patched_forward import PatchedForward
from tests.oracles import published_depth_rules as published

TEXTS = [
    "Once upon a time there was a little girl who had a red ball and a big dog.",
    "Lily and Ben went to the park. They saw a cat on a tree and they were very happy to see it.",
]
ASKED = [
    ("The capital of France is", " Paris", 1),
    ("Lily gave the ball to Ben, and Ben gave it to Tom. The ball is now with", " Tom.", 2),
    ("Seven minus three is", " four", 1),
]
# The names here of what the released code skips.
PARTS = {"layer": "layer", "attn": "attention", "mlp": "mlp"}
MODELS = ["stories", pytest.param("smol", marks=pytest.mark.nightly)]
# The released rules take minutes where every token and layer has a pass of its own: on the small model only.
on_stories = pytest.mark.parametrize("case", ["stories"], indirect=True)


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """(model, its Hugging Face model, the ids of the texts); of the default model one text, for it has 30 layers."""
    model = request.getfixturevalue(request.param)
    ids = [model.tokenizer(text)["input_ids"] for text in TEXTS]
    return model, model.architecture.root, ids if request.param == "stories" else [ids[0][:14]]


@pytest.fixture(scope="module")
def short(case):
    """Ids of one short text: what costs a pass for every token and layer."""
    return case[2][0][: 7 if len(case[2]) > 1 else 5]


def alike(found, wanted, tolerance=2e-5):
    """Equal up to a share of the largest number."""
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    assert found.shape == wanted.shape
    known = np.isfinite(found)
    assert (known == np.isfinite(wanted)).all()
    assert np.abs(found - wanted)[known].max() <= tolerance * np.abs(wanted[known]).max()


def later_only(table):
    """`[skipped, layer]` where the layer lies after the skipped one; the others are no effects here."""
    table = np.array(table, dtype=float)
    table[np.tril_indices(len(table))] = np.nan
    return table


def maxima(found):
    """Over tokens, cuts and texts, as the released code aggregates."""
    return found.downstream_change_max.max(0), found.frame()["output_change_max"]


def asked_ids(model):
    """Ids of every question with its answer, and how many tokens the answer has."""
    rows = [(model.tokenizer(text)["input_ids"], model.tokenizer(text + more)["input_ids"]) for text, more, _ in ASKED]
    assert all(whole[: len(text)] == text for text, whole in rows)
    return [(whole, len(whole) - len(text)) for text, whole in rows]


def test_sizes(case):
    model, root, ids = case
    found = ld.depth.residual_norms(model, ids)
    rules = [published.residual_norms(root, row) for row in ids]
    io = 1 - found.block_influence
    for part, name in PARTS.items():
        here = [i for i, c in enumerate(found.components) if c.kind == part]
        for ours, theirs in (("norm", name), ("relative_norm", f"relative_{name}"), ("cosine", f"cosine_{name}")):
            table = getattr(found, ours)[:, here]
            alike(table, np.concatenate([rule[theirs] for rule in rules], 1).T, 1e-4)
            for how in ("mean", "max"):
                alike(getattr(table, how)(0), published.over_tokens(rules, how)[theirs])
        if part == "layer":
            alike(io[:, here], np.concatenate([rule["cosine_io"] for rule in rules], 1).T)
            alike(found.stream[:, here], np.concatenate([rule["residual"][:-1] for rule in rules], 1).T)


@pytest.mark.parametrize("part", PARTS)
def test_current_skips(case, part):
    model, root, ids = case
    rule = published.published_skip_effects(root, ids, PARTS[part])
    later, output = maxima(ld.depth.skip(model, ids, part))
    alike(later, later_only(rule["layers"]))
    alike(output, rule["output_change"])


@on_stories
@pytest.mark.parametrize("part", PARTS)
def test_future_skips(case, part):
    """Cuts and all: the released code draws them prompt after prompt from one seeded generator."""
    model, root, ids = case
    generator = random.Random(123)
    cuts = [published.published_cuts(len(row), generator) for row in ids]
    assert all(cuts)
    rule = published.published_skip_effects(root, ids, PARTS[part], cuts)
    later, output = maxima(ld.depth.skip(model, ids, part, "future", cuts="published"))
    alike(later, later_only(rule["layers"]))
    alike(output, rule["output_change"])


@on_stories
def test_shares_of_the_length_are_cuts_too(case):
    """Other cuts than the published ones are the same rule at other tokens."""
    model, root, ids = case
    found = ld.depth.skip(model, ids, mode="future", cuts=[0.3, 0.7])
    cuts = [[round(len(row) * share) for share in (0.3, 0.7)] for row in ids]
    rule = published.published_skip_effects(root, ids, "layer", cuts)
    alike(maxima(found)[0], later_only(rule["layers"]))


@pytest.mark.parametrize("cut", [None, 0.5])
def test_local_effects(case, cut):
    model, root, ids = case
    mode = {"mode": "local"} if cut is None else {"mode": "future_local", "cuts": [cut]}
    found = ld.depth.skip(model, ids, **mode)
    for text, row in enumerate(ids):
        rule = published.direct_effects(root, row, None if cut is None else round(len(row) * cut))
        alike(found.downstream_change_max[text], later_only(rule.max(-1)))
        alike(found.downstream_change[text], later_only(rule.mean(-1)))


def test_lens(case):
    """Of every junction; those that the released code reads out are the streams that enter the layers."""
    model, root, ids = case
    found = ld.depth.logit_lens(model, ids)
    here = [0, *(i for i, c in enumerate(found.components) if c.kind == "mlp")][:-1]
    rules = [published.logit_lens(root, row) for row in ids]
    for name in ("kl", "topk_overlap"):
        alike(getattr(found, name)[:, here], np.concatenate([rule[name] for rule in rules], 1).T)
        alike(found.frame()[name].iloc[here], np.mean([rule[name].mean(1) for rule in rules], 0))


@on_stories
@pytest.mark.full
def test_erasure_of_a_token(case, short):
    model, root, ids = case
    mean = published.mean_residuals(root, ids)
    found = ld.depth.erase(model, [short], answers=2, reference=ids)
    rule = published.residual_erasure(root, short, 2, mean)[:-1, :-1]
    alike(found.effect_max, rule.max(-1).T)
    alike(found.effect, rule.mean(-1).T)
    later = ld.depth.erase(model, [short], measured="later", reference=ids)
    alike(later.effect_max[:, :-1], published.future_erasure(root, short, mean).T)


@on_stories
def test_erasure_of_a_prefix(case, short):
    """The tokens 1 to t − 1, measured after t: here the row of the last erased one."""
    model, root, ids = case
    mean = published.mean_residuals(root, ids)
    found = ld.depth.erase(model, [short], "prefix", reference=ids)
    rule = published.future_erasure(root, short, mean, prefix=True, cuts=range(2, len(short) - 1))
    known = np.isfinite(found.effect_max).all(1)
    assert found.position[known].tolist() == list(range(1, len(short) - 2))
    alike(found.effect_max[known, :-1], rule.T)


@on_stories
@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
def test_integrated_gradients(case, short, part):
    model, root, ids = case
    steps = 48 if len(ids) > 1 else 6
    found = ld.depth.integrated_gradients(model, [short], part, answers=2, steps=steps)
    rule = published.integrated_gradients(root, short, 2, PARTS[part], steps=steps)
    assert np.abs(rule[:, -1]).max() <= 1e-9  # nothing reads the last token
    alike(found.attribution, rule[:, :-1].T, 1e-4)


@on_stories
def test_depth_score(case):
    """Of a group the score of its mean effects; questions of different length in one batch."""
    model, root, _ = case
    found = ld.depth.depth_score(model, ASKED)
    effects = [published.depth_effects(root, ids, answer) for ids, answer in asked_ids(model)]
    alike(found.effects, [effect["output_change"] for effect in effects])
    for group, row in enumerate(found.frame().itertuples(), start=1):
        some = [effect for effect, (*_, hops) in zip(effects, ASKED, strict=True) if hops == group]
        assert row.score == pytest.approx(published.depth_score(published.group_effect(some)), rel=2e-5)


@pytest.mark.full
def test_linear_maps(stories):
    """Without a ridge, where there are tokens enough: the least squares that stand for the paper's trained maps."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(3, 500, 60).tolist() for _ in range(12)]
    found = ld.depth.map_layers(stories, stories, ids, ridge=0.0)
    order = np.random.default_rng(0).permutation(12)
    fitted, held = ([ids[i] for i in sorted(some)] for some in (order[3:], order[:3]))
    rule = published.linear_maps(stories.architecture.root, stories.architecture.root, fitted, held)["relative_norm"][
        1:, 1:
    ]
    error = found.frame()["error"].to_numpy().reshape(rule.shape)
    assert np.abs(error - rule).max() <= 1e-3 * rule.max()  # the sums of squares here are of float32 products


def test_sums_over_a_vocabulary_are_in_float64(stories):
    """What is little off the answer is told to a millionth of itself, which float32 sums miss by a thousand times."""
    logits = 4 * torch.randn(6, 50_000, generator=torch.Generator().manual_seed(0))
    other = logits + 1e-2 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    none = torch.zeros(6, dtype=torch.long)
    p, q = (x.double().softmax(-1) for x in (logits, other))
    found, growth = engine.softmax_change(logits, none)(other)
    np.testing.assert_allclose(found, (q - p).norm(dim=-1), rtol=1e-9)
    np.testing.assert_allclose(growth, p[:, 0].log() - q[:, 0].log(), rtol=1e-9, atol=1e-13)
    kl = engine.divergence(other, engine.log_softmax(logits))
    np.testing.assert_allclose(kl, (q * (q.log() - p.log())).sum(-1), rtol=1e-9)


def test_all_sums_over_a_vocabulary_are_in_float64():
    """Of float32 logits, whatever is summed over 100 000 tokens is what numpy gives in float64, for all analyses."""
    logits = torch.randn(5, 100_000, generator=torch.Generator().manual_seed(0)) * 3 + 7
    targets = torch.arange(5) * 17
    wide = logits.double().numpy()
    total = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    p = np.exp(wide - total[:, None])
    loss = total - wide[np.arange(5), targets]
    centered = wide - wide.mean(1, keepdims=True)
    sums = {
        "log-sum-exp": (vocabulary.log_sum_exp(logits), total),
        "entropy": (vocabulary.probabilities(logits)[1], -(p * np.log(p)).sum(1)),
        "mean": (vocabulary.mean_and_power(logits)[0], wide.mean(1)),
        "power": (vocabulary.mean_and_power(logits)[1], (centered**2).sum(1)),
        "cross-entropy": (engine.cross_entropy(logits, targets), loss),
        "ablations": (engine.loss_and_hits(logits, targets)(logits)[0], loss),
    }
    for name, (found, expected) in sums.items():
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)


def test_means_over_the_next_token_are_in_float64(stories):
    """E_p of the options' directions and of the logits, of a model's own float32 logits, against numpy."""
    c = ld.contributions(stories, ["Once upon a time"], [" Lily ran", " Tim sat"])
    gap = c.log_likelihood_parts.sum(1) + c.normalizer - c.log_likelihood
    assert np.abs(gap).max() < 1e-12 * np.abs(c.log_likelihood).max()
    with inference_mode_for(stories.architecture):
        forward = PatchedForward(stories, [[1, 5, 9, 30]])
        logits = forward.logits(forward.streams[-1][0])
        found = NextTokenDistribution(Vocabulary(stories.architecture), logits, logits)
    wide = logits.double().numpy()
    p = np.exp(wide - wide.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = stories.architecture.norm.fold(stories.architecture.unembed_rows(None)[0].double()).detach()
    np.testing.assert_allclose(found.mean_logit, (p * wide).sum(1), rtol=1e-12)
    np.testing.assert_allclose(found.directions.vectors[:, 0, :-1], p @ rows.numpy(), atol=1e-12)
