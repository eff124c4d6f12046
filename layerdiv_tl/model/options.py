"""Answer options (texts, token ids, lists of ids) as the user writes them -> token ids; and positions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from .._checks import shown
from ..errors import InputError
from .prompts import (
    Ids,
    Prompts,
    check_ids,
    ids_after,
    ids_after_text,
    is_id,
    items,
    to_python,
    token_texts,
    tokenizer_for,
)

if TYPE_CHECKING:
    from .load import Model

# The filler after the last token of an option that is shorter than others, in arrays of ids.
NONE = -1

OptionIds = Int[np.ndarray, "example option token"]


def read_options(model: Model, given: Any, prompts: Prompts, at_end: bool = True) -> tuple[OptionIds, tuple[Any, ...]]:
    """Parse options as ids `[example, option, token]`, padded by NONE, and texts (K, or K per example).

    A text's tokens are those that continue its prompt's text; after ids, or where a prompt is not read `at_end`, its
    tokens after any text. Raises InputError for an option without tokens, with unknown ones, with those of another
    option, with ids outside the vocabulary, or whose text does not begin at a token boundary.
    """
    if isinstance(given, list | tuple) and any(hasattr(column, "iloc") for column in given):
        raise InputError("options holds columns of a table: give the answers of each prompt, list(zip(right, wrong)).")
    rows = items("options", given, "a list of options, as in [' Yes', ' No']")
    shared = any(isinstance(row, str) or not isinstance(row, Iterable) for row in rows)
    if len(rows) == 1 and len(prompts) != 1 and _is_nested(rows[0]):  # options of several ids, for all prompts
        shared, rows = True, rows[0]
    lists = [rows] * len(prompts) if shared else [items("options of a prompt", row, "a list") for row in rows]
    if len(lists) != len(prompts) or len({len(row) for row in lists}) > 1:
        raise InputError(
            f"options holds {len(lists)} lists for {len(prompts)} prompts: give one list, or one for each prompt, all "
            "with the same number of options (options of several ids for all: a list in a list, [[[5, 6], [7]]])."
        )
    before = prompts.texts if at_end else [None] * len(prompts)
    read = [_read_row(model, row, text, number) for number, (row, text) in enumerate(zip(lists, before, strict=True))]
    longest = max(len(tokens) for row in read for tokens in row)
    ids = np.array([[[*tokens, *[NONE] * (longest - len(tokens))] for tokens in row] for row in read], dtype=np.int64)
    texts = tuple(tuple(_name_of(model, option) for option in row) for row in (lists[:1] if shared else lists))
    return ids, texts[0] if shared else texts


def _read_row(model: Model, row: Sequence[Any], before: str | None, number: int) -> list[Ids]:
    """Parse the options of one prompt, which continue the text `before` them."""
    read = []
    for option in row:
        if isinstance(option, str):
            read.append(continuation(model, before, option, f"option {shown(option)}", number))
            continue
        ids = option if isinstance(option, list | tuple | range) else [option]
        check_ids(ids, model.path.outputs, f"options of prompt {number}")
        read.append(tuple(int(i) for i in ids))
    if not read or () in read:
        raise InputError(f"options of prompt {number}, {shown(list(row))}, are or hold an empty list.")
    if len(set(read)) < len(read):
        raise InputError(f"options of prompt {number}, {shown(list(row))}, hold two of the same tokens.")
    return read


def _is_nested(row: Any) -> bool:
    """True if a list holds lists, so that its elements are options of several ids."""
    return isinstance(row, list | tuple) and any(isinstance(item, list | tuple) for item in row)


def _name_of(model: Model, option: Any) -> str:
    """Return an option's text in tables and figures."""
    if isinstance(option, str):
        return option
    between = " " if model.tokenizer is None else ""  # "token 5 token 6"
    return between.join(token_texts(model, np.atleast_1d(option)))


def single_tokens(
    model: Model, given: Any, prompts: Prompts, at_end: bool = True, name: str = "option"
) -> tuple[Int[np.ndarray, "example option"], tuple[Any, ...]]:
    """Parse single-token options as ids `[example, option]`. Raises InputError for others, with their pieces."""
    ids, texts = read_options(model, given, prompts, at_end)
    if ids.shape[2] > 1:
        row, option = np.argwhere(ids[:, :, 1] != NONE)[0]
        pieces = token_texts(model, ids[row, option][ids[row, option] != NONE])
        raise InputError(f"{name} {''.join(pieces)!r} is the tokens {list(pieces)} but must be a single one.")
    return ids[:, :, 0], texts


def is_task(given: Any) -> bool:
    """True for a `Task`, which provides prompts, options and labels."""
    return all(hasattr(given, name) for name in ("options", "labels", "resolve"))


def pair_options(right: Any, wrong: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Join right and wrong answers as options, and name them by their columns where both come from a frame.

    Each is one answer for all prompts, or a list with one per prompt.
    """
    names = tuple(str(getattr(answers, "name", None) or "") for answers in (right, wrong))
    answers = [to_python(right), to_python(wrong)]
    lists = [each for each in answers if isinstance(each, list)]
    if not lists:
        return answers, ()
    columns = [each if isinstance(each, list) else [each] * len(lists[0]) for each in answers]
    return [list(pair) for pair in zip(*columns, strict=True)], names if all(names) else ()


def read_positions(position: Any, lengths: Sequence[int]) -> Int[np.ndarray, " example"]:
    """Resolve the position in each row, counted from its own first token. See `contributions`."""
    position = -1 if isinstance(position, str) and position == "last" else to_python(position)
    wanted = [position] * len(lengths) if is_id(position) else position
    if not isinstance(wanted, list | tuple) or len(wanted) != len(lengths) or not all(map(is_id, wanted)):
        raise InputError(
            f"position={shown(position)} does not fit {len(lengths)} prompts: use 'last', an int or one per prompt."
        )
    for row, (p, length) in enumerate(zip(wanted, lengths, strict=True)):
        if not -length <= p < length:
            raise InputError(f"position {shown(p)} does not exist in prompt {row}, which has {length} tokens.")
    return np.array([p % length for p, length in zip(wanted, lengths, strict=True)], dtype=np.int64)


def warn_of_missing_spaces(prompts: Prompts, options: Any) -> None:
    """Warn of options that are glued to the first prompt's last word: "is" and "Paris" make "isParis"."""
    row = to_python(options)
    if isinstance(row, list) and isinstance(row[0], list):
        row = row[0]
    texts = [option for option in row if isinstance(option, str)]
    glued = [text for text in texts if re.match("[A-Za-z]", text)]
    prompt = prompts.texts[0] or ""
    if glued and re.search("[A-Za-z.,:;?!]$", prompt):
        warnings.warn(
            f"options {shown(glued)} follow {shown(prompt[-20:])} without a space, as parts of its last word: "
            f"write {shown([f' {o}' for o in glued])} where the answer is a word of its own.",
            stacklevel=4,  # the line that calls `contributions`
        )


def continuation(model: Model, before: str | None, text: str, name: str, number: int) -> Ids:
    """Tokenize a text as it continues the text before it, or any text where that is None.

    Messages refer to it by its `name` and the `number` of its prompt. Raises InputError for a text without tokens, with
    unknown ones, or that begins inside a token.
    """
    tokenizer = tokenizer_for(model, name)
    ids = ids_after_text(tokenizer, text) if before is None else ids_after(tokenizer, before, text)
    if ids is None:
        raise InputError(
            f"{name} begins inside a token of prompt {number}, as the tokenizer reads the two together: move a space "
            "at the prompt's end to the beginning of the option, or give token ids."
        )
    if not ids:
        raise InputError(f"{name} adds no tokens to its prompt: give it at least one.")
    check_known(tokenizer, ids, text, name)
    check_ids(ids, model.path.outputs, name)
    return tuple(ids)


def check_known(tokenizer: Any, ids: Sequence[int], text: str, name: str) -> None:
    """Raise InputError for an option or answer that a tokenizer reads as its unknown token."""
    unknown = getattr(tokenizer, "unk_token", None)
    if unknown and tokenizer.unk_token_id in ids and unknown not in text:
        raise InputError(f"{name} holds text that the tokenizer does not know, so {unknown} would be scored.")
