"""Loss and accuracy of a model with sets of its sublayers zero-ablated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._checks import choice
from ..components import Component
from ..ensemble.validation import gold_options
from ..errors import InputError
from ..model import tokenization
from ..model.batches import inference_mode_for, upcast
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .inputs import Ids, read_texts
from .passes import text_batches

AblatedPart = Literal["sublayer", "layer", "attn", "mlp"]
_KINDS: dict[AblatedPart, tuple[Literal["attn", "mlp", "layer"], ...]] = {
    "sublayer": ("attn", "mlp"),
    "layer": ("layer",),
    "attn": ("attn",),
    "mlp": ("mlp",),
}


@dataclass(frozen=True)
class PredictionRows:
    """What a model is to predict: a task's gold options, or every next token of texts.

    options, labels
        `[row, option]` token ids, and `[row]` the gold one's index; None for texts.
    source
        The task's name, or "texts".
    """

    ids: tuple[Ids, ...]
    options: Int[np.ndarray, "row option"] | None
    labels: Int[np.ndarray, " row"] | None
    source: str

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """The SHA-256 of the token ids, options and labels."""
        content = [self.ids, *(None if x is None else x.tolist() for x in (self.options, self.labels))]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def take(self, rows: Sequence[int]) -> PredictionRows:
        """Some of the rows."""
        options, labels = (None if x is None else x[list(rows)] for x in (self.options, self.labels))
        return PredictionRows(tuple(self.ids[row] for row in rows), options, labels, self.source)


@dataclass(frozen=True)
class AblationScores:
    """Of every row: sums over its predictions.

    loss, correct
        `[row, ablation]`: cross-entropy in nats (over the options, or the vocabulary), and correct predictions. The
        first ablation is empty: the model as it is.
    count
        `[row]`: how many predictions it has.
    """

    loss: Float[np.ndarray, "row ablation"]
    correct: Float[np.ndarray, "row ablation"]
    count: Float[np.ndarray, " row"]


def read_rows(model: Model, rows: Any) -> PredictionRows:
    """The rows of a `Task`, or of texts as in `residual_norms`.

    Raises InputError for a text of one token, options that are not single tokens of this model, and labels that
    name no option.
    """
    if not (hasattr(rows, "options") and hasattr(rows, "labels")):
        return PredictionRows(
            tuple(read_texts(model, rows, 2, "no other follows to be predicted")), None, None, "texts"
        )
    if not rows.option_ids:
        rows = rows.resolve(model)
    if model.context is not None:
        rows = rows.fit(model, model.context)
    ids = tuple(read_texts(model, rows))
    options, _ = tokenization.options(model, rows.option_ids, len(ids))
    labels = gold_options(rows.labels, (len(ids), 1, options.shape[1]), tuple(rows.options))
    return PredictionRows(ids, options, labels, rows.name)


def ablatable_components(model: Model, ids: Ids, part: AblatedPart) -> tuple[Component, ...]:
    """The components of a part that add to the stream, in stream order. Raises InputError where there are none."""
    choice("part", part, _KINDS)
    with inference_mode_for(model.architecture):
        forward = PatchedForward(model, [ids])
    components = tuple(
        forward.component(kind, block)
        for block in range(len(forward.layers))
        for kind in _KINDS[part]
        if forward.zero_ablate(kind, block)
    )
    if not components:
        raise InputError(f"{model.name} has no {part} that writes to the stream.")
    return components


def score_ablations(
    model: Model, rows: PredictionRows, ablations: Sequence[Collection[Component]], batch_tokens: int | None = None
) -> AblationScores:
    """Losses and correct predictions of the model as it is, and with each set of sublayers or layers ablated.

    Every batch is run once; what lies before the first ablated block of a set is not run again.
    """
    loss, correct = np.zeros((2, len(rows), len(ablations) + 1))
    count = np.zeros(len(rows))
    with text_batches(model, rows.ids, batch_tokens, "row") as row_batches:
        for batch in row_batches:
            forward = PatchedForward(model, [rows.ids[row] for row in batch])
            predicting, targets, options = _predictions(forward, rows, batch)
            counts = predicting.sum(1).cpu().numpy()
            count[batch] = counts
            owner = np.repeat(batch, counts)
            for number, members in enumerate([(), *ablations]):
                final = _final_stream(forward, members)
                final = final[predicting.to(final.device)]
                for chunk in forward.chunks(len(final)):
                    logits = forward.logits(final[chunk])
                    if options is not None:
                        logits = logits.gather(1, options[chunk].to(logits.device)).double()
                    chunk_loss, chunk_correct = _score(logits, targets[chunk].to(logits.device))
                    np.add.at(loss[:, number], owner[chunk], chunk_loss)
                    np.add.at(correct[:, number], owner[chunk], chunk_correct)
    return AblationScores(loss, correct, count)


def _predictions(
    forward: PatchedForward, rows: PredictionRows, batch: list[int]
) -> tuple[Tensor, Int[Tensor, " n"], Int[Tensor, "n option"] | None]:
    """(where a batch predicts `[row, token]`, the targets there, the options there or None)."""
    real, device = forward.tokens, forward.ids.device
    predicting = torch.zeros_like(real)
    if rows.options is None or rows.labels is None:
        following = forward.targets()
        predicting[real] = following >= 0
        return predicting, following[following >= 0], None
    predicting[torch.arange(len(batch), device=device), real.sum(1) - 1] = True
    targets, options = (torch.as_tensor(x[batch], device=device) for x in (rows.labels, rows.options))
    return predicting, targets, options


def _final_stream(forward: PatchedForward, members: Collection[Component]) -> Tensor:
    """The final stream with these components ablated."""
    ablated: dict[Any, Any] = {}
    for block in range(len(forward.layers)):
        for kind in ("attn", "mlp", "layer"):
            if forward.component(kind, block) in members:
                ablated |= forward.zero_ablate(kind, block)
    if not ablated:
        return forward.streams[-1]
    start = min(block for block, _ in ablated)
    return forward.resume(start, forward.streams[start], ablated)


def _score(logits: Float[Tensor, "n k"], targets: Int[Tensor, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """(cross-entropy, share of the first place that the target holds) of each prediction."""
    largest, gold = logits.amax(1, keepdim=True), logits.gather(1, targets[:, None])
    correct = (gold == largest)[:, 0] / (logits == largest).sum(1)
    loss = (logits - largest).exp_().sum(1).log() - (gold - largest)[:, 0]
    return upcast(loss).double().cpu().numpy(), correct.double().cpu().numpy()
