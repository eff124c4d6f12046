"""Continuations of prompts that a model writes, token by token, greedily or by seeded sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batches import pad
from .load import Model
from .precision import upcast


def generate_tokens(
    model: Model, ids: Sequence[int], count: int, temperature: float = 0.0, generator: torch.Generator | None = None
) -> list[int]:
    """Write up to `count` tokens after a prompt; fewer where the model ends the text, whose end token is left out.

    A `temperature` of 0 takes the likeliest token each time; otherwise tokens are drawn from the softmax of the logits
    divided by it.
    """
    end = getattr(model.tokenizer, "eos_token_id", None)
    written: list[int] = []
    with model.path.session(), torch.inference_mode():
        while len(written) < count:
            tokens, mask = pad([[*ids, *written]])
            logits = model.path.logits(tokens, mask, (torch.zeros(1, dtype=torch.long), mask.sum(1) - 1))
            scores = upcast(logits[0, 0]).double().cpu()
            if temperature > 0:
                chosen = int(torch.multinomial(torch.softmax(scores / temperature, -1), 1, generator=generator))
            else:
                chosen = int(scores.argmax())
            if chosen == end:
                break
            written.append(chosen)
    return written
