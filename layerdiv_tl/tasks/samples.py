"""Small balanced tasks whose rows were written for this package, for use without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources

from ..errors import InputError
from .readers import Row, TaskData
from .templates import TaskSpec

SAMPLE_QUESTIONS = "sample/hops"  # questions, not a task: every answer is another (see `questions`)


def sample_rows(name: str) -> TaskData:
    """The rows of a file that is part of this package."""
    lines = resources.files(__package__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [Row(json.loads(line), f"line {number} of {name}") for number, line in enumerate(lines, start=1)]
    return TaskData(rows, "written for layerdiv_tl")


def _sample(name: str, description: str, template: str, *options: str) -> TaskSpec:
    """A task whose rows are part of this package."""

    def load_rows(split: str, count: int | None) -> TaskData:
        if split == "train":
            raise InputError(f"{name} has no training rows: give a file of them as train=.")
        return sample_rows(name)

    return TaskSpec(name, description, {"default": template}, options, load_rows, "MIT", text_fields=("text",))


_ALL = (
    _sample("sample/sentiment", "the sentiment of a review", "Review: {text}\nSentiment:", "negative", "positive"),
    _sample("sample/topic", "the topic of a text", "Text: {text}\nTopic:", "Sports", "Science", "Food", "Music"),
)
SAMPLE_TASKS: Mapping[str, TaskSpec] = {spec.name: spec for spec in _ALL}
