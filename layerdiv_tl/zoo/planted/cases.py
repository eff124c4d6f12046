"""Planted models: real, small, and with known answers.

The tool must give what is expected here to the last digits of float64, not to a standard error.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from jaxtyping import Float

from ..._checks import choice, shown
from ...components import Component, Unit
from ...errors import InputError
from ...model.load import Loadable
from ...tasks.synthetic import COLORS
from ...tasks.task import Task, task
from .laws import LAWS, UNSURE, Law
from .model import Eraser, Say, Shape, build
from .word_tokenizer import word_tokenizer

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "planted-"
LEAST_ROWS = 64
PER_MEMBER = ("bias", "bias_shift", "diversity", "diversity_shift")
BITS = ("relevancy", "redundancy", "conditional_redundancy", "joint", "information_diversity")

PLANTED: Mapping[str, str] = MappingProxyType({name: about for name, (about, _) in LAWS.items()})


@dataclass(frozen=True, eq=False)
class Planted(Loadable):
    """A model with known answers. Made by `planted`; `load_model` and every other function take it as it is.

    name, shape, about
        Which one it is, "llama" or "gpt2", and one line on what it shows.
    closed_form
        How what is expected follows from what is planted, in words and formulas.
    model, tokenizer
        The Hugging Face causal LM, in float64, and its tokenizer of whole words.
    task
        Its prompts, options and labels; also as `prompts`, `options`, `labels`.
    components
        The members: the components that write. All others write exactly nothing to any logit.
    over_vocabulary
        float64 `[example, member, id]`, what each member must write to every logit, from the words alone.
    expected
        What the ensemble of the members must measure, by name: squared error in logits², informations in bits.
    per_member
        The members' `bias`, `bias_shift`, `diversity`, `diversity_shift`, one number each, in logits².
    """

    name: str
    shape: Shape
    about: str
    closed_form: str
    task: Task
    components: tuple[Component, ...]
    over_vocabulary: Float[np.ndarray, "example member id"]
    expected: Mapping[str, float]
    per_member: Mapping[str, tuple[float, ...]]

    @property
    def prompts(self) -> tuple[str, ...]:
        """The task's prompts."""
        return self.task.prompts

    @property
    def options(self) -> tuple[str, ...]:
        """The task's options."""
        return self.task.options

    @property
    def labels(self) -> np.ndarray:
        """The index of each prompt's gold option."""
        return self.task.labels

    @cached_property
    def values(self) -> Float[np.ndarray, "example member option"]:
        """What each member must contribute to the options' logits, `[example, member, option]`."""
        ids = self.tokenizer.convert_tokens_to_ids(list(self.options))
        return self.over_vocabulary[:, :, ids]

    def members(self, unit: Unit = "sublayer") -> tuple[str, ...]:
        """The members' labels at a unit: what `Contributions.select(label=…)` keeps. One member a sublayer.

        Raises InputError for units that cut a member into parts.
        """
        choice("unit", unit, ("sublayer", "head"))
        return tuple((c.sublayer if unit == "sublayer" else c).label for c in self.components)

    def by_component(self) -> pd.DataFrame:
        """One row per member: bias, diversity and net, raw, centered and shift, as `Decomposition` has them."""
        import pandas as pd

        columns: dict[str, Any] = {"component": [c.label for c in self.components]}
        known = {name: np.array(values, dtype=np.float64) for name, values in self.per_member.items()}
        for term in ("bias", "diversity"):
            columns |= {term: known[term], f"{term}_shift": known[f"{term}_shift"]}
            columns[f"{term}_centered"] = known[term] - known[f"{term}_shift"]
        for end in ("", "_centered", "_shift"):
            columns[f"net{end}"] = columns[f"bias{end}"] - columns[f"diversity{end}"]
        frame = pd.DataFrame(columns)
        frame.attrs["units"] = dict.fromkeys(list(columns)[1:], "logits²")
        return frame

    def frame(self) -> pd.DataFrame:
        """One row per quantity: its expected value and unit."""
        import pandas as pd

        rows = [(name, value, _unit(name)) for name, value in self.expected.items()]
        return pd.DataFrame(rows, columns=["quantity", "expected", "unit"])

    def __repr__(self) -> str:
        labels = ", ".join(c.label for c in self.components)
        return f"Planted({self.name}, {self.shape}: {self.about}; {labels}; {len(self.prompts)} prompts)"


def planted(name: str, shape: Shape = "llama") -> Planted:
    """A model with known answers, for tests and for teaching.

    name
        One of `PLANTED`:

        "independent", "copied", "complementary": two heads of equal bias, each right in 3 of 4 prompts, whose
        votes are independent, the same, or given where the other is silent. What differs is what they are
        together.
        "together": two heads, each always wrong, whose sum is always right.
        "shift": the second head writes to all options alike, which no softmax sees.
        "undo": an MLP takes out again what a head wrote a layer before.
        "votes": five noisy voters (`tasks.synthetic.Votes`), one a layer.
    shape
        "llama" (RMSNorm, rotary positions, SwiGLU) or "gpt2" (LayerNorm, learned positions, GELU).

    Raises InputError for a name or shape that does not exist.

    >>> import layerdiv_tl as ld
    >>> pair = ld.zoo.planted("copied")
    >>> c = ld.contributions(pair, pair.prompts, pair.options, unit="head")
    >>> heads = c.select(label=pair.members("head"))
    >>> float(abs(heads.values - pair.values).max()) < 1e-9
    True
    >>> d = ld.decompose(heads, pair.labels)
    >>> [round(x, 9) for x in (d.bias, d.diversity, pair.expected["bias"], pair.expected["diversity"])]
    [0.25, 0.0, 0.25, 0.0]
    """
    if not isinstance(name, str) or name not in LAWS:
        raise InputError(f"there is no planted model {shown(name)}: choose among {', '.join(LAWS)}.")
    choice("shape", shape, get_args(Shape))
    about, plant = LAWS[name]
    law = plant()
    asked = _task(name, law)
    tokenizer = word_tokenizer([*asked.options, *asked.prompts])
    vocabulary = {number: token.strip() for token, number in tokenizer.get_vocab().items()}
    option_ids = tokenizer.convert_tokens_to_ids(list(asked.options))
    words = (*COLORS[: law.options], UNSURE)
    ids = tokenizer(asked.prompts[0])["input_ids"]
    places = [place for place, token in enumerate(ids) if vocabulary[token] in words]
    model = build(shape, law.members, words, option_ids, vocabulary, places, len(ids))
    model.config._name_or_path = PREFIX + name + ("" if shape == "llama" else f"-{shape}")
    known = {key: getattr(law, key) or (0.0,) * len(law.members) for key in PER_MEMBER}
    return Planted(
        model=model,
        tokenizer=tokenizer,
        name=name,
        shape=shape,
        about=about,
        closed_form=inspect.getdoc(plant) or "",
        task=asked,
        components=tuple(member.component for member in law.members),
        over_vocabulary=_written(law, len(vocabulary), option_ids),
        expected=MappingProxyType(_totals(law, known)),
        per_member=MappingProxyType(known),
    )


def by_zoo_name(name: str) -> Planted:
    """The planted model that `load_model("zoo/planted-copied")` or `"zoo/planted-copied-gpt2"` means."""
    plain = name.removeprefix("zoo/").removeprefix(PREFIX)
    known = [f"zoo/{PREFIX}{law}" for law in LAWS]
    shape: Shape = "gpt2" if plain.endswith("-gpt2") else "llama"
    plain = plain.removesuffix("-gpt2")
    if not name.startswith(f"zoo/{PREFIX}") or plain not in LAWS:
        raise InputError(f"there is no {name!r:.60} in the zoo: choose among {', '.join(known)} (or with -gpt2).")
    return planted(plain, shape)


def _unit(name: str) -> str:
    if name in BITS:
        return "bits"
    if name.endswith("accuracy"):
        return "share"
    return name.split("_")[0] if name.startswith(("cosine", "coherence")) else "logits²"


def _totals(law: Law, known: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    means = {key: float(np.mean(values)) for key, values in known.items()}
    for term in ("bias", "diversity"):
        means[f"{term}_centered"] = means[term] - means[f"{term}_shift"]
    for end in ("", "_centered", "_shift"):
        means[f"loss{end}"] = means[f"bias{end}"] - means[f"diversity{end}"]
    information_diversity = law.conditional_redundancy - law.redundancy
    return means | {
        "diversity_logit": len(law.members) ** 2 * means["diversity"],
        "coherence": law.coherence,
        "cosine": law.cosine,
        "cosine_centered": law.cosine_centered,
        "member_accuracy": float(np.mean(law.accuracy)),
        "accuracy": law.ensemble_accuracy,
        "relevancy": law.relevancy,
        "redundancy": law.redundancy,
        "conditional_redundancy": law.conditional_redundancy,
        "joint": law.relevancy + information_diversity,
        "information_diversity": information_diversity,
    }


def _task(name: str, law: Law) -> Task:
    """The rows as prompts of `synthetic/votes`, all combinations repeated alike until there are enough."""
    import pandas as pd

    times = -(-LEAST_ROWS // len(law.rows))
    frame = pd.DataFrame(
        [{"votes": ", ".join(said), "members": len(said), "label": gold} for said, gold in law.rows * times]
    )
    made = task(f"synthetic/votes:options={law.options}", data=frame)
    return replace(made, name=f"{PREFIX}{name}", source="every combination of words, as often as its probability")


def _written(law: Law, vocabulary: int, option_ids: Sequence[int]) -> Float[np.ndarray, "example member id"]:
    """What members write, by what the words of each row are; no model is asked."""
    once = np.zeros((len(law.rows), len(law.members), vocabulary))
    for row, (said, _) in enumerate(law.rows):
        for number, member in enumerate(law.members):
            reader = member.of if isinstance(member, Eraser) else member
            say = reader.says.get(said[reader.witness], Say())
            once[row, number] += say.everywhere
            for option, amount in zip(option_ids, say.options, strict=False):
                once[row, number, option] += amount
            if isinstance(member, Eraser):
                once[row, number] *= -1
    return np.tile(once, (-(-LEAST_ROWS // len(law.rows)), 1, 1))
