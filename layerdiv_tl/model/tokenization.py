"""Text, options and positions as the user writes them -> token ids, checked."""

from __future__ import annotations

from collections.abc import Iterable, MappingView, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from .._checks import listed, shown
from ..errors import InputError

if TYPE_CHECKING:
    from .load import Model


LABELS = "label 0 means the first option"
_POSITION = "'last', an int, or one int per prompt"


def encode(model: Model, prompts: Any, any_length: bool = False) -> list[tuple[int, ...]]:
    """Token ids of each prompt: text by the tokenizer's own rules, ids as they are.

    A beginning-of-text token is not added to a text that already starts with one. Raises InputError
    for what is empty, outside the vocabulary, or, unless `any_length`, longer than the model's context.
    """
    what = "a list of texts, or of lists of token ids (of a tokenizer's output, its input_ids without the padding)"
    prompts = [prompts] if isinstance(prompts, str) else prompts
    rows = _items("prompts", prompts, what, "their order is that of the rows of the result")
    if rows and all(_is_id(row) for row in rows):  # one prompt of ids
        rows = [rows]
    if not rows:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    encoded = [_encode(model, row, f"prompt {number}") for number, row in enumerate(rows)]
    limit = None if any_length else model.context
    for number, ids in enumerate(encoded):
        if limit is not None and len(ids) > limit:
            raise InputError(f"prompt {number} has {len(ids)} tokens, but {model.name} reads at most {limit}.")
    return encoded


def encode_one(model: Model, text_or_ids: Any) -> tuple[int, ...]:
    """Token ids of one text. Raises InputError for several, and as `encode`."""
    rows = encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"this takes one text, but {len(rows)} were given: call it once for each.")
    return rows[0]


def _encode(model: Model, prompt: Any, name: str) -> tuple[int, ...]:
    if isinstance(prompt, str):
        tokenizer = _tokenizer_for(model, name)
        special = not (tokenizer.bos_token and prompt.startswith(tokenizer.bos_token))
        try:
            ids = tokenizer(prompt, add_special_tokens=special)["input_ids"] if prompt else []
        except TypeError as error:
            raise InputError(f"{name} is not a text that can be encoded ({shown(prompt)}).") from error
        check_vocabulary(tokenizer, ids, model.vocabulary, name, model.name)
    else:
        ids = _items(name, prompt, "a text or a list of token ids", "their order is the text")
        _check_ids(ids, model.vocabulary, name)
    if not ids:
        raise InputError(f"{name} is empty: give it at least one token.")
    return tuple(int(i) for i in ids)


def positions(position: Any, lengths: Sequence[int]) -> Int[np.ndarray, " example"]:
    """The wanted position in each row, counted from its own first token. See `contributions`."""
    if isinstance(position, str) and position != "last":
        raise InputError(f"position={shown(position)} is unknown: use {_POSITION}.")
    position = -1 if isinstance(position, str) else plain(position)
    position = [position] * len(lengths) if _is_id(position) else position
    wanted = _items("position", position, _POSITION, "their order says which prompt each belongs to")
    if len(wanted) != len(lengths) or not all(_is_id(p) for p in wanted):
        raise InputError(f"position={shown(position)} does not fit {len(lengths)} prompts: use {_POSITION}.")
    for row, (p, length) in enumerate(zip(wanted, lengths, strict=True)):
        if not -length <= p < length:
            raise InputError(f"position {shown(p)} does not exist in prompt {row}, which has {length} tokens.")
    return np.array([p % length for p, length in zip(wanted, lengths, strict=True)], dtype=np.int64)


def options(model: Model, given: Any, count: int) -> tuple[Int[np.ndarray, "example option"], tuple]:
    """Ids `[example, option]` of the answer tokens, and their texts: K of them, or K for every prompt.

    Raises InputError for an empty list, for an option of several tokens (its pieces are shown), and
    for two options that are the same token.
    """
    rows = _items("options", [] if given is None else given, "a list of answer tokens, as in [' Yes', ' No']", LABELS)
    if not rows or any(isinstance(row, str | bytes) or not isinstance(row, Iterable) for row in rows):
        ids, texts = _options_of_one(model, rows, "options")
        return np.tile(np.array(ids, dtype=np.int64), (count, 1)), texts
    if len(rows) != count:
        raise InputError(f"options holds {len(rows)} lists for {count} prompts: give one list, or one per prompt.")
    names = [f"options of prompt {number}" for number in range(count)]
    lists = [_items(name, row, "a list of answer tokens", LABELS) for name, row in zip(names, rows, strict=True)]
    if len(sizes := {len(row) for row in lists}) != 1:
        raise InputError(f"every prompt needs the same number of options, but there are {sorted(sizes)}.")
    known: dict[tuple, tuple[list[int], tuple[str, ...]]] = {}
    keys = [tuple(map(repr, row)) for row in lists]
    for name, row, key in zip(names, lists, keys, strict=True):
        if key not in known:
            known[key] = _options_of_one(model, row, name)
    return np.array([known[key][0] for key in keys], dtype=np.int64), tuple(known[key][1] for key in keys)


def _options_of_one(model: Model, row: Sequence[Any], where: str) -> tuple[list[int], tuple[str, ...]]:
    """Ids and texts of one list of options."""
    if not row:
        raise InputError(f"{where} is empty: give the answer tokens, for example options=[' Yes', ' No'].")
    texts = tuple(row)
    if all(isinstance(option, str) for option in row):
        ids = [_single_token(model, option, row) for option in row]
    else:
        _check_ids(row, model.architecture.outputs, where)
        ids, texts = [int(i) for i in row], token_texts(model, row)
    first: dict[int, int] = {}
    for later, i in enumerate(ids):
        twin = first.setdefault(i, later)
        if twin != later:
            raise InputError(f"{where}: {shown(row[twin])} and {shown(row[later])} are the same token ({i}).")
    return ids, texts


def _single_token(model: Model, option: str, row: Sequence[str]) -> int:
    """The one token an option is when it follows other text."""
    tokenizer = _tokenizer_for(model, f"option {shown(option)}")
    ids = ids_after_text(tokenizer, option)
    if len(ids) == 1:
        outputs = None if model.vocabulary is None else model.architecture.outputs  # a tokenizer alone has no model
        check_vocabulary(tokenizer, ids, outputs, f"option {shown(option)}", model.name)
        return ids[0]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    message = f"option {shown(option)} is {len(ids)} tokens {pieces} but must be a single one"
    alike = [o for o in row if o != option and ids and ids_after_text(tokenizer, o)[:1] == ids[:1]]
    if alike:
        message += f", and {shown(alike[0])} starts with the same token {pieces[0]!r}"
    raise InputError(f"{message}: choose a shorter option (often the leading space matters), or give token ids.")


def _tokenizer_for(model: Model, text: str) -> Any:
    if model.tokenizer is None:
        way = "pass load_model(..., tokenizer=...) or give token ids"
        raise InputError(f"{text} is text, but {model.name} was loaded without a tokenizer: {way}.")
    return model.tokenizer


def ids_after_text(tokenizer: Any, option: str) -> list[int]:
    """Ids of a string as it is tokenized after other text.

    Alone, a SentencePiece-like tokenizer puts a space in front of it; after an anchor it does not.
    """
    for anchor in (":", "\n", "a"):
        before = tokenizer(anchor, add_special_tokens=False)["input_ids"]
        both = tokenizer(anchor + option, add_special_tokens=False)["input_ids"]
        if both[: len(before)] == before:
            return both[len(before) :]
    return tokenizer(option, add_special_tokens=False)["input_ids"]


def _check_ids(ids: Sequence[Any], vocabulary: int, where: str) -> None:
    for i in ids:
        if not _is_id(i):
            raise InputError(f"{where} holds {i!r}: give either text or token ids (whole numbers), not a mixture.")
        if not 0 <= i < vocabulary:
            raise InputError(f"{where} holds the token id {i}, but the vocabulary has ids 0 to {vocabulary - 1}.")


def check_vocabulary(tokenizer: Any, ids: Sequence[int], vocabulary: int | None, where: str, name: str) -> None:
    """Refuse what a tokenizer reads as ids that a model does not have; `vocabulary` None checks nothing."""
    largest = max(ids, default=0)
    if vocabulary is not None and largest >= vocabulary:
        token = tokenizer.convert_ids_to_tokens([largest])[0]
        raise InputError(
            f"{where} holds the token {token!r} with the id {largest}, but the vocabulary of {name} has ids 0 to "
            f"{vocabulary - 1}: its tokenizer is another model's, or tokens were added to the tokenizer alone."
        )


def _items(name: str, given: Any, what: str, order: str) -> list[Any]:
    refuse_tables(given, name)
    refuse_unordered(given, name, order)
    return listed(name, plain(given), what)


def refuse_tables(given: Any, name: str) -> None:
    """Refuse a data frame, a data set or a table of any library, whose elements are the names of its columns."""
    columns = next((list(c) for a in ("columns", "column_names") if (c := getattr(given, a, None)) is not None), None)
    if columns is not None:
        texts = [column for column in columns if str(column) in ("text", "prompt", "sentence", "question")]
        column, names = (texts or columns or ["text"])[0], ", ".join(map(str, columns))[:120] or "none"
        raise InputError(f"{name} is a table with the columns {names}: give one as a list, list(table[{column!r}]).")


def refuse_unordered(given: Any, name: str, why: str) -> None:
    """Refuse sets, mappings' views and iterators over them: the order of their elements is not the user's."""
    if isinstance(given, Set | MappingView | type(iter(set())) | type(iter({}))):
        raise InputError(f"{name} is a {type(given).__name__}, which has no order of its own, but {why}: give a list.")


def token_texts(model: Model, ids: Any) -> tuple[str, ...]:
    """The text of every token by itself; its number where there is no tokenizer."""
    if model.tokenizer is None:
        return tuple(f"token {i}" for i in np.asarray(ids).tolist())
    distinct, index = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    texts = [model.tokenizer.decode([i]) for i in distinct.tolist()]
    return tuple(texts[i] for i in index)


def plain(x: Any) -> Any:
    """Tensors and arrays, also inside lists, as Python numbers and lists; everything else as it is."""
    if hasattr(x, "tolist"):
        return x.tolist()
    if isinstance(x, list | tuple):
        return [plain(item) if hasattr(item, "tolist") or isinstance(item, list | tuple) else item for item in x]
    return x


def _is_id(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
