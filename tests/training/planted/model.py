"""Build the planted models, and write those that come with the package."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from layerdiv_tl.tasks.synthetic import COLORS
from layerdiv_tl.tasks.task import Task
from layerdiv_tl.zoo.planted import PLANTED, Planted, votes_task

from .cases import CASES, UNSURE, Case
from .weights import EraserMLP, Shape, VoteLogits, build

PREFIX = "planted-"
LEAST_ROWS = 64
PER_MEMBER = ("bias", "bias_shift", "diversity", "diversity_shift")
BITS = ("relevancy", "redundancy", "conditional_redundancy")
# A word with its space, a line break, a space, or one other character; and the unknown token.
_PIECE, _UNKNOWN = r" ?\w+|\n| |[^\w\s]", "<unk>"


@dataclass(frozen=True, eq=False)
class Built(Planted):
    """A planted model as it is built, with all that is known of it.

    Attributes:
        shape: "llama" (RMSNorm, rotary positions, SwiGLU), the shape that ships, or "gpt2" (LayerNorm, learned
            positions, GELU).
        over_vocabulary: float64 `[example, member, id]`, each member's contribution to every logit, computed from the
            prompts' words without the model.
        per_member: One `bias`, `bias_shift`, `diversity`, `diversity_shift` per member, in logits².
    """

    shape: Shape
    over_vocabulary: Float[np.ndarray, "example member id"]
    per_member: Mapping[str, tuple[float, ...]]

    @cached_property
    def values(self) -> Float[np.ndarray, "example member option"]:
        """Each member's contribution to the options' logits, `[example, member, option]`."""
        return self.over_vocabulary[:, :, self.tokenizer.convert_tokens_to_ids(list(self.task.shared_options))]


def build_planted(name: str, shape: Shape = "llama") -> Built:
    """Build a model with known answers: a key of `CASES`."""
    case = CASES[name]()
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
    return Built(
        model=model,
        tokenizer=tokenizer,
        name=name,
        shape=shape,
        about=PLANTED[name],
        closed_form=inspect.getdoc(CASES[name]) or "",
        task=task_of_case,
        components=tuple(member.component for member in case.members),
        over_vocabulary=_contributions(case, len(vocabulary), option_ids),
        expected=_expected(case, per_member),
        per_member=per_member,
    )


def known_numbers(built: Built) -> dict[str, Any]:
    """Return the content of `known.json`; null stands for a number that is not defined."""
    return {
        "components": [component.label for component in built.components],
        "options": len(built.task.shared_options),
        "expected": {name: None if np.isnan(x) else x for name, x in built.expected.items()},
        "closed_form": built.closed_form,
        "labels": built.task.labels.tolist(),
        "votes": [prompt.split(": ")[1].split(".")[0] for prompt in built.task.prompts],
    }


def save_planted(built: Built, folder: Path) -> None:
    """Write the checkpoint in bfloat16, which holds its numbers, the tokenizer and `known.json`.

    In bfloat16 the angle of a head's query is off by at most 0.004, which is far less than half a token's 0.05.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = copy.deepcopy(built.model).to(torch.bfloat16)
    stored.config._name_or_path = ""
    stored.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    built.tokenizer.save_pretrained(folder)
    text = json.dumps(known_numbers(built), indent=1, ensure_ascii=False, allow_nan=False)
    # One line for each of the long lists.
    text = re.sub(r"\[[^\[\]]+\]", lambda found: re.sub(r"(?<=[[])\s+|\s+(?=])", "", " ".join(found[0].split())), text)
    (folder / "known.json").write_text(text + "\n", encoding="utf-8")


def _expected(case: Case, per_member: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    means = {key: float(np.mean(values)) for key, values in per_member.items()}
    for term in ("bias", "diversity"):
        means[f"{term}_centered"] = means[term] - means[f"{term}_shift"]
    for end in ("", "_centered", "_shift"):
        means[f"loss{end}"] = means[f"bias{end}"] - means[f"diversity{end}"]
    information_diversity = case.conditional_redundancy - case.redundancy
    means["diversity_logit"] = len(case.members) ** 2 * means["diversity"]
    means |= {name: getattr(case, name) for name in ("cosine", "cosine_centered")}
    means |= {"member_accuracy": float(np.mean(case.accuracy)), "accuracy": case.ensemble_accuracy}
    means |= {name: getattr(case, name) for name in BITS}
    return means | {"joint": case.relevancy + information_diversity, "information_diversity": information_diversity}


def _make_task(name: str, case: Case) -> Task:
    """Render the rows as prompts, repeating all combinations equally until there are enough."""
    rows = case.rows * -(-LEAST_ROWS // len(case.rows))
    return votes_task(name, [", ".join(words) for words, _ in rows], [gold for _, gold in rows], case.options)


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
