"""Prompts and options in a tokenizer's tokens: token ids of options, chat turns, prompt lengths."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ..errors import InputError
from ..model.options import check_known, ids_after_text
from ..model.prompts import encode

AS_SEQUENCES = "options are scored as sequences of tokens: the sum of their log-probabilities"


def are_single_tokens(tokenizer: Any, options: Sequence[str]) -> bool:
    """Check whether every option is one token, apart from white space that all begin with."""
    try:
        option_ids(tokenizer, options, False)
    except InputError:
        return False
    return True


def check_sequences(tokenizer: Any, row_options: Sequence[Sequence[str]]) -> None:
    """Raise InputError for an option without tokens, and for two options of a prompt with the same tokens."""
    ids = {option: tuple(ids_after_text(tokenizer, option)) for options in set(row_options) for option in options}
    if empty := [option for option, own in ids.items() if not own]:
        raise InputError(f"the option {empty[0]!r} has no tokens: choose another word.")
    for options in set(row_options):
        if len({ids[option] for option in options}) < len(options):
            raise InputError(
                f"two of the options {list(options)} are the same tokens for this model, whose tokenizer may not know "
                "these words: choose other words, or another task."
            )


def longest(tokenizer: Any, row_options: Sequence[Sequence[str]]) -> int:
    """Count the tokens of the longest option."""
    return max(len(ids_after_text(tokenizer, option)) for options in set(row_options) for option in options)


def option_ids(tokenizer: Any, options: Sequence[str], multi_token: bool) -> tuple[str, tuple[int, ...], str]:
    """Return (common beginning of all options, next token that identifies each, a note in words).

    A beginning of only white space belongs to the prompt: many tokenizers split ` 5` and ` 7` into two tokens each, the
    first of which is the space. Longer options are scored by the first token after their common beginning, only if
    `multi_token`; the note then says so. Raises InputError where no single token identifies each option.
    """
    tokens = [ids_after_text(tokenizer, option) for option in options]
    shortest = min(map(len, tokens))
    common = next((n for n in range(shortest) if len({ids[n] for ids in tokens}) > 1), max(shortest - 1, 0))
    start = _text_of_tokens(tokenizer, options[0], tokens[0][:common])
    if start is None or (start.strip() and not multi_token):
        start, common = "", 0
    rest = [ids[common:] for ids in tokens]
    if not multi_token and any(len(ids) != 1 for ids in rest):
        raise InputError("options of several tokens are scored by one of them only with multi_token=True.")
    firsts = tuple(ids[0] for ids in rest if ids)
    for option, ids in zip(options, rest, strict=True):
        check_known(tokenizer, ids[:1], option, f"option {option!r}")
    if len(set(firsts)) < len(options):
        alike = [option for option, ids in zip(options, rest, strict=True) if not ids or firsts.count(ids[0]) > 1]
        raise InputError(f"the options {', '.join(map(repr, alike))} begin with the same token: choose other words.")
    if all(len(ids) == 1 for ids in rest):
        return start, firsts, ""
    pieces = tokenizer.convert_ids_to_tokens(list(firsts))
    scored = ", ".join(f"{option!r} by {piece!r}" for option, piece in zip(options, pieces, strict=True))
    return start, firsts, f"options of several tokens are scored by their first distinguishing one: {scored}"


def note_on_blanks(tokenizer: Any, prompts: Sequence[str], options: Sequence[str]) -> str:
    """Describe how many prompts end in a space that the tokenizer joins with an option; empty for none.

    Prompt and option are tokenized separately, so their tokens then differ from those of the joined text.
    """
    count = 0
    for prompt in prompts:
        if prompt.endswith(" "):
            alone = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            whole = (tokenizer(prompt + option, add_special_tokens=False)["input_ids"] for option in options)
            count += any(ids[: len(alone)] != alone for ids in whole)
    joined = f"{count} of {len(prompts)} prompts end in a blank that the tokenizer joins with the options"
    return f"{joined}: they go in as they are; leave it out to have options follow as in running text" if count else ""


def count_tokens(tokenizer: Any, prompt: str) -> int:
    """Count a prompt's tokens as the model will read it, including the beginning-of-text token."""
    # What reading a text needs of a model.
    reader: Any = SimpleNamespace(tokenizer=tokenizer, name="the tokenizer", context=None, vocabulary=None)
    return len(encode(reader, [prompt])[0]) if prompt else 0


def render_chat(
    tokenizer: Any, prompts: Sequence[str], system: str | None, settings: dict[str, Any]
) -> tuple[list[str], str]:
    """Return every prompt as a user's turn, up to where the assistant's answer begins; and the answer's leading space.

    The template shows where that is: anything that a finished conversation has between the assistant's turn and its
    answer (nothing, a space, an empty thought) is included here. A space at the very end belongs to the option. Raises
    InputError for a tokenizer without a chat template, or one that rejects the turns.
    """
    system_turn = [] if system is None else [{"role": "system", "content": system}]

    def rendered(prompt: str, *answers: str) -> str:
        turns = [*system_turn, {"role": "user", "content": prompt}]
        turns += [{"role": "assistant", "content": answer} for answer in answers]
        try:
            return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=not answers, **settings)
        except Exception as error:  # jinja's errors, transformers' ValueError, a template's own
            reason = " ".join(str(error).split())[:120]
            raise InputError(
                f"the tokenizer cannot make a chat of this ({reason}): use the task as it is, or without system=."
            ) from error

    unanswered, answer = rendered(prompts[0]), "layerdiv"
    answered = rendered(prompts[0], answer)
    between = ""
    if answered.startswith(unanswered):
        between = answered[len(unanswered) : answered.index(answer, len(unanswered))]
    space = " " if (unanswered + between).endswith(" ") else ""
    return [(rendered(prompt) + between).removesuffix(" ") for prompt in prompts], space


def shorten_passage(tokenizer: Any, prompt: str, passage: tuple[int, int], max_tokens: int) -> tuple[str, int]:
    """Cut as little as possible from the left of a prompt's passage; return it and the number of characters cut.

    Raises InputError where the rest of the prompt alone is too long.
    """
    start, end = passage

    def fits(cut: int) -> bool:
        return count_tokens(tokenizer, prompt[:start] + prompt[start + cut :]) <= max_tokens

    too_few, enough = 0, end - start
    if not fits(enough):
        raise InputError(f"a prompt is longer than {max_tokens} tokens even without its longest field.")
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
    return prompt[:start] + prompt[start + enough :], enough


def _text_of_tokens(tokenizer: Any, option: str, ids: list[int]) -> str | None:
    """Return the beginning of an option that these of its tokens spell; None where they end within a character."""
    if not ids:
        return ""
    beginnings = (option[:end] for end in range(1, len(option)))
    return next((text for text in beginnings if ids_after_text(tokenizer, text) == ids), None)
