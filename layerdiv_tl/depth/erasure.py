"""Residual erasure: a token's stream replaced by the mean stream where it enters a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from .._checks import shown
from ..components import Component
from ..errors import InputError
from ..model.load import as_model
from ..results import Plot
from .engine import Rows, mean_streams, run_patches, softmax_change, tokens_between
from .inputs import check_choices, read_answers, read_texts
from .patched_forward import PatchedForward
from .readings import SOFTMAX_CHANGE, Readings, token_places

Span = Literal["position", "prefix"]


class Erasure(Readings):
    """The change of the predictions when a token is erased from the stream that enters a layer.

    `values` of each erased token: `output_change` and `largest_change`, the mean and maximum of ‖softmax − softmax'‖₂
    over the measured predictions; NaN where nothing is erased or measured. The released code plots the maximum.
    """

    lead: ClassVar = "output_change"
    figures: ClassVar = {
        "map": Plot(
            "Effect of erasing each token",
            "A map layer × token of one `text`.",
            "shapes.heat",
            "of_text",
            {"row": "component", "column": "position", "value": "output_change", "column_name": "token"},
        ),
    }


def erase(
    model: Any,
    texts: Any,
    span: Span = "position",
    *,
    answers: Any = None,
    batch_tokens: int | None = None,
) -> Erasure:
    """Erase the stream of every token but the last, at every layer in turn (residual erasure).

    An erased token's stream becomes the mean stream over all tokens of `texts` (in the paper, of ten texts of GSM8K):
    later layers can no longer read the token, but what earlier ones read stays. Follows Csordás et al. (arXiv
    2505.13898), by default with the rules of their released code, which also erases the stream leaving the last layer;
    that affects only the erased token.

    Args:
        model, texts, batch_tokens: As in `residual_norms`.
        span: "position": one token, including a text's first, and probabilities are compared where the answer's tokens
            are predicted; or "prefix": it and those before it except the first, and they are compared at every token
            after the one right after it. Both as published.
        answers: The answers, one text or list of ids per text, which are appended; a task brings its gold options. None
            is the last token of every text.

    Makes 1 + L/2 passes over a text for each of its tokens and L layers. Raises InputError for input that cannot be
    used, and for answers of prefixes.

    >>> import layerdiv_tl as ld
    >>> ld.depth.erase("zoo/d2", [[1, 2, 3, 4], [4, 5]]).values["output_change"].shape
    (4, 2)
    """
    check_choices(span=(span, Span))
    if span == "prefix" and answers is not None:
        raise InputError(f"span='prefix' compares later tokens, not answers: leave answers={shown(answers)} out.")
    model = as_model(model)
    if span == "position":
        ids, lengths = read_answers(model, texts, answers)
    else:
        ids = read_texts(model, texts, 4, "a token is erased and a later one measured")
        lengths = [0] * len(ids)
    means = mean_streams(model, ids, batch_tokens)
    places = token_places(model, [row[:-1] for row in ids])
    # A row is a text with one of its tokens erased; those that erase or measure nothing are not run.
    ran: list[int] = []
    at: list[range] = []
    for number, (text, position) in enumerate(zip(places["text"], places["position"], strict=True)):
        end = len(ids[text])
        measured = range(end - 1 - lengths[text], end - 1) if span == "position" else range(position + 2, end)
        if measured and (span == "position" or position > 0):
            ran.append(number)
            at.append(measured)
    erased = places["position"][ran]
    rows = Rows([ids[text] for text in places["text"][ran]], at)

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Component, Tensor]]:
        first = 1 if span == "prefix" else erased[batch]
        where = tokens_between(clean, first, erased[batch] + 1)[..., None]
        for block, mean in enumerate(means):
            stream = clean.streams[block]
            erased_stream = torch.where(where, mean.to(stream), stream)
            yield clean.component("layer", block), clean.resume(block, [erased_stream])

    components, (change, _) = run_patches(model, rows, patches, softmax_change, len(means), batch_tokens)
    mean, largest = np.full((2, len(places["text"]), len(means)), np.nan)
    mean[ran], largest[ran] = rows.mean(change), rows.reduce(np.maximum, change)
    return Erasure(
        components=components,
        values={"output_change": mean, "largest_change": largest},
        places=places,
        units={"output_change": SOFTMAX_CHANGE, "largest_change": SOFTMAX_CHANGE},
        model=model.name,
        settings={"span": span},
    )
