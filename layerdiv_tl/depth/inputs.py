"""The arguments of the analyses: texts as token ids, their answers, layers, and choices among words."""

from __future__ import annotations

from collections.abc import Sequence, Set
from numbers import Integral
from typing import Any, Literal, get_args

from .._checks import MOST_ITEMS, choice, listed, shown, whole_number
from ..errors import InputError
from ..model import tokenization
from ..model.load import Model
from ..model.options import is_task
from ..model.prompts import Ids, Prompts, continuations, encode

Part = Literal["attn", "mlp", "layer"]
FirstToken = Literal["kept", "changed"]


def check_choices(**arguments: tuple[Any, Any]) -> None:
    """Each argument, given as (value, Literal), against the words of its Literal."""
    for name, (value, literal) in arguments.items():
        choice(name, value, get_args(literal))


def read_texts(model: Model, texts: Any, least: int = 1, why: str = "") -> Prompts:
    """Token ids of texts as `model.prompts` reads them, or of a task's prompts.

    Raises InputError for a text of fewer than `least` tokens (`why` says what they are for), and as `encode`.
    """
    ids = encode(model, unwrap_texts(texts))
    for number, row in enumerate(ids):
        if len(row) < least:
            have = "one token" if len(row) == 1 else f"{len(row)} tokens"
            raise InputError(f"text {number} has {have}, but {why}: give texts of at least {least} tokens.")
    return ids


def unwrap_texts(texts: Any) -> Any:
    """A task's prompts, or the texts themselves. Raises InputError for tables and sets."""
    tokenization.refuse_tables(texts, "texts")
    tokenization.refuse_unordered(texts, "texts", "their order is that of the rows of the result")
    return getattr(texts, "prompts", texts)


def resolved(model: Model, task: Any) -> Any:
    """A task with the options of this model's tokenizer, no prompt too long; it may be resolved for another one."""
    if task.option_ids:
        again = task.resolve(model, multi_token=True)
        # Other tokens than the task has: it was resolved for another tokenizer, with which nothing is shared.
        task = again if again.option_ids == task.option_ids else task.resolve(model)
    else:
        task = task.resolve(model)
    return task if model.context is None else task.fit(model, model.context)


def read_answers(model: Model, texts: Any, answers: Any) -> tuple[Prompts, list[int]]:
    """(token ids of each text followed by its answer, how many tokens the answer has).

    Args:
        answers: An int: each text ends in an answer of so many tokens. One text or list of ids per text: it is
            appended. None: the last token is the answer, or the gold option of a task.

    Raises InputError where there is no answer, or nothing before it.
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
    tokenization.refuse_tables(answers, "answers")
    items = [answers] if isinstance(answers, str) else tokenization.plain(answers)
    if not isinstance(items, Sequence) or len(items) != len(ids):
        raise InputError(f"answers={shown(answers)} does not fit {len(ids)} texts: give one per text, or their length.")
    appended = [_answer_ids(model, answer, number) for number, answer in enumerate(items)]
    asked = [
        [answer] if isinstance(answer, str) and text is not None else []
        for answer, text in zip(items, ids.texts, strict=True)
    ]
    for number, found in enumerate(continuations(model.tokenizer, ids, asked, "answer")):
        appended[number] = found[0] if found else appended[number]
    whole = Prompts(row + answer for row, answer in zip(ids, appended, strict=True))
    return encode(model, whole), [len(answer) for answer in appended]


def read_layers(layers: Any, count: int, name: str = "layers") -> list[int]:
    """The wanted blocks, None for all. Raises InputError, in the argument's name, for one that does not exist."""
    if layers is None:
        return list(range(count))
    items = list(layers) if isinstance(layers, Set) else layers  # each is measured alone
    what = f"a layer from 0 to {count - 1}, or a list of them"
    wanted = [layers] if isinstance(layers, Integral) else listed(name, items, what)
    if not wanted:
        raise InputError(f"{name} is empty: give at least one layer, or None for all.")
    return list(dict.fromkeys(whole_number(name, layer, 0, count - 1) for layer in wanted))


def _answer_ids(model: Model, answer: Any, number: int) -> Ids:
    if isinstance(answer, str):
        if model.tokenizer is None:
            raise InputError(f"answer {number} is text, but {model.name} was loaded without a tokenizer: give ids.")
        try:
            ids = tuple(tokenization.ids_after_text(model.tokenizer, answer))
        except TypeError as error:
            raise InputError(f"answer {number} is not a text that can be encoded ({shown(answer)}).") from error
        tokenization.check_vocabulary(model.tokenizer, ids, model.vocabulary, f"answer {number}", model.name)
        tokenization.check_known(model.tokenizer, ids, answer, f"answer {number},")
    else:
        ids = encode(model, [answer])[0]
    if not ids:
        raise InputError(f"answer {number} is empty: give it at least one token.")
    return ids
