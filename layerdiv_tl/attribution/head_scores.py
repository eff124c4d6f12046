"""Scores of heads on repeated random tokens, for the classes that the literature names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .._checks import whole_number
from ..components import component_columns
from ..errors import InputError
from ..model.attention import attention_patterns
from ..model.load import as_model

# The distance back from a token of the second half to the key that each class attends to; T is a half's length.
CLASSES = ("induction", "duplicate token", "previous token", "first token")


def head_scores(model: Any, length: int = 40, n_texts: int = 2, seed: int = 0) -> pd.DataFrame:
    """Measure the mean attention of every head to four source tokens, in repeated random texts.

    The queries are the tokens of the second half. The keys are: "induction", the token after the same token's first
    occurrence (Olsson et al. 2022); "duplicate token", that occurrence itself (Wang et al. 2022); "previous token"; and
    "first token", the attention sink of inactive heads (Xiao et al. 2023).

    Args:
        model: A `Model`, or anything `load_model` takes.
        length: T, the number of tokens in one half; the whole text has 2T.
        n_texts, seed: The number of random texts, and their seed.

    Returns a frame with a row per head. Raises InputError for texts that the model cannot read, and for attention
    without patterns.

    >>> import layerdiv_tl as ld
    >>> list(ld.head_scores("zoo/d4", length=8).columns[-4:])
    ['induction', 'duplicate token', 'previous token', 'first token']
    """
    model = as_model(model)
    length, n_texts = whole_number("length", length, 4), whole_number("n_texts", n_texts, 1)
    if model.context is not None and 2 * length > model.context:
        raise InputError(f"length={length} makes texts of {2 * length} tokens, but this model reads {model.context}.")
    rng = np.random.default_rng(whole_number("seed", seed, 0))
    size = model.vocabulary
    query = np.arange(length + 1, 2 * length)  # the first token of the second half is repeated here
    keys = {"induction": query - length + 1, "duplicate token": query - length, "previous token": query - 1}
    keys["first token"] = np.zeros_like(query)
    total: dict[str, Any] = dict.fromkeys(CLASSES, 0.0)
    for _ in range(n_texts):
        half = rng.choice(size, length, replace=size < length).tolist()
        found = attention_patterns(model, half + half)
        for name in CLASSES:
            total[name] = total[name] + found.patterns[:, query, keys[name]].mean(1) / n_texts
    frame = pd.DataFrame(component_columns(found.components) | total)
    frame.attrs["units"] = dict.fromkeys(CLASSES, "share of attention")
    return frame
