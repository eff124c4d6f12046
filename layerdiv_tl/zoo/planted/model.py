"""Planted models: small transformers whose measures are all known in closed form, up to float64 precision."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
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
from .cases import CASES, UNSURE, Case
from .weights import EraserMLP, Shape, VoteLogits, build

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "planted-"
LEAST_ROWS = 64
PER_MEMBER = ("bias", "bias_shift", "diversity", "diversity_shift")
BITS = ("relevancy", "redundancy", "conditional_redundancy", "joint", "information_diversity")
# A word with its space, a line break, a space, or one other character; and the unknown token.
_PIECE, _UNKNOWN = r" ?\w+|\n| |[^\w\s]", "<unk>"

PLANTED: Mapping[str, str] = MappingProxyType({name: about for name, (about, _) in CASES.items()})


@dataclass(frozen=True, eq=False)
class Planted(Loadable):
    """A model with known answers. Returned by `planted`; every function that takes a model accepts it.

    Attributes:
        name, shape, about, closed_form: The case, "llama" or "gpt2", a one-line description, and the derivation of
            `expected`.
        model, tokenizer, task: The Hugging Face causal LM in float64, its tokenizer of whole words, and its prompts,
            options and labels.
        components: The members. Every other component's contribution is exactly 0.
        over_vocabulary: float64 `[example, member, id]`, each member's contribution to every logit, computed from the
            prompts' words without the model.
        expected, per_member: Expected measures of the members' ensemble by name, squared errors in logits² and
            information in bits; and one `bias`, `bias_shift`, `diversity`, `diversity_shift` per member, in logits².
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
        return self.task.shared_options or ()

    @property
    def labels(self) -> np.ndarray:
        """The index of each prompt's gold option."""
        return self.task.labels

    @cached_property
    def values(self) -> Float[np.ndarray, "example member option"]:
        """Each member's contribution to the options' logits, `[example, member, option]`."""
        return self.over_vocabulary[:, :, self.tokenizer.convert_tokens_to_ids(list(self.options))]

    def members(self, unit: Unit = "sublayer") -> tuple[str, ...]:
        """Return the members' labels at a unit, for `Contributions.select(label=…)`. Each sublayer has one member.

        Raises InputError for units that split members.
        """
        choice("unit", unit, ("sublayer", "head"))
        return tuple((c.sublayer if unit == "sublayer" else c).label for c in self.components)

    def by_component(self) -> pd.DataFrame:
        """Return bias, diversity and net (raw, centered and shift, as in `Decomposition`): one row per member."""
        import pandas as pd

        frame = pd.DataFrame({"component": [c.label for c in self.components]})
        for term in ("bias", "diversity"):
            frame[term], frame[f"{term}_shift"] = self.per_member[term], self.per_member[f"{term}_shift"]
            frame[f"{term}_centered"] = frame[term] - frame[f"{term}_shift"]
        for end in ("", "_centered", "_shift"):
            frame[f"net{end}"] = frame[f"bias{end}"] - frame[f"diversity{end}"]
        frame.attrs["units"] = dict.fromkeys(frame.columns[1:], "logits²")
        return frame

    def frame(self) -> pd.DataFrame:
        """Return the expected value and unit of each quantity: one row per quantity."""
        import pandas as pd

        rows = [(name, value, _unit_of(name)) for name, value in self.expected.items()]
        return pd.DataFrame(rows, columns=["quantity", "expected", "unit"])

    def __repr__(self) -> str:
        labels = ", ".join(c.label for c in self.components)
        return f"Planted({self.name}, {self.shape}: {self.about}; {labels}; {len(self.prompts)} prompts)"


def planted(name: str, shape: Shape = "llama") -> Planted:
    """Build a model with known answers, for tests and for teaching.

    Args:
        name: A key of `PLANTED`, which describes each case.
        shape: "llama" (RMSNorm, rotary positions, SwiGLU) or "gpt2" (LayerNorm, learned positions, GELU).

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
    if not isinstance(name, str) or name not in CASES:
        raise InputError(f"there is no planted model {shown(name)}: choose among {', '.join(CASES)}.")
    choice("shape", shape, get_args(Shape))
    about, make_case = CASES[name]
    case = make_case()
    task_of_case = _make_task(name, case)
    tokenizer = _word_tokenizer([*task_of_case.options, *task_of_case.prompts])
    vocabulary = {number: token.strip() for token, number in tokenizer.get_vocab().items()}
    option_ids = tokenizer.convert_tokens_to_ids(list(task_of_case.options))
    words = (*COLORS[: case.options], UNSURE)
    ids = tokenizer(task_of_case.prompts[0])["input_ids"]
    positions = [position for position, token in enumerate(ids) if vocabulary[token] in words]
    model = build(shape, case.members, words, option_ids, vocabulary, positions, len(ids))
    model.config._name_or_path = PREFIX + name + ("" if shape == "llama" else f"-{shape}")
    per_member = {key: getattr(case, key) or (0.0,) * len(case.members) for key in PER_MEMBER}
    return Planted(
        model=model,
        tokenizer=tokenizer,
        name=name,
        shape=shape,
        about=about,
        closed_form=inspect.getdoc(make_case) or "",
        task=task_of_case,
        components=tuple(member.component for member in case.members),
        over_vocabulary=_contributions(case, len(vocabulary), option_ids),
        expected=MappingProxyType(_expected(case, per_member)),
        per_member=MappingProxyType(per_member),
    )


def load_planted(name: str) -> Planted:
    """Build the planted model of `load_model("zoo/planted-copied")` or `"zoo/planted-copied-gpt2"`."""
    names = {f"zoo/{PREFIX}{case}": case for case in CASES}
    llama_name = name.removesuffix("-gpt2")
    if llama_name not in names:
        raise InputError(f"there is no {name!r:.60} in the zoo: choose among {', '.join(names)} (or with -gpt2).")
    return planted(names[llama_name], "llama" if name == llama_name else "gpt2")


def _unit_of(quantity: str) -> str:
    if quantity in BITS:
        return "bits"
    if quantity.endswith("accuracy"):
        return "share"
    return quantity.split("_")[0] if quantity.startswith(("cosine", "coherence")) else "logits²"


def _expected(case: Case, per_member: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    means = {key: float(np.mean(values)) for key, values in per_member.items()}
    for term in ("bias", "diversity"):
        means[f"{term}_centered"] = means[term] - means[f"{term}_shift"]
    for end in ("", "_centered", "_shift"):
        means[f"loss{end}"] = means[f"bias{end}"] - means[f"diversity{end}"]
    information_diversity = case.conditional_redundancy - case.redundancy
    means["diversity_logit"] = len(case.members) ** 2 * means["diversity"]
    means |= {name: getattr(case, name) for name in ("coherence", "cosine", "cosine_centered")}
    means |= {"member_accuracy": float(np.mean(case.accuracy)), "accuracy": case.ensemble_accuracy}
    means |= {name: getattr(case, name) for name in BITS[:3]}
    return means | {"joint": case.relevancy + information_diversity, "information_diversity": information_diversity}


def _make_task(name: str, case: Case) -> Task:
    """Render the rows as prompts of `synthetic/votes`, repeating all combinations equally until there are enough."""
    import pandas as pd

    repeats = -(-LEAST_ROWS // len(case.rows))
    frame = pd.DataFrame(
        [{"votes": ", ".join(words), "members": len(words), "label": gold} for words, gold in case.rows * repeats]
    )
    votes = task(f"synthetic/votes:options={case.options}", data=frame)
    return replace(votes, name=f"{PREFIX}{name}", source="every combination of words, as often as its probability")


def _contributions(case: Case, vocabulary: int, option_ids: Sequence[int]) -> Float[np.ndarray, "example member id"]:
    """Compute the members' contributions from the words of each row, without running a model."""
    values = np.zeros((len(case.rows), len(case.members), vocabulary))
    for row, (words, _) in enumerate(case.rows):
        for number, member in enumerate(case.members):
            head = member.erased if isinstance(member, EraserMLP) else member
            logits = head.votes.get(words[head.witness], VoteLogits())
            values[row, number] += logits.everywhere
            for option, amount in zip(option_ids, logits.options, strict=False):
                values[row, number, option] += amount
            if isinstance(member, EraserMLP):
                values[row, number] *= -1
    return np.tile(values, (-(-LEAST_ROWS // len(case.rows)), 1, 1))


def _word_tokenizer(texts: Iterable[str]) -> Any:
    """Make a tokenizer of the whole words of these texts, each with its space; decoding restores texts exactly."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    cut = pre_tokenizers.Split(Regex(_PIECE), "isolated")
    pieces = [piece for text in texts for piece, _ in cut.pre_tokenize_str(text)]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys([_UNKNOWN, *pieces]))}
    tokenizer = Tokenizer(models.WordLevel(ids, _UNKNOWN))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=_UNKNOWN, clean_up_tokenization_spaces=False)
