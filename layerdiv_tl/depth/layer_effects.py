"""What skipping or erasing at each layer does to the answers of questions, one pass a layer."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..model.batches import batches, inference_mode_for
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .distributions import softmax, softmax_change
from .inputs import Ids
from .residual_norms import Part
from .skipping import FirstToken

Effect = Literal["published", "skip", "skip_before", "erase"]


class Measured:
    """The effects of every layer on the answers of questions, batch by batch.

    components
        The layers, or the part of each that was silenced, in order of use.
    effects
        `[question, layer]`: ‖softmax − softmax'‖₂, over the answer's tokens as `depth_score` says.
    probability, rank
        `[question]`: the answer's, without interference; of several tokens the product, and the worst rank.

    `starts`: where in its ids every question's answer begins. Effects are those of `depth_score`.
    Raises InputError for a model without such a part, or with another number of layers for other texts.
    """

    def __init__(
        self,
        model: Model,
        ids: list[Ids],
        starts: list[int],
        effect: Effect,
        part: Part,
        first_token: FirstToken,
        batch_tokens: int,
    ) -> None:
        from tqdm.auto import tqdm

        self.components: tuple[Component, ...] = ()
        self.effects = np.empty((len(ids), 0))
        self.probability, self.rank = np.empty(len(ids)), np.empty(len(ids), dtype=np.int64)
        cut = batches([len(row) for row in ids], batch_tokens, model.architecture.length_switch)
        with (
            inference_mode_for(model.architecture),
            tqdm(total=len(ids), desc=model.name, unit="question", delay=2, leave=False) as bar,
        ):
            means = _means(model, ids, cut) if effect == "erase" else []
            for rows in cut:
                replay = PatchedForward(model, [ids[row] for row in rows])
                self._name(model, replay, part)
                places = _Places(replay, [starts[row] for row in rows], effect, first_token)
                finals = _finals(replay, places, effect, part, means)
                self.effects[rows] = _effects(replay, finals, places.measured, effect)
                self.probability[rows], self.rank[rows] = _answers(replay, places.predict)
                bar.update(len(rows))

    def _name(self, model: Model, replay: PatchedForward, part: Part) -> None:
        blocks = range(len(replay.layers))
        names = tuple(replay.component(part, block) for block in blocks)
        if self.components and names != self.components:
            raise InputError(f"{model.name} ran its layers a different number of times for different texts.")
        if not any(replay.zero_ablate(part, block) for block in blocks):
            raise InputError(f"the layers of {model.name} have no {part} that writes to the stream.")
        if not self.components:
            self.components, self.effects = names, np.empty((len(self.effects), len(names)))


class _Places:
    """Of a batch of questions, `[row, token]`: where is interfered, None for everywhere; where that is measured; and
    where the answers are predicted."""

    def __init__(self, replay: PatchedForward, starts: list[int], effect: Effect, first_token: FirstToken) -> None:
        places = torch.arange(replay.ids.shape[1], device=replay.ids.device)
        start = torch.tensor(starts, device=places.device)[:, None]
        ends = replay.mask.sum(1, keepdim=True)
        self.predict = (places >= start - 1) & (places < ends - 1)
        published = effect == "published"
        self.measured = (places >= start) & (places < ends) if published else self.predict
        touched = (places >= (first_token == "kept")).expand_as(self.predict)
        self.changed: Bool[Tensor, "row token"] | None = touched & (places < (start if published else start - 1))
        if effect == "skip":
            self.changed = touched if first_token == "kept" else None


def _finals(
    replay: PatchedForward, places: _Places, effect: Effect, part: Part, means: list[Float[Tensor, " d"]]
) -> list[Float[Tensor, "n d"]]:
    """The final streams at the measured positions, layer by layer."""
    finals = []
    for block in range(len(replay.layers)):
        stream, silent = replay.streams[block], None
        if effect == "erase":
            assert places.changed is not None
            stream = torch.where(places.changed[..., None].to(stream.device), means[block].to(stream), stream)
        else:
            silent = replay.zero_ablate(part, block, places.changed)
        final = replay.resume(block, stream, silent)
        finals.append(final[places.measured.to(final.device)])
    return finals


def _effects(
    replay: PatchedForward, finals: list[Float[Tensor, "n d"]], at: Bool[Tensor, "row token"], effect: Effect
) -> Float[np.ndarray, "row layer"]:
    """Over the measured positions of each question the maximum as published, else the mean."""
    clean = replay.streams[-1][at.to(replay.streams[-1].device)]
    changes = np.empty((len(clean), len(finals)))
    for chunk in replay.chunks(len(clean)):
        p, _ = softmax(replay.logits(clean[chunk]))
        for layer, final in enumerate(finals):
            changes[chunk, layer] = softmax_change(replay.logits(final[chunk]), p)[0].cpu().numpy()
    owner = at.nonzero(as_tuple=True)[0].cpu().numpy()
    each = [changes[owner == row] for row in range(len(at))]
    return np.stack([x.max(0) if effect == "published" else x.mean(0) for x in each])


def _answers(replay: PatchedForward, at: Bool[Tensor, "row token"]) -> tuple[np.ndarray, np.ndarray]:
    """(probability, rank) of every question's answer in the clean pass."""
    owner, where = (x.cpu().numpy() for x in at.nonzero(as_tuple=True))
    targets = torch.as_tensor(replay.ids.cpu()[owner, where + 1])
    clean = replay.streams[-1][at.to(replay.streams[-1].device)]
    logs, ranks = np.empty(len(owner)), np.empty(len(owner), dtype=np.int64)
    for chunk in replay.chunks(len(owner)):
        logits = replay.logits(clean[chunk])
        _, loss = softmax(logits, targets[chunk])
        answer = logits.gather(1, targets[chunk].to(logits.device)[:, None])
        # Ties count against the answer: a model that says the same of all tokens knows none.
        ranks[chunk], logs[chunk] = (logits >= answer).sum(1).cpu().numpy(), -loss.cpu().numpy()
    mine = [owner == row for row in range(len(at))]
    return np.exp([logs[m].sum() for m in mine]), np.array([ranks[m].max() for m in mine])


def _means(model: Model, ids: list[Ids], cut: list[list[int]]) -> list[Float[Tensor, " d"]]:
    """The mean stream entering every block, over all tokens but the first of each text."""
    sums: list[Tensor] = []
    for rows in cut:
        replay = PatchedForward(model, [ids[row] for row in rows])
        wanted = replay.tokens.clone()
        wanted[:, 0] = False
        here = [stream[wanted.to(stream.device)].double().sum(0) for stream in replay.streams[:-1]]
        sums = [a + b for a, b in zip(sums, here, strict=True)] if sums else here
    count = sum(len(row) - 1 for row in ids)
    return [total / count for total in sums]
