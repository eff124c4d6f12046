"""What `ensemble_test` measures in a model: members' contributions to the answer, and the loss of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..ensemble.averaging import Moments
from ..model.load import Model
from ..model.patched_forward import LOGITS, PatchedForward
from .passes import map_batches
from .quantities import PredictionRows, predicted
from .readout import Readout, Target
from .reruns import Run, spread

# A write this much against the one before it corrects it (arXiv 2609.07876).
CORRECTION = -0.1


@dataclass(frozen=True, eq=False)
class Question:
    """What a model is asked, and of which layers.

    Attributes:
        rows, group: Texts or prompts with options, and the blocks that are members.
        soft: The target: distributions over every row's options, a model that gives them, or None for gold answers.
        readout, places: How streams become the answer's logits, and the options as places among its rows.
        most: How many predictions of one text are measured.
    """

    model: Model
    rows: PredictionRows
    group: tuple[int, ...]
    soft: Float[np.ndarray, "row option"] | Model | None
    readout: Readout
    places: Int[Tensor, "row option"] | None
    most: int

    def ask(self, batch: list[int]) -> Asked:
        """The clean pass of a batch."""
        forward = PatchedForward(self.model, [self.rows.ids[row] for row in batch])
        predicting, gold, _ = predicted(forward, self.rows, batch)
        at = spaced_predictions(predicting, self.most)
        gold, device = gold[at[predicting]].to(self.readout.rows.device), self.readout.rows.device
        places = None if self.places is None else self.places[torch.as_tensor(batch)].to(device)
        soft: Tensor | None = None
        if isinstance(self.soft, Model):
            other = PatchedForward(self.soft, [self.rows.ids[row] for row in batch])
            final = other.streams[-1][at.to(other.streams[-1].device)]
            logits = torch.cat([other.logits(final[chunk]) for chunk in other.chunks(len(final))]).to(device)
            if self.rows.options is not None:
                logits = logits.gather(1, torch.as_tensor(self.rows.options[batch], device=device)).double()
            soft = logits.softmax(-1)
        elif self.soft is not None:
            soft = torch.as_tensor(self.soft[batch], device=device)
        owner = np.asarray(batch)[at.nonzero()[:, 0].cpu().numpy()]
        return Asked(self.readout, forward, at, owner, Target(gold, soft), places)


@dataclass(frozen=True, eq=False)
class Asked:
    """One batch: its clean pass, where it predicts, the row of each prediction, the targets, the options' places."""

    readout: Readout
    forward: PatchedForward
    at: Bool[Tensor, "row token"]
    owner: Int[np.ndarray, " prediction"]
    target: Target
    places: Int[Tensor, "prediction option"] | None

    def z(self, final: Float[Tensor, "row token d"]) -> Float[Tensor, "prediction d"]:
        """Final streams at the predictions, over their norm's statistic."""
        return self.readout.z(self.taken(final))

    def taken(self, stream: Float[Tensor, "row token d"]) -> Float[Tensor, "prediction d"]:
        """A stream at the predictions, in float64."""
        return stream[self.at.to(stream.device)].double().to(self.readout.rows.device)

    def writes(self, group: Sequence[int]) -> Float[Tensor, "prediction member d"]:
        """What blocks write, over the statistic of the clean pass's final norm."""
        streams, outputs = self.forward.streams, self.forward.block_outputs
        written = torch.stack([self.taken(outputs[b]) - self.taken(streams[b]) for b in group], 1)
        return written / self.readout.norm.statistic(self.taken(streams[-1]))[:, None, None]


@dataclass(frozen=True, eq=False)
class Predictions:
    """All predictions of a clean pass, row by row: writes and final streams over the final norm's statistic."""

    readout: Readout
    owner: Int[np.ndarray, " prediction"]
    rows: int
    z: Float[Tensor, "prediction member d"]
    final: Float[Tensor, "prediction d"]
    target: Target
    places: Int[Tensor, "prediction option"] | None

    def by_row(self, x: Tensor | np.ndarray) -> Float[np.ndarray, "row ..."]:
        """Sums over the predictions of every row, float64."""
        x = x.cpu().numpy() if isinstance(x, Tensor) else x
        sums = np.zeros((self.rows, *x.shape[1:]))
        np.add.at(sums, self.owner, x)
        return sums

    def moments(self) -> Moments:
        """Of members, of what is beside them, and of the target."""
        y = self.readout.y(self.z, self.places)
        rest = self.readout.answer_y(self.final, self.places) - y.sum(1)
        terms = torch.cat([y, torch.stack([rest, self.readout.target_y(self.target, self.places)], 1)], 1)
        count = np.bincount(self.owner, minlength=self.rows).astype(float)
        return Moments(self.by_row(terms @ terms.transpose(1, 2)), self.by_row(terms), count)

    def cosines(self) -> Float[np.ndarray, "row 4 pair"]:
        """Of neighbors' writes, and with the second one at another prediction; and how often each is a correction."""
        unit = torch.nn.functional.normalize(self.z, dim=-1)
        other = unit.roll(max(1, len(unit) // 2), 0)  # far away: a text's next token is much like this one
        found = torch.stack([(unit[:, :-1] * after[:, 1:]).sum(-1) for after in (unit, other)], 1)
        return self.by_row(torch.cat([found, (found < CORRECTION).double()], 1))

    def losses(self, parts: Int[np.ndarray, " member"]) -> Float[np.ndarray, "row 2*member+2"]:
        """Cross-entropy with n_p times a member's write in place of its part's, of every member; and so on.

        Then without each member's write; as it is; and without all of them.
        """
        n, part = self.z.shape[1], torch.as_tensor(parts, device=self.z.device)
        same = (part[:, None] == part[None]).double()
        width = len(self.readout.rows) if self.places is None else self.places.shape[1]
        found = []
        for start in range(0, len(self.z), step := max(1, 4 * LOGITS // (n * width))):
            chunk = slice(start, start + step)
            places, target = None if self.places is None else self.places[chunk], self.target[chunk]
            c, logits = self.readout.logits(self.z[chunk], places), self.readout.answer(self.final[chunk], places)
            in_place = same.sum(1).to(c)[:, None] * c - torch.einsum("ij,njk->nik", same.to(c), c)
            alone, without = target.loss(logits[:, None] + in_place), target.loss(logits[:, None] - c)
            as_it_is, rest = target.loss(logits), target.loss(logits - c.sum(1))
            found.append(torch.cat([alone, without, as_it_is[:, None], rest[:, None]], 1))
        return self.by_row(torch.cat(found))


def spaced_predictions(mask: Bool[Tensor, "row token"], most: int) -> Bool[Tensor, "row token"]:
    """Of every row's predictions at most so many, evenly spaced."""
    kept = torch.zeros_like(mask)
    for row, here in enumerate(mask):
        where = here.nonzero()[:, 0]
        kept[row, where[spread(len(where), most)]] = True
    return kept


def measure(question: Question, batch_tokens: int | None) -> Predictions:
    """One clean pass of all rows."""

    def measure_batch(batch: list[int]) -> tuple[np.ndarray, Tensor, Tensor, Target, Tensor | None]:
        asked = question.ask(batch)
        final = asked.z(asked.forward.streams[-1])
        return asked.owner, asked.writes(question.group), final, asked.target, asked.places

    batches = map_batches(question.model, question.rows.ids, batch_tokens, measure_batch)
    owners, z, final, targets, places = zip(*batches, strict=True)
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    target = Target.joined(targets)
    return Predictions(
        readout=question.readout,
        owner=owner[order],
        rows=len(question.rows),
        z=torch.cat(z)[order],
        final=torch.cat(final)[order],
        target=Target(target.places[order], None if target.soft is None else target.soft[order]),
        places=None if question.places is None else torch.cat([p for p in places if p is not None])[order],
    )


def rerun(
    question: Question, runs: Sequence[Run], batch_tokens: int | None
) -> tuple[Float[np.ndarray, "row run"], Float[np.ndarray, "row skip 2"]]:
    """(loss of every run in nats, ⟨δ, c⟩ and |δ|² of every skipped member), sums over each row's predictions.

    δ is what skipping the member takes from the logits, c what it contributed.
    """
    skips = [i for i, run in enumerate(runs) if run.name == "skip"]
    loss = np.zeros((len(question.rows), len(runs)))
    effects = np.zeros((len(question.rows), len(skips), 2))

    def run_batch(batch: list[int], tell: Any) -> None:
        asked, readout = question.ask(batch), question.readout
        clean = readout.y(asked.z(asked.forward.streams[-1]), asked.places)
        for number, run in enumerate(runs):
            z = asked.z(asked.forward.replay(run.slots))
            for chunk in asked.forward.chunks(len(z)):
                places = None if asked.places is None else asked.places[chunk]
                found = asked.target[chunk].loss(readout.answer(z[chunk], places))
                np.add.at(loss[:, number], asked.owner[chunk], found.cpu().numpy())
            if run.name == "skip":
                c = readout.y(asked.writes([question.group[run.member]])[:, 0], asked.places)
                change = clean - readout.y(z, asked.places)
                pair = torch.stack([(change * c).sum(-1), change.square().sum(-1)], 1)
                np.add.at(effects[:, skips.index(number)], asked.owner, pair.cpu().numpy())
            tell(len(batch))

    map_batches(question.model, question.rows.ids, batch_tokens, run_batch, passes=[len(runs)] * len(question.rows))
    return loss, effects
