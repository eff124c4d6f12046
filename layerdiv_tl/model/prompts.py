"""Convert user input to token ids: texts, token ids (padded or not), a tokenizer's output, conversations.

A text is a prompt, not a finished document: the tokens that a tokenizer prepends are added unless the text already
begins with them. The tokens that it appends are left out, since an answer is to follow.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, MappingView, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import listed, refuse_tables, shown
from ..errors import InputError

if TYPE_CHECKING:
    from .load import Model

Ids = tuple[int, ...]
# Prefixes of task names, which are never meant as texts.
_TASKS = ("sample/", "synthetic/", "lm_eval/")
# So many prompts are named in captions, by so many characters of their end.
_FEW, _END = 8, 100
_PART_OF_WORD = re.compile(r"^\S{1,15}\s+")  # what is left of a word that is cut
_ROLES = ("bos", "eos", "unk", "sep", "cls", "mask")
_WHAT = "a list of texts, of lists of token ids or of {'role': ..., 'content': ...}, or a tokenizer's output"


class Prompts(list[Ids]):
    """Token ids of prompts, padding removed; `texts` holds the text of each, None where ids were given."""

    def __init__(self, ids: Iterable[Sequence[int]], texts: Sequence[str | None] | None = None) -> None:
        super().__init__(tuple(int(i) for i in row) for row in ids)
        self.texts: list[str | None] = [None] * len(self) if texts is None else list(texts)


def with_mask(prompts: Any, attention_mask: Any) -> Any:
    """Combine prompts and their mask as a tokenizer returns the two; without a mask, return the prompts."""
    if attention_mask is None:
        return prompts
    if isinstance(prompts, Mapping):
        raise InputError("attention_mask is given twice, alone and with input_ids: leave one out.")
    return {"input_ids": prompts, "attention_mask": attention_mask}


def encode(model: Model, given: Any, any_length: bool = False) -> Prompts:
    """Convert prompts to token ids.

    Args:
        given: A text, a list of token ids, or a list of either; a `[row, token]` tensor or array; a tokenizer's output
            (`BatchEncoding`, or a dict with `input_ids` and its `attention_mask`); a conversation, or a list of them,
            to which the tokenizer's chat template is applied, up to where the assistant's answer begins or its last
            turn ends. Ids are used unchanged, without padding according to the mask. A rectangular batch whose rows
            begin or end with the pad token is read as padded.

    Raises InputError for input that is empty, outside the vocabulary, the name of a task, or, unless `any_length`,
    longer than the model's context; for a mask that does not fit; and for rows that end in a pad token that is also the
    end-of-text token, where only a mask can tell padding from text.
    """
    prompts = given if isinstance(given, Prompts) else _read(model, given)
    limit = None if any_length else model.context
    for number, ids in enumerate(prompts):
        if limit is not None and len(ids) > limit:
            raise InputError(f"prompt {number} has {len(ids)} tokens, but {model.name} reads at most {limit}.")
    return prompts


def encode_one(model: Model, text_or_ids: Any) -> Ids:
    """Convert one text to token ids. Raises InputError for several, and as `encode`."""
    rows = encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"this takes one text, but {len(rows)} were given: call it once for each.")
    return rows[0]


def refuse_task_name(given: Any) -> None:
    """Raise InputError for the name of a task in place of prompts."""
    if isinstance(given, str) and given.startswith(_TASKS):
        raise InputError(f"{shown(given)} names a task: give ld.task({given!r}), or [{given!r}] if it is the text.")


def _read(model: Model, given: Any) -> Prompts:
    from .cache import is_cache  # not on top: tasks read prompts without torch

    mask = None
    refuse_task_name(given)
    if is_cache(given):
        raise InputError(
            "an ActivationCache is not a prompt: ld.contributions(cache, options=…) takes one without a model; other "
            "functions take the text or the tokens that it is of."
        )
    if isinstance(given, Mapping) and "input_ids" in given:  # a tokenizer's output
        given, mask = given["input_ids"], to_python(given.get("attention_mask"))
    given = [given] if isinstance(given, str) or _is_message(given) else given
    rows = items("prompts", given, _WHAT)
    if not rows:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    if all(map(is_id, rows)) or all(map(_is_message, rows)):  # one prompt of ids, one conversation
        rows = [rows]
        mask = [mask] if isinstance(mask, list) and mask and not isinstance(mask[0], list) else mask
    reads_text = model.tokenizer is not None and any(isinstance(row, str) for row in rows)
    front, appended = _affixes(model.tokenizer) if reads_text else ([], [])
    if appended:  # without a stacklevel: Python shows it once
        warnings.warn(
            f"the tokenizer of {model.name} ends every text with {model.tokenizer.decode(appended)!r}: prompts are "
            "read without it, so that the answer follows the text.",
            stacklevel=1,
        )
    read = [_read_row(model, row, f"prompt {number}", front) for number, row in enumerate(rows)]
    encoded, texts = [ids for ids, _ in read], [text for _, text in read]
    # A token in front may be the unknown one, as in OPT, whose tokens before and after a text are one.
    unknown = [n for n, (ids, text) in enumerate(read) if text and not knows(model.tokenizer, ids, text)]
    if strange := unknown if getattr(model.tokenizer, "unk_token_id", None) not in front else []:
        warnings.warn(
            f"the tokenizer of {model.name} does not know all words of {len(strange)} of {len(read)} prompts (prompt "
            f"{strange[0]} is the first): the model reads {model.tokenizer.unk_token!r} in their place.",
            stacklevel=1,
        )
    if mask is not None:
        encoded = _masked(encoded, texts, mask)
    elif all(text is None for text in texts):
        encoded = _without_padding(model, encoded)
    if empty := [number for number, ids in enumerate(encoded) if not len(ids)]:
        raise InputError(f"prompt {empty[0]} is empty: give it at least one token.")
    return Prompts(encoded, texts)


def _read_row(model: Model, row: Any, name: str, front: list[int]) -> tuple[Sequence[int], str | None]:
    """Get the ids of one prompt and its text, None where ids were given.

    The part of `front` that the text does not already begin with, after optional white space, precedes its ids.
    """
    is_chat = isinstance(row, list) and row and all(map(_is_message, row))
    if not is_chat and not isinstance(row, str):
        ids = items(name, row, "a text or a list of token ids")
        check_ids(ids, model.vocabulary, name)
        return ids, None
    text, front = (_rendered(model, row, name), []) if is_chat else (row, front)
    ids, bare = (tokenize(tokenizer_for(model, name), x, name) for x in (text, text.lstrip()))
    if not text:
        return [], text
    check_ids(ids, model.vocabulary, name)
    own = next(n for n in range(len(front), -1, -1) if bare[:n] == front[len(front) - n :])
    return [*front[: len(front) - own], *ids], text


def knows(tokenizer: Any, ids: Sequence[int], text: str) -> bool:
    """True if a text was encoded without the unknown token, or is that token's own text."""
    unknown = getattr(tokenizer, "unk_token", None)
    return not unknown or tokenizer.unk_token_id not in ids or unknown in text


def _affixes(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts in front of a text, and those that it appends."""
    for anchor in ("a", "0", "\n"):
        alone = tokenizer(anchor, add_special_tokens=False)["input_ids"]
        whole = tokenizer(anchor)["input_ids"]
        for start in range(len(whole) - len(alone) + 1):
            if alone and whole[start : start + len(alone)] == alone:
                return whole[:start], whole[start + len(alone) :]
    return [], []


def _rendered(model: Model, turns: list[Any], name: str) -> str:
    """Apply the chat template to a conversation, up to where the assistant's answer begins or continues."""
    tokenizer, answered = tokenizer_for(model, name), turns[-1]["role"] == "assistant"
    how = {"add_generation_prompt": not answered, "continue_final_message": answered}
    try:
        return tokenizer.apply_chat_template(turns, tokenize=False, **how)
    except Exception as error:  # jinja's errors, transformers' ValueError, a template's own
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"the tokenizer of {model.name} cannot make a chat of {name} ({reason}): give text."
        ) from error


def _masked(rows: Sequence[Sequence[int]], texts: Sequence[str | None], mask: Any) -> list[Sequence[int]]:
    """Select the real tokens of each row by its mask, which must be one contiguous run."""
    if any(text is not None for text in texts):
        raise InputError("attention_mask belongs to token ids, but there is a text among the prompts: leave it out.")
    masks = items("attention_mask", mask, "1 for every real token and 0 for padding, in rows")
    kept: list[Sequence[int]] = []
    for row, real in zip(rows, masks, strict=False):
        ones = [n for n, x in enumerate(real) if x == 1] if isinstance(real, list) else []
        start, end = (ones[0], ones[-1] + 1) if ones else (0, 0)
        if real == [0] * start + [1] * (end - start) + [0] * (len(row) - end):
            kept.append(row[start:end])
    if not len(kept) == len(rows) == len(masks):
        raise InputError(
            "attention_mask must hold 1 for every real token and 0 for padding, in the shape of the token ids and "
            "without a 0 between the tokens of a row."
        )
    return kept


def _without_padding(model: Model, rows: list[Sequence[int]]) -> list[Sequence[int]]:
    """Remove the pad tokens at the ends of the rows of a rectangular batch.

    If the pad token also begins or ends texts, a single one may be text: such rows raise InputError.
    """
    pad = getattr(model.tokenizer, "pad_token_id", None)
    if pad is None or len({len(row) for row in rows}) != 1:
        return rows
    runs = [[next((n for n, i in enumerate(r) if i != pad), len(r)) for r in (row, row[::-1])] for row in rows]
    roles = {role for role in _ROLES if getattr(model.tokenizer, f"{role}_token_id", None) == pad}
    if not roles:
        return [row[front : len(row) - end] for row, (front, end) in zip(rows, runs, strict=True)]
    front, end = (max(side) for side in zip(*runs, strict=True))
    # A pad token before every row begins a text; one after a single row may be the end of its text.
    at_front = front > 1 or (front == 1 and ("bos" not in roles or min(n for n, _ in runs) == 0))
    if at_front or end > (len(rows) == 1):
        raise InputError(
            f"rows of prompts {'begin' if at_front else 'end'} with {model.tokenizer.pad_token!r}, which is both the "
            f"pad token of {model.name} and part of its texts ({', '.join(sorted(roles))}): give the tokenizer's whole "
            "output or attention_mask=, with 0 where these are padding and 1 where they are text."
        )
    return rows


def _is_message(row: Any) -> bool:
    return isinstance(row, Mapping) and "role" in row and "content" in row


# Shared helpers for texts and ids.


def tokenizer_for(model: Model, text: str) -> Any:
    """Get the model's tokenizer. Raises InputError, naming the text that needs it, if there is none."""
    if model.tokenizer is None:
        way = "pass load_model(..., tokenizer=...) or give token ids"
        raise InputError(f"{text} is text, but {model.name} was loaded without a tokenizer: {way}.")
    return model.tokenizer


def tokenize(tokenizer: Any, text: str, name: str) -> list[int]:
    """Tokenize a text without special tokens. Raises InputError if it cannot be encoded (a lone surrogate)."""
    try:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    except TypeError as error:
        raise InputError(f"{name} is not a text that can be encoded ({shown(text)}).") from error


def token_texts(model: Model, ids: Any) -> tuple[str, ...]:
    """Decode every token by itself; without a tokenizer, return its number."""
    if model.tokenizer is None:
        return tuple(f"token {i}" for i in np.asarray(ids).tolist())
    distinct, index = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    texts = [model.tokenizer.decode([i]) for i in distinct.tolist()]
    return tuple(texts[i] for i in index)


def prompt_ends(model: Model, rows: Sequence[Ids]) -> tuple[str, ...]:
    """Decode the ends of few prompts, for captions; none without a tokenizer, or where token ids are not known."""
    if model.tokenizer is None or len(rows) > _FEW or any(i < 0 for row in rows for i in row):
        return ()
    texts = [model.tokenizer.decode(list(row)) for row in rows]
    return tuple(text if len(text) <= _END else f"…{_PART_OF_WORD.sub('', text[1 - _END :])}" for text in texts)


def check_ids(ids: Sequence[Any], vocabulary: int | None, where: str) -> None:
    """Raise InputError for anything but token ids of a vocabulary; `vocabulary` None allows any id."""
    for i in ids:
        if not is_id(i):
            raise InputError(f"{where} holds {i!r}: give either texts or token ids, which are whole numbers.")
        if vocabulary is not None and not 0 <= i < vocabulary:
            raise InputError(
                f"{where} holds the token id {i}, but the vocabulary has ids 0 to {vocabulary - 1}: give ids, or a "
                "tokenizer, of this model (tokens may have been added to the tokenizer alone)."
            )


def items(name: str, given: Any, what: str) -> list[Any]:
    """Return the items of a list, as plain Python. Raises InputError for tables and unordered collections."""
    refuse_unordered(name, given)
    return listed(name, to_python(given), what)


def refuse_unordered(name: str, given: Any) -> None:
    """Raise InputError for tables, sets, mappings' views and their iterators, whose order is not the user's."""
    refuse_tables(name, given)
    if isinstance(given, Set | MappingView | type(iter(set())) | type(iter({}))):
        raise InputError(f"{name} is a {type(given).__name__}, which has no order of its own: give a list.")


def to_python(x: Any) -> Any:
    """Convert tensors and arrays, also inside lists, to Python numbers and lists; other values are unchanged."""
    if hasattr(x, "tolist"):
        return x.tolist()
    return [to_python(item) for item in x] if isinstance(x, list | tuple) else x


def is_id(value: Any) -> bool:
    """True for a whole number, the type of token ids."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
