"""Convert user input to token ids: texts, token ids, a tokenizer's output.

A text is a prompt, not a finished document: the tokens that a tokenizer prepends are added unless the text already
begins with them. The tokens that it appends are left out, since an answer is to follow.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import shown
from ..errors import InputError

if TYPE_CHECKING:
    from .load import Model

Ids = tuple[int, ...]
# What tokenizers return and data sets hold besides token ids, and no logit depends on.
_BESIDE = {
    *("input_ids", "attention_mask", "labels", "length", "special_tokens_mask", "offset_mapping"),
    *("overflow_to_sample_mapping", "overflowing_tokens", "num_truncated_tokens"),
}
# So many prompts are named in captions, by so many characters of their end.
_FEW, _END = 8, 100


class Prompts(list[Ids]):
    """Token ids of prompts, padding removed; `texts` holds the text of each, None where ids were given."""

    def __init__(self, ids: Iterable[Sequence[int]], texts: Sequence[str | None] | None = None) -> None:
        super().__init__(tuple(int(i) for i in row) for row in ids)
        self.texts: list[str | None] = [None] * len(self) if texts is None else list(texts)


def with_mask(prompts: Any, attention_mask: Any) -> Any:
    """Combine prompts and their mask as a tokenizer returns the two; without a mask, return the prompts."""
    return prompts if attention_mask is None else {"input_ids": prompts, "attention_mask": attention_mask}


def encode(model: Model, given: Any) -> Prompts:
    """Convert prompts to token ids.

    Args:
        given: A text, a list of token ids, or a list of either; a `[row, token]` tensor or array; a tokenizer's output
            with its mask, e.g. of `apply_chat_template`.

    Raises InputError for input that is empty, outside the vocabulary or longer than the model's context; for a mask
    that does not fit; and for rows that may be padded, without a mask.
    """
    prompts = given if isinstance(given, Prompts) else _read(model, given)
    limit = model.context
    for number, ids in enumerate(prompts):
        if not ids:
            raise InputError(f"prompt {number} is empty: give it at least one token.")
        if limit is not None and len(ids) > limit:
            raise InputError(f"prompt {number} has {len(ids)} tokens, but {model.name} reads at most {limit}.")
    return prompts


def encode_one(model: Model, text_or_ids: Any) -> Ids:
    """Convert one text to token ids. Raises InputError for several, and as `encode`."""
    rows = encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"this takes one text, but {len(rows)} were given: call it once for each.")
    return rows[0]


def _read(model: Model, given: Any) -> Prompts:
    mask = None
    if isinstance(given, Mapping) and "input_ids" in given:  # a tokenizer's output
        _check_keys(model, given)
        given, mask = given["input_ids"], to_python(given.get("attention_mask"))
    what = "a list of texts or of lists of token ids, or a tokenizer's output"
    rows = [given] if isinstance(given, str) else items("prompts", given, what)
    if not rows:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    if all(map(is_id, rows)):  # one prompt
        rows = [rows]
        mask = [mask] if isinstance(mask, list) and all(map(is_id, mask)) else mask
    texts = [row if isinstance(row, str) else None for row in rows]
    encoded = [_read_row(model, row, f"prompt {number}") for number, row in enumerate(rows)]
    if mask is not None:
        encoded = _masked(encoded, mask)
    elif not any(texts):
        _check_padding(model, encoded)
    return Prompts(encoded, texts)


def _check_keys(model: Model, given: Mapping[str, Any]) -> None:
    """Raise InputError for what a pass would read besides token ids and their mask: pictures, positions, token types.

    Tokenizers also give token types to models that do not take them, all of them 0.
    """
    taken = inspect.signature(model.path.module.forward).parameters
    for name in given.keys() - _BESIDE:
        is_unread = name.endswith("token_type_ids") and name not in taken
        if given[name] is not None and not (is_unread and not any(map(np.any, to_python(given[name])))):
            raise InputError(
                f"prompts hold {name!r}, but only token ids and their mask are read here, and the model's logits may "
                "depend on it: give input_ids and attention_mask alone, of texts without pictures, sound or positions."
            )


def _read_row(model: Model, row: Any, name: str) -> list[int]:
    """Get the ids of one prompt; those that a tokenizer puts in front of a text precede them once."""
    turn = row[0] if isinstance(row, list | tuple) and row else row
    if isinstance(turn, Mapping):
        raise InputError(
            f"{name} is a conversation or a row of a table, {shown(turn)}: give its text, or the token ids that "
            "tokenizer.apply_chat_template(turns, add_generation_prompt=True) returns."
        )
    if not isinstance(row, str):
        ids = items(name, row, "a text or a list of token ids")
        check_ids(ids, model.vocabulary, name)
        return ids
    if not row:
        return []
    tokenizer = tokenizer_for(model, name)
    ids, whole = tokenize(tokenizer, row), list(tokenizer(row)["input_ids"])
    check_ids(ids, model.vocabulary, name)
    starts = range(len(whole) - len(ids) + 1)
    front = whole[: next((n for n in starts if whole[n : n + len(ids)] == ids), 0)]
    own = next(n for n in range(len(front), -1, -1) if ids[:n] == front[len(front) - n :])
    return [*front[: len(front) - own], *ids]


def _masked(rows: Sequence[list[int]], mask: Any) -> list[list[int]]:
    """Select the real tokens of each row by its mask, which must be one contiguous run."""
    masks = [real if isinstance(real, list) else [] for real in items("attention_mask", mask, "a list of rows")]
    kept = []
    for row, real in zip(rows, masks, strict=False):
        start, count = real.index(1) if 1 in real else 0, real.count(1)
        if real == [0] * start + [1] * count + [0] * (len(row) - start - count):
            kept.append(row[start : start + count])
    if not len(kept) == len(rows) == len(masks):
        raise InputError("attention_mask must have the shape of the token ids, 1 between the 0 of padding at the ends.")
    return kept


def _check_padding(model: Model, rows: Sequence[list[int]]) -> None:
    """Raise InputError for a rectangular batch whose rows begin or end with what may be padding.

    A pad token in front of every row begins a text; one after a single row may be the end of its text.
    """
    pad = getattr(model.tokenizer, "pad_token_id", None)
    if pad is None or len({len(row) for row in rows}) != 1:
        return
    front = [next((n for n, i in enumerate(row) if i != pad), len(row)) for row in rows]
    end = [next((n for n, i in enumerate(row[::-1]) if i != pad), len(row)) for row in rows]
    if max(front) > 1 or len(set(front)) > 1 or max(end) > (len(rows) == 1):
        raise InputError(
            f"rows of prompts begin or end with {model.tokenizer.pad_token!r}, the pad token of {model.name}: give the "
            "tokenizer's whole output or attention_mask=, with 0 where these are padding and 1 where they are text."
        )


# Shared helpers for texts and ids.


def tokenizer_for(model: Model, text: str) -> Any:
    """Get the model's tokenizer. Raises InputError, naming the text that needs it, if there is none."""
    if model.tokenizer is None:
        way = "pass load_model(..., tokenizer=...) or give token ids"
        raise InputError(f"{text} is text, but {model.name} was loaded without a tokenizer: {way}.")
    return model.tokenizer


def tokenize(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a text without special tokens. Raises InputError for one that is no Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        way = "replace it, text.encode(errors='replace').decode()"
        raise InputError(f"{shown(text)} holds half of a character (a lone surrogate): {way}.") from error
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def ids_after(tokenizer: Any, before: str, text: str) -> list[int] | None:
    """Tokenize a text as it is tokenized after another one; None if it begins inside a token of that."""
    alone, both = tokenize(tokenizer, before), tokenize(tokenizer, before + text)
    return both[len(alone) :] if both[: len(alone)] == alone else None


def ids_after_text(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a text as it is tokenized after any other text.

    SentencePiece-like tokenizers put a space in front of a text alone, but not after an anchor.
    """
    found = (ids_after(tokenizer, anchor, text) for anchor in (":", "\n", "a"))
    return next((ids for ids in found if ids is not None), tokenize(tokenizer, text))


def token_texts(model: Model, ids: Any) -> tuple[str, ...]:
    """Decode every token as it continues a text, so that two different ones never look alike; or number them.

    One that is a part of a character is shown by its bytes, as ⟨F0⟩⟨9F⟩ of "🙂"; one that texts never give, as another
    is read in its place, with its id.
    """
    if model.tokenizer is None:
        return tuple(f"token {i}" for i in np.asarray(ids).tolist())
    distinct, index = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    texts = [_text_of_token(model.tokenizer, i) for i in distinct.tolist()]
    return tuple(texts[i] for i in index)


def _text_of_token(tokenizer: Any, token: int) -> str:
    text = text_after(tokenizer, [token], [token])
    is_whole = "\ufffd" not in text
    if is_whole and ids_after_text(tokenizer, text) == [token]:
        return text
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    piece, marked = str(tokenizer.convert_ids_to_tokens(token)), f"{text}⟨#{token}⟩"
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):  # of SentencePiece
        return f"⟨{piece[3:5]}⟩"
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    if is_whole or any(character not in byte_of for character in piece):
        return marked
    decoded = bytes(byte_of[character] for character in piece).decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda byte: f"⟨{ord(byte[0]) - 0xDC00:02X}⟩", decoded)


def text_after(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> str:
    """Decode tokens as they continue others: alone, the first may lose the blank that it begins with."""
    front, both, alone = (
        tokenizer.decode(list(x), clean_up_tokenization_spaces=False) for x in (before, [*before, *ids], ids)
    )
    return both[len(front) :] if both.startswith(front) else alone


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
            raise InputError(f"{where} holds the token id {i}, but this model's are 0 to {vocabulary - 1}.")


def items(name: str, given: Any, what: str) -> list[Any]:
    """Return the items of a list, array, tensor or column, as plain Python.

    Raises InputError for anything else, as a table's items are names of columns, and those of a set have no order.
    """
    found = to_python(given)
    if not isinstance(found, Sequence) or isinstance(found, str | bytes | bytearray):
        raise InputError(f"{name}={shown(given)} must be {what}.")
    return list(found)


def to_python(x: Any) -> Any:
    """Convert tensors and arrays, also inside lists, to Python numbers and lists; other values are unchanged."""
    if hasattr(x, "tolist"):
        return x.tolist()
    return [to_python(item) for item in x] if isinstance(x, list | tuple) else x


def is_id(value: Any) -> bool:
    """True for a whole number, the type of token ids."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
