"""Planted models: small Llamas with handwritten weights, for which every measure is known in closed form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from .._checks import shown
from ..components import Component
from ..errors import InputError
from ..model.load import Loadable
from ..tasks.synthetic import COLORS
from ..tasks.task import Task
from .trained import FOLDER, source

# {name: what it demonstrates}; `models/planted-NAME` holds the weights and `known.json`, the numbers.
PLANTED: Mapping[str, str] = MappingProxyType(
    {
        "independent": "two heads that vote independently of each other",
        "copied": "two heads that write the same",
        "complementary": "two heads, each right where the other writes 0",
        "together": "two heads, each always wrong, whose sum is always right",
        "shift": "a head that votes, and one that raises or lowers all options alike",
        "undo": "an MLP that undoes what an earlier head wrote",
        "votes": "five noisy voters, one a layer, which in a fifth of the rows all repeat one of them",
    }
)

TEMPLATE = "{members} witnesses name the color of a car: {votes}.\nThe car was most likely {answer}"


@dataclass(frozen=True, eq=False)
class Planted(Loadable):
    """A model with known answers. Returned by `planted`; every function that takes a model accepts it.

    Attributes:
        model, tokenizer, task: The Hugging Face causal LM in float64, its tokenizer of whole words, and its prompts,
            options and labels. The rows are all combinations of words, repeated in proportion to their probability:
            means over rows are expectations.
        name, about, closed_form: The name, what it demonstrates, and the derivation of `expected`.
        components: The members. Every other component's contribution is exactly 0.
        expected: Measures of the members' ensemble by name: squared errors in logits², information of the members'
            votes in bits, accuracies as shares.
    """

    name: str
    about: str
    closed_form: str
    task: Task
    components: tuple[Component, ...]
    expected: Mapping[str, float]

    def members(self, unit: Literal["sublayer", "head"] = "sublayer") -> tuple[str, ...]:
        """Return the members' labels at a unit, for `Contributions.select(label=…)`. Each sublayer has one member."""
        return tuple((c.sublayer if unit == "sublayer" else c).label for c in self.components)

    def __repr__(self) -> str:
        labels = ", ".join(c.label for c in self.components)
        return f"Planted({self.name}: {self.about}; {labels}; {len(self.task)} prompts)"


def planted(name: str) -> Planted:
    """Load a model with known answers, for tests and for teaching: a key of `PLANTED`.

    Raises InputError for a name that does not exist.

    >>> import layerdiv_tl as ld
    >>> pair = ld.zoo.planted("copied")
    >>> c = ld.contributions(pair, pair.task, unit="head").select(label=pair.members("head"))
    >>> d = ld.decompose(c)
    >>> [round(x, 9) for x in (d.diversity, pair.expected["diversity"], pair.expected["bias_centered"])]
    [0.0, 0.0, 0.25]
    """
    if name not in PLANTED:
        raise InputError(f"there is no planted model {shown(name)}: choose among {', '.join(PLANTED)}.")
    short = f"planted-{name}"
    known = json.loads((FOLDER / short / "known.json").read_text(encoding="utf-8"))
    loaded = source(f"zoo/{short}")
    return Planted(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        name=name,
        about=PLANTED[name],
        closed_form=known["closed_form"],
        task=votes_task(name, known["votes"], known["labels"], known["options"]),
        components=tuple(map(Component.parse, known["components"])),
        expected=MappingProxyType({key: np.nan if x is None else x for key, x in known["expected"].items()}),
    )


def votes_task(name: str, votes: Sequence[str], labels: Sequence[int], options: int) -> Task:
    """Make the task of a planted model: name the color that a car had, from what witnesses say, e.g. "red, blue"."""
    import pandas as pd

    rows = pd.DataFrame({"votes": votes, "label": labels})
    rows["members"] = rows["votes"].str.count(",") + 1
    made = Task.from_frame(rows, template=TEMPLATE, options=COLORS[:options], name=f"planted-{name}", license="MIT")
    return replace(made, source="every combination of words, as often as its probability")
