"""The arguments of the analyses: texts as token ids, their answers, layers, and choices among words."""

from __future__ import annotations

from collections.abc import Sequence, Set
from numbers import Integral
from typing import Any, Literal, get_args

from .._checks import MOST_ITEMS, choice, listed, shown, whole_number
from ..components import Component, instead_of, labels_of
from ..errors import InputError
from ..model.load import Model
from ..model.options import continuation, is_task
from ..model.prompts import Prompts, encode, to_python
from .patched_forward import PatchedForward

Part = Literal["attn", "mlp", "layer"]
FirstToken = Literal["kept", "changed"]


def check_choices(**arguments: tuple[Any, Any]) -> None:
    """Check each argument, given as (value, Literal), against the values of its Literal."""
    for name, (value, literal) in arguments.items():
        choice(name, value, get_args(literal))


def read_texts(model: Model, texts: Any, least: int = 1, why: str = "") -> Prompts:
    """Return token ids of texts, or of a task's prompts. Raises InputError for one of fewer than `least` tokens."""
    ids = encode(model, getattr(texts, "prompts", texts))
    for number, row in enumerate(ids):
        if len(row) < least:
            have = "one token" if len(row) == 1 else f"{len(row)} tokens"
            raise InputError(f"text {number} has {have}, but {why}: give texts of at least {least} tokens.")
    return ids


def read_answers(model: Model, texts: Any, answers: Any) -> tuple[Prompts, list[int]]:
    """Return (token ids of each text followed by its answer, number of tokens of the answer).

    `answers` is the number of tokens that each text ends in, or one text or list of ids per text, which is appended.
    None is the gold option of a task, or 1. Raises InputError where there is no answer, or nothing before it.
    """
    if answers is None and is_task(texts):
        answers = texts.answers
    ids = read_texts(model, texts)
    if answers is None:
        answers = 1
    if isinstance(answers, Integral) and not isinstance(answers, bool):
        answers = whole_number("answers", answers, 1, MOST_ITEMS)
        for number, row in enumerate(ids):
            if answers >= len(row):
                raise InputError(f"text {number} needs more tokens than its answer, {answers}, but has {len(row)}.")
        return ids, [answers] * len(ids)
    items = [answers] if isinstance(answers, str) else to_python(answers)
    if not isinstance(items, Sequence) or len(items) != len(ids):
        raise InputError(f"answers={shown(answers)} does not fit {len(ids)} texts: give one per text, or their length.")
    appended = []
    for number, (text, answer) in enumerate(zip(ids.texts, items, strict=True)):
        if isinstance(answer, str):
            appended.append(continuation(model, text, answer, f"answer {number} ({shown(answer)})", number))
        else:
            appended.append(encode(model, [answer])[0])
    whole = Prompts(row + answer for row, answer in zip(ids, appended, strict=True))
    return encode(model, whole), [len(answer) for answer in appended]


def ablatable_blocks(model: Model, forward: PatchedForward, part: str, layers: Any = None) -> list[int]:
    """Select the wanted blocks (None: all) that have this part. Raises InputError where none has."""
    blocks = [block for block in read_layers(layers, len(forward.layers)) if forward.zero_ablate(part, block)]
    if not blocks:
        raise InputError(f"these layers of {model.name} have no {part} that writes to the stream.")
    return blocks


def read_layers(layers: Any, count: int, name: str = "layers") -> list[int]:
    """Return the wanted blocks, None for all. Raises InputError, naming the argument, for one that does not exist."""
    if layers is None:
        return list(range(count))
    items = list(layers) if isinstance(layers, Set) else layers  # each is measured alone
    what = f"a layer from 0 to {count - 1}, or a list of them"
    wanted = [layers] if isinstance(layers, Integral) else listed(name, items, what)
    if not wanted:
        raise InputError(f"{name} is empty: give at least one layer, or None for all.")
    return list(dict.fromkeys(whole_number(name, layer, 0, count - 1) for layer in wanted))


def known_components(name: str, given: Any, known: Sequence[Component], least: bool = True) -> list[Component]:
    """Look up components by label, each once; none only with `least` False. Raises InputError for unknown ones."""
    if not least and isinstance(given, Sequence) and not len(given):
        return []
    labels = labels_of(name, given)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"{name} names {twice} twice: each can be ablated once.")
    by_label = {c.label: c for c in known}
    if unknown := [label for label in labels if label not in by_label]:
        instead = instead_of(unknown[0], known, list(by_label)) if known else "there is nothing at this unit"
        raise InputError(f"{name} asks for {unknown[0]}, which cannot be ablated here: {instead}.")
    return [by_label[label] for label in labels]
