"""Small balanced tasks whose rows were written for this package, for where nothing can be downloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources

from ..errors import InputError
from .readers import Row, Rows
from .templates import Recipe

SAMPLE_HOPS = "sample/hops"  # questions, and no task: every answer is another (see `questions`)


def sample_rows(name: str) -> Rows:
    """The rows of a file that is part of this package."""
    file = resources.files("layerdiv_tl.tasks").joinpath(f"{name}.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = [Row(json.loads(line), f"line {number} of {name}") for number, line in enumerate(lines, start=1)]
    return Rows(rows, "written for layerdiv_tl")


def _sample(name: str, about: str, template: str, options: Sequence[str]) -> Recipe:
    """A task whose rows are part of this package."""

    def rows(split: str, count: int | None) -> Rows:
        if split == "train":
            raise InputError(f"{name} has no training rows: give a file of them as train=.")
        return sample_rows(name)

    return Recipe(name, about, {"default": template}, tuple(options), rows, "MIT", text=("text",))


SAMPLES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in [
        _sample(
            "sample/sentiment",
            "the sentiment of a review",
            "Review: {text}\nSentiment:",
            ["negative", "positive"],
        ),
        _sample(
            "sample/topic",
            "the topic of a text",
            "Text: {text}\nTopic:",
            ["Sports", "Science", "Food", "Music"],
        ),
    ]
}
