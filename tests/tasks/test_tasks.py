"""Tasks: balanced rows, rendered by their template."""

import dataclasses
import tomllib
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest

import layerdiv_tl as ld
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
    assert len(set(task.prompts)) == len(task)
    words = [prompt.lower().split()[1:-1] for prompt in task.prompts]  # without the template's
    worst = max(SequenceMatcher(None, a, b, autojunk=False).ratio() for i, a in enumerate(words) for b in words[:i])
    assert worst < 0.5
    openings = {tuple(w[:2]) for w in words}
    assert len(openings) > 0.9 * len(task)


def test_prompts_are_the_template_filled(task):
    before, after = task.template.split("{text}")
    assert all(prompt.startswith(before) and prompt.endswith(after) for prompt in task.prompts)
    assert all(option.startswith(" ") for option in task.options)


def test_a_first_part_is_balanced_too(task):
    k = len(task.options)
    assert ld.task(task.name, limit=2 * k).labels.tolist() == [*range(k), *range(k)]


def test_the_wheel_holds_rows_definitions_and_models():
    """Every data file is package data: without one, no installed task or model can be read."""
    root = Path(ld.__file__).parent
    settings = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    globs = settings["tool"]["setuptools"]["package-data"]["layerdiv_tl"]
    data = {file for file in (root / "tasks").rglob("*") if file.suffix in (".json", ".jsonl")}
    data |= {file for file in (root / "zoo" / "models").rglob("*") if file.is_file()}
    assert len(data) >= 4
    assert data <= {file for glob in globs for file in root.glob(glob)}


def test_some_rows_of_a_task_are_a_task():
    """Prompts and labels go together; options of each prompt, too."""
    t = ld.task("sample/topic", limit=8)
    for rows in ([5, 2], np.array([5, 2]), slice(5, 1, -3), range(5, 1, -3)):
        part = t.select(rows)
        assert part.prompts == (t.prompts[5], t.prompts[2])
        assert part.answers == [t.answers[5], t.answers[2]]
        assert (part.options, part.name, part.template) == (t.options, t.name, t.template)
    assert t.select(t.labels == 1).answers == [" Science"] * 2
    own = dataclasses.replace(t, options=tuple((*t.options[:3], f" word{i}") for i in range(8)))
    assert own.select([7]).options == (own.options[7],)
    with pytest.raises(ld.InputError, match="no such rows"):
        t.select([])
    with pytest.raises(IndexError):
        t.select([8])


def test_a_task_is_checked():
    """Labels beyond the options, and options of another number, would be wrong numbers."""
    t = ld.task("sample/topic", limit=2)
    for change in ({"labels": np.array([0, 4])}, {"labels": np.array([0])}, {"options": ((" a", " b"), (" c",))}):
        with pytest.raises(ld.InputError):
            dataclasses.replace(t, **change)
