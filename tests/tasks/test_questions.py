"""Questions of a known number of steps: the written ones and the made ones."""

import re
from itertools import pairwise

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.tasks.rows import sample_rows


def test_written_questions_keep_their_own_rules():
    """Every one has as many links as hops, each beginning where the last ended, from the text to the answer."""
    asked, chains = ld.depth.questions(), [row["chain"] for row in sample_rows("sample/hops").rows]
    assert all((asked.groups == hops).sum() >= 50 for hops in (1, 2, 3))
    assert len(set(asked.texts)) == len(set(asked.ids)) == len(asked)
    for text, answer, hops, chain in zip(asked.texts, asked.answers, asked.groups, chains, strict=True):
        links = [link.split(" → ") for link in chain]
        assert len(links) == hops
        assert links[0][0].casefold() in text.casefold()
        assert answer == " " + links[-1][1]
        for before, after in pairwise(links):
            assert before[1] == after[0]
        # Neither the answer nor what stands between is given away.
        for told in (link[1] for link in links):
            assert not re.search(rf"\b{re.escape(told.casefold())}\b", text.casefold()), (text, told)


def test_written_questions_are_varied():
    """No answer is asked for often, in all or for one number of hops, and no more than a third are capitals."""
    asked = ld.depth.questions("sample/hops").frame()
    assert asked.groupby("group")["answer"].value_counts().max() <= 3
    assert asked["text"].str.contains("capital of").mean() < 1 / 3


@pytest.mark.parametrize(
    "name", ["synthetic/k_hop", "synthetic/k_hop:entities=6,seed=2", "synthetic/modular:modulus=5"]
)
def test_generated_questions_are_the_tasks_of_each_number_of_steps(name):
    """Each level holds the first rows of the task with that many steps."""
    by = "hops" if "k_hop" in name else "terms"
    asked = ld.depth.questions(name, levels=[2, 3], limit=5)
    assert asked.by == by
    for level in (2, 3):
        task = ld.task(f"{name}{',' if ':' in name else ':'}{by}={level}", limit=5)
        here = np.flatnonzero(asked.groups == level)
        assert [asked.texts[i] for i in here] == list(task.prompts)
        assert [asked.answers[i] for i in here] == [task.options[label] for label in task.labels]
    usual = ld.depth.questions(name, limit=1)
    assert usual.groups.tolist() == ([1, 2, 3, 4] if by == "hops" else [2, 3, 4, 5])


def test_hops_alone_make_no_prompt_longer():
    """Questions of k hops have as many words whatever k is (one step, two steps), so length cannot mislead."""
    asked = ld.depth.questions("synthetic/k_hop", limit=8)
    assert len({len(text.split()) for text in asked.texts}) == 1


def test_sums_of_more_terms_are_sums():
    """The answer is the sum modulo m, for any number of terms."""
    asked = ld.depth.questions("synthetic/modular:modulus=9,largest=40", limit=20)
    for text, answer, terms in zip(asked.texts, asked.answers, asked.groups, strict=True):
        numbers = [int(n) for n in re.findall(r"\d+", text)]
        assert len(numbers) == terms + 1
        assert numbers[-1] == 9
        assert max(numbers[:-1]) <= 40
        assert int(answer) == sum(numbers[:-1]) % 9


def test_levels_and_limit_choose():
    """`levels` keeps groups, `limit` the first of each."""
    asked = ld.depth.questions(levels=[1, 3], limit=2)
    assert asked.groups.tolist() == [1, 1, 3, 3]
    whole = ld.depth.questions()
    assert asked.texts[2:] == tuple(text for text, hops in zip(whole.texts, whole.groups, strict=True) if hops == 3)[:2]


@pytest.mark.parametrize(
    ("source", "options", "about"),
    [
        ("sample/hop", {}, "sample/hop"),
        ("synthetic/recall", {}, "synthetic/recall.*synthetic/k_hop, synthetic/modular"),
        ("synthetic/k_hop", {"levels": [9]}, "hops=9"),
        ("synthetic/k_hop:entities=2", {}, "hops=2"),
        ("sample/hops", {"levels": [7]}, "7"),
        ("sample/hops", {"limit": 0}, "limit=0"),
    ],
)
def test_questions_that_do_not_exist(source, options, about):
    with pytest.raises(ld.InputError, match=about):
        ld.depth.questions(source, **options)


def test_questions_become_scores(stories):
    """Questions go through the model as text, with their groups; a list of them gives the same scores."""
    asked = ld.depth.questions(limit=2)
    found = ld.depth.depth_score(stories, asked)
    assert found.by == "hops"
    listed = ld.depth.depth_score(stories, list(zip(asked.texts, asked.answers, asked.groups, strict=True)))
    np.testing.assert_array_equal(listed.scores, found.scores)
    assert "sample/hops" in repr(asked)
