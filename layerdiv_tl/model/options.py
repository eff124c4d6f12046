"""Answer options as the user writes them -> token ids: single tokens, sequences, sets of either."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from .._checks import listed, shown
from ..errors import InputError
from .prompts import Ids, Prompts, continuations
from .tokenization import (
    LABELS,
    check_ids,
    check_known,
    check_vocabulary,
    ids_after_text,
    items,
    plain,
    token_texts,
    tokenizer_for,
)

if TYPE_CHECKING:
    from .load import Model

_EXAMPLE = "for example options=[' Yes', ' No']"
# What follows the last token of an option that is shorter than others, in arrays of ids.
NONE = -1

Alternatives = tuple[Ids, ...]
OptionIds = Int[np.ndarray, "example option alternative token"]


def options(model: Model, given: Any, ids: Prompts, at_end: bool = True) -> tuple[OptionIds, tuple]:
    """Ids `[example, option, alternative, token]`, NONE where there is none, and the texts: K, or K for every example.

    A text's tokens are those that continue the text of its prompt; after ids, or where a prompt is not read `at_end`,
    those that it has after any text.

    Raises InputError for no options, an option without tokens or with unknown ones, two options that are the same
    tokens, alternatives of which one begins another, ids out of the vocabulary, and a text that does not begin at a
    token of its own.
    """
    given = [] if given is None else given
    rows = items("options", given, "a list of options, as in [' Yes', ' No']", LABELS)
    shared = not rows or any(isinstance(row, str | bytes | Set) or not isinstance(row, Iterable) for row in rows)
    shared = shared or (len(rows) == 1 and len(ids) != 1 and _is_nested(rows[0]))
    if shared:
        row = rows[0] if rows and _is_nested(rows[0]) and len(rows) == 1 else rows
        lists, names = [row] * len(ids), ["options"] * len(ids)
    else:
        if len(rows) != len(ids):
            raise InputError(
                f"options holds {len(rows)} lists for {len(ids)} prompts: give one list of options, or one per prompt "
                "(options of several ids that all prompts share: a list in a list, [[[5, 6], [7]]])."
            )
        names = [f"options of prompt {number}" for number in range(len(ids))]
        lists = [items(name, row, "a list of options", LABELS) for name, row in zip(names, rows, strict=True)]
        if len(sizes := {len(row) for row in lists}) != 1:
            raise InputError(f"every prompt needs the same number of options, but there are {sorted(sizes)}.")
    known: dict[tuple[str, ...], tuple[list[Alternatives], tuple[str, ...]]] = {}
    keys = [tuple(map(repr, row)) for row in lists]
    for name, row, key in zip(names, lists, keys, strict=True):
        if key not in known:
            known[key] = _read(model, row, name)
    read = [known[key][0] for key in keys]
    if at_end:
        read = _after_prompts(model, ids, lists, read)
    texts = known[keys[0]][1] if shared else tuple(known[key][1] for key in keys)
    return _padded(read), texts


def is_task(given: Any) -> bool:
    """Whether this is a `Task`, which brings prompts, options and labels."""
    return all(hasattr(given, name) for name in ("options", "labels", "resolve"))


def contrast_pairs(contrast: Any) -> list[Any]:
    """A contrast as options: a pair, or one per prompt. Raises InputError for anything else."""
    pair = "two options, as in (' Mary', ' John'), or one such pair per prompt"
    given = listed("contrast", plain(contrast), pair)
    rows = [given] if len(given) == 2 and not all(isinstance(x, list | tuple) for x in given) else given
    if not rows or any(not isinstance(row, list | tuple) or len(row) != 2 for row in rows):
        raise InputError(f"contrast={shown(contrast)} must be {pair}.")
    return rows[0] if rows[0] is given else rows


def single_tokens(
    model: Model, given: Any, prompts: Prompts, at_end: bool = True, name: str = "option"
) -> tuple[Int[np.ndarray, "example option"], tuple]:
    """Ids `[example, option]` of options that are one token each. Raises InputError for others, with their pieces."""
    ids, texts = options(model, given, prompts, at_end)
    if ids.shape[2:] != (1, 1):
        longer = ids.reshape(*ids.shape[:2], -1)
        row, option = np.argwhere((longer != NONE).sum(2) > 1)[0]
        tokens = [int(i) for i in longer[row, option] if i != NONE]
        text = texts[option] if isinstance(texts[0], str) else texts[row][option]
        if (alternatives := int((ids[row, option, :, 0] != NONE).sum())) > 1:
            raise InputError(
                f"{name} {shown(text)} is a set of {alternatives} alternatives but must be a single token: give one of "
                "them, or each as an option of its own."
            )
        pieces = model.tokenizer.convert_ids_to_tokens(tokens) if model.tokenizer else tokens
        message = f"{name} {shown(text)} is {len(tokens)} tokens {pieces} but must be a single one"
        alike = np.flatnonzero(ids[row, :, 0, 0] == tokens[0])
        if others := [i for i in alike if i != option]:
            other = texts[others[0]] if isinstance(texts[0], str) else texts[row][others[0]]
            message += f", and {shown(other)} starts with the same token {pieces[0]!r}"
        spaced = f" {text.strip()}"
        again = ids_after_text(model.tokenizer, spaced) if model.tokenizer and text != spaced else []
        if len(again) == 1 and again[0] != model.tokenizer.unk_token_id:
            raise InputError(f"{message}: {spaced!r}, with its leading space, is one.")
        raise InputError(f"{message}: choose a shorter one (often the leading space matters), or give token ids.")
    return ids[:, :, 0, 0], texts


def _read(model: Model, row: Sequence[Any], where: str) -> tuple[list[Alternatives], tuple[str, ...]]:
    """Ids and texts of one list of options, as they are after any text."""
    if not row:
        raise InputError(f"{where} is empty: give the answers, {_EXAMPLE}.")
    read: list[Alternatives] = []
    texts: list[str] = []
    is_text = [isinstance(a, str) for option in row for a in _alternatives(option)]
    for option in row:
        alternatives = _alternatives(option)
        if not alternatives:
            raise InputError(f"{where} holds an empty set: an option needs at least one text or token.")
        if all(is_text):
            read.append(tuple(_tokens_of_text(model, text) for text in alternatives))
            texts.append("|".join(alternatives))
        else:
            read.append(tuple(_tokens_of_ids(model, ids, where) for ids in alternatives))
            between = " " if model.tokenizer is None else ""  # "token 5 token 6"
            texts.append("|".join(between.join(token_texts(model, ids)) for ids in read[-1]))
    _refuse_twins(read, row, where)
    return read, tuple(texts)


def _alternatives(option: Any) -> list[Any]:
    """A set's elements in an order that is always the same; one option by itself."""
    return sorted(option, key=repr) if isinstance(option, Set) else [option]


def _tokens_of_text(model: Model, text: str) -> Ids:
    name = f"option {shown(text)}"
    tokenizer = tokenizer_for(model, name)
    ids = ids_after_text(tokenizer, text)
    if not ids:
        raise InputError(f"{name} is empty: it has no tokens, so nothing scores it. Give a text, {_EXAMPLE}.")
    check_known(tokenizer, ids, text)
    outputs = None if model.vocabulary is None else model.architecture.outputs  # a tokenizer alone has no model
    check_vocabulary(tokenizer, ids, outputs, name, model.name)
    return tuple(ids)


def _tokens_of_ids(model: Model, given: Any, where: str) -> Ids:
    given = plain(given)
    ids = list(given) if isinstance(given, list | tuple | range) else [given]
    if not ids:
        raise InputError(f"{where} holds an empty list: an option needs at least one token id.")
    check_ids(ids, model.architecture.outputs, where)
    return tuple(int(i) for i in ids)


def _refuse_twins(read: Sequence[Alternatives], row: Sequence[Any], where: str) -> None:
    first: dict[Ids, int] = {}
    for later, option in enumerate(read):
        for tokens in option:
            twin = first.setdefault(tokens, later)
            if twin != later:
                what = f"token ({tokens[0]})" if len(tokens) == 1 else f"tokens {list(tokens)}"
                raise InputError(f"{where}: {shown(row[twin])} and {shown(row[later])} are the same {what}.")
        for short in option:
            for long in option:
                if len(short) < len(long) and long[: len(short)] == short:
                    raise InputError(
                        f"{where}: in {shown(row[later])} one alternative begins another, whose probability would "
                        "count twice: leave out the longer."
                    )


def _after_prompts(
    model: Model, prompts: Prompts, lists: Sequence[Sequence[Any]], read: list[list[Alternatives]]
) -> list[list[Alternatives]]:
    """The options of every prompt by the tokens that continue it. InputError where one begins inside a token."""
    texts = [
        [a for option in row for a in _alternatives(option)] if prompt is not None else []
        for prompt, row in zip(prompts.texts, lists, strict=True)
    ]
    asked = [row if all(isinstance(a, str) for a in row) else [] for row in texts]
    after = list(read)
    for number, found in enumerate(continuations(model.tokenizer, prompts, asked)):
        if found:
            tokens = iter(found)
            after[number] = [tuple(next(tokens) for _ in option) for option in read[number]]
    return after


def _padded(read: Sequence[Sequence[Alternatives]]) -> OptionIds:
    alternatives = max(len(option) for row in read for option in row)
    longest = max(len(tokens) for row in read for option in row for tokens in option)
    ids = np.full((len(read), len(read[0]), alternatives, longest), NONE, dtype=np.int64)
    for i, row in enumerate(read):
        for k, option in enumerate(row):
            for a, tokens in enumerate(option):
                ids[i, k, a, : len(tokens)] = tokens
    return ids


def _is_nested(row: Any) -> bool:
    """Whether a list holds lists, so that its elements are options of several ids."""
    return isinstance(row, list | tuple) and any(isinstance(item, list | tuple | Set) for item in row)
