"""Rows to be answered, and how well a model answers them when some of its sublayers write nothing."""

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
from ..model import tokenization as reading
from ..model.batches import batches, inference_mode_for, upcast
from ..model.load import Model
from ..model.patched_forward import PatchedForward
from .inputs import Ids, read_texts

Cut = Literal["sublayer", "layer", "attn", "mlp"]
_KINDS: dict[Cut, tuple[Literal["attn", "mlp", "layer"], ...]] = {
    "sublayer": ("attn", "mlp"),
    "layer": ("layer",),
    "attn": ("attn",),
    "mlp": ("mlp",),
}


@dataclass(frozen=True)
class Rows:
    """What a model is asked: a task's prompts and options, or texts whose every next token is asked for.

    options, labels
        `[row, option]` token ids, and `[row]` the gold one's place; None for texts.
    where
        What they are, in words; `digest` the SHA-256 of the token ids, options and labels.
    """

    ids: tuple[Ids, ...]
    options: Int[np.ndarray, "row option"] | None
    labels: Int[np.ndarray, " row"] | None
    where: str
    digest: str

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Sequence[int]) -> Rows:
        """Some of them."""
        some = [int(row) for row in rows]
        options, labels = (None if x is None else x[some] for x in (self.options, self.labels))
        return _rows(tuple(self.ids[row] for row in some), options, labels, self.where)


def read_rows(model: Model, given: Any) -> Rows:
    """A `Task`, or texts as in `sizes`.

    Raises InputError for a text of one token, options that are no single tokens of this model, and labels that
    name no option.
    """
    if not (hasattr(given, "options") and hasattr(given, "labels")):
        texts = tuple(read_texts(model, given, 2, "no other follows to be predicted"))
        return _rows(texts, None, None, "texts")
    if not given.option_ids:
        given = given.resolve(model)
    if model.context is not None:
        given = given.fit(model, model.context)
    ids = tuple(read_texts(model, given))
    options, _ = reading.options(model, given.option_ids, len(ids))
    labels = gold_options(given.labels, (len(ids), 1, options.shape[1]), tuple(given.options))
    return _rows(ids, options, labels, given.name)


def _rows(ids: tuple[Ids, ...], options: Any, labels: Any, where: str) -> Rows:
    told = [ids, *(None if x is None else x.tolist() for x in (options, labels))]
    return Rows(ids, options, labels, where, hashlib.sha256(json.dumps(told).encode()).hexdigest())


@dataclass(frozen=True)
class Scores:
    """Of every row: sums over what it was asked.

    loss, correct
        `[row, set]`: cross-entropy in nats (of the options, or of the vocabulary), and right answers. The first
        set is empty: the model as it is.
    count
        `[row]`: how many answers it gave.
    """

    loss: Float[np.ndarray, "row set"]
    correct: Float[np.ndarray, "row set"]
    count: Float[np.ndarray, " row"]


def ablatable_components(model: Model, ids: Ids, cut: Cut) -> tuple[Component, ...]:
    """The components of a kind that write to the stream, in the order in which they do.

    Raises InputError where there are none.
    """
    choice("part", cut, _KINDS)
    with inference_mode_for(model.architecture):
        replay = PatchedForward(model, [ids])
    found = tuple(
        replay.component(kind, block)
        for block in range(len(replay.layers))
        for kind in _KINDS[cut]
        if replay.zero_ablate(kind, block)
    )
    if not found:
        raise InputError(f"{model.name} has no {cut} that writes to the stream.")
    return found


def scores(model: Model, rows: Rows, sets: Sequence[Collection[Component]], batch_tokens: int | None = None) -> Scores:
    """Losses and right answers of the model as it is, and without each set of sublayers or layers.

    Every batch is run once; what lies before the first silent block of a set is not run again.
    """
    from tqdm.auto import tqdm

    loss, correct = (np.zeros((len(rows), len(sets) + 1)) for _ in range(2))
    count = np.zeros(len(rows))
    lengths = [len(row) for row in rows.ids]
    with (
        inference_mode_for(model.architecture),
        tqdm(total=len(rows), desc=model.name, unit="row", delay=2, leave=False) as progress,
    ):
        for some in batches(lengths, model.checked_batch_tokens(batch_tokens), model.architecture.length_switch):
            replay = PatchedForward(model, [rows.ids[row] for row in some])
            batch = _Batch(replay, rows, some)
            count[some] = batch.counts
            batch.score(replay.streams[-1], loss, correct, 0)
            for number, members in enumerate(sets, start=1):
                batch.score(_without(replay, members), loss, correct, number)
            progress.update(len(some))
    return Scores(loss, correct, count)


def _without(replay: PatchedForward, members: Collection[Component]) -> Tensor:
    """The final stream when these write nothing."""
    instead: dict[Any, Any] = {}
    for block in range(len(replay.layers)):
        for kind in ("attn", "mlp", "layer"):
            if replay.component(kind, block) in members:
                instead |= replay.zero_ablate(kind, block)
    if not instead:
        return replay.streams[-1]
    start = min(block for block, _ in instead)
    return replay.resume(start, replay.streams[start], instead)


class _Batch:
    """Some rows in one pass, and where they are asked."""

    def __init__(self, replay: PatchedForward, rows: Rows, some: Sequence[int]) -> None:
        self.replay, self.rows = replay, list(some)
        real, device = replay.tokens, replay.ids.device
        if rows.options is None:
            following = replay.targets()
            self.asked = torch.zeros_like(real)
            self.asked[real] = following >= 0
            self.targets, self.options = following[following >= 0], None
        else:
            last = real.sum(1) - 1
            self.asked = torch.zeros_like(real)
            self.asked[torch.arange(len(last), device=device), last] = True
            assert rows.labels is not None
            self.targets = torch.as_tensor(rows.labels[self.rows], device=device)
            self.options = torch.as_tensor(rows.options[self.rows], device=device)
        counts = self.asked.sum(1)
        self.counts = counts.cpu().numpy()
        self.owner = np.repeat(self.rows, self.counts)

    def score(self, final: Tensor, loss: np.ndarray, correct: np.ndarray, column: int) -> None:
        """Add the sums over what each row was asked."""
        final = final[self.asked.to(final.device)]
        for chunk in self.replay.chunks(len(final)):
            logits = self.replay.logits(final[chunk])
            targets = self.targets[chunk].to(logits.device)
            if self.options is not None:
                logits = logits.gather(1, self.options[chunk].to(logits.device)).double()
            largest = logits.amax(1, keepdim=True)
            gold = logits.gather(1, targets[:, None])
            lost = (logits - largest).exp_().sum(1).log() - (gold - largest)[:, 0]
            # Of several options that are first, each is right in its share.
            hit = (gold == largest)[:, 0] / (logits == largest).sum(1)
            np.add.at(loss[:, column], self.owner[chunk], upcast(lost).double().cpu().numpy())
            np.add.at(correct[:, column], self.owner[chunk], hit.double().cpu().numpy())
