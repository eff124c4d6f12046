"""`logit_difference`: what speaks for an answer and against another, in one line."""

from __future__ import annotations

from typing import Any

from ..components import Unit
from ..errors import InputError
from ..model.load import as_model
from ..model.prompts import encode, with_mask
from ..model.tokenization import plain
from .contributions import contributions
from .logit_difference import LogitDifference


def logit_difference(
    model: Any, prompts: Any, correct: Any, wrong: Any, unit: Unit = "head", *, attention_mask: Any = None
) -> LogitDifference:
    """How much every component contributes to the logit of the right answer less that of a wrong one.

    Args:
        model, prompts, unit, attention_mask: As in `contributions`.
        correct, wrong: One answer for all prompts, or a list with one per prompt: texts of any length, token ids, or
            sets of these.

    Raises InputError for lists of other lengths than the prompts', for answers that are the same tokens, and as
    `contributions`.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> d = ld.logit_difference(tiny, [[1, 2, 3], [4, 5]], correct=[7, 9], wrong=11)
    >>> d.values.shape, bool(abs(d.total - d.model_difference).max() < 1e-5)
    ((2, 7), True)
    """
    model = as_model(model)
    prompts = encode(model, with_mask(prompts, attention_mask))
    answers = [plain(answer) for answer in (correct, wrong)]
    counts = {len(answer) for answer in answers if isinstance(answer, list | tuple)}
    if not counts:
        return contributions(model, prompts, contrast=answers, unit=unit).difference()
    if len(counts) > 1:
        raise InputError(
            f"correct and wrong hold {len(correct)} and {len(wrong)} answers: give one per prompt, or one."
        )
    if (count := counts.pop()) != len(prompts):
        raise InputError(
            f"correct or wrong holds {count} answers for {len(prompts)} prompts: give one per prompt, or one."
        )
    columns = [answer if isinstance(answer, list | tuple) else [answer] * count for answer in answers]
    # A single answer is a text, an id or a set; the rows of these lists are pairs.
    return contributions(model, prompts, [list(pair) for pair in zip(*columns, strict=True)], unit).difference()
