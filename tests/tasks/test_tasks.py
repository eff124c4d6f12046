"""Tasks: balanced rows, rendered by their template, with a baseline."""

import dataclasses
import tomllib
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest

import layerdiv_tl as ld
from layerdiv_tl.tasks.baselines import bag_of_words
from layerdiv_tl.tasks.specs import SAMPLE_TASKS


@pytest.fixture(params=SAMPLE_TASKS)
def task(request):
    return ld.task(request.param)


def test_sample_rows_are_many_balanced_and_different(task):
    """At least 64 rows, classes of one size, no text twice and none a small edit of another."""
    counts = np.bincount(task.labels)
    assert len(task) >= 64
    assert len(set(counts)) == 1
    assert len(counts) == len(task.options)
    words = [text.lower().split() for text in task.texts]
    worst = max(SequenceMatcher(None, a, b, autojunk=False).ratio() for i, a in enumerate(words) for b in words[:i])
    assert worst < 0.5
    openings = {tuple(w[:2]) for w in words}
    assert len(openings) > 0.9 * len(task)


def test_prompts_are_the_template_filled(task):
    for text, prompt in zip(task.texts, task.prompts, strict=True):
        assert prompt == task.template.replace("{text}", text)
    assert all(option.startswith(" ") for option in task.options)


def test_a_first_part_is_balanced_too(task):
    k = len(task.options)
    assert ld.task(task.name, limit=2 * k).labels.tolist() == [*range(k), *range(k)]


@pytest.mark.full
def test_bag_of_words_equals_fitting_each_fold_by_hand(task):
    """A second route: explicit folds, explicit vocabulary, explicit fit."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    texts, right = np.array(task.texts), np.zeros(len(task))
    for seed in (3, 4):
        for train, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(texts, task.labels):
            words = CountVectorizer().fit(texts[train])
            fitted = LogisticRegression(max_iter=1000).fit(words.transform(texts[train]), task.labels[train])
            right[held] += (fitted.predict(words.transform(texts[held])) == task.labels[held]) / 2
    np.testing.assert_array_equal(bag_of_words(task, repeats=2, seed=3), right)


def test_too_few_rows_for_the_baseline():
    with pytest.raises(ld.InputError, match="sample/sentiment"):
        bag_of_words(ld.task("sample/sentiment", limit=4))


def test_the_wheel_holds_the_rows_and_definitions():
    """Every data file of the tasks is package data: without one, no installed task can be read."""
    root = Path(ld.__file__).parent
    settings = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    globs = settings["tool"]["setuptools"]["package-data"]["layerdiv_tl"]
    data = {file for file in (root / "tasks").rglob("*") if file.suffix in (".json", ".jsonl")}
    assert len(data) >= 4
    assert data <= {file for glob in globs for file in root.glob(glob)}


def test_some_rows_of_a_task_are_a_task():
    """Prompts, labels, texts and passages go together; options of each prompt, too; ids of a resolved one stay."""
    t = ld.task("sample/topic", limit=8)
    some = t.take([5, 2])
    assert some.prompts == (t.prompts[5], t.prompts[2])
    assert some.answers == [t.answers[5], t.answers[2]]
    assert some.texts == (t.texts[5], t.texts[2])
    np.testing.assert_array_equal(some.passages, t.passages[[5, 2]])
    assert (some.options, some.name, some.template) == (t.options, t.name, t.template)
    own = dataclasses.replace(t, options=tuple((*t.options[:3], f" word{i}") for i in range(8)))
    assert own.take([7]).options == (own.options[7],)
    for rows in ([], [8], [-1], "0"):
        with pytest.raises(ld.InputError, match="rows"):
            t.take(rows)
