"""Effects of skipping or erasing at each layer on the answers of questions, one pass a layer: for the depth score."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..components import Component
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .distributions import softmax
from .inputs import Ids
from .passes import ablatable_blocks, layer_components, mean_streams, output_changes, same_components, text_batches
from .residual_norms import Part
from .skipping import FirstToken

Effect = Literal["published", "skip", "skip_before", "erase"]


class LayerEffects(NamedTuple):
    """The effect of every layer on the answers of questions, see `depth_score`.

    components
        The layers, or the part of each that was ablated, in order of use.
    effects
        `[question, layer]`: ‖softmax − softmax'‖₂ over the answer's tokens.
    probability, rank
        `[question]`: of the answer in the clean pass; of several tokens the product, and the worst rank.
    """

    components: tuple[Component, ...]
    effects: Float[np.ndarray, "question layer"]
    probability: Float[np.ndarray, " question"]
    rank: Int[np.ndarray, " question"]


def measure_effects(
    model: Model,
    ids: list[Ids],
    starts: list[int],
    effect: Effect,
    part: Part,
    first_token: FirstToken,
    batch_tokens: int | None,
) -> LayerEffects:
    """The effects of every layer, batch by batch; `starts`: where in its ids every question's answer begins.

    Raises InputError for a model without such a part, or with another number of layers for other texts.
    """
    components: tuple[Component, ...] = ()
    effects: list[np.ndarray] = [np.empty(0)] * len(ids)
    probability, rank = np.empty(len(ids)), np.empty(len(ids), dtype=np.int64)
    with text_batches(model, ids, batch_tokens, "question") as row_batches:
        means = mean_streams(model, ids, batch_tokens, first=1) if effect == "erase" else []
        for rows in row_batches:
            forward = PatchedForward(model, [ids[row] for row in rows])
            components = same_components(model, components, layer_components(forward, part))
            ablatable_blocks(model, forward, part)
            changed, measured, predicting = _positions(forward, [starts[row] for row in rows], effect, first_token)
            finals = []
            for block in range(len(forward.layers)):
                stream, ablation = forward.streams[block], None
                if effect == "erase":
                    assert changed is not None
                    stream = torch.where(changed[..., None].to(stream.device), means[block].to(stream), stream)
                else:
                    ablation = forward.zero_ablate(part, block, changed)
                final = forward.resume(block, stream, ablation)
                finals.append(final[measured.to(final.device)])
            changes, _ = output_changes(forward, finals, measured)
            owner = measured.nonzero(as_tuple=True)[0].cpu().numpy()
            probability[rows], rank[rows] = _score_answers(forward, predicting)
            for number, row in enumerate(rows):
                values = changes[owner == number]
                effects[row] = values.max(0) if effect == "published" else values.mean(0)
    return LayerEffects(components, np.stack(effects), probability, rank)


def _positions(
    forward: PatchedForward, starts: list[int], effect: Effect, first_token: FirstToken
) -> tuple[Bool[Tensor, "row token"] | None, Bool[Tensor, "row token"], Bool[Tensor, "row token"]]:
    """Where the layer is changed (None: everywhere), where that is measured, and where answers are predicted."""
    positions = torch.arange(forward.ids.shape[1], device=forward.ids.device)
    start = torch.tensor(starts, device=positions.device)[:, None]
    ends = forward.mask.sum(1, keepdim=True)
    predicting = (positions >= start - 1) & (positions < ends - 1)
    changeable = (positions >= (first_token == "kept")).expand_as(predicting)
    if effect == "published":
        return changeable & (positions < start), (positions >= start) & (positions < ends), predicting
    if effect == "skip":
        return (changeable if first_token == "kept" else None), predicting, predicting
    return changeable & (positions < start - 1), predicting, predicting


def _score_answers(
    forward: PatchedForward, predicting: Bool[Tensor, "row token"]
) -> tuple[Float[np.ndarray, " row"], Int[np.ndarray, " row"]]:
    """(probability, rank) of every question's answer in the clean pass."""
    owner, position = (x.cpu().numpy() for x in predicting.nonzero(as_tuple=True))
    targets = torch.as_tensor(forward.ids.cpu()[owner, position + 1])
    clean = forward.streams[-1][predicting.to(forward.streams[-1].device)]
    log_p, ranks = np.empty(len(owner)), np.empty(len(owner), dtype=np.int64)
    for chunk in forward.chunks(len(owner)):
        logits = forward.logits(clean[chunk])
        _, loss = softmax(logits, targets[chunk])
        answer = logits.gather(1, targets[chunk].to(logits.device)[:, None])
        # Ties count against the answer: a model with equal logits for all tokens answers nothing.
        ranks[chunk], log_p[chunk] = (logits >= answer).sum(1).cpu().numpy(), -loss.cpu().numpy()
    of_row = [owner == row for row in range(len(predicting))]
    return np.exp([log_p[mask].sum() for mask in of_row]), np.array([ranks[mask].max() for mask in of_row])
