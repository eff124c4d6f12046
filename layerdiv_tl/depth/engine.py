"""One engine for interventions: it runs rows under patches and reads predictions from the final stream.

The engine runs every batch of rows once unpatched, lets an analysis resume that pass with one change after another, and
reads the logits of the final streams at the rows' positions. It alone handles batches, progress and the size of logits.

Sums over a vocabulary are in float64: in float32, over tens of thousands of tokens, they are off by up to 1e-3 of a
small divergence or change. Blocks of a few rows stay in the processor's cache, where float64 costs less than float32 on
whole tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._progress import Advance, progress
from ..components import Component
from ..ensemble.losses import hits
from ..errors import InputError
from ..model.batches import batches
from ..model.load import Model
from ..model.prompts import Ids
from .inputs import Part
from .patched_forward import LOGITS, Instead, Key, PatchedForward

# Entries of one block of logits: 2 MiB in float64.
_BLOCK = 1 << 18

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences of tokens, and the positions of each, in ascending order, at which the model's predictions are read.

    `answers` are the targets at the positions of every row: one or several tokens, or an option's number where
    predictions are among `options`; None means the next token, −1 at the end of a row.
    """

    ids: Sequence[Ids]
    at: Sequence[Sequence[int]]
    options: Int[np.ndarray, "row option"] | None = None
    answers: Sequence[Any] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def row(self) -> Int[np.ndarray, " position"]:
        """The row of every position that is read."""
        return np.repeat(np.arange(len(self)), [len(at) for at in self.at])

    @cached_property
    def position(self) -> Int[np.ndarray, " position"]:
        """The place of every read position in its row."""
        return np.concatenate([np.asarray(at, dtype=np.int64) for at in self.at])

    @property
    def targets(self) -> Int[np.ndarray, "position *target"]:
        """The target at every read position."""
        if self.answers is not None:
            return np.concatenate([np.asarray(x, dtype=np.int64) for x in self.answers])
        pairs = zip(self.ids, self.at, strict=True)
        return np.array([ids[p + 1] if p + 1 < len(ids) else -1 for ids, at in pairs for p in at], dtype=np.int64)

    def take(self, rows: Sequence[int]) -> Rows:
        """Select some of the rows."""
        options = None if self.options is None else self.options[list(rows)]
        answers = None if self.answers is None else [self.answers[row] for row in rows]
        return Rows([self.ids[row] for row in rows], [self.at[row] for row in rows], options, answers)

    def places(self, forward: PatchedForward) -> Bool[Tensor, "row token"]:
        """Mark the tokens of a pass over these rows that are read."""
        where = torch.zeros_like(forward.tokens)
        where[torch.as_tensor(self.row), torch.as_tensor(self.position)] = True
        return where

    def reduce(self, ufunc: np.ufunc, values: Float[np.ndarray, "position *rest"]) -> Float[np.ndarray, "row *rest"]:
        """Reduce each row's positions by a sum (`np.add`), maximum or product."""
        return np.asarray(ufunc.reduceat(values, np.flatnonzero(np.diff(self.row, prepend=-1))))

    def mean(self, values: Float[np.ndarray, "position *rest"]) -> Float[np.ndarray, "row *rest"]:
        """Average over each row's positions."""
        counts = np.bincount(self.row).reshape(-1, *[1] * (values.ndim - 1))
        return self.reduce(np.add, values) / counts


# Yields the name and the final stream of each patched pass of a batch (`PatchedForward.resume`), in the same order for
# every batch, from its clean pass and its row numbers.
Patches = Callable[[PatchedForward, list[int]], Iterator[tuple[Any, Float[Tensor, "row token d"]]]]
# Given the clean pass's logits and the targets, returns a function that reads a patched pass's logits.
Reading = Callable[[Tensor, Tensor], Callable[[Tensor], Float[Tensor, "quantity position"]]]


def run_patches(
    model: Model, rows: Rows, patches: Patches, reading: Reading, count: int, batch_tokens: int | None = None
) -> tuple[tuple[Any, ...], list[Float[np.ndarray, "position patch"]]]:
    """Return (names of the `count` patches, each quantity that is read of every patched pass), in row order."""

    def measure(batch: list[int], advance: Advance) -> tuple[tuple[Any, ...], Any, Float[np.ndarray, "quantity _ _"]]:
        some, names, finals = rows.take(batch), list[Any](), list[Tensor]()
        clean = PatchedForward(model, some.ids)
        where = some.places(clean)
        for name, final in patches(clean, batch):
            names.append(name)
            finals.append(final[where])
            advance(len(batch))
        found = _read_logits(clean, some, clean.streams[-1][where], finals, reading)
        return tuple(names), np.asarray(batch)[some.row], found

    return gather_rows(model, rows.ids, batch_tokens, measure, count)


def _read_logits(
    clean: PatchedForward, rows: Rows, own: Tensor, finals: Sequence[Float[Tensor, "position d"]], reading: Reading
) -> Float[np.ndarray, "quantity position patch"]:
    """Read the logits of several passes, which are formed for some positions at a time."""
    targets = torch.as_tensor(rows.targets)
    options = None if rows.options is None else torch.as_tensor(rows.options[rows.row])
    step = max(1, LOGITS // clean.path.outputs)  # vectors whose logits may be formed at once
    tables: list[Tensor] = []
    for start in range(0, len(targets), step):
        chunk = slice(start, start + step)

        def answers(streams: Sequence[Tensor], chunk: slice = chunk) -> Iterator[Tensor]:
            """Logits of several passes at some positions, read out as one batch."""
            for logits in clean.logits(torch.cat([x[chunk] for x in streams])).chunk(len(streams)):
                yield logits if options is None else logits.gather(1, options[chunk].to(logits.device))

        (plain,) = answers([own])
        measure = reading(plain, targets[chunk])
        together = max(1, step // len(plain))
        groups = [finals[i : i + together] for i in range(0, len(finals), together)]
        found = [measure(logits).cpu() for group in groups for logits in answers(group)]
        tables.append(torch.stack(found, -1))
    return torch.cat(tables, 1).numpy()


def softmax_change(clean: Float[Tensor, "n v"], targets: Int[Tensor, " n"]) -> Callable[[Tensor], Tensor]:
    """Read ‖softmax − softmax of the clean logits‖₂, and the growth of the targets' cross-entropy in nats."""
    p, clean_loss = _by_rows(_softmax, clean, targets)

    def change(logits: Tensor, targets: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        q, loss = _softmax(logits, targets)
        return q.sub_(p.to(q.device)).norm(dim=-1), loss

    def measure(logits: Tensor) -> Tensor:
        distance, loss = _by_rows(change, logits, targets, p)
        return torch.stack([distance, loss - clean_loss.to(loss.device)])

    return measure


def loss_and_hits(clean: Float[Tensor, "n v"], targets: Int[Tensor, " n"]) -> Callable[[Tensor], Tensor]:
    """Read the targets' cross-entropy in nats and whether they are predicted."""
    return lambda logits: torch.stack(
        [cross_entropy(logits, targets), hits(logits, targets.to(logits.device)).double()]
    )


def map_batches(
    model: Model,
    ids: Sequence[Sequence[int]],
    batch_tokens: int | None,
    measure: Callable[[list[int], Advance], T],
    count: int = 1,
) -> list[T]:
    """Apply `measure(row numbers, advance)` to batches of rows of similar length, without gradients.

    `measure` calls `advance` with the passes that it has made, of `count` for each row.
    """
    limit, switch = batch_tokens or model.batch_tokens, model.path.length_switch
    shown = progress(model.name, count * len(ids), "pass")
    with model.path.session(), torch.no_grad(), shown as advance:
        return [measure(rows, advance) for rows in batches([len(row) for row in ids], limit, switch)]


def gather_rows(
    model: Model,
    ids: Sequence[Sequence[int]],
    batch_tokens: int | None,
    measure: Callable[[list[int], Advance], tuple[tuple[T, ...], Any, Iterable[np.ndarray]]],
    count: int = 1,
) -> tuple[tuple[T, ...], list[np.ndarray]]:
    """Return (what `measure` names, its tables) of all batches, in the order of the rows.

    `measure` returns names, the row of each entry of its tables, and the tables; see `map_batches`. Raises InputError
    where batches differ in names.
    """
    names, rows, parts = zip(*map_batches(model, ids, batch_tokens, measure, count), strict=True)
    if any(own != names[0] for own in names):
        raise InputError(f"{model.name} ran its layers a different number of times for different texts.")
    order = np.argsort(np.concatenate(rows), kind="stable")
    return names[0], [np.concatenate(tables)[order] for tables in zip(*parts, strict=True)]


def tokens_between(forward: PatchedForward, first: Any, stop: Any) -> Bool[Tensor, "row token"]:
    """Mark the tokens at or after `first` and before `stop`; both are numbers, or `[row]`."""
    device = forward.ids.device
    first, stop = (torch.as_tensor(x, device=device).reshape(-1, 1) for x in (first, stop))
    here = torch.arange(forward.ids.shape[1], device=device)
    return ((here >= first) & (here < stop)).expand_as(forward.ids)


def layer_count(model: Model) -> int:
    """Count the layers that a pass runs; a repeated layer counts every time."""
    return len({(writer.block, number) for writer, number in model.path.calls if writer.block is not None})


def layer_components(forward: PatchedForward) -> tuple[Component, ...]:
    """Return the layers in the order in which they run."""
    return tuple(forward.component("layer", block) for block in range(len(forward.layers)))


# The value that a key of `PatchedForward.outputs` takes: at every token `[row, token, width]`, or `[width]` at all.
Values = Callable[[Key], Float[Tensor, "*token width"]]

# These values for a batch of rows; None where all is replaced by zero.
Fill = Callable[[list[int]], Values | None]


def ablation_patch(
    clean: PatchedForward,
    members: Collection[Component],
    values: Values | None = None,
    where: Bool[Tensor, "row token"] | None = None,
) -> Instead:
    """Replace what sublayers, layers or heads hold by `values`, or by zero: at all tokens, or at some."""
    found: dict[Key, Any] = {}
    for block, place in enumerate(clean.layers):
        heads = [c.index for c in members if c.kind == "head" and (c.layer, c.repeat) == place]
        if heads:
            left = None if values is None else values((block, "heads"))
            found[block, "heads"] = partial(_replace_heads, heads, clean.head_count(block), left)
        for part in get_args(Part):
            if clean.component(part, block) in members:
                for key in clean.sublayers(part, block):
                    # Whole outputs are stored as they are added to the stream.
                    left = None if values is None else values(key) / clean.scales[key]
                    found[key] = partial(_replace, left, where)
    return found


def ablate(
    clean: PatchedForward,
    ablations: Iterable[Collection[Component]],
    values: Values | None = None,
    where: Bool[Tensor, "row token"] | None = None,
) -> Iterator[tuple[Any, Float[Tensor, "row token d"]]]:
    """Yield a patched pass for each ablation, named by what it ablates; the unpatched one where that is nothing."""
    for members in ablations:
        patch = ablation_patch(clean, members, values, where)
        start = min((block for block, _ in patch), default=len(clean.layers))
        yield tuple(members), clean.resume(start, [clean.streams[start]], patch)


def by_zero(batch: list[int]) -> None:
    """A `Fill` that replaces everything by zero."""


def score_ablations(
    model: Model,
    rows: Rows,
    ablations: Sequence[Collection[Component]],
    fill: Fill = by_zero,
    batch_tokens: int | None = None,
) -> tuple[Float[np.ndarray, "row ablation"], Float[np.ndarray, "row ablation"]]:
    """Sum cross-entropy in nats, and correct predictions, over each row's predictions, first without any ablation."""

    def patches(clean: PatchedForward, batch: list[int]) -> Iterator[tuple[Any, Tensor]]:
        return ablate(clean, [(), *ablations], fill(batch))

    _, tables = run_patches(model, rows, patches, loss_and_hits, 1 + len(ablations), batch_tokens)
    loss, correct = (rows.reduce(np.add, table) for table in tables)
    return loss, correct


def _replace(
    left: Float[Tensor, "*token width"] | None,
    where: Bool[Tensor, "row token"] | None,
    given: Float[Tensor, "row token width"],
) -> Float[Tensor, "row token width"]:
    left = torch.zeros_like(given) if left is None else left.to(given).expand_as(given)
    return left if where is None else torch.where(where[..., None], left, given)


def _replace_heads(
    heads: Sequence[int | None],
    count: int,
    left: Float[Tensor, "*token value"] | None,
    given: Float[Tensor, "row token value"],
) -> Float[Tensor, "row token value"]:
    """Replace the values of some heads, of a number of them, before their output projection."""
    changed = given.unflatten(-1, (count, -1)).clone()
    changed[:, :, list(heads)] = _replace(left, None, given).unflatten(-1, (count, -1))[:, :, list(heads)]
    return changed.flatten(-2)


def mean_values(
    model: Model,
    ids: Sequence[Ids],
    kinds: Sequence[Int[np.ndarray, " token"]],
    batch_tokens: int | None,
    held: Callable[[PatchedForward], Iterable[tuple[Any, Tensor]]],
    heads: bool = False,
) -> dict[Any, Float[Tensor, "kind _"]]:
    """Average what passes hold over the tokens of each kind: numbers from 0 for every row's tokens, −1 for none."""
    count = max(int(kind.max()) for kind in kinds) + 1
    sums: dict[Any, Tensor] = {}

    def add(batch: list[int], advance: Advance) -> None:
        done = PatchedForward(model, [ids[row] for row in batch], heads)
        own = np.concatenate([kinds[row] for row in batch])
        weight = torch.as_tensor(own[:, None] == np.arange(count)).double()
        for key, value in held(done):
            total = weight.to(value.device).T @ value[done.tokens].double()
            sums[key] = sums[key] + total if key in sums else total
        advance(len(batch))

    map_batches(model, ids, batch_tokens, add)
    tokens = np.bincount(np.concatenate(kinds) + 1, minlength=count + 1)[1:]
    divisor = torch.as_tensor(np.maximum(tokens, 1.0))[:, None]
    return {key: total / divisor.to(total.device) for key, total in sums.items()}


def held_values(done: PatchedForward) -> Iterable[tuple[Key, Float[Tensor, "row token _"]]]:
    """What sublayers add to the stream, and heads' values before their output projection."""
    return done.outputs.items()


def head_means(model: Model, rows: Rows, batch_tokens: int | None) -> dict[Key, Float[Tensor, " value"]]:
    """Average the values of all heads, before their output projection, over the positions where rows are read."""
    kinds = [np.full(len(ids), -1) for ids in rows.ids]
    for kind, at in zip(kinds, rows.at, strict=True):
        kind[list(at)] = 0
    means = mean_values(model, rows.ids, kinds, batch_tokens, held_values, heads=True)
    return {key: mean[0] for key, mean in means.items() if key[1] == "heads"}


def mean_streams(model: Model, ids: Sequence[Ids], batch_tokens: int | None) -> list[Float[Tensor, " d"]]:
    """Average the stream entering every block, over the tokens of all texts."""
    kinds = [np.zeros(len(row), dtype=int) for row in ids]
    means = mean_values(model, ids, kinds, batch_tokens, lambda done: enumerate(done.streams[:-1]))
    return [means[block][0] for block in sorted(means)]


def cross_entropy(logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """−log p of the targets in nats, float64; NaN where a target is negative."""
    return _by_rows(lambda z, t: _softmax(z, t)[1:], logits, targets)[0]


def log_softmax(logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
    """Logarithms of the softmax, float64."""
    return _by_rows(lambda z: (z.double().log_softmax(-1),), logits)[0]


def divergence(logits: Float[Tensor, "n v"], other: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """KL(softmax ‖ other) in nats, float64, `other` as `log_softmax` returns it."""

    def kl(logits: Tensor, other: Tensor) -> tuple[Tensor]:
        z = logits.double() - logits.amax(-1, keepdim=True)
        p = z.exp()
        total = p.sum(-1, keepdim=True)
        # Where p underflows to 0 the log ratio may be −∞, and 0 · −∞ is NaN.
        log_ratio = z.sub_(total.log()).sub_(other).clamp_min_(torch.finfo(torch.float64).min)
        return ((torch.einsum("nv,nv->n", p, log_ratio) / total[:, 0]).clamp_min_(0),)

    return _by_rows(kl, logits, other)[0]


def _softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (softmax, cross-entropy of the targets), float64."""
    logits, targets = logits.double() - logits.amax(-1, keepdim=True), targets.to(logits.device)
    target_logits = logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
    total = logits.exp_().sum(-1)
    return logits.div_(total[:, None]), (total.log() - target_logits).masked_fill(targets < 0, float("nan"))


def _by_rows(function: Callable[..., tuple[Tensor, ...]], *tables: Tensor) -> tuple[Tensor, ...]:
    """Apply a function of tables to a few of their rows at a time, which stay in the processor's cache."""
    step = max(1, _BLOCK // tables[0].shape[1])
    parts = [function(*(x[i : i + step] for x in tables)) for i in range(0, max(1, len(tables[0])), step)]
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))
