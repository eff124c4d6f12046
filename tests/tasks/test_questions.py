"""Questions of a known number of steps: the written ones, the made ones, and the user's own files."""

import json
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import layerdiv_tl as ld

PLAIN = [
    {"text": "Two plus two is", "answer": "four", "hops": 1},
    {"text": "Answer at once:\n", "answer": 7, "hops": 2, "chain": ["a → b", "b → 7"], "id": "second"},
    {"text": "A trailing space ", "answer": " stays", "hops": 2},
]


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_written_questions_keep_their_own_rules():
    """Every one has as many links as hops, each beginning where the last ended, from the text to the answer."""
    asked = ld.depth.questions()
    assert all((asked.groups == hops).sum() >= 50 for hops in (1, 2, 3))
    assert len(set(asked.texts)) == len(set(asked.ids)) == len(asked)
    for text, answer, hops, chain in zip(asked.texts, asked.answers, asked.groups, asked.chains, strict=True):
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


def test_rows_are_read_as_they_say(tmp_path):
    """Texts, answers, numbers of steps, names and chains of the user's own rows, from any kind of file."""
    plain = ld.depth.questions(str(lines(tmp_path / "own.jsonl", PLAIN)))
    assert plain.texts == ("Two plus two is", "Answer at once:\n", "A trailing space")
    assert plain.answers == (" four", "7", " stays")
    assert (plain.chains[1], plain.ids[1], plain.by) == (("a → b", "b → 7"), "second", "hops")
    table = pd.DataFrame([{"text": "a b", "answer": "c", "difficulty": "2.5"}])
    table.to_csv(tmp_path / "own.csv", index=False)
    assert ld.depth.questions(tmp_path / "own.csv").groups.tolist() == [2.5]
    assert ld.depth.questions(tmp_path / "own.csv").by == "difficulty"


def test_levels_and_limit_choose(tmp_path):
    """`levels` keeps groups, `limit` the first of each."""
    path = lines(tmp_path / "own.jsonl", [dict(PLAIN[0], hops=n % 3) for n in range(9)])
    assert ld.depth.questions(path, limit=2).groups.tolist() == [0, 1, 2, 0, 1, 2]
    assert ld.depth.questions(path, levels=[2]).groups.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("content", "about"),
    [
        ("", "no rows"),
        ('{"prompt": "a", "answer": "b"}', "prompt, answer"),
        ('{"text": "a", "answer": "b"}', "hops, steps, level, difficulty"),
        ('{"text": "a", "answer": "b", "hops": 1}\n{"text": "a", "hops": 1}', "row 2 .*'answer'"),
        ('{"text": "a", "answer": "b", "hops": 1}\n{"text": "a", "answer": "b", "level": 1}', "row 2 .*hops=nan"),
        ('{"text": "a", "answer": " ", "hops": 1}', "row 1 .*'answer'"),
        ('{"text": "", "answer": "b", "hops": 1}', "row 1 .*'text'"),
        ('{"text": "a", "answer": null, "hops": 1}', "row 1 .*'answer'"),
    ],
)
def test_rows_without_a_text_an_answer_or_a_level(tmp_path, content, about):
    (tmp_path / "own.jsonl").write_text(content)
    with pytest.raises(ld.InputError, match=about):
        ld.depth.questions(tmp_path / "own.jsonl")


@pytest.mark.parametrize(
    ("source", "options", "about"),
    [
        ("sample/hop", {}, "sample/hop"),
        ("synthetic/recall", {}, "synthetic/recall .*synthetic/k_hop, synthetic/modular"),
        ("synthetic/k_hop:hops=2", {}, "levels="),
        ("synthetic/k_hop", {"levels": [9]}, "hops=9"),
        ("synthetic/k_hop:entities=2", {}, "hops=2"),
        ("sample/hops", {"levels": [7]}, "7"),
        ("sample/hops", {"limit": 0}, "limit=0"),
    ],
)
def test_questions_that_do_not_exist(source, options, about):
    with pytest.raises(ld.InputError, match=about):
        ld.depth.questions(source, **options)


def test_questions_become_scores(stories, tmp_path):
    """Questions of any source go through the model as text, with their groups."""
    path = lines(tmp_path / "own.jsonl", PLAIN)
    for asked in (ld.depth.questions(path), ld.depth.questions(limit=2)):
        found = ld.depth.depth_score(stories, asked)
        assert found.by == "hops"
        assert found.questions["group"].tolist() == asked.groups.tolist()
        assert np.isfinite(found.scores).all()
    assert "sample/hops" in repr(asked)
    assert asked.frame()["chain"].str.count("→").tolist() == asked.groups.tolist()


def test_text_that_is_no_unicode_is_refused(stories, tmp_path):
    """Half of a surrogate pair, which JSON can spell, is an InputError before the model sees it."""
    for field in ("text", "answer"):
        row = {"text": "a b", "answer": "c", "hops": 1} | {field: "\ud800"}
        with pytest.raises(ld.InputError):
            ld.depth.depth_score(stories, ld.depth.questions(lines(tmp_path / "own.jsonl", [row])))
