"""The one door for prompts: texts, token ids (padded or not), a tokenizer's output, and conversations -> token ids.

A text is a prompt, not a finished document: the tokens that a tokenizer puts in front of a text are added unless the
text already begins with them, and those that it appends are left out, since an answer is to follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._checks import shown
from ..errors import InputError
from .tokenization import check_ids, check_vocabulary, is_id, items, plain, tokenizer_for

if TYPE_CHECKING:
    from .load import Model

Ids = tuple[int, ...]
# How names of tasks start that nobody means as a text.
_TASKS = ("sample/", "synthetic/", "lm_eval/")
_ROLES = ("bos", "eos", "unk", "sep", "cls", "mask")
_WHAT = "a list of texts, of lists of token ids or of {'role': ..., 'content': ...}, or a tokenizer's output"


class Prompts(list[Ids]):
    """Token ids of prompts, padding removed; `texts` holds the text of each, None where ids were given."""

    def __init__(self, ids: Iterable[Sequence[int]], texts: Sequence[str | None] | None = None) -> None:
        super().__init__(tuple(int(i) for i in row) for row in ids)
        self.texts: list[str | None] = [None] * len(self) if texts is None else list(texts)

    def each(self) -> list[Prompts]:
        """The prompts one by one."""
        return [Prompts([row], [text]) for row, text in zip(self, self.texts, strict=True)]


def with_mask(prompts: Any, attention_mask: Any) -> Any:
    """Prompts and their mask as a tokenizer returns the two; without a mask the prompts themselves."""
    if attention_mask is None:
        return prompts
    if isinstance(prompts, Mapping):
        raise InputError("attention_mask is given twice, alone and with input_ids: leave one out.")
    return {"input_ids": prompts, "attention_mask": attention_mask}


def encode(model: Model, given: Any, any_length: bool = False) -> Prompts:
    """Token ids of each prompt.

    Args:
        given: A text, a list of token ids, or a list of either; a `[row, token]` tensor or array; what a tokenizer
            returns (`BatchEncoding`, or a dict with `input_ids` and its `attention_mask`); a conversation, or a list of
            them, which goes through the tokenizer's chat template, up to where the assistant's answer begins or its
            last turn ends. Ids are taken as they are, without what the mask says is padding. A rectangular batch whose
            rows begin or end with the pad token is read as padded.

    Raises InputError for what is empty, outside the vocabulary, the name of a task, or, unless `any_length`, longer
    than the model's context; for a mask that does not fit; and for rows that end in a pad token that is also the end of
    a text, where only a mask can tell padding from text.
    """
    prompts = given if isinstance(given, Prompts) else _read(model, given)
    limit = None if any_length else model.context
    for number, ids in enumerate(prompts):
        if limit is not None and len(ids) > limit:
            raise InputError(f"prompt {number} has {len(ids)} tokens, but {model.name} reads at most {limit}.")
    return prompts


def encode_one(model: Model, text_or_ids: Any) -> Ids:
    """Token ids of one text. Raises InputError for several, and as `encode`."""
    rows = encode(model, text_or_ids)
    if len(rows) != 1:
        raise InputError(f"this takes one text, but {len(rows)} were given: call it once for each.")
    return rows[0]


def continuations(
    tokenizer: Any, prompts: Prompts, rows: Sequence[Sequence[str]], what: str = "option"
) -> list[list[Ids]]:
    """The tokens by which each row's texts continue the text of its prompt; a row may be empty.

    Raises InputError where one begins inside a token of its prompt.
    """
    asked = [f"{prompt}{text}" for prompt, texts in zip(prompts.texts, rows, strict=True) for text in texts]
    alone = [prompt for prompt, texts in zip(prompts.texts, rows, strict=True) if texts]
    if not asked:
        return [[] for _ in rows]
    wholes, before = (iter(tokenizer(x, add_special_tokens=False)["input_ids"]) for x in (asked, alone))
    found: list[list[Ids]] = []
    for number, texts in enumerate(rows):
        base = next(before) if texts else []
        found.append([])
        for text in texts:
            whole = next(wholes)
            if whole[: len(base)] != base or len(whole) == len(base):
                kept = next((n for n, (a, b) in enumerate(zip(base, whole, strict=False)) if a != b), len(whole))
                ends, reads = (tokenizer.convert_ids_to_tokens(list(x[kept:])) for x in (base, whole))
                raise InputError(
                    f"{what} {shown(text)} begins inside a token of prompt {number}: the prompt ends in {ends}, but "
                    f"together the tokenizer reads {reads}. Move a blank from the prompt's end to the {what}, or give "
                    "token ids."
                )
            found[-1].append(tuple(whole[len(base) :]))
    return found


def _read(model: Model, given: Any) -> Prompts:
    mask = None
    if isinstance(given, str) and given.startswith(_TASKS):
        raise InputError(f"{shown(given)} names a task: give ld.task({given!r}), or a list for a text.")
    if isinstance(given, Mapping) and "input_ids" in given:  # a tokenizer's output
        given, mask = given["input_ids"], given.get("attention_mask")
    rows = items(
        "prompts",
        [given] if isinstance(given, str) or _is_message(given) else given,
        _WHAT,
        "their order is that of the rows of the result",
    )
    if rows and (all(map(is_id, rows)) or all(map(_is_message, rows))):
        rows, mask = [rows], plain(mask)  # one prompt of ids, one conversation
        mask = [mask] if mask and not isinstance(mask[0], list) else mask
    if not rows:
        raise InputError("there are no prompts: give at least one text or list of token ids.")
    texts: list[str | None] = [row if isinstance(row, str) else None for row in rows]
    encoded: list[Sequence[int]] = []
    affixes = _affixes(model.tokenizer) if any(text is not None for text in texts) and model.tokenizer else ([], [])
    for number, row in enumerate(rows):
        name = f"prompt {number}"
        if isinstance(row, list) and row and all(map(_is_message, row)):
            texts[number] = _rendered(model, row, name)
            encoded.append(_tokens(model, texts[number], name, []))
        elif isinstance(row, str):
            encoded.append(_tokens(model, row, name, affixes[0]))
        else:
            ids = items(name, row, "a text or a list of token ids", "their order is the text")
            check_ids(ids, model.vocabulary, name)
            encoded.append(ids)
    if affixes[1]:  # without a stacklevel: Python shows it once
        warnings.warn(
            f"the tokenizer of {model.name} ends every text with {model.tokenizer.decode(affixes[1])!r}: prompts are "
            "read without it, so that the answer follows the text.",
            stacklevel=1,
        )
    if mask is not None:
        encoded = _masked(encoded, texts, mask)
    elif all(text is None for text in texts):
        encoded = _without_padding(model, encoded)
    if empty := [number for number, ids in enumerate(encoded) if not len(ids)]:
        raise InputError(f"prompt {empty[0]} is empty: give it at least one token.")
    return Prompts(encoded, texts)


def _tokens(model: Model, text: str | None, name: str, front: list[int]) -> list[int]:
    """A text's ids behind as much of `front` as it does not begin with itself, after white space or at once."""
    tokenizer = tokenizer_for(model, name)
    if not text:
        return []
    try:
        ids, bare = (tokenizer(x, add_special_tokens=False)["input_ids"] for x in (text, text.lstrip()))
    except TypeError as error:
        raise InputError(f"{name} is not a text that can be encoded ({shown(text)}).") from error
    check_vocabulary(tokenizer, ids, model.vocabulary, name, model.name)
    own = next(n for n in range(len(front), -1, -1) if list(bare[:n]) == front[len(front) - n :])
    return [*front[: len(front) - own], *ids]


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
    """A conversation as its chat template writes it, up to where the assistant's answer begins or goes on."""
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
    """The tokens of each row that a mask says are real: one run of them."""
    masks = items("attention_mask", mask, "1 for every real token and 0 for padding, in rows", "rows have an order")
    if any(text is not None for text in texts):
        raise InputError("attention_mask belongs to token ids, but there is a text among the prompts: leave it out.")
    if [len(m) if isinstance(m, list) else -1 for m in masks] != [len(row) for row in rows]:
        raise InputError("attention_mask does not have the shape of the token ids: give one number for each.")
    kept: list[Sequence[int]] = []
    for row, real in zip(rows, masks, strict=True):
        if not all(isinstance(x, int | float) and x in (0, 1) for x in real):
            raise InputError("attention_mask must hold 1 for every real token and 0 for padding.")
        ones = [n for n, x in enumerate(real) if x]
        if ones and len(ones) != ones[-1] - ones[0] + 1:
            raise InputError("attention_mask has zeros between the tokens of a row: padding stands at its ends only.")
        kept.append(row[ones[0] : ones[-1] + 1] if ones else [])
    return kept


def _without_padding(model: Model, rows: list[Sequence[int]]) -> list[Sequence[int]]:
    """A rectangular batch without the pad tokens at the ends of its rows.

    Where the pad token is also the one that begins or ends texts, a single one may be text: such rows are refused.
    """
    pad = getattr(model.tokenizer, "pad_token_id", None)
    if pad is None or len({len(row) for row in rows}) != 1:
        return rows
    runs = [[next((n for n, i in enumerate(r) if i != pad), len(r)) for r in (row, row[::-1])] for row in rows]
    roles = {role for role in _ROLES if getattr(model.tokenizer, f"{role}_token_id", None) == pad}
    front, end = (max(side) for side in zip(*runs, strict=True))
    if not roles:
        return [row[a : len(row) - b] for row, (a, b) in zip(rows, runs, strict=True)]
    # One at the front of every row is a beginning; one at the end of a single row may well be the end of its text.
    at_front = front > 1 or (front == 1 and ("bos" not in roles or min(a for a, _ in runs) == 0))
    if at_front or end > (len(rows) == 1):
        raise InputError(
            f"rows of prompts {'begin' if at_front else 'end'} with {model.tokenizer.pad_token!r}, which is both the "
            f"pad token of {model.name} and part of its texts ({', '.join(sorted(roles))}): give the tokenizer's whole "
            "output or attention_mask=, with 0 where these are padding and 1 where they are text."
        )
    return rows


def _is_message(row: Any) -> bool:
    return isinstance(row, Mapping) and "role" in row and "content" in row
