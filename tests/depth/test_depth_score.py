"""The depth score: its formulas against closed forms (its effects are those of test_published_depth)."""

import numpy as np
import pandas as pd
import pytest
import torch

import layerdiv_tl as ld
from layerdiv_tl.components import Component
from layerdiv_tl.depth.depth_score import DepthScore
from tests.conftest import llama

ROWS = [
    ([5, 1, 4, 1, 5, 9, 2, 6], [8, 30, 11], 3),
    ([3, 14, 15, 9], [26], 1),
    ([17, 11, 60, 7], [5, 35], 1),
    ([2, 7, 18, 28, 18], [28], 2),
]
TEXTS = [
    ("Once upon a time there was a", " little girl", 1),
    ("Lily and Ben went to the park to play with a big red", " ball", 2),
    ("One day a cat saw", " a bird", 2),
]


def made(effects, groups, lengths=None, rank=None):
    """A result with these effects."""
    effects = np.asarray(effects, dtype=float)
    count, layers = effects.shape
    rank = np.ones(count, dtype=np.int64) if rank is None else np.asarray(rank)
    return DepthScore(
        components=tuple(Component("layer", layer) for layer in range(layers)),
        effects=effects,
        questions={
            "group": np.asarray(groups, dtype=float),
            "length": np.full(count, 7) if lengths is None else np.asarray(lengths),
            "answer_length": np.ones(count, dtype=np.int64),
            "probability": np.full(count, 0.5),
            "rank": rank,
            "correct": (rank == 1).astype(float),
        },
        by="hops",
        model="made",
    )


def test_the_score_is_the_mean_place_of_the_effects():
    """All effect at one layer scores that layer, even effects the middle, none NaN; a group, its mean effects."""
    found = made([[0.6, 0, 0, 0, 0], [0.2] * 5, [0.3, 0, 0, 0, 0.1], [0] * 5], [1, 1, 2, 2])
    np.testing.assert_allclose(found.scores, [0, 2, 1, np.nan])
    frame = found.frame()
    assert frame["n"].tolist() == [2, 1]
    np.testing.assert_allclose(frame["score"], [1.25, 1])
    layers = found.by_layer()
    for group, score in zip(frame["group"], frame["score"], strict=True):
        mine = layers[layers["group"] == group]
        assert np.isclose((mine["share"] * mine["layer"]).sum(), score)
    np.testing.assert_allclose(layers["effect"], [0.4, 0.1, 0.1, 0.1, 0.1, 0.15, 0, 0, 0, 0.05])


def pointed(places, layers=24):
    """Effects whose scores are these places: two neighboring layers share them."""
    places = np.asarray(places, dtype=float)
    low = np.floor(places).astype(int)
    effects = np.zeros((len(places), layers))
    effects[np.arange(len(places)), low] = 1 - (places - low)
    effects[np.arange(len(places)), low + 1] = places - low
    return effects


def test_the_slope_finds_what_was_planted():
    """Scores that rise 1.5 layers a hop give that slope; the same scores, shuffled, do not."""
    rng = np.random.default_rng(0)
    hops = np.repeat([1, 2, 3, 4], 40)
    places = 4 + 1.5 * hops + rng.normal(size=160)
    found = made(pointed(places), hops)
    np.testing.assert_allclose(found.scores, places)
    planted = found.slope
    assert np.isclose(planted.value, np.polyfit(hops, places, 1)[0])
    assert planted.low < 1.5 < planted.high
    none = made(pointed(rng.permuted(places)), hops).slope
    assert none.low < 0 < none.high


@pytest.mark.full
def test_the_slope_is_that_of_the_groups_scores():
    """Questions of large effects count for more, as in the scores of the groups."""
    rng = np.random.default_rng(3)
    hops = np.repeat([1, 2, 3], 30)
    effects = pointed(4 + hops + rng.normal(size=90)) * rng.gamma(1, size=(90, 1))
    found = made(effects, hops)
    heavy = [effects[hops == group].sum() for group in (1, 2, 3)]
    line = np.polyfit([1, 2, 3], found.frame()["score"], 1, w=np.sqrt(heavy))
    assert np.isclose(found.slope.value, line[0])


def test_length_alone_is_no_slope_at_equal_length():
    """Where the score follows the length, hops that go with it have a slope, but none at equal length."""
    rng = np.random.default_rng(1)
    hops = np.repeat([1, 2, 3], 60)
    length = 5 * hops + rng.integers(0, 12, size=180)
    places = 3 + 0.4 * length + 0.5 * rng.normal(size=180)
    found = made(pointed(places), hops, length)
    assert found.slope.low > 1
    at_length = found.slope_at_length
    design = np.stack([np.ones(180), hops, length], 1)
    assert np.isclose(at_length.value, np.linalg.lstsq(design, places, rcond=None)[0][1])
    assert at_length.low < 0 < at_length.high
    assert np.isclose(made(pointed(places), hops).slope_at_length.value, found.slope.value)  # all equally long
    # A little of its own next to the length is found.
    own = made(pointed(places + 0.3 * hops), hops, length).slope_at_length
    assert own.low < 0.3 < own.high


def test_slopes_that_do_not_exist_are_nan():
    """One group, or lengths that go with the groups."""
    one = made(pointed([3, 4, 5]), [2, 2, 2]).slope
    assert np.isnan([one.value, one.low, one.high]).all()
    alike = made(pointed([3, 4, 5, 6]), [1, 1, 2, 2], [5, 5, 10, 10])
    assert np.isfinite(alike.slope.value)
    assert np.isnan(alike.slope_at_length.value)
    assert made(np.zeros((2, 4)), [1, 2]).slope.n == 0


@pytest.mark.full
def test_the_intervals_cover():
    """Of 200 samples from a known law, about 95 % of the intervals of slope and score hold the truth."""
    rng = np.random.default_rng(2)
    hops = np.repeat([1, 2, 3], 40)
    slopes, scores = [], []
    for _ in range(200):
        places = 5 + 0.5 * hops + rng.uniform(-2, 2, size=120)
        found = made(pointed(places), hops)
        frame = found.frame()
        slopes.append(found.slope.low <= 0.5 <= found.slope.high)
        scores.append(
            (frame["score_low"] <= 5 + 0.5 * frame["group"]) & (5.0 + 0.5 * frame["group"] <= frame["score_high"])
        )
    assert 0.90 <= np.mean(slopes) <= 0.99
    assert 0.90 <= np.mean(scores) <= 0.98


def test_right_is_what_the_model_writes(stories):
    """A rank of 1 is where greedy decoding gives the answer."""
    asked = [*TEXTS, ("Once upon", " a time", 1), ("Once upon a time there was a little girl named", " Lily", 2)]
    found = ld.depth.depth_score(stories, asked)
    for number, (text, answer, _) in enumerate(asked):
        ids, start = (stories.tokenizer(text + answer)["input_ids"], len(stories.tokenizer(text)["input_ids"]))
        given = torch.tensor([ids[:start]])
        written = stories.root.generate(
            given, max_new_tokens=len(ids) - start, do_sample=False, attention_mask=torch.ones_like(given)
        )
        is_right = written[0, start:].tolist() == ids[start:]
        assert found.questions["correct"][number] == (found.questions["rank"][number] == 1) == is_right
    assert 0 < found.questions["correct"].sum() < len(asked)


@pytest.mark.full
def test_ties_count_in_part_wherever_a_model_answers():
    """A model that gives all tokens the same logit is right once in as many as there are to choose from."""
    silent = llama()
    torch.nn.init.zeros_(silent.lm_head.weight)
    ids, labels = [[3, 5, i, 7] for i in range(8)], [0, 1] * 4
    found = ld.depth.depth_score(silent, [(row, [9], 1) for row in ids])
    assert found.questions["correct"].tolist() == pytest.approx([1 / 61] * 8)
    assert found.frame()["accuracy"].item() == pytest.approx(1 / 61)
    assert found.questions["rank"].tolist() == [61] * 8
    long = ld.depth.depth_score(silent, [(row, [9, 11], 1) for row in ids])
    assert long.questions["correct"].tolist() == pytest.approx([1 / 61**2] * 8)
    assert ld.effects(silent, ids, [7, 9], labels=labels, ablation="zero").accuracy == 0.5
    assert ld.logit_difference(silent, ids, 7, 9).accuracy == 0.5
    assert ld.decompose(ld.contributions(silent, ids, [7, 9, 11]), labels).accuracy == pytest.approx(1 / 3)


def test_a_frame_of_questions_is_a_list_of_them():
    """Of the columns text, answer and hops."""
    frame = pd.DataFrame(ROWS, columns=["text", "answer", "hops"])
    found, listed = (ld.depth.depth_score(llama(), given) for given in (frame, ROWS))
    np.testing.assert_array_equal(found.effects, listed.effects)
    assert found.frame().equals(listed.frame())


@pytest.mark.parametrize(
    ("questions", "says"),
    [
        ([], "questions"),
        ([([1, 2], [3], float("nan"))], "finite"),
        ([([1, 2], [], 1)], "answer 0|prompt 0"),
        ([([], [3], 1)], "prompt 0"),
        ([([1], [3], 1)], "question 0 .*two tokens"),
    ],
)
def test_questions_without_a_score_are_refused(questions, says):
    with pytest.raises(ld.InputError, match=says):
        ld.depth.depth_score(llama(), questions)


def test_an_answer_without_tokens_is_refused(stories):
    """Text that the tokenizer makes nothing of is not an answer."""
    with pytest.raises(ld.InputError, match="answer 1"):
        ld.depth.depth_score(stories, [("Once upon", " a", 1), ("Once upon", "", 2)])
