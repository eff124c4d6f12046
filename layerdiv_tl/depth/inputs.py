"""The arguments of the analyses: texts as token ids, their answers, layers, and choices among words."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, get_args

from .._checks import choice, shown, whole_number
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

    `answers` has one text or list of ids per text, which is appended. None is the gold option of a task, or the last
    token of every text. Raises InputError where there is no answer, or nothing before it.
    """
    if answers is None and is_task(texts):
        answers = texts.answers
    if answers is None:
        ids = read_texts(model, texts, 2, "its last one is the answer")
        return ids, [1] * len(ids)
    ids, items = read_texts(model, texts), [answers] if isinstance(answers, str) else to_python(answers)
    if not isinstance(items, Sequence) or len(items) != len(ids):
        raise InputError(f"answers={shown(answers)} does not fit {len(ids)} texts: give one per text.")
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
    blocks = [block for block in read_layers(layers, len(forward.layers)) if forward.sublayers(part, block)]
    if not blocks:
        raise InputError(f"these layers of {model.name} have no {part} that writes to the stream.")
    return blocks


def read_layers(layers: Any, count: int) -> list[int]:
    """Return the wanted blocks, None for all. Raises InputError for one that does not exist."""
    if layers is None:
        return list(range(count))
    wanted = [layers] if isinstance(layers, Integral) else list(layers)
    if not wanted:
        raise InputError("layers is empty: give at least one layer, or None for all.")
    return list(dict.fromkeys(whole_number("layers", layer, 0, count - 1) for layer in wanted))


def known_components(name: str, given: Any, known: Sequence[Component]) -> list[Component]:
    """Look up components by label, each once. Raises InputError for unknown ones."""
    by_label = {c.label: c for c in known}
    labels = list(dict.fromkeys(labels_of(name, given)))
    if unknown := [label for label in labels if label not in by_label]:
        instead = instead_of(unknown[0], known, list(by_label)) if known else "there is nothing at this unit"
        raise InputError(f"{name} asks for {unknown[0]}, which cannot be ablated here: {instead}.")
    return [by_label[label] for label in labels]
