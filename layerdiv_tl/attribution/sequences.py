"""Answers of several tokens by teacher forcing: a row for each prompt and answer, read where tokens are predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from ..errors import InputError
from ..model.load import Model
from ..model.options import NONE, OptionIds
from ..model.prompts import Ids
from .reading import Reads


def teacher_forced(
    model: Model, prompts: Sequence[Ids], option_ids: OptionIds
) -> tuple[Reads, Int[np.ndarray, " read"]]:
    """The reads of all answers, and the number of the example and option (e · K + k) that each belongs to.

    Raises InputError where a prompt and its answer are longer than the model's context.
    """
    rows: list[Ids] = []
    row: list[int] = []
    position: list[int] = []
    targets: list[int] = []
    for prompt, options in zip(prompts, option_ids, strict=True):
        for option in options:
            tokens = tuple(int(token) for token in option if token != NONE)
            row += [len(rows)] * len(tokens)
            position += range(len(prompt) - 1, len(prompt) - 1 + len(tokens))
            targets += tokens
            rows.append(prompt + tokens[:-1])
    longest = max(map(len, rows))
    if model.context is not None and longest > model.context:
        raise InputError(f"a prompt and its option make {longest} tokens, but {model.name} reads {model.context}.")
    return Reads(rows, np.array(row), np.array(position), np.array(targets)[:, None]), np.array(row)


def summed(
    x: Float[np.ndarray, "read *rest"], of: Int[np.ndarray, " read"], count: int
) -> Float[np.ndarray, "e *rest k"]:
    """Sums over each answer's reads; the options, of which there are `count`, as the last axis."""
    totals = np.add.reduceat(x, np.flatnonzero(np.diff(of, prepend=-1)))
    return np.moveaxis(totals.reshape(-1, count, *x.shape[1:]), 1, -1)
