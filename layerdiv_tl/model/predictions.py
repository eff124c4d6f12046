"""What a model predicts itself: the next tokens with their probabilities, and the text that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from .batches import pad
from .frozen import upcast
from .load import Model, as_model
from .prompts import encode_one, token_texts


def top_tokens(model: Any, text_or_ids: Any, k: int = 5) -> pd.DataFrame:
    """List the model's k most probable next tokens after every token of a text.

    Args:
        model: A `Model`, or anything `load_model` takes.
        text_or_ids: One text, or its list of token ids.
        k: The number of predictions per token.

    Columns: `position` and `token`, the last one read; `rank` from 1; `prediction`, `prediction_id` and `probability`,
    from the softmax over the whole vocabulary. For the tokens that components promote, use `Profile.top_tokens`. Raises
    InputError for several texts, and as `contributions` for its prompts.

    >>> import layerdiv_tl as ld
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tiny = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32,
    ...     num_hidden_layers=2, num_attention_heads=2))
    >>> frame = ld.top_tokens(tiny, [1, 2, 3], k=32)
    >>> len(frame), bool(np.allclose(frame.groupby("position")["probability"].sum(), 1))
    (96, True)
    """
    model = as_model(model)
    ids = encode_one(model, text_or_ids)
    with model.path.session(), torch.inference_mode():
        logits = upcast(model.path.logits(*pad([ids]))[0])
        probability, best = (x.cpu().numpy() for x in torch.softmax(logits.double(), -1).topk(k))
    frame = pd.DataFrame(
        {
            "position": np.repeat(np.arange(len(ids)), k),
            "token": np.repeat(np.array(token_texts(model, ids), dtype=object), k),
            "rank": np.tile(np.arange(1, k + 1), len(ids)),
            "prediction": token_texts(model, best.ravel()),
            "prediction_id": best.ravel(),
            "probability": probability.ravel(),
        }
    )
    frame.attrs["units"] = {"probability": "probability"}
    return frame


def generate_tokens(
    model: Model, ids: Sequence[int], count: int, temperature: float = 0.0, generator: torch.Generator | None = None
) -> list[int]:
    """Write up to `count` tokens after a prompt; fewer where the model ends its text or turn, whose end is left out.

    A `temperature` of 0 takes the likeliest token each time; otherwise tokens are drawn from the softmax of the logits
    divided by it.
    """
    ends = _end_tokens(model)
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
            if chosen in ends:
                break
            written.append(chosen)
    return written


def _end_tokens(model: Model) -> set[int]:
    """The tokens that end a text or a turn: the tokenizer's, and those at which `generate` of Transformers stops."""
    root = getattr(model.root, "original_model", model.root)
    holders = [getattr(root, name, None) for name in ("generation_config", "config")]
    settings = [ids for holder in holders if (ids := getattr(holder, "eos_token_id", None)) is not None]
    of_tokenizer = getattr(model.tokenizer, "eos_token_id", None)
    return {int(i) for ids in (of_tokenizer, *settings[:1]) if ids is not None for i in np.atleast_1d(ids)}
