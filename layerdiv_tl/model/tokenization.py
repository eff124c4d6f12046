"""What reading prompts and options shares: positions, checks of token ids, the texts of tokens."""

from __future__ import annotations

import warnings
from collections.abc import MappingView, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from .._checks import listed, shown
from ..errors import InputError

if TYPE_CHECKING:
    from .load import Model
    from .prompts import Prompts


LABELS = "label 0 means the first option"
_POSITION = "'last', an int, or one int per prompt"


def positions(position: Any, lengths: Sequence[int]) -> Int[np.ndarray, " example"]:
    """The wanted position in each row, counted from its own first token. See `contributions`."""
    if isinstance(position, str) and position != "last":
        raise InputError(f"position={shown(position)} is unknown: use {_POSITION}.")
    position = -1 if isinstance(position, str) else plain(position)
    position = [position] * len(lengths) if is_id(position) else position
    wanted = items("position", position, _POSITION, "their order says which prompt each belongs to")
    if len(wanted) != len(lengths) or not all(is_id(p) for p in wanted):
        raise InputError(f"position={shown(position)} does not fit {len(lengths)} prompts: use {_POSITION}.")
    for row, (p, length) in enumerate(zip(wanted, lengths, strict=True)):
        if not -length <= p < length:
            raise InputError(f"position {shown(p)} does not exist in prompt {row}, which has {length} tokens.")
    return np.array([p % length for p, length in zip(wanted, lengths, strict=True)], dtype=np.int64)


def warn_of_missing_spaces(model: Model, prompts: Prompts, options: Any) -> None:
    """Warn of options that are words glued to a prompt's last one, and no more tokens with a space in front of them.

    "The capital of France is" and "Paris" make "isParis". Both spellings are tokens of many vocabularies, so it cannot
    be refused: after a bracket, a quotation mark, a digit or a line break none of it is said.
    """
    prompt, row = prompts.texts[0], options[0] if isinstance(options, list | tuple) and options else options
    row = row if isinstance(row, list | tuple) else options
    words = isinstance(row, list | tuple) and row and all(isinstance(o, str) and o[:1].isalpha() for o in row)
    is_word = prompt is not None and (prompt[-1:].isalpha() or prompt[-1:] in tuple(".,:;?!"))
    if prompt is None or not is_word or not words:
        return
    tokenizer = tokenizer_for(model, "a prompt")
    count = {option: len(ids_after_text(tokenizer, option)) for option in (*row, *(f" {option}" for option in row))}
    if all(count[f" {option}"] <= count[option] for option in row):
        warnings.warn(
            f"options {shown(list(row))} follow {shown(prompt[-20:])} without a space, as parts of its last word: "
            f"write {shown([f' {option}' for option in row])} where the answer is a word of its own.",
            stacklevel=3,
        )


def tokenizer_for(model: Model, text: str) -> Any:
    """The model's tokenizer. Raises InputError, naming the text that needs it, where there is none."""
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


def check_ids(ids: Sequence[Any], vocabulary: int, where: str) -> None:
    """Refuse what is not a token id of a vocabulary."""
    for i in ids:
        if not is_id(i):
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


def knows(tokenizer: Any, ids: Sequence[int], text: str) -> bool:
    """Whether a text was encoded without the unknown token, or that is what was written."""
    unknown = getattr(tokenizer, "unk_token", None)
    return not unknown or tokenizer.unk_token_id not in ids or unknown in text


def check_known(tokenizer: Any, ids: Sequence[int], text: str, what: str = "option") -> None:
    """Refuse an option or an answer that a tokenizer reads as its unknown token."""
    if not knows(tokenizer, ids, text):
        raise InputError(
            f"{what} {shown(text)} holds what the tokenizer does not know, so that {tokenizer.unk_token} would be "
            "scored: choose other words."
        )


def items(name: str, given: Any, what: str, order: str) -> list[Any]:
    """The items of a list, as plain Python. Raises InputError for tables and for what has no order."""
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


def is_id(value: Any) -> bool:
    """Whether a value is a whole number, as token ids are."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
