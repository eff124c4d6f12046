"""What interfering with each layer does to the answers of questions, one pass a layer."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..components import Component
from ..errors import InputError
from ..stream.capture import batches, quiet
from ..stream.loading import Model
from .norms import Part
from .replay import Replay
from .skipping import probabilities
from .texts import Ids

Effect = Literal["skip", "skip_before", "erase"]


class Measured:
    """The effects of every layer on the answers of questions, batch by batch.

    components
        The layers, or the part of each that was silenced, in order of use.
    effects
        `[question, layer]`: ‖softmax − softmax'‖₂, the mean over the positions that predict the answer's tokens.
    probability, rank
        `[question]`: the answer's, without interference; of several tokens the product, and the worst rank.

    `starts`: where in its ids every question's answer begins. Effects are those of `depth_score`.
    Raises InputError for a model without such a part, or with another number of layers for other texts.
    """

    def __init__(
        self, model: Model, ids: list[Ids], starts: list[int], effect: Effect, part: Part, batch_tokens: int
    ) -> None:
        from tqdm.auto import tqdm

        self.components: tuple[Component, ...] = ()
        self.effects = np.empty((len(ids), 0))
        self.probability, self.rank = np.empty(len(ids)), np.empty(len(ids), dtype=np.int64)
        cut = batches([len(row) for row in ids], batch_tokens, model.anatomy.length_switch)
        with quiet(model.anatomy), tqdm(total=len(ids), desc=model.name, unit="question", delay=2, leave=False) as bar:
            means = _means(model, ids, cut) if effect == "erase" else []
            for rows in cut:
                replay = Replay(model, [ids[row] for row in rows])
                self._name(model, replay, part)
                finals, at = _finals(replay, [starts[row] for row in rows], effect, part, means)
                self._compare(replay, rows, finals, at)
                bar.update(len(rows))

    def _name(self, model: Model, replay: Replay, part: Part) -> None:
        blocks = range(len(replay.layers))
        names = tuple(replay.component(part, block) for block in blocks)
        if self.components and names != self.components:
            raise InputError(f"{model.name} ran its layers a different number of times for different texts.")
        if not any(replay.silence(part, block) for block in blocks):
            raise InputError(f"the layers of {model.name} have no {part} that writes to the stream.")
        if not self.components:
            self.components, self.effects = names, np.empty((len(self.effects), len(names)))

    def _compare(
        self, replay: Replay, rows: list[int], finals: list[Float[Tensor, "n d"]], at: Bool[Tensor, "row token"]
    ) -> None:
        """Effects, probabilities and ranks, of some of the positions that predict an answer at a time."""
        owner, where = (x.cpu().numpy() for x in at.nonzero(as_tuple=True))
        targets = torch.as_tensor(replay.ids.cpu()[owner, where + 1])
        clean = replay.streams[-1][at.to(replay.streams[-1].device)]
        effects, logs, ranks = np.empty((len(owner), len(finals))), np.empty(len(owner)), np.empty(len(owner))
        for chunk in replay.chunks(len(owner)):
            some = targets[chunk]
            p, loss = probabilities(replay.logits(clean[chunk]), some)
            answer = p.gather(1, some.to(p.device)[:, None])
            # Ties count against the answer: a model that says the same of all tokens knows none.
            ranks[chunk], logs[chunk] = (p >= answer).sum(1).cpu().numpy(), -loss.double().cpu().numpy()
            for layer, final in enumerate(finals):
                q, _ = probabilities(replay.logits(final[chunk]), some)
                effects[chunk, layer] = q.sub_(p).norm(dim=-1).double().cpu().numpy()
        for number, row in enumerate(rows):
            mine = owner == number
            self.effects[row] = effects[mine].mean(0)
            self.probability[row], self.rank[row] = np.exp(logs[mine].sum()), ranks[mine].max()


def _finals(
    replay: Replay, starts: list[int], effect: Effect, part: Part, means: list[Float[Tensor, " d"]]
) -> tuple[list[Float[Tensor, "n d"]], Bool[Tensor, "row token"]]:
    """(the final streams at the positions that predict the answers, layer by layer; where these are)."""
    places = torch.arange(replay.ids.shape[1], device=replay.ids.device)
    last = torch.tensor(starts, device=places.device)[:, None] - 1
    ends = replay.mask.sum(1, keepdim=True) - 1
    at = (places >= last) & (places < ends)
    earlier = (places >= 1) & (places < last)
    finals = []
    for block in range(len(replay.layers)):
        stream, silent = replay.streams[block], None
        if effect == "erase":
            stream = torch.where(earlier[..., None].to(stream.device), means[block].to(stream), stream)
        else:
            silent = replay.silence(part, block, earlier if effect == "skip_before" else None)
        final = replay.resume(block, stream, silent)
        finals.append(final[at.to(final.device)])
    return finals, at


def _means(model: Model, ids: list[Ids], cut: list[list[int]]) -> list[Float[Tensor, " d"]]:
    """The mean stream entering every block, over all tokens but the first of each text."""
    sums: list[Tensor] = []
    for rows in cut:
        replay = Replay(model, [ids[row] for row in rows])
        wanted = replay.tokens.clone()
        wanted[:, 0] = False
        here = [stream[wanted.to(stream.device)].double().sum(0) for stream in replay.streams[:-1]]
        sums = [a + b for a, b in zip(sums, here, strict=True)] if sums else here
    count = sum(len(row) - 1 for row in ids)
    return [total / count for total in sums]
