"""Prompts and options in a tokenizer's tokens: token ids of options, chat turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..model.options import check_known
from ..model.prompts import ids_after_text

AS_SEQUENCES = "options are scored as sequences of tokens: the sum of their log-probabilities"


def single_tokens(tokenizer: Any, options: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Return (white space that moves to the prompt, the token of each option); no tokens for options of several.

    Many tokenizers split ` 5` and ` 7` into two tokens each, the first of which is the space: it belongs to the prompt.
    Raises InputError for text that the tokenizer does not know.
    """
    tokens = [ids_after_text(tokenizer, option) for option in options]
    blank = options[0][: len(options[0]) - len(options[0].lstrip())]
    own = ids_after_text(tokenizer, blank) if blank else []
    if not own or not all(ids[:-1] == own for ids in tokens):
        blank, own = "", []
    ids = tuple(ids[-1] for ids in tokens if len(ids) == len(own) + 1)
    if len(set(ids)) < len(options):
        return "", ()
    for option, each in zip(options, ids, strict=True):
        check_known(tokenizer, [each], option, f"option {option!r}")
    return blank, ids


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
