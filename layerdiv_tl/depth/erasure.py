"""Residual erasure: a token's stream replaced by the mean stream where it enters a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import shown, whole_number
from ..components import Component
from ..errors import InputError
from ..model.load import as_model
from ..results import Plot
from .engine import Rows, mean_streams, read_logits, run_patches, softmax_change, tokens_between
from .inputs import check_choices, read_answers, read_layers, read_texts
from .patched_forward import PatchedForward
from .tokens import SOFTMAX_CHANGE, TokenResult, read_tokens

Span = Literal["position", "prefix"]


def _text_frame(result: Erasure, text: int = 0) -> pd.DataFrame:
    frame = result.by_token()
    whole_number("text", text, 0, int(result.text.max()))
    some = frame[frame["text"] == text]
    some.attrs = frame.attrs | {"about": f"text {text}"}
    return some


@dataclass(frozen=True, eq=False, repr=False)
class Erasure(TokenResult):
    """The change of the predictions when tokens are erased from the stream that enters a layer.

    Attributes:
        effect, effect_max: ‖softmax − softmax'‖₂ over the vocabulary, mean and maximum over the measured positions,
            when this token (span "position") or it and those before it ("prefix") are erased; NaN where nothing is
            erased or measured. The released code plots the maximum.
        text, position, tokens: Index of the text, position in it, and spelling of the token.
        components: The layers.
    """

    components: tuple[Component, ...]
    effect: Float[np.ndarray, "token layer"]
    effect_max: Float[np.ndarray, "token layer"]
    text: Int[np.ndarray, " token"]
    position: Int[np.ndarray, " token"]
    tokens: tuple[str, ...]
    span: str
    model: str
    measured: str = "answer"

    lead: ClassVar = "effect"
    figures: ClassVar = {
        "map": Plot(
            "Effect of erasing each token",
            "A map layer × token of one `text`.",
            "shapes.heat",
            _text_frame,
            {"row": "component", "column": "position", "value": "effect", "column_name": "token"},
        ),
        "bars": Plot(
            "Effect of erasing tokens by layer",
            "Means over texts.",
            "shapes.bars",
            "frame",
            {"columns": ("effect",)},
        ),
    }

    def frame(self) -> pd.DataFrame:
        """One row per layer: mean over tokens, 95 % interval over texts, quantiles over tokens, and the maximum."""
        return self._summary({"effect": SOFTMAX_CHANGE}, effect_max=np.nanmax(self.effect_max, 0))

    def by_token(self) -> pd.DataFrame:
        """One row per token and layer."""
        return self._by_token({"effect": SOFTMAX_CHANGE, "effect_max": SOFTMAX_CHANGE})


def erase(
    model: Any,
    texts: Any,
    span: Span = "position",
    *,
    answers: Any = None,
    reference: Any = None,
    layers: Any = None,
    batch_tokens: int | None = None,
) -> Erasure:
    """Erase the stream of every token but the last, at every layer in turn (residual erasure).

    An erased token's stream becomes the mean stream over all tokens of `reference`: later layers can no longer read the
    token, but what earlier ones read stays. Follows Csordás et al. (arXiv 2505.13898), by default with the rules of
    their released code, which also erases the stream leaving the last layer; that affects only the erased token.

    Args:
        model, texts, batch_tokens: As in `residual_norms`.
        span: "position": one token, including a text's first, and probabilities are compared where the answer's tokens
            are predicted; or "prefix": it and those before it except the first, and they are compared at every token
            after the one right after it. Both as published.
        answers: Number of tokens at the end of each text that are its answer (default 1); or the answers themselves,
            one text or list of ids per text; a task brings its gold options.
        reference: Texts whose mean stream replaces erased ones; None is `texts`. (The paper uses ten of GSM8K.)
        layers: Layers to erase at, in order of use; None means all.

    Makes 1 + L/2 passes over a text for each of its tokens and L layers. Raises InputError for input that cannot be
    used, for answers of prefixes, and for a layer that does not exist.

    >>> import layerdiv_tl as ld
    >>> ld.depth.erase("zoo/d2", [[1, 2, 3, 4], [4, 5]]).effect.shape
    (4, 2)
    """
    check_choices(span=(span, Span))
    if span == "prefix" and answers is not None:
        raise InputError(f"span='prefix' compares later tokens, not answers: leave answers={shown(answers)} out.")
    model = as_model(model)
    first = int(span == "prefix")
    if span == "position":
        ids, lengths = read_answers(model, texts, answers)
    else:
        ids = read_texts(model, texts, 4, "a token is erased and a later one measured")
        lengths = [0] * len(ids)
    means = mean_streams(model, ids if reference is None else read_texts(model, reference), batch_tokens)
    blocks = read_layers(layers, len(means))
    tokens = read_tokens(model, [row[:-1] for row in ids])
    # A row is a text with one of its tokens erased; those that erase or measure nothing are not run.
    text, position, at = tokens["text"], tokens["position"], list[range]()
    for i, p in zip(text, position, strict=True):
        end = len(ids[i])
        at.append(range(end - 1 - lengths[i], end - 1) if lengths[i] else range(p + 2, end))
    ran = [number for number, positions in enumerate(at) if len(positions) and position[number] >= first]
    rows = Rows([ids[text[number]] for number in ran], [at[number] for number in ran])

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Component, Tensor]]:
        erased = position[ran][batch]
        where = tokens_between(clean, 1 if span == "prefix" else erased, erased + 1)[..., None]
        for block in blocks:
            stream = clean.streams[block]
            mean = means[block].to(stream)
            erased_stream = torch.where(where, mean, stream)
            yield clean.component("layer", block), clean.resume(block, erased_stream)

    reading = read_logits(rows, softmax_change)
    components, (change, _) = run_patches(model, rows, patches, reading, len(blocks), batch_tokens)
    effect = np.full((2, len(text), len(blocks)), np.nan)
    effect[:, ran] = rows.mean(change), rows.reduce(np.maximum, change)
    about = {"span": span, "model": model.name, "measured": "answer" if span == "position" else "later"}
    return Erasure(components, effect[0], effect[1], **tokens, **about)
