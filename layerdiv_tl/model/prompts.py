"""Convert user input to token ids: texts, token ids (padded or not), a tokenizer's output, conversations.

A text is a prompt, not a finished document: the tokens that a tokenizer prepends are added unless the text already
begins with them. The tokens that it appends are left out, since an answer is to follow.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
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
_ROLES = ("bos", "eos", "unk", "sep", "cls", "mask")
_WHAT = "a list of texts, of lists of token ids or of {'role': ..., 'content': ...}, or a tokenizer's output"


class Prompts(list[Ids]):
    """Token ids of prompts, padding removed; `texts` holds the text of each, None where ids were given."""

    def __init__(self, ids: Iterable[Sequence[int]], texts: Sequence[str | None] | None = None) -> None:
        super().__init__(tuple(int(i) for i in row) for row in ids)
        self.texts: list[str | None] = [None] * len(self) if texts is None else list(texts)


def with_mask(prompts: Any, attention_mask: Any) -> Any:
    """Combine prompts and their mask as a tokenizer returns the two; without a mask, return the prompts."""
    return prompts if attention_mask is None else {"input_ids": prompts, "attention_mask": attention_mask}


def encode(model: Model, given: Any, any_length: bool = False) -> Prompts:
    """Convert prompts to token ids.

    Args:
        given: A text, a list of token ids, or a list of either; a `[row, token]` tensor or array; a tokenizer's output
            with its mask; a conversation, or a list of them, to which the chat template is applied, up to where the
            assistant's answer begins or its last turn ends. A rectangular batch without a mask, whose rows begin or end
            with the pad token, is read as padded.

    Raises InputError for input that is empty, outside the vocabulary, the name of a task, or, unless `any_length`,
    longer than the model's context; for a mask that does not fit; and for rows with a pad token that may be text.
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

    refuse_task_name(given)
    if is_cache(given):  # iterating it would give the names of its hooks
        raise InputError("an ActivationCache is not a prompt: give the text or the tokens that it is of.")
    mask = None
    if isinstance(given, Mapping) and "input_ids" in given:  # a tokenizer's output
        given, mask = given["input_ids"], to_python(given.get("attention_mask"))
    rows = items("prompts", [given] if isinstance(given, str) or _is_message(given) else given, _WHAT)
    if not rows:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    if all(map(is_id, rows)) or all(map(_is_message, rows)):  # one prompt of ids, one conversation
        rows = [rows]
        mask = [mask] if isinstance(mask, list) and all(map(is_id, mask)) else mask
    front = _tokens_in_front(model) if any(isinstance(row, str) for row in rows) else []
    read = [_read_row(model, row, f"prompt {number}", front) for number, row in enumerate(rows)]
    encoded, texts = [ids for ids, _ in read], [text for _, text in read]
    _warn_of_unknown(model, encoded, texts, front)
    if mask is not None:
        encoded = _masked(encoded, mask)
    elif all(text is None for text in texts):
        encoded = _without_padding(model, encoded)
    for number, ids in enumerate(encoded):
        if not len(ids):
            raise InputError(f"prompt {number} is empty: give it at least one token.")
    return Prompts(encoded, texts)


def _read_row(model: Model, row: Any, name: str, front: list[int]) -> tuple[Sequence[int], str | None]:
    """Get the ids of one prompt and its text, None where ids were given.

    The part of `front` that the text does not already begin with, after optional white space, precedes its ids.
    """
    if isinstance(row, list) and row and all(map(_is_message, row)):
        row, front = _rendered(tokenizer_for(model, name), row), []
    if not isinstance(row, str):
        ids = items(name, row, "a text or a list of token ids")
        check_ids(ids, model.vocabulary, name)
        return ids, None
    tokenizer = tokenizer_for(model, name)
    ids, bare = tokenize(tokenizer, row), tokenize(tokenizer, row.lstrip())
    check_ids(ids, model.vocabulary, name)
    own = next(n for n in range(len(front), -1, -1) if bare[:n] == front[len(front) - n :])
    return [*front[: len(front) - own], *ids] if row else [], row


def _rendered(tokenizer: Any, turns: list[Any]) -> str:
    """Apply the chat template to a conversation, up to where the assistant's answer begins or continues."""
    answered = turns[-1]["role"] == "assistant"
    return tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=not answered, continue_final_message=answered
    )


def _tokens_in_front(model: Model) -> list[int]:
    """The ids that a tokenizer puts in front of a text. Warns if it appends some, which prompts are read without."""
    tokenizer = tokenizer_for(model, "a prompt")
    for anchor in ("a", "0", "\n"):
        alone, whole = tokenize(tokenizer, anchor), tokenizer(anchor)["input_ids"]
        for start in range(len(whole) - len(alone) + 1):
            end = start + len(alone)
            if alone and whole[start:end] == alone:
                if whole[end:]:
                    warnings.warn(  # without a stacklevel: Python shows it once
                        f"the tokenizer of {model.name} ends every text with {tokenizer.decode(whole[end:])!r}: "
                        "prompts are read without it, so that the answer follows the text.",
                        stacklevel=1,
                    )
                return whole[:start]
    return []


def knows(tokenizer: Any, ids: Sequence[int], text: str) -> bool:
    """True if a text was encoded without the unknown token, or is that token's own text."""
    unknown = getattr(tokenizer, "unk_token", None)
    return not unknown or tokenizer.unk_token_id not in ids or unknown in text


def _warn_of_unknown(
    model: Model, encoded: Sequence[Sequence[int]], texts: Sequence[str | None], front: list[int]
) -> None:
    tokenizer, known = model.tokenizer, zip(encoded, texts, strict=True)
    unknown = [number for number, (ids, text) in enumerate(known) if text and not knows(tokenizer, ids, text)]
    # A token in front may be the unknown one, as in OPT, whose tokens before and after a text are one.
    if unknown and tokenizer.unk_token_id not in front:
        warnings.warn(
            f"the tokenizer of {model.name} does not know all words of {len(unknown)} of {len(texts)} prompts (prompt "
            f"{unknown[0]} is the first): the model reads {tokenizer.unk_token!r} in their place.",
            stacklevel=1,
        )


def _masked(rows: Sequence[Sequence[int]], mask: Any) -> list[Sequence[int]]:
    """Select the real tokens of each row by its mask, which must be one contiguous run."""
    masks = items("attention_mask", mask, "1 for every real token and 0 for padding, in rows")
    kept = []
    for row, real in zip(rows, masks, strict=False):
        ones = [n for n, x in enumerate(real) if x == 1] if isinstance(real, list) else []
        start, end = (ones[0], ones[-1] + 1) if ones else (0, 0)
        if real == [0] * start + [1] * (end - start) + [0] * (len(row) - end):
            kept.append(row[start:end])
    if not len(kept) == len(rows) == len(masks):
        raise InputError("attention_mask must have the shape of the token ids, 1 between the 0 of padding at the ends.")
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


def tokenize(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a text without special tokens."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def token_texts(model: Model, ids: Any) -> tuple[str, ...]:
    """Decode every token by itself, one that is a part of a character to its bytes; without a tokenizer, to its number.

    The first of the two tokens of "🙂" may be ⟨F0⟩⟨9F⟩.
    """
    if model.tokenizer is None:
        return tuple(f"token {i}" for i in np.asarray(ids).tolist())
    distinct, index = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    texts = [_text_of_token(model.tokenizer, i) for i in distinct.tolist()]
    return tuple(texts[i] for i in index)


def _text_of_token(tokenizer: Any, token: int) -> str:
    text = tokenizer.decode([token])
    if "\ufffd" not in text:
        return text
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    piece = str(tokenizer.convert_ids_to_tokens(token))
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):  # of SentencePiece
        return f"⟨{piece[3:5]}⟩"
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    if any(character not in byte_of for character in piece):
        return text
    decoded = bytes(byte_of[character] for character in piece).decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda byte: f"⟨{ord(byte[0]) - 0xDC00:02X}⟩", decoded)


def prompt_ends(model: Model, rows: Sequence[Ids]) -> tuple[str, ...]:
    """Decode the ends of few prompts, for captions; none without a tokenizer, or where token ids are not known."""
    if model.tokenizer is None or len(rows) > _FEW or any(i < 0 for row in rows for i in row):
        return ()
    texts = [model.tokenizer.decode(list(row)) for row in rows]
    return tuple(text if len(text) <= _END else f"…{text[1 - _END :]}" for text in texts)


def check_ids(ids: Sequence[Any], vocabulary: int | None, where: str) -> None:
    """Raise InputError for anything but token ids of a vocabulary; `vocabulary` None allows any id."""
    for i in ids:
        if not is_id(i):
            raise InputError(f"{where} holds {i!r}: give either texts or token ids, which are whole numbers.")
        if vocabulary is not None and not 0 <= i < vocabulary:
            raise InputError(
                f"{where} holds the token id {i}, but the vocabulary has ids 0 to {vocabulary - 1}: give ids, or a "
                "tokenizer, of this model."
            )


def items(name: str, given: Any, what: str) -> list[Any]:
    """Return the items of a list, as plain Python. Raises InputError for tables and sets."""
    return listed(name, to_python(given), what)


def refuse_unordered(name: str, given: Any) -> None:
    """Raise InputError for tables and sets, whose order is not the user's."""
    refuse_tables(name, given)
    if isinstance(given, Set):
        raise InputError(f"{name} is a {type(given).__name__}, which has no order of its own: give a list.")


def to_python(x: Any) -> Any:
    """Convert tensors and arrays, also inside lists, to Python numbers and lists; other values are unchanged."""
    if hasattr(x, "tolist"):
        return x.tolist()
    return [to_python(item) for item in x] if isinstance(x, list | tuple) else x


def is_id(value: Any) -> bool:
    """True for a whole number, the type of token ids."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
