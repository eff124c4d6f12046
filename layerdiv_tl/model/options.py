"""Answer options (texts, token ids, lists of ids) as the user writes them -> token ids; and positions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from .._checks import shown
from ..errors import InputError
from .prompts import Ids, Prompts, check_ids, is_id, items, knows, to_python, token_texts, tokenize, tokenizer_for

if TYPE_CHECKING:
    from .load import Model

_POSITION = "'last', an int, or one int per prompt"
# The filler after the last token of an option that is shorter than others, in arrays of ids.
NONE = -1

OptionIds = Int[np.ndarray, "example option token"]


def read_options(model: Model, given: Any, prompts: Prompts, at_end: bool = True) -> tuple[OptionIds, tuple[Any, ...]]:
    """Parse options as ids `[example, option, token]`, padded by NONE, and texts (K, or K per example).

    A text's tokens are those that continue its prompt's text; after ids, or where a prompt is not read `at_end`, its
    tokens after any text.

    Raises InputError for no options, an option without tokens or with unknown ones, two options with the same tokens,
    a set, ids outside the vocabulary, and a text that does not begin at a token boundary.
    """
    if isinstance(given, list | tuple) and any(hasattr(column, "iloc") for column in given):
        raise InputError("options holds columns of a table: give the answers of each prompt, list(zip(right, wrong)).")
    rows = items("options", [] if given is None else given, "a list of options, as in [' Yes', ' No']")
    shared = not rows or any(isinstance(row, str | bytes) or not isinstance(row, Iterable) for row in rows)
    if len(rows) == 1 and _is_nested(rows[0]) and len(prompts) != 1:  # a list in a list
        shared, rows = True, rows[0]
    if shared:
        lists, names = [rows] * len(prompts), ["options"] * len(prompts)
    elif len(rows) == len(prompts):
        names = [f"options of prompt {number}" for number in range(len(prompts))]
        lists = [items(name, row, "a list of options") for name, row in zip(names, rows, strict=True)]
    else:
        raise InputError(
            f"options holds {len(rows)} lists for {len(prompts)} prompts: give one list of options, or one per prompt "
            "(of columns: list(zip(right, wrong)); options of several ids that all prompts share: a list in a list, "
            "[[[5, 6], [7]]])."
        )
    if len(sizes := {len(row) for row in lists}) != 1:
        raise InputError(f"every prompt needs the same number of options, but there are {sorted(sizes)}.")
    asked = [row if all(isinstance(option, str) for option in row) else [] for row in lists]
    of_texts = continuations(model, prompts.texts if at_end else [None] * len(prompts), asked)
    limit = model.path.outputs
    read = [_read(row, tokens, limit, name) for row, tokens, name in zip(lists, of_texts, names, strict=True)]
    longest = max(len(tokens) for row in read for tokens in row)
    ids = np.full((len(read), len(read[0]), longest), NONE, dtype=np.int64)
    for i, row in enumerate(read):
        for k, tokens in enumerate(row):
            ids[i, k, : len(tokens)] = tokens
    texts = tuple(tuple(_name_of(model, option) for option in row) for row in (lists[:1] if shared else lists))
    return ids, texts[0] if shared else texts


def single_tokens(
    model: Model, given: Any, prompts: Prompts, at_end: bool = True, name: str = "option"
) -> tuple[Int[np.ndarray, "example option"], tuple[Any, ...]]:
    """Parse single-token options as ids `[example, option]`. Raises InputError for others, with their pieces."""
    ids, texts = read_options(model, given, prompts, at_end)
    if ids.shape[2] == 1:
        return ids[:, :, 0], texts
    row, option = np.argwhere((ids != NONE).sum(2) > 1)[0]
    row_texts = texts if isinstance(texts[0], str) else texts[row]
    text = row_texts[option]
    tokenizer, tokens = model.tokenizer, [int(i) for i in ids[row, option] if i != NONE]
    pieces = tokenizer.convert_ids_to_tokens(tokens) if tokenizer else tokens
    message = f"{name} {shown(text)} is {len(tokens)} tokens {pieces} but must be a single one"
    if alike := [i for i in np.flatnonzero(ids[row, :, 0] == tokens[0]) if i != option]:
        message += f", and {shown(row_texts[alike[0]])} starts with the same token {pieces[0]!r}"
    spaced = f" {text.strip()}"
    again = ids_after_text(tokenizer, spaced) if tokenizer and text != spaced else []
    if len(again) == 1 and knows(tokenizer, again, spaced):
        raise InputError(f"{message}: {spaced!r}, with its leading space, is one.")
    raise InputError(f"{message}: choose a shorter one (often the leading space matters), or give token ids.")


def is_task(given: Any) -> bool:
    """True for a `Task`, which provides prompts, options and labels."""
    return all(hasattr(given, name) for name in ("options", "labels", "resolve"))


def pair_options(right: Any, wrong: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Join right and wrong answers as options, and name them by their columns where both come from a frame.

    Each is one answer for all prompts, or a list with one per prompt. Raises InputError for lists of two lengths.
    """
    names = tuple(str(getattr(answers, "name", None) or "") for answers in (right, wrong))
    answers = [to_python(right), to_python(wrong)]
    counts = {len(each) for each in answers if isinstance(each, list | tuple)}
    if not counts:
        return answers, ()
    if len(counts) > 1:
        raise InputError(f"right and wrong hold {min(counts)} and {max(counts)} answers: give one per prompt, or one.")
    columns = [each if isinstance(each, list | tuple) else [each] * min(counts) for each in answers]
    return [list(pair) for pair in zip(*columns, strict=True)], names if all(names) else ()


def read_positions(position: Any, lengths: Sequence[int]) -> Int[np.ndarray, " example"]:
    """Resolve the position in each row, counted from its own first token. See `contributions`."""
    position = -1 if isinstance(position, str) and position == "last" else to_python(position)
    wanted = [position] * len(lengths) if is_id(position) else items("position", position, _POSITION)
    if len(wanted) != len(lengths) or not all(is_id(p) for p in wanted):
        raise InputError(f"position={shown(position)} does not fit {len(lengths)} prompts: use {_POSITION}.")
    for row, (p, length) in enumerate(zip(wanted, lengths, strict=True)):
        if not -length <= p < length:
            raise InputError(f"position {shown(p)} does not exist in prompt {row}, which has {length} tokens.")
    return np.array([p % length for p, length in zip(wanted, lengths, strict=True)], dtype=np.int64)


def warn_of_missing_spaces(model: Model, prompts: Prompts, options: Any) -> None:
    """Warn of options glued as words to a prompt's last word, if they take no more tokens with a leading space.

    "The capital of France is" and "Paris" make "isParis". As many vocabularies contain both spellings, it is a warning,
    not an error. There is none after a bracket, a quotation mark, a digit or a line break.
    """
    prompt, row = prompts.texts[0], options
    if prompt is None and model.tokenizer is not None and min(prompts[0]) >= 0:
        prompt = model.tokenizer.decode(prompts[0][-8:])
    if isinstance(options, list | tuple) and options and isinstance(options[0], list | tuple):
        row = options[0]
    if prompt is None or not (prompt[-1:].isalpha() or prompt[-1:] in tuple(".,:;?!")):
        return
    words = [o for o in row if isinstance(o, str) and o[:1].isalpha()] if isinstance(row, list | tuple) else []
    tokenizer = tokenizer_for(model, "a prompt") if words else None
    glued = [o for o in words if len(ids_after_text(tokenizer, f" {o}")) <= len(ids_after_text(tokenizer, o))]
    if glued:
        warnings.warn(
            f"options {shown(glued)} follow {shown(prompt[-20:])} without a space, as parts of its last word: "
            f"write {shown([f' {o}' for o in glued])} where the answer is a word of its own.",
            stacklevel=4,  # the line that calls `contributions`
        )


def continuations(
    model: Model, before: Sequence[str | None], rows: Sequence[Sequence[str]], name: str = "option {text}"
) -> list[list[Ids]]:
    """Tokenize texts as they continue the text before them in each row, or any text where that is None.

    Messages refer to a text by its `name`, made of the {number} of its row and the {text} itself. Raises InputError for
    a text without tokens, with unknown or unpredictable ones, or that begins inside a token.
    """
    found: list[list[Ids]] = []
    for number, (prompt, row) in enumerate(zip(before, rows, strict=True)):
        found.append([])
        for text in row:
            called = name.format(number=number, text=shown(text))
            tokenizer = tokenizer_for(model, called)
            if prompt is None:
                ids = ids_after_text(tokenizer, text, called)
            else:
                ids = _ids_after_prompt(tokenizer, prompt, text, called, number)
            if not ids:
                if text:
                    raise InputError(f"{called} adds no tokens to its prompt: the tokenizer may not know its text.")
                raise InputError(f"{called} is empty: it has no tokens, so nothing scores it. Give it at least one.")
            check_known(tokenizer, ids, text, called)
            check_ids(ids, model.path.outputs, called)
            found[-1].append(tuple(ids))
    return found


def _ids_after_prompt(tokenizer: Any, prompt: str, text: str, name: str, number: int) -> list[int]:
    """Tokenize prompt and text together; return the text's ids. Raises InputError if they begin inside a token."""
    alone, whole = (tokenize(tokenizer, x, name) for x in (prompt, prompt + text))
    if whole[: len(alone)] == alone:
        return whole[len(alone) :]
    kept = next((n for n, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), len(whole))
    ends, reads = (tokenizer.convert_ids_to_tokens(x[kept:]) for x in (alone, whole))
    raise InputError(
        f"{name} begins inside a token of prompt {number}: the prompt ends in {ends}, but together the tokenizer reads "
        f"{reads}. Move a space at the prompt's end to the beginning of {shown(text)}, or give token ids."
    )


def ids_after_text(tokenizer: Any, text: str, name: str = "an option") -> list[int]:
    """Tokenize a string as it is tokenized after other text.

    SentencePiece-like tokenizers put a space in front of a string alone, but not after an anchor.
    """
    for anchor in (":", "\n", "a"):
        before, both = (tokenize(tokenizer, x, name) for x in (anchor, anchor + text))
        if both[: len(before)] == before:
            return both[len(before) :]
    return tokenize(tokenizer, text, name)


def check_known(tokenizer: Any, ids: Sequence[int], text: str, name: str) -> None:
    """Raise InputError for an option or answer that a tokenizer reads as its unknown token."""
    if not knows(tokenizer, ids, text):
        raise InputError(
            f"{name} holds text that the tokenizer does not know, so {tokenizer.unk_token} would be scored: choose "
            "other words."
        )


def _read(row: Sequence[Any], of_texts: Sequence[Ids], vocabulary: int, where: str) -> list[Ids]:
    """Parse the ids of one list of options; `of_texts` has those of its texts."""
    if not row:
        raise InputError(
            f"{where} has no answers: give some, as in options=[' Yes', ' No'] (ld.top_tokens lists what a model "
            "answers), or a Task in the place of prompts; a task has option_ids after task.resolve(model)."
        )
    read = list(of_texts)
    if not read:
        for option in row:
            ids = list(option) if isinstance(option, list | tuple | range) else [option]
            if not ids:
                raise InputError(f"{where} holds an empty list: an option needs at least one token id.")
            check_ids(ids, vocabulary, where)
            read.append(tuple(int(i) for i in ids))
    _check_distinct(read, row, where)
    return read


def _check_distinct(read: Sequence[Ids], row: Sequence[Any], where: str) -> None:
    """Raise InputError for two options with the same tokens."""
    first: dict[Ids, int] = {}
    for number, tokens in enumerate(read):
        twin = first.setdefault(tokens, number)
        if twin != number:
            what = f"token ({tokens[0]})" if len(tokens) == 1 else f"tokens {list(tokens)}"
            raise InputError(f"{where}: {shown(row[twin])} and {shown(row[number])} are the same {what}.")


def _name_of(model: Model, option: Any) -> str:
    """Return an option's text in tables and figures."""
    if isinstance(option, str):
        return option
    between = " " if model.tokenizer is None else ""  # "token 5 token 6"
    return between.join(token_texts(model, np.atleast_1d(option)))


def _is_nested(row: Any) -> bool:
    """True if a list holds lists, so that its elements are options of several ids."""
    return isinstance(row, list | tuple) and any(isinstance(item, list | tuple) for item in row)
