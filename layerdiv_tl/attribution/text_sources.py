"""Heads by source token at many positions of one text, to a few tokens at each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import psutil
import torch
from jaxtyping import Float, Int

from ..components import Component
from ..errors import InputError
from ..model.architecture import HALF
from ..model.batches import inference_mode_for, pad
from ..model.capture import Activations
from ..model.forward_pass import TOLERANCE, run
from ..model.load import Model
from ..model.source_values import SourceWatch, value_biases
from .directions import Directions
from .source_tokens import HeadSources, heads_of_pass
from .vocabulary import vocabulary_of

# How far parts may be from their head in the other pass, in which attention is not computed step by step.
_SAME = 1e-3


class TextSources:
    """The heads of one text by source token, of a pass at unit head that was read at all its positions.

    `asked` are ids `[token, position]`. Weights and values come of one more pass, when the first head is wanted.
    """

    def __init__(
        self, model: Model, ids: Sequence[int], activations: Activations, asked: Int[np.ndarray, "token position"]
    ) -> None:
        self.model, self.ids, self.activations, self.asked = model, ids, activations, asked

    @cached_property
    def _heads(self) -> dict[str, tuple[HeadSources, int]]:
        """Every head's attention, and its number there."""
        model, architecture = self.model, self.model.architecture
        count = sum(c.kind == "head" for c in model.components("head"))
        needed = 2 * 4 * count * len(self.ids) ** 2
        if needed > psutil.virtual_memory().available:
            raise InputError(
                f"the attention of {count} heads over {len(self.ids)} tokens needs {needed / 2**30:.1f} GiB, more than "
                "is free here: take a shorter text."
            )
        tokens, mask = pad([self.ids])
        with inference_mode_for(architecture):
            biases, watch = value_biases(architecture), SourceWatch(architecture, tokens)
            with watch.watching():
                done = run(architecture, tokens, mask, "head", interventions=True)
            attentions = heads_of_pass(model, done, watch, biases)
        return {head.label: (a, number) for a in attentions for number, head in enumerate(a.heads)}

    def split(
        self, places: Mapping[Component, Sequence[int]]
    ) -> Iterator[tuple[Component, Float[np.ndarray, "place source token"], Float[np.ndarray, "place token"]]]:
        """What the values of each source, and their bias, add through some heads to the tokens asked at some positions.

        In logits beyond the mean over the vocabulary. Raises InputError for heads that are no weights × values.
        """
        architecture, heads, vocabulary = self.model.architecture, self._heads, vocabulary_of(self.model)
        with inference_mode_for(architecture):
            for head, at in places.items():
                attention, number = heads[head.label]
                ids = torch.as_tensor(self.asked[:, at], device=architecture.device)
                along = Directions(vocabulary.rows(ids.flatten()).unflatten(0, ids.shape).transpose(0, 1))
                values, bias = attention.read(along, torch.as_tensor(at), [number])
                yield head, values[:, 0].numpy(), bias[:, 0].numpy()

    def gap(
        self, head: Component, values: np.ndarray, bias: np.ndarray, own: np.ndarray
    ) -> Float[np.ndarray, " place"]:
        """max |Σ sources + value bias − head| / max Σ|parts| over tokens. Raises InputError for more than rounding.

        `own` `[place, token]` is what the head adds in a pass in which attention is computed in the model's own way.
        """
        size = (np.abs(values).sum(1) + np.abs(bias)).max(1)
        gap = np.abs(values.sum(1) + bias - own).max(1) / np.maximum(size, 1e-30)
        dtype = self.model.architecture.dtype
        if not (gap <= (TOLERANCE[dtype] if dtype in HALF else _SAME)).all():  # NaN too
            raise InputError(
                f"{self.model.name} computes other heads when its attention is computed step by step ({head.label} is "
                f"off by {gap.max():.1e} of Σ|parts|): give one loaded with attn_implementation='eager'."
            )
        return gap
